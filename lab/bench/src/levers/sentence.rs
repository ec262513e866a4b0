//! The demo in one sentence, which follows from the verdicts: which programs evenkeel ran faster than
//! the kernel alone for certain, and which it did not.

use evenkeel_experiment::{Report, Row};
use evenkeel_noise::NoiseKind;

use super::table::{DEFAULT, Noise};
use crate::capability::TIME;
use crate::stats::Verdict;

/// What disturbed the programs of the report.
#[derive(Debug, Clone, Copy)]
pub struct Cause {
    /// The noise.
    pub noise: &'static Noise,
    /// The CPU that it fell on.
    pub cpu: u32,
    /// The share of that CPU that it took by its own measure, 0..=1.
    pub share: Option<f64>,
}

/// The sentence. `None`: no program was measured.
pub fn sentence(report: &Report, causes: &[Cause]) -> Option<String> {
    let times = report.rows.iter().filter(|row| row.metric == TIME);
    let mut programs: Vec<&str> = times.map(|row| row.program.as_str()).collect();
    programs.dedup();
    let outcomes: Vec<Outcome<'_>> =
        programs.iter().map(|program| Outcome::of(report, program)).collect();
    if outcomes.is_empty() {
        return None;
    }
    let faster: Vec<String> = outcomes.iter().filter_map(Outcome::faster).collect();
    let count = if faster.is_empty() { "none".to_owned() } else { faster.len().to_string() };
    let noun = if outcomes.len() == 1 { "program" } else { "programs" };
    let mut text = format!(
        "On this machine, {}, evenkeel ran {count} of {} {noun} faster than the kernel alone for \
         certain",
        disturbance(causes),
        outcomes.len()
    );
    if !faster.is_empty() {
        text.push_str(&format!(": {}", faster.join(", ")));
    }
    let mut add = |what: &str, items: Vec<String>| {
        if !items.is_empty() {
            text.push_str(&format!("; {what}: {}", items.join(", ")));
        }
    };
    add("slower for certain", outcomes.iter().flat_map(Outcome::slower).collect());
    add("undecided", outcomes.iter().filter_map(Outcome::undecided).collect());
    let absent = report.absent.iter().map(|one| one.program.as_str());
    let absent = absent.filter(|name| !programs.contains(name));
    add("not measured", absent.map(str::to_owned).collect());
    Some(text + ".")
}

/// What the rows show of one program.
struct Outcome<'a> {
    program: &'a str,
    /// The rows of the contestants other than the kernel alone.
    rows: Vec<&'a Row>,
    /// The kernel alone differed from itself for certain: then nothing that differs is evenkeel's.
    is_unsteady: bool,
}

impl<'a> Outcome<'a> {
    fn of(report: &'a Report, program: &'a str) -> Self {
        let times = || {
            let rows = report.rows.iter().filter(|row| row.metric == TIME);
            rows.filter(|row| row.program == program && row.contestant != DEFAULT)
        };
        let is_decided = |row: &Row| row.verdict.is_some_and(|one| one != Verdict::Undecided);
        Self {
            program,
            rows: times().filter(|row| !row.is_again).collect(),
            is_unsteady: times().any(|row| row.is_again && is_decided(row)),
        }
    }

    /// The contestants with this verdict and their ratios.
    fn with(&self, verdict: Verdict) -> Vec<(&'a str, f64)> {
        let rows = self.rows.iter().filter(|row| !self.is_unsteady && row.verdict == Some(verdict));
        rows.filter_map(|row| Some((row.contestant.as_str(), row.ratio?))).collect()
    }

    /// The best of the contestants that were faster.
    fn faster(&self) -> Option<String> {
        let all = self.with(Verdict::Better).into_iter();
        let best = all.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        Some(format!("{} {:.2} times as fast with {}", self.program, best.1, best.0))
    }

    /// Each contestant that was slower: also where another one was faster.
    fn slower(&self) -> Vec<String> {
        let all = self.with(Verdict::Worse).into_iter();
        all.map(|(name, ratio)| format!("{} {ratio:.2} times as fast with {name}", self.program))
            .collect()
    }

    fn undecided(&self) -> Option<String> {
        if self.is_unsteady {
            return Some(format!("{} (the kernel alone differed from itself)", self.program));
        }
        let is_decided = [Verdict::Better, Verdict::Worse].map(|one| !self.with(one).is_empty());
        (!is_decided.contains(&true)).then(|| self.program.to_owned())
    }
}

