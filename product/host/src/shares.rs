//! The work lever of one program (`run --shares`): owns the page that it shares with the program, weighs
//! its CPUs, and has the gain measured. In each round it decides which of two levers the program has:
//! either its loops are divided by capability and its threads stay where they are, or shares are equal
//! and threads may be moved as without `--shares`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use evenkeel_capability::{Places, Plan, Policy, Snapshot, TaskId, Weighing};
use evenkeel_shares::page::{Effect, PageError, PageOwner, Report, Site, SiteLaps};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proof::{Gain, Laps, Loops, LoopsProof, Proven, Standing};

/// Without a heartbeat, weights hold for so many of the longest intervals, ...
const PATIENCE_INTERVALS: u32 = 3;
/// ... and for this time at least.
const PATIENCE: Duration = Duration::from_secs(5);
/// Rows of threads that were killed are freed so often.
const FORGET_EVERY_NS: u64 = 5_000_000_000;

/// The page of a program and all that is decided about it.
pub(crate) struct Shares {
    page: PageOwner,
    weighing: Weighing,
    proof: LoopsProof,
    standing: Standing,
    /// The laps at the last look.
    laps: BTreeMap<Site, SiteLaps>,
    since_forgotten_ns: u64,
}

/// The weight of a CPU, by which its thread gets iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuWeight {
    /// Its number.
    pub cpu: u32,
    /// 1 to 1024.
    pub weight: u32,
}

/// What `--shares` does for a program, as it is published.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharesStatus {
    /// Whether the preloaded library can divide the program's loops.
    pub has_effect: bool,
    /// The same in words, or why it cannot.
    pub effect: String,
    /// Loops are divided by capability now.
    pub is_on: bool,
    /// The weights in force: equal where CPUs are alike.
    pub weights: Vec<CpuWeight>,
    /// Parts of loops that threads got by weight: a loop of eight threads counts eight times.
    pub loops_divided: u64,
    /// Why some teams are left out.
    pub limits: Vec<String>,
    /// What shares gained, as far as it was measured.
    pub gain: Gain,
}

impl Shares {
    /// Creates the page for a program that is balanced by this policy.
    pub(crate) fn create(policy: &Policy) -> Result<Self, PageError> {
        let longest_ns = match policy {
            Policy::Lag(parameters) => parameters.max_interval_ns,
            Policy::Paper(parameters) => parameters.interval_ns,
        };
        let patience = Duration::from_nanos(longest_ns).saturating_mul(PATIENCE_INTERVALS);
        Ok(Self {
            page: PageOwner::create(patience.max(PATIENCE))?,
            weighing: Weighing::new(tolerance_ppm(policy)),
            proof: LoopsProof::default(),
            standing: Standing::Free,
            laps: BTreeMap::new(),
            since_forgotten_ns: 0,
        })
    }

    /// Takes the tolerance of another policy: figures in clock ticks need a larger one.
    pub(crate) fn set_policy(&mut self, policy: &Policy) {
        self.weighing.set_tolerance(tolerance_ppm(policy));
    }

    /// The value of the page's variable in the program's environment.
    pub(crate) fn address(&self) -> String {
        self.page.address()
    }

    /// Says that the balancer lives, also where nothing can be decided.
    pub(crate) fn beat(&self) {
        self.page.heartbeat();
    }

    /// Takes in the interval that ended, and sets the weights for the next one. Returns whether the
    /// program's threads stay where they are: the plan says so then, and no other lever is used.
    pub(crate) fn judge(&mut self, snapshot: &Snapshot, plan: &mut Plan) -> bool {
        self.forget_dead(snapshot.interval_ns);
        let mut report = self.page.read();
        let places = Places::of(snapshot, &members(snapshot, &report));
        self.weighing.weigh(snapshot, &places);
        let loops = Loops {
            laps: self.count_laps(std::mem::take(&mut report.laps)),
            is_wanted: self.weighing.is_unequal() && has_effect(report.effect()),
            spread_ppm: self.weighing.spread_ppm(),
        };
        self.standing = self.proof.judge(snapshot, plan, loops, places.pins);
        if self.standing == Standing::Shared {
            self.page.set_weights(self.weighing.weights().iter().copied());
        } else {
            self.page.set_weights(self.weighing.equal());
        }
        self.standing != Standing::Free
    }

    /// Gives all threads equal shares until the next judgement, for which laps count from now on.
    pub(crate) fn make_equal(&mut self) {
        self.standing = Standing::Free;
        self.page.set_weights(self.weighing.equal());
        self.proof.rest();
        self.leave_out();
    }

    /// Leaves out the laps of the interval that ended.
    pub(crate) fn leave_out(&mut self) {
        self.laps = self.page.read().laps;
    }

