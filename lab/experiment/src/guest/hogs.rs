//! Threads that compute without end, and how much each gets done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use nix::unistd::gettid;

/// Steps of computation between two looks at the clock of the others.
const STEPS: u32 = 1000;
/// What schedulers get to spread new threads before anything is measured.
const SETTLE: Duration = Duration::from_millis(50);
/// By the kernel's table: nice 0 weighs 1024, nice 5 weighs 335.
const NICE: i32 = 5;
const WEIGHTS: f64 = 1024.0 / 335.0;

/// Busy threads. They end with this value.
pub struct Hogs {
    end: Arc<AtomicBool>,
    threads: Vec<(JoinHandle<()>, Arc<AtomicU64>, i32)>,
}

impl Hogs {
    /// Starts so many.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(count: usize) -> Result<Self> {
        let mut hogs = Self { end: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let (end, rounds) = (Arc::clone(&hogs.end), Arc::new(AtomicU64::new(0)));
            let (tell, told) = channel();
            let counted = Arc::clone(&rounds);
            let thread = std::thread::Builder::new()
                .spawn(move || {
                    // When this fails, the receiver has gone.
                    let _ = tell.send(gettid().as_raw());
                    while !end.load(Ordering::Relaxed) {
                        compute();
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                })
                .context("cannot start a busy thread")?;
            let tid = told.recv().context("a busy thread ended at once")?;
            hogs.threads.push((thread, rounds, tid));
        }
        Ok(hogs)
    }

    /// What each gets done in this time.
    fn work_in(&self, time: Duration) -> Vec<f64> {
        let read = || self.threads.iter().map(|(_, rounds, _)| rounds.load(Ordering::Relaxed));
        std::thread::sleep(SETTLE);
        let before: Vec<u64> = read().collect();
        std::thread::sleep(time);
        read().zip(before).map(|(now, then)| (now - then) as f64).collect()
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for (thread, ..) in self.threads.drain(..) {
            // They have nothing to panic about.
            let _ = thread.join();
        }
    }
}

/// A little work that no compiler can leave out.
pub fn compute() {
    let mut value = 1u64;
    for _ in 0..STEPS {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) + 1);
    }
}

/// How evenly so many busy threads get on.
///
/// # Errors
/// A thread cannot be started.
pub fn evenness(count: usize, time: Duration) -> Result<f64> {
    Ok(jain(&Hogs::start(count)?.work_in(time)))
}

/// How exactly two threads of unequal weight share a CPU by it: 1 is exactly, whichever gets more
/// than it should.
///
/// # Errors
/// A thread cannot be started, pinned or made less important.
pub fn weights(cpu: u32, time: Duration) -> Result<f64> {
    let hogs = Hogs::start(2)?;
    let mut only = CpuSet::new();
    only.insert(cpu);
    for ((_, _, tid), nice) in hogs.threads.iter().zip([0, NICE]) {
        affinity::set(*tid, &only)?;
        // SAFETY: takes plain numbers; the thread lives as long as `hogs`.
        if unsafe { libc::setpriority(libc::PRIO_PROCESS, *tid as u32, nice) } != 0 {
            return Err(std::io::Error::last_os_error()).context("cannot set a nice value");
        }
    }
    let work = hogs.work_in(time);
    Ok(exactness(work[0] / work[1], WEIGHTS))
}

/// Jain's fairness index: 1 if all are alike, 1 / n if one has all; 0 if all have nothing.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 0.0 }
}

/// The smaller of two numbers / the larger.
fn exactness(found: f64, wanted: f64) -> f64 {
    (found / wanted).min(wanted / found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_by_hand() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[4.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn too_much_counts_as_too_little() {
        assert!((exactness(2.0, 4.0) - 0.5).abs() < 1e-12);
        assert!((exactness(8.0, 4.0) - 0.5).abs() < 1e-12);
        assert_eq!(exactness(3.0, 3.0), 1.0);
        // One that got nothing.
        assert_eq!(exactness(f64::INFINITY, 3.0), 0.0);
    }

    #[test]
    fn hogs_work_and_end() {
        let hogs = Hogs::start(2).unwrap();
        let mut patience = 1000;
        while hogs.work_in(Duration::from_millis(1)).contains(&0.0) {
            patience -= 1;
            assert!(patience > 0, "a busy thread does nothing");
        }
        let counts: Vec<_> = hogs.threads.iter().map(|(_, rounds, _)| Arc::clone(rounds)).collect();
        drop(hogs);
        for rounds in counts {
            assert_eq!(Arc::strong_count(&rounds), 1, "a busy thread still has its count");
        }
    }
}
