//! The proof of shares of loops: windows with shares by capability and with equal ones
//! (`alternation.rs`).
//!
//! What is measured is the time from each parallel region to the next one, which the preloaded library
//! takes whatever the weights are, and whether or not barriers and spinning are seen. A region is
//! compared with itself (`laps.rs`): regions differ much in length, and a window has few of them, so
//! their number in it says more about its ends than about the lever. While shares are tried or have
//! shown a gain, threads stay where they are, in windows of both kinds: so that these differ in nothing
//! else, and because a weight is that of the CPU under a thread.
//!
//! Where regions are so long that a window has less than two, nothing can be measured, and shares stay
//! equal. There, moving threads helps, and is proved by other means.

use evenkeel_capability::{Pin, Plan, Reason, Snapshot};

use super::alternation::Alternation;
use super::gain::Gain;
use super::laps::Laps;
use super::stage::Stage;
use super::window::MIN_LAPS;

/// A window lasts so many laps, if they are not too long for that; twice as many each time that two
/// windows had too few regions in common ...
const WINDOW_LAPS: f64 = 8.0;
/// ... and this long at most: so two pairs of windows fit into a trial.
const LONGEST_WINDOW_NS: u64 = 450_000_000;
/// The length of a lap is measured over this time.
const RECENT_NS: u64 = 1_000_000_000;
/// A mean of the samples from which shares seem to gain.
const SEEMING_GAIN: f64 = 0.02;
/// A window is not cut shorter than this.
const LEAST_INTERVAL_NS: u64 = 20_000_000;
/// Between two looks while a gain is shown: threads stay, and weights follow the CPUs of the last
/// second, so more looks would only cost.
const SHORTEST_INTERVAL_NS: u64 = 250_000_000;
const LONGEST_INTERVAL_NS: u64 = 500_000_000;

/// What the library counted in an interval.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loops {
    /// Laps that ended, of regions with the kind of shares that was in force.
    pub laps: Laps,
    /// Weights differ, and the library divides loops by them.
    pub is_wanted: bool,
    /// Difference between what the best and the worst CPU give to a thread.
    pub spread_ppm: u64,
}

/// What is done in the next interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Standing {
    /// Shares are equal, and threads may be moved.
    #[default]
    Free,
    /// Loops are divided by capability, and threads stay.
    Shared,
    /// A window without: shares are equal, and threads stay.
    SharedEqually,
}

/// Measures what shares gain in one program.
#[derive(Debug, Clone)]
pub(crate) struct LoopsProof {
    now_ns: u64,
    windows: Alternation,
    /// Laps of about the last second, and their time.
    recent: (f64, u64),
    window_laps: f64,
    was_used: bool,
    /// Shares were wanted, and regions were too long to measure them.
    was_too_long: bool,
}

impl Default for LoopsProof {
    fn default() -> Self {
        Self {
            now_ns: 0,
            windows: Alternation::default(),
            recent: (0.0, 0),
            window_laps: WINDOW_LAPS,
            was_used: false,
            was_too_long: false,
        }
    }
}

impl LoopsProof {
    /// Loops are not divided for a while: what the window has so far counts for nothing.
    pub(crate) fn rest(&mut self) {
        self.windows.rest();
    }

