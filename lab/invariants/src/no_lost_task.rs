//! A task runs in one place, and only when it may: not twice, not asleep, not dead. And whoever runs
//! is who the CPU turned to. (Who waits for ever is `bounded_wait`'s.)

use crate::event::{Event, IDLE, What};
use crate::watch::{Findings, Invariant};
use crate::world::{Condition, World};

const NAME: &str = "no_lost_task";

pub(crate) struct NoLostTask;

impl Invariant for NoLostTask {
    fn see(&mut self, event: &Event, world: &World, found: &mut Findings) {
        let What::Switch { prev, next, .. } = event.what else { return };
        if world.is_changing() {
            return;
        }
        let mut broken = |what| found.broken(NAME, event.time_ns, what);
        let cpu = event.cpu;
        if let Some((known, _)) = world.on(cpu)
            && known != prev
        {
            broken(format!("CPU {cpu} turned to task {known}, but task {prev} left it"));
        }
        if next == IDLE || next == prev {
            return;
        }
        match world.task(next).map(|task| task.condition) {
            Some(Condition::Runs { cpu: other, .. }) if other != cpu => {
                broken(format!("task {next} runs on CPU {other}, and CPU {cpu} turns to it, too"));
            }
            Some(Condition::Sleeps) => {
                broken(format!("CPU {cpu} turns to task {next}, which nobody has woken"));
            }
            Some(Condition::Dead) => {
                broken(format!("CPU {cpu} turns to task {next}, which is dead"))
            }
            _ => {}
        }
    }

    fn end(&mut self, _: u64, _: &World, _: &mut Findings) {}
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::script::*;

    #[test]
    fn a_life_as_it_should_be() {
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
    fn in_two_places() {
        let twice = [switch(1, 0, 0, Runnable, 7), switch(2, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&twice, 3), ["no_lost_task"]);
    }

    #[test]
    fn run_in_its_sleep() {
        let asleep = [switch(1, 0, 7, Asleep, 0), switch(2, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&asleep, 3), ["no_lost_task"]);
    }

    #[test]
    fn run_after_death() {
        let dead = [switch(1, 0, 7, Dead, 0), switch(2, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&dead, 3), ["no_lost_task"]);
    }

    #[test]
    fn woken_unseen_while_cpus_come_and_go() {
        let mut watch = crate::Watch::new(limits());
        watch.see(&switch(1, 0, 7, Asleep, 0));
        watch.cpus_change(true);
        watch.see(&switch(2, 1, 0, Runnable, 7));
        watch.cpus_change(false);
        // From now on all is seen again.
        watch.see(&switch(3, 1, 7, Asleep, 0));
        watch.see(&switch(4, 0, 0, Runnable, 7));
        assert_eq!(watch.end(ms(5)).count, 1);
    }

    #[test]
    fn another_one_leaves_than_came() {
        let mixed = [switch(1, 0, 0, Runnable, 7), switch(2, 0, 8, Runnable, 0)];
        assert_eq!(broken_by(&mixed, 3), ["no_lost_task"]);
    }
}
