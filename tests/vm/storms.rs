//! Loads that make schedulers fail: crowds with masks, weights, classes, cgroups and programs that
//! change all the time, real-time hogs, forks without end. Each runs for a while and leaves
//! nothing.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::roles::role;
use crate::support::{all, ended, just, wait_for};

/// Pseudo-random numbers, the same ones each time.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

    pub fn some_of(&mut self, cpus: &CpuSet) -> CpuSet {
        let chosen: CpuSet = cpus.iter().filter(|_| self.below(2) == 0).collect();
        let one = cpus.iter().nth(self.below(cpus.len() as u64) as usize).unwrap();
        chosen.union(&just(one))
    }
}

/// Threads that run until they are told to end.
#[derive(Default)]
pub struct Threads {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    pub tids: Vec<i32>,
}

impl Threads {
    /// Starts another thread, which repeats `step` to the end.
    pub fn start(&mut self, mut step: impl FnMut() + Send + 'static) {
        let end = Arc::clone(&self.end);
        let (sender, receiver) = std::sync::mpsc::channel();
        self.threads.push(std::thread::spawn(move || {
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            while !end.load(Ordering::Relaxed) {
                step();
            }
        }));
        self.tids.push(receiver.recv().unwrap());
    }

    /// Ends them all.
    pub fn end(self) {
        self.end.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Computes for a while. Not by spin_loop(): where instructions are counted, a pause counts as one
/// and takes the emulator as long as a thousand others.
pub fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {}
}

/// The role: computes until it is killed.
pub fn play_hog() {
    loop {
        spin(Duration::from_secs(1));
    }
}

/// Makes a task real-time (above 0) or ordinary (0).
pub fn set_real_time(tid: i32, priority: i32) {
    let policy = if priority > 0 { libc::SCHED_FIFO } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: a valid place for the parameters. It may have ended meanwhile.
    unsafe { libc::sched_setscheduler(tid, policy, &parameters) };
}

pub fn set_nice(tid: i32, nice: i32) {
    // SAFETY: plain numbers. It may have ended meanwhile.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as u32, nice) };
}

/// Threads that run, sleep, yield and block on each other. The more there are, the longer they sleep:
/// together they want about one of an emulator's CPUs.
pub fn restless(count: u64) -> Threads {
    let mut threads = Threads::default();
    let bell = Arc::new((Mutex::new(()), Condvar::new()));
    for seed in 0..count {
        let mut random = Random::new(seed);
        let bell = Arc::clone(&bell);
        threads.start(move || match random.below(8) {
            0 | 1 => spin(Duration::from_micros(random.below(2000))),
            2 => (0..20).for_each(|_| std::thread::yield_now()),
            3 => bell.1.notify_one(),
            4 => {
                let wait = Duration::from_millis(random.below(8 * count));
                drop(bell.1.wait_timeout(bell.0.lock().unwrap(), wait).unwrap());
            }
            _ => std::thread::sleep(Duration::from_millis(random.below(8 * count))),
        });
    }
    threads
}

/// Changes masks, weights and classes of the members of `crowd` while they live.
pub fn torment(crowd: &[i32], tormentors: u64) -> Threads {
    let mut threads = Threads::default();
    let cpus = all();
    for seed in 0..tormentors {
        let (mut random, crowd, cpus) = (Random::new(1000 + seed), crowd.to_vec(), cpus.clone());
        threads.start(move || {
            let tid = crowd[random.below(crowd.len() as u64) as usize];
            match random.below(4) {
                // The member may just be ending.
                0 | 1 => drop(affinity::set(tid, &random.some_of(&cpus))),
                2 => set_nice(tid, random.below(40) as i32 - 20),
                _ => set_real_time(tid, random.below(2) as i32),
            }
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        });
    }
    threads
}

/// Processes that become new programs and fork all the time, in cgroups that they are moved between
/// and killed in.
pub struct Processes {
    groups: Vec<Group>,
    children: Vec<Child>,
}

impl Processes {
    pub fn start(count: usize) -> Self {
        let groups = [20, 100, 500].map(Group::new).into();
        Self { groups, children: (0..count).map(|_| start("victim")).collect() }
    }

