//! Passes a stream through all checkers and collects what they find.

use crate::affinity_at_every_instant::AffinityAtEveryInstant;
use crate::bounded_wait::BoundedWait;
use crate::event::Event;
use crate::findings::{Checker, Findings, Limits};
use crate::no_lost_task::NoLostTask;
use crate::run_times_add_up::RunTimesAddUp;
use crate::shield_kept::ShieldKept;
use crate::state::State;
use crate::weights_honoured::WeightsHonoured;
use crate::work_conservation::WorkConservation;

/// All checkers over one stream.
pub struct Watch {
    state: State,
    checkers: Vec<Box<dyn Checker + Send>>,
    found: Findings,
}

impl Watch {
    /// A stream begins.
    pub fn new(limits: Limits) -> Self {
        let checkers: Vec<Box<dyn Checker + Send>> = vec![
            Box::new(NoLostTask),
            Box::new(BoundedWait::new(limits)),
            Box::new(AffinityAtEveryInstant::new(limits)),
            Box::new(WorkConservation::new(limits)),
            Box::new(ShieldKept::new(limits)),
            Box::new(WeightsHonoured::new(limits)),
            Box::new(RunTimesAddUp::new(limits)),
        ];
        Self { state: State::default(), checkers, found: Findings::default() }
    }

    /// The next event.
    pub fn see(&mut self, event: &Event) {
        self.found.events += 1;
        for checker in &mut self.checkers {
            checker.see(event, &self.state, &mut self.found);
        }
        self.state.apply(event);
    }

    /// CPUs begin to come or go (`true`), or have done so (`false`). In between, events are missing from
    /// the stream: the kernel does not trace a CPU that is not online.
    pub fn cpus_change(&mut self, begins: bool) {
        self.state.set_changing(begins);
    }

    /// What was found so far; the end of the stream may add to it.
    pub fn found(&self) -> &Findings {
        &self.found
    }

    /// What the events so far add up to.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The stream ends.
    pub fn end(mut self, time_ns: u64) -> Findings {
        for checker in &mut self.checkers {
            checker.end(time_ns, &self.state, &mut self.found);
        }
        self.found
    }
}