    /// Takes in the interval that ended, and decides what is done in the next one. Where threads stay,
    /// that is written into the plan; `pins` keep them.
    pub(crate) fn judge(
        &mut self,
        snapshot: &Snapshot,
        plan: &mut Plan,
        loops: Loops,
        pins: Vec<Pin>,
    ) -> Standing {
        self.now_ns = self.now_ns.saturating_add(snapshot.interval_ns);
        self.windows.add(snapshot, Some(&loops.laps));
        let is_long = self.note_length(snapshot, loops.laps.count());
        if !loops.is_wanted || is_long {
            self.was_too_long |= loops.is_wanted;
            self.windows.rest();
            return Standing::Free;
        }
        if self.windows.progress.may_try(self.now_ns, snapshot) {
            self.was_used = true;
            // Until now threads could move, too.
            self.windows.begin(snapshot, false);
        } else {
            self.windows.go_on(self.now_ns, snapshot, Some(SEEMING_GAIN));
            if std::mem::take(&mut self.windows.is_unverified) {
                self.window_laps *= 2.0;
            }
        }
        if matches!(self.windows.progress.stage, Stage::Withdrawn { .. }) {
            plan.reasons.push(self.withdrawn());
            return Standing::Free;
        }
        let (is_on, left_ns) = self.windows.next();
        plan.moves.clear();
        plan.pins = pins;
        plan.interval_ns = match left_ns {
            u64::MAX => plan.interval_ns.clamp(SHORTEST_INTERVAL_NS, LONGEST_INTERVAL_NS),
            left_ns => left_ns.max(LEAST_INTERVAL_NS),
        };
        let (standing, reason) = if is_on {
            (Standing::Shared, Reason::Shared { spread_ppm: loops.spread_ppm })
        } else {
            (Standing::SharedEqually, Reason::SharedEqually)
        };
        plan.reasons = vec![reason];
        standing
    }

    /// What is known of the gain.
    pub(crate) fn gain(&self) -> Gain {
        let Alternation { progress, sequence, pace, .. } = &self.windows;
        let mut gain = Gain::of(&progress.stage, sequence, *pace, 1.0, self.was_used);
        gain.off_pct = self.windows.off_pct();
        if !self.was_used && self.was_too_long {
            gain.why =
                Some("its parallel regions are too long to measure what shares gain".to_owned());
        }
        gain
    }

    /// Takes in how many laps ended. Returns whether they are too long to be measured.
    fn note_length(&mut self, snapshot: &Snapshot, ended: f64) -> bool {
        let (laps, time_ns) = &mut self.recent;
        *laps += ended;
        *time_ns = time_ns.saturating_add(snapshot.interval_ns);
        let mean_ns = if *laps > 0.0 { *time_ns as f64 / *laps } else { f64::INFINITY };
        if *time_ns > RECENT_NS {
            let kept = RECENT_NS as f64 / 2.0 / *time_ns as f64;
            (*laps, *time_ns) = (*laps * kept, RECENT_NS / 2);
        }
        // As a float, it may be infinite; as an integer it is in range.
        self.windows.least_ns = (mean_ns * self.window_laps).min(LONGEST_WINDOW_NS as f64) as u64;
        mean_ns * MIN_LAPS > LONGEST_WINDOW_NS as f64
    }

