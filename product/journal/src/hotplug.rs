//! Which CPUs are offline, or have been since an earlier look. The kernel moves the lines of a CPU when
//! it goes offline, and does not move them back when it comes again.
//!
//! A CPU that went and came again between two looks shows that by the directory of its caches: the
//! kernel removes it with the CPU, and makes it anew with another inode number. Where there is no such
//! directory (some guests), only a CPU that is offline at a look is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_machine::CpuSet;

use crate::cpuset::read_list;

/// The kernel's directory of CPUs.
const CPUS: &str = "sys/devices/system/cpu";

/// CPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus {
    online: CpuSet,
    /// The inode numbers of the directories of caches, of the CPUs that have one.
    caches: BTreeMap<u32, u64>,
}

impl Cpus {
    /// The CPUs below `root` now. `None`: it is not known which ones are online.
    pub(crate) fn read(root: &Path) -> Option<Self> {
        let cpus = root.join(CPUS);
        let online = read_list(&cpus.join("online"))?;
        let cache_of = |cpu: u32| {
            let cache = std::fs::metadata(cpus.join(format!("cpu{cpu}/cache"))).ok()?;
            Some((cpu, cache.ino()))
        };
        let caches = online.iter().filter_map(cache_of).collect();
        Some(Self { online, caches })
    }

    /// Adds what a look that came after this one says of `set`: a CPU that was offline here and is
    /// online `now` has not gone since.
    fn add_new(&mut self, now: &Self, set: &CpuSet) {
        let new = now.online.intersection(set).difference(&self.online);
        self.caches.extend(now.caches.iter().filter(|(cpu, _)| new.contains(**cpu)));
        self.online = self.online.union(&new);
    }

    /// These CPUs without those that were offline at the `earlier` look, or have been since.
    fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self.clone() };
        let has_its_cache = |cpu: &u32| {
            let before = earlier.caches.get(cpu);
            before.is_none_or(|before| self.caches.get(cpu) == Some(before))
        };
        let online = self.online.intersection(&earlier.online);
        let online = online.iter().filter(has_its_cache).collect();
        Self { online, caches: self.caches.clone() }
    }

    /// Whether `found` is what the kernel gives a line of which all CPUs, `set`, go offline: the CPUs
    /// that are online then. A CPU that has been online since the `earlier` look is one of them. Another
    /// CPU may be one: where several went, as when the machine is suspended, their order is not known.
    pub(crate) fn explain(&self, found: &CpuSet, set: &CpuSet, earlier: Option<&Self>) -> bool {
        let stayed = self.since(earlier).online;
        let all_went = stayed.intersection(set).is_empty();
        let is_free = found.intersection(&set.intersection(&self.online)).is_empty();
        let has_all = !stayed.is_empty() && stayed.is_subset(found);
        all_went && is_free && has_all
    }
}

/// The looks at CPUs by which a session tells what became of its lines.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The last look below each root.
    last: BTreeMap<PathBuf, Cpus>,
    /// For a line that waits to be set back, by root and number: the look before its CPUs went, without
    /// those that have gone since. The last look came after that, and does not show it.
    waiting: BTreeMap<(PathBuf, u32), Cpus>,
}

impl Looks {
    /// The look since which a line's affinity is to be explained.
    pub(crate) fn of(&self, root: &Path, number: u32) -> Option<&Cpus> {
        self.waiting.get(&(root.to_owned(), number)).or_else(|| self.last.get(root))
    }

    /// A new look below these roots. Where the CPUs cannot be read, the one before stays.
    pub(crate) fn renew(&self, roots: &BTreeSet<&Path>) -> Self {
        let look = |root: &&Path| {
            let cpus = Cpus::read(root).or_else(|| self.last.get(*root).cloned())?;
            Some((root.to_path_buf(), cpus))
        };
        Self { last: roots.iter().filter_map(look).collect(), waiting: BTreeMap::new() }
    }

    /// A line is about to be moved to these CPUs.
    pub(crate) fn note(&mut self, root: &Path, set: &CpuSet) {
        let Some(now) = Cpus::read(root) else { return };
        match self.last.get_mut(root) {
            Some(last) => last.add_new(&now, set),
            None => {
                self.last.insert(root.to_owned(), now);
            }
        }
    }

    /// A line waits: what the `earlier` looks show of its CPUs is kept for the next one.
    pub(crate) fn keep(&mut self, root: &Path, number: u32, earlier: &Self) {
        if let Some(now) = self.last.get(root) {
            let since = now.since(earlier.of(root, number));
            self.waiting.insert((root.to_owned(), number), since);
        }
    }

    /// A line does not wait any more.
    pub(crate) fn settle(&mut self, root: &Path, number: u32) {
        self.waiting.remove(&(root.to_owned(), number));
    }
}
