//! `evenkeel ias`, `set_ias_agg`, `set_ias_alloc`: which threads and CPUs aggregate (paper 003).

use std::path::Path;

use anyhow::{Result, bail};
use evenkeel_control::{AskError, Request};
use evenkeel_keel::{
    Aggregation, IasState, Instance, Preference, Program, Search, Tuning, allocation_request,
    grouped,
};
use evenkeel_machine::Machine;
use nix::errno::Errno;
use nix::unistd::Uid;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::{IasArgs, IasCommand};
use crate::keel_client;

/// Sets or shows the aggregation.
///
/// # Errors
/// No keel runs, or it refuses. Then nothing has changed, but for `--program`, which says what it set.
pub fn main(args: &IasArgs) -> Result<i32> {
    match &args.command {
        IasCommand::Agg { pid, programs, off, bonus, limit } => {
            let how = Preference { bonus: *bonus, limit: *limit };
            match pid {
                Some(pid) => {
                    let (kind, value) = bonus.type_and_value();
                    let [kind, value, limit] = [kind.into(), value, *limit].map(|n| n.to_string());
                    aggregate([pid, if *off { "0" } else { "1" }, &kind, &value, &limit])
                }
                None => {
                    programs.iter().try_for_each(|program| all_of(program, how, *off)).map(|()| 0)
                }
            }
        }
        IasCommand::SetAgg { pid, agg, bonus_type, bonus_value, limit } => {
            aggregate([pid, agg, bonus_type, bonus_value, limit])
        }
        IasCommand::Alloc { roles, groups: None } => allocate(roles),
        IasCommand::Alloc { groups: Some(groups), .. } => {
            let machine = Machine::from_sysfs(Path::new("/"))?;
            allocate(&grouped(&machine, groups)?)
        }
        IasCommand::Show { json } => show(*json),
    }
}

/// Sets all processes of a program that this user may set, and prints them.
fn all_of(program: &Program, how: Preference, off: bool) -> Result<()> {
    let user = Uid::effective();
    let (own, others): (Vec<Instance>, Vec<Instance>) =
        program.instances().into_iter().partition(|one| user.is_root() || user.as_raw() == one.uid);
    let mut set = Vec::new();
    for Instance { pid, .. } in own {
        let aggregation = Aggregation { agg: u32::from(!off), ..how.aggregation(pid) };
        match ask_keel(&aggregation.request()) {
            Ok(_) => set.push(pid.to_string()),
            // The process has ended meanwhile.
            Err(why) if is_gone(&why) => {}
            Err(why) if set.is_empty() => return Err(why),
            Err(why) => {
                return Err(
                    why.context(format!("only processes {} of {program} were set", set.join(", ")))
                );
            }
        }
    }
    if set.is_empty() {
        match others.first() {
            None => bail!("no process runs {program}"),
            Some(one) => bail!(
                "process {} runs {program}, but belongs to user {}: only that user and root may set it",
                one.pid,
                one.uid
            ),
        }
    }
    let how = if off { "not aggregated".to_owned() } else { format!("bonus {}", how.bonus) };
    println!("{program}: {how}: {}", set.join(", "));
    Ok(())
}

fn ask_keel(request: &Request) -> Result<serde_json::Value> {
    keel_client::ask_keel(request, "--order ias")
}

fn is_gone(why: &anyhow::Error) -> bool {
    let refused = why.downcast_ref::<AskError>();
    refused.is_some_and(
        |why| matches!(why, AskError::Refused { errno, .. } if *errno == Errno::ESRCH as i32),
    )
}

/// Sets the aggregation of a process by the paper's five arguments.
fn aggregate(arguments: [&str; 5]) -> Result<i32> {
    let names = ["pid", "agg", "bonus_type", "bonus_value", "limit"];
    let given = |name: &str| {
        let at = names.iter().position(|known| *known == name)?;
        Some(arguments[at].to_owned())
    };
    ask_keel(&Aggregation::parse(given)?.request())?;
    Ok(0)
}

fn allocate(roles: &[u16]) -> Result<i32> {
    ask_keel(&allocation_request(roles))?;
    Ok(0)
}

/// The version of [`Shown`].
pub const FORMAT: u32 = 1;

/// What `show --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Shown {
    /// The version of this document.
    format: u32,
    #[serde(flatten)]
    state: IasState,
}

fn show(json: bool) -> Result<i32> {
    let state: IasState = serde_json::from_value(ask_keel(&Request::new("ias_show"))?)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&Shown { format: FORMAT, state })?);
        return Ok(0);
    }
    for (cpu, role) in &state.roles {
        let kind = if role % 2 == 0 { "master" } else { "slave" };
        println!("CPU {cpu:<4} {kind} of group {}", role / 2);
    }
    if state.spaces.is_empty() {
        println!("No process aggregates its threads. Start with: evenkeel ias agg PID");
    }
    for space in &state.spaces {
        let bonus = match space.bonus_type {
            0 => format!("{} ns", space.bonus_value),
            _ => format!("{} times what ran last", space.bonus_value),
        };
        let limit = match space.limit {
            0 => String::new(),
            limit => format!(", at most {limit} times in a row"),
        };
        println!("process {:<8} bonus {bonus}{limit}", space.pid);
    }
    match &state.found {
        Some(found) if found.is_empty() => println!("ias-auto: no result yet"),
        found => {
            for (pid, Tuning { multiplier, why, .. }) in found.iter().flatten() {
                println!("ias-auto: process {pid} has {multiplier}x: {why}");
            }
        }
    }
    println!("{}", costs(&state.search));
    Ok(0)
}

/// A line about the cost of searches for siblings, and the siblings that they missed.
fn costs(search: &Search) -> String {
    let Search { window, searches, searched, queued, missed } = *search;
    let each = searched as f64 / searches.max(1) as f64;
    let share = 100.0 * missed as f64 / queued.max(1) as f64;
    format!(
        "{searches} searches read {each:.1} tasks each; {share:.1} % of {queued} waiters did not fit \
         into the window of {window} (--ias-window)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_and_misses_of_searches_are_reported() {
        let search = Search { window: 64, searches: 200, searched: 300, queued: 1000, missed: 7 };
        assert_eq!(
            costs(&search),
            "200 searches read 1.5 tasks each; 0.7 % of 1000 waiters did not fit into the window of 64 \
             (--ias-window)"
        );
        assert!(costs(&Search::default()).starts_with("0 searches read 0.0 tasks each; 0.0 %"));
    }
}
