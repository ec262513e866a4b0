//! The figures of a simulation, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_keel::{Aggregation, Tuning, Why};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::program::Workload;
use crate::scheduler::Scheduler;
use crate::simulation::Simulation;

/// Times in ms: mean, median, 99th percentile and the largest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Times {
    /// How many there are.
    pub count: u64,
    /// Their mean.
    pub mean_ms: f64,
    /// The median.
    pub median_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

impl Times {
    /// From a histogram: times in ns by how often each occurs.
    fn of(times: &BTreeMap<u64, u64>) -> Self {
        let count: u64 = times.values().sum();
        let sum: f64 = times.iter().map(|(ns, times)| *ns as f64 * *times as f64).sum();
        let rank = |pct: u64| {
            let wanted = (count * pct).div_ceil(100).max(1);
            let mut seen = 0;
            let found = times.iter().find(|(_, times)| {
                seen += **times;
                seen >= wanted
            });
            found.map_or(0.0, |(ns, _)| ms(*ns))
        };
        let mean_ms = if count == 0 { 0.0 } else { sum / count as f64 / 1e6 };
        Self { count, mean_ms, median_ms: rank(50), p99_ms: rank(99), max_ms: rank(100) }
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Migrations of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Migrations {
    /// Why: the last thing that chose the task's CPU.
    pub reason: String,
    /// How far.
    pub level: String,
    /// How often.
    pub count: u64,
}

/// A decision of the helper thread about an address space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// When.
    pub at_ms: f64,
    /// The space, its bonus from then on, and why.
    #[serde(flatten)]
    pub change: Tuning,
}

fn found(changes: &[(u64, Tuning)]) -> Vec<Found> {
    // Trials are left out.
    let decided = changes.iter().filter(|(_, change)| !matches!(change.why, Why::Tried { .. }));
    decided.map(|(at, change)| Found { at_ms: ms(*at), change: *change }).collect()
}

/// The figures of one simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The machine's name.
    pub machine: String,
    /// The workload's name.
    pub workload: String,
    /// The policies.
    pub scheduler: String,
    /// The seed.
    pub seed: u64,
    /// Simulated time.
    pub makespan_ms: f64,
    /// Tasks that have ended.
    pub finished: u64,
    /// Tasks that have not.
    pub unfinished: u64,
    /// From a task's arrival to its end.
    pub tat: Times,
    /// From waking up to sleeping again.
    pub response: Times,
    /// From becoming runnable to getting a CPU.
    #[serde(default)]
    pub wait: Times,
    /// Turn-around time divided by that alone on the best CPU: the mean of the tasks.
    pub slowdown_mean: f64,
    /// The largest slowdown.
    pub slowdown_max: f64,
    /// Jain's index of the tasks' progress rates: 1 if all are equal, 1/n if only one of n makes
    /// progress.
    pub fairness: f64,
    /// Idle time of CPUs while as many tasks waited.
    pub idle_while_waiting_ms: f64,
    /// Idle time of all CPUs.
    pub idle_ms: f64,
    /// The cost of switches, searches and cold caches: the sum of the next three.
    pub overhead_ms: f64,
    /// The cost of searching domains and DSQs for tasks, and of taking locks to move them.
    #[serde(default)]
    pub balancing_ms: f64,
    /// The cost of refilling caches after migrations.
    #[serde(default)]
    pub refill_ms: f64,
    /// The cost of switches, and of refilling caches that another address space or too little room
    /// emptied.
    #[serde(default)]
    pub switching_ms: f64,
    /// How long an urgent wake-up at a random time on a random CPU waits on average because that CPU
    /// searches for tasks or moves them with interrupts off.
    #[serde(default)]
    pub closed_ns: f64,
    /// The part of `closed_ns` that is due to taking locks to move tasks.
    #[serde(default)]
    pub closed_by_moves_ns: f64,
    /// Run time of all tasks.
    #[serde(default)]
    pub ran_ms: f64,
    /// Time that all tasks waited for a CPU.
    pub waited_ms: f64,
    /// Switches to another task of the same address space.
    pub switches_same_space: u64,
    /// Switches to another address space.
    pub switches_other_space: u64,
    /// Of the time in which a slave and its group's master were both busy, the part, 0..=1, in which
    /// the slave ran the master's address space; 0 without such time.
    #[serde(default)]
    pub co_scheduled: f64,
    /// How often a task ran on another CPU than before.
    pub migrations: Vec<Migrations>,
    /// How often CPUs tried to pull tasks, by the scheduler's counters.
    pub attempts: BTreeMap<String, u64>,
    /// All of the scheduler's counters.
    pub counters: BTreeMap<String, u64>,
    /// Events of the engine.
    pub events: u64,
    /// Calls of the kernel's functions for each event.
    pub calls_per_event: f64,
    /// The decisions of the helper thread of `--ias-auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<Found>,
    /// How often the scheduler was loaded again.
    pub restarts: u64,
    /// Moves of the user-level balancer.
    pub balancer_moves: u64,
    /// A hash of all events: two simulations share it only if the same happened in both.
    pub hash: String,
    /// Why it ended before its workload did.
    pub end: Option<String>,
    /// Rules that were broken.
    pub violations: Vec<String>,
}

