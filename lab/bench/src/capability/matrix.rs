//! What is measured: cases, programs, contestants, and which combinations.

use anyhow::{Result, bail};
use evenkeel_experiment::{Only, choose};
use evenkeel_host::Placement;
use evenkeel_noise::NoiseKind;

use super::stage::Disturbance;

/// What makes the CPUs unequal, and how waiting threads of the program wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Case {
    /// Nothing.
    None,
    /// Softirqs, 4 of every 10 ms: the paper's own case.
    Softirq,
    /// Softirqs, 2 of every 4 ms: between two ticks, where the kernel's own counting is blind.
    SoftirqFine,
    /// A real-time task, 5 of every 10 ms; waiting threads spin.
    FifoSpin,
    /// The same; waiting threads sleep.
    FifoSleep,
    /// Another user's endless ordinary program.
    Hog,
    /// Network traffic; its softirqs take 4 of every 10 ms.
    Udp,
}

impl Case {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 7] = [
        Self::None,
        Self::Softirq,
        Self::SoftirqFine,
        Self::FifoSpin,
        Self::FifoSleep,
        Self::Hog,
        Self::Udp,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Softirq => "softirq",
            Self::SoftirqFine => "softirq-fine",
            Self::FifoSpin => "fifo-spin",
            Self::FifoSleep => "fifo-sleep",
            Self::Hog => "hog",
            Self::Udp => "udp",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::None => "nothing disturbs",
            Self::Softirq => "softirqs take 4 of every 10 ms of one CPU, as from a network card",
            Self::SoftirqFine => {
                "softirqs take 2 of every 4 ms of one CPU, between two ticks of the kernel's clock"
            }
            Self::FifoSpin => {
                "a real-time task takes 5 of every 10 ms of one CPU; the program's waiting threads \
                 spin (OMP_WAIT_POLICY=active)"
            }
            Self::FifoSleep => {
                "the same real-time task; the program's waiting threads sleep \
                 (OMP_WAIT_POLICY=passive)"
            }
            Self::Hog => "another user's endless ordinary program on one CPU",
            Self::Udp => "UDP traffic; its receiving softirqs take 4 of every 10 ms of one CPU",
        }
    }

    /// What disturbs the CPU.
    pub fn disturbance(self) -> Disturbance {
        let noise = match self {
            Self::None => None,
            Self::Softirq => Some((NoiseKind::Softirq, 4_000, 10_000)),
            Self::SoftirqFine => Some((NoiseKind::Softirq, 2_000, 4_000)),
            Self::FifoSpin | Self::FifoSleep => Some((NoiseKind::Fifo, 5_000, 10_000)),
            Self::Hog => return Disturbance::HOG,
            Self::Udp => Some((NoiseKind::Udp, 4_000, 10_000)),
        };
        Disturbance { name: self.name(), noise }
    }

    /// How many times the usual work is done: at rest the balancer looks once a second, and its
    /// start is to be seen in proportion to that.
    pub fn length(self) -> u64 {
        if self == Self::None { 3 } else { 1 }
    }

    /// `OMP_WAIT_POLICY`; `None` leaves it to the OpenMP runtime.
    pub fn wait_policy(self) -> Option<&'static str> {
        match self {
            Self::FifoSpin => Some("active"),
            Self::FifoSleep => Some("passive"),
            _ => None,
        }
    }
}

impl From<Case> for Disturbance {
    fn from(case: Case) -> Self {
        case.disturbance()
    }
}

/// A measured program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The static OpenMP loop.
    StaticLoop,
    /// NPB's EP, class A.
    Ep,
}

impl Subject {
    /// Both.
    pub const ALL: [Self; 2] = [Self::StaticLoop, Self::Ep];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::StaticLoop => "static_loop",
            Self::Ep => "ep",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::StaticLoop => {
                "a fixed amount of computation in equal shares (OpenMP, schedule(static)), one \
                 barrier at the end"
            }
            Self::Ep => "EP of the NAS Parallel Benchmarks, class A, its results verified",
        }
    }
}

