//! What the order policy `ias` is told while the keel runs (paper 003, section 3): which address
//! spaces aggregate and how strongly (`set_ias_agg`), and which CPUs do so together
//! (`set_ias_alloc`).

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use evenkeel_control::{Peer, Request};
use evenkeel_machine::{Cpu, CpuSet, Machine};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::options::Order;
use crate::records::{MAX_CPUS, MAX_SPACES, NO_ROLE, RawSpace};
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
    #[error("groups \"{text}\": {why}; expected llc, node, or CPUs like 0-3/4-7")]
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

/// The largest role.
const MAX_ROLE: u16 = 2 * MAX_CPUS as u16 - 1;

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
    /// By CPU; none was given: the default groups.
    roles: Option<BTreeMap<u32, u16>>,
}

/// What `ias_show` tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IasState {
    /// The role of each CPU that has one.
    pub roles: BTreeMap<u32, u16>,
    /// What was set, by process.
    pub spaces: Vec<Aggregation>,
}

impl Ias {
    /// `set_ias_agg`: on behalf of `peer`, and all or nothing.
    pub(crate) fn aggregate(
        &mut self,
        scheduler: &Scheduler,
        peer: &Peer,
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
        if !peer.may_steer(owner) {
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
        self.roles.clone().unwrap_or_else(|| default_roles(machine))
    }

    pub(crate) fn state(&self, machine: &Machine) -> IasState {
        IasState {
            roles: self.roles(machine),
            spaces: self.spaces.iter().map(|known| known.aggregation).collect(),
        }
    }
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

/// Checks the paper's list of roles: index is the CPU, 2k the master of group k, 2k + 1 a slave.
fn allocation(machine: &Machine, roles: &[u16]) -> Result<BTreeMap<u32, u16>, IasError> {
    let online = machine.online();
    if roles.len() != online.len() {
        return Err(IasError::Count { given: roles.len(), cpus: online.len(), online });
    }
    let roles: BTreeMap<u32, u16> = online.iter().zip(roles.iter().copied()).collect();
    let mut masters = BTreeMap::new();
    for (cpu, role) in &roles {
        if *role > MAX_ROLE {
            let value = role.to_string();
            return Err(IasError::Value { name: "role", value, expected: "0 to 2047" });
        }
        if role % 2 == 0
            && let Some(first) = masters.insert(role / 2, *cpu)
        {
            return Err(IasError::TwoMasters { group: role / 2, first, second: *cpu });
        }
    }
    let orphan = roles.values().map(|role| role / 2).find(|group| !masters.contains_key(group));
    orphan.map_or(Ok(roles), |group| Err(IasError::NoMaster { group }))
}

/// The CPUs that are online, by what they have in common.
fn groups_by(machine: &Machine, common: impl Fn(&Cpu) -> u32) -> Vec<CpuSet> {
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in machine.cpus.iter().filter(|cpu| cpu.online) {
        groups.entry(common(cpu)).or_default().insert(cpu.id);
    }
    groups.into_values().collect()
}

/// The first CPU of each group is its master.
fn roles_of(groups: &[CpuSet]) -> BTreeMap<u32, u16> {
    let members = groups.iter().zip(0..).flat_map(|(cpus, group)| {
        cpus.iter().enumerate().map(move |(at, cpu)| (cpu, 2 * group + u16::from(at > 0)))
    });
    members.collect()
}

/// CPUs that share a last-level cache are a group.
pub(crate) fn default_roles(machine: &Machine) -> BTreeMap<u32, u16> {
    roles_of(&groups_by(machine, |cpu| cpu.llc))
}

/// The record `roles` of `bpf/keel/intf.h`.
pub(crate) fn raw_roles(roles: &BTreeMap<u32, u16>) -> [u16; MAX_CPUS] {
    let mut raw = [NO_ROLE; MAX_CPUS];
    for (cpu, role) in roles {
        if let Some(place) = raw.get_mut(*cpu as usize) {
            *place = *role;
        }
    }
    raw
}

/// The roles that a list of groups means: `llc`, `node`, or CPU lists with slashes in between.
///
/// # Errors
/// A CPU that is not online, is named twice or not at all.
pub fn grouped(machine: &Machine, text: &str) -> Result<Vec<u16>, IasError> {
    let wrong = |why: String| IasError::Groups { text: text.to_owned(), why };
    let groups = match text {
        "llc" => groups_by(machine, |cpu| cpu.llc),
        "node" => groups_by(machine, |cpu| cpu.node),
        lists => {
            let mut groups = Vec::new();
            let mut seen = CpuSet::new();
            for list in lists.split('/') {
                let cpus: CpuSet = list
                    .parse()
                    .map_err(|why: evenkeel_machine::CpuListError| wrong(why.to_string()))?;
                if let Some(cpu) = cpus.difference(&machine.online()).iter().next() {
                    return Err(wrong(format!("CPU {cpu} is not online")));
                }
                if let Some(cpu) = cpus.intersection(&seen).iter().next() {
                    return Err(wrong(format!("CPU {cpu} is in two groups")));
                }
                if cpus.is_empty() {
                    return Err(wrong("a group is empty".to_owned()));
                }
                seen = seen.union(&cpus);
                groups.push(cpus);
            }
            if let Some(cpu) = machine.online().difference(&seen).iter().next() {
                return Err(wrong(format!("CPU {cpu} is in no group")));
            }
            groups
        }
    };
    Ok(roles_of(&groups).into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine::preset("amc1").unwrap()
    }

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

    #[test]
    fn the_papers_two_groups_on_four_cpus() {
        let four = |machine: &mut Machine| {
            machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.id < 4);
        };
        let mut machine = machine();
        four(&mut machine);
        let roles = allocation(&machine, &[0, 1, 2, 3]).unwrap();
        assert_eq!(roles, [(0, 0), (1, 1), (2, 2), (3, 3)].into());
        let why = |roles: &[u16]| allocation(&machine, roles).unwrap_err().to_string();
        assert_eq!(
            why(&[0, 1, 2]),
            "3 roles, but 4 CPUs are online (0-3): one number for each, in order"
        );
        assert_eq!(why(&[0, 1, 3, 3]), "role 3: group 1 has slaves but no master (role 2)");
        assert_eq!(why(&[0, 1, 0, 1]), "role 0: group 0 has two masters, CPUs 0 and 2");
        assert_eq!(why(&[0, 1, 0xffff, 1]), "role \"65535\": expected 0 to 2047");
    }

    #[test]
    fn more_groups_than_the_paper_had() {
        let machine = machine();
        let cpus = machine.online().len() as u16;
        let roles: Vec<u16> = (0..cpus).collect();
        assert_eq!(allocation(&machine, &roles).unwrap().len(), usize::from(cpus));
    }

    #[test]
    fn groups_by_their_cpus_or_by_what_they_share() {
        let machine = machine();
        let half = machine.online().len() as u32 / 2;
        let roles = grouped(&machine, &format!("0-{}/{half}-{}", half - 1, 2 * half - 1)).unwrap();
        assert_eq!(roles.len() as u32, 2 * half);
        assert_eq!(roles[..2], [0, 1]);
        assert_eq!(roles[half as usize..half as usize + 2], [2, 3]);
        for shared in ["llc", "node"] {
            assert!(allocation(&machine, &grouped(&machine, shared).unwrap()).is_ok());
        }
    }

    #[test]
    fn impossible_groups_are_named() {
        let mut machine = machine();
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.id < 4);
        for (text, expected) in [
            ("0-1/2-4", "CPU 4 is not online"),
            ("0-2/2-3", "CPU 2 is in two groups"),
            ("0-1/2", "CPU 3 is in no group"),
            ("0-3/", "groups \"0-3/\""),
            ("l2", "expected llc, node, or CPUs like 0-3/4-7"),
        ] {
            let why = grouped(&machine, text).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
    }
}