    fn withdrawn(&self) -> Reason {
        let sequence = &self.windows.sequence;
        Reason::SharesWithdrawn {
            pace_per_mille: (libm::exp(sequence.mean()) * 1000.0).round() as u64,
            windows: sequence.samples(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::gain::Proven;
    use super::super::tests::Dice;
    use super::super::window::Pace;
    use super::*;
    use evenkeel_capability::{CpuView, Move, Seen, TaskId};

    const MS: u64 = 1_000_000;
    const STEP_NS: u64 = 50 * MS;

    /// Lengths of the regions of a step, against the mean length of a lap.
    const STEP: [f64; 4] = [0.2, 0.2, 0.6, 3.0];

    /// A program with a region for each of so many milliseconds, which shares make `with` times as fast.
    struct Program {
        proof: LoopsProof,
        dice: Dice,
        with: f64,
        noise: f64,
        lap_ms: f64,
        percents: [u64; 2],
        is_wanted: bool,
        /// The region that runs, since when, how much of it is left (ms without shares), and its shares.
        region: (usize, f64, f64, Standing),
        standing: Standing,
        interval_ns: u64,
        now_ns: u64,
        shared_ns: u64,
        plan: Option<Plan>,
    }

    impl Program {
        fn new(seed: u64, with: f64) -> Self {
            Self {
                proof: LoopsProof::default(),
                dice: Dice(seed),
                with,
                noise: 0.03,
                lap_ms: 2.0,
                percents: [60, 100],
                is_wanted: true,
                region: (0, 0.0, 0.4, Standing::Free),
                standing: Standing::Free,
                interval_ns: STEP_NS,
                now_ns: 0,
                shared_ns: 0,
                plan: None,
            }
        }

        fn snapshot(&self) -> Snapshot {
            let cpu = |number: usize| CpuView {
                cpu: number as u32,
                core: number as u32,
                node: 0,
                speed: 1024,
                energy_rank: None,
                noise_ns: self.interval_ns * (100 - self.percents[number]) / 100,
                rt_ns: 0,
                idle_ns: 0,
                foreign_milli: 0,
                rt_milli: 0,
            };
            Snapshot {
                interval_ns: self.interval_ns,
                cpus: vec![cpu(0), cpu(1)],
                tasks: vec![],
                seen: Seen::default(),
            }
        }

        fn step(&mut self) {
            let interval_ns = self.interval_ns;
            self.now_ns += interval_ns;
            let is_shared = self.standing == Standing::Shared;
            self.shared_ns += if is_shared { interval_ns } else { 0 };
            let noise = self.noise * (STEP_NS as f64 / interval_ns as f64).sqrt();
            let pace = if is_shared { self.with } else { 1.0 } * (1.0 + noise * self.dice.normal());
            let laps = self.run_regions(interval_ns, pace.max(0.01));
            let loops = Loops { laps, is_wanted: self.is_wanted, spread_ppm: 400_000 };
            let task = TaskId { tid: 7, start: 1 };
            let reason = Reason::Behind { lag_ns: 20 * MS, from_ppm: 600_000, to_ppm: 1_000_000 };
            let mut plan = Plan {
                moves: vec![Move { task, from: 0, to: 1, reason }],
                pins: vec![],
                reasons: vec![],
                interval_ns: STEP_NS,
                spread_ppm: 400_000,
            };
            let pins = vec![Pin { task, cpu: 0 }];
            self.standing = self.proof.judge(&self.snapshot(), &mut plan, loops, pins);
            self.interval_ns = plan.interval_ns;
            self.plan = Some(plan);
        }

        /// The laps that end in the interval, of the kind that is in force.
        fn run_regions(&mut self, interval_ns: u64, pace: f64) -> Laps {
            let mut laps = Laps::default();
            let mut left_ms = interval_ns as f64 / 1e6;
            let (mut region, mut begun_ms, mut rest_ms, mut shares) = self.region;
            while left_ms > 0.0 {
                let run_ms = left_ms.min(rest_ms / pace);
                (left_ms, begun_ms, rest_ms) =
                    (left_ms - run_ms, begun_ms + run_ms, rest_ms - run_ms * pace);
                if rest_ms < 1e-9 {
                    let is_shared = |standing| standing == Standing::Shared;
                    if is_shared(shares) == is_shared(self.standing) {
                        laps.add((7, region as u64 + 1), 1.0, begun_ms * 1e6);
                    }
                    region = (region + 1) % STEP.len();
                    (begun_ms, rest_ms, shares) = (0.0, STEP[region] * self.lap_ms, self.standing);
                }
            }
            self.region = (region, begun_ms, rest_ms, shares);
            laps
        }

        fn run(&mut self, ms: u64) -> Gain {
            let end_ns = self.now_ns + ms * MS;
            while self.now_ns < end_ns {
                self.step();
            }
            self.proof.gain()
        }
    }

    #[test]
    fn a_gain_is_shown_by_the_time_from_region_to_region() {
        for (with, lap_ms) in [(1.3, 2.0), (1.1, 2.0), (1.3, 8.0), (1.3, 40.0)] {
            let mut program = Program { lap_ms, ..Program::new(7, with) };
            let gain = program.run(4_000);
            assert_eq!((gain.proven, gain.by), (Proven::Gains, Some(Pace::Regions)), "{gain:?}");
            let gain = program.run(60_000);
            let ratio = gain.ratio.unwrap();
            assert!((ratio / with - 1.0).abs() < 0.05, "{with}: {gain:?}");
            assert!(gain.low.unwrap() < with && with < gain.high.unwrap(), "{gain:?}");
            assert!(gain.off_pct < 6.0, "{gain:?}");
        }
    }

    #[test]
    fn what_seems_to_gain_has_shares_for_most_of_a_long_trial() {
        // So much noise that many of the programs show nothing in this time.
        let mut on_trial = 0;
        for seed in 0..100 {
            let mut program = Program { noise: 0.4, ..Program::new(seed, 1.3) };
            let gain = program.run(4_000);
            if gain.proven == Proven::Measuring {
                on_trial += 1;
                assert!(program.shared_ns > 2_600 * MS, "{seed}: {} {gain:?}", program.shared_ns);
            }
        }
        assert!(on_trial >= 10, "{on_trial}");
    }

    #[test]
    fn a_loss_is_withdrawn_within_two_seconds_of_trial() {
        for seed in 0..100 {
            for (with, noise) in [(0.95, 0.02), (0.8, 0.05)] {
                let mut program = Program { noise, ..Program::new(seed, with) };
                let gain = program.run(2_000);
                assert_eq!(gain.proven, Proven::Withdrawn, "{seed}: {gain:?}");
                let shared_ns = program.shared_ns;
                program.run(7_000);
                assert_eq!(program.shared_ns, shared_ns, "it stays withdrawn");
                let plan = program.plan.unwrap();
                assert_eq!((plan.moves.len(), plan.pins.len()), (1, 0), "threads may move again");
                assert!(matches!(plan.reasons[..], [Reason::SharesWithdrawn { .. }]), "{plan:?}");
            }
        }
    }

    #[test]
    fn what_is_withdrawn_is_tried_again_when_the_asymmetry_changes() {
        let mut program = Program::new(3, 0.9);
        assert_eq!(program.run(2_000).proven, Proven::Withdrawn);
        program.with = 1.3;
        assert_eq!(program.run(6_000).proven, Proven::Withdrawn);
        program.percents = [40, 100];
        assert_eq!(program.run(4_000).proven, Proven::Gains);
    }

    #[test]
    fn threads_stay_in_windows_of_both_kinds() {
        let mut program = Program::new(5, 1.3);
        let mut seen = [0, 0];
        for _ in 0..30 {
            program.step();
            let plan = program.plan.as_ref().unwrap();
            assert_eq!((plan.moves.len(), plan.pins.len()), (0, 1));
            match (program.standing, &plan.reasons[..]) {
                (Standing::Shared, [Reason::Shared { spread_ppm: 400_000 }]) => seen[0] += 1,
                (Standing::SharedEqually, [Reason::SharedEqually]) => seen[1] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }

    #[test]
    fn equal_cpus_and_long_loops_leave_threads_free() {
        let mut program = Program { is_wanted: false, ..Program::new(1, 1.3) };
        let gain = program.run(5_000);
        assert_eq!((gain.proven, gain.why, program.shared_ns), (Proven::Nothing, None, 0));
        assert_eq!(program.plan.unwrap().moves.len(), 1);
        let region = (0, 0.0, 400.0, Standing::Free);
        let mut program = Program { lap_ms: 2_000.0, region, ..Program::new(1, 1.3) };
        let gain = program.run(20_000);
        assert_eq!((gain.proven, program.shared_ns), (Proven::Nothing, 0));
        assert!(gain.why.unwrap().contains("too long"));
    }

    #[test]
    fn a_gain_outlasts_a_time_with_equal_cpus() {
        let mut program = Program::new(5, 1.3);
        assert_eq!(program.run(4_000).proven, Proven::Gains);
        program.is_wanted = false;
        program.run(3_000);
        assert_eq!(program.standing, Standing::Free);
        program.is_wanted = true;
        program.step();
        assert_eq!(
            (program.standing, program.proof.gain().proven),
            (Standing::Shared, Proven::Gains)
        );
    }
}
