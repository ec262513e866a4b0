//! A task runs on one CPU at a time, and only if it was woken and is not dead. The task that leaves a
//! CPU is the one that the CPU switched to. (A task that waits for ever is found by `bounded_wait`.)

use crate::event::{Event, IDLE, What};
use crate::findings::{Checker, Findings};
use crate::state::{Condition, State};

const NAME: &str = "no_lost_task";

pub(crate) struct NoLostTask;

impl Checker for NoLostTask {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        let What::Switch { prev, next, .. } = event.what else { return };
        if state.is_changing() {
            return;
        }
        let mut broken = |what| found.add_violation(NAME, event.time_ns, what);
        let cpu = event.cpu;
        if let Some((known, _)) = state.on(cpu)
            && known != prev
        {
            broken(format!("CPU {cpu} switched to task {known}, but task {prev} left it"));
        }
        if next == IDLE || next == prev {
            return;
        }
        match state.task(next).map(|task| task.condition) {
            Some(Condition::Runs { cpu: other, .. }) if other != cpu => {
                broken(format!(
                    "task {next} runs on CPU {other}, and CPU {cpu} switches to it, too"
                ));
            }
            Some(Condition::Sleeps) => {
                broken(format!("CPU {cpu} switches to task {next}, which was not woken"));
            }
            Some(Condition::Dead) => {
                broken(format!("CPU {cpu} switches to task {next}, which is dead"))
            }
            _ => {}
        }
    }

    fn end(&mut self, _: u64, _: &State, _: &mut Findings) {}
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::test_events::*;

    #[test]
    fn a_tasks_whole_life_is_accepted() {
        let life = [
            fork(0, 7),
            wake(1, 7),
            switch(2, 0, 0, Runnable, 7),
            switch(3, 0, 7, Runnable, 8),
            switch(3, 1, 0, Runnable, 7),
            switch(4, 1, 7, Asleep, 0),
            wake(5, 7),
            switch(6, 1, 0, Runnable, 7),
            switch(7, 1, 7, Dead, 0),
            fork(8, 7),
            switch(9, 1, 0, Runnable, 7),
        ];
        assert!(broken_by(&life, 10).is_empty());
    }

    #[test]
    fn a_task_on_two_cpus_is_a_violation() {
        let twice = [switch(1, 0, 0, Runnable, 7), switch(2, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&twice, 3), ["no_lost_task"]);
    }

    #[test]
    fn a_switch_to_a_sleeping_task_is_a_violation() {
        let asleep = [switch(1, 0, 7, Asleep, 0), switch(2, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&asleep, 3), ["no_lost_task"]);
    }

    #[test]
    fn a_switch_to_a_dead_task_is_a_violation() {
        let dead = [switch(1, 0, 7, Dead, 0), switch(2, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&dead, 3), ["no_lost_task"]);
    }

    #[test]
    fn a_wakeup_may_be_missing_while_cpus_come_and_go() {
        let mut watch = crate::Watch::new(limits());
        watch.see(&switch(1, 0, 7, Asleep, 0));
        watch.cpus_change(true);
        watch.see(&switch(2, 1, 0, Runnable, 7));
        watch.cpus_change(false);
        // From now on no event is missing.
        watch.see(&switch(3, 1, 7, Asleep, 0));
        watch.see(&switch(4, 0, 0, Runnable, 7));
        assert_eq!(watch.end(ms(5)).count, 1);
    }

    #[test]
    fn a_task_that_leaves_without_having_come_is_a_violation() {
        let mixed = [switch(1, 0, 0, Runnable, 7), switch(2, 0, 8, Runnable, 0)];
        assert_eq!(broken_by(&mixed, 3), ["no_lost_task"]);
    }
}
