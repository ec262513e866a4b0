//! Each reading of the paper: its result, and the text that it rests on.

use anyhow::Result;
use evenkeel_trial::again;

use super::contestant::{
    ALGORITHM, ALGORITHM_BARE, ALGORITHM_PLAIN, ALGORITHM_WHOLE, ALGORITHM_WHOLE_PLAIN, LITERAL,
    LITERAL_PLACED, LITERALS, UNAWARE, UNAWARE_2010,
};
use super::runs::{Cell, Lab, Runs, SLICE_US, SYSTEMS, mean, median, name_of, on, panel, tat};
use super::tables::{POSITIVE_CELLS, grows};
use crate::study::{Finding, Panel, Part, Point, Status};

/// Seeds: differences between readings are large.
const SEEDS: u64 = 10;
/// Slices with which processes take turns, and with which each runs to completion, in us. The fitted
/// one is among them.
const SLICES_US: [u64; 4] = [120_000, 240_000, 400_000, 1_000_000];
/// The paper's gains, in percent.
const PAPERS: &str = "3.2 to 9.2 %, mean 5.4 %; 4.5, 5.0, 6.6 %";

/// The readings that the keel has by its parts, with the text that they rest on.
const BY_PARTS: [(&str, &str); 5] = [
    (
        ALGORITHM,
        "lines 2, 3, 10, 15, 20, 31, 40 (with 1.1's threshold), 44; 4.1.1; 4.1.2 (i); placement by line \
         10",
    ),
    (
        ALGORITHM_PLAIN,
        "the same; \"a least loaded core will be allocated\", by the number of processes",
    ),
    (ALGORITHM_BARE, "the same as Algorithm 1; line 40: \"LB_core_load < target_core_load\""),
    (
        ALGORITHM_WHOLE,
        "the same as Algorithm 1; lines 24 and 35: \"migrate all processes\", whatever the ratio is",
    ),
    (ALGORITHM_WHOLE_PLAIN, "the same; \"a least loaded core will be allocated\""),
];

/// All readings and their text, the baseline of 2010 first.
fn readings() -> impl Iterator<Item = (&'static str, &'static str)> {
    let (baseline, literal) = LITERALS.split_at(1);
    let of =
        |all: &'static [super::contestant::Literal]| all.iter().map(|one| (one.name, one.text));
    of(baseline).chain(BY_PARTS).chain(of(literal))
}

/// The gains of a reading over a baseline: the median of each cell.
fn gains(runs: &Runs, cells: &[Cell], baseline: &str, name: &str) -> Vec<f64> {
    cells.iter().map(|cell| median(&runs.less_than_pct(cell, (baseline, name), tat))).collect()
}

/// The figures of a reading with slices of one length.
fn said(runs: &Runs, cells: &[Cell], baseline: &str, name: &str, slice_us: u64) -> String {
    let all = gains(runs, cells, baseline, name);
    let systems = SYSTEMS.map(|system| mean(gains(runs, &on(cells, system), baseline, name)));
    let [amc1, amc2, amc3] = systems;
    format!(
        "{} ms: {:+.1} % ({amc1:+.1}, {amc2:+.1}, {amc3:+.1}), positive in {} of {}",
        slice_us / 1000,
        mean(all.iter().copied()),
        all.iter().filter(|gain| **gain > 0.0).count(),
        all.len()
    )
}

/// Whether a reading gains as the paper says: nearly everywhere, and the more the larger the machine.
fn is_the_papers(runs: &Runs, cells: &[Cell], baseline: &str, name: &str) -> bool {
    let positive = gains(runs, cells, baseline, name).iter().filter(|gain| **gain > 0.0).count();
    let systems = SYSTEMS.map(|system| mean(gains(runs, &on(cells, system), baseline, name)));
    positive >= POSITIVE_CELLS && grows(&systems)
}

