//! The laboratory's executable `evenkeel-lab` in its parts: one file for each command. `main.rs` calls
//! [`main`]; the project's tests parse the commands of the docs by [`cli`].

mod bench;
pub mod cli;
mod command_line;
mod noise;
mod record;
mod report;
mod repro;
pub mod schemas;
mod sim;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::FromArgMatches;
use evenkeel::cli::Generated;
use evenkeel::{terminal, version};

use crate::cli::{Cli, Command};

/// Runs the command that this process was started for.
pub fn main() -> ExitCode {
    evenkeel::generate::complete(cli::command);
    let matches = cli::command().try_get_matches();
    let matches = matches.unwrap_or_else(|error| version::exit("evenkeel-lab", &error));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    terminal::start_logging(cli.verbose);
    // Once for the BPF objects of all laboratory crates.
    evenkeel_cbinfo::redirect_libbpf_log();
    terminal::exit_code("evenkeel-lab", dispatch(cli))
}

fn dispatch(cli: Cli) -> Result<i32> {
    // It loads schedulers, and starts programs, of the caller's choice.
    if evenkeel::has_more_rights_than_caller() {
        bail!(
            "this executable has rights that its caller does not have (set-user-id or file \
             capabilities), and would run code of the caller's choice with them: take them off \
             (setcap -r, chmod u-s)"
        );
    }
    let only_prints = match &cli.command {
        Command::Sim(_) | Command::Replay(_) => true,
        Command::Noise(args) => args.command.is_empty(),
        _ => false,
    };
    if only_prints {
        terminal::end_at_a_broken_pipe();
    }
    match cli.command {
        Command::Report(args) => report::main(&args),
        Command::Sim(args) => sim::main(*args),
        Command::Record(args) => record::main(&args),
        Command::Replay(args) => sim::run_replay(&args),
        Command::Bench(args) => bench::main(args),
        Command::Noise(args) => noise::main(args),
        Command::Repro(args) => repro::main(args),
        Command::Generate(args) if args.what == Generated::Schemas => {
            evenkeel::schemas::write(&args.directory, schemas::all())?;
            Ok(0)
        }
        Command::Generate(args) => evenkeel::generate::main(cli::command(), cli::SECTIONS, &args),
    }
}
