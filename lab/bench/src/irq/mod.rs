//! `evenkeel-lab bench irq`: does it pay to choose where interrupts run? On a virtual card with many
//! queues (test bed (a)): packets brought to the CPU that consumes them, beside the kernel's own ways,
//! and the noise of a hot queue beside a program with barriers too fine for moving threads.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `experiment` | figures, aims, contestants |
//! | `runner` | cases, and one run |
//! | `stage` | a client with a card with queues, and a server that chooses them |
//! | `contestant` | what decides where a queue is processed |
//! | `traffic` | connections that bring data by the queues |
//! | `disturbed` | a program beside a hot queue |

mod contestant;
mod disturbed;
mod experiment;
mod runner;
pub mod stage;
mod traffic;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel_experiment::host::usable_cpus;
use evenkeel_experiment::{Options, Plan, Report, named};
use evenkeel_journal::find_irqbalance;

use crate::sais::runner::Times;
use contestant::Method;
use runner::{Place, Setting, Work, queues_for};
use stage::Stage;

/// Runs of each contestant to begin with, and of the quick form.
const RUNS: usize = 7;
const QUICK_RUNS: usize = 2;
/// Undecided rows get so many more at a time.
const MORE_RUNS: usize = 4;
/// From here on nothing is added.
const BUDGET: Duration = Duration::from_secs(60 * 60);
/// How long a run is measured.
const MEASURED: Duration = Duration::from_secs(5);
const QUICK_MEASURED: Duration = Duration::from_millis(500);
/// `irq run` makes a move a second at most, and only what two rounds have planned; it may take two more
/// until it sees the traffic.
const ROUNDS_BEFORE: u32 = 5;
/// A card does not have more queues than this, however many CPUs there are.
const MAX_QUEUES: u32 = 8;

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Packets received by many queues.
    Queues,
    /// A program beside a hot queue.
    Noise,
}

impl Part {
    /// All, in the order in which they are measured.
    pub const ALL: [Self; 2] = [Self::Queues, Self::Noise];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Noise => "noise",
        }
    }
}

impl FromStr for Part {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        named("part", name, &Self::ALL, Self::name)
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The product's executable: its `irq run` is measured.
    pub executable: PathBuf,
    /// Which parts; all if none are named.
    pub parts: Vec<Part>,
    /// What any experiment can be asked for.
    pub options: Options,
}

/// Runs the experiment. Returns the exit code.
///
/// # Errors
/// A file cannot be written, or nothing can be measured.
pub fn run(asked: &Asked) -> Result<i32> {
    experiment::experiment().run(&asked.options, || measure(asked))
}

fn measure(asked: &Asked) -> Result<Report> {
    let Asked { executable, parts, options } = asked;
    let cpus = usable_cpus()?;
    ensure!(cpus.len() >= 2, "with a single CPU nothing can be moved: two are needed");
    ensure!(
        find_irqbalance(Path::new("/")).is_empty(),
        "irqbalance runs here, and would take part in every run: stop it first (systemctl stop \
         irqbalance)"
    );
    // Before anything is measured, so that it is said once.
    let stage = Stage::new(1).context("a virtual card cannot be made (root, iproute2)")?;
    ensure!(
        stage.is_some(),
        "this kernel has no TCX (Linux 6.6): a sender cannot choose the queue"
    );
    drop(stage);
    let irqbalance = contestant::irqbalance();
    let mut said = Vec::new();
    if irqbalance.is_none() {
        said.push("irqbalance was left out: run scripts/irqbalance".to_owned());
    }
    let queues = queues_for(&cpus);
    let measured = if options.quick { QUICK_MEASURED } else { MEASURED };
    let times = Times { warm_up: Duration::from_secs(u64::from(queues + ROUNDS_BEFORE)), measured };
    let place = Place { executable, irqbalance: irqbalance.as_deref(), cpus: &cpus, queues, times };
    let settings = settings(parts, options.quick, place.irqbalance);
    let plan = plan(options.quick);
    let experiment = experiment::experiment();
    let records = runner::measure(&experiment, &settings, &plan, place)?;
    let mut report = Report::new(&experiment, &records, &plan, &options.command);
    report.said = said;
    let notes = &mut report.machine.notes;
    notes.insert("usable CPUs".into(), cpus.to_string());
    notes.insert("queues of the virtual card".into(), queues.to_string());
    Ok(report)
}

fn plan(is_quick: bool) -> Plan {
    if is_quick {
        Plan { max_repeats: 1, ..Plan::fixed(QUICK_RUNS) }
    } else {
        Plan { initial_runs: RUNS, step: MORE_RUNS, budget: BUDGET, ..Plan::default() }
    }
}

/// The cases of these parts, with the contestants that are here.
fn settings(parts: &[Part], is_quick: bool, irqbalance: Option<&Path>) -> Vec<Setting> {
    let is_asked = |part| parts.is_empty() || parts.contains(&part);
    let setting = |work, methods: &[Method]| Setting {
        work,
        methods: methods.iter().copied().filter(|method| method.is_here(irqbalance)).collect(),
    };
    let mut settings = Vec::new();
    if is_asked(Part::Queues) && is_quick {
        settings.push(setting(Work::Home, &Method::RECEIVING_QUICK));
    } else if is_asked(Part::Queues) {
        let works = [Work::Home, Work::Mixed, Work::Free];
        settings.extend(works.map(|work| setting(work, &Method::RECEIVING)));
    }
    if is_asked(Part::Noise) {
        let (all, quick) = (&Method::DISTURBED[..], &Method::DISTURBED_QUICK[..]);
        settings.push(setting(Work::Hot, if is_quick { quick } else { all }));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_choose_cases_and_absent_irqbalance_leaves_contestants_out() {
        let irqbalance = Some(Path::new("/usr/sbin/irqbalance"));
        let of = |parts: &[Part], is_quick, irqbalance| -> Vec<(String, usize)> {
            let settings = settings(parts, is_quick, irqbalance).into_iter();
            settings.map(|setting| (setting.work.case(2), setting.methods.len())).collect()
        };
        let named = |cases: &[(&str, usize)]| -> Vec<(String, usize)> {
            cases.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let wanted = [
            ("8 flows, pinned consumers, one CPU a queue", 7),
            ("8 flows, pinned consumers, several CPUs a queue", 7),
            ("8 flows, free consumers", 7),
            ("a program beside a hot queue", 4),
        ];
        assert_eq!(of(&[], false, irqbalance), named(&wanted));
        assert_eq!(of(&[Part::Noise], false, None), named(&[("a program beside a hot queue", 2)]));
        let quick = [(wanted[0].0, 3), (wanted[3].0, 2)];
        assert_eq!(of(&[], true, None), named(&quick));
        assert_eq!("noise".parse::<Part>().unwrap(), Part::Noise);
        assert!("Noise".parse::<Part>().is_err());
    }
}
