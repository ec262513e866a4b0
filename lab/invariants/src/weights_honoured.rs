//! Tasks that share a CPU share it by weight. Judged where nothing but the weight decides: among fair
//! tasks of one cgroup that are pinned to one CPU and runnable all the time.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Class, Event, IDLE, Left, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::state::{State, Task};

const NAME: &str = "weights_honoured";

/// The tasks of one cgroup that are pinned to one CPU. Judged window by window.
#[derive(Default)]
struct Share {
    since_ns: u64,
    members: BTreeMap<Tid, Member>,
}

struct Member {
    weight: u32,
    /// Since when it is runnable.
    joined_ns: u64,
    /// Its run time in this window.
    ran_ns: u64,
}

pub(crate) struct WeightsHonoured {
    limits: Limits,
    /// By CPU and group.
    shares: BTreeMap<(u32, u64), Share>,
}

impl WeightsHonoured {
    pub fn new(limits: Limits) -> Self {
        Self { limits, shares: BTreeMap::new() }
    }

    /// A task becomes runnable.
    fn join(&mut self, tid: Tid, state: &State, now: u64) {
        let Some((place, weight)) = state.task(tid).and_then(only_place) else { return };
        let share = self.shares.entry(place).or_default();
        share.members.entry(tid).or_insert(Member { weight, joined_ns: now, ran_ns: 0 });
    }

    /// A task is no longer runnable, or its mask or weight changed.
    fn leave(&mut self, tid: Tid) {
        for share in self.shares.values_mut() {
            share.members.remove(&tid);
        }
    }

    fn ran(&mut self, tid: Tid, cpu: u32, from: u64, to: u64) {
        for (_, share) in self.shares.range_mut((cpu, 0)..=(cpu, u64::MAX)) {
            if let Some(member) = share.members.get_mut(&tid) {
                member.ran_ns += to.saturating_sub(from.max(share.since_ns));
            }
        }
    }

    /// Judges the windows of a CPU that are over, and begins new ones.
    fn end_windows(&mut self, cpu: u32, now: u64, found: &mut Findings) {
        for (_, share) in self.shares.range_mut((cpu, 0)..=(cpu, u64::MAX)) {
            if now.saturating_sub(share.since_ns) >= self.limits.share_window_ns {
                judge(&self.limits, cpu, share, now, found);
                share.since_ns = now;
                share.members.values_mut().for_each(|member| member.ran_ns = 0);
            }
        }
    }
}

fn judge(limits: &Limits, cpu: u32, share: &Share, now: u64, found: &mut Findings) {
    let all_along = |member: &&Member| member.joined_ns <= share.since_ns;
    let judged = || share.members.values().filter(all_along);
    let ran: u64 = judged().map(|member| member.ran_ns).sum();
    let weights: u64 = judged().map(|member| u64::from(member.weight)).sum();
    let count = judged().count();
    found.shares_judged += u64::from(count > 1);
    for (tid, member) in share.members.iter().filter(|(_, member)| all_along(member)) {
        // `ran` is at most the window, so the product fits.
        let due = ran * u64::from(member.weight) / weights.max(1);
        let room = due * limits.share_tolerance_pct / 100 + limits.share_slack_ns;
        if member.ran_ns.abs_diff(due) > room {
            let ms = |ns| ns / 1_000_000;
            let what = format!(
                "of {} ms that {count} tasks shared on CPU {cpu}, task {tid} (weight {} of \
                 {weights}) got {} ms instead of {} ms",
                ms(ran),
                member.weight,
                ms(member.ran_ns),
                ms(due)
            );
            found.add_violation(NAME, now, what);
        }
    }
}

/// The CPU that a fair task is pinned to with its cgroup, and its weight; none for all other tasks.
fn only_place(task: &Task) -> Option<((u32, u64), u32)> {
    let Some(Class::Fair { weight, group }) = task.class else { return None };
    let mut cpus = task.allowed.as_ref()?.iter();
    let cpu = cpus.next()?;
    cpus.next().is_none().then_some(((cpu, group), weight))
}

