//! Prefetches the memory that the next event will touch while this one is handled: with many tasks,
//! most are in no near cache. It changes nothing but the time that a simulation takes.

use crate::agenda::Event;

use super::{Cpu, Kernel, Task};

impl Kernel {
    #[inline]
    pub(super) fn prefetch_next(&self) {
        match self.agenda.peek_current_slot() {
            Some(Event::Wake { task, .. } | Event::Activate { task, .. }) => {
                self.tasks.get(task as usize).map(fetch_task);
            }
            Some(Event::Complete { cpu } | Event::Tick { cpu } | Event::Resched { cpu }) => {
                let Some(cpu) = self.cpus.get(usize::from(cpu)) else { return };
                fetch(cpu, size_of::<Cpu>());
                let next = cpu.curr.or_else(|| cpu.local.front().copied());
                next.and_then(|task| self.tasks.get(task as usize)).map(fetch_task);
            }
            _ => {}
        }
    }
}

/// All of a task but its mask, of which one word is enough.
#[inline]
fn fetch_task(task: &Task) {
    fetch(task, std::mem::offset_of!(Task, allowed));
}

/// Prefetches the first bytes of `what`.
#[inline]
fn fetch<T>(what: &T, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>((&raw const *what).cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (what, bytes);
}
