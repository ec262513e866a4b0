//! Unprivileged users that try to make others wait: deep cgroups and thousands of them, floods of tasks
//! at the lowest priority, yield, fork and exec storms, masks that change all the time, siblings that
//! are always fresh, and hogs beside pinned kernel threads. Tasks of root note how long they wait,
//! first under the kernel's own scheduler. Where that makes them wait for long, the host starves the
//! guest, and the keel is not judged.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_journal::affinity;

use crate::policies::PAPERS;
use crate::roles::role;
use crate::scheduler::Scheduler;
use crate::storms::*;
use crate::support::{EVENKEEL, NOBODY, all, just, kill, wait_for};
use crate::{Test, boots};

pub const TESTS: &[Test] = &[
    Test {
        name: "adversaries::no_users_together_make_others_wait",
        run: || judge(&[("all of them", ROLES)]),
    },
    Test { name: "adversaries::no_user_makes_others_wait", run: || judge_each(ROLES) },
    Test {
        name: "adversaries::no_user_of_many_cgroups_or_programs_makes_others_wait",
        run: || judge_each(OF_MANY),
    },
];

/// The roles that adversaries play.
const ROLES: &[&str] = &[
    "adversary-deep",
    "adversary-nice",
    "adversary-yield",
    "forks",
    "victim",
    "adversary-masks",
    "adversary-siblings",
    "adversary-classes",
    "adversary-pinned",
];

/// Those that make thousands of cgroups, or programs: a test of their own, since a test's time is
/// limited.
const OF_MANY: &[&str] = &["adversary-groups", "adversary-execs"];

/// No task waits for so long ...
const LIMIT: Duration = Duration::from_secs(10);
/// ... where it waits for less than this under the kernel's own scheduler.
const FAIR: Duration = Duration::from_secs(5);
/// A longer wait must fit in.
const WINDOW: Duration = Duration::from_secs(12);

fn judge_each(roles: &'static [&'static str]) {
    judge(&roles.chunks(1).map(|one| (one[0], one)).collect::<Vec<_>>());
}

