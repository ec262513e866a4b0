//! The helper thread of `--ias-auto`: product/keel's own code decides which address spaces aggregate.
//! What it reads is modelled: run times, sleeps and calls of each process, as /proc shows them. The time
//! that the helper itself takes is left out.

use std::collections::BTreeMap;

use evenkeel_keel::{Aggregation, Auto, Rights, Seen, Tuning};

use crate::agenda::Event;
use crate::program::KERNEL;

use super::{Kernel, Life};

/// The helper and its last readings.
pub(super) struct Helper {
    auto: Auto,
    since_ns: u64,
    /// By task: run time, number of sleeps and ends, number of calls.
    before: Vec<(u64, u64, u64)>,
    /// The aggregation that it has set for each process.
    told: BTreeMap<u32, Aggregation>,
    /// All its changes, and when it made each.
    pub changes: Vec<(u64, Tuning)>,
}

impl Kernel {
    /// Starts the helper, if the options want it.
    pub(super) fn start_helper(&mut self) {
        // A tape holds callbacks of the kernel only: while it is recorded, user space changes nothing.
        let is_wanted = self.scheduler.options().is_some_and(|options| options.ias.auto);
        if !is_wanted || self.tape.is_some() {
            return;
        }
        let auto = Auto::new(self.scheduler.ias_mode());
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

    /// Sets all aggregations again after the scheduler was loaded again.
    pub(super) fn restore_aggregations(&mut self) {
        for how in self.helper.iter().flat_map(|helper| helper.told.values()) {
            self.instance.aggregate(u64::from(how.pid), &how.record(Rights::Root));
        }
    }

    /// One interval of the helper is over.
    pub(super) fn help_event(&mut self) {
        if self.defer_unless_alone(Event::Help) {
            return;
        }
        let Some(mut helper) = self.helper.take() else { return };
        let window_ns = self.now - helper.since_ns;
        helper.since_ns = self.now;
        for cpu in 0..self.cpus.len() as u32 {
            self.account_time(cpu);
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
            // As in /proc: a thread that sleeps right now may have run all the time before.
            let is_runnable = matches!(task.life, Life::Waits | Life::Runs);
            of_space.threads += u32::from(is_runnable || now.0 > earlier.0);
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
            self.instance.aggregate(u64::from(how.pid), &how.record(Rights::Root));
            helper.told.insert(how.pid, how);
            helper.changes.push((self.now, change));
        }
        self.agenda.plan(self.now + helper.auto.interval_ns(), Event::Help);
        self.helper = Some(helper);
    }
}
