//! What the order policy `ias` is told while the keel runs (paper 003, section 3): which address
//! spaces aggregate and how strongly (`set_ias_agg`), and which CPUs do so together
//! (`set_ias_alloc`).

pub(crate) mod aggregation;
pub mod auto;
pub(crate) mod bonus;
pub(crate) mod error;
mod given;
pub(crate) mod groups;
pub(crate) mod options;
mod process;
pub(crate) mod quota;
pub(crate) mod rights;
pub(crate) mod settings;
pub(crate) mod space;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_control::{Instance, Peer, Program, instances};
use evenkeel_machine::Machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::aggregation::Aggregation;
use self::auto::Tuning;
use self::error::IasError;
use self::given::Given;
use self::groups::{allocation, default_roles, grouped, present};
use self::options::{IasOptions, Mode};
use self::process::{is_gone, open_process, user_of};
use self::quota::{Quotas, UserSpaces, check_room};
use self::rights::Rights;
use self::settings::{IasSettings, Preference};
use self::space::{Owner, Space};
use self::watch::{Known, Watch};
use crate::layout::MAX_SPACES;
use crate::scheduler::{LoadError, Scheduler};
use crate::visible::{When, may_see};

/// How often the service looks by itself for processes that have ended or become another program.
const PRUNE_INTERVAL: Duration = Duration::from_millis(100);

/// An address space that was set.
struct Setting {
    aggregation: Aggregation,
    /// On behalf of which user.
    rights: Rights,
    /// The user other than root that it counts for: the user that asked for it, or the user of the
    /// process that the configuration or the helper has set.
    user: Option<u32>,
    /// Tells when the process is gone, whatever process has its number then.
    process: OwnedFd,
    space: Space,
}

impl Setting {
    /// The user other than root that it counts for.
    fn user(&self) -> Option<u32> {
        self.user
    }
}

/// All that was set; outlives a restart of the keel.
#[derive(Default)]
pub(crate) struct Ias {
    spaces: Vec<Setting>,
    /// By CPU, as they were given while it ran, also of CPUs that are offline meanwhile. `None`: none
    /// were given, and those of the settings hold.
    roles: Option<BTreeMap<u32, u16>>,
    /// What the configuration says.
    settings: IasSettings,
    /// Decides which groups there are by default.
    mode: Mode,
    /// Processes that were set because of their program, by number and start. Each is set only once, so
    /// that a later request for it holds.
    adopted: BTreeSet<Known>,
    /// Processes of such programs that could not be set: each was named in the log, once.
    left_out: BTreeSet<Known>,
    /// Processes that a request has set: the configuration and the helper leave them alone.
    given: Given,
    /// The helper, if there is one.
    helper: Option<Watch>,
    quotas: Quotas,
    /// When `prune_if_due` prunes next. `None`: at once.
    prune_at: Option<Instant>,
}

/// What `ias_show` tells. A user but root sees of processes only its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IasState {
    /// The role of each CPU that has one.
    pub roles: BTreeMap<u32, u16>,
    /// What was set, by process.
    pub spaces: Vec<Aggregation>,
    /// What the helper (`--ias-auto`) says of each process, by number; none: there is no helper.
    #[serde(default)]
    pub found: Option<BTreeMap<u32, Tuning>>,
    /// What searches for siblings cost and miss, since the keel was loaded first.
    pub search: Search,
    /// What users have of the table of address spaces; for a user but root, its own line.
    #[serde(default)]
    pub users: Vec<UserSpaces>,
}

/// Searches for siblings in the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Search {
    /// How many tasks a row of the index holds.
    pub window: u64,
    /// How many there were.
    pub searches: u64,
    /// How many entries they have looked at.
    pub searched: u64,
    /// How many tasks were put into a queue.
    pub queued: u64,
    /// How many of them the index had no room for: they wait for their turn like other tasks.
    pub missed: u64,
}

impl Search {
    pub(crate) fn new(window: u64, counters: &BTreeMap<String, u64>) -> Self {
        let count = |name| counters.get(name).copied().unwrap_or(0);
        let (searches, searched) = (count("search"), count("searched"));
        Self { window, searches, searched, queued: count("enqueue"), missed: count("window") }
    }
}

impl Ias {
    pub fn new(settings: IasSettings, options: IasOptions) -> Self {
        let (helper, mode) = (options.auto.then(|| Watch::new(options.mode)), options.mode);
        Self { settings, helper, mode, ..Self::default() }
    }

