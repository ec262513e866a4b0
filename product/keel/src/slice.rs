//! The slice of a task, and how times are written in options.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::option_error::OptionError;

/// A time in microseconds, from text like `250us`, `10ms` or `2s`.
pub(crate) fn parse_us(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(char::is_alphabetic)?);
    let unit_us: u64 = match unit {
        "us" => 1,
        "ms" => 1000,
        "s" => 1_000_000,
        _ => return None,
    };
    unit_us.checked_mul(number.parse().ok()?)
}

/// How long a task may run before the next pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
pub struct Slice {
    us: u64,
}

impl Slice {
    /// Shorter slices are mostly overhead.
    pub const MIN_US: u64 = 100;
    /// Longer values come near the 30 s after which the kernel takes a scheduler for stalled.
    pub const MAX_US: u64 = 1_000_000;

    /// A slice of so many microseconds.
    ///
    /// # Errors
    /// Out of [`Slice::MIN_US`]..=[`Slice::MAX_US`].
    pub fn from_us(us: u64) -> Result<Self, OptionError> {
        if !(Self::MIN_US..=Self::MAX_US).contains(&us) {
            return Err(Self::error(us.to_string()));
        }
        Ok(Self { us })
    }

    fn error(value: String) -> OptionError {
        OptionError::Slice { value, lowest_us: Self::MIN_US, highest_us: Self::MAX_US }
    }

    /// In microseconds.
    pub fn us(self) -> u64 {
        self.us
    }

    /// In nanoseconds.
    pub fn ns(self) -> u64 {
        self.us * 1000
    }
}

impl Default for Slice {
    fn default() -> Self {
        Self { us: 4_000 }
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.us)
    }
}

impl TryFrom<u64> for Slice {
    type Error = OptionError;

    fn try_from(us: u64) -> Result<Self, OptionError> {
        Self::from_us(us)
    }
}

impl FromStr for Slice {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        text.parse().map_err(|_| Self::error(text.to_owned())).and_then(Self::from_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_within_its_range() {
        assert_eq!("240000".parse::<Slice>().unwrap().ns(), 240_000_000);
        for nonsense in ["0", "99", "1000001", "-1", "4ms", ""] {
            assert!(nonsense.parse::<Slice>().is_err(), "{nonsense}");
        }
    }
}
