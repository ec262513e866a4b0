//! One round over the balanced programs: observe, decide, act, record. `run` balances one program,
//! the daemon many. All programs of a balancer share its accounting, its journal and every rule. By
//! `lag`, each has its own plan, in which the tasks of the others are foreign load; by the paper's
//! policy they have one plan together (`together`).

mod due;
mod end;
mod events;
mod late;
mod places;
mod resting;
mod together;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use evenkeel_capability::{Invalid, Plan, Policy, Snapshot, State, TaskId, plan};
use evenkeel_journal::{
    PlaceError, Placed, Released, Session, SupervisedSession, TaskRef, affinity,
};
use evenkeel_machine::{CpuSet, Machine};

use crate::clock::{boottime_ns, monotonic_ns, own_cpu_ns, start_ns};
use crate::decision::{Decision, Refusal};
use crate::observe::{Accounting, ObserveError, Observer};
use crate::options::{Options, Placement};
use crate::place::{GuardedError, Placer};
use crate::program::{Program, task_ref};
use crate::reading::{Freedom, Reading, TaskReading};
use crate::rest::Useless;
use crate::shares::{Shares, SharesStatus};
use crate::summary::Totals;
use crate::threads::{ThreadWatch, Threads};
use crate::waits::{ThreadTimes, Waits};

use late::Late;
use places::{Place, not_to_visit, places};

/// Why a round failed.
#[derive(Debug, thiserror::Error)]
pub enum BalancerError {
    /// A program could not be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// A process that is younger may still be counting its CPUs, so it is not pinned. (The JVM and OpenMP
/// count within their first tenth of a second of CPU time.)
const SETTLING_NS: u64 = 500_000_000;
/// Failed moves that are logged as warnings; more are only counted.
const LOGGED_REFUSALS: u64 = 10;

/// Balances programs. The caller numbers them.
pub struct Balancer {
    machine: Machine,
    observer: Observer,
    /// The source of the figures that the policy is made for.
    accounting: Accounting,
    session: Option<SupervisedSession>,
    policy: Policy,
    /// What the one plan of all programs remembers; only by the paper's policy.
    together: Option<State>,
    options: Options,
    isolated: CpuSet,
    programs: BTreeMap<u32, Program>,
    /// cbinfo reports forks at once.
    urgent: bool,
    /// When a process called exec, for the processes that did so lately.
    execs_ns: BTreeMap<u32, u64>,
    late: Late,
}

impl Balancer {
    /// Starts without a program. Without a `session` (no journal can be written) it only observes.
    ///
    /// # Errors
    /// The machine cannot be observed.
    pub fn new(
        machine: Machine,
        session: Option<SupervisedSession>,
        options: Options,
    ) -> Result<Self, BalancerError> {
        let mut observer = Observer::with_daemons(&machine, options.accounting, &options.daemons)?;
        observer.set_runtimes(&options.runtimes);
        let accounting = observer.accounting();
        Ok(Self {
            together: together_for(&options.policy),
            policy: policy_for(accounting, &options.policy),
            observer,
            accounting,
            session,
            options,
            isolated: machine.isolated(),
            machine,
            programs: BTreeMap::new(),
            urgent: false,
            execs_ns: BTreeMap::new(),
            late: Late::default(),
        })
    }

    /// Adds a process and its descendants to program `program`, which is created if need be. Processes
    /// that belong to another program stay there.
    ///
    /// # Errors
    /// The process cannot be observed.
    pub fn join(&mut self, program: u32, process: &TaskRef) -> Result<(), BalancerError> {
        let session = self.session.as_mut().map(SupervisedSession::session);
        match session.map(|session| session.add_program(process)) {
            // A process that has ended meanwhile is no error.
            None | Some(Ok(()) | Err(PlaceError::Gone { .. })) => {}
            Some(Err(why)) => {
                tracing::warn!("{why}; tasks are not moved, only observed");
                self.session = None;
            }
        }
        let followed = self.observer.follow(process.tgid as u32, program);
        let now = match followed.and_then(|()| self.observer.read().map(Rc::clone)) {
            Ok(now) => now,
            Err(why) => {
                // The caller may give the number to another program, and some of the tasks may have it.
                if !self.programs.contains_key(&program)
                    && let Err(why) = self.observer.forget(program)
                {
                    tracing::warn!("{why}");
                }
                return Err(why.into());
            }
        };
        if self.observer.accounting() != self.accounting {
            self.follow_accounting();
        }
        let (machine, policy) = (&self.machine, &self.policy);
        self.programs.entry(program).or_insert_with(|| Program::new(machine, policy.clone(), &now));
        Ok(())
    }