impl Checker for WeightsHonoured {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        let (now, cpu) = (event.time_ns, event.cpu);
        match event.what {
            What::Switch { prev, left, next, .. } => {
                if let Some((running, from)) = state.on(cpu)
                    && running == prev
                {
                    self.ran(prev, cpu, from, now);
                }
                if left != Left::Runnable {
                    self.leave(prev);
                }
                self.end_windows(cpu, now, found);
                if next != IDLE {
                    self.join(next, state, now);
                }
            }
            What::Wakeup { task } => self.join(task, state, now),
            What::Affinity { task, .. } | What::Class { task, .. } | What::Exit { task } => {
                self.leave(task);
            }
            What::Migrate { .. } | What::Fork { .. } | What::Shield { .. } => {}
        }
    }

    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings) {
        let cpus: BTreeSet<u32> = self.shares.keys().map(|(cpu, _)| *cpu).collect();
        for cpu in cpus {
            if let Some((running, from)) = state.on(cpu) {
                self.ran(running, cpu, from, time_ns);
            }
            self.end_windows(cpu, time_ns, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Left::*;
    use crate::test_events::*;

    /// Two tasks on CPU 0, one with three times the weight, for two seconds in turns of `a` and `b`
    /// milliseconds.
    fn share(a: u64, b: u64) -> Vec<Event> {
        let mut events = vec![
            weight(0, 7, 3072),
            weight(0, 8, 1024),
            affinity(0, 7, "0"),
            affinity(0, 8, "0"),
            wake(0, 7),
            wake(0, 8),
            switch(0, 0, 0, Runnable, 7),
        ];
        let mut now = 0;
        while now < 2200 {
            events.push(switch(now + a, 0, 7, Runnable, 8));
            events.push(switch(now + a + b, 0, 8, Runnable, 7));
            now += a + b;
        }
        events
    }

    fn is_broken(events: &[Event]) -> bool {
        // run_times_add_up finds violations here, too: these streams hold no charges.
        broken_by(events, 2300).contains(&NAME)
    }

    #[test]
    fn shares_by_weight_are_accepted() {
        assert!(!is_broken(&share(9, 3)));
        let mut watch = crate::Watch::new(limits());
        share(9, 3).iter().for_each(|event| watch.see(event));
        assert_eq!(watch.end(ms(2300)).shares_judged, 2, "both windows were judged");
    }

    #[test]
    fn equal_shares_of_unequal_weights_are_a_violation() {
        assert!(is_broken(&share(6, 6)));
    }

    #[test]
    fn a_short_visitor_does_not_disturb_the_judgement() {
        // The visitor is pinned there, too, as kernel threads are.
        let mut events = vec![fair(0, 9), affinity(0, 9, "0")];
        for event in share(9, 3) {
            let time = event.time_ns / 1_000_000;
            if time > 0 && time.is_multiple_of(48) {
                events.push(wake(time, 9));
                events.push(switch(time, 0, 8, Runnable, 9));
                events.push(switch(time, 0, 9, Asleep, 7));
            } else {
                events.push(event);
            }
        }
        assert!(!is_broken(&events));
        // For one second one of them has the CPU alone.
        events.retain(|event| event.time_ns <= ms(1104) || event.time_ns > ms(2112));
        assert!(is_broken(&events));
    }

    #[test]
    fn tasks_of_different_cgroups_are_not_compared() {
        let mut events = share(6, 6);
        events[0] = at(0, What::Class { task: 7, class: Class::Fair { weight: 3072, group: 1 } });
        assert!(!is_broken(&events));
    }

    #[test]
    fn tasks_that_are_not_pinned_are_not_judged() {
        let mut events = share(6, 6);
        events[2] = affinity(0, 7, "0-1");
        assert!(!is_broken(&events));
    }
}
