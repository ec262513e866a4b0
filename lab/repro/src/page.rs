//! A study as a Markdown page for the docs, and as an HTML page with all pictures in it. Both have all
//! findings first, then part by part what was measured.

use std::fmt::{self, Write as _};

use super::plot::{self, svg};
use super::study::{Finding, Panel, Part, Point, Study};
use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::html::prose;
use evenkeel_experiment::measured_at;
use evenkeel_stats::Verdict;
use evenkeel_trial::page::{Page, table};
use maud::{Markup, PreEscaped, html};

/// The pictures that the Markdown pages show: a paper and a picture a line.
const SHOWN: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/pictures.txt"));

const LEGEND: &str = "\
*Reproduced* and *not reproduced* are about the paper's statements, *reached* and *missed* about our \
own aims; a *substitute* shows the same thing in another way, and says how; *reported* has no mark, \
neither the paper's nor ours. Values are medians with their 95 % interval (the range, with fewer than \
6 runs); contestants ran in turn and are compared run by run (paired t test on the logarithms, Holm's \
correction over the rows of a part). *NAME again* is the baseline compared with itself (A/A), in \
simulations with other seeds: what a table cannot tell from it, the table cannot resolve.";

/// Whether the Markdown page of this paper shows this picture. All others are on the HTML page only.
pub fn is_shown(paper: &str, panel: &Panel) -> bool {
    let line = |line: &str| line.split_once(' ') == Some((paper, panel.id.as_str()));
    SHOWN.lines().any(line)
}

/// The Markdown page. Pictures are expected in a directory of the paper's number beside it.
pub fn markdown(study: &Study) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_markdown(study, &mut text);
    text
}

/// The HTML page, which needs no other file. `command` writes it.
pub fn html(study: &Study, command: &str) -> String {
    let Study { paper, title, commit, .. } = study;
    let title_of_page = format!("Paper {paper} reproduced");
    let findings = findings(study).map(|(part, finding)| {
        let Finding { claim, paper, ours, bound, status } = finding;
        [&part.id, claim, paper, ours, bound].into_iter().cloned().chain([status.name().into()])
    });
    let body = html! {
        p { (title) }
        p.faint { "Measured at commit " (commit) "." }
        @if study.parts.iter().any(|part| !part.findings.is_empty()) {
            h2 { "What became of it" }
            (table(&FINDING_COLUMNS, findings.map(Iterator::collect), &[]))
        }
        (prose(LEGEND))
        @for part in &study.parts {
            h2 { (part.title) }
            (prose(&part.method))
            @for line in remarks(part) { p { (line) } }
            @for panel in &part.panels { (figure(panel)) }
        }
    };
    let page = Page {
        title: &title_of_page,
        heading: html! { (title_of_page) },
        body,
        machine: &study.machine.items(),
        again: command,
        style: plot::STYLE,
    };
    page.html()
}

/// A picture, and its figures for those that want to read them.
fn figure(panel: &Panel) -> Markup {
    html! {
        figure id=(panel.id) {
            figcaption { (panel.title) }
            div.wide tabindex="0" { (PreEscaped(svg(panel))) }
            details {
                summary { "Figures: " (panel.y) }
                (panel_table(panel).html())
            }
        }
    }
}

fn write_markdown(study: &Study, text: &mut String) -> fmt::Result {
    let Study { paper, title, command, commit, .. } = study;
    writeln!(text, "# Paper {paper} reproduced\n\n{title}\n")?;
    writeln!(text, "{}\n", measured_at(commit, command))?;
    write!(text, "{}", study.machine.markdown())?;
    if findings(study).next().is_some() {
        writeln!(text, "\n## What became of it\n")?;
        writeln!(text, "| {} |", FINDING_COLUMNS.join(" | "))?;
        writeln!(text, "|{}", " --- |".repeat(FINDING_COLUMNS.len()))?;
    }
    for (part, finding) in findings(study) {
        let Finding { claim, paper, ours, bound, status } = finding;
        let cells = [&part.id, claim, paper, ours, bound].map(|cell| cell.replace('|', "\\|"));
        writeln!(text, "| {} | **{}** |", cells.join(" | "), status.name())?;
    }
    writeln!(text, "\n{LEGEND}")?;
    for part in &study.parts {
        writeln!(text, "\n## {}\n", part.title)?;
        if !part.method.is_empty() {
            writeln!(text, "{}", part.method)?;
        }
        for line in remarks(part) {
            writeln!(text, "\n- {line}")?;
        }
        for panel in &part.panels {
            writeln!(text, "\n### {}\n", panel.title)?;
            if is_shown(paper, panel) {
                writeln!(text, "![{}]({paper}/{}.svg)\n", panel.title, panel.id)?;
            }
            writeln!(text, "{}:\n", panel.y)?;
            panel_table(panel).markdown(text)?;
        }
    }
    Ok(())
}

const FINDING_COLUMNS: [&str; 6] = ["part", "claim", "paper or aim", "here", "bound", "status"];

fn findings(study: &Study) -> impl Iterator<Item = (&Part, &Finding)> {
    study.parts.iter().flat_map(|part| part.findings.iter().map(move |finding| (part, finding)))
}

