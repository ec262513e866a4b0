//! The proof of exchanges: by the rates of the CPUs, without windows in which nothing moves.
//!
//! In a phase that is longer than a window, all tasks work all the time, with and without moves: a
//! window shows no difference. The phase ends with the slowest task, and a task that is not moved is as
//! slow as its CPU. So the pace without moves *is* the rate of the slowest CPU, which is measured all
//! the time. It need not be tried: a trial would cost the very gain that it measures. The pace with
//! moves is the work that the task with the least work received, since no phase ends before that task.
//!
//! That holds where each CPU has one task and the kernel leaves tasks where they are, both of which is
//! watched, and where spinning is told from work. With unequal work it claims too little, never too
//! much: without moves, some task would be on the slowest CPU, and none has less work than the one with
//! the least. What evenkeel itself used is given back to the slowest CPU: without moves, there would be
//! no evenkeel. It does not see what moves cost in caches, nor what the accounting adds to each
//! interrupt.
//!
//! For a critical task that was given a faster CPU, the gain is the work of that task against the rate
//! of the CPU that it had: phases are short then, so that all of them are whole.

use std::collections::BTreeMap;

use evenkeel_capability::{CpuView, Move, Plan, Reason, Snapshot, TaskId};

use super::sequence::Sequence;
use super::stage::{Progress, Stage};

/// Length of a window.
const WINDOW_NS: u64 = 200_000_000;
/// Windows after which what was measured lately begins anew.
const RECENT_WINDOWS: u32 = 32;
/// The kernel moves tasks, too, when it moved this share of them in an interval: 1/4; ...
const STRAY_SHARE: u64 = 4;
/// ... which is told from so many tasks and intervals.
const STRAY_LOOKS: u64 = 32;
/// That is looked at again after this time.
const STRAYS_NS: u64 = 10_000_000_000;
/// So many plans with exchanges are carried out in this time while it cannot be told yet whether tasks
/// spin: enough for each task to be seen on unlike CPUs.
const BLIND_EXCHANGES: u32 = 3;
const BLIND_NS: u64 = 10_000_000_000;
/// A mean of the samples from which moves seem to gain.
const SEEMING_GAIN: f64 = 0.02;
/// Where the rates of the CPUs differ by less than this, moves have nothing to gain at the moment.
const LEAST_SPREAD_PPM: u64 = 45_000;

#[derive(Debug, Clone, Default)]
struct Sums {
    elapsed_ns: u64,
    /// CPU time of evenkeel itself.
    own_ns: u64,
    work_ns: BTreeMap<TaskId, u64>,
    rate_ns: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Rates {
    pub(super) progress: Progress,
    /// All windows since the asymmetry last changed.
    pub(super) sequence: Sequence,
    recent: Sequence,
    /// The tasks that are measured: those that computed when a move was first wanted.
    members: Vec<TaskId>,
    /// The critical task, and the CPU that it had.
    critical: Option<(TaskId, u32)>,
    window: Sums,
    /// Since the members were chosen.
    stretch: Sums,
    /// How even the work of the members before was.
    last_evenness: f64,
    /// Where each task was left.
    left: BTreeMap<TaskId, u32>,
    strays: u64,
    looks: u64,
    /// Why nothing is claimed.
    pub(super) unverified: Option<&'static str>,
    /// While the kernel moves tasks, nothing is measured.
    strays_until_ns: u64,
    /// CPU time of evenkeel itself in the interval.
    pub(super) own_ns: u64,
    /// Exchanges while it could not be told whether tasks spin, and since when they are counted.
    blind: (u32, u64),
}

const SPINNING_UNSEEN: &str = "spinning cannot be told from work here";
const NOT_ONE_EACH: &str =
    "the tasks are not one for each CPU, so the kernel could have moved them, too";
const STRAYS: &str = "the kernel moves the tasks, too";

impl Sums {
    fn add(&mut self, snapshot: &Snapshot, members: &[TaskId]) {
        self.elapsed_ns += snapshot.interval_ns;
        for task in snapshot.tasks.iter().filter(|task| members.binary_search(&task.id).is_ok()) {
            *self.work_ns.entry(task.id).or_default() += task.work_ns();
        }
        for cpu in &snapshot.cpus {
            let milli = 1000 + u64::from(cpu.foreign_milli);
            let given_ns = cpu.effective_ns(snapshot.interval_ns).saturating_mul(1000) / milli;
            *self.rate_ns.entry(cpu.cpu).or_default() += given_ns;
        }
    }

