//! Which policies the keel runs with, and their parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evenkeel_machine::{CAPABILITY_SCALE, CpuSet};

/// What cannot be an option's value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No policy of that name.
    #[error("\"{name}\": there is no such {question} policy; there are: {known}")]
    Policy {
        /// order, gate or balance.
        question: &'static str,
        /// As it was given.
        name: String,
        /// What there is.
        known: &'static str,
    },
    /// No slice.
    #[error("slice \"{0}\": expected microseconds from {min} to {max}", min = Slice::MIN_US, max = Slice::MAX_US)]
    Slice(String),
    /// Not CPUs and their capacity.
    #[error(
        "capacity \"{part}\": {why}; expected CPUs and 1 to {CAPABILITY_SCALE}, like 0-3=1024,4-7=512"
    )]
    Capacity {
        /// The part that is wrong.
        part: String,
        /// Why.
        why: String,
    },
}

macro_rules! policy {
    ($(#[$doc:meta])* $name:ident, $question:literal, $known:literal,
     $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// All answers to the question.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),+ })
            }
        }

        impl FromStr for $name {
            type Err = OptionError;

            fn from_str(name: &str) -> Result<Self, OptionError> {
                match name {
                    $($text => Ok(Self::$variant),)+
                    other => Err(OptionError::Policy {
                        question: $question,
                        name: other.to_owned(),
                        known: $known,
                    }),
                }
            }
        }
    };
}

policy! {
    /// Which task runs next? The numbers are `enum order_kind` of `policy/order.h`.
    Order, "order", "fair",
    /// The smallest vruntime.
    #[default]
    Fair = "fair"
}
policy! {
    /// When may load be balanced? The numbers are `enum gate_kind` of `policy/gate.h`.
    Gate, "gate", "always",
    /// Always.
    #[default]
    Always = "always"
}
policy! {
    /// What is load? The numbers are `enum balance_kind` of `policy/balance.h`.
    Balance, "balance", "count",
    /// CPUs are equal: classic Linux.
    #[default]
    Count = "count"
}

/// How long a task runs before others get their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    us: u64,
}

impl Slice {
    /// Shorter ones are all overhead.
    pub const MIN_US: u64 = 100;
    /// Longer ones come near the 30 s after which the kernel takes a scheduler for stalled.
    pub const MAX_US: u64 = 1_000_000;

    /// A slice of so many microseconds.
    ///
    /// # Errors
    /// Out of [`Slice::MIN_US`]..=[`Slice::MAX_US`].
    pub fn from_us(us: u64) -> Result<Self, OptionError> {
        if !(Self::MIN_US..=Self::MAX_US).contains(&us) {
            return Err(OptionError::Slice(us.to_string()));
        }
        Ok(Self { us })
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

impl FromStr for Slice {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        text.parse().map_err(|_| OptionError::Slice(text.to_owned())).and_then(Self::from_us)
    }
}

/// Capacities that the user gives to CPUs, each 1..=1024.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacities(pub BTreeMap<u32, u32>);

impl FromStr for Capacities {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut capacities = BTreeMap::new();
        let mut part = String::new();
        // A comma also stands inside a CPU list: a part ends with its capacity.
        for piece in text.split(',') {
            if !part.is_empty() {
                part.push(',');
            }
            part.push_str(piece);
            let Some((list, capacity)) = part.split_once('=') else { continue };
            let wrong = |why: String| OptionError::Capacity { part: part.clone(), why };
            let cpus: CpuSet = list
                .parse()
                .map_err(|why: evenkeel_machine::CpuListError| wrong(why.to_string()))?;
            let capacity = match capacity.parse::<u32>() {
                Ok(capacity @ 1..=CAPABILITY_SCALE) => capacity,
                _ => return Err(wrong(format!("\"{capacity}\" is not a capacity"))),
            };
            if cpus.is_empty() {
                return Err(wrong("no CPU is named".to_owned()));
            }
            for cpu in cpus.iter() {
                if capacities.insert(cpu, capacity).is_some() {
                    return Err(wrong(format!("CPU {cpu} is given twice")));
                }
            }
            part.clear();
        }
        if part.is_empty() && !capacities.is_empty() && !text.ends_with(',') {
            return Ok(Self(capacities));
        }
        Err(OptionError::Capacity { part, why: "the capacity is missing".to_owned() })
    }
}

/// How the keel runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Which task runs next?
    pub order: Order,
    /// When may load be balanced?
    pub gate: Gate,
    /// What is load?
    pub balance: Balance,
    /// How long a task runs before others get their turn.
    pub slice: Slice,
    /// What CPUs can do, where the user knows better than the machine.
    pub capacities: Capacities,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_go_by_their_names() {
        for order in Order::ALL {
            assert_eq!(order.to_string().parse(), Ok(*order));
        }
        let why = "best".parse::<Gate>().unwrap_err().to_string();
        assert_eq!(why, "\"best\": there is no such gate policy; there are: always");
    }

    #[test]
    fn a_slice_is_neither_overhead_nor_a_stall() {
        assert_eq!("240000".parse::<Slice>().unwrap().ns(), 240_000_000);
        for nonsense in ["0", "99", "1000001", "-1", "4ms", ""] {
            assert!(nonsense.parse::<Slice>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn capacities_by_cpu_list() {
        let capacities: Capacities = "0-1,4=1024,2=512".parse().unwrap();
        assert_eq!(capacities.0, [(0, 1024), (1, 1024), (2, 512), (4, 1024)].into());
    }

    #[test]
    fn impossible_capacities_are_named() {
        for (text, expected) in [
            ("0-3", "missing"),
            ("0=0", "\"0\" is not a capacity"),
            ("0=1025", "\"1025\" is not a capacity"),
            ("0=half", "\"half\""),
            ("3-1=5", "backwards"),
            ("0=5,0-1=7", "CPU 0 is given twice"),
            ("x=5", "not a CPU list"),
            ("=5", "capacity \"=5\""),
            ("", "missing"),
            ("0=5,", "missing"),
        ] {
            let why = text.parse::<Capacities>().unwrap_err().to_string();
            assert!(why.contains(expected), "{text}: {why}");
        }
    }
}
