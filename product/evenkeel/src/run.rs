//! `evenkeel run`: runs a command under the balancer, and ends as the command ends.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use evenkeel_host::{
    BalancedBy, Launch, Options, Origin, RunError, SharesStatus, Summary, run, without_end,
};
use evenkeel_journal::{failpoint, runtime_dir};
use schemars::JsonSchema;
use serde::Serialize;

use crate::balancing::{balancing_options, machine, speed_source, warn_of_unknown_energy};
use crate::cli::RunArgs;
use crate::cluster::record;
use crate::config::Config;
use crate::decision_text::describe;
use crate::irq::beside::{self, Beside, InterruptsSummary};
use crate::job::Ranks;
use crate::report_file::{ReportFile, TRACE, path_of_rank};
use crate::shares::{Prepared, prepare};
use crate::{daemon_client, launcher, rights, supervisor, threads};

/// Runs the command and returns its exit code. Where a signal ended the command, the same signal ends
/// this process.
///
/// # Errors
/// A flag is invalid, or the file of `--json` cannot be written: the command is not started. A command
/// that cannot be started or waited for gives an exit code instead.
pub fn main(args: RunArgs, config: Config, origin: Origin) -> Result<i32> {
    match run_command(args, config, origin) {
        Err(Failure::Run(why)) => {
            say(&format!("evenkeel: {why}\n"));
            Ok(why.exit_code())
        }
        Err(Failure::Refused(why)) => Err(why),
        Ok(code) => Ok(code),
    }
}

