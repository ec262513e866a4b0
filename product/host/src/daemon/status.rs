//! What is told of the joined programs, and of those that ended or left last. A user sees its own, and
//! root all.

use std::collections::BTreeMap;

use evenkeel_control::Peer;
use evenkeel_journal::TaskRef;

use super::admission::{self, How};
use super::programs::{Joined, Programs};
use crate::clock::started_ns;
use crate::observe::Accounting;
use crate::status_file::ProgramStatus;

impl Programs {
    /// The status of the peer's programs (of all, for root).
    pub fn status(&mut self, peer: &Peer) -> Vec<ProgramStatus> {
        let accounting = self.balancer.observer().accounting();
        let Ok(balancer) = TaskRef::own_process() else { return Vec::new() };
        let mine: Vec<(&u32, &Joined)> =
            self.joined.iter().filter(|(_, joined)| peer.may_steer(joined.uid)).collect();
        let mut commands = commands_of(mine.iter().map(|(_, joined)| *joined));
        let status = |(program, joined): (&u32, &Joined)| {
            let command = commands.remove(&joined.root);
            self.status_of(*program, joined, command, balancer, accounting)
        };
        mine.into_iter().filter_map(status).collect()
    }

    /// The status of one program.
    pub(super) fn status_now(&mut self, program: u32) -> Option<ProgramStatus> {
        let accounting = self.balancer.observer().accounting();
        let balancer = TaskRef::own_process().ok()?;
        let joined = self.joined.get(&program)?;
        let command = commands_of([joined]).remove(&joined.root);
        self.status_of(program, joined, command, balancer, accounting)
    }

    /// The peer's programs that ended or left last (of all users, for root), in this order.
    pub fn ended(&self, peer: &Peer) -> Vec<ProgramStatus> {
        self.ended.seen_by(peer).map(|ended| ended.status.clone()).collect()
    }

    /// Keeps the command lines that processes have now, for when they have ended: they may have called
    /// exec since they joined, as the first process of a container does.
    pub(super) fn note_commands(&mut self) {
        let mut commands = commands_of(self.joined.values());
        for joined in self.joined.values_mut() {
            if let Some(command) = commands.remove(&joined.root) {
                joined.command = command;
            }
        }
    }

    /// `command`: its command line, if it could be read now.
    fn status_of(
        &self,
        program: u32,
        joined: &Joined,
        command: Option<Vec<String>>,
        balancer: TaskRef,
        accounting: Accounting,
    ) -> Option<ProgramStatus> {
        let options = &self.settings.options;
        let totals = self.balancer.totals(program)?;
        let (waits, threads) = self.balancer.waits(program)?;
        Some(ProgramStatus {
            resting: false,
            balancer,
            program: Some(program),
            root: joined.root.tgid as u32,
            user: Some(joined.uid),
            started_ns: Some(started_ns(&joined.root)),
            elapsed_ns: None,
            ended_ns: None,
            command: command.unwrap_or_else(|| joined.command.clone()),
            accounting,
            placement: options.placement,
            dry_run: options.dry_run || joined.watch,
            intervals: totals.intervals,
            moves: totals.moves,
            yielded: totals.yielded,
            gain: totals.gain().clone(),
            shares: self.balancer.shares(program),
            cpus: totals.cpus(),
            waits,
            threads,
            decisions: self.balancer.decisions(program).cloned().collect(),
        })
    }
}

/// The command lines that programs have now, of those that are called by that of their first process.
fn commands_of<'a>(joined: impl IntoIterator<Item = &'a Joined>) -> BTreeMap<TaskRef, Vec<String>> {
    let of_process = joined.into_iter().filter(|joined| joined.how == How::Process);
    admission::commands_of(of_process.map(|joined| &joined.root))
}
