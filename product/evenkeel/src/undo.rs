//! `evenkeel undo`: takes back what a killed evenkeel left.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use evenkeel_host::daemon::remove_states_of_ended;
use evenkeel_journal::{
    TaskRef, UndoOptions, UndoReport, other_runtime_dirs, runtime_dir, undo_all,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::UndoArgs;
use crate::dead_sockets::remove_dead_sockets;
use crate::irq;
use crate::terminal::clean;

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
    let own = runtime_dir()?;
    let dirs = [other_runtime_dirs(&own), vec![own]].concat();
    let mut report = undo_all(dirs.iter().map(PathBuf::as_path), options);
    for dir in &dirs {
        remove_dead_sockets(dir);
        // A daemon that was killed has no socket from here on.
        remove_states_of_ended(dir);
    }
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
    let freed: Vec<TaskRef> = [&report.restored[..], &report.freed].concat();
    freed_lines(&freed, command_of).iter().for_each(|line| println!("{line}"));
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
    if freed.is_empty() && is_silent {
        println!("Nothing to undo.");
    }
    Ok(code)
}

/// A line for each process of which tasks got their CPUs back. A journal of a daemon names the daemon,
/// so the name of the process is asked for.
fn freed_lines(freed: &[TaskRef], command_of: impl Fn(i32) -> String) -> Vec<String> {
    let mut tasks: BTreeMap<i32, usize> = BTreeMap::new();
    for task in freed {
        *tasks.entry(task.tgid).or_default() += 1;
    }
    let line = |(pid, count)| {
        let tasks = match count {
            1 => "1 task may use all its CPUs".to_owned(),
            _ => format!("{count} tasks may use all their CPUs"),
        };
        format!("{} (pid {pid}): {tasks} again.", clean(&command_of(pid)))
    };
    tasks.into_iter().map(line).collect()
}

/// The name of a process; one that has ended since has none.
fn command_of(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "a process that has ended".to_owned(), |name| name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_is_told_by_process() {
        let task = |tid, tgid| TaskRef { tid, tgid, start_time_ticks: 1 };
        let freed = [task(9, 9), task(7, 7), task(8, 7)];
        let lines = freed_lines(&freed, |pid| format!("app{pid}\u{1b}"));
        let expected = [
            "app7? (pid 7): 2 tasks may use all their CPUs again.",
            "app9? (pid 9): 1 task may use all its CPUs again.",
        ];
        assert_eq!(lines, expected);
        assert!(freed_lines(&[], command_of).is_empty());
        assert_eq!(command_of(0), "a process that has ended");
        assert!(!command_of(std::process::id() as i32).ends_with('\n'));
    }
}