    /// How it is now.
    pub(crate) fn status(&self) -> SharesStatus {
        let report = self.page.read();
        let is_on = self.standing == Standing::Shared;
        let weights = match is_on {
            true => self.weighing.weights().to_vec(),
            false => self.weighing.equal().collect(),
        };
        SharesStatus {
            has_effect: has_effect(report.effect()),
            effect: report.effect().to_string(),
            is_on,
            weights: weights.into_iter().map(|(cpu, weight)| CpuWeight { cpu, weight }).collect(),
            loops_divided: report.loops_divided,
            limits: report.limits().into_iter().map(str::to_owned).collect(),
            gain: self.proof.gain(),
        }
    }

    /// The laps since the last look, of regions with the kind of shares that was in force. (A region
    /// that was forked just before the last change has the other kind, and its lap belongs to no
    /// window.)
    fn count_laps(&mut self, laps: BTreeMap<Site, SiteLaps>) -> Laps {
        let before = std::mem::replace(&mut self.laps, laps);
        Laps::between(&before, &self.laps, self.standing == Standing::Shared)
    }

    fn forget_dead(&mut self, interval_ns: u64) {
        self.since_forgotten_ns = self.since_forgotten_ns.saturating_add(interval_ns);
        if self.since_forgotten_ns >= FORGET_EVERY_NS {
            self.since_forgotten_ns = 0;
            self.page.forget_dead(|tid| Path::new(&format!("/proc/{tid}")).exists());
        }
    }
}

fn tolerance_ppm(policy: &Policy) -> u64 {
    match policy {
        Policy::Lag(parameters) => parameters.tolerance_ppm,
        // It has none; it is refused with --shares.
        Policy::Paper(_) => 0,
    }
}

/// Whether the library has seen a loop that it can divide.
fn has_effect(effect: Effect) -> bool {
    matches!(effect, Effect::Equal | Effect::Divides)
}

/// The program's tasks that are in a team. The page may name any thread.
fn members(snapshot: &Snapshot, report: &Report) -> BTreeSet<TaskId> {
    let named: BTreeSet<(u32, u32)> =
        report.threads.iter().map(|thread| (thread.tid, thread.pid)).collect();
    let tasks = snapshot.tasks.iter();
    tasks.filter(|task| named.contains(&(task.id.tid, task.process))).map(|task| task.id).collect()
}