/// A way to run the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The kernel alone: the baseline.
    Default,
    /// Each thread bound to a CPU.
    Pinned,
    /// All threads on the CPUs without noise.
    FastOnly,
    /// The paper's policy as published.
    Paper,
    /// The paper's policy ten times as often.
    PaperFast,
    /// `evenkeel run` with all its defaults.
    Lag,
    /// The same, tasks pinned.
    LagHard,
    /// The same, tasks moved and set free.
    LagSoft,
}

impl Method {
    /// All of them, the baseline first.
    pub const ALL: [Self; 8] = [
        Self::Default,
        Self::Pinned,
        Self::FastOnly,
        Self::Paper,
        Self::PaperFast,
        Self::Lag,
        Self::LagHard,
        Self::LagSoft,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Pinned => "pinned",
            Self::FastOnly => "fast-only",
            Self::Paper => "paper",
            Self::PaperFast => "paper-100ms",
            Self::Lag => "lag",
            Self::LagHard => "lag-hard",
            Self::LagSoft => "lag-soft",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Default => "the kernel's scheduler alone",
            Self::Pinned => "each thread bound to a CPU (OMP_PROC_BIND=true, OMP_PLACES=threads)",
            Self::FastOnly => "all threads on the CPUs without noise (as by taskset)",
            Self::Paper => "`evenkeel run --policy paper --placement hard`: as published, 1 s",
            Self::PaperFast => "the same with `--interval 100ms`",
            Self::Lag => "`evenkeel run`, all defaults",
            Self::LagHard => "`evenkeel run --placement hard`: tasks stay pinned between moves",
            Self::LagSoft => "`evenkeel run --placement soft`: tasks are moved and set free",
        }
    }

    /// The options of `evenkeel run`; `None` for those that run without it.
    pub fn balancer(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Default | Self::Pinned | Self::FastOnly => None,
            Self::Paper => Some(&["--policy", "paper", "--placement", "hard"]),
            Self::PaperFast => {
                Some(&["--policy", "paper", "--placement", "hard", "--interval", "100ms"])
            }
            Self::Lag => Some(&[]),
            Self::LagHard => Some(&["--placement", "hard"]),
            Self::LagSoft => Some(&["--placement", "soft"]),
        }
    }

    /// `lag-hard` or `lag-soft`, whichever the default is not: running both would measure one
    /// thing twice.
    fn other_placement() -> Self {
        match Placement::default() {
            Placement::Soft => Self::LagHard,
            _ => Self::LagSoft,
        }
    }

    fn makes_sense(self, case: Case) -> bool {
        !(self == Self::FastOnly && case == Case::None)
    }
}

/// A case and a program with its contestants, the baseline first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The case.
    pub case: Case,
    /// The program.
    pub subject: Subject,
    /// The contestants.
    pub contestants: Vec<Method>,
}

impl Cell {
    /// As a case of a trial.
    pub fn case(&self) -> evenkeel_experiment::Case {
        evenkeel_experiment::Case {
            name: self.case.name().to_owned(),
            program: self.subject.name().to_owned(),
            contestants: self.contestants.iter().map(|method| method.name().to_owned()).collect(),
            has_reference: true,
            has_second_baseline: true,
        }
    }
}

/// The default contestants of a case and a program.
fn by_default(case: Case, subject: Subject) -> Option<Vec<Method>> {
    use Method::{Default, FastOnly, Lag, Paper, PaperFast, Pinned};
    Some(match (subject, case) {
        (Subject::StaticLoop, Case::Softirq) => {
            vec![Default, Pinned, FastOnly, Paper, PaperFast, Lag, Method::other_placement()]
        }
        (Subject::StaticLoop, _) | (Subject::Ep, Case::FifoSpin) => vec![Default, Pinned, Lag],
        (Subject::Ep, Case::None) => vec![Default, Lag],
        (Subject::Ep, _) => return None,
    })
}

