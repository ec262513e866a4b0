//! The knobs of the gate policy `zone`, under the names that paper 004 gives them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::layout::RawZone;
use crate::option_error::{OptionError, from_text};

/// A knob of the gate.
#[derive(Debug)]
pub struct Knob {
    /// The paper's name.
    pub name: &'static str,
    /// Other spellings of it in the paper.
    aliases: &'static [&'static str],
    /// The values that it may have.
    pub range: RangeInclusive<u32>,
    /// Its value unless another one is set.
    pub default: u32,
    /// What it does, for users.
    pub help: &'static str,
}

const fn knob(
    name: &'static str,
    range: RangeInclusive<u32>,
    default: u32,
    help: &'static str,
) -> Knob {
    Knob { name, aliases: &[], range, default, help }
}

/// The knob that the levels' names are for.
const LEVEL: &str = "balance_level";
/// An hour; times are in ms.
const MAX_TIME_MS: u32 = 3_600_000;

/// In the order of `struct zone_knobs` in `policy/gate.h`.
const KNOBS: [Knob; 8] = [
    knob(
        LEVEL,
        0..=4,
        0,
        "Set the level, which is the utilisation above which load is balanced: 0 cold and 1 warm-low \
         30 %, 2 warm-mid 50 %, 3 warm-high and 4 hot 80 %",
    ),
    Knob {
        aliases: &["balance_cpus_avg_enable", "bal_cpu_avg_enable"],
        ..knob(
            "bal_cpus_avg_enable",
            0..=1,
            0,
            "Choose the utilisation that is compared with the level: 0 that of the CPU that the task \
             would leave, 1 the mean of all CPUs",
        )
    },
    knob("balance_idle_cal", 0..=1, 0, "Count CPUs that idle in that mean: 1 yes, 0 no"),
    knob(
        "balance_weight_enable",
        0..=1,
        1,
        "Let scores of tasks shift the utilisation at the levels 1 to 3: 1 yes, 0 no",
    ),
    knob(
        "balance_weight_prize_score",
        0..=50,
        5,
        "Set the prize, which keeps a task on its CPU: so many points of utilisation less",
    ),
    knob(
        "balance_weight_punish_score",
        0..=50,
        5,
        "Set the punishment, with which a task migrates more easily: so many points of utilisation \
         more",
    ),
    knob(
        "balance_weight_prize_time",
        0..=MAX_TIME_MS,
        5_000,
        "Give the prize to a task that has used its CPU above the level for at least so many ms",
    ),
    knob(
        "balance_weight_punish_time",
        0..=MAX_TIME_MS,
        5_000,
        "Give the punishment to a task that has used its CPU above the level for fewer ms than this",
    ),
];

/// The levels' names, by number.
pub(crate) const LEVELS: [&str; 5] = ["cold", "warm-low", "warm-mid", "warm-high", "hot"];

/// When the gate `zone` opens: a value for each knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    values: [u32; KNOBS.len()],
}

impl Default for Zone {
    fn default() -> Self {
        Self { values: std::array::from_fn(|knob| KNOBS[knob].default) }
    }
}

impl Zone {
    /// The knob of the level, which has a flag of its own, too (`--zone`).
    pub const LEVEL: &str = LEVEL;

    /// All knobs.
    pub fn knobs() -> &'static [Knob] {
        &KNOBS
    }

    /// The names of all knobs.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOBS.iter().map(|knob| knob.name)
    }

    /// The paper's main name of a knob, whichever of its spellings was used.
    pub fn name_of(spelling: &str) -> Option<&'static str> {
        find(spelling).map(|knob| KNOBS[knob].name)
    }

    /// The same, as an error where there is no such knob.
    ///
    /// # Errors
    /// No such knob.
    pub fn known_name_of(spelling: &str) -> Result<&'static str, OptionError> {
        Self::name_of(spelling).ok_or_else(|| unknown_knob(spelling))
    }

    /// The values by name; times in ms, scores in points of utilisation.
    pub fn values(&self) -> BTreeMap<&'static str, u32> {
        Self::names().zip(self.values).collect()
    }

    /// Turns one knob. A level may be given by its name, too.
    ///
    /// # Errors
    /// No such knob, or no value for it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let found = find(name).ok_or_else(|| unknown_knob(name))?;
        let knob = &KNOBS[found];
        if knob.name == LEVEL
            && let Ok(level) = value.parse::<Level>()
        {
            self.set_level(level);
            return Ok(());
        }
        match value.parse() {
            Ok(number) if knob.range.contains(&number) => {
                self.values[found] = number;
                Ok(())
            }
            _ => Err(OptionError::KnobValue {
                name: knob.name,
                value: value.to_owned(),
                lowest: *knob.range.start(),
                highest: *knob.range.end(),
            }),
        }
    }

    /// Sets the level alone.
    pub fn set_level(&mut self, level: Level) {
        self.values[0] = level.number;
    }

    /// The level.
    pub fn level(&self) -> Level {
        Level { number: self.values[0] }
    }

    pub(crate) fn raw(&self) -> RawZone {
        let [level, use_mean, count_idle, weigh, prize, punish, prize_ms, punish_ms] = self.values;
        RawZone {
            level,
            use_mean,
            count_idle,
            weigh,
            prize_score_pct: prize,
            punish_score_pct: punish,
            prize_time_ns: u64::from(prize_ms) * 1_000_000,
            punish_time_ns: u64::from(punish_ms) * 1_000_000,
        }
    }
}

