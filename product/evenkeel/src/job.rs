//! Ranks of an MPI program, each started by the launcher as `evenkeel run -- app`: one balancer on
//! each machine serves all of them, so that they are balanced against each other.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::{AskError, Request, ask};
use evenkeel_journal::{TaskRef, runtime_dir};

/// Variables that launchers set for each rank: MPICH's hydra (PMI), whatever speaks PMIx, Open MPI.
const RANK_VARIABLES: [&str; 3] = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"];

/// How long a balancer for a job may take to start.
const START_PATIENCE: Duration = Duration::from_secs(3);
const START_PAUSE: Duration = Duration::from_millis(20);

/// A part of an MPI job on this machine: what the launcher's process tells of it.
pub struct Job {
    /// The same for all ranks here, and for no other job.
    name: String,
    socket: PathBuf,
}

impl Job {
    /// If an MPI launcher started us.
    pub fn of_this_process() -> Option<Self> {
        RANK_VARIABLES.iter().find(|name| std::env::var_os(name).is_some())?;
        // All ranks on a machine have one parent: the launcher's process there.
        let launcher = TaskRef::of(std::os::unix::process::parent_id() as i32).ok()?;
        let name = format!("job-{}-{}", launcher.tgid, launcher.start_time_ticks);
        let socket = runtime_dir().ok()?.join(format!("{name}.sock"));
        Some(Self { name, socket })
    }

    fn request(&self, pid: u32) -> Request {
        Request::new("join").with("pid", pid).with("job", self.name.as_str())
    }

    /// Has a rank's process balanced together with the others. One balancer serves all ranks here:
    /// whoever comes first starts it, with these options.
    ///
    /// # Errors
    /// It cannot be started, or refuses.
    pub fn join(&self, pid: u32, options: &[OsString]) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        let mut is_started = false;
        loop {
            match ask(&self.socket, &self.request(pid)) {
                Ok(_) => return Ok(()),
                Err(AskError::Nobody { .. }) if Instant::now() < deadline => {}
                Err(why) => return Err(why.into()),
            }
            if !is_started {
                is_started = true;
                // Ends by itself, with the job or because another rank's was first.
                let mut daemon = Command::new("/proc/self/exe");
                daemon
                    .arg("daemon")
                    .args(options)
                    .arg("--job")
                    .arg(&self.socket)
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .process_group(0);
                // SAFETY: one system call, between fork and exec.
                unsafe { daemon.pre_exec(leave_the_launcher) };
                daemon.spawn()?;
            }
            std::thread::sleep(START_PAUSE);
        }
    }
}

/// Keeps what the launcher gave this rank (its end of a connection, for one) from going on to a
/// program that may outlive the rank: the launcher would wait for that, too.
fn leave_the_launcher() -> std::io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // Not fatal where the kernel does not know the flag (before 5.11): the launcher waits then.
    // SAFETY: three integers. Marks descriptors to be closed by exec, closes none of them now.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    Ok(())
}
