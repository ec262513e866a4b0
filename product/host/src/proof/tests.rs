//! The proof in a closed loop with programs that run faster or slower with its levers, or neither, and
//! with the noise that windows have.

use evenkeel_capability::{
    CpuView, Move, Pin, Plan, Policy, Reason, Seen, Snapshot, TaskId, TaskView,
};
use evenkeel_machine::CpuSet;

use super::*;

const MS: u64 = 1_000_000;
const STEP_NS: u64 = 50 * MS;

/// splitmix64, for tests that draw their own cases.
pub(super) struct Dice(pub u64);

impl Dice {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// Normally distributed, by the sum of twelve.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.below(1_000_000) as f64 / 1e6).sum::<f64>() - 6.0
    }
}

fn cpu(number: u32, percent: u64, interval_ns: u64) -> CpuView {
    CpuView {
        cpu: number,
        core: number,
        node: 0,
        speed: 1024,
        energy_rank: None,
        noise_ns: interval_ns * (100 - percent) / 100,
        rt_ns: 0,
        idle_ns: 0,
        foreign_milli: 0,
        rt_milli: 0,
    }
}

fn id(tid: u32) -> TaskId {
    TaskId { tid, start: 1 }
}

fn task(tid: u32, cpu: u32, run_ns: u64, work_ns: u64) -> TaskView {
    TaskView {
        id: id(tid),
        process: 1,
        cpu,
        queue: 0,
        run_ns,
        spun_ns: run_ns.saturating_sub(work_ns),
        samples: 0,
        changes: 0,
        received_ns: run_ns,
        stolen_ns: 0,
        wait_ns: STEP_NS,
        sleeps: 1,
        runnable: true,
        allowed: CpuSet::first(8),
        fixed: false,
        working_set_bytes: None,
    }
}

fn plan_of(moves: Vec<Move>, pins: Vec<Pin>) -> Plan {
    Plan { moves, pins, reasons: vec![], interval_ns: STEP_NS, spread_ppm: 400_000 }
}

fn lag() -> Policy {
    Policy::Lag(evenkeel_capability::LagParameters::default())
}

/// Nothing is withdrawn by windows that mean nothing any more.
fn assert_reasons_have_evidence(plan: &Plan) {
    let is_empty = |reason: &Reason| matches!(reason, Reason::Withdrawn { windows: 0, .. });
    assert!(!plan.reasons.iter().any(is_empty), "{plan:?}");
}

/// A program of eight tasks on two CPUs, which a split makes `with` times as fast.
struct Crowd {
    proof: Proof,
    dice: Dice,
    with: f64,
    noise: f64,
    percents: [u64; 2],
    /// Spinning is told from work.
    is_seen: bool,
    /// In the next interval tasks are found to wait in other places.
    is_redefined: bool,
    /// Its user asked for so many tasks.
    is_asked: bool,
    /// In one of so many intervals the plan has no pins.
    gap: Option<u64>,
    steps: u64,
    is_on: bool,
    now_ns: u64,
    interval_ns: u64,
    on_ns: u64,
}

impl Crowd {
    fn new(seed: u64, with: f64, noise: f64) -> Self {
        Self {
            proof: Proof::new(&lag()),
            dice: Dice(seed),
            with,
            noise,
            percents: [60, 100],
            is_seen: true,
            is_redefined: false,
            is_asked: false,
            gap: None,
            steps: 0,
            is_on: false,
            now_ns: 0,
            interval_ns: STEP_NS,
            on_ns: 0,
        }
    }

