//! Which thread or process a record of the programs means. A number alone does not tell: when its task
//! has ended, the kernel gives the number to a later one. So the programs record when a task was
//! started, too (bpf/sais/consumer.h), and here that is compared with what /proc says of the task that
//! has the number now.

use std::collections::HashMap;

use evenkeel_control::{Lock, Peer, read_in_time};
use evenkeel_journal::TaskRef;
use procfs::process::Process;

use crate::layout::RawReader;

/// A start time of the programs in the unit of those in /proc.
pub(crate) fn start_ticks(start_boottime_ns: u64) -> u64 {
    start_boottime_ns / (1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// The thread that was recorded under this number; `None`: it has ended, is of another PID namespace
/// than ours, or cannot be read in time.
pub(crate) fn thread_of(tid: u32, reader: &RawReader) -> Option<TaskRef> {
    let task = TaskRef::in_process(reader.tgid as i32, tid as i32).ok()?;
    (task.start_time_ticks == start_ticks(reader.start_boottime_ns)).then_some(task)
}

/// When the process was started that has this number now, in clock ticks since boot; `None`: there is
/// none, it is no concern of `peer`, or it cannot be read in time.
pub(crate) fn start_for(pid: u32, peer: &Peer) -> Option<u64> {
    // Both are read through one descriptor, so they are of one process.
    let pid = i32::try_from(pid).ok()?;
    let process = Process::new(pid).ok()?;
    process.uid().ok().filter(|uid| peer.may_steer(*uid))?;
    Some(read_in_time(Lock::Exec, pid, move || process.stat()).ok()?.ok()?.starttime)
}

/// Tells which processes, by number and recorded start, `peer` may see: its own; root sees all, those
/// that have ended too. `start_of` a process that the peer may see is asked once for each number, at the
/// first record with it.
pub(crate) fn sight(
    peer: &Peer,
    mut start_of: impl FnMut(u32) -> Option<u64>,
) -> impl FnMut(u32, u64) -> bool {
    let mut starts: HashMap<u32, Option<u64>> = HashMap::new();
    move |pid, start_boottime_ns| {
        let mut start = || *starts.entry(pid).or_insert_with(|| start_of(pid));
        peer.may_steer(0) || start() == Some(start_ticks(start_boottime_ns))
    }
}

/// The command of a process, empty when it has ended: then a later process may have the number, and its
/// name is shown to root alone, which sees that one, too. To compare starts, all processes' `stat` would
/// be read, and a process can hold that up.
pub(crate) fn name_of(pid: u32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    comm.map(|comm| comm.trim_end().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick_ns() -> u64 {
        1_000_000_000 / procfs::ticks_per_second()
    }

    #[test]
    fn a_thread_that_got_the_number_later_is_not_the_one_that_waited() {
        let own = TaskRef::own_process().unwrap();
        let start_ns = own.start_time_ticks * tick_ns();
        let (tid, tgid) = (own.tid as u32, own.tgid as u32);
        let found = |start_boottime_ns| {
            let reader = RawReader { start_boottime_ns, tgid, core: 0, late: 0, outstanding: 1 };
            thread_of(tid, &reader)
        };
        // The kernel cuts off what is less than a tick.
        assert_eq!(found(start_ns), Some(own));
        assert_eq!(found(start_ns + tick_ns() - 1), Some(own));
        // The record is of another thread, which had the number at another time.
        assert_eq!(found(start_ns - 1), None);
        assert_eq!(found(start_ns + tick_ns()), None);
        let nothing =
            RawReader { start_boottime_ns: start_ns, tgid, ..bytemuck::Zeroable::zeroed() };
        assert_eq!(thread_of(u32::MAX, &nothing), None);
    }

    const USER: Peer = Peer { uid: 7, pid: 1 };
    const ROOT: Peer = Peer { uid: 0, pid: 1 };

    #[test]
    fn a_user_sees_its_own_processes_only_and_none_that_had_their_numbers_before() {
        let start_ticks = 500;
        let start_ns = start_ticks * tick_ns();
        // Number 20 is no concern of the user's, or no process has it.
        let start_of = |pid: u32| (pid == 10).then_some(start_ticks);
        let mut may_see = sight(&USER, start_of);
        assert!(may_see(10, start_ns) && may_see(10, start_ns + tick_ns() - 1));
        assert!(!may_see(10, start_ns - 1), "of another process, which had the number before");
        assert!(!may_see(10, start_ns + tick_ns()));
        assert!(!may_see(20, start_ns));
        let mut may_see = sight(&ROOT, start_of);
        assert!(may_see(10, start_ns) && may_see(10, start_ns - 1) && may_see(20, start_ns));
    }

    #[test]
    fn each_number_is_looked_up_once() {
        let mut lookups = 0;
        let mut may_see = sight(&USER, |_| {
            lookups += 1;
            None
        });
        assert!(!may_see(10, 1) && !may_see(10, 2) && !may_see(20, 1));
        drop(may_see);
        assert_eq!(lookups, 2);
    }

    #[test]
    fn this_process_is_known_by_its_number_and_its_start() {
        let own = TaskRef::own_process().unwrap();
        let pid = own.tgid as u32;
        let uid = nix::unistd::geteuid().as_raw();
        let start = Some(own.start_time_ticks);
        assert_eq!(start_for(pid, &ROOT), start);
        assert_eq!(start_for(pid, &Peer { uid, pid: 1 }), start);
        assert_eq!(start_for(1, &USER), None);
        assert_eq!(start_for(u32::MAX, &ROOT), None);
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(name_of(pid), comm.trim_end());
        assert_eq!(name_of(u32::MAX), "");
    }
}
