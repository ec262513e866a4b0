//! Whoever watches: every event goes through here, into the figures, the hash, the checkers and the
//! record.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_invariants::{Event, Findings, IDLE, Left, Limits, Violation, Watch, What};

use crate::kernel::THIEF_TIDS;

/// How far a task went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nowhere.
    Same,
    /// To an SMT sibling.
    Core,
    /// To another core that shares the last-level cache.
    Cache,
    /// To another cache of the node.
    Node,
    /// To another node: how many distances are smaller than this one.
    Remote(u8),
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::Core => f.write_str("core"),
            Self::Cache => f.write_str("cache"),
            Self::Node => f.write_str("node"),
            Self::Remote(level) => write!(f, "remote{level}"),
        }
    }
}

/// Why a task runs on another CPU than before: what last decided where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is new.
    Fork,
    /// It woke up.
    Wake,
    /// Its slice was over, and it was put into another CPU's queue.
    Requeue,
    /// Another CPU took it.
    Pull,
    /// A real-time task had taken its CPU.
    Thief,
    /// Somebody changed something about it, or about the CPUs.
    Change,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fork => "fork",
            Self::Wake => "wake",
            Self::Requeue => "requeue",
            Self::Pull => "pull",
            Self::Thief => "thief",
            Self::Change => "change",
        })
    }
}

/// What is written down besides the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watching {
    /// The rules that the stream is held to; `None`: not looked at.
    pub limits: Option<Limits>,
    /// Whether all events are kept, for a trace.
    pub records: bool,
}

/// Rules for a simulation without faults: the clock is exact, and so are the rules.
pub const STRICT: Limits = Limits {
    wait_ns: 1_000_000_000,
    wait_per_task_ns: 100_000_000,
    affinity_grace_ns: 1_000_000,
    idle_grace_ns: 20_000_000,
    // Two looks of the loader, a tick and a slice.
    shield_grace_ns: 250_000_000,
    share_window_ns: 2_000_000_000,
    share_tolerance_pct: 5,
    share_slack_ns: 50_000_000,
    charge_tolerance_pct: 0,
    charge_slack_ns: 0,
};

/// Rules for a simulation in which everything goes wrong: CPUs come and go, kicks are late, masks and
/// weights change all the time. What must hold even then: nobody is lost, nobody runs where it may
/// not, everybody gets a turn, run times add up.
pub const TORTURE: Limits = Limits {
    wait_ns: 10_000_000_000,
    wait_per_task_ns: 500_000_000,
    affinity_grace_ns: 1_000_000,
    idle_grace_ns: 0,
    shield_grace_ns: u64::MAX,
    share_window_ns: u64::MAX,
    share_tolerance_pct: 100,
    share_slack_ns: u64::MAX / 2,
    charge_tolerance_pct: 0,
    charge_slack_ns: 0,
};

/// What a task has been through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// When it came.
    pub arrived_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: Option<u64>,
    /// How long it had a CPU.
    pub ran_ns: u64,
    /// How long it waited for one.
    pub waited_ns: u64,
    /// What it worked, in ns of a CPU of full capability with near memory and warm caches.
    pub worked_ns: u64,
    /// Since when it runs or waits.
    since_ns: u64,
    waits: bool,
    /// When it last woke.
    woke_ns: u64,
}

/// Events kept for the report of a violation; of each task's at most this many are shown.
const KEPT: usize = 8192;
const SHOWN: usize = 50;
/// Times are sorted into so many classes for each power of two; below twice that they are
/// exact.
const CLASSES: u64 = 32;

/// The class of a time.
fn class_of(ns: u64) -> usize {
    let shift = u64::from(ns.checked_ilog2().unwrap_or_default().saturating_sub(CLASSES.ilog2()));
    (shift * CLASSES + (ns >> shift)) as usize
}

/// The smallest time of a class.
fn least_of(class: usize) -> u64 {
    let shift = (class as u64 / CLASSES).saturating_sub(1);
    (class as u64 - shift * CLASSES) << shift
}

