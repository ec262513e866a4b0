//! The helper thread of the order `ias` (`--ias-auto`): it sees what user space can see of a real machine,
//! and its own code in product/keel decides.

use std::collections::BTreeMap;

use evenkeel_keel::{Aggregation, Auto, Seen, Tuning};

use crate::agenda::Event;
use crate::program::KERNEL;

use super::{Kernel, Life};

/// It, and what it knew at its last look.
pub(super) struct Helper {
    auto: Auto,
    since_ns: u64,
    /// By task: how long it had run, how often it had slept or ended, and how often sent or received.
    before: Vec<(u64, u64, u64)>,
    /// What it has told the keel of each space, by process.
    told: BTreeMap<u32, Aggregation>,
    /// All that it has changed, and when.
    pub changes: Vec<(u64, Tuning)>,
}

impl Kernel {
    /// Whether there is one, and its first look.
    pub(super) fn start_helper(&mut self) {
        // A tape holds what the scheduler is told by the kernel, and nobody else tells it anything.
        let is_wanted = self.scheduler.options().is_some_and(|options| options.ias.auto);
        if !is_wanted || self.tape.is_some() {
            return;
        }
        let auto = Auto::default();
        let first_ns = auto.interval_ns();
        self.helper = Some(Helper {
            auto,
            since_ns: 0,
            before: vec![(0, 0, 0); self.tasks.len()],
            told: BTreeMap::new(),
            changes: Vec::new(),
        });
        self.agenda.plan(first_ns, Event::Help);
    }

    /// A scheduler that was loaded anew is told what the last one was.
    pub(super) fn tell_again(&mut self) {
        for how in self.helper.iter().flat_map(|helper| helper.told.values()) {
            self.instance.aggregate(u64::from(how.pid), &how.record());
        }
    }

    /// It looks.
    pub(super) fn help_event(&mut self) {
        if self.wants_to_be_alone(Event::Help) {
            return;
        }
        let Some(mut helper) = self.helper.take() else { return };
        let window_ns = self.now - helper.since_ns;
        helper.since_ns = self.now;
        for cpu in 0..self.cpus.len() as u32 {
            self.update(cpu);
        }
        let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
        for (task, before) in self.tasks.iter().zip(&mut helper.before) {
            let has_ended = task.life == Life::Dead;
            let sleeps = u64::from(task.sleeps) + u64::from(has_ended);
            let now = (task.times.ran_ns, sleeps, task.calls);
            let earlier = std::mem::replace(before, now);
            if matches!(task.life, Life::New)
                || (has_ended && now == earlier)
                || task.space == KERNEL
            {
                continue;
            }
            let of_space = seen
                .entry(task.space)
                .or_insert(Seen { space: u64::from(task.space), ..Seen::default() });
            of_space.run_ns += now.0 - earlier.0;
            of_space.sleeps += now.1 - earlier.1;
            of_space.calls += now.2 - earlier.2;
            // As /proc has it: who slept at this very moment may have run all the time before.
            let wants_to = matches!(task.life, Life::Waits | Life::Runs);
            of_space.threads += u32::from(wants_to || now.0 > earlier.0);
        }
        let seen: Vec<Seen> = seen.into_values().collect();
        for change in helper.auto.look(window_ns, &seen) {
            let how = Aggregation {
                pid: change.space as u32 + 1,
                agg: u32::from(change.multiplier > 0),
                bonus_type: 1,
                bonus_value: change.multiplier,
                limit: 0,
            };
            self.instance.aggregate(u64::from(how.pid), &how.record());
            helper.told.insert(how.pid, how);
            helper.changes.push((self.now, change));
        }
        self.agenda.plan(self.now + helper.auto.interval_ns(), Event::Help);
        self.helper = Some(helper);
    }
}