    /// Lets the helper look, if it is time, and does what it says.
    pub(crate) fn help(&mut self, scheduler: &Scheduler) {
        let Some(mut helper) = self.helper.take_if(|helper| helper.is_due()) else { return };
        let adopted = self.adopted.iter().copied();
        let taken: BTreeSet<Known> = self.given.processes().chain(adopted).collect();
        for tuning in helper.look(&taken) {
            let (pid, agg) = (tuning.space as u32, u32::from(tuning.multiplier > 0));
            let bonus_value = tuning.multiplier;
            let how = Aggregation { pid, agg, bonus_type: 1, bonus_value, limit: 0 };
            match self.set(scheduler, None, how) {
                Ok(()) => tracing::info!("process {pid} has {bonus_value}x: {}", tuning.why),
                // It has ended meanwhile, or there are too many.
                Err(why) => tracing::debug!("{why}"),
            }
        }
        self.helper = Some(helper);
    }

    /// Sets the processes of the programs that the configuration names, those that came since the
    /// last time.
    pub(crate) fn adopt(&mut self, scheduler: &Scheduler) {
        let programs = self.settings.programs.clone();
        if programs.is_empty() {
            return;
        }
        let started = |pid| scheduler.started(pid);
        self.adopt_of(&programs, instances(programs.keys()), started, |ias, aggregation| {
            ias.set(scheduler, None, aggregation)
        });
    }

    /// The same of those that run now; `set` sets one.
    fn adopt_of(
        &mut self,
        programs: &BTreeMap<Program, Preference>,
        running: Vec<(&Program, Instance)>,
        started: impl Fn(u32) -> Option<u64>,
        set: impl Fn(&mut Self, Aggregation) -> Result<(), IasError>,
    ) {
        let (mut adopted, mut left_out) = (BTreeSet::new(), BTreeSet::new());
        for (program, instance) in running {
            let (pid, known) = (instance.pid, (instance.pid, instance.start));
            let Some(preference) = programs.get(program) else { continue };
            let is_set = self.spaces.iter().any(|space| space.aggregation.pid == pid);
            if is_set || self.adopted.contains(&known) || self.given.contains(&known) {
                adopted.insert(known);
                continue;
            }
            match set(self, preference.aggregation(pid)) {
                Ok(()) => {
                    adopted.insert(known);
                    let bonus = preference.bonus;
                    tracing::info!(
                        "process {pid} runs {program}: it aggregates with bonus {bonus}"
                    );
                }
                // There may be room for it later, but that there is none need not be said each time.
                Err(why) => {
                    if !self.left_out.contains(&known) {
                        tracing::warn!("{program} is to aggregate: {why}");
                    }
                    left_out.insert(known);
                }
            }
        }
        // By a command line that cannot be read now, a process is not found.
        let is_at_work = |known: &&Known| started(known.0) == Some(known.1);
        adopted.extend(self.adopted.iter().filter(is_at_work));
        (self.adopted, self.left_out) = (adopted, left_out);
    }

    /// The process has become another program: what the configuration says of that holds, and what was
    /// said of the one before does not.
    fn forget_program_of(&mut self, pid: u32) {
        self.adopted.retain(|known| known.0 != pid);
        self.given.retain(|known| known.0 != pid);
    }

    /// `set_ias_agg`: on behalf of `peer`, and all or nothing.
    pub(crate) fn aggregate(
        &mut self,
        scheduler: &Scheduler,
        peer: &Peer,
        aggregation: Aggregation,
    ) -> Result<(), IasError> {
        self.set(scheduler, Some(peer), aggregation)?;
        self.remember(peer, aggregation.pid, scheduler.started(aggregation.pid));
        Ok(())
    }

    /// Remembers that a request of `peer` has set this process, which was started then, if anything else
    /// may set it later.
    fn remember(&mut self, peer: &Peer, pid: u32, started: Option<u64>) {
        if self.helper.is_none() && self.settings.programs.is_empty() {
            return;
        }
        let Some(started) = started else { return };
        let spaces = &self.spaces;
        let aggregates = |one: Known| spaces.iter().any(|space| space.aggregation.pid == one.0);
        self.given.remember((pid, started), Rights::of(peer.uid).user(), aggregates);
    }

