//! How `run` and `daemon` balance: from options to the values of `evenkeel-host`.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use evenkeel_capability::{LagParameters, PaperParameters, Policy, Preference, Selection};
use evenkeel_host::{AccountingChoice, Options, Placement, calibrate};
use evenkeel_machine::{CpuSet, Machine, SpeedSource};

use crate::cli::{
    AccountingName, PlacementName, PolicyName, PreferenceName, RunOptions, SelectionName,
};

/// How to balance, from flags and configuration.
///
/// # Errors
/// A value is invalid, or contradicts another one.
pub fn balancing_options(options: &RunOptions, dry_run: bool) -> Result<Options> {
    let policy = match options.policy.unwrap_or(PolicyName::Lag) {
        PolicyName::Lag => {
            if options.selection.is_some() {
                bail!("--selection needs --policy paper: lag selects tasks by their lag alone");
            }
            let parameters = options
                .interval
                .map_or_else(LagParameters::default, |interval| LagParameters::fixed(interval.ns));
            Policy::Lag(LagParameters { prefer: preference(options), ..parameters })
        }
        PolicyName::Paper => {
            if preference(options) == Preference::Efficient {
                bail!("--prefer efficient needs --policy lag: the paper's policy knows no energy");
            }
            let default = PaperParameters::default();
            Policy::Paper(PaperParameters {
                interval_ns: options.interval.map_or(default.interval_ns, |interval| interval.ns),
                selection: match options.selection {
                    Some(SelectionName::Cache) => Selection::Cache,
                    _ => Selection::Fifo,
                },
                placed_at_start: true,
            })
        }
    };
    let runtimes = options.runtimes.clone().unwrap_or_default();
    if runtimes.iter().any(String::is_empty) {
        bail!(
            "--runtimes: a name is empty: give files and functions like libmyspin.so,my_barrier, or \
             leave it out"
        );
    }
    Ok(Options {
        policy,
        placement: match options.placement {
            Some(PlacementName::Hard) => Placement::Hard,
            Some(PlacementName::Soft) => Placement::Soft,
            None => Placement::default(),
        },
        accounting: match options.accounting {
            Some(AccountingName::Cbinfo) => AccountingChoice::Cbinfo,
            Some(AccountingName::Procfs) => AccountingChoice::Procfs,
            Some(AccountingName::Auto) | None => AccountingChoice::Auto,
        },
        daemons: Vec::new(),
        dry_run,
        runtimes,
        cpus: options.cpus.as_deref().map(cpu_list).transpose()?,
    })
}

fn preference(options: &RunOptions) -> Preference {
    match options.prefer {
        Some(PreferenceName::Efficient) => Preference::Efficient,
        Some(PreferenceName::Capable) | None => Preference::Capable,
    }
}

/// Warns where less energy is preferred, and nothing tells which CPUs need less.
pub fn warn_of_unknown_energy(options: &RunOptions) {
    if preference(options) == Preference::Efficient
        && Machine::from_sysfs(Path::new("/")).is_ok_and(|machine| machine.energy_ranks().is_none())
    {
        tracing::warn!(
            "--prefer efficient has no effect: the kernel shows neither an energy model \
             (/sys/kernel/debug/energy_model, to root) nor kinds of cores (/sys/devices/cpu_atom) that \
             tell the CPUs apart"
        );
    }
}

fn cpu_list(list: &str) -> Result<CpuSet> {
    let cpus: CpuSet = list.parse().context("--cpus")?;
    if cpus.is_empty() {
        bail!("--cpus is empty: name at least one CPU, or leave it out for all");
    }
    check_online(&cpus).context("--cpus")?;
    Ok(cpus)
}

/// # Errors
/// A CPU does not exist or is offline.
fn check_online(cpus: &CpuSet) -> Result<()> {
    let online = online_cpus();
    let missing = cpus.difference(&online);
    // Without sysfs it is not known which CPUs there are.
    if online.is_empty() || missing.is_empty() {
        return Ok(());
    }
    let possible = listed_cpus("possible");
    let absent = missing.difference(&possible);
    let (named, what) =
        if absent.is_empty() { (missing, "offline") } else { (absent, "missing here") };
    let (noun, verb) = if named.len() == 1 { ("CPU", "is") } else { ("CPUs", "are") };
    bail!("{noun} {named} {verb} {what}; online: {online}")
}

fn online_cpus() -> CpuSet {
    listed_cpus("online")
}

/// A list of CPUs in sysfs; empty where it cannot be read.
fn listed_cpus(name: &str) -> CpuSet {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))
        .ok()
        .and_then(|list| list.parse().ok())
        .unwrap_or_default()
}

/// The source of the CPUs' speeds.
///
/// # Errors
/// The text names an unknown source, one that this machine does not have, or a CPU that does not exist
/// or is offline.
pub fn speed_source(text: Option<&str>) -> Result<SpeedSource> {
    Ok(match known_source(text)? {
        Some(source) => source,
        None => SpeedSource::Calibrated(calibrate(&online_cpus())?),
    })
}

/// The same check without a measurement, which takes a while.
///
/// # Errors
/// As [`speed_source`].
pub fn check_speed(text: Option<&str>) -> Result<()> {
    known_source(text).map(drop)
}

/// The source; `None`: the speeds are to be measured.
fn known_source(text: Option<&str>) -> Result<Option<SpeedSource>> {
    let source: SpeedSource = match text {
        None => SpeedSource::Auto,
        Some("calibrated") => return Ok(None),
        Some(text) => text.parse::<SpeedSource>().map_err(|why| {
            let also = if text.contains('=') { "" } else { "; or calibrated, measured now" };
            anyhow!("--speed: {why}{also}")
        })?,
    };
    match &source {
        SpeedSource::Auto => {}
        SpeedSource::Given(speeds) => {
            check_online(&speeds.keys().copied().collect()).context("--speed")?;
        }
        // Without sysfs it is not known what the CPUs have.
        _ => {
            if let Ok(machine) = Machine::from_sysfs(Path::new("/")) {
                machine.with_speed(&source).context("--speed")?;
            }
        }
    }
    Ok(Some(source))
}

/// The machine as sysfs shows it; `None`, with a warning, where sysfs cannot be read.
pub fn machine(speed: SpeedSource) -> Option<Machine> {
    let machine = Machine::from_sysfs(Path::new("/"))
        .and_then(|machine| machine.with_speed(&speed))
        .inspect_err(|why| tracing::warn!("{why}"));
    machine.ok()
}
