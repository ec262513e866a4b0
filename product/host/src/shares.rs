//! The work lever of one program (`run --shares`): owns the page that it shares with the program, weighs
//! its CPUs, and has the gain measured. In each round it decides which of two levers the program has:
//! either its loops are divided by capability and its threads stay where they are, or shares are equal
//! and threads may be moved as without `--shares`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use evenkeel_capability::{Places, Plan, Policy, Snapshot, TaskId, Weighing};
use evenkeel_shares::page::{Effect, PageError, PageOwner, Report};
use serde::{Deserialize, Serialize};

use crate::proof::{Gain, Loops, LoopsProof, Proven, Standing};

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
    /// Parts of loops that threads had begun at the last look.
    parts: u64,
    since_forgotten_ns: u64,
}

/// What `--shares` does for a program, as it is published.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SharesStatus {
    /// Whether the preloaded library can divide the program's loops.
    pub has_effect: bool,
    /// The same in words, or why it cannot.
    pub effect: String,
    /// Loops are divided by capability now.
    pub is_on: bool,
    /// CPU and weight, 1 to 1024, as they are in force: equal where CPUs are alike.
    pub weights: Vec<(u32, u32)>,
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
        let (tolerance_ppm, longest_ns) = match policy {
            Policy::Lag(parameters) => (parameters.tolerance_ppm, parameters.max_interval_ns),
            Policy::Paper(parameters) => (0, parameters.interval_ns),
        };
        let patience = Duration::from_nanos(longest_ns).saturating_mul(PATIENCE_INTERVALS);
        Ok(Self {
            page: PageOwner::create(patience.max(PATIENCE))?,
            weighing: Weighing::new(tolerance_ppm),
            proof: LoopsProof::default(),
            standing: Standing::Free,
            parts: 0,
            since_forgotten_ns: 0,
        })
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
        let report = self.page.read();
        let places = Places::of(snapshot, &members(snapshot, &report));
        self.weighing.weigh(snapshot, &places);
        let loops = Loops {
            begun: self.count_begun(&report),
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

    /// How it is now.
    pub(crate) fn status(&self) -> SharesStatus {
        let report = self.page.read();
        let is_on = self.standing == Standing::Shared;
        SharesStatus {
            has_effect: has_effect(report.effect()),
            effect: report.effect().to_string(),
            is_on,
            weights: match is_on {
                true => self.weighing.weights().to_vec(),
                false => self.weighing.equal().collect(),
            },
            loops_divided: report.loops_divided,
            limits: report.limits().into_iter().map(str::to_owned).collect(),
            gain: self.proof.gain(),
        }
    }

    /// Loops that the program has begun since the last look. A loop has a part for each thread of its
    /// team.
    fn count_begun(&mut self, report: &Report) -> f64 {
        let parts = report.loops_divided.saturating_add(report.loops_left);
        let before = std::mem::replace(&mut self.parts, parts);
        let size = report.threads.iter().map(|thread| thread.team_size).max().unwrap_or(1).max(1);
        // The parts of threads that were killed are forgotten with them.
        parts.saturating_sub(before) as f64 / f64::from(size)
    }

    fn forget_dead(&mut self, interval_ns: u64) {
        self.since_forgotten_ns = self.since_forgotten_ns.saturating_add(interval_ns);
        if self.since_forgotten_ns >= FORGET_EVERY_NS {
            self.since_forgotten_ns = 0;
            self.page.forget_dead(|tid| Path::new(&format!("/proc/{tid}")).exists());
        }
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
