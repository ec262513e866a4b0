//! What an undo did and what it could not do: the answer of every path that restores the system,
//! from [`crate::Session::close`] to `evenkeel undo`. Data only.

use std::path::{Path, PathBuf};

use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

use crate::task::TaskRef;

/// Damaged lines that a report lists; further ones are only counted.
const MAX_LISTED_DAMAGE: usize = 100;

/// What was restored and what was not.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct UndoReport {
    /// Threads that evenkeel placed and that have their own mask again.
    pub restored: Vec<TaskRef>,
    /// Threads that inherited a pin and were freed.
    pub freed: Vec<TaskRef>,
    /// Threads that another process gave another mask since the pin: left as they are.
    pub kept: Vec<Kept>,
    /// Threads that had their own mask already.
    pub unchanged: Vec<TaskRef>,
    /// Threads that have ended.
    pub gone: Vec<TaskRef>,
    /// Settings that have the value again that they had before.
    #[serde(rename = "turned_back")]
    pub restored_settings: Vec<PathBuf>,
    /// Settings that were changed by another process since: left as they are.
    pub kept_settings: Vec<KeptSetting>,
    /// Network devices that have their RSS indirection table of before again.
    pub restored_tables: Vec<String>,
    /// Network devices of which another process has changed that table since: left as they are.
    pub kept_tables: Vec<KeptTable>,
    /// Lines that irqbalance may move again.
    pub lifted_bans: Vec<LiftedBan>,
    /// Journals of another boot (removed), or of another namespace or version (left alone).
    pub foreign: Vec<Foreign>,
    /// Journals of living writers: left to them.
    pub live: Vec<PathBuf>,
    /// Journals of changes that outlive their writers: left to an undo of these.
    pub persistent: Vec<PathBuf>,
    /// The first damaged lines, at most 100.
    pub damaged: Vec<Damage>,
    /// How many lines are damaged, the unlisted ones included.
    pub damaged_lines: u64,
    /// What could not be done.
    pub errors: Vec<UndoError>,
    /// Some of it because a process could not be read in time.
    #[serde(skip)]
    pub is_late: bool,
}

/// A thread that another process gave another mask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Kept {
    /// The thread.
    pub task: TaskRef,
    /// The mask that it has.
    pub found: CpuSet,
}

/// A setting that was changed by another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeptSetting {
    /// The file in /proc/sys or /sys.
    pub file: PathBuf,
    /// The value that it has.
    pub found: String,
}

/// A network device of which another process has changed the RSS indirection table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeptTable {
    /// The device.
    pub device: String,
    /// The buckets of each queue in the table that it has, as text.
    pub found: String,
}

/// A line that irqbalance may move again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LiftedBan {
    /// The process of irqbalance.
    pub pid: i32,
    /// The line's number.
    pub line: u32,
}

/// A journal that is not valid here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Foreign {
    /// The journal.
    pub path: PathBuf,
    /// Why it is not valid here, and what to do.
    pub why: String,
    /// Whether it was removed.
    pub removed: bool,
}

/// A line with a wrong checksum or content: it was not acted upon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error, JsonSchema)]
#[error("{}:{line}: this line of the journal is damaged and was skipped: {why}", .path.display())]
pub struct Damage {
    /// The journal; if it was renamed, its new name.
    pub path: PathBuf,
    /// The line's number, from 1.
    pub line: u64,
    /// What is wrong with the line.
    pub why: String,
}

/// Something that could not be restored or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error, JsonSchema)]
#[error("{}{why}", subject(.path.as_deref(), .task.as_ref()))]
pub struct UndoError {
    /// The journal or setting, if the error is about one.
    pub path: Option<PathBuf>,
    /// The thread, if the error is about one.
    pub task: Option<TaskRef>,
    /// What failed, why, and what to do.
    pub why: String,
}

impl UndoReport {
    /// Whether nothing needs a user's attention: no error and no damaged line.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty() && self.damaged_lines == 0
    }

    /// Appends another report.
    pub fn merge(&mut self, other: Self) {
        self.restored.extend(other.restored);
        self.freed.extend(other.freed);
        self.kept.extend(other.kept);
        self.unchanged.extend(other.unchanged);
        self.gone.extend(other.gone);
        self.restored_settings.extend(other.restored_settings);
        self.kept_settings.extend(other.kept_settings);
        self.restored_tables.extend(other.restored_tables);
        self.kept_tables.extend(other.kept_tables);
        self.lifted_bans.extend(other.lifted_bans);
        self.foreign.extend(other.foreign);
        self.live.extend(other.live);
        self.persistent.extend(other.persistent);
        self.damaged.extend(other.damaged);
        self.damaged_lines += other.damaged_lines;
        self.errors.extend(other.errors);
        self.is_late |= other.is_late;
    }

    pub(crate) fn add_error(&mut self, path: Option<&Path>, task: Option<TaskRef>, why: String) {
        self.errors.push(UndoError { path: path.map(Path::to_owned), task, why });
    }

    pub(crate) fn add_damage(&mut self, path: &Path, line: u64, why: String) {
        self.damaged_lines += 1;
        if self.damaged.len() < MAX_LISTED_DAMAGE {
            self.damaged.push(Damage { path: path.to_owned(), line, why });
        }
    }
}

/// The subject of an error, with colons: the path, the thread, both or neither.
fn subject(path: Option<&Path>, task: Option<&TaskRef>) -> String {
    let path = path.map(|path| format!("{}: ", path.display()));
    let task = task.map(|task| format!("{task}: "));
    path.unwrap_or_default() + &task.unwrap_or_default()
}
