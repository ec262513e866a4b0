//! The joined programs: from a request or a standing rule, through balancing, to their end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evenkeel_capability::TaskId;
use evenkeel_control::Peer;
use evenkeel_journal::TaskRef;
use nix::errno::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admission::{
    self, Candidate, How, ProcessToJoin, Refusal, daemon_user, is_in_charge, refuse,
};
use super::cgroup_walk::{Budget, MAX_CGROUPS_PER_USER, in_cgroup};
use super::ended::EndedPrograms;
use super::lost::LostTime;
use super::observed::{Observations, Observed};
use super::ranks::Ranks;
use super::saved::{Saved, SavedProgram};
use super::settings::Settings;
use super::statistics::Statistics;
use super::told::ToldPrograms;
use crate::balancer::Balancer;
use crate::figures::Figures;
use crate::program::task_ref;
use crate::reading::TaskReading;

/// Most programs of one user: a bound for processes that join in a loop.
const MAX_PER_USER: usize = 512;
/// Most programs of one user that are only observed: each one is read many times a second.
const MAX_OBSERVED_PER_USER: usize = 64;

/// How many cgroups are looked at for a user.
fn budget_of(uid: u32) -> Budget {
    if is_in_charge(uid) { Budget::in_charge() } else { Budget::of_user() }
}

/// A program that has joined.
#[derive(Debug, Clone)]
pub(crate) struct Joined {
    pub uid: u32,
    pub how: How,
    pub command: Vec<String>,
    pub root: TaskRef,
    /// Its moves are decided and counted, but not made.
    pub watch: bool,
    /// It joined to be only watched, and no request changes that.
    pub stays_watched: bool,
}

/// How many programs a user has, and how often it was refused another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quota {
    /// The user.
    pub user: u32,
    /// Its programs now.
    pub programs: usize,
    /// How many it may have; `None`: no limit.
    pub most_programs: Option<usize>,
    /// Programs that it balances itself, with the daemon's figures.
    pub observed: usize,
    /// How many of these it may have; `None`: no limit.
    pub most_observed: Option<usize>,
    /// Programs that were refused.
    pub refused: u64,
}

/// The joined programs and their balancer.
pub(crate) struct Programs {
    pub(super) balancer: Balancer,
    pub(super) joined: BTreeMap<u32, Joined>,
    pub(super) observations: Observations,
    /// What others told of the programs that they balance.
    pub(super) told: ToldPrograms,
    last_program: u32,
    pub(super) settings: Settings,
    saved: Saved,
    /// Figures of the programs that have left.
    pub(super) left: Statistics,
    /// Those of them that ended or left last.
    pub(super) ended: EndedPrograms,
    /// What the CPUs lost.
    pub(super) lost: LostTime,
    /// The reading that `look_at_cpus` found or took last.
    pub(super) looked_ns: u64,
    /// How many programs each user was refused. Only users that had their share are in it.
    refused: BTreeMap<u32, u64>,
    /// The ranks of the programs that are MPI jobs.
    pub(super) ranks: BTreeMap<u32, Ranks>,
}

impl Programs {
    pub fn new(balancer: Balancer, settings: Settings, saved: Saved) -> Self {
        Self {
            balancer,
            joined: BTreeMap::new(),
            observations: Observations::default(),
            told: ToldPrograms::default(),
            last_program: 0,
            settings,
            saved,
            left: Statistics::default(),
            ended: EndedPrograms::default(),
            lost: LostTime::default(),
            looked_ns: 0,
            refused: BTreeMap::new(),
            ranks: BTreeMap::new(),
        }
    }

    pub fn balancer(&mut self) -> &mut Balancer {
        &mut self.balancer
    }

    /// Continues with the programs of an earlier daemon that still run.
    pub fn continue_saved(&mut self) {
        for program in self.saved.programs().to_vec() {
            let SavedProgram { uid, how, command, root, processes, watch, stays_watched } = program;
            let alive: Vec<TaskRef> = processes.into_iter().filter(TaskRef::is_alive).collect();
            let Some(first) = alive.first() else { continue };
            let root = if root.is_alive() { root } else { *first };
            let joined = Joined { uid, how, command, root, watch, stays_watched };
            if let Err(why) = self.start(joined, &alive) {
                tracing::warn!("{root} of the earlier daemon is no longer balanced: {why}");
            }
        }
        if !self.joined.is_empty() {
            tracing::info!("continues with {} programs of the earlier daemon", self.joined.len());
        }
    }

