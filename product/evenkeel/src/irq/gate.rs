//! What makes it impossible to move interrupts, found before anything is moved: the user, irqbalance, or
//! another process that moves them.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use evenkeel_irq::{Aim, Observer};
use evenkeel_journal::find_irqbalance;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// In the folder of sockets and journals: locked by the one process that moves interrupts.
const LOCK: &str = "irq.lock";

/// Locks the file of the one that moves interrupts, for as long as it is held; or says what makes every
/// move impossible.
///
/// # Errors
/// The file cannot be locked for another reason.
pub fn enter(directory: &Path, takes_over: bool) -> Result<Result<File, String>> {
    // Before the file is made: a user could not remove what another one left there.
    if let Some(why) = reason_against_user() {
        return Ok(Err(why));
    }
    // A second process is named even where irqbalance runs, too.
    Ok(lock(directory)?.and_then(|file| reason_against(takes_over).map_or(Ok(file), Err)))
}

/// What makes every move impossible, and what to do. `takes_over`: irqbalance is to be told to leave the
/// moved lines alone.
pub fn reason_against(takes_over: bool) -> Option<String> {
    if let Some(why) = reason_against_user() {
        return Some(why);
    }
    let running = find_irqbalance(Path::new("/"));
    if takes_over {
        let refused = running.iter().find_map(|one| one.check().err());
        return refused.map(|why| format!("--take-over: {why}"));
    }
    let one = running.first()?;
    Some(format!(
        "irqbalance runs (process {}), and would move lines back: stop it first (systemctl stop \
         irqbalance), or have it leave the moved lines alone (evenkeel irq run --take-over)",
        one.pid
    ))
}

/// What a user lacks.
fn reason_against_user() -> Option<String> {
    let is_root = nix::unistd::geteuid().is_root();
    (!is_root).then(|| "only root may move interrupts: run it as root".to_owned())
}

/// What makes moves with this aim impossible; `None`: nothing.
pub fn reason_against_aim(aim: Aim, observer: &Observer) -> Option<String> {
    let why = observer.unmeasured().filter(|_| aim == Aim::SourceAware)?;
    Some(format!(
        "--mode source-aware needs to see which CPUs receive packets (root, Linux 6.3 or newer): {why}"
    ))
}

/// Locks the file of the one that moves interrupts, for as long as this process lives; or says which one
/// does. A lock by fcntl(2): the kernel tells its process, and the supervisor does not inherit it.
fn lock(directory: &Path) -> Result<Result<File, String>> {
    let path = directory.join(LOCK);
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.with_context(|| path.display().to_string())?;
    let mut whole = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(&file, FcntlArg::F_SETLK(&whole)) {
        Ok(_) => return Ok(Ok(file)),
        Err(Errno::EAGAIN | Errno::EACCES) => {}
        Err(why) => return Err(why).with_context(|| path.display().to_string()),
    }
    fcntl(&file, FcntlArg::F_GETLK(&mut whole))?;
    let runs = match whole.l_pid {
        pid @ 1.. => format!("process {pid}"),
        _ => "a process of another PID namespace".to_owned(),
    };
    Ok(Err(format!("{runs} moves interrupts already (evenkeel irq run): end it first")))
}