fn find(spelling: &str) -> Option<usize> {
    KNOBS.iter().position(|knob| knob.name == spelling || knob.aliases.contains(&spelling))
}

/// One of the paper's five levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Level {
    number: u32,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LEVELS[self.number as usize])
    }
}

from_text!(Level);

impl FromStr for Level {
    type Err = OptionError;

    fn from_str(name: &str) -> Result<Self, OptionError> {
        match LEVELS.iter().zip(0..).find(|(known, _)| **known == name) {
            Some((_, number)) => Ok(Self { number }),
            None => Err(OptionError::Level { name: name.to_owned(), known: LEVELS.join(", ") }),
        }
    }
}

fn unknown_knob(name: &str) -> OptionError {
    let known = Zone::names().collect::<Vec<_>>().join(", ");
    OptionError::Knob { name: name.to_owned(), known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_papers() {
        let values = Zone::default().values();
        assert_eq!(values[LEVEL], 0);
        assert_eq!(values["balance_idle_cal"], 0);
        assert_eq!(values["balance_weight_prize_time"], 5_000);
        assert_eq!(values["balance_weight_punish_score"], 5);
        assert_eq!(values.len(), KNOBS.len());
    }

    #[test]
    fn all_spellings_are_one_knob() {
        for spelling in ["bal_cpus_avg_enable", "balance_cpus_avg_enable", "bal_cpu_avg_enable"] {
            let mut zone = Zone::default();
            zone.set(spelling, "1").unwrap();
            assert_eq!(zone.values()["bal_cpus_avg_enable"], 1, "{spelling}");
            assert_eq!(zone.raw().use_mean, 1);
        }
    }

    #[test]
    fn levels_go_by_name_and_number() {
        let mut zone = Zone::default();
        zone.set(LEVEL, "warm-high").unwrap();
        assert_eq!((zone.values()[LEVEL], zone.level().to_string()), (3, "warm-high".to_owned()));
        zone.set(LEVEL, "4").unwrap();
        assert_eq!(zone.level(), "hot".parse().unwrap());
    }

    #[test]
    fn each_knob_lands_in_its_own_field() {
        let mut zone = Zone::default();
        for (name, value) in [
            (LEVEL, "2"),
            ("bal_cpus_avg_enable", "1"),
            ("balance_idle_cal", "1"),
            ("balance_weight_enable", "0"),
            ("balance_weight_prize_score", "7"),
            ("balance_weight_punish_score", "9"),
            ("balance_weight_prize_time", "11"),
            ("balance_weight_punish_time", "13"),
        ] {
            zone.set(name, value).unwrap();
        }
        let raw = zone.raw();
        assert_eq!([raw.level, raw.use_mean, raw.count_idle, raw.weigh], [2, 1, 1, 0]);
        assert_eq!([raw.prize_score_pct, raw.punish_score_pct], [7, 9]);
        assert_eq!([raw.prize_time_ns, raw.punish_time_ns], [11_000_000, 13_000_000]);
    }

    #[test]
    fn nonsense_is_named_and_changes_nothing() {
        for (name, value, expected) in [
            (LEVEL, "5", "balance_level \"5\": expected a whole number from 0 to 4"),
            (LEVEL, "-1", "\"-1\""),
            (LEVEL, "lukewarm", "\"lukewarm\""),
            ("bal_cpus_avg_enable", "2", "from 0 to 1"),
            ("balance_weight_prize_score", "51", "from 0 to 50"),
            ("balance_weight_punish_time", "3600001", "from 0 to 3600000"),
            ("balance_weight_punish_time", "", "from 0 to 3600000"),
            (
                "balance_lvl",
                "1",
                "\"balance_lvl\": there is no such knob; there are: balance_level",
            ),
        ] {
            let mut zone = Zone::default();
            let why = zone.set(name, value).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
            assert_eq!(zone, Zone::default());
        }
        let why = "lukewarm".parse::<Level>().unwrap_err().to_string();
        assert!(why.ends_with("cold, warm-low, warm-mid, warm-high, hot"), "{why}");
    }
}