    fn step(&mut self) {
        let interval_ns = self.interval_ns;
        self.steps += 1;
        self.now_ns += interval_ns;
        self.on_ns += if self.is_on { interval_ns } else { 0 };
        // A longer interval averages more of the noise out.
        let noise = self.noise * (STEP_NS as f64 / interval_ns as f64).sqrt() * self.dice.normal();
        let pace = if self.is_on { self.with } else { 1.0 } * (1.0 + noise).max(0.01);
        let run_ns = interval_ns / 4;
        let work_ns = (run_ns as f64 * 0.6 * pace) as u64;
        let [one, other] = self.percents;
        let redefined = std::mem::take(&mut self.is_redefined);
        let snapshot = Snapshot {
            interval_ns,
            cpus: vec![cpu(0, one, interval_ns), cpu(1, other, interval_ns)],
            tasks: (0..8).map(|tid| task(tid, u32::from(tid > 2), run_ns, work_ns)).collect(),
            seen: Seen {
                spinning: self.is_seen,
                redefined,
                asked: self.is_asked,
                ..Seen::default()
            },
        };
        let pins = (0..8).map(|tid| Pin { task: id(tid), cpu: u32::from(tid > 2) });
        let is_gap = self.gap.is_some_and(|gap| self.steps.is_multiple_of(gap));
        let pins = if one == other || is_gap { vec![] } else { pins.collect() };
        let mut plan = plan_of(vec![], pins);
        // A window of several intervals can be cut.
        plan.interval_ns = if self.gap.is_some() { STEP_NS } else { 4 * STEP_NS };
        plan.reasons.push(Reason::PhasesTooShort { phase_ns: 2 * MS });
        self.proof.judge(&snapshot, &mut plan);
        assert_reasons_have_evidence(&plan);
        self.is_on = !plan.pins.is_empty();
        self.interval_ns = plan.interval_ns;
    }

    fn run(&mut self, seconds: u64) -> Gain {
        let end_ns = self.now_ns + seconds * 1_000 * MS;
        while self.now_ns < end_ns {
            self.step();
        }
        self.proof.gain()
    }
}

#[test]
fn a_gain_is_shown_soon_and_measured_at_little_cost() {
    for (with, noise) in [(1.3, 0.05), (1.2, 0.03), (1.1, 0.02)] {
        let mut crowd = Crowd::new(7, with, noise);
        let gain = crowd.run(2);
        assert_eq!(gain.proven, Proven::Gains, "{with}: {gain:?}");
        let gain = crowd.run(118);
        assert_eq!(gain.by, Some(Pace::Work));
        let ratio = gain.ratio.unwrap();
        assert!((ratio / with - 1.0).abs() < 0.03, "{gain:?}");
        assert!(gain.low.unwrap() < with && with < gain.high.unwrap(), "{gain:?}");
        assert!(gain.off_pct <= 5.0, "{gain:?}");
        assert!(gain.to_string().starts_with(&format!("ran {ratio:.2}x as fast as without (")));
    }
}

#[test]
fn a_split_of_tasks_that_were_asked_for_is_held_and_claims_nothing() {
    for with in [1.3, 0.9] {
        let mut crowd = Crowd { is_asked: true, ..Crowd::new(7, with, 0.05) };
        crowd.step();
        let begun_ns = crowd.now_ns;
        let gain = crowd.run(20);
        assert_eq!((gain.proven, gain.ratio, gain.off_pct), (Proven::Unverified, None, 0.0));
        assert_eq!(crowd.on_ns, crowd.now_ns - begun_ns, "a window without");
        assert!(gain.to_string().contains("`evenkeel compare` measures it"), "{gain}");
        // What was measured before the threads were there is no claim either.
        let mut crowd = Crowd::new(7, 1.3, 0.05);
        assert_eq!(crowd.run(5).proven, Proven::Gains);
        (crowd.is_asked, crowd.is_redefined) = (true, true);
        let gain = crowd.run(1);
        assert_eq!((gain.proven, gain.ratio, gain.windows), (Proven::Unverified, None, 0));
    }
}

#[test]
fn a_large_gain_is_shown_before_a_short_program_ends() {
    let shown = |seed: &u64| {
        let mut crowd = Crowd::new(*seed, 1.25, 0.02);
        while crowd.now_ns < 700 * MS {
            crowd.step();
        }
        crowd.proof.gain().proven == Proven::Gains
    };
    let shown = (0..100).filter(shown).count();
    assert!(shown >= 90, "{shown} of 100");
}

#[test]
fn a_loss_is_withdrawn_within_two_seconds() {
    for seed in 0..100 {
        for (with, noise) in [(0.95, 0.02), (0.9, 0.05), (0.7, 0.1)] {
            let mut crowd = Crowd::new(seed, with, noise);
            let gain = crowd.run(2);
            assert_eq!(gain.proven, Proven::Withdrawn, "{gain:?}");
            assert!(!crowd.is_on);
            let on_ns = crowd.on_ns;
            crowd.run(7);
            assert_eq!(crowd.on_ns, on_ns, "it stays withdrawn");
        }
    }
}

