//! The interleaved experiment: contestants run in turn, A B C A B C ..., so that what changes on
//! the machine meanwhile meets all of them alike, and are paired by round.
//!
//! One *row group* is a case and a program with its contestants, the baseline first. All groups get
//! the initial rounds; then all are judged together (Holm's correction needs all rows), and those
//! still undecided get more rounds, as far as the time goes. In those only the undecided
//! contestants run, and the baseline, which they are paired with.
//!
//! A group may have a *reference*: the program undisturbed. It runs first in every round, is not a
//! row and is not judged; the round's efficiencies are relative to it, so that a machine that
//! becomes slower or faster meanwhile changes neither.
//!
//! It does no I/O and reads no clock of its own: runs, clock and progress are given by the caller.

use std::time::Duration;

use anyhow::{Result, bail};

pub use evenkeel_trial::Progress;

use crate::stats::{Comparison, Judged, compare, judge};

/// What one run gave.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Measurement {
    /// The program's time, in s. Of one that counts what it does in a given time: the time for a
    /// fixed amount of that.
    pub seconds: f64,
    /// CPU time for the same amount, in s; `None` where it was not counted.
    pub cpu_s: Option<f64>,
    /// The share of the machine's CPU time that somebody else took, in % (neither the program nor
    /// the noise).
    pub foreign_pct: f64,
    /// Moves that the balancer made.
    pub moves: u64,
    /// The standard deviation of what the program's tasks did / its mean; `None` where the program
    /// does not say.
    pub spread: Option<f64>,
    /// How often the program's tasks changed their CPU, whoever moved them; `None` where the program
    /// does not say.
    pub migrations: Option<u64>,
    /// What was left of the average CPU for the program, 0..=1 of the fastest CPU undisturbed;
    /// `None` where it was not measured.
    pub average: Option<f64>,
    /// The same of the worst CPU.
    pub worst: Option<f64>,
    /// See [`efficiency`]; filled in by [`run`] in groups with a reference.
    pub efficiency: Option<f64>,
    /// The time of the round's reference, in s; filled in by [`run`].
    pub reference_s: Option<f64>,
}

/// Rate of the program / its rate if it ran at the average capability of the CPUs: 1 is the bound
/// of any balancer.
///
/// The reference is pinned, with equal shares on all CPUs, so it ran at the capability of its worst
/// CPU, which is a little below 1 even on a quiet machine: `t_ref x worst_ref` is the time that
/// the program takes at capability 1. At capability `average` it takes `1 / average` times as long.
pub fn efficiency(reference: &Measurement, run: &Measurement) -> Option<f64> {
    let undisturbed_s = reference.seconds * reference.worst?;
    let at_average_s = undisturbed_s / run.average.filter(|average| *average > 0.0)?;
    (run.seconds > 0.0).then(|| at_average_s / run.seconds)
}

/// Does one run.
pub type Run<'a> = Box<dyn FnMut() -> Result<Measurement> + 'a>;

/// One way to run the program.
pub struct Contestant<'a> {
    /// Its name in the report.
    pub name: String,
    /// Runs it once.
    pub run: Run<'a>,
}

/// A case and a program, with all contestants; the first is the baseline of the others.
pub struct Group<'a> {
    /// The case's name in the report.
    pub case: String,
    /// The program's name in the report.
    pub program: String,
    /// The program undisturbed, if efficiencies are wanted.
    pub reference: Option<Contestant<'a>>,
    /// The contestants.
    pub contestants: Vec<Contestant<'a>>,
}

/// How many runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Rounds that each group gets, at least 1.
    pub initial_runs: usize,
    /// Rounds that are added before the rows are judged again, at least 1.
    pub step: usize,
    /// Rounds that no row exceeds, at least `initial_runs`.
    pub max_runs: usize,
    /// A run with more foreign load than this is repeated, in %.
    pub max_foreign_pct: f64,
    /// How often one run is repeated at most; then the least disturbed one counts. In all, no more
    /// than every other run is repeated: on a machine that is never quiet it would be in vain.
    pub max_repeats: usize,
    /// No round is added and no run repeated after this time; the initial rounds are always made.
    pub budget: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            initial_runs: 5,
            step: 5,
            max_runs: crate::stats::MAX_RUNS,
            max_foreign_pct: 5.0,
            max_repeats: 3,
            budget: Duration::from_secs(30 * 60),
        }
    }
}

impl Plan {
    /// How often the rows are judged at most: what the verdicts are corrected for.
    pub fn looks(&self) -> usize {
        1 + self.max_runs.saturating_sub(self.initial_runs).div_ceil(self.step.max(1))
    }

    fn check(&self) -> Result<()> {
        if self.initial_runs == 0 || self.step == 0 {
            bail!("an experiment needs at least 1 run and steps of at least 1 run");
        }
        if self.max_runs < self.initial_runs {
            bail!(
                "at most {} runs, but {} to begin with: raise the maximum",
                self.max_runs,
                self.initial_runs
            );
        }
        Ok(())
    }
}