impl fmt::Display for SharesStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.has_effect {
            return write!(f, "--shares has no effect: {}", self.effect);
        }
        match (self.gain.proven, &self.gain.why) {
            (Proven::Nothing, Some(why)) => write!(f, "shares of loops are equal: {why}")?,
            (Proven::Nothing, None) => {
                write!(f, "shares of loops are equal: so were the CPUs of its threads")?;
            }
            _ => write!(f, "shares of loops: {}", self.gain)?,
        }
        for limit in &self.limits {
            write!(f, "; some are left as they were: {limit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_capability::{CpuView, LagParameters, Move, Reason, Seen, TaskView};
    use evenkeel_machine::CpuSet;
    use evenkeel_shares::page::{Page, Slot, attach, claim_slot, flag, now_ns};
    use std::ffi::CString;
    use std::sync::atomic::Ordering::Relaxed;

    const INTERVAL_NS: u64 = 50_000_000;
    /// Regions in an interval, of two milliseconds.
    const REGIONS: u64 = INTERVAL_NS / 2_000_000;

    /// A program with two threads under the library, which this test plays.
    struct Program {
        shares: Shares,
        page: &'static Page,
        slots: [Slot<'static>; 2],
    }

    impl Program {
        fn start() -> Self {
            let shares = Shares::create(&Policy::Lag(LagParameters::default())).unwrap();
            let page = attach(&CString::new(shares.address()).unwrap()).unwrap();
            let slots = [1, 2].map(|tid| claim_slot(page, tid, 1).unwrap());
            for (number, Slot { row, .. }) in (0..).zip(slots) {
                row.primary_tid.store(1, Relaxed);
                row.number.store(number, Relaxed);
                row.team_size.store(2, Relaxed);
            }
            slots[0].row.regions.store(1, Relaxed);
            Self { shares, page, slots }
        }

        /// It has begun loops that can be divided.
        fn can_be_divided(self) -> Self {
            for flag in [flag::ATTACHED, flag::RUNTIME, flag::TOOL, flag::CALLED] {
                self.page.set_flag(flag);
            }
            self
        }

        /// An interval on CPUs that give so many percent. Returns whether threads stay, and the plan.
        fn step(&mut self, percents: [u64; 2]) -> (bool, Plan) {
            let is_divided = self.weights()[0] != self.weights()[1];
            for _ in 0..REGIONS {
                self.slots[0].laps.add(1, is_divided, INTERVAL_NS / REGIONS);
            }
            let snapshot = snapshot(percents);
            let task = snapshot.tasks[0].id;
            let reason = Reason::Behind { lag_ns: 1, from_ppm: 1, to_ppm: 2 };
            let mut plan = Plan {
                moves: vec![Move { task, from: 0, to: 1, reason }],
                pins: vec![],
                reasons: vec![],
                interval_ns: INTERVAL_NS,
                spread_ppm: 0,
            };
            (self.shares.judge(&snapshot, &mut plan), plan)
        }

        fn weights(&self) -> [u16; 2] {
            // Before the first look there are none.
            let weights = self.page.weights(now_ns());
            [0, 1].map(|cpu| weights.as_ref().map_or(0, |weights| weights.of_cpu(cpu)))
        }
    }

    fn snapshot(percents: [u64; 2]) -> Snapshot {
        let cpu = |cpu: u32| CpuView {
            cpu,
            core: cpu,
            node: 0,
            speed: 1024,
            energy_rank: None,
            noise_ns: INTERVAL_NS * (100 - percents[cpu as usize]) / 100,
            rt_ns: 0,
            idle_ns: 0,
            foreign_milli: 0,
            rt_milli: 0,
        };
        let task = |tid: u32| TaskView {
            id: TaskId { tid, start: 1 },
            process: 1,
            cpu: tid - 1,
            queue: 0,
            run_ns: INTERVAL_NS * percents[tid as usize - 1] / 100,
            spun_ns: 0,
            samples: 0,
            changes: 0,
            received_ns: INTERVAL_NS * percents[tid as usize - 1] / 100,
            stolen_ns: INTERVAL_NS * (100 - percents[tid as usize - 1]) / 100,
            wait_ns: 0,
            sleeps: 1,
            runnable: true,
            allowed: CpuSet::first(2),
            fixed: false,
            working_set_bytes: None,
        };
        Snapshot {
            interval_ns: INTERVAL_NS,
            cpus: vec![cpu(0), cpu(1)],
            tasks: vec![task(1), task(2)],
            seen: Seen::default(),
        }
    }

    #[test]
    fn unequal_cpus_get_weights_and_threads_stay() {
        let mut program = Program::start().can_be_divided();
        assert!(!program.step([60, 100]).0, "it must last");
        assert_eq!(program.weights(), [1024, 1024]);
        let (stays, plan) = program.step([60, 100]);
        assert!(stays);
        assert_eq!((plan.moves.len(), plan.pins.len()), (0, 2));
        assert_eq!(program.weights(), [614, 1024]);
        let status = program.shares.status();
        let weights = [(0, 614), (1, 1024)].map(|(cpu, weight)| CpuWeight { cpu, weight });
        assert_eq!((status.is_on, status.weights), (true, weights.to_vec()));
        // A window without: equal weights, and threads stay.
        let equal = (0..10).any(|_| {
            let (stays, _) = program.step([60, 100]);
            assert!(stays);
            program.weights() == [1024, 1024]
        });
        assert!(equal);
    }

    #[test]
    fn a_program_that_is_left_alone_has_equal_weights_until_it_is_judged_again() {
        let mut program = Program::start().can_be_divided();
        program.step([60, 100]);
        program.step([60, 100]);
        assert_eq!(program.weights(), [614, 1024]);
        program.shares.make_equal();
        assert_eq!((program.weights(), program.shares.status().is_on), ([1024, 1024], false));
        // Measured anew, in a window without first.
        let is_divided = (0..40).any(|_| {
            assert!(program.step([60, 100]).0);
            program.weights() == [614, 1024]
        });
        assert!(is_divided);
    }

    #[test]
    fn equal_cpus_have_equal_weights_and_threads_are_free() {
        let mut program = Program::start().can_be_divided();
        for _ in 0..20 {
            let (stays, plan) = program.step([80, 80]);
            assert_eq!((stays, plan.moves.len(), program.weights()), (false, 1, [1024, 1024]));
        }
        let said = program.shares.status().to_string();
        assert_eq!(said, "shares of loops are equal: so were the CPUs of its threads");
    }

    #[test]
    fn a_program_that_cannot_be_divided_is_balanced_as_without() {
        let mut program = Program::start();
        for _ in 0..20 {
            let (stays, plan) = program.step([60, 100]);
            assert_eq!((stays, plan.moves.len(), program.weights()), (false, 1, [1024, 1024]));
        }
        let status = program.shares.status();
        assert!(!status.has_effect);
        assert!(status.to_string().starts_with("--shares has no effect: no process"), "{status}");
    }

    #[test]
    fn what_does_not_gain_is_withdrawn_with_equal_weights() {
        let mut program = Program::start().can_be_divided();
        // Its regions take as long with shares as without.
        let steps = 2 * 1_000_000_000 / INTERVAL_NS + 4;
        let last = (0..steps).map(|_| program.step([60, 100]).0).filter(|stays| *stays).count();
        assert!(last > 0, "it was tried");
        assert_eq!((program.step([60, 100]).0, program.weights()), (false, [1024, 1024]));
        let status = program.shares.status();
        assert_eq!((status.gain.proven, status.is_on), (Proven::Withdrawn, false));
        let said = status.to_string();
        assert!(said.starts_with("shares of loops: withdrawn: no gain was shown"), "{said}");
    }
}
