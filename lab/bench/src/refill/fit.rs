//! From the points to the costs of the simulator's machine: three numbers by least squares.
//!
//! The model: the caches of a core hold `near_kib`. A thread that runs after another address space
//! takes `refill_space_ns` longer. A thread that comes from another core takes `refill_core_ns`
//! longer (or `refill_cache_ns`, `refill_node_ns`, by what the two cores share). Both take
//! `near_fetch_ns` in addition for each KiB of their memory. Sets that the caches do not hold are
//! not fitted: they are fetched in every pass anyway. Each point counts by its relative error,
//! because the few large sets would decide the fit otherwise. Errors within a microsecond do not
//! matter.

use anyhow::{Result, bail};
use evenkeel_machine::{Costs, Machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measure::{Event, Point};
use super::walk::Order;

/// The machine file has the fit of this order: what a switch can cost at most.
pub const KEPT: Order = Order::Scattered;
/// An error below this is none, in ns.
const FLOOR_NS: f64 = 1_000.0;

/// What was fitted to the points of one order.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Fit {
    /// The order in which lines were walked.
    pub order: Order,
    /// After another address space, in ns.
    pub refill_space_ns: f64,
    /// On another CPU, in ns; `None` where there was none.
    pub refill_moved_ns: Option<f64>,
    /// For each KiB, in ns.
    pub near_fetch_ns: f64,
    /// Points that were fitted.
    pub points: usize,
    /// The root of the mean square of model / measured - 1 over these, with at least a microsecond below
    /// the line.
    pub residual: f64,
    /// The largest of these errors.
    pub worst: f64,
}

impl Fit {
    /// What the model says for a point, in ns.
    pub fn model_ns(&self, event: Event, kib: u64, near_kib: u64) -> Option<f64> {
        let fetched = if kib <= near_kib { kib as f64 * self.near_fetch_ns } else { 0.0 };
        match event {
            Event::Sibling | Event::Again => Some(0.0),
            Event::Stranger => Some(self.refill_space_ns + fetched),
            Event::Moved => self.refill_moved_ns.map(|ns| ns + fetched),
        }
    }
}

/// Fits the points of this order, without sets that the near caches do not hold.
///
/// # Errors
/// They are too few.
pub fn fit(points: &[Point], order: Order, near_kib: u64) -> Result<Fit> {
    let of = |event| {
        let fitted = points.iter().filter(move |point| {
            (point.order, point.event) == (order, event) && point.kib <= near_kib
        });
        fitted.map(|point| (point.kib as f64, point.cost_ns)).collect::<Vec<(f64, f64)>>()
    };
    let (space, moved) = (of(Event::Stranger), of(Event::Moved));
    if space.len() < 2 {
        bail!("fewer than two sets that a core's own caches ({near_kib} KiB) hold: nothing to fit");
    }
    let [refill_space_ns, refill_moved_ns, near_fetch_ns] = solve(&space, &moved);
    let mut fit = Fit {
        order,
        refill_space_ns,
        refill_moved_ns: (!moved.is_empty()).then_some(refill_moved_ns),
        near_fetch_ns,
        points: space.len() + moved.len(),
        residual: 0.0,
        worst: 0.0,
    };
    let error = |constant_ns: f64| {
        move |(kib, cost_ns): &(f64, f64)| {
            (constant_ns + kib * near_fetch_ns - cost_ns) / cost_ns.max(FLOOR_NS)
        }
    };
    let errors: Vec<f64> = (space.iter().map(error(refill_space_ns)))
        .chain(moved.iter().map(error(refill_moved_ns)))
        .collect();
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    fit.residual = (squares / errors.len() as f64).sqrt();
    fit.worst = errors.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
    Ok(fit)
}

/// Two constants and a common slope, none below 0, with the least sum of the squares of the relative
/// errors.
fn solve(space: &[(f64, f64)], moved: &[(f64, f64)]) -> [f64; 3] {
    let sums = |points: &[(f64, f64)], of: fn(f64, f64) -> f64| -> f64 {
        let weigh = |(kib, ns): &(f64, f64)| of(*kib, *ns) / ns.max(FLOOR_NS).powi(2);
        points.iter().map(weigh).sum()
    };
    // For a given slope the best constant is the weighted mean of the rest: one unknown is left.
    let constant = |points: &[(f64, f64)], slope: f64| {
        let weights = sums(points, |_, _| 1.0);
        let left = sums(points, |_, ns| ns) - slope * sums(points, |kib, _| kib);
        if weights > 0.0 { (left / weights).max(0.0) } else { 0.0 }
    };
    let square = |slope: f64| -> f64 {
        let of = |points: &[(f64, f64)]| -> f64 {
            let constant = constant(points, slope);
            let error = |(kib, ns): &(f64, f64)| (constant + slope * kib - ns) / ns.max(FLOOR_NS);
            points.iter().map(|point| error(point).powi(2)).sum()
        };
        of(space) + of(moved)
    };
    // The sum is convex in the slope, also where a constant stops at 0: a golden section search.
    let most = space.iter().chain(moved).map(|(kib, ns)| ns / kib).fold(0.0, f64::max);
    let (mut low, mut high) = (0.0, most);
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    for _ in 0..100 {
        let (a, b) = (high - golden * (high - low), low + golden * (high - low));
        if square(a) <= square(b) {
            high = b;
        } else {
            low = a;
        }
    }
    let slope = (low + high) / 2.0;
    [constant(space, slope), constant(moved, slope), slope]
}

