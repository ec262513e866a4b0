//! No fair task waits longer than its turn can take: a fixed time, and a turn for each other runnable
//! task.

use crate::event::{Event, IDLE, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::state::State;

const NAME: &str = "bounded_wait";

pub(crate) struct BoundedWait {
    limits: Limits,
    /// The most fair tasks that were runnable at once so far.
    crowd: u64,
}

impl BoundedWait {
    pub fn new(limits: Limits) -> Self {
        Self { limits, crowd: 0 }
    }

    fn judge(&self, task: Tid, now: u64, state: &State, found: &mut Findings) -> bool {
        let known = state.task(task).filter(|task| task.is_fair());
        let Some(since) = known.and_then(|task| task.waits_since()) else { return true };
        let waited = now.saturating_sub(since);
        found.longest_wait_ns = found.longest_wait_ns.max(waited);
        let bound = self.limits.wait_ns + self.limits.wait_per_task_ns * self.crowd;
        if waited > bound {
            let ms = |ns| ns / 1_000_000;
            let what = format!(
                "task {task} waited {} ms, and {} ms is the most with {} runnable tasks",
                ms(waited),
                ms(bound),
                self.crowd
            );
            found.add_violation(NAME, now, what);
        }
        waited <= bound
    }
}

impl Checker for BoundedWait {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        self.crowd = self.crowd.max(state.runnable() as u64);
        let What::Switch { next, .. } = event.what else { return };
        if next != IDLE {
            self.judge(next, event.time_ns, state, found);
        }
    }

    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings) {
        let mut waiting: Vec<Tid> = state.tasks().map(|(tid, _)| tid).collect();
        waiting.sort_unstable();
        for task in waiting {
            self.judge(task, time_ns, state, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{Class, Left::*, What};
    use crate::test_events::*;

    #[test]
    fn a_wait_within_the_bound_is_allowed() {
        let events = [fair(0, 7), wake(0, 7), switch(11, 0, 0, Runnable, 7)];
        assert!(broken_by(&events, 12).is_empty());
    }

    #[test]
    fn a_wait_beyond_the_bound_is_a_violation() {
        let events = [fair(0, 7), wake(0, 7), switch(12, 0, 0, Runnable, 7)];
        assert_eq!(broken_by(&events, 12), ["bounded_wait"]);
    }

    #[test]
    fn a_wait_that_never_ends_is_a_violation() {
        let events = [fair(0, 7), wake(0, 7)];
        assert_eq!(broken_by(&events, 12), ["bounded_wait"]);
    }

    #[test]
    fn the_bound_grows_with_the_runnable_tasks() {
        let crowd = (100..120).flat_map(|task| [fair(0, task), wake(0, task)]);
        let mut events: Vec<_> = [fair(0, 7), wake(0, 7)].into_iter().chain(crowd).collect();
        let ends = (100..120).map(|task| switch(20, task, 0, Runnable, task));
        events.extend(ends);
        events.push(switch(30, 0, 0, Runnable, 7));
        assert!(broken_by(&events, 31).is_empty());
        let late = switch(32, 0, 0, Runnable, 7);
        *events.last_mut().unwrap() = late;
        assert_eq!(broken_by(&events, 32), ["bounded_wait"]);
    }

    #[test]
    fn tasks_of_other_classes_are_not_judged() {
        let class = at(0, What::Class { task: 7, class: Class::Other });
        assert!(broken_by(&[class, wake(0, 7)], 1000).is_empty());
    }
}
