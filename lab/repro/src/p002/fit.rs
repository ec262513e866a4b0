//! The reading of what the paper leaves open: found on one column of one table, AMC2's turn-around times
//! under the unaware balancer, and then kept for all others.
//!
//! Three numbers: how long the paper's execution time is on a speed core (`pace`), how dense "almost the
//! same time" is, and the length of a slice, up to processes that run to completion. What is looked for
//! is a small largest error of the ten cells; readings within half a point of the best ([`CHANCE`]) are
//! as good as it, and of these the one stays that all parts use: [`READING`] and [`SLICE_US`]. The same
//! is tried with the unaware balancer as the paper draws it.

use anyhow::{Context, Result};
use evenkeel_machine::Machine;
use evenkeel_sim::paper002::{Arrival, TABLES, Table};
use evenkeel_trial::again;

use super::contestant::{UNAWARE, UNAWARE_2010, contestants};
use super::runs::{Lab, READING, SLICE_US, mean, tat};
use crate::page::number;
use crate::simulated::{Contestant, with_again};
use crate::study::{Finding, Panel, Part, Point, Status};

const SYSTEM: &str = "amc2";
/// What is tried.
const PACES_PCT: [u64; 8] = [46, 48, 50, 52, 54, 58, 62, 68];
const ALMOST_GAPS_US: [u64; 5] = [20, 200, 500, 1_000, 2_000];
/// The longest is longer than any process runs.
const SLICES_US: [u64; 7] = [4_000, 60_000, 120_000, 240_000, 320_000, 400_000, 1_000_000];
/// How many seeds each reading is simulated with; the mean of so many is known to about a percent.
const SEEDS: u64 = 6;
/// Another reading is not taken if its error is smaller by only this much: that may be chance.
const CHANCE: f64 = 0.005;

/// A reading, and the ten cells' errors under it: simulated / paper - 1.
struct Tried {
    pace_pct: u64,
    almost_us: u64,
    /// Balancer and slices as the panel calls them; the A/A line has the kept ones, with other seeds.
    slices: String,
    errors: Vec<f64>,
}

/// The two baselines.
const BASELINES: [&str; 2] = [UNAWARE, UNAWARE_2010];

impl Tried {
    fn worst(&self) -> f64 {
        self.errors.iter().map(|error| error.abs()).fold(0.0, f64::max)
    }
}

/// A cell's name with a reading of its own. Where all come at once the gap does not matter.
fn workload(table: &Table, processes: u64, pace_pct: u64, almost_us: u64) -> String {
    let Table { system, workload, .. } = table;
    let name =
        format!("paper002:system={system},table={workload},processes={processes},pace={pace_pct}");
    match table.arrival {
        Arrival::AlmostSame => format!("{name},almost={almost_us}us"),
        Arrival::Same | Arrival::Random => name,
    }
}

fn tried(lab: &Lab) -> Result<Vec<Tried>> {
    let seeds = if lab.is_quick { 1 } else { SEEDS };
    let tables: Vec<&Table> = TABLES.iter().filter(|table| table.system == SYSTEM).collect();
    let cells = || tables.iter().flat_map(|table| table.rows.iter().map(move |row| (*table, row)));
    let mut workloads: Vec<String> = Vec::new();
    for pace in PACES_PCT {
        for almost in ALMOST_GAPS_US {
            let names = cells().map(|(table, row)| workload(table, row.processes, pace, almost));
            workloads.extend(names);
        }
    }
    workloads.sort_unstable();
    workloads.dedup();
    let slices = slices()?;
    let machine = Machine::preset(SYSTEM)?;
    let runs = lab.run(&machine, &workloads, &slices, seeds)?;
    let mut all = Vec::new();
    for slices in with_again(slices.iter().map(|one| one.name.as_str())) {
        for pace_pct in PACES_PCT {
            for almost_us in ALMOST_GAPS_US {
                let error = |(table, row): (&Table, &evenkeel_sim::paper002::Row)| {
                    let name = workload(table, row.processes, pace_pct, almost_us);
                    mean(runs.of(SYSTEM, &name, &slices, tat)) / row.tat_unaware_ms - 1.0
                };
                let errors = cells().map(error).collect();
                all.push(Tried { pace_pct, almost_us, slices: slices.clone(), errors });
            }
        }
    }
    Ok(all)
}

fn slices_of(baseline: &str, slice_us: u64) -> String {
    format!("{baseline}, slices of {} ms", slice_us / 1000)
}

/// The unaware balancers with each of the slices, the kept one first.
fn slices() -> Result<Vec<Contestant>> {
    let all = BASELINES.iter().flat_map(|baseline| SLICES_US.map(|slice_us| (*baseline, slice_us)));
    let kept = (UNAWARE, SLICE_US);
    let contestant = |(baseline, slice_us)| -> Result<Contestant> {
        let unaware = contestants(&[baseline], slice_us)?.remove(0);
        Ok(Contestant { name: slices_of(baseline, slice_us), ..unaware })
    };
    std::iter::once(kept).chain(all.filter(|one| *one != kept)).map(contestant).collect()
}

/// Whether a reading is the best one, or as good but for chance.
fn is_as_good(one: &Tried, best: &Tried) -> bool {
    one.worst() <= best.worst() + CHANCE
}

/// The best reading of all, or of one balancer.
fn best<'a>(tried: &'a [Tried], baseline: &str) -> Option<&'a Tried> {
    let of = tried.iter().filter(|one| one.slices.starts_with(&format!("{baseline}, slices")));
    of.min_by(|a, b| a.worst().total_cmp(&b.worst()))
}

