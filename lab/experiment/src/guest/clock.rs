//! The machines in which schedulers take turns, by what their clocks count.

use anyhow::Result;
use evenkeel_vm::{Acceleration, Topology};
use serde::{Deserialize, Serialize};

use crate::options::named;

/// What the guest's clock counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Instructions of all CPUs, one a nanosecond; idle time passes at once. Shows what a scheduler
    /// costs and how it shares, exactly, but not that it leaves CPUs idle: nothing is lost by that.
    Counted,
    /// The host's time, with a thread of the host for each CPU.
    Timed,
}

impl Clock {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Counted, Self::Timed];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Timed => "timed",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Counted => {
                "4 CPUs that an emulator executes in turn; its clock counts instructions, one a \
                 nanosecond. What a scheduler costs and how it shares is exact; what is lost \
                 where it leaves a CPU idle does not show"
            }
            Self::Timed => {
                "2 CPUs, each emulated by a thread of the host; its clock is the host's. Idle CPUs \
                 cost what they cost, and the host's noise is in it"
            }
        }
    }

    /// How its CPUs are emulated.
    pub fn acceleration(self) -> Acceleration {
        match self {
            Self::Counted => Acceleration::Counting,
            Self::Timed => Acceleration::Emulation,
        }
    }

    /// Its CPUs, in so many nodes.
    pub fn topology(self, nodes: u32) -> Topology {
        let cpus = match self {
            Self::Counted => 4,
            Self::Timed => 2,
        };
        Topology::numa(nodes, cpus / nodes)
    }
}

impl std::str::FromStr for Clock {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        named("clock", name, &Self::ALL, Self::name)
    }
}
