//! A balancer daemon beside the system's own: to measure it, and programs under it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_control::{Request, ask};
use serde_json::Value;

use evenkeel_experiment::interrupt;

/// How long it, and what is asked of it, may take to be there.
const PATIENCE: Duration = Duration::from_secs(30);

/// It runs until this is dropped, and then gives back what it holds.
pub struct PrivateDaemon {
    child: Child,
    dir: tempfile::TempDir,
}

impl PrivateDaemon {
    /// Starts one with these options of `evenkeel daemon`, and the built-in defaults otherwise.
    ///
    /// # Errors
    /// It cannot be started, or does not answer.
    pub fn start(executable: &Path, options: &[String]) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a directory for the socket")?;
        let child = Command::new(executable)
            .args(["--config", "/dev/null", "daemon", "--job"])
            .arg(dir.path().join("socket"))
            .args(options)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start the daemon")?;
        let daemon = Self { child, dir };
        until("the daemon", || Ok(daemon.number("programs").is_ok()))?;
        Ok(daemon)
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it something.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub fn ask(&self, request: &Request) -> Result<Value> {
        Ok(ask(&self.dir.path().join("socket"), request)?)
    }

    /// Has it balance a process and its descendants.
    ///
    /// # Errors
    /// It refuses.
    pub fn join(&self, pid: u32) -> Result<()> {
        self.ask(&Request::new("join").with("pid", pid)).map(drop)
    }

    /// One of its statistics.
    ///
    /// # Errors
    /// It does not have that.
    pub fn number(&self, name: &str) -> Result<u64> {
        let statistics = self.ask(&Request::new("stats"))?;
        statistics[name].as_u64().with_context(|| format!("the daemon does not say \"{name}\""))
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        // SAFETY: two integers; the process is our own child.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

/// Waits for something to become true.
///
/// # Errors
/// It does not become true within half a minute, it cannot be found out, or a signal asked for the end.
pub fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !condition()? {
        interrupt::check()?;
        if begun.elapsed() > PATIENCE {
            bail!("waited in vain for {what}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
