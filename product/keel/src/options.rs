//! Which policies the keel runs with, and their parameters.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evenkeel_machine::{CAPABILITY_SCALE, CpuSet};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ias::options::{IasOptions, KICK, WINDOW, Window};
use crate::parts::{Parts, known_parts};
use crate::shield::Shield;
use crate::zone::{Level, Zone, known_knobs, known_levels};

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
    /// No part of the balance policy.
    #[error("\"{0}\": there is no such part of balance capability; there are: {known}", known = known_parts())]
    Part(String),
    /// Parts of a policy that does not run.
    #[error("parts {parts}: balance {balance} has none; use --balance capability")]
    NotCapability {
        /// What was asked for.
        parts: Parts,
        /// What it would run with.
        balance: Balance,
    },
    /// No slice.
    #[error("slice \"{0}\": expected microseconds from {min} to {max}", min = Slice::MIN_US, max = Slice::MAX_US)]
    Slice(String),
    /// No wait.
    #[error("wait \"{0}\": expected a time from 1us to 20s, like 10ms, or never")]
    IdleWait(String),
    /// No CPUs to be shielded.
    #[error("shield \"{text}\": {why}; expected CPUs like 2-3, or none")]
    Shield {
        /// As it was given.
        text: String,
        /// Why.
        why: String,
    },
    /// No level of the zones.
    #[error("\"{0}\": there is no such zone; there are: {known}", known = known_levels())]
    Level(String),
    /// No knob of the zones.
    #[error("\"{0}\": there is no such knob; there are: {known}", known = known_knobs())]
    Knob(String),
    /// Nothing that can be changed while the keel runs.
    #[error(
        "\"{0}\": no such parameter; there are: {SLICE}, {IDLE_WAIT}, {SHIELD}, {WINDOW}, {KICK}, {ZONE}, {known}",
        known = known_knobs()
    )]
    Parameter(String),
    /// A knob of the zones cannot have this value.
    #[error("{name} \"{value}\": expected a whole number from {lowest} to {highest}")]
    KnobValue {
        /// The knob.
        name: &'static str,
        /// As it was given.
        value: String,
        /// The smallest that it may be.
        lowest: u32,
        /// The largest.
        highest: u32,
    },
    /// A knob of a policy that does not run.
    #[error("{name}: the keel runs with --gate {gate}; start it with --gate zone to use this knob")]
    NotZone {
        /// The knob.
        name: &'static str,
        /// What it runs with.
        gate: Gate,
    },
    /// No window.
    #[error("window \"{0}\": expected a number of tasks from 1 to {max}", max = Window::MAX)]
    Window(String),
    /// Nobody to be told.
    #[error("kick \"{0}\": expected none, idle or busy")]
    Kick(String),
    /// A parameter of an order that does not run.
    #[error("{name}: the keel runs with --order {order}; start it with --order ias to use this")]
    NotIas {
        /// The parameter.
        name: &'static str,
        /// What it runs with.
        order: Order,
    },
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

/// A configuration file says what a flag says.
macro_rules! from_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = OptionError;

            fn try_from(text: String) -> Result<Self, OptionError> {
                text.parse()
            }
        }
    };
}
pub(crate) use from_text;

macro_rules! policy {
    ($(#[$doc:meta])* $name:ident, $question:literal, $known:literal,
     $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
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

        from_text!($name);

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
    Order, "order", "fair, ias",
    /// The smallest vruntime.
    #[default]
    Fair = "fair",
    /// Siblings first, within a bonus (paper 003).
    Ias = "ias"
}
policy! {
    /// When may load be balanced? The numbers are `enum gate_kind` of `policy/gate.h`.
    Gate, "gate", "always, zone",
    /// Always.
    #[default]
    Always = "always",
    /// Only above the utilisation that [`Zone`] sets (paper 004).
    Zone = "zone"
}
policy! {
    /// What is load? The numbers are `enum balance_kind` of `policy/balance.h`.
    Balance, "balance", "count, capability",
    /// CPUs are equal: classic Linux.
    #[default]
    Count = "count",
    /// Load per capability (paper 002).
    Capability = "capability"
}

/// How long a task runs before others get their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
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

impl TryFrom<u64> for Slice {
    type Error = OptionError;

    fn try_from(us: u64) -> Result<Self, OptionError> {
        Self::from_us(us)
    }
}

impl FromStr for Slice {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        text.parse().map_err(|_| OptionError::Slice(text.to_owned())).and_then(Self::from_us)
    }
}

/// How long a task waits at most while a CPU that it may use idles; then it goes there, and the gate
/// is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct IdleWait {
    /// None: as long as the gate says so, as in paper 004.
    us: Option<u64>,
}

