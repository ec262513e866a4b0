//! Which balancers take part.

use anyhow::{Context, Result};
use evenkeel_keel::{Balance, IdleWait, Options, Slice};
use evenkeel_sim::PaperRule::{self, Eager, Leader, NoSearch, Parent, Ratio, Several};
use evenkeel_sim::Scheduler;

use crate::simulated::{self, Contestant};

/// Linux's classic balancer, which takes CPUs for equal. Idle CPUs pull one task. The baseline.
pub const UNAWARE: &str = "unaware";
/// The same as the paper draws it in figure 3, which is as Linux was in 2010.
pub const UNAWARE_2010: &str = "unaware, as in 2010";
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
/// The paper's to the letter: every rule of [`LITERALS`].
pub const LITERAL: &str = "Algorithm 1, literal";
/// The same, new processes placed by load per capability.
pub const LITERAL_PLACED: &str = "Algorithm 1, literal, placement by capability";
/// Ours: all parts that are meant for processes of one thread, told of memory as a real kernel tells it.
pub const OURS: &str = "ours";
/// The same, told of each process's memory when it is forked.
pub const ORACLE: &str = "oracle";

/// The parts of those that are aware of capability.
const PARTS: [(&str, &str); 15] = [
    (ALGORITHM, ""),
    (ALGORITHM_PLAIN, "plain"),
    (ALGORITHM_BARE, "bare"),
    (ALGORITHM_WHOLE, "active"),
    (ALGORITHM_WHOLE_PLAIN, "plain,active"),
    (ORACLE, "home,cost,active"),
    ("home alone", "home"),
    ("oracle without home", "cost,active"),
    ("cost alone", "cost"),
    ("oracle without cost", "home,active"),
    ("active alone (lines 24 and 35)", "active"),
    ("oracle without active", "home,cost"),
    ("turns alone", "turns"),
    ("oracle with turns", "home,cost,active,turns"),
    (OURS, "home,cost,active"),
];

/// A balancer with rules of the paper that only the laboratory has. No wait is too long for it.
#[derive(Debug, Clone, Copy)]
pub struct Literal {
    /// Its name.
    pub name: &'static str,
    balance: Balance,
    parts: &'static str,
    rules: &'static [PaperRule],
    /// Whether it has the keel's escape: a process that has waited for 10 ms goes to an idle core.
    has_escape: bool,
    /// The paper's text that it rests on: all of it, or what the reading lacks.
    pub text: &'static str,
}

const fn literal(
    name: &'static str,
    parts: &'static str,
    rules: &'static [PaperRule],
    text: &'static str,
) -> Literal {
    Literal { name, balance: Balance::Capability, parts, rules, has_escape: false, text }
}

const LETTER: &[PaperRule] = &[Several, Ratio, NoSearch, Leader, Eager];

/// All of them: the classic balancer of the paper, Algorithm 1 to the letter, and that without each of
/// its rules.
pub static LITERALS: [Literal; 11] = [
    Literal {
        name: UNAWARE_2010,
        balance: Balance::Count,
        parts: "",
        rules: &[Several, Parent, Eager],
        has_escape: false,
        text: "figure 3: \"pulls the processes p7, p8 and p9\" (4, then 3, then 1); 1.1 (iii): \"idle \
               load balancing is performed by the idle processor starting from the parent domain\"",
    },
    literal(
        LITERAL,
        "plain,bare,active",
        LETTER,
        "Algorithm 1, lines 2, 3, 8, 14, 22 to 25, 33 to 36, 40, 44 and 49; 4.1.3; 4.1.4; \"a least \
         loaded core will be allocated\"",
    ),
    literal(
        LITERAL_PLACED,
        "bare,active",
        LETTER,
        "the same; line 10 also for \"a least loaded core\": \"load of a speed core is considered as \
         half of its actual load\"",
    ),
    literal(
        "literal without several",
        "plain,bare,active",
        &[Ratio, NoSearch, Leader, Eager],
        "without line 44: \"select appropriate no. of processes for migration (in accordance with the \
         speed of the core_performing_LB)\"",
    ),
    literal(
        "literal without the ratio",
        "plain,bare,active",
        &[Several, NoSearch, Leader, Eager],
        "without lines 22 and 33 before 24 and 35: \"if (systemwide task to speed core ratio is <=1)\"",
    ),
    literal(
        "literal without lines 24 and 35",
        "plain,bare",
        LETTER,
        "without \"migrate all processes from busiest core to core_performing_LB\" for those that run",
    ),
    literal(
        "literal without silence",
        "plain,bare,active",
        &[Several, Ratio, Leader, Eager],
        "without lines 2 and 3 for the search and for busy cores: \"no load balancing to be done by the \
         current core\"",
    ),
    literal(
        "literal without a leader",
        "plain,bare,active",
        &[Several, Ratio, NoSearch, Eager],
        "without 4.1.4: \"If faster cores are free, they are employed for performing the load \
         balancing\"",
    ),
    literal(
        "literal with a threshold",
        "plain,active",
        LETTER,
        "1.1 (i) instead of line 40: \"as per the load threshold (25%; or 12% in some cases)\"",
    ),
    literal(
        "literal, searches only for waiting processes",
        "plain,bare,active",
        &[Several, Ratio, NoSearch, Leader],
        "without 5.2: \"unnecessary idle load balancing attempts\" that find no process",
    ),
    Literal {
        name: "literal with the escape",
        balance: Balance::Capability,
        parts: "plain,bare,active",
        rules: LETTER,
        has_escape: true,
        text: "4.1.3, but a process that has waited for 10 ms goes to an idle normal core: in the keel, \
               not in the paper",
    },
];

