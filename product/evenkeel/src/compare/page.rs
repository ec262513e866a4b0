//! A comparison as a page for a browser: one file that needs no network, light or dark as the browser
//! is. It shows each contestant's gain with its interval, the table, the machine, and the command to
//! repeat.

use std::fs;

use evenkeel_trial::Verdict;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use nix::sys::utsname::uname;

use super::contestant::in_a_shell;
use super::result::{COLUMNS, Comparison, Row};

/// Lengths of the picture, in pixels of its own.
const WIDTH: f64 = 720.0;
const LINE_HEIGHT: f64 = 34.0;
/// Left of it stand the names, right of it the verdicts.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 140.0;
/// Above the first line and below the last one, for the scale.
const MARGIN: f64 = 30.0;

const STYLE: &str = "
:root { color-scheme: light dark; --page: #ffffff; --ink: #1a1a1a; --faint: #6b6b6b; --line: #d5d5d5;
  --better: #12713a; --worse: #b3261e; --open: #6b6b6b }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --ink: #e8e8e8; --faint: #a0a0a0;
  --line: #3a3d44; --better: #5dd28f; --worse: #ff8a80; --open: #a0a0a0 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 48em; margin: 2em auto; padding: 0 1em;
  background: var(--page); color: var(--ink) }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em }
pre { border: 1px solid var(--line); padding: 0.7em; overflow-x: auto }
h1 { font-size: 1.4em }
.answer { font-size: 1.25em }
.wide { overflow-x: auto }
table { border-collapse: collapse }
th, td { border-bottom: 1px solid var(--line); padding: 0.3em 0.8em 0.3em 0; text-align: left;
  font-variant-numeric: tabular-nums }
svg { width: 100%; height: auto }
svg text { font: 14px system-ui, sans-serif; fill: var(--ink) }
svg .faint { fill: var(--faint) }
svg line { stroke: var(--line) }
svg .kernel { stroke: var(--faint); stroke-dasharray: 4 3 }
.better { --of: var(--better) } .worse { --of: var(--worse) } .undecided { --of: var(--open) }
svg .interval { stroke: var(--of); stroke-width: 3 }
svg circle { fill: var(--of) }
";

const LEGEND: &str = "\
A dot is the median of the runs, paired by round; its line is the 95 % interval, with fewer than six \
runs the range. \"default again\" is the kernel against itself: what the table cannot tell from it, the \
table cannot resolve.";

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
}

/// The page.
pub fn page(result: &Comparison, machine: &MachineNow) -> String {
    let program = in_a_shell(result.command.iter());
    let title = format!("evenkeel compare: {program}");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Is " code { (program) } " faster with evenkeel?" }
                p.answer { (result.sentence) }
                p { "Use from now on:" }
                pre { (result.recommended) }
                h2 { "How many times as fast as the kernel alone" }
                (picture(&result.rows))
                p { (LEGEND) }
                h2 { "Figures" }
                div.wide { table {
                    thead { tr { @for title in COLUMNS { th { (title) } } } }
                    tbody { @for row in &result.rows {
                        tr { @for cell in row.cells() { td { (cell) } } }
                    } }
                } }
                ul { @for note in result.notes() { li { (note) } } }
                h2 { "Machine" }
                p { (machine.cpus) " CPUs" @if !machine.cpu.is_empty() { ", " (machine.cpu) }
                    ", Linux " (machine.kernel) ", evenkeel " (result.version) "." }
                h2 { "Once more" }
                pre { (result.again) }
            }
        }
    }
    .into_string()
}

/// A line for each contestant that has a ratio.
fn picture(rows: &[Row]) -> Markup {
    let shown: Vec<(&Row, f64, [f64; 2])> =
        rows.iter().filter_map(|row| Some((row, row.ratio?, row.ratio_ci95?))).collect();
    let scale = Scale::of(shown.iter().map(|(.., interval)| *interval));
    let height = 2.0 * MARGIN + LINE_HEIGHT * shown.len() as f64;
    let bottom = height - MARGIN;
    html! {
        svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img"
            aria-label="The gain of each contestant with its interval" {
            @for tick in scale.ticks() {
                line x1=(scale.x(tick)) x2=(scale.x(tick)) y1=(MARGIN) y2=(bottom) {}
                text.faint x=(scale.x(tick)) y=(bottom + 20.0) text-anchor="middle" {
                    (format!("{tick:.2}x"))
                }
            }
            line.kernel x1=(scale.x(1.0)) x2=(scale.x(1.0)) y1=(MARGIN - 10.0) y2=(bottom) {}
            text.faint x=(scale.x(1.0)) y=(MARGIN - 14.0) text-anchor="middle" { "the kernel alone" }
            @for (index, (row, ratio, [lo, hi])) in shown.into_iter().enumerate() {
                @let y = MARGIN + LINE_HEIGHT * (index as f64 + 0.5);
                g class=(class(row)) {
                    text x="0" y=(y + 5.0) { (row.contestant) }
                    line.interval x1=(scale.x(lo)) x2=(scale.x(hi)) y1=(y) y2=(y) {}
                    circle cx=(scale.x(ratio)) cy=(y) r="5" {}
                    text x=(WIDTH - RIGHT + 14.0) y=(y + 5.0) { (format!("{ratio:.2}x ")) (class(row)) }
                }
            }
        }
    }
}

/// The verdict, which is also the class of its colour.
fn class(row: &Row) -> &'static str {
    match row.verdict {
        Some(Verdict::Better) => "better",
        Some(Verdict::Worse) => "worse",
        Some(Verdict::Undecided) | None => "undecided",
    }
}

/// From a ratio to a place in the picture. The kernel alone, 1, is always in it.
#[derive(Debug)]
struct Scale {
    lo: f64,
    hi: f64,
}

impl Scale {
    fn of(intervals: impl Iterator<Item = [f64; 2]>) -> Self {
        let around = |(lo, hi): (f64, f64), [a, b]: [f64; 2]| (lo.min(a), hi.max(b));
        // A picture of equal things is not all noise.
        let (lo, hi) = intervals.fold((0.95, 1.05), around);
        Self { lo, hi }
    }

    fn x(&self, ratio: f64) -> f64 {
        let place = (ratio - self.lo) / (self.hi - self.lo);
        let x = LEFT + (WIDTH - LEFT - RIGHT) * place;
        // A tenth of a pixel is enough, and short.
        (x * 10.0).round() / 10.0
    }

    /// Round values, nine at most.
    fn ticks(&self) -> Vec<f64> {
        let widths = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
        let span = self.hi - self.lo;
        let width = widths.into_iter().find(|width| span / width <= 8.0).unwrap_or(span);
        let first = (self.lo / width).ceil() as i64;
        let last = (self.hi / width).floor() as i64;
        (first..=last).map(|tick| tick as f64 * width).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::row;
    use super::*;

    fn comparison(rows: Vec<Row>) -> Comparison {
        Comparison {
            command: vec!["./<script>".to_owned()],
            version: "0",
            is_partial: false,
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

    #[test]
    fn each_interval_and_the_kernel_alone_lie_in_the_picture() {
        for intervals in [&[[0.999, 1.001]][..], &[[0.2, 0.3], [1.1, 1.2]], &[[3.0, 40.0]], &[]] {
            let scale = Scale::of(intervals.iter().copied());
            for ratio in intervals.iter().flatten().chain(&[1.0]).chain(&scale.ticks()) {
                let x = scale.x(*ratio);
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{ratio} of {scale:?}: {x}");
            }
            assert!((1..=9).contains(&scale.ticks().len()), "{scale:?}");
        }
    }
}
