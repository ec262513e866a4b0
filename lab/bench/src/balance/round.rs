//! One round, in the guest: the programs beside a thief, or what the scheduler's callbacks cost.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::staggered::{Hogs, efficiency};
use super::{
    BARRIER, BARRIER_EFFICIENCY, BOTH, RUN, STAGGERED, STAGGERED_EFFICIENCY, STAGGERED_TURNAROUND,
};
use crate::keel::{self, ENQUEUE_DISPATCH, USUAL};
use crate::programs::{Installed, Program, field};
use evenkeel_experiment::Figures;
use evenkeel_experiment::command::{run, set_threads};
use evenkeel_experiment::guest::Inside;
use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};

/// The CPU of which half is taken.
const SLOW_CPU: u32 = 1;
/// How half is taken. Longer periods would need no scheduler.
const THIEF: NoiseConfig =
    NoiseConfig { busy_us: 1_000, period_us: 2_000, limit: Duration::from_secs(100) };

/// The work of the program with barriers, in its units of about 1 ms of a real CPU.
const WORK: u64 = 4800;
const PHASES: u64 = 10;
/// The work of the hog with the least work, in computations.
const HOG_WORK: u64 = 200_000;

/// Measures everything under the contestant that is at work.
///
/// # Errors
/// A program cannot be started, or fails.
pub fn measure(inside: &Inside) -> Result<Figures> {
    if inside.costs { costs(inside) } else { programs(inside) }
}

/// What capability costs: on CPUs that are equal, where it does nothing else.
fn costs(inside: &Inside) -> Result<Figures> {
    let mut figures = Figures::new();
    if inside.measures_callbacks() {
        keel::callback_costs(inside.cpus, &mut figures)?;
        figures.retain(|name, _| [ENQUEUE_DISPATCH, USUAL].contains(&name.as_str()));
    }
    Ok(figures)
}

fn programs(inside: &Inside) -> Result<Figures> {
    let programs = Installed::in_guest()?;
    let balanced = [RUN, BOTH].contains(&inside.contestant.name.as_str());
    let job = Job { programs: &programs, cpus: inside.cpus, balanced };
    let (barrier, taken) = beside_a_thief(|| job.barrier(WORK))?;
    let possible_s = barrier.took_s * capabilities(inside.cpus, taken).iter().sum::<f64>();
    let mut figures = Figures::from([
        (BARRIER.to_owned(), barrier.took_s),
        (BARRIER_EFFICIENCY.to_owned(), barrier.computed_s / possible_s),
    ]);
    let (hogs, taken) = beside_a_thief(|| job.hogs(HOG_WORK))?;
    // Both goes have as many hogs, and are compared in the same way: their sum does.
    figures.insert(STAGGERED.to_owned(), hogs.iter().map(Hogs::took_s).sum());
    figures.insert(STAGGERED_TURNAROUND.to_owned(), hogs.iter().map(Hogs::turnaround_s).sum());
    let efficiency = efficiency(&hogs, &capabilities(inside.cpus, taken));
    figures.insert(STAGGERED_EFFICIENCY.to_owned(), efficiency);
    Ok(figures)
}

/// What each CPU can do of what an undisturbed one can.
fn capabilities(cpus: usize, taken: f64) -> Vec<f64> {
    let mut capabilities = vec![1.0; cpus];
    if let Some(slow) = capabilities.get_mut(SLOW_CPU as usize) {
        *slow -= taken;
    }
    capabilities
}

/// Has it done while the thief is there; the share of its CPU's time that the thief took.
fn beside_a_thief<T>(job: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let thief = Noise::start(NoiseKind::Fifo, SLOW_CPU, THIEF)?;
    let done = job()?;
    Ok((done, thief.stop()?.duty))
}

/// Programs of a thread a CPU.
#[derive(Clone, Copy)]
struct Job<'a> {
    programs: &'a Installed,
    cpus: usize,
    /// Under `evenkeel run`.
    balanced: bool,
}

/// What became of the program with barriers.
struct Barrier {
    took_s: f64,
    /// The CPU time that its threads had for computing, and not for waiting for each other.
    computed_s: f64,
}

impl Job<'_> {
    fn barrier(&self, work: u64) -> Result<Barrier> {
        let program = self.programs.path(Program::StaticLoop).into_os_string();
        let (work_word, phases) = (work.to_string(), PHASES.to_string());
        let words = ["--work", &work_word, "--phases", &phases].map(OsString::from);
        let said = self.said(std::iter::once(program).chain(words))?;
        let seconds = |name| {
            let value = field(&said, name).and_then(|seconds| seconds.parse().ok());
            value.with_context(|| format!("static_loop does not say {name}: {said}"))
        };
        Ok(Barrier { took_s: seconds("seconds")?, computed_s: seconds("computed")? })
    }

    fn hogs(&self, work: u64) -> Result<Vec<Hogs>> {
        let own = evenkeel_experiment::executable::own()?.into_os_string();
        let words = ["bench", "balance", "--hogs", &work.to_string()].map(OsString::from);
        let said = self.said(std::iter::once(own).chain(words))?;
        serde_json::from_str(said.trim())
            .with_context(|| format!("the hogs do not say when they ended: {said}"))
    }

    /// The output of the program that these words start.
    fn said(&self, words: impl Iterator<Item = OsString>) -> Result<String> {
        let own = evenkeel_experiment::executable::product()?.into_os_string();
        let run_it = [own, "run".into(), "--".into()];
        let mut words = run_it.into_iter().filter(|_| self.balanced).chain(words);
        let mut command = Command::new(words.next().context("no program")?);
        // A thread that waits at a barrier keeps its CPU busy. If the CPU idled, any scheduler would
        // pull the last thread to it, and so hide where that thread was.
        command.args(words).env("OMP_WAIT_POLICY", "active");
        set_threads(&mut command, self.cpus);
        Ok(run(&mut command)?.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_missing_on_one_cpu() {
        assert_eq!(capabilities(3, 0.25), [1.0, 0.75, 1.0]);
        assert_eq!(capabilities(1, 0.25), [1.0]);
    }
}
