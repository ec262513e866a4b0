//! Many address spaces of busy threads: processes that are all there before any of them begins.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

use evenkeel_experiment::guest::hogs::compute;

/// How often to look whether all threads are there.
const LOOK: Duration = Duration::from_millis(2);

/// Processes of busy threads, which end when this is dropped.
pub struct Crowd {
    pids: Vec<Pid>,
    threads: usize,
    /// They wait until this end is closed.
    gate: Option<UnixStream>,
}

impl Crowd {
    /// So many processes of so many threads each, all of which wait.
    ///
    /// # Errors
    /// One cannot be forked, or ends.
    pub fn gather(processes: usize, threads: usize) -> Result<Self> {
        let (gate, wait) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let mut crowd = Self { pids: Vec::new(), threads, gate: Some(gate) };
        for _ in 0..processes {
            // SAFETY: this process has one thread here; the child computes, and never returns.
            match unsafe { fork() }.context("cannot fork")? {
                ForkResult::Parent { child } => crowd.pids.push(child),
                ForkResult::Child => {
                    drop(crowd.gate.take());
                    be_busy(wait, threads);
                }
            }
        }
        while crowd.programs()?.len() < processes * threads {
            std::thread::sleep(LOOK);
        }
        Ok(crowd)
    }

    /// The processes' numbers.
    pub fn pids(&self) -> Vec<u32> {
        self.pids.iter().map(|pid| pid.as_raw() as u32).collect()
    }

    /// All threads, each with its process's place.
    ///
    /// # Errors
    /// A process has ended.
    pub fn programs(&self) -> Result<HashMap<u32, u32>> {
        let mut programs = HashMap::with_capacity(self.pids.len() * self.threads);
        for (at, pid) in self.pids().into_iter().enumerate() {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"));
            for task in tasks.with_context(|| format!("busy process {pid} has ended"))? {
                let name = task?.file_name();
                let tid = name.to_str().and_then(|name| name.parse().ok());
                programs.extend(tid.map(|tid: u32| (tid, at as u32)));
            }
        }
        Ok(programs)
    }

    /// From now on they compute.
    pub fn go(&mut self) {
        self.gate = None;
    }
}

/// What a forked process does until it is killed.
fn be_busy(gate: UnixStream, threads: usize) -> ! {
    // SAFETY: takes integers; asks the kernel to end this process with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let gate = Arc::new(gate);
    let busy = |gate: Arc<UnixStream>| -> ! {
        // Whether that is the end or an error: it begins.
        let _ = (&*gate).read(&mut [0]);
        loop {
            compute();
        }
    };
    for _ in 1..threads {
        let gate = Arc::clone(&gate);
        // The process that gathers the threads notices a missing one.
        let _ = std::thread::Builder::new().spawn(move || busy(gate));
    }
    busy(gate)
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for pid in &self.pids {
            // They are our children and have nothing to say.
            let _ = kill(*pid, Signal::SIGKILL);
        }
        for pid in &self.pids {
            let _ = waitpid(*pid, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_there_before_anybody_begins_and_gone_afterwards() {
        let mut crowd = Crowd::gather(2, 1).unwrap();
        let programs = crowd.programs().unwrap();
        assert_eq!(programs.len(), 2);
        assert_eq!(programs.values().filter(|at| **at == 1).count(), 1);
        crowd.go();
        let pids = crowd.pids();
        drop(crowd);
        for pid in pids {
            assert_eq!(kill(Pid::from_raw(pid as i32), None), Err(nix::errno::Errno::ESRCH));
        }
    }
}
