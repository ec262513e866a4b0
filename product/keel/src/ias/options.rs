//! The parameters of the order policy `ias`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::layout::ROW_PLACES;
use crate::option_error::{OptionError, from_text};

/// The names of the parameters, as they are turned while the keel runs.
pub(crate) const WINDOW: &str = "ias_window";
pub(crate) const KICK: &str = "ias_kick";

/// How CPUs aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IasOptions {
    /// How far a search for siblings goes.
    pub window: Window,
    /// Which slaves are told at once.
    pub kick: Kick,
    /// Multipliers are found by [`super::auto`].
    pub auto: bool,
}

/// How far siblings are known: so many that wait for a CPU are kept in order for each address space
/// (more precisely, for those that share a row of the index), and of another CPU's queue so many tasks
/// are looked at by a CPU that fetches one from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct Window {
    tasks: u64,
}

impl Window {
    /// The places that there are.
    pub const MAX: u64 = ROW_PLACES;

    fn error(value: String) -> OptionError {
        OptionError::Window { value, most: Self::MAX }
    }

    /// In tasks.
    pub fn tasks(self) -> u64 {
        self.tasks
    }
}

impl Default for Window {
    fn default() -> Self {
        Self { tasks: Self::MAX }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tasks)
    }
}

impl TryFrom<u64> for Window {
    type Error = OptionError;

    fn try_from(tasks: u64) -> Result<Self, OptionError> {
        if !(1..=Self::MAX).contains(&tasks) {
            return Err(Self::error(tasks.to_string()));
        }
        Ok(Self { tasks })
    }
}

impl FromStr for Window {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let tasks: u64 = text.parse().map_err(|_| Self::error(text.to_owned()))?;
        tasks.try_into()
    }
}

/// Which slaves are told at once that their master aggregates another address space. The numbers are
/// `enum sibling_kick` of `bpf/keel/intf.h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
#[repr(u64)]
pub enum Kick {
    /// None: they see it when they choose next.
    None,
    /// Those that idle while a sibling waits in the master's queue.
    #[default]
    Idle,
    /// Also those that would run a sibling of their own queue instead of what they run.
    Busy,
}

impl Kick {
    const ALL: [(Self, &'static str); 3] =
        [(Self::None, "none"), (Self::Idle, "idle"), (Self::Busy, "busy")];
}

impl fmt::Display for Kick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(kick, _)| kick == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

impl FromStr for Kick {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(kick, _)| *kick).ok_or_else(|| OptionError::Kick(text.to_owned()))
    }
}

from_text!(Kick);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_or_refused() {
        assert_eq!("100".parse::<Window>().map(Window::tasks), Ok(100));
        for nonsense in ["0", "129", "-1", "many", ""] {
            let why = nonsense.parse::<Window>().unwrap_err().to_string();
            assert!(why.contains("from 1 to 128"), "{why}");
        }
        for (kick, name) in Kick::ALL {
            assert_eq!((name.parse(), kick.to_string()), (Ok(kick), name.to_owned()));
        }
        let why = "preempt".parse::<Kick>().unwrap_err().to_string();
        assert_eq!(why, "kick \"preempt\": expected none, idle or busy");
    }
}