/// All readings with all slices, over both baselines.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let cells = lab.cells();
    let seeds = lab.seeds.min(SEEDS);
    let names: Vec<&str> = readings().map(|(name, _)| name).collect();
    let all: Vec<Runs> = SLICES_US
        .iter()
        .map(|us| lab.simulate(&cells, &names, *us, seeds, |_| Ok(())))
        .collect::<Result<_>>()?;
    let by_slice = |baseline, name| {
        let each = SLICES_US.iter().zip(&all);
        let each = each.map(|(us, runs)| said(runs, &cells, baseline, name, *us));
        each.collect::<Vec<_>>().join("; ")
    };
    let mut findings = Vec::new();
    for baseline in [UNAWARE, UNAWARE_2010] {
        for (name, text) in readings().filter(|(name, _)| *name != baseline) {
            let comes = all.iter().any(|runs| is_the_papers(runs, &cells, baseline, name));
            let status = match name {
                UNAWARE_2010 => Status::Reported,
                _ => Status::reproduced(comes),
            };
            findings.push(Finding::new(
                format!("{name}, against {baseline}"),
                if name == UNAWARE_2010 { text.to_owned() } else { format!("{text} ({PAPERS})") },
                by_slice(baseline, name),
                status,
            ));
        }
    }
    let mut panels = Vec::new();
    for baseline in [UNAWARE, UNAWARE_2010] {
        panels.push(by_system(baseline, &cells, &all));
    }
    let fitted = SLICES_US.iter().position(|us| *us == SLICE_US);
    panels.extend(fitted.iter().flat_map(|at| by_table(lab, &all[*at])));
    Ok(Part {
        title: "Readings of Algorithm 1, with the text that each rests on".into(),
        method: format!(
            "{seeds} seeds of each cell. Each row names a reading, the paper's text that it rests \
             on, and its mean gain with slices of {} ms (AMC1, AMC2, AMC3 in parentheses); those \
             of {} ms were fitted, and with the longest each process runs to completion. A gain \
             is *reproduced* if with one of these slices it is positive in {POSITIVE_CELLS} of 30 \
             cells, and its mean grows with the machine. *{LITERAL}* is Algorithm 1 line by line: \
             lines 24 and 35 only while there are no more processes than speed cores, no escape \
             for a process that waits, no search and no charge for one by a core that is not to \
             balance, idle cores that pull several processes and go on with the next memory \
             access level, the first idle speed core of a node as the one that balances, and \
             searches also where no process waits. Below it are readings that lack one rule each. \
             One thing is not to the letter: a process that runs is pushed to an idle speed core, \
             and never behind another one on a busy speed core. *{LITERAL_PLACED}* places new \
             processes by load per capability. *{UNAWARE_2010}* is the classic balancer as the \
             paper draws it: an idle core begins at the parent domain, pulls as many processes as \
             make the loads even, and searches whenever it becomes idle.",
            SLICES_US.map(|us| (us / 1000).to_string()).join(", "),
            SLICE_US / 1000,
        ),
        findings,
        panels,
        ..Part::default()
    })
}

/// Mean gains over a baseline: a place for each reading and for A/A (the unaware balancer over itself),
/// a series for each length of a slice.
fn by_system(baseline: &str, cells: &[Cell], all: &[Runs]) -> Panel {
    let again = again(UNAWARE);
    let names = readings().map(|(name, _)| name).filter(|name| *name != baseline);
    let names: Vec<&str> = names.chain([again.as_str()]).collect();
    let id = if baseline == UNAWARE { "readings-unaware" } else { "readings-2010" };
    let title = format!("Mean gain of each reading over {baseline}");
    let series = SLICES_US.iter().zip(all).map(|(us, runs)| {
        let gain = |name: &&str| {
            let baseline = if **name == again { UNAWARE } else { baseline };
            Some(Point::once(mean(gains(runs, cells, baseline, name))))
        };
        (format!("slices of {} ms", us / 1000), names.iter().map(gain).collect())
    });
    Panel::new([id, &title, "reading", "mean gain, %"], names.iter(), series)
}

/// Each cell's gains with the fitted slices.
fn by_table<'a>(lab: &'a Lab, runs: &'a Runs) -> impl Iterator<Item = Panel> + 'a {
    evenkeel_sim::paper002::TABLES.iter().map(move |table| {
        let cells = lab.rows(table);
        let again = again(UNAWARE);
        let series = [UNAWARE_2010, LITERAL, LITERAL_PLACED, &again].map(|name| {
            let points = cells.iter().map(|cell| Point::of(&runs.gains_pct(cell, name)));
            (name.to_owned(), points.collect())
        });
        let id = format!("readings-{}-{}", table.system, table.workload);
        let title = format!("{}: Algorithm 1 to the letter", name_of(table));
        panel(&id, &title, "gain over unaware, %", &cells, series)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reading_has_its_text_and_its_figures() {
        let part = measure(&Lab::quick(2)).unwrap();
        // Against each baseline; the one of 2010 is not compared with itself.
        assert_eq!(part.findings.len(), 2 * readings().count() - 1);
        for finding in &part.findings {
            assert!(finding.paper.len() > 20, "{}", finding.claim);
            assert_eq!(finding.ours.matches(" ms: ").count(), SLICES_US.len(), "{}", finding.ours);
        }
        for panel in &part.panels {
            let points = panel.series.iter().flat_map(|series| series.points.iter().flatten());
            assert_eq!(points.count(), panel.places.len() * panel.series.len(), "{}", panel.id);
        }
        assert!(SLICES_US.contains(&SLICE_US), "the fitted slices are among them");
    }
}
