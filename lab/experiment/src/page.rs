//! A report for people: tables for the terminal, and a page in Markdown that is a pure function of the
//! JSON, without a date, so that the same figures give the same page.

use std::fmt::{self, Write as _};

use evenkeel_stats::Verdict;
use evenkeel_trial::Reached;

use crate::cells::Cells;
use crate::generated::measured_at;
use crate::{AimRow, Experiment, Kind, Metric, Report, Row};

/// Foreign load gets a column where at least one row has so much of it.
const SHOWN_FOREIGN_PCT: f64 = 1.0;

/// What other programs took of the machine in the row where that was the most.
pub fn worst_foreign_pct(report: &Report) -> Option<f64> {
    report.rows.iter().map(|row| row.foreign_pct).reduce(f64::max)
}

fn dash() -> String {
    "-".to_owned()
}

fn interval(median: f64, [lo, hi]: [f64; 2]) -> String {
    let digits = if median.abs() < 100.0 { 3 } else { 0 };
    if lo == hi {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({lo:.digits$} - {hi:.digits$})")
}

/// What the table of all figures has columns for.
pub struct Columns<'a, How> {
    experiment: &'a Experiment<How>,
    report: &'a Report,
    has_program: bool,
    /// There is more than one figure, so that a row names its own.
    pub has_figure: bool,
    has_foreign: bool,
    told: Vec<&'static Metric>,
}

impl<'a, How> Columns<'a, How> {
    /// The columns that the rows of a report need.
    pub fn new(experiment: &'a Experiment<How>, report: &'a Report) -> Self {
        let is_there = |metric: &&Metric| report.rows.iter().any(|row| row.metric == metric.name);
        let metrics = || experiment.metrics.iter().filter(is_there);
        Self {
            experiment,
            report,
            has_program: report.rows.iter().any(|row| !row.program.is_empty()),
            has_figure: metrics().filter(|metric| metric.is_judged).count() > 1,
            has_foreign: worst_foreign_pct(report).is_some_and(|pct| pct >= SHOWN_FOREIGN_PCT),
            told: metrics().filter(|metric| !metric.is_judged).collect(),
        }
    }

    /// The contestant that all are compared with; "first" where cases have different ones.
    pub fn baseline(&self) -> &str {
        let mut against = self.report.rows.iter().filter_map(|row| row.against.as_deref());
        let Some(first) = against.next() else {
            return self.experiment.contestants.first().map_or("first", |one| &one.name);
        };
        if against.all(|other| other == first) { first } else { "first" }
    }

    /// All rows.
    pub fn cells(&self) -> Cells {
        let mut header = vec![self.experiment.case_word.to_owned()];
        header.extend(self.has_program.then(|| "program".to_owned()));
        header.extend(self.has_figure.then(|| "figure".to_owned()));
        header.push("contestant".to_owned());
        let first_number = header.len();
        header.extend([
            "median".to_owned(),
            format!("vs {}", self.baseline()),
            "verdict".to_owned(),
        ]);
        header.extend(self.told.iter().map(|metric| metric.name.to_owned()));
        header.extend(self.has_foreign.then(|| "foreign".to_owned()));
        header.push("runs".to_owned());
        let numbers = (first_number..header.len()).filter(|column| *column != first_number + 2);
        let is_judged =
            |row: &&Row| self.experiment.metric(&row.metric).is_none_or(|metric| metric.is_judged);
        let rows = self.report.rows.iter().filter(is_judged).map(|row| self.row(row));
        let absent = self.report.absent.iter().map(|one| {
            let mut cells = vec![one.case.clone()];
            cells.extend(self.has_program.then(|| one.program.clone()));
            cells.extend(self.has_figure.then(dash));
            cells.push("not measured".to_owned());
            cells.resize_with(header.len(), dash);
            cells
        });
        let rows = rows.chain(absent).collect();
        Cells { numbers: numbers.collect(), header, rows }
    }

