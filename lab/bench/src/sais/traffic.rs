//! What happened to the packets of a run, warm-up included: by the kernel's own counters of the two
//! namespaces, which begin with the run, and by those of the programs that steered. Where packets were
//! processed is found while it is measured, by looks at the sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use evenkeel_experiment::{Kind, Metric, Sample};
use evenkeel_machine::CpuSet;
use evenkeel_sais::Statistics;
use serde_json::Value;

use super::arrivals::Arrivals;
use super::network::{DEVICE, Network};
use crate::namespace::Namespace;

/// The names of figures.
pub const HOME: &str = "at-home";
pub const PREDICTED: &str = "predicted";
pub const DISORDERED: &str = "disordered";
pub const SEGMENTS: &str = "segments";
pub const HINTED: &str = "hinted";
pub const STEERS: &str = "steers";
const HOME_BY_STEERING: &str = "at-home-by-sais";
const RESENT: &str = "resent";

/// The figures of packets. None of them is judged.
pub const METRICS: [Metric; 8] = [
    Metric::told(
        HOME,
        Kind::SharePct,
        "of the strips, those with the last packet processed on the CPU that read it, by the kernel's \
         word for the socket; only where the reader is ours",
    ),
    Metric::told(
        HOME_BY_STEERING,
        Kind::SharePct,
        "of the packets with a consumer that `sais` knows, those that it had processed on that CPU",
    ),
    Metric::told(
        HINTED,
        Kind::SharePct,
        "in hint mode, of the packets with a known consumer, those that came with a hint of ours",
    ),
    Metric::told(
        STEERS,
        Kind::Count,
        "in how many of the runs our program was on the device at their end: `auto` takes it off where \
         it has no use for it",
    )
    .summed(),
    Metric::told(
        PREDICTED,
        Kind::SharePct,
        "of the client's segments, those on TCP's fast path for expected headers",
    ),
    Metric::told(RESENT, Kind::Count, "segments that the server sent again"),
    Metric::told(
        DISORDERED,
        Kind::Count,
        "segments that others overtook, by what the client acknowledged, in all runs together (what \
         follows a lost segment was not overtaken)",
    )
    .summed(),
    Metric::told(SEGMENTS, Kind::Count, "all segments (after GRO), in all runs together").summed(),
];

const BY_CPU: &str = "of the strips, those with the last packet processed on this CPU";
/// On machines with more CPUs the shares are found in the JSON only.
pub const SHOWN_CPUS: usize = 8;
const CPU_NAMES: [&str; SHOWN_CPUS] =
    ["cpu-0", "cpu-1", "cpu-2", "cpu-3", "cpu-4", "cpu-5", "cpu-6", "cpu-7"];

/// The figure of a CPU that has a column in the report.
pub const fn cpu_metric(cpu: usize) -> Metric {
    Metric::told(CPU_NAMES[cpu], Kind::SharePct, BY_CPU)
}

/// The figure that says which share of packets this CPU processed.
pub fn cpu_figure(cpu: u32) -> String {
    format!("cpu-{cpu}")
}

/// Adds what happened to the packets of the run that has just ended.
///
/// # Errors
/// The kernel's counters cannot be read.
pub fn add_figures(
    sample: &mut Sample,
    network: &Network,
    executable: &Path,
    cpus: &CpuSet,
    arrivals: &Arrivals,
) -> Result<()> {
    let (client, server) = (network.client.tcp_counters()?, network.server.tcp_counters()?);
    let of = |counters: &BTreeMap<String, f64>, name| counters.get(name).copied().unwrap_or(0.0);
    let segments = of(&client, IN_SEGMENTS);
    let statistics = steered(executable);
    let pct = |share: f64| share * 100.0;
    let is_on_device = |all: &Statistics| f64::from(u8::from(all.xdp != NOT_ON_DEVICE));
    sample.set(RESENT, Some(of(&server, "RetransSegs")));
    sample.set(DISORDERED, Some(overtaken(&server)));
    sample.set(SEGMENTS, Some(segments));
    sample.set(PREDICTED, Some(pct(of(&client, "TCPHPHits") / segments.max(1.0))));
    sample.set(HOME, arrivals.home_pct());
    if arrivals.home_pct().is_some() {
        let by_cpu = arrivals.by_core_pct();
        for cpu in cpus.iter() {
            sample.set(&cpu_figure(cpu), Some(by_cpu.get(&cpu).copied().unwrap_or(0.0)));
        }
    }
    sample.set(HOME_BY_STEERING, statistics.as_ref().and_then(Statistics::share_at_home).map(pct));
    sample.set(HINTED, statistics.as_ref().and_then(hinted).map(pct));
    sample.set(STEERS, statistics.as_ref().map(is_on_device));
    Ok(())
}

/// What `auto` says of its XDP mode while it has no use for the program.
const NOT_ON_DEVICE: &str = "no";

/// Counters of the kernel.
const IN_SEGMENTS: &str = "InSegs";
const OUT_OF_ORDER: &str = "TCPOFOQueue";
/// By which of its options TCP found out.
const OVERTAKEN: [&str; 2] = ["TCPSACKReorder", "TCPTSReorder"];

/// Segments that others overtook, by the counters of the end that sent them.
pub(crate) fn overtaken(sender: &BTreeMap<String, f64>) -> f64 {
    OVERTAKEN.iter().filter_map(|name| sender.get(*name)).sum()
}

/// Of the segments that a namespace received so far, those that came before others that they follow;
/// and all of them.
///
/// # Errors
/// The kernel's counters cannot be read.
pub(super) fn out_of_order(namespace: &Namespace) -> Result<(u64, u64)> {
    let counters = namespace.tcp_counters()?;
    let of = |name| counters.get(name).copied().unwrap_or(0.0) as u64;
    Ok((of(OUT_OF_ORDER), of(IN_SEGMENTS)))
}

/// What the program that steers the client's device says; `None`: there is none.
fn steered(executable: &Path) -> Option<Statistics> {
    let run = Command::new(executable).args(["sais", "status", "--json"]).output().ok()?;
    let status: Value = serde_json::from_slice(&run.stdout).ok()?;
    let ours = status["processes"].as_array()?.iter().find(|one| one["device"] == DEVICE)?;
    serde_json::from_value(ours.clone()).ok()
}

/// A hint that was replaced meanwhile is one of ours, too.
fn hinted(statistics: &Statistics) -> Option<f64> {
    let sum = |names: &[&str]| names.iter().map(|name| statistics.total(name)).sum::<u64>() as f64;
    let good = sum(&["hint_echoed", "hint_stale"]);
    let all = good + sum(&["hint_absent", "hint_replayed", "hint_forged", "hint_malformed"]);
    (all > 0.0).then(|| good / all)
}
