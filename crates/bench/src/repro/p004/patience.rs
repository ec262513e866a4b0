//! What patience costs and saves: warm-high, and how long it keeps a task waiting while a CPU idles.

use anyhow::Result;
use evenkeel_keel::IdleWait;
use evenkeel_sim::{Report, Scheduler};

use super::contestant::{ALWAYS, WARM_HIGH};
use super::utilisation::{CUT, MOST_TIME, MOST_WAIT, machine, response_ms, time_ms, workload};
use super::{Scale, migrations};
use crate::repro::simulated::{Value, median, ratios};
use crate::repro::study::{Finding, Panel, Part, Point, Series, Status};

/// What `--max-idle-wait` is.
const WAITS: [&str; 7] = ["500us", "1ms", "2ms", "5ms", "10ms", "20ms", "never"];
const CPUS: u32 = 16;
const PCT: u64 = 60;

fn patient(wait: IdleWait) -> Result<Scheduler> {
    let mut scheduler = WARM_HIGH.scheduler()?;
    if let Scheduler::Keel(options) = &mut scheduler {
        options.max_idle_wait = wait;
    }
    Ok(scheduler)
}

/// Of 100 times that somebody wakes up, how often somebody is moved.
fn moved_pct(report: &Report) -> f64 {
    let moved: u64 = report.migrations.iter().map(|kind| kind.count).sum();
    100.0 * moved as f64 / report.response.count as f64
}

/// Each wait, by the gate that is always open.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(scale: &Scale) -> Result<Part> {
    let waits: Vec<IdleWait> =
        WAITS.iter().map(|wait| wait.parse()).collect::<Result<_, evenkeel_keel::OptionError>>()?;
    let text = workload(CPUS, PCT);
    let always = ALWAYS.scheduler()?;
    let patient: Vec<Scheduler> = waits.iter().copied().map(patient).collect::<Result<_>>()?;
    let runs = scale.simulator.sweep(
        vec![text.clone()],
        vec![machine(CPUS)?],
        std::iter::once(&always).chain(&patient).cloned().collect(),
        None,
        scale.seeds,
    )?;
    let of = |scheduler: &Scheduler, value| runs.of(&text, &CPUS.to_string(), scheduler, value);
    let by_always =
        |scheduler: &Scheduler, value: Value| ratios(&of(scheduler, value), &of(&always, value));
    // Those that go down are turned round.
    let saved =
        |scheduler: &Scheduler| ratios(&of(&always, migrations), &of(scheduler, migrations));
    let series = |name: &str, values: &dyn Fn(&Scheduler) -> Vec<f64>| Series {
        name: name.to_owned(),
        points: patient.iter().map(|scheduler| Point::of(&values(scheduler))).collect(),
    };
    let panel = |id: &str, y: &str, series| Panel {
        id: format!("patience-{id}"),
        title: format!("{CPUS} CPUs, {PCT} %: {y}"),
        x: "--max-idle-wait".to_owned(),
        y: y.to_owned(),
        places: WAITS.map(str::to_owned).to_vec(),
        series,
    };
    let reaches = |scheduler: &&Scheduler| {
        median(&saved(scheduler)) >= CUT
            && median(&by_always(scheduler, time_ms)) <= MOST_TIME
            && median(&by_always(scheduler, response_ms)) <= MOST_WAIT
    };
    let good = patient.iter().filter(reaches).count();
    let moved = median(&of(&always, moved_pct));
    let findings = vec![Finding {
        claim:
            "there is a --max-idle-wait with which warm-high reaches all three aims of the part \
                `utilisation`"
                .into(),
        paper: "one of those tried (our aim)".into(),
        ours: format!(
            "{good} of {}; with the gate always open somebody is moved in {moved:.0} of 100 times that \
             somebody wakes up, and whom a gate keeps then waits",
            WAITS.len()
        ),
        bound: "-".into(),
        status: Status::reached(good > 0),
    }];
    Ok(Part {
        title: "What patience costs and saves".into(),
        method: "The load of the part `utilisation`, warm-high, and how long a task may wait while a CPU \
                 idles before the gate is not asked any more. Each task that finds its CPU busy either \
                 moves or waits: fewer migrations are longer waits."
            .into(),
        findings,
        panels: vec![
            panel("saved", "times fewer migrations", vec![series("warm-high", &saved)]),
            panel(
                "late",
                "times as long as with the gate always open",
                vec![
                    series("until all is done", &|scheduler| by_always(scheduler, time_ms)),
                    series("p99 from waking up to sleeping again", &|scheduler| {
                        by_always(scheduler, response_ms)
                    }),
                ],
            ),
        ],
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_longer_moves_less() {
        let part = measure(&Scale::quick()).unwrap();
        let points = &part.panels[0].series[0].points;
        let saved: Vec<f64> = points.iter().map(|point| point.unwrap().median).collect();
        assert_eq!(saved.len(), WAITS.len());
        let (first, last) = (saved[0], saved[WAITS.len() - 1]);
        assert!(last > 2.0 * first, "{saved:?}");
    }
}
