//! `policy/gate.h`: when load may be balanced. The sentences quoted are those of paper 004,
//! section 3.

use proptest::prelude::*;

use crate::native::*;

const COLD: u32 = 0;
const LOW: u32 = 1;
const MID: u32 = 2;
const HIGH: u32 = 3;
const HOT: u32 = 4;
const SECOND_NS: u64 = 1_000_000_000;

/// The paper's defaults.
fn zone(level: u32) -> ZoneKnobs {
    ZoneKnobs {
        level,
        use_mean: 0,
        count_idle: 0,
        weigh: 1,
        prize_score_pct: 5,
        punish_score_pct: 5,
        prize_time_ns: 5 * SECOND_NS,
        punish_time_ns: 5 * SECOND_NS,
    }
}

/// The largest share that is at most so many percent.
fn pct(percent: u32) -> u32 {
    percent * FULL / 100
}

/// A task that uses little, on a CPU of this utilisation.
fn busy(percent: u32) -> GateView {
    GateView { source_utilisation: pct(percent), ..GateView::default() }
}

/// A task with its own share above every limit for so long, on a CPU of this utilisation.
fn eager(percent: u32, above_ns: u64) -> GateView {
    GateView { task_share: FULL, task_above_ns: above_ns, ..busy(percent) }
}

fn opens(zone: &ZoneKnobs, view: &GateView) -> bool {
    verdict(GATE_ZONE, zone, view) < REFUSALS
}

#[test]
fn the_gate_always_is_always_open() {
    for percent in [0, 30, 100] {
        assert_eq!(verdict(GATE_ALWAYS, &zone(HOT), &busy(percent)), OPEN);
    }
}

/// "does not perform any load-balancing if the CPU utilization is in cold zone, 0~30%. [...] only
/// when the CPU utilization exceeds cold zone"; "If the CPU utilization is in hot zone, 80~100%,
/// kernel starts to perform load-balancing. Otherwise, kernel does not [...] at all."; "If CPU usage
/// [...] is higher than that of the configured spot in the warm zone policy, kernel performs
/// load-balancing".
#[test]
fn each_level_opens_above_its_limit() {
    for (level, limit) in [(COLD, 30), (LOW, 30), (MID, 50), (HIGH, 80), (HOT, 80)] {
        for percent in 0..=100 {
            let view = GateView { source_utilisation: percent * FULL / 100, ..busy(0) };
            let expected = view.source_utilisation * 100 > limit * FULL;
            assert_eq!(opens(&zone(level), &view), expected, "level {level} at {percent} %");
        }
        let full = GateView { source_utilisation: FULL, ..busy(0) };
        assert_eq!(verdict(GATE_ZONE, &zone(level), &full), BUSY);
        assert_eq!(verdict(GATE_ZONE, &zone(level), &busy(0)), QUIET);
    }
    // Half is a whole number of 1024ths: not above means not above.
    let half = GateView { source_utilisation: FULL / 2, ..busy(0) };
    assert!(!opens(&zone(MID), &half));
    assert!(opens(&zone(MID), &GateView { source_utilisation: FULL / 2 + 1, ..half }));
}

/// Figure 4: CPUs at 50, 85, 25 and 55 %. "If the system is configured in mid spot of the warm zone
/// policy, the load-balancer starts operations when the average usage of CPU is over 50%. Kernel
/// moves one of the running tasks [...] in CPU1 with the highest utilization to [...] CPU2". "In case
/// of high spot [...] the average usage of CPU is over 80%."
#[test]
fn the_papers_worked_example() {
    let cpus = [50, 85, 25, 55].map(|percent| (pct(percent), false));
    let average = ZoneKnobs { use_mean: 1, ..zone(MID) };
    let mean = mean(&average, &cpus);
    assert_eq!(mean * 100 / FULL, 53, "53.75 %");
    let from_cpu1 = GateView { source_utilisation: pct(85), mean_utilisation: mean, ..busy(0) };
    assert_eq!(verdict(GATE_ZONE, &average, &from_cpu1), BUSY);
    assert_eq!(verdict(GATE_ZONE, &ZoneKnobs { level: HIGH, ..average }, &from_cpu1), QUIET);
    // "if (Local CPU1 Usage: 85% > 50%) / > 80%: go load-balancing"
    assert_eq!(verdict(GATE_ZONE, &zone(MID), &from_cpu1), BUSY);
    assert_eq!(verdict(GATE_ZONE, &zone(HIGH), &from_cpu1), BUSY);
}

