//! The programs that ended or left last, with their last decisions, for a user that asks afterwards.
//! They are kept in memory only, and few of each user, so that no user can fill the memory that all
//! share.

use std::collections::VecDeque;

use evenkeel_control::Peer;
use evenkeel_journal::TaskRef;

use crate::status_file::ProgramStatus;
use crate::summary::Summary;

/// How many programs of one user are kept (docs/guide.md names these numbers).
const KEPT_PER_USER: usize = 8;
/// How many programs are kept in all.
const KEPT: usize = 64;
/// How many of its last decisions are kept of each program.
const KEPT_DECISIONS: usize = 10;

/// A program that ended or left.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// Its user.
    pub uid: u32,
    /// Its first process.
    pub root: TaskRef,
    /// As it was at its end.
    pub status: ProgramStatus,
    /// How it went.
    pub summary: Summary,
}

/// Those that ended or left last, in this order.
#[derive(Debug, Default)]
pub(crate) struct EndedPrograms(VecDeque<Ended>);

impl EndedPrograms {
    /// Keeps a program. Where there is no room, the oldest one of the same user is forgotten, or else of
    /// the user with most.
    pub fn keep(&mut self, mut ended: Ended) {
        let decisions = &mut ended.status.decisions;
        let skipped = decisions.len().saturating_sub(KEPT_DECISIONS);
        decisions.drain(..skipped);
        // They have ended, and there may be thousands.
        ended.status.threads.clear();
        if self.count_of(ended.uid) >= KEPT_PER_USER {
            self.forget_oldest_of(ended.uid);
        } else if self.0.len() >= KEPT
            && let Some(uid) = self.greediest()
        {
            self.forget_oldest_of(uid);
        }
        self.0.push_back(ended);
    }

    /// Those that a user may see: its own, and for root all.
    pub fn seen_by(&self, peer: &Peer) -> impl Iterator<Item = &Ended> {
        self.0.iter().filter(move |ended| peer.may_steer(ended.uid))
    }

    /// The summary of the last one that is meant.
    pub fn summary(&self, is_meant: impl Fn(u32, &TaskRef) -> bool) -> Option<&Summary> {
        let mut newest_first = self.0.iter().rev();
        let found = newest_first.find(|ended| is_meant(ended.uid, &ended.root));
        found.map(|ended| &ended.summary)
    }

    fn count_of(&self, uid: u32) -> usize {
        self.0.iter().filter(|ended| ended.uid == uid).count()
    }

    /// The user with most programs here; of several, the user of the program that ended first.
    fn greediest(&self) -> Option<u32> {
        let most = self.0.iter().map(|ended| self.count_of(ended.uid)).max()?;
        let mut users = self.0.iter().map(|ended| ended.uid);
        users.find(|uid| self.count_of(*uid) == most)
    }

    fn forget_oldest_of(&mut self, uid: u32) {
        if let Some(place) = self.0.iter().position(|ended| ended.uid == uid) {
            self.0.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::observe::Accounting;
    use crate::options::Placement;
    use crate::summary::{Alike, Run, Totals};

    fn summary(elapsed_ns: u64) -> Summary {
        let run = Run {
            command: Vec::new(),
            exit_code: 0,
            elapsed_ns,
            accounting: Accounting::Cbinfo,
            why_not_exact: None,
            alike: Alike::default(),
            placement: Placement::Soft,
            dry_run: false,
            threads_per_cpu: None,
            own_cpu_ns: 0,
            startup_cpu_ns: 0,
        };
        Summary::new(run, &Totals::default())
    }

    /// A program of a user, with as many decisions, each at another time.
    fn ended(uid: u32, root: u32, decisions: u64) -> Ended {
        let decision = |at_ns: u64| {
            json!({"at_ns": at_ns, "interval_ns": 1, "average_per_mille": 1, "cpus": [], "moves": [],
                   "reasons": [], "refused": []})
        };
        let list: Vec<Value> = (0..decisions).map(decision).collect();
        let status = serde_json::from_value(json!({
            "balancer": {"tid": 8, "tgid": 8, "start": 5}, "program": 1, "root": root, "command": [],
            "accounting": "cbinfo", "placement": "soft", "dry_run": false, "intervals": 1, "moves": 0,
            "cpus": [], "decisions": list,
        }));
        let task = TaskRef { tid: root as i32, tgid: root as i32, start_time_ticks: decisions };
        Ended { uid, root: task, status: status.unwrap(), summary: summary(root.into()) }
    }

    fn roots(programs: &EndedPrograms, uid: u32) -> Vec<u32> {
        programs.seen_by(&Peer { uid, pid: 0 }).map(|ended| ended.status.root).collect()
    }

    #[test]
    fn the_last_few_programs_of_a_user_are_kept_with_their_last_decisions() {
        let mut programs = EndedPrograms::default();
        for root in 1..=20 {
            programs.keep(ended(7, root, 64));
        }
        programs.keep(ended(9, 21, 1));
        assert_eq!(roots(&programs, 7), (13..=20).collect::<Vec<_>>());
        // A user sees its own, and root all.
        assert_eq!(roots(&programs, 9), [21]);
        assert_eq!(roots(&programs, 0).len(), KEPT_PER_USER + 1);
        let decisions = &programs.0[0].status.decisions;
        let times: Vec<u64> = decisions.iter().map(|decision| decision.at_ns).collect();
        assert_eq!(times, (54..64).collect::<Vec<_>>());
    }

    #[test]
    fn many_users_fill_no_more_and_take_none_of_a_user_with_fewer() {
        let mut programs = EndedPrograms::default();
        programs.keep(ended(1000, 1, 1));
        for uid in 1..=20 {
            for root in 2..=9 {
                programs.keep(ended(uid, root, 1));
            }
        }
        assert_eq!(programs.0.len(), KEPT);
        assert_eq!(roots(&programs, 1000), [1]);
        assert!((1..=20).all(|uid| roots(&programs, uid).last() == Some(&9)));
    }

    #[test]
    fn of_programs_with_one_number_the_last_one_is_found_unless_its_start_is_named() {
        let mut programs = EndedPrograms::default();
        for start in 1..=3 {
            programs.keep(Ended { summary: summary(start), ..ended(7, 1234, start) });
        }
        let elapsed_ns = |is_meant: &dyn Fn(u32, &TaskRef) -> bool| {
            programs.summary(is_meant).map(|summary| summary.elapsed_ns)
        };
        assert_eq!(elapsed_ns(&|uid, root| uid == 7 && root.tgid == 1234), Some(3));
        assert_eq!(elapsed_ns(&|_, root| root.start_time_ticks == 2), Some(2));
        assert_eq!(elapsed_ns(&|uid, _| uid == 8), None);
    }

    #[test]
    fn the_guide_says_how_many_are_kept() {
        let guide = include_str!("../../../../docs/guide.md");
        let row = format!(
            "| programs that ended or left, which the daemon remembers | {KEPT_PER_USER}; of all users \
             {KEPT} |"
        );
        assert!(guide.contains(&row), "{row}");
    }
}
