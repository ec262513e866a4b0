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
    demo: bool,
    cannot: &dyn Fn(Case) -> Option<String>,
) -> Possible {
    let mut said = Vec::new();
    let versus = |case| Cell {
        case,
        subject: Subject::StaticLoop,
        contestants: vec![Method::Default, Method::Lag],
    };
    if usable.len() < 2 {
        said.push(format!(
            "Only CPU {usable} may be used here, and unequal CPUs cannot be shown with one: give \
             this process two CPUs or more. Only what evenkeel costs where it can do nothing is \
             measured."
        ));
        return Possible { cells: vec![versus(Case::None)], said };
    }
    let mut cells = cells;
    if let Some(why) = why_not_exact {
        said.push(format!(
            "Exact accounting is not possible: {why}. evenkeel works from /proc here, which does \
             not show what interrupts and real-time tasks take."
        ));
        if demo {
            said.push(
                "So interrupts and real-time tasks are not shown. Instead another program takes \
                 its share of one CPU."
                    .to_owned(),
            );
            cells = vec![versus(Case::Hog)];
        }
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
    if cells.is_empty() && demo {
        cells.push(versus(Case::Hog));
    }
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

    #[test]
    fn with_everything_at_hand_nothing_is_said() {
        let demo = reduce(matrix::demo(), &cpus("0-1"), None, true, &|_| None);
        assert_eq!(demo, Possible { cells: matrix::demo(), said: vec![] });
    }

    #[test]
    fn one_cpu_shows_the_cost_only() {
        let one = reduce(matrix::demo(), &cpus("3"), None, true, &|_| None);
        assert_eq!(cases(&one), [Case::None]);
        assert!(one.said[0].starts_with("Only CPU 3 may be used"), "{:?}", one.said);
    }

    #[test]
    fn without_privilege_the_demo_shows_a_hog() {
        let why = Some("no privilege");
        let demo = reduce(matrix::demo(), &cpus("0-1"), why, true, &|_| None);
        assert_eq!(cases(&demo), [Case::Hog]);
        assert_eq!(demo.cells[0].contestants, [Method::Default, Method::Lag]);
        assert!(demo.said[0].contains("no privilege"), "{:?}", demo.said);
    }

    #[test]
    fn cases_whose_noise_cannot_be_made_are_left_out_and_said_once() {
        let all = matrix::select(&evenkeel_experiment::Only::default()).unwrap();
        let no_fifo = |case| (case == Case::FifoSpin).then(|| "not permitted".to_owned());
        let rest = reduce(all, &cpus("0-1"), None, false, &no_fifo);
        assert!(!cases(&rest).contains(&Case::FifoSpin));
        assert_eq!(rest.said, ["Case fifo-spin cannot be shown: not permitted."]);
        let nothing = reduce(matrix::demo(), &cpus("0-1"), None, true, &|_| Some("no".into()));
        assert_eq!(cases(&nothing), [Case::Hog]);
        let nothing = reduce(matrix::demo(), &cpus("0-1"), None, false, &|_| Some("no".into()));
        assert!(nothing.cells.is_empty());
    }
}
