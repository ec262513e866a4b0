//! The paper's analysis (001, section III), equations (1) to (9): how long a parallel read takes
//! when interrupts are balanced over all cores, and when they are handled where the data is wanted.
//!
//! A read of N_S strips, one from each of N_S = α N_C servers, on a client with N_C cores; N_R reads
//! by N_P programs. P is the time that processing a strip takes, M the time that it takes to move
//! one from the cache of one core to that of another, T_R the rest, on which scheduling has no
//! influence. (1) T = T_R + T_P + T_M - T_O, where T_O, what processing and moving overlap, is at
//! most the smaller of the two. All times are in microseconds.
//!
//! One step of the paper does not hold: (9) is said to follow from (5) and (6), but their difference
//! is smaller by α N_R P. Both are given.

use schemars::JsonSchema;
use serde::Serialize;

/// What the analysis starts from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// N_C.
    pub cores: u32,
    /// N_S, a multiple of the cores.
    pub servers: u32,
    /// N_R.
    pub requests: u32,
    /// N_P.
    pub programs: u32,
    /// P.
    pub process_us: f64,
    /// M.
    pub migrate_us: f64,
    /// T_R.
    pub rest_us: f64,
}

/// A case that the analysis does not cover.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CaseError {
    /// Nothing to count.
    #[error("{0} is 0: there is at least one")]
    None(&'static str),
    /// α would be no whole number.
    #[error(
        "{servers} servers and {cores} cores: the analysis holds for a multiple of the cores, like \
         {nearest}"
    )]
    NotAMultiple {
        /// N_S.
        servers: u32,
        /// N_C.
        cores: u32,
        /// The next number of servers that would do.
        nearest: u32,
    },
    /// Not a time.
    #[error("{name} is {value}: a time is a finite number of microseconds, not below 0")]
    Time {
        /// Which.
        name: &'static str,
        /// What was given.
        value: f64,
    },
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Analysis {
    /// α = N_S / N_C.
    pub strips_per_core: u32,
    /// (2): strips that are moved when interrupts are balanced, all but those that arrived right.
    pub migrations: u64,
    /// (3), (6): with balanced interrupts it takes at least this.
    pub balanced_at_least_us: f64,
    /// (4), (5): source-aware it takes this when strips are processed one after the other.
    pub source_aware_at_most_us: f64,
    /// (8), and for more programs than cores what replaces it: when all that can be processed at
    /// the same time is.
    pub source_aware_at_least_us: f64,
    /// (9) as printed: (N_C - 1) N_R α (M - P).
    pub difference_printed_us: f64,
    /// (6) - (5): α N_R ((N_C - 1)(M - P) - P).
    pub difference_exact_us: f64,
    /// Source-aware is faster, by the exact difference, when M is more than this; infinite with one
    /// core, where nothing can be moved.
    pub break_even_us: f64,
}

impl Case {
    /// What the paper's equations say of it.
    ///
    /// # Errors
    /// All of [`CaseError`].
    pub fn analyse(&self) -> Result<Analysis, CaseError> {
        self.check()?;
        let strips_per_core = self.servers / self.cores;
        let (cores, requests) = (f64::from(self.cores), f64::from(self.requests));
        let (alpha, p, m) = (f64::from(strips_per_core), self.process_us, self.migrate_us);
        let one_by_one_us = p * f64::from(self.servers) * requests;
        let at_once = f64::from(self.programs.min(self.cores));
        let per_request = u64::from(strips_per_core) * u64::from(self.cores - 1);
        Ok(Analysis {
            strips_per_core,
            migrations: per_request * u64::from(self.requests),
            balanced_at_least_us: self.rest_us + m * alpha * (cores - 1.0) * requests,
            source_aware_at_most_us: self.rest_us + one_by_one_us,
            source_aware_at_least_us: self.rest_us + one_by_one_us / at_once,
            difference_printed_us: (cores - 1.0) * requests * alpha * (m - p),
            difference_exact_us: alpha * requests * ((cores - 1.0) * (m - p) - p),
            break_even_us: p * cores / (cores - 1.0),
        })
    }

    fn check(&self) -> Result<(), CaseError> {
        let counts = [
            ("the number of cores", self.cores),
            ("the number of servers", self.servers),
            ("the number of requests", self.requests),
            ("the number of programs", self.programs),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(CaseError::None(name));
        }
        if !self.servers.is_multiple_of(self.cores) {
            let nearest = self.servers.div_ceil(self.cores).saturating_mul(self.cores);
            return Err(CaseError::NotAMultiple {
                servers: self.servers,
                cores: self.cores,
                nearest,
            });
        }
        let times = [("P", self.process_us), ("M", self.migrate_us), ("T_R", self.rest_us)];
        match times.iter().find(|(_, time)| !time.is_finite() || *time < 0.0) {
            Some((name, value)) => Err(CaseError::Time { name, value: *value }),
            None => Ok(()),
        }
    }
}

