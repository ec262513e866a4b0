//! Status files: what a balancer publishes about its program for `status` and `explain`, one small file
//! for each balancer.
//!
//! It is a file and not a socket, so that a balancer that is busy, stopped or dying can still be
//! looked at, at no cost to it. The file lies beside the journal, is replaced as a whole, can be read
//! by its user alone (it holds a command line), and is removed at the end. The file of a dead balancer
//! is ignored and removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_journal::TaskRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::boottime_ns;
use crate::decision::{Decision, DecisionInWords};
use crate::observe::Accounting;
use crate::options::Placement;
use crate::private_file;
use crate::proof::Gain;
use crate::shares::SharesStatus;
use crate::summary::CpuSummary;
use crate::waits::{ThreadTimes, Waits};

/// A balanced program, as its balancer publishes it. `D` is a decision: a value, or in words.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ProgramStatus<D = Decision> {
    /// The balancer's process.
    pub balancer: TaskRef,
    /// The program's number in the daemon; `None`: the balancer is `evenkeel run`.
    pub program: Option<u32>,
    /// The program's first process.
    pub root: u32,
    /// Its user.
    #[serde(default)]
    pub user: Option<u32>,
    /// When it was started, in nanoseconds on CLOCK_BOOTTIME.
    #[serde(default)]
    pub started_ns: Option<u64>,
    /// For how long it has run, where that was asked for ([`ProgramStatus::elapsed_ns`]).
    #[serde(default)]
    pub elapsed_ns: Option<u64>,
    /// When its balancing ended, since the program ended or left, in nanoseconds on CLOCK_BOOTTIME;
    /// `None`: it is balanced.
    #[serde(default)]
    pub ended_ns: Option<u64>,
    /// Its command line.
    pub command: Vec<String>,
    /// The source of the figures.
    pub accounting: Accounting,
    /// How tasks are placed.
    pub placement: Placement,
    /// The program is only observed.
    pub dry_run: bool,
    /// Balancing gains nothing at the moment, so nothing is loaded for a while: the figures are older.
    #[serde(default)]
    pub resting: bool,
    /// Intervals so far.
    pub intervals: u64,
    /// Moves so far.
    pub moves: u64,
    /// Tasks that are no longer moved, because their user or `undo --force` set their mask.
    #[serde(default)]
    pub yielded: u64,
    /// What the moves gained, as far as it was measured.
    #[serde(default)]
    pub gain: Gain,
    /// What `--shares` does; none without.
    #[serde(default)]
    pub shares: Option<SharesStatus>,
    /// The CPUs so far.
    pub cpus: Vec<CpuSummary>,
    /// How the program waited in the last seconds.
    #[serde(default)]
    pub waits: Waits,
    /// Where the time of each thread went in the same time.
    #[serde(default)]
    pub threads: Vec<ThreadTimes>,
    /// The last decisions, oldest first.
    pub decisions: Vec<D>,
}

impl ProgramStatus {
    /// For how long its first process has run, or ran, until now or until its balancing ended.
    pub fn elapsed_ns(&self) -> Option<u64> {
        let until_ns = self.ended_ns.unwrap_or_else(boottime_ns);
        self.started_ns.map(|started_ns| until_ns.saturating_sub(started_ns))
    }

    /// How long ago its balancing ended; `None`: it is balanced.
    pub fn ended_ago_ns(&self) -> Option<u64> {
        self.ended_ns.map(|ended_ns| boottime_ns().saturating_sub(ended_ns))
    }

    /// The same with decisions as text and with the elapsed time: what `--json` prints.
    pub fn in_words(&self) -> ProgramStatus<DecisionInWords> {
        ProgramStatus {
            balancer: self.balancer,
            program: self.program,
            root: self.root,
            user: self.user,
            started_ns: self.started_ns,
            elapsed_ns: self.elapsed_ns(),
            ended_ns: self.ended_ns,
            command: self.command.clone(),
            accounting: self.accounting,
            placement: self.placement,
            dry_run: self.dry_run,
            resting: self.resting,
            intervals: self.intervals,
            moves: self.moves,
            yielded: self.yielded,
            gain: self.gain.clone(),
            shares: self.shares.clone(),
            cpus: self.cpus.clone(),
            waits: self.waits.clone(),
            threads: self.threads.clone(),
            decisions: self.decisions.iter().map(Decision::in_words).collect(),
        }
    }
}