impl Report {
    /// The report of an outcome.
    pub fn new(simulation: &Simulation, outcome: &Outcome) -> Self {
        let mut tat = BTreeMap::new();
        let (mut slowdowns, mut rates) = (Vec::new(), Vec::new());
        for account in &outcome.accounts {
            let Some(arrived) = account.arrived_ns else { continue };
            let life = account.ended_ns.unwrap_or(outcome.time_ns) - arrived;
            if account.ended_ns.is_some() {
                *tat.entry(life).or_default() += 1;
                slowdowns.extend(
                    (account.worked_ns > 0).then(|| life as f64 / account.worked_ns as f64),
                );
            }
            rates.push(account.worked_ns as f64 / life.max(1) as f64);
        }
        // A wake-up may come at any time on any CPU, and waits for half of a closed stretch.
        let all_ns = (outcome.time_ns * simulation.machine.cpus.len() as u64).max(1) as f64;
        let closed = |ns2: u64| ns2 as f64 / 2.0 / all_ns;
        let attempts =
            |(name, count): (&String, &u64)| Some((name.strip_prefix("try_")?.to_owned(), *count));
        let finished = tat.values().sum();
        Self {
            machine: simulation.machine.name.clone(),
            workload: simulation.workload.name.clone(),
            scheduler: scheduler_name(
                &simulation.scheduler,
                simulation.workload.aggregations.first(),
                simulation.workload.together.as_deref(),
            ),
            seed: simulation.seed,
            makespan_ms: ms(outcome.time_ns),
            finished,
            unfinished: outcome.accounts.len() as u64 - finished - outcome.unborn,
            tat: Times::of(&tat),
            response: Times::of(&outcome.responses),
            wait: Times::of(&outcome.waits),
            slowdown_mean: mean(&slowdowns),
            slowdown_max: slowdowns.iter().copied().fold(0.0, f64::max),
            fairness: jain(&rates),
            idle_while_waiting_ms: ms(outcome.idle_while_waiting_ns),
            idle_ms: ms(outcome.idle_ns),
            overhead_ms: ms(outcome.overhead.total_ns()),
            balancing_ms: ms(outcome.overhead.balancing_ns),
            refill_ms: ms(outcome.overhead.refill_ns),
            switching_ms: ms(outcome.overhead.switching_ns),
            closed_ns: closed(outcome.closed.all_ns2),
            closed_by_moves_ns: closed(outcome.closed.all_ns2 - outcome.closed.looking_ns2),
            ran_ms: ms(outcome.accounts.iter().map(|account| account.ran_ns).sum()),
            waited_ms: ms(outcome.accounts.iter().map(|account| account.waited_ns).sum()),
            switches_same_space: outcome.switches_same,
            switches_other_space: outcome.switches_other,
            co_scheduled: outcome.same_space_ns as f64 / outcome.together_ns.max(1) as f64,
            migrations: outcome
                .migrations
                .iter()
                .map(|((reason, level), count)| Migrations {
                    reason: reason.to_string(),
                    level: level.to_string(),
                    count: *count,
                })
                .collect(),
            attempts: outcome.counters.iter().filter_map(attempts).collect(),
            counters: outcome.counters.clone(),
            events: outcome.events,
            calls_per_event: outcome.calls as f64 / outcome.events.max(1) as f64,
            found: found(&outcome.changes),
            restarts: outcome.restarts,
            balancer_moves: outcome.moves,
            hash: format!("{:016x}", outcome.hash),
            end: outcome.end.as_ref().map(ToString::to_string),
            violations: outcome.broken.iter().map(|broken| broken.violation.to_string()).collect(),
        }
    }

    /// Whether the workload ended or its time was over, and no rule was broken.
    pub fn is_good(&self) -> bool {
        self.end.is_none() && self.violations.is_empty()
    }
}

