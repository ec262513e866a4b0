//! What is measured: each figure's name, unit, direction, and what is wanted of it.

use serde::{Deserialize, Serialize};

/// A figure that a round gives for each contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// hackbench.
    Hackbench,
    /// sysbench cpu.
    SysbenchCpu,
    /// sysbench threads.
    SysbenchThreads,
    /// Processes that fork.
    ForkStorm,
    /// Processes that start programs.
    ExecStorm,
    /// Processes that start threads.
    JoinStorm,
    /// The median of wake-up latencies beside hogs.
    WakeP50,
    /// Their 99th percentile.
    WakeP99,
    /// How even the shares of one hog more than CPUs are.
    EvenOneMore,
    /// How even the shares of four hogs a CPU are.
    EvenFourfold,
    /// How exactly shares follow weights.
    Weights,
    /// What choosing a CPU for a waking task costs.
    SelectCpu,
    /// What putting a task into a queue costs.
    Enqueue,
    /// What giving the CPU to a task from a queue costs.
    Dispatch,
    /// Both together.
    EnqueueDispatch,
}

/// What a figure is a figure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A time, in s: less is better.
    Time,
    /// 0..=1: 1 is perfect.
    Index,
    /// Of one call, in instructions: less is better. The kernel's own scheduler has none.
    Cost,
}

/// What the keel is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// At least this much of what the kernel's own scheduler reaches.
    Ratio(f64),
    /// At most this much less than the kernel's own scheduler has.
    Less(f64),
    /// At least this, whatever others reach.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Wanted {
    /// For a column of a table.
    pub fn words(self) -> String {
        match self {
            Self::Ratio(least) => format!("ratio >= {least:.2}"),
            Self::Less(most) => format!(">= eevdf - {most}"),
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

impl Metric {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 15] = [
        Self::Hackbench,
        Self::SysbenchCpu,
        Self::SysbenchThreads,
        Self::ForkStorm,
        Self::ExecStorm,
        Self::JoinStorm,
        Self::WakeP50,
        Self::WakeP99,
        Self::EvenOneMore,
        Self::EvenFourfold,
        Self::Weights,
        Self::SelectCpu,
        Self::Enqueue,
        Self::Dispatch,
        Self::EnqueueDispatch,
    ];

    /// Its name in the report, and the JSON's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hackbench => "hackbench",
            Self::SysbenchCpu => "sysbench-cpu",
            Self::SysbenchThreads => "sysbench-threads",
            Self::ForkStorm => "fork-storm",
            Self::ExecStorm => "exec-storm",
            Self::JoinStorm => "join-storm",
            Self::WakeP50 => "wake-p50",
            Self::WakeP99 => "wake-p99",
            Self::EvenOneMore => "even-one-more",
            Self::EvenFourfold => "even-fourfold",
            Self::Weights => "weights",
            Self::SelectCpu => "select-cpu",
            Self::Enqueue => "enqueue",
            Self::Dispatch => "dispatch",
            Self::EnqueueDispatch => "enqueue-dispatch",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Hackbench => "groups of 20 senders and 20 receivers that exchange messages",
            Self::SysbenchCpu => "sysbench cpu: pure computation in twice as many threads as CPUs",
            Self::SysbenchThreads => {
                "sysbench threads: four threads a CPU that yield and contend for locks"
            }
            Self::ForkStorm => "two processes a CPU that fork children which end at once",
            Self::ExecStorm => "the same, and each child becomes `true`",
            Self::JoinStorm => "two threads a CPU that start threads which end at once",
            Self::WakeP50 => {
                "from when a message is sent to when its receiver runs, beside as many busy \
                 threads as CPUs: the median"
            }
            Self::WakeP99 => "the same: 99 of 100 are faster",
            Self::EvenOneMore => {
                "how evenly busy threads get on, one more than there are CPUs: Jain's index (1: \
                 all alike)"
            }
            Self::EvenFourfold => "the same with four busy threads a CPU",
            Self::Weights => {
                "how exactly two busy threads on one CPU, one of nice 0 and one of nice 5, share \
                 it by their weights of 3 to 1 (1: exactly)"
            }
            Self::SelectCpu => "one call of select_cpu, in instructions, during hackbench",
            Self::Enqueue => "one call of enqueue",
            Self::Dispatch => "one call of dispatch",
            Self::EnqueueDispatch => "one call of each of the last two",
        }
    }

    /// What kind of figure it is.
    pub fn kind(self) -> Kind {
        match self {
            Self::Hackbench
            | Self::SysbenchCpu
            | Self::SysbenchThreads
            | Self::ForkStorm
            | Self::ExecStorm
            | Self::JoinStorm
            | Self::WakeP50
            | Self::WakeP99 => Kind::Time,
            Self::EvenOneMore | Self::EvenFourfold | Self::Weights => Kind::Index,
            Self::SelectCpu | Self::Enqueue | Self::Dispatch | Self::EnqueueDispatch => Kind::Cost,
        }
    }

    /// What the keel is to reach.
    pub fn wanted(self) -> Option<Wanted> {
        match self {
            Self::Hackbench
            | Self::SysbenchCpu
            | Self::SysbenchThreads
            | Self::ForkStorm
            | Self::ExecStorm
            | Self::JoinStorm => Some(Wanted::Ratio(0.95)),
            // Half as long again.
            Self::WakeP99 => Some(Wanted::Ratio(1.0 / 1.5)),
            Self::EvenOneMore | Self::EvenFourfold => Some(Wanted::Less(0.01)),
            Self::Weights => Some(Wanted::AtLeast(0.95)),
            Self::EnqueueDispatch => Some(Wanted::AtMost(1500.0)),
            Self::WakeP50 | Self::SelectCpu | Self::Enqueue | Self::Dispatch => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_files_are_those_of_the_report() {
        for metric in Metric::ALL {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
        }
    }

    #[test]
    fn every_metric_is_listed_once_and_in_order() {
        assert!(Metric::ALL.is_sorted_by(|a, b| a < b));
    }
}
