//! The turns: all cases get the initial rounds, then all rows are judged together, and cases with
//! undecided rows get more rounds, as far as the time goes. In those only the undecided contestants
//! run, and the baseline, with which they are paired. A margin ([`Margin`]) may ask for rounds after
//! that.

use anyhow::{Result, ensure};

use evenkeel_stats::{ALPHA, pairs_for_margin};

use crate::judge::judge;
use crate::{Caller, Case, Figure, Margin, Plan, Progress, Record, Role, Sample, Seat, Slot};

/// Runs a trial. `decisive` figures decide which rows get more runs. The records come in the order
/// of the cases.
///
/// # Errors
/// The plan makes no sense, or a case has no contestant. A run that fails is no error: its
/// contestant is left out from there on, and its line says why.
pub fn run(
    cases: &[Case],
    decisive: &[Figure],
    plan: &Plan,
    runner: &mut dyn Caller,
) -> Result<Vec<Record>> {
    plan.check()?;
    for case in cases {
        let Case { name, program, contestants, .. } = case;
        ensure!(!contestants.is_empty(), "case {name:?}, program {program:?}: no contestant");
    }
    let start = runner.elapsed();
    let records: Vec<Record> = cases.iter().map(Record::new).collect();
    let has_reference = cases.iter().map(|case| case.has_reference).collect();
    let tally = Tally::default();
    let mut course = Course { cases, records, has_reference, plan, runner, start, tally };
    course.first_rounds();
    let mut rounds = plan.initial_runs;
    loop {
        let active = course.open_lines(decisive);
        let undecided = course.count_contestants(&active);
        if undecided == 0 || rounds >= plan.max_runs {
            break;
        }
        if course.is_out_of_time() {
            course.runner.show(&Progress::OutOfTime { undecided });
            break;
        }
        course.runner.show(&Progress::More { undecided });
        let step = plan.step.min(plan.max_runs - rounds);
        course.more_rounds(&active, step);
        rounds += step;
    }
    if let Some(margin) = &plan.margin {
        course.rounds_for_margin(margin, decisive);
    }
    Ok(course.records)
}

/// Repeats that are allowed before any run is done.
const FREE_REPEATS: usize = 6;

#[derive(Debug, Default)]
struct Tally {
    done: usize,
    planned: usize,
    repeated: usize,
    has_told_never_quiet: bool,
}

impl Tally {
    fn may_repeat(&self) -> bool {
        self.repeated < FREE_REPEATS + self.done / 2
    }
}

struct Course<'a> {
    cases: &'a [Case],
    records: Vec<Record>,
    /// By case: a reference that failed is left out from there on.
    has_reference: Vec<bool>,
    plan: &'a Plan,
    runner: &'a mut dyn Caller,
    start: std::time::Duration,
    tally: Tally,
}

/// For each case, which of its lines run.
type Active = Vec<Vec<bool>>;

