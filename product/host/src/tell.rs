//! What a balancer of its own, that of `run` or of a job, tells the daemons of its node about its
//! program, for their metrics. A daemon neither balances that program nor sees what it gains. One that
//! does not answer soon is told again after a pause, since balancing waits meanwhile.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_control::{AskError, Request, ask_within};
use nix::errno::Errno;
use serde_json::json;

use crate::clock::monotonic_ns;
use crate::proof::{Gain, Proven};

/// How often a daemon is told while what is known of the gain stays the same.
const EVERY_NS: u64 = 10_000_000_000;
/// The pause after a daemon did not answer, or had no room, ...
const FIRST_PAUSE_NS: u64 = 10_000_000_000;
/// ... and each next one twice as long, up to this: one that hangs delays a round seldom, and one that
/// was only busy once has the figures of a job that runs for days.
const LONGEST_PAUSE_NS: u64 = 160_000_000_000;
/// How long a daemon may take for an answer.
const PATIENCE: Duration = Duration::from_millis(200);
/// The highest pace that is told, in thousandths of the pace without moves.
pub(crate) const MAX_PACE_MILLI: u64 = 1_000_000;

/// Which daemons are told of a program, and what it is part of.
#[derive(Debug, Clone, Default)]
pub struct Tells {
    /// The sockets of the daemons. Where none listens, none is told.
    pub daemons: Vec<PathBuf>,
    /// The step of Slurm that the program is part of, in numbers, like `77.0`.
    pub step: Option<String>,
}

/// Tells daemons of one program.
#[derive(Debug)]
pub(crate) struct Teller {
    daemons: Vec<Told>,
    step: Option<String>,
}

/// What a daemon was told last, and when it is told again.
#[derive(Debug)]
struct Told {
    socket: PathBuf,
    last: Option<(Proven, u64)>,
    /// The pause that it is in, and its end; `None`: it took what it was told last.
    pause: Option<(u64, u64)>,
}

impl Teller {
    pub fn new(tells: Tells) -> Self {
        let told = |socket| Told { socket, last: None, pause: None };
        Self { daemons: tells.daemons.into_iter().map(told).collect(), step: tells.step }
    }

    /// Tells what is known of the gain now, if that is new or was told some time ago.
    pub fn tell(&mut self, gain: &Gain) {
        self.tell_at(gain, monotonic_ns());
    }

    fn tell_at(&mut self, gain: &Gain, now_ns: u64) {
        if !self.daemons.iter().any(|told| told.is_due(gain.proven, now_ns)) {
            return;
        }
        let request = request(gain, self.step.as_deref());
        self.daemons.retain_mut(|told| {
            if !told.is_due(gain.proven, now_ns) {
                return true;
            }
            let answer = ask_within(&told.socket, &request, PATIENCE);
            if let Err(why) = &answer {
                tracing::debug!("the daemon has no figures of this program: {why}");
            }
            told.note(gain.proven, now_ns, answer.as_ref().err());
            !answer.is_err_and(|why| is_of_an_older_daemon(&why))
        });
    }
}

impl Told {
    fn is_due(&self, proven: Proven, now_ns: u64) -> bool {
        match (self.pause, self.last) {
            (Some((_, until_ns)), _) => now_ns >= until_ns,
            (None, Some((told, at_ns))) => told != proven || now_ns >= at_ns + EVERY_NS,
            (None, None) => true,
        }
    }

    fn note(&mut self, proven: Proven, now_ns: u64, failed: Option<&AskError>) {
        let Some(why) = failed else {
            (self.last, self.pause) = (Some((proven, now_ns)), None);
            return;
        };
        let next_ns = |(pause_ns, _): (u64, u64)| (pause_ns * 2).min(LONGEST_PAUSE_NS);
        let longer_ns = self.pause.map_or(FIRST_PAUSE_NS, next_ns);
        let pause_ns = if is_absent(why) { FIRST_PAUSE_NS } else { longer_ns };
        self.pause = Some((pause_ns, now_ns + pause_ns));
    }
}

/// The request that tells a daemon of a gain.
fn request(gain: &Gain, step: Option<&str>) -> Request {
    let request = Request::new("tell").with("proven", json!(gain.proven));
    let milli = gain.ratio.map(|ratio| (ratio * 1000.0).round() as u64);
    let request = match milli {
        Some(milli) => request.with("pace_milli", milli.clamp(1, MAX_PACE_MILLI)),
        None => request,
    };
    match step {
        Some(step) => request.with("step", step),
        None => request,
    }
}

