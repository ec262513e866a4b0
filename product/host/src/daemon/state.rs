//! The state of the daemon as a file, which it writes when SIGUSR1 comes: for a daemon that does not
//! answer at its socket, or of which a report is wanted later. It lies beside the socket, replaces the
//! one before, and no other user can read it, since it holds command lines. The report may be made after
//! a restart of the daemon, so the file stays at the daemon's end, until `evenkeel undo`.

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

/// The end of the file's name, in place of the socket's `.sock`.
const STATE_END: &str = "-state.json";

/// Removes the states of daemons that have ended: those that have no socket.
pub fn remove_states_of_ended(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let stem = name.to_str().and_then(|name| name.strip_suffix(STATE_END));
        if stem.is_some_and(|stem| !dir.join(format!("{stem}.sock")).exists()) {
            let _ = fs::remove_file(entry.path());
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
    /// The file beside this socket. It need not exist.
    pub fn beside(socket: &Path, ends_with_daemon: bool) -> Self {
        let stem = socket.file_stem().unwrap_or_default().to_string_lossy();
        let path = socket.with_file_name(format!("{stem}{STATE_END}"));
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

    #[test]
    fn the_states_of_ended_daemons_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let stay = ["daemon.json", "job-8-state.json", "job-8.sock"];
        for name in [&stay[..], &["daemon-state.json", "job-7-state.json"]].concat() {
            fs::write(dir.path().join(name), "{}").unwrap();
        }
        remove_states_of_ended(dir.path());
        let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, stay);
        remove_states_of_ended(&dir.path().join("absent"));
    }
}
