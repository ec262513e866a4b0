//! Which balancers take part.

use anyhow::{Context, Result};
use evenkeel_keel::{Balance, Options, Slice};
use evenkeel_sim::Scheduler;

use crate::simulated::{self, Contestant};

/// Linux's classic balancer, which takes CPUs for equal: the paper's baseline.
pub const UNAWARE: &str = "unaware";
/// The paper's, new processes placed by load per capability.
pub const ALGORITHM: &str = "Algorithm 1";
/// The paper's, new processes placed as the classic balancer does.
pub const ALGORITHM_PLAIN: &str = "Algorithm 1, plain placement";
/// The paper's, pulling at any difference of loads, as line 40 has it.
pub const ALGORITHM_BARE: &str = "Algorithm 1, bare comparison";
/// The paper's, with its lines 24 and 35: processes that run leave slower cores for speed cores, too.
pub const ALGORITHM_WHOLE: &str = "Algorithm 1 with lines 24 and 35";
/// The same, new processes placed as the classic balancer does.
pub const ALGORITHM_WHOLE_PLAIN: &str = "Algorithm 1 with lines 24 and 35, plain placement";
/// Ours: all parts that are meant for processes of one thread.
pub const OURS: &str = "ours";

/// The parts of those that are aware of capability.
const PARTS: [(&str, &str); 14] = [
    (ALGORITHM, ""),
    (ALGORITHM_PLAIN, "plain"),
    (ALGORITHM_BARE, "bare"),
    (ALGORITHM_WHOLE, "active"),
    (ALGORITHM_WHOLE_PLAIN, "plain,active"),
    (OURS, "home,cost,active"),
    ("home alone", "home"),
    ("ours without home", "cost,active"),
    ("cost alone", "cost"),
    ("ours without cost", "home,active"),
    ("active alone (lines 24 and 35)", "active"),
    ("ours without active", "home,cost"),
    ("turns alone", "turns"),
    ("ours with turns", "home,cost,active,turns"),
];

/// A part that the keel has besides Algorithm 1: with it and without it.
#[derive(Debug, Clone, Copy)]
pub struct Ablation {
    /// Its name.
    pub part: &'static str,
    /// Whether ours has it.
    pub is_ours: bool,
    /// Algorithm 1 with it; without it, that is [`ALGORITHM`].
    pub alone: &'static str,
    /// Ours with it if ours lacks it, and without it if ours has it.
    pub otherwise: &'static str,
}

const fn ablation(part: usize, name: &'static str, is_ours: bool) -> Ablation {
    Ablation { part: name, is_ours, alone: PARTS[part].0, otherwise: PARTS[part + 1].0 }
}

/// All of them.
pub const ABLATIONS: [Ablation; 4] = [
    ablation(6, "home", true),
    ablation(8, "cost", true),
    ablation(10, "active", true),
    ablation(12, "turns", false),
];

impl Ablation {
    /// Ours with the part and ours without it.
    pub fn ours(&self) -> (&'static str, &'static str) {
        if self.is_ours { (OURS, self.otherwise) } else { (self.otherwise, OURS) }
    }
}

/// The contestants of these names, with slices of this length.
///
/// # Errors
/// There is none of a name, or no slice can be so long or short.
pub fn contestants(names: &[&str], slice_us: u64) -> Result<Vec<Contestant>> {
    let slice = Slice::from_us(slice_us)?;
    let contestant = |name: &&str| {
        let mut options = Options { slice, ..Options::default() };
        if *name != UNAWARE {
            let (_, parts) =
                PARTS.iter().find(|(known, _)| known == name).context("no balancer")?;
            options.balance = Balance::Capability;
            options.parts = parts.parse()?;
        }
        Ok(simulated::contestant(name, Scheduler::Keel(options)))
    };
    names.iter().map(contestant).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parts(name: &str) -> BTreeSet<&'static str> {
        let (_, parts) = PARTS.iter().find(|(known, _)| *known == name).unwrap();
        parts.split(',').filter(|part| !part.is_empty()).collect()
    }

    #[test]
    fn all_are_schedulers_and_differ() {
        let names: Vec<&str> = [UNAWARE].into_iter().chain(PARTS.map(|(name, _)| name)).collect();
        let all = contestants(&names, 4_000).unwrap();
        let distinct: BTreeSet<String> =
            all.iter().map(|one| one.how.scheduler.to_string()).collect();
        assert_eq!(distinct.len(), all.len() - 1, "lines 24 and 35 have two names");
        assert!(contestants(&["none"], 4_000).is_err());
    }

    #[test]
    fn with_and_without_a_part_is_no_other_difference() {
        for ablation in &ABLATIONS {
            assert_eq!(parts(ablation.alone), BTreeSet::from([ablation.part]));
            let (with, without) = ablation.ours();
            let without = parts(without);
            let more: BTreeSet<_> = parts(with).difference(&without).copied().collect();
            assert_eq!(more, BTreeSet::from([ablation.part]));
            assert!(without.is_subset(&parts(with)));
            assert_eq!(ablation.is_ours, parts(OURS).contains(ablation.part));
        }
    }
}
