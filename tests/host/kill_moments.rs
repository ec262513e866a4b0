//! Kills evenkeel at random moments, with and without other load. Afterwards all is as before: the
//! affinity of each thread, BPF links, pinned objects and namespaces. (`kill_points` kills at each step
//! in turn; these moments lie between the steps, too.)
//!
//! EVENKEEL_KILLS says how often each command is killed (20; `make kill-soak`: 200), half of that under
//! load; EVENKEEL_KILL_SEED says when.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_journal::affinity;

use crate::roles::role;
use crate::running_daemon::{Daemon, lone_worker};
use crate::support::*;
use crate::worker::lines_of;

/// From the start of a command to the last moment at which it is killed.
const LONGEST: Duration = Duration::from_millis(1500);

/// The random moments of a test: the same for the same seed.
pub struct Moments {
    state: u64,
    is_first: bool,
    pub kills: usize,
}

impl Moments {
    pub fn of(test: &str) -> Self {
        let number = |name: &str, default: u64| {
            std::env::var(name).map_or(default, |value| value.parse().unwrap())
        };
        let seed = number("EVENKEEL_KILL_SEED", 1);
        let name = test.bytes().fold(0u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
        println!("{test}: EVENKEEL_KILL_SEED={seed}");
        // The other half is of another test.
        let kills = number("EVENKEEL_KILLS", 20).div_ceil(2) as usize;
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ name, is_first: true, kills }
    }

    /// The next number below `end` (splitmix64).
    pub fn next(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.next(values.len() as u64) as usize]
    }

    /// Waits until the next moment; before the first one of all, until `is_changed`: once at least,
    /// there is something to undo.
    pub fn wait(&mut self, is_changed: Option<&dyn Fn() -> bool>) {
        if let (true, Some(is_changed)) = (std::mem::take(&mut self.is_first), is_changed) {
            return wait_for("a change", is_changed);
        }
        std::thread::sleep(Duration::from_micros(self.next(LONGEST.as_micros() as u64)));
    }
}

/// What outlives the processes that made it: nothing of that may be evenkeel's. (Other tests run
/// meanwhile, so what a living process holds is not counted.)
#[derive(Debug)]
pub struct Left {
    /// BPF links that no process holds.
    links: BTreeSet<u32>,
    /// Objects pinned in the BPF file system.
    pinned: BTreeSet<PathBuf>,
    /// Mounts that keep a namespace.
    namespaces: BTreeSet<String>,
}

impl Left {
    pub fn now() -> Self {
        let links = links();
        let held = held_links();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let namespaces = mounts.lines().filter(|line| line.contains(" - nsfs ")).map(str::to_owned);
        Self {
            links: links.difference(&held).copied().collect(),
            pinned: files_below(Path::new("/sys/fs/bpf")),
            namespaces: namespaces.collect(),
        }
    }

    /// Waits until nothing is left that came since: the kernel ends some things a moment after the
    /// process.
    pub fn wait_as_before(&self) {
        wait_for("the end of all that a killed process had", || {
            let now = Self::now();
            now.links.is_subset(&self.links)
                && now.pinned.is_subset(&self.pinned)
                && now.namespaces.is_subset(&self.namespaces)
        });
    }
}

/// The numbers of all BPF links: attached programs.
fn links() -> BTreeSet<u32> {
    /// linux/bpf.h: `BPF_LINK_GET_NEXT_ID`.
    const NEXT_LINK: i32 = 31;
    let mut links = BTreeSet::new();
    // `start_id`, `next_id`, and what a later kernel may read.
    let mut request = [0u32; 32];
    loop {
        let size = size_of_val(&request);
        // SAFETY: the kernel reads and writes the request, which lives across the call.
        let result = unsafe { libc::syscall(libc::SYS_bpf, NEXT_LINK, &raw mut request, size) };
        if result != 0 {
            return links;
        }
        links.insert(request[1]);
        request[0] = request[1];
    }
}

/// Those that processes hold by a descriptor.
fn held_links() -> BTreeSet<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.flat_map(|process| {
        std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten()
    });
    let links = descriptors.filter(|descriptor| {
        std::fs::read_link(descriptor.path())
            .is_ok_and(|path| path.to_string_lossy().contains("bpf_link"))
    });
    let id = |descriptor: std::fs::DirEntry| {
        let process = descriptor.path().parent()?.parent()?.to_owned();
        let info = std::fs::read_to_string(process.join("fdinfo").join(descriptor.file_name()));
        let id =
            info.ok()?.lines().find_map(|line| Some(line.strip_prefix("link_id:")?.to_owned()));
        id?.trim().parse().ok()
    };
    links.filter_map(id).collect()
}

fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        }
        files.insert(path);
    }
    files
}

/// The threads of this test's processes that have not all CPUs.
fn pinned_threads(host: &Host) -> Vec<i32> {
    let threads = host.processes().into_iter().flat_map(|pid| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok())
    });
    threads.filter(|tid| affinity::get(*tid).is_ok_and(|mask| mask != all())).collect()
}

