//! `evenkeel-lab noise`: one generator until its limit or Ctrl-C, or the verification of the
//! accounting against the generators.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::verify::{self, Verified};
use evenkeel_experiment::interrupt;
use evenkeel_experiment::output::Output;
use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};

/// Busy time and period in us, where none are given.
const DEFAULT_BUSY_US: u64 = 4_000;
const DEFAULT_PERIOD_US: u64 = 10_000;
/// How often to check whether a signal asked for the end.
const LOOK: Duration = Duration::from_millis(50);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// softirq, fifo, udp or hog; with `verify` also all.
    pub kind: String,
    /// The CPU.
    pub cpu: u32,
    /// Busy part of each period, in us.
    pub busy_us: Option<u64>,
    /// The period, in us.
    pub period_us: Option<u64>,
    /// How long at most; the verification takes the time that it needs.
    pub limit: Duration,
    /// Judge the accounting.
    pub verify: bool,
    /// Where to write the result as JSON.
    pub json: Option<PathBuf>,
}

impl Options {
    fn duty(&self) -> Option<(u64, u64)> {
        if self.busy_us.is_none() && self.period_us.is_none() {
            return None;
        }
        let busy_us = self.busy_us.unwrap_or(DEFAULT_BUSY_US);
        Some((busy_us, self.period_us.unwrap_or(DEFAULT_PERIOD_US)))
    }
}

/// Makes the noise or verifies the accounting, and prints the result. Returns the exit code: 1 if
/// cbinfo was wrong, 128 + n if signal n ended a verification; a generator that a signal ends has
/// done what it should.
///
/// # Errors
/// The noise is refused or not permitted, or a file cannot be written.
pub fn run(options: &Options) -> Result<i32> {
    let json = options.json.as_deref().map(Output::prepare).transpose()?;
    let _watch = interrupt::watch();
    if options.verify { verify(options, json) } else { make(options, json) }
}

fn make(options: &Options, json: Option<Output>) -> Result<i32> {
    if options.kind == "all" {
        bail!("noise \"all\" is only for --verify: choose softirq, fifo, udp or hog");
    }
    let kind: NoiseKind = options.kind.parse()?;
    let (busy_us, period_us) = options.duty().unwrap_or((DEFAULT_BUSY_US, DEFAULT_PERIOD_US));
    let config = NoiseConfig { busy_us, period_us, limit: options.limit };
    let running = Noise::start(kind, options.cpu, config)?;
    eprintln!(
        "{kind} noise on CPU {} for {:.1} s; Ctrl-C ends it",
        options.cpu,
        options.limit.as_secs_f64()
    );
    let start = Instant::now();
    while start.elapsed() < options.limit && interrupt::asked().is_none() {
        std::thread::sleep(LOOK.min(options.limit.saturating_sub(start.elapsed())));
    }
    let report = running.stop()?;
    let wanted = match kind {
        NoiseKind::Hog => "its fair share".to_owned(),
        _ => format!("wanted {:.1} %", 100.0 * config.duty()),
    };
    println!(
        "{kind} noise took {:.1} % of CPU {} for {:.1} s ({wanted})",
        100.0 * report.duty,
        report.cpu,
        report.wall_ns as f64 / 1e9
    );
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&report)?)?;
    }
    Ok(0)
}

fn verify(options: &Options, json: Option<Output>) -> Result<i32> {
    let noises = verify::noises(&options.kind, options.duty())?;
    let verified = verify::verify(options.cpu, &noises);
    if interrupt::asked().is_some() {
        return Ok(interrupt::exit_code());
    }
    let verified = verified?;
    for sentence in &verified.said {
        eprintln!("{sentence}");
    }
    if !verified.rows.is_empty() {
        println!("{}", verified.table());
    }
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&verified)?)?;
    }
    Ok(i32::from(!verified.rows.iter().all(Verified::is_right)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str) -> Options {
        Options {
            kind: kind.into(),
            cpu: 0,
            busy_us: None,
            period_us: None,
            limit: Duration::from_millis(50),
            verify: false,
            json: None,
        }
    }

    #[test]
    fn a_hog_reports_as_json() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hog.json");
        let options = Options { json: Some(path.clone()), ..options("hog") };
        assert_eq!(run(&options).unwrap(), 0);
        let text = std::fs::read_to_string(path).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["kind"], "hog");
        assert!(report["busy_ns"].as_u64().unwrap() > 0);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let said = |options: &Options| run(options).unwrap_err().to_string();
        assert!(said(&options("all")).contains("only for --verify"));
        assert!(said(&options("rain")).contains("choose softirq"));
        let much = Options { busy_us: Some(9_000), ..options("hog") };
        assert!(said(&much).contains("at most 50 %"));
        assert_eq!(much.duty(), Some((9_000, 10_000)));
    }
}
