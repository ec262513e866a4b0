//! No CPU idles while a fair task that may run there waits: for longer than waking somebody takes.

use std::collections::{BTreeMap, VecDeque};

use crate::event::{Event, IDLE, Tid, What};
use crate::watch::{Findings, Invariant, Limits};
use crate::world::{Task, World};

const NAME: &str = "work_conservation";

/// Long idle times of each CPU that are remembered: nobody waits through more of them than that
/// without one being too long.
const REMEMBERED: usize = 64;

pub(crate) struct WorkConservation {
    limits: Limits,
    /// When each CPU idled, from and to, the last times that were longer than the grace.
    idle: BTreeMap<u32, VecDeque<(u64, u64)>>,
    /// CPUs that idle or have such times, as bits: nobody else is looked at when a wait ends.
    suspects: Vec<u64>,
}

impl WorkConservation {
    pub fn new(limits: Limits) -> Self {
        Self { limits, idle: BTreeMap::new(), suspects: Vec::new() }
    }

    /// A CPU idles from now on, or does so no longer.
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

    /// A wait has ended: did a CPU idle meanwhile that the task could have had?
    fn judge(&self, tid: Tid, now: u64, world: &World, found: &mut Findings) {
        let Some(task) = world.task(tid).filter(|task| task.is_fair()) else { return };
        let (Some(since), Some(allowed)) = (task.waits_since(), &task.allowed) else { return };
        // Where it may run has changed meanwhile: what was before is another question.
        let since = since.max(task.allowed_since_ns).max(world.shield_since_ns());
        let waited = now.saturating_sub(since);
        if waited <= self.limits.idle_grace_ns && waited <= found.longest_idle_ns {
            return;
        }
        for cpu in common(allowed.as_words(), &self.suspects) {
            if world.is_closed(task, cpu) {
                continue;
            }
            let still = world.on(cpu).filter(|(who, _)| *who == IDLE).map(|(_, from)| (from, now));
            let before = self.idle.get(&cpu).into_iter().flatten().copied();
            for (from, to) in before.chain(still) {
                let both = to.saturating_sub(from.max(since));
                found.longest_idle_ns = found.longest_idle_ns.max(both);
                if both > self.limits.idle_grace_ns {
                    let ms = both / 1_000_000;
                    let what = format!("CPU {cpu} idled for {ms} ms while task {tid} waited");
                    found.broken(NAME, now, what);
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

impl Invariant for WorkConservation {
    fn see(&mut self, event: &Event, world: &World, found: &mut Findings) {
        if self.limits.idle_grace_ns == 0 {
            return;
        }
        let What::Switch { prev, next, .. } = event.what else { return };
        if let (IDLE, Some((_, from))) = (prev, world.on(event.cpu)) {
            self.remember(event.cpu, from, event.time_ns);
        }
        if next != IDLE {
            self.judge(next, event.time_ns, world, found);
        }
        self.suspect(event.cpu, next == IDLE);
    }

    fn end(&mut self, time_ns: u64, world: &World, found: &mut Findings) {
        if self.limits.idle_grace_ns == 0 {
            return;
        }
        let waits = |(tid, task): (Tid, &Task)| task.waits_since().map(|_| tid);
        let mut waiting: Vec<Tid> = world.tasks().filter_map(waits).collect();
        waiting.sort_unstable();
        for task in waiting {
            self.judge(task, time_ns, world, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::script::*;

    /// CPU 1 idles from 0 on, and 7 waits for CPU 0 from then on.
    fn waits(allowed: &str) -> Vec<crate::Event> {
        let ready = [switch(0, 1, 9, Asleep, 0), fair(0, 7), affinity(0, 7, allowed), wake(0, 7)];
        ready.to_vec()
    }

    #[test]
    fn idle_for_a_moment() {
        let events = [waits("0-1"), vec![switch(5, 1, 0, Runnable, 7)]].concat();
        assert!(broken_by(&events, 6).is_empty());
    }

    #[test]
    fn idle_while_somebody_waits() {
        let events = [waits("0-1"), vec![switch(6, 0, 9, Asleep, 7)]].concat();
        assert_eq!(broken_by(&events, 7), ["work_conservation"]);
        // To the end of the stream.
        assert_eq!(broken_by(&waits("0-1"), 6), ["work_conservation"]);
        // It idled for long, and no longer does when the wait ends.
        let then = [switch(7, 1, 0, Runnable, 8), switch(8, 0, 9, Asleep, 7)];
        assert_eq!(broken_by(&[waits("0-1"), then.to_vec()].concat(), 9), ["work_conservation"]);
    }

    #[test]
    fn idle_behind_a_shield() {
        // CPU 0 is heard of.
        let waits = |allowed| [waits(allowed), vec![switch(0, 0, 0, Runnable, 8)]].concat();
        let then = |events: Vec<_>| [events, vec![switch(9, 0, 8, Asleep, 7)]].concat();
        let shielded = [waits("0-1"), vec![shield(0, "1")]].concat();
        assert!(broken_by(&then(shielded.clone()), 9).is_empty());
        // Who may run nowhere else must not wait for it.
        let confined = [waits("1"), vec![shield(0, "1")]].concat();
        assert_eq!(broken_by(&confined, 9), ["work_conservation"]);
        // And when it falls, it counts from then on.
        let late = [shielded.clone(), vec![shield(5, "")]].concat();
        assert!(broken_by(&then(late), 9).is_empty());
        let early = [shielded, vec![shield(3, "")]].concat();
        assert_eq!(broken_by(&then(early), 9), ["work_conservation"]);
    }

    #[test]
    fn idle_where_nobody_who_waits_may_run() {
        let events = [waits("0"), vec![switch(9, 0, 9, Asleep, 7)]].concat();
        assert!(broken_by(&events, 9).is_empty());
        // Allowed there only since a moment.
        let late = [waits("0"), vec![affinity(8, 7, "0-1"), switch(9, 1, 0, Runnable, 7)]].concat();
        assert!(broken_by(&late, 9).is_empty());
    }
}
