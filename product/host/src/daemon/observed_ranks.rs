//! Jobs with a balancer that has no privileges: all ranks of such a job are observed as one program,
//! that of its first rank.

use evenkeel_control::Peer;
use evenkeel_journal::TaskRef;
use nix::errno::Errno;

use super::admission::{self, Refusal, refuse};
use super::programs::Programs;

impl Programs {
    /// Observes the program of a process as a part of the program of this number, which is observed for
    /// the same process of the peer. Returns that number.
    pub fn observe_rank(&mut self, pid: i32, program: u32, peer: &Peer) -> Result<u32, Refusal> {
        let rank = admission::process(pid, peer)?.task;
        let is_its = self.observations.get(program).is_some_and(|observed| {
            let asker = observed.asker;
            observed.uid == peer.uid && asker.tgid == peer.pid && asker.is_surely_alive()
        });
        if !is_its {
            let why = format!("no program {program} is observed for process {}", peer.pid);
            return refuse(Errno::ESRCH, why);
        }
        let last = self.balancer.observer().last().clone();
        let mut family = admission::with_ancestors(pid);
        let known = family.find_map(|pid| self.observations.program_of(pid, &last));
        if known == Some(program) {
            return Ok(program);
        }
        if known.is_some() || self.program_of(pid).is_some() {
            let why = format!("process {pid} is part of a program that the daemon knows already");
            return refuse(Errno::EBUSY, why);
        }
        self.observations.check_room(program)?;
        if let Err(why) = self.balancer.observer().follow(rank.tgid as u32, program) {
            return refuse(Errno::EIO, why.to_string());
        }
        self.observations.add_rank(program, rank);
        if !rank.is_alive() {
            // Where another process has its number, that one was followed instead. Otherwise there is
            // nothing to take back, and the other ranks are observed on.
            if TaskRef::of(rank.tgid).is_ok_and(|task| task != rank) {
                self.end_observation(program);
            }
            return refuse(Errno::ESRCH, format!("process {pid} has ended"));
        }
        Ok(program)
    }
}
