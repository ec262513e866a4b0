//! Tasks that share a CPU share it by weight: their own, and those of their cgroups. Judged where
//! nothing but the weight decides: among fair tasks that are pinned to one CPU and runnable all the
//! time. The weight of such a task changes as other tasks of its cgroups come and go. So each stretch of
//! run time is divided among all of them by the weights that they have at that time: that is what each
//! is due.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Class, Event, IDLE, Left, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::state::{State, Task};

const NAME: &str = "weights_honoured";

/// Tasks that are pinned to one CPU and compared with each other, window by window: those of all cgroups
/// with a known place in the hierarchy together, and those of each cgroup without one by themselves.
#[derive(Default)]
struct Share {
    since_ns: u64,
    members: BTreeMap<Tid, Member>,
}

struct Member {
    /// Since when it is runnable.
    joined_ns: u64,
    /// Its run time in this window.
    ran_ns: u64,
    /// What it should have run: its share of the run time of all members that were there from the
    /// window's beginning on.
    due_ns: u64,
}

impl Share {
    /// A member ran for so long: divides that among all members by weight, as what each was due.
    fn add_due(&mut self, ran_ns: u64, state: &State) {
        let since_ns = self.since_ns;
        let weigh = |tid: &Tid| state.task(*tid).map_or(0, |task| weight_of(task, state));
        let all_along = |member: &Member| member.joined_ns <= since_ns;
        let judged = self.members.iter().filter(|(_, member)| all_along(member));
        let all: u128 = judged.map(|(tid, _)| u128::from(weigh(tid))).sum();
        for (tid, member) in &mut self.members {
            if all_along(member) {
                let due = u128::from(ran_ns) * u128::from(weigh(tid)) / all.max(1);
                member.due_ns += due as u64;
            }
        }
    }
}

/// A task's weight beside the others of its share: of the machine, or of its cgroup.
fn weight_of(task: &Task, state: &State) -> u64 {
    let own = match task.class {
        Some(Class::Fair { weight, .. }) => u64::from(weight),
        _ => 0,
    };
    state.weight_of(task).unwrap_or(own)
}

pub(crate) struct WeightsHonoured {
    limits: Limits,
    /// By CPU, and by cgroup if its place is not known; 0 for all others.
    shares: BTreeMap<(u32, u64), Share>,
}

impl WeightsHonoured {
    pub fn new(limits: Limits) -> Self {
        Self { limits, shares: BTreeMap::new() }
    }

    /// A task becomes runnable.
    fn join(&mut self, tid: Tid, state: &State, now: u64) {
        let Some(place) = state.task(tid).and_then(|task| only_place(task, state)) else { return };
        let share = self.shares.entry(place).or_default();
        share.members.entry(tid).or_insert(Member { joined_ns: now, ran_ns: 0, due_ns: 0 });
    }

    /// A task is no longer runnable, or its mask or weight changed.
    fn leave(&mut self, tid: Tid) {
        for share in self.shares.values_mut() {
            share.members.remove(&tid);
        }
    }

    fn ran(&mut self, tid: Tid, cpu: u32, state: &State, stretch: std::ops::Range<u64>) {
        for (_, share) in self.shares.range_mut((cpu, 0)..=(cpu, u64::MAX)) {
            let Some(member) = share.members.get_mut(&tid) else { continue };
            let ran_ns = stretch.end.saturating_sub(stretch.start.max(share.since_ns));
            member.ran_ns += ran_ns;
            if member.joined_ns <= share.since_ns {
                share.add_due(ran_ns, state);
            }
        }
    }

    /// Judges the windows of a CPU that are over, and begins new ones.
    fn end_windows(&mut self, cpu: u32, now: u64, found: &mut Findings) {
        for (_, share) in self.shares.range_mut((cpu, 0)..=(cpu, u64::MAX)) {
            if now.saturating_sub(share.since_ns) >= self.limits.share_window_ns {
                judge(&self.limits, cpu, share, now, found);
                share.since_ns = now;
                for member in share.members.values_mut() {
                    (member.ran_ns, member.due_ns) = (0, 0);
                }
            }
        }
    }
}

