//! What the benchmarks of a cost share: where their figures go, and how they are shown. On the terminal
//! that is a table, some sentences, and what was wanted with what became of it; on a page for a browser
//! the same, with charts of intervals.

use std::path::PathBuf;

use anyhow::Result;
use maud::html;
use serde::Serialize;

use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::chart::Chart;
use evenkeel_experiment::html::{Sheet, charts};
use evenkeel_experiment::output::{Output, tell};
use evenkeel_experiment::{AimRow, Document, MachineInfo, aim_cells, commit};

/// The heading of the cases in the table of what was wanted.
const CASE_WORD: &str = "case";

/// Where the figures go.
#[derive(Debug, Clone, Default)]
pub struct Files {
    /// As JSON.
    pub json: Option<PathBuf>,
    /// As a page for a browser.
    pub html: Option<PathBuf>,
    /// The command line, to be run again.
    pub command: String,
}

impl Files {
    /// Prepares to write, before anything is measured.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn prepare(&self) -> Result<Prepared> {
        let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
        let (json, html) = (prepare(&self.json)?, prepare(&self.html)?);
        Ok(Prepared { json, html, command: self.command.clone() })
    }
}

/// What is shown of the figures.
pub(crate) struct Shown<'a> {
    /// The page's title.
    pub title: &'a str,
    /// The figures, if they are many.
    pub table: Option<Cells>,
    /// What they say, or all of them.
    pub sentences: Vec<String>,
    /// What was wanted, and what became of it.
    pub wanted: &'a [AimRow],
    /// Figures with their intervals.
    pub charts: Vec<Chart<'a>>,
}

/// Files that can be written.
pub(crate) struct Prepared {
    json: Option<Output>,
    html: Option<Output>,
    command: String,
}

impl Prepared {
    /// Prints what is shown, and writes what was asked for: the figures with the version of their
    /// schema.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write<T: Serialize>(&self, figures: &Document<'_, T>, shown: &Shown<'_>) -> Result<()> {
        let outputs = [&self.json, &self.html];
        if let Some(table) = &shown.table {
            tell(outputs, table.clone().terminal());
        }
        for sentence in &shown.sentences {
            tell(outputs, sentence);
        }
        if !shown.wanted.is_empty() {
            tell(outputs, aim_cells(CASE_WORD, shown.wanted).terminal());
        }
        if let Some(output) = &self.json {
            output.write(&figures.to_json()?)?;
        }
        if let Some(output) = &self.html {
            output.write(&page(shown, &output.command("--html", &self.command)))?;
        }
        Ok(())
    }
}

fn page(shown: &Shown<'_>, command: &str) -> String {
    let body = html! {
        @for sentence in &shown.sentences { p { (sentence) } }
        @if !shown.wanted.is_empty() {
            h2 { "Wanted" }
            (aim_cells(CASE_WORD, shown.wanted).html())
        }
        (charts("Intervals", &shown.charts))
        @if let Some(table) = &shown.table {
            h2 { "All figures" }
            (table.clone().html())
        }
    };
    let (commit, machine) = (commit(), MachineInfo::read());
    let sheet = Sheet {
        title: shown.title,
        commit: &commit,
        command,
        machine: &machine,
        disturbance: None,
        body,
    };
    sheet.html()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_experiment::Wanted;
    use evenkeel_experiment::chart::Interval;

    use super::*;

    #[test]
    fn the_page_has_all_that_the_terminal_shows_and_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(directory.path().join(name));
        let command = "evenkeel-lab bench startup".to_owned();
        let files = Files { json: path("figures.json"), html: path("page.html"), command };
        let interval = Interval {
            name: "evenkeel run".to_owned(),
            at: 1.5,
            ends: [1.0, 2.0],
            verdict: None,
            label: "1.50 (1.00 to 2.00)".to_owned(),
        };
        let goal = Wanted::AtMost(2.0);
        let wanted = [AimRow::counted("true", "added, in ms", "evenkeel run", 1.5, goal)];
        let mark = |ms: f64| format!("{ms:.0}");
        let shown = Shown {
            title: "A cost",
            table: Some(Cells {
                header: vec!["way".to_owned()],
                numbers: vec![],
                rows: vec![vec!["alone".to_owned()]],
            }),
            sentences: vec!["It costs < 2 ms.".to_owned()],
            wanted: &wanted,
            charts: vec![Chart {
                name: "added, in ms",
                base: Some((0.0, "nothing")),
                mark: &mark,
                intervals: vec![interval],
            }],
        };
        let figures = BTreeMap::from([("ms", 2)]);
        files.prepare().unwrap().write(&Document::new(7, &figures), &shown).unwrap();
        let page = std::fs::read_to_string(files.html.clone().unwrap()).unwrap();
        for part in [
            "<title>A cost</title>",
            "It costs &lt; 2 ms.",
            "added, in ms",
            "1.50 (1.00 to 2.00)",
            "alone",
            "&lt;= 2",
            "reached",
            "evenkeel-lab bench startup --html ",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
        let json = std::fs::read_to_string(files.json.unwrap()).unwrap();
        assert_eq!(json.split_whitespace().collect::<String>(), r#"{"format":7,"ms":2}"#);
    }
}
