//! What is known about the speed of a CPU, and which of it is used. Data only: `capability` turns it
//! into a capability.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The capability of the fastest CPU, as in the kernel's `SCHED_CAPACITY_SCALE`.
pub const CAPABILITY_SCALE: u32 = 1024;

/// The figures of a CPU's speed, and of its energy, that the kernel shows; `None` where it shows none,
/// or zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SpeedSources {
    /// `cpu_capacity` of sysfs: relative, about 1024 for the fastest.
    pub cpu_capacity: Option<u32>,
    /// `acpi_cppc/highest_perf`: relative, on the firmware's scale. Never set on AMD.
    pub cppc_highest_perf: Option<u32>,
    /// `cpufreq/cpuinfo_max_freq` in kHz, boost included where the driver knows it.
    pub max_freq_khz: Option<u64>,
    /// `bogomips` of `/proc/cpuinfo`.
    pub bogomips: Option<f64>,
    /// The kind of core on a hybrid Intel machine.
    pub core_type: Option<CoreType>,
    /// What a unit of work costs in the CPU's fastest state, by the kernel's energy model: only CPUs of
    /// one machine may be compared.
    pub energy_per_work: Option<u64>,
}

/// The kinds of cores of hybrid Intel machines, by their PMU in `/sys/devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreType {
    /// `cpu_core`: a P-core.
    Performance,
    /// `cpu_atom`: an E-core.
    Efficient,
    /// `cpu_lowpower`: an E-core outside of the compute tile.
    LowPower,
}

/// Which figure is used as the speed of the CPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum SpeedSource {
    /// The first that every online CPU has of `cpu_capacity`, CPPC and maximum frequency; else all
    /// CPUs are taken as equal.
    #[default]
    Auto,
    /// `cpu_capacity` of sysfs: the kernel's own view (Arm, RISC-V, and x86 hybrids since 6.12).
    CpuCapacity,
    /// `acpi_cppc/highest_perf`: the firmware's figure on an abstract scale. Not on AMD.
    Cppc,
    /// `cpufreq/cpuinfo_max_freq`: says nothing about instructions per cycle.
    MaxFrequency,
    /// `bogomips` of `/proc/cpuinfo`: what paper 000 uses. A delay-loop figure, often the same for
    /// CPUs that differ.
    Bogomips,
    /// Relative speeds by CPU as the user gives them, on any scale above 0. A CPU that is not in
    /// the map has speed 1.0, so that `1=0.5` alone means "CPU 1 is half as fast as the others".
    Given(BTreeMap<u32, f64>),
    /// Relative speeds by CPU as measured, on any scale above 0. A CPU that was not measured counts as
    /// the fastest: it is outside our cpuset, and the scale has no 1.0.
    Calibrated(BTreeMap<u32, f64>),
}

/// Which source the capabilities of a [`crate::Machine`] came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpeedOrigin {
    /// `cpu_capacity` of sysfs.
    CpuCapacity,
    /// `acpi_cppc/highest_perf` of sysfs.
    Cppc,
    /// `cpufreq/cpuinfo_max_freq` of sysfs.
    MaxFrequency,
    /// `bogomips` of `/proc/cpuinfo`.
    Bogomips,
    /// No figure for every online CPU: all CPUs are taken as equal.
    Equal,
    /// Given by the user or by a machine file.
    Given,
    /// Measured.
    Calibrated,
}

impl SpeedOrigin {
    /// A CPU's figure of this source; `None` for sources that are not read from the machine.
    pub(crate) fn figure(self, sources: &SpeedSources) -> Option<f64> {
        match self {
            Self::CpuCapacity => sources.cpu_capacity.map(f64::from),
            Self::Cppc => sources.cppc_highest_perf.map(f64::from),
            // A frequency in kHz is far below 2^53: exact.
            Self::MaxFrequency => sources.max_freq_khz.map(|khz| khz as f64),
            Self::Bogomips => sources.bogomips,
            Self::Equal | Self::Given | Self::Calibrated => None,
        }
        .filter(|figure| figure.is_finite() && *figure > 0.0)
    }

    /// What the user can do where a CPU has no such figure.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Self::Cppc => {
                "use auto or max-frequency (on AMD, CPPC holds a rank of preferred cores, not a \
                 speed, and is not read)"
            }
            Self::Bogomips => "this kind of CPU has none in /proc/cpuinfo: use auto",
            _ => "use auto, or give speeds like 0-3=1.0,4-7=0.5",
        }
    }
}

impl fmt::Display for SpeedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CpuCapacity => "cpu-capacity",
            Self::Cppc => "cppc",
            Self::MaxFrequency => "max-frequency",
            Self::Bogomips => "bogomips",
            Self::Equal => "equal",
            Self::Given => "given",
            Self::Calibrated => "calibrated",
        })
    }
}