/// What has to be undone is undone: by the supervisor, if there is one, and by `evenkeel undo`.
pub fn undo_all(host: &Host, is_supervised: bool) {
    if is_supervised {
        // A process that was killed before it had a supervisor leaves a journal without a change.
        wait_for("the supervisor", || host.journals().is_empty() || host.pins().is_empty());
    }
    let report = host.undo();
    for part in ["errors", "damaged", "kept"] {
        assert_eq!(report[part].as_array().unwrap().len(), 0, "{report}");
    }
    assert!(host.journals().is_empty(), "{report}");
}

/// Flags of `run` and `daemon` for one kill, and whether there is a supervisor.
fn flags(moments: &mut Moments) -> (Vec<&'static str>, bool) {
    let mut flags = vec!["--placement", moments.pick(&["hard", "soft"])];
    flags.extend(EAGER);
    let is_supervised = moments.pick(&[true, false]);
    if !is_supervised {
        flags.push("--no-supervisor");
    }
    (flags, is_supervised)
}

fn kill_runs(test: &str, is_loaded: bool) {
    if !needs_root(test) || two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let mut moments = Moments::of(test);
    let load = is_loaded.then(|| lone_worker(&host));
    let before = host.processes();
    let left = Left::now();
    let (mut with_pins, mut narrow) = (0, 0);
    for _ in 0..moments.kills {
        let (mut flags, is_supervised) = flags(&mut moments);
        flags.push("-q");
        let mut command = host.run(&flags, &role("worker"));
        command.env("EVENKEEL_TEST_ROLE", "worker").env("THREADS", "2").env("YOUNG", "1");
        let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // Drained, so that the worker never waits for its reader.
        let _lines = lines_of(run.stdout.take().unwrap());
        let input = run.stdin.take();
        let is_moved = || !host.pins().is_empty();
        moments.wait(Some(&is_moved));
        with_pins += usize::from(is_moved());
        run.kill().unwrap();
        ended(&mut run);
        narrow += usize::from(!pinned_threads(&host).is_empty());
        undo_all(&host, is_supervised);
        assert_eq!(pinned_threads(&host), [0; 0]);
        // The worker's end.
        drop(input);
        wait_for("the end of the program", || host.processes().is_subset(&before));
        // Undone, also what a killed balancer had told `status`: that command removes the file.
        assert!(host.status().is_empty());
        left.wait_as_before();
    }
    println!("{test}: {} kills, {with_pins} with pins, {narrow} with narrow masks", moments.kills);
    assert!(with_pins > 0, "nothing was ever moved");
    drop(load);
}

#[test]
fn a_run_that_is_killed_at_any_moment_leaves_nothing() {
    kill_runs("a_run_that_is_killed_at_any_moment_leaves_nothing", false);
}

#[test]
fn a_run_that_is_killed_under_load_leaves_nothing() {
    kill_runs("a_run_that_is_killed_under_load_leaves_nothing", true);
}

fn kill_daemons(test: &str, is_loaded: bool) {
    if !needs_root(test) || two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let mut moments = Moments::of(test);
    let workers = [lone_worker(&host), lone_worker(&host)];
    let load = is_loaded.then(|| lone_worker(&host));
    // A program that has joined is balanced by the next daemon, too.
    let daemon = Daemon::start(&host, &["--dry-run"]);
    for worker in &workers {
        let pid = worker.pid.to_string();
        assert!(output(&mut host.evenkeel(["join", &pid])).status.success());
    }
    daemon.end();
    let before = host.processes();
    let left = Left::now();
    let (mut with_pins, mut narrow) = (0, 0);
    for _ in 0..moments.kills {
        let (flags, is_supervised) = flags(&mut moments);
        let mut daemon = host.evenkeel([&["daemon"], &flags[..]].concat()).spawn().unwrap();
        let is_moved = || !host.pins().is_empty();
        moments.wait(Some(&is_moved));
        with_pins += usize::from(is_moved());
        daemon.kill().unwrap();
        ended(&mut daemon);
        narrow += usize::from(!pinned_threads(&host).is_empty());
        undo_all(&host, is_supervised);
        assert_eq!(pinned_threads(&host), [0; 0]);
        wait_for("the end of the supervisor", || host.processes().is_subset(&before));
        left.wait_as_before();
    }
    println!("{test}: {} kills, {with_pins} with pins, {narrow} with narrow masks", moments.kills);
    assert!(with_pins > 0, "nothing was ever moved");
    // None of the kills has lost the list of programs.
    let daemon = Daemon::start(&host, &["--dry-run"]);
    let roots: BTreeSet<i64> =
        host.status().iter().map(|program| program["root"].as_i64().unwrap()).collect();
    assert_eq!(roots, workers.iter().map(|worker| i64::from(worker.pid)).collect());
    daemon.end();
    drop(load);
    drop(workers);
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_leaves_nothing() {
    kill_daemons("a_daemon_that_is_killed_at_any_moment_leaves_nothing", false);
}

#[test]
fn a_daemon_that_is_killed_under_load_leaves_nothing() {
    kill_daemons("a_daemon_that_is_killed_under_load_leaves_nothing", true);
}
