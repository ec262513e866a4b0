//! What balancers of their own, those of `run` and of jobs, told the daemon of their programs, for the
//! metrics. The daemon neither balances these programs nor checks what it is told: whether a program
//! gains is its user's own word, and how much a user can tell is bounded.

use std::collections::BTreeMap;

use evenkeel_control::Peer;
use evenkeel_journal::TaskRef;
use nix::errno::Errno;
use procfs::process::Process;

use super::admission::{Refusal, refuse};
use super::known_metrics::MAX_RUN_PACES;
use super::statistics::RunPace;
use crate::proof::Proven;
use crate::tell::MAX_PACE_MILLI;

/// Most programs of one user.
const MAX_PER_USER: usize = 64;
/// Most programs of all users but root: one user may own thousands of user numbers (`/etc/subuid`).
const MAX_OF_USERS: usize = 512;
/// Most of them that have a series of their own: those of other users have one, too.
const MAX_PACES_PER_USER: usize = 16;
/// What was told so long ago is no figure of now. Longer than the rests in which a balancer tells
/// nothing (80 s, twice that where it cannot go on at once) and than the pause after a daemon that did
/// not answer (160 s) together.
const MAX_AGE_NS: u64 = 400_000_000_000;
/// The longest number of a step.
const MAX_STEP_BYTES: usize = 32;

/// What is told of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldProgram {
    proven: Proven,
    pace_milli: Option<u64>,
    step: String,
}

impl ToldProgram {
    /// A program with these figures.
    ///
    /// # Errors
    /// The pace is none, or the step is no number like `77.0`: a label names no user and no file.
    pub fn new(proven: Proven, pace_milli: Option<u64>, step: String) -> Result<Self, Refusal> {
        if let Some(milli) = pace_milli.filter(|milli| !(1..=MAX_PACE_MILLI).contains(milli)) {
            let why = format!("the pace {milli} is not from 1 to {MAX_PACE_MILLI}");
            return refuse(Errno::EINVAL, why);
        }
        let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        if step.len() > MAX_STEP_BYTES || !step.bytes().all(is_number) {
            return refuse(Errno::EINVAL, "the step is not a number like 77.0");
        }
        Ok(Self { proven, pace_milli, step })
    }
}

/// A program of which a balancer told.
#[derive(Debug)]
struct Entry {
    uid: u32,
    /// The process that told of it: the program is known for as long as that lives.
    balancer: TaskRef,
    told: ToldProgram,
    told_at_ns: u64,
}

impl Entry {
    fn is_of_now(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.told_at_ns) <= MAX_AGE_NS
    }
}

/// The programs that balancers told of, by a number that no other one of them gets.
#[derive(Debug, Default)]
pub(crate) struct ToldPrograms {
    programs: BTreeMap<u32, Entry>,
    last: u32,
}

impl ToldPrograms {
    /// Takes what a balancer tells of its program. Returns the program's number.
    pub fn tell(&mut self, peer: &Peer, told: ToldProgram, now_ns: u64) -> Result<u32, Refusal> {
        let unseen = || Refusal {
            errno: Errno::ESRCH,
            why: "only a process that the daemon sees can tell of its program".to_owned(),
        };
        let balancer = TaskRef::of(peer.pid).map_err(|_| unseen())?;
        // The process that connected may have ended, and its number may be that of another user's now.
        let status = Process::new(peer.pid).and_then(|process| process.status());
        let is_its =
            status.is_ok_and(|status| status.euid == peer.uid) && balancer.is_surely_alive();
        if is_its { self.insert(peer.uid, balancer, told, now_ns) } else { Err(unseen()) }
    }

