//! `evenkeel watch`: has a program only watched, or balanced again. The key `l` of `evenkeel top` does
//! the same.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_host::{Accounting, ProgramStatus};

use crate::cli::WatchArgs;
use crate::exit::Impossible;
use crate::{daemon_client, status};

/// How long a balancer may take for its answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Has a program only watched, or balanced again.
///
/// # Errors
/// No such program runs, or its balancer refuses or does not answer.
pub fn main(args: &WatchArgs) -> Result<i32> {
    let (programs, pid) = (status::read_all()?, args.pid);
    let Some(program) = programs.iter().find(|program| is_meant(program, pid)) else {
        bail!("no program of yours with pid {pid} runs under evenkeel; list them: evenkeel status");
    };
    set_watched(program, !args.off, PATIENCE)?;
    let root = program.root;
    if args.off {
        println!("The program of process {root} is balanced again.");
    } else {
        println!(
            "The program of process {root} is only watched: evenkeel watch {root} --off has it balanced \
             again."
        );
    }
    Ok(0)
}

/// Whether a program is named by this number: that of its first process, or of the `evenkeel run` that
/// balances it. A daemon balances other programs, too.
fn is_meant(program: &ProgramStatus, pid: u32) -> bool {
    program.root == pid || program.program.is_none() && program.balancer.tid as u32 == pid
}

/// Has a program only watched (`watch`), or balanced again, by its balancer. That may take so long for
/// its answer.
///
/// # Errors
/// The balancer refuses, does not answer, or does nothing to the program now. The error names the
/// program.
pub fn set_watched(program: &ProgramStatus, watch: bool, patience: Duration) -> Result<()> {
    let root = program.root;
    let is_unobserved = program.program.is_none() && program.accounting == Accounting::None;
    match daemon_client::watch(program, watch, patience) {
        Err(why) if is_unobserved => {
            Err(Impossible(format!("{root}: nothing is done to it now ({why:#})")).into())
        }
        answer => answer.with_context(|| root.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_program_is_named_by_its_first_process_or_by_its_own_run() {
        let program = |number: Option<u32>| -> ProgramStatus {
            serde_json::from_value(json!({
                "balancer": {"tid": 8, "tgid": 8, "start": 5}, "program": number, "root": 7,
                "command": [], "accounting": "cbinfo", "placement": "soft", "dry_run": false,
                "intervals": 1, "moves": 0, "cpus": [], "decisions": [],
            }))
            .unwrap()
        };
        let (of_run, of_daemon) = (program(None), program(Some(3)));
        assert!(is_meant(&of_run, 7) && is_meant(&of_run, 8) && !is_meant(&of_run, 3));
        assert!(is_meant(&of_daemon, 7) && !is_meant(&of_daemon, 8));
    }
}
