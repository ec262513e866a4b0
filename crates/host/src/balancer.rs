//! One interval of balancing a program: observe, decide, act, record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenkeel_capability::{
    PaperParameters, Plan, Policy, Selection, Snapshot, State, TaskId, plan,
};
use evenkeel_cbinfo::TaskEvent;
use evenkeel_journal::{PlaceError, Placed, Session, Style, TaskRef, affinity};
use evenkeel_machine::{CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::guarded::{GuardedError, GuardedSession};
use crate::observe::{Accounting, AccountingChoice, ObserveError, Observer};
use crate::reading::{Freedom, TaskReading};
use crate::record::Decision;
use crate::summary::Totals;
use crate::working_set::WorkingSets;

/// How tasks are put on CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Moved, and free again at once: the program sees all its CPUs at all times.
    #[default]
    Soft,
    /// Pinned until the next move, as the paper does it.
    Hard,
}

/// How to balance.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who goes where.
    pub policy: Policy,
    /// How.
    pub placement: Placement,
    /// Where the figures come from.
    pub accounting: AccountingChoice,
    /// Observe and say what would be done; change nothing.
    pub dry_run: bool,
    /// CPUs to use; `None`: all that the program's cpuset allows.
    pub cpus: Option<CpuSet>,
}

/// Why an interval failed.
#[derive(Debug, thiserror::Error)]
pub enum BalancerError {
    /// The program could not be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// How many decisions are kept for `explain`.
const KEPT_DECISIONS: usize = 64;
/// A program that is younger is still starting up, and may just be counting its CPUs: it is not
/// pinned yet. (JVM and OpenMP count within their first tenth of a second of CPU time.)
const SETTLING_NS: u64 = 500_000_000;
/// Refusals of one kind that are logged; more are only counted.
const LOGGED_REFUSALS: u64 = 10;

/// Balances one program.
pub struct Balancer {
    observer: Observer,
    session: Option<GuardedSession>,
    /// Measured only for the policy that asks for them.
    working_sets: Option<WorkingSets>,
    state: State,
    options: Options,
    isolated: CpuSet,
    totals: Totals,
    decisions: VecDeque<Decision>,
    /// Tasks that the program had at the last look, to find the new ones.
    known: BTreeMap<TaskId, u32>,
    pinned: usize,
    urgent: bool,
    /// When processes became other programs, if that was lately.
    execs_ns: BTreeMap<u32, u64>,
}

impl Balancer {
    /// Starts to balance the program whose first process is `root`. Without a `session` (no
    /// journal could be written) it only observes.
    ///
    /// # Errors
    /// When the program cannot be observed.
    pub fn new(
        machine: &Machine,
        root: u32,
        session: Option<GuardedSession>,
        options: Options,
    ) -> Result<Self, BalancerError> {
        let observer = Observer::new(machine, root, options.accounting)?;
        let policy = match (observer.accounting(), &options.policy) {
            (Accounting::Procfs, Policy::Lag(parameters)) => Policy::Lag(parameters.for_ticks()),
            (_, policy) => policy.clone(),
        };
        let by_working_set =
            matches!(policy, Policy::Paper(PaperParameters { selection: Selection::Cache, .. }));
        Ok(Self {
            totals: Totals::new(machine, observer.last()),
            observer,
            session,
            working_sets: by_working_set.then(WorkingSets::new),
            state: State::new(policy),
            options,
            isolated: machine.isolated(),
            decisions: VecDeque::new(),
            known: BTreeMap::new(),
            pinned: 0,
            urgent: false,
            execs_ns: BTreeMap::new(),
        })
    }

    /// Length of the first interval.
    pub fn first_interval_ns(&self) -> u64 {
        self.state.first_interval_ns()
    }

    /// The source of figures.
    pub fn observer(&mut self) -> &mut Observer {
        &mut self.observer
    }