fn judge(cases: &[(&'static str, &[&'static str])]) {
    // Of the time of a test in a soak, each case has its part under each scheduler.
    let part = boots::duration() / (3 * cases.len() as u32);
    let window = WINDOW.max(part);
    let mut complaints = Vec::new();
    for (case, roles) in cases {
        let fair = longest_wait(Scheduler::Kernel, roles, window);
        println!("{case}: under the kernel's own scheduler {} ms", fair.as_millis());
        for (name, scheduler) in [("the keel", Scheduler::Keel), ("the papers", PAPERS)] {
            let longest = longest_wait(scheduler, roles, window);
            println!("{case}: under {name} {} ms", longest.as_millis());
            if fair < FAIR && longest >= LIMIT {
                complaints.push(format!("{case}, {name}: a task waited for {longest:?}"));
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// How long a task of root waited at most beside adversaries with these roles. The scheduler must be the
/// same to the end: a keel that the kernel ends fails the test.
fn longest_wait(scheduler: Scheduler, roles: &[&'static str], window: Duration) -> Duration {
    let longest = Arc::new(AtomicU64::new(0));
    scheduler.under(|| {
        let cgroup = Delegated::new();
        let mut adversaries: Vec<Child> = roles.iter().map(|role| cgroup.start(role)).collect();
        let victims = start_victims(&longest);
        std::thread::sleep(window);
        for (adversary, role) in adversaries.iter_mut().zip(roles) {
            assert!(adversary.try_wait().unwrap().is_none(), "{role} has ended by itself");
            // With all processes that it has started.
            kill(-(adversary.id() as i32), libc::SIGKILL);
            adversary.wait().unwrap();
        }
        // Whatever still waits gets its turn now, and notes its wait.
        victims.end();
        cgroup.end();
    });
    Duration::from_nanos(longest.load(Ordering::Relaxed))
}

/// Tasks of root, on each CPU one that computes, one that wakes often, and the kernel's own thread.
fn start_victims(longest: &Arc<AtomicU64>) -> Threads {
    let mut victims = Threads::default();
    let note = |longest: &AtomicU64, wait: Duration| {
        longest.fetch_max(wait.as_nanos() as u64, Ordering::Relaxed);
    };
    for cpu in all().iter() {
        let (noted, mut last) = (Arc::clone(longest), None::<Instant>);
        victims.start(move || {
            // A step is some ns of computing: between two of them only a wait is long.
            let now = Instant::now();
            note(&noted, now - last.replace(now).unwrap_or(now));
        });
        let noted = Arc::clone(longest);
        let nap = Duration::from_millis(10);
        victims.start(move || {
            let start = Instant::now();
            std::thread::sleep(nap);
            note(&noted, start.elapsed().saturating_sub(nap));
        });
        for tid in victims.tids.iter().rev().take(2) {
            affinity::set(*tid, &just(cpu)).unwrap();
        }
    }
    let noted = Arc::clone(longest);
    victims.start(move || {
        // The kernel has a pinned thread of each CPU do some work, and waits for all of them.
        let start = Instant::now();
        std::fs::write("/proc/sys/vm/stat_refresh", "1").unwrap();
        note(&noted, start.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    });
    victims
}

/// A cgroup that belongs to user `nobody`, as an administrator delegates one.
struct Delegated(PathBuf);

const DELEGATED: &str = "/sys/fs/cgroup/adversary";
/// Where an adversary begins.
const ENTRY: &str = "entry";

impl Delegated {
    fn new() -> Self {
        std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu").unwrap();
        let cgroup = PathBuf::from(DELEGATED);
        let entry = cgroup.join(ENTRY);
        std::fs::create_dir_all(&entry).unwrap();
        let files = ["", "cgroup.procs", "cgroup.subtree_control", "entry", "entry/cgroup.procs"];
        for file in files {
            chown(cgroup.join(file), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Self(cgroup)
    }

    /// Starts an adversary there, in a process group of its own.
    fn start(&self, name: &'static str) -> Child {
        let procs = self.0.join(ENTRY).join("cgroup.procs");
        let words = role(name);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).process_group(0).uid(NOBODY).gid(NOBODY);
        let child = command.spawn().unwrap();
        std::fs::write(procs, child.id().to_string()).unwrap();
        child
    }

    fn end(self) {
        wait_for("empty cgroups", || remove_tree(&self.0).is_ok());
    }
}

/// Removes a cgroup and those below it.
fn remove_tree(cgroup: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(cgroup)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    std::fs::remove_dir(cgroup)
}

/// Computes on so many threads until it is killed, each prepared like this.
fn flood(count: u32, prepare: fn(u32)) {
    let compute = move |index| {
        prepare(index);
        loop {
            spin(Duration::from_millis(10));
        }
    };
    let threads: Vec<_> =
        (0..count).map(|index| std::thread::spawn(move || compute(index))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn own_tid() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Levels below the delegated cgroup: deeper than the keel looks (`MAX_DEPTH` of bpf/keel/group.h).
const LEVELS: usize = 40;

/// Waits until this process is in the delegated cgroup: root puts it there when it has started.
fn wait_for_entry() {
    let is_there = || std::fs::read_to_string("/proc/self/cgroup").unwrap().contains(ENTRY);
    wait_for("its cgroup", is_there);
}

/// The role: computes at the end of a long path of cgroups, each of the largest weight.
pub fn play_deep() {
    wait_for_entry();
    let mut cgroup = PathBuf::from(DELEGATED);
    for _ in 0..LEVELS {
        std::fs::write(cgroup.join("cgroup.subtree_control"), "+cpu").unwrap();
        cgroup.push("deeper");
        std::fs::create_dir_all(&cgroup).unwrap();
        std::fs::write(cgroup.join("cpu.weight"), "10000").unwrap();
    }
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    flood(8, |_| {});
}

/// How many cgroups the role makes, and in how many of them a process computes.
const GROUPS: u32 = 2_000;
const BUSY_GROUPS: u32 = 20;

/// The role: thousands of cgroups, the busy ones of the largest weight; the empty ones go and come.
pub fn play_groups() {
    wait_for_entry();
    let delegated = PathBuf::from(DELEGATED);
    let many = delegated.join("many");
    std::fs::create_dir(&many).unwrap();
    for parent in [&delegated, &many] {
        std::fs::write(parent.join("cgroup.subtree_control"), "+cpu").unwrap();
    }
    let path = |at: u32| many.join(at.to_string());
    for at in 0..GROUPS {
        std::fs::create_dir(path(at)).unwrap();
        if at < BUSY_GROUPS {
            std::fs::write(path(at).join("cpu.weight"), "10000").unwrap();
            std::fs::write(path(at).join("cgroup.procs"), start("hog").id().to_string()).unwrap();
        }
    }
    for at in (BUSY_GROUPS..GROUPS).cycle() {
        std::fs::remove_dir(path(at)).unwrap();
        std::fs::create_dir(path(at)).unwrap();
    }
}

/// The role: processes that become another program again and again.
pub fn play_execs() {
    let mut processes: Vec<Child> = (0..4).map(|_| start("adversary-exec")).collect();
    for process in &mut processes {
        process.wait().unwrap();
    }
}

/// One of them.
pub fn play_exec() {
    let words = role("adversary-exec");
    panic!("{}", Command::new(words[0]).args(&words[1..]).exec());
}

/// The role: many tasks at the lowest priority.
pub fn play_nice() {
    flood(50, |_| set_nice(own_tid(), 19));
}

/// The role: tasks that give their CPU away at once, again and again.
pub fn play_yield() {
    flood(8, |_| {
        let end = Instant::now() + Duration::from_secs(3600);
        while Instant::now() < end {
            std::thread::yield_now();
        }
    });
}

/// The role: tasks that change their masks all the time.
pub fn play_masks() {
    flood(8, |seed| {
        let (mut random, cpus) = (Random::new(u64::from(seed)), all());
        let end = Instant::now() + Duration::from_secs(3600);
        while Instant::now() < end {
            affinity::set(own_tid(), &random.some_of(&cpus)).unwrap();
            spin(Duration::from_micros(random.below(500)));
        }
    });
}

/// The role: the largest bonus that a user gets, for threads that are always new.
pub fn play_siblings() {
    let pid = std::process::id().to_string();
    // Refused where no keel runs, or one with another order.
    let words = ["ias", "agg", &pid, "--bonus", "25x"];
    let _ = Command::new(EVENKEEL).args(words).stderr(Stdio::null()).status();
    loop {
        let fresh = || std::thread::spawn(|| spin(Duration::from_millis(5)));
        let threads: Vec<_> = (0..8).map(|_| fresh()).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// The role: tasks of the classes that any user may choose.
pub fn play_classes() {
    flood(16, |index| {
        let policy = if index % 2 == 0 { libc::SCHED_IDLE } else { libc::SCHED_BATCH };
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: a valid place for the parameters; 0 is the calling thread.
        let set = unsafe { libc::sched_setscheduler(0, policy, &parameters) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    });
}

/// The role: on each CPU tasks that may run nowhere else, beside the kernel's own.
pub fn play_pinned() {
    flood(4 * all().len() as u32, |index| {
        let cpus: Vec<u32> = all().iter().collect();
        affinity::set(own_tid(), &just(cpus[index as usize % cpus.len()])).unwrap();
    });
}
