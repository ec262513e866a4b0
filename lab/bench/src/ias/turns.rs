//! Which thread ran when, from what the kernel's scheduler did: how long threads waited, how evenly they
//! had CPUs, how often CPUs turned from one program to another, and how long two CPUs ran the same one.

use std::collections::{BTreeMap, HashMap, HashSet};

use evenkeel_invariants::{Event, Left, Tid, What};
use evenkeel_sim::CoScheduling;

/// How evenly threads had CPUs is looked at for so long at a time.
const LAP_NS: u64 = 1_000_000_000;

/// A CPU.
#[derive(Debug, Default)]
struct Cpu {
    /// The program of ours that it ran last.
    last: Option<u32>,
    /// Its present thread, and since when that runs or, in a later lap, since when the lap lasts.
    runs: Option<(Tid, u64)>,
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
    /// Threads of which nothing was seen so far.
    unseen: HashSet<Tid>,
    /// What each thread ran in the present lap.
    ran_ns: HashMap<Tid, u64>,
    lap_began_ns: Option<u64>,
    /// How even each lap was.
    evens: Vec<f64>,
    switches: u64,
    began_ns: Option<u64>,
    now_ns: u64,
}

impl Turns {
    /// Of these threads, each with the number of its program; `roles`: as set_ias_alloc takes them.
    pub fn new(program_of: HashMap<Tid, u32>, roles: &BTreeMap<u32, u16>) -> Self {
        Self {
            unseen: program_of.keys().copied().collect(),
            ran_ns: program_of.keys().map(|tid| (*tid, 0)).collect(),
            program_of,
            company: CoScheduling::new(roles),
            cpus: BTreeMap::new(),
            running: HashSet::new(),
            waiting: HashMap::new(),
            waits_ns: Vec::new(),
            lap_began_ns: None,
            evens: Vec::new(),
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
        self.end_laps(begun, now);
        match event.what {
            What::Wakeup { task } if self.is_ours(task) && !self.running.contains(&task) => {
                self.unseen.remove(&task);
                self.waiting.entry(task).or_insert(now);
            }
            What::Switch { prev, left, next, .. } => {
                self.leave(event.cpu, prev, left, now);
                self.come(event.cpu, next, now - begun);
                self.cpus.entry(event.cpu).or_default().runs = Some((next, now));
            }
            _ => {}
        }
    }

    /// Ends the laps that are over by now. A thread's run in the lap ends with it.
    fn end_laps(&mut self, begun: u64, now: u64) {
        let mut began = *self.lap_began_ns.get_or_insert(begun);
        while now - began >= LAP_NS {
            began += LAP_NS;
            for runs in self.cpus.values_mut().filter_map(|cpu| cpu.runs.as_mut()) {
                let (task, since_ns) = *runs;
                if let Some(ran_ns) = self.ran_ns.get_mut(&task) {
                    *ran_ns += began.saturating_sub(since_ns);
                }
                *runs = (task, began);
            }
            self.evens.extend(evenness(self.ran_ns.values().copied()));
            self.ran_ns.values_mut().for_each(|ran_ns| *ran_ns = 0);
        }
        self.lap_began_ns = Some(began);
    }

    fn is_ours(&self, task: Tid) -> bool {
        self.program_of.contains_key(&task)
    }

    fn leave(&mut self, cpu: u32, task: Tid, left: Left, now: u64) {
        if !self.is_ours(task) {
            return;
        }
        self.unseen.remove(&task);
        self.running.remove(&task);
        // Of a thread that ran already when the watch began, the beginning of the turn was not seen.
        if let Some((_, since)) = self.cpus.get(&cpu).and_then(|cpu| cpu.runs) {
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
        self.unseen.remove(&task);
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
        // Waits that have not ended are at least as long. A thread of which nothing was seen, since all
        // of them are busy, has waited from the beginning.
        self.waits_ns.extend(self.waiting.values().map(|since| self.now_ns - since));
        self.waits_ns.extend(self.unseen.iter().map(|_| time_ns));
        self.waits_ns.sort_unstable();
        Seen {
            time_s: time_ns as f64 / 1e9,
            cpus: self.cpus.values().filter(|cpu| cpu.last.is_some()).count(),
            switches: self.switches,
            co_scheduled: (self.company.together_ns > 0)
                .then(|| self.company.same_ns as f64 / self.company.together_ns as f64),
            waits_ns: self.waits_ns,
            even: (!self.evens.is_empty())
                .then(|| self.evens.iter().sum::<f64>() / self.evens.len() as f64),
        }
    }
}

/// The part of what threads ran that need not change hands for all to have run for as long; `None`: none
/// ran.
fn evenness(ran_ns: impl Iterator<Item = u64>) -> Option<f64> {
    let ran: Vec<f64> = ran_ns.map(|ns| ns as f64).collect();
    let sum: f64 = ran.iter().sum();
    let mean = sum / ran.len() as f64;
    let off: f64 = ran.iter().map(|ns| (ns - mean).abs()).sum();
    (sum > 0.0).then(|| 1.0 - off / (2.0 * sum))
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
    /// Each wait, sorted; one that did not come to its end is as long as it was until the end.
    pub waits_ns: Vec<u64>,
    /// Of what the threads ran in a second, the part that need not change hands for all to have had the
    /// same: the mean of all seconds.
    pub even: Option<f64>,
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
        assert_eq!(seen.waits_ns, [0, 20, 20, 30], "of 10 at the end, of 10, of 20, of 11");
        assert_eq!((seen.switches, seen.cpus), (1, 2), "to thread 20 on CPU 0 alone");
        assert_eq!(seen.wait_s(50), Some(20e-9));
        // Both run threads of ours from 100 to 160 and from 170 to 180: never the same program.
        assert_eq!(seen.co_scheduled, Some(0.0));
        assert_eq!(seen.even, None, "no second has passed");
    }

    #[test]
    fn a_wait_without_an_end_counts() {
        // Thread 11 waits from 150 on, and nothing is ever seen of thread 12.
        let programs = [(10, 0), (11, 0), (12, 0)].into();
        let mut turns = Turns::new(programs, &[(0, 0)].into());
        turns.see(&switch(100, 0, 0, Left::Runnable, 11));
        turns.see(&switch(150, 0, 11, Left::Runnable, 10));
        turns.see(&switch(190, 0, 10, Left::Asleep, 0));
        let seen = turns.end();
        assert_eq!(seen.waits_ns, [40, 90]);
        assert_eq!(seen.wait_s(99), Some(90e-9));
    }

    #[test]
    fn threads_are_compared_second_by_second() {
        const MS: u64 = 1_000_000;
        let even = |times_ms: [u64; 4]| {
            let mut turns = Turns::new([(10, 0), (11, 1)].into(), &[(0, 0)].into());
            for (at, time_ms) in times_ms.into_iter().enumerate() {
                let (prev, next) = if at % 2 == 0 { (11, 10) } else { (10, 11) };
                turns.see(&switch(time_ms * MS, 0, prev, Left::Runnable, next));
            }
            turns.end().even
        };
        // 10 and 11 have half of each second; the last turn goes on in the third second.
        assert_eq!(even([0, 500, 1_500, 2_500]), Some(1.0));
        // 10 has all of the first second, and 11 all of the second one: over both they had the same.
        assert_eq!(even([0, 1_000, 2_000, 2_000]), Some(0.5));
        // 10 has three quarters of the first second.
        assert_eq!(even([0, 750, 1_000, 1_000]), Some(0.75));
    }

    #[test]
    fn nothing_seen_says_nothing() {
        let seen = Turns::new(HashMap::new(), &BTreeMap::new()).end();
        assert_eq!((seen.wait_s(99), seen.co_scheduled, seen.switches), (None, None, 0));
    }
}
