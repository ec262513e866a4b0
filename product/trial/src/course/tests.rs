//! Trials with fake contestants and a fake clock.

use std::time::Duration;

use anyhow::{Result, anyhow};
use evenkeel_stats::Verdict;
use proptest::prelude::*;

use super::*;
use crate::{Better, Progress};

const TIME: &str = "time";

fn time() -> Vec<Figure> {
    vec![Figure { name: TIME.into(), better: Better::Less }]
}

fn case(name: &str, contestants: &[&str]) -> Case {
    let contestants = contestants.iter().map(|name| (*name).to_owned()).collect();
    Case { name: name.into(), program: "p".into(), contestants, ..Case::default() }
}

type Measure<'a> = Box<dyn FnMut(Slot, usize) -> Result<Sample> + 'a>;

/// Gives what `measure` says for the turn and the number of runs so far; each run takes a second.
struct Fake<'a> {
    measure: Measure<'a>,
    log: Vec<Slot>,
    told: Vec<String>,
    begun: Vec<(usize, usize)>,
}

impl<'a> Fake<'a> {
    fn new(measure: impl FnMut(Slot, usize) -> Result<Sample> + 'a) -> Self {
        let measure = Box::new(measure);
        Self { measure, log: Vec::new(), told: Vec::new(), begun: Vec::new() }
    }

    /// What ran, as letters: contestants from A, the reference as R.
    fn letters(&self) -> String {
        let letter = |turn: &Slot| match turn.seat {
            Seat::Reference => 'R',
            Seat::SecondBaseline => 'A',
            Seat::Contestant(index) => char::from(b'A' + 3 * turn.case as u8 + index as u8),
        };
        self.log.iter().map(letter).collect()
    }
}

impl Caller for Fake<'_> {
    fn run(&mut self, turn: Slot) -> Result<Sample> {
        self.log.push(turn);
        (self.measure)(turn, self.log.len())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.log.len() as u64)
    }

    fn relate(&self, reference: &Sample, sample: &mut Sample) {
        let ratio = reference.get(TIME).zip(sample.get(TIME)).map(|(base, ours)| base / ours);
        sample.set("efficiency", ratio);
    }

    fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Begin { done, planned, .. } => self.begun.push((*done, *planned)),
            other => self.told.push(format!("{other:?}")),
        }
    }
}

/// Times that differ from run to run without a trend.
fn jitter(run: usize, spread: f64) -> f64 {
    1.0 + spread * ([0.3, -1.0, 0.8, -0.2, 0.1][run % 5])
}

fn seat(turn: Slot) -> usize {
    match turn.seat {
        Seat::Reference | Seat::SecondBaseline => 0,
        Seat::Contestant(index) => index,
    }
}

fn took(seconds: f64) -> Result<Sample> {
    Ok(Sample::new([(TIME, seconds)]))
}

fn runs(line: &crate::Line) -> usize {
    line.samples().count()
}

#[test]
fn contestants_alternate_and_clear_rows_stop_early() {
    let factor = [1.3, 1.0, 2.0];
    let mut fake =
        Fake::new(|turn, _| took(factor[seat(turn)] * jitter(turn.round + seat(turn), 0.01)));
    let cases = [case("x", &["A", "B", "C"])];
    let records = run(&cases, &time(), &Plan::default(), &mut fake).unwrap();
    assert_eq!(fake.letters(), "ABC".repeat(5));
    let rows = judge(&records, &time(), Plan::default().looks());
    let verdicts: Vec<_> = rows.iter().map(|row| (row.line, row.judged.verdict)).collect();
    assert_eq!(verdicts, [(1, Verdict::Better), (2, Verdict::Worse)]);
    assert!(records[0].lines.iter().all(|line| runs(line) == 5 && line.rounds.len() == 5));
}

