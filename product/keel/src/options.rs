//! How the keel runs: its policies and their parameters, and which of these change by name while it
//! runs.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use evenkeel_machine::{CAPABILITY_SCALE, CpuSet};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ias::options::{IasOptions, KICK, Mode, TURN, WINDOW};
use crate::option_error::{OptionError, from_text};
use crate::parts::Parts;
use crate::policies::{Balance, Gate, Order};
use crate::shield::Shield;
use crate::slice::{Slice, parse_us};
use crate::zone::{Level, Zone};

/// How long the gate may keep a task waiting while a CPU that it may use is idle. After that the task
/// migrates without the gate's verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct IdleWait {
    /// `None`: as long as the gate refuses, as in paper 004.
    us: Option<u64>,
}

impl IdleWait {
    /// Longer values come near the 30 s after which the kernel takes a scheduler for stalled.
    const MAX_US: u64 = 20_000_000;
    /// The gate may keep the task waiting for ever.
    pub const NEVER: Self = Self { us: None };

    /// In nanoseconds; for ever is the largest number.
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
        match parse_us(text) {
            Some(us @ 1..=Self::MAX_US) => Ok(Self { us: Some(us) }),
            _ => Err(OptionError::IdleWait(text.to_owned())),
        }
    }
}

from_text!(IdleWait);

/// Capabilities that the user gives to CPUs, each 1..=1024, by CPU number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Capacities(pub BTreeMap<u32, u32>);

from_text!(Capacities);

impl FromStr for Capacities {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut capacities = BTreeMap::new();
        let mut part = String::new();
        // A comma also separates the CPUs of a list, so a part ends only at its capacity.
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
    /// The parts of the balance policy `capability`.
    pub parts: Parts,
    /// How long a task may run before the next pick.
    pub slice: Slice,
    /// The capability of CPUs, where the user knows better than the machine.
    pub capacities: Capacities,
    /// Whether capabilities stay as they are, whatever noise takes of a CPU.
    pub static_capacity: bool,
    /// How long the gate may keep a task waiting while a CPU is idle.
    pub max_idle_wait: IdleWait,
    /// When the gate `zone` opens.
    pub zone: Zone,
    /// Whether work gathers on few CPUs while there is little; with the gate `zone`, unless a task may
    /// wait for ever.
    pub compact: bool,
    /// How the order `ias` aggregates.
    pub ias: IasOptions,
    /// CPUs that run only the tasks that may run nowhere else.
    pub shield: Shield,
}

const SLICE: &str = "slice_us";
const IDLE_WAIT: &str = "max_idle_wait";
const ZONE: &str = "zone";
const SHIELD: &str = "shield";

fn unknown_parameter(name: &str) -> OptionError {
    let knobs: Vec<&str> = Zone::names().collect();
    let known = [SLICE, IDLE_WAIT, SHIELD, WINDOW, KICK, TURN, ZONE].join(", ");
    let known = format!("{known}, {}", knobs.join(", "));
    OptionError::Parameter { name: name.to_owned(), known }
}

impl Options {
    /// Checks that parts go with the balance policy `capability`.
    ///
    /// # Errors
    /// There are parts, and the balance policy is another one.
    pub fn check_parts(&self) -> Result<(), OptionError> {
        if self.parts.is_empty() || self.balance == Balance::Capability {
            return Ok(());
        }
        let (parts, balance) = (self.parts.to_string(), self.balance.to_string());
        Err(OptionError::NotCapability { parts, balance })
    }

    /// The parameters that may change while the keel runs, by name: `slice_us`, `max_idle_wait` and
    /// `shield`; with the order `ias` also `ias_window`, `ias_kick` and, in the mode `rounds`,
    /// `ias_turn`; with the gate `zone` its level and the knobs under the paper's names.
    pub fn parameters(&self) -> Map<String, Value> {
        let mut parameters = Map::new();
        parameters.insert(SLICE.to_owned(), self.slice.us().into());
        parameters.insert(IDLE_WAIT.to_owned(), self.max_idle_wait.to_string().into());
        if self.order == Order::Ias {
            parameters.insert(WINDOW.to_owned(), self.ias.window.tasks().into());
            parameters.insert(KICK.to_owned(), self.ias.kick.to_string().into());
            if self.ias.mode == Mode::Rounds {
                parameters.insert(TURN.to_owned(), self.ias.turn.to_string().into());
            }
        }
        parameters.insert(SHIELD.to_owned(), self.shield.to_string().into());
        if self.gate == Gate::Zone {
            parameters.insert(ZONE.to_owned(), self.zone.level().to_string().into());
            let knobs = self.zone.values().into_iter();
            parameters.extend(knobs.map(|(name, value)| (name.to_owned(), value.into())));
        }
        parameters
    }

