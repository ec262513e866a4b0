//! What can be wrong with the description of a machine: each error names the thing, the rule that
//! it breaks and, where the user can do something, what to do.

use std::io;
use std::path::PathBuf;

use crate::cpuset::CpuSet;
use crate::speed::SpeedOrigin;

/// Why no machine could be made from a sysfs, a file, a preset or a list of speeds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A sysfs or procfs file is there but holds something that the kernel never writes.
    #[error("{path}: \"{found}\" is not {rule}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content, shortened to 80 characters.
        found: String,
        /// What it should hold.
        rule: &'static str,
    },
    /// There is no CPU, or no CPU that is online.
    #[error("{path} lists no online CPU: give a directory that holds sys/devices/system/cpu")]
    NoCpus {
        /// The directory that was read.
        path: PathBuf,
    },
    /// A machine file cannot be read.
    #[error("cannot read machine file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A machine file is not TOML, or has a field that is unknown, missing or of the wrong type.
    #[error("machine file {file}: {message}")]
    Syntax {
        /// The file, or the name of the preset.
        file: String,
        /// Line, column and expectation, as the TOML reader says it.
        message: String,
    },
    /// A field of a machine file breaks a rule.
    #[error("machine file {file}: {field}: {rule}")]
    Rule {
        /// The file, or the name of the preset.
        file: String,
        /// The field, with the entry where it is a list: `nodes[3].distances`.
        field: String,
        /// The rule, what was found and what would be right.
        rule: String,
    },
    /// No preset has this name.
    #[error("no machine preset \"{name}\": the presets are {known}")]
    UnknownPreset {
        /// The name that was asked for.
        name: String,
        /// The names that there are, comma-separated.
        known: String,
    },
    /// The forced source of speeds has no figure for an online CPU.
    #[error("CPU {cpu} has no {origin} figure: {remedy}")]
    SpeedMissing {
        /// The first CPU without one.
        cpu: u32,
        /// The source that was asked for.
        origin: SpeedOrigin,
        /// What to use instead.
        remedy: &'static str,
    },
    /// A speed was given for a CPU that the machine does not have.
    #[error("speed of CPU {cpu}: the machine has no such CPU: use CPUs {present}")]
    SpeedOfUnknownCpu {
        /// The CPU.
        cpu: u32,
        /// The CPUs that there are.
        present: CpuSet,
    },
    /// A speed is zero, negative, infinite or not a number.
    #[error("speed of CPU {cpu} is {value}: a speed is a finite number above 0, like 0.5")]
    SpeedValue {
        /// The CPU.
        cpu: u32,
        /// The value.
        value: f64,
    },
    /// A list of speeds cannot be read.
    #[error("speed \"{item}\": {rule}")]
    SpeedList {
        /// The part of the list that is wrong.
        item: String,
        /// The rule and the remedy.
        rule: String,
    },
}

impl Error {
    /// A [`Error::Malformed`] with the content shortened.
    pub(crate) fn malformed(path: PathBuf, content: &str, rule: &'static str) -> Self {
        Self::Malformed { path, found: content.chars().take(80).collect(), rule }
    }
}