/// "[...] helps to affinitize the existing CPU [...] although the usage of a specific CPU is higher
/// than the value of the warm zone policy, e.g. CPU-intensive single-threaded application in the
/// most idle systems."
#[test]
fn a_lone_busy_cpu_keeps_its_task_when_the_mean_counts() {
    let average = ZoneKnobs { use_mean: 1, count_idle: 1, ..zone(COLD) };
    let cpus = [(FULL, false), (0, true), (0, true), (0, true)];
    let view = GateView { mean_utilisation: mean(&average, &cpus), ..busy(100) };
    assert!(!opens(&average, &view));
    assert!(opens(&zone(COLD), &view), "by default, the usage ratio of each CPU counts");
}

/// "balance_idle_cal: 0: No consider idle CPUs, 1: Consider idle CPUs".
#[test]
fn idle_cpus_count_in_the_mean_or_do_not() {
    let cpus = [(FULL, false), (FULL / 2, false), (FULL / 4, true), (FULL / 4, true)];
    assert_eq!(mean(&zone(MID), &cpus), FULL * 3 / 4);
    assert_eq!(mean(&ZoneKnobs { count_idle: 1, ..zone(MID) }, &cpus), FULL / 2);
    assert_eq!(mean(&zone(MID), &[(5, true)]), 0, "no CPU counts");
}

/// "If a task maintains the high value of the usage of CPU more than five seconds [...], kernel gives
/// the task CPU usage score of -5 [...]. In contrast, if a task consumes the CPU usage of a spot
/// shorter than five seconds, kernel gives the task CPU usage score of 5"; "[5] elevates the
/// load-balancing possibility [...], -5 aims to bring down" it.
#[test]
fn after_five_seconds_above_the_spot_a_punishment_becomes_a_prize() {
    let mid = zone(MID);
    assert_eq!(verdict(GATE_ZONE, &mid, &eager(48, 5 * SECOND_NS - 1)), PUNISHED);
    assert_eq!(verdict(GATE_ZONE, &mid, &eager(48, 5 * SECOND_NS)), QUIET);
    assert_eq!(verdict(GATE_ZONE, &mid, &eager(53, 5 * SECOND_NS - 1)), BUSY);
    assert_eq!(verdict(GATE_ZONE, &mid, &eager(53, 5 * SECOND_NS)), PRIZED);
    // Five points, no more.
    assert_eq!(verdict(GATE_ZONE, &mid, &eager(44, 1)), QUIET);
    assert_eq!(verdict(GATE_ZONE, &mid, &eager(56, 5 * SECOND_NS)), BUSY);
}

/// Scores are for tasks above the spot only, and may be switched off.
#[test]
fn no_score_below_the_spot_or_without_weights() {
    for above_ns in [1, 9 * SECOND_NS] {
        for (percent, expected) in [(48, QUIET), (53, BUSY)] {
            let slept = GateView { task_share: pct(50), ..eager(percent, above_ns) };
            assert_eq!(verdict(GATE_ZONE, &zone(MID), &slept), expected);
            let never = GateView { task_above_ns: 0, ..eager(percent, above_ns) };
            assert_eq!(verdict(GATE_ZONE, &zone(MID), &never), expected);
            let unweighed = ZoneKnobs { weigh: 0, ..zone(MID) };
            assert_eq!(verdict(GATE_ZONE, &unweighed, &eager(percent, above_ns)), expected);
        }
    }
}

