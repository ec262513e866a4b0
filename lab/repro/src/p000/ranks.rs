//! MPI programs of fixed work: how near to the average CPU they run, under the kernel alone, with one
//! balancer around the launcher, and with one in front of each rank. Our own figure.

use anyhow::{Context, Result};
use evenkeel_experiment::{Case, Record};

use super::bench::{Bench, Contestant, How, LAG, Launch, NO_MPI, case, how_of, kernel, lag};
use super::measured::point;
use crate::study::{Finding, Panel, Part, Status};
use evenkeel_bench::capability::{Case as Noise, EFFICIENCY};
use evenkeel_bench::mpi::Balanced;

/// Chores of 10 us that keep a CPU busy for about 3 s.
const CHORES: f64 = 300_000.0;
const NOISES: [Noise; 2] = [Noise::Softirq, Noise::FifoSpin];
const EACH: &str = "lag, each rank";
/// What a 2- or 4-rank loop is to reach.
const AIM: f64 = 0.93;

/// # Errors
/// See [`Bench::measure`].
pub fn measure(bench: &Bench) -> Result<Part> {
    const TITLE: &str = "MPI programs of fixed work";
    if bench.mpi.is_none() {
        let aim = format!("{AIM}");
        return Ok(Part::cannot("mpi-loop", TITLE, "efficiency", &aim, NO_MPI.to_owned()));
    }
    let contestants = [kernel(), lag(), Contestant::new(EACH, "", How::EachRank)];
    let cpus = bench.cpus() as u32;
    let cases = NOISES.map(|noise| {
        [cpus, 2 * cpus].map(|ranks| Case {
            has_reference: true,
            ..case(noise.name(), &ranks.to_string(), &contestants)
        })
    });
    let measured = bench.measure(&contestants, &cases.concat(), |turn| {
        let noise = match turn.contestant {
            Some(_) => NOISES.into_iter().find(|noise| noise.name() == turn.case.name),
            // The reference runs undisturbed.
            None => Some(Noise::None),
        };
        let how = how_of(turn);
        let launch = launch(bench, turn.case.program.parse()?, how)?;
        bench.timed(noise.context("a turn without a noise")?, how, &launch)
    })?;
    let panels = NOISES.map(|noise| Panel {
        id: format!("mpi-loop-{}", noise.name()),
        title: format!("MPI loop, {}", noise.name()),
        x: "ranks".into(),
        y: "efficiency (1 = the pace of the average CPU)".into(),
        ..measured.judged_panel(noise.name(), EFFICIENCY)
    });
    Ok(Part {
        id: "mpi-loop".into(),
        title: TITLE.into(),
        method: format!(
            "The chore-counter with the same number of chores for each rank (about 3 s of a CPU in \
             all), no barrier but the last; ranks that wait poll. `{EACH}` is `mpiexec ... evenkeel \
             run -- app`: the ranks find each other and share one balancer; `lag` is `evenkeel run \
             -- mpiexec ...`. The pace of the average CPU follows from the same program \
             undisturbed, run in each round."
        ),
        findings: measured.records.iter().flat_map(findings).collect(),
        panels: panels.to_vec(),
        ..Part::default()
    })
}

/// The chore-counter with this many ranks, all of which share the same work.
fn launch(bench: &Bench, ranks: u32, how: &How) -> Result<Launch> {
    let per_rank = bench.seconds(CHORES) * bench.cpus() as f64 / f64::from(ranks);
    let chores = format!("{per_rank:.0}");
    let balancer = bench.balancer(&[]);
    let balanced = match how {
        How::EachRank => Balanced::EachRank(&balancer),
        How::Kernel | How::Balancer(_) => Balanced::Not,
    };
    bench.chore_counter(ranks, balanced, &["--chores", &chores])
}

fn findings(record: &Record) -> Vec<Finding> {
    let of = |contestant: &&str| {
        let point = point(record, contestant, EFFICIENCY)?;
        let [lo, hi] = point.ci95;
        let Record { case, program, .. } = record;
        Some(Finding {
            claim: format!("{contestant}, {case}, {program} ranks: median efficiency"),
            paper: format!("at least {AIM}"),
            ours: format!("{:.3} ({lo:.3} - {hi:.3})", point.median),
            bound: "1.000".into(),
            status: Status::reached(point.median >= AIM),
        })
    };
    [LAG, EACH].iter().filter_map(of).collect()
}
