//! What a round of `irq run` costs where there is nothing to move: counted, not timed. Needs root.
//!
//! `cargo test --locked -p evenkeel-irq --test rest -- --nocapture` prints the CPU time of such a round.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::time::Duration;

use evenkeel_irq::{Aim, Observer, Originals, Snapshot};
use evenkeel_machine::CpuSet;
use nix::time::{ClockId, clock_gettime};

/// Time between two rounds here. (`irq run` has 3 s.)
const INTERVAL: Duration = Duration::from_millis(100);
const ROUNDS: usize = 20;
/// A busy host is waited for until so many rounds are over.
const MOST_ROUNDS: usize = 300;
/// One of this test itself, and the list of kernel threads: one for each 4 KiB, and one that finds its
/// end.
const MOST_READS: u64 = 6;

/// A file of this thread, by one read.
fn own_file(name: &str) -> String {
    let mut bytes = [0; 1024];
    let mut file = std::fs::File::open(format!("/proc/thread-self/{name}")).unwrap();
    let length = file.read(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

/// How often this thread has read from files.
fn reads() -> u64 {
    let counts = own_file("io");
    let line = counts.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
    line.parse().unwrap()
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The largest share that interrupts took of a CPU, in percent.
fn largest_pct(snapshot: &Snapshot) -> f64 {
    let largest_ns = snapshot.loads().into_values().max().unwrap_or(0);
    snapshot.percent(largest_ns)
}

/// A round with something to do reads each busy line, and one that looks at every process reads as many
/// files as there are processes. The quietest round counts: a kernel thread may be new in another.
#[test]
fn a_round_at_rest_reads_next_to_nothing() {
    const TEST: &str = "a_round_at_rest_reads_next_to_nothing";
    if !nix::unistd::geteuid().is_root() {
        evenkeel_skip::skip(TEST, "it needs root");
        return;
    }
    let mut observer = Observer::start(Aim::Level).unwrap();
    if let Some(why) = observer.unmeasured() {
        evenkeel_skip::skip(TEST, why);
        return;
    }
    let (none, originals) = (CpuSet::new(), Originals::default());
    let mut rounds = Vec::new();
    for _ in 0..MOST_ROUNDS {
        if rounds.len() >= ROUNDS {
            break;
        }
        std::thread::sleep(INTERVAL);
        let before = (reads(), cpu_time());
        let seen = observer.observe(&none, &originals).unwrap();
        let after = (reads(), cpu_time());
        match seen {
            None => rounds.push((after.0 - before.0, after.1 - before.1)),
            Some(snapshot) => {
                let largest_pct = largest_pct(&snapshot);
                assert!(largest_pct > 1.0, "read whole, though interrupts took {largest_pct:.2} %");
            }
        }
    }
    let Some(least) = rounds.iter().map(|(reads, _)| *reads).min() else {
        evenkeel_skip::skip(TEST, "this host is not at rest");
        return;
    };
    let mut times: Vec<Duration> = rounds.iter().map(|(_, time)| *time).collect();
    times.sort();
    let middle = times[times.len() / 2];
    let share_pct = middle.as_secs_f64() / 3.0 * 100.0;
    println!("a round at rest: {least} reads, {middle:?} of CPU time: {share_pct:.4} % every 3 s");
    assert!(least <= MOST_READS, "{rounds:?}");
}