    fn insert(
        &mut self,
        uid: u32,
        balancer: TaskRef,
        told: ToldProgram,
        told_at_ns: u64,
    ) -> Result<u32, Refusal> {
        let mut programs = self.programs.iter_mut();
        if let Some((number, entry)) = programs.find(|(_, entry)| entry.balancer == balancer) {
            // Each other user and step would be another series.
            if entry.uid != uid {
                let why = format!("this process told of its program as user {}", entry.uid);
                return refuse(Errno::EPERM, why);
            }
            let step = std::mem::take(&mut entry.told.step);
            entry.told = ToldProgram { step, ..told };
            entry.told_at_ns = told_at_ns;
            return Ok(*number);
        }
        self.make_room(uid, told_at_ns)?;
        self.last = self.last.saturating_add(1);
        self.programs.insert(self.last, Entry { uid, balancer, told, told_at_ns });
        Ok(self.last)
    }

    /// Makes room for another program of a user, if there may be one.
    fn make_room(&mut self, uid: u32, now_ns: u64) -> Result<(), Refusal> {
        let of_users = || self.programs.iter().filter(|(_, entry)| entry.uid != 0);
        if uid == 0 {
            return Ok(());
        }
        if of_users().filter(|(_, entry)| entry.uid == uid).count() >= MAX_PER_USER {
            let why = format!("user {uid} has told of {MAX_PER_USER} programs already");
            return refuse(Errno::EAGAIN, why);
        }
        if of_users().count() >= MAX_OF_USERS {
            // What was told of long ago has no figures any more.
            let old = of_users().filter(|(_, entry)| !entry.is_of_now(now_ns));
            let oldest = old.min_by_key(|(_, entry)| entry.told_at_ns).map(|(number, _)| *number);
            let Some(oldest) = oldest else {
                let why = format!("users have told of {MAX_OF_USERS} programs already");
                return refuse(Errno::EAGAIN, why);
            };
            self.programs.remove(&oldest);
        }
        Ok(())
    }

