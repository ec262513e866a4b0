//! What the order policy `ias` is told while the keel runs (paper 003, section 3): which address
//! spaces aggregate and how strongly (`set_ias_agg`), and which CPUs do so together
//! (`set_ias_alloc`).

pub mod auto;
pub(crate) mod bonus;
pub(crate) mod groups;
pub(crate) mod options;
pub(crate) mod programs;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use evenkeel_control::{Peer, Request};
use evenkeel_machine::{CpuSet, Machine};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use procfs::process::Process;
use serde::{Deserialize, Serialize};

use self::auto::Tuning;
use self::groups::{allocation, default_roles, grouped};
use self::programs::{IasSettings, instances};
use self::watch::{Known, Watch, known};
use crate::options::Order;
use crate::records::{MAX_SPACES, RawSpace};
use crate::scheduler::{LoadError, Scheduler};

/// What cannot be told, and why.
#[derive(Debug, thiserror::Error)]
pub enum IasError {
    /// Nothing aggregates.
    #[error("the keel runs with --order {0}; start it with --order ias to aggregate threads")]
    NotIas(Order),
    /// No such process.
    #[error("process {0}: there is none of this number (a thread's number is not its process's)")]
    NoProcess(u32),
    /// Somebody else's.
    #[error("process {pid} belongs to user {owner}: only that user and root may set it")]
    Foreign {
        /// The process.
        pid: u32,
        /// Whose it is.
        owner: u32,
    },
    /// It has no memory of its own.
    #[error("process {0} is a kernel thread: it has no address space that siblings could share")]
    KernelThread(u32),
    /// No value of an argument.
    #[error("{name} \"{value}\": expected {expected}")]
    Value {
        /// The argument.
        name: &'static str,
        /// As it was given.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Too many.
    #[error("{MAX_SPACES} address spaces aggregate already: switch one off first")]
    TooMany,
    /// Roles are root's.
    #[error("only root may set the roles of CPUs: they are everybody's")]
    NotRoot,
    /// A role for each CPU, no more and no less.
    #[error("{given} roles, but {cpus} CPUs are online ({online}): one number for each, in order")]
    Count {
        /// How many were given.
        given: usize,
        /// How many CPUs there are.
        cpus: usize,
        /// Which.
        online: CpuSet,
    },
    /// A group that nobody leads.
    #[error("role {role}: group {group} has slaves but no master (role {master})", role = 2 * .group + 1, master = 2 * .group)]
    NoMaster {
        /// The group.
        group: u16,
    },
    /// A group that two CPUs lead.
    #[error("role {role}: group {group} has two masters, CPUs {first} and {second}", role = 2 * .group)]
    TwoMasters {
        /// The group.
        group: u16,
        /// The first of them.
        first: u32,
        /// Another one.
        second: u32,
    },
    /// A CPU in a list of groups cannot be had.
    #[error("groups \"{text}\": {why}; expected llc, l2, node, or CPUs like 0-3/4-7")]
    Groups {
        /// As they were given.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// The kernel refused.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl IasError {
    /// The error number that tells a program what kind it is.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::NoProcess(_) => Errno::ESRCH,
            Self::Foreign { .. } | Self::NotRoot => Errno::EPERM,
            Self::TooMany => Errno::ENOSPC,
            Self::Load(_) => Errno::EIO,
            _ => Errno::EINVAL,
        }
    }
}

/// The arguments of `set_ias_agg`, in the paper's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregation {
    /// A process; what is set holds for its address space.
    pub pid: u32,
    /// 1: its threads are aggregated; 0: not.
    pub agg: u32,
    /// 0: `bonus_value` is in ns of vruntime; 1: it multiplies what ran last on the CPU.
    pub bonus_type: u32,
    /// How much.
    pub bonus_value: u64,
    /// Preferred at most so often in a row on a CPU; 0: no limit.
    pub limit: u64,
}

impl Aggregation {
    /// By the arguments' names, as text.
    ///
    /// # Errors
    /// One is missing, or is no number that it may be.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Self, IasError> {
        fn number<T: std::str::FromStr>(
            name: &'static str,
            value: Option<String>,
            expected: &'static str,
            fits: impl Fn(&T) -> bool,
        ) -> Result<T, IasError> {
            let value = value.unwrap_or_default();
            let number = value.parse().ok().filter(fits);
            number.ok_or(IasError::Value { name, value, expected })
        }
        const NUMBER: &str = "a whole number of at most 64 bits";
        Ok(Self {
            pid: number("pid", get("pid"), "a process number", |pid| *pid > 0)?,
            agg: number("agg", get("agg"), "0 (off) or 1 (on)", |agg| *agg <= 1)?,
            bonus_type: number(
                "bonus_type",
                get("bonus_type"),
                "0 (ns of vruntime) or 1 (times what ran last)",
                |kind| *kind <= 1,
            )?,
            bonus_value: number("bonus_value", get("bonus_value"), NUMBER, |_| true)?,
            limit: number("limit", get("limit"), NUMBER, |_| true)?,
        })
    }

    /// The call, for [`evenkeel_control::ask`] and the keel's control socket.
    pub fn request(&self) -> Request {
        Request::new("ias_agg")
            .with("pid", self.pid)
            .with("agg", self.agg)
            .with("bonus_type", self.bonus_type)
            .with("bonus_value", self.bonus_value)
            .with("limit", self.limit)
    }

    /// The record of `bpf/keel/intf.h`, for whoever hosts the keel outside of the kernel.
    pub fn record(&self) -> Vec<u8> {
        bytemuck::bytes_of(&self.raw()).to_vec()
    }

    fn raw(&self) -> RawSpace {
        RawSpace {
            bonus_value: self.bonus_value,
            limit: self.limit,
            bonus_type: self.bonus_type,
            agg: self.agg,
            process: self.pid,
            pad: 0,
        }
    }
}

