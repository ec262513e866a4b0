//! MPI jobs. The launcher starts each rank as `evenkeel run -- app`, and one balancer on each machine
//! serves all ranks there, so that they are balanced as one program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::{AskError, Request, ask};
use evenkeel_journal::{TaskRef, runtime_dir};

/// Variables that launchers set for each rank: MPICH's hydra (PMI), launchers with PMIx, Open MPI.
pub const RANK_VARIABLES: [&str; 3] = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"];

/// How long the balancer of a job may take to start.
const START_PATIENCE: Duration = Duration::from_secs(3);
const START_PAUSE: Duration = Duration::from_millis(20);

/// The ranks of one MPI job on this machine.
pub struct MpiJob {
    /// The same for all ranks here, and for no other job.
    name: String,
    socket: PathBuf,
}

impl MpiJob {
    /// The job of this process, if an MPI launcher started it.
    pub fn of_this_process() -> Option<Self> {
        RANK_VARIABLES.iter().find(|name| std::env::var_os(name).is_some())?;
        // All ranks on a machine have the same parent, the launcher's process there.
        let launcher = TaskRef::of(std::os::unix::process::parent_id() as i32).ok()?;
        let name = format!("job-{}-{}", launcher.tgid, launcher.start_time_ticks);
        let socket = runtime_dir().ok()?.join(format!("{name}.sock"));
        Some(Self { name, socket })
    }

    fn request(&self, pid: u32) -> Request {
        Request::new("join").with("pid", pid).with("job", self.name.as_str())
    }

    /// Lets a rank's process join the balancer of the job. The first rank starts it, with these options.
    ///
    /// # Errors
    /// The balancer cannot be started, or refuses.
    pub fn join(&self, pid: u32, options: &[OsString]) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        let mut is_started = false;
        loop {
            match ask(&self.socket, &self.request(pid)) {
                Ok(_) => return Ok(()),
                Err(AskError::NoService { .. }) if Instant::now() < deadline => {}
                Err(why) => return Err(why.into()),
            }
            if !is_started {
                is_started = true;
                // It ends by itself: with the job, or because the balancer of another rank was first.
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
