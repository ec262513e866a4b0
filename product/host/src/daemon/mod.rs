//! The service that balances many programs: they join by launch, number, name or cgroup, and leave
//! when they end or are told to (the paper's `capability-balancer`).
//!
//! | file | the one thing in it |
//! |---|---|
//! | `admission` | who may join, and who asks for it |
//! | `programs` | who has joined |
//! | `requests` | what can be asked through the socket |
//! | `saved` | who had joined, for a daemon that is started again |
//! | `statistics` | figures, as JSON and as OpenMetrics |
//! | `metrics` | these over HTTP |

mod admission;
mod metrics;
mod programs;
mod requests;
mod saved;
mod statistics;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_control::{BindError, Server};
use evenkeel_journal::{GuardedSession, Session, SessionOptions, SupervisorCommand, undo_earlier};
use evenkeel_machine::Machine;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::balancer::{Balancer, BalancerError, Options};
use crate::observe::monotonic_ns;
use crate::prompt::ask_for_short_slices;
use crate::supervise::wait_readable;

pub use admission::How;
pub use metrics::MetricsError;
pub use statistics::Statistics;

use metrics::Metrics;
use programs::Programs;
use saved::Saved;

/// How often new programs of standing rules are looked for, and those that ended are let go.
const HOUSEKEEPING_NS: u64 = 2_000_000_000;

/// What can be changed while the daemon runs (SIGHUP).
#[derive(Debug, Clone)]
pub struct Settings {
    /// How to balance.
    pub options: Options,
    /// Programs with these names join by themselves.
    pub names: Vec<String>,
    /// Whatever is in these cgroups joins by itself.
    pub cgroups: Vec<String>,
}

/// Reads the settings again; an error is shown and the old ones stay in force.
pub type Reload<'a> = dyn Fn() -> Result<Settings, String> + 'a;

/// All that a daemon needs to know.
pub struct Daemon<'a> {
    /// Where socket, journal and list of programs lie.
    pub dir: PathBuf,
    /// How it starts.
    pub settings: Settings,
    /// How it goes on.
    pub reload: &'a Reload<'a>,
    /// Place even what its user pinned.
    pub override_user: bool,
    /// How to start the supervisor.
    pub supervisor: SupervisorCommand,
    /// Where to serve metrics; nowhere without.
    pub metrics: Option<SocketAddr>,
    /// Where it listens; anywhere but at [`socket_path`] it serves one job, ends with that, and
    /// takes nothing over.
    pub socket: PathBuf,
}

/// A daemon for one job waits for its first program for this time, and for another one after its
/// last has ended.
const JOB_PATIENCE_NS: u64 = 5_000_000_000;

