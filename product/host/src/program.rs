//! One balanced program: what the balancer keeps of it from round to round.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use evenkeel_capability::{PaperParameters, Plan, Policy, Selection, Snapshot, State, TaskId};
use evenkeel_journal::{PlaceError, Session, TaskRef};
use evenkeel_machine::{CpuSet, Machine};

use crate::decision::{CpuChange, Decision, Refusal};
use crate::observe::Accounting;
use crate::proof::Proof;
use crate::reading::Reading;
use crate::rest::Useless;
use crate::shares::{Shares, SharesStatus};
use crate::stops::{self, Stops};
use crate::summary::Totals;
use crate::threads::{ThreadWatch, families_of};
use crate::waits::{ThreadTimes, Waits};
use crate::working_set::WorkingSets;

/// Decisions that are kept for `explain`.
const KEPT_DECISIONS: usize = 64;

/// Age at which the program's CPUs are read again.
const CPUS_AGE_NS: u64 = 900_000_000;

/// Waiting is shown for so long at least: until an estimate is within 3 points.
const RECENT_NS: u64 = 2_000_000_000;

/// A balanced program.
pub(crate) struct Program {
    pub(crate) state: State,
    /// What its moves gain.
    pub(crate) proof: Proof,
    /// Tasks that a split keeps on their CPUs, and the process of each.
    pub(crate) held: BTreeMap<TaskId, u32>,
    /// Its moves are decided and counted, and not made.
    pub(crate) is_watched: bool,
    /// Only under `--shares`.
    pub(crate) shares: Option<Shares>,
    /// Only where it was told how many threads to start.
    pub(crate) threads: Option<ThreadWatch>,
    /// Only with a policy that selects by working set.
    pub(crate) working_sets: Option<WorkingSets>,
    pub(crate) totals: Totals,
    stops: Stops,
    decisions: VecDeque<Decision>,
    /// The reading of the last round.
    pub(crate) last: Rc<Reading>,
    /// Two readings of the last seconds: waiting is shown since the older one.
    recent: [Rc<Reading>; 2],
    /// The CPUs of its cpuset that are online.
    cpus: CpuSet,
    /// When `cpus` was read; 0: not yet.
    cpus_at_ns: u64,
    /// Changes of `cpus` since the last decision.
    news: Vec<CpuChange>,
    /// Why the accounting is of no use, as the last plan has shown.
    pub(crate) useless: Option<Useless>,
    /// When the next round is due, on the monotonic clock.
    pub(crate) due_ns: u64,
    /// Time from the last round to the next.
    pub(crate) interval_ns: u64,
}

impl Program {
    /// A program that is balanced from the reading `now` on.
    pub(crate) fn new(machine: &Machine, policy: Policy, now: &Rc<Reading>) -> Self {
        let working_sets = working_sets_for(&policy);
        let proof = Proof::new(&policy);
        let state = State::new(policy);
        let interval_ns = state.first_interval_ns();
        Self {
            state,
            proof,
            held: BTreeMap::new(),
            is_watched: false,
            shares: None,
            threads: None,
            working_sets,
            totals: Totals::new(machine, now),
            stops: Stops::default(),
            decisions: VecDeque::new(),
            cpus: CpuSet::new(),
            cpus_at_ns: 0,
            news: Vec::new(),
            last: Rc::clone(now),
            recent: [Rc::clone(now), Rc::clone(now)],
            useless: None,
            due_ns: now.at_ns + interval_ns,
            interval_ns,
        }
    }

    /// The CPUs of its cpuset that are online, as of the last [`Program::update_cpus`].
    pub(crate) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// Updates the program's CPUs by `read`, at most once a second and only while one of its tasks is
    /// awake. Returns whether they changed. (A CPU that goes in between is respected all the same:
    /// placing checks the mask and the cpuset again.)
    pub(crate) fn update_cpus(
        &mut self,
        number: u32,
        now: &Reading,
        read: impl FnOnce() -> Option<CpuSet>,
    ) -> bool {
        let is_first = self.cpus_at_ns == 0;
        let is_fresh = now.at_ns.saturating_sub(self.cpus_at_ns) < CPUS_AGE_NS;
        if !is_first && (is_fresh || now.has_slept_since(&self.last, number)) {
            return false;
        }
        // Without a process there is no cpuset to read.
        let Some(cpus) = read() else { return false };
        self.cpus_at_ns = now.at_ns;
        let before = std::mem::replace(&mut self.cpus, cpus);
        if is_first || before == self.cpus {
            return false;
        }
        let (gone, came) = (before.difference(&self.cpus), self.cpus.difference(&before));
        let gone = (!gone.is_empty()).then_some(CpuChange::Gone(gone));
        let came = (!came.is_empty()).then_some(CpuChange::Came(came));
        for change in gone.into_iter().chain(came) {
            tracing::info!("{change}");
            self.news.push(change);
        }
        self.totals.cpu_changes += 1;
        true
    }

