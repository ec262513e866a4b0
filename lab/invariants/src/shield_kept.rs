//! No fair task runs on a shielded CPU for longer than the grace if it may run on another CPU.

use crate::event::{Event, IDLE, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::state::State;

const NAME: &str = "shield_kept";

pub(crate) struct ShieldKept {
    limits: Limits,
}

impl ShieldKept {
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Judges how long `task`, which runs on this CPU up to now, has been there.
    fn judge(&self, task: Tid, cpu: u32, now: u64, state: &State, found: &mut Findings) {
        let known = state.task(task).filter(|task| task.is_fair());
        let (Some(known), Some((on, since))) = (known, state.on(cpu)) else { return };
        if on != task || !state.is_closed(known, cpu) {
            return;
        }
        // Time before the shield or before the current mask does not count.
        let since = since.max(known.allowed_since_ns).max(state.shield_since_ns());
        let lodged = now.saturating_sub(since);
        if lodged > self.limits.shield_grace_ns {
            let ms = lodged / 1_000_000;
            let what = format!("task {task} had the shielded CPU {cpu} for {ms} ms");
            found.add_violation(NAME, now, what);
        }
    }
}

impl Checker for ShieldKept {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        let What::Switch { prev, .. } = event.what else { return };
        if prev != IDLE {
            self.judge(prev, event.cpu, event.time_ns, state, found);
        }
    }

    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings) {
        for cpu in state.cpus() {
            if let Some((task, _)) = state.on(cpu) {
                self.judge(task, cpu, time_ns, state, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::event::{Class, Event, What};
    use crate::test_events::*;

    /// Task 7 may use both CPUs or one, and has CPU 1 from 0 on, which is shielded then or later.
    fn runs(allowed: &str, shielded_at: u64) -> Vec<Event> {
        let ready = [affinity(0, 7, allowed), fair(0, 7), wake(0, 7), switch(0, 0, 0, Runnable, 8)];
        [&ready[..], &[switch(0, 1, 0, Runnable, 7), shield(shielded_at, "1")]].concat()
    }

    #[test]
    fn a_task_that_leaves_within_the_grace_is_accepted() {
        let events = [runs("0-1", 0), vec![switch(5, 1, 7, Asleep, 0)]].concat();
        assert!(broken_by(&events, 6).is_empty());
        // The grace begins with the shield, and nothing counts once the shield is gone.
        let events = [runs("0-1", 4), vec![switch(9, 1, 7, Asleep, 0)]].concat();
        assert!(broken_by(&events, 10).is_empty());
        let events = [runs("0-1", 0), vec![shield(4, ""), switch(9, 1, 7, Asleep, 0)]].concat();
        assert!(broken_by(&events, 10).is_empty());
    }

    #[test]
    fn a_task_that_stays_beyond_the_grace_is_a_violation() {
        let events = [runs("0-1", 0), vec![switch(6, 1, 7, Asleep, 0)]].concat();
        assert_eq!(broken_by(&events, 7), ["shield_kept"]);
        // Also when the stream ends before it leaves.
        assert_eq!(broken_by(&runs("0-1", 2), 8), ["shield_kept"]);
    }

    #[test]
    fn tasks_pinned_to_shielded_cpus_and_of_other_classes_may_stay() {
        assert!(broken_by(&runs("1", 0), 9).is_empty());
        let real_time = at(0, What::Class { task: 7, class: Class::Other });
        assert!(broken_by(&[vec![real_time], runs("1", 0)[..1].to_vec()].concat(), 9).is_empty());
    }
}
