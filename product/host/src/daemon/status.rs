//! What is told of the joined programs, and of those that ended or left last. A user sees its own, and
//! root all.

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
        let mine = self.joined.iter().filter(|(_, joined)| peer.may_steer(joined.uid));
        let status = |(program, joined): (&u32, &Joined)| {
            self.status_of(*program, joined, balancer, accounting)
        };
        mine.filter_map(status).collect()
    }

    /// The status of one program.
    pub(super) fn status_now(&mut self, program: u32) -> Option<ProgramStatus> {
        let accounting = self.balancer.observer().accounting();
        let balancer = TaskRef::own_process().ok()?;
        self.status_of(program, self.joined.get(&program)?, balancer, accounting)
    }

    /// The peer's programs that ended or left last (of all users, for root), in this order.
    pub fn ended(&self, peer: &Peer) -> Vec<ProgramStatus> {
        self.ended.seen_by(peer).map(|ended| ended.status.clone()).collect()
    }

    /// Keeps the command lines that processes have now, for when they have ended: they may have called
    /// exec since they joined, as the first process of a container does.
    pub(super) fn note_commands(&mut self) {
        for joined in self.joined.values_mut().filter(|joined| joined.how == How::Process) {
            if let Some(command) = admission::command_of(&joined.root) {
                joined.command = command;
            }
        }
    }

    fn status_of(
        &self,
        program: u32,
        joined: &Joined,
        balancer: TaskRef,
        accounting: Accounting,
    ) -> Option<ProgramStatus> {
        let options = &self.settings.options;
        let totals = self.balancer.totals(program)?;
        let (waits, threads) = self.balancer.waits(program)?;
        let is_process = joined.how == How::Process;
        let command = is_process.then(|| admission::command_of(&joined.root)).flatten();
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