    /// Whether tasks can be moved: a journal can be written.
    pub fn can_move(&self) -> bool {
        self.session.is_some()
    }

    /// Divides the loops of a program, which was started with this page, by capability.
    pub(crate) fn share(&mut self, program: u32, mut shares: Shares) {
        shares.set_policy(&self.policy);
        if let Some(program) = self.programs.get_mut(&program) {
            program.shares = Some(shares);
        }
    }

    /// What `--shares` does for a program; none without.
    pub(crate) fn shares(&self, program: u32) -> Option<SharesStatus> {
        self.programs.get(&program)?.shares_status()
    }

    /// A program was told to start so many threads, and to let those sleep that wait.
    pub(crate) fn expect_threads(&mut self, program: u32, threads: Threads) {
        if let Some(program) = self.programs.get_mut(&program) {
            program.threads = Some(ThreadWatch::new(threads));
        }
    }

    /// When the next round is due, on the monotonic clock; `None` without a program.
    pub fn due_ns(&self) -> Option<u64> {
        let programs = self.programs.values().map(|program| program.due_ns);
        programs.chain(self.observer.window_due_ns()).min()
    }

    /// Takes other options from now on. The policies start anew; the source of the figures stays.
    pub fn set_options(&mut self, options: Options) {
        self.observer.set_runtimes(&options.runtimes);
        let before = std::mem::replace(&mut self.options, options);
        if (before.placement, &before.cpus) != (self.options.placement, &self.options.cpus) {
            self.release_all();
        }
        self.follow_accounting();
    }

    /// Starts the policies anew, for the source that the figures have now.
    fn follow_accounting(&mut self) {
        self.accounting = self.observer.accounting();
        self.policy = policy_for(self.accounting, &self.options.policy);
        self.together = together_for(&self.policy);
        for program in self.programs.values_mut() {
            program.set_policy(self.policy.clone());
        }
    }

    /// The source of figures.
    pub fn observer(&mut self) -> &mut Observer {
        &mut self.observer
    }

    /// The totals of a program so far.
    pub fn totals(&self, program: u32) -> Option<&Totals> {
        self.programs.get(&program).map(|program| &program.totals)
    }

    /// The last reading.
    pub(crate) fn last_reading(&self) -> &Rc<Reading> {
        self.observer.last()
    }

    /// How a program waited in the last seconds, and where the time of each of its threads went.
    pub fn waits(&self, program: u32) -> Option<(Waits, Vec<ThreadTimes>)> {
        self.programs.get(&program).map(|of| of.recent_waits(program))
    }

    /// The last decisions about a program, oldest first.
    pub fn decisions(&self, program: u32) -> impl Iterator<Item = &Decision> {
        self.programs.get(&program).into_iter().flat_map(Program::decisions)
    }

    /// Balances the programs that are due. Returns the numbers of those that were not stopped. When
    /// nothing else is to be done, call [`Observer::open_due_window`].
    ///
    /// # Errors
    /// Nothing can be observed. The programs are tried again after their next interval.
    pub fn balance_due(&mut self) -> Result<Vec<u32>, BalancerError> {
        self.observer.close_due_window();
        self.handle_events()?;
        let due = self.due(monotonic_ns());
        if due.is_empty() {
            return Ok(due);
        }
        let mut result = self.observer.read().map(drop).map_err(BalancerError::from);
        let is_other_source = self.observer.accounting() != self.accounting;
        if is_other_source {
            self.follow_accounting();
        }
        let take = |number: &u32| Some((*number, self.programs.remove(number)?));
        let mut programs: Vec<(u32, Program)> = due.iter().filter_map(take).collect();
        if is_other_source {
            for (_, program) in &mut programs {
                // Nothing was counted in this interval: the new source has just begun.
                program.last = Rc::clone(self.observer.last());
                program.interval_ns = program.state.first_interval_ns();
            }
        } else if result.is_ok() {
            result = self.balance_all(&mut programs);
        }
        let mut balanced = Vec::new();
        for (number, mut program) in programs {
            // From now and not from the last deadline: after a suspend there is nothing to catch up.
            program.due_ns = monotonic_ns() + program.interval_ns;
            balanced.extend((!program.is_left_out()).then_some(number));
            self.programs.insert(number, program);
        }
        result.map(|()| balanced)
    }

