//! The scheduler of a test: the kernel's own, or the keel with some flags.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use evenkeel_control::{KEEL_SOCKET, Request, ask};
use evenkeel_invariants::{Sum, counters_add_up};

use crate::support::{EVENKEEL, ended, kill, wait_for};

const STATE: &str = "/sys/kernel/sched_ext/state";
/// `BPF_MAP_TYPE_TASK_STORAGE`, as the kernel prints it.
const TASK_STORAGE: &str = "29";

/// The state of sched_ext: enabled, disabled or in between.
pub fn state() -> String {
    std::fs::read_to_string(STATE).unwrap().trim().to_owned()
}

/// How often a scheduler was loaded since the boot.
pub fn loads() -> u64 {
    let count = std::fs::read_to_string("/sys/kernel/sched_ext/enable_seq").unwrap();
    count.trim().parse().unwrap()
}

/// Checks the keel's counters when a load has ended: every task that was put into a queue got its
/// turn or left. (A few of the kernel's own threads may wait, or have left between getting the turn
/// and running.) And every task is known.
const SUMS: [Sum; 2] = [
    Sum {
        total: "enqueue",
        parts: &["switch", "aggregate", "follow", "rescue", "leave"],
        slack: 20,
    },
    never("no_state"),
];

/// Checks the counters of a keel with the gate `always`.
const ALWAYS_OPEN: [Sum; 7] = [
    never("refuse_wake"),
    never("refuse_fork"),
    never("refuse_exec"),
    never("refuse_idle"),
    never("refuse_periodic"),
    never("refuse_aggregate"),
    never("refuse_active"),
];

const fn never(total: &'static str) -> Sum {
    Sum { total, parts: &[], slack: 0 }
}

/// Has a command precede crowds of busy tasks. As one of them it would take minutes to load a keel here.
pub fn hasten(command: &mut Command) -> &mut Command {
    let precede = || {
        // SAFETY: plain numbers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
        Ok(())
    };
    // SAFETY: a system call only.
    unsafe { command.pre_exec(precede) }
}

/// The keel, running. When it is dropped, the kernel's own scheduler runs.
pub struct Keel {
    pub process: Child,
}

impl Keel {
    pub fn start(flags: &[&str]) -> Self {
        Self::spawn(Command::new(EVENKEEL).arg("sched").args(flags))
    }

    /// The same by another command that runs the keel.
    pub fn spawn(command: &mut Command) -> Self {
        let before = loads();
        let process = hasten(command).stderr(Stdio::piped()).spawn().unwrap();
        let mut keel = Self { process };
        keel.wait_enabled(before);
        keel
    }

    /// Waits until it schedules, loaded once more than `loads_before`.
    pub fn wait_enabled(&mut self, loads_before: u64) {
        wait_for("the keel", || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the keel ended: {}", self.said());
            // The kernel counts a load a little after it says that the scheduler is enabled.
            state() == "enabled" && loads() > loads_before
        });
    }

    /// Reads what it says until that is in a line.
    pub fn wait_said(&mut self, what: &str) {
        let stderr = self.process.stderr.as_mut().unwrap();
        // No more is read than that line: `end` returns the rest.
        let mut said = Vec::new();
        while !(said.ends_with(b"\n") && String::from_utf8_lossy(&said).contains(what)) {
            let mut byte = [0];
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{what:?} was not said");
            said.extend(byte);
        }
    }

    /// The counters so far.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let answer = ask(Path::new(KEEL_SOCKET), &Request::new("stats")).unwrap();
        let counters = serde_json::from_value(answer["counters"].clone()).unwrap();
        assert_ne!(counters, BTreeMap::new(), "it counts nothing");
        counters
    }

    /// How many tasks run or wait on each CPU.
    pub fn runnable(&self) -> Vec<u64> {
        self.of_each_cpu("runnable")
    }

    /// The percentage of recent time that each CPU was busy.
    pub fn busy_pct(&self) -> Vec<u64> {
        self.of_each_cpu("busy_pct")
    }

    /// The ids of the maps with the states of tasks, as of the load that schedules now.
    pub fn maps_of_tasks(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fdinfo", self.process.id())).unwrap() {
            let info = std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
            let value = |name| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            if value("map_type:") == Some(TASK_STORAGE) {
                found.insert(value("map_id:").unwrap().to_owned());
            }
        }
        found
    }

    /// The capability of each CPU.
    pub fn capabilities(&self) -> Vec<u64> {
        self.of_each_cpu("capability")
    }

    fn of_each_cpu(&self, what: &str) -> Vec<u64> {
        let answer = ask(Path::new(KEEL_SOCKET), &Request::new("stats")).unwrap();
        let cpus = answer["cpus"].as_object().unwrap().values();
        cpus.map(|cpu| cpu[what].as_u64().unwrap()).collect()
    }

    /// Ends the keel as a user does, and returns its exit code and its output.
    pub fn end(mut self) -> (Option<i32>, String) {
        kill(self.process.id() as i32, libc::SIGTERM);
        self.wait()
    }

    /// Waits until the keel ends by itself.
    pub fn wait(&mut self) -> (Option<i32>, String) {
        let code = ended(&mut self.process).code();
        assert_eq!(state(), "disabled");
        (code, self.said())
    }

    fn said(&mut self) -> String {
        self.process
            .stderr
            .take()
            .map_or_else(String::new, |stderr| std::io::read_to_string(stderr).unwrap())
    }
}

impl Drop for Keel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        wait_for("the kernel's own scheduler", || state() == "disabled");
    }
}

/// A scheduler to be tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The kernel's own.
    Kernel,
    /// The keel with its plain policies.
    Keel,
    /// The keel with these flags.
    With(&'static [&'static str]),
}

impl Scheduler {
    /// Whether it has the gate `always`, which is the plain one.
    fn is_always_open(self) -> bool {
        match self {
            Self::Kernel => false,
            Self::Keel => true,
            Self::With(flags) => !flags.iter().any(|flag| flag.starts_with("--gate")),
        }
    }

    /// Runs `load` under this scheduler, which must stay the same to the end.
    pub fn under(self, load: impl FnOnce()) {
        let keel = match self {
            Self::Kernel => return load(),
            Self::Keel => Keel::start(&[]),
            Self::With(flags) => Keel::start(flags),
        };
        let (loads_before, counters_before) = (loads(), keel.counters());
        load();
        assert_eq!(state(), "enabled", "the kernel ended the keel");
        let counters = keel.counters();
        let mut sums = SUMS.to_vec();
        if self.is_always_open() {
            sums.extend(ALWAYS_OPEN);
        }
        let broken = counters_add_up(&counters_before, &counters, &sums, 0);
        assert!(broken.is_empty(), "{broken:?} of {counters:?}");
        assert_eq!(loads(), loads_before, "the keel was loaded anew");
        let (code, said) = keel.end();
        assert_eq!(code, Some(0), "{said}");
    }
}
