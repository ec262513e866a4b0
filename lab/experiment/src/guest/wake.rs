//! Wake-up latency as a server feels it: a thread hands out messages, others sleep until they get
//! one, and all CPUs are busy with something else. All are ordinary tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::hogs::{Hogs, compute};

/// Messages to each receiver.
const MESSAGES: usize = 200;
/// The first ones do not count: threads that are new are still being spread.
const FIRST: usize = 20;
/// Between two rounds of messages. No divisor of a tick or a slice.
const PAUSE: Duration = Duration::from_micros(3300);
/// What a receiver does with a message, in computations of the hogs.
const WORK: u32 = 10;

/// Latencies, sorted.
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Measures the latencies of this many receivers beside as many busy threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn measure(cpus: usize) -> Result<Self> {
        let _hogs = Hogs::start(cpus)?;
        let receivers: Vec<Receiver> =
            (0..cpus).map(|_| Receiver::start()).collect::<Result<_>>()?;
        for _ in 0..MESSAGES {
            std::thread::sleep(PAUSE);
            for receiver in &receivers {
                receiver.send();
            }
        }
        let mut latencies: Vec<Duration> = receivers.into_iter().flat_map(Receiver::end).collect();
        latencies.sort_unstable();
        Ok(Self(latencies))
    }

    /// In s: so many of 100 are no longer.
    pub fn percentile(&self, percent: usize) -> Option<f64> {
        let rank = (self.0.len() * percent).div_ceil(100);
        Some(self.0.get(rank.checked_sub(1)?)?.as_secs_f64())
    }
}

/// A thread that sleeps until it gets a message.
struct Receiver {
    /// When the message was sent that has not been received yet.
    sent: Arc<Mutex<Option<Instant>>>,
    end: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Duration>>,
}

impl Receiver {
    fn start() -> Result<Self> {
        let sent = Arc::new(Mutex::new(None::<Instant>));
        let end = Arc::new(AtomicBool::new(false));
        let (taken, ended) = (Arc::clone(&sent), Arc::clone(&end));
        let (ready, is_ready) = channel();
        let thread = std::thread::Builder::new()
            .spawn(move || {
                let mut latencies = Vec::with_capacity(MESSAGES);
                // When this fails, the receiver has gone.
                let _ = ready.send(());
                while !ended.load(Ordering::Relaxed) {
                    let message = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
                    if let Some(sent) = message {
                        latencies.push(sent.elapsed());
                        (0..WORK).for_each(|_| compute());
                    } else {
                        std::thread::park();
                    }
                }
                latencies.split_off(FIRST.min(latencies.len()))
            })
            .context("cannot start a receiver")?;
        is_ready.recv().context("a receiver ended at once")?;
        Ok(Self { sent, end, thread })
    }

    /// A receiver that still has a message gets no other: the oldest one counts.
    fn send(&self) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        self.thread.thread().unpark();
    }

    fn end(self) -> Vec<Duration> {
        self.end.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_ranks() {
        let latencies = Latencies((1..=200).map(Duration::from_secs).collect());
        assert_eq!(latencies.percentile(50), Some(100.0));
        assert_eq!(latencies.percentile(99), Some(198.0));
        assert_eq!(Latencies(vec![Duration::from_secs(3)]).percentile(99), Some(3.0));
        assert_eq!(Latencies(Vec::new()).percentile(99), None);
    }

    #[test]
    fn a_receiver_takes_what_is_sent() {
        let receiver = Receiver::start().unwrap();
        for _ in 0..=FIRST {
            receiver.send();
            while receiver.sent.lock().unwrap().is_some() {
                std::thread::yield_now();
            }
        }
        assert_eq!(receiver.end().len(), 1);
    }
}