    /// The programs of the round that starts now; none while no program is due.
    fn due(&self, now_ns: u64) -> Vec<u32> {
        let times = self.programs.iter();
        let times = times.map(|(number, program)| (*number, program.due_ns, program.interval_ns));
        if self.together.is_some() {
            return due::all_at(now_ns, times);
        }
        due::each_at(now_ns, times)
    }

    fn balance_all(&mut self, programs: &mut [(u32, Program)]) -> Result<(), BalancerError> {
        let together = self.together.take();
        let is_together = together.is_some();
        if let Some(mut state) = together {
            let result = self.balance_together(programs, &mut state);
            self.together = Some(state);
            result?;
        }
        // A program that is only watched has a plan of its own in any case: its tasks stay where they
        // are, and a plan that counts on their moves would be wrong for the tasks of the others.
        for (number, program) in programs {
            if is_together && !program.is_watched {
                continue;
            }
            let Some(seen) = self.look(*number, program) else { continue };
            let planned = plan(&seen.snapshot, &mut program.state);
            self.carry_out(planned, seen, program)?;
        }
        Ok(())
    }

    /// What is to be known of a program before its plan; `None`: no time has passed, or the program was
    /// stopped meanwhile.
    fn look(&mut self, number: u32, program: &mut Program) -> Option<Seen> {
        let was_stopped = program.was_stopped(number, self.observer.last());
        program.interval_ns = program.state.first_interval_ns();
        if let Some(shares) = &program.shares {
            shares.beat();
        }
        self.update_cpus(number, program);
        let now = Rc::clone(self.observer.last());
        program.watch_threads(number, &now);
        let mut snapshot = self.snapshot(number, program)?;
        // Figures in clock ticks are too coarse to measure a split by.
        if let Some(threads) = program.threads.as_mut().filter(|_| self.accounting.is_exact()) {
            threads.tell(&mut snapshot);
        }
        if let Some(session) = self.session.as_mut().map(SupervisedSession::session) {
            program.free_new_tasks(number, &now, session);
        }
        let then = Rc::clone(&program.last);
        let waits = program.note_reading(number, now);
        if was_stopped {
            program.leave_out(&then);
            return None;
        }
        self.observer.attend(number, &snapshot, program.has_exchanged());
        if let Some(working_sets) = &mut program.working_sets {
            working_sets.measure(&mut snapshot);
        }
        program.totals.add(&snapshot, self.observer.last());
        Some(Seen { snapshot, waits })
    }

    /// Acts by the plan, and remembers it.
    fn carry_out(
        &mut self,
        planned: Result<Plan, Invalid>,
        Seen { snapshot, waits }: Seen,
        program: &mut Program,
    ) -> Result<(), BalancerError> {
        let mut plan = match planned {
            Ok(plan) => plan,
            Err(invalid) => {
                // The kernel's own lists contradict each other for a moment at times.
                tracing::debug!(%invalid, "snapshot left out");
                return Ok(());
            }
        };
        self.choose_lever(&snapshot, &mut plan, program);
        let refused = self.act(&plan, &snapshot, program);
        if !plan.moves.is_empty() {
            // Even a soft move pins for a moment, and a thread that is born then inherits the pin.
            self.handle_events()?;
        }
        program.interval_ns = plan.interval_ns;
        program.useless = Useless::seen_in(&plan).filter(|_| program.held.is_empty());
        let dry_run = self.options.dry_run || program.is_watched;
        program.remember(plan, &snapshot, (waits, self.accounting), refused, dry_run);
        Ok(())
    }

    /// Leaves in the plan what the program's lever may do now: loops are divided and threads stay, or
    /// threads are moved as far as that is not withdrawn.
    fn choose_lever(&self, snapshot: &Snapshot, plan: &mut Plan, program: &mut Program) {
        if self.options.dry_run || program.is_watched {
            return;
        }
        let can_place = self.session.is_some();
        let shares = program.shares.as_mut();
        if shares.is_some_and(|shares| shares.judge(snapshot, plan)) {
            if !can_place {
                plan.pins.clear();
            }
        } else if can_place {
            program.proof.take_in_own_cpu(own_cpu_ns());
            program.proof.judge(snapshot, plan);
        }
    }

