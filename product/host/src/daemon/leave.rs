//! How a program leaves: at the request of its user, or since it ended.

use evenkeel_control::Peer;
use nix::errno::Errno;

use super::admission::{Refusal, refuse};
use super::ended::Ended;
use super::programs::Programs;
use crate::clock::boottime_ns;
use crate::status_file::ProgramStatus;
use crate::summary::Totals;

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
            self.ended.keep(Ended { uid: joined.uid, status });
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use evenkeel_control::Request;
    use evenkeel_machine::Machine;

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
}
