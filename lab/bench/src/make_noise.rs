//! `evenkeel-lab noise`: one generator until its limit, Ctrl-C or the end of a command, or the
//! verification of the accounting against the generators.

use std::ffi::OsString;
use std::fmt::Display as Text;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::verify::{self, Verified};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::output::{Output, tell};
use evenkeel_experiment::{Document, interrupt};
use evenkeel_noise::{MAX_LIMIT, Noise, NoiseConfig, NoiseKind};

pub use evenkeel_noise::NoiseReport;

/// The version of [`NoiseReport`] as a document.
pub const FORMAT: u32 = 1;

/// Busy time and period in us, where none are given.
const DEFAULT_BUSY_US: u64 = 4_000;
const DEFAULT_PERIOD_US: u64 = 10_000;
/// How long the noise lasts, where no time is given.
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);
/// All kinds, one after the other, with `verify`.
const ALL: &str = "all";
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
    /// How long at most; without it 10 s, or an hour with a command. The verification takes the time
    /// that it needs.
    pub limit: Option<Duration>,
    /// Judge the accounting.
    pub verify: bool,
    /// Where to write the result as JSON.
    pub json: Option<PathBuf>,
    /// The command that the noise is for, and its arguments; may be empty.
    pub command: Vec<OsString>,
}

impl Options {
    fn limit(&self) -> Duration {
        let default = if self.command.is_empty() { DEFAULT_LIMIT } else { MAX_LIMIT };
        self.limit.unwrap_or(default)
    }

    fn duty(&self) -> Option<(u64, u64)> {
        if self.busy_us.is_none() && self.period_us.is_none() {
            return None;
        }
        let busy_us = self.busy_us.unwrap_or(DEFAULT_BUSY_US);
        Some((busy_us, self.period_us.unwrap_or(DEFAULT_PERIOD_US)))
    }
}

/// What [`Options::kind`] may be.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    NoiseKind::ALL.into_iter().map(NoiseKind::name).chain([ALL])
}

/// Makes the noise or verifies the accounting, and prints the result. Returns the exit code: 1 if
/// cbinfo was wrong, 128 + n if signal n ended a verification; a generator that a signal ends has
/// done what it should. With a command it is the exit code of the command.
///
/// # Errors
/// The noise is refused or not permitted, the command cannot be started, or a file cannot be written.
pub fn run(options: &Options) -> Result<i32> {
    let json = options.json.as_deref().map(Output::prepare).transpose()?;
    let _watch = interrupt::watch();
    if options.verify { verify(options, json) } else { make(options, json) }
}

fn make(options: &Options, json: Option<Output>) -> Result<i32> {
    if options.kind == ALL {
        bail!("noise \"all\" is only for --verify: choose softirq, fifo, udp or hog");
    }
    let kind: NoiseKind = options.kind.parse()?;
    let (busy_us, period_us) = options.duty().unwrap_or((DEFAULT_BUSY_US, DEFAULT_PERIOD_US));
    let limit = options.limit();
    let config = NoiseConfig { busy_us, period_us, limit };
    let running = Noise::start(kind, options.cpu, config)?;
    let mut command = match options.command.split_first() {
        None => None,
        Some((name, arguments)) => {
            let started = Command::new(name).args(arguments).spawn();
            Some(started.with_context(|| format!("cannot start {}", name.display()))?)
        }
    };
    let how_long = match command {
        Some(_) => "while the command runs".to_owned(),
        None => format!("for {:.1} s; Ctrl-C ends it", limit.as_secs_f64()),
    };
    say(format_args!("{kind} noise on CPU {} {how_long}", options.cpu));
    let exit_code = match &mut command {
        Some(command) => wait(command, limit)?,
        None => {
            wait_for_the_limit(limit);
            0
        }
    };
    let report = running.stop()?;
    let wanted = match kind {
        NoiseKind::Hog => "its fair share".to_owned(),
        _ => format!("wanted {:.1} %", 100.0 * config.duty()),
    };
    let took = format!(
        "{kind} noise took {:.1} % of CPU {} for {:.1} s ({wanted})",
        100.0 * report.duty,
        report.cpu,
        report.wall_ns as f64 / 1e9
    );
    // Standard output is the command's, which may write there what other programs read.
    if command.is_some() {
        say(took)
    } else {
        tell([&json], took)
    }
    if let Some(output) = json {
        output.write(&Document::new(FORMAT, &report).to_json()?)?;
    }
    Ok(exit_code)
}

/// Prints a line on standard error. Nothing may end the noise before its command, so it is no error if
/// nothing reads it.
fn say(line: impl Text) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Waits until the noise ends by itself or a signal comes, and shows each second how long it lasts yet.
fn wait_for_the_limit(limit: Duration) {
    let (display, start) = (Display::counting("s"), Instant::now());
    let planned_s = limit.as_secs_f64().ceil() as u64;
    let mut shown_s = None;
    while start.elapsed() < limit && interrupt::asked().is_none() {
        let passed_s = start.elapsed().as_secs();
        // Not more often: whatever is measured beside the noise sees the drawing, too.
        if shown_s.replace(passed_s) != Some(passed_s) {
            display.step(passed_s, planned_s, "making noise");
        }
        std::thread::sleep(LOOK.min(limit.saturating_sub(start.elapsed())));
    }
    display.finish();
}

/// Waits for the end of a command, and says so where the noise ends earlier. Returns its exit code.
fn wait(command: &mut Child, limit: Duration) -> Result<i32> {
    let start = Instant::now();
    let (mut is_told, mut is_passed_on) = (false, false);
    loop {
        if let Some(status) = command.try_wait().context("cannot wait for the command")? {
            return Ok(status.code().unwrap_or(128 + status.signal().unwrap_or(0)));
        }
        // The terminal sends Ctrl-C to the command as well; other signals reach this process alone.
        let asked = interrupt::asked().and_then(|signal| Signal::try_from(signal).ok());
        if let Some(signal) = asked.filter(|signal| *signal != Signal::SIGINT && !is_passed_on) {
            kill(Pid::from_raw(command.id() as i32), signal)?;
            is_passed_on = true;
        }
        if start.elapsed() > limit && !is_told {
            say("the noise ends here, and the command runs on without it");
            is_told = true;
        }
        std::thread::sleep(LOOK);
    }
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
        tell([&json], verified.table());
    }
    if let Some(output) = json {
        output.write(&Document::new(verify::FORMAT, &verified).to_json()?)?;
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
            limit: Some(Duration::from_millis(50)),
            verify: false,
            json: None,
            command: Vec::new(),
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
        assert_eq!((&report["kind"], &report["format"]), (&"hog".into(), &FORMAT.into()));
        assert!(report["busy_ns"].as_u64().unwrap() > 0);
    }

    #[test]
    fn noise_lasts_as_long_as_its_command() {
        let command = ["sh", "-c", "exit 5"].map(OsString::from).to_vec();
        let options = Options { command, limit: None, ..options("hog") };
        assert_eq!((options.limit(), run(&options).unwrap()), (MAX_LIMIT, 5));
        let command = vec!["/no/such/program".into()];
        let error = run(&Options { command, ..options }).unwrap_err().to_string();
        assert_eq!(error, "cannot start /no/such/program");
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