/// "balance_weight_{prize|punish}_time" and "_score" are knobs; between the times there are no
/// points.
#[test]
fn times_and_points_are_knobs() {
    let knobs = ZoneKnobs {
        prize_score_pct: 20,
        punish_score_pct: 2,
        prize_time_ns: 10 * SECOND_NS,
        punish_time_ns: SECOND_NS,
        ..zone(MID)
    };
    assert_eq!(verdict(GATE_ZONE, &knobs, &eager(49, SECOND_NS - 1)), PUNISHED);
    assert_eq!(verdict(GATE_ZONE, &knobs, &eager(47, SECOND_NS - 1)), QUIET);
    assert_eq!(verdict(GATE_ZONE, &knobs, &eager(49, SECOND_NS)), QUIET);
    assert_eq!(verdict(GATE_ZONE, &knobs, &eager(69, 9 * SECOND_NS)), BUSY);
    assert_eq!(verdict(GATE_ZONE, &knobs, &eager(69, 10 * SECOND_NS)), PRIZED);
}

/// "the weight-based scores are applied" in the warm zone: that tells level 0 from 1.
#[test]
fn the_cold_and_the_hot_zone_have_no_scores() {
    for above_ns in [1, 9 * SECOND_NS] {
        for percent in 0..=100 {
            let (plain, view) = (busy(percent), eager(percent, above_ns));
            for level in [COLD, HOT] {
                assert_eq!(opens(&zone(level), &view), opens(&zone(level), &plain));
            }
        }
    }
    assert_eq!(verdict(GATE_ZONE, &zone(LOW), &eager(33, 9 * SECOND_NS)), PRIZED);
    assert_eq!(verdict(GATE_ZONE, &zone(COLD), &eager(33, 9 * SECOND_NS)), BUSY);
}

/// "these tasks cannot exceed the maximum value, high spot, and go below the minimum value, low
/// spot"; "Tasks that are lower than the CPU usage of the warm zone area is not migrated"; "kernel
/// keeps the border of the warm zone policy without moving a task to the hot zone area".
#[test]
fn scores_stay_within_the_warm_zone() {
    let huge = |level| ZoneKnobs { prize_score_pct: 50, punish_score_pct: 50, ..zone(level) };
    assert_eq!(verdict(GATE_ZONE, &huge(MID), &eager(29, 1)), QUIET, "below the warm zone");
    assert_eq!(verdict(GATE_ZONE, &huge(MID), &eager(31, 1)), PUNISHED);
    assert_eq!(verdict(GATE_ZONE, &huge(HIGH), &eager(79, 1)), QUIET, "never into the hot zone");
    assert_eq!(verdict(GATE_ZONE, &huge(MID), &eager(79, 9 * SECOND_NS)), PRIZED);
    assert_eq!(verdict(GATE_ZONE, &huge(MID), &eager(82, 9 * SECOND_NS)), BUSY, "in the hot zone");
}

/// The first of three cases: "A task is newly created by the scheduler."
#[test]
fn only_a_strict_gate_is_asked_about_new_tasks() {
    let (never, soon) = (u64::MAX, 10_000_000);
    for reason in 0..MOVE_REASONS {
        assert!(concerns(reason, never), "{reason}");
        let is_new = [MOVE_FORK, MOVE_EXEC].contains(&reason);
        assert_eq!(concerns(reason, soon), !is_new, "{reason}");
    }
}

/// The second: "An idle task wakes up for scheduling." The third: "A running task belongs to the
/// busiest scheduling group", from which an idle CPU pulls, or a busy one. Every gate is asked
/// about both, and answers by the utilisation, whatever the occasion.
#[test]
fn wake_ups_and_pulls_are_judged_alike() {
    for reason in [MOVE_WAKE, MOVE_IDLE, MOVE_PERIODIC] {
        for max_idle_wait_ns in [u64::MAX, 10_000_000] {
            assert!(concerns(reason, max_idle_wait_ns), "{reason}");
        }
        for (level, limit) in [(COLD, 30), (LOW, 30), (MID, 50), (HIGH, 80), (HOT, 80)] {
            let at =
                |percent| verdict(GATE_ZONE, &zone(level), &GateView { reason, ..busy(percent) });
            assert_eq!((at(limit), at(limit + 1)), (QUIET, BUSY), "{reason} at level {level}");
        }
    }
}

/// "when a task in idle, newidle, or noactive state is rescheduled, we can make the case that does
/// not execute load_balance() routine"; "it defers load-balancing when the current utilization of
/// each CPU is not seriously imbalanced".
#[test]
fn a_cpu_about_to_idle_pulls_no_task_from_a_quiet_one() {
    for level in [COLD, LOW, MID, HIGH, HOT] {
        for percent in 0..=30 {
            let view = GateView { reason: MOVE_IDLE, ..busy(percent) };
            assert_eq!(
                verdict(GATE_ZONE, &zone(level), &view),
                QUIET,
                "level {level}, {percent} %"
            );
        }
    }
}

