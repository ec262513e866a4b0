//! A report as a page for a browser: one HTML file that loads nothing, light or dark as the browser is,
//! and with all that it says as text. `evenkeel compare` and the laboratory's reports are such pages.
//!
//! This file has what all of them share: the style, the head, tables, and the foot with the machine and
//! the command that makes the page once more.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart;

const STYLE: &str = "
:root { color-scheme: light dark; --page: #ffffff; --ink: #1a1a1a; --faint: #666666; --line: #d5d5d5;
  --good: #12713a; --bad: #b3261e; --open: #666666 }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --ink: #e8e8e8; --faint: #a0a0a0;
  --line: #3a3d44; --good: #5dd28f; --bad: #ff8a80; --open: #a0a0a0 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em;
  background: var(--page); color: var(--ink); overflow-wrap: break-word }
p, li { max-width: 50em }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere }
pre { border: 1px solid var(--line); padding: 0.7em; white-space: pre-wrap }
a { color: inherit }
h1 { font-size: 1.5em; line-height: 1.25 }
h2 { font-size: 1.25em; margin-top: 2em }
h3 { font-size: 1em; margin-top: 1.5em }
figure { margin: 1.5em 0 }
figcaption { font-weight: 600 }
summary { cursor: pointer; color: var(--faint) }
.answer { font-size: 1.25em }
.faint { color: var(--faint) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.9em }
th, td { border-bottom: 1px solid var(--line); padding: 0.3em 1em 0.3em 0; text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums; overflow-wrap: normal }
.number { text-align: right; white-space: nowrap }
td.good, td.bad, td.open { white-space: nowrap }
td.good { color: var(--good) } td.bad { color: var(--bad) } td.open { color: var(--open) }
";

/// A report.
pub struct Page<'a> {
    /// The browser's title.
    pub title: &'a str,
    /// The heading.
    pub heading: Markup,
    /// All between the heading and the foot.
    pub body: Markup,
    /// What was measured on: a sentence, and perhaps more of them.
    pub machine: &'a [String],
    /// The command line that makes the page once more.
    pub again: &'a str,
    /// The style of what only this page has.
    pub style: &'a str,
}

impl Page<'_> {
    /// The file's text.
    pub fn html(&self) -> String {
        let style = [STYLE, chart::STYLE, self.style].concat();
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(style)) }
                }
                body {
                    h1 { (self.heading) }
                    (self.body)
                    h2 { "Machine" }
                    @if let [sentence, more @ ..] = self.machine {
                        p { (sentence) }
                        @if !more.is_empty() { ul { @for item in more { li { (item) } } } }
                    }
                    h2 { "Once more" }
                    pre { (self.again) }
                }
            }
        }
        .into_string()
    }
}

/// A table, which scrolls by itself where it is wider than the screen. `numbers` are the columns that
/// are aligned to the right. A verdict has its colour.
pub fn table(
    header: &[impl AsRef<str>],
    rows: impl IntoIterator<Item = Vec<String>>,
    numbers: &[usize],
) -> Markup {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let of_column = |column: usize| numbers.contains(&column).then_some("number");
    html! {
        // What scrolls must be reachable by keys.
        div.wide tabindex="0" { table {
            thead { tr { @for (column, name) in header.iter().enumerate() {
                th class=[of_column(column)] { (name.as_ref()) }
            } } }
            @if !rows.is_empty() {
                tbody { @for row in &rows { tr { @for (column, cell) in row.iter().enumerate() {
                    td class=[of_column(column).or(tone(cell))] { (cell) }
                } } } }
            }
        } }
    }
}

/// The class of a verdict's colour, if a cell ends with a verdict.
fn tone(cell: &str) -> Option<&'static str> {
    match cell.rsplit([',', ':']).next()?.trim() {
        "better" | "reached" | "reproduced" => Some("good"),
        "worse" | "missed" | "failed" | "not reproduced" => Some("bad"),
        "undecided" | "-" => Some("open"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_loads_nothing_and_escapes_what_it_is_given() {
        let machine = ["2 CPUs <a>".to_owned(), "a note".to_owned()];
        let page = Page {
            title: "a <script>",
            heading: html! { "What" },
            body: table(&["name", "n"], [vec!["<b>".to_owned(), "7".to_owned()]], &[1]),
            machine: &machine,
            again: "evenkeel compare -- 'a' < b",
            style: ".more { }",
        };
        let text = page.html();
        for part in [
            "<title>a &lt;script&gt;</title>",
            "<td>&lt;b&gt;</td><td class=\"number\">7</td>",
            "<p>2 CPUs &lt;a&gt;</p><ul><li>a note</li></ul>",
            "<pre>evenkeel compare -- 'a' &lt; b</pre>",
            "prefers-color-scheme: dark",
            ".more { }",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        for foreign in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!text.contains(foreign), "{foreign} is in:\n{text}");
        }
    }

    #[test]
    fn a_verdict_at_the_end_of_a_cell_has_its_colour() {
        let tones = ["A/A: better", "500 (400 - 600), worse", "undecided", "default"].map(tone);
        assert_eq!(tones, [Some("good"), Some("bad"), Some("open"), None]);
    }
}
