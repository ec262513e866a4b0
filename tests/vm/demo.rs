//! `make demo-vm`: the keel beside the kernel's own scheduler, for users without a kernel that could run
//! it. It gives an impression and is no benchmark: the guest is emulated.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_journal::affinity;

use crate::Test;
use crate::scheduler::Scheduler;
use crate::storms::{Threads, set_nice};
use crate::support::{all, just};

pub const TESTS: &[Test] = &[Test { name: "keel_beside_the_kernels_own", run: show }];

/// In turns, so that what disturbs the host disturbs both.
const ROUNDS: usize = 3;

/// What one round shows.
struct Figures {
    /// Loops of all hogs together, of which there is one more than CPUs.
    work: f64,
    /// Jain's index of their loops: 1 is even, 1 / count is all for one.
    evenness: f64,
    /// What nice 0 got beside nice 5 on one CPU; by weight 3.06.
    ratio: f64,
    /// Words that two threads exchanged over pipes.
    words: f64,
}

type Figure = fn(&Figures) -> f64;

fn show() {
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (scheduler, figures) in [Scheduler::Kernel, Scheduler::Keel].iter().zip(&mut rounds) {
            scheduler.under(|| figures.push(measure()));
        }
    }
    let median = |figures: &[Figures], of: Figure| {
        let mut values: Vec<f64> = figures.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("{:44} {:>12} {:>12} {:>12}", "", "kernel", "keel", "keel/kernel");
    let rows: [(String, Figure); 4] = [
        (format!("work of {} busy threads on {} CPUs", all().len() + 1, all().len()), |f| f.work),
        ("how even their shares were (1: even)".to_owned(), |f| f.evenness),
        ("nice 0 beside nice 5 (by weight: 3.06)".to_owned(), |f| f.ratio),
        ("words that two threads exchanged".to_owned(), |f| f.words),
    ];
    for (name, of) in rows {
        let [kernel, keel] = [0, 1].map(|index| median(&rounds[index], of));
        println!("{name:44} {kernel:12.3} {keel:12.3} {:12.3}", keel / kernel);
    }
}

fn measure() -> Figures {
    let shares = loops(&vec![(0, None); all().len() + 1], Duration::from_secs(3));
    let work: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let unequal = loops(&[(0, Some(1)), (5, Some(1))], Duration::from_secs(2));
    Figures {
        work,
        evenness: work * work / (shares.len() as f64 * squares),
        ratio: unequal[0] / unequal[1],
        words: words(Duration::from_secs(1)),
    }
}

/// Hogs of these nice values, some on one CPU only; returns how often each went round.
fn loops(hogs: &[(i32, Option<u32>)], time: Duration) -> Vec<f64> {
    let mut threads = Threads::default();
    let mut counts = Vec::new();
    for (nice, cpu) in hogs {
        let count = Arc::new(AtomicU64::new(0));
        counts.push(Arc::clone(&count));
        let mut value = 1u64;
        threads.start(move || {
            for _ in 0..1000 {
                value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) + 1);
            }
            count.fetch_add(1, Ordering::Relaxed);
        });
        let tid = threads.tids[threads.tids.len() - 1];
        set_nice(tid, *nice);
        if let Some(cpu) = cpu {
            affinity::set(tid, &just(*cpu)).unwrap();
        }
    }
    let read = || counts.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = read();
    std::thread::sleep(time);
    let gone = read().iter().zip(before).map(|(now, then)| (now - then) as f64).collect();
    threads.end();
    gone
}

fn words(time: Duration) -> f64 {
    let [(from_a, to_b), (from_b, to_a)] = [0, 1].map(|_| nix::unistd::pipe().unwrap());
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let mut threads = Threads::default();
    // A thread whose pipe is closed ends, too.
    let pass = |from: OwnedFd, to: OwnedFd, count: Option<Arc<AtomicU64>>| {
        move || {
            let mut word = [0];
            if nix::unistd::read(&from, &mut word).unwrap() == 1 {
                // SAFETY: one byte that exists. (The reading end may be closed already.)
                unsafe { libc::write(to.as_raw_fd(), word.as_ptr().cast(), 1) };
                if let Some(count) = &count {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    let start = to_b.try_clone().unwrap();
    threads.start(pass(from_a, to_a, None));
    threads.start(pass(from_b, to_b, Some(counted)));
    nix::unistd::write(&start, &[1]).unwrap();
    drop(start);
    std::thread::sleep(time);
    let words = count.load(Ordering::Relaxed) as f64;
    threads.end();
    words
}
