//! Medians, intervals and verdicts: what a handful of noisy runs allows one to say.
//!
//! **Median with a 95 % interval.** Order statistics: the interval from the k-th smallest to the
//! k-th largest of n values holds the true median with a probability that depends on n and k only,
//! whatever the distribution. With few values that is a coarse choice (n = 7: 98.4 % or 87.5 %), so
//! the two neighbouring intervals are interpolated to 95 % (Hettmansperger and Sheather 1986, as
//! Minitab does). No resampling, no seed. Below 6 values even the whole range covers less than 95 %:
//! then it is given as it is, and `coverage` says so. The median need not lie in the middle.
//!
//! **Comparison.** Runs are paired (the same round of an interleaved experiment), and times are
//! compared as ratios, so the test is the paired t test on the logarithms of the ratios. The usual
//! rank tests cannot work here: of n pairs their smallest possible p is 2/2^n, which is 0.016 at
//! n = 7, while Holm's correction over 25 rows asks for 0.05 / 25 = 0.002: no row could ever be
//! decided before n = 10, however clear. The t test has power from n = 5 on (a gain of 5 % with a
//! spread of 1 % gives p = 0.0004), and where the logarithms are heavier-tailed than normal
//! (disturbed runs) it errs towards *undecided*. As a guard, a verdict also needs the median ratio
//! to lie on the same side as the mean, so one wild pair cannot decide a row.
//!
//! **Many rows** are corrected by Holm's method: the chance of even one wrong *better* or *worse*
//! in the whole report is at most 5 %. **Many looks**: undecided rows get more runs and are judged
//! again, and each look is another chance to err, so p is multiplied by the number of looks planned
//! (Bonferroni).
//!
//! **As good as the baseline**, but for a margin, is the same test against the baseline made worse by
//! that margin. How many pairs that takes follows from the spread ([`pairs_for_margin`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use special::Beta;

/// The largest chance of even one wrong verdict in a report.
pub const ALPHA: f64 = 0.05;
/// The probability with which an interval holds the true median.
pub const LEVEL: f64 = 0.95;
/// Undecided rows get no more than this many runs.
pub const MAX_RUNS: usize = 15;
/// A ratio that is known to be this close to 1 is taken as equal: more runs cannot change what a user
/// would do.
pub const AS_GOOD_AS_EQUAL: f64 = 0.01;

/// A median and the interval that holds the true one with probability `coverage`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The interval's lower end.
    pub lo: f64,
    /// The interval's upper end.
    pub hi: f64,
    /// 0.95, or less where there are fewer than 6 values (0 for a single one).
    pub coverage: f64,
}

impl Estimate {
    /// The interval's ends, as the JSON has them.
    pub fn ci95(&self) -> [f64; 2] {
        [self.lo, self.hi]
    }
}

/// The median; `None` if there are no values, or one is not finite.
pub fn median(values: &[f64]) -> Option<f64> {
    sorted(values).map(|values| middle(&values))
}

/// The median and its interval; `None` if there are no values, or one is not finite.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let values = sorted(values)?;
    let (lo, hi, coverage) = interval(&values);
    Some(Estimate { median: middle(&values), lo, hi, coverage })
}

fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    Some(values)
}

fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

/// How probably the true median lies between the k-th smallest and the k-th largest of n values:
/// 1 - 2 P(fewer than k of n fair coins show heads).
fn coverage(n: usize, k: usize) -> f64 {
    let mut ways = 1.0;
    let mut fewer = 0.0;
    for heads in 0..k {
        fewer += ways;
        ways *= (n - heads) as f64 / (heads + 1) as f64;
    }
    1.0 - 2.0 * fewer * 0.5f64.powi(n as i32)
}

fn interval(sorted: &[f64]) -> (f64, f64, f64) {
    let n = sorted.len();
    let (mut lo, mut hi) = (sorted[0], sorted[n - 1]);
    let widest = coverage(n, 1);
    if widest < LEVEL {
        return (lo, hi, widest);
    }
    // The narrowest interval that still covers enough, and the next one, which does not.
    let mut k = 1;
    while coverage(n, k + 1) >= LEVEL {
        k += 1;
    }
    let (enough, less) = (coverage(n, k), coverage(n, k + 1));
    let part = (enough - LEVEL) / (enough - less);
    let weight = (n - k) as f64 * part / (k as f64 + (n as f64 - 2.0 * k as f64) * part);
    lo = sorted[k - 1] + weight * (sorted[k] - sorted[k - 1]);
    hi = sorted[n - k] - weight * (sorted[n - k] - sorted[n - k - 1]);
    (lo, hi, LEVEL)
}

