//! The state of the daemon as a file, which it writes when SIGUSR1 comes: for a daemon that does not
//! answer at its socket, or of which a report is wanted later. It lies beside the socket, replaces the
//! one before, and no other user can read it, since it holds command lines.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_control::Peer;
use schemars::JsonSchema;
use serde::Serialize;

use super::programs::{Programs, Quota};
use crate::clock::{boottime_ns, own_cpu_ns};
use crate::decision::DecisionInWords;
use crate::observe::Accounting;
use crate::private_file;
use crate::status_file::ProgramStatus;

/// The version of [`DaemonState`].
pub const STATE_FORMAT: u32 = 2;

/// What the file holds.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DaemonState {
    /// The version of this document.
    pub format: u32,
    /// The daemon's process.
    pub pid: u32,
    /// When this was written, in nanoseconds on CLOCK_BOOTTIME.
    pub at_ns: u64,
    /// CPU time of the daemon, in nanoseconds.
    pub own_cpu_ns: u64,
    /// The source of the figures.
    pub accounting: Accounting,
    /// Why the source is not cbinfo.
    pub why_not_exact: Option<String>,
    /// The programs of all users, with their last decisions.
    pub programs: Vec<ProgramStatus<DecisionInWords>>,
    /// The programs that ended or left last, in this order.
    pub ended: Vec<ProgramStatus<DecisionInWords>>,
    /// What each user has, and may have.
    pub quotas: Vec<Quota>,
}

impl DaemonState {
    fn of(programs: &mut Programs) -> Self {
        let root = Peer { uid: 0, pid: 0 };
        let status = programs.status(&root);
        let ended = programs.ended(&root);
        let quotas = programs.quotas(&root);
        let observer = programs.balancer().observer();
        Self {
            format: STATE_FORMAT,
            pid: std::process::id(),
            at_ns: boottime_ns(),
            own_cpu_ns: own_cpu_ns(),
            accounting: observer.accounting(),
            why_not_exact: observer.why_not_exact().map(str::to_owned),
            programs: status.iter().map(ProgramStatus::in_words).collect(),
            ended: ended.iter().map(ProgramStatus::in_words).collect(),
            quotas,
        }
    }
}

/// The file of a daemon.
pub(super) struct StateFile {
    path: PathBuf,
    /// The next daemon has another one: a job's.
    ends_with_daemon: bool,
}

impl StateFile {
    /// The file beside this socket, with `-state.json` in place of its ending. It need not exist.
    pub fn beside(socket: &Path, ends_with_daemon: bool) -> Self {
        let stem = socket.file_stem().unwrap_or_default().to_string_lossy();
        let path = socket.with_file_name(format!("{stem}-state.json"));
        Self { path, ends_with_daemon }
    }

    /// Writes it, and logs where it is, or why it cannot be written.
    pub fn write(&self, programs: &mut Programs) {
        let text = serde_json::to_vec_pretty(&DaemonState::of(programs));
        let written = text
            .map_err(std::io::Error::from)
            .and_then(|text| private_file::replace(&self.path, &[&text[..], b"\n"].concat()));
        match written {
            // Whatever the level of the log is: it was asked for.
            Ok(()) => tracing::warn!("SIGUSR1: the state is in {}", self.path.display()),
            Err(why) => tracing::warn!("SIGUSR1: {}: {why}", self.path.display()),
        }
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        if self.ends_with_daemon {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_named_for_the_socket_and_that_of_a_job_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        for (socket, name, stays) in
            [("daemon.sock", "daemon-state.json", true), ("job-7.sock", "job-7-state.json", false)]
        {
            let file = StateFile::beside(&dir.path().join(socket), !stays);
            assert_eq!(file.path, dir.path().join(name));
            fs::write(dir.path().join(name), "{}").unwrap();
            drop(file);
            assert_eq!(dir.path().join(name).exists(), stays, "{name}");
        }
    }
}
