//! MPI jobs: the ranks on this machine are one program. The `run` of a rank lets it join, and lets it
//! leave when it has ended. The last one to leave gets the summary of all.

use evenkeel_control::Peer;
use evenkeel_journal::affinity;
use nix::errno::Errno;

use super::admission::{self, How, Refusal, refuse};
use super::programs::Programs;
use super::ranks::Ranks;
use crate::clock::{monotonic_ns, own_cpu_ns};
use crate::summary::{Alike, JobSummary, Run, Summary};

impl Programs {
    /// Lets a process join as a part of an MPI job of its user.
    pub fn join_job(&mut self, pid: i32, job: &str, peer: &Peer) -> Result<Vec<u32>, Refusal> {
        let candidate = admission::process(pid, peer)?;
        let how = How::Job(job.to_owned());
        let (rank, mask) = (candidate.task, affinity::get(candidate.task.tid));
        let uid = candidate.uid;
        let program = match self.job_of(&how, |of| of == uid) {
            None => self.admit(candidate, how, false)?,
            Some(program) => {
                if let Some(ranks) = self.ranks.get(&program) {
                    ranks.check_room(&rank, job)?;
                }
                self.end_observation_of(&rank);
                if let Err(why) = self.balancer.join(program, &rank) {
                    return refuse(Errno::EIO, why.to_string());
                }
                program
            }
        };
        self.ranks.entry(program).or_insert_with(Ranks::new).join(rank, mask.unwrap_or_default());
        Ok(vec![program])
    }

    fn job_of(&self, how: &How, is_user: impl Fn(u32) -> bool) -> Option<u32> {
        let mut joined = self.joined.iter();
        joined
            .find(|(_, joined)| joined.how == *how && is_user(joined.uid))
            .map(|(program, _)| *program)
    }

    /// A rank has ended. After the last one, the job ends: its tasks have their masks again, and its
    /// summary is returned.
    pub fn leave_job(
        &mut self,
        pid: i32,
        job: &str,
        peer: &Peer,
    ) -> Result<Option<Summary>, Refusal> {
        let found = self.job_of(&How::Job(job.to_owned()), |uid| peer.may_steer(uid));
        let Some((program, ranks)) =
            found.and_then(|program| Some((program, self.ranks.get_mut(&program)?)))
        else {
            return refuse(Errno::ESRCH, format!("you have no job {job} here"));
        };
        if !ranks.leave(pid) {
            return Ok(None);
        }
        let job = JobSummary {
            ranks: ranks.count(),
            is_bound: ranks.are_bound(),
            ..JobSummary::default()
        };
        let options = &self.settings.options;
        let run = Run {
            command: Vec::new(),
            exit_code: 0,
            elapsed_ns: monotonic_ns() - ranks.since_ns,
            accounting: self.balancer.observer().accounting(),
            why_not_exact: self.balancer.why_not_exact(),
            alike: Alike::default(),
            placement: options.placement,
            dry_run: options.dry_run,
            threads_per_cpu: None,
            own_cpu_ns: own_cpu_ns() - ranks.startup_cpu_ns,
            startup_cpu_ns: ranks.startup_cpu_ns,
        };
        let totals = self.end_and_count(program);
        self.save();
        Ok(totals.map(|totals| Summary { job: Some(job), ..Summary::new(run, &totals) }))
    }
}