    /// Takes new settings.
    pub fn set(&mut self, settings: Settings) {
        self.balancer.set_options(settings.options.clone());
        self.settings = settings;
        self.update();
    }

    /// Lets programs join by standing rules, adds new processes of joined cgroups, and ends the programs
    /// that have no process left, or that no process asks for any more.
    pub fn update(&mut self) {
        for program in self.observations.over() {
            self.end_observation(program);
        }
        self.told.forget_ended();
        let user = daemon_user();
        let Settings { names, cgroups, .. } = self.settings.clone();
        for name in &names {
            // Debug only: a refusal repeats each time, and a rule without a process is the usual case.
            if let Err(why) = self.join_named(name, &user)
                && why.errno != Errno::ESRCH
            {
                tracing::debug!("{why}");
            }
        }
        for cgroup in &cgroups {
            self.take_over(cgroup);
            if let Err(why) = self.join_cgroup(cgroup, &user) {
                tracing::debug!("{why}");
            }
        }
        self.follow_cgroups();
        self.note_commands();
        let last = self.balancer.observer().last().clone();
        self.lost.update(last.at_ns, &last.cpus);
        let is_over = |program: &u32| {
            let tasks = last.tasks_of(*program);
            tasks.is_none_or(BTreeMap::is_empty)
        };
        let over: Vec<u32> =
            self.joined.keys().filter(|program| is_over(program)).copied().collect();
        for program in over {
            // The last reading may be older than the program.
            if !self.joined.get(&program).is_some_and(|joined| joined.root.is_alive()) {
                self.end_one(program);
            }
        }
        self.save();
    }

    /// Ends what other users let join of the cgroup of a standing rule: the rule wins, or any user
    /// with a process in that cgroup could keep the processes of all others out of it.
    fn take_over(&mut self, cgroup: &str) {
        let Ok(dir) = admission::cgroup_dir(cgroup) else { return };
        let inside = in_cgroup(&dir, &mut budget_of(0));
        let is_inside = |joined: &Joined| match &joined.how {
            How::Cgroup(joined) => joined.starts_with(&dir),
            _ => inside.contains(&joined.root.tgid),
        };
        let is_of_other = |joined: &Joined| !is_in_charge(joined.uid) && is_inside(joined);
        let taken = self.joined.iter().filter(|(_, joined)| is_of_other(joined));
        for program in taken.map(|(program, _)| *program).collect::<Vec<u32>>() {
            tracing::info!(
                "program {program} is part of the standing rule for cgroup {cgroup} now"
            );
            self.end_one(program);
        }
    }

    /// Adds processes that entered a joined cgroup from outside.
    fn follow_cgroups(&mut self) {
        let cgroups: Vec<(u32, u32, PathBuf)> = self
            .joined
            .iter()
            .filter_map(|(program, joined)| match &joined.how {
                How::Cgroup(dir) => Some((*program, joined.uid, dir.clone())),
                _ => None,
            })
            .collect();
        let mut budgets = BTreeMap::new();
        for (program, uid, dir) in cgroups {
            let budget = budgets.entry(uid).or_insert_with(|| budget_of(uid));
            for candidate in self.unjoined_in(&dir, &Peer { uid, pid: 0 }, budget) {
                self.end_observation_of(&candidate.task);
                if let Err(why) = self.balancer.join(program, &candidate.task) {
                    tracing::warn!("{why}");
                }
            }
        }
    }

    /// The processes of a cgroup that may be balanced and belong to no program yet, within a budget of
    /// cgroups.
    fn unjoined_in(&mut self, dir: &Path, peer: &Peer, budget: &mut Budget) -> Vec<Candidate> {
        let last = self.balancer.observer().last().clone();
        let joined = last.programs.iter().filter(|(program, _)| self.joined.contains_key(program));
        let tasks = joined.flat_map(|(_, now)| now.tasks.values());
        let known: BTreeSet<i32> = tasks.map(|task| task.process as i32).collect();
        let mut pids = in_cgroup(dir, budget);
        pids.retain(|pid| !known.contains(pid) && self.program_of(*pid).is_none());
        pids.into_iter().filter_map(|pid| admission::process(pid, peer).ok()).collect()
    }