    /// Moves, stops, continues or kills one of the processes.
    pub fn torment(&mut self, random: &mut Random) {
        let index = random.below(self.children.len() as u64) as usize;
        let pid = Pid::from_raw(self.children[index].id() as i32);
        match random.below(6) {
            0 => {
                end(&mut self.children[index]);
                self.children[index] = start("victim");
            }
            1 => {
                kill(pid, Signal::SIGSTOP).unwrap();
                kill(pid, Signal::SIGCONT).unwrap();
            }
            2 => affinity::set(pid.as_raw(), &random.some_of(&all())).unwrap(),
            group => {
                self.groups[group as usize % self.groups.len()].take(&self.children[index]);
            }
        }
    }

    pub fn end(mut self) {
        self.children.iter_mut().for_each(end);
        self.groups.into_iter().for_each(Group::end);
    }
}

/// A cgroup.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a cgroup of this weight; a weight is used once.
    pub fn new(weight: u32) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        std::fs::write(root.join("cgroup.subtree_control"), "+cpu").unwrap();
        let path = root.join(format!("weight-{weight}"));
        match std::fs::create_dir(&path) {
            // A killed test may have left it.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.unwrap(),
        }
        let group = Self { path };
        group.set("cpu.weight", &weight.to_string());
        group
    }

    /// Writes one of its files.
    pub fn set(&self, name: &str, value: &str) {
        std::fs::write(self.path.join(name), value).unwrap();
    }

    /// Takes a process in.
    pub fn take(&self, process: &Child) {
        self.set("cgroup.procs", &process.id().to_string());
    }

    pub fn end(self) {
        // Its last processes may be orphans that are just ending.
        wait_for("an empty cgroup", || std::fs::remove_dir(&self.path).is_ok());
    }
}

/// Cgroups each of which is in the one before. The outermost has the default weight, the others the
/// largest that there is.
pub struct Nested {
    outermost: PathBuf,
    deepest: PathBuf,
}

impl Nested {
    pub fn new(depth: usize) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        std::fs::write(root.join("cgroup.subtree_control"), "+cpu").unwrap();
        let outermost = root.join(format!("depth-{depth}"));
        std::fs::create_dir(&outermost).unwrap();
        let mut deepest = outermost.clone();
        for _ in 1..depth {
            std::fs::write(deepest.join("cgroup.subtree_control"), "+cpu").unwrap();
            deepest.push("below");
            std::fs::create_dir(&deepest).unwrap();
            std::fs::write(deepest.join("cpu.weight"), "10000").unwrap();
        }
        Self { outermost, deepest }
    }

    /// Takes a process into the deepest one.
    pub fn take(&self, process: &Child) {
        std::fs::write(self.deepest.join("cgroup.procs"), process.id().to_string()).unwrap();
    }

    pub fn end(self) {
        let mut path = self.deepest;
        while path.starts_with(&self.outermost) {
            wait_for("an empty cgroup", || std::fs::remove_dir(&path).is_ok());
            path.pop();
        }
    }
}

/// Starts a process that plays a role.
pub fn start(name: &'static str) -> Child {
    let words = role(name);
    Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).spawn().unwrap()
}

/// Kills a process.
pub fn end(process: &mut Child) {
    process.kill().unwrap();
    ended(process);
}

/// The time that a thread has run so far.
pub fn cpu_time_ns(tid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{tid}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// The role: computes a little, forks a child that ends at once, and executes itself anew.
pub fn play_victim() {
    for _ in 0..5 {
        spin(Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(20));
        short_child();
    }
    let words = role("victim");
    panic!("{}", Command::new(words[0]).args(&words[1..]).exec());
}

/// The role: two threads that fork without pause. Not in a test's own process: after each fork, the
/// thread that reads the witness would take a page fault for all that it writes, and never get to
/// the end.
pub fn play_forks() {
    let forks = || loop {
        short_child();
    };
    std::thread::spawn(forks);
    forks();
}

/// Forks a child that ends at once, and waits for it.
fn short_child() {
    // SAFETY: the child only ends, which is allowed after a fork of a program with threads.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
        }
    }
}
