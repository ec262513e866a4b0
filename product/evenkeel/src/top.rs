//! `evenkeel top`: CPUs, programs, decisions, interrupts and the keel on one screen that is drawn anew
//! in each interval, or printed once as plain text or JSON. It loads nothing; the key `l` alone asks for
//! a change, which a program's balancer makes.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `sources` | reads everything |
//! | `budget` | how often a source may be read |
//! | `interrupts` | rates of interrupt lines and softirqs |
//! | `model` | one complete reading |
//! | `table` | rows and columns, their order and filter |
//! | `tables` | from a reading to the table of each pane |
//! | `explanation` | a row in full |
//! | `keys` | what keys do |
//! | `layout` | what fits where |
//! | `view` | draws |
//! | `plain` | the same as plain text |
//! | `json` | the same as JSON |
//! | `inputs` | the threads that read figures and keys |
//! | `screen` | the terminal's settings, and its keys |
//! | `live` | the loop of the live screen |

mod budget;
mod explanation;
mod inputs;
mod interrupts;
mod json;
mod keys;
mod layout;
mod live;
mod model;
mod plain;
#[cfg(test)]
mod sample;
mod screen;
mod sources;
mod table;
mod tables;
mod view;

use std::io::Write;
use std::time::Duration;

use anyhow::Result;

pub use self::json::{FORMAT, Printed};

use crate::cli::TopArgs;
use crate::terminal::{can_draw, width};

/// Shows the live screen, or prints once where that is asked for or the output is no terminal. Returns
/// the exit code.
///
/// # Errors
/// The terminal cannot be controlled, or the output cannot be written to.
pub fn main(args: &TopArgs) -> Result<i32> {
    let interval = Duration::from_nanos(args.interval.ns);
    if args.once || args.json || !can_draw() {
        print_once(interval, args.json)?;
        return Ok(0);
    }
    live::show(interval)
}

fn print_once(interval: Duration, is_json: bool) -> Result<()> {
    let mut sources = sources::Sources::open();
    sources.read();
    std::thread::sleep(interval);
    let model = sources.read();
    let text = if is_json {
        serde_json::to_string_pretty(&Printed::of(&model))? + "\n"
    } else {
        plain::text(&model, &tables::tables(&model), width())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}
