//! `evenkeel undo`: takes back what a killed evenkeel left.

use anyhow::Result;
use evenkeel_journal::{UndoOptions, UndoReport, runtime_dir};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::UndoArgs;
use crate::dead_sockets::remove_dead_sockets;
use crate::irq;

/// The version of [`Undone`].
pub const FORMAT: u32 = 1;

/// What `--json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Undone<'a> {
    /// The version of this document.
    format: u32,
    #[serde(flatten)]
    report: &'a UndoReport,
}

/// Undoes all journals of this user, and prints what was done.
///
/// # Errors
/// The journals cannot be found. Changes that cannot be undone give exit code 1.
pub fn main(args: &UndoArgs) -> Result<i32> {
    // Root's undoes what was done to the processes of all users, also as services end.
    evenkeel_control::guard_reads();
    // A user asks for all of it: what is to stand until then, too.
    let options = UndoOptions { force: args.force, persistent: !args.killed };
    let dir = runtime_dir()?;
    let mut report = evenkeel_journal::undo(&dir, options);
    remove_dead_sockets(&dir);
    if args.killed {
        // That other balancers live is nothing that was left.
        report.live.clear();
    }
    let code = i32::from(!report.errors.is_empty());
    if args.json {
        let undone = Undone { format: FORMAT, report: &report };
        println!("{}", serde_json::to_string_pretty(&undone)?);
        return Ok(code);
    }
    let freed = report.restored.len() + report.freed.len();
    if freed > 0 {
        println!("{freed} task(s) may use all their CPUs again.");
    }
    for kept in &report.kept {
        println!("{}: left on CPUs {}, which another process set.", kept.task, kept.found);
    }
    irq::taken_back(&report).iter().for_each(|line| println!("{line}"));
    for foreign in &report.foreign {
        println!("{}: {}", foreign.path.display(), foreign.why);
    }
    for live in &report.live {
        println!(
            "{}: its balancer is alive and will undo it (--force: undo it now)",
            live.display()
        );
    }
    for damage in &report.damaged {
        println!("{damage}");
    }
    for error in &report.errors {
        eprintln!("evenkeel: {error}");
    }
    let is_silent = report.kept.is_empty()
        && report.restored_settings.is_empty()
        && report.kept_settings.is_empty()
        && report.restored_tables.is_empty()
        && report.kept_tables.is_empty()
        && report.lifted_bans.is_empty()
        && report.foreign.is_empty()
        && report.live.is_empty()
        && report.damaged.is_empty()
        && report.errors.is_empty();
    if freed == 0 && is_silent {
        println!("Nothing to undo.");
    }
    Ok(code)
}