/// "it controls the worst-case scenario: one CPU load exceeds 100% even though other CPUs are not
/// fully utilized": where a CPU's own load counts, a task may leave a full one, whatever its
/// points.
#[test]
fn a_task_may_always_leave_a_full_cpu() {
    for level in [COLD, LOW, MID, HIGH, HOT] {
        for above_ns in [0, 1, 9 * SECOND_NS] {
            for reason in 0..MOVE_REASONS {
                let knobs = ZoneKnobs { prize_score_pct: 50, ..zone(level) };
                let view = GateView { reason, ..eager(100, above_ns) };
                assert_eq!(verdict(GATE_ZONE, &knobs, &view), BUSY, "level {level}, {reason}");
            }
        }
    }
}

/// The same by the mean, which may stay below every limit while one CPU has two tasks and others none. A
/// single task of a busy CPU is no such case: it has all that a CPU can give.
#[test]
fn by_the_mean_a_task_may_leave_a_cpu_with_more_than_it_can_do() {
    for level in [COLD, LOW, MID, HIGH, HOT] {
        let average = ZoneKnobs { use_mean: 1, ..zone(level) };
        for above_ns in [0, 1, 9 * SECOND_NS] {
            let view = GateView { mean_utilisation: pct(25), ..eager(100, above_ns) };
            let crowded = GateView { source_waits: 1, ..view };
            assert_eq!(verdict(GATE_ZONE, &average, &crowded), CROWDED, "level {level}");
            assert_eq!(opening(GATE_ZONE, &average, &crowded), CROWDED, "level {level}");
            assert_eq!(verdict(GATE_ZONE, &average, &view), QUIET, "level {level}");
            let busy = GateView { source_utilisation: pct(98), ..crowded };
            assert_eq!(verdict(GATE_ZONE, &average, &busy), QUIET, "level {level}");
        }
    }
}

/// Where no points matter, the verdict about the CPU is that about each of its tasks.
#[test]
fn a_task_is_judged_only_where_its_points_may_matter() {
    let at = |level, percent| opening(GATE_ZONE, &zone(level), &busy(percent));
    assert_eq!([44, 48, 53, 56].map(|percent| at(MID, percent)), [QUIET, BY_TASK, BY_TASK, BUSY]);
    assert_eq!([29, 31, 36].map(|percent| at(LOW, percent)), [QUIET, BY_TASK, BUSY]);
    for level in [COLD, HIGH, HOT] {
        for percent in 0..=100 {
            assert_ne!(at(level, percent), BY_TASK, "level {level} at {percent} %");
        }
    }
}

const US: u64 = 1_000;

/// A wait of so many bursts of the tasks before it, on four CPUs, for a task of this burst.
fn behind(burst_us: u64, cpu_burst_us: u64, waiters: u32) -> GateStay {
    GateStay {
        burst_ns: burst_us * US,
        cpu_burst_ns: cpu_burst_us * US,
        waiters,
        cpus: 4,
        ..GateStay::default()
    }
}

/// A refill is 1.2 us for the CPU and at most 594 us for 2 MiB, less where bursts are shorter; the
/// patience of a level multiplies it.
#[test]
fn a_task_waits_for_as_long_as_a_refill_costs() {
    for (level, times) in [(COLD, 1), (LOW, 1), (MID, 2), (HIGH, 4), (HOT, 4)] {
        assert_eq!(max_wait_ns(&zone(level), 0), times * 1_248);
        assert_eq!(max_wait_ns(&zone(level), 20 * US), times * 21_248);
        for burst_ns in [600 * US, 4_000 * US, u64::MAX] {
            assert_eq!(max_wait_ns(&zone(level), burst_ns), times * 595_168);
        }
    }
}