/// What of a part is missing, and why.
fn remarks(part: &Part) -> Vec<String> {
    let failed = part.failed.iter().map(|why| format!("failed: {why}"));
    failed.chain(part.not_run.iter().map(|why| format!("not run: {why}"))).collect()
}

fn panel_table(panel: &Panel) -> Cells {
    let names = panel.series.iter().map(|series| series.name.clone());
    let row = |(index, place): (usize, &String)| {
        let points = panel.series.iter().map(|series| series.points.get(index).copied().flatten());
        std::iter::once(place.clone()).chain(points.map(cell)).collect()
    };
    Cells {
        header: std::iter::once(panel.x.clone()).chain(names).collect(),
        numbers: (1..=panel.series.len()).collect(),
        rows: panel.places.iter().enumerate().map(row).collect(),
    }
}

fn cell(point: Option<Point>) -> String {
    let Some(point) = point else { return "-".to_owned() };
    let [lo, hi] = point.ci95;
    let mut text = number(point.median);
    if point.runs > 1 {
        let _ = write!(text, " ({} - {})", number(lo), number(hi));
    }
    match point.verdict {
        Some(Verdict::Better) => text.push_str(", better"),
        Some(Verdict::Worse) => text.push_str(", worse"),
        Some(Verdict::Undecided) | None => {}
    }
    text
}

/// With about four digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::MachineInfo;

    use super::super::study::{Series, Status};
    use super::*;

    fn study() -> Study {
        let point = Point {
            median: 1234.0,
            ci95: [1200.0, 1300.0],
            runs: 7,
            verdict: Some(Verdict::Better),
        };
        let panel = |id: &str| Panel {
            id: id.into(),
            title: "avg_chore".into(),
            x: "tasks".into(),
            y: "chores a second".into(),
            places: vec!["1".into(), "2".into()],
            series: vec![Series { name: "lag".into(), points: vec![Some(point), None] }],
        };
        let finding = Finding {
            claim: "it holds".into(),
            paper: "9.9 %".into(),
            ours: "12 %, < 13 %".into(),
            bound: "1.33x".into(),
            status: Status::NotReproduced,
        };
        let part = Part {
            id: "figure-11".into(),
            title: "Figure 11".into(),
            method: "So.".into(),
            findings: vec![finding],
            panels: vec![panel("figure-11"), panel("figure-11-more")],
            rows: Vec::new(),
            not_run: vec!["ft.B: not written".into()],
            failed: None,
        };
        Study {
            paper: "000".into(),
            commit: "0123abc".into(),
            command: "evenkeel-lab repro 000".into(),
            machine: MachineInfo {
                model: "a processor".into(),
                cpus: 2,
                kernel: "6.18".into(),
                ..MachineInfo::default()
            },
            parts: vec![part],
            ..Study::default()
        }
    }

    #[test]
    fn findings_and_figures_are_on_the_page() {
        let text = markdown(&study());
        for line in [
            "Measured at commit 0123abc by `evenkeel-lab repro 000`. Written by this command: do not \
             edit.",
            "| figure-11 | it holds | 9.9 % | 12 %, < 13 % | 1.33x | **not reproduced** |",
            "![avg_chore](000/figure-11.svg)",
            "| 1 | 1234 (1200 - 1300), better |",
            "| 2 | - |",
            "- not run: ft.B: not written",
        ] {
            assert!(text.lines().any(|other| other == line), "{line:?} is missing in {text}");
        }
        assert!(!text.contains("figure-11-more.svg"), "a picture that is not in the list: {text}");
    }

    #[test]
    fn the_html_page_has_all_pictures_and_needs_no_other_file() {
        let text = html(&study(), "evenkeel-lab repro 000 --html .");
        assert_eq!(text.matches("<svg").count(), 2, "{text}");
        for part in [
            "<td>12 %, &lt; 13 %</td><td>1.33x</td><td class=\"bad\">not reproduced</td>",
            "<figure id=\"figure-11-more\">",
            "<td class=\"number\">1234 (1200 - 1300), better</td>",
            "<p>a processor, 2 CPUs, Linux 6.18</p>",
            "<pre>evenkeel-lab repro 000 --html .</pre>",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(!text.contains("src=") && !text.contains("href="), "{text}");
    }

    #[test]
    fn each_picture_of_the_list_is_named_once_with_a_paper() {
        let listed: Vec<&str> = SHOWN.lines().filter(|line| !line.starts_with('#')).collect();
        let distinct: std::collections::BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(distinct.len(), listed.len());
        let papers = super::super::PAPERS.map(|paper| paper.number);
        for line in listed {
            let (paper, picture) = line.split_once(' ').unwrap();
            assert!(papers.contains(&paper) && !picture.contains(' '), "{line:?}");
        }
    }

    #[test]
    fn numbers_have_about_four_digits() {
        let all = [12345.6, 123.46, 12.346, 1.2346, 0.0].map(number);
        assert_eq!(all, ["12346", "123.5", "12.35", "1.235", "0.000"]);
    }
}
