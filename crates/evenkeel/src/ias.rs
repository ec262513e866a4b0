//! `evenkeel ias`, `set_ias_agg`, `set_ias_alloc`: which threads and CPUs aggregate (paper 003).

use std::path::Path;

use anyhow::Result;
use evenkeel_control::Request;
use evenkeel_keel::{Aggregation, IasState, allocation_request, grouped};
use evenkeel_machine::Machine;

use crate::cli::{IasArgs, IasCommand};
use crate::sched::ask_keel;

/// Sets or shows.
///
/// # Errors
/// No keel runs, or it refuses; nothing is changed then.
pub fn main(args: &IasArgs) -> Result<i32> {
    match &args.command {
        IasCommand::Agg { pid, off, bonus, limit } => {
            let (kind, value) = bonus.type_and_value();
            let (kind, value, limit) = (kind.to_string(), value.to_string(), limit.to_string());
            aggregate([pid, if *off { "0" } else { "1" }, &kind, &value, &limit])
        }
        IasCommand::SetAgg { arguments } => {
            let mut five: [&str; 5] = Default::default();
            five.iter_mut().zip(arguments).for_each(|(place, argument)| *place = argument);
            aggregate(five)
        }
        IasCommand::Alloc { roles, groups: None } => allocate(roles),
        IasCommand::Alloc { groups: Some(groups), .. } => {
            let machine = Machine::from_sysfs(Path::new("/"))?;
            allocate(&grouped(&machine, groups)?)
        }
        IasCommand::Show { json } => show(*json),
    }
}

/// The paper's five arguments.
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

fn show(json: bool) -> Result<i32> {
    let answer = ask_keel(&Request::new("ias_show"))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
        return Ok(0);
    }
    let state: IasState = serde_json::from_value(answer)?;
    for (cpu, role) in &state.roles {
        let kind = if role % 2 == 0 { "master" } else { "slave" };
        println!("CPU {cpu:<4} {kind} of group {}", role / 2);
    }
    if state.spaces.is_empty() {
        println!("No process aggregates its threads (evenkeel ias agg PID).");
    }
    for space in &state.spaces {
        let bonus = match space.bonus_type {
            0 => format!("{} ns", space.bonus_value),
            _ => format!("{} times what ran last", space.bonus_value),
        };
        let limit = match space.limit {
            0 => String::new(),
            limit => format!(", {limit} times in a row at most"),
        };
        println!("process {:<8} bonus {bonus}{limit}", space.pid);
    }
    Ok(0)
}
