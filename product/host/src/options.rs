//! How programs are balanced: what a command line or a configuration chooses, for `run` and the daemon
//! alike.

use std::path::PathBuf;

use evenkeel_capability::Policy;
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::AccountingChoice;

/// How tasks are placed on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Migrate the task, and give its own mask back once the exchange that it is a part of is made.
    #[default]
    Soft,
    /// Pin the task until its next move, as in the paper.
    Hard,
}

/// How to balance.
#[derive(Debug, Clone)]
pub struct Options {
    /// The policy that decides the moves.
    pub policy: Policy,
    /// How the moves are made.
    pub placement: Placement,
    /// The source of the figures.
    pub accounting: AccountingChoice,
    /// The sockets of daemons that are asked for figures where there is no privilege for cbinfo.
    pub daemons: Vec<PathBuf>,
    /// Observe and report the moves; make none.
    pub dry_run: bool,
    /// Files and functions in which threads wait, besides the runtimes that are known.
    pub runtimes: Vec<String>,
    /// CPUs to use; `None`: all that the program's cpuset allows.
    pub cpus: Option<CpuSet>,
}

#[cfg(test)]
impl Options {
    /// For tests: moves are made, by figures from /proc, which need no privilege.
    pub(crate) fn by_procfs() -> Self {
        Self {
            policy: Policy::Paper(evenkeel_capability::PaperParameters::default()),
            placement: Placement::Soft,
            accounting: AccountingChoice::Procfs,
            daemons: Vec::new(),
            dry_run: false,
            runtimes: Vec::new(),
            cpus: None,
        }
    }
}
