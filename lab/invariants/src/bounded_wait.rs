//! No fair task waits longer than its turn can take: a fixed time, and a turn for everybody else who
//! wants to run.

use crate::event::{Event, IDLE, Tid, What};
use crate::watch::{Findings, Invariant, Limits};
use crate::world::World;

const NAME: &str = "bounded_wait";

pub(crate) struct BoundedWait {
    limits: Limits,
    /// The most that wanted to run at once so far: who waits has waited through that.
    crowd: u64,
}

impl BoundedWait {
    pub fn new(limits: Limits) -> Self {
        Self { limits, crowd: 0 }
    }

    fn judge(&self, task: Tid, now: u64, world: &World, found: &mut Findings) -> bool {
        let known = world.task(task).filter(|task| task.is_fair());
        let Some(since) = known.and_then(|task| task.waits_since()) else { return true };
        let waited = now.saturating_sub(since);
        found.longest_wait_ns = found.longest_wait_ns.max(waited);
        let bound = self.limits.wait_ns + self.limits.wait_per_task_ns * self.crowd;
        if waited > bound {
            let ms = |ns| ns / 1_000_000;
            let what = format!(
                "task {task} waited {} ms, and {} ms is the most with {} that want to run",
                ms(waited),
                ms(bound),
                self.crowd
            );
            found.broken(NAME, now, what);
        }
        waited <= bound
    }
}

impl Invariant for BoundedWait {
    fn see(&mut self, event: &Event, world: &World, found: &mut Findings) {
        self.crowd = self.crowd.max(world.runnable() as u64);
        let What::Switch { next, .. } = event.what else { return };
        if next != IDLE {
            self.judge(next, event.time_ns, world, found);
        }
    }

    fn end(&mut self, time_ns: u64, world: &World, found: &mut Findings) {
        let mut waiting: Vec<Tid> = world.tasks().map(|(tid, _)| tid).collect();
        waiting.sort_unstable();
        for task in waiting {
            self.judge(task, time_ns, world, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{Class, Left::*, What};
    use crate::script::*;

    #[test]
    fn a_turn_that_comes_in_time() {
        let events = [fair(0, 7), wake(0, 7), switch(11, 0, 0, Runnable, 7)];
        assert!(broken_by(&events, 12).is_empty());
    }

    #[test]
    fn a_turn_that_comes_late() {
        let events = [fair(0, 7), wake(0, 7), switch(12, 0, 0, Runnable, 7)];
        assert_eq!(broken_by(&events, 12), ["bounded_wait"]);
    }

    #[test]
    fn a_turn_that_never_comes() {
        let events = [fair(0, 7), wake(0, 7)];
        assert_eq!(broken_by(&events, 12), ["bounded_wait"]);
    }

    #[test]
    fn in_a_crowd_it_may_take_longer() {
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
    fn others_than_fair_tasks_wait_by_other_rules() {
        let class = at(0, What::Class { task: 7, class: Class::Other });
        assert!(broken_by(&[class, wake(0, 7)], 1000).is_empty());
    }
}