/// How often what time was seen, exact to a 32nd.
#[derive(Debug, Default)]
pub(crate) struct Histogram(Vec<u64>);

impl Histogram {
    fn add(&mut self, ns: u64) {
        let class = class_of(ns);
        if self.0.len() <= class {
            self.0.resize(class + 1, 0);
        }
        self.0[class] += 1;
    }

    /// By time.
    pub fn times(&self) -> BTreeMap<u64, u64> {
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(class, count)| (least_of(class), *count)).collect()
    }
}

/// A rule that was broken, and how it came to that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The rule.
    pub violation: Violation,
    /// The number of the event at which it was noticed.
    pub event: u64,
    /// The last events of the tasks involved, oldest first.
    pub history: Vec<Event>,
}

/// What CPUs did instead of work, by what for, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Looking through domains and queues, and taking locks to move tasks.
    pub balancing_ns: u64,
    /// Filling caches again after a task went to another CPU.
    pub refill_ns: u64,
    /// Switches, and the caches that another address space or too little room has emptied.
    pub switching_ns: u64,
}

impl Overhead {
    /// Adds what one switch took.
    pub(crate) fn add(&mut self, other: Self) {
        self.balancing_ns += other.balancing_ns;
        self.refill_ns += other.refill_ns;
        self.switching_ns += other.switching_ns;
    }

    /// All of it.
    pub fn total_ns(self) -> u64 {
        self.balancing_ns + self.refill_ns + self.switching_ns
    }
}

/// How long CPUs are closed to whoever is urgent: they look for tasks and move them with interrupts off.
/// Who is to wake up at any time finds a CPU within a stretch that takes L in L of all the time, and waits
/// then for half of it; so squares are summed up, in ns^2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// Of whole stretches.
    pub all_ns2: u64,
    /// Of what they would be if taking locks to move tasks took no time.
    pub looking_ns2: u64,
}

impl Closed {
    /// A stretch of looking, and of holding locks to move tasks.
    pub fn add(&mut self, looking_ns: u64, moving_ns: u64) {
        let square = |ns: u64| ns.saturating_mul(ns);
        self.all_ns2 = self.all_ns2.saturating_add(square(looking_ns + moving_ns));
        self.looking_ns2 = self.looking_ns2.saturating_add(square(looking_ns));
    }
}

/// Everything that is observed in one simulation.
pub(crate) struct Observer {
    pub events: u64,
    pub consumed: u64,
    pub unborn: u64,
    pub restarts: u64,
    /// Tasks that the user-level balancer moved.
    pub moves: u64,
    pub overhead: Overhead,
    pub closed: Closed,
    pub interrupt_ns: u64,
    pub dump: String,
    pub accounts: Vec<Account>,
    pub migrations: BTreeMap<(Reason, Level), u64>,
    pub switches_same: u64,
    pub switches_other: u64,
    /// Of idle CPUs while tasks waited, one for each: their time.
    pub idle_while_waiting_ns: u64,
    pub idle_ns: u64,
    pub responses: Histogram,
    /// How long tasks waited for a CPU, each time.
    pub waits: Histogram,
    pub record: Vec<Event>,
    pub broken: Vec<Broken>,
    counters: BTreeMap<String, u64>,
    hash: u64,
    idle: u64,
    waiting: u64,
    at_ns: u64,
    watch: Option<Watch>,
    records: bool,
    last: VecDeque<Event>,
}

