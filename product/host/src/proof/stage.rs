//! How far a proof is: nothing tried, on trial, a gain shown, or withdrawn.

use evenkeel_capability::Snapshot;

/// What has not shown a gain in this time is withdrawn: a loss of 5 % is found long before.
const TRIAL_NS: u64 = 1_800_000_000;
/// Where windows differ much from each other, what seems to gain may stay on trial for this time.
const LONG_TRIAL_NS: u64 = 20_000_000_000;
/// What was withdrawn rests for this time before it is tried again: at first, and at most. Each rest is
/// twice as long as the one before.
const FIRST_BACKOFF_NS: u64 = 10_000_000_000;
const LAST_BACKOFF_NS: u64 = 640_000_000_000;
/// It is tried again at once when the CPUs' spread changes by this much, in two intervals in a row.
const CHANGED_PPM: u64 = 150_000;

/// The asymmetry at which something was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asymmetry {
    /// Difference between the capabilities of the best and the worst CPU.
    spread_ppm: u64,
    cpus: usize,
}

impl Asymmetry {
    fn of(snapshot: &Snapshot) -> Self {
        let interval_ns = u128::from(snapshot.interval_ns.max(1));
        let given = snapshot.cpus.iter().map(|cpu| cpu.effective_ns(snapshot.interval_ns));
        let (least, most) =
            given.fold((u64::MAX, 0), |(least, most), ns| (ns.min(least), ns.max(most)));
        let spread = u128::from(most.saturating_sub(least)) * 1_000_000 / interval_ns;
        Self { spread_ppm: u64::try_from(spread).unwrap_or(u64::MAX), cpus: snapshot.cpus.len() }
    }

    fn differs(self, other: Self) -> bool {
        self.cpus != other.cpus || self.spread_ppm.abs_diff(other.spread_ppm) >= CHANGED_PPM
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Idle,
    Trial,
    Gains,
    Withdrawn {
        until_ns: u64,
        /// The asymmetry at which it was withdrawn.
        then: Asymmetry,
        /// The asymmetry was another one in the last interval, too.
        differed: bool,
    },
}

/// The stage, and what it takes to go on to the next one.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    /// Time on trial.
    tried_ns: u64,
    backoff_ns: u64,
}

impl Progress {
    /// Whether a trial may begin now.
    pub(super) fn may_try(&mut self, now_ns: u64, snapshot: &Snapshot) -> bool {
        match &mut self.stage {
            Stage::Idle => true,
            Stage::Withdrawn { until_ns, then, differed } => {
                let differs = then.differs(Asymmetry::of(snapshot));
                let lasts = differs && *differed;
                *differed = differs;
                lasts || now_ns >= *until_ns
            }
            Stage::Trial | Stage::Gains => false,
        }
    }

    /// Begins a trial. Returns whether the asymmetry is another one than when it was withdrawn, so that
    /// earlier samples mean nothing.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) -> bool {
        let has_changed = match self.stage {
            Stage::Withdrawn { then, .. } => then.differs(Asymmetry::of(snapshot)),
            _ => false,
        };
        if has_changed {
            self.backoff_ns = 0;
        }
        (self.stage, self.tried_ns) = (Stage::Trial, 0);
        has_changed
    }

    /// Time has passed on trial.
    pub(super) fn pass(&mut self, time_ns: u64) {
        self.tried_ns = self.tried_ns.saturating_add(time_ns);
    }

    /// What the interval of the logarithm of the pace decides on trial: a gain, none, or nothing yet.
    /// `seems_to_gain` asks for a longer trial.
    pub(super) fn decide(&self, measured: Option<(f64, f64)>, seems_to_gain: bool) -> Option<bool> {
        let trial_ns = if seems_to_gain { LONG_TRIAL_NS } else { TRIAL_NS };
        match measured {
            Some((low, _)) if low > 0.0 => Some(true),
            Some((_, high)) if high < 0.0 => Some(false),
            _ => (self.tried_ns >= trial_ns).then_some(false),
        }
    }

    pub(super) fn gain(&mut self) {
        (self.stage, self.backoff_ns) = (Stage::Gains, 0);
    }

    pub(super) fn withdraw(&mut self, now_ns: u64, snapshot: &Snapshot) {
        self.backoff_ns = match self.backoff_ns {
            0 => FIRST_BACKOFF_NS,
            backoff_ns => (backoff_ns * 2).min(LAST_BACKOFF_NS),
        };
        let until_ns = now_ns.saturating_add(self.backoff_ns);
        self.stage = Stage::Withdrawn { until_ns, then: Asymmetry::of(snapshot), differed: false };
    }
}
