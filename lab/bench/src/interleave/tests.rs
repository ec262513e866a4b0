//! The experiment with fake contestants and a fake clock.

use std::cell::{Cell, RefCell};

use anyhow::anyhow;

use super::*;
use crate::stats::Verdict;

/// A contestant that writes its name down and takes `time(run)` seconds.
fn fake<'a>(
    name: &'a str,
    log: &'a RefCell<Vec<&'a str>>,
    time: impl Fn(usize) -> f64 + 'a,
) -> Contestant<'a> {
    let mut runs = 0;
    Contestant {
        name: name.into(),
        run: Box::new(move || {
            log.borrow_mut().push(name);
            runs += 1;
            Ok(Measurement { seconds: time(runs), ..Default::default() })
        }),
    }
}

fn group<'a>(case: &str, contestants: Vec<Contestant<'a>>) -> Group<'a> {
    Group { case: case.into(), program: "p".into(), reference: None, contestants }
}

/// Times that differ from run to run without a trend.
fn jitter(run: usize, spread: f64) -> f64 {
    1.0 + spread * ([0.3, -1.0, 0.8, -0.2, 0.1][run % 5])
}

fn stopped() -> Duration {
    Duration::ZERO
}

fn quiet(_: Progress<'_>) {}

#[test]
fn contestants_alternate_and_clear_rows_stop_early() {
    let log = RefCell::new(Vec::new());
    let contestants = vec![
        fake("A", &log, |run| 1.3 * jitter(run, 0.01)),
        fake("B", &log, |run| jitter(run + 1, 0.01)),
        fake("C", &log, |run| 2.0 * jitter(run + 2, 0.01)),
    ];
    let rows = run(&mut [group("x", contestants)], &Plan::default(), &stopped, &mut quiet).unwrap();
    assert_eq!(*log.borrow(), ["A", "B", "C"].repeat(5));
    assert!(rows[0].judged.is_none());
    assert_eq!(rows[1].judged.unwrap().verdict, Verdict::Better);
    assert_eq!(rows[2].judged.unwrap().verdict, Verdict::Worse);
    assert!(rows.iter().all(|row| row.runs().count() == 5 && row.rounds.len() == 5));
}

#[test]
fn undecided_rows_get_more_runs_with_their_baseline_only() {
    let log = RefCell::new(Vec::new());
    let contestants = vec![
        fake("A", &log, |run| jitter(run, 0.2)),
        fake("B", &log, |run| 0.1 * jitter(run, 0.2)),
        fake("C", &log, |run| jitter(run + 1, 0.2)),
    ];
    let clear = vec![fake("D", &log, |_| 1.0), fake("E", &log, |_| 2.0)];
    let mut more = Vec::new();
    let rows = run(
        &mut [group("x", contestants), group("y", clear)],
        &Plan::default(),
        &stopped,
        &mut |p| {
            if let Progress::More { undecided } = p {
                more.push(undecided);
            }
        },
    )
    .unwrap();
    let first = [["A", "B", "C"].repeat(5), ["D", "E"].repeat(5)].concat();
    assert_eq!(*log.borrow(), [first, ["A", "C"].repeat(10)].concat());
    assert_eq!(more, [1, 1]);
    assert_eq!(rows[2].runs().count(), 15);
    assert_eq!(rows[1].runs().count(), 5);
    // Rounds stay aligned, so that pairs are of the same round.
    assert_eq!(rows[1].rounds.len(), 15);
    assert_eq!(rows[1].judged.unwrap().comparison.pairs, 5);
    assert_eq!(rows[2].judged.unwrap().comparison.pairs, 15);
}

#[test]
fn the_time_budget_ends_it_but_not_the_initial_runs() {
    let log = RefCell::new(Vec::new());
    let seconds = Cell::new(0);
    let tick = |_| {
        seconds.set(seconds.get() + 1);
        0.0
    };
    let contestants = || {
        vec![
            fake("A", &log, |run| jitter(run, 0.2) + tick(run)),
            fake("B", &log, |run| jitter(run + 1, 0.2) + tick(run)),
        ]
    };
    let clock = || Duration::from_secs(seconds.get());
    for (budget, runs) in [(0, 5), (9, 5), (11, 6), (15, 8), (1_000, 15)] {
        seconds.set(0);
        let plan = Plan { budget: Duration::from_secs(budget), ..Plan::default() };
        let mut late = 0;
        let rows = run(&mut [group("x", contestants())], &plan, &clock, &mut |p| {
            late += usize::from(matches!(p, Progress::OutOfTime { .. }));
        })
        .unwrap();
        assert_eq!(rows[1].runs().count(), runs, "budget {budget}");
        assert_eq!(late, usize::from(runs < 15), "budget {budget}");
    }
}

#[test]
fn disturbed_runs_are_repeated_and_the_least_disturbed_one_counts() {
    let loads = [9.0, 7.0, 8.0, 30.0, 6.0, 2.0, 1.0];
    let calls = Cell::new(0);
    let contestant = Contestant {
        name: "A".into(),
        run: Box::new(|| {
            let foreign_pct = loads[calls.get()];
            calls.set(calls.get() + 1);
            Ok(Measurement { seconds: foreign_pct, foreign_pct, ..Default::default() })
        }),
    };
    let plan = Plan { initial_runs: 3, max_runs: 3, ..Plan::default() };
    let mut disturbed = Vec::new();
    let rows = run(&mut [group("x", vec![contestant])], &plan, &stopped, &mut |p| {
        if let Progress::Disturbed { foreign_pct, .. } = p {
            disturbed.push(foreign_pct);
        }
    })
    .unwrap();
    let counted: Vec<f64> = rows[0].runs().map(|run| run.foreign_pct).collect();
    // 9 7 8 30 -> 7 (three repeats are the bound); 6 2 -> 2; 1.
    assert_eq!(counted, [7.0, 2.0, 1.0]);
    assert_eq!(disturbed, [9.0, 7.0, 8.0, 6.0]);
    assert_eq!(rows[0].repeated, 4);
}

#[test]
fn a_contestant_that_fails_is_left_out_and_the_rest_goes_on() {
    let log = RefCell::new(Vec::new());
    let mut runs = 0;
    let failing = Contestant {
        name: "F".into(),
        run: Box::new(|| {
            runs += 1;
            if runs == 3 {
                return Err(anyhow!("no BPF").context("cannot start"));
            }
            Ok(Measurement { seconds: 1.0, ..Default::default() })
        }),
    };
    let contestants = vec![
        fake("A", &log, |run| 1.3 * jitter(run, 0.01)),
        failing,
        fake("B", &log, |run| jitter(run + 1, 0.01)),
    ];
    let mut failures = 0;
    let rows = run(&mut [group("x", contestants)], &Plan::default(), &stopped, &mut |p| {
        failures += usize::from(matches!(p, Progress::Failed { .. }));
    })
    .unwrap();
    assert_eq!(failures, 1);
    assert_eq!(rows[1].failed.as_deref(), Some("cannot start: no BPF"));
    assert_eq!(rows[1].runs().count(), 2);
    assert_eq!(rows[2].runs().count(), 5);
    assert_eq!(rows[2].judged.unwrap().verdict, Verdict::Better);
}

#[test]
fn a_baseline_that_fails_leaves_nothing_to_compare_with() {
    let log = RefCell::new(Vec::new());
    let bad = Contestant { name: "A".into(), run: Box::new(|| Err(anyhow!("gone"))) };
    let contestants = vec![bad, fake("B", &log, |run| jitter(run, 0.5))];
    let rows = run(&mut [group("x", contestants)], &Plan::default(), &stopped, &mut quiet).unwrap();
    assert!(rows[1].judged.is_none());
    assert_eq!(rows[1].runs().count(), 5, "no more runs: nothing can be decided");
}

#[test]
fn progress_counts_to_what_is_planned() {
    let log = RefCell::new(Vec::new());
    let contestants =
        vec![fake("A", &log, |run| jitter(run, 0.2)), fake("B", &log, |run| jitter(run + 1, 0.2))];
    let mut last = (0, 0);
    let mut begun = 0;
    run(&mut [group("x", contestants)], &Plan::default(), &stopped, &mut |p| {
        if let Progress::Begin { done, planned, .. } = p {
            assert_eq!(done, begun);
            assert!(done < planned);
            begun += 1;
            last = (done, planned);
        }
    })
    .unwrap();
    assert_eq!(last, (29, 30));
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    for plan in [
        Plan { initial_runs: 0, ..Plan::default() },
        Plan { step: 0, ..Plan::default() },
        Plan { initial_runs: 20, ..Plan::default() },
    ] {
        assert!(run(&mut [], &plan, &stopped, &mut quiet).is_err());
    }
    let mut empty = [group("x", Vec::new())];
    let error = run(&mut empty, &Plan::default(), &stopped, &mut quiet).unwrap_err();
    assert!(error.to_string().contains("no contestant"));
    assert_eq!(Plan::default().looks(), 3);
    assert_eq!(Plan { max_runs: 5, ..Plan::default() }.looks(), 1);
}

#[test]
fn the_reference_runs_first_and_gives_the_efficiency_of_its_round() {
    let log = RefCell::new(Vec::new());
    let measured = |name: &'static str, seconds: f64, average: f64, worst: f64| {
        let log = &log;
        let mut runs = 0.0;
        Contestant {
            name: name.into(),
            run: Box::new(move || {
                log.borrow_mut().push(name);
                runs += 1.0;
                // The machine becomes slower from round to round, for all alike.
                Ok(Measurement {
                    seconds: seconds * runs,
                    average: Some(average),
                    worst: Some(worst),
                    ..Default::default()
                })
            }),
        }
    };
    let mut groups = [Group {
        case: "x".into(),
        program: "p".into(),
        reference: Some(measured("R", 2.0, 1.0, 1.0)),
        contestants: vec![measured("A", 10.0 / 3.0, 0.8, 0.6), measured("B", 2.5, 0.8, 0.6)],
    }];
    let mut planned = 0;
    let plan = Plan { initial_runs: 2, max_runs: 2, ..Plan::default() };
    let rows = run(&mut groups, &plan, &stopped, &mut |p| {
        if let Progress::Begin { planned: now, .. } = p {
            planned = now;
        }
    })
    .unwrap();
    assert_eq!(*log.borrow(), ["R", "A", "B"].repeat(2));
    assert_eq!((rows.len(), planned), (2, 6));
    for run in rows[0].runs() {
        assert!((run.efficiency.unwrap() - 0.75).abs() < 1e-12);
    }
    for (run, reference_s) in rows[1].runs().zip([2.0, 4.0]) {
        assert!((run.efficiency.unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(run.reference_s, Some(reference_s));
    }
}

#[test]
fn efficiency_by_hand() {
    let measured = |seconds, average, worst| Measurement {
        seconds,
        average: Some(average),
        worst: Some(worst),
        ..Default::default()
    };
    // 3 s on CPUs of which the worst gave 0.99: 2.97 s at capability 1, 3.7125 s at 0.8.
    let value = efficiency(&measured(3.0, 0.995, 0.99), &measured(4.0, 0.8, 0.6)).unwrap();
    assert!((value - 3.7125 / 4.0).abs() < 1e-12);
    let blind = Measurement { seconds: 4.0, ..Default::default() };
    assert_eq!(efficiency(&measured(3.0, 1.0, 1.0), &blind), None);
    assert_eq!(efficiency(&blind, &measured(3.0, 1.0, 1.0)), None);
    assert_eq!(efficiency(&measured(3.0, 1.0, 1.0), &measured(4.0, 0.0, 0.0)), None);
    assert_eq!(efficiency(&measured(3.0, 1.0, 1.0), &measured(0.0, 1.0, 1.0)), None);
}

#[test]
fn a_machine_that_is_never_quiet_does_not_repeat_everything() {
    let contestant = Contestant {
        name: "A".into(),
        run: Box::new(|| Ok(Measurement { seconds: 1.0, foreign_pct: 50.0, ..Default::default() })),
    };
    let plan = Plan { initial_runs: 10, max_runs: 10, ..Plan::default() };
    let mut told = 0;
    let rows = run(&mut [group("x", vec![contestant])], &plan, &stopped, &mut |p| {
        told += usize::from(matches!(p, Progress::NeverQuiet));
    })
    .unwrap();
    assert_eq!((rows[0].runs().count(), told), (10, 1));
    // 6 to begin with, and one for every second of the 9 runs before the last.
    assert_eq!(rows[0].repeated, 10);
}
