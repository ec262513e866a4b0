//! Which balancers take part.

use anyhow::Result;
use evenkeel_keel::{Balance, Options, Slice};
use evenkeel_sim::Scheduler;

/// A way of balancing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contestant {
    /// What the page calls it.
    pub name: &'static str,
    balance: Balance,
    parts: &'static str,
}

const fn aware(name: &'static str, parts: &'static str) -> Contestant {
    Contestant { name, balance: Balance::Capability, parts }
}

/// Linux's classic balancer, which takes CPUs for equal: the paper's baseline.
pub const UNAWARE: Contestant = Contestant { name: "unaware", balance: Balance::Count, parts: "" };
/// The paper's, new processes placed by load per capability.
pub const ALGORITHM: Contestant = aware("Algorithm 1", "");
/// The paper's, new processes placed as the classic balancer does.
pub const ALGORITHM_PLAIN: Contestant = aware("Algorithm 1, plain placement", "plain");
/// The paper's, pulling at any difference of loads, as line 40 has it.
pub const ALGORITHM_BARE: Contestant = aware("Algorithm 1, bare comparison", "bare");
/// Ours: with all its parts.
pub const OURS: Contestant = aware("ours", "home,cost");
/// Each of its parts alone.
pub const OUR_PARTS: [Contestant; 2] = [aware("home alone", "home"), aware("cost alone", "cost")];

impl Contestant {
    /// The scheduler, with slices of this length.
    ///
    /// # Errors
    /// No slice can be so long or short.
    pub fn scheduler(&self, slice_us: u64) -> Result<Scheduler> {
        Ok(Scheduler::Keel(Options {
            balance: self.balance,
            parts: self.parts.parse()?,
            slice: Slice::from_us(slice_us)?,
            ..Options::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_schedulers_and_differ() {
        let all =
            [&[UNAWARE, ALGORITHM, ALGORITHM_PLAIN, ALGORITHM_BARE, OURS][..], &OUR_PARTS].concat();
        let names: std::collections::BTreeSet<String> =
            all.iter().map(|one| one.scheduler(4_000).unwrap().to_string()).collect();
        assert_eq!(names.len(), all.len());
    }
}