/// A part that the keel has besides Algorithm 1: with it and without it.
#[derive(Debug, Clone, Copy)]
pub struct Ablation {
    /// Its name.
    pub part: &'static str,
    /// Whether the oracle (and ours) has it.
    pub is_ours: bool,
    /// Algorithm 1 with it; without it, that is [`ALGORITHM`].
    pub alone: &'static str,
    /// The oracle with it if that lacks it, and without it if that has it.
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
    /// The oracle with the part and without it.
    pub fn ours(&self) -> (&'static str, &'static str) {
        if self.is_ours { (ORACLE, self.otherwise) } else { (self.otherwise, ORACLE) }
    }
}

/// The options of the balancer of this name.
fn options(name: &str, slice: Slice) -> Result<Options> {
    let mut options = Options { slice, ..Options::default() };
    if name == UNAWARE {
        return Ok(options);
    }
    if let Some(literal) = LITERALS.iter().find(|literal| literal.name == name) {
        options.balance = literal.balance;
        options.parts = PaperRule::add(literal.rules, literal.parts.parse()?);
        if !literal.has_escape {
            options.max_idle_wait = IdleWait::NEVER;
        }
        return Ok(options);
    }
    let (_, parts) = PARTS.iter().find(|(known, _)| *known == name).context("no balancer")?;
    options.balance = Balance::Capability;
    options.parts = parts.parse()?;
    Ok(options)
}

/// The contestants of these names, with slices of this length.
///
/// # Errors
/// There is none of a name, or no slice can be so long or short.
pub fn contestants(names: &[&str], slice_us: u64) -> Result<Vec<Contestant>> {
    let slice = Slice::from_us(slice_us)?;
    let contestant =
        |name: &&str| Ok(simulated::contestant(name, Scheduler::Keel(options(name, slice)?)));
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
        let literals = LITERALS.map(|literal| literal.name);
        let names: Vec<&str> =
            [UNAWARE].into_iter().chain(PARTS.map(|(name, _)| name)).chain(literals).collect();
        let all = contestants(&names, 4_000).unwrap();
        let distinct: BTreeSet<String> =
            all.iter().map(|one| one.how.scheduler.to_string()).collect();
        // Lines 24 and 35 have two names, and so has ours, by what it is told.
        assert_eq!(distinct.len(), all.len() - 2);
        assert!(contestants(&["none"], 4_000).is_err());
    }

    /// Each rule of the literal Algorithm 1 is missing in one reading, and nothing else is then.
    #[test]
    fn every_rule_of_the_literal_reading_is_left_out_once() {
        let of = |name| LITERALS.iter().find(|literal| literal.name == name).unwrap();
        let whole = of(LITERAL);
        let readings = LITERALS.iter().filter(|one| one.parts == whole.parts && !one.has_escape);
        let lacks = |one: &Literal| {
            LETTER.iter().filter(|rule| !one.rules.contains(rule)).copied().collect::<Vec<_>>()
        };
        let left_out: Vec<PaperRule> = readings.flat_map(lacks).collect();
        assert_eq!(left_out, [Several, Ratio, NoSearch, Leader, Eager]);
        for name in ["literal with a threshold", "literal without lines 24 and 35"] {
            assert_eq!(of(name).rules, LETTER);
            assert!(whole.parts.starts_with("plain") && of(name).parts.len() < whole.parts.len());
        }
        assert!(LITERALS.iter().all(|literal| !literal.text.is_empty()));
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
            assert_eq!(ablation.is_ours, parts(ORACLE).contains(ablation.part));
        }
    }
}
