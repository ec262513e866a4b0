//! What a comparison found: a row for each contestant, and one sentence that says which command line to
//! use from now on. The table and the JSON are made from it.

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use evenkeel_trial::{Line, Plan, Record, Role, Verdict, interrupt, judge};
use schemars::JsonSchema;
use serde::Serialize;

use super::contestant::{Contestant, line_of_compare};
use super::printed::Agreement;
use super::turns::{MOVES, TIME, Turns, time};
use crate::cli::CompareArgs;

/// The titles of [`Row::cells`].
pub const COLUMNS: [&str; 7] =
    ["contestant", "median", "vs default", "verdict", "moves", "prints", "runs"];

/// The places of the columns that a narrow terminal can do without, in this order. What prints something
/// else is named below the table, too.
const LEAST_NEEDED: [usize; 3] = [6, 4, 5];

/// Fewer runs than these have a range, and no 95 % interval.
const RUNS_OF_AN_INTERVAL: usize = 6;

/// Of a program that takes less time, in s, start-up is much of what is measured.
const SHORT_S: f64 = 1.0;

/// The version of [`Comparison`].
pub const FORMAT: u32 = 1;

/// A comparison of one program.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Comparison {
    /// The version of this document.
    pub format: u32,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The version of evenkeel.
    pub version: &'static str,
    /// It was ended early by a signal.
    pub is_partial: bool,
    /// What other programs took of the CPU time, the median of the runs, in the most disturbed row.
    pub foreign_pct: Option<f64>,
    /// The baseline first, the baseline once more last.
    pub rows: Vec<Row>,
    /// The command line to use from now on.
    pub recommended: String,
    /// Why.
    pub sentence: String,
    /// The command line that compares once more.
    #[serde(skip)]
    pub again: String,
}

/// One contestant.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Row {
    /// Its name.
    pub contestant: String,
    /// What it does.
    pub what: &'static str,
    /// Median time in s; `None`: no run ended well.
    pub seconds: Option<f64>,
    /// Its 95 % interval (with fewer than 6 runs the range), in s.
    pub seconds_ci95: Option<[f64; 2]>,
    /// How many times as fast as the kernel alone, paired by round.
    pub ratio: Option<f64>,
    /// Its 95 % interval.
    pub ratio_ci95: Option<[f64; 2]>,
    /// Corrected for the number of contestants and of looks.
    pub verdict: Option<Verdict>,
    /// The kernel alone against itself: what the table can tell apart.
    pub is_again: bool,
    /// Tasks that were moved, the median of the runs.
    pub moves: Option<f64>,
    /// Whether the program printed the same as under the kernel alone.
    pub printed: Option<Agreement>,
    /// Runs that count.
    pub runs: usize,
    /// Why it was left out.
    pub left_out: Option<String>,
    /// Evenkeel itself refused or failed in a run.
    #[serde(skip)]
    pub is_refused: bool,
}

impl Comparison {
    /// What the record of the trial shows.
    pub fn new(args: &CompareArgs, record: &Record, plan: &Plan, turns: &Turns<'_>) -> Self {
        let words = &args.command;
        let judged = judge(std::slice::from_ref(record), &[time()], plan.looks());
        let contestants = turns.contestants();
        let rows = record.lines.iter().enumerate().map(|(index, line)| {
            let place = if line.role == Role::SecondBaseline { 0 } else { index };
            let judged = judged.iter().find(|row| row.line == index).map(|row| row.judged);
            let printed = turns.printed(0).zip(turns.printed(place));
            Row {
                verdict: judged.map(|judged| judged.verdict),
                ratio: judged.map(|judged| judged.comparison.ratio.median),
                ratio_ci95: judged.map(|judged| judged.comparison.ratio.ci95()),
                printed: printed.map(|(baseline, ours)| Agreement::of(baseline, ours)),
                is_refused: turns.is_refused(place),
                ..Row::of(line, contestants.get(place).map_or("", |one| one.what))
            }
        });
        let rows: Vec<Row> = rows.collect();
        let best = best(&rows).and_then(|row| Some((row, row.ratio?, row.ratio_ci95?)));
        let line = |name: &str| {
            let found = contestants.iter().find(|one| one.name == name).or(contestants.first());
            found.map(|one: &Contestant| one.line(words, turns.config())).unwrap_or_default()
        };
        let sentence = match best {
            Some((row, ratio, [lo, hi])) => format!(
                "{} ran {ratio:.2}x as fast as the kernel alone ({lo:.2} - {hi:.2}).",
                row.contestant
            ),
            None => nothing_is_better(&rows),
        };
        Self {
            format: FORMAT,
            command: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION"),
            is_partial: interrupt::asked().is_some(),
            foreign_pct: record.lines.iter().filter_map(Line::foreign_pct).reduce(f64::max),
            recommended: line(best.map_or("", |(row, ..)| &row.contestant)),
            sentence,
            again: line_of_compare(args, turns.config()),
            rows,
        }
    }
}