impl IdleWait {
    /// Longer ones come near the 30 s after which the kernel takes a scheduler for stalled.
    const MAX_US: u64 = 20_000_000;
    /// For ever.
    pub const NEVER: Self = Self { us: None };

    /// In nanoseconds, for ever being the largest number.
    pub fn ns(self) -> u64 {
        self.us.map_or(u64::MAX, |us| us * 1000)
    }
}

impl Default for IdleWait {
    fn default() -> Self {
        Self { us: Some(10_000) }
    }
}

impl fmt::Display for IdleWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.us {
            None => f.write_str("never"),
            Some(us) if us.is_multiple_of(1000) => write!(f, "{}ms", us / 1000),
            Some(us) => write!(f, "{us}us"),
        }
    }
}

impl FromStr for IdleWait {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        if text == "never" {
            return Ok(Self::NEVER);
        }
        let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
        let unit_us = match unit {
            "us" => Some(1),
            "ms" => Some(1000),
            "s" => Some(1_000_000),
            _ => None,
        };
        let us = unit_us.and_then(|unit_us: u64| unit_us.checked_mul(number.parse().ok()?));
        match us {
            Some(us @ 1..=Self::MAX_US) => Ok(Self { us: Some(us) }),
            _ => Err(OptionError::IdleWait(text.to_owned())),
        }
    }
}

from_text!(IdleWait);

/// Capacities that the user gives to CPUs, each 1..=1024.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Capacities(pub BTreeMap<u32, u32>);

from_text!(Capacities);

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
    /// What `capability` does besides.
    pub parts: Parts,
    /// How long a task runs before others get their turn.
    pub slice: Slice,
    /// What CPUs can do, where the user knows better than the machine.
    pub capacities: Capacities,
    /// They stay what they are, whatever interrupts, real-time tasks and a hypervisor take.
    pub static_capacity: bool,
    /// How long the gate may keep a task waiting while a CPU idles.
    pub max_idle_wait: IdleWait,
    /// When the gate `zone` opens.
    pub zone: Zone,
    /// How the order `ias` aggregates.
    pub ias: IasOptions,
    /// CPUs that take only who may run nowhere else.
    pub shield: Shield,
}

const SLICE: &str = "slice_us";
const IDLE_WAIT: &str = "max_idle_wait";
const ZONE: &str = "zone";
const SHIELD: &str = "shield";

impl Options {
    /// Whether the balance policy has the parts that are asked for.
    ///
    /// # Errors
    /// There are some, and it is not `capability`.
    pub fn check_parts(&self) -> Result<(), OptionError> {
        if self.parts.is_empty() || self.balance == Balance::Capability {
            return Ok(());
        }
        Err(OptionError::NotCapability { parts: self.parts, balance: self.balance })
    }

    /// What may be changed while the keel runs, by name: `slice_us`, `max_idle_wait`, `shield`, of the
    /// order `ias` its `ias_window` and `ias_kick`, and of the gate `zone` its level by name and the knobs
    /// under the paper's names.
    pub fn parameters(&self) -> Map<String, Value> {
        let mut parameters = Map::new();
        parameters.insert(SLICE.to_owned(), self.slice.us().into());
        parameters.insert(IDLE_WAIT.to_owned(), self.max_idle_wait.to_string().into());
        if self.order == Order::Ias {
            parameters.insert(WINDOW.to_owned(), self.ias.window.tasks().into());
            parameters.insert(KICK.to_owned(), self.ias.kick.to_string().into());
        }
        parameters.insert(SHIELD.to_owned(), self.shield.to_string().into());
        if self.gate == Gate::Zone {
            parameters.insert(ZONE.to_owned(), self.zone.level().to_string().into());
            let knobs = self.zone.values().into_iter();
            parameters.extend(knobs.map(|(name, value)| (name.to_owned(), value.into())));
        }
        parameters
    }