/// (7) N_R N_S Size <= Bandwidth: the most requests a second that a client's link can carry, when
/// each server returns so many bytes a request.
pub fn most_requests_per_s(servers: u32, bytes: u64, bits_per_s: f64) -> f64 {
    bits_per_s / 8.0 / (f64::from(servers) * bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CASE: Case = Case {
        cores: 8,
        servers: 48,
        requests: 10,
        programs: 4,
        process_us: 2.0,
        migrate_us: 16.0,
        rest_us: 100.0,
    };

    #[test]
    fn a_case_by_hand() {
        let analysis = CASE.analyse().unwrap();
        assert_eq!(analysis.strips_per_core, 6);
        assert_eq!(analysis.migrations, 420);
        assert_eq!(analysis.balanced_at_least_us, 100.0 + 16.0 * 420.0);
        assert_eq!(analysis.source_aware_at_most_us, 100.0 + 2.0 * 480.0);
        assert_eq!(analysis.source_aware_at_least_us, 100.0 + 2.0 * 120.0);
        assert_eq!(analysis.difference_printed_us, 14.0 * 420.0);
        assert_eq!(analysis.difference_exact_us, 6720.0 - 960.0);
        // More programs than cores: all cores process at once, and no more.
        let crowded = Case { programs: 16, ..CASE }.analyse().unwrap();
        assert_eq!(crowded.source_aware_at_least_us, 100.0 + 2.0 * 60.0);
        // Reads of 48 strips of 64 KiB at 3 Gb/s.
        let most = most_requests_per_s(48, 65536, 3e9);
        assert!((most - 119.2).abs() < 0.1, "{most}");
    }

    #[test]
    fn what_is_not_covered_is_said() {
        let why = |case: Case| case.analyse().unwrap_err().to_string();
        assert_eq!(
            why(Case { servers: 9, ..CASE }),
            "9 servers and 8 cores: the analysis holds for a multiple of the cores, like 16"
        );
        assert_eq!(
            why(Case { requests: 0, ..CASE }),
            "the number of requests is 0: there is at least one"
        );
        assert_eq!(
            why(Case { migrate_us: -1.0, ..CASE }),
            "M is -1: a time is a finite number of microseconds, not below 0"
        );
        assert!(why(Case { process_us: f64::NAN, ..CASE }).starts_with("P is NaN"));
    }

    prop_compose! {
        fn cases()(
            cores in 1..64_u32, alpha in 1..16_u32, requests in 1..1000_u32, programs in 1..128_u32,
            process_us in 0.01..100.0_f64, migrate_us in 0.0..1000.0_f64, rest_us in 0.0..1e6_f64,
        ) -> Case {
            let servers = cores * alpha;
            Case { cores, servers, requests, programs, process_us, migrate_us, rest_us }
        }
    }

    proptest! {
        #[test]
        fn the_exact_difference_is_what_five_and_six_say(case in cases()) {
            let analysis = case.analyse().unwrap();
            let difference = analysis.balanced_at_least_us - analysis.source_aware_at_most_us;
            // T_R may swallow digits of both.
            prop_assert!((difference - analysis.difference_exact_us).abs()
                <= 1e-9 * analysis.balanced_at_least_us.max(analysis.source_aware_at_most_us));
            let strips = f64::from(analysis.strips_per_core) * f64::from(case.requests);
            let printed = analysis.difference_exact_us + strips * case.process_us;
            prop_assert!((analysis.difference_printed_us - printed).abs()
                <= 1e-9 * analysis.balanced_at_least_us.max(analysis.source_aware_at_most_us));
        }

        #[test]
        fn source_aware_wins_exactly_above_the_break_even(case in cases(), factor in 0.5..2.0_f64) {
            prop_assume!(case.cores > 1 && (factor - 1.0).abs() > 1e-6);
            let break_even_us = case.analyse().unwrap().break_even_us;
            let analysis = Case { migrate_us: break_even_us * factor, ..case }.analyse().unwrap();
            prop_assert_eq!(analysis.difference_exact_us > 0.0, factor > 1.0);
        }

        #[test]
        fn the_bounds_are_in_order(case in cases()) {
            let analysis = case.analyse().unwrap();
            prop_assert!(analysis.source_aware_at_least_us <= analysis.source_aware_at_most_us);
            prop_assert!(analysis.source_aware_at_least_us >= case.rest_us);
        }
    }
}