/// What is known of a contestant against the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Better than the baseline: faster, where times are compared.
    Better,
    /// Worse than the baseline.
    Worse,
    /// These runs do not show which.
    Undecided,
}

impl Verdict {
    /// The word for it: in JSON, in tables and in sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Undecided => "undecided",
        }
    }
}

/// Two series of times of the same rounds, compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The number of pairs.
    pub pairs: usize,
    /// baseline / ours: above 1, ours is faster.
    pub ratio: Estimate,
    /// The mean of ln(baseline / ours): its sign is the direction of the test.
    pub mean_log_ratio: f64,
    /// The standard deviation of ln(baseline / ours) from pair to pair; 0 below 2 pairs.
    pub spread: f64,
    /// Two-sided p of the paired t test on the logarithms, before any correction; 1 below 2 pairs.
    pub p_value: f64,
}

/// Compares paired times (any unit, the same for both): `baseline[i]` and `ours[i]` are of one round.
/// `None` if the series are empty, differ in length, or hold a time that is not a positive finite
/// number.
pub fn compare(baseline: &[f64], ours: &[f64]) -> Option<Comparison> {
    if baseline.len() != ours.len() {
        return None;
    }
    if baseline.iter().chain(ours).any(|time| !(time.is_finite() && *time > 0.0)) {
        return None;
    }
    // A difference of logarithms, not the logarithm of a quotient: it is exactly antisymmetric.
    let logs: Vec<f64> =
        baseline.iter().zip(ours).map(|(b, o)| libm::log(*b) - libm::log(*o)).collect();
    let of_logs = estimate(&logs)?;
    Some(Comparison {
        pairs: logs.len(),
        // Medians of logarithms and back: swapping the sides gives the exact reciprocal even where
        // the median is the mean of two.
        ratio: Estimate {
            median: libm::exp(of_logs.median),
            lo: libm::exp(of_logs.lo),
            hi: libm::exp(of_logs.hi),
            coverage: of_logs.coverage,
        },
        mean_log_ratio: mean(&logs),
        spread: spread(&logs),
        p_value: t_test(&logs),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of the population that the values are a sample of; 0 below 2 values.
fn spread(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (squares / values.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// The two-sided p of "the mean is 0".
fn t_test(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if values.len() < 2 {
        return 1.0;
    }
    let mean = mean(values);
    let error = spread(values) / n.sqrt();
    if mean == 0.0 {
        return 1.0;
    }
    // Values that are equal but for rounding (a simulated, exact case) have no spread to divide by.
    if error <= 1e-12 * mean.abs() {
        return 0.0;
    }
    two_sided_t(mean / error, n - 1.0)
}

/// The chance that Student's t with this many degrees of freedom is as far from 0, to either side.
fn two_sided_t(t: f64, freedom: f64) -> f64 {
    let (a, b) = (freedom / 2.0, 0.5);
    (freedom / (freedom + t * t)).inc_beta(a, b, a.ln_beta(b)).clamp(0.0, 1.0)
}

/// How many pairs with this [`Comparison::spread`] show, in nine of ten trials, that what is as good as
/// the baseline loses less than `margin` (0.02: 2 %) against it, where that is one of `tests` tests
/// (each look counts). At most `most`.
pub fn pairs_for_margin(spread: f64, margin: f64, tests: usize, most: usize) -> usize {
    /// Nine tenths of a normal distribution are below so many standard deviations.
    const NINE_OF_TEN: f64 = 1.2816;
    let is_enough = |pairs: &usize| {
        let t = -libm::log(1.0 - margin) * (*pairs as f64).sqrt() / spread - NINE_OF_TEN;
        t > 0.0 && two_sided_t(t, *pairs as f64 - 1.0) * (tests as f64) < ALPHA
    };
    (2..most).find(is_enough).unwrap_or(most)
}

/// Holm's step-down correction: p-values such that "below alpha" holds the chance of even one
/// wrong rejection among all of them below alpha. In the order of the input; each 0..=1.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut least = 0.0f64;
    for (rank, &row) in order.iter().enumerate() {
        least = least.max((p_values.len() - rank) as f64 * p_values[row]).min(1.0);
        adjusted[row] = least;
    }
    adjusted
}

/// A comparison with its verdict among all rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// What was compared.
    pub comparison: Comparison,
    /// p after the corrections for rows and looks.
    pub adjusted_p: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// Judges all rows of a report together. `looks` is how often the rows are to be judged in all
/// while runs are added (1 if the number of runs is fixed; 0 counts as 1).
pub fn judge(comparisons: &[Comparison], looks: usize) -> Vec<Judged> {
    let raw: Vec<f64> =
        comparisons.iter().map(|c| (c.p_value * looks.max(1) as f64).min(1.0)).collect();
    comparisons
        .iter()
        .zip(holm(&raw))
        .map(|(&comparison, adjusted_p)| Judged {
            comparison,
            adjusted_p,
            verdict: verdict(&comparison, adjusted_p),
        })
        .collect()
}

fn verdict(comparison: &Comparison, adjusted_p: f64) -> Verdict {
    let (mean, median) = (comparison.mean_log_ratio, comparison.ratio.median);
    if adjusted_p >= ALPHA {
        Verdict::Undecided
    } else if mean > 0.0 && median > 1.0 {
        Verdict::Better
    } else if mean < 0.0 && median < 1.0 {
        Verdict::Worse
    } else {
        Verdict::Undecided
    }
}

impl Judged {
    /// Whether more runs may decide the row: undecided, fewer than [`MAX_RUNS`], and not already known
    /// to be within 1 % of equal.
    pub fn needs_more_runs(&self) -> bool {
        let ratio = &self.comparison.ratio;
        let equal = ratio.coverage >= LEVEL
            && ratio.lo >= 1.0 - AS_GOOD_AS_EQUAL
            && ratio.hi <= 1.0 + AS_GOOD_AS_EQUAL;
        self.verdict == Verdict::Undecided && self.comparison.pairs < MAX_RUNS && !equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error as ValueError, StrDeserializer};

    fn close(a: f64, b: f64, error: f64) {
        assert!((a - b).abs() <= error, "{a} is not {b}");
    }

    #[test]
    fn a_verdict_has_the_name_that_it_is_read_by() {
        for verdict in [Verdict::Better, Verdict::Worse, Verdict::Undecided] {
            let name: StrDeserializer<'_, ValueError> = verdict.name().into_deserializer();
            assert_eq!(Verdict::deserialize(name), Ok(verdict));
        }
    }

    #[test]
    fn medians_of_odd_even_and_invalid_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[f64::NAN, 1.0]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn coverage_of_order_statistics() {
        // By hand: 1 - 2 (C(n,0) + ... + C(n,k-1)) / 2^n.
        for (n, k, want) in [
            (1, 1, 0.0),
            (2, 1, 0.5),
            (5, 1, 0.9375),
            (6, 1, 0.96875),
            (7, 1, 0.984375),
            (7, 2, 0.875),
            (10, 2, 1.0 - 22.0 / 1024.0),
            (15, 4, 1.0 - 2.0 * (1.0 + 15.0 + 105.0 + 455.0) / 32768.0),
        ] {
            close(coverage(n, k), want, 1e-12);
        }
    }

    #[test]
    fn intervals_are_interpolated_to_95_percent() {
        // 5 values: the range, and 93.75 % said.
        let five = estimate(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(five, Estimate { median: 3.0, lo: 1.0, hi: 5.0, coverage: 0.9375 });
        // 7 values, k = 1: part = (0.984375 - 0.95) / (0.984375 - 0.875) = 0.3142857,
        // weight = 6 * 0.3142857 / (1 + 5 * 0.3142857) = 0.7333333.
        let seven = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        close(seven.lo, 1.0 + 0.733_333_3, 1e-6);
        close(seven.hi, 7.0 - 0.733_333_3, 1e-6);
        assert_eq!(seven.coverage, 0.95);
        // 15 values, k = 4: coverage 0.964844 and 0.881531; part 0.178163, weight
        // 11 * 0.178163 / (4 + 7 * 0.178163) = 0.373491.
        let fifteen: Vec<f64> = (1..=15).map(f64::from).collect();
        let fifteen = estimate(&fifteen).unwrap();
        close(fifteen.lo, 4.373_49, 1e-4);
        close(fifteen.hi, 11.626_51, 1e-4);
        assert_eq!(estimate(&[2.0]).unwrap().ci95(), [2.0, 2.0]);
        assert_eq!(estimate(&[2.0]).unwrap().coverage, 0.0);
        assert_eq!(estimate(&[1.0, f64::INFINITY]), None);
    }

    #[test]
    fn the_t_test_matches_tables() {
        // Mean 2, sd 1, n = 3: t = 3.4641, p = 0.0742 (Student's sleep-data style example).
        close(t_test(&[1.0, 2.0, 3.0]), 0.074_180, 1e-5);
        // t = 2.776445 is the two-sided 5 % point of 4 degrees of freedom: sd^2 = 2.5 for
        // 1..=5 - 3, so a mean of 2.776445 * sqrt(0.5) gives p = 0.05.
        let shift = 2.776_445 * 0.5f64.sqrt();
        let values: Vec<f64> = (-2..=2).map(|x| f64::from(x) + shift).collect();
        close(t_test(&values), 0.05, 1e-6);
        assert_eq!(t_test(&[0.1]), 1.0);
        assert_eq!(t_test(&[0.0, 0.0, 0.0]), 1.0);
        assert_eq!(t_test(&[0.3, 0.3, 0.3]), 0.0);
    }

    #[test]
    fn holm_agrees_with_a_calculation_by_hand() {
        // Sorted 0.01 0.02 0.03 0.04: times 4 3 2 1 = 0.04 0.06 0.06 0.04 -> never decreasing.
        let adjusted = holm(&[0.04, 0.01, 0.03, 0.02]);
        for (got, want) in adjusted.iter().zip([0.06, 0.04, 0.06, 0.06]) {
            close(*got, want, 1e-12);
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[0.9, 0.8]), vec![1.0, 1.0]);
        assert_eq!(holm(&[0.03]), vec![0.03]);
    }

    #[test]
    fn a_clear_ratio_decides_and_a_noisy_one_does_not() {
        // The baseline takes 1.27 times as long, a spread of 1 %, 5 pairs: clear even among 25 rows.
        let baseline = [3.18, 3.20, 3.16, 3.22, 3.19];
        let ours = [2.50, 2.51, 2.52, 2.49, 2.50];
        let clear = compare(&baseline, &ours).unwrap();
        close(clear.ratio.median, 1.275, 0.002);
        assert_eq!(clear.pairs, 5);
        let noise = compare(&[1.0, 1.1, 0.9, 1.05, 0.97], &[1.02, 1.0, 1.0, 0.97, 1.01]).unwrap();
        let mut rows = vec![noise; 24];
        rows.push(clear);
        let judged = judge(&rows, 3);
        assert_eq!(judged[24].verdict, Verdict::Better);
        assert!(!judged[24].needs_more_runs());
        assert!(judged[..24].iter().all(|row| row.verdict == Verdict::Undecided));
        assert!(judged[0].needs_more_runs());
    }

    #[test]
    fn the_pairs_for_a_margin_show_it_in_nine_of_ten_trials() {
        assert_eq!(pairs_for_margin(0.0, 0.02, 1, 100), 2);
        assert_eq!(pairs_for_margin(1.0, 0.02, 1, 100), 100);
        let (few, many) =
            (pairs_for_margin(0.02, 0.02, 1, 999), pairs_for_margin(0.04, 0.02, 1, 999));
        assert!((12..=14).contains(&few) && (42..=45).contains(&many), "{few} {many}");
        assert!(pairs_for_margin(0.04, 0.02, 128, 999) > 2 * many);
        // As good as the baseline, with this spread.
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as f64 / 2f64.powi(31) - 0.5
        };
        let pairs = pairs_for_margin(0.1 / 12f64.sqrt(), 0.02, 1, 999);
        let shown = (0..200).filter(|_| {
            let ours: Vec<f64> = (0..pairs).map(|_| libm::exp(0.1 * noise())).collect();
            let found = compare(&vec![1.0 / 0.98; pairs], &ours).unwrap();
            judge(&[found], 1)[0].verdict == Verdict::Better
        });
        let shown = shown.count();
        assert!((170..=190).contains(&shown), "{shown} of 200");
    }

    #[test]
    fn one_wild_pair_does_not_decide() {
        let mut baseline = [1.0; 7];
        baseline[3] = 3.0;
        let one = compare(&baseline, &[1.0; 7]).unwrap();
        assert_eq!(judge(&[one], 1)[0].verdict, Verdict::Undecided);
        // Not even where mean and median are on different sides: p is forced here.
        assert_eq!(verdict(&one, 0.0), Verdict::Undecided);
    }

    #[test]
    fn enough_runs_are_enough() {
        let same = |n: usize, spread: f64| {
            let baseline: Vec<f64> =
                (0..n).map(|i| 1.0 + spread * (i % 3) as f64 - spread).collect();
            judge(&[compare(&baseline, &vec![1.0; n]).unwrap()], 1)[0]
        };
        assert!(same(7, 0.1).needs_more_runs());
        assert!(!same(15, 0.1).needs_more_runs());
        assert!(!same(7, 0.001).needs_more_runs(), "within 1 % of equal");
        assert!(same(4, 0.001).needs_more_runs(), "too few to know that it is equal");
    }

    #[test]
    fn invalid_times_are_refused() {
        assert!(compare(&[], &[]).is_none());
        assert!(compare(&[1.0], &[1.0, 2.0]).is_none());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(compare(&[1.0, bad], &[1.0, 1.0]).is_none());
            assert!(compare(&[1.0, 1.0], &[bad, 1.0]).is_none());
        }
    }

    fn times() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        proptest::collection::vec((0.5f64..5.0, 0.5f64..5.0), 2..16)
            .prop_map(|pairs| pairs.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn holm_is_monotone_and_never_below_the_raw_value(
            p in proptest::collection::vec(0.0f64..=1.0, 0..40),
            factor in 0.0f64..=1.0,
        ) {
            let adjusted = holm(&p);
            for i in 0..p.len() {
                prop_assert!(adjusted[i] >= p[i] && adjusted[i] <= 1.0);
                prop_assert!(adjusted[i] <= (p.len() as f64 * p[i]).min(1.0) + 1e-12
                    || p.iter().any(|other| *other < p[i]));
                for j in 0..p.len() {
                    prop_assert!(p[i] > p[j] || adjusted[i] <= adjusted[j]);
                }
            }
            // Smaller values everywhere never give a larger corrected one.
            let smaller: Vec<f64> = p.iter().map(|p| p * factor).collect();
            for (small, large) in holm(&smaller).iter().zip(&adjusted) {
                prop_assert!(small <= large);
            }
        }

        #[test]
        fn swapping_the_sides_mirrors_the_verdict((a, b) in times(), looks in 1usize..4) {
            let (there, back) = (compare(&a, &b).unwrap(), compare(&b, &a).unwrap());
            prop_assert_eq!(there.p_value, back.p_value);
            prop_assert!((there.ratio.median * back.ratio.median - 1.0).abs() < 1e-9);
            prop_assert!((there.ratio.lo * back.ratio.hi - 1.0).abs() < 1e-9);
            let mirror = match judge(&[there], looks)[0].verdict {
                Verdict::Better => Verdict::Worse,
                Verdict::Worse => Verdict::Better,
                Verdict::Undecided => Verdict::Undecided,
            };
            prop_assert_eq!(judge(&[back], looks)[0].verdict, mirror);
        }

        #[test]
        fn the_unit_of_time_does_not_matter((a, b) in times(), unit in 1e-6f64..1e6) {
            let scale = |times: &[f64]| times.iter().map(|t| t * unit).collect::<Vec<_>>();
            let (one, other) = (compare(&a, &b).unwrap(), compare(&scale(&a), &scale(&b)).unwrap());
            prop_assert!((one.ratio.median - other.ratio.median).abs() < 1e-9);
            prop_assert!((one.p_value - other.p_value).abs() < 1e-6);
        }

        #[test]
        fn the_order_of_the_runs_does_not_matter((a, b) in times()) {
            let reversed = |times: &[f64]| times.iter().rev().copied().collect::<Vec<_>>();
            let (one, other) =
                (compare(&a, &b).unwrap(), compare(&reversed(&a), &reversed(&b)).unwrap());
            prop_assert_eq!(one.ratio, other.ratio);
            prop_assert!((one.p_value - other.p_value).abs() < 1e-9);
        }

        #[test]
        fn the_interval_holds_the_median(values in proptest::collection::vec(0.0f64..9.0, 1..20)) {
            let e = estimate(&values).unwrap();
            prop_assert!(e.lo <= e.median && e.median <= e.hi);
        }
    }
}