    /// Sets a space on behalf of this peer; without one, on behalf of the keel itself.
    fn set(
        &mut self,
        scheduler: &Scheduler,
        peer: Option<&Peer>,
        aggregation: Aggregation,
    ) -> Result<(), IasError> {
        let pid = aggregation.pid;
        let process = open_process(pid)?;
        let owner = fs::metadata(PathBuf::from(format!("/proc/{pid}")));
        let owner = owner.map_err(|_| IasError::NoProcess(pid))?.uid();
        if peer.is_some_and(|peer| !peer.may_steer(owner)) {
            return Err(IasError::Foreign { pid, owner });
        }
        let space = match scheduler.space_of(pid)? {
            Owner::Process(space) => space,
            Owner::Kernel => return Err(IasError::KernelThread(pid)),
            Owner::None => return Err(IasError::NoProcess(pid)),
        };
        // Another process may have got the number before the file descriptor was opened, not after.
        if is_gone(&process) {
            return Err(IasError::NoProcess(pid));
        }
        let is_same = |known: &Setting| known.space.address == space.address;
        let before = self.spaces.iter().position(is_same);
        let rights = peer.map_or(Rights::Root, |peer| Rights::of(peer.uid));
        // Any user may start programs of the names that the configuration has. The user is not the
        // owner of /proc/PID: that is root for a process which cannot be dumped.
        let user = match peer {
            Some(_) => rights.user(),
            None => Rights::of(user_of(pid)?).user(),
        };
        aggregation.check(rights)?;
        if before.is_none() && aggregation.agg != 0 {
            let owners = self.spaces.iter().filter_map(Setting::user);
            match (user, peer) {
                (Some(uid), Some(_)) => self.quotas.check(uid, owners)?,
                // It is tried again each second, which is no refusal more.
                (Some(uid), None) => check_room(uid, owners)?,
                (None, _) => {}
            }
            if self.spaces.len() >= MAX_SPACES {
                return Err(IasError::TooMany);
            }
        }
        if aggregation.agg == 0 {
            if let Some(before) = before {
                scheduler.forget_space(space.address)?;
                self.spaces.remove(before);
            }
            return Ok(());
        }
        scheduler.set_space(space.address, &aggregation.raw(rights))?;
        let known = Setting { aggregation, rights, user, process, space };
        match before.and_then(|before| self.spaces.get_mut(before)) {
            Some(place) => *place = known,
            None => self.spaces.push(known),
        }
        Ok(())
    }

    /// Forgets what was said of processes that have ended. Call it seldom: each process is looked up.
    /// `started` says when the process with a number was started.
    pub(crate) fn forget_ended(&mut self, started: impl Fn(u32) -> Option<u64>) {
        self.given.retain(|(pid, start)| started(pid) == Some(start));
    }

    /// Prunes by `prune`, if it is time. The service's loop turns with each line that a client sends,
    /// and no user pays for what the loop does.
    pub(crate) fn prune_if_due(
        &mut self,
        now: Instant,
        prune: impl FnOnce(&mut Self) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        if self.prune_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        self.prune_at = Some(now + PRUNE_INTERVAL);
        prune(self)
    }

    /// Forgets processes that have ended or become another program. The kernel is asked about each.
    pub(crate) fn prune(&mut self, scheduler: &Scheduler) -> Result<(), LoadError> {
        let mut result = Ok(());
        let mut changed = Vec::new();
        self.spaces.retain(|known| {
            let pid = known.aggregation.pid;
            let now = scheduler.space_of(pid);
            // In this order: as long as it is there, what was found is its own.
            let is_gone = is_gone(&known.process);
            let stays = !is_gone && matches!(now, Ok(Owner::Process(now)) if now == known.space);
            if !stays && let Err(why) = scheduler.forget_space(known.space.address) {
                result = Err(why);
            }
            if !stays && !is_gone {
                changed.push(pid);
            }
            stays
        });
        changed.into_iter().for_each(|pid| self.forget_program_of(pid));
        result
    }

    /// `set_ias_alloc`: a role for each CPU that is online, in the order of their numbers.
    pub(crate) fn allocate(
        &mut self,
        scheduler: &Scheduler,
        machine: &Machine,
        roles: &[u16],
    ) -> Result<(), IasError> {
        let roles = allocation(machine, roles)?;
        scheduler.set_roles(&roles)?;
        self.roles = Some(roles);
        Ok(())
    }

