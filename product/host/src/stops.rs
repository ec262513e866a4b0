//! Stops of a program: a batch system suspends a job by SIGSTOP to all of its processes, or freezes
//! them, its balancer mostly among them. What is seen of such an interval tells neither what the CPUs
//! give nor what moves gain, so it is left out: pins and proofs stay as they are. A program of which
//! only a part is stopped is balanced as ever.

use std::collections::BTreeMap;

use evenkeel_capability::TaskId;

use crate::reading::TaskReading;

/// A round that is so late was held up, and most likely the program with it. Slurm suspends for two
/// seconds at least. Real-time tasks hold the balancer up for less than this, or else again and again.
const LATE_NS: u64 = 1_000_000_000;
/// Between two looks at a stopped program.
pub(crate) const LOOK_NS: u64 = 500_000_000;

/// Whether a program is stopped, from round to round.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    /// It is stopped now.
    pub(crate) is_stopped: bool,
    /// The last round was late.
    was_late: bool,
    /// The interval that ended last was left out.
    pub(crate) is_left_out: bool,
}

impl Stops {
    /// Takes in whether the program of this number is stopped in this round, which came so late. Returns
    /// whether the interval that ended is to be left out: the program was stopped at one of its ends, or
    /// in it.
    pub(crate) fn note(&mut self, number: u32, is_stopped: bool, late_ns: u64) -> bool {
        let was_stopped = std::mem::replace(&mut self.is_stopped, is_stopped);
        if was_stopped != is_stopped {
            tracing::info!("{}", change_in_words(number, is_stopped));
        }
        let is_late = late_ns >= LATE_NS;
        let was_late = std::mem::replace(&mut self.was_late, is_late);
        self.is_left_out = was_stopped || is_stopped || (is_late && !was_late);
        self.is_left_out
    }
}

/// The line of the log, which is of many programs in a daemon.
fn change_in_words(number: u32, is_stopped: bool) -> String {
    let now = if is_stopped { "is stopped: its intervals are left out" } else { "was continued" };
    format!("program {number} {now}")
}

/// Whether all of these tasks are stopped. While one is runnable, no file is read; while one sleeps,
/// mostly a single one.
pub(crate) fn are_stopped(tasks: &BTreeMap<TaskId, TaskReading>) -> bool {
    if tasks.values().any(|task| task.runnable) {
        return false;
    }
    let mut is_any = false;
    for (id, task) in tasks {
        match state(task.process, id.tid) {
            Some('T' | 't') => is_any = true,
            // It has ended.
            Some('Z' | 'X') | None => {}
            Some(_) => return false,
        }
    }
    is_any
}

/// The state of a task, as a letter. Read from `status`: nothing can hold that up.
fn state(process: u32, tid: u32) -> Option<char> {
    let text = std::fs::read(format!("/proc/{process}/task/{tid}/status")).ok()?;
    // A line of its own: the name before it has none. It may have any other bytes.
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| line.strip_prefix("State:\t"))?.chars().next()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn an_interval_with_a_stop_at_one_of_its_ends_or_in_it_is_left_out() {
        let mut stops = Stops::default();
        let rounds = [(false, 0), (true, 0), (true, 0), (false, 0), (false, 0), (false, LATE_NS)];
        let left_out = rounds.map(|(is_stopped, late_ns)| stops.note(7, is_stopped, late_ns));
        assert_eq!(left_out, [false, true, true, true, false, true]);
        // A balancer that is late all the time is starved, and has to do with what it sees.
        let late = [LATE_NS, LATE_NS, 0, LATE_NS - 1, LATE_NS];
        let left_out = late.map(|late_ns| stops.note(7, false, late_ns));
        assert_eq!(left_out, [false, false, false, false, true]);
    }

    #[test]
    fn the_log_names_the_program_that_is_stopped_or_continued() {
        let said = [true, false].map(|is_stopped| change_in_words(7, is_stopped));
        assert_eq!(
            said,
            ["program 7 is stopped: its intervals are left out", "program 7 was continued"]
        );
    }

    #[test]
    fn a_program_is_stopped_when_all_of_its_tasks_are() {
        let mut children = [0, 1].map(|_| Command::new("sleep").arg("60").spawn().unwrap());
        let pids = children.each_ref().map(|child| child.id());
        let of = |pid: u32| {
            (TaskId { tid: pid, start: 1 }, TaskReading { process: pid, ..TaskReading::default() })
        };
        let mut tasks = BTreeMap::from(pids.map(of));
        let signal = |pid: u32, signal| kill(Pid::from_raw(pid as i32), signal).unwrap();
        assert!(!are_stopped(&tasks) && !are_stopped(&BTreeMap::new()));
        for (pid, all) in [(pids[0], false), (pids[1], true)] {
            signal(pid, Signal::SIGSTOP);
            waitpid(Pid::from_raw(pid as i32), Some(WaitPidFlag::WUNTRACED)).unwrap();
            assert_eq!(are_stopped(&tasks), all);
        }
        // One that has ended counts no more.
        signal(pids[0], Signal::SIGKILL);
        children[0].wait().unwrap();
        assert!(are_stopped(&tasks));
        tasks.values_mut().for_each(|task| task.runnable = true);
        assert!(!are_stopped(&tasks));
        signal(pids[1], Signal::SIGKILL);
        children[1].wait().unwrap();
    }
}