/// One row: a contestant in a case with a program.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The case.
    pub case: String,
    /// The program.
    pub program: String,
    /// The contestant.
    pub contestant: String,
    /// Its runs by round; `None` in rounds that it did not take part in.
    pub rounds: Vec<Option<Measurement>>,
    /// The comparison with the baseline; `None` for the baseline itself and where no round has
    /// both.
    pub judged: Option<Judged>,
    /// Runs that were repeated because of foreign load.
    pub repeated: usize,
    /// Why it was left out, if it was.
    pub failed: Option<String>,
}

impl Outcome {
    /// The measurements that there are.
    pub fn runs(&self) -> impl Iterator<Item = &Measurement> {
        self.rounds.iter().flatten()
    }

    /// Against another one, round by round; `None` where no round has both.
    pub fn compared_with(&self, other: &Self) -> Option<Comparison> {
        self.compared_by(other, |run| Some(run.seconds))
    }

    /// The same by another figure, of which less is better.
    pub fn compared_by(
        &self,
        other: &Self,
        figure: fn(&Measurement) -> Option<f64>,
    ) -> Option<Comparison> {
        let of = |run: &Option<Measurement>| run.as_ref().and_then(figure);
        let (other, ours): (Vec<f64>, Vec<f64>) = other
            .rounds
            .iter()
            .zip(&self.rounds)
            .filter_map(|(other, ours)| Some((of(other)?, of(ours)?)))
            .unzip();
        compare(&other, &ours)
    }
}

/// Runs the experiment. `clock` gives the time since any fixed moment. The rows come in the order
/// of the groups and their contestants.
///
/// # Errors
/// The plan makes no sense or a group has no contestant. A run that fails is no error: its
/// contestant is left out from there on, and the outcome says why.
pub fn run(
    groups: &mut [Group<'_>],
    plan: &Plan,
    clock: &dyn Fn() -> Duration,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Outcome>> {
    plan.check()?;
    let mut tables = Vec::new();
    for group in groups.iter() {
        if group.contestants.is_empty() {
            bail!("case {:?}, program {:?}: no contestant", group.case, group.program);
        }
        tables.push(Table::new(group));
    }
    let start = clock();
    let out_of_time = || clock().saturating_sub(start) >= plan.budget;
    let mut tally = Tally::default();

    let how = How { plan, out_of_time: &out_of_time };

    let active: Vec<Vec<bool>> = tables.iter().map(|t| vec![true; t.rows.len()]).collect();
    tally.planned = plan.initial_runs * runs_a_round(&tables, &active);
    for ((group, table), active) in groups.iter_mut().zip(&mut tables).zip(&active) {
        for _ in 0..plan.initial_runs {
            table.round(group, active, &how, &mut tally, progress);
        }
    }

    let mut rounds = plan.initial_runs;
    loop {
        judge_all(&mut tables, plan);
        let undecided: usize =
            tables.iter().map(|t| t.rows.iter().filter(|r| r.open()).count()).sum();
        if undecided == 0 || rounds >= plan.max_runs {
            break;
        }
        if out_of_time() {
            progress(Progress::OutOfTime { undecided });
            break;
        }
        progress(Progress::More { undecided });
        let step = plan.step.min(plan.max_runs - rounds);
        let active: Vec<Vec<bool>> = tables.iter().map(Table::still_active).collect();
        tally.planned += step * runs_a_round(&tables, &active);
        'step: for ((group, table), active) in groups.iter_mut().zip(&mut tables).zip(&active) {
            for _ in 0..step {
                if !active.contains(&true) {
                    break;
                }
                if out_of_time() {
                    break 'step;
                }
                table.round(group, active, &how, &mut tally, progress);
            }
        }
        rounds += step;
    }
    Ok(tables.into_iter().flat_map(|table| table.rows).map(|row| row.outcome).collect())
}

#[derive(Debug, Default)]
struct Tally {
    done: usize,
    planned: usize,
    repeated: usize,
    told_never_quiet: bool,
}

/// Repeats that are allowed before any run is done.
const FREE_REPEATS: usize = 6;

impl Tally {
    /// Whether one more repeat is within bounds.
    fn may_repeat(&self) -> bool {
        self.repeated < FREE_REPEATS + self.done / 2
    }
}

/// The rules that a run is measured by.
struct How<'a> {
    plan: &'a Plan,
    out_of_time: &'a dyn Fn() -> bool,
}

/// Runs in one round of all groups.
fn runs_a_round(tables: &[Table], active: &[Vec<bool>]) -> usize {
    tables
        .iter()
        .zip(active)
        .map(|(table, active)| match active.iter().filter(|active| **active).count() {
            0 => 0,
            runs => runs + usize::from(table.reference.is_some()),
        })
        .sum()
}