#[test]
fn undecided_rows_get_more_runs_with_their_baseline_only() {
    let mut fake = Fake::new(|turn, _| match (turn.case, seat(turn)) {
        (0, 1) => took(0.1 * jitter(turn.round, 0.2)),
        (0, index) => took(jitter(turn.round + index / 2, 0.2)),
        (_, index) => took(1.0 + index as f64),
    });
    let cases = [case("x", &["A", "B", "C"]), case("y", &["D", "E"])];
    let records = run(&cases, &time(), &Plan::default(), &mut fake).unwrap();
    let letters = ["ABC".repeat(5), "DE".repeat(5), "AC".repeat(10)].concat();
    assert_eq!(fake.letters(), letters);
    assert_eq!(fake.told, ["More { undecided: 1 }"; 2]);
    let [_, clear, open] = &records[0].lines[..] else { unreachable!() };
    assert_eq!((runs(clear), runs(open)), (5, 15));
    // Rounds stay aligned, so that pairs are of the same round.
    assert_eq!(clear.rounds.len(), 15);
    let rows = judge(&records, &time(), 3);
    assert_eq!(rows[0].judged.comparison.pairs, 5);
    assert_eq!(rows[1].judged.comparison.pairs, 15);
}

#[test]
fn the_time_budget_ends_it_but_not_the_initial_runs() {
    for (budget, want) in [(0, 5), (9, 5), (11, 6), (15, 8), (1_000, 15)] {
        let mut fake = Fake::new(|turn, _| took(jitter(turn.round + seat(turn), 0.2)));
        let plan = Plan { budget: Duration::from_secs(budget), ..Plan::default() };
        let records = run(&[case("x", &["A", "B"])], &time(), &plan, &mut fake).unwrap();
        assert_eq!(runs(&records[0].lines[1]), want, "budget {budget}");
        let late = fake.told.iter().filter(|told| told.starts_with("OutOfTime")).count();
        assert_eq!(late, usize::from(want < 15), "budget {budget}");
    }
}

#[test]
fn a_margin_gets_the_rounds_that_the_spread_asks_for() {
    let margin = Margin { contestant: "B", margin: 0.02, tests: 4, max_runs: 90 };
    let plan = Plan { margin: Some(margin), ..Plan::default() };
    assert_eq!(plan.looks(), Plan::default().looks() + 1);
    // As good as the baseline, clearly worse, clearly better; and a spread that is too large.
    for (factor, spread, rounds) in
        [(1.0, 0.05, 47), (1.2, 0.05, 5), (0.8, 0.05, 5), (1.0, 0.5, 90), (1.0, 0.001, 10)]
    {
        let mut fake = Fake::new(|turn, _| {
            let seat = seat(turn);
            took(
                if seat == 1 { factor } else { 1.0 }
                    * jitter(turn.round + seat / 2, spread * seat as f64),
            )
        });
        let records = run(&[case("x", &["A", "B", "C"])], &time(), &plan, &mut fake).unwrap();
        let [_, ours, other] = &records[0].lines[..] else { unreachable!() };
        assert_eq!(runs(ours), rounds, "{factor} {spread}: {:?}", fake.told);
        assert!(runs(other) <= 15, "only the row that is to be shown");
        let found = records[0].compare_with_margin(&time()[0], "A", "B", margin.margin).unwrap();
        let is_decided =
            found.p_value * (margin.tests * plan.looks()) as f64 <= evenkeel_stats::ALPHA;
        assert_eq!(is_decided, spread < 0.5, "{factor} {spread}");
        assert_eq!(found.mean_log_ratio > 0.0, factor <= 1.0, "{factor} {spread}");
    }
    for wrong in [0.0, 1.0, f64::NAN] {
        let margin = Some(Margin { margin: wrong, ..margin });
        let error = run(&[], &time(), &Plan { margin, ..plan }, &mut Fake::new(|_, _| took(1.0)));
        assert!(error.unwrap_err().to_string().contains("margin"), "{wrong}");
    }
    // Without the contestant, or where it fails, there is nothing to show.
    let mut fake = Fake::new(|turn, _| match seat(turn) {
        1 => Err(anyhow!("no")),
        _ => took(1.0),
    });
    let cases = [case("x", &["A", "B"]), case("y", &["D", "E"])];
    run(&cases, &time(), &plan, &mut fake).unwrap();
    assert!(!fake.told.iter().any(|told| told.starts_with("ForMargin")), "{:?}", fake.told);
}