#[test]
fn nothing_is_claimed_where_nothing_is_gained() {
    for noise in [0.005, 0.02, 0.08] {
        let claims = (0..300).filter(|seed| {
            let mut crowd = Crowd::new(*seed, 1.0, noise);
            (0..40).any(|_| crowd.run(1).proven == Proven::Gains)
        });
        let claims = claims.count();
        assert!(claims <= 15, "{claims} of 300 with a noise of {noise}");
    }
}

#[test]
fn a_loss_that_begins_later_is_withdrawn() {
    for seed in 0..20 {
        let mut crowd = Crowd::new(seed, 1.2, 0.02);
        assert_eq!(crowd.run(30).proven, Proven::Gains);
        crowd.with = 0.9;
        assert_eq!(crowd.run(4).proven, Proven::Withdrawn, "seed {seed}");
    }
}

#[test]
fn it_is_tried_again_when_the_asymmetry_changes_and_seldom_else() {
    let mut crowd = Crowd::new(3, 0.9, 0.02);
    assert_eq!(crowd.run(2).proven, Proven::Withdrawn);
    crowd.with = 1.3;
    assert_eq!(crowd.run(6).proven, Proven::Withdrawn);
    crowd.percents = [40, 100];
    let gain = crowd.run(4);
    assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
    assert!((gain.ratio.unwrap() - 1.3).abs() < 0.05, "{gain:?}");
    // What never gains is tried for less and less of the time.
    let mut crowd = Crowd::new(4, 0.9, 0.02);
    crowd.run(1_000);
    assert!(crowd.on_ns < 12_000 * MS, "{} ms", crowd.on_ns / MS);
}

#[test]
fn a_split_that_the_plan_no_longer_wants_is_no_loss() {
    let mut crowd = Crowd::new(5, 1.3, 0.02);
    let gain = crowd.run(5);
    assert_eq!(gain.proven, Proven::Gains);
    crowd.percents = [100, 100];
    let rested = crowd.run(5);
    assert!(!crowd.is_on);
    // A window without the split may have been under way.
    assert!(rested.off_pct < gain.off_pct + 3.0, "{rested:?} after {gain:?}");
    crowd.percents = [60, 100];
    crowd.step();
    assert!(crowd.is_on && crowd.proof.gain().proven == Proven::Gains);
}

#[test]
fn no_window_has_time_both_with_and_without_pins() {
    for gap in 5..12 {
        let mut crowd = Crowd { gap: Some(gap), ..Crowd::new(6, 1.3, 0.005) };
        let gain = crowd.run(20);
        assert_eq!(gain.proven, Proven::Gains, "each {gap}: {gain:?}");
        assert!((gain.ratio.unwrap() / 1.3 - 1.0).abs() < 0.03, "each {gap}: {gain:?}");
    }
}

#[test]
fn a_split_that_cannot_be_measured_is_kept_until_it_can() {
    let mut crowd = Crowd { is_seen: false, ..Crowd::new(8, 1.3, 0.02) };
    let gain = crowd.run(30);
    assert_eq!((gain.proven, gain.ratio), (Proven::Unverified, None), "{gain:?}");
    assert!(gain.to_string().starts_with("gain unverified: how the tasks wait"), "{gain}");
    let off_ns = crowd.now_ns - crowd.on_ns;
    assert!(off_ns <= 200 * MS, "{} ms", off_ns / MS);
    crowd.is_seen = true;
    let gain = crowd.run(4);
    assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
}

/// Two tasks in one long phase on two CPUs, which change places in each interval.
struct Pair {
    proof: Proof,
    dice: Dice,
    places: [u32; 2],
    /// What each CPU gives, by its number; none: it is offline.
    percents: Vec<Option<u64>>,
    /// Of the first task; the other one has the next number.
    first_tid: u32,
    /// The first task is critical, and moved for that.
    is_critical: bool,
    /// Share of the time in which each task works; it spins for the rest.
    works: f64,
    /// The kernel puts the tasks back.
    is_undone: bool,
    is_seen: bool,
    may_be_told: bool,
    /// In the next interval tasks are found to wait in other places.
    is_redefined: bool,
    /// What evenkeel uses itself, in % of a CPU, and what it has used so far.
    own_percent: u64,
    own_ns: u64,
    moves: u32,
}