    fn row(&self, row: &Row) -> Vec<String> {
        let amount = |metric: &Metric, value| metric.kind.amount(value);
        let median = |metric: &Metric| {
            let [lo, hi] = row.ci95.map(|value| amount(metric, value));
            let median = amount(metric, row.median);
            if !metric.has_spread || lo == hi {
                return median;
            }
            // The unit stands once, where it is the same.
            let unit = median.split_once(' ').map_or("", |(_, unit)| unit);
            let lo = lo.strip_suffix(unit).map_or(lo.as_str(), str::trim_end);
            let hi = hi.strip_suffix(unit).map_or(hi.as_str(), str::trim_end);
            format!("{median} ({lo} - {hi})")
        };
        let mut cells = vec![row.case.clone()];
        cells.extend(self.has_program.then(|| row.program.clone()));
        cells.extend(self.has_figure.then(|| row.metric.clone()));
        cells.push(row.contestant.clone());
        let metric = self.experiment.metric(&row.metric);
        cells.push(metric.map_or_else(|| row.median.to_string(), median));
        let ratio = row.ratio.zip(row.ratio_ci95);
        cells.push(ratio.map_or_else(dash, |(ratio, ci95)| interval(ratio, ci95)));
        cells.push(self.verdict(row));
        for metric in &self.told {
            let told = self.report.row(&row.case, &row.program, metric.name, &row.contestant);
            let figure = |told: &Row| match (told.total, metric.kind) {
                (Some(total), _) => amount(metric, total),
                (None, Kind::Index) => interval(told.median, told.ci95),
                (None, _) => amount(metric, told.median),
            };
            cells.push(told.map_or_else(dash, figure));
        }
        cells.extend(self.has_foreign.then(|| format!("{:.1} %", row.foreign_pct)));
        cells.push(row.runs.to_string());
        cells
    }

    fn verdict(&self, row: &Row) -> String {
        let place = (&row.case, &row.program, &row.contestant);
        let mut failed = self.report.failed.iter();
        if failed.any(|one| (&one.case, &one.program, &one.contestant) == place) {
            return "failed".to_owned();
        }
        let Some(verdict) = row.verdict.map(Verdict::name) else { return dash() };
        if row.is_again { format!("A/A: {verdict}") } else { verdict.to_owned() }
    }
}

/// What was wanted, and what was found.
pub fn aims<How>(experiment: &Experiment<How>, report: &Report) -> Cells {
    aim_cells(experiment.case_word, &report.aims)
}

/// The same of figures that are no report; `case_word` is the heading of the cases.
pub fn aim_cells(case_word: &str, aims: &[AimRow]) -> Cells {
    let has_program = aims.iter().any(|aim| !aim.program.is_empty());
    let mut header = vec![case_word];
    header.extend(has_program.then_some("program"));
    header.extend(["figure", "contestant", "wanted", "found", "reached"]);
    let cells = |aim: &AimRow| {
        let found = aim.found.zip(aim.ci95);
        let mut cells = vec![aim.case.clone()];
        cells.extend(has_program.then(|| aim.program.clone()));
        cells.extend([&aim.metric, &aim.contestant, &aim.wanted].map(Clone::clone));
        let verdict = aim.verdict.map(|verdict| format!(", {}", verdict.name()));
        cells.push(found.map_or_else(dash, |(found, ci95)| {
            interval(found, ci95) + verdict.as_deref().unwrap_or_default()
        }));
        let reached = match aim.reached {
            Some(Reached::Reached) => "reached",
            Some(Reached::Missed) => "missed",
            Some(Reached::Undecided) => "undecided",
            None => "-",
        };
        cells.push(reached.to_owned());
        cells
    };
    Cells {
        numbers: vec![header.len() - 2],
        header: header.into_iter().map(str::to_owned).collect(),
        rows: aims.iter().map(cells).collect(),
    }
}

/// All that the terminal shows.
pub fn terminal<How>(experiment: &Experiment<How>, report: &Report) -> String {
    let mut text = String::new();
    if !report.rows.is_empty() {
        text = Columns::new(experiment, report).cells().terminal() + "\n";
    }
    if !report.aims.is_empty() {
        text.push_str(&format!("\n{}\n", aims(experiment, report).terminal()));
    }
    for sentence in said(report) {
        text.push_str(&format!("{sentence}\n"));
    }
    for item in report.sections.iter().flat_map(|section| &section.items) {
        text.push_str(&format!("{item}\n"));
    }
    if let Some(sentence) = &report.sentence {
        text.push_str(&format!("\n{sentence}\n"));
    }
    text
}

/// What was left out, and what failed.
pub fn said(report: &Report) -> Vec<String> {
    let said = report.said.iter().map(|sentence| sentence.replace('\n', " "));
    let absent = report.absent.iter().map(|one| one.words());
    said.chain(absent).chain(report.failed.iter().map(|failed| failed.words())).collect()
}

/// The page.
pub fn markdown<How>(experiment: &Experiment<How>, report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, experiment, report);
    text
}

