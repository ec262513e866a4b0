//! Requests to the daemon of the balancer, and to those of MPI jobs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use evenkeel_control::{AskError, Request, Share, ask, ask_within};
use evenkeel_host::daemon::{Quota, socket_path};
use evenkeel_host::{ProgramStatus, Summary, ask_to_watch, run_socket};
use evenkeel_journal::{TaskRef, runtime_dir};
use nix::errno::Errno;
use serde_json::Value;

use crate::exit::Impossible;

/// The directory of root's daemon, which serves all users.
const SYSTEM_DIR: &str = "/run/evenkeel";
/// How long the daemon may take to sum up a program that has ended: its `run` waits for that.
const SUMMARY_PATIENCE: Duration = Duration::from_secs(5);
/// How long it is before a daemon that has no room for a connection is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long each step of a join may take. The signals of a command that was just started are passed on
/// only afterwards, so a balancer that hangs is given up soon.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(8);
/// Connecting, the answer, and connecting once more: whether a service is there at all.
pub const STEPS_OF_A_JOIN: u64 = 3;
/// How long a daemon may take to say which programs have ended. It was asked for those that run before.
const ENDED_PATIENCE: Duration = Duration::from_secs(5);

/// The socket of the user's own daemon if there is one, else of the system's.
fn socket() -> PathBuf {
    let own = runtime_dir().ok().map(|dir| socket_path(&dir)).filter(|path| path.exists());
    own.unwrap_or_else(|| socket_path(Path::new(SYSTEM_DIR)))
}

/// The sockets of daemons that may have exact figures: the user's own daemon, and the system's.
pub fn sockets() -> Vec<PathBuf> {
    let own = runtime_dir().ok().map(|dir| socket_path(&dir));
    let system = socket_path(Path::new(SYSTEM_DIR));
    let own = own.filter(|own| *own != system);
    own.into_iter().chain([system]).collect()
}

/// Sends a request to the daemon.
///
/// # Errors
/// No daemon runs, or it refuses.
pub fn ask_daemon(request: &Request) -> Result<Value> {
    or_how_to_start(ask(&socket(), request))
}

/// Does the same, but no step waits for longer than `patience`.
///
/// # Errors
/// No daemon runs, it does not answer in time, or it refuses.
pub fn ask_daemon_within(request: &Request, patience: Duration) -> Result<Value> {
    or_how_to_start(ask_within(&socket(), request, patience))
}

fn or_how_to_start(answer: Result<Value, AskError>) -> Result<Value> {
    match answer {
        Err(AskError::NoService { .. }) => {
            let how = "no daemon runs; start one: evenkeel daemon, or systemctl start evenkeel";
            Err(Impossible(how.to_owned()).into())
        }
        answer => Ok(answer?),
    }
}

/// A process that has joined a daemon.
pub struct Joined {
    /// Where that one listens: the user may have started another one since.
    socket: PathBuf,
    pid: u32,
    start: Option<u64>,
}

/// Lets a process that was just started join the daemon.
///
/// # Errors
/// No daemon runs, or it refuses.
pub fn join(pid: u32) -> Result<Joined> {
    // Once it has ended, another process may have its number.
    let start = TaskRef::of(pid as i32).ok().map(|task| task.start_time_ticks);
    let socket = socket();
    let request = Request::new("join").with("pid", pid);
    or_how_to_start(ask_within(&socket, &request, JOIN_PATIENCE))?;
    Ok(Joined { socket, pid, start })
}

impl Joined {
    /// How it went, once it has ended: the daemon has the figures.
    ///
    /// # Errors
    /// The daemon runs no more, does not answer in time, or has no figures of this process alone.
    pub fn summary(&self) -> Result<Summary> {
        let request = Request::new("summary").with("pid", self.pid);
        let request = match self.start {
            Some(start) => request.with("start", start),
            None => request,
        };
        let answer = or_how_to_start(self.ask(&request))?;
        let summary: Summary = serde_json::from_value(answer["summary"].clone())?;
        // The summary itself has it as text.
        Ok(Summary { reason: serde_json::from_value(answer["reason"].clone())?, ..summary })
    }