    /// Looks whether it has started the threads that it was told to, and says so once if it has not.
    pub(crate) fn watch_threads(&mut self, number: u32, now: &Reading) {
        let (Some(threads), Some(tasks)) = (&mut self.threads, now.tasks_of(number)) else {
            return;
        };
        if let Some(why) = threads.note(tasks, families_of) {
            tracing::warn!("--threads has no effect: {why}; the program is balanced as it is");
        }
    }

    /// Takes the reading of this round, and returns how the program waited since the last one.
    pub(crate) fn note_reading(&mut self, number: u32, now: Rc<Reading>) -> Waits {
        let waits = now.waits_since(&self.last, number);
        // A task that has ended has no mask to get back.
        let tasks = now.tasks_of(number);
        self.held.retain(|id, _| tasks.is_some_and(|tasks| tasks.contains_key(id)));
        if now.at_ns.saturating_sub(self.recent[1].at_ns) >= RECENT_NS {
            self.recent.swap(0, 1);
            self.recent[1] = Rc::clone(&now);
        }
        self.last = now;
        waits
    }

    /// Whether the interval that ended with the reading `now` tells nothing, since the program was
    /// stopped for a part of it.
    pub(crate) fn was_stopped(&mut self, number: u32, now: &Reading) -> bool {
        let is_stopped = now.tasks_of(number).is_some_and(stops::are_stopped);
        self.stops.note(number, is_stopped, now.at_ns.saturating_sub(self.due_ns))
    }

    /// Whether that was so in the last round.
    pub(crate) fn is_left_out(&self) -> bool {
        self.stops.is_left_out
    }

    /// Only watched from now on, or balanced again.
    pub(crate) fn set_watched(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
        self.held.clear();
        self.proof.rest();
        if let Some(shares) = &mut self.shares {
            shares.make_equal();
        }
    }

    /// Leaves out the interval from the reading `then` to the last one.
    pub(crate) fn leave_out(&mut self, then: &Reading) {
        self.totals.leave_out(then, &self.last);
        self.proof.pass(self.last.at_ns.saturating_sub(then.at_ns));
        if let Some(shares) = &mut self.shares {
            shares.leave_out();
        }
        if self.stops.is_stopped {
            self.interval_ns = stops::LOOK_NS;
        }
    }

    /// How it waited in the last two to four seconds, and where the time of its threads went.
    pub(crate) fn recent_waits(&self, number: u32) -> (Waits, Vec<ThreadTimes>) {
        let since = &self.recent[0];
        (self.last.waits_since(since, number), self.last.threads_since(since, number))
    }

