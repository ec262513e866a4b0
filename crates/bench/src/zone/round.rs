//! One round, in the guest: latencies beside each load, and what the gate costs.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::{Request, ask};
use evenkeel_keel::Statistics;

use super::background::{Background, Load};
use super::{ALWAYS, COLD, ENQUEUE_DISPATCH, HIGH, SELECT_CPU, STILL, urgent};
use crate::guest::{Figures, Inside, contestant::EEVDF};
use crate::keel;

/// The contestant for which the mean of all CPUs counts.
pub const MEAN: &str = "warm-high-mean";

/// Until a load is what it is: three half-lives of utilisation.
const SETTLE: Duration = Duration::from_millis(100);
/// Where the keel answers in the guest.
const SOCKET: &str = "/run/evenkeel/keel.sock";

/// Measures everything under the contestant that is at work.
///
/// # Errors
/// A program or a thread cannot be started, or fails.
pub fn measure(inside: &Inside) -> Result<Figures> {
    let name = inside.contestant.name.as_str();
    if name == MEAN {
        ask(Path::new(SOCKET), &Request::new("set").with("bal_cpus_avg_enable", 1))?;
    }
    let mut figures = Figures::new();
    for load in loads(name) {
        let background = Background::start(*load, inside.cpus, name == STILL)?;
        beside(*load, &background, inside, &mut figures)?;
    }
    if let Some(prefix) = inside.contestant.callbacks().filter(|_| [ALWAYS, COLD].contains(&name)) {
        let mut costs = Figures::new();
        keel::callback_costs(prefix, inside.cpus, &mut costs)?;
        costs.retain(|name, _| [SELECT_CPU, ENQUEUE_DISPATCH].contains(&name.as_str()));
        figures.extend(costs);
    }
    Ok(figures)
}

/// The loads beside which somebody is measured. A round takes minutes, so only those beside all of whom
/// something is wanted.
pub fn loads(contestant: &str) -> &'static [Load] {
    match contestant {
        EEVDF | ALWAYS | HIGH => &Load::ALL,
        STILL => &Load::BAND,
        _ => &Load::LEVELS,
    }
}

fn beside(
    load: Load,
    background: &Background,
    inside: &Inside,
    figures: &mut Figures,
) -> Result<()> {
    std::thread::sleep(SETTLE);
    let is_keel = inside.contestant.name != EEVDF;
    let tries = || if is_keel { tries() } else { Ok(0.0) };
    let (begun, before, tried) = (Instant::now(), background.done(), tries()?);
    let sleepers = urgent::Sleepers::start(inside.cpus)?;
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

/// How often the keel has looked for tasks to move.
fn tries() -> Result<f64> {
    let answer = ask(Path::new(SOCKET), &Request::new("stats"))?;
    let statistics: Statistics = serde_json::from_value(answer)?;
    let looked = statistics.counters.iter().filter(|(name, _)| name.starts_with("try_"));
    Ok(looked.map(|(_, count)| *count as f64).sum())
}
