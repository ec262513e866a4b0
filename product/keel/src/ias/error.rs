//! Why address spaces or CPUs cannot aggregate as a user asks.

use evenkeel_machine::CpuSet;
use nix::errno::Errno;

use crate::layout::MAX_SPACES;
use crate::policies::Order;
use crate::scheduler::LoadError;

/// What cannot be told, and why.
#[derive(Debug, thiserror::Error)]
pub enum IasError {
    /// Nothing aggregates.
    #[error("the keel runs with --order {0}; start it with --order ias to aggregate threads")]
    NotIas(Order),
    /// No such process.
    #[error(
        "process {0}: there is none of this number; take one of `ps -e` (a thread's number is none)"
    )]
    NoProcess(u32),
    /// The kernel gives no file descriptor of it.
    #[error(
        "process {pid}: the keel cannot watch for its end: {why}; if file descriptors are short, ask \
         root to raise the keel's limit (LimitNOFILE)"
    )]
    Unwatched {
        /// The process.
        pid: u32,
        /// The kernel's reason.
        why: Errno,
    },
    /// The process is another user's.
    #[error("process {pid} belongs to user {owner}: only that user and root may set it")]
    Foreign {
        /// The process.
        pid: u32,
        /// Its owner.
        owner: u32,
    },
    /// It has no memory of its own.
    #[error(
        "process {0} is a kernel thread: it has no address space that siblings could share; take the \
         process of a program"
    )]
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
    /// Too many of one user.
    #[error(
        "you have {most} address spaces that aggregate already, the most for one user: switch one \
         off first (evenkeel ias agg PID --off)"
    )]
    TooManyOfUser {
        /// How many it may have.
        most: usize,
    },
    /// Too many of all users but root.
    #[error(
        "{most} address spaces of all users together aggregate already: try again later, or ask root"
    )]
    TooManyOfUsers {
        /// How many there may be.
        most: usize,
    },
    /// Too strong for an ordinary user.
    #[error(
        "bonus {value}: ordinary users may set at most {most} {unit}, because others wait for it: ask \
         root for more"
    )]
    TooLarge {
        /// As it was given.
        value: u64,
        /// The limit.
        most: u64,
        /// Of both.
        unit: &'static str,
    },
    /// Roles are root's.
    #[error("only root may set the roles of CPUs, because they are everybody's: ask as root")]
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
    /// A group without a master.
    #[error(
        "role {role}: group {group} has slaves but no master; give one of its CPUs role {master}",
        role = 2 * .group + 1,
        master = 2 * .group
    )]
    NoMaster {
        /// The group.
        group: u16,
    },
    /// A group with two masters.
    #[error(
        "role {role}: group {group} has two masters, CPUs {first} and {second}; give all but one role \
         {slave}",
        role = 2 * .group,
        slave = 2 * .group + 1
    )]
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
    /// Why there is no file descriptor of a process. The number may be no task's (`ESRCH`), or that of a
    /// thread (`EINVAL`; `ENOENT` of later kernels).
    pub(super) fn of_pidfd(pid: u32, why: Errno) -> Self {
        match why {
            Errno::ESRCH | Errno::EINVAL | Errno::ENOENT => Self::NoProcess(pid),
            why => Self::Unwatched { pid, why },
        }
    }

    /// The error number that tells a program what kind it is.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::NoProcess(_) => Errno::ESRCH,
            Self::Unwatched { why, .. } => *why,
            Self::Foreign { .. } | Self::NotRoot | Self::TooLarge { .. } => Errno::EPERM,
            Self::TooMany | Self::TooManyOfUser { .. } | Self::TooManyOfUsers { .. } => {
                Errno::ENOSPC
            }
            Self::Load(_) => Errno::EIO,
            _ => Errno::EINVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each error names the thing, the rule and the remedy, word by word.
    #[test]
    fn what_is_said() {
        let value = |name, value: &str, expected| IasError::Value {
            name,
            value: value.to_owned(),
            expected,
        };
        for (error, text, errno) in [
            (
                IasError::NotIas(Order::Fair),
                "the keel runs with --order fair; start it with --order ias to aggregate threads",
                Errno::EINVAL,
            ),
            (
                IasError::NoProcess(7),
                "process 7: there is none of this number; take one of `ps -e` (a thread's number is \
                 none)",
                Errno::ESRCH,
            ),
            (
                IasError::of_pidfd(7, Errno::EMFILE),
                "process 7: the keel cannot watch for its end: EMFILE: Too many open files; if file \
                 descriptors are short, ask root to raise the keel's limit (LimitNOFILE)",
                Errno::EMFILE,
            ),
            (
                IasError::Foreign { pid: 7, owner: 1000 },
                "process 7 belongs to user 1000: only that user and root may set it",
                Errno::EPERM,
            ),
            (
                IasError::KernelThread(2),
                "process 2 is a kernel thread: it has no address space that siblings could share; take \
                 the process of a program",
                Errno::EINVAL,
            ),
            (
                value("agg", "2", "0 (off) or 1 (on)"),
                "agg \"2\": expected 0 (off) or 1 (on)",
                Errno::EINVAL,
            ),
            (
                IasError::TooMany,
                "1024 address spaces aggregate already: switch one off first",
                Errno::ENOSPC,
            ),
            (
                IasError::TooLarge { value: 26, most: 25, unit: "times the last run" },
                "bonus 26: ordinary users may set at most 25 times the last run, because others wait \
                 for it: ask root for more",
                Errno::EPERM,
            ),
            (
                IasError::TooManyOfUser { most: 64 },
                "you have 64 address spaces that aggregate already, the most for one user: switch one \
                 off first (evenkeel ias agg PID --off)",
                Errno::ENOSPC,
            ),
            (
                IasError::NotRoot,
                "only root may set the roles of CPUs, because they are everybody's: ask as root",
                Errno::EPERM,
            ),
            (
                IasError::Count { given: 3, cpus: 4, online: "0-3".parse().unwrap() },
                "3 roles, but 4 CPUs are online (0-3): one number for each, in order",
                Errno::EINVAL,
            ),
            (
                IasError::NoMaster { group: 2 },
                "role 5: group 2 has slaves but no master; give one of its CPUs role 4",
                Errno::EINVAL,
            ),
            (
                IasError::TwoMasters { group: 1, first: 0, second: 3 },
                "role 2: group 1 has two masters, CPUs 0 and 3; give all but one role 3",
                Errno::EINVAL,
            ),
            (
                IasError::Groups {
                    text: "0-3/4-7".to_owned(),
                    why: "CPU 7 is not online".to_owned(),
                },
                "groups \"0-3/4-7\": CPU 7 is not online; expected llc, l2, node, or CPUs like 0-3/4-7",
                Errno::EINVAL,
            ),
        ] {
            assert_eq!((error.to_string().as_str(), error.errno()), (text, errno));
        }
    }
}
