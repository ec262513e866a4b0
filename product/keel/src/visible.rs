//! Which tasks the keel tells a client about: root, about all; another user, about its own. A task is
//! named by its number alone, which may have gone to another task meanwhile. So the owner is read again
//! for each answer; and a task that started after the event that would be told is another task.

use evenkeel_control::Peer;
use procfs::process::Process;

/// What is told about a task holds for the one that had its number at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// For the one that has it now.
    Now,
    /// For one that had it at this time since boot, in ns.
    At(u64),
    /// For the one that was started then, in ticks since boot.
    StartedAt(u64),
}

/// Whether `peer` may be told about the task (a process or thread) of this number. Another user is told
/// nothing about a task that has ended. `started` says when the task with a number was started, in ticks
/// since boot.
pub(crate) fn may_see(
    peer: &Peer,
    task: u32,
    when: When,
    started: impl FnOnce(u32) -> Option<u64>,
) -> bool {
    if peer.may_steer(0) {
        return true;
    }
    let Some(process) = i32::try_from(task).ok().and_then(|task| Process::new(task).ok()) else {
        return false;
    };
    let is_same = match when {
        When::Now => true,
        When::At(at_ns) => {
            let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
            started(task).is_some_and(|start| start.saturating_mul(tick_ns) <= at_ns)
        }
        When::StartedAt(start) => started(task) == Some(start),
    };
    // Last: as long as the process that was opened first is there, the number is its own.
    is_same && process.statm().is_ok() && process.uid().is_ok_and(|owner| peer.may_steer(owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_proc(task: u32) -> Option<u64> {
        Some(Process::new(task as i32).ok()?.stat().ok()?.starttime)
    }

    #[test]
    fn a_user_is_told_about_its_own_tasks_and_root_about_all() {
        let own = std::process::id();
        let owner = Process::myself().unwrap().uid().unwrap();
        let user = |uid| Peer { uid, pid: 0 };
        // That of no user: neither that of this test nor root.
        let stranger = user(owner + 7);
        let root = user(0);
        let started = Process::myself().unwrap().stat().unwrap().starttime;
        for (when, is_told) in [
            (When::Now, true),
            (When::At(u64::MAX), true),
            (When::At(0), false),
            (When::StartedAt(started), true),
            // Another process had the number before.
            (When::StartedAt(started - 1), false),
        ] {
            assert!(may_see(&root, own, when, of_proc), "{when:?}");
            assert!(!may_see(&stranger, own, when, of_proc), "{when:?}");
            if owner != 0 {
                assert_eq!(may_see(&user(owner), own, when, of_proc), is_told, "{when:?}");
            }
        }
        // No task has this number.
        for (peer, is_told) in [(root, true), (stranger, false)] {
            assert_eq!(may_see(&peer, u32::MAX, When::Now, of_proc), is_told);
        }
    }

    #[test]
    fn what_is_told_of_a_number_is_of_the_task_that_had_it_then() {
        let mut command = std::process::Command::new("sleep");
        let command = command.arg("600");
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            std::os::unix::process::CommandExt::uid(command, 65_534);
        }
        let mut child = command.spawn().unwrap();
        let process = Process::new(child.id() as i32).unwrap();
        // Until exec, the kernel gives the files in /proc to root.
        while is_root && process.uid().unwrap() == 0 {
            std::thread::yield_now();
        }
        let (uid, stat) = (process.uid().unwrap(), process.stat().unwrap());
        let peer = Peer { uid, pid: 0 };
        let start_ns = stat.starttime * (1_000_000_000 / procfs::ticks_per_second());
        let told = |when| may_see(&peer, child.id(), when, of_proc);
        assert!(told(When::Now) && told(When::At(start_ns)));
        assert!(!told(When::At(start_ns - 1)));
        assert!(told(When::StartedAt(stat.starttime)));
        assert!(!told(When::StartedAt(stat.starttime - 1)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!may_see(&peer, process.pid as u32, When::Now, of_proc));
    }
}