impl Course<'_> {
    fn is_out_of_time(&self) -> bool {
        self.runner.elapsed().saturating_sub(self.start) >= self.plan.budget
    }

    fn first_rounds(&mut self) {
        let all: Active = self.records.iter().map(|one| vec![true; one.lines.len()]).collect();
        self.tally.planned = self.plan.initial_runs * self.runs_a_round(&all);
        for (case, active) in all.iter().enumerate() {
            for _ in 0..self.plan.initial_runs {
                self.round(case, active);
            }
        }
    }

    fn more_rounds(&mut self, active: &Active, step: usize) {
        self.tally.planned += step * self.runs_a_round(active);
        for (case, active) in active.iter().enumerate().filter(|(_, lines)| lines.contains(&true)) {
            for _ in 0..step {
                if self.is_out_of_time() {
                    return;
                }
                self.round(case, active);
            }
        }
    }

    fn rounds_for_margin(&mut self, margin: &Margin, decisive: &[Figure]) {
        for case in 0..self.records.len() {
            let Some(rounds) = self.lacking_for_margin(case, margin, decisive) else { continue };
            self.runner.show(&Progress::ForMargin { rounds });
            let mut active: Active = vec![Vec::new(); self.records.len()];
            active[case] = self.records[case]
                .lines
                .iter()
                .map(|line| {
                    line.role == Role::Baseline
                        || line.role == Role::Contestant && line.contestant == margin.contestant
                })
                .collect();
            self.more_rounds(&active, rounds);
        }
    }

    /// How many rounds more the case needs; none where they are made, or it is shown without them.
    fn lacking_for_margin(
        &self,
        case: usize,
        margin: &Margin,
        decisive: &[Figure],
    ) -> Option<usize> {
        let record = &self.records[case];
        let (base, ours) = (record.lines.first()?, record.line(margin.contestant)?);
        if base.failed.is_some() || ours.failed.is_some() {
            return None;
        }
        let tests = margin.tests * self.plan.looks();
        let lacking = |figure: &Figure| {
            let (base, ours) = (&base.contestant, &ours.contestant);
            let found = record.compare_with_margin(figure, base, ours, margin.margin)?;
            let is_decided = found.p_value * (tests as f64) < ALPHA;
            let wanted = pairs_for_margin(found.spread, margin.margin, tests, margin.max_runs);
            (!is_decided).then(|| wanted.saturating_sub(found.pairs))
        };
        decisive.iter().filter_map(lacking).max().filter(|rounds| *rounds > 0)
    }

    /// Lines that need more runs, and their baselines.
    fn open_lines(&self, decisive: &[Figure]) -> Active {
        let mut active: Active =
            self.records.iter().map(|one| vec![false; one.lines.len()]).collect();
        for row in judge(&self.records, decisive, self.plan.looks()) {
            let lines = &self.records[row.record].lines;
            let line = &lines[row.line];
            let can_run = line.failed.is_none() && lines[0].failed.is_none();
            if line.role == Role::Contestant && can_run && row.judged.needs_more_runs() {
                active[row.record][row.line] = true;
                active[row.record][0] = true;
            }
        }
        active
    }

    fn count_contestants(&self, active: &Active) -> usize {
        let lines = self.records.iter().zip(active).flat_map(|(record, active)| {
            record.lines.iter().zip(active).filter(|(_, is_active)| **is_active)
        });
        lines.filter(|(line, _)| line.role == Role::Contestant).count()
    }

    fn runs_a_round(&self, active: &Active) -> usize {
        let runs = |(case, active): (&Case, &Vec<bool>)| {
            let lines = active.iter().filter(|is_active| **is_active).count();
            if lines == 0 { 0 } else { lines + usize::from(case.has_reference) }
        };
        self.cases.iter().zip(active).map(runs).sum()
    }

    fn round(&mut self, case: usize, active: &[bool]) {
        let round = self.records[case].lines.first().map_or(0, |line| line.rounds.len());
        let mut reference = None;
        if self.has_reference[case] {
            let turn = Slot { case, seat: Seat::Reference, round };
            reference = self.turn(turn, "reference", &mut 0).ok();
            self.has_reference[case] = reference.is_some();
        }
        for (line, is_active) in active.iter().copied().enumerate() {
            // The lines are the contestants in their order, and the A/A line last.
            let is_again = self.records[case].lines[line].role == Role::SecondBaseline;
            let seat = if is_again { Seat::SecondBaseline } else { Seat::Contestant(line) };
            let turn = Slot { case, seat, round };
            let mut sample = None;
            if is_active && self.records[case].lines[line].failed.is_some() {
                // It was planned; the count of runs must end at its sum.
                self.tally.done += 1;
            } else if is_active {
                let name = self.records[case].lines[line].contestant.clone();
                let mut repeated = 0;
                let ran = self.turn(turn, &name, &mut repeated);
                let line = &mut self.records[case].lines[line];
                line.repeated += repeated;
                match ran {
                    Ok(ran) => sample = Some(ran),
                    Err(Failed { why, best }) => {
                        line.failed = Some(why);
                        sample = best;
                    }
                }
            }
            if let (Some(sample), Some(reference)) = (&mut sample, &reference) {
                self.runner.relate(reference, sample);
            }
            self.records[case].lines[line].rounds.push(sample);
        }
    }

    /// One run that counts: repeated while foreign load disturbs it.
    fn turn(&mut self, turn: Slot, name: &str, repeated: &mut usize) -> Result<Sample, Failed> {
        let (done, planned) = (self.tally.done, self.tally.planned);
        let Case { name: case, program, .. } = &self.cases[turn.case];
        let round = turn.round + 1;
        self.runner.show(&Progress::Begin {
            case,
            program,
            contestant: name,
            round,
            done,
            planned,
        });
        let measured = self.repeat_while_disturbed(turn, name, repeated);
        self.tally.done += 1;
        measured
    }

    fn repeat_while_disturbed(
        &mut self,
        turn: Slot,
        name: &str,
        repeated: &mut usize,
    ) -> Result<Sample, Failed> {
        let mut best: Option<Sample> = None;
        loop {
            let sample = match self.runner.run(turn) {
                Ok(sample) => sample,
                Err(error) => {
                    self.runner.show(&Progress::Failed { contestant: name, error: &error });
                    return Err(Failed { why: format!("{error:#}"), best });
                }
            };
            let foreign_pct = sample.foreign_pct;
            if best.as_ref().is_none_or(|best| foreign_pct < best.foreign_pct) {
                best = Some(sample);
            }
            let is_quiet = foreign_pct <= self.plan.max_foreign_pct;
            if is_quiet || self.is_out_of_time() || *repeated >= self.plan.max_repeats {
                break;
            }
            if !self.tally.may_repeat() {
                if !std::mem::replace(&mut self.tally.has_told_never_quiet, true) {
                    self.runner.show(&Progress::NeverQuiet);
                }
                break;
            }
            *repeated += 1;
            self.tally.repeated += 1;
            self.runner.show(&Progress::Disturbed { contestant: name, foreign_pct });
        }
        best.ok_or_else(|| Failed { why: "it gave no figures".to_owned(), best: None })
    }
}

/// A contestant that cannot run, and its least disturbed run of this round before that.
struct Failed {
    why: String,
    best: Option<Sample>,
}

#[cfg(test)]
mod tests;
