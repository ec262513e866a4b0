//! The claims, chosen before measuring: of which cells what is claimed. Each claim is judged by itself,
//! corrected (Holm) for its own cells; a cell that is undecided, or was not measured, does not show it.

use evenkeel_experiment::{Aim, AimRow, Margin, Reached, Record, Wanted, judge_aims};

use super::metric::{CRITICAL, GAIN, GAIN_HIGH, GAIN_LOW, METRICS, MOVES_WITHDRAWN, OWN_CPU};
use super::table::{BY_HAND, DEFAULT, RUN, SHARES, THREADS};
use crate::capability::{MOVES, TIME};
use crate::stats::{Estimate, compare, estimate, median};

/// Programs and noises of a claim: each program under each noise.
type Cells = (&'static [&'static str], &'static [&'static str]);

/// What is claimed.
struct Claim {
    /// In a few words.
    name: &'static str,
    cells: Cells,
    by: By,
}

/// How it is judged.
enum By {
    /// By this aim, in each cell.
    Aim(Aim),
    /// The same, but undecided in a cell in which the kernel alone does not miss it for certain.
    AimUnlikeDefault(Aim),
    /// By the geometric mean over the cells of the ratio to the baseline: at least so much.
    GeometricMean(&'static str, f64),
    /// By all runs of all cells together: at most so much in each run.
    MostInARun(&'static str, f64),
    /// By how often what evenkeel measured itself agrees with what is measured here, over the cells.
    OwnProof(&'static [&'static str]),
}

const RUN_CELLS: Cells = (
    &["lu.W-gcc", "sp.W-gcc", "bt.W-gcc", "cg.A-gcc", "mg.A-gcc", "ep.A-gcc", "lammps", "gromacs"],
    &["none", "softirq-fine", "softirq", "fifo"],
);
const SHARES_CELLS: Cells = (
    &["lu.A-clang", "sp.A-clang", "bt.W-clang", "cg.A-clang", "mg.A-clang", "ft.A-clang"],
    &["softirq-fine", "udp"],
);
const THREADS_CELLS: Cells = (&["ep.A-gcc", "bt.W-gcc", "sp.A-gcc", "cg.A-gcc"], &["softirq-fine"]);

const LOOP_CELLS: Cells = (&["loop.250ms", "loop.500ms"], &["softirq-fine", "softirq"]);

/// A thread with 30 % more to do than every other.
const UNEVEN_CELLS: Cells = (&["loop.uneven"], LOOP_CELLS.1);
const MPI_CELLS: Cells = (&["mpi_loop.100ms"], LOOP_CELLS.1);

/// Their cells are measured in this order: where three hours do not suffice, the last ones are left out.
const CLAIMS: [Claim; 15] = [
    Claim {
        name: "`run` is not inferior to the kernel alone",
        cells: RUN_CELLS,
        by: By::Aim(Aim::new(RUN, TIME, Wanted::NotInferior(MARGIN, DEFAULT))),
    },
    Claim {
        name: "`run` moves nothing on equal CPUs",
        cells: (RUN_CELLS.0, &["none"]),
        by: By::MostInARun(MOVES, 0.0),
    },
    Claim {
        name: "`run` moves little where it sees no gain",
        cells: RUN_CELLS,
        by: By::MostInARun(MOVES_WITHDRAWN, 10.0),
    },
    Claim {
        name: "`run` costs little",
        cells: RUN_CELLS,
        by: By::Aim(Aim::new(RUN, OWN_CPU, Wanted::AtMost(0.3))),
    },
    Claim {
        name: "`run --shares` reaches the best split by hand",
        cells: SHARES_CELLS,
        by: By::Aim(Aim::new(SHARES, TIME, Wanted::Ratio(0.97, BY_HAND))),
    },
    Claim {
        name: "`run --shares` gains on LU and SP",
        cells: (&["lu.A-clang", "sp.A-clang"], SHARES_CELLS.1),
        by: By::Aim(Aim::new(SHARES, TIME, Wanted::Ratio(1.25, DEFAULT))),
    },
    Claim {
        name: "`run --shares` gains on all together",
        cells: SHARES_CELLS,
        by: By::GeometricMean(SHARES, 1.20),
    },
    Claim {
        name: "`run --threads 4` reaches the best split by hand",
        cells: THREADS_CELLS,
        by: By::Aim(Aim::new(THREADS, TIME, Wanted::Ratio(0.97, BY_HAND))),
    },
    Claim {
        name: "`run --threads 4` gains on EP",
        cells: (&["ep.A-gcc"], THREADS_CELLS.1),
        by: By::Aim(Aim::new(THREADS, TIME, Wanted::Ratio(1.30, DEFAULT))),
    },
    Claim {
        name: "`run --threads 4` gains on SP",
        cells: (&["sp.A-gcc"], THREADS_CELLS.1),
        by: By::Aim(Aim::new(THREADS, TIME, Wanted::Ratio(1.18, DEFAULT))),
    },
    Claim {
        name: "`run` gains on phases of 250 ms and more",
        cells: LOOP_CELLS,
        by: By::Aim(Aim::new(RUN, TIME, Wanted::Ratio(1.15, DEFAULT))),
    },
    Claim {
        name: "`run` reaches the best placement of threads with uneven work",
        cells: UNEVEN_CELLS,
        by: By::Aim(Aim::new(RUN, TIME, Wanted::Ratio(0.93, BY_HAND))),
    },
    Claim {
        name: "`run` keeps the thread with more to do on a fast CPU",
        cells: UNEVEN_CELLS,
        // Noise falls on one CPU. Of many CPUs that is seldom the thread's, with or without `run`.
        by: By::AimUnlikeDefault(Aim::new(RUN, CRITICAL, Wanted::AtLeast(90.0))),
    },
    Claim {
        name: "`run` is not inferior to the kernel alone where work is uneven and CPUs are equal",
        // Any placement is the best one there.
        cells: (UNEVEN_CELLS.0, &["none"]),
        by: By::Aim(Aim::new(RUN, TIME, Wanted::NotInferior(MARGIN, DEFAULT))),
    },
    Claim {
        name: "`run` gains on ranks of MPI with an allreduce every 100 ms",
        cells: MPI_CELLS,
        by: By::Aim(Aim::new(RUN, TIME, Wanted::Ratio(1.22, DEFAULT))),
    },
];

/// A claim about all cells of the other claims.
const OWN_PROOF: Claim = Claim {
    name: "what evenkeel measures itself agrees with what is measured here",
    cells: (&[], &[]),
    by: By::OwnProof(&[RUN, SHARES, THREADS]),
};
/// A loss of so much against the kernel alone matters to no user.
const MARGIN: f64 = 0.02;
/// Where the ratios of a cell vary by 5 %, so many pairs show a loss of less than 2 %.
const MAX_RUNS_FOR_MARGIN: usize = 150;
/// The part of the cells in which the intervals must overlap.
const AGREEING: f64 = 0.9;
/// Names the cell in a row that is about all cells of a claim.
const TOGETHER: &str = "all cells of the claim";

/// The place of a cell among the claimed ones; `None`: no claim is made of it.
pub fn place(program: &str, noise: &str) -> Option<usize> {
    let mut before = 0;
    for Claim { cells: (programs, noises), .. } in &CLAIMS {
        let row = programs.iter().position(|one| *one == program);
        if let Some((row, column)) = row.zip(noises.iter().position(|one| *one == noise)) {
            return Some(before + row * noises.len() + column);
        }
        before += programs.len() * noises.len();
    }
    None
}

/// Whether a claim about this cell, or about all claimed cells, needs the contestant.
pub fn needs(program: &str, noise: &str, contestant: &str) -> bool {
    let mut claims = CLAIMS.iter().chain([&OWN_PROOF]).filter(|claim| claim.has(program, noise));
    claims.any(|claim| claim.contestants().contains(&contestant))
}

/// What more rounds are to show. The report corrects all cells for the same number of looks, so that
/// each cell has a margin, and those without the claim get no rounds for it.
pub const NOT_INFERIOR: Margin = Margin {
    contestant: RUN,
    margin: MARGIN,
    tests: RUN_CELLS.0.len() * RUN_CELLS.1.len(),
    max_runs: 0,
};

/// The same for this cell.
pub fn margin(program: &str, noise: &str) -> Margin {
    let is_claimed = |claim: &&Claim| {
        matches!(&claim.by, By::Aim(Aim { wanted: Wanted::NotInferior(..), .. }))
            && claim.has(program, noise)
    };
    let claim = CLAIMS.iter().find(is_claimed);
    Margin { max_runs: claim.map_or(0, |_| MAX_RUNS_FOR_MARGIN), ..NOT_INFERIOR }
}

/// A cell as it is judged.
pub struct Judged<'a> {
    /// The program.
    pub program: &'a str,
    /// The noise.
    pub noise: &'a str,
    /// Its runs; `None`: it was wanted, and is not measured.
    pub record: Option<Record>,
}