/// The call `set_ias_alloc`, for [`evenkeel_control::ask`] and the keel's control socket: one number for
/// each CPU that is online, 2k for the master of group k, 2k + 1 for a slave of it.
pub fn allocation_request(roles: &[u16]) -> Request {
    Request::new("ias_alloc").with("roles", roles.to_vec())
}

/// An address space that was set.
struct Space {
    aggregation: Aggregation,
    /// Tells when the process is gone, whoever has its number then.
    process: OwnedFd,
    /// The keel's name for it.
    space: u64,
}

/// All that was set; outlives a restart of the keel.
#[derive(Default)]
pub(crate) struct Ias {
    spaces: Vec<Space>,
    /// By CPU, as they were given while it ran; none were: those of the settings.
    roles: Option<BTreeMap<u32, u16>>,
    /// What the configuration says.
    settings: IasSettings,
    /// Processes that were set because of their program, by number and start: each is only once, so
    /// that what somebody says of it afterwards holds.
    adopted: BTreeSet<Known>,
    /// Processes of which somebody has said what they are to have: the helper leaves them alone.
    given: BTreeSet<Known>,
    /// The helper, if there is one.
    helper: Option<Watch>,
}

/// What `ias_show` tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
}

/// Searches for siblings in the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// How many tasks a row of the index holds.
    pub window: u64,
    /// How many there were.
    pub searches: u64,
    /// How many entries they have looked at.
    pub searched: u64,
    /// How many tasks were put into a queue.
    pub queued: u64,
    /// How many of them the index had no room for: they wait for their turn like everybody else.
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
    pub fn new(settings: IasSettings, auto: bool) -> Self {
        Self { settings, helper: auto.then(Watch::default), ..Self::default() }
    }

    /// Lets the helper look, if it is time, and does what it says.
    pub(crate) fn help(&mut self, scheduler: &Scheduler) {
        let Some(mut helper) = self.helper.take_if(|helper| helper.is_due()) else { return };
        let taken = &self.given | &self.adopted;
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
        let mut adopted = BTreeSet::new();
        for (program, instance) in instances(programs.keys()) {
            let (pid, known) = (instance.pid, (instance.pid, instance.start));
            adopted.insert(known);
            let is_set = self.spaces.iter().any(|space| space.aggregation.pid == pid);
            let Some(preference) = programs.get(program) else { continue };
            if is_set || self.adopted.contains(&known) {
                continue;
            }
            match self.set(scheduler, None, preference.aggregation(pid)) {
                Ok(()) => tracing::info!(
                    "process {pid} runs {program}: it aggregates with bonus {}",
                    preference.bonus
                ),
                Err(why) => tracing::warn!("{program} is to aggregate: {why}"),
            }
        }
        self.adopted = adopted;
    }

    /// `set_ias_agg`: on behalf of `peer`, and all or nothing.
    pub(crate) fn aggregate(
        &mut self,
        scheduler: &Scheduler,
        peer: &Peer,
        aggregation: Aggregation,
    ) -> Result<(), IasError> {
        self.set(scheduler, Some(peer), aggregation)?;
        // Else those who have ended would be remembered for ever.
        self.given.retain(|one| at_work(one.0) == Some(*one));
        self.given.extend(at_work(aggregation.pid));
        Ok(())
    }

    /// Nobody's behalf is the keel's own.
    fn set(
        &mut self,
        scheduler: &Scheduler,
        peer: Option<&Peer>,
        aggregation: Aggregation,
    ) -> Result<(), IasError> {
        let pid = aggregation.pid;
        let process = open_process(pid)?;
        // The number may have gone to somebody else before the file descriptor was there, not after.
        let owner = fs::metadata(PathBuf::from(format!("/proc/{pid}")));
        let owner = owner.map_err(|_| IasError::NoProcess(pid))?.uid();
        if is_gone(&process) {
            return Err(IasError::NoProcess(pid));
        }
        if peer.is_some_and(|peer| !peer.may_steer(owner)) {
            return Err(IasError::Foreign { pid, owner });
        }
        let space = scheduler.space_of(process.as_fd())?.ok_or(IasError::KernelThread(pid))?;
        let before = self.spaces.iter().position(|known| known.space == space);
        if before.is_none() && self.spaces.len() >= MAX_SPACES {
            return Err(IasError::TooMany);
        }
        if aggregation.agg == 0 {
            if let Some(before) = before {
                scheduler.forget_space(space)?;
                self.spaces.remove(before);
            }
            return Ok(());
        }
        scheduler.set_space(space, &aggregation.raw())?;
        let known = Space { aggregation, process, space };
        match before.and_then(|before| self.spaces.get_mut(before)) {
            Some(place) => *place = known,
            None => self.spaces.push(known),
        }
        Ok(())
    }

    /// Forgets who has ended or become another program.
    pub(crate) fn prune(&mut self, scheduler: &Scheduler) -> Result<(), LoadError> {
        let mut result = Ok(());
        self.spaces.retain(|known| {
            let now = scheduler.space_of(known.process.as_fd());
            let stays =
                !is_gone(&known.process) && matches!(now, Ok(Some(now)) if now == known.space);
            if !stays && let Err(why) = scheduler.forget_space(known.space) {
                result = Err(why);
            }
            stays
        });
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

    /// Tells a keel that was loaded anew what the last one knew. Roles of CPUs that are gone take
    /// their groups with them; without any, CPUs that share a cache are a group.
    pub(crate) fn restore(
        &mut self,
        scheduler: &Scheduler,
        machine: &Machine,
    ) -> Result<(), LoadError> {
        for known in &self.spaces {
            scheduler.set_space(known.space, &known.aggregation.raw())?;
        }
        if let Some(roles) = &mut self.roles {
            roles.retain(|cpu, _| machine.online().contains(*cpu));
            let masters: Vec<u16> = roles.values().copied().filter(|role| role % 2 == 0).collect();
            roles.retain(|_, role| masters.contains(&(*role & !1)));
        }
        scheduler.set_roles(&self.roles(machine))
    }

    fn roles(&self, machine: &Machine) -> BTreeMap<u32, u16> {
        let settled = || {
            let groups = self.settings.groups.as_deref()?;
            let roles = grouped(machine, groups).and_then(|roles| allocation(machine, &roles));
            let warn = |why: &_| {
                tracing::warn!(
                    "configuration, table [ias]: {why}; CPUs that share a cache are a group"
                );
            };
            roles.inspect_err(warn).ok()
        };
        let given = self.roles.clone().or_else(settled);
        given.unwrap_or_else(|| default_roles(machine))
    }

    pub(crate) fn state(&self, machine: &Machine, search: Search) -> IasState {
        IasState {
            roles: self.roles(machine),
            spaces: self.spaces.iter().map(|known| known.aggregation).collect(),
            found: self.helper.as_ref().map(|helper| helper.tunings.clone()),
            search,
        }
    }
}

