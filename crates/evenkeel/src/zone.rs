//! `evenkeel zone`: the knobs of a running keel's gate.

use anyhow::{Result, bail};
use evenkeel_control::Request;
use evenkeel_keel::{Gate, OptionError, Zone};
use serde_json::{Map, Value};

use crate::cli::{ZoneArgs, ZoneCommand};
use crate::sched::ask_keel;

/// Shows or turns knobs.
///
/// # Errors
/// No keel runs, or it refuses; nothing is changed then.
pub fn main(args: &ZoneArgs) -> Result<i32> {
    match &args.command {
        ZoneCommand::Get { knob, json } => get(knob.as_deref(), *json),
        ZoneCommand::Set { knob, value } => set(knob, value),
    }
}

fn get(knob: Option<&str>, json: bool) -> Result<i32> {
    let wanted = knob.map(main_name).transpose()?;
    let answer: Map<String, Value> = serde_json::from_value(ask_keel(&Request::new("get"))?)?;
    let knobs: Map<String, Value> =
        answer.into_iter().filter(|(name, _)| Zone::name_of(name).is_some()).collect();
    if knobs.is_empty() {
        bail!("the keel runs with --gate {}; start it with --gate zone", Gate::Always);
    }
    match wanted {
        Some(name) => println!("{}", knobs[name]),
        None if json => println!("{}", serde_json::to_string_pretty(&knobs)?),
        None => {
            for name in Zone::names() {
                println!("{name:28} {}", knobs[name]);
            }
        }
    }
    Ok(0)
}

fn set(knob: &str, value: &str) -> Result<i32> {
    let name = main_name(knob)?;
    let answer = ask_keel(&Request::new("set").with(name, value))?;
    println!("{name} is {} now", answer[name]);
    Ok(0)
}

fn main_name(knob: &str) -> Result<&'static str, OptionError> {
    Zone::name_of(knob).ok_or_else(|| OptionError::Knob(knob.to_owned()))
}
