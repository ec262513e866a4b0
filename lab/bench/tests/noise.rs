//! The noise generators on the real machine: what they say they take, what an independent
//! observer sees, and what they leave behind (nothing). Needs root; says so where it is missing.

// A test's helpers may unwrap as the tests themselves may: a panic there is the report.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::Duration;

use evenkeel_bench::verify::{self, Verified};
use evenkeel_noise::gap::{GapPriority, measure};
use evenkeel_noise::{Noise, NoiseConfig, NoiseError, NoiseKind, NoiseReport, Running};

const CPU: u32 = 0;
/// Reported, wanted and independently measured duties may differ by this much.
const MARGIN: f64 = 0.03;
const TRIES: usize = 6;
/// Names a generator for the process that is killed.
const VICTIM: &str = "EVENKEEL_TEST_VICTIM";

/// One generator at a time: they all use the same CPU.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn config(busy_us: u64, period_us: u64, limit: Duration) -> NoiseConfig {
    NoiseConfig { busy_us, period_us, limit }
}

/// `None`, and the reason on the terminal, where the privilege is missing.
fn start(kind: NoiseKind, config: NoiseConfig) -> Option<Running> {
    match Noise::start(kind, CPU, config) {
        Ok(running) => Some(running),
        Err(error) if error.is_privilege() => {
            evenkeel_skip::skip(&format!("noise {kind}"), error);
            None
        }
        Err(error) => panic!("{kind}: {error}"),
    }
}

/// The stolen share in a few short windows at real-time priority, so that other programs on the
/// machine do not count.
fn stolen() -> Result<f64, NoiseError> {
    let mut sum = 0.0;
    for _ in 0..3 {
        sum += measure(CPU, Duration::from_millis(120), GapPriority::Fifo)?.share();
        sleep(Duration::from_millis(20));
    }
    Ok(sum / 3.0)
}

/// Wanted, reported and seen duty agree; a disturbed machine gets more tries.
fn agrees(kind: NoiseKind, busy_us: u64, period_us: u64) {
    let _alone = alone();
    let config = config(busy_us, period_us, Duration::from_secs(10));
    let mut said = String::new();
    for _ in 0..TRIES {
        let Some(running) = start(kind, config) else { return };
        let noisy = stolen();
        let report = running.stop().unwrap();
        let seen = noisy.unwrap() - stolen().unwrap();
        assert_eq!((report.kind, report.cpu), (kind, CPU));
        assert!(report.seen_ns <= report.busy_ns && report.busy_ns <= report.wall_ns);
        said = format!(
            "{kind} {busy_us}/{period_us}: wanted {:.3}, reported {:.3}, seen {seen:.3}",
            config.duty(),
            report.duty
        );
        eprintln!("{said}");
        if (report.duty - config.duty()).abs() <= MARGIN && (report.duty - seen).abs() <= MARGIN {
            return;
        }
    }
    panic!("{said} in the last of {TRIES} tries");
}

#[test]
fn softirq_takes_what_it_says() {
    for (busy_us, period_us) in [(50, 100), (2_000, 4_000), (4_000, 10_000)] {
        agrees(NoiseKind::Softirq, busy_us, period_us);
    }
}

/// Interrupts so many that what they cost outside their tracepoints is a large part, and few long
/// ones; a disturbed machine gets more tries.
#[test]
fn exact_accounting_sees_what_softirqs_take() {
    let _alone = alone();
    for (busy_us, period_us) in [(50, 100), (4_000, 10_000)] {
        let mut rows = Vec::new();
        let is_right = (0..TRIES).any(|_| {
            let noises = verify::noises("softirq", Some((busy_us, period_us))).unwrap();
            let verified = verify::verify(CPU, &noises).unwrap();
            verified.said.iter().for_each(|why| evenkeel_skip::skip("noise softirq", why));
            rows.extend(verified.rows.clone());
            verified.rows.iter().all(Verified::is_right)
        });
        assert!(is_right, "{rows:?}");
    }
}

#[test]
fn fifo_takes_what_it_says() {
    for (busy_us, period_us) in [(5_000, 10_000), (300, 1_000)] {
        agrees(NoiseKind::Fifo, busy_us, period_us);
    }
}

#[test]
fn udp_takes_what_it_says() {
    for (busy_us, period_us) in [(4_000, 10_000), (1_000, 10_000), (340, 10_000)] {
        agrees(NoiseKind::Udp, busy_us, period_us);
    }
}

/// The kernel takes 50 ms at once for ordinary tasks that got less than that in a second.
#[test]
fn windows_at_real_time_priority_leave_ordinary_tasks_their_time() {
    let _alone = alone();
    let Some(hog) = start(NoiseKind::Hog, config(1, 100, Duration::from_secs(60))) else { return };
    let longest_ms = || {
        let window = || measure(CPU, Duration::from_millis(120), GapPriority::Fifo);
        let longest_ns = (0..20).map(|_| window().map(|report| report.longest_ns));
        longest_ns
            .collect::<Result<Vec<_>, _>>()
            .map(|all| all.into_iter().max().unwrap() / 1_000_000)
    };
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        match longest_ms() {
            Ok(longest_ms) => seen.push(longest_ms),
            Err(why) if why.is_privilege() => {
                let test = "windows_at_real_time_priority_leave_ordinary_tasks_their_time";
                return evenkeel_skip::skip(test, why);
            }
            Err(why) => panic!("{why}"),
        }
        if seen.last().is_some_and(|longest_ms| *longest_ms < 20) {
            hog.stop().unwrap();
            return;
        }
    }
    panic!("gaps of {seen:?} ms");
}

