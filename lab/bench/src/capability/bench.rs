//! One measurement: noise on or off, accounts before and after, the run between.

use std::cell::{Cell as Slot, RefCell};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use evenkeel_experiment::accounts::{Accounts, children_cpu_ns};
use evenkeel_experiment::{MachineInfo, Runner, Sample, Turn};
use evenkeel_host::Accounting;
use evenkeel_machine::CpuSet;

use super::cost::{AccountingCost, OwnCost, OwnSample, own_costs};
use super::lab::Lab;
use super::launch::{Launcher, Task};
use super::matrix::{Case, Method, Subject};
use super::metric;

/// The work with which speed is found, for each thread: about a tenth of a second.
const PROBE_WORK: u64 = 100;
/// The fastest of so many probes counts: what disturbs makes slower only.
const PROBES: usize = 3;
/// How long the measurement of a hog's fair share lasts without the hog, in s.
const HOG_PROBE_S: f64 = 0.5;

/// Everything that a measurement needs.
pub struct Bench {
    launcher: Launcher,
    lab: Lab,
    /// Units of work of the static loop, and how many a second all CPUs make together.
    work: u64,
    work_per_s: f64,
    hog_share: Slot<Option<f64>>,
    samples: RefCell<Vec<OwnSample>>,
}

impl Bench {
    /// Makes the programs ready and finds the work that takes the static loop `loop_s` seconds.
    ///
    /// # Errors
    /// The programs cannot be written or run.
    pub fn new(
        executable: PathBuf,
        usable: CpuSet,
        noisy: u32,
        accounts: Accounts,
        loop_s: f64,
    ) -> Result<Self> {
        let launcher = Launcher::new(executable, &usable, noisy)?;
        let work_per_s = work_per_s(&launcher, PROBE_WORK * usable.len() as u64)?;
        Ok(Self {
            launcher,
            lab: Lab::new(usable, noisy, accounts),
            work: (work_per_s * loop_s).ceil() as u64,
            work_per_s,
            hog_share: Slot::new(None),
            samples: RefCell::default(),
        })
    }

    fn measure(&self, task: &Task, case: Case) -> Result<Sample> {
        if case == Case::Hog && self.hog_share.get().is_none() {
            self.hog_share.set(Some(self.measure_hog_share()?));
        }
        let hog = (case == Case::Hog).then(|| self.hog_share.get()).flatten();
        let seen = self.lab.under(case, hog, || self.launcher.run(task))?;
        let mut sample = seen.sample(seen.ended.seconds);
        let mut moves = 0;
        if let Some(summary) = &seen.ended.summary {
            if self.lab.is_exact() && summary.accounting == Accounting::Procfs {
                let why = summary.why_not_exact.as_deref().unwrap_or("it does not say why");
                bail!("evenkeel run had no exact accounting, though this process has: {why}");
            }
            moves = summary.moves;
            if case == Case::None {
                let own = OwnSample::new(task.subject, task.method, summary, sample.foreign_pct);
                self.samples.borrow_mut().push(own);
            }
        }
        sample.set(metric::MOVES, Some(moves as f64));
        Ok(sample)
    }

    /// The share of its CPU that the hog gets beside a thread of the program that wants it too.
    /// All threads spin while they wait: that is a program that is busy everywhere.
    fn measure_hog_share(&self) -> Result<f64> {
        let task = Task {
            subject: Subject::StaticLoop,
            work: (self.work_per_s * HOG_PROBE_S).ceil() as u64,
            method: Method::Pinned,
            wait_policy: Some("active"),
        };
        self.lab.stage.borrow_mut().share_of_hog(|| self.launcher.run(&task).map(drop))
    }

    /// Ends the noise.
    ///
    /// # Errors
    /// The generator died or lost its CPU.
    pub fn quiet(&self) -> Result<()> {
        self.lab.quiet()
    }

    /// What exact accounting costs while the static loop runs; `None` without it, or where the
    /// balancer's own costs were not measured either.
    ///
    /// # Errors
    /// The kernel refuses to time its BPF programs, or the program fails.
    pub fn accounting_cost(&self) -> Result<Option<AccountingCost>> {
        let mut accounts = self.lab.accounts.borrow_mut();
        let Some(cbinfo) = accounts.cbinfo() else { return Ok(None) };
        if self.samples.borrow().is_empty() {
            return Ok(None);
        }
        let task = Task {
            subject: Subject::StaticLoop,
            work: self.work,
            method: Method::Default,
            wait_policy: None,
        };
        let _timed = cbinfo.measure_cost()?;
        let (start, before) = (Instant::now(), cbinfo.cost());
        self.launcher.run(&task)?;
        let (elapsed, after) = (start.elapsed(), cbinfo.cost());
        Ok(AccountingCost::between(&before, &after, elapsed.as_nanos() as u64))
    }

    /// The balancers' own costs in the case `none`.
    pub fn own_costs(&self) -> Vec<OwnCost> {
        own_costs(&self.samples.borrow())
    }

    /// The machine, with what the reader of the figures should know.
    pub fn machine(&self) -> MachineInfo {
        let mut machine = self.lab.machine();
        machine.notes.insert("work of static_loop".into(), self.work.to_string());
        if let Some(share) = self.hog_share.get() {
            let took = format!("{:.1} % of CPU {}", 100.0 * share, self.lab.stage.borrow().cpu());
            machine.notes.insert("hog's share beside the program".into(), took);
        }
        machine
    }
}

impl Runner<Method> for Bench {
    fn run(&mut self, turn: &Turn<'_, Method>) -> Result<Sample> {
        let case = Case::ALL.into_iter().find(|case| case.name() == turn.case.name);
        let case = case.with_context(|| format!("no case {:?}", turn.case.name))?;
        let subject = Subject::ALL.into_iter().find(|one| one.name() == turn.case.program);
        let task = Task {
            subject: subject.with_context(|| format!("no program {:?}", turn.case.program))?,
            work: self.work * case.length(),
            // The reference is pinned, without noise.
            method: turn.contestant.map_or(Method::Pinned, |contestant| contestant.how),
            // Of the case, not of the noise: a reference differs by the noise alone.
            wait_policy: case.wait_policy(),
        };
        self.measure(&task, if turn.contestant.is_some() { case } else { Case::None })
    }

    fn relate(&self, reference: &Sample, sample: &mut Sample) {
        sample.set(metric::EFFICIENCY, metric::efficiency(reference, sample));
        sample.set(metric::REFERENCE, reference.get(metric::TIME));
    }
}

/// Units of work that the static loop does in a second on all its CPUs, undisturbed. By CPU time,
/// not by the clock: other programs make a run longer, but its work costs no more.
fn work_per_s(launcher: &Launcher, work: u64) -> Result<f64> {
    let task = Task {
        subject: Subject::StaticLoop,
        work,
        method: Method::Pinned,
        wait_policy: Some("passive"),
    };
    let mut least_ns = u64::MAX;
    for _ in 0..PROBES {
        let before_ns = children_cpu_ns();
        launcher.run(&task)?;
        least_ns = least_ns.min(children_cpu_ns() - before_ns);
    }
    let wall_s = least_ns as f64 / 1e9 / launcher.threads() as f64;
    if wall_s > 0.0 { Ok(work as f64 / wall_s) } else { bail!("the static loop took no CPU time") }
}
