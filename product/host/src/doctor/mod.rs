//! `evenkeel doctor`: what works on this machine and why not, and how unequal its CPUs are now.
//!
//! All input is read into values first: [`System`] from /proc and /sys below any root directory,
//! [`Process`] from the kernel's answers to this process. [`checks`] and [`judge`] are pure functions of
//! these values, so that tests can present machines that are not at hand.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `system` | facts in the files of a root directory |
//! | `process` | facts that the kernel tells a live process |
//! | `facts` | both, and the machine |
//! | `check` | the result of a check |
//! | `checks` | facts to checks: can programs be observed and tasks be placed here |
//! | `surroundings` | facts to checks: what else decides where tasks run and how fast |
//! | `policies` | facts to checks: which of the keel's policies suit the machine |
//! | `asymmetry` | how unequal the CPUs are, and the bound of what balancing can gain |

mod asymmetry;
mod check;
mod checks;
mod facts;
mod policies;
mod process;
mod surroundings;
mod system;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_machine::{CpuSet, Machine, SpeedSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use asymmetry::{Asymmetry, CpuNow, CpuWatch, Watched, judge};
pub use check::{Check, CheckName, State};
pub use facts::Facts;
pub use process::{Journals, Process};
pub use system::{Frequency, Limits, SchedExt, System};

use crate::calibrate::calibrate;
use crate::observe::Accounting;

/// The version of [`Report`]'s JSON form: raised when a field changes its meaning or goes away.
pub const FORMAT: u32 = 1;

/// What to examine.
#[derive(Debug, Clone)]
pub struct Request {
    /// How long to watch the CPUs.
    pub watch: Duration,
    /// Measure the speed of each CPU first (about 20 ms each).
    pub calibrate: bool,
    /// The sockets of daemons that may have exact figures where this process has none.
    pub daemons: Vec<PathBuf>,
}

/// The result of `evenkeel doctor`. Its JSON form is stable within one [`FORMAT`].
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Whether `evenkeel run` can balance at all: no check with `needed` is `missing`.
    pub can_balance: bool,
    /// The source of figures for `evenkeel run` here.
    pub accounting: Accounting,
    /// The CPUs over which a program that is started here can be balanced, as a list like `0-3,8`.
    pub usable: CpuSet,
    /// The checks in a fixed order; a check that does not apply here is left out.
    pub checks: Vec<Check>,
    /// The asymmetry now; `null` when the CPUs were not watched.
    pub asymmetry: Option<Asymmetry>,
    /// Why the CPUs were not watched.
    pub not_watched: Option<String>,
    /// Why the speeds were not measured, with `--calibrate`.
    pub not_calibrated: Option<String>,
}

/// Examines the live machine. No change outlives it: masks are set on threads of its own only, and the
/// journal that it opens is removed again.
pub fn examine(request: &Request) -> Report {
    let mut facts = Facts {
        system: System::read(Path::new("/")),
        process: Process::ask(),
        machine: Machine::from_sysfs(Path::new("/")).map_err(|why| why.to_string()),
        exact: None,
    };
    let usable = facts.usable();
    // Before the CPUs are watched, so that these bursts do not count as a competitor.
    let not_calibrated = request.calibrate.then(|| measure_speeds(&mut facts, &usable)).flatten();
    let watched = match &facts.machine {
        Err(why) => Err(format!("the CPUs cannot be read: {why}")),
        Ok(_) if usable.len() < 2 => Err("with one CPU there is nothing to compare".to_owned()),
        Ok(machine) => Watched::new(machine, &usable, request.watch, &request.daemons),
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

/// Whether no needed check is missing.
pub fn can_balance(checks: &[Check]) -> bool {
    !checks.iter().any(|check| check.needed && check.state == State::Missing)
}

/// Replaces the machine's speeds by measured speeds. Returns why, if that fails.
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
