//! What `evenkeel run` is asked to start, and how.

use std::ffi::OsString;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_journal::SupervisorCommand;

use crate::child::Origin;
use crate::decision::Decision;
use crate::threads::Threads;

/// What a run needs to know besides how to balance.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The signals and streams that this process was started with, which the command inherits.
    pub origin: Origin,
    /// Move also tasks that their user pinned.
    pub override_user: bool,
    /// The directory of journals and status files.
    pub dir: Option<PathBuf>,
    /// How to start the supervisor.
    pub supervisor: SupervisorCommand,
    /// The library that divides loops, for the command and what it starts (`--shares`).
    pub shares: Option<PathBuf>,
    /// Called with every decision as it is made (`--explain`), and with the program's start on
    /// CLOCK_BOOTTIME.
    pub explain: Option<fn(&Decision, Option<u64>)>,
    /// Where a trace for Perfetto's viewer is written (`--perfetto`): a regular file.
    pub trace: Option<Arc<File>>,
    /// The process that sends each of its signals to all processes of the command.
    pub signals_all: Option<u32>,
    /// Variables that the command gets besides this process' own.
    pub environment: Vec<(OsString, OsString)>,
    /// The threads that these variables tell the command to start.
    pub threads: Option<Threads>,
    /// The step of Slurm that the command is part of, which the daemons of the node are told.
    pub step: Option<String>,
}

impl Launch {
    /// The command as text.
    pub(crate) fn words(&self) -> Vec<String> {
        self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }
}