/// What became of the claims in these cells: rows, and a sentence for each claim. `looks` is how often a
/// cell is judged at most.
pub fn judge(cells: &[Judged<'_>], looks: usize) -> (Vec<AimRow>, Vec<String>) {
    let mut rows = Vec::new();
    let mut sentences = Vec::new();
    for claim in CLAIMS.iter().chain([&OWN_PROOF]) {
        let cells: Vec<&Judged<'_>> =
            cells.iter().filter(|cell| claim.has(cell.program, cell.noise)).collect();
        if cells.is_empty() {
            continue;
        }
        let mut judged = claim.judge(&cells, looks);
        if !claim.contestants().iter().all(|one| cells.iter().all(|cell| cell.has(one))) {
            // What holds in the others need not hold in the one that is missing.
            for row in judged.iter_mut().filter(|row| row.program == TOGETHER) {
                row.reached = row.reached.map(|reached| match reached {
                    Reached::Reached => Reached::Undecided,
                    other => other,
                });
            }
        }
        sentences.push(sentence(claim.name, &judged, cells.len(), claim.size()));
        rows.extend(judged);
    }
    (rows, sentences)
}

impl Judged<'_> {
    /// Whether the contestant was measured in it.
    fn has(&self, contestant: &str) -> bool {
        let line = self.record.as_ref().and_then(|record| record.line(contestant));
        line.is_some_and(|line| line.samples().next().is_some())
    }
}

