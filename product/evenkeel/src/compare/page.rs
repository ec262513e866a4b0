//! A comparison as a page for a browser: one file that needs no network, light or dark as the browser
//! is. It shows each contestant's gain with its interval, the table, the machine, and the command to
//! repeat.

use std::fs;

use evenkeel_trial::Verdict;
use evenkeel_trial::chart::{Chart, Interval, LEGEND};
use evenkeel_trial::page::{Page, table};
use maud::{Markup, html};
use nix::sys::utsname::uname;

use super::contestant::in_a_shell;
use super::result::{COLUMNS, Comparison, Row};

const LEGEND_OF_AGAIN: &str = "\
The runs are paired by round. \"default again\" is the kernel against itself: what the table cannot \
tell from it, the table cannot resolve.";

/// The machine that was compared on.
#[derive(Debug, Default)]
pub struct MachineNow {
    /// The kernel's release.
    pub kernel: String,
    /// The name of its CPUs; empty where the kernel names none.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
}

impl MachineNow {
    /// What the kernel says. What it does not say stays empty.
    pub fn read() -> Self {
        let kernel = uname().map(|names| names.release().to_string_lossy().into_owned());
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        Self {
            kernel: kernel.unwrap_or_default(),
            cpu: name.map_or("", |name| name.trim_start_matches([' ', '\t', ':'])).to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
        }
    }

    fn sentence(&self, version: &str) -> String {
        let Self { kernel, cpu, cpus } = self;
        let cpu = if cpu.is_empty() { String::new() } else { format!("{cpu}, ") };
        format!("{cpus} CPUs, {cpu}Linux {kernel}, evenkeel {version}.")
    }
}

/// The page.
pub fn page(result: &Comparison, machine: &MachineNow) -> String {
    let program = in_a_shell(result.command.iter());
    let body = html! {
        p.answer { (result.sentence) }
        p { "Use from now on:" }
        pre { (result.recommended) }
        h2 { "How many times as fast as the kernel alone" }
        (chart(&result.rows))
        p.faint { (LEGEND) " " (LEGEND_OF_AGAIN) }
        h2 { "Figures" }
        (table(&COLUMNS, result.rows.iter().map(|row| row.cells().into()), &[]))
        ul { @for note in result.notes() { li { (note) } } }
    };
    let page = Page {
        title: &format!("evenkeel compare: {program}"),
        heading: html! { "Is " code { (program) } " faster with evenkeel?" },
        body,
        machine: &[machine.sentence(result.version)],
        again: &result.again,
        style: "",
    };
    page.html()
}

/// A line for each contestant that has a ratio.
fn chart(rows: &[Row]) -> Markup {
    let interval = |row: &Row| {
        let (ratio, ends) = row.ratio.zip(row.ratio_ci95)?;
        let verdict = row.verdict.unwrap_or(Verdict::Undecided);
        Some(Interval {
            name: row.contestant.clone(),
            at: ratio,
            ends,
            verdict: row.verdict,
            label: format!("{ratio:.2}x {}", verdict.name()),
        })
    };
    let chart = Chart {
        name: "The gain of each contestant with its interval",
        base: Some((1.0, "the kernel alone")),
        mark: &|ratio| format!("{ratio:.2}x"),
        intervals: rows.iter().filter_map(interval).collect(),
    };
    chart.markup()
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::row;
    use super::*;

    fn comparison(rows: Vec<Row>) -> Comparison {
        Comparison {
            format: 1,
            command: vec!["./<script>".to_owned()],
            version: "0",
            is_partial: false,
            foreign_pct: None,
            rows,
            recommended: "evenkeel run -- './<script>'".to_owned(),
            sentence: "run ran 1.30x as fast as the kernel alone (1.20 - 1.40).".to_owned(),
            again: "evenkeel compare -- './<script>'".to_owned(),
        }
    }

    #[test]
    fn the_page_needs_no_other_file_and_says_all() {
        let rows = vec![row("run", 1.3, Verdict::Better), row("pinned", 0.8, Verdict::Worse)];
        let text = page(&comparison(rows), &MachineNow::read());
        for needed in
            ["run ran 1.30x", "1.30x better", "0.80x worse", "Linux ", "prefers-color-scheme"]
        {
            assert!(text.contains(needed), "{needed} is not in:\n{text}");
        }
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        for foreign in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!text.contains(foreign), "{foreign} is in:\n{text}");
        }
    }
}