/// A group's rows, the baseline first.
struct Table {
    rows: Vec<Row>,
    reference: Option<Row>,
    rounds: usize,
}

struct Row {
    outcome: Outcome,
}

impl Row {
    fn open(&self) -> bool {
        self.outcome.failed.is_none()
            && self.outcome.judged.is_some_and(|judged| judged.needs_more_runs())
    }
}

impl Table {
    fn new(group: &Group<'_>) -> Self {
        let row = |contestant: &Contestant<'_>| Row {
            outcome: Outcome {
                case: group.case.clone(),
                program: group.program.clone(),
                contestant: contestant.name.clone(),
                rounds: Vec::new(),
                judged: None,
                repeated: 0,
                failed: None,
            },
        };
        Self {
            rows: group.contestants.iter().map(row).collect(),
            reference: group.reference.as_ref().map(row),
            rounds: 0,
        }
    }

    /// Who takes part in more rounds: the open rows and, if there is one, the baseline.
    fn still_active(&self) -> Vec<bool> {
        let mut active: Vec<bool> = self.rows.iter().map(Row::open).collect();
        active[0] = active.contains(&true) && self.rows[0].outcome.failed.is_none();
        if !active[0] {
            active.fill(false);
        }
        active
    }

    fn round(
        &mut self,
        group: &mut Group<'_>,
        active: &[bool],
        how: &How<'_>,
        tally: &mut Tally,
        progress: &mut dyn FnMut(Progress<'_>),
    ) {
        self.rounds += 1;
        let (case, program, round) = (&group.case, &group.program, self.rounds);
        let mut turn = |row: &mut Row, contestant: &mut Contestant<'_>| {
            let mut measured = None;
            if row.outcome.failed.is_none() {
                let (done, planned) = (tally.done, tally.planned);
                let name = &contestant.name;
                progress(Progress::Begin { case, program, contestant: name, round, done, planned });
                measured = row.measure(contestant, how, tally, progress);
            }
            tally.done += 1;
            measured
        };
        let mut reference = None;
        if active.contains(&true)
            && let (Some(row), Some(contestant)) = (&mut self.reference, &mut group.reference)
        {
            reference = turn(row, contestant);
        }
        for ((row, contestant), active) in
            self.rows.iter_mut().zip(&mut group.contestants).zip(active)
        {
            let mut measured = if *active { turn(row, contestant) } else { None };
            if let (Some(run), Some(reference)) = (&mut measured, &reference) {
                run.efficiency = efficiency(reference, run);
                run.reference_s = Some(reference.seconds);
            }
            row.outcome.rounds.push(measured);
        }
    }

    fn comparison(&self, row: &Row) -> Option<Comparison> {
        row.outcome.compared_with(&self.rows[0].outcome)
    }
}

impl Row {
    /// One run that counts: repeated while foreign load disturbs it.
    fn measure(
        &mut self,
        contestant: &mut Contestant<'_>,
        how: &How<'_>,
        tally: &mut Tally,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Option<Measurement> {
        let plan = how.plan;
        let mut best: Option<Measurement> = None;
        for attempt in 0..=plan.max_repeats {
            let measured = match (contestant.run)() {
                Ok(measured) => measured,
                Err(error) => {
                    progress(Progress::Failed { contestant: &contestant.name, error: &error });
                    self.outcome.failed = Some(format!("{error:#}"));
                    return best;
                }
            };
            if best.is_none_or(|best| measured.foreign_pct < best.foreign_pct) {
                best = Some(measured);
            }
            if measured.foreign_pct <= plan.max_foreign_pct || (how.out_of_time)() {
                break;
            }
            if attempt < plan.max_repeats && !tally.may_repeat() {
                if !std::mem::replace(&mut tally.told_never_quiet, true) {
                    progress(Progress::NeverQuiet);
                }
                break;
            }
            if attempt < plan.max_repeats {
                self.outcome.repeated += 1;
                tally.repeated += 1;
                progress(Progress::Disturbed {
                    contestant: &contestant.name,
                    foreign_pct: measured.foreign_pct,
                });
            }
        }
        best
    }
}

/// Judges all rows of all groups as one family.
fn judge_all(tables: &mut [Table], plan: &Plan) {
    let mut places = Vec::new();
    let mut comparisons = Vec::new();
    for (t, table) in tables.iter().enumerate() {
        for (r, row) in table.rows.iter().enumerate().skip(1) {
            if let Some(comparison) = table.comparison(row) {
                places.push((t, r));
                comparisons.push(comparison);
            }
        }
    }
    for ((t, r), judged) in places.into_iter().zip(judge(&comparisons, plan.looks())) {
        tables[t].rows[r].outcome.judged = Some(judged);
    }
}

#[cfg(test)]
mod tests;