    /// Checks that the order is `ias`, which alone has the parameter `name`.
    ///
    /// # Errors
    /// The order is another one.
    pub fn check_order(&self, name: &'static str) -> Result<(), OptionError> {
        if self.order == Order::Ias {
            return Ok(());
        }
        Err(OptionError::NotIas { name, order: self.order.to_string() })
    }

    /// Checks that the order is `ias` and address spaces take turns.
    ///
    /// # Errors
    /// The order or its mode is another one.
    pub fn check_rounds(&self, name: &'static str) -> Result<(), OptionError> {
        self.check_order(name)?;
        if self.ias.mode == Mode::Rounds {
            return Ok(());
        }
        Err(OptionError::NotRounds { name, mode: self.ias.mode.to_string() })
    }

    /// Checks that compaction goes with the gate and the longest wait.
    ///
    /// # Errors
    /// The gate is another one, or strict.
    pub fn check_compact(&self) -> Result<(), OptionError> {
        if self.compact && self.gate != Gate::Zone {
            return Err(OptionError::NotZone { name: "--compact", gate: self.gate.to_string() });
        }
        if self.compact && self.max_idle_wait == IdleWait::NEVER {
            return Err(OptionError::CompactStrict);
        }
        Ok(())
    }

    /// Changes one parameter.
    ///
    /// # Errors
    /// There is no such parameter, it cannot have this value, or its policy does not run.
    pub fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        match name {
            SLICE => self.slice = value.parse()?,
            IDLE_WAIT => {
                let changed = Self { max_idle_wait: value.parse()?, ..self.clone() };
                changed.check_compact()?;
                *self = changed;
            }
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
            TURN => {
                let turn = value.parse()?;
                self.check_rounds(TURN)?;
                self.ias.turn = turn;
            }
            SHIELD => self.shield = value.parse()?,
            _ => {
                let known = if name == ZONE { Some(ZONE) } else { Zone::name_of(name) };
                let name = known.ok_or_else(|| unknown_parameter(name))?;
                if self.gate != Gate::Zone {
                    return Err(OptionError::NotZone { name, gate: self.gate.to_string() });
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
    fn a_wait_has_a_unit_or_is_never() {
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
    fn compaction_needs_a_gate_that_lets_tasks_migrate() {
        let mut options = Options { compact: true, ..Options::default() };
        assert!(options.check_compact().unwrap_err().to_string().contains("--gate zone"));
        options.gate = Gate::Zone;
        options.check_compact().unwrap();
        let why = options.set_parameter("max_idle_wait", "never").unwrap_err().to_string();
        assert!(why.contains("--compact") && why.contains("--strict"), "{why}");
        assert_eq!(options.max_idle_wait, IdleWait::default());
    }

    #[test]
    fn parameters_change_by_name_and_wrong_values_change_nothing() {
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
    fn turns_change_only_where_spaces_take_turns() {
        let mut options = Options { order: Order::Ias, ..Options::default() };
        options.set_parameter("ias_turn", "8ms").unwrap();
        assert_eq!(options.parameters()["ias_turn"], "8ms");
        options.ias.mode = Mode::Paper;
        assert!(!options.parameters().contains_key("ias_turn"));
        let why = options.set_parameter("ias_turn", "4ms").unwrap_err().to_string();
        assert!(
            why.contains("runs with --ias-mode paper; start it with --ias-mode rounds"),
            "{why}"
        );
        let why = Options::default().set_parameter("ias_turn", "4ms").unwrap_err().to_string();
        assert!(why.contains("start it with --order ias"), "{why}");
        assert_eq!(options.ias.turn.to_string(), "8ms");
    }

    #[test]
    fn capacities_are_given_by_cpu_list() {
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
