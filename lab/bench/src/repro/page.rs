//! A study as a Markdown page: all findings first, then part by part.

use std::fmt::{self, Write as _};

use super::study::{Finding, Panel, Part, Point, Study};
use crate::stats::Verdict;

/// The page. Pictures are expected in a directory of the paper's number beside it.
pub fn page(study: &Study) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(study, &mut text);
    text
}

fn write_page(study: &Study, text: &mut String) -> fmt::Result {
    writeln!(text, "# Paper {} reproduced\n", study.paper)?;
    writeln!(text, "{}\n", study.title)?;
    writeln!(text, "Measured and written by `{}`; do not edit.\n", study.command)?;
    write!(text, "{}", study.machine.markdown())?;
    writeln!(text, "\n## What became of it\n")?;
    writeln!(text, "| part | claim | paper or aim | here | bound | status |")?;
    writeln!(text, "| --- | --- | --- | --- | --- | --- |")?;
    for part in &study.parts {
        for finding in &part.findings {
            let Finding { claim, paper, ours, bound, status } = finding;
            let cells = [&part.id, claim, paper, ours, bound].map(|cell| cell.replace('|', "\\|"));
            writeln!(text, "| {} | **{}** |", cells.join(" | "), status.name())?;
        }
    }
    writeln!(
        text,
        "\n*Reproduced* and *not reproduced* are about the paper's statements, *reached* and \
         *missed* about our own aims; a *substitute* shows the same thing in another way, and says \
         how; *reported* is what neither the paper nor we set a mark for. Values are medians with their 95 % interval (the range, with fewer than 6 runs); \
         contestants ran in turn and are compared run by run (paired t test on the logarithms, \
         Holm's correction over the rows of a part)."
    )?;
    for part in &study.parts {
        write_part(study, part, text)?;
    }
    Ok(())
}

fn write_part(study: &Study, part: &Part, text: &mut String) -> fmt::Result {
    writeln!(text, "\n## {}\n", part.title)?;
    if !part.method.is_empty() {
        writeln!(text, "{}", part.method)?;
    }
    if let Some(why) = &part.failed {
        writeln!(text, "Failed: {why}")?;
    }
    for why in &part.not_run {
        writeln!(text, "\n- not run: {why}")?;
    }
    for panel in &part.panels {
        writeln!(text, "\n### {}\n", panel.title)?;
        writeln!(text, "![{}]({}/{}.svg)\n", panel.title, study.paper, panel.id)?;
        write_table(panel, text)?;
    }
    Ok(())
}

fn write_table(panel: &Panel, text: &mut String) -> fmt::Result {
    let names: Vec<&str> = panel.series.iter().map(|series| series.name.as_str()).collect();
    writeln!(text, "{}:\n", panel.y)?;
    writeln!(text, "| {} | {} |", panel.x, names.join(" | "))?;
    writeln!(text, "| --- | {} |", vec!["---:"; names.len()].join(" | "))?;
    for (index, place) in panel.places.iter().enumerate() {
        let points = panel.series.iter().map(|series| series.points.get(index).copied().flatten());
        let cells: Vec<String> = points.map(cell).collect();
        writeln!(text, "| {place} | {} |", cells.join(" | "))?;
    }
    Ok(())
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
    use super::super::study::{Series, Status};
    use super::*;

    #[test]
    fn findings_and_figures_are_on_the_page() {
        let point = Point {
            median: 1234.0,
            ci95: [1200.0, 1300.0],
            runs: 7,
            verdict: Some(Verdict::Better),
        };
        let panel = Panel {
            id: "figure-8-a".into(),
            title: "avg_chore".into(),
            x: "tasks".into(),
            y: "chores a second".into(),
            places: vec!["1".into(), "2".into()],
            series: vec![Series { name: "lag".into(), points: vec![Some(point), None] }],
        };
        let finding = Finding {
            claim: "it holds".into(),
            paper: "9.9 %".into(),
            ours: "12 %".into(),
            bound: "1.33x".into(),
            status: Status::NotReproduced,
        };
        let part = Part {
            id: "figure-8".into(),
            title: "Figure 8".into(),
            method: "So.".into(),
            findings: vec![finding],
            panels: vec![panel],
            rows: Vec::new(),
            not_run: vec!["ft.B: not written".into()],
            failed: None,
        };
        let study = Study { paper: "000".into(), parts: vec![part], ..Study::default() };
        let text = page(&study);
        for line in [
            "| figure-8 | it holds | 9.9 % | 12 % | 1.33x | **not reproduced** |",
            "![avg_chore](000/figure-8-a.svg)",
            "| 1 | 1234 (1200 - 1300), better |",
            "| 2 | - |",
            "- not run: ft.B: not written",
        ] {
            assert!(text.lines().any(|other| other == line), "{line:?} is missing in {text}");
        }
    }

    #[test]
    fn numbers_have_about_four_digits() {
        let all = [12345.6, 123.46, 12.346, 1.2346, 0.0].map(number);
        assert_eq!(all, ["12346", "123.5", "12.35", "1.235", "0.000"]);
    }
}