impl Comparison {
    /// Whether the comparison says which command line to use: not where only evenkeel's own failure is
    /// known.
    pub fn has_verdict(&self) -> bool {
        best(&self.rows).is_some() || !self.rows.iter().any(|row| row.is_refused)
    }

    /// What must be said about the table, a line each.
    pub fn notes(&self) -> Vec<String> {
        let named = self.rows.iter().filter(|row| !row.is_again);
        let mut notes: Vec<_> =
            named.map(|row| format!("{}: {}", row.contestant, row.what)).collect();
        notes.extend(notes_of_again(&self.rows));
        for row in &self.rows {
            if let Some(why) = &row.left_out {
                notes.push(format!("{} is left out: {why}", row.contestant));
            }
            if row.printed == Some(Agreement::Different) {
                notes.push(format!(
                    "{}: the program printed something else than under the kernel alone; it is not \
                     recommended",
                    row.contestant
                ));
            }
        }
        let kernel = self.rows.first().and_then(|row| row.seconds);
        if let Some(seconds) = kernel.filter(|seconds| *seconds < SHORT_S) {
            notes.push(format!(
                "The program takes {seconds:.3} s: start-up dominates so short a run, and a longer \
                 input tells more."
            ));
        }
        // Experiments of the laboratory repeat a run with more.
        let most_pct = Plan::default().max_foreign_pct;
        if let Some(share) = self.foreign_pct.filter(|share| *share > most_pct) {
            notes.push(format!(
                "Other programs took {share:.0} % of the CPU time meanwhile: if that is not how the \
                 machine always is, compare once more when it is quiet."
            ));
        }
        if self.is_partial {
            notes.push("Ended early: the table has what was measured until then.".to_owned());
        }
        notes
    }
}

impl Row {
    fn of(line: &Line, what: &'static str) -> Self {
        let seconds = line.estimate(TIME);
        Self {
            contestant: line.contestant.clone(),
            what,
            seconds: seconds.map(|seconds| seconds.median),
            seconds_ci95: seconds.map(|seconds| seconds.ci95()),
            ratio: None,
            ratio_ci95: None,
            verdict: None,
            is_again: line.role == Role::SecondBaseline,
            moves: line.estimate(MOVES).map(|moves| moves.median),
            printed: None,
            runs: line.samples().count(),
            // After a signal everything ends for that reason.
            left_out: line.failed.clone().filter(|_| interrupt::asked().is_none()),
            is_refused: false,
        }
    }

    /// A contestant that is better than the kernel alone, and under which the program prints the same.
    fn is_better(&self) -> bool {
        let is_trusted = self.left_out.is_none() && self.printed != Some(Agreement::Different);
        !self.is_again && self.verdict == Some(Verdict::Better) && is_trusted
    }

    /// Whether its whole interval is above this ratio, if there is one.
    fn is_beyond(&self, least: Option<f64>) -> bool {
        least.is_none_or(|least| self.ratio_ci95.is_some_and(|[lo, _]| lo > least))
    }
}