/// The name of a scheduler in reports, with the aggregation of all programs and the groups of CPUs, if
/// any.
pub(crate) fn scheduler_name(
    scheduler: &Scheduler,
    aggregation: Option<&Aggregation>,
    together: Option<&str>,
) -> String {
    let bonus = match aggregation {
        None => String::new(),
        Some(one) if one.bonus_type == 0 => format!(" bonus={}ns", one.bonus_value),
        Some(one) => format!(" bonus={}x", one.bonus_value),
    };
    let groups = together.map_or_else(String::new, |groups| format!(" groups={groups}"));
    format!("{scheduler}{bonus}{groups}")
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Jain's index: (sum x)^2 / (n sum x^2).
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tat, response, wait, .. } = self;
        writeln!(
            f,
            "{} on {} under {}, seed {}: {} tasks ended, {} not",
            self.workload, self.machine, self.scheduler, self.seed, self.finished, self.unfinished
        )?;
        writeln!(f, "makespan      {:.3} ms", self.makespan_ms)?;
        for (name, times) in [("turn-around", tat), ("response", response), ("wait", wait)] {
            writeln!(
                f,
                "{name:13} mean {:.3}  median {:.3}  p99 {:.3}  max {:.3} ms  (of {})",
                times.mean_ms, times.median_ms, times.p99_ms, times.max_ms, times.count
            )?;
        }
        writeln!(
            f,
            "slowdown      mean {:.3}  max {:.3};  fairness {:.4}",
            self.slowdown_mean, self.slowdown_max, self.fairness
        )?;
        writeln!(
            f,
            "CPU time      idle {:.3} ms, of that {:.3} while as many tasks waited;  overhead {:.3}",
            self.idle_ms, self.idle_while_waiting_ms, self.overhead_ms
        )?;
        writeln!(
            f,
            "of overhead   balancing {:.3}  refill {:.3}  switches {:.3} ms;  an urgent wake-up waits \
             for balancing {}",
            self.balancing_ms,
            self.refill_ms,
            self.switching_ms,
            wait_for_balancing(self.closed_ns, self.closed_by_moves_ns)
        )?;
        writeln!(
            f,
            "switches      {} within an address space, {} to another one;  co-scheduled {:.3}",
            self.switches_same_space, self.switches_other_space, self.co_scheduled
        )?;
        let parts = |parts: Vec<String>| match parts.is_empty() {
            true => "none".to_owned(),
            false => parts.join(", "),
        };
        let migrations = self.migrations.iter();
        let migrations =
            migrations.map(|m| format!("{} {} {}", m.reason, m.level, m.count)).collect();
        writeln!(f, "migrations    {}", parts(migrations))?;
        for Found { at_ms, change } in &self.found {
            writeln!(
                f,
                "ias-auto      {at_ms:.0} ms: space {} has {}x: {}",
                change.space, change.multiplier, change.why
            )?;
        }
        let attempts =
            self.attempts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "attempts      {}", parts(attempts))?;
        writeln!(
            f,
            "events        {}, {:.1} calls of the kernel each;  trace {}",
            self.events, self.calls_per_event, self.hash
        )
    }
}

/// The history of each broken rule: the events of the tasks involved, one on each line.
pub fn history(outcome: &Outcome, workload: &Workload) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    for broken in &outcome.broken {
        let _ = writeln!(text, "event {}: {}", broken.event, broken.violation);
        for event in &broken.history {
            let us = event.time_ns / 1000;
            let _ = writeln!(
                text,
                "  {:>9}.{:03} ms  CPU {:<4} {}",
                us / 1000,
                us % 1000,
                event.cpu,
                line_of(&event.what, workload)
            );
        }
    }
    text
}

fn line_of(what: &evenkeel_invariants::What, workload: &Workload) -> String {
    use evenkeel_invariants::What;
    let name = |tid: &u32| format!("{tid} ({})", crate::perfetto::name_of(*tid, workload));
    match what {
        What::Wakeup { task } => format!("wakes {}", name(task)),
        What::Switch { prev, left, next, .. } => {
            format!("switches from {} ({left:?}) to {}", name(prev), name(next))
        }
        What::Migrate { task, to } => format!("{} migrates to CPU {to}", name(task)),
        What::Affinity { task, allowed } => format!("{} may use {allowed}", name(task)),
        What::Waking { task, on } => format!("{} is about to wake on CPU {on}", name(task)),
        What::Class { task, class } => format!("{} is {class:?}", name(task)),
        What::Fork { child } => format!("forks {}", name(child)),
        What::Exit { task } => format!("{} ends", name(task)),
        What::Group { group, parent, weight } => {
            format!("group {group} has weight {weight} in group {parent}")
        }
        What::Shield { cpus } => format!("CPUs {cpus} are shielded"),
    }
}

/// How long an urgent wake-up waits, and how much of that for moves. No part of a nanosecond is told: no
/// machine takes so short a time for anything.
fn wait_for_balancing(all_ns: f64, by_moves_ns: f64) -> String {
    match (all_ns, by_moves_ns) {
        (..1.0, _) => "less than 1 ns".to_owned(),
        (_, ..1.0) => format!("{all_ns:.0} ns, less than 1 of them for moves"),
        _ => format!("{all_ns:.0} ns, {by_moves_ns:.0} of them for moves"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let times: BTreeMap<u64, u64> = (1..=100).map(|at| (at * 1_000_000, 1)).collect();
        let times = Times::of(&times);
        assert_eq!((times.count, times.mean_ms), (100, 50.5));
        assert_eq!((times.median_ms, times.p99_ms, times.max_ms), (50.0, 99.0, 100.0));
        assert_eq!(Times::of(&BTreeMap::new()), Times::default());
    }

    #[test]
    fn fairness_is_jain_s_index() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[]), 1.0);
    }

    #[test]
    fn no_wait_is_told_in_parts_of_a_nanosecond() {
        assert_eq!(wait_for_balancing(0.023, 0.002), "less than 1 ns");
        let wait = "1235 ns, less than 1 of them for moves";
        assert_eq!(wait_for_balancing(1234.567, 0.4), wait);
        assert_eq!(wait_for_balancing(1234.567, 7.8), "1235 ns, 8 of them for moves");
    }
}
