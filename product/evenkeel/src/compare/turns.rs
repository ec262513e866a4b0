//! One run of the program, for each turn of the trial: its time, what it printed, and, in the first run
//! of the baseline, which runtimes it has.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Seek;
use std::ops::RangeInclusive;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_cbinfo::{Family, Runtimes};
use evenkeel_host::Summary;
use evenkeel_trial::command::{Failed, Running, TooLong};
use evenkeel_trial::display::Display;
use evenkeel_trial::{Better, Caller, Figure, Progress, Sample, Seat, Slot, foreign};
use tempfile::TempDir;

use super::contestant::Contestant;
use super::printed::Printed;
use super::runtime::{has_openmp, note_families};
use crate::exit::{IMPOSSIBLE, REFUSED};

/// The figure that decides: from the start of the program to its end, in s.
pub const TIME: &str = "time";
/// Codes of `evenkeel run` for a program that could not be started.
const NOT_STARTED: RangeInclusive<i32> = 125..=127;
/// Tasks that the balancer moved.
pub const MOVES: &str = "moves";

/// The figure that decides.
pub fn time() -> Figure {
    Figure { name: TIME.to_owned(), better: Better::Less }
}

/// Makes the runs.
pub struct Turns<'a> {
    words: &'a [OsString],
    config: Option<&'a Path>,
    contestants: &'a [Contestant],
    run_limit: Duration,
    start: Instant,
    display: Display,
    dir: TempDir,
    runtimes: Runtimes,
    /// The families of runtimes that were seen in the first run of the baseline.
    seen: BTreeSet<Family>,
    /// Where the program gives no time under the kernel alone, no contestant is tried.
    has_baseline: bool,
    /// What the program printed, by contestant.
    printed: BTreeMap<usize, BTreeSet<Printed>>,
    /// Contestants in which evenkeel itself refused or failed.
    refused: BTreeSet<usize>,
}

impl<'a> Turns<'a> {
    /// Of this command under these contestants, those of evenkeel with this configuration file.
    ///
    /// # Errors
    /// No temporary directory can be made.
    pub fn new(
        words: &'a [OsString],
        config: Option<&'a Path>,
        contestants: &'a [Contestant],
        run_limit: Duration,
    ) -> Result<Self> {
        Ok(Self {
            words,
            config,
            contestants,
            run_limit,
            start: Instant::now(),
            display: Display::new(),
            dir: tempfile::tempdir().context("cannot make a temporary directory")?,
            runtimes: Runtimes::new(&[]),
            seen: BTreeSet::new(),
            has_baseline: true,
            printed: BTreeMap::new(),
            refused: BTreeSet::new(),
        })
    }

    /// Takes the progress display away.
    pub fn finish(&self) {
        self.display.finish();
    }

    /// The configuration file of the contestants of evenkeel; none: the default ones.
    pub fn config(&self) -> Option<&Path> {
        self.config
    }

    /// The contestants, the baseline first.
    pub fn contestants(&self) -> &[Contestant] {
        self.contestants
    }

    /// Whether evenkeel itself refused or failed in a run of a contestant: that says nothing about the
    /// program's pace.
    pub fn is_refused(&self, contestant: usize) -> bool {
        self.refused.contains(&contestant)
    }

    /// What the runs of a contestant printed.
    pub fn printed(&self, contestant: usize) -> Option<&BTreeSet<Printed>> {
        self.printed.get(&contestant)
    }
}