/// How far the kernel alone differs from itself, as a ratio above 1, where that is shown. The cause acts
/// on the contestants, too: a gain within it may be no gain of theirs.
fn own_difference(rows: &[Row]) -> Option<f64> {
    let again = rows.iter().find(|row| row.is_again)?;
    let is_decided = matches!(again.verdict, Some(Verdict::Better | Verdict::Worse));
    let [lo, hi] = again.ratio_ci95.filter(|_| is_decided)?;
    Some(hi.max(1.0 / lo))
}

/// What the second row of the kernel alone says of the table.
fn notes_of_again(rows: &[Row]) -> Vec<String> {
    let again = rows.iter().find(|row| row.is_again);
    let Some((again, [lo, hi])) = again.and_then(|row| Some((row, row.ratio_ci95?))) else {
        return Vec::new();
    };
    let pct = 100.0 * (1.0 - lo).max(hi - 1.0).max(0.0);
    let difference = if again.runs < 2 {
        format!("by {pct:.1} % in its one run")
    } else if again.runs < RUNS_OF_AN_INTERVAL {
        format!("by {pct:.1} % at most")
    } else {
        format!("by up to {pct:.1} % (95 % interval)")
    };
    let mut notes = vec![format!("default again: the same once more; it differed {difference}")];
    if let Some(least) = own_difference(rows) {
        notes.push(format!(
            "default again: the kernel alone is shown to differ from itself, so something else changed \
             between the runs; only what is more than {least:.3}x as fast is recommended"
        ));
    }
    notes
}

/// The fastest contestant that is better than the kernel alone, by more than the kernel differs from
/// itself.
fn best(rows: &[Row]) -> Option<&Row> {
    let least = own_difference(rows);
    let better = rows.iter().filter(|row| row.is_better() && row.is_beyond(least));
    better.max_by(|a, b| a.ratio.unwrap_or(0.0).total_cmp(&b.ratio.unwrap_or(0.0)))
}

fn nothing_is_better(rows: &[Row]) -> String {
    let is_undecided = |row: &&Row| !row.is_again && row.verdict == Some(Verdict::Undecided);
    let refused = rows.iter().filter(|row| row.is_refused).map(|row| row.contestant.as_str());
    let refused: Vec<&str> = refused.collect();
    if !refused.is_empty() {
        format!(
            "There is no verdict: evenkeel itself failed in {}, for the reason above. Mend that, and \
             compare once more.",
            refused.join(", ")
        )
    } else if rows.iter().any(Row::is_better) {
        "Nothing is shown to be faster by more than the kernel alone differs from itself: compare once \
         more when nothing else changes on the machine."
            .to_owned()
    } else if rows.iter().any(|row| is_undecided(&row)) {
        "Nothing is shown to be faster than the kernel alone. What is undecided may be by a little: \
         a longer input or --rounds 15 tells more."
            .to_owned()
    } else {
        "Nothing is faster than the kernel alone.".to_owned()
    }
}