#[test]
fn two_hogs_share_a_cpu_like_two_users() {
    let _alone = alone();
    let mut said = String::new();
    for _ in 0..TRIES {
        let limit = Duration::from_secs(10);
        let hogs = [(); 2].map(|()| start(NoiseKind::Hog, config(1, 100, limit)).unwrap());
        sleep(Duration::from_millis(1_500));
        let [a, b] = hogs.map(|hog| hog.stop().unwrap().duty);
        said = format!("hogs got {a:.3} and {b:.3}");
        eprintln!("{said}");
        // What is missing to 1 went to other programs of the machine.
        assert!(a + b <= 1.1, "{said}");
        if (a - b).abs() <= 0.15 * a.max(b) {
            return;
        }
    }
    panic!("{said} in the last of {TRIES} tries");
}

#[test]
fn the_limit_is_kept_without_a_stop() {
    let _alone = alone();
    let limit = Duration::from_millis(200);
    for kind in NoiseKind::ALL {
        let Some(running) = start(kind, config(2_000, 10_000, limit)) else { continue };
        // Longer than the limit: only what was taken counts, not when.
        sleep(Duration::from_millis(400));
        let NoiseReport { wall_ns, busy_ns, .. } = running.stop().unwrap();
        let limit_ns = limit.as_nanos() as u64;
        assert!(busy_ns <= limit_ns + 10_000_000, "{kind} took {busy_ns} ns");
        assert!(wall_ns <= 2 * limit_ns, "{kind} ran for {wall_ns} ns");
        assert!(busy_ns > 0, "{kind} took nothing");
    }
}

/// What a generator could leave behind, anywhere on the machine: its threads and processes, its
/// BPF programs, threads in foreign network namespaces, named ones.
fn traces() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let ours =
        ["hog", "fifo", "udp", "udp-rx", "gap", "arm"].map(|name| format!("evenkeel-{name}"));
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(tasks) = fs::read_dir(process.path().join("task")) else { continue };
        for task in tasks.flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // Ended, and its new parent does not ask: not every adopter does.
            let is_zombie = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
            if !is_zombie && ours.iter().any(|our| our == name.trim()) {
                found.insert(format!("task {:?} {}", task.file_name(), name.trim()));
            }
        }
    }
    for program in libbpf_rs::query::ProgInfoIter::default() {
        if ["arm", "disarm"].iter().any(|name| program.name.to_str() == Some(name)) {
            found.insert(format!("BPF program {} {:?}", program.id, program.name));
        }
    }
    for named in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        found.insert(format!("network namespace {:?}", named.file_name()));
    }
    found
}

/// The kernel takes things down a moment after their process.
fn assert_no_trace(before: &BTreeSet<String>, kind: NoiseKind) {
    let mut left = Vec::new();
    for _ in 0..100 {
        left = traces().difference(before).cloned().collect::<Vec<_>>();
        if left.is_empty() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("{kind} left behind: {left:?}");
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn affinity() -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap().to_owned()
}

#[test]
fn nothing_remains_after_a_stop_or_a_drop() {
    let _alone = alone();
    // libbpf keeps a few descriptors of its own from the first use on.
    drop(start(NoiseKind::Softirq, config(2_000, 10_000, Duration::from_secs(5))));
    let (before, open, pinned) = (traces(), descriptors(), affinity());
    for kind in NoiseKind::ALL {
        for stop in [true, false] {
            let limit = Duration::from_secs(5);
            let Some(running) = start(kind, config(2_000, 10_000, limit)) else { continue };
            assert!(!traces().is_subset(&before), "{kind}: this test sees nothing");
            if stop {
                running.stop().unwrap();
            } else {
                drop(running);
            }
            assert_no_trace(&before, kind);
            assert_eq!(descriptors(), open, "{kind} leaves descriptors open");
            assert_eq!(affinity(), pinned, "{kind} leaves the caller pinned");
        }
    }
}

/// Not a test of its own: the process that is killed below.
#[test]
fn victim() {
    let Ok(name) = std::env::var(VICTIM) else { return };
    let kind: NoiseKind = name.parse().unwrap();
    let running = start(kind, config(2_000, 10_000, Duration::from_secs(30)));
    println!("\n{}", if running.is_some() { "started" } else { "skipped" });
    sleep(Duration::from_secs(30));
}

#[test]
fn nothing_remains_after_sigkill() {
    let _alone = alone();
    for kind in NoiseKind::ALL {
        let before = traces();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture"])
            .env(VICTIM, kind.name())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let word = lines.map_while(Result::ok).find(|line| line == "started" || line == "skipped");
        let traced = !traces().is_subset(&before);
        victim.kill().unwrap();
        victim.wait().unwrap();
        match word.as_deref() {
            Some("started") => assert!(traced, "{kind}: this test sees nothing"),
            Some(_) => continue,
            None => panic!("{kind} did not start"),
        }
        assert_no_trace(&before, kind);
        // Any kind but the hog needs the privilege that this look needs too.
        if kind != NoiseKind::Hog {
            let quiet = (0..TRIES).any(|_| stolen().unwrap() < 0.1);
            assert!(quiet, "{kind} still takes time");
        }
    }
}