impl Pair {
    fn new() -> Self {
        Self {
            proof: Proof::new(&lag()),
            dice: Dice(9),
            places: [0, 1],
            percents: vec![Some(60), Some(100)],
            first_tid: 0,
            is_critical: false,
            works: 1.0,
            is_undone: false,
            is_seen: true,
            may_be_told: false,
            is_redefined: false,
            own_percent: 0,
            own_ns: 0,
            moves: 0,
        }
    }

    fn step(&mut self) -> Gain {
        let online = (0..).zip(&self.percents);
        let cpus = online
            .filter_map(|(number, percent)| Some(cpu(number, (*percent)?, STEP_NS)))
            .collect();
        let tasks = [0, 1].map(|index| {
            let place = self.places[index];
            let percent = self.percents[place as usize].unwrap_or(0);
            let sharing = self.places.iter().filter(|other| **other == place).count() as u64;
            let run_ns = STEP_NS * percent / 100 / sharing;
            let noise = 1.0 + 0.02 * self.dice.normal();
            let work_ns = (run_ns as f64 * (self.works * noise).min(1.0)) as u64;
            task(self.first_tid + index as u32, place, run_ns, work_ns)
        });
        let seen = Seen {
            spinning: self.is_seen,
            may_be_told: self.may_be_told && !self.is_seen,
            redefined: std::mem::take(&mut self.is_redefined),
            ..Seen::default()
        };
        let snapshot = Snapshot { interval_ns: STEP_NS, cpus, tasks: tasks.into(), seen };
        let [one, other] = self.places;
        let (from_ppm, to_ppm) = (600_000, 1_000_000);
        let reason = if self.is_critical {
            Reason::Critical { work_ppm: 1_000_000, from_ppm, to_ppm }
        } else {
            Reason::Behind { lag_ns: 20 * MS, from_ppm, to_ppm }
        };
        let [first, second] = [self.first_tid, self.first_tid + 1].map(id);
        let mut moves = vec![
            Move { task: first, from: one, to: other, reason: reason.clone() },
            Move { task: second, from: other, to: one, reason },
        ];
        moves.retain(|made| made.from != made.to);
        let mut plan = plan_of(moves, vec![]);
        self.own_ns += STEP_NS * self.own_percent / 100;
        self.proof.take_in_own_cpu(self.own_ns);
        self.proof.judge(&snapshot, &mut plan);
        assert_reasons_have_evidence(&plan);
        self.moves += plan.moves.len() as u32;
        if !plan.moves.is_empty() && !self.is_undone {
            self.places = [other, one];
        }
        self.proof.gain()
    }

    fn run(&mut self, seconds: u64) -> Gain {
        for _ in 0..seconds * 20 {
            self.step();
        }
        self.proof.gain()
    }
}

#[test]
fn exchanges_are_proved_by_the_rates_of_the_cpus_and_never_paused() {
    let mut pair = Pair::new();
    let gain = pair.run(2);
    assert_eq!((gain.proven, gain.by), (Proven::Gains, Some(Pace::CpuRates)), "{gain:?}");
    let gain = pair.run(20);
    assert!((1.27..1.34).contains(&gain.ratio.unwrap()), "{gain:?}");
    assert_eq!(pair.moves, 2 * 20 * 22, "none was withheld");
    let text = gain.to_string();
    assert!(text.ends_with("windows by the rates of the CPUs)"), "{text}");
    assert_eq!(serde_json::to_value(gain.by).unwrap(), "cpu-rates");
}

/// Without evenkeel, the slowest CPU would have given 65 %, not 60.
#[test]
fn what_evenkeel_uses_itself_is_no_gain() {
    let gain = Pair { own_percent: 5, ..Pair::new() }.run(20);
    assert!((1.18..1.25).contains(&gain.ratio.unwrap()), "{gain:?}");
}

#[test]
fn exchanges_that_gain_nothing_are_withdrawn_within_two_seconds() {
    // The tasks wait for each other so much that they get no more than on the slowest CPU.
    let mut pair = Pair { works: 0.7, ..Pair::new() };
    let gain = pair.run(3);
    assert_eq!(gain.proven, Proven::Withdrawn, "{gain:?}");
    assert!(pair.moves <= 2 * 40, "{} moves", pair.moves);
    assert!(gain.to_string().starts_with("withdrawn: no gain was shown"), "{gain}");
}

