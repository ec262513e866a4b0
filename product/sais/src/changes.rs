//! CPUs that go offline and come back, as the kernel tells it (bpf/sais/hotplug.h): before any other
//! process can see it, and also when none has looked meanwhile.

use evenkeel_machine::CpuSet;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object};

use crate::layout::MAX_CPUS;
use crate::object::{ObjectError, bpf, map};

/// `changes`: a number for each CPU, odd while it goes or is gone.
const CHANGES: &str = ".data.changes";

/// How often each CPU began to go or to come, and what is known of that by now.
pub(crate) struct Changes {
    map: MapHandle,
    known: Vec<u32>,
}

/// What has changed.
pub(crate) struct Change {
    /// These have gone or come since it was asked for last, or both.
    pub changed: CpuSet,
    /// These go offline, or have gone.
    pub leaving: CpuSet,
}

impl Changes {
    pub(crate) fn new(object: &Object) -> Result<Self, ObjectError> {
        Ok(Self { map: map::<[u32; MAX_CPUS]>(object, CHANGES)?, known: vec![0; MAX_CPUS] })
    }

    /// By now.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn read(&self) -> Result<Vec<u32>, ObjectError> {
        let read = self.map.lookup(&[0; 4], MapFlags::ANY).map_err(bpf("reading which CPUs go"))?;
        let read = read.unwrap_or_default();
        let each = read.chunks_exact(size_of::<u32>()).map(bytemuck::try_pod_read_unaligned);
        each.collect::<Result<_, _>>().map_err(|_| ObjectError::Mismatch(CHANGES))
    }

    /// Since the last call, or the beginning.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn since(&mut self) -> Result<Change, ObjectError> {
        let now = self.read()?;
        let pairs = (0..).zip(self.known.iter().zip(&now));
        let changed = pairs.filter(|(_, (before, now))| before != now).map(|(cpu, _)| cpu);
        let change = Change { changed: changed.collect(), leaving: leaving(&now) };
        self.known = now;
        Ok(change)
    }
}

/// The CPUs that go offline, or have gone.
pub(crate) fn leaving(changes: &[u32]) -> CpuSet {
    (0..).zip(changes).filter(|(_, changes)| *changes % 2 == 1).map(|(cpu, _)| cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_came_back_do_not_leave() {
        assert_eq!(leaving(&[0, 1, 2, 7]), "1,3".parse().unwrap());
    }
}