#[test]
fn a_task_stays_in_its_cache_while_that_costs_less_than_a_refill() {
    // Two ms over four CPUs are half a ms for each burst before it.
    assert!(stays(&zone(COLD), &behind(2_000, 2_000, 0)));
    assert!(!stays(&zone(COLD), &behind(2_000, 2_000, 1)));
    assert!(stays(&zone(MID), &behind(2_000, 2_000, 1)));
    assert!(!stays(&zone(MID), &behind(2_000, 2_000, 2)));
    // A short task refills little and does not wait for others.
    assert!(!stays(&zone(COLD), &behind(20, 2_000, 0)));
    // If it preempts, the other task waits for its burst.
    let preempting = GateStay { preempts: 1, ..behind(20, 2_000, 3) };
    assert!(stays(&zone(COLD), &preempting));
    // Above the limit there is half the patience.
    let open = |waiters| GateStay { open: 1, ..behind(2_000, 2_000, waiters) };
    assert!(stays(&zone(MID), &open(0)) && !stays(&zone(MID), &open(1)));
    // A CPU that shares its cache with none.
    let alone = GateStay { cpus: 0, ..behind(2_000, 500, 0) };
    assert!(stays(&zone(COLD), &alone) && !stays(&zone(COLD), &GateStay { waiters: 1, ..alone }));
}

#[test]
fn a_mean_burst_follows_the_bursts() {
    assert_eq!(burst(0, 800), 800);
    assert_eq!(burst(800, 1_600), 900);
    let many = (0..100).fold(8_000, |mean, _| burst(mean, 800));
    assert!((800..=808).contains(&many), "{many}");
}

#[test]
fn the_time_above_the_limit_begins_and_ends() {
    let mid = zone(MID);
    let (low, high) = (pct(50), pct(52));
    assert_eq!(above_since(&mid, 0, low, 7), 0);
    assert_eq!(above_since(&mid, 0, high, 7), 7);
    assert_eq!(above_since(&mid, 7, high, 9), 7);
    assert_eq!(above_since(&mid, 7, low, 9), 0);
    // A half-life of 33.6 ms takes a whole share to 50 %; somewhat more than 1.7 of them to 30 %.
    let ends = |level, ms: u64| ends_above(&zone(level), ms * 1_000_000);
    assert_eq!([33, 34].map(|ms| ends(MID, ms)), [false, true]);
    assert_eq!([54, 64].map(|ms| ends(LOW, ms)), [false, true]);
    assert!(ends(MID, u64::MAX / 1_000_000));
}

/// Compaction: as many CPUs as the work keeps busy for half of the time, and one more; all of them above
/// the cold zone.
#[test]
fn few_cpus_are_enough_for_little_work_and_all_for_more() {
    let enough = |percent| enough_cpus(pct(percent), 16);
    // 1.6 CPUs' worth of work need 3.2 CPUs at half, that is 4, and one more.
    assert_eq!([0, 10, 30].map(enough), [2, 5, 11]);
    assert_eq!([31, 50, 100].map(enough), [16; 3]);
    assert_eq!([1, 2, 3].map(|online| enough_cpus(0, online)), [1, 2, 2]);
}

pub fn any_zone() -> impl Strategy<Value = ZoneKnobs> {
    (any::<[u32; 4]>(), 0..=4_u32, any::<[u32; 2]>(), any::<[u64; 2]>()).prop_map(
        |(flags, level, scores, times)| ZoneKnobs {
            // Now and then a level that is none.
            level: if flags[3] % 8 == 0 { flags[3] } else { level },
            use_mean: flags[0] % 2,
            count_idle: flags[1] % 2,
            weigh: flags[2] % 2,
            prize_score_pct: scores[0] % 200,
            punish_score_pct: scores[1] % 200,
            prize_time_ns: times[0] >> 20,
            punish_time_ns: times[1] >> 20,
        },
    )
}

pub fn any_view() -> impl Strategy<Value = GateView> {
    (0..6_u32, 0..=FULL, 0..=FULL, 0..=FULL, any::<u64>()).prop_map(
        |(reason, source_utilisation, mean_utilisation, task_share, above)| GateView {
            reason,
            source_utilisation,
            source_waits: above as u32 & 1,
            mean_utilisation,
            task_share,
            task_above_ns: above >> 20,
        },
    )
}

