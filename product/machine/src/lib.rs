//! The machine: its CPUs with SMT, caches, NUMA nodes and capability, read from a sysfs
//! ([`Machine::from_sysfs`]), from a file ([`Machine::from_toml`], [`Machine::from_hwloc`]) or taken
//! from a preset ([`Machine::preset`]). Reads only the named files, and writes nothing.
//!
//! | file | what it holds |
//! |---|---|
//! | `machine` | the machine: CPUs, nodes, distances |
//! | `cpuset` | a set of CPUs, and the kernel's list format |
//! | `speed` | what is known about the speed of a CPU |
//! | `capability` | from speeds to capabilities, and `--speed` |
//! | `energy` | which CPUs need less energy for their work |
//! | `costs` | what scheduling costs, for simulations |
//! | `groups` | cores and cache domains from "shares with" sets |
//! | `sysfs` | machines from /sys and /proc, or a dump of them |
//! | `hotplug` | the same machine read again after CPUs came or went |
//! | `machine_file` | machines from and to TOML files |
//! | `preset` | machines that come with evenkeel |
//! | `hwloc` | machines from `lstopo --of xml` |
//! | `error` | what can be wrong with any of these |
//!
//! `scx_utils::Topology` is not used here because it reads one process-wide root and sizes its
//! masks by the live machine, so that it can read neither fixtures nor presets.

mod capability;
mod costs;
mod cpuset;
mod energy;
mod error;
mod groups;
mod hotplug;
mod hwloc;
mod machine;
mod machine_file;
mod preset;
mod speed;
mod sysfs;

pub use costs::Costs;
pub use cpuset::{CpuListError, CpuSet, MAX_CPU};
pub use energy::{EnergyOrigin, EnergyRanks};
pub use error::Error;
pub use machine::{Cpu, LOCAL_DISTANCE, MAX_DISTANCE, Machine, Node, REMOTE_DISTANCE};
pub use preset::PRESETS;
pub use speed::{CAPABILITY_SCALE, CoreType, SpeedOrigin, SpeedSource, SpeedSources};