impl Claim {
    /// The contestants that each of its cells must have.
    fn contestants(&self) -> Vec<&'static str> {
        match &self.by {
            By::Aim(aim) | By::AimUnlikeDefault(aim) => {
                vec![aim.contestant, aim.wanted.against().unwrap_or(DEFAULT)]
            }
            By::GeometricMean(contestant, _) => vec![*contestant],
            // Shares and threads are in some of the cells only.
            By::MostInARun(..) | By::OwnProof(_) => vec![RUN],
        }
    }

    /// Whether it is about this cell.
    fn has(&self, program: &str, noise: &str) -> bool {
        let (programs, noises) = self.cells;
        match self.by {
            By::OwnProof(_) => place(program, noise).is_some(),
            _ => programs.contains(&program) && noises.contains(&noise),
        }
    }

    /// How many cells it has.
    fn size(&self) -> usize {
        match self.by {
            By::OwnProof(_) => {
                let all = super::plan::cells(&[]);
                all.iter().filter(|cell| cell.is_claimed).count()
            }
            _ => self.cells.0.len() * self.cells.1.len(),
        }
    }

    fn judge(&self, cells: &[&Judged<'_>], looks: usize) -> Vec<AimRow> {
        let records = || cells.iter().filter_map(|cell| cell.record.as_ref());
        match &self.by {
            By::Aim(aim) => judge_each(cells, aim, looks),
            By::AimUnlikeDefault(aim) => {
                let by_default = Aim { contestant: DEFAULT, ..aim.clone() };
                let mut rows = judge_each(cells, aim, looks);
                for (row, alone) in rows.iter_mut().zip(judge_each(cells, &by_default, looks)) {
                    let is_shown = alone.reached == Some(Reached::Missed);
                    if row.reached == Some(Reached::Reached) && !is_shown {
                        row.reached = Some(Reached::Undecided);
                    }
                }
                rows
            }
            By::GeometricMean(contestant, least) => {
                let all: Option<Vec<&Record>> =
                    cells.iter().map(|cell| cell.record.as_ref()).collect();
                let is_whole = cells.len() == self.size();
                let found = all.filter(|_| is_whole).and_then(|all| mean(&all, contestant));
                let wanted = Wanted::Ratio(*least, DEFAULT);
                vec![row_of_all(self, TIME, contestant, found, wanted)]
            }
            By::MostInARun(metric, most) => {
                let lines = || records().filter_map(|record| record.line(RUN));
                let values = lines().flat_map(|line| line.values(metric).flatten());
                // Without a run that has the figure there is nothing that breaks the claim, if there
                // were runs at all.
                let seen = values.reduce(f64::max);
                let is_measured = lines().any(|line| line.samples().next().is_some());
                let found = is_measured.then(|| exactly(seen.unwrap_or(0.0)));
                vec![row_of_all(self, metric, RUN, found, Wanted::AtMost(*most))]
            }
            By::OwnProof(contestants) => {
                let records: Vec<&Record> = records().collect();
                let agreements = agreements(&records, contestants);
                let count = |is: fn(&Agreement) -> bool| {
                    agreements.iter().filter(|one| is(one)).count() as f64
                };
                let share = (!agreements.is_empty())
                    .then(|| count(|one| one.overlaps) / agreements.len() as f64);
                let contradictions = (!agreements.is_empty()).then(|| count(|one| one.contradicts));
                let row = |metric, found: Option<f64>, wanted| {
                    row_of_all(self, metric, RUN, found.map(exactly), wanted)
                };
                vec![
                    row("intervals that overlap", share, Wanted::AtLeast(AGREEING)),
                    row("contradictions", contradictions, Wanted::AtMost(0.0)),
                ]
            }
        }
    }
}