/// Why it is not known how the command ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A flag or the configuration is invalid.
    #[error(transparent)]
    Refused(#[from] anyhow::Error),
    /// It cannot be started, or not be waited for.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Does the same, and leaves it to the caller what becomes of a command that does not run. One that was
/// started ([`RunError::Lost`]) must not be started again.
///
/// # Errors
/// All of [`Failure`].
pub fn run_command(args: RunArgs, config: Config, origin: Origin) -> Result<i32, Failure> {
    let options = args.options.or(config.run);
    let daemons = daemon_client::sockets();
    let balancing = Options { daemons, ..balancing_options(&options, args.dry_run)? };
    warn_of_unknown_energy(&options);
    let mut flags = options.flags();
    if args.dry_run {
        flags.push("--dry-run".into());
    }
    let has_report = args.explain || args.json.is_some() || args.perfetto.is_some();
    let speed = speed_source(options.speed.as_deref())?;
    let no_moves = if args.move_noise { beside::prepare()? } else { None };
    if let Some(why) = &no_moves {
        tracing::warn!("--move-noise has no effect: {why}");
    }
    let rank = launcher::rank_number(|name| std::env::var(name).ok());
    let open = |option: &str, path: Option<&Path>| {
        let path = path.map(|path| path_of_rank(option, path, rank)).transpose()?;
        path.map(|path| ReportFile::open(option, &path)).transpose()
    };
    let report = open("--json", args.json.as_deref())?;
    let trace_file = open(TRACE, args.perfetto.as_deref())?;
    if let Some((report, trace)) = report.as_ref().zip(trace_file.as_ref()) {
        report.must_differ(trace)?;
    }
    let trace = trace_file.as_ref().map(ReportFile::stream).transpose()?.map(Arc::new);
    failpoint::arm(args.faults.abort_at);
    let dir = runtime_dir().inspect_err(|why| tracing::warn!("{why}")).ok();
    let (shares, no_shares) =
        match args.shares.then(|| prepare(&args.command, &balancing)).transpose()? {
            Some(Prepared::Library(library)) => (Some(library), None),
            Some(Prepared::NoEffect(why)) => {
                tracing::warn!("--shares has no effect: {why}");
                (None, Some(SharesStatus { effect: why, ..SharesStatus::default() }))
            }
            None => (None, None),
        };
    // The page is this process' own, and the balancer of a job has none.
    let has_own_balancer = has_report || shares.is_some();
    let (threads, environment) = match args.threads {
        None => (None, Vec::new()),
        Some(per_cpu) => {
            let cpus = threads::usable_cpus(balancing.cpus.as_ref())?;
            let (threads, environment) =
                threads::environment(per_cpu, &cpus, |name| std::env::var_os(name))?;
            let words = |(name, value): (String, String)| (name.into(), value.into());
            (Some(threads), environment.into_iter().map(words).collect())
        }
    };
    let launch = Launch {
        command: args.command,
        origin,
        override_user: options.override_user,
        dir,
        supervisor: supervisor::command(&args.faults),
        shares,
        explain: args
            .explain
            .then_some(|decision, started_ns| say(&describe(decision, started_ns))),
        trace,
        signals_all: launcher::signals_all(),
        environment,
        threads,
        step: launcher::step_number(|name| std::env::var(name).ok()),
    };
    let mut interrupts = None;
    let is_quiet = args.quiet;
    let started = |pid| {
        give_up_streams();
        if args.move_noise && no_moves.is_none() {
            interrupts = Some(Beside::start(pid, &args.faults));
        }
        rights::keep(rights::OF_RUN);
        if args.join {
            match daemon_client::join(pid) {
                Ok(joined) => {
                    if !flags.is_empty() {
                        let flags = in_one_line(&flags);
                        tracing::warn!(
                            "the daemon balances the command by its own options, not by {flags}"
                        );
                    }
                    return BalancedBy::Daemon(Box::new(move || {
                        if is_quiet { None } else { summary_of_daemon(&joined) }
                    }));
                }
                Err(why) => tracing::warn!("{why:#}; this process balances the program"),
            }
        }
        // A report about this command alone needs a balancer of its own.
        let ranks = if has_own_balancer { None } else { Ranks::of_this_process(flags) };
        match ranks {
            Some(ranks) => BalancedBy::Job(Box::new(ranks)),
            None => BalancedBy::ThisProcess,
        }
    };
    let ended = run(&launch, balancing.clone(), started, || machine(speed.clone()));
    let (end, summary) = match ended {
        Ok(ended) => ended,
        Err(why) => {
            // Or the report of an earlier run would pass for that of this one.
            if let Some(file) = report {
                write_report(file, &without_end(&launch, &balancing, &why), None);
            }
            return Err(why.into());
        }
    };
    if let Some(file) = trace_file {
        file.keep();
    }
    let interrupts = match (interrupts, no_moves) {
        (Some(beside), _) => Some(summarise(beside)),
        (None, why) => why.map(|why| InterruptsSummary::no_effect(&why)),
    };
    if let Some(interrupts) = interrupts.as_ref().filter(|_| !args.quiet) {
        say(&format!("evenkeel: interrupts: {}\n", interrupts.effect));
    }
    if let Some(mut summary) = summary {
        summary.shares = summary.shares.or(no_shares);
        if let Some(file) = report {
            write_report(file, &summary, interrupts);
        }
        if !args.quiet {
            say(&format!("{summary}\n"));
            record::keep(&summary, config.cluster.records.as_deref());
        }
    }
    Ok(end.imitate())
}

/// How a command went that the daemon balanced. It has ended: an error is said, and changes no exit
/// code.
fn summary_of_daemon(joined: &daemon_client::Joined) -> Option<Summary> {
    let summary = joined.summary();
    summary.inspect_err(|why| say(&format!("evenkeel: no summary: {why:#}\n"))).ok()
}

/// The version of [`Report`].
pub const FORMAT: u32 = 2;

/// What `--json` writes.
#[derive(Serialize, JsonSchema)]
pub struct Report<'a> {
    /// The version of this document.
    format: u32,
    #[serde(flatten)]
    summary: &'a Summary,
    /// What came of `--move-noise`.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupts: Option<InterruptsSummary>,
}

/// Writes the report. An error is said, and the exit code stays that of the command: it matters more
/// than the report.
fn write_report(file: ReportFile, summary: &Summary, interrupts: Option<InterruptsSummary>) {
    let text = serde_json::to_vec_pretty(&Report { format: FORMAT, summary, interrupts });
    let written = text.map_err(anyhow::Error::from).and_then(|mut text| {
        text.push(b'\n');
        file.write(&text)
    });
    if let Err(error) = written {
        say(&format!("evenkeel: {error:#}\n"));
    }
}

/// Has the interrupts moved back. The command has ended: an error is said, and changes no exit code.
fn summarise(beside: Result<Beside>) -> InterruptsSummary {
    let summary = beside.and_then(Beside::finish);
    summary.unwrap_or_else(|why| InterruptsSummary::no_effect(&format!("{why:#}")))
}

/// Words of a command line as text.
fn in_one_line(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Prints on standard error. Not by eprintln, which panics when standard error is closed.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Leaves standard input and output to the command: when it closes them, the process at the other end of
/// the pipe must notice.
fn give_up_streams() {
    let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: two descriptors that are open, or a harmless error. From here on, evenkeel neither
        // reads from standard input nor writes to standard output.
        unsafe { libc::dup2(null.as_raw_fd(), fd) };
    }
}