/// The snapshot of two tasks on two unequal CPUs, and a move of the first task.
fn two_and_a_move(reason: Reason) -> (Snapshot, Plan) {
    let snapshot = Snapshot {
        interval_ns: STEP_NS,
        cpus: vec![cpu(0, 60, STEP_NS), cpu(1, 100, STEP_NS)],
        tasks: vec![task(0, 0, STEP_NS, STEP_NS), task(1, 1, STEP_NS, STEP_NS)],
        seen: Seen { spinning: true, ..Seen::default() },
    };
    (snapshot, plan_of(vec![Move { task: id(0), from: 0, to: 1, reason }], vec![]))
}

#[test]
fn moves_to_more_room_are_made_while_exchanges_are_withdrawn() {
    let mut pair = Pair { works: 0.7, ..Pair::new() };
    assert_eq!(pair.run(3).proven, Proven::Withdrawn);
    let room = Reason::MoreRoom { from_ppm: 300_000, to_ppm: 600_000 };
    let (snapshot, mut plan) = two_and_a_move(room.clone());
    pair.proof.judge(&snapshot, &mut plan);
    assert_eq!((plan.moves.len(), plan.reasons.len()), (1, 0), "{plan:?}");
    let ahead = Reason::Ahead { lead_ns: 20 * MS, from_ppm: 1_000_000, to_ppm: 600_000 };
    plan.moves.push(Move { task: id(1), from: 1, to: 0, reason: ahead });
    pair.proof.judge(&snapshot, &mut plan);
    assert_eq!(plan.moves.iter().map(|made| &made.reason).collect::<Vec<_>>(), [&room]);
    assert!(matches!(plan.reasons[..], [Reason::Withdrawn { .. }]), "{plan:?}");
}

#[test]
fn what_cannot_be_told_is_unverified_and_done_as_before() {
    let mut unseen = Pair { is_seen: false, ..Pair::new() };
    let gain = unseen.run(3);
    assert_eq!((gain.proven, gain.ratio, unseen.moves), (Proven::Unverified, None, 120));
    assert!(gain.to_string().starts_with("gain unverified: spinning"), "{gain}");
    let mut undone = Pair { is_undone: true, ..Pair::new() };
    let gain = undone.run(3);
    assert_eq!(gain.proven, Proven::Unverified, "{gain:?}");
    assert!(gain.to_string().contains("the kernel moves the tasks"), "{gain}");
    let paper = Policy::Paper(evenkeel_capability::PaperParameters::default());
    let mut paper = Pair { proof: Proof::new(&paper), ..Pair::new() };
    assert_eq!((paper.run(3).proven, paper.moves), (Proven::Unverified, 120));
}

#[test]
fn while_it_may_soon_be_told_exchanges_are_few() {
    let mut pair = Pair { is_seen: false, may_be_told: true, ..Pair::new() };
    assert_eq!((pair.run(9).proven, pair.moves), (Proven::Unverified, 2 * 3));
    // Once in a while there are some more, in case that the CPUs were too much alike until now.
    pair.run(3);
    assert_eq!(pair.moves, 2 * 6);
    let behind = Reason::Behind { lag_ns: 20 * MS, from_ppm: 600_000, to_ppm: 1_000_000 };
    let (mut snapshot, mut plan) = two_and_a_move(behind);
    snapshot.seen = Seen { may_be_told: true, ..Seen::default() };
    pair.proof.judge(&snapshot, &mut plan);
    assert_eq!((plan.moves.len(), &plan.reasons[..]), (0, &[Reason::SpinningUntold][..]));
    pair.is_seen = true;
    assert_eq!(pair.run(3).proven, Proven::Gains);
}

#[test]
fn a_gain_that_was_waiting_is_claimed_no_longer() {
    let mut pair = Pair::new();
    assert_eq!(pair.run(3).proven, Proven::Gains);
    // The tasks spun in places that were not known.
    (pair.is_redefined, pair.works) = (true, 0.7);
    let gain = pair.run(1);
    assert_ne!(gain.proven, Proven::Gains, "{gain:?}");
    let gain = pair.run(3);
    assert_eq!(gain.proven, Proven::Withdrawn, "{gain:?}");
}

