//! The service that balances many programs (the paper's `capability-balancer`). Programs join by launch,
//! process number, name or cgroup, and leave when they end or on request.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `settings` | what a reload can change |
//! | `admission` | which processes may join, at the request of which user |
//! | `cgroup_walk` | the processes in a cgroup and those below it, within a budget |
//! | `state` | the state as a file, on SIGUSR1 |
//! | `saved` | the joined programs on disk, for the next daemon |
//! | `statistics` | figures, as JSON |
//! | `lost` | what CPUs lose: all of them, and the CPU that loses the most |
//! | `totals` | what is counted over all programs |
//! | `known_metrics` | which metrics there are |
//! | `openmetrics` | the figures as OpenMetrics |
//! | `metrics` | these over HTTP, and answers to probes |
//! | `programs` | the joined programs |
//! | `leave` | how a program leaves, or ends |
//! | `ended` | the programs that ended or left last, with their last decisions |
//! | `status` | what is told of programs |
//! | `watched` | programs that are only watched, at the request of their user |
//! | `job` | MPI jobs: a rank joins, a rank leaves, the last one gets the summary |
//! | `ranks` | the ranks of such a job |
//! | `told` | what `run` and jobs tell of the programs that they balance themselves, for the metrics |
//! | `observed` | the programs that a `run` without privileges balances with the daemon's figures |
//! | `observed_ranks` | the same of a job: its ranks are one program |
//! | `requests` | the requests of the control socket |

mod admission;
mod cgroup_walk;
mod ended;
mod job;
mod known_metrics;
mod leave;
mod lost;
mod metrics;
mod observed;
mod observed_ranks;
mod openmetrics;
mod programs;
mod ranks;
mod requests;
mod saved;
mod settings;
mod state;
mod statistics;
mod status;
mod told;
mod totals;
mod watched;

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_control::{Answer, BindError, Peer, Server, watch_signals};
use evenkeel_journal::{
    Session, SessionOptions, SupervisedSession, SupervisorCommand, undo_earlier,
};
use evenkeel_machine::Machine;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;

use crate::balancer::{Balancer, BalancerError};
use crate::clock::monotonic_ns;
use crate::latency::ask_for_short_slices;
use crate::observe::Accounting;
use crate::tell::{Teller, Tells};
use crate::wait::wait_readable;

pub use admission::{How, ProcessToJoin, Refusal, check_cgroup_name};
pub use known_metrics::{Kind, MAX_SERIES, METRICS, Metric, table_of_metrics};
pub use metrics::{MetricsAddress, MetricsError, Pages, answer_metrics_request};
pub use programs::Quota;
pub use requests::DaemonRequest;
pub use settings::Settings;
pub use state::{DaemonState, STATE_FORMAT, remove_states_of_ended};
pub use statistics::{RunPace, Statistics};
pub use told::ToldProgram;

use metrics::Metrics;
use programs::Programs;
use saved::Saved;
use state::StateFile;

/// What the log lines of a service itself are of: that it is ready, and what it was told. They are few,
/// and shown also where the moves of programs are not.
pub const SERVICE_LOG: &str = "evenkeel_host::service";

/// How often programs join by standing rules, and ended programs leave.
const UPDATE_NS: u64 = 2_000_000_000;

/// Reads the settings again; after an error, which is logged, the old settings stay in force.
pub type Reload<'a> = dyn Fn() -> Result<Settings, String> + 'a;

/// The parameters of a daemon.
pub struct Daemon<'a> {
    /// The directory of the socket, the journal and the list of programs.
    pub dir: PathBuf,
    /// The settings at the start.
    pub settings: Settings,
    /// Reads the settings for a reload.
    pub reload: &'a Reload<'a>,
    /// What else is to be looked after: called when the daemon listens, and every two seconds from then
    /// on.
    pub beside: &'a dyn Fn(),
    /// Move also tasks that their user pinned.
    pub override_user: bool,
    /// How to start the supervisor.
    pub supervisor: SupervisorCommand,
    /// The address of the metrics endpoint; `None`: no endpoint.
    pub metrics: Option<MetricsAddress>,
    /// The socket that it listens at. At any other socket than [`socket_path`] it serves one MPI job,
    /// ends with that job, and continues with no programs of an earlier daemon.
    pub socket: PathBuf,
    /// Which daemons this one tells of its program: that of a job does.
    pub tells: Option<Tells>,
}