    /// Whether the CPUs are others than those that were added up.
    fn has_other_cpus(&self, snapshot: &Snapshot) -> bool {
        let is_new = |cpu: &CpuView| !self.rate_ns.contains_key(&cpu.cpu);
        !self.rate_ns.is_empty()
            && (self.rate_ns.len() != snapshot.cpus.len() || snapshot.cpus.iter().any(is_new))
    }

    fn mean_work(&self) -> f64 {
        self.work_ns.values().sum::<u64>() as f64 / self.work_ns.len().max(1) as f64
    }

    /// What the task with the least work has of the mean: a phase ends no sooner than that task.
    fn evenness(&self) -> f64 {
        let least = self.work_ns.values().min().copied().unwrap_or(0) as f64;
        if least > 0.0 { least / self.mean_work() } else { 0.0 }
    }

    fn slowest_cpu(&self) -> Option<u32> {
        self.rate_ns.iter().min_by_key(|(_, rate_ns)| **rate_ns).map(|(cpu, _)| *cpu)
    }
}

impl Rates {
    /// Takes in the interval that ended, and decides whether the exchanges of the plan may be made.
    pub(super) fn judge(&mut self, now_ns: u64, snapshot: &Snapshot, plan: &Plan) -> bool {
        self.watch(snapshot, plan);
        if snapshot.seen.redefined {
            // What was measured took waiting for work.
            self.begin_anew();
        }
        let is_first =
            |made: &Move| matches!(made.reason, Reason::Behind { .. } | Reason::Critical { .. });
        let wanted = plan.moves.iter().find(|made| is_first(made));
        if let Some(made) = wanted
            && now_ns >= self.strays_until_ns
            && self.progress.may_try(now_ns, snapshot)
        {
            self.unverified = self.why_unverified(snapshot);
            if self.unverified.is_some() {
                return self.may_exchange_blindly(now_ns, snapshot);
            }
            if self.progress.begin(snapshot) {
                self.sequence = Sequence::default();
            }
            self.measure_from_here(snapshot, made);
            return true;
        }
        match self.progress.stage {
            Stage::Idle => true,
            Stage::Withdrawn { .. } => false,
            Stage::Trial | Stage::Gains if plan.spread_ppm < LEAST_SPREAD_PPM => true,
            Stage::Trial | Stage::Gains => {
                self.measure(now_ns, snapshot, wanted);
                !matches!(self.progress.stage, Stage::Withdrawn { .. })
            }
        }
    }

    /// Whether an exchange may be made that cannot be measured.
    fn may_exchange_blindly(&mut self, now_ns: u64, snapshot: &Snapshot) -> bool {
        if !snapshot.seen.may_be_told {
            return true;
        }
        let (made, since_ns) = &mut self.blind;
        if now_ns.saturating_sub(*since_ns) >= BLIND_NS {
            (*made, *since_ns) = (0, now_ns);
        }
        *made += 1;
        *made <= BLIND_EXCHANGES
    }

    /// What was measured means nothing any more, nor does a verdict by it.
    fn begin_anew(&mut self) {
        self.sequence = Sequence::default();
        self.recent = Sequence::default();
        (self.window, self.stretch) = (Sums::default(), Sums::default());
        // A trial begins at the next move.
        self.progress.stage = Stage::Idle;
    }

    /// The factor between the mean of the samples and the pace: by the members before, until there is a
    /// window of those that were chosen last.
    pub(super) fn evenness(&self) -> f64 {
        match self.critical {
            Some(_) => 1.0,
            None if self.stretch.elapsed_ns < WINDOW_NS => self.last_evenness,
            None => self.stretch.evenness(),
        }
    }

