//! Programs that are only watched: since they joined so, as a container does by its annotation, or at
//! the request of their user, and then until that user has them balanced again.

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
        if joined.stays_watched && !watch {
            // In top, this is shown in one line of 80 columns, after the number of a process.
            let why = format!(
                "program {program} stays watched (evenkeel.io/mode: watch): restart it with run"
            );
            return refuse(Errno::EPERM, why);
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
    use std::process::Command;

    use evenkeel_control::Request;
    use evenkeel_journal::{Session, SessionOptions, SupervisedSession, TaskRef};
    use evenkeel_machine::Machine;

    use super::*;
    use crate::balancer::Balancer;
    use crate::daemon::admission::{How, ProcessToJoin};
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
        let (how, command, watch) = (How::Process, Vec::new(), false);
        Joined { uid, how, command, root, watch, stays_watched: watch }
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

    fn join(programs: &mut Programs, pid: i32, watch: bool) -> Result<u32, Refusal> {
        let peer = Peer { uid: nix::unistd::geteuid().as_raw(), pid: 0 };
        let joined = programs.join_process(&ProcessToJoin { pid, start: None, watch }, &peer);
        joined.map(|joined| joined[0])
    }

    #[test]
    fn a_program_that_joined_to_be_only_watched_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut programs = programs(dir.path());
        let own = nix::unistd::geteuid().as_raw();
        let mut sleepers = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
        let [watched, balanced] = sleepers.each_ref().map(|sleeper| sleeper.id() as i32);
        let program = join(&mut programs, watched, true).unwrap();
        join(&mut programs, balanced, false).unwrap();
        // Root's request is no exception.
        for uid in [own, 0] {
            let (errno, why) = ask(&mut programs, uid, watched, false).unwrap_err();
            assert_eq!(errno, Errno::EPERM as i32);
            let is_named = why.starts_with(&format!("program {program} stays watched "));
            assert!(is_named && why.contains("evenkeel.io/mode: watch"), "{why}");
            assert_eq!(ask(&mut programs, uid, watched, true), Ok(()));
        }
        assert_eq!(join(&mut programs, watched, true), Ok(program));
        // Another one is watched as its user wants, and has not joined so by that.
        for watch in [true, false, true] {
            assert_eq!(ask(&mut programs, own, balanced, watch), Ok(()));
        }
        let refusal = join(&mut programs, balanced, true).unwrap_err();
        assert!(refusal.errno == Errno::EBUSY && refusal.why.contains("leave first"), "{refusal}");
        for sleeper in &mut sleepers {
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
        }
    }
}
