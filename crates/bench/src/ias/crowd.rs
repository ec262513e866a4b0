//! Many address spaces of busy threads: sysbench's memory program several times, and forked processes.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

use super::round::SYSBENCH;
use super::sched;
use crate::command::Running;
use crate::guest::hogs::compute;

/// How often to look whether all threads are there.
const LOOK: Duration = Duration::from_millis(20);

/// Programs of many threads that write to memory until they are dropped.
pub struct Programs(Vec<Running>);

impl Programs {
    /// So many, all of whose threads run.
    ///
    /// # Errors
    /// One cannot be started, or ends.
    pub fn start(programs: usize, threads: usize) -> Result<Self> {
        let threads_of = format!("--threads={threads}");
        let start = |_| {
            let mut command = Command::new(SYSBENCH);
            command.args(["memory", "--memory-block-size=4M", "--memory-total-size=100T"]);
            command.args(["--memory-oper=write", "--memory-scope=global", "--time=0"]);
            // SAFETY: two system calls; memory is allocated only to report an error.
            unsafe { command.pre_exec(|| sched::hurry().map_err(Into::into)) };
            Running::start(command.arg(&threads_of).arg("run"))
        };
        let all = Self((0..programs).map(start).collect::<Result<_>>()?);
        // The first thread only waits for the others.
        while all.threads()?.len() < programs * (threads + 1) {
            std::thread::sleep(LOOK);
        }
        Ok(all)
    }

    /// Their process numbers.
    pub fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Running::pid).collect()
    }

    /// All threads, each with its program's place.
    ///
    /// # Errors
    /// A program has ended.
    pub fn threads(&self) -> Result<HashMap<u32, u32>> {
        let mut threads = HashMap::new();
        for (at, pid) in self.pids().into_iter().enumerate() {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"))
                .with_context(|| format!("{SYSBENCH} has ended"))?;
            for task in tasks {
                let name = task?.file_name();
                let tid = name.to_str().and_then(|name| name.parse().ok());
                threads.extend(tid.map(|tid: u32| (tid, at as u32)));
            }
        }
        Ok(threads)
    }
}

impl Programs {
    /// Those threads that write; each program's first one only waits for them.
    ///
    /// # Errors
    /// As [`Self::threads`].
    pub fn workers(&self) -> Result<HashMap<u32, u32>> {
        let pids = self.pids();
        let mut threads = self.threads()?;
        threads.retain(|tid, _| !pids.contains(tid));
        Ok(threads)
    }
}

/// Processes of two busy threads each, which end when this is dropped.
pub struct Processes {
    pids: Vec<Pid>,
    /// They wait until this end is closed.
    gate: Option<UnixStream>,
}

impl Processes {
    /// So many, which do not compute yet.
    ///
    /// # Errors
    /// One cannot be forked.
    pub fn fork(count: usize) -> Result<Self> {
        let (gate, wait) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let mut processes = Self { pids: Vec::new(), gate: Some(gate) };
        for _ in 0..count {
            // SAFETY: this process has one thread here; the child computes, and never returns.
            match unsafe { fork() }.context("cannot fork")? {
                ForkResult::Parent { child } => processes.pids.push(child),
                ForkResult::Child => {
                    drop(processes.gate.take());
                    child(&wait);
                }
            }
        }
        Ok(processes)
    }

    /// Their process numbers.
    pub fn pids(&self) -> Vec<u32> {
        self.pids.iter().map(|pid| pid.as_raw() as u32).collect()
    }

    /// From now on they compute.
    pub fn go(&mut self) {
        self.gate = None;
    }
}

/// What a forked process does until it is killed.
fn child(mut gate: &UnixStream) -> ! {
    // SAFETY: takes integers; asks the kernel to end this process with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // Whether that is the end or an error: it begins.
    let _ = gate.read(&mut [0]);
    let _ = std::thread::Builder::new().spawn(|| {
        loop {
            compute()
        }
    });
    loop {
        compute();
    }
}

impl Drop for Processes {
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