#[test]
fn disturbed_runs_are_repeated_and_the_least_disturbed_run_counts() {
    let loads = [9.0, 7.0, 8.0, 30.0, 6.0, 2.0, 1.0];
    let mut fake = Fake::new(|_, run| {
        let foreign_pct = loads[run - 1];
        Ok(Sample { foreign_pct, ..Sample::default() })
    });
    let records = run(&[case("x", &["A"])], &time(), &Plan::fixed(3), &mut fake).unwrap();
    let line = &records[0].lines[0];
    let counted: Vec<f64> = line.samples().map(|run| run.foreign_pct).collect();
    // 9 7 8 30 -> 7 (three repeats are the bound); 6 2 -> 2; 1.
    assert_eq!(counted, [7.0, 2.0, 1.0]);
    assert_eq!(fake.told.len(), 4);
    assert_eq!((line.repeated, line.foreign_pct()), (4, Some(2.0)));
}

#[test]
fn a_contestant_that_fails_is_left_out_and_the_rest_goes_on() {
    let mut fake = Fake::new(|turn, _| match (seat(turn), turn.round) {
        (1, 2) => Err(anyhow!("no BPF").context("cannot start")),
        (index, round) => took([1.3, 1.0, 1.0][index] * jitter(round + index, 0.01)),
    });
    let cases = [case("x", &["A", "F", "B"])];
    let records = run(&cases, &time(), &Plan::default(), &mut fake).unwrap();
    let lines = &records[0].lines;
    assert_eq!(fake.told.iter().filter(|told| told.starts_with("Failed")).count(), 1);
    assert_eq!(lines[1].failed.as_deref(), Some("cannot start: no BPF"));
    assert_eq!((runs(&lines[1]), runs(&lines[2])), (2, 5));
    let rows = judge(&records, &time(), 3);
    assert_eq!(rows.last().unwrap().judged.verdict, Verdict::Better);
}

#[test]
fn a_baseline_that_fails_leaves_nothing_to_compare_with() {
    let mut fake = Fake::new(|turn, _| match seat(turn) {
        0 => Err(anyhow!("gone")),
        _ => took(jitter(turn.round, 0.5)),
    });
    let records = run(&[case("x", &["A", "B"])], &time(), &Plan::default(), &mut fake).unwrap();
    assert!(judge(&records, &time(), 3).is_empty());
    assert_eq!(runs(&records[0].lines[1]), 5, "no more runs: nothing can be decided");
}

#[test]
fn progress_counts_to_what_is_planned() {
    let mut fake = Fake::new(|turn, _| took(jitter(turn.round + seat(turn), 0.2)));
    run(&[case("x", &["A", "B"])], &time(), &Plan::default(), &mut fake).unwrap();
    assert!(fake.begun.iter().enumerate().all(|(begun, (done, _))| begun == *done));
    assert!(fake.begun.iter().all(|(done, planned)| done < planned));
    assert_eq!(fake.begun.last(), Some(&(29, 30)));
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    let refused = |plan, cases: &[Case]| {
        let mut fake = Fake::new(|_, _| took(1.0));
        run(cases, &time(), &plan, &mut fake).unwrap_err().to_string()
    };
    refused(Plan { initial_runs: 0, ..Plan::default() }, &[]);
    refused(Plan { step: 0, ..Plan::default() }, &[]);
    refused(Plan { initial_runs: 20, ..Plan::default() }, &[]);
    assert!(refused(Plan::default(), &[case("x", &[])]).contains("no contestant"));
    assert_eq!(Plan::default().looks(), 3);
    assert_eq!(Plan::fixed(5).looks(), 1);
}

#[test]
fn the_reference_runs_first_and_relates_to_its_round() {
    // The machine becomes slower from round to round, for all alike.
    let mut fake = Fake::new(|turn, _| {
        let seconds = match turn.seat {
            Seat::Reference | Seat::SecondBaseline => 2.0,
            Seat::Contestant(index) => [10.0 / 3.0, 2.5][index],
        };
        took(seconds * (turn.round + 1) as f64)
    });
    let cases = [Case { has_reference: true, ..case("x", &["A", "B"]) }];
    let records = run(&cases, &time(), &Plan::fixed(2), &mut fake).unwrap();
    assert_eq!(fake.letters(), "RAB".repeat(2));
    assert_eq!((records[0].lines.len(), fake.begun.last()), (2, Some(&(5, 6))));
    for (line, want) in records[0].lines.iter().zip([0.6, 0.8]) {
        assert!(line.values("efficiency").all(|one| (one.unwrap() - want).abs() < 1e-12));
    }
}