    fn measure(&mut self, now_ns: u64, snapshot: &Snapshot, wanted: Option<&Move>) {
        if self.stretch.has_other_cpus(snapshot) {
            // The slowest CPU may be gone, and one that joined has the smallest sum.
            self.begin_anew();
            return;
        }
        let has = |id: &TaskId| snapshot.tasks.iter().any(|task| task.id == *id);
        let lost = !self.members.iter().all(has);
        let is_other = wanted.is_some_and(|made| {
            matches!(made.reason, Reason::Critical { .. }) != self.critical.is_some()
        });
        if lost || is_other {
            self.unverified = self.why_unverified(snapshot);
            match wanted {
                Some(made) if self.unverified.is_none() => self.measure_from_here(snapshot, made),
                // At the next move.
                _ => self.progress.stage = Stage::Idle,
            }
            return;
        }
        if self.strays.saturating_mul(STRAY_SHARE) > self.looks && self.looks >= STRAY_LOOKS {
            self.unverified = Some(STRAYS);
            self.strays_until_ns = now_ns.saturating_add(STRAYS_NS);
            self.progress.stage = Stage::Idle;
            self.sequence = Sequence::default();
            return;
        }
        if !snapshot.seen.spinning {
            return;
        }
        self.window.own_ns += self.own_ns;
        self.window.add(snapshot, &self.members);
        self.stretch.add(snapshot, &self.members);
        if self.window.elapsed_ns < WINDOW_NS {
            return;
        }
        let window = std::mem::take(&mut self.window);
        let (work, cpu) = match self.critical {
            Some((task, cpu)) => {
                (window.work_ns.get(&task).copied().unwrap_or(0) as f64, Some(cpu))
            }
            None => (window.mean_work(), self.stretch.slowest_cpu()),
        };
        let given_ns = cpu.and_then(|cpu| window.rate_ns.get(&cpu)).copied().unwrap_or(0);
        // Where evenkeel ran is not known: as if it had been there, so that too little is claimed, not
        // too much.
        let rate_ns = given_ns + window.own_ns;
        if given_ns == 0 {
            // Nothing is told against a CPU that gave nothing.
            return;
        }
        self.progress.pass(window.elapsed_ns);
        let sample = libm::log(work / rate_ns as f64);
        self.sequence.add(sample);
        self.recent.add(sample);
        self.decide(now_ns, snapshot);
    }

    fn decide(&mut self, now_ns: u64, snapshot: &Snapshot) {
        let even = libm::log(self.evenness().max(f64::MIN_POSITIVE));
        let of =
            |sequence: &Sequence| sequence.interval().map(|(low, high)| (low + even, high + even));
        if self.progress.stage == Stage::Trial {
            let seems_to_gain = self.sequence.mean() + even >= SEEMING_GAIN;
            match self.progress.decide(of(&self.sequence), seems_to_gain) {
                Some(true) => {
                    self.progress.gain();
                    self.recent = Sequence::default();
                }
                Some(false) => self.progress.withdraw(now_ns, snapshot),
                None => {}
            }
            return;
        }
        if of(&self.recent).is_some_and(|(_, high)| high < 0.0) {
            self.progress.withdraw(now_ns, snapshot);
        } else if self.recent.samples() >= RECENT_WINDOWS {
            self.recent = Sequence::default();
        }
    }

    fn why_unverified(&self, snapshot: &Snapshot) -> Option<&'static str> {
        if !snapshot.seen.spinning {
            return Some(SPINNING_UNSEEN);
        }
        (active(snapshot).count() != snapshot.cpus.len()).then_some(NOT_ONE_EACH)
    }

    fn measure_from_here(&mut self, snapshot: &Snapshot, made: &Move) {
        self.members = active(snapshot).collect();
        self.members.sort_unstable();
        let is_critical = matches!(made.reason, Reason::Critical { .. });
        if is_critical != self.critical.is_some() {
            // Samples of two kinds do not belong together.
            self.sequence = Sequence::default();
            if self.progress.stage == Stage::Gains {
                self.progress.begin(snapshot);
            }
        }
        self.last_evenness = self.evenness();
        self.critical = is_critical.then_some((made.task, made.from));
        (self.window, self.stretch) = (Sums::default(), Sums::default());
        self.recent = Sequence::default();
        (self.strays, self.looks) = (0, 0);
    }

    /// Counts the tasks that are not where they were left.
    fn watch(&mut self, snapshot: &Snapshot, plan: &Plan) {
        for task in
            snapshot.tasks.iter().filter(|task| self.members.binary_search(&task.id).is_ok())
        {
            if let Some(cpu) = self.left.get(&task.id) {
                self.looks += 1;
                self.strays += u64::from(*cpu != task.cpu);
            }
        }
        self.left = snapshot.tasks.iter().map(|task| (task.id, task.cpu)).collect();
        self.left.extend(plan.moves.iter().map(|made| (made.task, made.to)));
    }
}

/// Whether a move is one half of an exchange, or gives a critical task a faster CPU, or makes room for
/// it: what is proved here. A move to a CPU with more room is neither.
pub(super) fn is_exchange(made: &Move) -> bool {
    matches!(
        made.reason,
        Reason::Behind { .. }
            | Reason::Ahead { .. }
            | Reason::Critical { .. }
            | Reason::Slack { .. }
    )
}

fn active(snapshot: &Snapshot) -> impl Iterator<Item = TaskId> {
    let computing = snapshot.tasks.iter().filter(|task| task.computes(snapshot.interval_ns));
    computing.map(|task| task.id)
}
