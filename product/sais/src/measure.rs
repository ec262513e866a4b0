//! What the paper's analysis and `--policy auto` start from, measured on this machine: M, the time that
//! it takes to bring a strip from another core's cache, and what handing one over to a thread on
//! another core takes. P, the time that processing a strip's interrupts takes, is measured by
//! `softirq`.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_journal::affinity;
use evenkeel_machine::{CpuSet, Machine};
use evenkeel_stats::median;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The paper's strip, in bytes.
pub const STRIP_BYTES: usize = 64 * 1024;
/// Each figure is the median of so many times, or of what fits into [`LIMIT`].
pub(crate) const TIMES: usize = 300;
/// Nothing takes longer on a machine that has time for it.
pub(crate) const LIMIT: Duration = Duration::from_millis(200);
/// How often a thread looks before it lets others run.
const LOOKS: u32 = 1000;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A thread may not run where it has to.
    #[error("the caches cannot be measured: {0}")]
    Affinity(#[from] evenkeel_journal::AffinityError),
    /// The kernel refused.
    #[error("handing over cannot be measured: {0}")]
    Pipe(#[from] io::Error),
    /// Interrupt processing cannot be measured.
    #[error("the interrupt processing of a strip cannot be measured: {0}")]
    Process(String),
    /// The machine has no time.
    #[error("the caches cannot be measured: CPUs {first} and {second} never ran at the same time")]
    Busy {
        /// One.
        first: u32,
        /// The other.
        second: u32,
    },
}

/// Times of a strip on this machine, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StripTimes {
    /// P: the softirqs of receiving one; `None` where it was not measured.
    pub process_us: Option<f64>,
    /// M between cores that share a cache; `None` where no two do.
    pub within_us: Option<f64>,
    /// M between cores that share none; `None` where all do.
    pub across_us: Option<f64>,
    /// Handing one over to a thread on another core that shares a cache; `None` where none does.
    pub hand_over_within_us: Option<f64>,
    /// The same for a core that shares none.
    pub hand_over_across_us: Option<f64>,
}

impl StripTimes {
    /// Measures all but P, in less than two seconds, between CPUs of `cpus`.
    ///
    /// # Errors
    /// All of [`MeasureError`].
    pub fn measure(machine: &Machine, cpus: &CpuSet) -> Result<Self, MeasureError> {
        let online = machine.cpus.iter().filter(|cpu| cpu.online && cpus.contains(cpu.id));
        let cpus: Vec<_> = online.collect();
        let pair = |is_shared: bool| {
            let mut pairs = cpus.iter().flat_map(|a| cpus.iter().map(move |b| (a, b)));
            pairs
                .find(|(a, b)| a.core < b.core && (a.llc == b.llc) == is_shared)
                .map(|(a, b)| (a.id, b.id))
        };
        let Some(first) = cpus.first() else { return Ok(Self::default()) };
        let read_us = own_us(first.id)?;
        let fetch_us = |pair: Option<(u32, u32)>| -> Result<Option<f64>, MeasureError> {
            let Some((from, to)) = pair else { return Ok(None) };
            Ok(Some((fetched_us(from, to)? - read_us).max(0.0)))
        };
        let hand_over = |pair: Option<(u32, u32)>| -> Result<Option<f64>, MeasureError> {
            pair.map(|(from, to)| hand_over_us(from, to)).transpose()
        };
        let (within, across) = (pair(true), pair(false));
        Ok(Self {
            process_us: None,
            within_us: fetch_us(within)?,
            across_us: fetch_us(across)?,
            hand_over_within_us: hand_over(within)?,
            hand_over_across_us: hand_over(across)?,
        })
    }

    /// M between two cores, of which it is known whether they share a cache.
    pub fn migrate_us(&self, is_shared: bool) -> Option<f64> {
        if is_shared { self.within_us } else { self.across_us }
    }

    /// Handing over between two such cores.
    pub fn hand_over_us(&self, is_shared: bool) -> Option<f64> {
        if is_shared { self.hand_over_within_us } else { self.hand_over_across_us }
    }

    /// Whether what it costs to hand a strip over is less than what it saves.
    pub fn pays(&self, is_shared: bool) -> bool {
        let figures = self.migrate_us(is_shared).zip(self.hand_over_us(is_shared));
        figures.is_some_and(|(migrate_us, hand_over_us)| migrate_us > hand_over_us)
    }
}

pub(crate) fn run_on(cpu: u32) -> Result<(), MeasureError> {
    let just: CpuSet = [cpu].into_iter().collect();
    Ok(affinity::set(nix::unistd::gettid().as_raw(), &just)?)
}

fn strip() -> Vec<AtomicU64> {
    (0..STRIP_BYTES / size_of::<u64>()).map(|_| AtomicU64::new(0)).collect()
}

