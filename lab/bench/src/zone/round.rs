//! One round, in the guest: latencies at each load, and what the gate costs.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::{KEEL_SOCKET, Request, ask};
use evenkeel_keel::Statistics;

use super::background::{Background, Load};
use super::{
    ALWAYS, ASKED, COLD, ENQUEUE_DISPATCH, HIGH, METRICS, SELECT_CPU, STILL, STRICT, looks, urgent,
};
use crate::keel::{self, LAVD};
use evenkeel_experiment::guest::{EEVDF, Inside, Scheduler};
use evenkeel_experiment::{Contestant, Figures, Metric};

/// The contestant that compares the mean of all CPUs.
pub const MEAN: &str = "warm-high-mean";

/// How long the utilisation takes to settle: three half-lives.
const SETTLE: Duration = Duration::from_millis(100);

/// Measures all figures under the contestant that schedules.
///
/// # Errors
/// A program or a thread cannot be started, or fails.
pub fn measure(inside: &Inside) -> Result<Figures> {
    let name = inside.contestant.name.as_str();
    if name == MEAN {
        ask(Path::new(KEEL_SOCKET), &Request::new("set").with("bal_cpus_avg_enable", 1))?;
    }
    let mut figures = Figures::new();
    for load in loads(name) {
        let is_wanted = |one: &&Metric| load.has(one.name) && inside.only.wants(one.name);
        let measured: Vec<&Metric> = METRICS.iter().filter(is_wanted).collect();
        if measured.is_empty() {
            continue;
        }
        let background = Background::start(*load, inside.cpus, name == STILL)?;
        if measured.iter().any(|one| !is_of_looks(one.name)) {
            beside(*load, &background, inside, &mut figures)?;
        }
        let is_watched = [ALWAYS, STILL, HIGH].contains(&name) && Load::BAND.contains(load);
        if is_watched && measured.iter().any(|one| is_of_looks(one.name)) {
            let seen = looks::watch(inside.cpus)?;
            for (figure, value) in LOOKS.into_iter().zip([seen.direct, seen.delay, seen.moving]) {
                figures.insert(format!("{figure}-{load}"), value);
            }
        }
    }
    let is_costly =
        [ALWAYS, COLD].contains(&name) && COSTS.iter().any(|one| inside.only.wants(one));
    if is_costly {
        costs(inside, &mut figures)?;
    }
    Ok(figures)
}

/// The figures of the cost of balancing.
const LOOKS: [&str; 3] = ["direct", "delay", "moving"];

fn is_of_looks(figure: &str) -> bool {
    LOOKS.iter().any(|name| figure.starts_with(name))
}

/// The figures of what callbacks cost while all CPUs are busy.
const COSTS: [&str; 3] = [SELECT_CPU, ENQUEUE_DISPATCH, ASKED];

fn costs(inside: &Inside, figures: &mut Figures) -> Result<()> {
    let answers = || counted(|name| ["move_wake", "refuse_wake"].contains(&name));
    let before = answers()?;
    let chosen = keel::callback_costs(inside.cpus, figures)?;
    figures.retain(|name, _| METRICS.iter().any(|metric| metric.name == name));
    if chosen > 0 {
        figures.insert(ASKED.to_owned(), (answers()? - before) / chosen as f64);
    }
    Ok(())
}

/// The loads at which a contestant is measured. A round takes minutes, so most are measured only at one.
pub fn loads(contestant: &str) -> &'static [Load] {
    match contestant {
        EEVDF | ALWAYS | HIGH => &Load::ALL,
        STILL | LAVD => &Load::BAND,
        STRICT => &Load::PAPER,
        _ => &Load::LEVELS,
    }
}

/// Whether it is the keel, which counts what it does.
pub fn is_keel(contestant: &Contestant<Scheduler>) -> bool {
    matches!(contestant.how, Scheduler::Keel(_))
}

fn beside(
    load: Load,
    background: &Background,
    inside: &Inside,
    figures: &mut Figures,
) -> Result<()> {
    std::thread::sleep(SETTLE);
    let is_keel = is_keel(inside.contestant);
    let tries = || if is_keel { counted(|name| name.starts_with("try_")) } else { Ok(0.0) };
    let (begun, before, tried) = (Instant::now(), background.done(), tries()?);
    let sleepers = urgent::Sleepers::start(inside.cpus, urgent::SLEEPS)?;
    let real_time = urgent::real_time()?;
    let ordinary = sleepers.end()?;
    let (done, tried) = (background.done(), tries()? - tried);
    let seconds = begun.elapsed().as_secs_f64();
    let mut put = |name: &str, value: f64| figures.insert(format!("{name}-{load}"), value);
    if let Some(latency) = real_time {
        put("rt-mean", latency.mean);
        put("rt-p99", latency.p99);
        put("rt-max", latency.max);
    }
    put("wake-p99", ordinary.p99);
    put("moves", (done.moves - before.moves).max(1) as f64 / seconds);
    put("work", (done.work - before.work) as f64 / seconds);
    if is_keel {
        put("tries", tried / seconds);
    }
    Ok(())
}

/// The sum of the keel's counters with these names so far.
fn counted(is_wanted: impl Fn(&str) -> bool) -> Result<f64> {
    let answer = ask(Path::new(KEEL_SOCKET), &Request::new("stats"))?;
    let statistics: Statistics = serde_json::from_value(answer)?;
    let wanted = statistics.counters.iter().filter(|(name, _)| is_wanted(name));
    Ok(wanted.map(|(_, count)| *count as f64).sum())
}