#[test]
fn a_reference_that_fails_is_left_out_and_the_rest_goes_on() {
    let mut fake = Fake::new(|turn, _| match turn.seat {
        Seat::Reference => Err(anyhow!("gone")),
        _ => took(1.0),
    });
    let cases = [Case { has_reference: true, ..case("x", &["A", "B"]) }];
    let records = run(&cases, &time(), &Plan::fixed(2), &mut fake).unwrap();
    assert_eq!(fake.letters(), "RABAB");
    assert!(records[0].lines.iter().all(|line| line.failed.is_none()));
}

#[test]
fn the_baseline_runs_once_more_last_and_is_no_claim() {
    let mut fake = Fake::new(|turn, run| took([1.0, 0.5][seat(turn)] * jitter(run, 0.01)));
    let cases = [Case { has_second_baseline: true, ..case("x", &["A", "B"]) }];
    let records = run(&cases, &time(), &Plan::default(), &mut fake).unwrap();
    assert_eq!(fake.letters(), "ABA".repeat(5), "an undecided A/A row wants no more runs");
    assert_eq!(records[0].lines[2].contestant, "A again");
    let rows = judge(&records, &time(), 1);
    let verdicts: Vec<_> = rows.iter().map(|row| row.judged.verdict).collect();
    assert_eq!(verdicts, [Verdict::Better, Verdict::Undecided]);
    // A family of its own: the only claim is not corrected for it.
    let claim = &rows[0].judged;
    assert_eq!(claim.adjusted_p, claim.comparison.p_value);
}

#[test]
fn a_machine_that_is_never_quiet_does_not_repeat_everything() {
    let mut fake = Fake::new(|_, _| Ok(Sample { foreign_pct: 50.0, ..Sample::new([(TIME, 1.0)]) }));
    let records = run(&[case("x", &["A"])], &time(), &Plan::fixed(10), &mut fake).unwrap();
    let told = fake.told.iter().filter(|told| *told == "NeverQuiet").count();
    assert_eq!((runs(&records[0].lines[0]), told), (10, 1));
    // 6 to begin with, and one for every second of the 9 runs before the last.
    assert_eq!(records[0].lines[0].repeated, 10);
}

#[test]
fn more_of_a_rate_is_better() {
    let mut fake = Fake::new(|turn, _| took([1.0, 2.0][seat(turn)]));
    let records = run(&[case("x", &["A", "B"])], &time(), &Plan::fixed(6), &mut fake).unwrap();
    let rate = [Figure { name: TIME.into(), better: Better::More }];
    let judged = judge(&records, &rate, 1)[0].judged;
    assert_eq!((judged.verdict, judged.comparison.ratio.median), (Verdict::Better, 2.0));
}

proptest! {
    /// Whatever fails, is disturbed or stays undecided: rounds stay aligned, no row exceeds the
    /// maximum, and the baseline takes part in every round with another contestant.
    #[test]
    fn rounds_stay_aligned_and_bounded(
        contestants in 1usize..4,
        has_second_baseline: bool,
        initial in 1usize..6,
        more in 0usize..6,
        noise in proptest::collection::vec((0.1f64..10.0, 0.0f64..20.0, 0u8..30), 400),
    ) {
        let names = &["A", "B", "C"][..contestants];
        let cases = [Case { has_second_baseline, ..case("x", names) }];
        let plan = Plan { initial_runs: initial, max_runs: initial + more, step: 2, ..Plan::default() };
        let mut fake = Fake::new(|_, run| {
            let (seconds, foreign_pct, fate) = noise[run % noise.len()];
            if fate == 0 { return Err(anyhow!("it ended")) }
            Ok(Sample { foreign_pct, ..Sample::new([(TIME, seconds)]) })
        });
        let records = run(&cases, &time(), &plan, &mut fake).unwrap();
        let lines = &records[0].lines;
        prop_assert_eq!(lines.len(), contestants + usize::from(has_second_baseline));
        let rounds = lines[0].rounds.len();
        prop_assert!(rounds >= initial && rounds <= initial + more);
        prop_assert!(lines.iter().all(|line| line.rounds.len() == rounds));
        prop_assert!(lines.iter().all(|line| line.failed.is_some() || runs(line) >= initial));
        for round in initial..rounds {
            let ran = |line: &crate::Line| line.rounds[round].is_some();
            if lines.iter().skip(1).any(ran) && lines[0].failed.is_none() {
                prop_assert!(ran(&lines[0]));
            }
        }
    }
}