/// All readings of that balancer that are as good.
fn as_good<'a>(tried: &'a [Tried], baseline: &str) -> Vec<&'a Tried> {
    let Some(best) = best(tried, baseline) else { return Vec::new() };
    let of = tried.iter().filter(|one| one.slices.starts_with(&format!("{baseline}, slices")));
    of.filter(|one| is_as_good(one, best)).collect()
}

/// The fit, and whether the committed reading is what it finds.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let again = again(&slices_of(UNAWARE, SLICE_US));
    let (other_seeds, tried): (Vec<Tried>, Vec<Tried>) =
        tried(lab)?.into_iter().partition(|one| one.slices == again);
    let is_kept = |tried: &&Tried| {
        (tried.pace_pct, tried.almost_us * 1000) == (READING.pace_pct, READING.almost_gap_ns)
            && tried.slices == slices_of(UNAWARE, SLICE_US)
    };
    let kept = tried.iter().find(is_kept).context("the reading was not tried")?;
    let describe = |tried: &Tried| {
        format!(
            "pace {} %, gap {} us, {}: largest error {:.1} %, mean {:.1} %",
            tried.pace_pct,
            tried.almost_us,
            tried.slices,
            100.0 * tried.worst(),
            100.0 * mean(tried.errors.iter().map(|error| error.abs()))
        )
    };
    let mut findings = Vec::new();
    for baseline in BASELINES {
        let best = best(&tried, baseline).context("nothing was tried")?;
        let as_good: Vec<String> = as_good(&tried, baseline).into_iter().map(describe).collect();
        let best_said =
            format!("the best: {}; within this of it: {}", describe(best), as_good.len());
        findings.push(if baseline == UNAWARE {
            Finding::new(
                "the reading that all parts use fits as well as the best",
                format!("largest error within {:.1} points of the smallest", 100.0 * CHANCE),
                format!("{}; {best_said}", describe(kept)),
                Status::reached(is_as_good(kept, best)),
            )
        } else {
            Finding::new(
                format!("the readings that fit best with {baseline}"),
                "-",
                format!("{best_said} ({})", as_good.join("; ")),
                Status::Reported,
            )
        });
    }
    // For each slice and pace, the better gap.
    let point = |slices: &str, pace_pct| {
        let all = tried.iter().chain(&other_seeds);
        let of = all.filter(|one| (one.slices.as_str(), one.pace_pct) == (slices, pace_pct));
        let worst = of.map(Tried::worst).fold(f64::INFINITY, f64::min);
        Some(Point::once(100.0 * worst))
    };
    let names = BASELINES.iter().flat_map(|one| SLICES_US.map(|us| slices_of(one, us)));
    let series = names.chain([again]).map(|slices| {
        let points = PACES_PCT.map(|pace_pct| point(&slices, pace_pct)).to_vec();
        (slices, points)
    });
    let texts = ["fit", "Largest error of AMC2's ten cells", "pace, %", "%"];
    let panel = Panel::new(texts, PACES_PCT, series);
    Ok(Part {
        title: "What was fitted".into(),
        method: format!(
            "The paper does not say how fast a speed core is beside the core on which it measured an \
             execution time, how close to each other processes come that come \"at almost the same \
             time\", or how long a slice is. Of {} readings ({SEEDS} seeds each) those are as \
             good as each other of which the largest error in AMC2's unaware column is within {:.1} \
             points of the smallest; of these the one stays that all parts use, even where another \
             one's error is smaller by less than that. Slices go up to 1000 ms: no process runs for \
             longer. Nothing else was fitted. The machines were \
             written down before, with their costs: memory is 20 % slower for each level. Two numbers \
             could not be found there, because nothing arrives at random and nothing sleeps on AMC2: \
             the mean gap between random arrivals, {} ms (with less than 1.5 or more than 3 ms AMC1's \
             absolute times would be far from the paper's), and that in a mix every other process \
             sleeps for half of its time. Absolute times of these cells are predictions only as far \
             as that goes; gains are predictions everywhere.",
            tried.len(),
            100.0 * CHANCE,
            number(READING.random_gap_ns as f64 / 1e6),
        ),
        findings,
        panels: vec![panel],
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reading_is_among_those_tried() {
        assert!(PACES_PCT.contains(&READING.pace_pct) && SLICES_US.contains(&SLICE_US));
        assert!(ALMOST_GAPS_US.contains(&(READING.almost_gap_ns / 1000)));
        let names: Vec<String> = slices().unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(names[0], slices_of(UNAWARE, SLICE_US), "the A/A line is the first one's");
        assert_eq!(names.len(), BASELINES.len() * SLICES_US.len());
    }

    #[test]
    fn readings_within_half_a_point_of_the_best_are_as_good() {
        let of = |baseline, worst: f64| Tried {
            pace_pct: 48,
            almost_us: 20,
            slices: slices_of(baseline, SLICE_US),
            errors: vec![0.01, -worst],
        };
        let one = |worst| of(UNAWARE, worst);
        let tried = [one(0.0961), one(0.0941), one(0.0992), one(0.2), of(UNAWARE_2010, 0.03)];
        let worst = |baseline| {
            as_good(&tried, baseline).into_iter().map(Tried::worst).collect::<Vec<f64>>()
        };
        assert_eq!(worst(UNAWARE), [0.0961, 0.0941]);
        assert_eq!(worst(UNAWARE_2010), [0.03], "each balancer for itself");
        assert!(as_good(&[], UNAWARE).is_empty());
    }
}