fn write_page<How>(
    text: &mut String,
    experiment: &Experiment<How>,
    report: &Report,
) -> fmt::Result {
    let Report { command, commit, .. } = report;
    writeln!(text, "# {}\n", experiment.title)?;
    writeln!(text, "{}\n", measured_at(commit, command))?;
    write!(text, "{}", report.machine.markdown())?;
    if let Some(worst) = worst_foreign_pct(report) {
        writeln!(
            text,
            "- other programs, in the most disturbed row: {worst:.1} % of the CPU time"
        )?;
    }
    for sentence in said(report) {
        writeln!(text, "- {sentence}")?;
    }
    if !experiment.intro.is_empty() {
        write!(text, "\n{}", experiment.intro)?;
    }
    if !report.aims.is_empty() {
        writeln!(text, "\n## Wanted\n")?;
        aims(experiment, report).markdown(text)?;
    }
    writeln!(text, "\n## All figures\n")?;
    let columns = Columns::new(experiment, report);
    columns.cells().markdown(text)?;
    for section in &report.sections {
        writeln!(text, "\n## {}\n", section.title)?;
        for item in &section.items {
            writeln!(text, "- {item}")?;
        }
    }
    writeln!(text, "\n## How to read it\n")?;
    write_reading(text, experiment, report)
}

/// How the figures came about, and what the names mean.
pub fn write_reading<How>(
    text: &mut String,
    experiment: &Experiment<How>,
    report: &Report,
) -> fmt::Result {
    let columns = Columns::new(experiment, report);
    let (course, baseline) = (experiment.course, columns.baseline());
    writeln!(text, "{course}\n")?;
    write!(text, "- *median*: over the runs.\n- *vs {baseline}*: {READING}{}", experiment.reading)?;
    // A remark in parentheses behind a name is no part of it.
    let is = |text: &str, name: &str| {
        text == name || text.split(" (").next().is_some_and(|bare| bare == name)
    };
    let is_named = |row: &Row, name: &str| is(&row.case, name) || is(&row.program, name);
    for list in &experiment.lists {
        let items = list.items.iter().copied();
        let is_used = |(name, _): &(&str, &str)| report.rows.iter().any(|row| is_named(row, name));
        write_list(text, list.title, items.filter(is_used))?;
    }
    let is_used = |metric: &&Metric| report.rows.iter().any(|row| row.metric == metric.name);
    let metrics = experiment.metrics.iter().filter(is_used);
    write_list(text, "Figures", metrics.map(|metric| (metric.name, metric.explanation)))?;
    let contestants = experiment
        .contestants
        .iter()
        .filter(|one| report.rows.iter().any(|row| row.contestant == one.name));
    let explained = contestants.map(|one| (one.name.as_str(), one.explanation.as_str()));
    write_list(text, "Contestants", explained)
}

const READING: &str = "\
how many times as good as the baseline (its time / time, or index / its index), paired run by run: the \
median and its 95 % interval (with fewer than 6 runs the range). Above 1 is better.
- *verdict*: a paired t test on the logarithms of the ratios, corrected for the number of rows \
(Holm) and of looks: the chance of even one wrong *better* or *worse* is 5 %.
- *A/A*: the baseline once more, compared with itself. What a row cannot tell from this one, the table \
cannot resolve.
- *foreign*: what other programs took of the machine's CPU time, where that was noticeable.
- *found*: what is compared with what is wanted, its 95 % interval, and of a ratio the verdict, \
corrected in the same way. *reached*: the whole interval \
is as wanted; *missed*: none of it is.
";