/// A status file cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
pub struct StatusFileError {
    /// The file or its folder.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Where status files are, and the sockets of runs.
pub fn folder(dir: &Path) -> PathBuf {
    dir.join("run")
}

/// The status file of one balancer; removed when dropped.
#[derive(Debug)]
pub(crate) struct StatusFile {
    path: PathBuf,
}

impl StatusFile {
    pub(crate) fn create(dir: &Path, balancer: &TaskRef) -> Result<Self, StatusFileError> {
        let folder = folder(dir);
        private_file::create_folder(&folder)
            .map_err(|source| StatusFileError { path: folder.clone(), source })?;
        Ok(Self { path: folder.join(format!("{}.json", balancer.tid)) })
    }

    pub(crate) fn write(&self, status: &ProgramStatus) -> Result<(), StatusFileError> {
        let fail = |source| StatusFileError { path: self.path.clone(), source };
        let text = serde_json::to_vec(status).map_err(|error| fail(error.into()))?;
        private_file::replace(&self.path, &text).map_err(fail)
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        // Fails where it was never written. One that stays is ignored, since its balancer is dead.
        let _ = fs::remove_file(&self.path);
    }
}

/// The status of every program with a balancer of its own that is alive, by the balancer's process
/// number. Files of dead balancers are removed, also those that a killed one was just writing, and
/// their sockets.
///
/// # Errors
/// The folder exists but cannot be read. Single damaged files are left out.
pub fn read_status_files(dir: &Path) -> Result<Vec<ProgramStatus>, StatusFileError> {
    let folder = folder(dir);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(StatusFileError { path: folder, source }),
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_half_written = private_file::is_half_written(&path);
        if is_half_written || is_socket(&path) {
            if is_writer_alive(&path) {
                continue;
            }
            if is_half_written {
                let _ = fs::remove_file(&path);
            } else {
                // A balancer that lives in another PID namespace has no number here, but answers.
                evenkeel_control::remove_dead(&path);
            }
            continue;
        }
        let Ok(bytes) = fs::read(&path) else { continue };
        match serde_json::from_slice::<ProgramStatus>(&bytes) {
            Ok(status) if status.balancer.is_alive() => found.push(status),
            Ok(_) => {
                let _ = fs::remove_file(&path);
            }
            Err(error) => tracing::warn!("{}: {error}", path.display()),
        }
    }
    found.sort_by_key(|status| status.balancer.tid);
    Ok(found)
}

/// Whether this is where `evenkeel run` answers.
fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sock")
}

/// Whether there is a process with the number that a file is named by. (After a reuse of the number the
/// file stays until that process ends.)
fn is_writer_alive(path: &Path) -> bool {
    let pid = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
    pid.is_some_and(|pid| TaskRef::of(pid).is_ok_and(|task| task.is_alive()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Regression: what a balancer had written of its file when it was killed stayed for ever.
    #[test]
    fn half_a_file_of_a_dead_balancer_is_removed_and_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        private_file::create_folder(&folder(dir.path())).unwrap();
        let alive = folder(dir.path()).join(format!("{}.new", std::process::id()));
        // Above the largest number of a process.
        let dead = folder(dir.path()).join("4194305.new");
        let socket = folder(dir.path()).join("4194305.sock");
        for path in [&alive, &dead] {
            fs::write(path, "{\"balancer\"").unwrap();
        }
        drop(UnixListener::bind(&socket).unwrap());
        let answers = folder(dir.path()).join("4194306.sock");
        let _balancer_elsewhere = UnixListener::bind(&answers).unwrap();
        assert!(read_status_files(dir.path()).unwrap().is_empty());
        assert!(alive.exists() && !dead.exists() && !socket.exists());
        assert!(answers.exists(), "the socket of a balancer that lives was removed");
    }
}
