//! `evenkeel run` loads nothing before something tells that the CPUs are unequal. The files that tell it
//! are the test's own, mounted over those of /proc: what else runs on the machine is not seen.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};
use serde_json::Value;

use crate::hotplug::cover;
use crate::kill_moments::{Left, undo_all};
use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// A file that a command sees in place of the system's.
struct Own {
    file: File,
    ours: CString,
    theirs: &'static CStr,
}

impl Own {
    fn new(host: &Host, theirs: &'static CStr, text: &str) -> Self {
        let path = host.path(&theirs.to_str().unwrap().replace('/', "-"));
        let own = Self {
            file: File::create(&path).unwrap(),
            ours: CString::new(path.as_os_str().as_bytes()).unwrap(),
            theirs,
        };
        own.set(text);
        own
    }

    /// Writes the text in one piece of fixed length, so that a reader never sees a part of it.
    fn set(&self, text: &str) {
        self.file.write_all_at(format!("{text:<1000}\n").as_bytes(), 0).unwrap();
    }

    fn show_to(&self, command: &mut Command) {
        cover(command, &self.ours, self.theirs);
    }
}

/// All files in which signs are found.
struct Files {
    softirqs: Own,
    stat: Own,
    pressure: Own,
    cpus: [u32; 2],
}

impl Files {
    /// Of two equal CPUs that lose nothing.
    fn new(host: &Host, x: u32, y: u32) -> Self {
        let files = Self {
            softirqs: Own::new(host, c"/proc/softirqs", ""),
            stat: Own::new(host, c"/proc/stat", ""),
            pressure: Own::new(host, c"/proc/pressure/cpu", ""),
            cpus: [x, y],
        };
        files.set_softirqs(1000);
        files.set_stat(1000);
        files.set_pressure(1000);
        files
    }

    /// Softirqs of the second CPU.
    fn set_softirqs(&self, count: u64) {
        let [x, y] = self.cpus;
        self.softirqs.set(&format!("  CPU{x} CPU{y}\nTIMER: 5 9000\nNET_RX: 1000 {count}\n"));
    }

    /// Ticks that softirqs took of the second CPU.
    fn set_stat(&self, ticks: u64) {
        let [x, y] = self.cpus;
        let (ours, theirs) = ("9 0 9 9 9 0 1000 0 0 0", format!("9 0 9 9 9 0 {ticks} 0 0 0"));
        self.stat.set(&format!("cpu  9 0 9 9 9 0 0 0 0 0\ncpu{x} {ours}\ncpu{y} {theirs}\n"));
    }

    /// How long tasks waited for a CPU, in µs.
    fn set_pressure(&self, waited_us: u64) {
        let line = format!("avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}");
        self.pressure.set(&format!("some {line}\nfull {line}\n"));
    }

    fn show_to(&self, command: &mut Command) {
        for own in [&self.softirqs, &self.stat, &self.pressure] {
            own.show_to(command);
        }
    }
}

/// How many BPF programs, maps and links a process holds.
pub fn bpf_of(pid: i32) -> usize {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("bpf")).count()
}

/// What the status says of the only run, once it is published.
fn status(host: &Host) -> Value {
    wait_for("the status", || host.status().len() == 1);
    host.status().remove(0)
}

/// A worker with two busy threads under `evenkeel run`, all defaults.
fn start(host: &Host, flags: &[&str], show: impl Fn(&mut Command)) -> Worker {
    let path = host.path("json");
    let flags = [&["-v", "--json", path.to_str().unwrap()], flags].concat();
    let mut command = host.run(&flags, &role("worker"));
    show(&mut command);
    Worker::start_by(command.stderr(Stdio::piped()), 2)
}

/// Lets it end. Returns what evenkeel said, and the summary.
fn end(host: &Host, mut worker: Worker) -> (String, Value) {
    worker.let_end();
    let mut said = String::new();
    let mut stderr = worker.evenkeel.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert!(worker.end().success(), "{said}");
    (said, serde_json::from_slice(&std::fs::read(host.path("json")).unwrap()).unwrap())
}