    /// Follows CPUs that go offline or come online, or leave or enter the program's cpuset.
    fn update_cpus(&mut self, number: u32, program: &mut Program) {
        let observer = &self.observer;
        let now = Rc::clone(observer.last());
        if !program.update_cpus(number, &now, || observer.usable(number)) {
            return;
        }
        self.observer.restart_watch();
        if program.cpus().iter().any(|cpu| !self.machine.cpu(cpu).is_some_and(|cpu| cpu.online)) {
            self.read_machine_again();
            program.totals.set_machine(&self.machine);
        }
        let Some(session) = self.session.as_mut().map(SupervisedSession::session) else { return };
        for (id, task) in now.tasks_of(number).into_iter().flatten() {
            if let Err(why) = session.follow_cpus(&task_ref(*id, task.process)) {
                tracing::warn!("{why}");
            }
        }
    }

    fn read_machine_again(&mut self) {
        match self.machine.read_again(Path::new("/")) {
            Ok(machine) => {
                self.observer.set_machine(&machine);
                self.isolated = machine.isolated();
                self.machine = machine;
            }
            Err(why) => tracing::warn!("{why}; the new CPUs are not known"),
        }
    }

    fn snapshot(&mut self, number: u32, program: &Program) -> Option<Snapshot> {
        let usable = self.usable(program);
        let session = self.session.as_mut().map(|guarded| &*guarded.session());
        let freedom = |id: TaskId, task: &TaskReading| {
            let task = task_ref(id, task.process);
            if session.is_some_and(Session::overrides_user) {
                return Freedom { allowed: usable.clone(), fixed: false };
            }
            if session.is_some_and(|session| session.has_yielded(&task)) {
                return Freedom { allowed: CpuSet::new(), fixed: true };
            }
            // Our own pin does not restrict it.
            let allowed = session.and_then(|session| session.allowed_while_pinned(&task, &usable));
            if let Some(allowed) = allowed {
                return Freedom { allowed, fixed: false };
            }
            match affinity::get(task.tid) {
                Ok(allowed) => Freedom { allowed, fixed: false },
                Err(_) => Freedom { allowed: CpuSet::new(), fixed: true },
            }
        };
        let snapshot = self.observer.snapshot(&program.last, &[number], &usable, freedom)?;
        Some(snapshot)
    }

