//! What caches hold of the memory that the threads of an address space share, and what misses cost.
//!
//! A core's own caches: a task that begins to run refills what is missing of its memory, and the least
//! recently used memory is evicted. (`evenkeel-lab bench refill` measures that on the host.) Left out:
//! writes by other cores, and memory that is larger than these caches, which misses in every pass
//! anyway.
//!
//! Last-level caches: address spaces that run under one cache at the same time have equal parts of it.
//! A task that begins to run refills what is missing of its space's part at once. Memory beyond that
//! part misses in every pass. All threads write: if a space runs under n caches, each holds valid
//! copies of one n-th of its memory.

use crate::program::SharedMemory;

use super::Kernel;

const MILLI: u64 = 1000;

/// A cache.
#[derive(Debug, Default)]
struct Cache {
    /// The spaces that run under it, each with the number of its CPUs there.
    running: Vec<(u32, u32)>,
    /// What it holds of each space, in KiB, least recently used first.
    held: Vec<(u32, u64)>,
}

impl Cache {
    fn runs(&self, space: u32) -> bool {
        self.running.iter().any(|(other, _)| *other == space)
    }

    fn part_kib(&self, cache_kib: u64) -> u64 {
        cache_kib / self.running.len().max(1) as u64
    }
}

/// All caches of one level.
#[derive(Debug, Default)]
pub(super) struct Caches {
    caches: Vec<Cache>,
    /// The space that runs on each CPU.
    uses: Vec<Option<u32>>,
}

impl Caches {
    /// Caches for this many CPUs.
    pub fn new(caches: usize, cpus: usize) -> Self {
        Self { caches: (0..caches).map(|_| Cache::default()).collect(), uses: vec![None; cpus] }
    }

    /// From now on a CPU of this cache uses the memory of this space, or of none. Returns whether that
    /// is a change.
    fn change(&mut self, cpu: usize, cache: usize, space: Option<u32>) -> bool {
        let Some(before) = self.uses.get_mut(cpu) else { return false };
        if *before == space {
            return false;
        }
        let before = std::mem::replace(before, space);
        let running = &mut self.caches[cache].running;
        if let Some(before) = before {
            running.iter_mut().filter(|(other, _)| *other == before).for_each(|(_, n)| *n -= 1);
            running.retain(|(_, cpus)| *cpus > 0);
        }
        let Some(space) = space else { return true };
        match running.iter_mut().find(|(other, _)| *other == space) {
            Some((_, cpus)) => *cpus += 1,
            None => running.push((space, 1)),
        }
        // Writes here invalidate the copies in caches under which the space does not run.
        let others = self.caches.iter_mut().enumerate().filter(|(at, _)| *at != cache);
        for (_, other) in others.filter(|(_, other)| !other.runs(space)) {
            other.held.retain(|(held, _)| *held != space);
        }
        true
    }

    /// How many KiB a space that begins to run has to refill.
    fn fetch_kib(&mut self, cache: usize, space: u32, memory: SharedMemory, cache_kib: u64) -> u64 {
        let cache = &mut self.caches[cache];
        let wanted = u64::from(memory.kib).min(cache.part_kib(cache_kib));
        let at = cache.held.iter().position(|(held, _)| *held == space);
        let before = at.map_or(0, |at| cache.held.remove(at).1);
        cache.held.push((space, wanted.max(before)));
        let mut excess =
            cache.held.iter().map(|(_, kib)| kib).sum::<u64>().saturating_sub(cache_kib);
        for (_, kib) in &mut cache.held {
            let gone = excess.min(*kib);
            *kib -= gone;
            excess -= gone;
        }
        cache.held.retain(|(_, kib)| *kib > 0);
        wanted.saturating_sub(before)
    }

    /// The part of a space's memory that misses in every pass, in thousandths.
    fn missing_milli(&self, cache: usize, space: u32, memory: SharedMemory, cache_kib: u64) -> u64 {
        let part = self.caches[cache].part_kib(cache_kib);
        let kib = u64::from(memory.kib).max(1);
        let caches = self.caches.iter().filter(|cache| cache.runs(space)).count().max(1) as u64;
        MILLI - part.min(kib) * MILLI / kib / caches
    }
}