/// Waits until the run is accounted: exactly, where that can be.
fn wait_accounted(host: &Host, worker: &Worker) {
    wait_for("intervals", || status(host)["intervals"].as_u64() > Some(0));
    let accounting = status(host)["accounting"].clone();
    match evenkeel_cbinfo::support() {
        Ok(()) => {
            assert_eq!(accounting, "cbinfo");
            assert!(bpf_of(worker.pid_of_evenkeel()) > 0);
        }
        Err(_) => assert_eq!(accounting, "procfs"),
    }
}

#[test]
fn nothing_is_loaded_while_the_cpus_look_alike() {
    let test = "nothing_is_loaded_while_the_cpus_look_alike";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    let host = Host::new();
    let files = Files::new(&host, x, y);
    let worker = start(&host, &[], |command| files.show_to(command));
    let listed = status(&host);
    // Looks after 0.4 s are a second apart.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(listed["accounting"], "none", "{listed}");
    assert_eq!((&listed["root"], &listed["intervals"]), (&worker.pid.into(), &0.into()));
    assert_eq!(status(&host)["accounting"], "none");
    assert_eq!(bpf_of(worker.pid_of_evenkeel()), 0);
    assert!(host.journals().is_empty(), "there is nothing to write down");
    for command in ["status", "explain"] {
        let said = text(&output(&mut host.evenkeel([command])).stdout);
        assert!(said.contains("the CPUs look alike, so nothing is loaded"), "{said}");
    }
    let (said, summary) = end(&host, worker);
    assert!(said.starts_with("evenkeel: the CPUs looked alike for "), "{said}");
    assert!(said.ends_with(" s: nothing was loaded, nothing moved\n"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(summary["accounting"], "none");
    assert_eq!(summary["alike_ns"], summary["elapsed_ns"]);
    for zero in ["moves", "intervals", "own_cpu_ns"] {
        assert_eq!(summary[zero], 0, "{summary}");
    }
    assert!(summary["sign"].is_null() && summary["cpus"] == serde_json::json!([]), "{summary}");
}

#[test]
fn each_sign_makes_a_run_observe() {
    let test = "each_sign_makes_a_run_observe";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    let softirqs = format!("softirqs of CPU {y} and {x} differ by ");
    let stat = format!("more of CPU {y} than of CPU {x}");
    type Change = fn(&Files);
    let signs: [(Change, &str); 3] = [
        (|files| files.set_softirqs(1_000_000), &softirqs),
        (|files| files.set_stat(100_000), &stat),
        (|files| files.set_pressure(100_000_000), "tasks waited for a CPU "),
    ];
    for (make_unequal, expected) in signs {
        let host = Host::new();
        let files = Files::new(&host, x, y);
        let worker = start(&host, &[], |command| files.show_to(command));
        assert_eq!(status(&host)["accounting"], "none");
        assert_eq!(bpf_of(worker.pid_of_evenkeel()), 0);
        make_unequal(&files);
        wait_accounted(&host, &worker);
        let (said, summary) = end(&host, worker);
        let sign = summary["sign"].as_str().unwrap();
        assert!(sign.contains(expected), "{sign}");
        assert!(said.contains(&format!("the CPUs are taken for unequal: {sign}")), "{said}");
        let alike_ns = summary["alike_ns"].as_u64().unwrap();
        assert!(alike_ns > 0 && alike_ns < summary["elapsed_ns"].as_u64().unwrap(), "{summary}");
    }
}

/// A run of a worker with barriers that come too often, which rests from the first sign on.
fn resting_at_once(test: &str) -> Option<(Host, Worker, Files)> {
    let (x, y) = two_cpus(test).filter(|_| needs_root(test))?;
    if let Err(why) = evenkeel_cbinfo::support() {
        evenkeel_skip::skip(test, why);
        return None;
    }
    // On a busy machine a task may compute nothing in a window, and then all is loaded.
    for _ in 0..10 {
        let host = Host::new();
        let files = Files::new(&host, x, y);
        let mut worker = start(&host, &[], |command| files.show_to(command));
        assert_eq!(status(&host)["accounting"], "none");
        worker.ask("barriers", "barriers");
        files.set_softirqs(1_000_000);
        let is_accounted = || status(&host)["intervals"].as_u64() > Some(0);
        wait_for("a rest, or figures", || status(&host)["resting"] == true || is_accounted());
        if !is_accounted() {
            return Some((host, worker, files));
        }
        end(&host, worker);
    }
    panic!("no run of ten rests");
}

/// To load it would cost more than could be gained. After a while it is looked at all the same.
#[test]
fn nothing_is_loaded_where_barriers_come_too_often() {
    let test = "nothing_is_loaded_where_barriers_come_too_often";
    let Some((host, worker, _files)) = resting_at_once(test) else { return };
    assert_eq!(bpf_of(worker.pid_of_evenkeel()), 0);
    let listed = status(&host);
    assert_eq!((&listed["accounting"], &listed["intervals"]), (&"none".into(), &0.into()));
    assert!(listed["waits"]["barriers"]["count"].as_u64() >= Some(5), "{listed}");
    assert!(host.journals().is_empty(), "there is nothing to write down");
    let said = text(&output(&mut host.evenkeel(["status"])).stdout);
    assert!(said.contains("too often for moves to help, so nothing is loaded"), "{said}");
    wait_for("figures", || status(&host)["accounting"] == "cbinfo");
    let (said, summary) = end(&host, worker);
    assert!(said.contains("too often for moves to help, so nothing is loaded"), "{said}");
    assert!(summary["rested_ns"].as_u64() > Some(0), "{summary}");
    assert!(summary["alike_ns"].as_u64() < summary["elapsed_ns"].as_u64(), "{summary}");
}

#[test]
fn a_rest_ends_soon_after_barriers_have_become_rare() {
    let test = "a_rest_ends_soon_after_barriers_have_become_rare";
    let Some((host, mut worker, _files)) = resting_at_once(test) else { return };
    worker.tell("work");
    wait_for("figures", || status(&host)["accounting"] == "cbinfo");
    let (_, summary) = end(&host, worker);
    assert!(summary["rested_ns"].as_u64() > Some(0), "{summary}");
}

#[test]
fn a_run_that_ends_in_a_first_rest_says_why_nothing_was_loaded() {
    let test = "a_run_that_ends_in_a_first_rest_says_why_nothing_was_loaded";
    let Some((host, worker, _files)) = resting_at_once(test) else { return };
    let (said, summary) = end(&host, worker);
    assert!(said.contains("evenkeel: no moves: the tasks wait for each other every "), "{said}");
    assert!(said.contains("too often for moves to help; nothing was loaded for "), "{said}");
    assert_eq!((&summary["accounting"], &summary["moves"]), (&"none".into(), &0.into()));
    let reason = summary["reason"].as_str().unwrap();
    assert!(reason.contains("too often"), "{summary}");
}

/// What a sign has loaded does not stay loaded for ever: on one CPU there is nothing to balance, however
/// busy this machine is. The next sign is seen.
#[test]
fn nothing_stays_loaded_where_there_is_nothing_to_balance() {
    let test = "nothing_stays_loaded_where_there_is_nothing_to_balance";
    let host = Host::new();
    let Some((worker, files, _)) = resting(test, &host) else { return };
    let is_resting = || host.status().first().is_some_and(|run| run["resting"] == true);
    assert_eq!(bpf_of(worker.pid_of_evenkeel()), 0);
    // It does not end by itself: looks are a second apart.
    std::thread::sleep(Duration::from_secs(3));
    assert!(is_resting());
    files.set_pressure(200_000_000);
    wait_for("the end of the rest", || !is_resting());
    assert!(bpf_of(worker.pid_of_evenkeel()) > 0);
    let (said, summary) = end(&host, worker);
    assert!(said.contains("the CPUs are looked at again: tasks waited for a CPU"), "{said}");
    assert!(summary["rested_ns"].as_u64() >= Some(3_000_000_000), "{summary}");
}

/// A worker under a run that rests, since it has one CPU; the files that wake it; and another CPU.
fn resting(test: &str, host: &Host) -> Option<(Worker, Files, u32)> {
    let accounted = soon_resting(test, host)?;
    wait_for("a rest", || host.status().first().is_some_and(|run| run["resting"] == true));
    Some(accounted)
}

/// The same before the rest.
fn soon_resting(test: &str, host: &Host) -> Option<(Worker, Files, u32)> {
    let (x, y) = two_cpus(test).filter(|_| needs_root(test))?;
    if let Err(why) = evenkeel_cbinfo::support() {
        evenkeel_skip::skip(test, why);
        return None;
    }
    let files = Files::new(host, x, y);
    let x = x.to_string();
    let worker = start(host, &["--cpus", &x], |command| files.show_to(command));
    assert_eq!(status(host)["accounting"], "none");
    files.set_pressure(100_000_000);
    wait_accounted(host, &worker);
    Some((worker, files, y))
}

#[test]
fn a_run_that_is_killed_while_it_rests_leaves_nothing() {
    let host = Host::new();
    let (before, left) = (host.processes(), Left::now());
    let test = "a_run_that_is_killed_while_it_rests_leaves_nothing";
    let Some((mut worker, ..)) = resting(test, &host) else {
        return;
    };
    worker.kill_evenkeel();
    undo_all(&host, true);
    assert!(worker.is_as(&all()), "the threads have other CPUs than before");
    worker.let_end();
    wait_for("the end of the program", || host.processes().is_subset(&before));
    assert!(host.status().is_empty());
    left.wait_as_before();
}

/// Nothing is observed during a rest: what the user does then is seen when it ends, and stays.
#[test]
fn a_mask_that_is_set_during_a_rest_stays() {
    let host = Host::new();
    let test = "a_mask_that_is_set_during_a_rest_stays";
    let Some((worker, files, y)) = resting(test, &host) else {
        return;
    };
    let first = worker.threads[0];
    affinity::set(first, &CpuSet::from_iter([y])).unwrap();
    files.set_pressure(200_000_000);
    wait_for("the end of the rest", || {
        host.status().first().is_some_and(|run| run["resting"] == false)
    });
    let intervals = status(&host)["intervals"].as_u64();
    wait_for("looks after the rest", || {
        status(&host)["intervals"].as_u64() > intervals.map(|n| n + 3)
    });
    assert_eq!(mask(first), CpuSet::from_iter([y]));
    end(&host, worker);
}

/// It is no descendant of the program's first process any more.
#[test]
fn a_process_that_lost_its_parent_is_followed_after_a_rest() {
    let host = Host::new();
    let test = "a_process_that_lost_its_parent_is_followed_after_a_rest";
    let Some((mut worker, files, _)) = soon_resting(test, &host) else { return };
    let fork_twice = "spawn sleep 600 >/dev/null 2>&1 & echo $!";
    let orphan: i32 = worker.ask(fork_twice, "printed").parse().unwrap();
    let is_followed = |run: &Value| {
        let threads = run["threads"].as_array().cloned().unwrap_or_default();
        threads.iter().any(|thread| thread["tid"] == orphan)
    };
    wait_for("the orphan among the threads", || is_followed(&status(&host)));
    wait_for("a rest", || status(&host)["resting"] == true);
    let intervals = status(&host)["intervals"].as_u64();
    files.set_pressure(200_000_000);
    wait_for("looks after the rest", || {
        status(&host)["intervals"].as_u64() > intervals.map(|n| n + 3)
    });
    let run = status(&host);
    kill(orphan, libc::SIGKILL);
    end(&host, worker);
    assert!(is_followed(&run), "{run}");
}

#[test]
fn what_a_program_forked_before_a_sign_is_followed() {
    let test = "what_a_program_forked_before_a_sign_is_followed";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    if let Err(why) = evenkeel_cbinfo::support() {
        return evenkeel_skip::skip(test, why);
    }
    let host = Host::new();
    let files = Files::new(&host, x, y);
    let endless = "sh -c 'echo $$; while :; do :; done' & wait";
    let mut command = host.run(&["-q"], &["sh", "-c", endless]);
    files.show_to(&mut command);
    let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = crate::worker::lines_of(run.stdout.take().unwrap());
    let child: i32 = lines.recv_timeout(PATIENCE).unwrap().parse().unwrap();
    assert_eq!(status(&host)["accounting"], "none");
    files.set_softirqs(1_000_000);
    wait_for("the child among the threads that are followed", || {
        let threads = status(&host)["threads"].as_array().cloned().unwrap_or_default();
        threads.iter().any(|thread| thread["tid"] == child)
    });
    kill(child, libc::SIGTERM);
    assert!(ended(&mut run).success());
}

#[test]
fn what_asks_for_figures_has_them_at_once() {
    let test = "what_asks_for_figures_has_them_at_once";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    let speeds = format!("{x}=1.0,{y}=0.9");
    for flags in [
        &["--dry-run"][..],
        &["--explain"],
        &["--policy", "paper"],
        &["--accounting", "procfs"],
        &["--speed", &speeds],
    ] {
        let host = Host::new();
        let files = Files::new(&host, x, y);
        let worker = start(&host, flags, |command| files.show_to(command));
        wait_for("intervals", || status(&host)["intervals"].as_u64() > Some(0));
        let (_, summary) = end(&host, worker);
        let expected = flags[0] == "--speed";
        assert_eq!(summary["sign"].is_string(), expected, "{flags:?}: {}", summary["sign"]);
    }
}

#[test]
fn where_signs_cannot_be_read_a_run_observes_at_once() {
    let test = "where_signs_cannot_be_read_a_run_observes_at_once";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    for name in [c"/proc/softirqs", c"/proc/stat", c"/proc/pressure/cpu"] {
        let host = Host::new();
        let files = Files::new(&host, x, y);
        let worker = start(&host, &[], |command| {
            files.show_to(command);
            cover(command, c"/dev/null", name);
        });
        wait_accounted(&host, &worker);
        let (_, summary) = end(&host, worker);
        let sign = summary["sign"].as_str().unwrap();
        let expected = format!("{}: ", name.to_str().unwrap());
        assert!(sign.starts_with(&expected) && sign.contains("cannot be told"), "{sign}");
    }
}

/// The same by what really happens: of the files, only those are the test's in which another kind of
/// noise may be seen.
#[test]
fn real_noise_is_a_sign() {
    let test = "real_noise_is_a_sign";
    let Some((x, y)) = two_cpus(test).filter(|_| needs_root(test)) else { return };
    let limit = Duration::from_secs(60);
    for (kind, busy_us, period_us) in
        [(NoiseKind::Softirq, 100, 1000), (NoiseKind::Fifo, 2000, 10_000)]
    {
        let host = Host::alone();
        let files = Files::new(&host, x, y);
        let noise = match Noise::start(kind, x, NoiseConfig { busy_us, period_us, limit }) {
            Ok(noise) => noise,
            Err(why) if why.is_privilege() => return evenkeel_skip::skip(test, why),
            Err(why) => panic!("{why}"),
        };
        let worker = start(&host, &[], |command| match kind {
            NoiseKind::Softirq => files.pressure.show_to(command),
            _ => [&files.softirqs, &files.stat].into_iter().for_each(|own| own.show_to(command)),
        });
        wait_accounted(&host, &worker);
        let (_, summary) = end(&host, worker);
        noise.stop().unwrap();
        let sign = summary["sign"].as_str().unwrap();
        let expected = if kind == NoiseKind::Softirq { "softirq" } else { "tasks waited" };
        assert!(sign.starts_with(expected), "{kind}: {sign}");
    }
}
