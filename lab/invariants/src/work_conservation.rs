//! No CPU idles while a fair task that may run there waits, for longer than a wake-up takes.

use std::collections::{BTreeMap, VecDeque};

use crate::event::{Event, IDLE, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::state::{State, Task};

const NAME: &str = "work_conservation";

/// How many long idle periods of each CPU are remembered. A task that waits through more of them has
/// also waited through one that is remembered.
const REMEMBERED: usize = 64;

pub(crate) struct WorkConservation {
    limits: Limits,
    /// The last idle periods of each CPU that were longer than the grace, from and to.
    idle: BTreeMap<u32, VecDeque<(u64, u64)>>,
    /// CPUs that idle or have such periods, as bits: only these are checked when a wait ends.
    suspects: Vec<u64>,
}

impl WorkConservation {
    pub fn new(limits: Limits) -> Self {
        Self { limits, idle: BTreeMap::new(), suspects: Vec::new() }
    }

    /// A CPU begins or ceases to idle.
    fn suspect(&mut self, cpu: u32, idles: bool) {
        let (word, bit) = (cpu as usize / 64, 1 << (cpu % 64));
        if word >= self.suspects.len() {
            self.suspects.resize(word + 1, 0);
        }
        if idles {
            self.suspects[word] |= bit;
        } else if !self.idle.contains_key(&cpu) {
            self.suspects[word] &= !bit;
        }
    }

    /// A wait has ended: did a CPU idle meanwhile that the task could have run on?
    fn judge(&self, tid: Tid, now: u64, state: &State, found: &mut Findings) {
        let Some(task) = state.task(tid).filter(|task| task.is_fair()) else { return };
        let (Some(since), Some(allowed)) = (task.waits_since(), &task.allowed) else { return };
        // Time before the current mask or shield does not count.
        let since = since.max(task.allowed_since_ns).max(state.shield_since_ns());
        let waited = now.saturating_sub(since);
        if waited <= self.limits.idle_grace_ns && waited <= found.longest_idle_ns {
            return;
        }
        for cpu in common(allowed.as_words(), &self.suspects) {
            if state.is_closed(task, cpu) {
                continue;
            }
            let still =
                state.on(cpu).filter(|(task, _)| *task == IDLE).map(|(_, from)| (from, now));
            let before = self.idle.get(&cpu).into_iter().flatten().copied();
            for (from, to) in before.chain(still) {
                let both = to.saturating_sub(from.max(since));
                found.longest_idle_ns = found.longest_idle_ns.max(both);
                if both > self.limits.idle_grace_ns {
                    let ms = both / 1_000_000;
                    let what = format!("CPU {cpu} idled for {ms} ms while task {tid} waited");
                    found.add_violation(NAME, now, what);
                    return;
                }
            }
        }
    }

    fn remember(&mut self, cpu: u32, from: u64, to: u64) {
        if to.saturating_sub(from) <= self.limits.idle_grace_ns {
            return;
        }
        let times = self.idle.entry(cpu).or_default();
        if times.len() == REMEMBERED {
            times.pop_front();
        }
        times.push_back((from, to));
    }
}

/// The CPUs in both of these sets of bits.
fn common(a: &[u64], b: &[u64]) -> impl Iterator<Item = u32> {
    (0u32..).zip(a.iter().zip(b)).flat_map(|(at, (a, b))| {
        let mut bits = a & b;
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(at * 64 + bit)
        })
    })
}

impl Checker for WorkConservation {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        if self.limits.idle_grace_ns == 0 {
            return;
        }
        let What::Switch { prev, next, .. } = event.what else { return };
        if let (IDLE, Some((_, from))) = (prev, state.on(event.cpu)) {
            self.remember(event.cpu, from, event.time_ns);
        }
        if next != IDLE {
            self.judge(next, event.time_ns, state, found);
        }
        self.suspect(event.cpu, next == IDLE);
    }

    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings) {
        if self.limits.idle_grace_ns == 0 {
            return;
        }
        let waits = |(tid, task): (Tid, &Task)| task.waits_since().map(|_| tid);
        let mut waiting: Vec<Tid> = state.tasks().filter_map(waits).collect();
        waiting.sort_unstable();
        for task in waiting {
            self.judge(task, time_ns, state, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::test_events::*;

    /// CPU 1 idles, and task 7 waits for CPU 0, both from 0 on.
    fn waits(allowed: &str) -> Vec<crate::Event> {
        let ready = [switch(0, 1, 9, Asleep, 0), fair(0, 7), affinity(0, 7, allowed), wake(0, 7)];
        ready.to_vec()
    }

    #[test]
    fn idling_within_the_grace_is_accepted() {
        let events = [waits("0-1"), vec![switch(5, 1, 0, Runnable, 7)]].concat();
        assert!(broken_by(&events, 6).is_empty());
    }

    #[test]
    fn idling_beyond_the_grace_while_a_task_waits_is_a_violation() {
        let events = [waits("0-1"), vec![switch(6, 0, 9, Asleep, 7)]].concat();
        assert_eq!(broken_by(&events, 7), ["work_conservation"]);
        // Also when the stream ends before the wait does.
        assert_eq!(broken_by(&waits("0-1"), 6), ["work_conservation"]);
        // Also when the CPU no longer idles at the end of the wait.
        let then = [switch(7, 1, 0, Runnable, 8), switch(8, 0, 9, Asleep, 7)];
        assert_eq!(broken_by(&[waits("0-1"), then.to_vec()].concat(), 9), ["work_conservation"]);
    }

    #[test]
    fn a_shielded_cpu_may_idle_unless_a_task_is_pinned_there() {
        // An event names CPU 0, so that the task is known to have another CPU.
        let waits = |allowed| [waits(allowed), vec![switch(0, 0, 0, Runnable, 8)]].concat();
        let then = |events: Vec<_>| [events, vec![switch(9, 0, 8, Asleep, 7)]].concat();
        let shielded = [waits("0-1"), vec![shield(0, "1")]].concat();
        assert!(broken_by(&then(shielded.clone()), 9).is_empty());
        // A task that is pinned there must not wait for it.
        let confined = [waits("1"), vec![shield(0, "1")]].concat();
        assert_eq!(broken_by(&confined, 9), ["work_conservation"]);
        // When the shield falls, idle time counts from then on.
        let late = [shielded.clone(), vec![shield(5, "")]].concat();
        assert!(broken_by(&then(late), 9).is_empty());
        let early = [shielded, vec![shield(3, "")]].concat();
        assert_eq!(broken_by(&then(early), 9), ["work_conservation"]);
    }

    #[test]
    fn a_cpu_that_no_waiting_task_may_use_may_idle() {
        let events = [waits("0"), vec![switch(9, 0, 9, Asleep, 7)]].concat();
        assert!(broken_by(&events, 9).is_empty());
        // The task is allowed there only since 1 ms.
        let late = [waits("0"), vec![affinity(8, 7, "0-1"), switch(9, 1, 0, Runnable, 7)]].concat();
        assert!(broken_by(&late, 9).is_empty());
    }
}
