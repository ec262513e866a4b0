//! Whether `run`, `daemon` and `sched` would start with a configuration: the checks that need more than
//! the text of one value. `evenkeel config check`, `compare` and `doctor` call this; it changes nothing.
//! And which file an error comes from, where a command finds it only when it starts.

use std::path::Path;

use anyhow::{Error, Result, anyhow};

use super::{Config, one_by_one};
use crate::balancing::{balancing_options, check_speed};
use crate::cli::{RunOptions, SchedOptions};
use crate::sched;

/// Checks options of `run` and `daemon`, wherever they come from.
///
/// # Errors
/// The value that they would refuse, and the reason.
pub fn check_options(options: &RunOptions) -> Result<()> {
    balancing_options(options, false)?;
    check_speed(options.speed.as_deref())
}

/// Checks what `run` and `daemon` take from a configuration.
///
/// # Errors
/// Table and value that they would refuse, and the reason.
pub fn check_run(config: &Config) -> Result<()> {
    check_options(&config.run).map_err(|why| in_table("run", &why))
}

/// All that is wrong in the tables of a configuration, each with its table. Without `is_whole`, entries
/// are missing: then only what is wrong with a value by itself.
pub fn wrong_in(config: &Config, is_whole: bool) -> Vec<Error> {
    let wrong = wrong_values(config, is_whole);
    wrong.iter().map(|(table, why)| in_table(table, why)).collect()
}

/// The tables that are wrong, each with the error of a command that uses it.
fn wrong_values(config: &Config, is_whole: bool) -> Vec<(&'static str, Error)> {
    let RunOptions { cpus, runtimes, speed, .. } = config.run.clone();
    let rest = RunOptions { cpus: None, runtimes: None, speed: None, ..config.run.clone() };
    let none = RunOptions::default;
    let mut run = vec![
        RunOptions { cpus, ..none() },
        RunOptions { runtimes, ..none() },
        RunOptions { speed, ..none() },
    ];
    run.extend(is_whole.then_some(rest));
    let run = run.iter().filter_map(|options| Some(("run", check_options(options).err()?)));
    let keel = is_whole.then(|| sched::options(&SchedOptions::default(), config).err()).flatten();
    run.chain(keel.map(|why| ("sched", why))).collect()
}

/// The error about an option, as one about the entry of a table.
fn in_table(table: &str, why: &Error) -> Error {
    anyhow!("table [{table}]: {}", format!("{why:#}").trim_start_matches("--"))
}

/// The error of a command that did not start, with the file that it comes from, where a file alone gives
/// the same one. `asked_for` is the file of `--config`.
pub fn blame(why: Error, asked_for: Option<&Path>) -> Error {
    let text = format!("{why:#}");
    let found = one_by_one(asked_for).find_map(|(path, config)| {
        let mut wrong = wrong_values(&config, true).into_iter();
        let (table, why) = wrong.find(|(_, why)| format!("{why:#}") == text)?;
        Some(in_table(table, &why).context(path.display().to_string()))
    });
    found.unwrap_or(why)
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        let config = parse(text).unwrap();
        wrong_in(&config, true).iter().map(|why| format!("{why:#}")).collect()
    }

    #[test]
    fn what_a_command_would_refuse_is_wrong() {
        for (text, word) in [
            ("[run]\nspeed = \"foo\"\n", "table [run]: speed: speed \"foo\": expected auto"),
            ("[run]\ncpus = \"x-\"\n", "table [run]: cpus: "),
            ("[run]\nruntimes = [\"a\", \"\"]\n", "table [run]: runtimes: a name is empty"),
            ("[run]\nselection = \"cache\"\n", "table [run]: selection needs --policy paper"),
            ("[sched]\nparts = \"cost\"\n", "table [sched]: parts cost: "),
        ] {
            let why = wrong(text);
            assert!(why.len() == 1 && why[0].starts_with(word), "{text}: {why:?}");
        }
        for text in [
            "",
            "[run]\nselection = \"cache\"\npolicy = \"paper\"\nspeed = \"calibrated\"\n",
            "[sched]\ngate = \"zone\"\n[zone]\nbalance_level = \"hot\"\n",
        ] {
            assert!(wrong(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn an_error_names_the_file_where_that_alone_gives_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "[run]\nspeed = \"warp\"\ncpus = \"x\"\n").unwrap();
        let text = |why: Error| format!("{:#}", blame(why, Some(&path)));
        let of_speed = |speed: &str| check_speed(Some(speed)).unwrap_err();
        let named = format!("{}: table [run]: speed: speed \"warp\": ", path.display());
        assert!(text(of_speed("warp")).starts_with(&named), "{}", text(of_speed("warp")));
        let of_option = format!("{:#}", of_speed("quick"));
        assert_eq!(text(of_speed("quick")), of_option);
    }
}
