//! Hogs that end one after the other: as many as there are CPUs, the second with twice the work of the
//! first, and so on. A fast CPU must never idle while a slow one works (ARM LISA's StaggeredFinishes).
//! Then again the other way round: no scheduler knows which thread has most to do, and one that leaves
//! threads where they begin must neither gain nor lose by the order of the work.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use evenkeel_experiment::guest::hogs::compute;

/// What became of the hogs of one go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hogs {
    /// When each had done its work, in s since all began, sorted.
    pub finishes_s: Vec<f64>,
    /// The CPU time that all had, in s.
    pub cpu_s: f64,
}

/// Is the hogs, and prints what became of both goes as JSON. The unit of work is [`compute`].
///
/// # Errors
/// A thread cannot be started.
pub fn be(work: u64) -> Result<i32> {
    let hogs = std::thread::available_parallelism()?.get() as u64;
    println!(
        "{}",
        serde_json::to_string(&[finish(work, 1..=hogs)?, finish(work, (1..=hogs).rev())?])?
    );
    Ok(0)
}

/// Hogs that begin in this order, each with so many times the work.
fn finish(work: u64, shares: impl Iterator<Item = u64>) -> Result<Hogs> {
    let begun = Instant::now();
    let threads: Vec<_> = shares
        .map(|share| {
            let hog = move || {
                (0..share * work).for_each(|_| compute());
                Ok((begun.elapsed(), cpu_time()?))
            };
            std::thread::Builder::new().spawn(hog).context("cannot start a busy thread")
        })
        .collect::<Result<_>>()?;
    let ends = threads.into_iter().map(|thread| thread.join());
    let Ok(ends) = ends.collect::<Result<Vec<Result<(Duration, Duration)>>, _>>() else {
        bail!("a busy thread panicked");
    };
    let (mut finishes, cpu): (Vec<Duration>, Vec<Duration>) =
        ends.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    finishes.sort_unstable();
    Ok(Hogs {
        finishes_s: finishes.iter().map(Duration::as_secs_f64).collect(),
        cpu_s: cpu.iter().sum::<Duration>().as_secs_f64(),
    })
}

/// The CPU time of the calling thread.
fn cpu_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

impl Hogs {
    /// Until one of them was done, on average, in s.
    pub fn turnaround_s(&self) -> f64 {
        self.finishes_s.iter().sum::<f64>() / self.finishes_s.len() as f64
    }

    /// Until the last one was done, in s.
    pub fn took_s(&self) -> f64 {
        self.finishes_s.last().copied().unwrap_or_default()
    }

    /// What as many of the fastest CPUs had to give as there still were hogs, in s of CPU time.
    fn possible_s(&self, fastest: &[f64]) -> f64 {
        let since = std::iter::once(&0.0).chain(&self.finishes_s);
        let stretches = since.zip(&self.finishes_s).map(|(from, to)| to - from);
        let left = (1..=self.finishes_s.len()).rev();
        stretches.zip(left).map(|(time, hogs)| time * fastest.iter().take(hogs).sum::<f64>()).sum()
    }
}

/// The CPU time that the hogs of all goes had, by what they could have had. `capabilities`: of each
/// CPU, 1 is all of its time. A part of CPU time is as good as another: what an emulated CPU gets
/// done in it changes with the host's speed, differs between threads that ran early and late, and
/// does not depend on the scheduler.
pub fn efficiency(goes: &[Hogs], capabilities: &[f64]) -> f64 {
    let mut fastest = capabilities.to_vec();
    fastest.sort_unstable_by(|a, b| b.total_cmp(a));
    let had: f64 = goes.iter().map(|hogs| hogs.cpu_s).sum();
    had / goes.iter().map(|hogs| hogs.possible_s(&fastest)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hogs(finishes_s: &[f64], cpu_s: f64) -> Hogs {
        Hogs { finishes_s: finishes_s.to_vec(), cpu_s }
    }

    #[test]
    fn efficiency_by_hand() {
        // Both for a second, then the fast one alone for another.
        assert_eq!(efficiency(&[hogs(&[1.0, 2.0], 2.5)], &[0.5, 1.0]), 1.0);
        assert_eq!(efficiency(&[hogs(&[2.0, 2.0], 1.5)], &[1.0, 0.5]), 0.5);
        // More hogs than CPUs.
        assert_eq!(efficiency(&[hogs(&[1.0, 2.0, 3.0], 3.0)], &[1.0]), 1.0);
        // Two goes: 2.5 of 2.5, and 3 of 4.5.
        assert_eq!(
            efficiency(&[hogs(&[1.0, 2.0], 2.5), hogs(&[1.0, 4.0], 3.0)], &[0.5, 1.0]),
            5.5 / 7.0
        );
    }

    #[test]
    fn the_last_one_is_not_the_average() {
        let hogs = hogs(&[1.0, 2.0, 6.0], 9.0);
        assert_eq!((hogs.turnaround_s(), hogs.took_s()), (3.0, 6.0));
    }

    #[test]
    fn all_hogs_end_in_order_and_have_had_cpu_time() {
        let hogs = finish(20, (1..=3).rev()).unwrap();
        assert_eq!(hogs.finishes_s.len(), 3);
        assert!(hogs.finishes_s.is_sorted() && hogs.finishes_s[0] > 0.0, "{hogs:?}");
        assert!(hogs.cpu_s > 0.0 && hogs.took_s() >= hogs.turnaround_s());
    }
}