impl Kernel {
    /// From now on this task runs on the CPU, or none.
    pub(super) fn use_memory(&mut self, cpu: u32, task: Option<u32>) {
        if self.machine.costs.cache_kib == 0 {
            return;
        }
        let space = task.and_then(|task| {
            let t = &self.tasks[task as usize];
            t.memory.map(|_| t.space)
        });
        let Some(cache) = self.topology.cache(cpu) else { return };
        if !self.caches.change(cpu as usize, cache, space) {
            return;
        }
        for other in 0..self.cpus.len() as u32 {
            if other != cpu && self.caches.uses[other as usize].is_some() {
                self.update_rate(other);
            }
        }
    }

    /// How long a task that begins to run takes to refill caches.
    pub(super) fn fetch_ns(&mut self, cpu: u32, task: u32) -> u64 {
        let costs = self.machine.costs;
        let t = &self.tasks[task as usize];
        let Some(memory) = t.memory else { return 0 };
        let mut ns = 0;
        if let Some(core) = self.topology.core(cpu).filter(|_| costs.near_kib > 0) {
            let kib = self.near_caches.fetch_kib(core, t.space, memory, costs.near_kib);
            // Memory that does not fit misses in every pass anyway.
            let fits = u64::from(memory.kib) <= costs.near_kib;
            ns += if fits { kib * costs.near_fetch_ns } else { 0 };
        }
        if let Some(cache) = self.topology.cache(cpu).filter(|_| costs.cache_kib > 0) {
            ns += self.caches.fetch_kib(cache, t.space, memory, costs.cache_kib) * costs.fetch_ns;
        }
        ns
    }

    /// How much longer work takes because of permanent misses, in thousandths.
    pub(super) fn missing_milli(&self, cpu: u32, task: u32) -> u64 {
        const NS_PER_MS: u64 = 1_000_000;
        let costs = &self.machine.costs;
        let t = &self.tasks[task as usize];
        let (Some(memory), Some(cache)) = (t.memory, self.topology.cache(cpu)) else { return 0 };
        if costs.cache_kib == 0 {
            return 0;
        }
        let missing = self.caches.missing_milli(cache, t.space, memory, costs.cache_kib);
        u64::from(memory.kib_per_ms) * costs.fetch_ns * missing / NS_PER_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE_KIB: u64 = 3000;
    const LARGE: SharedMemory = SharedMemory { kib: 4000, kib_per_ms: 1000 };

    /// Four CPUs, two to a cache.
    fn caches(spaces: [Option<u32>; 4]) -> Caches {
        let mut caches = Caches::new(2, 4);
        for (cpu, space) in spaces.into_iter().enumerate() {
            caches.change(cpu, cpu / 2, space);
        }
        caches
    }

    #[test]
    fn spaces_that_share_a_cache_have_equal_parts() {
        let missing = |spaces, cache| caches(spaces).missing_milli(cache, 1, LARGE, CACHE_KIB);
        assert_eq!(missing([Some(1), None, None, None], 0), 250, "alone");
        assert_eq!(
            missing([Some(1), Some(1), None, None], 0),
            250,
            "with a thread of its own space"
        );
        assert_eq!(missing([Some(1), Some(2), None, None], 0), 625, "with another space");
        assert_eq!(
            missing([Some(1), Some(1), Some(2), Some(2)], 0),
            250,
            "the other space is under another cache"
        );
        assert_eq!(
            missing([Some(1), Some(1), Some(1), Some(1)], 1),
            625,
            "the space also writes under another cache"
        );
    }

    #[test]
    fn memory_is_refilled_once_and_after_an_eviction() {
        let mut caches = caches([Some(1), None, None, None]);
        let small = SharedMemory { kib: 2000, kib_per_ms: 1000 };
        assert_eq!(caches.fetch_kib(0, 1, small, CACHE_KIB), 2000);
        assert_eq!(caches.fetch_kib(0, 1, small, CACHE_KIB), 0, "it is still cached");
        caches.change(0, 0, Some(2));
        assert_eq!(caches.fetch_kib(0, 2, small, CACHE_KIB), 2000);
        caches.change(0, 0, Some(1));
        assert_eq!(caches.fetch_kib(0, 1, small, CACHE_KIB), 1000, "half of it was evicted");
    }

    #[test]
    fn memory_that_was_written_elsewhere_is_refilled() {
        let mut caches = caches([Some(1), None, None, None]);
        caches.fetch_kib(0, 1, LARGE, CACHE_KIB);
        caches.change(0, 0, None);
        caches.change(2, 1, Some(1));
        caches.change(2, 1, None);
        caches.change(0, 0, Some(1));
        assert_eq!(caches.fetch_kib(0, 1, LARGE, CACHE_KIB), CACHE_KIB);
    }
}