/// A row for each cell, by this aim.
fn judge_each(cells: &[&Judged<'_>], aim: &Aim, looks: usize) -> Vec<AimRow> {
    let measured: Vec<Record> = cells.iter().filter_map(|cell| cell.record.clone()).collect();
    let mut rows = judge_aims(std::slice::from_ref(aim), &METRICS, &measured, looks).into_iter();
    let mut next = rows.next();
    let row = |cell: &&Judged<'_>| {
        let is_its = |row: &AimRow| {
            let record = cell.record.as_ref();
            record
                .is_some_and(|record| (&row.case, &row.program) == (&record.case, &record.program))
        };
        let found = next.take_if(|row| is_its(row));
        if found.is_some() {
            next = rows.next();
        }
        found.unwrap_or_else(|| absent(cell, aim))
    };
    cells.iter().map(row).collect()
}

fn exactly(value: f64) -> Estimate {
    Estimate { median: value, lo: value, hi: value, coverage: 1.0 }
}

/// A row over all cells.
fn row_of_all(
    claim: &Claim,
    metric: &str,
    contestant: &str,
    found: Option<Estimate>,
    wanted: Wanted,
) -> AimRow {
    let noises = match claim.by {
        By::OwnProof(_) => "all".to_owned(),
        _ => claim.cells.1.join(", "),
    };
    AimRow {
        program: TOGETHER.to_owned(),
        ..AimRow::estimated(&noises, metric, contestant, found, wanted)
    }
}

/// The row of a cell that has not what is claimed of it.
fn absent(cell: &Judged<'_>, aim: &Aim) -> AimRow {
    AimRow {
        program: cell.program.to_owned(),
        ..AimRow::estimated(cell.noise, aim.metric, aim.contestant, None, aim.wanted)
    }
}

/// The geometric mean over the cells of how many times as good as the baseline a contestant is: round by
/// round, so that its interval is that of a median of rounds. `None`: a cell has it not.
fn mean(records: &[&Record], contestant: &str) -> Option<Estimate> {
    let pairs: Vec<(Vec<f64>, Vec<f64>)> =
        records.iter().map(|record| record.pairs(TIME, DEFAULT, contestant)).collect();
    let rounds = pairs.iter().map(|(base, _)| base.len()).min().filter(|rounds| *rounds > 0)?;
    let of_round = |round: usize| {
        let log = |(base, ours): &(Vec<f64>, Vec<f64>)| (base[round] / ours[round]).ln();
        (pairs.iter().map(log).sum::<f64>() / pairs.len() as f64).exp()
    };
    estimate(&(0..rounds).map(of_round).collect::<Vec<f64>>())
}

/// What evenkeel measured itself in a cell, beside what was measured here.
struct Agreement {
    overlaps: bool,
    /// One shows a gain and the other a loss.
    contradicts: bool,
}

/// In all cells, for all contestants that measured anything themselves in most of their runs.
fn agreements(records: &[&Record], contestants: &[&str]) -> Vec<Agreement> {
    let of = |record: &Record, contestant: &str| {
        let line = record.line(contestant)?;
        let runs = line.samples().count();
        let end = |figure: &str| {
            let values: Vec<f64> = line.values(figure).flatten().collect();
            (2 * values.len() > runs).then(|| median(&values)).flatten()
        };
        end(GAIN)?;
        let (low, high) = (end(GAIN_LOW)?, end(GAIN_HIGH)?);
        let (base, ours) = record.pairs(TIME, DEFAULT, contestant);
        let ratio = compare(&base, &ours)?.ratio;
        Some(Agreement {
            overlaps: low <= ratio.hi && ratio.lo <= high,
            contradicts: low > 1.0 && ratio.hi < 1.0 || high < 1.0 && ratio.lo > 1.0,
        })
    };
    let all = records
        .iter()
        .flat_map(|record| contestants.iter().filter_map(move |contestant| of(record, contestant)));
    all.collect()
}

/// What became of one claim. `wanted` of its `size` cells were asked for.
fn sentence(name: &str, rows: &[AimRow], wanted: usize, size: usize) -> String {
    let count = |reached| rows.iter().filter(|row| row.reached == Some(reached)).count();
    let (reached, missed) = (count(Reached::Reached), count(Reached::Missed));
    let undecided = rows.len() - reached - missed;
    let verdict = match (missed, undecided) {
        (0, 0) if wanted == size => "shown",
        (0, 0) => "shown in the cells that were asked for",
        (0, _) => "not shown",
        _ => "false",
    };
    let asked = match wanted == size {
        true => format!("{size} cells"),
        false => format!("{wanted} of its {size} cells"),
    };
    format!(
        "{name}: **{verdict}**, {asked}; rows: {reached} reached, {missed} missed, {undecided} \
         undecided or not measured"
    )
}

#[cfg(test)]
mod tests;