/// The machine with these costs.
pub fn apply(fit: &Fit, near_kib: u64, between: Between, machine: &mut Machine) {
    let rounded = |ns: f64| ns.round().max(0.0) as u64;
    let costs: &mut Costs = &mut machine.costs;
    costs.near_kib = near_kib;
    costs.near_fetch_ns = rounded(fit.near_fetch_ns);
    costs.refill_space_ns = rounded(fit.refill_space_ns);
    if let Some(ns) = fit.refill_moved_ns.map(rounded) {
        match between {
            Between::Cores => costs.refill_core_ns = ns,
            Between::Caches => costs.refill_cache_ns = ns,
            Between::Nodes => costs.refill_node_ns = ns,
            Between::Threads => {}
        }
    }
}

/// What the two CPUs between which the thread was moved are to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Between {
    /// SMT siblings: they have their caches in common.
    Threads,
    /// Cores that share the last-level cache.
    Cores,
    /// Cores of one node that do not.
    Caches,
    /// Cores of different nodes.
    Nodes,
}

impl Between {
    /// What lies between two CPUs of a machine.
    pub fn of(machine: &Machine, a: u32, b: u32) -> Self {
        let (Some(a), Some(b)) = (machine.cpu(a), machine.cpu(b)) else { return Self::Cores };
        if a.core == b.core {
            Self::Threads
        } else if a.llc == b.llc {
            Self::Cores
        } else if a.node == b.node {
            Self::Caches
        } else {
            Self::Nodes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(space_ns: f64, moved_ns: Option<f64>, slope: f64, wrong: f64) -> Vec<Point> {
        let mut points = Vec::new();
        for (at, kib) in [4, 16, 64, 256, 1024, 2048, 4096].into_iter().enumerate() {
            let sign = if at % 2 == 0 { 1.0 } else { -1.0 };
            let mut push = |event, constant: f64| {
                let cost_ns = (constant + slope * kib as f64) * (1.0 + sign * wrong);
                // What the caches do not hold must not be fitted.
                let cost_ns = if kib > 2048 { 1.0 } else { cost_ns };
                let order = Order::Scattered;
                points.push(Point { order, kib, event, cost_ns, ..Point::default() });
            };
            push(Event::Stranger, space_ns);
            if let Some(moved_ns) = moved_ns {
                push(Event::Moved, moved_ns);
            }
        }
        points
    }

    fn near(a: f64, b: f64, part: f64) -> bool {
        (a - b).abs() <= part * b.abs().max(1.0)
    }

    #[test]
    fn what_follows_the_model_is_found_again() {
        let found =
            fit(&points(3_000.0, Some(20_000.0), 500.0, 0.0), Order::Scattered, 2048).unwrap();
        assert!(near(found.refill_space_ns, 3_000.0, 1e-3), "{found:?}");
        assert!(near(found.refill_moved_ns.unwrap(), 20_000.0, 1e-3), "{found:?}");
        assert!(near(found.near_fetch_ns, 500.0, 1e-3), "{found:?}");
        assert!(found.residual < 1e-3 && found.points == 12, "{found:?}");
        assert_eq!(found.model_ns(Event::Sibling, 64, 2048), Some(0.0));
        let of = |kib| found.model_ns(Event::Stranger, kib, 2048).unwrap();
        assert!(near(of(2048), 3_000.0 + 2048.0 * 500.0, 1e-3), "{}", of(2048));
        assert!(near(of(2049), 3_000.0, 1e-3), "it would be fetched anyway: {}", of(2049));
    }

    #[test]
    fn what_does_not_leaves_a_residual() {
        let found = fit(&points(3_000.0, None, 500.0, 0.1), Order::Scattered, 2048).unwrap();
        assert_eq!(found.refill_moved_ns, None);
        assert!((0.03..0.15).contains(&found.residual), "{found:?}");
        assert!(found.worst.abs() >= found.residual);
    }

    #[test]
    fn no_cost_is_below_nothing() {
        // Less than nothing for a small set: the line would cut the axis below 0.
        let mut bent = points(0.0, None, 100.0, 0.0);
        bent.iter_mut().filter(|point| point.kib < 16).for_each(|point| point.cost_ns = -50.0);
        let found = fit(&bent, Order::Scattered, 2048).unwrap();
        assert_eq!(found.refill_space_ns, 0.0);
        assert!(found.near_fetch_ns > 80.0, "{found:?}");
    }

    #[test]
    fn too_little_is_not_fitted() {
        let why = fit(&points(1.0, None, 1.0, 0.0)[..1], Order::Scattered, 2048).unwrap_err();
        assert!(why.to_string().contains("fewer than two"), "{why}");
        assert!(fit(&points(1.0, None, 1.0, 0.0), Order::InSequence, 2048).is_err());
    }

    #[test]
    fn costs_go_where_the_machine_has_them() {
        let fit = fit(&points(3_000.0, Some(20_000.0), 500.0, 0.0), Order::Scattered, 2048);
        let fit = fit.unwrap();
        let server = Machine::preset("server").unwrap();
        for (a, b, between) in [
            (0, 64, Between::Threads),
            (0, 1, Between::Cores),
            (0, 8, Between::Caches),
            (0, 32, Between::Nodes),
        ] {
            assert_eq!(Between::of(&server, a, b), between);
            let mut machine = server.clone();
            apply(&fit, 2048, between, &mut machine);
            let Costs { refill_core_ns, refill_cache_ns, refill_node_ns, .. } = machine.costs;
            let all = [refill_core_ns, refill_cache_ns, refill_node_ns];
            let moved = all.iter().filter(|ns| **ns == 20_000).count();
            assert_eq!(moved, usize::from(between != Between::Threads));
            assert_eq!((machine.costs.near_kib, machine.costs.near_fetch_ns), (2048, 500));
        }
    }
}
