//! What the balancer itself costs, from its own figures, and what its accounting costs, from the
//! kernel's.

use evenkeel_cbinfo::Cost;
use evenkeel_host::Summary;
use serde::{Deserialize, Serialize};

use super::matrix::{Method, Subject};
use crate::stats::median;

/// A run in which others took more was disturbed, in % of the machine's CPU time.
const MAX_FOREIGN_PCT: f64 = 5.0;

/// One run under a balancer.
#[derive(Debug, Clone, Copy)]
pub struct OwnSample {
    /// The program.
    pub subject: Subject,
    /// The balancer.
    pub method: Method,
    /// Its CPU time after it was set up, in % of one CPU.
    pub own_cpu_pct: f64,
    /// CPU time that setting it up took, in ms.
    pub startup_cpu_ms: f64,
    /// Moves.
    pub moves: u64,
    /// What other programs took of the machine's CPU time meanwhile, in %.
    pub foreign_pct: f64,
}

impl OwnSample {
    /// What a balancer says of a run, and what others took meanwhile, in % of the machine.
    pub fn new(subject: Subject, method: Method, summary: &Summary, foreign_pct: f64) -> Self {
        Self {
            subject,
            method,
            own_cpu_pct: 100.0 * summary.own_cpu_ns as f64 / summary.elapsed_ns.max(1) as f64,
            startup_cpu_ms: summary.startup_cpu_ns as f64 / 1e6,
            moves: summary.moves,
            foreign_pct,
        }
    }
}

/// A balancer's own cost in the case `none`, medians of its runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnCost {
    /// The program.
    pub program: String,
    /// The balancer.
    pub contestant: String,
    /// CPU time after it was set up, in % of one CPU.
    pub own_cpu_pct: f64,
    /// CPU time that setting it up took, in ms.
    pub startup_cpu_ms: f64,
    /// The most moves in any run.
    pub most_moves: u64,
    /// Runs.
    pub runs: usize,
}

/// What exact accounting costs while a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AccountingCost {
    /// CPU time of the BPF programs for one event (a context switch, or an interrupt's begin or
    /// end), in ns, with the kernel's measuring of it.
    pub ns_per_event: f64,
    /// Events a second on all CPUs together.
    pub events_per_s: f64,
    /// CPU time of the BPF programs, in % of one CPU.
    pub cpu_pct: f64,
}

impl AccountingCost {
    /// Between two readings of [`evenkeel_cbinfo::Cbinfo::cost`]; `None` if nothing happened.
    pub fn between(before: &Cost, after: &Cost, elapsed_ns: u64) -> Option<Self> {
        let events = after.events.saturating_sub(before.events);
        let run_ns = after.run_ns.saturating_sub(before.run_ns);
        if events == 0 || elapsed_ns == 0 {
            return None;
        }
        Some(Self {
            ns_per_event: run_ns as f64 / events as f64,
            events_per_s: events as f64 * 1e9 / elapsed_ns as f64,
            cpu_pct: 100.0 * run_ns as f64 / elapsed_ns as f64,
        })
    }
}

/// The samples by program and balancer; those that other programs disturbed count only where there
/// are no others, because a balancer has work to do then.
pub fn own_costs(samples: &[OwnSample]) -> Vec<OwnCost> {
    let mut costs = Vec::new();
    for subject in Subject::ALL {
        for method in Method::ALL {
            let mut mine: Vec<&OwnSample> = samples
                .iter()
                .filter(|sample| (sample.subject, sample.method) == (subject, method))
                .collect();
            let is_calm = |sample: &&OwnSample| sample.foreign_pct <= MAX_FOREIGN_PCT;
            if mine.iter().any(is_calm) {
                mine.retain(is_calm);
            }
            let of = |figure: fn(&OwnSample) -> f64| {
                median(&mine.iter().map(|sample| figure(sample)).collect::<Vec<_>>())
            };
            if let (Some(own_cpu_pct), Some(startup_cpu_ms)) =
                (of(|sample| sample.own_cpu_pct), of(|sample| sample.startup_cpu_ms))
            {
                costs.push(OwnCost {
                    program: subject.name().into(),
                    contestant: method.name().into(),
                    own_cpu_pct,
                    startup_cpu_ms,
                    most_moves: mine.iter().map(|sample| sample.moves).max().unwrap_or(0),
                    runs: mine.len(),
                });
            }
        }
    }
    costs
}

/// The costs in plain lines.
pub fn lines(own: &[OwnCost], accounting: Option<&AccountingCost>) -> Vec<String> {
    let mut lines = Vec::new();
    for cost in own {
        lines.push(format!(
            "{} at rest ({}, {} runs): {:.3} % of one CPU, {:.1} ms CPU time to start and end, at most \
             {} moves",
            cost.contestant,
            cost.program,
            cost.runs,
            cost.own_cpu_pct,
            cost.startup_cpu_ms,
            cost.most_moves
        ));
    }
    if let Some(cost) = accounting {
        lines.push(format!(
            "cbinfo: {:.0} ns an event, {:.0} events a second, {:.3} % of one CPU",
            cost.ns_per_event, cost.events_per_s, cost.cpu_pct
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_by_balancer() {
        let sample = |method, own_cpu_pct, moves| OwnSample {
            subject: Subject::Ep,
            method,
            own_cpu_pct,
            startup_cpu_ms: 10.0,
            moves,
            foreign_pct: 1.0,
        };
        let disturbed = OwnSample { foreign_pct: 50.0, ..sample(Method::Lag, 7.0, 70) };
        let costs = own_costs(&[
            sample(Method::Lag, 0.3, 0),
            sample(Method::Paper, 9.0, 0),
            sample(Method::Lag, 0.1, 2),
            sample(Method::Lag, 0.2, 0),
            disturbed,
        ]);
        assert_eq!(own_costs(&[disturbed])[0].most_moves, 70);
        assert_eq!(costs.len(), 2);
        assert_eq!((costs[1].contestant.as_str(), costs[1].runs), ("lag", 3));
        assert_eq!((costs[1].own_cpu_pct, costs[1].most_moves), (0.2, 2));
        let text = lines(&costs, None).join("\n");
        assert!(text.contains("lag at rest (ep, 3 runs): 0.200 % of one CPU"), "{text}");
        assert!(lines(&[], None).is_empty());
    }

    #[test]
    fn accounting_by_hand() {
        let before = Cost { events: 100, run_ns: 1_000, runs: 7 };
        let after = Cost { events: 1_100, run_ns: 201_000, runs: 9 };
        let cost = AccountingCost::between(&before, &after, 2_000_000_000).unwrap();
        assert_eq!((cost.ns_per_event, cost.events_per_s), (200.0, 500.0));
        assert!((cost.cpu_pct - 0.01).abs() < 1e-12);
        assert_eq!(AccountingCost::between(&after, &after, 1), None);
    }
}