fn judge(limits: &Limits, cpu: u32, share: &Share, now: u64, found: &mut Findings) {
    let all_along = |member: &&Member| member.joined_ns <= share.since_ns;
    let judged = || share.members.values().filter(all_along);
    let ran: u64 = judged().map(|member| member.ran_ns).sum();
    let count = judged().count();
    found.shares_judged += u64::from(count > 1);
    for (tid, member) in share.members.iter().filter(|(_, member)| all_along(member)) {
        let due = member.due_ns;
        let room = due * limits.share_tolerance_pct / 100 + limits.share_slack_ns;
        if member.ran_ns.abs_diff(due) > room {
            let ms = |ns| ns / 1_000_000;
            let what = format!(
                "of {} ms that {count} tasks shared on CPU {cpu}, task {tid} got {} ms instead of {} ms",
                ms(ran),
                ms(member.ran_ns),
                ms(due)
            );
            found.add_violation(NAME, now, what);
        }
    }
}

/// The CPU that a fair task is pinned to, and the group if its place is not known; none for all other
/// tasks.
fn only_place(task: &Task, state: &State) -> Option<(u32, u64)> {
    let Some(Class::Fair { group, .. }) = task.class else { return None };
    let mut cpus = task.allowed.as_ref()?.iter();
    let cpu = cpus.next()?;
    let apart = if state.weight_of(task).is_some() { 0 } else { group };
    cpus.next().is_none().then_some((cpu, apart))
}

impl Checker for WeightsHonoured {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        let (now, cpu) = (event.time_ns, event.cpu);
        match event.what {
            What::Switch { prev, left, next, .. } => {
                if let Some((running, from)) = state.on(cpu)
                    && running == prev
                {
                    self.ran(prev, cpu, state, from..now);
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
            What::Migrate { .. }
            | What::Waking { .. }
            | What::Fork { .. }
            | What::Group { .. }
            | What::Shield { .. } => {}
        }
    }

    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings) {
        let cpus: BTreeSet<u32> = self.shares.keys().map(|(cpu, _)| *cpu).collect();
        for cpu in cpus {
            if let Some((running, from)) = state.on(cpu) {
                self.ran(running, cpu, state, from..time_ns);
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

    fn member(task: Tid, group: u64) -> Event {
        at(0, What::Class { task, class: Class::Fair { weight: 1024, group } })
    }

    fn group(group: u64, parent: u64, weight: u32) -> Event {
        at(0, What::Group { group, parent, weight })
    }

    #[test]
    fn cgroups_share_by_their_weights_at_any_depth() {
        for depth in [1, 3, 12, 31] {
            // Below the outermost group the weights make no difference: each is alone in its parent.
            let mut events: Vec<_> = (2..=depth).map(|at| group(at, at - 1, 102_400)).collect();
            events.extend([group(1, 0, 3072), group(100, 0, 1024)]);
            let groups = events.len();
            let shared = |a, b| {
                let mut events = events.clone();
                events.extend(share(a, b));
                events[groups] = member(7, depth);
                events[groups + 1] = member(8, 100);
                is_broken(&events)
            };
            assert!(!shared(9, 3), "depth {depth}");
            assert!(shared(6, 6), "depth {depth}");
        }
    }

    #[test]
    fn a_member_of_a_group_shares_with_the_other_members_wherever_they_run() {
        // Another task of the group has another CPU.
        let mut events = vec![group(1, 0, 1024), member(9, 1), wake(0, 9)];
        events.extend(share(4, 8));
        events[3] = member(7, 1);
        assert!(!is_broken(&events));
        events.remove(2);
        assert!(is_broken(&events), "alone in its group it is due a half");
    }

    #[test]
    fn tasks_of_cgroups_without_a_known_place_are_not_compared() {
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
