//! Jobs: a launcher starts each rank as `evenkeel run -- app`, and one balancer on each machine serves
//! all ranks there, so that they are balanced as one program. The first rank that finds something to
//! balance starts it; it ends with the last rank, before a batch system kills what is left.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::{AskError, Request, ask_within, remove_dead};
use evenkeel_host::{Job, JobSummary, Summary};
use evenkeel_journal::{TaskRef, runtime_dir, undo_earlier};
use serde_json::Value;

use crate::daemon_client::{JOIN_PATIENCE, STEPS_OF_A_JOIN};
use crate::launcher::{Launched, launched};

/// How long the balancer of a job may take to start.
const START_PATIENCE: Duration = Duration::from_secs(3);
// Slurm kills a job that it asked to end after 30 seconds (KillWait): until then a rank must hear of it.
const _: () = assert!(START_PATIENCE.as_secs() + STEPS_OF_A_JOIN * JOIN_PATIENCE.as_secs() < 30);
/// How long it may take to give everything back and to end.
const END_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The ranks of one job on this machine.
pub struct Ranks {
    launched: Launched,
    /// The same for all ranks here, and for no other job.
    name: String,
    dir: PathBuf,
    socket: PathBuf,
    /// Options of the balancer, if this rank starts it.
    options: Vec<OsString>,
}

impl Ranks {
    /// The job of this process, if a launcher started it as one of several ranks here.
    pub fn of_this_process(options: Vec<OsString>) -> Option<Self> {
        let launched = launched(|name| std::env::var(name).ok())?;
        let name = match &launched.name {
            Some(name) => format!("job-{name}"),
            None => {
                // All ranks on a machine have the same parent, the launcher's process there.
                let parent = std::os::unix::process::parent_id();
                let launcher = TaskRef::of(parent as i32).ok()?;
                format!("job-{}-{}", launcher.tgid, launcher.start_time_ticks)
            }
        };
        let dir = runtime_dir().ok()?;
        let socket = dir.join(format!("{name}.sock"));
        Some(Self { launched, name, dir, socket, options })
    }

    fn request(&self, request: &str, pid: u32) -> Request {
        Request::new(request).with("pid", pid).with("job", self.name.as_str())
    }

    fn try_join(&self, pid: u32) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        let mut is_started = false;
        loop {
            match ask_within(&self.socket, &self.request("join", pid), JOIN_PATIENCE) {
                Ok(_) => return Ok(()),
                Err(AskError::NoService { .. }) if Instant::now() < deadline => {}
                Err(why) => return Err(why.into()),
            }
            if !is_started {
                is_started = true;
                self.start_balancer()?;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn start_balancer(&self) -> Result<()> {
        // It ends by itself: with the job, or because the balancer of another rank was first.
        let mut daemon = Command::new("/proc/self/exe");
        daemon
            .arg0("evenkeel")
            .arg("daemon")
            .args(&self.options)
            .arg("--job")
            .arg(&self.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // SAFETY: one system call, between fork and exec.
        unsafe { daemon.pre_exec(leave_the_launcher) };
        daemon.spawn()?;
        Ok(())
    }

    /// Its balancer has ended before its last rank. Where that was killed with its supervisor, what it
    /// left is undone here.
    fn clear_away(&self) {
        if remove_dead(&self.socket) {
            undo_earlier(&self.dir);
        }
    }
}

impl Job for Ranks {
    fn name(&self) -> String {
        self.launched.title.clone()
    }

    fn is_speaker(&self) -> bool {
        self.launched.is_first
    }

    fn has_balancer(&self) -> bool {
        self.socket.exists()
    }

    fn join(&self, pid: u32) -> bool {
        let joined = self.try_join(pid);
        if let Err(why) = &joined {
            tracing::warn!("{why:#}; this process balances the program");
        }
        joined.is_ok()
    }

    fn leave(&self, pid: u32) -> Option<Summary> {
        let mut answer = match ask_within(&self.socket, &self.request("leave", pid), END_PATIENCE) {
            Ok(answer) => answer,
            Err(why) => {
                tracing::debug!("{why}");
                self.clear_away();
                return None;
            }
        };
        let summary = answer.get_mut("summary").map(Value::take)?;
        let mut summary: Summary = serde_json::from_value::<Option<Summary>>(summary)
            .inspect_err(|why| tracing::debug!("the summary of the job is not understood: {why}"))
            .ok()??;
        let deadline = Instant::now() + END_PATIENCE;
        // Its socket is the last that it removes.
        while self.socket.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ranks = summary.job.take().unwrap_or_default();
        let unbind = Some(self.launched.unbind.to_owned());
        summary.job = Some(JobSummary { name: self.name(), unbind, ..ranks });
        Some(summary)
    }
}

/// Marks the rank's descriptors (such as its connection to the launcher) to be closed by exec. The
/// balancer may outlive the rank, and the launcher would wait for it.
fn leave_the_launcher() -> std::io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // Fails before Linux 5.11, which does not know the flag: the launcher then waits.
    // SAFETY: a system call with three integers, which closes no descriptor now.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    Ok(())
}
