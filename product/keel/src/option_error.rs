//! Why a value cannot be an option of the keel: one error for flags, configuration files and the control
//! socket. It stands below the types of the options and therefore holds their texts.

use evenkeel_machine::CAPABILITY_SCALE;

/// Why a value cannot be an option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No policy has this name.
    #[error("\"{name}\": there is no such {question} policy; there are: {known}")]
    Policy {
        /// order, gate or balance.
        question: &'static str,
        /// The name, as it was given.
        name: String,
        /// The names that exist.
        known: &'static str,
    },
    /// No part of the balance policy has this name.
    #[error("\"{name}\": there is no such part of balance capability; there are: {known}")]
    Part {
        /// The name, as it was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// Parts of a policy that does not run.
    #[error("parts {parts}: balance {balance} has none; use --balance capability")]
    NotCapability {
        /// The parts, as they were given.
        parts: String,
        /// The balance policy that would run.
        balance: String,
    },
    /// The slice is out of its range, or no number.
    #[error("slice \"{value}\": expected microseconds from {lowest_us} to {highest_us}")]
    Slice {
        /// The slice, as it was given.
        value: String,
        /// The shortest slice.
        lowest_us: u64,
        /// The longest slice.
        highest_us: u64,
    },
    /// The longest wait beside an idle CPU is out of its range, or no time.
    #[error("wait \"{0}\": expected a time from 1us to 20s, like 10ms, or never")]
    IdleWait(String),
    /// These CPUs cannot be shielded.
    #[error("shield \"{text}\": {why}; expected CPUs like 2-3, or none")]
    Shield {
        /// The CPUs, as they were given.
        text: String,
        /// Why.
        why: String,
    },
    /// No level of the zones has this name.
    #[error("\"{name}\": there is no such zone; there are: {known}")]
    Level {
        /// The name, as it was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No knob of the zones has this name.
    #[error("\"{name}\": there is no such knob; there are: {known}")]
    Knob {
        /// The name, as it was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No parameter that can be changed while the keel runs has this name.
    #[error("\"{name}\": no such parameter; there are: {known}")]
    Parameter {
        /// The name, as it was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A knob of the zones cannot have this value.
    #[error("{name} \"{value}\": expected a whole number from {lowest} to {highest}")]
    KnobValue {
        /// The knob.
        name: &'static str,
        /// The value, as it was given.
        value: String,
        /// The smallest value.
        lowest: u32,
        /// The largest value.
        highest: u32,
    },
    /// A knob of a policy that does not run.
    #[error("{name}: the keel runs with --gate {gate}; start it with --gate zone to use this knob")]
    NotZone {
        /// The knob.
        name: &'static str,
        /// The gate policy that runs.
        gate: String,
    },
    /// Compaction with a gate that lets no task migrate.
    #[error("--compact needs tasks that may migrate: leave --strict (--max-idle-wait never) out")]
    CompactStrict,
    /// The window of the order `ias` is out of its range, or no number.
    #[error("window \"{value}\": expected a number of tasks from 1 to {most}")]
    Window {
        /// The window, as it was given.
        value: String,
        /// The largest window.
        most: u64,
    },
    /// No mode of the order `ias` has this name.
    #[error("mode \"{0}\": expected rounds or paper")]
    Mode(String),
    /// The longest turn of the order `ias` is out of its range, or no time.
    #[error("turn \"{0}\": expected a time from 100us to 1s, like 20ms")]
    Turn(String),
    /// No choice of slaves to kick has this name.
    #[error("kick \"{0}\": expected none, idle or busy")]
    Kick(String),
    /// A parameter of an order that does not run.
    #[error("{name}: the keel runs with --order {order}; start it with --order ias to use this")]
    NotIas {
        /// The parameter.
        name: &'static str,
        /// The order policy that runs.
        order: String,
    },
    /// A parameter of a mode of the order `ias` that does not run.
    #[error(
        "{name}: the keel runs with --ias-mode {mode}; start it with --ias-mode rounds to use this"
    )]
    NotRounds {
        /// The parameter.
        name: &'static str,
        /// The mode that runs.
        mode: String,
    },
    /// The text does not give CPUs and their capacity.
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

/// Has a configuration file accept the same text as a flag.
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
