//! Which thread ran when, from what the kernel's scheduler did: how long threads waited, how often CPUs
//! turned from one program to another, and how long two CPUs ran the same one.

use std::collections::{BTreeMap, HashMap, HashSet};

use evenkeel_invariants::{Event, Left, Tid, What};
use evenkeel_sim::CoScheduling;

/// A CPU.
#[derive(Debug, Default)]
struct Cpu {
    /// The program of ours that it ran last.
    last: Option<u32>,
    /// Since when its present thread runs.
    since_ns: Option<u64>,
}

/// What was seen of some programs' threads.
pub struct Turns {
    program_of: HashMap<Tid, u32>,
    company: CoScheduling,
    cpus: BTreeMap<u32, Cpu>,
    running: HashSet<Tid>,
    /// Since when.
    waiting: HashMap<Tid, u64>,
    waits_ns: Vec<u64>,
    ran_ns: HashMap<Tid, u64>,
    switches: u64,
    began_ns: Option<u64>,
    now_ns: u64,
}

impl Turns {
    /// Of these threads, each with the number of its program; `roles`: as set_ias_alloc takes them.
    pub fn new(program_of: HashMap<Tid, u32>, roles: &BTreeMap<u32, u16>) -> Self {
        Self {
            ran_ns: program_of.keys().map(|tid| (*tid, 0)).collect(),
            program_of,
            company: CoScheduling::new(roles),
            cpus: BTreeMap::new(),
            running: HashSet::new(),
            waiting: HashMap::new(),
            waits_ns: Vec::new(),
            switches: 0,
            began_ns: None,
            now_ns: 0,
        }
    }

    /// Something happened.
    pub fn see(&mut self, event: &Event) {
        let now = event.time_ns.max(self.now_ns);
        let begun = *self.began_ns.get_or_insert(now);
        self.now_ns = now;
        match event.what {
            What::Wakeup { task } if self.is_ours(task) && !self.running.contains(&task) => {
                self.waiting.entry(task).or_insert(now);
            }
            What::Switch { prev, left, next, .. } => {
                self.leave(event.cpu, prev, left, now);
                self.come(event.cpu, next, now - begun);
                self.cpus.entry(event.cpu).or_default().since_ns = Some(now);
            }
            _ => {}
        }
    }

    fn is_ours(&self, task: Tid) -> bool {
        self.program_of.contains_key(&task)
    }

    fn leave(&mut self, cpu: u32, task: Tid, left: Left, now: u64) {
        if !self.is_ours(task) {
            return;
        }
        self.running.remove(&task);
        // Of a thread that ran already when the watch began, the beginning of the turn was not seen.
        if let Some(since) = self.cpus.get(&cpu).and_then(|cpu| cpu.since_ns) {
            *self.ran_ns.entry(task).or_default() += now - since;
        }
        if left == Left::Runnable {
            self.waiting.insert(task, now);
        }
    }

    /// `at_ns`: since it began.
    fn come(&mut self, cpu: u32, task: Tid, at_ns: u64) {
        let program = self.program_of.get(&task).copied();
        self.company.change(at_ns, cpu, program);
        let Some(program) = program else { return };
        self.running.insert(task);
        if let Some(since) = self.waiting.remove(&task) {
            self.waits_ns.push(self.now_ns - since);
        }
        let last = self.cpus.entry(cpu).or_default().last.replace(program);
        self.switches += u64::from(last.is_some_and(|last| last != program));
    }

    /// That was all.
    pub fn end(mut self) -> Seen {
        let time_ns = self.now_ns - self.began_ns.unwrap_or(self.now_ns);
        self.company.end(time_ns);
        self.waits_ns.sort_unstable();
        Seen {
            time_s: time_ns as f64 / 1e9,
            cpus: self.cpus.values().filter(|cpu| cpu.last.is_some()).count(),
            switches: self.switches,
            co_scheduled: (self.company.together_ns > 0)
                .then(|| self.company.same_ns as f64 / self.company.together_ns as f64),
            waits_ns: self.waits_ns,
            ran_ns: self.ran_ns.into_values().map(|ns| ns as f64).collect(),
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// From the first event to the last.
    pub time_s: f64,
    /// CPUs that ran a thread of ours.
    pub cpus: usize,
    /// Turns from one program to another, on all CPUs.
    pub switches: u64,
    /// Of the time in which a slave and its master both ran a program of ours, the part, 0..=1, in which
    /// they ran the same one.
    pub co_scheduled: Option<f64>,
    /// Each wait that came to its end, sorted.
    pub waits_ns: Vec<u64>,
    /// What each thread ran.
    pub ran_ns: Vec<f64>,
}

impl Seen {
    /// In s: so many of 100 waits are no longer.
    pub fn wait_s(&self, percent: usize) -> Option<f64> {
        let rank = (self.waits_ns.len() * percent).div_ceil(100);
        Some(*self.waits_ns.get(rank.checked_sub(1)?)? as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(time_ns: u64, cpu: u32, prev: Tid, left: Left, next: Tid) -> Event {
        Event { time_ns, cpu, what: What::Switch { prev, left, charged_ns: 0, next } }
    }

    #[test]
    fn turns_by_hand() {
        // Programs 0 (threads 10, 11) and 1 (thread 20); thread 5 is foreign.
        let programs = [(10, 0), (11, 0), (20, 1)].into();
        let mut turns = Turns::new(programs, &[(0, 0), (1, 1)].into());
        let woken = |time_ns, task| Event { time_ns, cpu: 0, what: What::Wakeup { task } };
        for event in [
            switch(100, 0, 5, Left::Runnable, 10),
            switch(100, 1, 0, Left::Runnable, 20),
            woken(110, 10),
            woken(120, 11),
            switch(150, 0, 10, Left::Runnable, 11),
            switch(160, 0, 11, Left::Asleep, 5),
            switch(170, 0, 5, Left::Runnable, 10),
            switch(180, 1, 20, Left::Runnable, 0),
            switch(200, 0, 10, Left::Runnable, 20),
        ] {
            turns.see(&event);
        }
        let seen = turns.end();
        assert_eq!(seen.waits_ns, [20, 20, 30], "of 10, of 20, of 11");
        assert_eq!((seen.switches, seen.cpus), (1, 2), "to thread 20 on CPU 0 alone");
        assert_eq!(seen.wait_s(50), Some(20e-9));
        // Both run threads of ours from 100 to 160 and from 170 to 180: never the same program.
        assert_eq!(seen.co_scheduled, Some(0.0));
        let mut ran = seen.ran_ns;
        ran.sort_by(f64::total_cmp);
        assert_eq!(ran, [10.0, 80.0, 80.0], "11, 10, 20");
    }

    #[test]
    fn nothing_seen_says_nothing() {
        let seen = Turns::new(HashMap::new(), &BTreeMap::new()).end();
        assert_eq!((seen.wait_s(99), seen.co_scheduled, seen.switches), (None, None, 0));
    }
}
