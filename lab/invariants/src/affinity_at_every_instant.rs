//! Nobody runs where it may not: a CPU never turns to a task that is not allowed there, and a task
//! whose mask is taken away from under it leaves. Until it does, its CPU may be interrupted by a higher
//! class and turn to it again: the kernel writes the mask first and sends the stopper after, and has
//! whom it interrupts go on where it was (kernel: `affine_move_task()`, `put_prev_task_scx()`).

use crate::event::{Event, IDLE, Tid, What};
use crate::watch::{Findings, Invariant, Limits};
use crate::world::{Condition, World};

const NAME: &str = "affinity_at_every_instant";

pub(crate) struct AffinityAtEveryInstant {
    limits: Limits,
}

impl AffinityAtEveryInstant {
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Whoever runs on a CPU where it has not been allowed for too long.
    fn judge_stay(&self, task: Tid, now: u64, world: &World, found: &mut Findings) {
        let Some(known) = world.task(task) else { return };
        let (Condition::Runs { cpu, since_ns }, Some(allowed)) = (known.condition, &known.allowed)
        else {
            return;
        };
        let stayed = now.saturating_sub(known.allowed_since_ns.max(since_ns));
        if !allowed.contains(cpu) && stayed > self.limits.affinity_grace_ns {
            let ms = stayed / 1_000_000;
            let what = format!("task {task} stayed on CPU {cpu} for {ms} ms; it may use {allowed}");
            found.broken(NAME, now, what);
        }
    }
}

impl Invariant for AffinityAtEveryInstant {
    fn see(&mut self, event: &Event, world: &World, found: &mut Findings) {
        let What::Switch { prev, next, .. } = event.what else { return };
        if prev != IDLE {
            self.judge_stay(prev, event.time_ns, world, found);
        }
        if next == IDLE || next == prev {
            return;
        }
        let Some(known) = world.task(next) else { return };
        let since_ns = event.time_ns.saturating_sub(known.allowed_since_ns);
        if known.caught_on == Some(event.cpu) && since_ns <= self.limits.affinity_grace_ns {
            return;
        }
        if let Some(allowed) = known.allowed.as_ref().filter(|them| !them.contains(event.cpu)) {
            let what = format!("CPU {} turns to task {next}, which may use {allowed}", event.cpu);
            found.broken(NAME, event.time_ns, what);
        }
    }

    fn end(&mut self, time_ns: u64, world: &World, found: &mut Findings) {
        let running: Vec<Tid> = world.cpus().filter_map(|cpu| Some(world.on(cpu)?.0)).collect();
        for task in running {
            self.judge_stay(task, time_ns, world, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::script::*;

    #[test]
    fn where_it_may() {
        let events = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 0, Runnable, 7),
            // Narrowed while it runs there: it leaves.
            affinity(2, 7, "0"),
            switch(3, 1, 7, Runnable, 0),
            switch(4, 0, 0, Runnable, 7),
        ];
        assert!(broken_by(&events, 9).is_empty());
    }

    #[test]
    fn where_it_may_not() {
        let events = [affinity(0, 7, "0"), switch(1, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&events, 2), ["affinity_at_every_instant"]);
    }

    #[test]
    fn where_it_was_caught() {
        let caught = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 0, Runnable, 7),
            affinity(2, 7, "0"),
            switch(3, 1, 7, Runnable, 8),
            switch(4, 1, 8, Runnable, 7),
            switch(5, 1, 7, Runnable, 0),
        ];
        assert!(broken_by(&caught, 9).is_empty());
        // Not when the stopper ought to have come, and not once it has been elsewhere.
        let mut late = caught.clone();
        (late[4].time_ns, late[5].time_ns) = (ms(8), ms(9));
        assert_eq!(broken_by(&late, 9), ["affinity_at_every_instant"]);
        let [first, second, third, fourth, ..] = caught;
        let back = [first, second, third, fourth].into_iter().chain([
            switch(4, 0, 0, Runnable, 7),
            switch(5, 0, 7, Runnable, 0),
            switch(6, 1, 8, Runnable, 7),
        ]);
        assert_eq!(broken_by(&back.collect::<Vec<_>>(), 6), ["affinity_at_every_instant"]);
    }

    #[test]
    fn longer_than_it_may() {
        let stays = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 0, Runnable, 7),
            affinity(2, 7, "0"),
            switch(8, 1, 7, Runnable, 0),
        ];
        assert_eq!(broken_by(&stays, 9), ["affinity_at_every_instant"]);
        // The same, where the stream ends before it leaves.
        assert_eq!(broken_by(&stays[..3], 8), ["affinity_at_every_instant"]);
    }
}
