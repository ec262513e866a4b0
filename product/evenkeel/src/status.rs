//! `evenkeel status`: the programs that are balanced.

use std::time::Duration;

use anyhow::Result;
use evenkeel_host::{Accounting, Placement, ProgramStatus, Proven, Waits, read_status_files};
use evenkeel_journal::{Standing, runtime_dir};

use crate::cli::JsonArgs;
use crate::{daemon_client, decision_text, irq, keel_client};

/// How long a daemon may take for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Prints the keel that runs, what `irq once` left moved, and each balanced program.
///
/// # Errors
/// The status files cannot be read.
pub fn main(args: &JsonArgs) -> Result<i32> {
    let programs = read_all()?;
    if args.json {
        let words: Vec<_> = programs.iter().map(ProgramStatus::in_words).collect();
        println!("{}", serde_json::to_string_pretty(&words)?);
        return Ok(0);
    }
    if let Some(line) = keel_client::status_line()? {
        println!("{line}");
    }
    daemon_client::read_quotas().iter().for_each(|line| println!("{line}"));
    let standing = Standing::read(&runtime_dir()?);
    irq::standing_lines(&standing).iter().for_each(|line| println!("{line}"));
    if programs.is_empty() {
        println!("No program runs under evenkeel. Start one with: evenkeel run -- CMD");
    }
    for program in &programs {
        println!("{}", headline(program));
        for cpu in &program.cpus {
            let left = cpu.capability() * 100.0;
            println!("    CPU {:<4} {left:>5.1} % left for the program", cpu.cpu);
        }
        if program.accounting != Accounting::None {
            println!("    {}", waits(program.accounting, &program.waits));
        }
        if let Some(decision) = program.decisions.last() {
            println!("    last: {}", decision_text::summarise(decision));
        }
    }
    Ok(0)
}

/// The status of every balanced program of this user: those with a balancer of their own, and those of
/// daemons.
///
/// # Errors
/// The status files cannot be read.
pub fn read_all() -> Result<Vec<ProgramStatus>> {
    read_all_within(PATIENCE)
}

/// The same; a daemon may take so long for its answer.
///
/// # Errors
/// The status files cannot be read.
pub fn read_all_within(patience: Duration) -> Result<Vec<ProgramStatus>> {
    let mut programs = read_status_files(&runtime_dir()?)?;
    programs.extend(daemon_client::read_status_within(patience));
    Ok(programs)
}

/// How a program waits, or why that is not seen with these figures.
pub fn waits(accounting: Accounting, waits: &Waits) -> String {
    match accounting {
        Accounting::Cbinfo => waits.to_string(),
        Accounting::Daemon => {
            "spinning not seen: the daemon looks for it only in programs that it \
                               balances itself (evenkeel run --join)"
                .to_owned()
        }
        Accounting::None => "spinning not seen: nothing is observed yet".to_owned(),
        Accounting::Procfs => "spinning not seen: without cbinfo it looks like work".to_owned(),
    }
}

/// One line about a program.
pub fn headline(program: &ProgramStatus) -> String {
    let placement = match (program.dry_run, program.placement) {
        (true, _) => "only observed",
        (false, Placement::Soft) => "soft placement",
        (false, Placement::Hard) => "hard placement",
    };
    let balancer = if program.program.is_some() { "daemon" } else { "balancer" };
    let heading = format!(
        "{} (pid {}, {balancer} {})",
        program.command.join(" "),
        program.root,
        program.balancer.tid
    );
    if program.accounting == Accounting::None {
        return format!(
            "{heading}: the CPUs look alike, so nothing is loaded and nothing is moved"
        );
    }
    let gain = match program.gain.proven {
        Proven::Nothing => String::new(),
        _ => format!(", {}", program.gain),
    };
    let shares = program.shares.as_ref().map_or_else(String::new, |shares| format!(", {shares}"));
    let resting =
        if program.resting { "; nothing is loaded for a while, as it gains nothing" } else { "" };
    format!(
        "{heading}: {placement}, {} moves in {} intervals{gain}{shares}{resting}",
        program.moves, program.intervals
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_says_why_spinning_is_not_seen() {
        let text = |accounting| waits(accounting, &Waits::default());
        assert!(text(Accounting::Cbinfo).starts_with("spinning not looked for"));
        assert!(text(Accounting::Daemon).contains("run --join"));
        assert!(text(Accounting::Procfs).contains("without cbinfo"));
    }
}