/// A daemon for one MPI job ends when it had no program for this long.
const JOB_PATIENCE_NS: u64 = 5_000_000_000;

/// The daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// It cannot listen at its socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It cannot observe programs.
    #[error(transparent)]
    Balancer(#[from] BalancerError),
    /// It cannot serve metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// A system call failed.
    #[error("cannot wait for signals: {0}")]
    System(#[from] Errno),
}

/// The socket of a daemon that is not for one job, below its directory.
pub fn socket_path(dir: &Path) -> PathBuf {
    dir.join("daemon.sock")
}

/// Whether a process may use the balancer of a job: it is of root, or of the job's user. The sockets of
/// root's jobs can be reached by all users, and a stranger in a job would keep its balancer from ending.
fn is_of_job(peer: &Peer) -> bool {
    peer.may_steer(nix::unistd::geteuid().as_raw())
}

/// Runs the daemon until SIGTERM or SIGINT, and then gives all masks back. The programs run on; the next
/// daemon balances them again.
///
/// # Errors
/// [`DaemonError`]: it cannot start. Programs that cannot be moved are no error: they are observed, and
/// the log says why.
pub fn serve(daemon: Daemon<'_>, machine: Machine) -> Result<(), DaemonError> {
    let signals =
        watch_signals(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGUSR1])?;
    let is_for_job = daemon.socket != socket_path(&daemon.dir);
    let mut server = Server::bind(&daemon.socket)?;
    if let Err(why) = ask_for_short_slices() {
        tracing::debug!("evenkeel keeps its long slices: {why}");
    }
    undo_earlier(&daemon.dir);
    let session = open_session(&daemon);
    let balancer = Balancer::new(machine, session, daemon.settings.options.clone())?;
    let saved =
        if is_for_job { Saved::default() } else { Saved::load(&daemon.dir.join("daemon.json")) };
    let mut programs = Programs::new(balancer, daemon.settings.clone(), saved);
    programs.continue_saved();
    let mut metrics = daemon.metrics.map(Metrics::listen).transpose()?;
    if let Some(metrics) = &mut metrics {
        metrics.update(&programs.statistics(), programs.not_ready());
    }
    tell_systemd(&[sd_notify::NotifyState::Ready]);
    let observer = programs.balancer().observer();
    let accounting = accounting_in_words(observer.accounting(), observer.why_not_exact());
    let served = daemon.metrics.map(|at| format!(", metrics at http://{}/metrics", at.address()));
    tracing::info!(
        target: SERVICE_LOG,
        "ready at {}: {accounting}{}",
        daemon.socket.display(),
        served.unwrap_or_default()
    );

    let dump = StateFile::beside(&daemon.socket, is_for_job);
    let mut teller = daemon.tells.clone().map(Teller::new);
    let mut update_ns = 0;
    let mut idle_since_ns = monotonic_ns();
    let mut has_more = false;
    loop {
        if monotonic_ns() >= update_ns {
            programs.update();
            (daemon.beside)();
            if let Some(teller) = &mut teller {
                programs.tell(teller);
            }
            if let Some(metrics) = &mut metrics {
                programs.look_at_cpus();
                metrics.update(&programs.statistics(), programs.not_ready());
            }
            let now_ns = monotonic_ns();
            update_ns = now_ns + UPDATE_NS;
            if !programs.is_empty() {
                idle_since_ns = now_ns;
            } else if is_for_job && now_ns > idle_since_ns + JOB_PATIENCE_NS {
                programs.end();
                return Ok(());
            }
        }
        let due_ns = programs.balancer().due_ns().unwrap_or(u64::MAX).min(update_ns);
        let patiences = [server.patience(), metrics.as_ref().and_then(Metrics::patience)];
        let patience_ns = patiences.into_iter().flatten().min().map_or(u64::MAX, as_ns);
        let left_ns = due_ns.saturating_sub(monotonic_ns()).min(patience_ns);
        let left_ns = if has_more { 0 } else { left_ns };
        let has_events = wait(&signals, &server, metrics.as_ref(), programs.balancer(), left_ns)?;
        while let Some(signal) = signals.read_signal()? {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGHUP) => reload(&daemon, &mut programs),
                Ok(Signal::SIGUSR1) => dump.write(&mut programs),
                _ => {
                    tell_systemd(&[sd_notify::NotifyState::Stopping]);
                    programs.end();
                    return Ok(());
                }
            }
        }
        if has_events && let Err(why) = programs.balancer().handle_events() {
            tracing::warn!("{why}");
        }
        if let Some(metrics) = &mut metrics {
            metrics.serve();
        }
        let had_programs = !programs.is_empty();
        has_more = server.serve(|peer, request| {
            if is_for_job && !is_of_job(peer) {
                return Answer::refused(Errno::EPERM, "this balancer is for one job of its user");
            }
            requests::answer(&mut programs, peer, request)
        });
        if is_for_job && had_programs && programs.is_empty() {
            // At once: a batch system kills what is left when the last rank has ended.
            programs.end();
            return Ok(());
        }
        if let Err(why) = programs.balancer().balance_due() {
            tracing::warn!("{why}");
        }
        programs.balancer().observer().open_due_window();
    }
}

