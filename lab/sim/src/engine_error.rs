//! Why a job engine cannot run a sweep.

use std::io;
use std::path::PathBuf;

/// Why an engine cannot run a sweep.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A program of the engine is not installed.
    #[error("{program} cannot be started ({source}): {remedy}")]
    NotInstalled {
        /// What is missing.
        program: String,
        /// What the system says.
        source: io::Error,
        /// The package, and the command that installs it.
        remedy: &'static str,
    },
    /// The engine refuses, or ended early.
    #[error("{what}: {why}")]
    Failed {
        /// What was done.
        what: String,
        /// What the engine says.
        why: String,
    },
    /// Jobs of an earlier command still write rows for this file.
    #[error(
        "Slurm's job {job} still makes rows for {path}: end it (scancel {job}), or wait for it by the \
         same command with --on slurm"
    )]
    StillRuns {
        /// The job's number.
        job: String,
        /// The result file.
        path: PathBuf,
    },
}

impl EngineError {
    /// What failed, and the last lines of what the engine says of it.
    pub(crate) fn failed(what: &str, said: &[u8]) -> Self {
        const LINES: usize = 3;
        let said = String::from_utf8_lossy(said);
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LINES)..];
        let why = if last.is_empty() { "it says nothing".to_owned() } else { last.join("; ") };
        Self::Failed { what: what.to_owned(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_quoted_by_its_last_words() {
        let said = |text: &str| EngineError::failed("sbatch", text.as_bytes()).to_string();
        assert_eq!(said("a\n\nb\nc\nd\n"), "sbatch: b; c; d");
        assert_eq!(said(" \n"), "sbatch: it says nothing");
    }
}
