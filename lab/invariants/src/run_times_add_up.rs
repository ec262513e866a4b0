//! The kernel charges a task the time that it had a CPU: no more and no less. And no CPU's time runs
//! backwards.

use crate::event::{Event, IDLE, Tid, What};
use crate::findings::{Checker, Findings, Limits};
use crate::id_map::IdMap;
use crate::state::State;

const NAME: &str = "run_times_add_up";

/// A task's charged and observed run time since it first left a CPU.
struct Account {
    charged_at_first_ns: u64,
    charged_ns: u64,
    seen_ns: u64,
}

pub(crate) struct RunTimesAddUp {
    limits: Limits,
    accounts: IdMap<Account>,
    last_ns: IdMap<u64>,
}

impl RunTimesAddUp {
    pub fn new(limits: Limits) -> Self {
        Self { limits, accounts: IdMap::default(), last_ns: IdMap::default() }
    }

    fn charge(&mut self, tid: Tid, ran: u64, charged: u64) {
        self.accounts
            .entry(tid)
            .and_modify(|account| {
                account.charged_ns = charged;
                account.seen_ns += ran;
            })
            // Its first run may have begun before the stream.
            .or_insert(Account { charged_at_first_ns: charged, charged_ns: charged, seen_ns: 0 });
    }

    fn judge(&self, tid: Tid, now: u64, found: &mut Findings) {
        let Some(account) = self.accounts.get(&tid) else { return };
        let charged = account.charged_ns.saturating_sub(account.charged_at_first_ns);
        let seen = account.seen_ns;
        let room = seen * self.limits.charge_tolerance_pct / 100 + self.limits.charge_slack_ns;
        found.charges_judged += u64::from(seen > 0);
        if charged.abs_diff(seen) > room {
            let us = |ns| ns / 1000;
            let what = format!(
                "task {tid} had a CPU for {} us, and was charged {} us",
                us(seen),
                us(charged)
            );
            found.add_violation(NAME, now, what);
        }
    }
}

impl Checker for RunTimesAddUp {
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings) {
        let (now, cpu) = (event.time_ns, event.cpu);
        match event.what {
            What::Switch { prev, charged_ns, .. } => {
                let last = self.last_ns.insert(cpu, now).unwrap_or(now);
                if last > now {
                    let what =
                        format!("time runs backwards on CPU {cpu}: {now} ns after {last} ns");
                    found.add_violation(NAME, now, what);
                }
                let Some((running, from)) = state.on(cpu) else { return };
                if prev != IDLE && running == prev {
                    self.charge(prev, now.saturating_sub(from), charged_ns);
                }
            }
            // The number belongs to another task from now on.
            What::Fork { child } => {
                self.judge(child, now, found);
                self.accounts.remove(&child);
            }
            _ => {}
        }
    }

    fn end(&mut self, time_ns: u64, _: &State, found: &mut Findings) {
        let mut tasks: Vec<Tid> = self.accounts.keys().copied().collect();
        tasks.sort_unstable();
        for task in tasks {
            self.judge(task, time_ns, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Left::*;
    use crate::test_events::*;

    /// Ten runs of 5 ms, each charged with `charge` ms.
    fn runs(charge: u64) -> Vec<Event> {
        let run = |n: u64| {
            [
                switch(n * 10, 0, 0, Runnable, 7),
                charged(n * 10 + 5, 0, 7, Runnable, 100 + n * charge, 0),
            ]
        };
        (0..10).flat_map(run).collect()
    }

    #[test]
    fn a_charge_of_the_run_time_is_accepted() {
        assert!(broken_by(&runs(5), 100).is_empty());
    }

    #[test]
    fn a_charge_of_less_or_more_is_a_violation() {
        assert_eq!(broken_by(&runs(4), 100), ["run_times_add_up"]);
        assert_eq!(broken_by(&runs(6), 100), ["run_times_add_up"]);
        // Also when its number went to another task meanwhile.
        let dead = [runs(4), vec![fork(100, 7)]].concat();
        assert_eq!(broken_by(&dead, 101), ["run_times_add_up"]);
        let reborn = [runs(5), vec![fork(100, 7)], runs(5)].concat();
        assert!(!broken_by(&reborn, 201).contains(&"no_lost_task"));
    }

    #[test]
    fn time_that_runs_backwards_is_a_violation() {
        let events = [switch(5, 0, 0, Runnable, 7), switch(4, 0, 7, Runnable, 0)];
        assert_eq!(broken_by(&events, 6), ["run_times_add_up"]);
    }
}