/// The process that has this number now.
fn at_work(pid: u32) -> Option<Known> {
    known(&Process::new(pid as i32).ok()?.stat().ok()?)
}

fn open_process(pid: u32) -> Result<OwnedFd, IasError> {
    // SAFETY: plain numbers; what is returned belongs to nobody else.
    unsafe {
        let fd = nix::libc::syscall(nix::libc::SYS_pidfd_open, pid, 0);
        if fd < 0 { Err(IasError::NoProcess(pid)) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}

/// A process's file descriptor can be read when it has ended.
fn is_gone(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: [&str; 5]) -> Result<Aggregation, String> {
        let names = ["pid", "agg", "bonus_type", "bonus_value", "limit"];
        let given: BTreeMap<_, _> = names.into_iter().zip(arguments).collect();
        Aggregation::parse(|name| Some(given[name].to_owned())).map_err(|why| why.to_string())
    }

    #[test]
    fn the_papers_five_arguments() {
        let most = u64::MAX.to_string();
        let parsed = parse(["7", "1", "0", &most, "3"]).unwrap();
        let raw = parsed.raw();
        assert_eq!((raw.process, raw.agg, raw.bonus_type), (7, 1, 0));
        assert_eq!((raw.bonus_value, raw.limit), (u64::MAX, 3));
        for (arguments, expected) in [
            (["0", "1", "0", "1", "0"], "pid \"0\": expected a process number"),
            (["x", "1", "0", "1", "0"], "pid \"x\""),
            (["7", "2", "0", "1", "0"], "agg \"2\": expected 0 (off) or 1 (on)"),
            (["7", "1", "2", "1", "0"], "bonus_type \"2\""),
            (["7", "1", "0", "18446744073709551616", "0"], "bonus_value \"18446744073709551616\""),
            (["7", "1", "0", "-1", "0"], "bonus_value \"-1\""),
            (["7", "1", "0", "1", ""], "limit \"\""),
        ] {
            let why = parse(arguments).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
