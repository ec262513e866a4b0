//! The three questions that the keel answers, and the policies that exist for each.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use crate::option_error::{OptionError, from_text};

macro_rules! policy {
    ($(#[$doc:meta])* $name:ident, $question:literal, $known:literal,
     $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
        #[serde(try_from = "String")]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// All policies that answer this question.
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
    /// The task with the smallest vruntime.
    #[default]
    Fair = "fair",
    /// Siblings first, within a bonus (paper 003).
    Ias = "ias"
}
policy! {
    /// When may load be balanced? The numbers are `enum gate_kind` of `policy/gate.h`.
    Gate, "gate", "always, zone",
    /// At any time.
    #[default]
    Always = "always",
    /// Only above a CPU utilisation that the zone's level sets (paper 004).
    Zone = "zone"
}
policy! {
    /// What is load? The numbers are `enum balance_kind` of `policy/balance.h`.
    Balance, "balance", "count, capability",
    /// The number of tasks, as if CPUs were equal: classic Linux.
    #[default]
    Count = "count",
    /// Load divided by the CPU's capability (paper 002).
    Capability = "capability"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_by_name() {
        for order in Order::ALL {
            assert_eq!(order.to_string().parse(), Ok(*order));
        }
        let why = "best".parse::<Gate>().unwrap_err().to_string();
        assert_eq!(why, "\"best\": there is no such gate policy; there are: always, zone");
    }
}
