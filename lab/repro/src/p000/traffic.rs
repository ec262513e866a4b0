//! Figure 11 and table 2 as a substitute: there is no second machine to exchange messages with, so the
//! traffic of each benchmark, by the volume that the paper tells, comes from another network
//! namespace, and what it costs a program here is measured.

use std::time::Duration;

use anyhow::{Context, Result};

use super::bench::{Bench, How, LAG, Launch, case, how_of, kernel, lag};
use super::measured::{any_worse, bound_text, ranged, ratio};
use crate::study::{Finding, Panel, Part, Status};
use evenkeel_bench::capability::{BOUND, Case as NoiseCase, TIME};
use evenkeel_experiment::Sample;
use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};

/// Table 2: the benchmark, and the average volume of its traffic in Mb/s. EP's 0.004 Mb/s is a packet
/// in three seconds: nothing.
const VOLUMES: [(&str, f64); 5] =
    [("mg.B", 67.0), ("lu.A", 224.0), ("cg.B", 352.0), ("ft.B", 746.0), ("is.C", 788.0)];
/// The share of the CPU that the largest volume takes here, 0..=0.5; the others in proportion. The
/// paper does not tell its share.
const LARGEST_SHARE: f64 = 0.4;
/// How long the program takes undisturbed, in s.
const LOOP_S: f64 = 2.0;
/// The noise ends by itself after this time.
const LIMIT: Duration = Duration::from_secs(120);
const PERIOD_US: u64 = 10_000;

/// # Errors
/// See [`Bench::measure`].
pub fn measure(bench: &Bench) -> Result<Part> {
    let chosen = if bench.quick { &VOLUMES[4..] } else { &VOLUMES };
    let launch = bench.static_loop(LOOP_S);
    let contestants = [kernel(), lag()];
    let program = |(benchmark, volume_mbps): &(&str, f64)| {
        format!("{benchmark} ({:.1} %)", 100.0 * share(*volume_mbps))
    };
    let cases: Vec<_> =
        chosen.iter().map(|traffic| case("traffic", &program(traffic), &contestants)).collect();
    let measured = bench.measure(&contestants, &cases, |turn| {
        let traffic = chosen.iter().find(|traffic| program(traffic) == turn.case.program);
        let (_, volume_mbps) = traffic.context("a turn without traffic")?;
        run_in_traffic(bench, share(*volume_mbps), how_of(turn), &launch)
    })?;
    let rows = measured.ratios(LAG);
    let best = rows.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let mut findings = Vec::new();
    if let (Some(best), Some(least), Some(most)) = (best, rows.first(), rows.last()) {
        let bound = measured.report.row(&best.case, &best.program, BOUND, LAG);
        findings.push(Finding {
            claim: "figure 11: the largest speedup under network traffic".into(),
            paper: "9.8 % (ft.B)".into(),
            ours: format!("{}: {}x", best.program, ranged(best)),
            bound: bound_text(bound.map(|bound| bound.median)),
            status: Status::substitute(ratio(best) > 1.0 && !any_worse(&rows)),
        });
        findings.push(Finding {
            claim: "figure 11: the speedup grows with the average traffic".into(),
            paper: "it does, but for is.C (short)".into(),
            ours: format!("{}x at 67 Mb/s, {}x at 788 Mb/s", ranged(least), ranged(most)),
            bound: "-".into(),
            status: Status::substitute(ratio(most) > ratio(least)),
        });
    }
    let volumes = VOLUMES.map(|(name, volume)| format!("{name} {volume}")).join(", ");
    Ok(Part {
        id: "figure-11".into(),
        title: "Figure 11 and table 2: network traffic (substitute)".into(),
        method: format!(
            "The paper runs NPB-MPI over two machines; here is one. So the static loop runs while \
             UDP packets come in from another network namespace, in proportion to table 2's average \
             volumes ({volumes} Mb/s). The paper does not tell what share of a CPU they took; here \
             the largest is given {:.0} % of CPU {}. Not shown: what communication itself does to \
             the programs.",
            100.0 * LARGEST_SHARE,
            bench.noisy()
        ),
        findings,
        panels: vec![Panel {
            id: "figure-11".into(),
            title: "Time under the traffic of each benchmark".into(),
            x: "benchmark with this traffic (share of the CPU)".into(),
            y: "s".into(),
            ..measured.judged_panel("traffic", TIME)
        }],
        not_run: vec!["ep.B: 0.004 Mb/s is no traffic".into()],
        ..Part::default()
    })
}

/// The share of a CPU that traffic of this volume is to take, 0..=[`LARGEST_SHARE`].
fn share(volume_mbps: f64) -> f64 {
    let largest = VOLUMES.iter().map(|(_, volume)| *volume).fold(0.0, f64::max);
    LARGEST_SHARE * volume_mbps / largest
}

/// Runs the program while packets take this share of the noisy CPU.
fn run_in_traffic(bench: &Bench, share: f64, how: &How, launch: &Launch) -> Result<Sample> {
    let busy_us = ((share * PERIOD_US as f64).round() as u64).max(1);
    let config = NoiseConfig { busy_us, period_us: PERIOD_US, limit: LIMIT };
    bench.lab.quiet()?;
    let running = Noise::start(NoiseKind::Udp, bench.noisy(), config).context("network noise")?;
    let sample = bench.timed(NoiseCase::None, how, launch);
    running.stop()?;
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_become_shares_in_proportion() {
        for (volume, wanted) in [(788.0, LARGEST_SHARE), (394.0, LARGEST_SHARE / 2.0)] {
            assert!((share(volume) - wanted).abs() < 1e-12, "{volume}");
        }
        assert!(VOLUMES.iter().all(|(_, volume)| share(*volume) < LARGEST_SHARE + 1e-12));
    }
}