/// Why a daemon does not run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Nothing can be observed.
    #[error(transparent)]
    Balancer(#[from] BalancerError),
    /// No metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The kernel refused what every process needs.
    #[error("cannot wait for signals: {0}")]
    System(#[from] Errno),
}

/// The socket of the daemon for everything, below its directory.
pub fn socket_path(dir: &Path) -> PathBuf {
    dir.join("daemon.sock")
}

/// Runs until SIGTERM or SIGINT; then all masks are given back. Programs run on, and join again
/// when the daemon is started again.
///
/// # Errors
/// [`DaemonError`]: it cannot start. That programs cannot be moved is no error: they are observed,
/// and the log says why.
pub fn serve(daemon: Daemon<'_>, machine: Machine) -> Result<(), DaemonError> {
    let signals = watch_signals()?;
    let is_for_job = daemon.socket != socket_path(&daemon.dir);
    let mut server = Server::bind(&daemon.socket)?;
    if let Err(why) = ask_for_short_slices() {
        tracing::debug!("no short time slices: {why}");
    }
    undo_earlier(&daemon.dir);
    let session = open_session(&daemon);
    let balancer = Balancer::new(machine, session, daemon.settings.options.clone())?;
    let saved =
        if is_for_job { Saved::default() } else { Saved::load(&daemon.dir.join("daemon.json")) };
    let mut programs = Programs::new(balancer, daemon.settings.clone(), saved);
    programs.take_over();
    let metrics = daemon.metrics.map(Metrics::serve).transpose()?;
    if let Some(metrics) = &metrics {
        metrics.update(programs.statistics());
    }
    tell_systemd(&[sd_notify::NotifyState::Ready]);
    tracing::info!(
        "ready at {}: {} accounting",
        daemon.socket.display(),
        format!("{:?}", programs.balancer().observer().accounting()).to_lowercase()
    );

    let mut housekeeping_ns = 0;
    let mut idle_since_ns = monotonic_ns();
    let mut is_left = false;
    loop {
        if monotonic_ns() >= housekeeping_ns {
            programs.keep_house();
            if let Some(metrics) = &metrics {
                metrics.update(programs.statistics());
            }
            let now_ns = monotonic_ns();
            housekeeping_ns = now_ns + HOUSEKEEPING_NS;
            if !programs.is_empty() {
                idle_since_ns = now_ns;
            } else if is_for_job && now_ns > idle_since_ns + JOB_PATIENCE_NS {
                programs.end();
                return Ok(());
            }
        }
        let due_ns = programs.balancer().due_ns().unwrap_or(u64::MAX).min(housekeeping_ns);
        let left_ns = if is_left { 0 } else { due_ns.saturating_sub(monotonic_ns()) };
        let has_events = wait(&signals, &server, programs.balancer(), left_ns)?;
        while let Some(signal) = signals.read_signal()? {
            if signal.ssi_signo != Signal::SIGHUP as u32 {
                tell_systemd(&[sd_notify::NotifyState::Stopping]);
                programs.end();
                return Ok(());
            }
            reload(&daemon, &mut programs);
        }
        if has_events && let Err(why) = programs.balancer().handle_events() {
            tracing::warn!("{why}");
        }
        is_left = server.serve(|peer, request| requests::answer(&mut programs, peer, request));
        if let Err(why) = programs.balancer().look() {
            tracing::warn!("{why}");
        }
    }
}

fn watch_signals() -> Result<SignalFd, Errno> {
    let mut watched = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        watched.add(signal);
    }
    watched.thread_block()?;
    SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn open_session(daemon: &Daemon<'_>) -> Option<GuardedSession> {
    if daemon.settings.options.dry_run {
        return None;
    }
    let options = SessionOptions {
        command: vec!["evenkeel".to_owned(), "daemon".to_owned()],
        override_user: daemon.override_user,
        ..SessionOptions::default()
    };
    match Session::open(&daemon.dir, options) {
        Ok(session) => Some(GuardedSession::new(session, daemon.supervisor)),
        Err(why) => {
            tracing::warn!("{why}; tasks are not moved, only observed");
            None
        }
    }
}

/// Sleeps until there is something to do. Whether tasks did something that must be handled at once.
fn wait(
    signals: &SignalFd,
    server: &Server,
    balancer: &mut Balancer,
    left_ns: u64,
) -> Result<bool, Errno> {
    use std::os::fd::AsFd;
    let mut readable = server.poll_fds();
    readable.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
    let others = readable.len();
    if let Some(cbinfo) = balancer.observer().cbinfo() {
        readable.push(PollFd::new(cbinfo.event_fd(), PollFlags::POLLIN));
    }
    wait_readable(&mut readable, Some(Duration::from_nanos(left_ns)))?;
    Ok(readable.get(others).is_some_and(|fd| fd.any() == Some(true)))
}

fn reload(daemon: &Daemon<'_>, programs: &mut Programs) {
    tell_systemd(&[sd_notify::NotifyState::Reloading]);
    match (daemon.reload)() {
        Ok(settings) => {
            programs.set(settings);
            tracing::info!("configuration read again");
        }
        Err(why) => tracing::error!("{why}; the old configuration stays in force"),
    }
    tell_systemd(&[sd_notify::NotifyState::Ready]);
}

/// Does nothing where systemd did not start us.
fn tell_systemd(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(false, state) {
        tracing::debug!("systemd is not told: {why}");
    }
}
