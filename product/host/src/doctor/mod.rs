//! `evenkeel doctor`: what works on this machine and why not, and what a parallel program could
//! gain from it now.
//!
//! Everything that is judged is a value first: [`System`] is read from /proc and /sys below any
//! root directory, [`Process`] is what the kernel answers this very process. [`checks`] and
//! [`judge`] are pure functions of these, so tests can present machines that nobody here has.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `system` | facts that any root directory can show |
//! | `process` | facts that only a live process can ask for |
//! | `check` | what a check says |
//! | `checks` | facts to checks: may we observe and act here at all |
//! | `surroundings` | facts to checks: what else has a hand in it |
//! | `policies` | facts to checks: which of the keel's policies suit the machine |
//! | `asymmetry` | watching the CPUs, and what their inequality is worth |

mod asymmetry;
mod check;
mod checks;
mod policies;
mod process;
mod surroundings;
mod system;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use evenkeel_machine::{CpuSet, Machine, SpeedSource};
use serde::{Deserialize, Serialize};

pub use asymmetry::{Asymmetry, CpuNow, Watched, judge};
pub use check::{Check, CheckName, State};
pub use process::{Journals, Process};
pub use system::{Frequency, Limits, SchedExt, System};

use crate::calibrate::calibrate;
use crate::observe::Accounting;

/// The version of [`Report`]'s JSON form: raised when a field changes its meaning or goes away.
pub const FORMAT: u32 = 1;

/// What is to be looked at.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// How long to watch the CPUs.
    pub watch: Duration,
    /// Measure the speed of each CPU first (about 20 ms each).
    pub calibrate: bool,
}

/// All that the checks are made of.
#[derive(Debug, Clone)]
pub struct Facts {
    /// From /proc and /sys.
    pub system: System,
    /// From the kernel, about this process.
    pub process: Process,
    /// The machine, or why it cannot be read.
    pub machine: Result<Machine, String>,
    /// What came of trying exact accounting, or why it does not work; `None`: not tried.
    pub exact: Option<Result<(), String>>,
}

impl Facts {
    /// CPUs that a program started here may be balanced over: those of its cpuset and of the mask
    /// that it inherits, without isolated ones.
    pub fn usable(&self) -> CpuSet {
        let isolated = self.machine.as_ref().map(Machine::isolated).unwrap_or_default();
        self.process.cpuset.intersection(&self.process.affinity).difference(&isolated)
    }
}

/// What `evenkeel doctor` found. Its JSON form is stable within one [`FORMAT`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Whether `evenkeel run` can balance at all: no check with `needed` is `missing`.
    pub can_balance: bool,
    /// What `evenkeel run` takes its figures from here.
    pub accounting: Accounting,
    /// CPUs that a program started here may be balanced over, as a list like `0-3,8`.
    pub usable: CpuSet,
    /// What works and what not, in a fixed order; a check that does not apply here is left out.
    pub checks: Vec<Check>,
    /// The asymmetry at this moment; `null` when the CPUs were not watched.
    pub asymmetry: Option<Asymmetry>,
    /// Why the CPUs were not watched.
    pub not_watched: Option<String>,
    /// Why their speeds were not measured although that was asked for.
    pub not_calibrated: Option<String>,
}

/// Looks at the live machine. Changes nothing that outlives it: affinities are tried out on
/// threads of its own, and a journal is opened and removed again.
pub fn examine(request: &Request) -> Report {
    let mut facts = Facts {
        system: System::read(Path::new("/")),
        process: Process::ask(),
        machine: Machine::from_sysfs(Path::new("/")).map_err(|why| why.to_string()),
        exact: None,
    };
    let usable = facts.usable();
    // Before the CPUs are watched, so that our own bursts are not taken for a competitor.
    let not_calibrated = request.calibrate.then(|| measure_speeds(&mut facts, &usable)).flatten();
    let watched = match &facts.machine {
        Err(why) => Err(format!("the machine cannot be read: {why}")),
        Ok(_) if usable.len() < 2 => Err("with one CPU there is nothing to compare".to_owned()),
        Ok(machine) => Watched::new(machine, &usable, request.watch),
    };
    facts.exact = watched.as_ref().ok().map(Watched::exact);
    let accounting = match &watched {
        Ok(watched) => watched.accounting,
        Err(_) if facts.process.bpf.is_ok() => Accounting::Cbinfo,
        Err(_) => Accounting::Procfs,
    };
    let asymmetry = watched.map(|watched| judge(watched, facts.process.excludes));
    let (asymmetry, not_watched) = match asymmetry {
        Ok(asymmetry) => (Some(asymmetry), None),
        Err(why) => (None, Some(why)),
    };
    let checks = checks(&facts);
    Report {
        format: FORMAT,
        can_balance: can_balance(&checks),
        accounting,
        usable,
        checks,
        asymmetry,
        not_watched,
        not_calibrated,
    }
}

/// Every check that applies, in a fixed order.
pub fn checks(facts: &Facts) -> Vec<Check> {
    let mut all = checks::all(facts);
    all.extend(surroundings::all(facts));
    all
}

/// Whether nothing is missing that balancing needs.
pub fn can_balance(checks: &[Check]) -> bool {
    !checks.iter().any(|check| check.needed && check.state == State::Missing)
}

/// Replaces the machine's speeds by measured ones; says why not if that fails.
fn measure_speeds(facts: &mut Facts, usable: &CpuSet) -> Option<String> {
    let machine = facts.machine.as_ref().ok()?;
    let measured = calibrate(usable)
        .map_err(|why| why.to_string())
        .map(SpeedSource::Calibrated)
        .and_then(|source| machine.with_speed(&source).map_err(|why| why.to_string()));
    match measured {
        Ok(machine) => {
            facts.machine = Ok(machine);
            None
        }
        Err(why) => Some(why),
    }
}
