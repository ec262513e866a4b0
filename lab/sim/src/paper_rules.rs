//! Paper 002 to the letter: the rules of `policy/balance_paper.h`, which only the simulator's keel has.

use evenkeel_keel::Parts;

/// A rule of `enum paper_rule`, with the text of the paper that it rests on in that header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperRule {
    /// An idle CPU pulls as many tasks as make the loads even.
    Several,
    /// Running tasks leave normal cores, and speed cores pull all that wait there, only while there are
    /// no more tasks than speed cores.
    Ratio,
    /// A normal core that is not to balance does not search.
    NoSearch,
    /// The first idle speed core of a group balances for it.
    Leader,
    /// A CPU that becomes idle searches although no task waits.
    Eager,
    /// An idle CPU begins at the parent domain.
    Parent,
}

impl PaperRule {
    /// All rules, in the order of their bits.
    pub const ALL: [Self; 6] =
        [Self::Several, Self::Ratio, Self::NoSearch, Self::Leader, Self::Eager, Self::Parent];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Several => "several",
            Self::Ratio => "ratio",
            Self::NoSearch => "no-search",
            Self::Leader => "leader",
            Self::Eager => "eager",
            Self::Parent => "parent",
        }
    }

    /// Its bit in `enum paper_rule`.
    fn bit(self) -> u32 {
        1 << (16 + self as u32)
    }

    /// These parts of a balance policy with these rules.
    pub fn add(rules: &[Self], parts: Parts) -> Parts {
        Parts::from_bits(rules.iter().fold(parts.bits(), |bits, rule| bits | rule.bit()))
    }

    /// The rules among these parts.
    pub fn of(parts: Parts) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |rule| parts.bits() & rule.bit() != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_the_header() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../policy/balance_paper.h");
        let header = std::fs::read_to_string(path).unwrap();
        let (_, rules) = header.split_once("enum paper_rule {").unwrap();
        for rule in PaperRule::ALL {
            let name = rule.name().to_uppercase().replace('-', "_");
            let line = format!("\tRULE_{name} = 1 << {},", rule.bit().trailing_zeros());
            assert!(rules.contains(&line), "{line}");
        }
        let defined = rules.lines().filter(|line| line.starts_with("\tRULE_")).count();
        assert_eq!(defined, PaperRule::ALL.len());
    }

    #[test]
    fn rules_are_added_to_parts_and_found_again() {
        let parts: Parts = "plain".parse().unwrap();
        let both = PaperRule::add(&[PaperRule::Ratio, PaperRule::Several], parts);
        let found: Vec<_> = PaperRule::of(both).collect();
        assert_eq!(found, [PaperRule::Several, PaperRule::Ratio]);
        assert_eq!(both.to_string(), "plain", "users cannot name them");
        assert!(PaperRule::of(parts).next().is_none());
    }
}
