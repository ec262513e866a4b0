//! `evenkeel zone`: shows and sets the knobs of a running keel's gate, and its shield.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use evenkeel_control::Request;
use evenkeel_keel::{Gate, OptionError, Shield, Zone};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cli::{ZoneArgs, ZoneCommand};
use crate::keel_client::ask_keel;

/// The flags of a keel that has these knobs.
const ZONE: &str = "--gate zone";
/// The keel's name of the shield.
const SHIELD: &str = "shield";

/// The version of [`Knobs`].
pub const FORMAT: u32 = 2;

/// What `get --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Knobs {
    /// The version of this document.
    format: u32,
    /// The knobs by name, and the shield.
    #[schemars(with = "BTreeMap<String, Knob>")]
    knobs: Map<String, Value>,
}

/// The value of a knob.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it describes what the keel answers")]
enum Knob {
    /// A whole number.
    Number(u64),
    /// A word, or a list of CPUs.
    Text(String),
}

/// Shows or sets knobs, or shields CPUs.
///
/// # Errors
/// No keel runs, or it refuses. Then nothing has changed.
pub fn main(args: &ZoneArgs) -> Result<i32> {
    match &args.command {
        ZoneCommand::Get { knob, json } => get(knob.as_deref(), *json),
        ZoneCommand::Set { knob, value } => set(knob, value),
        ZoneCommand::Shield { cpus } => shield(cpus.as_ref()),
    }
}

fn get(knob: Option<&str>, json: bool) -> Result<i32> {
    let wanted = knob.map(main_name).transpose()?;
    let answer: Map<String, Value> = serde_json::from_value(ask_keel(&Request::new("get"), ZONE)?)?;
    let (gate, rest): (Map<_, _>, Map<_, _>) =
        answer.into_iter().partition(|(name, _)| Zone::name_of(name).is_some());
    if gate.is_empty() {
        bail!("the keel runs with --gate {}; start it with --gate zone", Gate::Always);
    }
    match wanted {
        Some(name) => println!("{}", gate[name]),
        None if json => {
            let shield = rest.into_iter().filter(|(name, _)| name == SHIELD);
            let knobs: Map<String, Value> = gate.into_iter().chain(shield).collect();
            println!("{}", serde_json::to_string_pretty(&Knobs { format: FORMAT, knobs })?);
        }
        None => {
            for name in Zone::names() {
                println!("{name:28} {}", gate[name]);
            }
            println!("{SHIELD:28} {}", rest[SHIELD].as_str().unwrap_or_default());
        }
    }
    Ok(0)
}

fn set(knob: &str, value: &str) -> Result<i32> {
    let name = main_name(knob)?;
    let answer = ask_keel(&Request::new("set").with(name, value), ZONE)?;
    println!("{name} is {} now", answer[name]);
    Ok(0)
}

fn shield(cpus: Option<&Shield>) -> Result<i32> {
    let answer = match cpus {
        None => ask_keel(&Request::new("get"), "")?,
        Some(cpus) => ask_keel(&Request::new("set").with(SHIELD, cpus.to_string()), "")?,
    };
    println!("{}", answer[SHIELD].as_str().unwrap_or_default());
    Ok(0)
}

fn main_name(knob: &str) -> Result<&'static str, OptionError> {
    Zone::known_name_of(knob)
}