    /// Asks the daemon. Where there is no room for the connection, it asks again: many programs of a
    /// user may end together, as ranks do.
    fn ask(&self, request: &Request) -> Result<Value, AskError> {
        let deadline = Instant::now() + SUMMARY_PATIENCE;
        loop {
            let answer = ask_within(&self.socket, request, SUMMARY_PATIENCE);
            let errno = match &answer {
                Err(AskError::Refused { errno, .. }) => *errno,
                _ => 0,
            };
            if errno != Errno::EAGAIN as i32 || Instant::now() >= deadline {
                return answer;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The status of the user's programs in all daemons: the system's, the user's own, and those of MPI
/// jobs. Each may take so long for its answer.
pub fn read_status_within(patience: Duration) -> Vec<ProgramStatus> {
    balancers().iter().flat_map(|socket| read_status_at(socket, patience)).collect()
}

/// Has a program of the user only watched (`watch`) or balanced again by the balancer that has it. Each
/// one that is asked may take so long for its answer.
///
/// # Errors
/// No balancer has it as the user's, or it refuses.
pub fn watch(program: &ProgramStatus, watch: bool, patience: Duration) -> Result<()> {
    let sockets = match program.program {
        Some(_) => balancers(),
        None => vec![run_socket(&runtime_dir()?, &program.balancer)],
    };
    let ask = |socket: &PathBuf| ask_to_watch(socket, program.root, watch, patience);
    answer_of_its_balancer(sockets.iter().map(ask))
}

/// The answer of the balancer that has a program. The others that are asked refuse, too: they do not
/// know the program. Takes no more answers once a balancer has agreed.
fn answer_of_its_balancer(answers: impl Iterator<Item = Result<(), AskError>>) -> Result<()> {
    let mut refusals = Vec::new();
    for answer in answers {
        match answer {
            Ok(()) => return Ok(()),
            Err(why) => refusals.push(why),
        }
    }
    // The first one of a rank.
    match refusals.into_iter().min_by_key(rank_of_refusal) {
        Some(why) => Err(why.into()),
        None => Err(anyhow!("no balancer answers for it")),
    }
}

/// Which refusal tells most about a program: 0 is that of a balancer that knows it.
fn rank_of_refusal(why: &AskError) -> u32 {
    match why {
        // No such program there.
        AskError::Refused { errno, .. } if *errno == Errno::ESRCH as i32 => 1,
        // A balancer that was killed left its socket.
        AskError::NoService { .. } => 2,
        AskError::Refused { .. } | AskError::Broken { .. } => 0,
    }
}

/// The sockets of all daemons that balance: the system's, the user's own, and those of MPI jobs.
fn balancers() -> Vec<PathBuf> {
    let own = runtime_dir().ok().into_iter().flat_map(|dir| std::fs::read_dir(dir).ok());
    let mut sockets: Vec<PathBuf> = own.flatten().flatten().map(|entry| entry.path()).collect();
    sockets.retain(|path| is_a_balancer(path));
    let system = socket_path(Path::new(SYSTEM_DIR));
    if system.exists() && !sockets.contains(&system) {
        sockets.push(system);
    }
    sockets.sort();
    sockets
}

/// Whether this is the socket of a daemon that balances: the user's, or that of an MPI job. Others in
/// the same directory, of the keel and of `sais`, have other requests.
fn is_a_balancer(socket: &Path) -> bool {
    let name = socket.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    socket_path(Path::new("")) == Path::new(name)
        || (name.starts_with("job-") && name.ends_with(".sock"))
}

/// Whether a daemon runs and how it balances, and below that what each user has of it.
pub fn status_lines() -> Vec<String> {
    match ask(&socket(), &Request::new("stats")) {
        Ok(statistics) => std::iter::once(headline(&statistics)).chain(read_quotas()).collect(),
        Err(AskError::NoService { .. }) => vec!["No daemon runs.".to_owned()],
        Err(why) => vec![format!("The daemon does not answer: {why}")],
    }
}

/// A line about the daemon with these statistics.
fn headline(statistics: &Value) -> String {
    let number = |name: &str| statistics[name].as_u64().unwrap_or_default();
    let programs = number("programs");
    let noun = if programs == 1 { "program" } else { "programs" };
    let verb = if number("moving") == 0 { "only observes" } else { "balances" };
    let figures =
        if number("exact") == 0 { "approximate figures, from /proc" } else { "exact figures" };
    format!("The daemon {verb} {programs} {noun}, with {figures}")
}

/// What each user has of the system's daemon, a line for each user (for users but root, only their own)
/// that has programs there or was refused something. Empty where no daemon runs.
fn read_quotas() -> Vec<String> {
    let asked = |request| ask(&socket(), &Request::new(request)).ok();
    let programs: Option<Vec<Quota>> =
        asked("quotas").and_then(|answer| serde_json::from_value(answer).ok());
    let connections: Option<Vec<Share>> =
        asked("connections").and_then(|answer| serde_json::from_value(answer).ok());
    let (programs, connections) = (programs.unwrap_or_default(), connections.unwrap_or_default());
    quota_lines(&programs, &connections)
}

fn quota_lines(programs: &[Quota], connections: &[Share]) -> Vec<String> {
    let users: BTreeSet<u32> = programs
        .iter()
        .map(|quota| quota.user)
        .chain(connections.iter().map(|share| share.user))
        .collect();
    let line = |user: u32| {
        let quota = programs.iter().find(|quota| quota.user == user);
        let share = connections.iter().find(|share| share.user == user);
        let count = |number: usize, most: Option<usize>, noun: &str| match most {
            Some(most) => format!("{number} of {most} {noun}"),
            None => format!("{number} {noun}"),
        };
        let mut parts = Vec::new();
        if let Some(quota) = quota {
            parts.push(count(quota.programs, quota.most_programs, "programs"));
            if quota.observed > 0 {
                parts.push(count(quota.observed, quota.most_observed, "observed for run"));
            }
        }
        if let Some(share) = share {
            parts.push(count(share.connections, share.most_connections, "connections"));
        }
        let refused =
            quota.map_or(0, |quota| quota.refused) + share.map_or(0, |share| share.refused);
        let delayed = share.map_or(0, |share| share.delayed);
        if refused > 0 {
            parts.push(format!("{refused} refused beyond that"));
        }
        if delayed > 0 {
            parts.push(format!("{delayed} requests delayed (too much of the daemon's time)"));
        }
        let is_of_interest = quota.is_some() || refused + delayed > 0;
        is_of_interest.then(|| format!("User {user} at the daemon: {}", parts.join(", ")))
    };
    users.into_iter().filter_map(line).collect()
}

/// The user's programs that ended or left last at these daemons, in this order.
pub fn read_ended() -> Vec<ProgramStatus> {
    let mut ended: Vec<ProgramStatus> =
        balancers().iter().flat_map(|socket| read_ended_at(socket)).collect();
    ended.sort_by_key(|program| program.ended_ns);
    ended
}

fn read_ended_at(socket: &Path) -> Vec<ProgramStatus> {
    read_programs(socket, "ended", ENDED_PATIENCE).unwrap_or_else(|why| {
        // A daemon that does not answer was named for its programs that run, and an older one remembers
        // none.
        tracing::debug!("{why:#}");
        Vec::new()
    })
}

fn read_status_at(socket: &Path, patience: Duration) -> Vec<ProgramStatus> {
    read_programs(socket, "status", patience).unwrap_or_else(|why| {
        tracing::warn!("{why:#}; the programs of this daemon are not shown");
        Vec::new()
    })
}

/// The programs that a daemon answers a request with.
fn read_programs(socket: &Path, request: &str, patience: Duration) -> Result<Vec<ProgramStatus>> {
    match ask_within(socket, &Request::new(request), patience) {
        // A daemon that was killed left its socket.
        Err(AskError::NoService { .. }) => Ok(Vec::new()),
        answer => Ok(serde_json::from_value(answer?)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_daemons_that_balance_are_asked_for_programs() {
        let asked = ["daemon.sock", "job-12-345.sock"];
        let others =
            ["keel.sock", "sais-1-2.sock", "sais-serve-7.sock", "daemon.sock.old", "job-12-345"];
        for name in asked.into_iter().chain(others) {
            let path = Path::new("/run/evenkeel").join(name);
            assert_eq!(is_a_balancer(&path), asked.contains(&name), "{name}");
        }
    }

    #[test]
    fn the_refusal_of_the_balancer_that_has_a_program_is_kept() {
        let refused = |errno: Errno, why: &str| {
            Err(AskError::Refused { errno: errno as i32, why: why.to_owned() })
        };
        let no_program = || refused(Errno::ESRCH, "no such program");
        let moves_nothing = || refused(Errno::EPERM, "moves nothing");
        let is_dead = || {
            let source = std::io::ErrorKind::ConnectionRefused.into();
            Err(AskError::NoService { path: PathBuf::from("daemon.sock"), source })
        };
        let answer = |answers: Vec<Result<(), AskError>>| {
            answer_of_its_balancer(answers.into_iter()).map_err(|why| why.to_string())
        };
        let moves_nothing_first =
            vec![no_program(), moves_nothing(), refused(Errno::EINVAL, "old"), no_program()];
        assert_eq!(answer(moves_nothing_first), Err("moves nothing".to_owned()));
        assert_eq!(answer(vec![is_dead(), moves_nothing()]), Err("moves nothing".to_owned()));
        let none_has_it = vec![is_dead(), no_program(), refused(Errno::ESRCH, "nor here")];
        assert_eq!(answer(none_has_it), Err("no such program".to_owned()));
        assert!(answer(vec![is_dead()]).unwrap_err().contains("daemon.sock"));
        assert!(answer(vec![]).unwrap_err().contains("no balancer"));
        // Once one has agreed, no other one is asked.
        let mut asked = [moves_nothing(), Ok(()), no_program()].into_iter();
        assert!(answer_of_its_balancer(asked.by_ref()).is_ok());
        assert_eq!(asked.len(), 1);
    }

    #[test]
    fn the_daemon_is_described_by_its_statistics() {
        let line = |programs, moving, exact| {
            let figures =
                serde_json::json!({"programs": programs, "moving": moving, "exact": exact});
            headline(&figures)
        };
        assert_eq!(line(1, 1, 1), "The daemon balances 1 program, with exact figures");
        let observes = "The daemon only observes 0 programs, with approximate figures, from /proc";
        assert_eq!(line(0, 0, 0), observes);
    }

    #[test]
    fn what_users_have_and_were_refused_is_said() {
        let quota = |user, most_programs| Quota {
            user,
            programs: 3,
            most_programs,
            observed: 0,
            most_observed: Some(64),
            refused: 2,
        };
        let share = |user, refused, delayed| Share {
            user,
            connections: 1,
            most_connections: Some(16),
            refused,
            delayed,
        };
        let lines = quota_lines(
            &[Quota { refused: 0, ..quota(0, None) }, Quota { observed: 5, ..quota(7, Some(512)) }],
            &[share(7, 1, 0), share(8, 0, 0), share(9, 0, 5)],
        );
        assert_eq!(
            lines,
            [
                "User 0 at the daemon: 3 programs",
                "User 7 at the daemon: 3 of 512 programs, 5 of 64 observed for run, 1 of 16 \
                 connections, 3 refused beyond that",
                "User 9 at the daemon: 1 of 16 connections, 5 requests delayed (too much of the \
                 daemon's time)",
            ]
        );
    }
}
