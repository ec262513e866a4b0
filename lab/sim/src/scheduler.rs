//! The schedulers that can be simulated.

use std::sync::Arc;

use evenkeel_keel::{IasOptions, InitialData, Mode, Options, Order, default_roles};
use evenkeel_machine::Machine;
use serde_json::Value;

use crate::abi::HostFunctions;
use crate::host_error::HostError;
use crate::keel_state::{role_bytes, unlimit_searches};
use crate::native::Instance;
use crate::paper_rules::PaperRule;

pub(crate) static KEEL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keel.so"));
pub(crate) static FIFO: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fifo.so"));

/// A scheduler, ready to be loaded any number of times.
#[derive(Debug, Clone)]
pub enum Scheduler {
    /// One queue for all CPUs, first come, first served.
    Fifo,
    /// A scheduler without settings: its name (its `struct sched_ext_ops` is NAME_ops), and its shared
    /// object, built against `native/kernel.h`.
    Plain(String, Arc<[u8]>),
    /// The keel with these policies.
    Keel(Options),
    /// The keel with unbounded searches of its queues: the reference for what the bound costs.
    Exact(Options),
    /// Another build of the keel: a shared object, built against `native/kernel.h`.
    Built(Options, Arc<[u8]>),
}

impl Scheduler {
    pub(crate) fn load(
        &self,
        machine: &Machine,
        functions: HostFunctions,
    ) -> Result<Instance, HostError> {
        let bytes = self.object();
        let options = match self {
            Self::Fifo => return Instance::load("fifo", bytes, functions, None),
            Self::Plain(name, _) => return Instance::load(name, bytes, functions, None),
            Self::Keel(options) | Self::Exact(options) | Self::Built(options, _) => options,
        };
        let mut data = InitialData::new(machine, options)?;
        if matches!(self, Self::Exact(_)) {
            unlimit_searches(&mut data);
        }
        let mut instance = Instance::load("keel", bytes, functions, Some(&data))?;
        instance.set_record("roles", &role_bytes(&default_roles(machine, options.ias.mode)))?;
        Ok(instance)
    }

    /// The shared object.
    pub(crate) fn object(&self) -> &[u8] {
        match self {
            Self::Fifo => FIFO,
            Self::Keel(_) | Self::Exact(_) => KEEL,
            Self::Plain(_, bytes) | Self::Built(_, bytes) => bytes,
        }
    }

    /// A keel with the data of a recorded one.
    pub(crate) fn load_data(
        &self,
        data: &InitialData,
        functions: HostFunctions,
    ) -> Result<Instance, HostError> {
        match self {
            Self::Built(_, bytes) => Instance::load("keel", bytes, functions, Some(data)),
            _ => Instance::load("keel", KEEL, functions, Some(data)),
        }
    }
}

impl Scheduler {
    /// The keel's options; none: it is another scheduler.
    pub fn options(&self) -> Option<&Options> {
        match self {
            Self::Fifo | Self::Plain(..) => None,
            Self::Keel(options) | Self::Exact(options) | Self::Built(options, _) => Some(options),
        }
    }

    /// The mode of the order `ias`: it decides which CPUs are a group by default, under any order.
    pub(crate) fn ias_mode(&self) -> Mode {
        self.options().map(|options| options.ias.mode).unwrap_or_default()
    }

    /// The slice in microseconds; 0: it cannot be set.
    pub fn slice_us(&self) -> u64 {
        self.options().map_or(0, |options| options.slice.us())
    }
}

impl std::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fifo => f.write_str("fifo"),
            Self::Plain(name, _) => f.write_str(name),
            Self::Keel(options) | Self::Exact(options) | Self::Built(options, _) => {
                write!(f, "{}/{}/{}", options.order, options.gate, options.balance)?;
                if matches!(self, Self::Exact(_)) {
                    f.write_str(" exact")?;
                }
                if options.ias.auto {
                    f.write_str(" auto")?;
                }
                if options.order == Order::Ias && options.ias.mode == Mode::Paper {
                    f.write_str(" ias_mode=paper")?;
                }
                if options.compact {
                    f.write_str(" compact")?;
                }
                let parts = options.parts.to_string();
                if !parts.is_empty() {
                    write!(f, "+{parts}")?;
                }
                for rule in PaperRule::of(options.parts) {
                    write!(f, " {}", rule.name())?;
                }
                // Parameters that differ from their defaults. The slice is a column of its own.
                let usual = Options {
                    order: options.order,
                    gate: options.gate,
                    slice: options.slice,
                    ias: IasOptions { mode: options.ias.mode, ..IasOptions::default() },
                    ..Options::default()
                };
                let usual = usual.parameters();
                let turned = options.parameters().into_iter();
                for (name, value) in turned.filter(|(name, value)| usual.get(name) != Some(value)) {
                    match value {
                        Value::String(text) => write!(f, " {name}={text}")?,
                        number => write!(f, " {name}={number}")?,
                    }
                }
                Ok(())
            }
        }
    }
}
