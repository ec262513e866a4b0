//! What each part brings that the keel has besides Algorithm 1: with it and without it, and its share of
//! the oracle's gain.

use anyhow::Result;

use super::contestant::{
    ABLATIONS, ALGORITHM, ALGORITHM_BARE, ALGORITHM_PLAIN, Ablation, ORACLE, UNAWARE,
};
use super::figures::{FIGURES, TIME, worse};
use super::runs::{Cell, Lab, Runs, SLICE_US, SYSTEMS, name_of, on, panel};
use crate::simulated::with_again;
use crate::study::{Finding, Panel, Part, Point, Status};

/// What is compared.
struct Contest {
    id: &'static str,
    title: &'static str,
    names: Vec<&'static str>,
}

fn contests() -> [Contest; 2] {
    let algorithm = [ALGORITHM, ALGORITHM_PLAIN, ALGORITHM_BARE];
    [
        Contest {
            id: "alone",
            title: "Algorithm 1, and each part alone with it",
            names: [&algorithm[..], &ABLATIONS.map(|one| one.alone)].concat(),
        },
        Contest {
            id: "ours",
            title: "the oracle with and without each part",
            names: [&[ORACLE][..], &ABLATIONS.map(|one| one.otherwise)].concat(),
        },
    ]
}

/// All cells with each part and without it.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let cells = lab.cells();
    let contests = contests();
    let all = contests.each_ref().map(|contest| &contest.names[..]).concat();
    let runs = lab.simulate(&cells, &all, SLICE_US, lab.seeds, |_| Ok(()))?;
    let gain = |name: &str| runs.mean_gain_pct(&cells, name);
    let ablate = |one| with_and_without(one, &cells, &runs);
    let mut findings: Vec<Finding> = ABLATIONS.iter().map(ablate).collect::<Result<_>>()?;
    findings.push(shares(&gain));
    let mut panels: Vec<Panel> =
        contests.iter().map(|contest| by_system(contest, &cells, &runs)).collect();
    panels.extend(contests.iter().flat_map(|contest| by_cell(contest, lab, &runs)));
    Ok(Part {
        title: "What each part brings".into(),
        method: format!(
            "{} seeds of each cell, with slices of {} ms. Each part is switched on in Algorithm 1, \
             where it is alone, and off or on in the oracle, which has home, cost and active. What a \
             share is of depends on the order in which parts are added: what a part of it brings last \
             of all is its row above. `active` is what lines 24 and 35 ask for; `turns` has threads of \
             one program change places, and each process of the paper has one thread.\n\n\
             The oracle knows where each process's memory is from its fork on. That is what `home` \
             gains by here. What a real kernel tells, and what is left then: see signals, below.",
            lab.seeds,
            SLICE_US / 1000
        ),
        findings,
        panels,
        ..Part::default()
    })
}

/// What a part does to Algorithm 1 and to the oracle.
fn with_and_without(ablation: &Ablation, cells: &[Cell], runs: &Runs) -> Result<Finding> {
    let gain = |name: &str| runs.mean_gain_pct(cells, name);
    let (with, without) = ablation.ours();
    let mut known = Vec::new();
    for figure in std::iter::once(&TIME).chain(&FIGURES) {
        let worse = worse(cells, runs, (without, with), figure)?;
        known.push(format!("{} in {}", figure.0.name, worse.len()));
    }
    let worse = known.join(", ");
    Ok(Finding::new(
        format!("mean gain with {} and without it", ablation.part),
        "-",
        format!(
            "Algorithm 1 {:.1} % with it, {:.1} % without; oracle {:.1} % with it, {:.1} % without; \
             there it makes worse by more than 2 %, cells: {worse}",
            gain(ablation.alone),
            gain(ALGORITHM),
            gain(with),
            gain(without)
        ),
        Status::Reported,
    ))
}

/// From one contestant to the next, what is added.
fn steps() -> [(&'static str, &'static str); 5] {
    let [home, _, active, _] = ABLATIONS;
    [
        ("pulls by capability", ALGORITHM_PLAIN),
        ("placement by capability", ALGORITHM),
        ("home", home.alone),
        ("cost", active.otherwise),
        ("active", ORACLE),
    ]
}

/// What each step of a way adds, and that in percent of the whole way.
fn shares_of(gains: &[f64]) -> Vec<(f64, f64)> {
    let whole = gains.last().copied().unwrap_or_default();
    let before = std::iter::once(&0.0).chain(gains);
    let added = gains.iter().zip(before).map(|(gain, before)| gain - before);
    added.map(|points| (points, if whole == 0.0 { 0.0 } else { 100.0 * points / whole })).collect()
}

