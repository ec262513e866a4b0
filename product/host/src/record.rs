//! What runs now, and why it did what it did: one small file a run, for `status` and `explain`.
//!
//! A file and not a socket: a balancer that is busy, stopped or just dying can still be asked, and
//! costs nothing to ask. It lies beside the journal, is replaced as a whole, and is removed at the
//! end; one whose writer is gone is not believed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_capability::{Plan, Snapshot, average_per_mille};
use evenkeel_journal::TaskRef;
use serde::{Deserialize, Serialize};

use crate::balancer::Placement;
use crate::observe::Accounting;
use crate::summary::CpuSummary;

/// One decision as it is shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decision {
    /// Monotonic clock.
    pub at_ns: u64,
    /// Length of the interval that was judged.
    pub interval_ns: u64,
    /// Average capability of the CPUs in it, in thousandths.
    pub average_per_mille: u64,
    /// One line for each CPU: its number, what it gave (thousandths), tasks of the program on it.
    pub cpus: Vec<(u32, u64, usize)>,
    /// What happened to the CPUs.
    #[serde(default)]
    pub news: Vec<String>,
    /// One line for each move.
    pub moves: Vec<String>,
    /// Why nothing (more) was done.
    pub reasons: Vec<String>,
    /// What was refused, and why.
    pub refused: Vec<String>,
}

impl Decision {
    pub(crate) fn new(
        at_ns: u64,
        plan: Plan,
        snapshot: &Snapshot,
        news: Vec<String>,
        refused: Vec<String>,
    ) -> Self {
        let cpus = snapshot.cpus.iter().map(|cpu| {
            let tasks = snapshot.tasks.iter().filter(|task| task.cpu == cpu.cpu && task.runnable);
            let given = cpu.effective_ns(snapshot.interval_ns) * 1000 / snapshot.interval_ns.max(1);
            (cpu.cpu, given, tasks.count())
        });
        Self {
            at_ns,
            interval_ns: snapshot.interval_ns,
            average_per_mille: average_per_mille(snapshot),
            cpus: cpus.collect(),
            news,
            moves: plan
                .moves
                .iter()
                .map(|made| {
                    format!(
                        "task {} from CPU {} to CPU {}: {}",
                        made.task.tid, made.from, made.to, made.reason
                    )
                })
                .collect(),
            reasons: plan.reasons.iter().map(ToString::to_string).collect(),
            refused,
        }
    }

    /// Nothing happened, nothing was done and nothing was refused.
    pub(crate) fn is_rest(&self) -> bool {
        self.news.is_empty() && self.moves.is_empty() && self.refused.is_empty()
    }
}

/// A run as others see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The balancer's process.
    pub balancer: TaskRef,
    /// Its number there, if the balancer is the daemon.
    pub program: Option<u32>,
    /// The program's first process.
    pub root: u32,
    /// Its command line.
    pub command: Vec<String>,
    /// Where the figures come from.
    pub accounting: Accounting,
    /// How tasks are placed.
    pub placement: Placement,
    /// Only observing.
    pub dry_run: bool,
    /// Intervals so far.
    pub intervals: u64,
    /// Moves so far.
    pub moves: u64,
    /// The CPUs so far.
    pub cpus: Vec<CpuSummary>,
    /// The last decisions, oldest first.
    pub decisions: Vec<Decision>,
}

/// Why a record cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
pub struct RecordError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: io::Error,
}

fn folder(dir: &Path) -> PathBuf {
    dir.join("run")
}

/// The file of one balancer; removed when dropped.
#[derive(Debug)]
pub(crate) struct RecordFile {
    path: PathBuf,
}

impl RecordFile {
    pub(crate) fn create(dir: &Path, balancer: &TaskRef) -> Result<Self, RecordError> {
        let folder = folder(dir);
        fs::create_dir_all(&folder)
            .map_err(|source| RecordError { path: folder.clone(), source })?;
        Ok(Self { path: folder.join(format!("{}.json", balancer.tid)) })
    }

    pub(crate) fn write(&self, record: &Record) -> Result<(), RecordError> {
        let fail = |source| RecordError { path: self.path.clone(), source };
        let text = serde_json::to_vec(record).map_err(|error| fail(error.into()))?;
        let new = self.path.with_extension("new");
        fs::write(&new, text).map_err(fail)?;
        fs::rename(&new, &self.path).map_err(fail)
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        // Not there if it was never written; nobody believes one whose writer is gone.
        let _ = fs::remove_file(&self.path);
    }
}

/// All runs whose balancer is alive, by process number; records of dead ones are removed.
///
/// # Errors
/// When the directory exists but cannot be read. Single damaged files are left out.
pub fn records(dir: &Path) -> Result<Vec<Record>, RecordError> {
    let folder = folder(dir);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(RecordError { path: folder, source }),
    };
    let mut records = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(bytes) = fs::read(&path) else { continue };
        match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.balancer.is_alive() => records.push(record),
            Ok(_) => {
                let _ = fs::remove_file(&path);
            }
            Err(error) => tracing::warn!("{}: {error}", path.display()),
        }
    }
    records.sort_by_key(|record| record.balancer.tid);
    Ok(records)
}
