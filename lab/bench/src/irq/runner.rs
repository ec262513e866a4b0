//! One run: a contestant begins on a card of its own, and something is received on it.

use std::path::Path;

use anyhow::{Context, Result};
use evenkeel_cbinfo::Cbinfo;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{Case, Experiment, Plan, Record, Runner, Sample, Turn, interrupt};
use evenkeel_machine::CpuSet;

use super::contestant::Method;
use super::experiment::{DISORDERED, HOME, MOVES, RESENT};
use super::stage::Stage;
use super::traffic::{Flow, transfer};
use super::{MAX_QUEUES, disturbed};
use crate::programs::Installed;
use crate::sais::runner::{Times, counted};
use crate::sais::traffic::overtaken;

/// Parts of the names of cases.
pub const HOME_CASE: &str = "pinned consumers, one CPU a queue";
pub const MIXED_CASE: &str = "pinned consumers, several CPUs a queue";
pub const FREE_CASE: &str = "free consumers";
pub const HOT_CASE: &str = "a program beside a hot queue";

/// Connections, and on large machines so many a queue.
const FLOWS: u32 = 8;
const FLOWS_A_QUEUE: u32 = 2;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// All connections of a queue are consumed on one CPU.
    Home,
    /// The connections of each queue are consumed on several CPUs.
    Mixed,
    /// Consumers run where the kernel has them.
    Free,
    /// A program beside a hot queue.
    Hot,
}

impl Work {
    fn words(self) -> &'static str {
        match self {
            Self::Home => HOME_CASE,
            Self::Mixed => MIXED_CASE,
            Self::Free => FREE_CASE,
            Self::Hot => HOT_CASE,
        }
    }

    /// The name in the report.
    pub fn case(self, queues: u32) -> String {
        match self {
            Self::Hot => self.words().to_owned(),
            _ => format!("{} flows, {}", flow_count(queues), self.words()),
        }
    }
}

/// A case: what is measured, of which contestants.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub work: Work,
    /// The baseline first.
    pub methods: Vec<Method>,
}

/// With what runs are made.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The product's executable.
    pub executable: &'a Path,
    /// irqbalance, where it is here.
    pub irqbalance: Option<&'a Path>,
    /// The CPUs that take part.
    pub cpus: &'a CpuSet,
    /// Queues of the card.
    pub queues: u32,
    /// How long a run lasts.
    pub times: Times,
}

/// As many queues as CPUs, up to a bound: consumers of the others would have none.
pub(super) fn queues_for(cpus: &CpuSet) -> u32 {
    (cpus.len() as u32).min(MAX_QUEUES)
}

fn flow_count(queues: u32) -> u32 {
    FLOWS.max(FLOWS_A_QUEUE * queues)
}

/// The connections of a case.
fn flows(work: Work, queues: u32, cpus: &CpuSet) -> Vec<Flow> {
    let cpus: Vec<u32> = cpus.iter().collect();
    let of = |number: u32| {
        let queue = number % queues;
        let place = match work {
            Work::Home => Some(queue),
            Work::Mixed => Some(queue + number / queues),
            Work::Free | Work::Hot => None,
        };
        let cpu = place.and_then(|place| cpus.get(place as usize % cpus.len()).copied());
        Flow { queue, cpu }
    };
    (0..flow_count(queues)).map(of).collect()
}

/// Has all contestants take turns in all settings.
///
/// # Errors
/// CPU time cannot be counted, or a signal asked for the end.
pub(super) fn measure(
    experiment: &Experiment<Method>,
    settings: &[Setting],
    plan: &Plan,
    place: Place<'_>,
) -> Result<Vec<Record>> {
    let mut accounts = Cbinfo::open(&[]).context("CPU time cannot be counted exactly")?;
    accounts.follow(std::process::id(), std::process::id())?;
    let case = |setting: &Setting| Case {
        name: setting.work.case(place.queues),
        contestants: setting.methods.iter().map(|method| method.name().to_owned()).collect(),
        has_reference: setting.work == Work::Hot,
        has_second_baseline: true,
        ..Case::default()
    };
    let cases: Vec<Case> = settings.iter().map(case).collect();
    let mut runner = Runs { place, settings, accounts, programs: Installed::new()? };
    let display = Display::new();
    let records = evenkeel_experiment::measure(experiment, &cases, plan, &mut runner, &display);
    display.finish();
    interrupt::check()?;
    records
}

struct Runs<'a> {
    place: Place<'a>,
    settings: &'a [Setting],
    accounts: Cbinfo,
    programs: Installed,
}

impl Runner<Method> for Runs<'_> {
    fn run(&mut self, turn: &Turn<'_, Method>) -> Result<Sample> {
        interrupt::check()?;
        let Self { place, settings, accounts, programs } = self;
        let is_meant = |setting: &&Setting| setting.work.case(place.queues) == turn.case.name;
        let setting = settings.iter().find(is_meant);
        let work = setting.with_context(|| format!("no case {:?}", turn.case.name))?.work;
        let Some(contestant) = turn.contestant else {
            return disturbed::run(accounts, programs, place, None);
        };
        let stage = Stage::new(place.queues)?.context("this kernel has no TCX (Linux 6.6)")?;
        let mut in_charge = contestant.how.begin(place, &stage)?;
        let mut sample = if work == Work::Hot {
            disturbed::run(accounts, programs, place, Some(&stage))?
        } else {
            let flows = flows(work, place.queues, place.cpus);
            let (mut sample, arrivals) =
                counted(accounts, "napi/", place.cpus.len(), &mut |begin| {
                    transfer(&stage, &flows, place.times, begin)
                })?;
            let server = stage.server.tcp_counters()?;
            sample.set(HOME, arrivals.home_pct());
            sample.set(RESENT, server.get("RetransSegs").copied());
            sample.set(DISORDERED, Some(overtaken(&server)));
            sample
        };
        in_charge.check()?;
        sample.set(MOVES, in_charge.moves()?);
        Ok(sample)
    }

    fn relate(&self, reference: &Sample, sample: &mut Sample) {
        disturbed::relate(reference, sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_of_a_queue_are_together_or_apart_or_free() {
        let cpus: CpuSet = "1,3".parse().unwrap();
        let cpus_of = |work, queue| {
            let flows = flows(work, 2, &cpus);
            assert_eq!(flows.len(), 8);
            let of_queue = flows.into_iter().filter(|flow| flow.queue == queue);
            of_queue.map(|flow| flow.cpu).collect::<Vec<_>>()
        };
        assert_eq!(cpus_of(Work::Home, 0), [Some(1); 4]);
        assert_eq!(cpus_of(Work::Home, 1), [Some(3); 4]);
        assert_eq!(cpus_of(Work::Mixed, 0), [Some(1), Some(3), Some(1), Some(3)]);
        assert_eq!(cpus_of(Work::Mixed, 1), [Some(3), Some(1), Some(3), Some(1)]);
        assert_eq!(cpus_of(Work::Free, 1), [None; 4]);
        let many: CpuSet = "0-63".parse().unwrap();
        assert_eq!(queues_for(&many), MAX_QUEUES);
        assert_eq!(flows(Work::Home, MAX_QUEUES, &many).len(), 16);
    }
}
