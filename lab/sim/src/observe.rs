//! The observer: every scheduling event passes through it, into the figures, the hash, the checkers and
//! the record.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_invariants::{Event, Findings, IDLE, Left, Limits, Violation, Watch, What};

use crate::histogram::Histogram;
use crate::outcome::{Account, Broken, Closed, Overhead, Reason};
use crate::tid::THIEF_TIDS;
use crate::topology::Level;

/// What is observed besides the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watching {
    /// How strictly the checkers judge; `None`: no checkers.
    pub limits: Option<Limits>,
    /// Whether all events are kept, for a trace or a timeline.
    pub records: bool,
}

/// How many events are kept for the history of a violation, and how many of these are shown.
const KEPT: usize = 8192;
const SHOWN: usize = 50;
/// All that is observed of one simulation.
pub(crate) struct Observer {
    pub events: u64,
    pub consumed: u64,
    pub unborn: u64,
    pub restarts: u64,
    /// Moves of the user-level balancer.
    pub moves: u64,
    pub overhead: Overhead,
    pub closed: Closed,
    pub interrupt_ns: u64,
    pub dump: String,
    pub accounts: Vec<Account>,
    pub migrations: BTreeMap<(Reason, Level), u64>,
    pub switches_same: u64,
    pub switches_other: u64,
    /// Idle time of CPUs while as many tasks waited.
    pub idle_while_waiting_ns: u64,
    pub idle_ns: u64,
    pub responses: Histogram,
    /// Times of waiting for a CPU.
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

    /// A scheduling event.
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
            // A simulated task is chosen a CPU and wakes there at once.
            What::Waking { .. } => {}
            What::Class { task, .. } => self.mix(u64::from(*task) | 6 << 32),
            What::Exit { task } => self.mix(u64::from(*task) | 7 << 32),
            // A group changes only as the workload says.
            What::Group { .. } => {}
            What::Shield { cpus } => {
                self.mix(8 << 32);
                cpus.as_words().iter().for_each(|word| self.mix(*word));
            }
        }
    }

    /// How long a task has waited for a CPU so far.
    pub fn waited_ns(&self, task: u32, now: u64) -> u64 {
        let Some(account) = self.accounts.get(task as usize) else { return 0 };
        let waits = if account.waits { now - account.since_ns } else { 0 };
        account.waited_ns + waits
    }

    fn switch(&mut self, now: u64, prev: u32, left: Left, next: u32) {
        if prev == IDLE && next == IDLE {
            // A CPU that begins idle at boot.
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

    /// An idle CPU has come online (`more`) or gone offline.
    pub fn idle_cpus(&mut self, more: bool) {
        self.idle = if more { self.idle + 1 } else { self.idle.saturating_sub(1) };
    }

    pub fn add_counters(&mut self, counters: BTreeMap<String, u64>) {
        for (name, count) in counters {
            *self.counters.entry(name).or_default() += count;
        }
    }

    /// Keeps a violation with the last events of its tasks. `at_once`: the last event caused it, so its
    /// tasks count, too.
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

    /// The simulation is over. Returns what the checkers found, and the hash of all events.
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

    /// The scheduler's counters.
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
        | What::Waking { task, .. }
        | What::Class { task, .. }
        | What::Exit { task } => tasks.contains(task),
        What::Fork { child } => tasks.contains(child),
        What::Group { .. } | What::Shield { .. } => true,
    }
}
