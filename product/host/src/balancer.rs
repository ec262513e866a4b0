//! One look at the programs that are balanced: observe, decide, act, record. `run` balances one
//! program, the daemon many; they share the accounting, the journal and every rule, but each has
//! its own plan, in which the others are foreign.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use evenkeel_capability::{Plan, Policy, Snapshot, TaskId, plan};
use evenkeel_cbinfo::TaskEvent;
use evenkeel_journal::{GuardedSession, PlaceError, Placed, Session, Style, TaskRef, affinity};
use evenkeel_machine::{CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::guarded::{self, GuardedError};
use crate::member::{Member, task_ref};
use crate::observe::{Accounting, AccountingChoice, ObserveError, Observer, monotonic_ns};
use crate::reading::{Freedom, TaskReading};
use crate::record::Decision;
use crate::summary::Totals;

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

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum BalancerError {
    /// A program could not be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

/// A program that is younger is still starting up, and may just be counting its CPUs: it is not
/// pinned yet. (JVM and OpenMP count within their first tenth of a second of CPU time.)
const SETTLING_NS: u64 = 500_000_000;
/// Refusals of one kind that are logged; more are only counted.
const LOGGED_REFUSALS: u64 = 10;

/// Programs that are due within this share of their interval are looked at together (and from then
/// on, while they are at rest): one reading serves all of them.
const TOGETHER_SHARE: u64 = 2;

/// Balances programs, each by a number of the caller's choice.
pub struct Balancer {
    machine: Machine,
    observer: Observer,
    session: Option<GuardedSession>,
    policy: Policy,
    options: Options,
    isolated: CpuSet,
    members: BTreeMap<u32, Member>,
    urgent: bool,
    /// When processes became other programs, if that was lately.
    execs_ns: BTreeMap<u32, u64>,
}

impl Balancer {
    /// Ready to balance; no program yet. Without a `session` (no journal could be written) it only
    /// observes.
    ///
    /// # Errors
    /// When the machine cannot be observed.
    pub fn new(
        machine: Machine,
        session: Option<GuardedSession>,
        options: Options,
    ) -> Result<Self, BalancerError> {
        let observer = Observer::new(&machine, options.accounting)?;
        Ok(Self {
            policy: policy_for(observer.accounting(), &options.policy),
            observer,
            session,
            options,
            isolated: machine.isolated(),
            machine,
            members: BTreeMap::new(),
            urgent: false,
            execs_ns: BTreeMap::new(),
        })
    }

    /// Takes a process and its descendants into program `program`, which begins with that if it
    /// does not exist yet. Who belongs to another program stays with that.
    ///
    /// # Errors
    /// It cannot be observed.
    pub fn join(&mut self, program: u32, process: &TaskRef) -> Result<(), BalancerError> {
        let session = self.session.as_mut().map(GuardedSession::session);
        match session.map(|session| session.add_program(process)) {
            // One that has ended meanwhile is no fault.
            None | Some(Ok(()) | Err(PlaceError::Gone { .. })) => {}
            Some(Err(why)) => {
                tracing::warn!("{why}; tasks are not moved, only observed");
                self.session = None;
            }
        }
        self.observer.follow(process.tgid as u32, program)?;
        let now = Rc::clone(self.observer.read()?);
        let (machine, policy) = (&self.machine, &self.policy);
        self.members.entry(program).or_insert_with(|| Member::new(machine, policy.clone(), &now));
        Ok(())
    }

    /// Lets a program go: its tasks get their masks back. Says how it fared.
    pub fn leave(&mut self, program: u32) -> Option<(Totals, Vec<Decision>)> {
        let member = self.members.remove(&program)?;
        if let Err(why) = self.observer.read() {
            tracing::debug!("its last tasks are not known: {why}");
        }
        let tasks = self.observer.last().tasks_of(program);
        if let Some(session) = self.session.as_mut().map(GuardedSession::session) {
            for (id, task) in tasks.into_iter().flatten() {
                if let Err(why) = session.release(&task_ref(*id, task.process)) {
                    tracing::warn!("{why}");
                }
            }
        }
        if let Err(why) = self.observer.forget(program) {
            tracing::warn!("{why}");
        }
        Some(member.into_results())
    }

    /// When somebody is to be looked at next, on the monotonic clock; `None` without a program.
    pub fn due_ns(&self) -> Option<u64> {
        self.members.values().map(|member| member.due_ns).min()
    }

    /// Balances otherwise from now on. What a policy has learned is forgotten; where the figures
    /// come from stays as it is.
    pub fn set_options(&mut self, options: Options) {
        self.policy = policy_for(self.observer.accounting(), &options.policy);
        self.options = options;
        for member in self.members.values_mut() {
            member.set_policy(self.policy.clone());
        }
    }

    /// The source of figures.
    pub fn observer(&mut self) -> &mut Observer {
        &mut self.observer
    }

    /// What happened to a program so far.
    pub fn totals(&self, program: u32) -> Option<&Totals> {
        self.members.get(&program).map(|member| &member.totals)
    }

    /// The last decisions about a program, oldest first.
    pub fn decisions(&self, program: u32) -> impl Iterator<Item = &Decision> {
        self.members.get(&program).into_iter().flat_map(Member::decisions)
    }

    /// Looks at the programs whose interval is over, decides and acts. Returns them.
    ///
    /// # Errors
    /// When nothing can be observed. All that were due are looked at again later.
    pub fn look(&mut self) -> Result<Vec<u32>, BalancerError> {
        self.handle_events()?;
        let times = self.members.iter();
        let times = times.map(|(program, member)| (*program, member.due_ns, member.interval_ns));
        let due = due_at(monotonic_ns(), times);
        if due.is_empty() {
            return Ok(due);
        }
        let mut result = self.observer.read().map(drop).map_err(BalancerError::from);
        for program in &due {
            let Some(mut member) = self.members.remove(program) else { continue };
            if result.is_ok() {
                result = self.look_at(*program, &mut member);
            }
            // From now and not from the last deadline: after a suspend nothing is to be caught up.
            member.due_ns = monotonic_ns() + member.interval_ns;
            self.members.insert(*program, member);
        }
        result.map(|()| due)
    }

    fn look_at(&mut self, program: u32, member: &mut Member) -> Result<(), BalancerError> {
        member.interval_ns = member.state.first_interval_ns();
        self.see_cpus(program, member);
        let Some(mut snapshot) = self.snapshot(program, member) else { return Ok(()) };
        let now = Rc::clone(self.observer.last());
        if let Some(session) = self.session.as_mut().map(GuardedSession::session) {
            member.free_newcomers(program, &now, session);
        }
        member.last = now;
        if let Some(working_sets) = &mut member.working_sets {
            working_sets.measure(&mut snapshot);
        }
        member.totals.add(&snapshot, self.observer.last());
        let plan = match plan(&snapshot, &mut member.state) {
            Ok(plan) => plan,
            Err(invalid) => {
                // The kernel's own lists contradict each other for a moment at times.
                tracing::debug!(%invalid, "snapshot left out");
                return Ok(());
            }
        };
        let refused = self.act(&plan, &snapshot, &mut member.totals);
        if !plan.moves.is_empty() {
            // Even a soft move is a pin for a moment: who was born in it must not keep it.
            self.handle_events()?;
        }
        member.interval_ns = plan.interval_ns;
        member.remember(plan, &snapshot, refused);
        Ok(())
    }

    /// Gives back every mask, and says how each program fared.
    pub fn finish(mut self) -> BTreeMap<u32, (Totals, Vec<Decision>)> {
        let mut members = std::mem::take(&mut self.members);
        match self.observer.read() {
            Ok(_) => {
                for (program, member) in &mut members {
                    self.see_cpus(*program, member);
                    if let Some(snapshot) = self.snapshot(*program, member) {
                        member.totals.add(&snapshot, self.observer.last());
                    }
                }
            }
            Err(error) => tracing::debug!("the last interval is not counted: {error}"),
        }
        if let Some(session) = self.session.take() {
            let report = session.close();
            for member in members.values_mut() {
                member.totals.kept = report.kept.len() as u64;
            }
            for error in report.errors {
                tracing::error!("{error}; run `evenkeel undo`");
            }
        }
        members.into_iter().map(|(program, member)| (program, member.into_results())).collect()
    }

    /// Frees what was born with, or carried into another program, a pin of ours. To be called as
    /// soon as the observer's events are readable, and at each interval.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn handle_events(&mut self) -> Result<(), BalancerError> {
        let events = self.observer.events()?;
        let now_ns = boottime_ns();
        self.execs_ns.retain(|_, at_ns| *at_ns + SETTLING_NS > now_ns);
        for event in events {
            let session = self.session.as_mut().map(GuardedSession::session);
            let result = match (event, session) {
                // However long ago it was that its parent carried a pin: who waits for a CPU in the
                // middle of clone(2) has its child told of when it goes on.
                (TaskEvent::Fork { tid, tgid, .. }, Some(session)) if session.has_placed() => {
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

    /// Follows CPUs that go offline or come online, or leave or enter the program's cpuset.
    fn see_cpus(&mut self, program: u32, member: &mut Member) {
        let observer = &self.observer;
        let now = Rc::clone(observer.last());
        if !member.see_cpus(program, &now, || observer.usable(program)) {
            return;
        }
        if member.cpus().iter().any(|cpu| !self.machine.cpu(cpu).is_some_and(|cpu| cpu.online)) {
            self.read_machine_again();
            member.totals.set_machine(&self.machine);
        }
        let Some(session) = self.session.as_mut().map(GuardedSession::session) else { return };
        for (id, task) in now.tasks_of(program).into_iter().flatten() {
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
            Err(why) => tracing::warn!("{why}; what is new of the CPUs is not known"),
        }
    }

    fn snapshot(&mut self, program: u32, member: &Member) -> Option<Snapshot> {
        let allowed = member.cpus().difference(&self.isolated);
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
        self.observer.snapshot(&member.last, program, &usable, freedom)
    }

    /// Carries out the plan. Returns what was refused and why.
    fn act(&mut self, plan: &Plan, snapshot: &Snapshot, totals: &mut Totals) -> Vec<String> {
        let mut refused = Vec::new();
        let mut is_pinned = false;
        if self.options.dry_run || plan.moves.is_empty() {
            totals.proposed += plan.moves.len() as u64;
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
            match guarded::place(session, &task, made.from, made.to, style) {
                Ok(Placed::Pinned) => {
                    totals.count_move(&made.reason);
                    is_pinned = true;
                }
                Ok(Placed::Moved) => totals.count_move(&made.reason),
                Ok(Placed::Unchanged) => {}
                Ok(Placed::Yielded { found, newly }) => {
                    if newly {
                        totals.yielded += 1;
                        tracing::info!("{task} was given CPUs {found} by its user: let go");
                    }
                    refused.push(format!("{task}: its user chose CPUs {found}"));
                }
                Err(GuardedError::Place(PlaceError::Gone { .. })) => {}
                Err(error) => {
                    totals.refused += 1;
                    // A cpuset or mask that changed since the last look is no fault of anybody's.
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
                    refused.push(error.to_string());
                    if fatal {
                        break;
                    }
                }
            }
        }
        if is_pinned && !self.urgent {
            self.set_urgent();
        }
        refused
    }

    /// Once tasks are pinned, the kernel is to report forks at once.
    fn set_urgent(&mut self) {
        self.urgent = true;
        if let Some(Err(error)) = self.observer.cbinfo().map(|cbinfo| cbinfo.set_urgent(true)) {
            tracing::warn!("{error}");
        }
    }
}

/// The programs to look at now, of each of which is given when it is due and its interval: nobody
/// before somebody is due, however often it is asked.
fn due_at(now_ns: u64, times: impl Iterator<Item = (u32, u64, u64)> + Clone) -> Vec<u32> {
    if !times.clone().any(|(_, due_ns, _)| due_ns <= now_ns) {
        return Vec::new();
    }
    times
        .filter(|(_, due_ns, interval_ns)| {
            due_ns.saturating_sub(interval_ns / TOGETHER_SHARE) <= now_ns
        })
        .map(|(program, _, _)| program)
        .collect()
}

/// Figures that come in ticks need a policy that does not read too much into them.
fn policy_for(accounting: Accounting, policy: &Policy) -> Policy {
    match (accounting, policy) {
        (Accounting::Procfs, Policy::Lag(parameters)) => Policy::Lag(parameters.for_ticks()),
        (_, policy) => policy.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_due_takes_others_along_and_nobody_is_looked_at_before() {
        let times = [(1, 1000, 100), (2, 1040, 100), (3, 1060, 100)];
        assert!(due_at(999, times.into_iter()).is_empty());
        assert_eq!(due_at(1000, times.into_iter()), [1, 2]);
        assert_eq!(due_at(1010, times.into_iter()), [1, 2, 3]);
    }
}