    /// Whether no program has joined.
    pub fn is_empty(&self) -> bool {
        self.joined.is_empty()
    }

    /// Lets a process join. Returns the program that it belongs to now.
    pub fn join_process(
        &mut self,
        asked: &ProcessToJoin,
        peer: &Peer,
    ) -> Result<Vec<u32>, Refusal> {
        let candidate = admission::asked_process(asked, peer)?;
        if let Some(program) = self.program_of(asked.pid) {
            let joined = self.joined.get(&program);
            if asked.watch && joined.is_some_and(|joined| !joined.stays_watched) {
                return refuse(
                    Errno::EBUSY,
                    format!(
                        "process {} has joined already, as a part of program {program}: to have it \
                         only watched, let it leave first",
                        asked.pid
                    ),
                );
            }
            return Ok(vec![program]);
        }
        Ok(vec![self.admit(candidate, How::Process, asked.watch)?])
    }

    /// Lets every program with this command name join.
    pub fn join_named(&mut self, name: &str, peer: &Peer) -> Result<Vec<u32>, Refusal> {
        let mut programs = Vec::new();
        for candidate in admission::named(name, peer)? {
            programs.push(match self.program_of(candidate.task.tgid) {
                Some(program) => program,
                None => self.admit(candidate, How::Name(name.to_owned()), false)?,
            });
        }
        Ok(programs)
    }

    /// Lets all processes of a cgroup join as one program.
    pub fn join_cgroup(&mut self, name: &str, peer: &Peer) -> Result<Vec<u32>, Refusal> {
        let dir = admission::cgroup_dir(name)?;
        let how = How::Cgroup(dir.clone());
        let is_this = |joined: &Joined| joined.how == how && joined.uid == peer.uid;
        if let Some((program, _)) = self.joined.iter().find(|(_, joined)| is_this(joined)) {
            return Ok(vec![*program]);
        }
        let has_it = |joined: &Joined| match &joined.how {
            How::Cgroup(joined_dir) => is_in_charge(joined.uid) && dir.starts_with(joined_dir),
            _ => false,
        };
        if !is_in_charge(peer.uid) && self.joined.values().any(has_it) {
            return refuse(
                Errno::EPERM,
                format!("cgroup {name} is balanced already, for the administrator: nothing to do"),
            );
        }
        let mut budget = budget_of(peer.uid);
        let found = self.unjoined_in(&dir, peer, &mut budget);
        if budget.is_used_up() && !is_in_charge(peer.uid) {
            self.count_refusal(peer.uid);
            let most = MAX_CGROUPS_PER_USER;
            let why =
                format!("cgroup {name} has {most} cgroups or more below it: join one of these");
            return refuse(Errno::EAGAIN, why);
        }
        let Some(first) = found.first() else {
            return refuse(
                Errno::ESRCH,
                format!("cgroup {name} has no process of yours that can join"),
            );
        };
        self.check_share(peer.uid)?;
        let (root, command) = (first.task, vec![format!("cgroup {name}")]);
        let tasks: Vec<TaskRef> = found.iter().map(|candidate| candidate.task).collect();
        let (uid, watch) = (peer.uid, false);
        let joined = Joined { uid, how, command, root, watch, stays_watched: watch };
        Ok(vec![self.begin(joined, &tasks)?])
    }

    pub(super) fn admit(
        &mut self,
        candidate: Candidate,
        how: How,
        watch: bool,
    ) -> Result<u32, Refusal> {
        let Candidate { task, uid, comm } = candidate;
        self.check_share(uid)?;
        let command = admission::commands_of([&task]).remove(&task);
        let command = command.unwrap_or_else(|| vec![comm]);
        let joined = Joined { uid, how, command, root: task, watch, stays_watched: watch };
        self.begin(joined, &[task])
    }

