//! Which scheduler is simulated.

use std::sync::Arc;

use evenkeel_keel::{Image, Options};
use evenkeel_machine::Machine;

use crate::native::{HostError, HostFunctions, Instance};

static KEEL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keel.so"));
static FIFO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fifo.so"));

/// A scheduler, ready to be loaded any number of times.
#[derive(Debug, Clone)]
pub enum Scheduler {
    /// One queue, first come, first served.
    Fifo,
    /// The keel with these policies.
    Keel(Options),
    /// The keel as somebody else has compiled it: a shared object against `native/kernel.h`.
    Built(Options, Arc<[u8]>),
}

impl Scheduler {
    pub(crate) fn load(
        &self,
        machine: &Machine,
        functions: HostFunctions,
    ) -> Result<Instance, HostError> {
        let (options, bytes) = match self {
            Self::Fifo => return Instance::load("fifo", FIFO, functions, None),
            Self::Keel(options) => (options, KEEL),
            Self::Built(options, bytes) => (options, &**bytes),
        };
        let image = Image::new(machine, options)?;
        Instance::load("keel", bytes, functions, Some(&image))
    }
}

impl Scheduler {
    /// The length of a slice, in microseconds; 0: not set from outside.
    pub fn slice_us(&self) -> u64 {
        match self {
            Self::Fifo => 0,
            Self::Keel(options) | Self::Built(options, _) => options.slice.us(),
        }
    }
}

impl std::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fifo => f.write_str("fifo"),
            Self::Keel(options) | Self::Built(options, _) => {
                write!(f, "{}/{}/{}", options.order, options.gate, options.balance)?;
                f.write_str(if options.active { "+active" } else { "" })
            }
        }
    }
}