    /// Forgets the programs of balancers that have ended.
    pub fn forget_ended(&mut self) {
        self.programs.retain(|_, entry| entry.balancer.is_alive());
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// How many there are with this known of their gain, where that is not known from long ago.
    pub fn count_of(&self, proven: Proven, now_ns: u64) -> usize {
        let of_now = self.programs.values().filter(|entry| entry.is_of_now(now_ns));
        of_now.filter(|entry| entry.told.proven == proven).count()
    }

    /// The paces that were measured not long ago and are not withdrawn, as many as have a series: first
    /// one of each user, then a second one, and so on. Of a user, those that are there the longest.
    pub fn paces(&self, now_ns: u64) -> BTreeMap<u32, RunPace> {
        let mut of_user: BTreeMap<u32, usize> = BTreeMap::new();
        let mut by_turn = BTreeMap::new();
        let of_now = self.programs.iter().filter(|(_, entry)| entry.is_of_now(now_ns));
        for (number, Entry { uid, told, .. }) in of_now {
            let Some(pace_milli) = told.pace_milli.filter(|_| told.proven != Proven::Withdrawn)
            else {
                continue;
            };
            let turn = of_user.entry(*uid).or_default();
            if *turn < MAX_PACES_PER_USER {
                let step = told.step.clone();
                by_turn.insert((*turn, *number), RunPace { user: *uid, step, pace_milli });
            }
            *turn += 1;
        }
        let chosen = by_turn.into_iter().take(MAX_RUN_PACES);
        chosen.map(|((_, number), pace)| (number, pace)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of these tests.
    const NOW_NS: u64 = 5;

    fn told(proven: Proven, pace_milli: Option<u64>) -> ToldProgram {
        ToldProgram::new(proven, pace_milli, "77.0".to_owned()).unwrap()
    }

    /// No such process runs: it would have been started before all others.
    fn balancer(tid: i32) -> TaskRef {
        TaskRef { tid, tgid: tid, start_time_ticks: 1 }
    }

    #[test]
    fn a_balancer_has_one_program_and_takes_it_along() {
        let uid = nix::unistd::geteuid().as_raw();
        let own = Peer { uid, pid: std::process::id() as i32 };
        let mut programs = ToldPrograms::default();
        let first = programs.tell(&own, told(Proven::Measuring, None), NOW_NS).unwrap();
        assert_eq!(programs.tell(&own, told(Proven::Gains, Some(1_220)), NOW_NS).unwrap(), first);
        assert_eq!((programs.count(), programs.count_of(Proven::Gains, NOW_NS)), (1, 1));
        let pace = RunPace { user: uid, step: "77.0".to_owned(), pace_milli: 1_220 };
        assert_eq!(programs.paces(NOW_NS), BTreeMap::from([(first, pace)]));
        programs.insert(7, balancer(4_194_305), told(Proven::Gains, None), NOW_NS).unwrap();
        programs.forget_ended();
        assert_eq!(programs.count(), 1, "the other balancer does not run");
        // Not seen from here, and with the number of another user's process.
        for peer in [Peer { uid, pid: 0 }, Peer { uid: uid + 1, ..own }] {
            let refused = programs.tell(&peer, told(Proven::Gains, None), NOW_NS).unwrap_err();
            assert_eq!(refused.errno, Errno::ESRCH, "{peer:?}");
        }
        programs.tell(&own, told(Proven::Withdrawn, Some(990)), NOW_NS).unwrap();
        assert!(programs.paces(NOW_NS).is_empty(), "what was withdrawn has no effect on the pace");
    }

    #[test]
    fn a_user_takes_no_room_of_others() {
        let mut programs = ToldPrograms::default();
        let gains = || told(Proven::Gains, Some(1_220));
        for tid in 1..=MAX_PER_USER as i32 {
            programs.insert(7, balancer(tid), gains(), NOW_NS).unwrap();
        }
        let refused = programs.insert(7, balancer(1_000), gains(), NOW_NS).unwrap_err();
        assert_eq!(refused.errno, Errno::EAGAIN);
        // What it has told of already, it may go on to tell of.
        assert_eq!(programs.insert(7, balancer(1), gains(), NOW_NS).unwrap(), 1);
        for uid in [0, 8] {
            programs.insert(uid, balancer(2_000 + uid as i32), gains(), NOW_NS).unwrap();
        }
        let paces = programs.paces(NOW_NS);
        let of = |user| paces.values().filter(|pace| pace.user == user).count();
        assert_eq!((of(7), of(8), of(0)), (MAX_PACES_PER_USER, 1, 1));
        for tid in 1..=MAX_PER_USER as i32 + 1 {
            programs.insert(0, balancer(3_000 + tid), gains(), NOW_NS).unwrap();
        }
    }

    #[test]
    fn users_with_many_programs_leave_series_to_others() {
        let mut programs = ToldPrograms::default();
        let gains = || told(Proven::Gains, Some(1_220));
        // They were there first.
        for tid in 1..=4 * MAX_PACES_PER_USER as i32 {
            programs.insert(tid as u32 % 4, balancer(tid), gains(), NOW_NS).unwrap();
        }
        assert_eq!(programs.paces(NOW_NS).len(), MAX_RUN_PACES);
        for tid in 1_001..=1_010 {
            programs.insert(tid as u32, balancer(tid), gains(), NOW_NS).unwrap();
        }
        let paces = programs.paces(NOW_NS);
        let of = |user| paces.values().filter(|pace| pace.user == user).count();
        assert_eq!(paces.len(), MAX_RUN_PACES);
        assert!((1_001..=1_010).all(|user| of(user) == 1), "{paces:?}");
        assert!((0..4).all(|user| (13..=14).contains(&of(user))), "{paces:?}");
    }

    #[test]
    fn the_step_of_a_program_stays_what_it_was() {
        let mut programs = ToldPrograms::default();
        for step in ["77.0", "78.0"] {
            let told = ToldProgram::new(Proven::Gains, Some(1_220), step.to_owned()).unwrap();
            programs.insert(7, balancer(1), told, NOW_NS).unwrap();
        }
        let paces = programs.paces(NOW_NS);
        assert!(paces.len() == 1 && paces[&1].step == "77.0", "{paces:?}");
    }

    #[test]
    fn what_was_told_long_ago_is_no_figure_of_now() {
        let mut programs = ToldPrograms::default();
        programs.insert(7, balancer(1), told(Proven::Gains, Some(1_220)), NOW_NS).unwrap();
        let figures = |programs: &ToldPrograms, now_ns| {
            let gains = programs.count_of(Proven::Gains, now_ns);
            (programs.count(), gains, programs.paces(now_ns).len())
        };
        let last_ns = NOW_NS + MAX_AGE_NS;
        assert_eq!(figures(&programs, last_ns), (1, 1, 1));
        // Its balancer may live on, and tell again.
        assert_eq!(figures(&programs, last_ns + 1), (1, 0, 0));
        let again = told(Proven::Gains, Some(1_220));
        assert_eq!(programs.insert(7, balancer(1), again, last_ns + 1).unwrap(), 1);
        assert_eq!(figures(&programs, last_ns + 1), (1, 1, 1));
    }

    #[test]
    fn a_process_with_many_user_numbers_has_one_program() {
        let mut programs = ToldPrograms::default();
        let gains = || told(Proven::Gains, Some(1_220));
        programs.insert(100_000, balancer(1), gains(), NOW_NS).unwrap();
        for uid in 100_001..165_536 {
            let refused = programs.insert(uid, balancer(1), gains(), NOW_NS).unwrap_err();
            assert_eq!(refused.errno, Errno::EPERM);
        }
        assert_eq!((programs.count(), programs.paces(NOW_NS).len()), (1, 1));
        assert!(programs.paces(NOW_NS).values().all(|pace| pace.user == 100_000));
    }

    #[test]
    fn many_user_numbers_take_bounded_room_and_none_of_root() {
        let mut programs = ToldPrograms::default();
        let gains = || told(Proven::Gains, Some(1_220));
        for tid in 1..=MAX_OF_USERS as i32 {
            programs.insert(100_000 + tid as u32, balancer(tid), gains(), NOW_NS).unwrap();
        }
        let refused = programs.insert(7, balancer(1_000), gains(), NOW_NS).unwrap_err();
        assert_eq!(refused.errno, Errno::EAGAIN);
        programs.insert(0, balancer(1_001), gains(), NOW_NS).unwrap();
        // A known process may go on, and then the one that told last is not the oldest.
        programs.insert(100_001, balancer(1), gains(), NOW_NS + 1).unwrap();
        assert_eq!(programs.count(), MAX_OF_USERS + 1);
        let later_ns = NOW_NS + MAX_AGE_NS + 1;
        assert_eq!(programs.insert(7, balancer(1_000), gains(), later_ns).unwrap(), 514);
        assert_eq!(programs.count(), MAX_OF_USERS + 1);
        assert!(programs.programs.contains_key(&1) && !programs.programs.contains_key(&2));
        programs.forget_ended();
        assert_eq!(programs.count(), 0);
        programs.insert(7, balancer(1_000), gains(), NOW_NS).unwrap();
    }

    #[test]
    fn a_label_holds_numbers_only() {
        for step in ["root", "77.batch", "77\"} 1", "../..", &"7".repeat(33)] {
            let refused = ToldProgram::new(Proven::Gains, None, step.to_owned()).unwrap_err();
            assert_eq!(refused.errno, Errno::EINVAL, "{step}");
        }
        for pace in [0, MAX_PACE_MILLI + 1] {
            assert!(ToldProgram::new(Proven::Gains, Some(pace), String::new()).is_err(), "{pace}");
        }
        assert!(ToldProgram::new(Proven::Gains, Some(1), String::new()).is_ok());
    }
}