/// Whether no daemon listens: that is known at once, and it may be started at any time.
fn is_absent(why: &AskError) -> bool {
    let is_of_absence =
        |kind: ErrorKind| matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    matches!(why, AskError::NoService { source, .. } if is_of_absence(source.kind()))
}

/// Whether a daemon does not know the request, and never will.
fn is_of_an_older_daemon(why: &AskError) -> bool {
    matches!(why, AskError::Refused { errno, .. } if *errno == Errno::ENOSYS as i32)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn teller(daemons: Vec<PathBuf>) -> Teller {
        Teller::new(Tells { daemons, step: None })
    }

    fn broken(kind: ErrorKind) -> AskError {
        AskError::Broken { path: PathBuf::new(), source: kind.into() }
    }

    #[test]
    fn a_gain_is_told_with_its_pace_and_its_step() {
        let gain = Gain { proven: Proven::Gains, ratio: Some(1.2204), ..Gain::default() };
        let expected = json!({"proven": "gains", "pace_milli": 1220, "step": "77.0"});
        assert_eq!(json!(request(&gain, Some("77.0")).args), expected);
        assert_eq!(json!(request(&Gain::default(), None).args), json!({"proven": "nothing"}));
        for (ratio, milli) in [(0.0, 1), (f64::INFINITY, MAX_PACE_MILLI)] {
            let gain = Gain { ratio: Some(ratio), ..Gain::default() };
            assert_eq!(request(&gain, None).args["pace_milli"], milli);
        }
    }

    #[test]
    fn what_is_known_already_is_told_seldom() {
        let mut teller = teller(vec![PathBuf::from("/nonexistent")]);
        let told = &mut teller.daemons[0];
        assert!(told.is_due(Proven::Nothing, 5));
        told.note(Proven::Nothing, 5, None);
        assert!(!told.is_due(Proven::Nothing, 4 + EVERY_NS));
        assert!(told.is_due(Proven::Nothing, 5 + EVERY_NS) && told.is_due(Proven::Gains, 6));
    }

    #[test]
    fn a_daemon_that_hangs_delays_seldom_and_is_told_again() {
        let dir = tempfile::tempdir().unwrap();
        let (absent, hangs) = (dir.path().join("absent.sock"), dir.path().join("hangs.sock"));
        // It accepts connections, and answers none.
        let _listener = UnixListener::bind(&hangs).unwrap();
        let mut teller = teller(vec![absent, hangs]);
        teller.tell_at(&Gain::default(), 5);
        assert_eq!(teller.daemons.len(), 2);
        for told in &teller.daemons {
            assert!(!told.is_due(Proven::Gains, 4 + FIRST_PAUSE_NS), "{told:?}");
            assert!(told.is_due(Proven::Nothing, 5 + FIRST_PAUSE_NS), "{told:?}");
        }
    }

    #[test]
    fn pauses_double_until_an_answer() {
        let mut teller = teller(vec![PathBuf::from("/nonexistent")]);
        let told = &mut teller.daemons[0];
        let mut pauses = Vec::new();
        let mut now_ns = 5;
        for failed in [&broken(ErrorKind::WouldBlock); 6] {
            told.note(Proven::Gains, now_ns, Some(failed));
            let (pause_ns, until_ns) = told.pause.unwrap();
            assert_eq!(until_ns, now_ns + pause_ns);
            pauses.push(pause_ns / FIRST_PAUSE_NS);
            now_ns = until_ns;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 16]);
        // None listens now; the next one may have time.
        let path = PathBuf::new();
        let absent = AskError::NoService { path, source: ErrorKind::NotFound.into() };
        told.note(Proven::Gains, now_ns, Some(&absent));
        assert_eq!(told.pause, Some((FIRST_PAUSE_NS, now_ns + FIRST_PAUSE_NS)));
        told.note(Proven::Gains, now_ns, None);
        assert!(told.is_due(Proven::Withdrawn, now_ns + 1));
    }

    #[test]
    fn only_an_older_daemon_is_told_no_more() {
        let refused = |errno: Errno| AskError::Refused { errno: errno as i32, why: String::new() };
        assert!(is_of_an_older_daemon(&refused(Errno::ENOSYS)));
        assert!(!is_of_an_older_daemon(&refused(Errno::EAGAIN)));
    }
}
