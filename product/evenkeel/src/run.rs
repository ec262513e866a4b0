//! `evenkeel run`: from flags to a run, and from its end to an exit code.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_capability::{LagParameters, PaperParameters, Policy, Selection};
use evenkeel_host::{AccountingChoice, Job, Options, Origin, Placement, calibrate, run};
use evenkeel_journal::{SupervisorCommand, failpoint, runtime_dir, same_program};
use evenkeel_machine::{CpuSet, Machine, SpeedSource};

use crate::cli::{
    AccountingName, FaultArgs, PlacementName, PolicyName, RunArgs, RunOptions, SelectionName,
};
use crate::config::Config;
use crate::job::Job as MpiJob;
use crate::{daemon, inspect};

/// Runs the command. Returns the exit code; does not return when the command was killed by a
/// signal: then this process dies of the same.
///
/// # Errors
/// When a flag makes no sense. That the command cannot be started is told by the exit code.
pub fn main(args: RunArgs, config: Config, origin: Origin) -> Result<i32> {
    let options = args.options.or(config.run);
    let balancing = balancing_options(&options, args.dry_run)?;
    let flags = options.flags();
    let has_report = args.dry_run || args.explain || args.json.is_some();
    let speed = speed_source(options.speed.as_deref())?;
    failpoint::arm(args.faults.abort_at);
    let dir = runtime_dir().inspect_err(|why| tracing::warn!("{why}")).ok();
    let job = Job {
        command: args.command,
        origin,
        override_user: options.override_user,
        dir,
        supervisor: supervisor(&args.faults),
        tell: args.explain.then_some(|decision| say(&inspect::tell(decision))),
    };
    let started = |pid| {
        give_up_streams();
        let joined = match (args.join, MpiJob::of_this_process()) {
            (true, _) => Some(daemon::join(pid)),
            // Who asks for a report of his own gets his own balancer.
            (false, Some(job)) if !has_report => Some(job.join(pid, &flags)),
            _ => None,
        };
        match joined {
            Some(Ok(())) => return None,
            Some(Err(why)) => tracing::warn!("{why:#}; the program is balanced here"),
            None => {}
        }
        machine(speed)
    };
    let (end, summary) = match run(&job, balancing, started) {
        Ok(result) => result,
        Err(error) => {
            say(&format!("evenkeel: {error}\n"));
            return Ok(i32::from(error.exit_code()));
        }
    };
    if let Some(summary) = summary {
        if let Some(path) = &args.json {
            let text = serde_json::to_vec_pretty(&summary)?;
            if let Err(error) = std::fs::write(path, text) {
                // The command's exit code is worth more than the report.
                say(&format!("evenkeel: {}: {error}\n", path.display()));
            }
        }
        if !args.quiet {
            say(&format!("{summary}\n"));
        }
    }
    Ok(end.imitate())
}

/// On standard error. That nobody reads it is no reason to end (as eprintln would, by a panic).
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The command has standard input and output for itself: when it closes them, whoever is at the
/// other end of the pipe must notice.
fn give_up_streams() {
    let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: two descriptors that are open, or a harmless error; nothing of ours reads from
        // the one or writes to the other any more.
        unsafe { libc::dup2(null.as_raw_fd(), fd) };
    }
}

/// What flags and configuration say about how to balance.
///
/// # Errors
/// A value makes no sense, or not with the others.
pub fn balancing_options(options: &RunOptions, dry_run: bool) -> Result<Options> {
    let policy = match options.policy.unwrap_or(PolicyName::Lag) {
        PolicyName::Lag => {
            if options.selection.is_some() {
                bail!("--selection belongs to --policy paper: lag chooses by lag alone");
            }
            Policy::Lag(
                options.interval.map_or_else(LagParameters::default, |interval| {
                    LagParameters::fixed(interval.ns)
                }),
            )
        }
        PolicyName::Paper => {
            let default = PaperParameters::default();
            Policy::Paper(PaperParameters {
                interval_ns: options.interval.map_or(default.interval_ns, |interval| interval.ns),
                selection: match options.selection {
                    Some(SelectionName::Cache) => Selection::Cache,
                    _ => Selection::Fifo,
                },
            })
        }
    };
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
        dry_run,
        cpus: options.cpus.as_deref().map(cpu_list).transpose()?,
    })
}

fn cpu_list(list: &str) -> Result<CpuSet> {
    let cpus: CpuSet = list.parse().context("--cpus")?;
    let online = online_cpus();
    let missing = cpus.difference(&online);
    if cpus.is_empty() {
        bail!("--cpus is empty: name at least one CPU, or leave it out for all");
    }
    if !online.is_empty() && !missing.is_empty() {
        bail!("--cpus: CPU {missing} is not online here: choose among {online}");
    }
    Ok(cpus)
}

fn online_cpus() -> CpuSet {
    std::fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .and_then(|list| list.parse().ok())
        .unwrap_or_default()
}

/// Where the speeds of the CPUs come from.
///
/// # Errors
/// It names a source or CPU that is not there.
pub fn speed_source(text: Option<&str>) -> Result<SpeedSource> {
    Ok(match text {
        None => SpeedSource::Auto,
        Some("calibrated") => SpeedSource::Calibrated(calibrate(&online_cpus())?),
        Some(text) => {
            let source: SpeedSource = text.parse().context("--speed (besides `calibrated`)")?;
            let online = online_cpus();
            if let SpeedSource::Given(speeds) = &source
                && let Some(cpu) = speeds.keys().find(|cpu| !online.contains(**cpu))
                && !online.is_empty()
            {
                bail!("--speed: CPU {cpu} is not online here: choose among {online}");
            }
            source
        }
    })
}

/// The machine as sysfs shows it; one whose CPUs are equal where sysfs shows nothing.
pub fn machine(speed: SpeedSource) -> Option<Machine> {
    let machine = Machine::from_sysfs(Path::new("/"))
        .and_then(|machine| machine.with_speed(&speed))
        .inspect_err(|why| tracing::warn!("{why}"));
    machine.ok()
}

/// How to start the supervisor: this very program.
pub fn supervisor(faults: &FaultArgs) -> SupervisorCommand {
    if faults.no_supervisor { |_| None } else { same_program }
}