    /// What happened so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// Ends one interval: looks, decides, acts. Returns the length of the next one.
    ///
    /// # Errors
    /// When the program cannot be observed.
    pub fn interval(&mut self) -> Result<u64, BalancerError> {
        self.handle_events()?;
        let Some(mut snapshot) = self.snapshot()? else { return Ok(self.first_interval_ns()) };
        self.free_newcomers(&snapshot);
        if let Some(working_sets) = &mut self.working_sets {
            working_sets.measure(&mut snapshot);
        }
        self.totals.add(&snapshot, self.observer.last());
        let plan = match plan(&snapshot, &mut self.state) {
            Ok(plan) => plan,
            Err(invalid) => {
                // The kernel's own lists contradict each other for a moment at times.
                tracing::debug!(%invalid, "snapshot left out");
                return Ok(self.first_interval_ns());
            }
        };
        let refused = self.act(&plan, &snapshot);
        if !plan.moves.is_empty() {
            // Even a soft move is a pin for a moment: who was born in it must not keep it.
            self.take_events(true)?;
        }
        let interval_ns = plan.interval_ns;
        self.remember(plan, &snapshot, refused);
        Ok(interval_ns)
    }

    /// Gives back every mask, and says how the program fared.
    pub fn finish(mut self) -> (Totals, Vec<Decision>) {
        match self.snapshot() {
            Ok(Some(snapshot)) => self.totals.add(&snapshot, self.observer.last()),
            Ok(None) => {}
            Err(error) => tracing::debug!("the last interval is not counted: {error}"),
        }
        if let Some(session) = self.session.take() {
            let report = session.close();
            self.totals.kept = report.kept.len() as u64;
            for error in report.errors {
                tracing::error!("{error}; run `evenkeel undo`");
            }
        }
        (self.totals, self.decisions.into())
    }

    /// Frees what was born with, or carried into another program, a pin of ours. To be called as
    /// soon as the observer's events are readable, and at each interval.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn handle_events(&mut self) -> Result<(), BalancerError> {
        self.take_events(self.pinned > 0)
    }

