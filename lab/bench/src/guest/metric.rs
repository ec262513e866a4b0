//! What is measured: each figure's name, unit and direction, and what is wanted of whom.

/// A figure that a round gives for each contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name in the report, and the JSON's.
    pub name: &'static str,
    /// What kind of figure it is.
    pub kind: Kind,
    /// What it is, for the reader of a report.
    pub explanation: &'static str,
}

impl Metric {
    /// All of it.
    pub const fn new(name: &'static str, kind: Kind, explanation: &'static str) -> Self {
        Self { name, kind, explanation }
    }
}

/// What a figure is a figure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A time, in s: less is better.
    Time,
    /// A time, in s: more is better.
    Span,
    /// 0..=1: 1 is perfect.
    Index,
    /// How many times as much: less is better.
    Factor,
    /// Of one call, in instructions: less is better. The kernel's own scheduler has none.
    Cost,
    /// Work done a second: more is better.
    Throughput,
    /// How often a second something happens that is better rare.
    Frequency,
}

impl Kind {
    /// A figure of this kind with its unit.
    pub fn amount(self, value: f64) -> String {
        match self {
            Self::Time | Self::Span if value < 1e-3 => format!("{:.1} us", value * 1e6),
            Self::Time | Self::Span => format!("{:.2} ms", value * 1e3),
            Self::Factor => format!("{value:.3}"),
            Self::Index => format!("{value:.4}"),
            Self::Cost => format!("{value:.0}"),
            Self::Throughput | Self::Frequency => format!("{value:.1} /s"),
        }
    }

    /// Whether a figure that grows gets better.
    pub fn is_better_if_more(self) -> bool {
        matches!(self, Self::Span | Self::Index | Self::Throughput)
    }
}

/// What a contestant is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aim {
    /// Who.
    pub contestant: &'static str,
    /// The figure.
    pub metric: &'static str,
    /// How much.
    pub wanted: Wanted,
}

/// How much is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// At least so many times as good as this contestant.
    Ratio(f64, &'static str),
    /// At most so much less than this contestant has.
    Less(f64, &'static str),
    /// At most so much more than this contestant has.
    AtMostMore(f64, &'static str),
    /// The same for each of those that this other figure counts.
    AtMostMoreEach(f64, &'static str, &'static str),
    /// At least this part of the way from what the first one has to what the second one has, where
    /// that is less.
    Way(f64, &'static str, &'static str),
    /// At least this, whatever others reach.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Wanted {
    /// For a column of a table.
    pub fn words(self) -> String {
        match self {
            Self::Ratio(least, whom) => format!(">= {least:.2} times {whom}"),
            Self::Less(most, whom) => format!(">= {whom} - {most}"),
            Self::AtMostMore(most, whom) => format!("<= {whom} + {most}"),
            Self::AtMostMoreEach(most, whom, each) => {
                format!("<= {whom} + {most} for each of {each}")
            }
            Self::Way(least, from, to) => format!(">= {least} of the way from {from} to {to}"),
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }

    /// With whom it compares.
    pub fn against(self) -> Option<&'static str> {
        match self {
            Self::Ratio(_, whom)
            | Self::Less(_, whom)
            | Self::AtMostMore(_, whom)
            | Self::AtMostMoreEach(_, whom, _)
            | Self::Way(_, whom, _) => Some(whom),
            Self::AtLeast(_) | Self::AtMost(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!(Kind::Time.amount(0.000_025), "25.0 us");
        assert_eq!(Kind::Time.amount(0.0125), "12.50 ms");
        assert_eq!(Kind::Frequency.amount(3.0), "3.0 /s");
        assert_eq!(Kind::Cost.amount(1500.2), "1500");
    }
}
