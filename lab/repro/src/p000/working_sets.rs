//! Table 3: the programs' working sets, sampled while they run.

use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_host::working_set::{clear, referenced_bytes};

use super::bench::{Bench, Launch, check, command_of};
use crate::page::number;
use crate::study::{Finding, Panel, Part, Point, Series, Status};
use evenkeel_experiment::command::Running;

/// How long memory is watched for a sample; the paper takes 1 s, and its programs run for minutes.
const SAMPLE: Duration = Duration::from_millis(250);
/// CG so often runs for some seconds.
const CG_TIMES: u32 = 8;
const MIB: f64 = (1 << 20) as f64;
/// The paper's averages for what is run here in a smaller class, in MB.
const PAPER_EP: f64 = 5.0;
const PAPER_CG: f64 = 339.0;

/// # Errors
/// A program fails, or its memory cannot be watched.
pub fn measure(bench: &Bench) -> Result<Part> {
    bench.lab.quiet()?;
    let mut samples: Vec<(String, Vec<f64>)> = Vec::new();
    for launch in [bench.ep(), bench.cg(CG_TIMES)] {
        samples.push((launch.name.clone(), sample(&launch)?));
    }
    let value = |of: fn(&[f64]) -> f64| -> Vec<Option<Point>> {
        samples.iter().map(|(_, all)| (!all.is_empty()).then(|| Point::once(of(all)))).collect()
    };
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let column =
        |name: &str, of: fn(&[f64]) -> f64| Series { name: name.to_owned(), points: value(of) };
    let average = |index: usize| {
        samples.get(index).filter(|(_, all)| !all.is_empty()).map(|(_, all)| mean(all))
    };
    let ours = match (average(0), average(1)) {
        (Some(ep), Some(cg)) => format!("ep.A {}, cg.A {} MiB", number(ep), number(cg)),
        _ => "the programs ended too soon".to_owned(),
    };
    let holds = average(0).zip(average(1)).is_some_and(|(ep, cg)| cg > ep);
    Ok(Part {
        id: "table-3".into(),
        title: "Table 3: working sets".into(),
        method: format!(
            "Memory that a process referenced in each {} ms, by the kernel's own notes \
             (/proc/PID/clear_refs and smaps_rollup), at most one sample less than its run time \
             has room for. The paper samples each second, larger classes, on 2.6.32.",
            SAMPLE.as_millis()
        ),
        findings: vec![Finding {
            claim: "EP's working set is small, CG's much larger".into(),
            paper: format!("ep.B {PAPER_EP:.0}, cg.B {PAPER_CG:.0} MB on average"),
            ours,
            bound: "-".into(),
            status: Status::reproduced(holds),
        }],
        panels: vec![Panel {
            id: "table-3".into(),
            title: "Working sets".into(),
            x: "program".into(),
            y: "MiB".into(),
            places: samples.iter().map(|(name, _)| name.clone()).collect(),
            series: vec![
                column("total of the samples", |all| all.iter().sum()),
                column("average", |all| all.iter().sum::<f64>() / all.len() as f64),
                column("minimum", |all| all.iter().copied().fold(f64::INFINITY, f64::min)),
                column("maximum", |all| all.iter().copied().fold(0.0, f64::max)),
            ],
        }],
        not_run: vec!["bt, ft, is, lu, mg, sp and ua of the NPB: not part of this project".into()],
        ..Part::default()
    })
}

/// One figure for each sample, in MiB.
fn sample(launch: &Launch) -> Result<Vec<f64>> {
    let running = Running::start(&mut command_of(&launch.words, launch.threads)?)?;
    let pid = running.pid();
    let mut all = Vec::new();
    // A process that has ended cannot be wiped; then there is nothing more to sample.
    while clear(pid).unwrap_or(false) {
        std::thread::sleep(SAMPLE);
        match referenced_bytes(pid) {
            Ok(bytes) if bytes > 0 => all.push(bytes as f64 / MIB),
            _ => break,
        }
    }
    let ended = running.wait().with_context(|| launch.name.clone())?;
    check(launch, &ended)?;
    Ok(all)
}
