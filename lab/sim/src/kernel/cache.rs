//! What caches hold of the memory that address spaces share, and what is missing there.
//!
//! A core's own caches are simple: who comes fetches what the last-level cache has to give it, unless it is
//! still there; what has not been used for longest has to go. (`evenkeel-lab bench refill` measures that on the
//! host. That others have written to it meanwhile is left out, and so is memory that is larger than these
//! caches, which is fetched in every pass whoever runs in between.) The rest is about the last-level caches.
//!
//! Address spaces that run under a cache at the same time have an equal part of it each; of memory that is
//! larger than that, the rest is fetched in every pass. Who comes fetches what is not there of its part,
//! at once. All threads write: a space that runs under several caches finds of its memory there what the
//! others have not written since, one of as many parts as there are caches.

use crate::program::SharedMemory;

use super::Kernel;

const MILLI: u64 = 1000;

/// One cache.
#[derive(Debug, Default)]
struct Cache {
    /// The spaces that run under it, and on how many of its CPUs.
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

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Caches {
    caches: Vec<Cache>,
    /// By CPU, whose memory is used there.
    uses: Vec<Option<u32>>,
}

impl Caches {
    /// For so many caches and CPUs.
    pub fn new(caches: usize, cpus: usize) -> Self {
        Self { caches: (0..caches).map(|_| Cache::default()).collect(), uses: vec![None; cpus] }
    }

    /// The CPU of this cache uses the memory of another space from now on, or none. Returns whether it did
    /// not before.
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
        // What caches hold of it where it does not run is out of date once it is written here.
        let others = self.caches.iter_mut().enumerate().filter(|(at, _)| *at != cache);
        for (_, other) in others.filter(|(_, other)| !other.runs(space)) {
            other.held.retain(|(held, _)| *held != space);
        }
        true
    }

    /// What has to be fetched for a space that has come, in KiB.
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

    /// How much of what a space's threads use is not in the cache, in thousandths.
    fn missing_milli(&self, cache: usize, space: u32, memory: SharedMemory, cache_kib: u64) -> u64 {
        let part = self.caches[cache].part_kib(cache_kib);
        let kib = u64::from(memory.kib).max(1);
        let caches = self.caches.iter().filter(|cache| cache.runs(space)).count().max(1) as u64;
        MILLI - part.min(kib) * MILLI / kib / caches
    }
}

impl Kernel {
    /// This task runs on the CPU from now on, or none with memory that counts.
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
                self.rate_anew(other);
            }
        }
    }

    /// What a task that begins to run has to fetch first, in ns.
    pub(super) fn fetch_ns(&mut self, cpu: u32, task: u32) -> u64 {
        let costs = self.machine.costs;
        let t = &self.tasks[task as usize];
        let Some(memory) = t.memory else { return 0 };
        let mut ns = 0;
        if let Some(core) = self.topology.core(cpu).filter(|_| costs.near_kib > 0) {
            let kib = self.near_caches.fetch_kib(core, t.space, memory, costs.near_kib);
            // What does not fit is fetched in every pass anyway.
            let fits = u64::from(memory.kib) <= costs.near_kib;
            ns += if fits { kib * costs.near_fetch_ns } else { 0 };
        }
        if let Some(cache) = self.topology.cache(cpu).filter(|_| costs.cache_kib > 0) {
            ns += self.caches.fetch_kib(cache, t.space, memory, costs.cache_kib) * costs.fetch_ns;
        }
        ns
    }

    /// What a task has to fetch all the time, in thousandths of its work.
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
    fn who_shares_a_cache_has_a_part_of_it() {
        let missing = |spaces, cache| caches(spaces).missing_milli(cache, 1, LARGE, CACHE_KIB);
        assert_eq!(missing([Some(1), None, None, None], 0), 250, "alone");
        assert_eq!(missing([Some(1), Some(1), None, None], 0), 250, "with a sibling");
        assert_eq!(missing([Some(1), Some(2), None, None], 0), 625, "with another one");
        assert_eq!(missing([Some(1), Some(1), Some(2), Some(2)], 0), 250, "another cache's");
        assert_eq!(missing([Some(1), Some(1), Some(1), Some(1)], 1), 625, "written elsewhere, too");
    }

    #[test]
    fn what_is_held_is_fetched_once_and_pushed_out_by_others() {
        let mut caches = caches([Some(1), None, None, None]);
        let small = SharedMemory { kib: 2000, kib_per_ms: 1000 };
        assert_eq!(caches.fetch_kib(0, 1, small, CACHE_KIB), 2000);
        assert_eq!(caches.fetch_kib(0, 1, small, CACHE_KIB), 0, "it is there");
        caches.change(0, 0, Some(2));
        assert_eq!(caches.fetch_kib(0, 2, small, CACHE_KIB), 2000);
        caches.change(0, 0, Some(1));
        assert_eq!(caches.fetch_kib(0, 1, small, CACHE_KIB), 1000, "half of it had to go");
    }

    #[test]
    fn what_is_written_elsewhere_is_fetched_anew() {
        let mut caches = caches([Some(1), None, None, None]);
        caches.fetch_kib(0, 1, LARGE, CACHE_KIB);
        caches.change(0, 0, None);
        caches.change(2, 1, Some(1));
        caches.change(2, 1, None);
        caches.change(0, 0, Some(1));
        assert_eq!(caches.fetch_kib(0, 1, LARGE, CACHE_KIB), CACHE_KIB);
    }
}