impl Observer {
    pub fn new(tasks: usize, watching: Watching) -> Self {
        Self {
            events: 0,
            consumed: 0,
            unborn: 0,
            restarts: 0,
            moves: 0,
            overhead: Overhead::default(),
            closed: Closed::default(),
            interrupt_ns: 0,
            dump: String::new(),
            accounts: vec![Account::default(); tasks],
            migrations: BTreeMap::new(),
            switches_same: 0,
            switches_other: 0,
            idle_while_waiting_ns: 0,
            idle_ns: 0,
            responses: Histogram::default(),
            waits: Histogram::default(),
            record: Vec::new(),
            broken: Vec::new(),
            counters: BTreeMap::new(),
            hash: 0xcbf2_9ce4_8422_2325,
            idle: 0,
            waiting: 0,
            at_ns: 0,
            watch: watching.limits.map(Watch::new),
            records: watching.records,
            last: VecDeque::new(),
        }
    }

    /// Something happened.
    pub fn event(&mut self, time_ns: u64, cpu: u32, what: What) {
        self.pass(time_ns);
        self.mix(time_ns);
        self.mix(u64::from(cpu));
        self.count(time_ns, &what);
        let event = Event { time_ns, cpu, what };
        if let Some(watch) = &mut self.watch {
            let before = watch.found().violations.len();
            watch.see(&event);
            let found: Vec<Violation> =
                watch.found().violations.get(before..).unwrap_or_default().to_vec();
            if self.last.len() == KEPT {
                self.last.pop_front();
            }
            self.last.push_back(event.clone());
            found.into_iter().for_each(|violation| self.note(violation, true));
        }
        if self.records {
            self.record.push(event);
        }
    }

    fn pass(&mut self, time_ns: u64) {
        let passed = time_ns - self.at_ns;
        self.at_ns = time_ns;
        self.idle_ns += passed * self.idle;
        self.idle_while_waiting_ns += passed * self.idle.min(self.waiting);
    }