fn fill(strip: &[AtomicU64], value: u64) {
    strip.iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

/// Reads all of it; returns how long that took.
fn read_all(strip: &[AtomicU64]) -> Duration {
    let start = Instant::now();
    let sum = strip.iter().fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
    std::hint::black_box(sum);
    start.elapsed()
}

fn middle_us(times: &[Duration]) -> Option<f64> {
    let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    median(&times)
}

/// Reading what the core itself has just written.
fn own_us(cpu: u32) -> Result<f64, MeasureError> {
    thread::scope(|scope| {
        let work = scope.spawn(|| {
            run_on(cpu)?;
            let strip = strip();
            let round = |number| {
                fill(&strip, number);
                read_all(&strip)
            };
            let times: Vec<Duration> = (0..TIMES as u64).map(round).collect();
            middle_us(&times).ok_or(MeasureError::Busy { first: cpu, second: cpu })
        });
        work.join().unwrap_or(Err(MeasureError::Busy { first: cpu, second: cpu }))
    })
}

/// Waits for the turn of `own`; false: in vain.
fn wait_for_turn(turn: &AtomicU32, own: u32, end: Instant) -> bool {
    loop {
        for _ in 0..LOOKS {
            if turn.load(Ordering::Acquire) == own {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() > end {
            return false;
        }
        thread::yield_now();
    }
}

/// Reading what another core has just written.
fn fetched_us(from: u32, to: u32) -> Result<f64, MeasureError> {
    const WRITER: u32 = 0;
    const READER: u32 = 1;
    let (strip, turn) = (strip(), AtomicU32::new(WRITER));
    let end = Instant::now() + LIMIT;
    let busy = || MeasureError::Busy { first: from, second: to };
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            run_on(from)?;
            for number in 0..TIMES as u64 {
                if !wait_for_turn(&turn, WRITER, end) {
                    break;
                }
                fill(&strip, number);
                turn.store(READER, Ordering::Release);
            }
            Ok(())
        });
        let reader = scope.spawn(|| {
            run_on(to)?;
            let mut times = Vec::new();
            while times.len() < TIMES && wait_for_turn(&turn, READER, end) {
                times.push(read_all(&strip));
                turn.store(WRITER, Ordering::Release);
            }
            middle_us(&times).ok_or_else(busy)
        });
        writer.join().unwrap_or_else(|_| Err(busy()))?;
        reader.join().unwrap_or_else(|_| Err(busy()))
    })
}

/// Half of the way to a thread that sleeps on another core, and back.
fn hand_over_us(from: u32, to: u32) -> Result<f64, MeasureError> {
    let (mut there_out, mut there_in) = io::pipe()?;
    let (mut back_out, mut back_in) = io::pipe()?;
    let busy = || MeasureError::Busy { first: from, second: to };
    let round_trip_us = thread::scope(|scope| {
        scope.spawn(move || -> Result<(), MeasureError> {
            run_on(to)?;
            let mut byte = [0];
            // Until the other end is closed.
            while there_out.read(&mut byte)? == 1 {
                back_in.write_all(&byte)?;
            }
            Ok(())
        });
        let asker = scope.spawn(move || {
            run_on(from)?;
            let end = Instant::now() + LIMIT;
            let (mut times, mut byte) = (Vec::new(), [0]);
            while times.len() < TIMES && Instant::now() < end {
                let start = Instant::now();
                there_in.write_all(&byte)?;
                back_out.read_exact(&mut byte)?;
                times.push(start.elapsed());
            }
            middle_us(&times).ok_or_else(busy)
        });
        asker.join().unwrap_or_else(|_| Err(busy()))
    })?;
    Ok(round_trip_us / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_is_measured() {
        let machine = Machine::from_sysfs("/".as_ref()).unwrap();
        let times = StripTimes::measure(&machine, &machine.online()).unwrap();
        assert_eq!(times.process_us, None);
        // Both or neither, of cores that are two.
        assert_eq!(times.within_us.or(times.across_us).is_some(), machine.online_cores() > 1);
        for is_shared in [true, false] {
            let (migrate_us, hand_over_us) =
                (times.migrate_us(is_shared), times.hand_over_us(is_shared));
            assert_eq!(migrate_us.is_some(), hand_over_us.is_some(), "{times:?}");
            assert!(hand_over_us.is_none_or(|us| us > 0.0), "{times:?}");
        }
    }

    #[test]
    fn it_pays_where_fetching_takes_longer_than_handing_over() {
        let times = StripTimes {
            process_us: None,
            within_us: Some(3.0),
            across_us: Some(12.0),
            hand_over_within_us: Some(8.0),
            hand_over_across_us: Some(9.0),
        };
        assert!(!times.pays(true) && times.pays(false));
        assert!(!StripTimes { hand_over_across_us: None, ..times }.pays(false));
        // Each pair of cores is judged by what handing over takes between them.
        let slower = StripTimes { within_us: Some(9.0), hand_over_across_us: Some(13.0), ..times };
        assert!(slower.pays(true) && !slower.pays(false));
        assert!(!StripTimes { across_us: None, ..times }.pays(false));
    }
}
