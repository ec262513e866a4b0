//! The limits of workloads, and what can be wrong with one.

use std::path::PathBuf;

use super::catalogue;

/// The most tasks of a workload.
pub const MAX_TASKS: usize = 100_000;
/// The largest file that is read.
pub(super) const MAX_FILE_BYTES: u64 = 16 << 20;

/// Why a workload cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("cannot read workload {path}: {source}; shapes are {}", catalogue::names())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("workload {path} has {bytes} bytes: at most {MAX_FILE_BYTES} are read")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A field of a file is wrong.
    #[error("{file}:{line}: {field}: {rule}")]
    Field {
        /// The file.
        file: String,
        /// Counted from 1.
        line: usize,
        /// The field with its path.
        field: String,
        /// What was expected.
        rule: String,
    },
    /// A shape is wrong.
    #[error("workload \"{text}\": {rule}")]
    Shape {
        /// The text of the shape.
        text: String,
        /// What was expected.
        rule: String,
    },
    /// The workload does not fit the machine.
    #[error("workload {workload}: {rule}")]
    Machine {
        /// The workload's name.
        workload: String,
        /// What was expected.
        rule: String,
    },
}
