//! A report as a page for a browser: what was wanted, a chart of each figure's intervals, all rows, and
//! how to read them.

use evenkeel_trial::Verdict;
use evenkeel_trial::chart::{Chart, Interval};
use maud::html;

use crate::html::{Sheet, charts, prose};
use crate::page::{Columns, aims, said, worst_foreign_pct, write_reading};
use crate::{Experiment, Metric, Report, Row};

/// The page.
pub fn html<How>(experiment: &Experiment<How>, report: &Report) -> String {
    let columns = Columns::new(experiment, report);
    let mut reading = String::new();
    // Writing to a String cannot fail.
    let _ = write_reading(&mut reading, experiment, report);
    let groups = groups(experiment, report);
    let names: Vec<String> = groups.iter().map(|group| group.name(&columns)).collect();
    let drawn = groups.iter().zip(&names).map(|(group, name)| group.chart(name));
    let body = html! {
        @if let Some(sentence) = &report.sentence { p.answer { (sentence) } }
        // Errors of other programs are in it: it is no Markdown.
        @for sentence in said(report) { p { (sentence) } }
        (prose(experiment.intro))
        @if !report.aims.is_empty() {
            h2 { "Wanted" }
            (aims(experiment, report).html())
        }
        (charts("Intervals", &drawn.collect::<Vec<_>>()))
        h2 { "All figures" }
        (columns.cells().html())
        @for section in &report.sections {
            h2 { (section.title) }
            ul { @for item in &section.items {
                li { @if section.is_plain { (item) } @else { (prose(item)) } }
            } }
        }
        h2 { "How to read it" }
        (prose(&reading))
    };
    let disturbance = worst_foreign_pct(report).map(|worst| {
        format!("other programs, in the most disturbed row: {worst:.1} % of the CPU time")
    });
    let sheet = Sheet {
        title: experiment.title,
        commit: &report.commit,
        command: &report.command,
        machine: &report.machine,
        disturbance,
        body,
    };
    sheet.html()
}

/// The rows of one chart: a figure of one program in one case.
struct Group<'a> {
    metric: &'static Metric,
    rows: Vec<&'a Row>,
    /// What they are compared with, if they are.
    against: Option<&'a str>,
    /// The texts of marks.
    mark: Box<dyn Fn(f64) -> String>,
}

/// All figures that are judged, in the order of the report.
fn groups<'a, How>(experiment: &Experiment<How>, report: &'a Report) -> Vec<Group<'a>> {
    let place = |row: &'a Row| (&row.case, &row.program, &row.metric);
    let mut groups: Vec<Group<'a>> = Vec::new();
    for row in &report.rows {
        let Some(metric) = experiment.metric(&row.metric).filter(|metric| metric.is_judged) else {
            continue;
        };
        let found = groups.iter_mut().find(|group| place(group.rows[0]) == place(row));
        match found {
            Some(group) => group.rows.push(row),
            None => groups.push(Group {
                metric,
                rows: vec![row],
                against: None,
                mark: Box::new(move |value| metric.kind.amount(value)),
            }),
        }
    }
    for group in &mut groups {
        // Where nothing is compared, the figures themselves are shown.
        let compared = group.rows.iter().find(|row| row.ratio.is_some());
        if let Some(row) = compared {
            group.against = Some(row.against.as_deref().unwrap_or("the first"));
            group.mark = Box::new(times);
        }
    }
    groups
}

fn times(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}x") } else { format!("{ratio:.0}x") }
}

impl Group<'_> {
    fn name<How>(&self, columns: &Columns<'_, How>) -> String {
        let row = self.rows[0];
        let figure = if columns.has_figure { row.metric.as_str() } else { "" };
        let place = [row.case.as_str(), &row.program, figure];
        let place: Vec<&str> = place.into_iter().filter(|part| !part.is_empty()).collect();
        let what = match self.against {
            Some(against) => format!("how many times as good as {against}"),
            None => self.metric.name.to_owned(),
        };
        format!("{}: {what}", place.join(", "))
    }

    fn chart<'a>(&'a self, name: &'a str) -> Chart<'a> {
        Chart {
            name,
            base: self.against.map(|against| (1.0, against)),
            mark: &self.mark,
            intervals: self.rows.iter().filter_map(|row| self.interval(row)).collect(),
        }
    }

    fn interval(&self, row: &Row) -> Option<Interval> {
        let name = row.contestant.clone();
        if self.against.is_none() {
            let label = self.metric.kind.amount(row.median);
            return Some(Interval { name, at: row.median, ends: row.ci95, verdict: None, label });
        }
        let (ratio, ends) = row.ratio.zip(row.ratio_ci95)?;
        let word = row.verdict.map_or("", Verdict::name);
        let label = format!("{} {word}", times(ratio));
        Some(Interval { name, at: ratio, ends, verdict: row.verdict, label })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contestant, Failed, Section};

    #[test]
    fn what_other_programs_say_is_shown_as_they_said_it() {
        let why = "`make`: *** [all] Error 1\n# a <b>, see [1](x)";
        let line = "`make`: *** [all] Error 1 # a &lt;b&gt;, see [1](x)";
        let failed = Failed {
            case: "softirq".into(),
            program: "ep".into(),
            contestant: "lag".into(),
            why: why.into(),
        };
        let report = Report {
            said: vec![format!("No peer: {why}")],
            failed: vec![failed],
            sections: vec![
                Section::new("Claims", vec!["`lag` is **not shown**".into()]),
                Section::plain("Not measured", vec!["*is*: `x` is missing".into()]),
            ],
            ..Report::default()
        };
        let experiment = Experiment::sample(vec![Contestant::new("lag", "", ())], &[]);
        let text = html(&experiment, &report);
        for part in [
            "<code>lag</code> is <strong>not shown</strong>",
            "<li>*is*: `x` is missing</li>",
            &format!("<p>No peer: {line}</p>"),
            &format!("<p>lag failed, softirq, ep: {line}</p>"),
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
