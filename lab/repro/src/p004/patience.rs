//! What patience costs and saves: warm-high, and how long it keeps a task waiting while a CPU idles.

use anyhow::Result;
use evenkeel_sim::{Report, Scheduler};
use evenkeel_trial::again;

use super::contestant::{ALWAYS, WARM_HIGH, contestants, options};
use super::utilisation::{
    CUT, MOST_TIME, MOST_WAIT, machine, response_ms, time_ms, wait_ms, workload,
};
use super::{Scale, far_migrations};
use crate::simulated::{Contestant, Value, contestant, median, ratios};
use crate::study::{Finding, Panel, Part, Point, Status};

/// What `--max-idle-wait` is.
const WAITS: [&str; 8] = ["500us", "1ms", "2ms", "5ms", "8ms", "10ms", "20ms", "never"];
/// CPUs, and what all tasks want of them in percent: the middle, and where moving costs most.
const CASES: [(u32, u64); 2] = [(16, 60), (128, 75)];
const QUICK_CASES: [(u32, u64); 1] = [(16, 60)];

fn patient(wait: &str) -> Result<Contestant> {
    let options = evenkeel_keel::Options { max_idle_wait: wait.parse()?, ..options(WARM_HIGH)? };
    Ok(contestant(wait, Scheduler::Keel(options)))
}

/// Migrations to another last-level cache for each 100 wake-ups.
fn moved_pct(report: &Report) -> f64 {
    let moved = far_migrations(report) * report.makespan_ms / 1000.0;
    100.0 * moved / report.response.count as f64
}

/// What warm-high with one of the waits has, by the gate that is always open.
struct Patience {
    /// How many times fewer migrations.
    saved: Vec<f64>,
    /// How many times as long until all is done.
    time: Vec<f64>,
    /// And tasks' p99 wait for a CPU, ...
    wait: Vec<f64>,
    /// ... and p99 from waking up to sleeping again.
    response: Vec<f64>,
}

impl Patience {
    fn cuts(&self) -> bool {
        median(&self.saved) >= CUT
    }

    fn reaches_all(&self) -> bool {
        self.cuts() && median(&self.time) <= MOST_TIME && median(&self.wait) <= MOST_WAIT
    }
}

/// All waits on one machine, then the A/A line of the gate that is always open; and that one's moves for
/// each 100 wake-ups.
fn waits(scale: &Scale, cpus: u32, pct: u64) -> Result<(Vec<Patience>, f64)> {
    let text = workload(cpus, pct);
    let mut all = contestants(&[ALWAYS])?;
    all.extend(WAITS.into_iter().map(patient).collect::<Result<Vec<_>>>()?);
    let runs =
        scale.lab.run(&machine(cpus)?, std::slice::from_ref(&text), &all, scale.lab.seeds)?;
    let of = |name: &str, value| runs.of(&cpus.to_string(), &text, name, value);
    let by_always = |name: &str, value: Value| ratios(&of(name, value), &of(ALWAYS, value));
    let again = again(ALWAYS);
    let found = WAITS.into_iter().chain([again.as_str()]).map(|name| Patience {
        saved: ratios(&of(ALWAYS, far_migrations), &of(name, far_migrations)),
        time: by_always(name, time_ms),
        wait: by_always(name, wait_ms),
        response: by_always(name, response_ms),
    });
    Ok((found.collect(), median(&of(ALWAYS, moved_pct))))
}

fn panels(cpus: u32, pct: u64, waits: &[Patience]) -> [Panel; 3] {
    let series = |name: &str, values: fn(&Patience) -> &Vec<f64>| {
        (name.to_owned(), waits.iter().map(|wait| Point::of(values(wait))).collect::<Vec<_>>())
    };
    let panel = |id: &str, y: &str, series: Vec<_>| {
        let (id, title) = (format!("patience-{id}-{cpus}"), format!("{cpus} CPUs, {pct} %: {y}"));
        let places = WAITS.map(str::to_owned).into_iter().chain([again(ALWAYS)]);
        Panel::new([&id, &title, "--max-idle-wait", y], places, series)
    };
    let late = vec![
        series("until all is done", |wait| &wait.time),
        series("p99 from waking up to sleeping again", |wait| &wait.response),
    ];
    [
        panel(
            "saved",
            "times fewer migrations to other caches",
            vec![series("warm-high", |wait| &wait.saved)],
        ),
        panel("late", "times as long as with the gate always open", late),
        panel(
            "wait",
            "p99 wait for a CPU, times as long as with the gate always open",
            vec![series("warm-high", |wait| &wait.wait)],
        ),
    ]
}

/// Each wait, by the gate that is always open.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(scale: &Scale) -> Result<Part> {
    let cases = if scale.lab.is_quick { &QUICK_CASES[..] } else { &CASES[..] };
    let (mut all, mut moved, mut shown) = (Vec::new(), Vec::new(), Vec::new());
    for (cpus, pct) in cases {
        let (waits, pct_moved) = waits(scale, *cpus, *pct)?;
        shown.extend(panels(*cpus, *pct, &waits));
        moved.push(format!("{pct_moved:.0}"));
        all.push(waits);
    }
    let everywhere = |good: fn(&Patience) -> bool| {
        let names = WAITS.iter().enumerate();
        let good = names.filter(|(at, _)| all.iter().all(|waits| good(&waits[*at])));
        good.map(|(_, name)| *name).collect::<Vec<_>>()
    };
    let (cut, good) = (everywhere(Patience::cuts), everywhere(Patience::reaches_all));
    let findings = vec![Finding::new(
        "there is a --max-idle-wait with which warm-high reaches all three aims of the part \
                `utilisation`",
        "one of those tried (our aim)",
        format!(
            "{} of {}; {} cut migrations {CUT} times. With the gate always open there are {} moves \
             to another last-level cache for each 100 wake-ups",
            good.len(),
            WAITS.len(),
            cut.join(", "),
            moved.join(" and ")
        ),
        Status::reached(!good.is_empty()),
    )];
    Ok(Part {
        title: "What patience costs and saves".into(),
        method: "Loads of the part `utilisation`, warm-high, and how long a task may wait at most while \
                 a CPU idles (`--max-idle-wait`); by default it waits for no longer than refilling \
                 caches costs, times the level's patience. `never` is the strict gate."
            .into(),
        findings,
        panels: shown,
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_wait_longer_move_less() {
        let part = measure(&Scale::new(true, None).unwrap()).unwrap();
        let points = &part.panels[0].series[0].points;
        let saved: Vec<f64> = points.iter().map(|point| point.unwrap().median).collect();
        assert_eq!(saved.len(), WAITS.len() + 1, "the A/A line is the last place");
        let (first, last) = (saved[0], saved[WAITS.len() - 1]);
        assert!(last > 2.0 * first, "{saved:?}");
    }
}
