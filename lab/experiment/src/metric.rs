//! What is measured: each figure's name, unit and direction.

use evenkeel_trial::{Better, Figure};

/// A figure that a run gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name in the report, and the JSON's.
    pub name: &'static str,
    /// What kind of figure it is.
    pub kind: Kind,
    /// What it is, for the reader of a report.
    pub explanation: &'static str,
    /// It gets rows with verdicts of its own. The others are columns beside them.
    pub is_judged: bool,
    /// A count that is also added over the runs: of rare events the median of the runs says little.
    pub is_summed: bool,
    /// Its median is shown with the interval of the median.
    pub has_spread: bool,
}

impl Metric {
    /// A figure that is compared with the baseline.
    pub const fn new(name: &'static str, kind: Kind, explanation: &'static str) -> Self {
        Self { name, kind, explanation, is_judged: true, is_summed: false, has_spread: false }
    }

    /// A figure that explains a row and is not judged: moves, the bound.
    pub const fn told(name: &'static str, kind: Kind, explanation: &'static str) -> Self {
        Self { name, kind, explanation, is_judged: false, is_summed: false, has_spread: false }
    }

    /// The same figure, with its sum over the runs in each row.
    pub const fn summed(self) -> Self {
        Self { is_summed: true, ..self }
    }

    /// The same figure, its median with the interval of the median.
    pub const fn with_spread(self) -> Self {
        Self { has_spread: true, ..self }
    }

    /// The figure as a trial judges it.
    pub fn figure(&self) -> Figure {
        let better = if self.kind.is_better_if_more() { Better::More } else { Better::Less };
        Figure { name: self.name.to_owned(), better }
    }
}

/// What a figure is a figure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A time, in s: less is better.
    Time,
    /// A short time, in ns: less is better.
    Nanoseconds,
    /// A time, in s: more is better.
    Span,
    /// 0..=1: 1 is perfect.
    Index,
    /// How many times as much: less is better.
    Factor,
    /// What one call costs, in instructions: less is better. The kernel's own scheduler has none.
    Cost,
    /// Work done a second: more is better.
    Throughput,
    /// MB moved a second: more is better.
    MegabytesPerSecond,
    /// A part of a whole, in %: more is better.
    SharePct,
    /// What is taken of a whole, in %: less is better.
    TakenPct,
    /// How often a second something happens that is better rare.
    Frequency,
    /// A number of things that are better few.
    Count,
}

impl Kind {
    /// A figure of this kind with its unit.
    pub fn amount(self, value: f64) -> String {
        match self {
            Self::Time | Self::Span if value < 1e-3 => format!("{:.1} us", value * 1e6),
            Self::Time | Self::Span if value < 1.0 => format!("{:.2} ms", value * 1e3),
            Self::Time | Self::Span => format!("{value:.3} s"),
            Self::Nanoseconds => format!("{value:.2} ns"),
            Self::Factor => format!("{value:.3}"),
            Self::Index => format!("{value:.4}"),
            Self::Cost => format!("{value:.0}"),
            Self::Throughput | Self::Frequency => format!("{value:.1} /s"),
            Self::MegabytesPerSecond => format!("{value:.0} MB/s"),
            Self::SharePct | Self::TakenPct => format!("{value:.2} %"),
            Self::Count => format!("{value}"),
        }
    }

    /// Whether a figure that grows gets better.
    pub fn is_better_if_more(self) -> bool {
        matches!(
            self,
            Self::Span | Self::Index | Self::Throughput | Self::MegabytesPerSecond | Self::SharePct
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_units() {
        assert_eq!(Kind::Time.amount(0.000_025), "25.0 us");
        assert_eq!(Kind::Time.amount(0.0125), "12.50 ms");
        assert_eq!(Kind::Time.amount(2.5), "2.500 s");
        assert_eq!(Kind::Nanoseconds.amount(77.958), "77.96 ns");
        assert_eq!(Kind::Frequency.amount(3.0), "3.0 /s");
        assert_eq!(Kind::Cost.amount(1500.2), "1500");
        assert_eq!(Kind::Count.amount(7.0), "7");
        assert_eq!(Kind::MegabytesPerSecond.amount(1234.4), "1234 MB/s");
        assert_eq!(Kind::SharePct.amount(99.5), "99.50 %");
    }

    #[test]
    fn the_direction_follows_from_the_kind() {
        assert_eq!(Metric::new("time", Kind::Time, "").figure().better, Better::Less);
        assert_eq!(Metric::new("rate", Kind::Throughput, "").figure().better, Better::More);
        assert_eq!(Metric::told("at-home", Kind::SharePct, "").figure().better, Better::More);
        assert_eq!(Metric::told("cost", Kind::TakenPct, "").figure().better, Better::Less);
    }
}
