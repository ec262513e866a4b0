//! Which CPUs are offline, or have been since an earlier look. The kernel moves the lines of a CPU when
//! it goes offline, and does not move them back when it comes again.
//!
//! A CPU that went and came again between two looks shows that by the directory of its caches: the
//! kernel removes it with the CPU, and makes it anew with another inode number. Where there is no such
//! directory (some guests), only a CPU that is offline now is seen.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use evenkeel_machine::CpuSet;

use crate::cpuset::read_list;

/// The kernel's directory of CPUs.
const CPUS: &str = "sys/devices/system/cpu";

/// CPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus {
    online: CpuSet,
    /// The inode numbers of the directories of caches; only of some CPUs.
    caches: BTreeMap<u32, u64>,
}

impl Cpus {
    /// The CPUs below `root` now, and of `some` also what shows that they went and came again. `None`:
    /// it is not known which ones are online.
    pub(crate) fn read(root: &Path, some: &CpuSet) -> Option<Self> {
        let online = read_list(&root.join(CPUS).join("online"))?;
        let mut cpus = Self { online, caches: BTreeMap::new() };
        cpus.note(root, some);
        Some(cpus)
    }

    /// Reads of these CPUs, too, what shows later that they went and came again.
    pub(crate) fn note(&mut self, root: &Path, some: &CpuSet) {
        for cpu in some.iter() {
            let cache = std::fs::metadata(root.join(CPUS).join(format!("cpu{cpu}/cache")));
            if let Ok(cache) = cache {
                self.caches.entry(cpu).or_insert(cache.ino());
            }
        }
    }

    /// Whether all of `cpus` are offline, or have been since `earlier`.
    fn all_went(&self, cpus: &CpuSet, earlier: Option<&Self>) -> bool {
        let was_away = |cpu: u32| {
            let before = earlier.and_then(|earlier| earlier.caches.get(&cpu));
            before.is_some_and(|before| self.caches.get(&cpu) != Some(before))
        };
        cpus.iter().all(|cpu| !self.online.contains(cpu) || was_away(cpu))
    }

    /// Whether `found` is what the kernel gives a line of which all CPUs, `set`, go offline: the CPUs
    /// that are online then. Those were online at the `earlier` look as well, and are now.
    pub(crate) fn explain(&self, found: &CpuSet, set: &CpuSet, earlier: Option<&Self>) -> bool {
        let mut stayed = self.online.difference(set);
        if let Some(earlier) = earlier {
            stayed = stayed.intersection(&earlier.online);
        }
        let is_free = found.intersection(&set.intersection(&self.online)).is_empty();
        let has_all = !stayed.is_empty() && stayed.is_subset(found);
        is_free && has_all && self.all_went(set, earlier)
    }
}
