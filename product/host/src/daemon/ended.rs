//! The programs that ended or left last, with their last decisions, for a user that asks afterwards.
//! They are kept in memory only, and few of each user, so that no user can fill the memory that all
//! share.

use std::collections::{BTreeMap, VecDeque};

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
/// How many summaries of one user are kept: many ranks may end together, and the `run` of each asks for
/// its own.
const SUMMARIES_PER_USER: usize = 128;
/// How many summaries are kept in all.
const SUMMARIES: usize = 512;

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

/// What is shown of a program.
#[derive(Debug)]
pub(crate) struct Shown {
    uid: u32,
    /// As it was at its end.
    pub status: ProgramStatus,
}

/// How a program went.
#[derive(Debug)]
struct Told {
    uid: u32,
    root: TaskRef,
    summary: Summary,
}

/// Those that ended or left last, in this order.
#[derive(Debug, Default)]
pub(crate) struct EndedPrograms {
    programs: VecDeque<Shown>,
    summaries: VecDeque<Told>,
}

impl EndedPrograms {
    /// Keeps a program. Where there is no room, the oldest one of the same user is forgotten, or else of
    /// the user with most.
    pub fn keep(&mut self, ended: Ended) {
        let Ended { uid, root, mut status, summary } = ended;
        let decisions = &mut status.decisions;
        let skipped = decisions.len().saturating_sub(KEPT_DECISIONS);
        decisions.drain(..skipped);
        // They have ended, and there may be thousands: clear() would keep their memory.
        status.threads = Vec::new();
        // The `run` that asks for the summary knows the command.
        let summary = Summary { command: Vec::new(), ..summary };
        make_room(&mut self.programs, uid, (KEPT_PER_USER, KEPT), |shown| shown.uid);
        make_room(&mut self.summaries, uid, (SUMMARIES_PER_USER, SUMMARIES), |told| told.uid);
        self.programs.push_back(Shown { uid, status });
        self.summaries.push_back(Told { uid, root, summary });
    }

    /// Those that a user may see: its own, and for root all.
    pub fn seen_by(&self, peer: &Peer) -> impl Iterator<Item = &Shown> {
        self.programs.iter().filter(move |shown| peer.may_steer(shown.uid))
    }

    /// The summary of the last one that is meant.
    pub fn summary(&self, is_meant: impl Fn(u32, &TaskRef) -> bool) -> Option<&Summary> {
        let mut newest_first = self.summaries.iter().rev();
        let found = newest_first.find(|told| is_meant(told.uid, &told.root));
        found.map(|told| &told.summary)
    }
}

/// Makes room for one more of a user, where so many of a user and so many in all are kept. The oldest
/// one of the same user is forgotten, or else of the user with most; of several such users, of the user
/// of the one that is the oldest.
fn make_room<T>(
    kept: &mut VecDeque<T>,
    uid: u32,
    (most_per_user, most): (usize, usize),
    uid_of: impl Fn(&T) -> u32,
) {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for one in kept.iter() {
        *counts.entry(uid_of(one)).or_default() += 1;
    }
    let greediest = || {
        let largest = counts.values().max()?;
        kept.iter().map(&uid_of).find(|uid| counts.get(uid) == Some(largest))
    };
    let loser = match counts.get(&uid) {
        Some(count) if *count >= most_per_user => Some(uid),
        _ if kept.len() >= most => greediest(),
        _ => None,
    };
    let place = loser.and_then(|loser| kept.iter().position(|one| uid_of(one) == loser));
    if let Some(place) = place {
        kept.remove(place);
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
        programs.seen_by(&Peer { uid, pid: 0 }).map(|shown| shown.status.root).collect()
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
        let decisions = &programs.programs[0].status.decisions;
        let times: Vec<u64> = decisions.iter().map(|decision| decision.at_ns).collect();
        assert_eq!(times, (54..64).collect::<Vec<_>>());
        // The `run` of each may still ask for its summary.
        assert!((1..=20).all(|pid| programs.summary(|_, root| root.tgid == pid).is_some()));
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
        assert_eq!(programs.programs.len(), KEPT);
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
        for (what, per_user, all) in [
            ("programs that ended or left, which the daemon remembers", KEPT_PER_USER, KEPT),
            ("summaries of such programs, for `run --join`", SUMMARIES_PER_USER, SUMMARIES),
        ] {
            let row = format!("| {what} | {per_user}; of all users {all} |");
            assert!(guide.contains(&row), "{row}");
        }
    }
}
