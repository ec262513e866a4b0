//! The facts that the checks judge: values, so that tests can present machines that are not at hand.

use evenkeel_machine::{CpuSet, Machine};

use super::process::Process;
use super::system::System;
use crate::Accounting;

/// What the keel's name begins with, where the kernel reports the loaded scheduler.
const KEEL: &str = "evenkeel";

/// The input of all checks.
#[derive(Debug, Clone)]
pub struct Facts {
    /// From /proc and /sys.
    pub system: System,
    /// From the kernel, about this process.
    pub process: Process,
    /// The machine, or why it cannot be read.
    pub machine: Result<Machine, String>,
    /// The exact accounting that could be started, or why none; `None`: not tried.
    pub exact: Option<Result<Accounting, String>>,
}

impl Facts {
    /// The CPUs over which a program that is started here can be balanced: those of its cpuset and of
    /// the mask that it inherits, without isolated CPUs.
    pub fn usable(&self) -> CpuSet {
        let isolated = self.machine.as_ref().map(Machine::isolated).unwrap_or_default();
        self.process.cpuset.intersection(&self.process.affinity).difference(&isolated)
    }

    /// Whether the keel runs, or only a privilege may be missing to load it.
    pub(super) fn allow_the_keel(&self) -> bool {
        let is_free = self.system.sched_ext.as_ref().is_some_and(|ext| {
            ext.state == "disabled" || ext.ops.as_deref().is_some_and(|name| name.starts_with(KEEL))
        });
        is_free && self.system.has_btf && self.process.malformed_functions.is_empty()
    }
}
