//! Whether `run`, `daemon` and `sched` would start with a configuration: the checks that need more than
//! the text of one value. `evenkeel config check`, `compare` and `doctor` call this; it changes nothing.

use anyhow::{Context, Result};

use super::Config;
use crate::balancing::{balancing_options, check_speed};
use crate::cli::SchedOptions;
use crate::sched;

/// Checks what `run` and `daemon` take from a configuration.
///
/// # Errors
/// Table and value that they would refuse, and the reason.
pub fn check_run(config: &Config) -> Result<()> {
    let check = || {
        balancing_options(&config.run, false)?;
        check_speed(config.run.speed.as_deref())
    };
    check().context("table [run]")
}

/// Checks all tables.
///
/// # Errors
/// Table and value that a command would refuse, and the reason.
pub fn check_all(config: &Config) -> Result<()> {
    check_run(config)?;
    sched::options(&SchedOptions::default(), config).map(drop).context("table [sched]")
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn what_a_command_would_refuse_is_wrong() {
        let check = |text: &str| parse(text).and_then(|config| check_all(&config));
        for (text, table, word) in [
            ("[zone]\nfoo = 3\n", "[zone]", "foo"),
            ("[zone]\nzone = \"foo\"\n", "[zone]", "zone"),
            ("[zone]\nbalance_level = \"foo\"\n", "[zone]", "foo"),
            ("[run]\nspeed = \"foo\"\n", "[run]", "foo"),
            ("[run]\ncpus = \"x-\"\n", "[run]", "x-"),
            ("[run]\nselection = \"cache\"\n", "[run]", "--policy paper"),
        ] {
            let why = format!("{:#}", check(text).unwrap_err());
            assert!(why.contains(table) && why.contains(word), "{text}: {why}");
        }
        for text in [
            "",
            "[run]\nselection = \"cache\"\npolicy = \"paper\"\nspeed = \"calibrated\"\n",
            "[sched]\ngate = \"zone\"\n[zone]\nbalance_level = \"hot\"\n",
        ] {
            check(text).unwrap();
        }
    }
}
