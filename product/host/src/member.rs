//! One program that is balanced: what is remembered of it from look to look.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use evenkeel_capability::{PaperParameters, Plan, Policy, Selection, Snapshot, State, TaskId};
use evenkeel_journal::{PlaceError, Session, TaskRef};
use evenkeel_machine::{CpuSet, Machine};

use crate::reading::Reading;
use crate::record::Decision;
use crate::summary::Totals;
use crate::working_set::WorkingSets;

/// How many decisions are kept for `explain`.
const KEPT_DECISIONS: usize = 64;

/// Which CPUs there are is read again after this time.
const CPUS_AGE_NS: u64 = 900_000_000;

/// See the file's head.
pub(crate) struct Member {
    pub(crate) state: State,
    /// Measured only for the policy that asks for them.
    pub(crate) working_sets: Option<WorkingSets>,
    pub(crate) totals: Totals,
    decisions: VecDeque<Decision>,
    /// At the last look.
    pub(crate) last: Rc<Reading>,
    /// Those of its cpuset that are online.
    cpus: CpuSet,
    /// When these were read; 0: not yet.
    cpus_at_ns: u64,
    /// What happened to them since the last decision.
    news: Vec<String>,
    /// When to look next, on the monotonic clock.
    pub(crate) due_ns: u64,
    /// From the last look to the next.
    pub(crate) interval_ns: u64,
}

impl Member {
    /// A program that is balanced from `now` on.
    pub(crate) fn new(machine: &Machine, policy: Policy, now: &Rc<Reading>) -> Self {
        let working_sets = working_sets_for(&policy);
        let state = State::new(policy);
        let interval_ns = state.first_interval_ns();
        Self {
            state,
            working_sets,
            totals: Totals::new(machine, now),
            decisions: VecDeque::new(),
            cpus: CpuSet::new(),
            cpus_at_ns: 0,
            news: Vec::new(),
            last: Rc::clone(now),
            due_ns: now.at_ns + interval_ns,
            interval_ns,
        }
    }

    /// As of the last [`Member::see_cpus`].
    pub(crate) fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// Sees which CPUs there are for the program, as `read` gives them: when a second has gone by
    /// and one of its tasks is awake. (A CPU that goes in between is respected all the same: by
    /// whoever places.) Whether others are there than before.
    pub(crate) fn see_cpus(
        &mut self,
        program: u32,
        now: &Reading,
        read: impl FnOnce() -> Option<CpuSet>,
    ) -> bool {
        let is_first = self.cpus_at_ns == 0;
        let is_fresh = now.at_ns.saturating_sub(self.cpus_at_ns) < CPUS_AGE_NS;
        if !is_first && (is_fresh || now.has_slept_since(&self.last, program)) {
            return false;
        }
        // Without a process there is nobody to ask.
        let Some(cpus) = read() else { return false };
        self.cpus_at_ns = now.at_ns;
        let before = std::mem::replace(&mut self.cpus, cpus);
        if is_first || before == self.cpus {
            return false;
        }
        for (which, what) in [
            (before.difference(&self.cpus), "gone: offline, or taken out of the cpuset"),
            (self.cpus.difference(&before), "there now"),
        ] {
            if !which.is_empty() {
                let noun = if which.len() == 1 { "CPU" } else { "CPUs" };
                let verb = if which.len() == 1 { "is" } else { "are" };
                let said = format!("{noun} {which} {verb} {what}");
                tracing::info!("{said}");
                self.news.push(said);
            }
        }
        self.totals.cpu_changes += 1;
        true
    }

    /// Decides otherwise from now on.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.working_sets = working_sets_for(&policy);
        self.state = State::new(policy);
    }

    /// The last decisions, oldest first.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    pub(crate) fn into_results(self) -> (Totals, Vec<Decision>) {
        (self.totals, self.decisions.into())
    }

    /// Without events from the kernel, children that inherited a pin, and programs that a pinned
    /// thread became, are found by looking: at the tasks that are there now and were not at the
    /// last look (all of them, if this is the first), or were and are not.
    pub(crate) fn free_newcomers(&self, program: u32, now: &Reading, session: &mut Session) {
        let nobody = BTreeMap::new();
        let now = now.tasks_of(program).unwrap_or(&nobody);
        let is_first = self.totals.intervals == 0;
        let before = self.last.tasks_of(program).filter(|_| !is_first).unwrap_or(&nobody);
        let mut results = Vec::new();
        if session.has_placed() {
            for (id, task) in now.iter().filter(|(id, _)| !before.contains_key(id)) {
                results.push(session.free_inherited(&task_ref(*id, task.process)));
            }
        }
        // A thread that has become its process's leader by exec is gone under its own number.
        let lost: BTreeSet<u32> = before
            .iter()
            .filter(|(id, _)| !now.contains_key(id))
            .map(|(_, task)| task.process)
            .collect();
        if !lost.is_empty() {
            let leaders = now.iter().filter(|(id, task)| id.tid == task.process);
            for (id, task) in leaders.filter(|(_, task)| lost.contains(&task.process)) {
                results.push(session.free_heir_by_exec(&task_ref(*id, task.process)));
            }
        }
        for error in results.into_iter().filter_map(Result::err) {
            if !matches!(error, PlaceError::Gone { .. }) {
                tracing::warn!("{error}");
            }
        }
    }

    /// Keeps what was decided and done, for `explain` and the summary.
    pub(crate) fn remember(&mut self, plan: Plan, snapshot: &Snapshot, refused: Vec<String>) {
        self.totals.note(&plan);
        for made in &plan.moves {
            tracing::info!(
                "task {} from CPU {} to CPU {}: {}",
                made.task.tid,
                made.from,
                made.to,
                made.reason
            );
        }
        let news = std::mem::take(&mut self.news);
        let decision = Decision::new(self.last.at_ns, plan, snapshot, news, refused);
        // A long rest must not push the last real decision out: of resting intervals in a row
        // only the newest is kept.
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

/// As the journal names a task.
pub(crate) fn task_ref(id: TaskId, process: u32) -> TaskRef {
    TaskRef { tid: id.tid as i32, tgid: process as i32, start_time_ticks: id.start }
}
