//! How a program leaves: at the request of its user, or since it ended. And its summary.

use evenkeel_control::Peer;
use evenkeel_journal::TaskRef;
use nix::errno::Errno;

use super::admission::{Refusal, refuse};
use super::ended::Ended;
use super::programs::{Joined, Programs};
use crate::clock::{boottime_ns, started_ns};
use crate::program::task_ref;
use crate::reading::Reading;
use crate::status_file::ProgramStatus;
use crate::summary::{Alike, Run, Summary, Totals};

impl Programs {
    /// Ends balancing a program, if it is the peer's.
    pub fn leave(&mut self, program: u32, peer: &Peer) -> Result<(), Refusal> {
        // To another user, the program does not exist.
        if !self.joined.get(&program).is_some_and(|joined| peer.may_steer(joined.uid)) {
            return refuse(Errno::ESRCH, format!("you have no program {program} here"));
        }
        self.end_one(program);
        self.save();
        Ok(())
    }

    pub(super) fn end_one(&mut self, program: u32) {
        self.end_and_count(program);
    }

    /// Ends balancing a program, and returns how that went. It is one of those that ended last then.
    pub(super) fn end_and_count(&mut self, program: u32) -> Option<Totals> {
        // The balancer forgets the decisions.
        let status = self.status_now(program);
        let totals = self.balancer.leave(program).map(|(totals, _)| totals);
        if let Some(totals) = &totals {
            self.left.add(totals);
        }
        self.ranks.remove(&program);
        let joined = self.joined.remove(&program)?;
        tracing::info!("program {program} left: {}", joined.command.join(" "));
        if let (Some(status), Some(totals)) = (status, &totals) {
            let status = ProgramStatus {
                ended_ns: Some(boottime_ns()),
                intervals: totals.intervals,
                moves: totals.moves,
                yielded: totals.yielded,
                gain: totals.gain().clone(),
                cpus: totals.cpus(),
                ..status
            };
            let mut summary = self.summary_of(&joined, totals);
            if status.decisions.is_empty() {
                // Nothing was decided before the interval of its end.
                summary.intervals = 0;
            }
            self.ended.keep(Ended { uid: joined.uid, root: joined.root, status, summary });
        }
        totals
    }

    /// How the program of a process went, for a `run` that let it join and has seen its end. A program
    /// without a process ends now. Where others of its processes run on, these stay, and it is how it
    /// went so far.
    pub fn summary(
        &mut self,
        pid: i32,
        start: Option<u64>,
        peer: &Peer,
    ) -> Result<Summary, Refusal> {
        let is_meant = |uid: u32, root: &TaskRef| {
            let is_start = start.is_none_or(|start| start == root.start_time_ticks);
            root.tgid == pid && is_start && peer.may_steer(uid)
        };
        let mut newest_first = self.joined.iter().rev();
        let found = newest_first.find(|(_, joined)| is_meant(joined.uid, &joined.root));
        if let Some(program) = found.map(|(program, _)| *program) {
            if !self.is_over(program) {
                let joined = self.joined.get(&program).cloned();
                let totals = self.balancer.totals(program).cloned();
                if let (Some(joined), Some(totals)) = (joined, totals) {
                    return Ok(self.summary_of(&joined, &totals));
                }
            }
            self.end_one(program);
            self.save();
        }
        self.ended.summary(is_meant).cloned().ok_or_else(|| Refusal {
            errno: Errno::ESRCH,
            why: format!(
                "the daemon knows no program of process {pid} of yours: it was balanced as a part of \
                 another one (evenkeel status), many have ended since, or the daemon was started again"
            ),
        })
    }

    /// Whether no process of a program is left. Takes a reading only if no known process of it runs: any
    /// user may ask as often as it likes.
    fn is_over(&mut self, program: u32) -> bool {
        let has_process = |reading: &Reading| {
            let mut tasks = reading.tasks_of(program).into_iter().flatten();
            tasks.any(|(id, task)| task_ref(*id, task.process).is_alive())
        };
        let observer = self.balancer.observer();
        if has_process(observer.last()) {
            return false;
        }
        match observer.read() {
            Ok(now) => !has_process(now),
            Err(why) => {
                // Its tasks would not get their masks back, either. The next update sees its end.
                tracing::debug!("what the program has started since is not known: {why}");
                false
            }
        }
    }