fn write_list<'a>(
    text: &mut String,
    title: &str,
    names: impl Iterator<Item = (&'a str, &'a str)>,
) -> fmt::Result {
    let mut heading = Some(format!("\n{title}:\n"));
    for (name, explanation) in names {
        if let Some(heading) = heading.take() {
            writeln!(text, "{heading}")?;
        }
        writeln!(text, "- `{name}`: {explanation}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contestant, List};

    fn experiment() -> Experiment<()> {
        const METRICS: [Metric; 2] = [
            Metric::new("wake", Kind::Time, "until it runs"),
            Metric::told("moves", Kind::Count, "tasks moved"),
        ];
        let contestants = [("eevdf", "the kernel's own scheduler"), ("keel", "ours")];
        let contestants = contestants.map(|(name, what)| Contestant::new(name, what, ()));
        let items = vec![("counted", "counts instructions"), ("timed", "the host's clock")];
        let lists = vec![List { title: "Machines", items }];
        Experiment { lists, ..Experiment::sample(contestants.to_vec(), &METRICS) }
    }

    fn report() -> Report {
        serde_json::from_value(serde_json::json!({
            "experiment": "test",
            "commit": "abc",
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18", "kernel of the guests": "k"},
            "command": "evenkeel-lab bench test",
            "said": ["scx_flash takes no part"],
            "failed": [{"case": "counted", "contestant": "scx_cosmos", "why": "it\nended"}],
            "aims": [
                {"case": "counted", "metric": "wake", "contestant": "keel",
                 "wanted": ">= 0.67 times eevdf", "found": 500.0, "ci95": [400.0, 600.0],
                 "reached": "reached"},
            ],
            "rows": [
                {"case": "counted", "metric": "wake", "contestant": "eevdf", "foreign_pct": 0.0,
                 "median": 0.0125, "ci95": [0.012, 0.013], "runs": 10},
                {"case": "counted", "metric": "wake", "contestant": "keel", "foreign_pct": 0.0,
                 "median": 0.000025, "ci95": [0.00002, 0.00003], "against": "eevdf", "ratio": 500.0,
                 "ratio_ci95": [400.0, 600.0], "verdict": "better", "runs": 10},
                {"case": "counted", "metric": "moves", "contestant": "keel", "foreign_pct": 0.0,
                 "median": 7.0, "ci95": [7.0, 7.0], "runs": 10},
            ],
            "sections": [{"title": "Costs", "items": ["lag at rest: 0.05 %"]}],
        }))
        .unwrap()
    }

    #[test]
    fn the_page_names_machine_command_commit_and_what_the_words_mean() {
        let text = markdown(&experiment(), &report());
        for part in [
            "# Benchmarks: a test",
            "Measured at commit abc by `evenkeel-lab bench test`. Written by this command: do not edit.",
            "- Machine: Test, 2 CPUs, Linux 6.18",
            "- kernel of the guests: k",
            "- scx_flash takes no part",
            "- scx_cosmos failed, counted: it ended",
            "| machine | contestant | median | vs eevdf | verdict | moves | runs |",
            "| counted | keel | 25.0 us | 500 (400 - 600) | better | 7 | 10 |",
            "| counted | eevdf | 12.50 ms | - | - | - | 10 |",
            "| counted | wake | keel | >= 0.67 times eevdf | 500 (400 - 600) | reached |",
            "## Costs\n\n- lag at rest: 0.05 %",
            "- *vs eevdf*: how many times as good",
            "- More of it.",
            "- `keel`: ours",
            "- `wake`: until it runs",
            "- `counted`: counts instructions",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains("- `timed`"), "a machine that was not used:\n{text}");
        let again = serde_json::from_str(&serde_json::to_string(&report()).unwrap()).unwrap();
        assert_eq!(markdown(&experiment(), &again), text);
    }

    #[test]
    fn the_terminal_shows_every_row() {
        let shown = terminal(&experiment(), &report());
        for word in [
            "contestant",
            "12.50 ms",
            "25.0 us",
            "better",
            "reached",
            "vs eevdf",
            "at rest",
            "ended",
        ] {
            assert!(shown.contains(word), "{word:?} is missing in\n{shown}");
        }
    }

    #[test]
    fn spread_is_shown_where_it_is_asked_for_and_absent_programs_have_a_row_and_a_reason() {
        static SPREAD: [Metric; 1] = [Metric::new("wake", Kind::Time, "").with_spread()];
        let experiment = Experiment { metrics: &SPREAD, ..experiment() };
        let mut report = report();
        for row in &mut report.rows {
            row.program = "ep".into();
        }
        report.absent.push(crate::Absent {
            case: "counted".into(),
            program: "sp".into(),
            why: "no\ncompiler".into(),
        });
        let text = markdown(&experiment, &report);
        for part in [
            "| counted | ep | eevdf | 12.50 ms (12.00 - 13.00) | - | - | 10 |",
            "| counted | sp | not measured | - | - | - | - |",
            "- sp, counted: not measured: no compiler\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(terminal(&experiment, &report).contains("no compiler"));
    }

    #[test]
    fn totals_foreign_load_and_verdicts_of_aims_are_shown() {
        let mut report = report();
        report.rows[1].foreign_pct = 1.5;
        report.rows[2].total = Some(70.0);
        report.aims[0].verdict = Some(Verdict::Better);
        let text = markdown(&experiment(), &report);
        for part in [
            "- other programs, in the most disturbed row: 1.5 % of the CPU time",
            "| verdict | moves | foreign | runs |",
            "| counted | keel | 25.0 us | 500 (400 - 600) | better | 70 | 1.5 % | 10 |",
            "| 500 (400 - 600), better | reached |",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        let nothing = Report { said: vec!["it was not asked for".into()], ..Report::default() };
        assert_eq!(terminal(&experiment(), &nothing), "it was not asked for\n");
    }
}
