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
/// The paper's, with its lines 24 and 35: processes that run leave slower cores for speed cores, too.
pub const ALGORITHM_WHOLE: Contestant = aware("Algorithm 1 with lines 24 and 35", "active");
/// The same, new processes placed as the classic balancer does.
pub const ALGORITHM_WHOLE_PLAIN: Contestant =
    aware("Algorithm 1 with lines 24 and 35, plain placement", "plain,active");
/// Ours: all parts that are meant for processes of one thread.
pub const OURS: Contestant = aware("ours", "home,cost,active");

/// A part that the keel has besides Algorithm 1: with it and without it.
#[derive(Debug, Clone, Copy)]
pub struct Ablation {
    /// Its name.
    pub part: &'static str,
    /// Whether ours has it.
    pub is_ours: bool,
    /// Algorithm 1 with it; without it, that is [`ALGORITHM`].
    pub alone: Contestant,
    /// Ours with it if ours lacks it, and without it if ours has it.
    pub otherwise: Contestant,
}

/// All of them.
pub const ABLATIONS: [Ablation; 4] = [
    Ablation {
        part: "home",
        is_ours: true,
        alone: aware("home alone", "home"),
        otherwise: aware("ours without home", "cost,active"),
    },
    Ablation {
        part: "cost",
        is_ours: true,
        alone: aware("cost alone", "cost"),
        otherwise: aware("ours without cost", "home,active"),
    },
    Ablation {
        part: "active",
        is_ours: true,
        alone: aware("active alone (lines 24 and 35)", "active"),
        otherwise: aware("ours without active", "home,cost"),
    },
    Ablation {
        part: "turns",
        is_ours: false,
        alone: aware("turns alone", "turns"),
        otherwise: aware("ours with turns", "home,cost,active,turns"),
    },
];

impl Ablation {
    /// Ours with the part and ours without it.
    pub fn ours(&self) -> (Contestant, Contestant) {
        if self.is_ours { (OURS, self.otherwise) } else { (self.otherwise, OURS) }
    }
}

/// These, but each way of balancing once: a part alone can be what ours is without another one.
pub fn distinct(contestants: &[Contestant]) -> Vec<Contestant> {
    let mut all: Vec<Contestant> = Vec::new();
    for one in contestants {
        if all.iter().all(|other| (other.balance, other.parts) != (one.balance, one.parts)) {
            all.push(*one);
        }
    }
    all
}

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
    use std::collections::BTreeSet;

    use super::*;

    fn parts(contestant: &Contestant) -> BTreeSet<&'static str> {
        contestant.parts.split(',').filter(|part| !part.is_empty()).collect()
    }

    #[test]
    fn all_are_schedulers_and_differ() {
        let all = [
            UNAWARE,
            ALGORITHM,
            ALGORITHM_PLAIN,
            ALGORITHM_BARE,
            ALGORITHM_WHOLE,
            ALGORITHM_WHOLE_PLAIN,
            OURS,
        ];
        let names: BTreeSet<String> =
            all.iter().map(|one| one.scheduler(4_000).unwrap().to_string()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(distinct(&all), all);
        assert_eq!(distinct(&[OURS, ALGORITHM, OURS]), [OURS, ALGORITHM]);
        let active = ABLATIONS.iter().find(|one| one.part == "active").unwrap().alone;
        assert_eq!(
            distinct(&[ALGORITHM_WHOLE, active]),
            [ALGORITHM_WHOLE],
            "the same by two names"
        );
    }

    #[test]
    fn with_and_without_a_part_is_no_other_difference() {
        for ablation in &ABLATIONS {
            assert_eq!(parts(&ablation.alone), BTreeSet::from([ablation.part]));
            let (with, without) = ablation.ours();
            let without = parts(&without);
            let more: BTreeSet<_> = parts(&with).difference(&without).copied().collect();
            assert_eq!(more, BTreeSet::from([ablation.part]));
            assert!(without.is_subset(&parts(&with)));
            assert_eq!(ablation.is_ours, parts(&OURS).contains(ablation.part));
            ablation.alone.scheduler(4_000).unwrap();
            ablation.otherwise.scheduler(4_000).unwrap();
        }
    }
}