/// What is to be measured. Without a filter: every case with the static loop, all contestants
/// where the paper has its case, EP where it matters. A combination outside of that is measured
/// when both its case and its program are named.
///
/// # Errors
/// A name is unknown (the error lists those that are known), or nothing is left to measure.
pub fn select(filter: &Only) -> Result<Vec<Cell>> {
    let cases = choose("case", &filter.cases, &Case::ALL, |case| case.name())?;
    let subjects = choose("program", &filter.programs, &Subject::ALL, |subject| subject.name())?;
    let named = choose("contestant", &filter.contestants, &Method::ALL, |method| method.name())?;
    let both_named = !filter.cases.is_empty() && !filter.programs.is_empty();
    let mut cells = Vec::new();
    for &&subject in &subjects {
        for &&case in &cases {
            let default = by_default(case, subject);
            if default.is_none() && !both_named {
                continue;
            }
            let mut contestants = if filter.contestants.is_empty() {
                default.unwrap_or_else(|| vec![Method::Pinned, Method::Lag])
            } else {
                named.iter().map(|method| **method).collect()
            };
            contestants.retain(|contestant| {
                contestant.makes_sense(case) && *contestant != Method::Default
            });
            contestants.insert(0, Method::Default);
            cells.push(Cell { case, subject, contestants });
        }
    }
    if cells.is_empty() {
        bail!(
            "no case of {} is measured with {} unless both are named: give --cases and --programs",
            filter.cases.join(","),
            filter.programs.join(",")
        );
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn filter(cases: &str, programs: &str, contestants: &str) -> Only {
        let list = |text: &str| {
            text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        Only {
            cases: list(cases),
            programs: list(programs),
            contestants: list(contestants),
            ..Only::default()
        }
    }

    fn shown(cells: &[Cell]) -> Vec<String> {
        let show = |cell: &Cell| {
            let names: Vec<&str> = cell.contestants.iter().map(|c| c.name()).collect();
            format!("{} {}: {}", cell.case.name(), cell.subject.name(), names.join(" "))
        };
        cells.iter().map(show).collect()
    }

    #[test]
    fn the_whole_matrix() {
        let cells = select(&Only::default()).unwrap();
        assert_eq!(
            shown(&cells),
            [
                "none static_loop: default pinned lag",
                "softirq static_loop: default pinned fast-only paper paper-100ms lag lag-hard",
                "softirq-fine static_loop: default pinned lag",
                "fifo-spin static_loop: default pinned lag",
                "fifo-sleep static_loop: default pinned lag",
                "hog static_loop: default pinned lag",
                "udp static_loop: default pinned lag",
                "none ep: default lag",
                "fifo-spin ep: default pinned lag",
            ]
            .map(|line| match Placement::default() {
                Placement::Soft => line.to_owned(),
                _ => line.replace("lag-hard", "lag-soft"),
            })
        );
        assert_eq!(cells.iter().map(|cell| cell.contestants.len()).sum::<usize>(), 30);
    }

    #[test]
    fn filters() {
        for (cases, programs, contestants, want) in [
            (
                "fifo-spin",
                "",
                "",
                "fifo-spin static_loop: default pinned lag|fifo-spin ep: default pinned lag",
            ),
            ("udp", "", "", "udp static_loop: default pinned lag"),
            ("udp", "ep", "", "udp ep: default pinned lag"),
            ("", "ep", "", "none ep: default lag|fifo-spin ep: default pinned lag"),
            (
                "softirq",
                "static-loop",
                "lag-soft,paper",
                "softirq static_loop: default paper lag-soft",
            ),
            ("hog", "static_loop", "default", "hog static_loop: default"),
            ("none", "static_loop", "fast-only,lag", "none static_loop: default lag"),
            ("udp, UDP", "ep", "lag,lag", "udp ep: default lag"),
        ] {
            let cells = select(&filter(cases, programs, contestants)).unwrap();
            assert_eq!(shown(&cells).join("|"), want);
        }
    }

    #[test]
    fn unknown_names_are_told_with_the_known_ones() {
        for (wrong, words) in [
            (filter("softirqs", "", ""), "unknown case \"softirqs\": choose among none, softirq,"),
            (filter("", "sp", ""), "unknown program \"sp\": choose among static_loop, ep"),
            (filter("", "", "cfs"), "unknown contestant \"cfs\": choose among default, pinned,"),
        ] {
            let error = select(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn the_noise_of_every_case_is_allowed() {
        for case in Case::ALL {
            let noise = case.disturbance().config(Duration::from_secs(600));
            assert_eq!(noise.is_none(), case == Case::None);
            if let Some((kind, config)) = noise {
                config.check(kind).unwrap();
            }
        }
    }
}
