//! Nobody runs on a shielded CPU for long who may run on another one.

use crate::event::{Event, IDLE, Tid, What};
use crate::watch::{Findings, Invariant, Limits};
use crate::world::World;

const NAME: &str = "shield_kept";

pub(crate) struct ShieldKept {
    limits: Limits,
}

impl ShieldKept {
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// `task` has this CPU, up to now.
    fn judge(&self, task: Tid, cpu: u32, now: u64, world: &World, found: &mut Findings) {
        let known = world.task(task).filter(|task| task.is_fair());
        let (Some(known), Some((on, since))) = (known, world.on(cpu)) else { return };
        if on != task || !world.is_closed(known, cpu) {
            return;
        }
        // What was before the shield, or another mask, is another question.
        let since = since.max(known.allowed_since_ns).max(world.shield_since_ns());
        let lodged = now.saturating_sub(since);
        if lodged > self.limits.shield_grace_ns {
            let ms = lodged / 1_000_000;
            let what = format!("task {task} had the shielded CPU {cpu} for {ms} ms");
            found.broken(NAME, now, what);
        }
    }
}

impl Invariant for ShieldKept {
    fn see(&mut self, event: &Event, world: &World, found: &mut Findings) {
        let What::Switch { prev, .. } = event.what else { return };
        if prev != IDLE {
            self.judge(prev, event.cpu, event.time_ns, world, found);
        }
    }

    fn end(&mut self, time_ns: u64, world: &World, found: &mut Findings) {
        for cpu in world.cpus() {
            if let Some((task, _)) = world.on(cpu) {
                self.judge(task, cpu, time_ns, world, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Left::*;
    use crate::event::{Class, Event, What};
    use crate::script::*;

    /// Task 7 may use both CPUs or one, and has CPU 1 from 0 on, which is shielded then or later.
    fn runs(allowed: &str, shielded_at: u64) -> Vec<Event> {
        let ready = [affinity(0, 7, allowed), fair(0, 7), wake(0, 7), switch(0, 0, 0, Runnable, 8)];
        [&ready[..], &[switch(0, 1, 0, Runnable, 7), shield(shielded_at, "1")]].concat()
    }

    #[test]
    fn who_leaves_in_time() {
        let events = [runs("0-1", 0), vec![switch(5, 1, 7, Asleep, 0)]].concat();
        assert!(broken_by(&events, 6).is_empty());
        // Counted from when the shield went up, and only as long as it is.
        let events = [runs("0-1", 4), vec![switch(9, 1, 7, Asleep, 0)]].concat();
        assert!(broken_by(&events, 10).is_empty());
        let events = [runs("0-1", 0), vec![shield(4, ""), switch(9, 1, 7, Asleep, 0)]].concat();
        assert!(broken_by(&events, 10).is_empty());
    }

    #[test]
    fn who_stays() {
        let events = [runs("0-1", 0), vec![switch(6, 1, 7, Asleep, 0)]].concat();
        assert_eq!(broken_by(&events, 7), ["shield_kept"]);
        // To the end of the stream.
        assert_eq!(broken_by(&runs("0-1", 2), 8), ["shield_kept"]);
    }

    #[test]
    fn who_may_run_nowhere_else() {
        assert!(broken_by(&runs("1", 0), 9).is_empty());
        let real_time = at(0, What::Class { task: 7, class: Class::Other });
        assert!(broken_by(&[vec![real_time], runs("1", 0)[..1].to_vec()].concat(), 9).is_empty());
    }
}
