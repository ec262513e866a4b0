//! What the daemon costs: CPU time and memory with many programs and threads at rest, and whether
//! anything grows while programs join and leave, as many times as in two weeks of one a minute.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::Request;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cost_page::{Files, Shown};
use crate::crowd::Crowd;
use crate::private_daemon::{PrivateDaemon, until};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{Document, interrupt};

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

const PROGRAMS: u32 = 50;
/// Threads of each program; with its first one 2,000 in all.
const THREADS: u32 = 39;
/// After this time the daemon has come to rest.
const SETTLE: Duration = Duration::from_secs(6);
/// How long it is watched there.
const WATCH: Duration = Duration::from_secs(20);
/// Joins (and as many leaves): one a minute for two weeks ...
const JOINS: u32 = 14 * 24 * 60;
/// ... of this many programs in turn.
const JOINING: usize = 5;
/// After so many joins the progress is shown anew.
const SHOWN_JOINS: u32 = 100;

/// What to do.
#[derive(Debug)]
pub struct Options {
    /// The program file of evenkeel.
    pub executable: PathBuf,
    /// Where the figures go.
    pub files: Files,
}

/// What the daemon costs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Programs that have joined.
    programs: u64,
    /// Their tasks.
    tasks: u64,
    /// What the daemon takes of one CPU at rest.
    own_cpu_pct: f64,
    /// Intervals of each program in a second, at rest.
    intervals_per_s: f64,
    /// Resident memory with all of them, in MiB.
    resident_mib: f64,
    /// Joins, and as many leaves.
    joins: u32,
    /// What the second half of them added to the resident memory, in MiB.
    growth_mib: f64,
    /// What the journal has after half of them, and after all, in bytes.
    journal_bytes: [u64; 2],
}

/// Measures, prints, and writes what was asked for. Returns the exit code.
///
/// # Errors
/// The daemon or the programs cannot be started, or the daemon does not answer.
pub fn run(options: &Options) -> Result<i32> {
    let files = options.files.prepare()?;
    let report = measure(&options.executable)?;
    let cost = format!(
        "{} programs, {} tasks: {:.3} % of one CPU at {:.1} intervals a second, {:.1} MiB resident",
        report.programs,
        report.tasks,
        report.own_cpu_pct,
        report.intervals_per_s,
        report.resident_mib
    );
    let [half_way, after] = report.journal_bytes;
    let growth = format!(
        "{} joins and as many leaves: {:+.2} MiB in their second half; the journal has {half_way} \
         bytes after the first, {after} after both",
        report.joins, report.growth_mib
    );
    let title = "Benchmarks: what the daemon costs";
    let sentences = vec![cost, growth];
    let shown = Shown { title, table: None, sentences, wanted: &[], charts: Vec::new() };
    files.write(&Document::new(FORMAT, &report), &shown)?;
    Ok(0)
}

/// In MiB.
fn resident_mib(daemon: &PrivateDaemon) -> Result<f64> {
    let status = procfs::process::Process::new(daemon.pid() as i32)?.status()?;
    Ok(status.vmrss.unwrap_or(0) as f64 / 1024.0)
}

/// All that its journal holds, found by its file descriptors.
fn journal_bytes(daemon: &PrivateDaemon) -> Result<u64> {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid()))?;
    let files = descriptors.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        let is_journal = target.extension().is_some_and(|extension| extension == "jsonl");
        is_journal.then(|| std::fs::metadata(target).map_or(0, |meta| meta.len()))
    });
    Ok(files.sum())
}

fn measure(executable: &Path) -> Result<Report> {
    let display = Display::counting("s");
    let at_rest_s = (SETTLE + WATCH).as_secs();
    display.step(0, at_rest_s, "starting the programs");
    let daemon = PrivateDaemon::start(executable, &[])?;
    let mut crowds =
        (0..PROGRAMS).map(|_| Crowd::start(THREADS)).collect::<Result<Vec<Crowd>>>()?;
    for crowd in &crowds {
        daemon.join(crowd.pid())?;
    }
    let tasks = u64::from(PROGRAMS * (THREADS + 1));
    until("all threads", || Ok(daemon.number("tasks")? >= tasks))?;

    display.step(0, at_rest_s, "until the daemon rests");
    std::thread::sleep(SETTLE);
    let begun = Instant::now();
    let (cpu_us, intervals) = (daemon.number("own_cpu_us")?, daemon.number("intervals")?);
    while begun.elapsed() < WATCH {
        interrupt::check()?;
        let watched = SETTLE + begun.elapsed();
        display.step(watched.as_secs(), at_rest_s, "watching it");
        std::thread::sleep(Duration::from_millis(100));
    }
    display.finish();
    let elapsed_s = begun.elapsed().as_secs_f64();
    let spent_us = daemon.number("own_cpu_us")? - cpu_us;
    let intervals = daemon.number("intervals")? - intervals;
    let at_rest_mib = resident_mib(&daemon)?;
    let (programs, tasks) = (daemon.number("programs")?, daemon.number("tasks")?);

    crowds.truncate(JOINING);
    let (mut half_way_mib, mut half_way_bytes) = (0.0, 0);
    let display = Display::counting("joins");
    for join in 0..JOINS {
        interrupt::check()?;
        if join.is_multiple_of(SHOWN_JOINS) {
            display.step(join.into(), JOINS.into(), "each after a leave");
        }
        let pid = crowds[join as usize % JOINING].pid();
        daemon.ask(&Request::new("leave").with("pid", pid))?;
        daemon.join(pid)?;
        if join == JOINS / 2 {
            half_way_mib = resident_mib(&daemon)?;
            half_way_bytes = journal_bytes(&daemon)?;
        }
    }
    display.finish();
    Ok(Report {
        programs,
        tasks,
        own_cpu_pct: spent_us as f64 / elapsed_s / 1e4,
        intervals_per_s: intervals as f64 / programs.max(1) as f64 / elapsed_s,
        resident_mib: at_rest_mib,
        joins: JOINS,
        growth_mib: resident_mib(&daemon)? - half_way_mib,
        journal_bytes: [half_way_bytes, journal_bytes(&daemon)?],
    })
}