    fn summary_of(&mut self, joined: &Joined, totals: &Totals) -> Summary {
        let options = &self.settings.options;
        let run = Run {
            command: joined.command.clone(),
            exit_code: 0,
            elapsed_ns: boottime_ns().saturating_sub(started_ns(&joined.root)),
            accounting: self.balancer.observer().accounting(),
            why_not_exact: self.balancer.why_not_exact(),
            alike: Alike::default(),
            placement: options.placement,
            // One that was moved before it was only watched has had its moves.
            dry_run: options.dry_run || (joined.watch && totals.moves == 0),
            threads_per_cpu: None,
            // What the daemon spends is for all programs together.
            own_cpu_ns: 0,
            startup_cpu_ns: 0,
        };
        Summary::new(run, totals)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use evenkeel_control::Request;
    use evenkeel_machine::Machine;
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;
    use crate::balancer::Balancer;
    use crate::daemon::admission::ProcessToJoin;
    use crate::daemon::requests::answer;
    use crate::daemon::saved::Saved;
    use crate::daemon::settings::Settings;
    use crate::options::Options;

    fn programs() -> Programs {
        let options = Options { dry_run: true, ..Options::by_procfs() };
        let machine = Machine::preset("small").unwrap();
        let balancer = Balancer::new(machine, None, options.clone()).unwrap();
        let settings = Settings { options, names: Vec::new(), cgroups: Vec::new() };
        Programs::new(balancer, settings, Saved::default())
    }

    fn own_uid() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    /// What the request `ended` of a user is answered.
    fn ended(programs: &mut Programs, uid: u32) -> Vec<ProgramStatus> {
        let answer = answer(programs, &Peer { uid, pid: 0 }, &Request::new("ended"));
        serde_json::from_value(answer.into_result().unwrap()).unwrap()
    }

    #[test]
    fn a_program_that_ended_is_shown_to_its_user_as_ended() {
        let mut programs = programs();
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id() as i32;
        let me = Peer { uid: own_uid(), pid: 0 };
        let process = ProcessToJoin { pid, start: None, watch: false };
        let program = programs.join_process(&process, &me).unwrap()[0];
        assert!(ended(&mut programs, own_uid()).is_empty());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        programs.balancer.observer().read().unwrap();
        programs.update();
        assert!(programs.is_empty() && programs.status(&me).is_empty());
        let shown = ended(&mut programs, own_uid());
        let [shown] = &shown[..] else { panic!("one program: {shown:?}") };
        assert_eq!((shown.program, shown.root), (Some(program), pid as u32));
        assert!(shown.ended_ns >= shown.started_ns && shown.ended_ago_ns().is_some());
        // To another user, it does not exist; to root, all do.
        assert!(ended(&mut programs, own_uid() + 1).is_empty());
        assert_eq!(ended(&mut programs, 0).len(), 1);
    }

    #[test]
    fn a_program_that_called_exec_has_ended_by_its_last_command_line() {
        let mut programs = programs();
        let mut shell = Command::new("sh");
        let mut shell =
            shell.args(["-c", "read line; exec sleep 60"]).stdin(Stdio::piped()).spawn().unwrap();
        join(&mut programs, shell.id() as i32);
        // Its standard input ends.
        drop(shell.stdin.take());
        let has_noted = (0..12_000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            programs.update();
            programs.joined.values().any(|joined| joined.command == ["sleep", "60"])
        });
        assert!(has_noted);
        shell.kill().unwrap();
        shell.wait().unwrap();
        programs.balancer.observer().read().unwrap();
        programs.update();
        assert_eq!(ended(&mut programs, own_uid())[0].command, ["sleep", "60"]);
    }

    /// What the request `summary` of a user is answered.
    fn summary(
        programs: &mut Programs,
        uid: u32,
        pid: i32,
        start: u64,
    ) -> Result<Summary, (i32, String)> {
        let request = Request::new("summary").with("pid", pid).with("start", start);
        let answer = answer(programs, &Peer { uid, pid: 0 }, &request).into_result()?;
        Ok(serde_json::from_value(answer["summary"].clone()).unwrap())
    }

    /// Lets it join, with the start by which it is named later.
    fn join(programs: &mut Programs, pid: i32) -> u64 {
        let process = ProcessToJoin { pid, start: None, watch: false };
        programs.join_process(&process, &Peer { uid: own_uid(), pid: 0 }).unwrap();
        TaskRef::of(pid).unwrap().start_time_ticks
    }

    #[test]
    fn the_summary_of_a_program_that_has_ended_ends_its_balancing() {
        let mut programs = programs();
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id() as i32;
        let start = join(&mut programs, pid);
        // It runs, and stays.
        summary(&mut programs, own_uid(), pid, start).unwrap();
        assert!(!programs.is_empty());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let why = summary(&mut programs, own_uid() + 1, pid, start).unwrap_err();
        assert!(why.0 == Errno::ESRCH as i32 && why.1.contains("of yours"), "{why:?}");
        // Another process with its number.
        summary(&mut programs, own_uid(), pid, start + 1).unwrap_err();
        assert!(!programs.is_empty());
        // Once more: it is one of those that ended last.
        for _ in 0..2 {
            let summary = summary(&mut programs, own_uid(), pid, start).unwrap();
            assert!(summary.dry_run && summary.elapsed_ns > 0, "{summary:?}");
            assert!(summary.outcome().starts_with("the run was too short"), "{summary:?}");
            assert!(programs.is_empty());
        }
    }

    #[test]
    fn what_a_program_has_started_runs_on_balanced_when_its_summary_is_asked_for() {
        let mut programs = programs();
        let script = "sleep 60 & echo $!; read line";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let sleeper = Pid::from_raw(said.trim().parse().unwrap());
        let pid = shell.id() as i32;
        let start = join(&mut programs, pid);
        // Its standard input ends.
        drop(shell.stdin.take());
        shell.wait().unwrap();
        summary(&mut programs, own_uid(), pid, start).unwrap();
        assert!(!programs.is_empty());
        kill(sleeper, Signal::SIGKILL).unwrap();
        while TaskRef::of(sleeper.as_raw()).is_ok_and(|task| task.is_alive()) {
            std::thread::yield_now();
        }
        summary(&mut programs, own_uid(), pid, start).unwrap();
        assert!(programs.is_empty());
    }
}