    /// Observes the program of a process for a process of its user, which balances it. Returns its
    /// number.
    pub fn observe(&mut self, pid: i32, peer: &Peer) -> Result<u32, Refusal> {
        let root = admission::process(pid, peer)?.task;
        let asker = TaskRef::of(peer.pid).map_err(|_| Refusal {
            errno: Errno::ESRCH,
            why: "only a process that the daemon sees can ask for figures".to_owned(),
        })?;
        let wanted = Observed { uid: peer.uid, asker, root };
        if let Some(program) = self.observations.find(&wanted) {
            return Ok(program);
        }
        let last = self.balancer.observer().last().clone();
        let mut family = admission::with_ancestors(pid);
        let is_observed = family.any(|pid| self.observations.program_of(pid, &last).is_some());
        if is_observed || self.program_of(pid).is_some() {
            return refuse(
                Errno::EBUSY,
                format!("process {pid} is part of a program that the daemon knows already"),
            );
        }
        self.check_share_of_figures(peer.uid)?;
        // Refused, if there are none.
        self.figures_of(None, peer)?;
        let program = self.last_program + 1;
        if let Err(why) = self.balancer.observer().follow(root.tgid as u32, program) {
            // The next program gets this number, and some of the tasks may have it already.
            self.forget(program);
            return refuse(Errno::EIO, why.to_string());
        }
        self.last_program = program;
        self.observations.insert(program, wanted);
        tracing::info!("program {program} is observed for user {}: {root}", peer.uid);
        if !root.is_alive() {
            // Another process may have its number, and was followed instead.
            self.end_observation(program);
            return refuse(Errno::ESRCH, format!("process {pid} has ended"));
        }
        Ok(program)
    }

    /// The figures of the CPUs, and of the peer's tasks in a program that is observed for it.
    pub fn figures(&mut self, program: Option<u32>, peer: &Peer) -> Result<Figures, Refusal> {
        let is_known = |program: u32| {
            self.observations.get(program).is_some_and(|observed| peer.may_steer(observed.uid))
        };
        // To another user, the program does not exist.
        match program {
            Some(program) if !is_known(program) => {
                refuse(Errno::ESRCH, format!("no program {program} is observed for you here"))
            }
            _ => self.figures_of(program, peer),
        }
    }

    fn figures_of(&mut self, program: Option<u32>, peer: &Peer) -> Result<Figures, Refusal> {
        let observer = self.balancer.observer();
        match observer.figures(program, peer) {
            Ok(Some(figures)) => Ok(figures),
            Ok(None) => {
                let why = observer.why_not_exact().unwrap_or("see its log");
                refuse(Errno::EOPNOTSUPP, format!("the daemon has no exact figures: {why}"))
            }
            Err(why) => refuse(Errno::EIO, why.to_string()),
        }
    }

    /// Ends the observation of the program that a process belongs to, so that the process can join: each
    /// task is counted for one program.
    pub(super) fn end_observation_of(&mut self, process: &TaskRef) {
        let last = self.balancer.observer().last().clone();
        if let Some(program) = self.observations.program_of(process.tgid, &last) {
            self.end_observation(program);
        }
    }

    pub(super) fn end_observation(&mut self, program: u32) {
        self.observations.remove(program);
        self.forget(program);
        tracing::info!("program {program} is no longer observed");
    }

    fn forget(&mut self, program: u32) {
        if let Err(why) = self.balancer.observer().forget(program) {
            tracing::warn!("{why}");
        }
    }

    fn programs_of(&self, uid: u32) -> usize {
        self.joined.values().filter(|joined| joined.uid == uid).count()
    }

    /// The quotas that a user may see: its own, and for root those of all users with a program.
    pub fn quotas(&self, peer: &Peer) -> Vec<Quota> {
        let users: BTreeSet<u32> = self
            .joined
            .values()
            .map(|joined| joined.uid)
            .chain(self.observations.users())
            .chain(self.refused.keys().copied())
            .collect();
        let seen = users.into_iter().filter(|uid| peer.may_steer(*uid));
        let quota = |user| Quota {
            user,
            programs: self.programs_of(user),
            most_programs: (user != 0).then_some(MAX_PER_USER),
            observed: self.observations.count_of(user),
            most_observed: (user != 0).then_some(MAX_OBSERVED_PER_USER),
            refused: self.refused.get(&user).copied().unwrap_or_default(),
        };
        seen.map(quota).collect()
    }

