//! What a check says: one thing that was looked at, in words that a user can act upon.

use serde::{Deserialize, Serialize};

/// How well something works here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As it should.
    Ok,
    /// It works, but less well, or not as one would expect.
    Limited,
    /// It is not there.
    Missing,
}

/// What is checked. The JSON form (`kernel`, `pid-namespace`, ...) is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// Kernel release and architecture.
    Kernel,
    /// /proc can be read.
    Proc,
    /// The kernel's type information.
    Btf,
    /// Exact accounting by BPF may be started.
    Bpf,
    /// Whether task ids are the kernel's.
    PidNamespace,
    /// CPUs to balance over.
    Cpus,
    /// Restriction by a cgroup's cpuset.
    Cpuset,
    /// Restriction by a cgroup's CPU bandwidth.
    Quota,
    /// CPU bandwidths of cgroups, which the keel does not enforce.
    CpuMax,
    /// CPUs taken out of load balancing.
    Isolated,
    /// SMT, kinds of cores, NUMA, and where speeds come from.
    Topology,
    /// What the kernel's run time leaves out by itself.
    RunTime,
    /// A journal can be written.
    Journal,
    /// Affinities can be set.
    Affinity,
    /// Journals of runs that were killed.
    LeftBehind,
    /// Services that move tasks or interrupts.
    Services,
    /// Schedulers in BPF.
    SchedExt,
    /// Which of the keel's policies suit the machine.
    Policies,
    /// Scheduling by session.
    Autogroup,
    /// Governors, caps and throttling of CPU frequencies.
    Frequency,
    /// Resource limits of this process.
    Limits,
}

impl CheckName {
    /// What people read.
    pub fn title(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Proc => "/proc",
            Self::Btf => "BTF",
            Self::Bpf => "BPF",
            Self::PidNamespace => "PID namespace",
            Self::Cpus => "CPUs",
            Self::Cpuset => "cpuset",
            Self::Quota => "CPU quota",
            Self::CpuMax => "cpu.max",
            Self::Isolated => "isolated CPUs",
            Self::Topology => "topology",
            Self::RunTime => "run time",
            Self::Journal => "journal",
            Self::Affinity => "affinity",
            Self::LeftBehind => "left behind",
            Self::Services => "services",
            Self::SchedExt => "sched_ext",
            Self::Policies => "policies",
            Self::Autogroup => "autogroup",
            Self::Frequency => "frequency",
            Self::Limits => "limits",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub name: CheckName,
    /// How well it works.
    pub state: State,
    /// Whether `evenkeel run` cannot balance without it.
    pub needed: bool,
    /// What was found: for a state other than `ok`, the reason for it.
    pub found: String,
    /// What that means for a program under evenkeel; `null` where there is nothing to say.
    pub meaning: Option<String>,
    /// What the user can do; `null` where nothing is to be done.
    pub remedy: Option<String>,
}

impl Check {
    fn new(name: CheckName, state: State, found: impl Into<String>) -> Self {
        Self { name, state, needed: false, found: found.into(), meaning: None, remedy: None }
    }

    pub(super) fn ok(name: CheckName, found: impl Into<String>) -> Self {
        Self::new(name, State::Ok, found)
    }

    pub(super) fn limited(name: CheckName, found: impl Into<String>) -> Self {
        Self::new(name, State::Limited, found)
    }

    pub(super) fn missing(name: CheckName, found: impl Into<String>) -> Self {
        Self::new(name, State::Missing, found)
    }

    pub(super) fn means(mut self, meaning: impl Into<String>) -> Self {
        self.meaning = Some(meaning.into());
        self
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    pub(super) fn needed(mut self) -> Self {
        self.needed = true;
        self
    }
}