    /// Tells a keel that was loaded anew what the last one knew. Without any roles, the default groups
    /// hold.
    pub(crate) fn restore(
        &self,
        scheduler: &Scheduler,
        machine: &Machine,
    ) -> Result<(), LoadError> {
        for known in &self.spaces {
            scheduler.set_space(known.space.address, &known.aggregation.raw(known.rights))?;
        }
        scheduler.set_roles(&self.roles(machine))
    }

    fn roles(&self, machine: &Machine) -> BTreeMap<u32, u16> {
        let settled = || {
            let groups = self.settings.groups.as_deref()?;
            let roles = grouped(machine, groups).and_then(|roles| allocation(machine, &roles));
            let warn = |why: &_| {
                tracing::warn!(
                    "configuration, table [ias]: {why}; the default groups hold instead"
                );
            };
            roles.inspect_err(warn).ok()
        };
        let given = self.roles.as_ref().map(|roles| present(roles, &machine.online()));
        let given = given.or_else(settled);
        given.unwrap_or_else(|| default_roles(machine, self.mode))
    }

    /// What `peer` may know: root, all; another user, what is about its own processes.
    pub(crate) fn state(
        &self,
        machine: &Machine,
        search: Search,
        peer: &Peer,
        started: impl Fn(u32) -> Option<u64>,
    ) -> IasState {
        let spaces = self.spaces.iter().filter(|known| {
            // In this order: as long as the process is there, the number is its own.
            may_see(peer, known.aggregation.pid, When::Now, &started) && !is_gone(&known.process)
        });
        let mut users = self.quotas.list(self.spaces.iter().filter_map(Setting::user));
        users.retain(|user| peer.may_steer(user.user));
        IasState {
            roles: self.roles(machine),
            spaces: spaces.map(|known| known.aggregation).collect(),
            found: self.helper.as_ref().map(|helper| helper.found_for(peer, &started)),
            search,
            users,
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_machine::CpuSet;

    use super::*;

    fn parse(arguments: [&str; 5]) -> Result<Aggregation, String> {
        let names = ["pid", "agg", "bonus_type", "bonus_value", "limit"];
        let given: BTreeMap<_, _> = names.into_iter().zip(arguments).collect();
        Aggregation::parse(|name| Some(given[name].to_owned())).map_err(|why| why.to_string())
    }

    fn machine(online: &str) -> Machine {
        let mut machine = Machine::parse_toml(
            "name = \"quad\"\nkinds = [{ cpus = \"0-3\", capability = 1024 }]\n",
            "quad",
        )
        .unwrap();
        let online: CpuSet = online.parse().unwrap();
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = online.contains(cpu.id));
        machine
    }

    /// A CPU that goes takes no setting with it: when it is back, all is as it was.
    #[test]
    fn roles_outlive_cpus_that_go_and_come_back() {
        let roles: BTreeMap<u32, u16> = [(0, 0), (1, 1), (2, 2), (3, 3)].into();
        let ias = Ias { roles: Some(roles.clone()), ..Ias::default() };
        assert_eq!(ias.roles(&machine("0-1,3")), [(0, 0), (1, 1)].into());
        assert_eq!(ias.roles(&machine("0-3")), roles);
    }

    fn started(pid: u32) -> Option<u64> {
        let process = procfs::process::Process::new(pid as i32).ok()?;
        Some(process.stat().ok()?.starttime)
    }

    fn own() -> Known {
        (std::process::id(), started(std::process::id()).unwrap())
    }

    fn adopted(ias: &mut Ias, running: &[(u32, u64)], fails: bool) -> Vec<u32> {
        let program: Program = "server".parse().unwrap();
        let programs = [(program.clone(), Preference::default())].into();
        let instance = |(pid, start): &(u32, u64)| Instance { pid: *pid, uid: 0, start: *start };
        let running = running.iter().map(|known| (&program, instance(known))).collect();
        let set = std::cell::RefCell::new(Vec::new());
        ias.adopt_of(&programs, running, started, |_, aggregation| {
            set.borrow_mut().push(aggregation.pid);
            if fails { Err(IasError::TooMany) } else { Ok(()) }
        });
        set.into_inner()
    }

    #[test]
    fn a_programs_processes_are_adopted_once_and_anew_after_an_exec() {
        let mut ias = Ias::default();
        assert_eq!(adopted(&mut ias, &[(7, 1), (8, 1)], false), [7, 8]);
        assert_eq!(adopted(&mut ias, &[(7, 1), (8, 1)], false), [0; 0]);
        // The number is another process's now.
        assert_eq!(adopted(&mut ias, &[(7, 2), (8, 1)], false), [7]);
        ias.forget_program_of(8);
        assert_eq!(adopted(&mut ias, &[(7, 2), (8, 1)], false), [8]);
    }

    #[test]
    fn a_process_that_is_not_found_for_a_while_stays_adopted() {
        let mut ias = Ias::default();
        let own = own();
        assert_eq!(adopted(&mut ias, &[own, (7, 1)], false), [own.0, 7]);
        assert_eq!(adopted(&mut ias, &[], false), [0; 0]);
        // No process 7 has that start.
        assert_eq!(ias.adopted, BTreeSet::from([own]));
        assert_eq!(adopted(&mut ias, &[own], false), [0; 0]);
    }

    #[test]
    fn what_finds_no_room_is_adopted_when_there_is_some() {
        let mut ias = Ias::default();
        assert_eq!(adopted(&mut ias, &[(7, 1)], true), [7]);
        assert_eq!(adopted(&mut ias, &[(7, 1)], true), [7]);
        assert_eq!(adopted(&mut ias, &[(7, 1)], false), [7]);
        assert_eq!(adopted(&mut ias, &[(7, 1)], false), [0; 0]);
    }

    #[test]
    fn what_was_said_before_is_not_overruled() {
        let mut ias = Ias::default();
        ias.given.remember((7, 1), None, |_| false);
        assert_eq!(adopted(&mut ias, &[(7, 1)], false), [0; 0]);
    }

    #[test]
    fn what_was_said_is_forgotten_when_the_process_has_ended() {
        let own = own();
        let mut ias = Ias::default();
        for process in [own, (own.0, own.1 + 1)] {
            ias.given.remember(process, None, |_| false);
        }
        ias.forget_ended(started);
        assert_eq!(ias.given.processes().collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn what_was_said_is_remembered_only_where_something_else_sets_processes() {
        let (user, (own, start)) = (Peer { uid: 7, pid: 0 }, own());
        let is_remembered = |mut ias: Ias| {
            ias.remember(&user, own, Some(start));
            ias.given.processes().count() == 1
        };
        assert!(!is_remembered(Ias::default()));
        let program: Program = "server".parse().unwrap();
        let programs = [(program, Preference::default())].into();
        let settings = IasSettings { programs, ..IasSettings::default() };
        assert!(is_remembered(Ias::new(settings, IasOptions::default())));
        let options = IasOptions { auto: true, ..IasOptions::default() };
        assert!(is_remembered(Ias::new(IasSettings::default(), options)));
    }

    #[test]
    fn the_loop_prunes_once_in_an_interval() {
        let (mut ias, start) = (Ias::default(), Instant::now());
        let mut pruned_ms = Vec::new();
        for ms in (0..250).step_by(10) {
            let prune = |_: &mut Ias| {
                pruned_ms.push(ms);
                Ok(())
            };
            ias.prune_if_due(start + Duration::from_millis(ms), prune).unwrap();
        }
        assert_eq!(pruned_ms, [0, 100, 200]);
    }

    #[test]
    fn the_papers_five_arguments() {
        let most = u64::MAX.to_string();
        let parsed = parse(["7", "1", "0", &most, "3"]).unwrap();
        let raw = parsed.raw(Rights::Root);
        assert_eq!((raw.process, raw.agg, raw.bonus_type), (7, 1, 0));
        assert_eq!((raw.bonus_value, raw.limit), (u64::MAX, 3));
        for (arguments, expected) in [
            (
                ["0", "1", "0", "1", "0"],
                "pid \"0\": expected a process's number, from 1 to 4194304",
            ),
            (["x", "1", "0", "1", "0"], "pid \"x\""),
            (["-1", "1", "0", "1", "0"], "pid \"-1\""),
            (["4194305", "1", "0", "1", "0"], "pid \"4194305\""),
            (["7", "2", "0", "1", "0"], "agg \"2\": expected 0 (off) or 1 (on)"),
            (["7", "1", "2", "1", "0"], "bonus_type \"2\""),
            (["7", "1", "0", "18446744073709551616", "0"], "bonus_value \"18446744073709551616\""),
            (
                ["7", "1", "0", "-1", "0"],
                "bonus_value \"-1\": expected a whole number from 0 to 18446744073709551615",
            ),
            (
                ["7", "1", "0", "1", ""],
                "limit \"\": expected a whole number from 0 (no limit) to 18446744073709551615",
            ),
        ] {
            let why = parse(arguments).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