    /// Takes another policy from now on.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.working_sets = working_sets_for(&policy);
        self.proof = Proof::new(&policy);
        if let Some(shares) = &mut self.shares {
            shares.set_policy(&policy);
        }
        self.state = State::new(policy);
    }

    /// Goes on after a rest of so many ns, from the reading `now` on. What a policy remembers is too
    /// old; what was proved stays so.
    pub(crate) fn go_on(&mut self, now: &Rc<Reading>, policy: Policy, rested_ns: u64) {
        self.proof.pass(rested_ns);
        self.totals.rested_ns += rested_ns;
        self.state = State::new(policy);
        self.last = Rc::clone(now);
        self.recent = [Rc::clone(now), Rc::clone(now)];
        self.useless = None;
        self.interval_ns = self.state.first_interval_ns();
        self.due_ns = now.at_ns + self.interval_ns;
    }

    /// The last decisions, oldest first.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// What `--shares` does for it; none without.
    pub(crate) fn shares_status(&self) -> Option<SharesStatus> {
        self.shares.as_ref().map(Shares::status)
    }

    pub(crate) fn into_results(mut self) -> (Totals, Vec<Decision>) {
        self.totals.shares = self.shares_status();
        self.totals.threads = self.threads.map(ThreadWatch::into_count);
        (self.totals, self.decisions.into())
    }

    /// Gives tasks that inherited a pin by fork, or kept it across exec, their own mask. /proc
    /// reports neither, so both are found by comparison: tasks that are new since the last round (all
    /// of them, in the first round), and tasks that are gone.
    pub(crate) fn free_new_tasks(&self, number: u32, now: &Reading, session: &mut Session) {
        let none = BTreeMap::new();
        let now = now.tasks_of(number).unwrap_or(&none);
        let is_first = self.totals.intervals == 0;
        let before = self.last.tasks_of(number).filter(|_| !is_first).unwrap_or(&none);
        let mut results = Vec::new();
        if session.has_placed() {
            for (id, task) in now.iter().filter(|(id, _)| !before.contains_key(id)) {
                results.push(session.free_inherited(&task_ref(*id, task.process)));
            }
        }
        // A thread that calls exec becomes the leader of its process: its own thread id is gone.
        let lost: BTreeSet<u32> = before
            .iter()
            .filter(|(id, _)| !now.contains_key(id))
            .map(|(_, task)| task.process)
            .collect();
        if !lost.is_empty() {
            let leaders = now.iter().filter(|(id, task)| id.tid == task.process);
            for (id, task) in leaders.filter(|(_, task)| lost.contains(&task.process)) {
                results.push(session.free_inherited_by_exec(&task_ref(*id, task.process)));
            }
        }
        for error in results.into_iter().filter_map(Result::err) {
            if !matches!(error, PlaceError::Gone { .. }) {
                tracing::warn!("{error}");
            }
        }
    }

    /// Whether tasks changed places in the last round.
    pub(crate) fn has_exchanged(&self) -> bool {
        self.decisions.back().is_some_and(Decision::has_exchanged)
    }

    /// Keeps the decision of a round, for `explain` and the summary.
    pub(crate) fn remember(
        &mut self,
        plan: Plan,
        snapshot: &Snapshot,
        (waits, accounting): (Waits, Accounting),
        refused: Vec<Refusal>,
        dry_run: bool,
    ) {
        self.totals.note(&plan, self.proof.gain());
        for made in &plan.moves {
            tracing::info!("{made}");
        }
        let news = std::mem::take(&mut self.news);
        let source = (self.last.at_ns, accounting);
        let decision = Decision::new(source, plan, snapshot, waits, news, refused, dry_run);
        // A long rest must not push the last real decision out: of intervals at rest in a row, only the
        // newest is kept.
        if decision.is_rest() && self.decisions.back().is_some_and(Decision::is_rest) {
            self.decisions.pop_back();
        } else if self.decisions.len() == KEPT_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }
}

fn working_sets_for(policy: &Policy) -> Option<WorkingSets> {
    let by_working_set =
        matches!(policy, Policy::Paper(PaperParameters { selection: Selection::Cache, .. }));
    by_working_set.then(WorkingSets::new)
}

/// The name of a task in the journal.
pub(crate) fn task_ref(id: TaskId, process: u32) -> TaskRef {
    TaskRef { tid: id.tid as i32, tgid: process as i32, start_time_ticks: id.start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::{ProgramReading, TaskReading};

    const NUMBER: u32 = 1;

    fn id(tid: u32) -> TaskId {
        TaskId { tid, start: 1 }
    }

    fn reading(at_ns: u64, tids: &[u32]) -> Rc<Reading> {
        let tasks = tids.iter().map(|tid| (id(*tid), TaskReading::default())).collect();
        let program = ProgramReading { tasks, ..ProgramReading::default() };
        Rc::new(Reading { at_ns, programs: [(NUMBER, program)].into(), ..Reading::default() })
    }

    #[test]
    fn tasks_that_have_ended_are_held_no_more() {
        let machine = Machine::preset("small").unwrap();
        let policy = Policy::Paper(PaperParameters::default());
        let mut program = Program::new(&machine, policy, &reading(0, &[]));
        for round in 1..100 {
            // A new thread in each round, beside one that stays.
            program.held.extend([(id(7), 7), (id(100 + round), 7)]);
            program.note_reading(NUMBER, reading(u64::from(round), &[7, 101 + round]));
            assert_eq!(program.held.keys().copied().collect::<Vec<_>>(), [id(7)]);
        }
    }
}
