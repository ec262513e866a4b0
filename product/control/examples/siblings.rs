//! A program that asks the keel to aggregate its own threads while they work: they run one after the
//! other on a CPU, and at the same time on CPUs that share a cache. Run it by
//! `cargo run -p evenkeel-control --example siblings`.

use std::thread;

use evenkeel_control::{AskError, Ias};

fn main() -> Result<(), AskError> {
    let keel = Ias::default();
    let own = std::process::id();
    // The bonus is 3 times the last run on the CPU, without a limit in a row.
    keel.set_ias_agg(own, 1, 1, 3, 0)?;
    let sum = |from: u64| (from..from + 100_000_000).fold(0_u64, u64::wrapping_add);
    let threads: Vec<_> = (0..4).map(|at| thread::spawn(move || sum(at))).collect();
    for (at, thread) in threads.into_iter().enumerate() {
        println!("thread {at}: {:?}", thread.join());
    }
    keel.set_ias_agg(own, 0, 0, 0, 0)
}