/// Which figures there are, and why they are not exact.
fn accounting_in_words(accounting: Accounting, why_not_exact: Option<&str>) -> String {
    let kind = if accounting.is_exact() { "exact" } else { "approximate" };
    let why = why_not_exact.map(|why| format!(" ({why})")).unwrap_or_default();
    format!("{kind} accounting from {accounting}{why}")
}

fn open_session(daemon: &Daemon<'_>) -> Option<SupervisedSession> {
    if daemon.settings.options.dry_run {
        return None;
    }
    let options = SessionOptions {
        command: vec!["evenkeel".to_owned(), "daemon".to_owned()],
        override_user: daemon.override_user,
        ..SessionOptions::default()
    };
    match Session::open(&daemon.dir, options) {
        Ok(session) => Some(SupervisedSession::new(session, daemon.supervisor)),
        Err(why) => {
            tracing::warn!("{why}; tasks are not moved, only observed");
            None
        }
    }
}

/// Sleeps until there is something to do. Returns whether there are events of tasks to handle.
fn wait(
    signals: &SignalFd,
    server: &Server,
    metrics: Option<&Metrics>,
    balancer: &mut Balancer,
    left_ns: u64,
) -> Result<bool, Errno> {
    use std::os::fd::AsFd;
    let mut readable = server.poll_fds();
    readable.extend(metrics.map(Metrics::poll_fds).unwrap_or_default());
    readable.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
    let others = readable.len();
    if let Some(cbinfo) = balancer.observer().cbinfo() {
        readable.push(PollFd::new(cbinfo.event_fd(), PollFlags::POLLIN));
    }
    wait_readable(&mut readable, Some(Duration::from_nanos(left_ns)))?;
    Ok(readable.get(others).is_some_and(|fd| fd.any() == Some(true)))
}

fn as_ns(patience: Duration) -> u64 {
    u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)
}

fn reload(daemon: &Daemon<'_>, programs: &mut Programs) {
    tell_systemd(&[sd_notify::NotifyState::Reloading]);
    match (daemon.reload)() {
        Ok(settings) => {
            programs.set(settings);
            tracing::info!(target: SERVICE_LOG, "the configuration was read again");
        }
        Err(why) => tracing::error!("{why}; the old configuration stays in force"),
    }
    tell_systemd(&[sd_notify::NotifyState::Ready]);
}

/// Reports the daemon's state to systemd, if systemd started it.
fn tell_systemd(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(false, state) {
        tracing::debug!("cannot report to systemd: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_which_accounting_there_is_and_why_it_is_not_exact() {
        let exact = accounting_in_words(Accounting::Cbinfo, None);
        assert_eq!(exact, "exact accounting from cbinfo");
        let approximate = accounting_in_words(Accounting::Procfs, Some("no privilege"));
        assert_eq!(approximate, "approximate accounting from /proc (no privilege)");
    }
}