    /// `may_inherit`: whether forks since the last call may have passed on a pin of ours.
    fn take_events(&mut self, may_inherit: bool) -> Result<(), BalancerError> {
        let events = self.observer.events()?;
        let now_ns = boottime_ns();
        self.execs_ns.retain(|_, at_ns| *at_ns + SETTLING_NS > now_ns);
        for event in events {
            let session = self.session.as_mut().map(GuardedSession::session);
            let result = match (event, session) {
                (TaskEvent::Fork { tid, tgid, .. }, Some(session)) if may_inherit => {
                    TaskRef::in_process(tgid as i32, tid as i32)
                        .map_or(Ok(false), |task| session.free_inherited(&task))
                }
                // The new program must see all CPUs; its thread has a new life before it.
                (TaskEvent::Exec { tgid }, session) => {
                    self.execs_ns.insert(tgid, now_ns);
                    match (session, TaskRef::of(tgid as i32)) {
                        (Some(session), Ok(task)) => session.free_after_exec(&task),
                        _ => Ok(false),
                    }
                }
                _ => Ok(false),
            };
            if let Err(error) = result {
                tracing::warn!("{error}");
            }
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, BalancerError> {
        let allowed = self.observer.usable().unwrap_or_default().difference(&self.isolated);
        let usable = match &self.options.cpus {
            Some(cpus) => allowed.intersection(cpus),
            None => allowed,
        };
        let session = self.session.as_mut().map(|guarded| &*guarded.session());
        let freedom = |id: TaskId, task: &TaskReading| {
            let task = task_ref(id, task.process);
            if session.is_some_and(Session::overrides_user) {
                return Freedom { allowed: usable.clone(), fixed: false };
            }
            if session.is_some_and(|session| session.has_yielded(&task)) {
                return Freedom { allowed: CpuSet::new(), fixed: true };
            }
            if session.is_some_and(|session| session.pinned_cpu(&task).is_some()) {
                return Freedom { allowed: usable.clone(), fixed: false };
            }
            match affinity::get(task.tid) {
                Ok(allowed) => Freedom { allowed, fixed: false },
                Err(_) => Freedom { allowed: CpuSet::new(), fixed: true },
            }
        };
        Ok(self.observer.snapshot(&usable, freedom)?)
    }

    /// Without events from the kernel, children that inherited a pin, and programs that a pinned
    /// thread became, are found by looking.
    fn free_newcomers(&mut self, snapshot: &Snapshot) {
        let Some(session) = self.session.as_mut().map(GuardedSession::session) else { return };
        let now: BTreeMap<TaskId, u32> =
            snapshot.tasks.iter().map(|task| (task.id, task.process)).collect();
        let mut results = Vec::new();
        if self.pinned > 0 {
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

    /// Carries out the plan. Returns what was refused and why.
    fn act(&mut self, plan: &Plan, snapshot: &Snapshot) -> Vec<String> {
        let mut refused = Vec::new();
        if self.options.dry_run || plan.moves.is_empty() {
            self.totals.proposed += plan.moves.len() as u64;
            return refused;
        }
        let Some(session) = &mut self.session else {
            refused.push("no journal can be written, so nothing is moved".to_owned());
            return refused;
        };
        let processes: BTreeMap<TaskId, u32> =
            snapshot.tasks.iter().map(|task| (task.id, task.process)).collect();
        // A lone compute thread that is pinned would show one CPU to the pool that it starts next.
        let is_lone = snapshot.tasks.iter().filter(|task| task.runnable).count() < 2;
        let may_pin = self.options.placement == Placement::Hard && !is_lone;
        let now_ns = boottime_ns();
        // By the age of the process: a new thread of an old one counts nothing any more.
        let leaders: BTreeMap<u32, TaskId> =
            snapshot.tasks.iter().map(|task| (task.id.tid, task.id)).collect();
        for made in &plan.moves {
            let Some(process) = processes.get(&made.task) else { continue };
            let task = task_ref(made.task, *process);
            let is_settling = self.execs_ns.contains_key(process)
                || start_ns(*leaders.get(process).unwrap_or(&made.task)) + SETTLING_NS > now_ns;
            let style = if may_pin && !is_settling { Style::Hard } else { Style::Soft };
            match session.place(&task, made.from, made.to, style) {
                Ok(Placed::Pinned) => {
                    self.totals.moves += 1;
                    self.pinned += 1;
                }
                Ok(Placed::Moved) => self.totals.moves += 1,
                Ok(Placed::Unchanged) => {}
                Ok(Placed::Yielded { found, newly }) => {
                    if newly {
                        self.totals.yielded += 1;
                        tracing::info!("{task} was given CPUs {found} by its user: let go");
                    }
                    refused.push(format!("{task}: its user chose CPUs {found}"));
                }
                Err(GuardedError::Place(PlaceError::Gone { .. })) => {}
                Err(error) => {
                    self.totals.refused += 1;
                    // A cpuset or mask that changed since the last look is no fault of anybody's.
                    let is_rule = matches!(
                        error,
                        GuardedError::Place(
                            PlaceError::OutsideCpuset { .. } | PlaceError::OutsideUserMask { .. }
                        )
                    );
                    if is_rule {
                        tracing::info!("{error}");
                    } else if self.totals.refused <= LOGGED_REFUSALS {
                        tracing::warn!("{error}");
                    }
                    let fatal = matches!(
                        error,
                        GuardedError::Supervisor(_) | GuardedError::Place(PlaceError::Journal(_))
                    );
                    refused.push(error.to_string());
                    if fatal {
                        break;
                    }
                }
            }
        }
        self.set_urgent();
        refused
    }

    /// Once tasks are pinned, the kernel is to report forks at once.
    fn set_urgent(&mut self) {
        if self.urgent || self.pinned == 0 {
            return;
        }
        self.urgent = true;
        if let Some(Err(error)) = self.observer.cbinfo().map(|cbinfo| cbinfo.set_urgent(true)) {
            tracing::warn!("{error}");
        }
    }

    fn remember(&mut self, plan: Plan, snapshot: &Snapshot, refused: Vec<String>) {
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
        let at_ns = self.observer.last().at_ns;
        let decision = Decision::new(at_ns, plan, snapshot, refused);
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

/// The clock of start times.
fn boottime_ns() -> u64 {
    let since_boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(std::time::Duration::from)
        .unwrap_or_default();
    since_boot.as_nanos() as u64
}

fn start_ns(id: TaskId) -> u64 {
    id.start.saturating_mul(1_000_000_000 / procfs::ticks_per_second().max(1))
}

fn task_ref(id: TaskId, process: u32) -> TaskRef {
    TaskRef { tid: id.tid as i32, tgid: process as i32, start_time_ticks: id.start }
}
