//! Hogs that end one after the other: as many as there are CPUs, the second with twice the work of the
//! first, and so on. A fast CPU must never idle while a slow one works (ARM LISA's StaggeredFinishes).

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::guest::hogs::compute;

/// When each hog had done its work, in s since all began, sorted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finishes(pub Vec<f64>);

/// Is the hogs, and prints the [`Finishes`] as JSON. The unit of work is [`compute`].
///
/// # Errors
/// A thread cannot be started.
pub fn be(work: u64) -> Result<i32> {
    let finishes = finish(work, std::thread::available_parallelism()?.get())?;
    println!("{}", serde_json::to_string(&finishes)?);
    Ok(0)
}

fn finish(work: u64, hogs: usize) -> Result<Finishes> {
    let begun = Instant::now();
    let threads: Vec<_> = (1..=hogs as u64)
        .map(|share| {
            let hog = move || {
                (0..share * work).for_each(|_| compute());
                begun.elapsed().as_secs_f64()
            };
            std::thread::Builder::new().spawn(hog).context("cannot start a busy thread")
        })
        .collect::<Result<_>>()?;
    let ends = threads.into_iter().map(|thread| thread.join().map_err(drop));
    let Ok(mut finishes) = ends.collect::<Result<Vec<f64>, ()>>() else {
        bail!("a busy thread panicked");
    };
    finishes.sort_unstable_by(f64::total_cmp);
    Ok(Finishes(finishes))
}

impl Finishes {
    /// What all have done, in units.
    pub fn work(&self, work: u64) -> f64 {
        (1..=self.0.len() as u64).map(|share| (share * work) as f64).sum()
    }

    /// What the fastest CPUs could have done, of so many as there still were hogs. `speeds`: of each
    /// CPU, in units a second.
    pub fn possible(&self, speeds: &[f64]) -> f64 {
        let mut fastest = speeds.to_vec();
        fastest.sort_unstable_by(|a, b| b.total_cmp(a));
        let since = std::iter::once(&0.0).chain(&self.0);
        let stretches = since.zip(&self.0).map(|(from, to)| to - from);
        let left = (1..=self.0.len()).rev();
        stretches.zip(left).map(|(time, hogs)| time * fastest.iter().take(hogs).sum::<f64>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_possible_by_hand() {
        // Both for a second, then the fast one alone for another.
        assert_eq!(Finishes(vec![1.0, 2.0]).possible(&[50.0, 100.0]), 250.0);
        assert_eq!(Finishes(vec![2.0, 2.0]).possible(&[100.0, 50.0]), 300.0);
        // More hogs than CPUs.
        assert_eq!(Finishes(vec![1.0, 2.0, 3.0]).possible(&[100.0]), 300.0);
        assert_eq!(Finishes(vec![1.0, 2.0]).work(10), 30.0);
    }

    #[test]
    fn all_hogs_end_in_order() {
        let finishes = finish(20, 3).unwrap();
        assert_eq!(finishes.0.len(), 3);
        assert!(finishes.0.is_sorted() && finishes.0[0] > 0.0, "{finishes:?}");
    }
}
