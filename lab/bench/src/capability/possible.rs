//! Which cases this machine and this user can show. The others are left out, with the reason.

use std::collections::BTreeMap;

use evenkeel_machine::CpuSet;

use super::matrix::{Case, Cell, Method, Subject};

/// What is left to measure, and what has to be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Possible {
    /// What can be measured.
    pub cells: Vec<Cell>,
    /// What cannot, and why: a sentence each.
    pub said: Vec<String>,
}

/// Reduces `cells` to what is possible. `why_not_exact` tells why cbinfo cannot be used, if it
/// cannot; `cannot` why a noise cannot be made.
pub fn reduce(
    cells: Vec<Cell>,
    usable: &CpuSet,
    why_not_exact: Option<&str>,
    cannot: &dyn Fn(Case) -> Option<String>,
) -> Possible {
    let mut said = Vec::new();
    if usable.len() < 2 {
        said.push(format!(
            "Only CPU {usable} may be used here, and unequal CPUs cannot be shown with one: give \
             this process two CPUs or more. Only what evenkeel costs where it can do nothing is \
             measured."
        ));
        let cost = Cell {
            case: Case::None,
            subject: Subject::StaticLoop,
            contestants: vec![Method::Default, Method::Lag],
        };
        return Possible { cells: vec![cost], said };
    }
    let mut cells = cells;
    if let Some(why) = why_not_exact {
        said.push(format!(
            "Exact accounting is not possible: {why}. evenkeel works from /proc here, which does \
             not show what interrupts and real-time tasks take."
        ));
    }
    let mut tried: BTreeMap<Case, bool> = BTreeMap::new();
    cells.retain(|cell| {
        *tried.entry(cell.case).or_insert_with(|| {
            let refused = cannot(cell.case);
            if let Some(why) = &refused {
                said.push(format!("Case {} cannot be shown: {why}.", cell.case.name()));
            }
            refused.is_none()
        })
    });
    Possible { cells, said }
}

#[cfg(test)]
mod tests {
    use super::super::matrix;
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn cases(possible: &Possible) -> Vec<Case> {
        possible.cells.iter().map(|cell| cell.case).collect()
    }

    fn all() -> Vec<Cell> {
        matrix::select(&evenkeel_experiment::Only::default()).unwrap()
    }

    #[test]
    fn with_everything_at_hand_nothing_is_said() {
        let whole = reduce(all(), &cpus("0-1"), None, &|_| None);
        assert_eq!(whole, Possible { cells: all(), said: vec![] });
    }

    #[test]
    fn one_cpu_shows_the_cost_only() {
        let one = reduce(all(), &cpus("3"), None, &|_| None);
        assert_eq!(cases(&one), [Case::None]);
        assert!(one.said[0].starts_with("Only CPU 3 may be used"), "{:?}", one.said);
    }

    #[test]
    fn without_exact_accounting_that_is_said() {
        let inexact = reduce(all(), &cpus("0-1"), Some("no privilege"), &|_| None);
        assert_eq!(inexact.cells, all());
        assert!(inexact.said[0].contains("no privilege"), "{:?}", inexact.said);
    }

    #[test]
    fn cases_whose_noise_cannot_be_made_are_left_out_and_said_once() {
        let no_fifo = |case| (case == Case::FifoSpin).then(|| "not permitted".to_owned());
        let rest = reduce(all(), &cpus("0-1"), None, &no_fifo);
        assert!(!cases(&rest).contains(&Case::FifoSpin));
        assert_eq!(rest.said, ["Case fifo-spin cannot be shown: not permitted."]);
        let nothing = reduce(all(), &cpus("0-1"), None, &|_| Some("no".into()));
        assert!(nothing.cells.is_empty());
    }
}
