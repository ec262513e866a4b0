//! What both parts do in the foreground: answer at a control socket, look at the world now and then,
//! log their state when SIGUSR1 asks for it, and end when they are told to.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use evenkeel_control::{Answer, Peer, Request, Server, ServiceSignals, Told};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The time between two looks for changes.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// What is done meanwhile.
pub(crate) trait Work {
    /// Why it cannot go on.
    type Error: From<Errno>;

    /// Answers a request.
    fn answer(&self, peer: &Peer, request: &Request) -> Answer;

    /// How often it looks at the world.
    fn interval(&self) -> Duration {
        LOOK
    }

    /// Looks at the world; false: there is nothing left to do.
    fn look(&mut self) -> Result<bool, Self::Error>;
}

/// Until a signal (true) or until there is nothing left to do (false).
pub(crate) fn run<W: Work>(
    signals: &ServiceSignals,
    server: &mut Server,
    work: &mut W,
) -> Result<bool, W::Error> {
    let interval = work.interval();
    let mut look_at = Instant::now() + interval;
    loop {
        let is_left = server.serve(|peer, request| work.answer(peer, request));
        let mut readable = server.poll_fds();
        readable.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
        let patience = server.patience().unwrap_or(interval).min(interval);
        let patience = if is_left { Duration::ZERO } else { patience };
        match poll(&mut readable, PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why.into()),
        }
        match signals.read()? {
            Some(Told::End) => return Ok(true),
            Some(Told::State) => log_state(work),
            None => {}
        }
        if Instant::now() < look_at {
            continue;
        }
        look_at = Instant::now() + interval;
        if !work.look()? {
            return Ok(false);
        }
    }
}

/// Logs what it answers to `stats`, whatever the level of the log: it was asked for. Only its own user
/// and root can send the signal.
fn log_state<W: Work>(work: &W) {
    let own = Peer { uid: nix::unistd::geteuid().as_raw(), pid: 0 };
    match work.answer(&own, &Request::new("stats")).into_result() {
        Ok(state) => tracing::warn!("SIGUSR1: the state is {state}"),
        Err((_, why)) => tracing::warn!("SIGUSR1: {why}"),
    }
}

/// Answers with these figures; requests take no arguments.
pub(crate) fn answer_with(
    request: &Request,
    figures: impl FnOnce(&str) -> Result<serde_json::Value, Answer>,
) -> Answer {
    if let Some(name) = request.args.keys().next() {
        let why = format!("\"{name}\": no such argument of this request");
        return Answer::refused(Errno::EINVAL, why);
    }
    match figures(&request.req) {
        Ok(figures) => Answer::ok(figures),
        Err(refusal) => refusal,
    }
}