#[test]
fn a_cpu_that_leaves_is_no_gain_and_a_cpu_that_joins_no_loss() {
    let mut pair = Pair::new();
    assert_eq!(pair.run(3).proven, Proven::Gains);
    (pair.percents[0], pair.places) = (None, [1, 1]);
    let gain = pair.run(2);
    assert!(gain.ratio.is_none_or(|ratio| ratio < 1.4), "{gain:?}");
    (pair.percents[0], pair.places) = (Some(60), [0, 1]);
    let gain = pair.run(10);
    assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
    assert!(gain.ratio.unwrap() < 1.4, "{gain:?}");
    pair.percents.push(Some(100));
    for _ in 0..12 {
        let gain = pair.run(1);
        assert_ne!(gain.proven, Proven::Withdrawn, "{gain:?}");
    }
}

#[test]
fn a_gain_stays_as_it_was_when_a_thread_is_replaced() {
    let mut pair = Pair::new();
    assert_eq!(pair.run(3).proven, Proven::Gains);
    pair.first_tid = 1;
    for _ in 0..20 {
        let gain = pair.step();
        assert!((1.2..1.4).contains(&gain.ratio.unwrap()), "{gain:?}");
    }
}

#[test]
fn what_a_critical_task_gains_is_measured_for_itself() {
    let mut pair = Pair::new();
    assert_eq!(pair.run(3).proven, Proven::Gains);
    pair.is_critical = true;
    let gain = pair.step();
    assert_eq!((gain.proven, gain.ratio, gain.windows), (Proven::Measuring, None, 0));
}

#[test]
fn a_split_that_gained_by_waiting_is_claimed_no_longer() {
    let mut crowd = Crowd::new(5, 1.3, 0.02);
    assert_eq!(crowd.run(5).proven, Proven::Gains);
    (crowd.is_redefined, crowd.with) = (true, 0.9);
    crowd.step();
    let gain = crowd.proof.gain();
    assert_eq!((gain.proven, gain.windows), (Proven::Measuring, 0), "{gain:?}");
    let gain = crowd.run(3);
    assert_eq!(gain.proven, Proven::Withdrawn, "{gain:?}");
}

#[test]
fn what_was_withdrawn_by_waiting_is_tried_again() {
    let mut crowd = Crowd::new(5, 0.9, 0.02);
    assert_eq!(crowd.run(2).proven, Proven::Withdrawn);
    (crowd.is_redefined, crowd.with) = (true, 1.3);
    let gain = crowd.run(3);
    assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
    let mut pair = Pair { works: 0.7, ..Pair::new() };
    assert_eq!(pair.run(3).proven, Proven::Withdrawn);
    (pair.is_redefined, pair.works) = (true, 1.0);
    let gain = pair.run(3);
    assert_eq!(gain.proven, Proven::Gains, "{gain:?}");
}

#[test]
fn a_program_shorter_than_a_trial_has_no_claim() {
    let mut pair = Pair::new();
    pair.percents = vec![Some(90), Some(100)];
    let gain = pair.proof.gain();
    assert_eq!((gain.proven, gain.ratio), (Proven::Nothing, None));
    let behind = Reason::Behind { lag_ns: 20 * MS, from_ppm: 600_000, to_ppm: 1_000_000 };
    let (snapshot, mut plan) = two_and_a_move(behind);
    pair.proof.judge(&snapshot, &mut plan);
    let gain = pair.proof.gain();
    assert_eq!((gain.proven, gain.ratio, gain.windows), (Proven::Measuring, None, 0));
}

#[test]
fn what_is_gathered_for_less_energy_is_not_withdrawn_and_all_else_is_judged() {
    let mut proof = Proof::new(&lag());
    let (snapshot, mut plan) = two_and_a_move(Reason::LessEnergy { from_ppm: 2, to_ppm: 1 });
    plan.reasons = vec![Reason::Gathered { cpus: 2, spread_ppm: 0 }];
    let made = plan.moves.clone();
    proof.judge(&snapshot, &mut plan);
    assert_eq!(plan.moves, made);
    assert!(proof.gain().to_string().contains("less energy was asked for"), "{}", proof.gain());
    let mut proof = Proof::new(&lag());
    let (snapshot, mut plan) = two_and_a_move(Reason::MoreRoom { from_ppm: 1, to_ppm: 2 });
    proof.judge(&snapshot, &mut plan);
    assert!(!proof.gain().to_string().contains("less energy"), "{}", proof.gain());
}
