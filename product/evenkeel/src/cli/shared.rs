//! Arguments and values that several commands share.

use clap::Args;
use evenkeel_host::daemon::check_cgroup_name;
use schemars::JsonSchema;
use serde::Deserialize;

/// Faults on purpose, for tests.
#[derive(Debug, Args)]
pub struct FaultArgs {
    /// Kill evenkeel at its N-th journal write or affinity call (fault tests).
    #[arg(long, value_name = "N", hide = true, default_value_t = 0)]
    pub abort_at: u64,
    /// Start no supervisor (fault tests).
    #[arg(long, hide = true)]
    pub no_supervisor: bool,
}

/// Arguments of commands that only print.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A balance interval, 1 ms to 60 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Interval {
    /// Nanoseconds.
    pub ns: u64,
}

impl std::str::FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit_ns = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return Err("expected a whole number and a unit, like 100ms or 1s".to_owned()),
        };
        let ns = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ns));
        match ns {
            Some(ns @ 1_000_000..=60_000_000_000) => Ok(Self { ns }),
            Some(_) => Err("out of range: give 1ms to 60s".to_owned()),
            None => Err("expected a whole number and a unit, like 100ms or 1s".to_owned()),
        }
    }
}

impl TryFrom<String> for Interval {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|why| format!("interval \"{text}\": {why}"))
    }
}

/// The name of a program's command, without its directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct CommandName(pub String);

impl std::str::FromStr for CommandName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.contains('/') {
            return Err("expected the name of a command without its directory, like lmp".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for CommandName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|why| format!("name \"{text}\": {why}"))
    }
}

/// The path of a cgroup, as /proc/PID/cgroup shows it or below /sys/fs/cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct CgroupPath(pub String);

impl std::str::FromStr for CgroupPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        check_cgroup_name(text).map_err(|refusal| refusal.why)?;
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for CgroupPath {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|why| format!("cgroups: {why}"))
    }
}

/// A process number.
///
/// # Errors
/// The text is none.
pub fn process_number(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(pid @ 1..) => Ok(pid),
        _ => Err("expected a process number, like 1234".to_owned()),
    }
}
