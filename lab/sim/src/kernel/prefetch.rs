//! What the next event will touch is fetched while this one is handled: of many tasks most lie in no near
//! cache. Changes nothing but the time that it takes.

use crate::agenda::Event;

use super::{Cpu, Kernel, Task};

impl Kernel {
    #[inline]
    pub(super) fn look_ahead(&self) {
        match self.agenda.coming() {
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

/// All but the CPUs that it may use, of which one word is enough.
#[inline]
fn fetch_task(task: &Task) {
    fetch(task, std::mem::offset_of!(Task, allowed));
}

/// The first bytes of something.
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
