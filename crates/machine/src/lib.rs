//! What a machine is: CPUs, SMT, caches, NUMA distances and capability, from sysfs, a file or a
//! preset.

mod cpuset;

pub use cpuset::{CpuListError, CpuSet, MAX_CPU};
