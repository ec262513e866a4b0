//! Programs that are only watched: at the request of their user, and until that user has them balanced
//! again.

use evenkeel_control::Peer;
use nix::errno::Errno;

use super::admission::{Refusal, refuse};
use super::programs::Programs;

impl Programs {
    /// Only watches a program from now on (`watch`), or balances it again, if it is the peer's.
    pub fn watch(&mut self, program: u32, watch: bool, peer: &Peer) -> Result<(), Refusal> {
        let joined = self.joined.get_mut(&program).filter(|joined| peer.may_steer(joined.uid));
        let Some(joined) = joined else {
            return refuse(Errno::ESRCH, format!("you have no program {program} here"));
        };
        if self.settings.options.dry_run || !self.balancer.can_move() {
            return refuse(Errno::EPERM, "this daemon moves nothing (--dry-run, or no journal)");
        }
        joined.watch = watch;
        self.balancer.set_watched(program, watch);
        self.save();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use evenkeel_control::Request;
    use evenkeel_journal::{Session, SessionOptions, SupervisedSession, TaskRef};
    use evenkeel_machine::Machine;

    use super::*;
    use crate::balancer::Balancer;
    use crate::daemon::admission::How;
    use crate::daemon::programs::Joined;
    use crate::daemon::requests::answer;
    use crate::daemon::saved::Saved;
    use crate::daemon::settings::Settings;
    use crate::options::Options;

    const USER: u32 = 7;
    /// No process has this number: the kernel gives none above 4194304.
    const ENDED: i32 = i32::MAX;

    /// The programs of a daemon that can move tasks.
    fn programs(dir: &Path) -> Programs {
        let options = Options::by_procfs();
        let session = Session::open(dir, SessionOptions::default()).unwrap();
        let session = SupervisedSession::new(session, |_| None);
        let machine = Machine::preset("small").unwrap();
        let balancer = Balancer::new(machine, Some(session), options.clone()).unwrap();
        let settings = Settings { options, names: Vec::new(), cgroups: Vec::new() };
        Programs::new(balancer, settings, Saved::default())
    }

    fn joined(uid: u32, pid: i32) -> Joined {
        let root = TaskRef { tid: pid, tgid: pid, start_time_ticks: 1 };
        Joined { uid, how: How::Process, command: Vec::new(), root, watch: false }
    }

    /// Sends the request `watch` of this user for the program of a process.
    fn ask(programs: &mut Programs, uid: u32, pid: i32, watch: bool) -> Result<(), (i32, String)> {
        let request = Request::new("watch").with("pid", pid).with("watch", watch);
        answer(programs, &Peer { uid, pid: 0 }, &request).into_result().map(drop)
    }

    #[test]
    fn a_program_is_found_by_its_first_process_also_once_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut programs = programs(dir.path());
        // The second one got the number of the first one's process, and has ended, too.
        let all = [(1, USER, ENDED), (2, USER, ENDED), (3, USER + 1, ENDED), (4, USER, ENDED - 1)];
        programs.joined.extend(all.map(|(program, uid, pid)| (program, joined(uid, pid))));
        assert_eq!(ask(&mut programs, USER, ENDED, true), Ok(()));
        let watched = programs.joined.values().map(|joined| joined.watch);
        assert_eq!(watched.collect::<Vec<_>>(), [false, true, false, false]);
        // To another user, they do not exist.
        let (errno, _) = ask(&mut programs, USER + 2, ENDED, true).unwrap_err();
        assert_eq!(errno, Errno::ESRCH as i32);
        // Its user can take such a program out, too.
        let request = Request::new("leave").with("pid", ENDED - 1);
        let left = answer(&mut programs, &Peer { uid: USER, pid: 0 }, &request);
        assert_eq!(left.errno, 0, "{left:?}");
        assert!(!programs.joined.contains_key(&4));
    }
}
