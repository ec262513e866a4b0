//! No task runs on a CPU that its mask excludes. A CPU never switches to such a task, and a running task
//! whose new mask excludes its CPU leaves within the grace.
//!
//! Until it leaves, a higher class may preempt it and its CPU may switch back to it: the kernel writes
//! the mask first and sends the stopper thread afterwards, and a preempted task stays at the head of
//! its local queue (kernel: `affine_move_task()`, `put_prev_task_scx()`). So may a task begin that was
//! in a CPU's list of wake-ups when its mask was set (kernel: `ttwu_queue_wakelist()`).

use crate::event::{Event, IDLE, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::state::{Condition, State};

const NAME: &str = "affinity_at_every_instant";

pub(crate) struct AffinityAtEveryInstant {
    limits: Limits,
}

impl AffinityAtEveryInstant {
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Judges how long a running task has stayed on a CPU that its mask excludes.
    fn judge_stay(&self, task: Tid, now: u64, state: &State, found: &mut Findings) {
        let Some(known) = state.task(task) else { return };
        let (Condition::Runs { cpu, since_ns }, Some(allowed)) = (known.condition, &known.allowed)
        else {
            return;
        };
        let stayed = now.saturating_sub(known.allowed_since_ns.max(since_ns));
        if !allowed.contains(cpu) && stayed > self.limits.affinity_grace_ns {
            let ms = stayed / 1_000_000;
            let what = format!("task {task} stayed on CPU {cpu} for {ms} ms; it may use {allowed}");
            found.add_violation(NAME, now, what);
        }
    }
}

impl Checker for AffinityAtEveryInstant {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        let What::Switch { prev, next, .. } = event.what else { return };
        if prev != IDLE {
            self.judge_stay(prev, event.time_ns, state, found);
        }
        if next == IDLE || next == prev {
            return;
        }
        let Some(known) = state.task(next) else { return };
        let since_ns = event.time_ns.saturating_sub(known.allowed_since_ns);
        if known.caught_on == Some(event.cpu) && since_ns <= self.limits.affinity_grace_ns {
            return;
        }
        if let Some(allowed) = known.allowed.as_ref().filter(|them| !them.contains(event.cpu)) {
            let what =
                format!("CPU {} switches to task {next}, which may use {allowed}", event.cpu);
            found.add_violation(NAME, event.time_ns, what);
        }
    }

    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings) {
        let running: Vec<Tid> = state.cpus().filter_map(|cpu| Some(state.on(cpu)?.0)).collect();
        for task in running {
            self.judge_stay(task, time_ns, state, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::event::What;
    use crate::test_events::*;

    #[test]
    fn a_task_may_run_where_its_mask_allows() {
        let events = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 0, Runnable, 7),
            // Its mask is narrowed while it runs, and it leaves.
            affinity(2, 7, "0"),
            switch(3, 1, 7, Runnable, 0),
            switch(4, 0, 0, Runnable, 7),
        ];
        assert!(broken_by(&events, 9).is_empty());
    }

    #[test]
    fn a_switch_to_a_task_outside_its_mask_is_a_violation() {
        let events = [affinity(0, 7, "0"), switch(1, 1, 0, Runnable, 7)];
        assert_eq!(broken_by(&events, 2), ["affinity_at_every_instant"]);
    }

    #[test]
    fn a_preempted_task_may_return_within_the_grace() {
        let caught = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 0, Runnable, 7),
            affinity(2, 7, "0"),
            switch(3, 1, 7, Runnable, 8),
            switch(4, 1, 8, Runnable, 7),
            switch(5, 1, 7, Runnable, 0),
        ];
        assert!(broken_by(&caught, 9).is_empty());
        // Not once the grace is over, and not once it ran on another CPU.
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
    fn a_waking_task_may_begin_on_the_chosen_cpu_within_the_grace() {
        let woken = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 7, Asleep, 0),
            affinity(2, 7, "0"),
            at(2, What::Waking { task: 7, on: 1 }),
            wake(3, 7),
            switch(4, 1, 0, Runnable, 7),
            switch(5, 1, 7, Runnable, 0),
        ];
        assert!(broken_by(&woken, 9).is_empty());
        // Not on another CPU, and not once the grace is over.
        let mut elsewhere = woken.clone();
        elsewhere[3] = at(2, What::Waking { task: 7, on: 2 });
        assert_eq!(broken_by(&elsewhere, 9), ["affinity_at_every_instant"]);
        let mut late = woken;
        (late[5].time_ns, late[6].time_ns) = (ms(8), ms(9));
        assert_eq!(broken_by(&late, 9), ["affinity_at_every_instant"]);
    }

    #[test]
    fn staying_beyond_the_grace_is_a_violation() {
        let stays = [
            affinity(0, 7, "0-1"),
            switch(1, 1, 0, Runnable, 7),
            affinity(2, 7, "0"),
            switch(8, 1, 7, Runnable, 0),
        ];
        assert_eq!(broken_by(&stays, 9), ["affinity_at_every_instant"]);
        // Also when the stream ends before it leaves.
        assert_eq!(broken_by(&stays[..3], 8), ["affinity_at_every_instant"]);
    }
}