/// What disturbed, in words: each kind of noise once.
fn disturbance(causes: &[Cause]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let kind = |cause: &Cause| match cause.noise.disturbance.noise {
        None => None,
        Some((NoiseKind::Softirq | NoiseKind::Udp, ..)) => Some("softirqs"),
        Some((NoiseKind::Fifo, ..)) => Some("a real-time task"),
        Some((NoiseKind::Hog, ..)) => Some("another program"),
    };
    for cause in causes {
        let part = match kind(cause) {
            None => "while nothing was made to disturb it".to_owned(),
            Some(kind_name) => {
                let alike = causes.iter().filter(|other| kind(other) == Some(kind_name));
                let taken = taken(alike.filter_map(|other| other.share));
                format!("while {kind_name} took {taken} of CPU {}", cause.cpu)
            }
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(" and ")
}

/// Shares as one part of the whole, or as a range.
fn taken(shares: impl Iterator<Item = f64>) -> String {
    let mut pct: Vec<String> = shares.map(|share| format!("{:.0}", 100.0 * share)).collect();
    pct.sort_unstable_by(|one, other| one.len().cmp(&other.len()).then(one.cmp(other)));
    pct.dedup();
    match pct.as_slice() {
        [] => "a part".to_owned(),
        [one] => format!("{one} %"),
        [first, .., last] => format!("{first} to {last} %"),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Absent;

    use super::super::table::{NOISES, RUN, SHARES, THREADS};
    use super::*;

    const LOOP: &str = "static_loop";
    const CLANG: &str = "sp.W-clang";
    const GCC: &str = "sp.W-gcc";

    fn row(program: &str, contestant: &str, ratio: f64, verdict: Verdict) -> Row {
        let json = serde_json::json!({
            "case": "softirq-fine", "program": program, "contestant": contestant, "metric": TIME,
            "median": 2.5, "ci95": [2.4, 2.6], "against": DEFAULT, "ratio": ratio,
            "ratio_ci95": [ratio - 0.02, ratio + 0.02], "verdict": verdict, "foreign_pct": 0.1,
            "runs": 6,
        });
        serde_json::from_value(json).unwrap()
    }

    /// The baseline of a program, and its A/A row with this verdict.
    fn baseline(program: &str, again: Verdict) -> [Row; 2] {
        let plain = row(program, DEFAULT, 1.0, Verdict::Undecided);
        let plain = Row { ratio: None, ratio_ci95: None, verdict: None, ..plain };
        let name = evenkeel_experiment::again(DEFAULT);
        [plain, Row { is_again: true, ..row(program, &name, 1.01, again) }]
    }

    fn report(rows: &[&[Row]]) -> Report {
        Report { rows: rows.concat(), ..Report::default() }
    }

    fn absent(program: &str) -> Absent {
        Absent { case: "softirq".into(), program: program.into(), why: "no compiler".into() }
    }

    fn cause(noise: &str, share: Option<f64>) -> Cause {
        let noise = NOISES.iter().find(|one| one.name() == noise).unwrap();
        Cause { noise, cpu: 0, share }
    }

    fn softirqs() -> [Cause; 2] {
        [cause("softirq", Some(0.402)), cause("softirq-fine", Some(0.399))]
    }

    #[test]
    fn gains_and_what_is_undecided_are_told_with_their_levers() {
        use Verdict::{Better, Undecided};
        let report = report(&[
            &baseline(LOOP, Undecided),
            &[row(LOOP, RUN, 1.27, Better)],
            &baseline(CLANG, Undecided),
            &[row(CLANG, RUN, 1.02, Better), row(CLANG, SHARES, 1.254, Better)],
            &baseline(GCC, Undecided),
            &[row(GCC, RUN, 0.99, Undecided), row(GCC, THREADS, 1.12, Undecided)],
        ]);
        assert_eq!(
            sentence(&report, &softirqs()).unwrap(),
            "On this machine, while softirqs took 40 % of CPU 0, evenkeel ran 2 of 3 programs faster \
             than the kernel alone for certain: static_loop 1.27 times as fast with run, sp.W-clang \
             1.25 times as fast with run --shares; undecided: sp.W-gcc."
        );
    }

    #[test]
    fn losses_are_told_also_beside_a_gain_and_so_is_what_was_not_measured() {
        use Verdict::{Better, Undecided, Worse};
        let mut report = report(&[
            &baseline(LOOP, Undecided),
            &[row(LOOP, RUN, 0.9, Worse)],
            &baseline(GCC, Undecided),
            &[row(GCC, RUN, 0.97, Worse), row(GCC, THREADS, 1.15, Better)],
        ]);
        // The loop was measured under another noise instead.
        report.absent = [CLANG, LOOP].map(absent).into();
        assert_eq!(
            sentence(&report, &[cause("hog", None)]).unwrap(),
            "On this machine, while another program took a part of CPU 0, evenkeel ran 1 of 2 programs \
             faster than the kernel alone for certain: sp.W-gcc 1.15 times as fast with \
             run --threads 4; slower for certain: static_loop 0.90 times as fast with run, \
             sp.W-gcc 0.97 times as fast with run; not measured: sp.W-clang."
        );
    }

    #[test]
    fn where_nothing_gains_it_says_none() {
        let rows = [row(LOOP, RUN, 1.0, Verdict::Undecided)];
        let report = report(&[&baseline(LOOP, Verdict::Undecided), &rows]);
        assert_eq!(
            sentence(&report, &[cause("none", None)]).unwrap(),
            "On this machine, while nothing was made to disturb it, evenkeel ran none of 1 program \
             faster than the kernel alone for certain; undecided: static_loop."
        );
        assert_eq!(sentence(&Report::default(), &[]), None);
    }

    #[test]
    fn no_gain_counts_where_the_kernel_alone_differed_from_itself() {
        let rows = [row(LOOP, RUN, 1.3, Verdict::Better)];
        let report = report(&[&baseline(LOOP, Verdict::Worse), &rows]);
        let said = sentence(&report, &softirqs()).unwrap();
        assert!(
            said.ends_with(
                "ran none of 1 program faster than the kernel alone for certain; undecided: static_loop \
                 (the kernel alone differed from itself)."
            ),
            "{said}"
        );
    }

    #[test]
    fn shares_that_differ_are_a_range() {
        assert_eq!(taken([0.5, 0.095, 0.4].into_iter()), "10 to 50 %");
        assert_eq!(taken([0.4, 0.404].into_iter()), "40 %");
        assert_eq!(taken([].into_iter()), "a part");
    }
}
