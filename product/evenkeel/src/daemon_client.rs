//! Requests to the daemon of the balancer, and to those of MPI jobs.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use evenkeel_control::{AskError, Request, ask};
use evenkeel_host::ProgramStatus;
use evenkeel_host::daemon::socket_path;
use evenkeel_journal::runtime_dir;
use serde_json::Value;

/// The directory of root's daemon, which serves all users.
const SYSTEM_DIR: &str = "/run/evenkeel";

/// The socket of the user's own daemon if there is one, else of the system's.
fn socket() -> PathBuf {
    let own = runtime_dir().ok().map(|dir| socket_path(&dir)).filter(|path| path.exists());
    own.unwrap_or_else(|| socket_path(Path::new(SYSTEM_DIR)))
}

/// Sends a request to the daemon.
///
/// # Errors
/// No daemon runs, or it refuses.
pub fn ask_daemon(request: &Request) -> Result<Value> {
    match ask(&socket(), request) {
        Err(AskError::NoService { .. }) => {
            bail!("no daemon runs; start one: evenkeel daemon, or systemctl start evenkeel")
        }
        answer => Ok(answer?),
    }
}

/// Lets a process that was just started join the daemon.
///
/// # Errors
/// No daemon runs, or it refuses.
pub fn join(pid: u32) -> Result<()> {
    ask_daemon(&Request::new("join").with("pid", pid))?;
    Ok(())
}

/// The status of the user's programs in all daemons: the system's, the user's own, and those of MPI
/// jobs.
pub fn read_status() -> Vec<ProgramStatus> {
    let own = runtime_dir().ok().into_iter().flat_map(|dir| std::fs::read_dir(dir).ok());
    let mut sockets: Vec<PathBuf> = own.flatten().flatten().map(|entry| entry.path()).collect();
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    let system = socket_path(Path::new(SYSTEM_DIR));
    if system.exists() && !sockets.contains(&system) {
        sockets.push(system);
    }
    sockets.sort();
    sockets.iter().flat_map(|socket| read_status_at(socket)).collect()
}

fn read_status_at(socket: &Path) -> Vec<ProgramStatus> {
    let answer = ask(socket, &Request::new("status"));
    if matches!(answer, Err(AskError::NoService { .. })) {
        // A daemon that was killed left its socket.
        return Vec::new();
    }
    let answer = answer.map_err(anyhow::Error::from);
    let programs = answer.and_then(|answer| Ok(serde_json::from_value(answer)?));
    programs.unwrap_or_else(|why| {
        tracing::warn!("{why:#}; the programs of this daemon are not shown");
        Vec::new()
    })
}
