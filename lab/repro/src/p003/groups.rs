//! Figure 5: which CPUs aggregate together.

use anyhow::Result;
use evenkeel_trial::again;

use super::lab::{Bonus, FAIR, Lab, co_scheduled, fair, ias, quad, time_ms, touch};
use super::paper::{BLOCKS_MIB, EQUAL_FROM_MIB, GROUPS_BONUS_NS};
use crate::simulated::{Contestant, Value, mean, median, ratios};
use crate::study::{Finding, Panel, Part, Point, Status};

const QUICK_BLOCKS_MIB: [u64; 2] = [2, 8];
/// Times that differ by less than this are the same.
const SAME: f64 = 1.02;

/// How programs and CPUs are put together: the paper's three cases.
struct Case {
    name: &'static str,
    is_one_group: bool,
    is_pinned: bool,
}

const CASES: [Case; 3] = [
    Case { name: "case 1: one group", is_one_group: true, is_pinned: false },
    Case { name: "case 2: a group for each cache", is_one_group: false, is_pinned: false },
    Case { name: "case 3: and each program on one of them", is_one_group: false, is_pinned: true },
];

impl Case {
    fn contestant(&self) -> Result<Contestant> {
        let mut contestant = ias(self.name, Bonus::Ns(GROUPS_BONUS_NS))?;
        contestant.how.together = self.is_one_group.then(|| "node".to_owned());
        Ok(contestant)
    }
}

/// Ten programs, two of each size, with a block of so many MiB each; each on one half of the cores, or
/// on all.
pub fn load(is_quick: bool, block: u64, is_pinned: bool) -> String {
    let halves = if is_pinned { 4 } else { 0 };
    let size = if is_quick { "threads=20,total=1" } else { "total=5" };
    format!("memory:block={block},{size},sizes=5,halves={halves},touch={}", touch())
}

/// The sizes of blocks, in MiB.
pub fn blocks_of(is_quick: bool) -> &'static [u64] {
    if is_quick { &QUICK_BLOCKS_MIB } else { &BLOCKS_MIB }
}

/// All blocks in all cases.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let blocks = blocks_of(lab.is_quick);
    let loads = |is_pinned: bool| -> Vec<String> {
        blocks.iter().map(|block| load(lab.is_quick, *block, is_pinned)).collect()
    };
    let machine = quad(1.0)?;
    let free = [fair()?, CASES[0].contestant()?, CASES[1].contestant()?];
    let mut seen = lab.see(&loads(false), &machine, &free, lab.seeds)?;
    seen.extend(lab.see(&loads(true), &machine, &[CASES[2].contestant()?], lab.seeds)?);
    let of = |name: &str, is_pinned: bool, block: u64, value: Value| {
        seen.of(&load(lab.is_quick, block, is_pinned), name, value)
    };
    let mut times = Vec::new();
    let mut together = Vec::new();
    let again = again(FAIR);
    let shown = CASES.iter().map(|case| (case.name, case.is_pinned)).chain([(&*again, false)]);
    for (name, is_pinned) in shown {
        let by_fair = |block: &u64| {
            ratios(&of(name, is_pinned, *block, time_ms), &of(FAIR, false, *block, time_ms))
        };
        let share = |block: &u64| Point::of(&of(name, is_pinned, *block, co_scheduled));
        times.push((name, blocks.iter().map(by_fair).collect::<Vec<_>>()));
        together.push((name, blocks.iter().map(share).collect::<Vec<_>>()));
    }
    let panel = |id: &str, y: &str, series: Vec<(&str, Vec<Option<Point>>)>| {
        Panel::new([id, &format!("Figure 5: {y}"), "block, MiB", y], blocks, series)
    };
    let medians: Vec<Vec<f64>> =
        times.iter().map(|(_, time)| time.iter().map(|ratios| median(ratios)).collect()).collect();
    let by_fair = times.iter().map(|(name, time)| {
        let points = time.iter().map(|ratios| Point::of(ratios)).collect();
        (*name, points)
    });
    let by_fair = by_fair.collect();
    let at = |case: usize| medians[case].iter().copied();
    let two_beats_one = at(1).zip(at(0)).filter(|(two, one)| two < one).count();
    let pinned_beats =
        |(block, (two, three)): (&u64, (f64, f64))| (three * SAME < two).then_some(*block);
    let better: Vec<u64> = blocks.iter().zip(at(1).zip(at(2))).filter_map(pinned_beats).collect();
    let named = |blocks: &[u64]| match blocks {
        [] => "at no block".to_owned(),
        some => {
            format!("at {} MiB", some.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
        }
    };
    let is_papers = !better.is_empty() && better.iter().all(|block| *block < EQUAL_FROM_MIB);
    Ok(Part {
        title: "Figure 5: groups of CPUs".into(),
        method: "As in figure 4, with a bonus of 50M and totals of 5, 10, 15, 20 and 25 GiB, each of \
             two programs. Case 1 has all four cores as one group, case 2 those of each cache \
             (`set_ias_alloc 0 1 2 3`), case 3 besides lets a program run on the two cores of one \
             cache only, the other one of its size on the others. By `fair` without any of it. What \
             caches and invalidations cost is the simulator's model: threads that write under both \
             caches find half of their block in each.".into(),
        findings: vec![
            Finding::new(
                "two groups (cases 2 and 3) gain more than one (case 1)",
                "at every block",
                format!(
                    "case 2 at {two_beats_one} of {} blocks; means {:.2}, {:.2}, {:.2} times as long as \
                     fair",
                    blocks.len(),
                    mean(at(0)),
                    mean(at(1)),
                    mean(at(2))
                ),
                Status::reproduced(two_beats_one == blocks.len()),
            ),
            Finding::new(
                "one group gains, too",
                "less than two",
                format!("{:.2} times as long as fair on the average", mean(at(0))),
                Status::reproduced(mean(at(0)) < 1.0),
            ),
            Finding::new(
                "affinity (case 3) beats two groups (case 2) only below 6 MB",
                "below 6 MB",
                format!("by 2 % or more {}", named(&better)),
                Status::reproduced(is_papers),
            ),
        ],
        panels: vec![
            panel(
                "figure-5",
                "execution time by that under fair",
                by_fair,
            ),
            panel(
                "figure-5-together",
                "slaves run what their master runs, part of the time",
                together,
            ),
        ],
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_cache_are_better_than_one_of_all() {
        let part = measure(&Lab::quick(2)).unwrap();
        let series = &part.panels[0].series;
        let median = |case: usize, block: usize| series[case].points[block].unwrap().median;
        for block in 0..QUICK_BLOCKS_MIB.len() {
            assert!(median(1, block) < median(0, block), "{series:?}");
        }
        assert_eq!(part.panels[0].places, ["2", "8"]);
    }
}
