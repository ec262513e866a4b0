//! What becomes of the claims in cells with invented runs.

use super::super::cell::tests::{Figures, Runs, measured};
use super::super::plan::cells;
use super::*;

/// Runs in which each contestant takes so long, with a small spread; the figures are added.
fn runs(seconds: f64, more: &[(&'static str, f64)]) -> Vec<Vec<(&'static str, f64)>> {
    let run = |round: i32| {
        let time = seconds * (1.0 + 0.001 * f64::from(round % 3 - 1));
        [&[(TIME, time)], more].concat()
    };
    (0..7).map(run).collect()
}

/// A contestant, and the figures of its runs.
type Owned<'a> = (&'a str, Vec<Vec<(&'static str, f64)>>);

fn record(name: &str, lines: &[Owned<'_>]) -> Record {
    let borrowed: Vec<(&str, Vec<Figures<'_>>)> = lines
        .iter()
        .map(|(name, runs)| (*name, runs.iter().map(Vec::as_slice).collect()))
        .collect();
    let lines: Vec<Runs<'_>> =
        borrowed.iter().map(|(name, runs)| (*name, runs.as_slice())).collect();
    measured(name, &lines).record("abc")
}

fn judged<'a>(name: &'a str, record: Option<Record>) -> Judged<'a> {
    let (program, noise) = name.split_once('/').unwrap();
    Judged { program, noise, record }
}

#[test]
fn every_claimed_cell_is_planned_with_the_contestants_of_its_claim() {
    let planned = cells(&[]);
    for claim in &CLAIMS {
        for program in claim.cells.0 {
            for noise in claim.cells.1 {
                let cell = planned.iter().find(|cell| cell.name() == format!("{program}/{noise}"));
                let cell = cell.unwrap_or_else(|| panic!("{program} under {noise}"));
                let has = |name: &str| cell.contestants.iter().any(|one| one == name);
                let has_all = has(DEFAULT) && claim.contestants().into_iter().all(has);
                assert!(has_all, "{}: {program} under {noise}", claim.name);
            }
        }
    }
}

#[test]
fn the_table_of_the_issue() {
    let words: Vec<String> = CLAIMS
        .iter()
        .map(|claim| match &claim.by {
            By::Aim(aim) => format!("{} {}", aim.contestant, aim.wanted.words()),
            By::AimUnlikeDefault(aim) => {
                format!("{} {}, unlike default", aim.contestant, aim.wanted.words())
            }
            By::GeometricMean(contestant, least) => format!("{contestant} mean {least}"),
            By::MostInARun(metric, most) => format!("{metric} {most}"),
            By::OwnProof(_) => unreachable!(),
        })
        .collect();
    assert_eq!(
        words,
        [
            "run shown to lose less than 2 % against default",
            "moves 0",
            "moves, withdrawn 10",
            "run <= 0.3",
            "run --shares >= 0.97 times by hand",
            "run --shares >= 1.25 times default",
            "run --shares mean 1.2",
            "run --threads 4 >= 0.97 times by hand",
            "run --threads 4 >= 1.30 times default",
            "run --threads 4 >= 1.18 times default",
            "run >= 1.15 times default",
            "run >= 0.93 times by hand",
            "run >= 90, unlike default",
            "run shown to lose less than 2 % against default",
            "run >= 1.22 times default",
        ]
    );
}

#[test]
fn a_cell_that_is_not_measured_does_not_show_the_claim() {
    let good = record(
        "lu.W-gcc/softirq",
        &[(DEFAULT, runs(2.0, &[])), (RUN, runs(2.0, &[(OWN_CPU, 0.1), (MOVES, 0.0)]))],
    );
    let cells = [judged("lu.W-gcc/softirq", Some(good)), judged("lammps/softirq", None)];
    let (rows, sentences) = judge(&cells, 3);
    let first: Vec<_> =
        rows[..2].iter().map(|row| (row.program.as_str(), row.reached.unwrap())).collect();
    assert_eq!(first, [("lu.W-gcc", Reached::Reached), ("lammps", Reached::Undecided)]);
    assert!(
        sentences[0].contains("**not shown**, 2 of its 32 cells; rows: 1 reached, 0 missed, 1 "),
        "{sentences:?}"
    );
}

#[test]
fn one_run_that_moves_on_equal_cpus_breaks_the_claim() {
    let reached = |moves: f64| {
        let mut ours = runs(2.0, &[(MOVES, 0.0)]);
        ours[3][1].1 = moves;
        let cell = record("ep.A-gcc/none", &[(DEFAULT, runs(2.0, &[])), (RUN, ours)]);
        let (rows, _) = judge(&[judged("ep.A-gcc/none", Some(cell))], 1);
        rows.iter().find(|row| row.metric == MOVES).unwrap().reached.unwrap()
    };
    assert_eq!((reached(0.0), reached(1.0)), (Reached::Reached, Reached::Missed));
}

#[test]
fn what_the_kernel_alone_reaches_shows_nothing() {
    let reached = |alone: &[f64]| {
        let base = alone.iter().map(|share| vec![(TIME, 2.0), (CRITICAL, *share)]).collect();
        let ours = runs(2.0, &[(CRITICAL, 98.0)]);
        let cell = record("loop.uneven/softirq", &[(DEFAULT, base), (RUN, ours)]);
        let (rows, _) = judge(&[judged("loop.uneven/softirq", Some(cell))], 1);
        rows.iter().find(|row| row.metric == CRITICAL).unwrap().reached.unwrap()
    };
    // Of two CPUs the thread is often on the noisy one, of many never.
    assert_eq!(reached(&[10.0; 7]), Reached::Reached);
    assert_eq!(reached(&[0.0, 100.0, 0.0, 100.0, 0.0, 100.0, 0.0]), Reached::Undecided);
    assert_eq!(reached(&[100.0; 7]), Reached::Undecided);
}

#[test]
fn a_claim_about_all_runs_is_not_shown_while_a_cell_is_missing() {
    let none = || runs(2.0, &[(MOVES, 0.0)]);
    let cell = record("ep.A-gcc/none", &[(DEFAULT, none()), (RUN, none())]);
    let cells = [judged("ep.A-gcc/none", Some(cell)), judged("lammps/none", None)];
    let (rows, _) = judge(&cells, 1);
    let row = rows.iter().find(|row| row.metric == MOVES).unwrap();
    assert_eq!((row.found, row.reached), (Some(0.0), Some(Reached::Undecided)));
}

#[test]
fn the_geometric_mean_needs_all_cells() {
    let (programs, noises) = SHARES_CELLS;
    let names: Vec<String> = programs
        .iter()
        .flat_map(|program| noises.iter().map(move |noise| format!("{program}/{noise}")))
        .collect();
    let all = |count: usize| -> Vec<Judged<'_>> {
        let cell = |(index, name): (usize, &'_ String)| {
            // Half of them gain 1.44, the others nothing: 1.2 together.
            let ours = if index % 2 == 0 { 2.0 / 1.44 } else { 2.0 };
            record(name, &[(DEFAULT, runs(2.0, &[])), (SHARES, runs(ours, &[]))])
        };
        let cells = names.iter().enumerate();
        cells
            .map(|(index, name)| judged(name, (index < count).then(|| cell((index, name)))))
            .collect()
    };
    let mean = |count: usize| {
        let (rows, _) = judge(&all(count), 1);
        rows.into_iter().find(|row| row.program == TOGETHER).unwrap()
    };
    assert!((mean(12).found.unwrap() - 1.2).abs() < 1e-3);
    assert_eq!(mean(11).found, None);
    assert_eq!(mean(11).reached, Some(Reached::Undecided));
}

#[test]
fn own_proof_and_measurement_agree_or_contradict() {
    let cell = |ours: f64, low: f64, high: f64| {
        let own = [(GAIN, (low + high) / 2.0), (GAIN_LOW, low), (GAIN_HIGH, high)];
        record("ep.A-gcc/fifo", &[(DEFAULT, runs(2.0, &[])), (RUN, runs(ours, &own))])
    };
    let rows = |record: Record| {
        let (rows, _) = judge(&[judged("ep.A-gcc/fifo", Some(record))], 1);
        let rows = rows.iter().filter(|row| row.case == "all");
        rows.map(|row| row.found).collect::<Vec<_>>()
    };
    assert_eq!(rows(cell(1.6, 1.2, 1.3)), [Some(1.0), Some(0.0)]);
    assert_eq!(rows(cell(1.6, 1.3, 1.4)), [Some(0.0), Some(0.0)]);
    assert_eq!(rows(cell(2.4, 1.3, 1.4)), [Some(0.0), Some(1.0)]);
    let silent = record("ep.A-gcc/fifo", &[(DEFAULT, runs(2.0, &[])), (RUN, runs(2.0, &[]))]);
    assert_eq!(rows(silent), [None, None]);
}

#[test]
fn only_the_cells_of_a_claim_of_no_loss_get_rounds_for_it() {
    for (program, noise, most) in [
        ("lu.W-gcc", "softirq-fine", MAX_RUNS_FOR_MARGIN),
        ("lammps", "none", MAX_RUNS_FOR_MARGIN),
        ("loop.uneven", "none", MAX_RUNS_FOR_MARGIN),
        ("loop.uneven", "softirq", 0),
        ("lu.A-clang", "softirq-fine", 0),
        ("is.W-gcc", "hog", 0),
    ] {
        let of_cell = margin(program, noise);
        assert_eq!(of_cell, Margin { max_runs: most, ..NOT_INFERIOR }, "{program}/{noise}");
    }
    assert_eq!((NOT_INFERIOR.contestant, NOT_INFERIOR.tests), (RUN, 32));
    let Margin { margin, .. } = NOT_INFERIOR;
    let claimed = CLAIMS.iter().filter_map(|claim| match &claim.by {
        By::Aim(aim) => Some(aim.wanted),
        _ => None,
    });
    let margins = claimed.filter_map(|wanted| match wanted {
        Wanted::NotInferior(of_claim, base) => Some((of_claim, base)),
        _ => None,
    });
    assert_eq!(margins.collect::<Vec<_>>(), [(margin, DEFAULT); 2]);
}