proptest! {
    #[test]
    fn any_knobs_and_views_are_defined(zone in any_zone(), view in any_view()) {
        let found = verdict(GATE_ZONE, &zone, &view);
        prop_assert!([BUSY, PUNISHED, CROWDED, QUIET, PRIZED].contains(&found));
        let wild = GateView { source_utilisation: u32::MAX, mean_utilisation: u32::MAX, ..view };
        prop_assert!(opens(&zone, &wild));
    }

    /// Values that the keel leaves out change nothing.
    #[test]
    fn a_gate_without_scores_does_not_depend_on_the_task(
        zone in any_zone(),
        view in any_view(),
        other in any_view(),
    ) {
        let (task_share, task_above_ns) = (other.task_share, other.task_above_ns);
        let changed = GateView { task_share, task_above_ns, ..view };
        if !weighs(GATE_ZONE, &zone) {
            prop_assert_eq!(verdict(GATE_ZONE, &zone, &view), verdict(GATE_ZONE, &zone, &changed));
        }
        prop_assert!(!weighs(GATE_ALWAYS, &zone));
        prop_assert_eq!(weighs(GATE_ZONE, &zone), zone.weigh == 1 && [LOW, MID].contains(&zone.level));
    }

    #[test]
    fn the_verdict_about_a_cpu_holds_for_all_its_tasks(
        zone in any_zone(),
        view in any_view(),
        other in any_view(),
    ) {
        let (task_share, task_above_ns) = (other.task_share, other.task_above_ns);
        let of_cpu = opening(GATE_ZONE, &zone, &view);
        let of_task = verdict(GATE_ZONE, &zone, &GateView { task_share, task_above_ns, ..view });
        if of_cpu == BY_TASK {
            prop_assert!(weighs(GATE_ZONE, &zone));
        } else {
            prop_assert_eq!(of_cpu < REFUSALS, of_task < REFUSALS);
        }
        prop_assert_eq!(opening(GATE_ALWAYS, &zone, &view), OPEN);
    }

    #[test]
    fn a_longer_wait_never_makes_a_task_stay(
        zone in any_zone(),
        burst_us in 0..100_000_u64,
        cpu_burst_us in 0..100_000_u64,
        waiters in 0..64_u32,
    ) {
        let stay = behind(burst_us, cpu_burst_us, waiters);
        let longer = GateStay { waiters: waiters + 1, ..stay };
        if stays(&zone, &longer) {
            prop_assert!(stays(&zone, &stay));
        }
        if stays(&zone, &stay) {
            let preempting = GateStay { preempts: 1, ..stay };
            prop_assert!(stays(&zone, &preempting));
        }
    }

    #[test]
    fn the_busier_the_more_open(zone in any_zone(), view in any_view(), more in 0..=FULL) {
        let busier = GateView {
            source_utilisation: view.source_utilisation.max(more),
            mean_utilisation: view.mean_utilisation.max(more),
            ..view
        };
        prop_assert!(opens(&zone, &busier) >= opens(&zone, &view));
    }

    #[test]
    fn points_shift_by_their_number_at_most(level in LOW..=HIGH, view in any_view()) {
        let plain = ZoneKnobs { weigh: 0, ..zone(level) };
        if opens(&plain, &view) != opens(&zone(level), &view) {
            let limit = [30, 50, 80][(level - LOW) as usize];
            let away = (view.source_utilisation * 100).abs_diff(limit * FULL);
            prop_assert!(away <= 5 * FULL, "{away}");
        }
    }

    /// A consequence of the band: no score crosses its upper border, which is the limit.
    #[test]
    fn the_high_spot_answers_like_the_hot_zone(knobs in any_zone(), view in any_view()) {
        let at = |level| opens(&ZoneKnobs { level, ..knobs }, &view);
        prop_assert_eq!(at(HIGH), at(HOT));
    }

    #[test]
    fn a_mean_is_between_the_extremes(
        knobs in any_zone(),
        cpus in prop::collection::vec((0..=FULL, any::<bool>()), 1..64),
    ) {
        let knobs = ZoneKnobs { count_idle: 1, ..knobs };
        let shares = cpus.iter().map(|(share, _)| *share);
        let mean = mean(&knobs, &cpus);
        prop_assert!(mean >= shares.clone().min().unwrap() && mean <= shares.max().unwrap());
    }
}
