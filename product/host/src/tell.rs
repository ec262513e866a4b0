//! What a balancer of its own, that of `run` or of a job, tells the daemons of its node about its
//! program, for their metrics. A daemon neither balances that program nor sees what it gains. One that
//! does not answer soon is told no more, since balancing waits meanwhile.

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
    tells: Tells,
    /// What was told last, and when.
    last: Option<(Proven, u64)>,
}

impl Teller {
    pub fn new(tells: Tells) -> Self {
        Self { tells, last: None }
    }

    /// Tells what is known of the gain now, if that is new or was told some time ago.
    pub fn tell(&mut self, gain: &Gain) {
        let now_ns = monotonic_ns();
        if !self.is_due(gain.proven, now_ns) {
            return;
        }
        self.last = Some((gain.proven, now_ns));
        let request = request(gain, self.tells.step.as_deref());
        self.tells.daemons.retain(|daemon| match ask_within(daemon, &request, PATIENCE) {
            Ok(_) => true,
            Err(why) => {
                tracing::debug!("the daemon has no figures of this program: {why}");
                may_be_told_later(&why)
            }
        });
    }

    fn is_due(&self, proven: Proven, now_ns: u64) -> bool {
        let is_new =
            self.last.is_none_or(|(told, at_ns)| told != proven || now_ns >= at_ns + EVERY_NS);
        is_new && !self.tells.daemons.is_empty()
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

/// Whether a daemon that was not told is asked again: one that hangs would delay each round.
fn may_be_told_later(why: &AskError) -> bool {
    match why {
        // None listens now.
        AskError::NoService { source, .. } => {
            matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
        }
        // An older daemon does not know the request. Otherwise it has no room now.
        AskError::Refused { errno, .. } => *errno != Errno::ENOSYS as i32,
        AskError::Broken { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn teller(daemons: Vec<PathBuf>) -> Teller {
        Teller::new(Tells { daemons, step: None })
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
        assert!(teller.is_due(Proven::Nothing, 5));
        teller.last = Some((Proven::Nothing, 5));
        assert!(!teller.is_due(Proven::Nothing, 4 + EVERY_NS));
        assert!(teller.is_due(Proven::Nothing, 5 + EVERY_NS) && teller.is_due(Proven::Gains, 6));
        teller.tells.daemons.clear();
        assert!(!teller.is_due(Proven::Gains, 6));
    }

    #[test]
    fn a_daemon_that_hangs_is_told_once_and_one_that_is_not_there_yet_again() {
        let dir = tempfile::tempdir().unwrap();
        let (absent, hangs) = (dir.path().join("absent.sock"), dir.path().join("hangs.sock"));
        // It accepts connections, and answers none.
        let _listener = UnixListener::bind(&hangs).unwrap();
        let mut teller = teller(vec![absent.clone(), hangs]);
        teller.tell(&Gain::default());
        assert_eq!(teller.tells.daemons, [absent]);
    }

    #[test]
    fn an_older_daemon_is_told_no_more_and_one_without_room_later() {
        let refused = |errno: Errno| AskError::Refused { errno: errno as i32, why: String::new() };
        assert!(!may_be_told_later(&refused(Errno::ENOSYS)));
        assert!(may_be_told_later(&refused(Errno::EAGAIN)));
    }
}