impl Turns<'_> {
    fn run_contestant(&mut self, index: usize, turn: Slot) -> Result<Sample> {
        let contestant = self.contestants.get(index).context("a turn of no contestant")?;
        if let Some(why) = contestant.why_not(&self.seen).filter(|_| index > 0) {
            bail!(why);
        }
        let summary = self.dir.path().join("summary.json");
        // Of an earlier run.
        let _ = std::fs::remove_file(&summary);
        let mut command = contestant.command(self.words, self.config, &summary)?;
        // Ctrl-C is for this process: it ends the program in order.
        command.process_group(0);
        let before = foreign::Reading::now();
        let running = Running::start(&mut command)?;
        let mut output = running.output()?;
        let is_first = turn.round == 0 && turn.seat == Seat::Contestant(0);
        let (seen, runtimes) = (&mut self.seen, &mut self.runtimes);
        let ended = running.wait_at_most(self.run_limit, |pid| {
            // A launcher of MPI has a runtime before the ranks have theirs.
            if is_first && !has_openmp(seen) {
                note_families(pid, runtimes, seen);
            }
        });
        let ended = match ended {
            Err(why) if why.is::<TooLong>() => bail!("{why}; --run-limit TIME allows longer runs"),
            Err(why) => {
                let failed = why.downcast::<Failed>()?;
                if !contestant.has_summary() {
                    return Err(failed.into());
                }
                if is_refusal(failed.status.code(), &summary) {
                    self.refused.insert(index);
                }
                let program = self.words[0].to_string_lossy();
                return Err(blame(failed, &program, contestant.name, &summary).into());
            }
            Ok(ended) => ended,
        };
        let after = foreign::Reading::now();
        output.rewind()?;
        let printed = Printed::read(output).context("cannot read what the program printed")?;
        self.printed.entry(index).or_default().insert(printed);
        let mut sample = Sample::new([(TIME, ended.seconds)]);
        let foreign = before.zip(after).map(|(before, after)| before.pct_until(&after));
        sample.foreign_pct = foreign.unwrap_or(0.0);
        if contestant.has_summary() {
            let text = std::fs::read(&summary).context("evenkeel run wrote no summary")?;
            let summary: Summary = serde_json::from_slice(&text)?;
            if let Some(shares) = summary.shares.filter(|shares| !shares.has_effect) {
                bail!("--shares had no effect: {}", shares.effect);
            }
            if let Some(why) = summary.threads.and_then(|threads| threads.why_no_effect) {
                bail!("--threads had no effect: {why}");
            }
            sample.set(MOVES, Some(summary.moves as f64));
        }
        Ok(sample)
    }
}

/// Whether `evenkeel run` ended with a code of its own. Where that is the code of the program, there is
/// a summary.
fn is_refusal(code: Option<i32>, summary: &Path) -> bool {
    let is_own = code.is_some_and(|code| code == i32::from(REFUSED) || code == IMPOSSIBLE);
    is_own && !is_written(summary)
}

/// The error of `evenkeel run`, in the name of the program where that failed: there is a summary then,
/// and the program could be started.
fn blame(mut failed: Failed, program: &str, contestant: &str, summary: &Path) -> Failed {
    let is_started = failed.status.code().is_none_or(|code| !NOT_STARTED.contains(&code));
    if is_started && is_written(summary) {
        failed.name = format!("{program}, under {contestant},");
    }
    failed
}

fn is_written(summary: &Path) -> bool {
    summary.metadata().is_ok_and(|file| file.len() > 0)
}

impl Caller for Turns<'_> {
    fn run(&mut self, turn: Slot) -> Result<Sample> {
        let index = match turn.seat {
            Seat::Contestant(index) => index,
            Seat::SecondBaseline => 0,
            Seat::Reference => bail!("a program of the user has no reference"),
        };
        if !self.has_baseline {
            bail!("the program gave no time under the kernel alone");
        }
        let sample = self.run_contestant(index, turn);
        self.has_baseline &= index > 0 || sample.is_ok();
        sample
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn show(&mut self, progress: &Progress<'_>) {
        // The command ends with that error, which needs not be told for each contestant.
        if self.has_baseline {
            self.display.show(progress);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_trial::command::run;
    use std::process::Command;

    #[test]
    fn the_code_of_the_program_is_no_refusal_of_evenkeel() {
        let dir = tempfile::tempdir().unwrap();
        let summary = dir.path().join("summary.json");
        for code in [2, 3] {
            assert!(is_refusal(Some(code), &summary), "{code}");
        }
        for code in [None, Some(1), Some(127)] {
            assert!(!is_refusal(code, &summary), "{code:?}");
        }
        std::fs::write(&summary, "").unwrap();
        assert!(is_refusal(Some(2), &summary));
        std::fs::write(&summary, "{}").unwrap();
        assert!(!is_refusal(Some(2), &summary));
    }

    #[test]
    fn a_program_that_fails_under_evenkeel_is_blamed_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let summary = dir.path().join("summary.json");
        let said = |script| {
            let mut shell = Command::new("sh");
            let why = run(shell.args(["-c", script])).unwrap_err();
            blame(why.downcast().unwrap(), "app", "run", &summary).to_string()
        };
        assert!(said("exit 1").starts_with("sh failed (exit status: 1)"), "without a summary");
        std::fs::write(&summary, "{}").unwrap();
        assert!(said("exit 1").starts_with("app, under run, failed (exit status: 1): it wrote"));
        assert!(said("kill -9 $$").starts_with("app, under run, failed (signal: 9"));
        assert!(said("exit 127").starts_with("sh failed (exit status: 127)"), "not started");
    }
}