    fn mix(&mut self, word: u64) {
        // FNV's prime; the rotation spreads what multiplication leaves in the upper bits.
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    fn account(&mut self, tid: u32) -> Option<&mut Account> {
        self.accounts.get_mut(tid.checked_sub(1)? as usize)
    }

    fn count(&mut self, now: u64, what: &What) {
        match what {
            What::Fork { child } => {
                self.mix(u64::from(*child) | 1 << 32);
                if let Some(account) = self.account(*child) {
                    account.arrived_ns = Some(now);
                }
            }
            What::Wakeup { task } => {
                self.mix(u64::from(*task) | 2 << 32);
                if let Some(account) = self.account(*task) {
                    (account.since_ns, account.woke_ns, account.waits) = (now, now, true);
                    self.waiting += 1;
                }
            }
            What::Switch { prev, left, charged_ns, next } => {
                self.mix(u64::from(*prev) | 3 << 32);
                self.mix(u64::from(*next) | u64::from(*left as u8) << 32);
                self.mix(*charged_ns);
                self.switch(now, *prev, *left, *next);
            }
            What::Migrate { task, to } => {
                self.mix(u64::from(*task) | 4 << 32);
                self.mix(u64::from(*to));
            }
            What::Affinity { task, allowed } => {
                self.mix(u64::from(*task) | 5 << 32);
                allowed.as_words().iter().for_each(|word| self.mix(*word));
            }
            What::Class { task, .. } => self.mix(u64::from(*task) | 6 << 32),
            What::Exit { task } => self.mix(u64::from(*task) | 7 << 32),
            What::Shield { cpus } => {
                self.mix(8 << 32);
                cpus.as_words().iter().for_each(|word| self.mix(*word));
            }
        }
    }

    /// How long a task has waited for a CPU up to now.
    pub fn waited_ns(&self, task: u32, now: u64) -> u64 {
        let Some(account) = self.accounts.get(task as usize) else { return 0 };
        let waits = if account.waits { now - account.since_ns } else { 0 };
        account.waited_ns + waits
    }

    fn switch(&mut self, now: u64, prev: u32, left: Left, next: u32) {
        if prev == IDLE && next == IDLE {
            // A CPU that begins its life idle.
            self.idle += 1;
            return;
        }
        if prev == IDLE {
            self.idle = self.idle.saturating_sub(1);
        } else if prev < THIEF_TIDS
            && let Some(account) = self.account(prev)
        {
            account.ran_ns += now - account.since_ns;
            account.since_ns = now;
            account.waits = left == Left::Runnable;
            let response_ns = now - account.woke_ns;
            match left {
                Left::Runnable => self.waiting += 1,
                Left::Asleep => self.responses.add(response_ns),
                Left::Dead => {
                    account.ended_ns = Some(now);
                    self.responses.add(response_ns);
                }
            }
        }
        if next == IDLE {
            self.idle += 1;
        } else if next < THIEF_TIDS
            && let Some(account) = self.account(next)
        {
            let waited_ns = now - account.since_ns;
            account.waited_ns += waited_ns;
            (account.since_ns, account.waits) = (now, false);
            self.waits.add(waited_ns);
            self.waiting = self.waiting.saturating_sub(1);
        }
    }

    pub fn migrated(&mut self, reason: Reason, level: Level) {
        *self.migrations.entry((reason, level)).or_default() += 1;
    }

    pub fn switched(&mut self, other_space: bool) {
        if other_space {
            self.switches_other += 1;
        } else {
            self.switches_same += 1;
        }
    }

    /// A CPU has come, idle, or has gone after it idled.
    pub fn idle_cpus(&mut self, more: bool) {
        self.idle = if more { self.idle + 1 } else { self.idle.saturating_sub(1) };
    }

    pub fn add_counters(&mut self, counters: BTreeMap<String, u64>) {
        for (name, count) in counters {
            *self.counters.entry(name).or_default() += count;
        }
    }

    /// `at_once`: the last event has to do with it.
    pub fn note(&mut self, violation: Violation, at_once: bool) {
        let numbers = violation.what.split("task ").skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<u32>().ok()
        });
        let mut tasks: Vec<u32> = numbers.collect();
        if at_once
            && let Some(Event { what: What::Switch { prev, next, .. }, .. }) = self.last.back()
        {
            tasks.extend([*prev, *next]);
        }
        tasks.retain(|task| *task != IDLE);
        let mut history: Vec<Event> = self
            .last
            .iter()
            .rev()
            .filter(|event| involves(&event.what, &tasks))
            .take(SHOWN)
            .cloned()
            .collect();
        history.reverse();
        self.broken.push(Broken { violation, event: self.events, history });
    }

    /// The simulation is over. Returns what the checkers found, and the hash of all that happened.
    pub fn end(&mut self, now: u64, counters: BTreeMap<String, u64>) -> (Option<Findings>, u64) {
        self.pass(now.max(self.at_ns));
        self.add_counters(counters);
        let findings = self.watch.take().map(|watch| {
            let before = watch.found().violations.len();
            let findings = watch.end(now);
            let late = findings.violations.get(before..).unwrap_or_default().to_vec();
            late.into_iter().for_each(|violation| self.note(violation, false));
            findings
        });
        (findings, self.hash)
    }

    /// What the scheduler counted.
    pub fn counters(&self) -> &BTreeMap<String, u64> {
        &self.counters
    }
}

fn involves(what: &What, tasks: &[u32]) -> bool {
    match what {
        What::Switch { prev, next, .. } => tasks.contains(prev) || tasks.contains(next),
        What::Wakeup { task }
        | What::Migrate { task, .. }
        | What::Affinity { task, .. }
        | What::Class { task, .. }
        | What::Exit { task } => tasks.contains(task),
        What::Fork { child } => tasks.contains(child),
        What::Shield { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_32nd_wide() {
        let mut last = 0;
        for ns in (0..70).chain([100, 1_000, 1_023, 1_024, 999_999, 1 << 40, u64::MAX]) {
            let class = class_of(ns);
            let least = least_of(class);
            assert!(least <= ns && ns - least <= ns / 32, "{ns} in {class} from {least}");
            assert!(class >= last, "{ns}");
            last = class;
        }
        assert!((0..64).all(|ns| least_of(class_of(ns)) == ns));
    }
}
