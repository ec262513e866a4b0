//! Which process balances the command of `run`: this one, a daemon, or the balancer that all ranks of a
//! job on this machine share. A rank asks for that balancer only once there is something to balance, so
//! a job on CPUs that are alike costs what a single command costs there.

use crate::summary::Summary;

/// The process that balances a command.
pub enum BalancedBy {
    /// The process that started it.
    ThisProcess,
    /// A daemon that it has joined already. This asks the daemon for the summary, once it has ended.
    Daemon(Box<dyn FnOnce() -> Option<Summary>>),
    /// The balancer of its job, which may not run yet.
    Job(Box<dyn Job>),
}

/// The job that a command is a rank of.
pub trait Job {
    /// What the job is called in the summary.
    fn name(&self) -> String;
    /// Whether this rank speaks for the ranks on this machine if none of them needs the balancer.
    fn is_speaker(&self) -> bool;
    /// Whether the balancer runs: another rank here has found a reason for it.
    fn has_balancer(&self) -> bool;
    /// Lets the command join the balancer, which is started if need be. False if that failed.
    fn join(&self, pid: u32) -> bool;
    /// The command has ended. Returns the summary of all ranks here if it was the last one; everything
    /// is given back then.
    fn leave(&self, pid: u32) -> Option<Summary>;
}
