//! How far siblings may run ahead, as people write it.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

/// A bonus: a number of times what ran last, like `3x`, or a time of vruntime, like `10ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub enum Bonus {
    /// An amount of vruntime.
    Vruntime {
        /// The amount.
        ns: u64,
    },
    /// Of what ran last.
    Quantum {
        /// So many times.
        times: u64,
    },
}

impl Bonus {
    /// `BONUS_TYPE` and `BONUS_VALUE` of the paper.
    pub fn type_and_value(self) -> (u32, u64) {
        match self {
            Self::Vruntime { ns } => (0, ns),
            Self::Quantum { times } => (1, times),
        }
    }
}

impl Default for Bonus {
    fn default() -> Self {
        Self::Quantum { times: 3 }
    }
}

impl fmt::Display for Bonus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        match *self {
            Self::Quantum { times } => write!(f, "{times}x"),
            Self::Vruntime { ns } => {
                let unit = UNITS.iter().find(|(unit_ns, _)| ns > 0 && ns.is_multiple_of(*unit_ns));
                let (unit_ns, name) = unit.copied().unwrap_or((1, "ns"));
                write!(f, "{}{name}", ns / unit_ns)
            }
        }
    }
}

impl FromStr for Bonus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
        let times = |unit_ns| number.parse::<u64>().ok()?.checked_mul(unit_ns);
        let bonus = match unit {
            "x" => times(1).map(|times| Self::Quantum { times }),
            "ns" => times(1).map(|ns| Self::Vruntime { ns }),
            "us" => times(1_000).map(|ns| Self::Vruntime { ns }),
            "ms" => times(1_000_000).map(|ns| Self::Vruntime { ns }),
            "s" => times(1_000_000_000).map(|ns| Self::Vruntime { ns }),
            _ => None,
        };
        bonus.ok_or_else(|| {
            format!("bonus \"{text}\": expected so many times or a time, like 3x or 10ms")
        })
    }
}

impl TryFrom<String> for Bonus {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bonus_is_a_multiple_or_a_time() {
        for (text, bonus) in [
            ("3x", Bonus::Quantum { times: 3 }),
            ("10ms", Bonus::Vruntime { ns: 10_000_000 }),
            ("1500us", Bonus::Vruntime { ns: 1_500_000 }),
            ("2s", Bonus::Vruntime { ns: 2_000_000_000 }),
            ("7ns", Bonus::Vruntime { ns: 7 }),
            ("0ns", Bonus::Vruntime { ns: 0 }),
        ] {
            assert_eq!((text.parse(), bonus.to_string()), (Ok(bonus), text.to_owned()));
        }
        for nonsense in ["3", "x", "-1x", "1.5x", "18446744073709551615s", "", "3 x"] {
            let why = nonsense.parse::<Bonus>().unwrap_err();
            assert!(why.contains("like 3x or 10ms"), "{why}");
        }
    }
}
