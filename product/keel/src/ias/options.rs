//! The parameters of the order policy `ias`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::layout::ROW_PLACES;
use crate::option_error::{OptionError, from_text};
use crate::slice::{Slice, parse_us};

/// The names of the parameters, as they are turned while the keel runs.
pub(crate) const WINDOW: &str = "ias_window";
pub(crate) const KICK: &str = "ias_kick";
pub(crate) const TURN: &str = "ias_turn";

/// How CPUs aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IasOptions {
    /// Whether address spaces take turns.
    pub mode: Mode,
    /// The longest turn, in the mode `rounds`.
    pub turn: Turn,
    /// How far a search for siblings goes.
    pub window: Window,
    /// Which slaves are kicked at once.
    pub kick: Kick,
    /// Multipliers are found by [`super::auto`].
    pub auto: bool,
}

/// How siblings go first. The numbers are `enum ias_mode` of `policy/order.h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[repr(u32)]
pub enum Mode {
    /// Address spaces take turns of bounded length.
    #[default]
    Rounds,
    /// As far as the bonus allows (paper 003 to the letter).
    Paper,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Self; 2] = [Self::Rounds, Self::Paper];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rounds => "rounds",
            Self::Paper => "paper",
        })
    }
}

impl FromStr for Mode {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let named = Self::ALL.into_iter().find(|mode| mode.to_string() == text);
        named.ok_or_else(|| OptionError::Mode(text.to_owned()))
    }
}

from_text!(Mode);

/// For how long at most an address space has its turn on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Turn {
    us: u64,
}

impl Turn {
    /// The shortest slice is as long.
    const MIN_US: u64 = Slice::MIN_US;
    /// The longest slice is as long.
    const MAX_US: u64 = Slice::MAX_US;

    /// In nanoseconds.
    pub fn ns(self) -> u64 {
        self.us * 1000
    }
}

impl Default for Turn {
    /// Chosen by `lab/sim/tests/rounds.rs`, which prints what each length costs.
    fn default() -> Self {
        Self { us: 20_000 }
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.us {
            us if us.is_multiple_of(1000) => write!(f, "{}ms", us / 1000),
            us => write!(f, "{us}us"),
        }
    }
}

impl FromStr for Turn {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        match parse_us(text) {
            Some(us @ Self::MIN_US..=Self::MAX_US) => Ok(Self { us }),
            _ => Err(OptionError::Turn(text.to_owned())),
        }
    }
}

from_text!(Turn);

/// How far siblings are known: so many that wait for a CPU are kept in order for each address space
/// (more precisely, for those that share a row of the index), and of another CPU's queue so many tasks
/// are looked at by a CPU that fetches one from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let why = "exact".parse::<Mode>().unwrap_err().to_string();
        assert_eq!(why, "mode \"exact\": expected rounds or paper");
        for (text, ns) in [("20ms", 20_000_000), ("100us", 100_000), ("1s", 1_000_000_000)] {
            assert_eq!(text.parse::<Turn>().map(Turn::ns), Ok(ns));
        }
        for (text, same) in [("1500us", "1500us"), ("2000us", "2ms"), ("1s", "1000ms")] {
            assert_eq!(text.parse::<Turn>().unwrap().to_string(), same);
        }
        for nonsense in ["20", "99us", "1001ms", "never", "-1ms", "5 slices", ""] {
            let why = nonsense.parse::<Turn>().unwrap_err().to_string();
            assert_eq!(
                why,
                format!("turn \"{nonsense}\": expected a time from 100us to 1s, like 20ms")
            );
        }
        let why = "preempt".parse::<Kick>().unwrap_err().to_string();
        assert_eq!(why, "kick \"preempt\": expected none, idle or busy");
    }
}
