//! A reading as JSON.

use evenkeel_host::{DecisionInWords, ProgramStatus, ThreadTimes};
use schemars::JsonSchema;
use serde::Serialize;

use super::interrupts::Rate;
use super::model::{Cpus, Keel, Model};

/// The version of [`Printed`].
pub const FORMAT: u32 = 1;

/// What `--json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Printed<'a> {
    /// The version of this document.
    format: u32,
    /// The name of this machine.
    host: &'a str,
    /// When it was read, in ns of the monotonic clock.
    at_ns: u64,
    /// The online CPUs.
    cpus: &'a Cpus,
    /// The programs that are balanced.
    programs: Vec<PrintedProgram<'a>>,
    /// How often each line and each softirq came in the interval.
    interrupts: &'a [Rate],
    /// The keel, if it runs.
    keel: Option<&'a Keel>,
    /// What cannot be seen, or could not be read, and why.
    notes: &'a [String],
}

/// A balanced program.
#[derive(Serialize, JsonSchema)]
struct PrintedProgram<'a> {
    /// What its balancer publishes: the same as `status --json` has.
    status: ProgramStatus<DecisionInWords>,
    /// Where the time of its threads went in the last seconds.
    threads: &'a [ThreadTimes],
    /// These are from /proc, since its balancer observes nothing at the moment.
    is_from_proc: bool,
}

impl<'a> Printed<'a> {
    /// What was read.
    pub fn of(model: &'a Model) -> Self {
        let Model { host, at_ns, cpus, programs, interrupts, keel, notes, .. } = model;
        let programs = programs.iter().map(|program| PrintedProgram {
            status: program.status.in_words(),
            threads: &program.threads,
            is_from_proc: program.is_from_proc,
        });
        Self {
            format: FORMAT,
            host,
            at_ns: *at_ns,
            cpus,
            programs: programs.collect(),
            interrupts: interrupts.as_deref().unwrap_or_default(),
            keel: keel.as_ref(),
            notes,
        }
    }
}
