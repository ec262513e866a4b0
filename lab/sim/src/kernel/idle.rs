//! Idle masks, and the default choice of a CPU (kernel: `ext_idle.c`, `scx_select_cpu_dfl()`). Left
//! out: idle masks per node.

use crate::mask::Mask;
use crate::topology::Topology;

use super::Kernel;

/// `SCX_WAKE_SYNC`.
const SYNC: u64 = 16;

/// The idle CPUs that are not claimed.
pub(super) struct IdleCpus {
    cpus: Mask,
    /// Those of them whose whole core idles; unused without SMT.
    cores: Mask,
}

impl IdleCpus {
    /// All that are online.
    pub fn new(topology: &Topology, online: &Mask) -> Self {
        let mut idle = Self { cpus: online.clone(), cores: Mask::EMPTY };
        (0..topology.cpus() as u32).for_each(|cpu| idle.update_core(cpu, topology, online));
        idle
    }

    pub fn has(&self, cpu: u32) -> bool {
        self.cpus.has(cpu)
    }

    pub fn set(&mut self, cpu: u32, topology: &Topology, online: &Mask) {
        self.cpus.set(cpu);
        self.update_core(cpu, topology, online);
    }

    pub fn clear(&mut self, cpu: u32, topology: &Topology, online: &Mask) {
        self.cpus.clear(cpu);
        self.update_core(cpu, topology, online);
    }

    /// A core idles when all its online CPUs do.
    pub fn update_core(&mut self, cpu: u32, topology: &Topology, online: &Mask) {
        if !topology.has_smt() {
            return;
        }
        let siblings = topology.siblings(cpu);
        let all = siblings.iter().all(|sibling| self.cpus.has(*sibling) || !online.has(*sibling));
        for sibling in siblings {
            if all && self.cpus.has(*sibling) {
                self.cores.set(*sibling);
            } else {
                self.cores.clear(*sibling);
            }
        }
    }

    /// Claims an idle CPU, so that no other task gets it. Returns whether it was idle.
    pub fn claim(&mut self, cpu: u32, topology: &Topology) -> bool {
        if !self.cpus.has(cpu) {
            return false;
        }
        self.cpus.clear(cpu);
        if topology.has_smt() {
            topology.siblings(cpu).iter().for_each(|sibling| self.cores.clear(*sibling));
        }
        true
    }

    /// Claims an idle CPU of an idle core, among the CPUs in both masks. The search begins behind
    /// `last`, and updates it.
    fn claim_core(&mut self, sets: [&Mask; 2], last: &mut u32, topology: &Topology) -> Option<u32> {
        if !topology.has_smt() {
            return None;
        }
        let found = Mask::first_common([sets[0], sets[1], &self.cores], *last + 1)?;
        self.claim(found, topology);
        *last = found;
        Some(found)
    }

    /// Claims any idle CPU, if possible of an idle core.
    fn claim_any(&mut self, sets: [&Mask; 2], last: &mut u32, topology: &Topology) -> Option<u32> {
        if self.cpus.is_empty() {
            return None;
        }
        if let Some(found) = self.claim_core(sets, last, topology) {
            return Some(found);
        }
        let found = Mask::first_common([sets[0], sets[1], &self.cpus], *last + 1)?;
        self.claim(found, topology);
        *last = found;
        Some(found)
    }
}

impl Kernel {
    /// The CPU idles from now on, or still idles after it looked for tasks.
    pub(super) fn set_idle(&mut self, cpu: u32) {
        if self.online.has(cpu) {
            self.idle.set(cpu, &self.topology, &self.online);
        }
    }

    /// Claims any idle CPU of this mask, if possible of an idle core.
    pub(super) fn pick_idle(&mut self, allowed: &Mask) -> Option<u32> {
        let last = &mut self.cpus[self.instance.host.cpu as usize].distributed;
        self.idle.claim_any([allowed, allowed], last, &self.topology)
    }

    /// The kernel's default choice for a waking task: an idle CPU, claimed for it. Its last CPU first,
    /// then a near one, then any.
    pub(super) fn select_cpu_default(&mut self, task: u32, prev: u32, flags: u64) -> Option<u32> {
        let allowed = &self.tasks[task as usize].allowed;
        let (topology, idle) = (&self.topology, &mut self.idle);
        let waker = self.instance.host.cpu;
        let prev_allowed = allowed.has(prev);
        if flags & SYNC != 0 {
            let near = topology.shares_cache(waker, prev);
            if near && prev_allowed && idle.claim(prev, topology) {
                return Some(prev);
            }
            let waker_is_free = self.cpus[waker as usize].local.is_empty();
            if waker_is_free && allowed.has(waker) && idle.cpus.intersects(&self.online) {
                return Some(waker);
            }
        }
        let last = &mut self.cpus[waker as usize].distributed;
        let areas = [topology.cache_mask(prev), topology.node_mask(prev), allowed];
        if prev_allowed && idle.cores.has(prev) && idle.claim(prev, topology) {
            return Some(prev);
        }
        let in_core = |area: &&Mask| idle.claim_core([area, allowed], last, topology);
        if let Some(cpu) = areas.iter().find_map(in_core) {
            return Some(cpu);
        }
        if prev_allowed && idle.claim(prev, topology) {
            return Some(prev);
        }
        areas.iter().find_map(|area| idle.claim_any([area, allowed], last, topology))
    }

    /// The first online CPU from this one on.
    pub(super) fn online_from(&self, cpu: u32) -> Option<u32> {
        Mask::first_common([&self.online], cpu)
    }
}
