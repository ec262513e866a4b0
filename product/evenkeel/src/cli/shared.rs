//! Arguments and values that several commands share.

use std::num::IntErrorKind;
use std::ops::RangeInclusive;

use clap::Args;
use evenkeel_host::daemon::check_cgroup_name;
use schemars::JsonSchema;
use serde::Deserialize;

/// Faults on purpose, for tests.
#[derive(Debug, Args)]
pub struct FaultArgs {
    /// Kill evenkeel at its N-th journal write or affinity call (fault tests).
    #[arg(long, value_name = "N", hide = true, default_value_t = 0,
          value_parser = whole_number::<u64>(0..=u64::MAX))]
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
        let unreadable = || {
            Err("expected a whole number and one of the units us, ms and s, like 100ms or 1s; the most \
                 is 60s"
                .to_owned())
        };
        let unit_ns = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return unreadable(),
        };
        let ns = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ns));
        match ns {
            Some(ns @ 1_000_000..=60_000_000_000) => Ok(Self { ns }),
            Some(_) => Err("out of range: give 1ms to 60s".to_owned()),
            None => unreadable(),
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

/// Reads a whole number of a range. The error names the range, also where the text is no number.
pub fn whole_number<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number = number_of(text, &range)?;
        T::try_from(number).map_err(|_| format!("out of range: {number} is too much"))
    }
}

fn number_of(text: &str, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let why = match text.parse::<u64>() {
        Ok(number) if range.contains(&number) => return Ok(number),
        Err(error) if *error.kind() != IntErrorKind::PosOverflow => {
            "not a whole number, for example 3"
        }
        _ => "out of range",
    };
    Err(match (range.start(), range.end()) {
        (first, &u64::MAX) => format!("{why}: give {first} or more"),
        (first, last) => format!("{why}: give {first} to {last}"),
    })
}

/// Any number.
///
/// # Errors
/// The text is none.
pub fn number(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| "not a number, for example 3 or 2.5".to_owned())
}

/// A time.
///
/// # Errors
/// The text is none.
pub fn time(text: &str) -> Result<humantime::Duration, String> {
    let time = text.parse();
    time.map_err(|_| "expected whole numbers with units, like 500ms, 30s or 1h30m".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_refused_with_the_rule() {
        let number = whole_number::<u8>(2..=16);
        assert_eq!((number("2"), number("16")), (Ok(2), Ok(16)));
        for text in ["-3", "4.0", "x", ""] {
            let why = number(text).unwrap_err();
            assert_eq!(why, "not a whole number, for example 3: give 2 to 16", "{text}");
        }
        for text in ["1", "17", "99999999999999999999"] {
            assert_eq!(number(text).unwrap_err(), "out of range: give 2 to 16", "{text}");
        }
        let why = whole_number::<u64>(1..=u64::MAX)("0").unwrap_err();
        assert_eq!(why, "out of range: give 1 or more");
        let why = "2m".parse::<Interval>().unwrap_err();
        assert!(why.contains("us, ms and s") && why.contains("60s"), "{why}");
    }
}
