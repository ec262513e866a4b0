//! The command line of the product, `evenkeel`, one file for each command. The executable (`main.rs`)
//! notes the state that it was started with and calls [`main`]. The laboratory's executable shares
//! [`terminal`], [`generate`] and [`version`], and the project's tests parse the commands in the docs by
//! [`cli`].
//!
//! | file | the one thing in it |
//! |---|---|
//! | `cli` | the definition of all commands, options and help texts |
//! | `config` | configuration files |
//! | `balancing` | from options to values, for `run` and `daemon` |
//! | `shares` | the library of `run --shares`: where it lies, and whether the command can be divided |
//! | `threads` | more OpenMP threads than CPUs: the environment of `run --threads` |
//! | `exit` | what the exit codes mean |
//! | `supervisor` | how the supervisor is started |
//! | `report_file` | where `--json` and `--html` write |
//! | `trace_file` | where `irq run --perfetto` and `sched --perfetto` write |
//! | `schemas` | a schema for each command that prints JSON |
//! | `decision_text` | a decision as text |
//! | `daemon_client`, `keel_client` | requests to the daemon and to the keel |
//! | `dead_sockets` | sockets of killed services are removed |
//! | `launcher` | which launcher started this process as a rank, and of which job |
//! | `job` | the ranks of a job share a balancer |
//! | `task` | the task of a batch system, which is never failed |
//! | `oci` | the hook of a container runtime, which fails no container |
//! | `cluster` | what is kept of a job of Slurm, and the report on its nodes |
//! | `rights` | the capabilities that each command keeps |
//! | `confine` | what the kernel refuses the services from their start on |
//! | `origin` | signals and streams before the Rust runtime changed them |
//! | `terminal` | logging, errors and exit codes |
//! | `version` | what `--version` prints, with `-v` and without |
//! | `wrap` | lines broken at a width |
//! | `countdown` | how long a command that watches takes yet |
//! | all others | the command of that name |

mod balancing;
mod bugreport;
pub mod cli;
mod cluster;
mod compare;
pub mod config;
mod confine;
mod countdown;
mod daemon;
mod daemon_client;
mod dead_sockets;
mod decision_text;
mod doctor;
mod exit;
mod explain;
pub mod generate;
mod ias;
mod irq;
mod job;
mod keel_client;
mod launcher;
mod oci;
mod report_file;
mod rights;
mod run;
mod sais;
pub mod sched;
pub mod schemas;
mod shares;
mod status;
mod supervisor;
mod task;
pub mod terminal;
mod threads;
mod top;
mod trace_file;
mod undo;
pub mod version;
mod watch;
mod wrap;
mod zone;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::FromArgMatches;
use evenkeel_host::Origin;

pub use evenkeel_journal::has_more_rights_than_caller;

use crate::cli::{Cli, Command, IrqArgs, IrqPart, OTHER_NAMES};
use crate::config::usable::blame;
use crate::trace_file::TraceFile;

/// Runs the command of this process. `origin` is the state of signals and streams before the Rust
/// runtime changed it.
pub fn main(origin: Origin) -> ExitCode {
    if let Some(task) = task::Task::of_this_process() {
        return task.run(origin);
    }
    generate::complete(cli::command);
    let cli = parse();
    terminal::start_logging(cli.verbose);
    let is_hook = matches!(cli.command, Command::OciHook(_));
    let outcome = dispatch(cli, origin);
    if is_hook { oci::exit_code(outcome) } else { terminal::exit_code("evenkeel", outcome) }
}

/// Parses the command line, also where the executable is called by one of its other names.
fn parse() -> Cli {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().map(PathBuf::from);
    let name = name.as_ref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
    let path = OTHER_NAMES.iter().find(|(other, _)| Some(*other) == name);
    let path: &[&str] = path.map_or(&[], |(_, words)| words);
    let mut command = cli::command();
    if let (Some(name), [_, ..]) = (name, path) {
        if let Some(usage) = usage(path, name) {
            command = with_usage(command, path, &usage);
        }
        arguments.splice(..1, ["evenkeel"].iter().chain(path).map(OsString::from));
    }
    let is_hook = arguments.get(1).is_some_and(|word| word == oci::COMMAND);
    let matches = command.try_get_matches_from(arguments);
    matches.and_then(|matches| Cli::from_arg_matches(&matches)).unwrap_or_else(|error| {
        if is_hook && error.use_stderr() {
            oci::leave_alone(&error.to_string());
        }
        version::exit("evenkeel", &error)
    })
}

