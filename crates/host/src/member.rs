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

/// A cpuset is read again after this time.
const CPUSET_AGE_NS: u64 = 900_000_000;

/// See the file's head.
pub(crate) struct Member {
    pub(crate) state: State,
    /// Measured only for the policy that asks for them.
    pub(crate) working_sets: Option<WorkingSets>,
    pub(crate) totals: Totals,
    decisions: VecDeque<Decision>,
    /// Tasks that the program had at the last look, to find the new ones.
    known: BTreeMap<TaskId, u32>,
    /// At the last look.
    pub(crate) last: Rc<Reading>,
    /// The CPUs of its cpuset, and when they were read.
    usable: Option<(u64, CpuSet)>,
    /// What these were before they changed, until the tasks have been seen to.
    replaced: Option<CpuSet>,
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
            known: BTreeMap::new(),
            usable: None,
            replaced: None,
            last: Rc::clone(now),
            due_ns: now.at_ns + interval_ns,
            interval_ns,
        }
    }

    /// The CPUs of the program's cpuset, as `read` gives them; read again when a second has gone by.
    /// (A cpuset that changes in between is respected all the same: by whoever places.)
    pub(crate) fn usable(&mut self, now_ns: u64, read: impl FnOnce() -> Option<CpuSet>) -> CpuSet {
        match &self.usable {
            Some((at_ns, cpus)) if now_ns.saturating_sub(*at_ns) < CPUSET_AGE_NS => cpus.clone(),
            _ => {
                let cpus = read().unwrap_or_default();
                let before = self.usable.replace((now_ns, cpus.clone())).map(|(_, before)| before);
                self.replaced = before.filter(|before| *before != cpus).or(self.replaced.take());
                cpus
            }
        }
    }

    /// After CPUs came or went: no task stays bound to what is not there, or kept from what is.
    pub(crate) fn follow_cpus(&mut self, snapshot: &Snapshot, session: &mut Session) {
        let Some(before) = self.replaced.take() else { return };
        for task in &snapshot.tasks {
            if let Err(error) = session.follow_cpus(&task_ref(task.id, task.process), &before) {
                tracing::warn!("{error}");
            }
        }
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
    /// thread became, are found by looking.
    pub(crate) fn free_newcomers(
        &mut self,
        snapshot: &Snapshot,
        session: &mut Session,
        has_pinned: bool,
    ) {
        let now: BTreeMap<TaskId, u32> =
            snapshot.tasks.iter().map(|task| (task.id, task.process)).collect();
        let mut results = Vec::new();
        if has_pinned {
            for (id, process) in now.iter().filter(|(id, _)| !self.known.contains_key(id)) {
                results.push(session.free_inherited(&task_ref(*id, *process)));
            }
        }
        // A thread that has become its process's leader by exec is gone under its own number.
        let lost: BTreeSet<u32> = self
            .known
            .iter()
            .filter(|(id, _)| !now.contains_key(id))
            .map(|(_, process)| *process)
            .collect();
        for (id, process) in now.iter().filter(|(id, process)| id.tid == **process) {
            if lost.contains(process) {
                results.push(session.free_heir_by_exec(&task_ref(*id, *process)));
            }
        }
        for error in results.into_iter().filter_map(Result::err) {
            if !matches!(error, PlaceError::Gone { .. }) {
                tracing::warn!("{error}");
            }
        }
        self.known = now;
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
        let decision = Decision::new(self.last.at_ns, plan, snapshot, refused);
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