/// The share of each part in the oracle's mean gain.
fn shares(gain: &impl Fn(&str) -> f64) -> Finding {
    let steps = steps();
    let gains = steps.map(|(_, name)| gain(name));
    let said = |((name, _), (points, share)): (&(&str, &str), (f64, f64))| {
        // No minus before a nought.
        format!("{name} {points:+.1} points ({:.0} %)", share.round() + 0.0)
    };
    let shares: Vec<String> = steps.iter().zip(shares_of(&gains)).map(said).collect();
    let besides = ABLATIONS.iter().filter(|one| !one.is_ours).map(|one| {
        let (with, without) = one.ours();
        format!("{} would add {:+.1}", one.part, gain(with) - gain(without))
    });
    Finding::new(
        "where the oracle's mean gain comes from (home at fork rests on the assumption that the node \
                of a new process's memory is known; what a real kernel tells: see signals)",
        "-",
        format!(
            "{:.1} %: {}; {}",
            gain(ORACLE),
            shares.join(", "),
            besides.collect::<Vec<_>>().join(", ")
        ),
        Status::Reported,
    )
}

/// Mean gains: a place for each machine, and one for all.
fn by_system(contest: &Contest, cells: &[Cell], runs: &Runs) -> Panel {
    let (id, title) = (format!("parts-{}", contest.id), format!("Mean gain: {}", contest.title));
    let texts = [id.as_str(), &title, "machine", "mean gain over unaware, %"];
    let places = SYSTEMS.iter().map(|system| system.to_uppercase()).chain(["all".to_owned()]);
    let series = shown(contest).into_iter().map(|name| {
        let each = SYSTEMS.iter().map(|system| runs.mean_gain_pct(&on(cells, system), &name));
        let points = each.chain([runs.mean_gain_pct(cells, &name)]);
        let points = points.map(|gain| Some(Point::once(gain))).collect();
        (name, points)
    });
    Panel::new(texts, places, series)
}

/// The contest's names, and that of the A/A line.
fn shown(contest: &Contest) -> Vec<String> {
    with_again([&[UNAWARE], &contest.names[..]].concat()).split_off(1)
}

/// Each cell's gains.
fn by_cell(contest: &Contest, lab: &Lab, runs: &Runs) -> Vec<Panel> {
    let of_table = |table| {
        let cells = lab.rows(table);
        let gains = |name: String| {
            let points = cells.iter().map(|cell| Point::of(&runs.gains_pct(cell, &name)));
            let points = points.collect();
            (name, points)
        };
        let series = shown(contest).into_iter().map(gains);
        let id = format!("parts-{}-{}-{}", contest.id, table.system, table.workload);
        let title = format!("{}: {}", name_of(table), contest.title);
        panel(&id, &title, "gain over unaware, %", &cells, series)
    };
    evenkeel_sim::paper002::TABLES.iter().map(of_table).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_sim::paper002::TABLES;
    use evenkeel_sim::program::{TaskPlan, Told};

    use super::super::runs::READING;
    use super::*;

    #[test]
    fn every_part_is_there_with_and_without_in_every_cell() {
        let part = measure(&Lab::quick(2)).unwrap();
        assert_eq!(part.findings.len(), ABLATIONS.len() + 1);
        assert_eq!(part.panels.len(), 2 + 2 * TABLES.len());
        for panel in &part.panels {
            let points = panel.series.iter().flat_map(|series| series.points.iter().flatten());
            assert_eq!(points.count(), panel.places.len() * panel.series.len(), "{}", panel.id);
        }
        let said: Vec<&str> = part.findings.iter().map(|one| one.claim.as_str()).collect();
        for ablation in &ABLATIONS {
            assert!(said.iter().any(|claim| claim.contains(ablation.part)), "{said:?}");
        }
    }

    #[test]
    fn shares_are_of_the_whole_way() {
        assert_eq!(shares_of(&[-2.0, 3.0, 10.0]), [(-2.0, -20.0), (5.0, 50.0), (7.0, 70.0)]);
        assert_eq!(shares_of(&[0.0, 0.0]), [(0.0, 0.0); 2]);
    }

    #[test]
    fn the_way_ends_at_ours_and_goes_by_its_parts() {
        let steps = steps();
        assert_eq!(steps[4].1, ORACLE);
        let of_ours = ABLATIONS.iter().filter(|one| one.is_ours).map(|one| one.part);
        assert_eq!(
            steps[2..].iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            of_ours.collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_simulator_knows_every_home_from_the_start() {
        for table in &TABLES {
            let workload = table.workload(table.rows[0].processes, &READING, 1);
            let is_known = |task: &TaskPlan| task.home.is_some() && task.told == Told::AtFork;
            assert!(workload.tasks.iter().all(is_known), "the text says so");
        }
    }
}
