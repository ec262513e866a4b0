use proptest::prelude::*;

use super::*;

/// A space with a known pace for each multiplier, looked at so often.
struct World {
    auto: Auto,
    set: u64,
    /// Numbers that are as good as drawn.
    drawn: u64,
    changes: Vec<Tuning>,
}

const LOOK_NS: u64 = 250_000_000;
const SPACE: u64 = 7;

impl World {
    fn new(seed: u64) -> Self {
        Self::of(Mode::Paper, seed)
    }

    fn of(mode: Mode, seed: u64) -> Self {
        Self { auto: Auto::new(mode), set: 0, drawn: seed | 1, changes: Vec::new() }
    }

    /// Between -1 and 1.
    fn draw(&mut self) -> f64 {
        self.drawn ^= self.drawn << 13;
        self.drawn ^= self.drawn >> 7;
        self.drawn ^= self.drawn << 17;
        (self.drawn >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// Looks so often at threads that run all the time on two CPUs and get done `pace(multiplier)` units
    /// a ms, more or less by a part of `noise`.
    fn pass(&mut self, looks: u32, noise: f64, pace: impl Fn(u64) -> f64) {
        for _ in 0..looks {
            let run_ns = 2 * LOOK_NS;
            let units = pace(self.set) * (1.0 + noise * self.draw()) * run_ns as f64 / 1e6;
            let seen = Seen { sleeps: units as u64, ..busy(run_ns) };
            self.see(seen);
        }
    }

    fn see(&mut self, seen: Seen) {
        for change in self.auto.look(LOOK_NS, &[seen]) {
            self.set = change.multiplier;
            self.changes.push(change);
        }
    }

    fn held(&self) -> u64 {
        self.auto.tuners[&SPACE].held
    }

    /// Decisions, trials left out.
    fn decisions(&self) -> Vec<(u64, Why)> {
        let tried = |change: &&Tuning| !matches!(change.why, Why::Tried { .. });
        self.changes.iter().filter(tried).map(|change| (change.multiplier, change.why)).collect()
    }
}

/// Eight threads that ran so long, and did nothing that is seen.
fn busy(run_ns: u64) -> Seen {
    Seen { space: SPACE, threads: 8, run_ns, ..Seen::default() }
}

/// Each doubling brings a part more, up to a multiplier.
fn rising(best: u64) -> impl Fn(u64) -> f64 {
    move |multiplier| match multiplier.min(best) {
        0 => 10.0,
        up_to => 10.0 * (1.0 + 0.05 * (1.0 + up_to.ilog2() as f64)),
    }
}

#[test]
fn it_climbs_as_long_as_that_pays() {
    for best in [16, 64] {
        let mut world = World::new(3);
        world.pass(600, 0.02, rising(best));
        assert_eq!(world.held(), best, "{:?}", world.decisions());
        assert!(world.decisions().iter().any(|(_, why)| matches!(why, Why::Better { .. })));
    }
}

/// It is the least multiplier that is not worse, down to the paper's own.
#[test]
fn it_ends_at_no_more_than_pays() {
    for best in [1, 3, 5, 16] {
        let mut world = World::new(3);
        world.pass(3_000, 0.02, rising(best));
        assert_eq!(world.held(), best, "{:?}", world.decisions());
    }
}

/// Where spaces take turns all multipliers mean the same.
#[test]
fn in_rounds_there_is_one_multiplier() {
    let mut world = World::of(Mode::Rounds, 3);
    world.pass(600, 0.02, rising(64));
    assert_eq!(world.held(), 1, "{:?}", world.decisions());
    assert!(world.changes.iter().all(|change| change.multiplier <= 1), "{:?}", world.changes);
    world.pass(600, 0.02, |multiplier| 8.0 - 2.0 * multiplier as f64);
    assert_eq!(world.held(), 0, "{:?}", world.decisions());
}

#[test]
fn it_backs_off_to_none_when_aggregation_begins_to_harm() {
    let mut world = World::new(5);
    world.pass(600, 0.02, rising(16));
    assert_eq!(world.held(), 16);
    world.changes.clear();
    // A trial that is under way, three windows to notice, and the most pairs again; each window is one
    // look, and one to settle.
    let looks = (FALLEN + 4 * *PAIRS.end() as u32 + 1) * 2;
    world.pass(looks, 0.02, |multiplier| 8.0 - 0.1 * multiplier as f64);
    assert_eq!(world.held(), 0, "{:?}", world.decisions());
    // (The trial that was under way has seen both times.)
    let backed_off =
        |why: &Why| matches!(why, Why::Better { than: 16, .. } | Why::NoGain { other: 16 });
    let decisions = world.decisions();
    assert!(decisions.iter().any(|(held, why)| *held == 0 && backed_off(why)), "{decisions:?}");
}

#[test]
fn what_brings_nothing_or_harms_is_tried_ever_more_seldom() {
    let changes = |pace: fn(u64) -> f64, looks| {
        let mut world = World::new(11);
        world.pass(looks, 0.0, pace);
        assert_eq!(world.held(), 0);
        assert!(world.decisions().iter().all(|(multiplier, _)| *multiplier == 0));
        world.changes.len()
    };
    for pace in [(|_| 10.0) as fn(u64) -> f64, |multiplier| 10.0 - 0.1 * multiplier as f64] {
        let (early, late) = (changes(pace, 1_000), changes(pace, 2_000));
        assert!(early > 0 && late - early < early, "{early} {late}");
    }
}

#[test]
fn who_shows_nothing_is_left_alone() {
    let busy = Seen { sleeps: 5_000, ..busy(2 * LOOK_NS) };
    for seen in [
        Seen { threads: 1, ..busy },
        Seen { sleeps: 0, ..busy },
        Seen { run_ns: LOOK_NS / 10, ..busy },
    ] {
        let mut world = World::new(1);
        (0..1_000).for_each(|_| world.see(seen));
        assert_eq!(world.changes, [], "{seen:?}");
        // A space that had a bonus before loses it.
        world.pass(600, 0.02, rising(16));
        assert_eq!(world.held(), 16);
        // A window lasts 80 looks at most.
        (0..80 * (SILENT + 1)).for_each(|_| world.see(seen));
        assert_eq!((world.held(), world.set), (0, 0));
        assert_eq!(world.changes.last().map(|change| change.why), Some(Why::Nothing));
    }
}

#[test]
fn looks_are_frequent_only_while_something_is_tried() {
    let mut world = World::new(1);
    assert_eq!(world.auto.interval_ns(), IDLE_LOOK_NS);
    world.pass(10, 0.0, rising(4));
    assert_eq!(world.auto.interval_ns(), TRIAL_LOOK_NS);
    world.pass(2_000, 0.0, |_| 10.0);
    let mut rests = false;
    for _ in 0..200 {
        world.pass(1, 0.0, |_| 10.0);
        rests |= world.auto.interval_ns() == REST_LOOK_NS;
    }
    assert!(rests);
}

#[test]
fn who_has_ended_is_forgotten() {
    let mut world = World::new(1);
    world.pass(600, 0.0, rising(16));
    assert_eq!(world.auto.look(LOOK_NS, &[]), []);
    assert!(world.auto.tuners.is_empty());
}

/// A server's threads find the next request waiting the more often the longer they run in a row.
#[test]
fn of_sleeps_and_calls_the_more_frequent_ones_count() {
    let held = |calls_a_ms: fn(u64) -> f64| {
        let mut world = World::new(9);
        for _ in 0..2_000 {
            let run_ns = 2 * LOOK_NS;
            let units = |a_ms: f64, noise: f64| (a_ms * (1.0 + noise) * run_ns as f64 / 1e6) as u64;
            let noise = 0.02 * world.draw();
            let sleeps = units(if world.set > 0 { 0.5 } else { 1.0 }, noise);
            let calls = units(calls_a_ms(world.set), noise);
            world.see(Seen { sleeps, calls, ..busy(run_ns) });
        }
        world.held()
    };
    assert!(held(|multiplier| if multiplier > 0 { 5.0 } else { 4.0 }) > 0);
    assert_eq!(held(|_| 4.0), 0, "nothing more gets done");
    assert_eq!(held(|_| 0.0), 0, "sleeps are all that there is, and they become fewer");
}

/// Of windows that differ by themselves more than a bonus brings, neither kind is favoured.
#[test]
fn gains_and_losses_are_alike() {
    let trial = |held: Vec<f64>, tried: Vec<f64>| {
        Trial { is_upwards: true, other: 4, unit: Unit::Sleep, held, tried }.gain().unwrap()
    };
    let (high, low) = (vec![2.0; 8], vec![1.0; 8]);
    let mixed: Vec<f64> = (0..8).map(|at| f64::from(1 + at % 2)).collect();
    let turned: Vec<f64> = mixed.iter().rev().copied().collect();
    assert!(trial(mixed, turned).1.abs() < 1e-12);
    assert!((trial(low.clone(), high.clone()).1 + trial(high, low).1).abs() < 1e-12);
}

#[test]
fn the_more_pairs_the_less_each_must_say() {
    let all: Vec<f64> = PAIRS.map(certain).collect();
    assert!(all.windows(2).all(|pair| pair[1] <= pair[0]), "{all:?}");
    assert!(all.iter().all(|t| *t > LAST_CERTAIN));
    // Tables of Student's t, for 3 and 5 degrees of freedom.
    assert_eq!((all[0], all[2]), (10.21, 5.89));
}

#[test]
fn at_the_end_of_a_trial_what_was_found_before_stays_unless_it_seems_to_be_nothing() {
    let pairs = *PAIRS.end();
    // So noisy that no look is certain, the last one included.
    let noisy = |gain: f64| -> (Vec<f64>, Vec<f64>) {
        let tried = |at: usize| (gain + if at.is_multiple_of(2) { 0.5 } else { -0.5 }).exp();
        (vec![1.0; pairs], (0..pairs).map(tried).collect())
    };
    let verdict = |is_upwards, gain| {
        let (held, tried) = noisy(gain);
        let other = if is_upwards { 16 } else { 0 };
        Trial { is_upwards, other, unit: Unit::Sleep, held, tried }.verdict()
    };
    assert!(matches!(verdict(true, 0.05), Some(Verdict::NoGain)));
    assert!(matches!(verdict(false, -0.05), Some(Verdict::Worse(_))));
    assert!(matches!(verdict(false, -0.005), Some(Verdict::NoGain)));
    assert!(matches!(verdict(true, 0.3), Some(Verdict::Better(_))));
}

#[test]
fn reasons_are_told_in_words() {
    let told = |why: Why| why.to_string();
    assert_eq!(told(Why::Tried { against: 4 }), "tried against 4x");
    assert_eq!(
        told(Why::Better { than: 0, gain_pct: 7.25 }),
        "7.2 % more work for its time than with 0x"
    );
    let change = Tuning { space: 1, multiplier: 4, why: Why::NoGain { other: 8 } };
    let text = serde_json::to_string(&change).unwrap();
    assert_eq!(text, r#"{"space":1,"multiplier":4,"why":"no-gain","other":8}"#);
    assert_eq!(serde_json::from_str::<Tuning>(&text).unwrap(), change);
}

proptest! {
    /// Whatever is seen: never above the bound, always a rung, and told only what changes.
    #[test]
    fn multipliers_are_rungs(
        seen in prop::collection::vec(
            (0u32..4, 0u64..1 << 40, 0u64..1 << 20, 0u64..1 << 20),
            1..500,
        ),
    ) {
        let mut world = World::new(1);
        for (threads, run_ns, sleeps, calls) in seen {
            world.see(Seen { space: SPACE, threads, run_ns, sleeps, calls });
            prop_assert!(RUNGS.contains(&world.set) && RUNGS.contains(&world.held()));
        }
    }
}

/// Noise alone is a reason once in a hundred trials, and what it has set does not stay.
#[test]
fn noise_alone_sets_hardly_anything() {
    let (mut trials, mut taken) = (0, 0);
    for seed in 1..=100 {
        let mut world = World::new(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        world.pass(30_000, 0.001 * seed as f64, |_| 10.0);
        let decisions = world.decisions();
        trials += decisions.len();
        let from_none = |why: &Why| matches!(why, Why::Better { than: 0, .. });
        taken += decisions.iter().filter(|(_, why)| from_none(why)).count();
    }
    assert!(trials > 1_000 && taken * 50 < trials, "{taken} of {trials}");
}
