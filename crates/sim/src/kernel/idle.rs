//! Which CPUs idle, and which of them a task gets (kernel: `ext_idle.c`).

use crate::mask::Mask;

use super::Kernel;

/// `SCX_WAKE_SYNC`.
const SYNC: u64 = 16;

impl Kernel {
    /// The CPU idles from now on, or still does after having looked for work.
    pub(super) fn set_idle(&mut self, cpu: u32) {
        if self.online.has(cpu) {
            self.idle.set(cpu);
            self.update_idle_core(cpu);
        }
    }

    pub(super) fn clear_idle(&mut self, cpu: u32) {
        self.idle.clear(cpu);
        self.update_idle_core(cpu);
    }

    /// A core idles when all of its CPUs do.
    pub(super) fn update_idle_core(&mut self, cpu: u32) {
        let siblings = self.layout.siblings(cpu);
        let all =
            siblings.iter().all(|sibling| self.idle.has(*sibling) || !self.online.has(*sibling));
        for sibling in siblings {
            if all && self.idle.has(*sibling) {
                self.idle_cores.set(*sibling);
            } else {
                self.idle_cores.clear(*sibling);
            }
        }
    }

    /// Takes an idle CPU, so that nobody else gets it; whether it was idle.
    pub(super) fn claim_idle(&mut self, cpu: u32) -> bool {
        if !self.idle.has(cpu) {
            return false;
        }
        self.idle.clear(cpu);
        for sibling in self.layout.siblings(cpu) {
            self.idle_cores.clear(*sibling);
        }
        true
    }

    /// Any idle CPU in all of these sets, in an idle core if there is one.
    pub(super) fn pick_idle(&mut self, sets: &[&Mask]) -> Option<u32> {
        let this = self.instance.host.cpu as usize;
        let start = self.cpus[this].distributed + 1;
        let in_cores = |cores: &Mask| {
            let mut all = sets.to_vec();
            all.push(cores);
            Mask::first_common(&all, start)
        };
        let found = self
            .layout
            .has_smt()
            .then(|| in_cores(&self.idle_cores))
            .flatten()
            .or_else(|| in_cores(&self.idle))?;
        self.cpus[this].distributed = found;
        self.claim_idle(found);
        Some(found)
    }

    /// The kernel's choice for a waking task: its last CPU, a near one, or any one; idle, and claimed
    /// for it.
    pub(super) fn select_cpu_default(&mut self, task: u32, prev: u32, flags: u64) -> Option<u32> {
        let allowed = (*self.tasks[task as usize].allowed).clone();
        let waker = self.instance.host.cpu;
        let prev_allowed = allowed.has(prev);
        if flags & SYNC != 0 {
            let near = self.layout.shares_cache(waker, prev);
            if near && prev_allowed && self.claim_idle(prev) {
                return Some(prev);
            }
            let waker_is_free = self.cpus[waker as usize].local.is_empty();
            if waker_is_free && allowed.has(waker) && self.idle.intersects(&self.online) {
                return Some(waker);
            }
        }
        let cache = self.layout.cache_mask(prev).and(&allowed);
        let node = self.layout.node_mask(prev).and(&allowed);
        if self.layout.has_smt() {
            if prev_allowed && self.idle_cores.has(prev) && self.claim_idle(prev) {
                return Some(prev);
            }
            let cores = self.idle_cores.clone();
            for area in [&cache, &node, &allowed] {
                if let Some(cpu) = self.pick_idle(&[area, &cores]) {
                    return Some(cpu);
                }
            }
        }
        if prev_allowed && self.claim_idle(prev) {
            return Some(prev);
        }
        [&cache, &node, &allowed].into_iter().find_map(|area| self.pick_idle(&[area]))
    }

    /// The first CPU that is online, from this one on.
    pub(super) fn online_from(&self, cpu: u32) -> Option<u32> {
        Mask::first_common(&[&self.online], cpu)
    }
}