    fn check_share(&mut self, uid: u32) -> Result<(), Refusal> {
        if uid == 0 || self.programs_of(uid) < MAX_PER_USER {
            return Ok(());
        }
        self.count_refusal(uid);
        let why = format!(
            "user {uid} has {MAX_PER_USER} programs here already: end one with evenkeel leave"
        );
        refuse(Errno::EAGAIN, why)
    }

    fn check_share_of_figures(&mut self, uid: u32) -> Result<(), Refusal> {
        if uid == 0 || self.observations.count_of(uid) < MAX_OBSERVED_PER_USER {
            return Ok(());
        }
        self.count_refusal(uid);
        let why = format!(
            "user {uid} has the figures of {MAX_OBSERVED_PER_USER} programs already: let some \
             join the daemon instead (evenkeel run --join)"
        );
        refuse(Errno::EAGAIN, why)
    }

    fn count_refusal(&mut self, uid: u32) {
        *self.refused.entry(uid).or_default() += 1;
    }

    fn begin(&mut self, joined: Joined, processes: &[TaskRef]) -> Result<u32, Refusal> {
        let program = self.start(joined, processes)?;
        self.save();
        Ok(program)
    }

    /// The same without saving the list. A daemon that is killed while it continues with the programs of
    /// an earlier one leaves that one's list, which is whole.
    fn start(&mut self, joined: Joined, processes: &[TaskRef]) -> Result<u32, Refusal> {
        let program = self.last_program + 1;
        for process in processes {
            self.end_observation_of(process);
            if let Err(why) = self.balancer.join(program, process) {
                self.balancer.leave(program);
                return refuse(Errno::EIO, why.to_string());
            }
        }
        self.last_program = program;
        if joined.watch {
            self.balancer.set_watched(program, true);
        }
        tracing::info!("program {program} joined: {} ({})", joined.root, joined.command.join(" "));
        self.joined.insert(program, joined);
        Ok(program)
    }

    /// Gives all masks back. The list of programs stays for the next daemon.
    pub fn end(mut self) {
        self.save();
        self.balancer.finish();
    }

    /// The program that a process belongs to: by the last reading or, for a process that is younger than
    /// that, by its ancestors. Takes no reading: any user may ask as often as it likes.
    pub fn program_of(&mut self, pid: i32) -> Option<u32> {
        let last = self.balancer.observer().last().clone();
        let known = admission::with_ancestors(pid).find_map(|pid| {
            last.programs.iter().find_map(|(program, now)| {
                let is_of_process = |(id, task): (&TaskId, &TaskReading)| {
                    task.process == pid as u32 && task_ref(*id, task.process).is_alive()
                };
                now.tasks.iter().any(is_of_process).then_some(*program)
            })
        });
        known.filter(|program| self.joined.contains_key(program))
    }

    /// The peer's program with this first process, which may have ended: what it started runs on, and
    /// status and `top` name the program by it. Of two, the one that joined last: the number was reused.
    pub fn program_of_root(&self, pid: i32, peer: &Peer) -> Option<u32> {
        let has_root = |joined: &Joined| joined.root.tgid == pid && peer.may_steer(joined.uid);
        let mut newest_first = self.joined.iter().rev();
        newest_first.find(|(_, joined)| has_root(joined)).map(|(program, _)| *program)
    }

    /// The program of this number, if it is the peer's.
    pub fn get(&self, program: u32, peer: &Peer) -> Option<&Joined> {
        self.joined.get(&program).filter(|joined| peer.may_steer(joined.uid))
    }

    pub(super) fn save(&mut self) {
        let last = self.balancer.observer().last().clone();
        let programs = self.joined.iter().map(|(program, joined)| {
            let tasks = last.tasks_of(*program);
            let leaders = tasks.into_iter().flatten().filter(|(id, task)| id.tid == task.process);
            let mut processes: BTreeSet<TaskRef> =
                leaders.map(|(id, task)| task_ref(*id, task.process)).collect();
            processes.insert(joined.root);
            SavedProgram {
                uid: joined.uid,
                how: joined.how.clone(),
                command: joined.command.clone(),
                root: joined.root,
                processes: processes.into_iter().collect(),
                watch: joined.watch,
                stays_watched: joined.stays_watched,
            }
        });
        let programs = programs.collect();
        self.saved.save(programs);
    }
}
