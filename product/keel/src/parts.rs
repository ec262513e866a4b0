//! Parts of the balance policy `capability`: what it does besides its default, switched on by name.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::option_error::{OptionError, from_text};

/// `PART_ACTIVE`.
const ACTIVE: u32 = 16;
/// `PART_TURNS`.
const TURNS: u32 = 32;
/// `PART_SIMILAR`.
const SIMILAR: u32 = 64;

/// The parts by name, with their bits in `enum balance_part` of `policy/balance.h`.
const PARTS: [(&str, u32); 7] = [
    ("home", 1),
    ("cost", 2),
    ("plain", 4),
    ("bare", 8),
    ("active", ACTIVE),
    ("turns", TURNS),
    ("similar", SIMILAR),
];

/// A set of parts, written like `home,cost`; the empty text is the empty set. The policy `count`
/// ignores it.
///
/// - `home`: the distance to a task's memory counts.
/// - `cost`: no pull costs a task more than it gains.
/// - `plain`: new and waking tasks are placed as if CPUs were equal.
/// - `bare`: a busy CPU pulls at any difference of loads.
/// - `active`: a task that runs alone on a slow CPU migrates to a faster idle CPU.
/// - `turns`: threads of one program that run alone take turns on unequal CPUs.
/// - `similar`: threads of two programs change places until each program has similar CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Parts {
    bits: u32,
}

impl Parts {
    /// The bits of `struct keel_settings`.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// The parts of these bits. Bits that no part has are kept: they mean nothing, except to a keel that
    /// was built for the laboratory (`policy/balance_paper.h`).
    pub fn from_bits(bits: u32) -> Self {
        Self { bits }
    }

    /// The bits that no part has.
    pub fn unknown_bits(self) -> u32 {
        PARTS.iter().fold(self.bits, |bits, (_, bit)| bits & !bit)
    }

    /// Whether a part needs active migration: the migration of a running task.
    pub(crate) fn migrate_actively(self) -> bool {
        self.bits & (ACTIVE | TURNS | SIMILAR) != 0
    }

    /// The names of all parts that exist.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PARTS.into_iter().map(|(name, _)| name)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }
}

fn known_parts() -> String {
    Parts::names().collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = PARTS.iter().filter(|(_, bit)| self.bits & bit != 0).map(|(name, _)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

from_text!(Parts);

impl FromStr for Parts {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut bits = 0;
        for name in text.split(',').filter(|_| !text.is_empty()) {
            let (_, bit) = PARTS
                .iter()
                .find(|(known, _)| *known == name)
                .ok_or_else(|| OptionError::Part { name: name.to_owned(), known: known_parts() })?;
            bits |= bit;
        }
        Ok(Self { bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_parsed_by_name() {
        for (name, bit) in PARTS {
            let parts: Parts = name.parse().unwrap();
            assert_eq!((parts.bits(), parts.to_string()), (bit, name.to_owned()));
        }
        let both: Parts = "cost,home".parse().unwrap();
        assert_eq!((both.bits(), both.to_string()), (3, "home,cost".to_owned()));
        assert!("".parse::<Parts>().unwrap().is_empty());
        let laboratory = Parts::from_bits(3 | 1 << 16);
        assert_eq!((laboratory.unknown_bits(), both.unknown_bits()), (1 << 16, 0));
        let why = "home,speed".parse::<Parts>().unwrap_err().to_string();
        assert!(why.starts_with("\"speed\": there is no such part of balance capability"), "{why}");
    }
}
