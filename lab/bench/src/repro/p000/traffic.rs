//! Figure 11 and table 2 as a substitute: there is no second machine to exchange messages with, so the
//! traffic of each benchmark, by the volume that the paper tells, comes from another network
//! namespace, and what it costs a program here is measured.

use std::time::Duration;

use anyhow::{Context, Result};

use super::experiment::{Experiment, How, Launch};
use super::rows::{any_worse, panel, ranged, ratios, with_verdicts};
use crate::capability::Case;
use crate::interleave::{Contestant, Group, Measurement};
use crate::repro::study::{Finding, Panel, Part, Status};
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
/// See [`Experiment::judge`].
pub fn measure(experiment: &Experiment) -> Result<Part> {
    let chosen = if experiment.quick { &VOLUMES[4..] } else { &VOLUMES };
    let launch = experiment.static_loop(LOOP_S);
    let hows = [How::kernel(), How::lag()];
    let mut groups = Vec::new();
    for (benchmark, volume) in chosen {
        let duty = share(*volume);
        groups.push(Group {
            case: "traffic".into(),
            program: format!("{benchmark} ({:.1} %)", 100.0 * duty),
            reference: None,
            contestants: hows
                .iter()
                .map(|how| with_traffic(experiment, duty, how, &launch))
                .collect(),
        });
    }
    let outcomes = experiment.judge(groups)?;
    let rows: Vec<_> = ratios(&outcomes, &hows[1].name).collect();
    let time = |run: &Measurement| Some(run.seconds);
    let best = rows.iter().max_by(|a, b| {
        let median = |row: &(_, crate::stats::Judged)| row.1.comparison.ratio.median;
        median(a).total_cmp(&median(b))
    });
    let mut findings = Vec::new();
    if let (Some((outcome, judged)), Some((_, first)), Some((_, last))) =
        (best, rows.first(), rows.last())
    {
        let bounds = outcome.runs().filter_map(|run| Some(run.average? / run.worst?));
        let bound = crate::stats::median(&bounds.collect::<Vec<_>>());
        findings.push(Finding {
            claim: "figure 11: the largest speedup under network traffic".into(),
            paper: "9.8 % (ft.B)".into(),
            ours: format!("{}: {}x", outcome.program, ranged(&judged.comparison.ratio)),
            bound: bound.map_or_else(|| "-".into(), |bound| format!("{bound:.3}x")),
            status: Status::substitute(judged.comparison.ratio.median > 1.0 && !any_worse(&rows)),
        });
        let (least, most) = (first.comparison.ratio, last.comparison.ratio);
        findings.push(Finding {
            claim: "figure 11: the speedup grows with the average traffic".into(),
            paper: "it does, but for is.C (short)".into(),
            ours: format!("{}x at 67 Mb/s, {}x at 788 Mb/s", ranged(&least), ranged(&most)),
            bound: "-".into(),
            status: Status::substitute(most.median > least.median),
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
            experiment.noisy()
        ),
        findings,
        panels: vec![Panel {
            id: "figure-11".into(),
            title: "Time under the traffic of each benchmark".into(),
            x: "benchmark whose traffic it is (share of the CPU)".into(),
            y: "s".into(),
            ..with_verdicts(panel(&outcomes, "traffic", time), &outcomes, "traffic")
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

fn with_traffic<'a>(
    experiment: &'a Experiment,
    duty: f64,
    how: &How,
    launch: &Launch,
) -> Contestant<'a> {
    let (how, launch) = (how.clone(), launch.clone());
    let busy_us = ((duty * PERIOD_US as f64).round() as u64).max(1);
    let config = NoiseConfig { busy_us, period_us: PERIOD_US, limit: LIMIT };
    Contestant {
        name: how.name.clone(),
        run: Box::new(move || {
            experiment.lab.quiet()?;
            let running = Noise::start(NoiseKind::Udp, experiment.noisy(), config)
                .context("network noise")?;
            let once = experiment.once(Case::None, &how, &launch);
            running.stop()?;
            Ok(once?.measurement)
        }),
    }
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