    /// Makes the moves of the plan. Returns the moves that were not made.
    fn act(&mut self, plan: &Plan, snapshot: &Snapshot, program: &mut Program) -> Vec<Refusal> {
        let mut refused = Vec::new();
        let mut is_pinned = false;
        self.check_journal(program);
        self.release_held(plan, program);
        let is_watched = self.options.dry_run || program.is_watched;
        let totals = &mut program.totals;
        if is_watched || (plan.moves.is_empty() && plan.pins.is_empty()) {
            totals.proposed += plan.moves.len() as u64;
            return refused;
        }
        let Some(session) = &mut self.session else {
            refused.push(Refusal::NoJournal);
            return refused;
        };
        let processes: BTreeMap<TaskId, u32> =
            snapshot.tasks.iter().map(|task| (task.id, task.process)).collect();
        // A lone compute thread may be about to start a thread pool: pinned, it would count one CPU.
        let is_lone = snapshot.tasks.iter().filter(|task| task.runnable).count() < 2;
        let now_ns = boottime_ns();
        // By the age of the process: a new thread of an old process has no CPUs left to count.
        let leaders: BTreeMap<u32, TaskId> =
            snapshot.tasks.iter().map(|task| (task.id.tid, task.id)).collect();
        let threads = program.threads.as_ref();
        let is_settling = |task: TaskId, process: u32| {
            let is_young = || {
                self.execs_ns.contains_key(&process)
                    || start_ns(*leaders.get(&process).unwrap_or(&task)) + SETTLING_NS > now_ns
            };
            // A pool that has started has counted its CPUs.
            !threads.is_some_and(|threads| threads.is_full(process)) && is_young()
        };
        let pins: BTreeMap<TaskId, u32> = plan.pins.iter().map(|pin| (pin.task, pin.cpu)).collect();
        let mut placer = Placer::new(session, not_to_visit(snapshot));
        for Place { task: id, from, to, reason } in places(plan, snapshot) {
            let Some(process) = processes.get(&id).copied() else { continue };
            let is_held = pins.contains_key(&id);
            if reason.is_none() && (is_settling(id, process) || is_lone) {
                continue;
            }
            let task = task_ref(id, process);
            let may_pin = (self.options.placement == Placement::Hard || is_held)
                && !is_lone
                && !is_settling(id, process);
            let placement = if may_pin { Placement::Hard } else { Placement::Soft };
            match placer.place(&task, from, to, placement) {
                Ok(Placed::Pinned) => {
                    if let Some(reason) = reason {
                        totals.count_move(reason);
                    }
                    // A soft pin ends with the placer.
                    is_pinned |= may_pin;
                    if may_pin && is_held && self.options.placement == Placement::Soft {
                        program.held.insert(id, process);
                    }
                }
                Ok(Placed::Unchanged) => {}
                Ok(Placed::Yielded { found, newly }) => {
                    if newly {
                        totals.yielded += 1;
                        tracing::info!(
                            "{task}: its user set CPUs {found}, so evenkeel no longer moves it"
                        );
                    }
                    if reason.is_some() {
                        refused.push(Refusal::UserChose { task, cpus: found });
                    }
                }
                Err(GuardedError::Place(PlaceError::Gone { .. })) => {}
                Err(error) => {
                    totals.refused += 1;
                    // A cpuset or mask that changed since the reading is no error.
                    let is_rule = matches!(
                        error,
                        GuardedError::Place(
                            PlaceError::OutsideCpuset { .. } | PlaceError::OutsideUserMask { .. }
                        )
                    );
                    if is_rule {
                        tracing::info!("{error}");
                    } else if totals.refused <= LOGGED_REFUSALS {
                        tracing::warn!("{error}");
                    }
                    let fatal = matches!(
                        error,
                        GuardedError::Supervisor(_) | GuardedError::Place(PlaceError::Journal(_))
                    );
                    refused.push(Refusal::Failed(error.to_string()));
                    if fatal {
                        break;
                    }
                }
            }
        }
        refused.extend(placer.end(totals));
        if is_pinned && !self.urgent {
            self.set_urgent();
        }
        refused
    }

    /// Once a plan keeps no task any more, gives the tasks that were kept their own mask back. With hard
    /// placement every task stays pinned until its next move.
    fn release_held(&mut self, plan: &Plan, program: &mut Program) {
        // A task that waited for a whole interval is in no pin, but stays a part of a split. Where tasks
        // are gathered on some CPUs, others may have been given its CPU.
        if program.held.is_empty() || !(plan.pins.is_empty() || plan.is_gathered()) {
            return;
        }
        let Some(session) = self.session.as_mut().map(SupervisedSession::session) else { return };
        let is_kept = |id: &TaskId| plan.pins.iter().any(|pin| pin.task == *id);
        let (kept, released): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut program.held).into_iter().partition(|(id, _)| is_kept(id));
        program.held = kept;
        for (id, process) in released {
            match session.release(&task_ref(id, process)) {
                Ok(Released::Kept { .. }) => program.totals.yielded += 1,
                Ok(_) | Err(PlaceError::Gone { .. }) => {}
                // It is kept for another round.
                Err(why) if why.is_late() => drop(program.held.insert(id, process)),
                Err(why) => tracing::warn!("{why}"),
            }
        }
    }

    /// Has cbinfo report forks at once: needed once tasks are pinned.
    fn set_urgent(&mut self) {
        self.urgent = true;
        if let Some(Err(error)) = self.observer.cbinfo().map(|cbinfo| cbinfo.set_urgent(true)) {
            tracing::warn!("{error}");
        }
    }
}

/// A program as it was in the interval that just ended.
struct Seen {
    snapshot: Snapshot,
    waits: Waits,
}

/// What the one plan of all programs remembers; `None` where each program has its own.
fn together_for(policy: &Policy) -> Option<State> {
    matches!(policy, Policy::Paper(_)).then(|| State::new(policy.clone()))
}

/// Figures in clock ticks are coarse: the policy then needs longer intervals and a larger tolerance.
fn policy_for(accounting: Accounting, policy: &Policy) -> Policy {
    match (accounting, policy) {
        (Accounting::Procfs, Policy::Lag(parameters)) => Policy::Lag(parameters.for_ticks()),
        (_, policy) => policy.clone(),
    }
}