impl Comparison {
    /// The table, its notes and the command line to use, for a terminal of so many columns: what does
    /// not fit is left out of the table, and that is said.
    pub fn text(&self, width: Option<u16>) -> String {
        let mut table = self.table();
        let mut hidden = Vec::new();
        for place in LEAST_NEEDED {
            let needed = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            if width.is_none_or(|width| needed <= usize::from(width)) {
                break;
            }
            if let Some(column) = table.column_mut(place) {
                column.set_constraint(ColumnConstraint::Hidden);
                hidden.push(COLUMNS[place]);
            }
        }
        let mut lines = vec![table.to_string()];
        if !hidden.is_empty() {
            lines.push(format!("(In --json and --html only: {})", hidden.join(", ")));
        }
        lines.extend(self.notes());
        format!("{}\n\n{}\nUse: {}", lines.join("\n"), self.sentence, self.recommended)
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(COLUMNS);
        table.add_rows(self.rows.iter().map(Row::cells));
        for column in [1, 2, 4, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

impl Row {
    /// As they stand in the table: contestant, median, against the kernel alone, verdict, moves, whether
    /// it prints the same, runs.
    pub fn cells(&self) -> [String; 7] {
        let dash = || "-".to_owned();
        let verdict = match self.left_out {
            Some(_) => "left out",
            None => self.verdict.map_or("-", Verdict::name),
        };
        [
            self.contestant.clone(),
            self.seconds.map_or_else(dash, |seconds| format!("{seconds:.3} s")),
            match self.ratio.zip(self.ratio_ci95) {
                None => dash(),
                // One run has no interval.
                Some((ratio, _)) if self.runs < 2 => format!("{ratio:.3}"),
                Some((ratio, [lo, hi])) => format!("{ratio:.3} ({lo:.3} - {hi:.3})"),
            },
            if self.is_again { format!("A/A: {verdict}") } else { verdict.to_owned() },
            self.moves.map_or_else(dash, |moves| format!("{moves:.0}")),
            self.printed.map_or_else(dash, |printed| printed.words().to_owned()),
            self.runs.to_string(),
        ]
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn row(contestant: &str, ratio: f64, verdict: Verdict) -> Row {
        Row {
            contestant: contestant.to_owned(),
            what: "",
            seconds: Some(1.0),
            seconds_ci95: Some([1.0, 1.0]),
            ratio: Some(ratio),
            ratio_ci95: Some([ratio, ratio]),
            verdict: Some(verdict),
            is_again: false,
            moves: None,
            printed: Some(Agreement::Same),
            runs: 5,
            left_out: None,
            is_refused: false,
        }
    }

    fn comparison(rows: Vec<Row>) -> Comparison {
        Comparison {
            format: FORMAT,
            command: Vec::new(),
            version: "0",
            is_partial: false,
            foreign_pct: None,
            sentence: nothing_is_better(&rows),
            rows,
            recommended: String::new(),
            again: String::new(),
        }
    }

    #[test]
    fn the_fastest_that_is_better_and_prints_the_same_is_the_best() {
        let better = |name, ratio| row(name, ratio, Verdict::Better);
        let name = |rows: &[Row]| best(rows).map(|row| row.contestant.clone());
        let (pinned, run) = (better("pinned", 1.1), better("run", 1.3));
        assert_eq!(name(&[pinned.clone(), run.clone()]).as_deref(), Some("run"));
        let broken = Row { printed: Some(Agreement::Different), ..run.clone() };
        assert_eq!(name(&[pinned.clone(), broken]).as_deref(), Some("pinned"));
        let again = Row { is_again: true, ..run };
        assert_eq!(name(&[again, row("pinned", 1.1, Verdict::Undecided)]), None);
    }

    #[test]
    fn a_narrow_terminal_gets_the_columns_that_decide() {
        let long = |name: &str| Row {
            moves: Some(12.0),
            printed: Some(Agreement::Unknown),
            ..row(name, 1.234, Verdict::Undecided)
        };
        let again = Row { is_again: true, ..long("default again") };
        let comparison = Comparison {
            format: FORMAT,
            command: Vec::new(),
            version: "",
            is_partial: false,
            foreign_pct: None,
            rows: vec![long("run --threads 4"), again],
            recommended: "./app".to_owned(),
            sentence: "None.".to_owned(),
            again: String::new(),
        };
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
        let (all, narrow) = (comparison.text(None), comparison.text(Some(80)));
        assert!(widest(&all) > 80 && all.contains("differs by itself"), "{all}");
        assert!(widest(&narrow) <= 80, "{narrow}");
        assert!(narrow.contains("(In --json and --html only: runs, moves"), "{narrow}");
        for kept in ["median", "vs default", "A/A: undecided", "Use: ./app"] {
            assert!(narrow.contains(kept), "{kept}: {narrow}");
        }
        assert_eq!(comparison.text(Some(200)), all);
    }

    #[test]
    fn a_gain_within_what_the_kernel_differs_from_itself_is_not_recommended() {
        let again = |verdict| Row {
            is_again: true,
            ratio_ci95: Some([0.9, 0.95]),
            ..row("default again", 0.92, verdict)
        };
        let rows = |ratio, verdict| [row("run", ratio, Verdict::Better), again(verdict)];
        let name = |rows: &[Row]| best(rows).map(|row| row.contestant.clone());
        assert_eq!(name(&rows(1.1, Verdict::Undecided)).as_deref(), Some("run"));
        assert_eq!(name(&rows(1.2, Verdict::Worse)).as_deref(), Some("run"));
        let within = rows(1.1, Verdict::Worse);
        assert_eq!(name(&within), None);
        let sentence = nothing_is_better(&within);
        assert!(sentence.contains("than the kernel alone differs from itself"), "{sentence}");
        let notes = notes_of_again(&within);
        assert!(notes.len() == 2 && notes[1].contains("more than 1.111x"), "{notes:?}");
    }

    #[test]
    fn an_interval_is_told_from_a_range() {
        let again = |runs| Row {
            is_again: true,
            ratio_ci95: Some([0.99, 1.02]),
            runs,
            ..row("default again", 1.0, Verdict::Undecided)
        };
        let range = "default again: the same once more; it differed by 2.0 % at most";
        assert_eq!(notes_of_again(&[again(5)]), [range]);
        let interval =
            "default again: the same once more; it differed by up to 2.0 % (95 % interval)";
        assert_eq!(notes_of_again(&[again(6)]), [interval]);
        let one = "default again: the same once more; it differed by 2.0 % in its one run";
        assert_eq!(notes_of_again(&[again(1)]), [one]);
        assert_eq!(again(5).cells()[2], "1.000 (0.990 - 1.020)");
        assert_eq!(again(1).cells()[2], "1.000");
    }

    #[test]
    fn a_failure_of_evenkeel_is_no_verdict_on_the_program() {
        let why = || Some("evenkeel failed (exit status: 3)".to_owned());
        let refused = |name| Row {
            verdict: None,
            ratio: None,
            ratio_ci95: None,
            left_out: why(),
            is_refused: true,
            ..row(name, 1.0, Verdict::Undecided)
        };
        let none = comparison(vec![refused("run"), row("pinned", 0.9, Verdict::Worse)]);
        assert!(
            none.sentence.contains("no verdict: evenkeel itself failed in run,"),
            "{}",
            none.text(None)
        );
        assert!(!none.has_verdict());
        assert!(
            comparison(vec![refused("run"), row("pinned", 1.2, Verdict::Better)]).has_verdict()
        );
        assert!(comparison(vec![row("run", 0.9, Verdict::Worse)]).has_verdict());
    }

    #[test]
    fn a_busy_machine_is_told() {
        let notes =
            |foreign_pct| Comparison { foreign_pct, ..comparison(Vec::new()) }.notes().join("\n");
        assert!(notes(Some(31.2)).starts_with("Other programs took 31 % of the CPU time"));
        assert_eq!((notes(Some(1.0)), notes(None)), (String::new(), String::new()));
    }

    #[test]
    fn of_a_short_program_start_up_is_told() {
        let notes = |seconds| {
            let kernel = row("default", 1.0, Verdict::Undecided);
            comparison(vec![Row { seconds: Some(seconds), ..kernel }]).notes().join(" ")
        };
        assert!(notes(0.05).contains("takes 0.050 s: start-up dominates"), "{}", notes(0.05));
        assert!(!notes(2.0).contains("start-up"), "{}", notes(2.0));
    }

    #[test]
    fn undecided_is_not_told_as_equal() {
        let sentence = nothing_is_better(&[row("run", 1.0, Verdict::Undecided)]);
        assert!(sentence.contains("--rounds 15"), "{sentence}");
        let sentence = nothing_is_better(&[row("run", 0.9, Verdict::Worse)]);
        assert_eq!(sentence, "Nothing is faster than the kernel alone.");
    }
}