    /// Whether the order has a parameter that only `ias` has.
    ///
    /// # Errors
    /// It is another one.
    pub fn check_order(&self, name: &'static str) -> Result<(), OptionError> {
        if self.order == Order::Ias {
            return Ok(());
        }
        Err(OptionError::NotIas { name, order: self.order })
    }

    /// Changes one of them.
    ///
    /// # Errors
    /// There is no such parameter, it cannot have this value, or its policy does not run.
    pub fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        match name {
            SLICE => self.slice = value.parse()?,
            IDLE_WAIT => self.max_idle_wait = value.parse()?,
            WINDOW => {
                let window = value.parse()?;
                self.check_order(WINDOW)?;
                self.ias.window = window;
            }
            KICK => {
                let kick = value.parse()?;
                self.check_order(KICK)?;
                self.ias.kick = kick;
            }
            SHIELD => self.shield = value.parse()?,
            _ => {
                let known = if name == ZONE { Some(ZONE) } else { Zone::name_of(name) };
                let name = known.ok_or_else(|| OptionError::Parameter(name.to_owned()))?;
                if self.gate != Gate::Zone {
                    return Err(OptionError::NotZone { name, gate: self.gate });
                }
                match name {
                    ZONE => self.zone.set_level(value.parse::<Level>()?),
                    knob => self.zone.set(knob, value)?,
                }
            }
        }
        Ok(())
    }
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
        assert_eq!(why, "\"best\": there is no such gate policy; there are: always, zone");
    }

    #[test]
    fn a_slice_is_neither_overhead_nor_a_stall() {
        assert_eq!("240000".parse::<Slice>().unwrap().ns(), 240_000_000);
        for nonsense in ["0", "99", "1000001", "-1", "4ms", ""] {
            assert!(nonsense.parse::<Slice>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn a_wait_has_a_unit_or_no_end() {
        for (text, ns) in [("10ms", 10_000_000), ("250us", 250_000), ("never", u64::MAX)] {
            let wait: IdleWait = text.parse().unwrap();
            assert_eq!((wait.ns(), wait.to_string()), (ns, text.to_owned()));
        }
        assert_eq!("20s".parse::<IdleWait>().unwrap().ns(), 20_000_000_000);
        assert_eq!(IdleWait::default().to_string(), "10ms");
        let huge = format!("{}s", u64::MAX);
        for nonsense in ["10", "ms", "-1ms", "0ms", "21s", "10min", "10 ms", "", "ever", &huge] {
            assert!(nonsense.parse::<IdleWait>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn parameters_change_by_name_and_wrong_ones_change_nothing() {
        let mut options = Options { gate: Gate::Zone, ..Options::default() };
        for (name, value) in [
            ("slice_us", "2000"),
            ("max_idle_wait", "never"),
            ("shield", "2-3"),
            ("zone", "warm-mid"),
            ("bal_cpu_avg_enable", "1"),
        ] {
            options.set_parameter(name, value).unwrap();
        }
        let parameters = options.parameters();
        assert_eq!(parameters["slice_us"], 2000);
        assert_eq!(parameters["max_idle_wait"], "never");
        assert_eq!(parameters["shield"], "2-3");
        assert_eq!(parameters["zone"], "warm-mid");
        assert_eq!(parameters["balance_level"], 2);
        assert_eq!(parameters["bal_cpus_avg_enable"], 1);
        for (name, value, expected) in [
            ("slice", "2000", "\"slice\": no such parameter; there are: slice_us"),
            ("slice_us", "1", "slice \"1\""),
            ("zone", "tepid", "no such zone"),
            ("shield", "2-", "shield \"2-\""),
            ("balance_level", "9", "from 0 to 4"),
        ] {
            let before = options.clone();
            let why = options.set_parameter(name, value).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
            assert_eq!(options, before);
        }
    }

    #[test]
    fn knobs_of_a_policy_that_does_not_run_are_refused() {
        let mut options = Options::default();
        for name in ["zone", "balance_level", "balance_cpus_avg_enable"] {
            let why = options.set_parameter(name, "1").unwrap_err().to_string();
            assert!(why.contains("runs with --gate always; start it with --gate zone"), "{why}");
        }
        assert!(!options.parameters().contains_key("balance_level"));
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
