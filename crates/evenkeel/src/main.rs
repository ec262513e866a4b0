//! The command line of evenkeel.

mod bench;
mod cli;
mod config;
mod daemon;
mod doctor;
mod generate;
mod ias;
mod inspect;
mod job;
mod origin;
mod run;
mod sais;
mod sched;
mod sim;
mod zone;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    // `bench keel` boots a kernel with this very program as its first process.
    if evenkeel_vm::is_init() {
        evenkeel_vm::serve();
    }
    let cli = parse();
    start_logging(cli.verbose);
    match dispatch(cli) {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            // Not by eprintln, which panics when nobody reads.
            let _ = writeln!(std::io::stderr(), "evenkeel: {}", in_full(&error));
            ExitCode::from(2)
        }
    }
}

/// An error with its causes; those that have been said with what they caused are not said again.
fn in_full(error: &anyhow::Error) -> String {
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

/// The command line. The multi-call names: `chcb CMD` is `evenkeel run CMD`, `capability-balancer` is
/// `evenkeel daemon` (paper 000, section 3.3), `set_ias_agg` and `set_ias_alloc` are `evenkeel ias set-agg`
/// and `alloc` (paper 003, section 3).
fn parse() -> Cli {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().map(PathBuf::from);
    let name = name.as_ref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    let path: &[&str] = match name {
        Some("chcb") => &["run"],
        Some("capability-balancer") => &["daemon"],
        Some("set_ias_agg") => &["ias", "set-agg"],
        Some("set_ias_alloc") => &["ias", "alloc"],
        _ => &[],
    };
    let mut command = Cli::command();
    if let (Some(name), [_, ..]) = (name, path) {
        if let Some(usage) = usage(path, name) {
            command = with_usage(command, path, &usage);
        }
        arguments.splice(..1, ["evenkeel"].iter().chain(path).map(OsString::from));
    }
    let matches = command.get_matches_from(arguments);
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// How a command is used that is called by a name of its own.
fn usage(path: &[&str], name: &str) -> Option<String> {
    let mut command = Cli::command();
    command.build();
    let of = |command, part: &&str| clap::Command::find_subcommand_mut(command, part);
    let command = path.iter().try_fold(&mut command, of)?;
    let usage = command.render_usage().to_string();
    let rest = usage.strip_prefix(&format!("Usage: evenkeel {}", path.join(" ")))?;
    Some(format!("{name}{rest}"))
}

fn with_usage(command: clap::Command, path: &[&str], usage: &str) -> clap::Command {
    match path {
        [] => command.override_usage(usage.to_owned()),
        [first, rest @ ..] => command.mut_subcommand(first, |sub| with_usage(sub, rest, usage)),
    }
}

fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("EVENKEEL_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // It would say on standard error that standard error is broken, and panic.
        .log_internal_errors(false)
        .without_time()
        .init();
}

fn dispatch(cli: Cli) -> Result<i32> {
    let is_report = matches!(
        cli.command,
        Command::Status(_)
            | Command::Explain(_)
            | Command::Undo(_)
            | Command::Join(_)
            | Command::Leave(_)
            | Command::Zone(_)
            | Command::Ias(_)
            | Command::Sim(_)
    );
    if is_report {
        origin::end_at_a_broken_pipe();
    }
    match cli.command {
        Command::Run(args) => {
            let config = config::load(cli.config.as_deref())?;
            run::main(args, config, origin::origin())
        }
        Command::Daemon(args) => daemon::main(&args, cli.config.as_deref()),
        Command::Join(args) => daemon::join_command(&args),
        Command::Leave(args) => daemon::leave_command(&args),
        Command::Supervise(args) => {
            evenkeel_journal::supervise(&args.journal);
            Ok(0)
        }
        Command::Status(args) => inspect::status(&args),
        Command::Explain(args) => inspect::explain(&args),
        Command::Undo(args) => inspect::undo(&args),
        Command::Generate(args) => generate::main(&args),
        Command::Doctor(args) => doctor::main(args),
        Command::Sched(args) => sched::main(&args, &config::load(cli.config.as_deref())?),
        Command::Ias(args) => ias::main(&args),
        Command::Zone(args) => zone::main(&args),
        Command::Sim(args) => sim::main(*args),
        Command::Sais(args) => sais::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Repro(args) => bench::repro(args),
    }
}
