//! Feeds all checkers and collects what they find.

use crate::affinity_at_every_instant::AffinityAtEveryInstant;
use crate::bounded_wait::BoundedWait;
use crate::event::Event;
use crate::no_lost_task::NoLostTask;
use crate::run_times_add_up::RunTimesAddUp;
use crate::shield_kept::ShieldKept;
use crate::weights_honoured::WeightsHonoured;
use crate::work_conservation::WorkConservation;
use crate::world::World;

/// What a stream is held to. Streams from an emulator, whose CPUs stand still now and then, need
/// room; simulated ones need next to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A fair task waits this long at most, ...
    pub wait_ns: u64,
    /// ... and this much longer for each fair task that wants to run.
    pub wait_per_task_ns: u64,
    /// A running task may stay on a CPU that it must leave for this long.
    pub affinity_grace_ns: u64,
    /// A CPU may idle this long while somebody waits for it; 0: not looked at (where CPUs come and
    /// go, or the policy lets them idle).
    pub idle_grace_ns: u64,
    /// Who is to leave a shielded CPU may stay there for this long.
    pub shield_grace_ns: u64,
    /// Shares are judged over this time or longer.
    pub share_window_ns: u64,
    /// How far a share may be off, in percent of it, ...
    pub share_tolerance_pct: u64,
    /// ... and in time: whoever has its turn at the end is ahead.
    pub share_slack_ns: u64,
    /// How far what the kernel charges may be off, in percent of the time on a CPU, ...
    pub charge_tolerance_pct: u64,
    /// ... and in time.
    pub charge_slack_ns: u64,
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which: the name of its file.
    pub invariant: &'static str,
    /// When it was noticed.
    pub time_ns: u64,
    /// How.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = self.time_ns / 1000;
        write!(f, "{} at {}.{:03} ms: {}", self.invariant, ms / 1000, ms % 1000, self.what)
    }
}

/// More than this many are only counted.
const KEPT: usize = 50;

/// What was found in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Events looked at.
    pub events: u64,
    /// Longest wait of a fair task for its CPU.
    pub longest_wait_ns: u64,
    /// Longest time that a CPU idled while somebody waited for it.
    pub longest_idle_ns: u64,
    /// Groups of tasks that shared a CPU for long enough to be judged.
    pub shares_judged: u64,
    /// Tasks whose charged time was compared.
    pub charges_judged: u64,
    /// Broken rules, the first ones in full.
    pub violations: Vec<Violation>,
    /// All of them.
    pub count: u64,
}

impl Findings {
    pub(crate) fn broken(&mut self, invariant: &'static str, time_ns: u64, what: String) {
        self.count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(Violation { invariant, time_ns, what });
        }
    }
}

/// A rule, looked at event by event.
pub(crate) trait Invariant {
    /// The next event; `world` is as it was before.
    fn see(&mut self, event: &Event, world: &World, found: &mut Findings);

    /// The stream ends.
    fn end(&mut self, time_ns: u64, world: &World, found: &mut Findings);
}

/// All checkers over one stream.
pub struct Watch {
    world: World,
    invariants: Vec<Box<dyn Invariant + Send>>,
    found: Findings,
}

impl Watch {
    /// A stream begins.
    pub fn new(limits: Limits) -> Self {
        let invariants: Vec<Box<dyn Invariant + Send>> = vec![
            Box::new(NoLostTask),
            Box::new(BoundedWait::new(limits)),
            Box::new(AffinityAtEveryInstant::new(limits)),
            Box::new(WorkConservation::new(limits)),
            Box::new(ShieldKept::new(limits)),
            Box::new(WeightsHonoured::new(limits)),
            Box::new(RunTimesAddUp::new(limits)),
        ];
        Self { world: World::default(), invariants, found: Findings::default() }
    }

    /// The next event.
    pub fn see(&mut self, event: &Event) {
        self.found.events += 1;
        for invariant in &mut self.invariants {
            invariant.see(event, &self.world, &mut self.found);
        }
        self.world.apply(event);
    }

    /// CPUs begin to come or go (`true`), or have done so: until then some events are missing from
    /// the stream, because the kernel shows nothing of what a CPU does that is not online.
    pub fn cpus_change(&mut self, begins: bool) {
        self.world.set_changing(begins);
    }

    /// What was found so far; the end of the stream may add to it.
    pub fn found(&self) -> &Findings {
        &self.found
    }

    /// What the events so far add up to.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The stream ends.
    pub fn end(mut self, time_ns: u64) -> Findings {
        for invariant in &mut self.invariants {
            invariant.end(time_ns, &self.world, &mut self.found);
        }
        self.found
    }
}
