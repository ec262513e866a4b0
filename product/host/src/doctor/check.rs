//! The result of a check: what was found, what it means, and what the user can do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How well something works here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It works.
    Ok,
    /// It works less well than it could, or otherwise than expected.
    Limited,
    /// It is not there.
    Missing,
}

/// The subject of a check. The JSON form (`kernel`, `pid-namespace`, ...) is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckName {
    /// Kernel release and architecture.
    Kernel,
    /// /proc can be read.
    Proc,
    /// The kernel's type information.
    Btf,
    /// Exact accounting by BPF.
    Bpf,
    /// The PID namespace: exact accounting needs the initial one.
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
    /// SMT, speeds and their source, NUMA.
    Topology,
    /// What the kernel leaves out of the run time of tasks.
    RunTime,
    /// A journal can be written.
    Journal,
    /// Affinities can be set.
    Affinity,
    /// Journals that killed balancers left.
    LeftBehind,
    /// Services that move tasks or interrupts.
    Services,
    /// sched_ext, and the scheduler that is loaded.
    SchedExt,
    /// Which of the keel's policies suit the machine.
    Policies,
    /// Scheduling by session.
    Autogroup,
    /// Governors, caps and throttling of CPU frequencies.
    Frequency,
    /// Resource limits of this process.
    Limits,
    /// The configuration files; this check is the caller's, which reads them.
    Configuration,
}

impl CheckName {
    /// The title in the text output.
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
            Self::Configuration => "configuration",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// The subject.
    pub name: CheckName,
    /// How well it works.
    pub state: State,
    /// Whether `evenkeel run` needs it to balance.
    pub needed: bool,
    /// What was found; for a state other than `ok`, its reason.
    pub found: String,
    /// What that means for a program under evenkeel; `null`: nothing.
    pub meaning: Option<String>,
    /// What the user can do; `null`: nothing.
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

/// "1 CPU", "2 CPUs".
pub(super) fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