/// The usage line of a command under another name.
fn usage(path: &[&str], name: &str) -> Option<String> {
    let mut command = cli::command();
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

fn dispatch(cli: Cli, origin: Origin) -> Result<i32> {
    let is_report = matches!(
        cli.command,
        Command::Status(_)
            | Command::Explain(_)
            | Command::Top(_)
            | Command::Cluster(_)
            | Command::Undo(_)
            | Command::Config(_)
            | Command::Bugreport(_)
            | Command::Join(_)
            | Command::Leave(_)
            | Command::Watch(_)
            | Command::Zone(_)
            | Command::Ias(_)
            | Command::Irq(IrqArgs { part: IrqPart::Status(_) | IrqPart::Plan(_) })
    );
    if is_report && !origin.sigpipe_ignored {
        terminal::end_at_a_broken_pipe();
    }
    // Confined, a service opens no file outside its own folder.
    let trace = TraceFile::of(&cli.command)?;
    rights::keep_for(&cli.command);
    confine::confine_for(&cli.command, trace.as_ref().map(TraceFile::folder));
    // Also commands that use nothing of a named file check it. The others read it themselves, and once,
    // since it may be a pipe.
    let reads_it = matches!(
        cli.command,
        Command::Run(_)
            | Command::Compare(_)
            | Command::Daemon(_)
            | Command::Sched(_)
            | Command::Cluster(_)
            | Command::Config(_)
            | Command::Bugreport(_)
            | Command::Doctor(_)
    );
    if let Some(path) = cli.config.as_deref().filter(|_| !reads_it) {
        config::load(Some(path))?;
    }
    let file = cli.config.as_deref();
    match cli.command {
        Command::Run(args) => {
            let config = config::load(file)?;
            run::main(args, config, origin).map_err(|why| blame(why, file))
        }
        Command::Compare(args) => compare::main(&args, file),
        Command::Daemon(args) => daemon::main(&args, file),
        Command::Join(args) => daemon::join_command(&args),
        Command::Leave(args) => daemon::leave_command(&args),
        Command::Watch(args) => watch::main(&args),
        Command::OciHook(_) => oci::main(),
        Command::Supervise(args) => {
            evenkeel_journal::supervise(&args.journal);
            Ok(0)
        }
        Command::Status(args) => status::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Cluster(args) => cluster::main(&args, file),
        Command::Undo(args) => undo::main(&args),
        Command::Config(args) => config::report::main(&args.command, file),
        Command::Bugreport(args) => bugreport::main(&args, file),
        Command::Generate(args) => generate::main(cli::command(), generate::SECTIONS, &args),
        Command::Doctor(args) => doctor::main(args, file),
        Command::Sched(args) => {
            let config = config::load(file)?;
            sched::main(&args, &config, trace).map_err(|why| blame(why, file))
        }
        Command::Ias(args) => ias::main(&args),
        Command::Zone(args) => zone::main(&args),
        Command::Sais(args) => sais::main(args),
        Command::Irq(args) => irq::main(&args, trace),
        Command::Sim(args) => moved("sim", &args.words),
        Command::Bench(args) => moved("bench", &args.words),
        Command::Repro(args) => moved("repro", &args.words),
    }
}

/// The error of a command that is now one of the laboratory.
fn moved(command: &str, words: &[OsString]) -> Result<i32> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    // There, noise and replay are commands of their own.
    let command = match (command, words.first().map(AsRef::as_ref)) {
        ("bench", Some("noise")) | ("sim", Some("replay")) => String::new(),
        _ => format!(" {command}"),
    };
    let words: String = words.iter().map(|word| format!(" {word}")).collect();
    bail!("this is evenkeel-lab{command}{words}: the laboratory has an executable of its own")
}
