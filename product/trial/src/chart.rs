//! A chart of intervals for a page: a line for each, on one scale, beside its name and its figure.
//!
//! Names and figures are text of the page; only dots, lines and the scale are drawn (SVG), with places
//! in per cent. So the text keeps its size on a narrow screen, and a reader that sees no pictures has
//! it, too. A verdict has a colour, a form, and a word in the figure.

use evenkeel_stats::Verdict;
use maud::{Markup, html};

/// The height of a line, in pixels.
const LINE_HEIGHT: i32 = 30;
/// Beyond a line, so much of the scale is drawn, and cut off: a name of two lines makes no gap in it.
const BEYOND: i32 = 40;
/// Marks of the scale, at most.
const MARKS: usize = 6;
/// Free of intervals at both ends, for the texts of marks, in per cent.
const MARGIN_PCT: f64 = 5.0;
/// Values that are so many times apart are shown on a logarithmic scale.
const FAR_APART: f64 = 10.0;
/// At least so much of the value that all are compared with is shown on both sides of it: a chart of
/// equal things is not all noise.
const AROUND_BASE: f64 = 0.05;

/// What a page with charts needs; the colours are the page's.
pub(crate) const STYLE: &str = "
.line { display: grid; grid-template-columns: 11em 1fr 11em; column-gap: 0.8em; align-items: center;
  overflow-y: clip }
.line > * { overflow-wrap: anywhere }
.line .label { font-variant-numeric: tabular-nums }
.line svg { grid-column: 2; width: 100%; overflow: visible }
.line line { stroke: var(--line) }
.line text { font: 13px system-ui, sans-serif; fill: var(--faint) }
.line .base { stroke: var(--faint); stroke-dasharray: 4 3 }
.better { --of: var(--good) } .worse { --of: var(--bad) } .undecided { --of: var(--open) }
.line .interval { stroke: var(--of, var(--ink)); stroke-width: 3 }
.line .dot { fill: var(--of, var(--ink)); stroke: var(--of, var(--ink)); stroke-width: 2 }
.undecided .dot { fill: var(--page) }
@media (max-width: 40em) {
  .line { grid-template: \"name label\" auto \"track track\" auto / 1fr auto }
  .line svg { grid-area: track }
  .line .track { overflow: hidden }
}
";

/// What the forms of a chart mean.
pub const LEGEND: &str = "\
A mark is the median of the runs, its line the 95 % interval, with fewer than six runs the range: a \
filled dot is better, a square worse, a ring undecided.";

/// A value with its interval, as it is shown.
#[derive(Debug, Clone)]
pub struct Interval {
    /// What it is a value of.
    pub name: String,
    /// The value.
    pub at: f64,
    /// Its ends.
    pub ends: [f64; 2],
    /// What it shows, if it is judged.
    pub verdict: Option<Verdict>,
    /// The figure in words, the verdict with it.
    pub label: String,
}

/// The chart.
pub struct Chart<'a> {
    /// What it shows, for readers that see no pictures.
    pub name: &'a str,
    /// The value that all are compared with, and its name.
    pub base: Option<(f64, &'a str)>,
    /// The text of a mark.
    pub mark: &'a dyn Fn(f64) -> String,
    /// From above to below. What is no finite number is left out.
    pub intervals: Vec<Interval>,
}

impl Chart<'_> {
    /// The chart as a part of a page.
    pub fn markup(&self) -> Markup {
        let is_finite = |shown: &&Interval| {
            shown.at.is_finite() && shown.ends.iter().all(|end| end.is_finite())
        };
        let shown: Vec<&Interval> = self.intervals.iter().filter(is_finite).collect();
        let base = self.base.map(|(value, _)| value);
        let scale = Scale::of(shown.iter().map(|shown| shown.ends), base);
        let marks = scale.marks();
        html! {
            div.chart role="group" aria-label=(self.name) {
                @if let Some((value, name)) = self.base {
                    div.line { (named_base(scale.place_pct(value), name)) }
                }
                @for shown in shown {
                    div.line.(shown.verdict.map_or("plain", Verdict::name)) {
                        span { (shown.name) }
                        (track(shown, &scale, &marks, base))
                        span.label { (shown.label) }
                    }
                }
                div.line aria-hidden="true" {
                    svg height="20" { @for value in &marks {
                        text x=(pct(scale.place_pct(*value))) y="14" text-anchor="middle" {
                            ((self.mark)(*value))
                        }
                    } }
                }
            }
        }
    }
}

/// The name above the line of the base: within the picture also where that is near an end.
fn named_base(place_pct: f64, name: &str) -> Markup {
    let anchor = match place_pct {
        place if place < 25.0 => "start",
        place if place > 75.0 => "end",
        _ => "middle",
    };
    html! { svg height="20" { text x=(pct(place_pct)) y="14" text-anchor=(anchor) { (name) } } }
}

fn track(shown: &Interval, scale: &Scale, marks: &[f64], base: Option<f64>) -> Markup {
    let middle = LINE_HEIGHT / 2;
    let (above, below) = (-BEYOND, LINE_HEIGHT + BEYOND);
    let upright = |class: &str, value: f64| {
        let x = pct(scale.place_pct(value));
        html! { line class=(class) x1=(x) x2=(x) y1=(above) y2=(below) {} }
    };
    let [lo, hi] = shown.ends.map(|end| pct(scale.place_pct(end)));
    let at = pct(scale.place_pct(shown.at));
    html! {
        svg.track height=(LINE_HEIGHT) aria-hidden="true" {
            @for value in marks { (upright("mark", *value)) }
            @if let Some(value) = base { (upright("base", value)) }
            line.interval x1=(lo) x2=(hi) y1=(middle) y2=(middle) {}
            @if shown.verdict == Some(Verdict::Worse) {
                rect.dot x=(at) y=(middle) width="9" height="9" transform="translate(-4.5 -4.5)" {}
            } @else {
                circle.dot cx=(at) cy=(middle) r="4.5" {}
            }
        }
    }
}

/// A tenth of a per cent is enough, and short.
fn pct(place_pct: f64) -> String {
    format!("{place_pct:.1}%")
}

/// From a value to a place in the picture.
#[derive(Debug)]
struct Scale {
    /// The ends, or their logarithms.
    lo: f64,
    hi: f64,
    is_logarithmic: bool,
}

impl Scale {
    /// A scale that holds all of these, and the base with something on both sides of it.
    fn of(intervals: impl Iterator<Item = [f64; 2]>, base: Option<f64>) -> Self {
        let wider = |(lo, hi): (f64, f64), [a, b]: [f64; 2]| (lo.min(a), hi.max(b));
        let around = base.map(|base| {
            let room = base.abs() * AROUND_BASE;
            [base - room, base + room]
        });
        let nothing = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut lo, mut hi) = intervals.chain(around).fold(nothing, wider);
        if lo > hi {
            (lo, hi) = (0.0, 1.0);
        }
        let is_logarithmic = lo > 0.0 && hi / lo > FAR_APART;
        if is_logarithmic {
            (lo, hi) = (lo.log10(), hi.log10());
        }
        let mut room = (hi - lo) * MARGIN_PCT / (100.0 - 2.0 * MARGIN_PCT);
        if room <= 0.0 {
            room = if lo == 0.0 { 1.0 } else { lo.abs() / 10.0 };
        }
        Self { lo: lo - room, hi: hi + room, is_logarithmic }
    }

    fn place_pct(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic { value.log10() } else { value };
        100.0 * (value - self.lo) / (self.hi - self.lo)
    }

    /// Round values that do not crowd, with room for their texts at the ends.
    fn marks(&self) -> Vec<f64> {
        let mut marks = if self.is_logarithmic { self.powers() } else { self.steps() };
        let half = MARGIN_PCT / 2.0;
        marks.retain(|value| (half..=100.0 - half).contains(&self.place_pct(*value)));
        marks
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn steps(&self) -> Vec<f64> {
        let span = self.hi - self.lo;
        let power = 10f64.powf((span / MARKS as f64).log10().floor());
        for width in [1.0, 2.0, 5.0, 10.0, 20.0].map(|times| times * power) {
            let (first, last) = ((self.lo / width).ceil(), (self.hi / width).floor());
            if last - first < MARKS as f64 {
                return (first as i64..=last as i64).map(|step| step as f64 * width).collect();
            }
        }
        Vec::new()
    }

    /// As fine as fits: 1, 2 and 5 times powers of ten, powers of ten, or every second, third, ... of
    /// them.
    fn powers(&self) -> Vec<f64> {
        let powers = || self.lo.floor() as i32..=self.hi.ceil() as i32;
        let is_inside = |value: &f64| (self.lo..=self.hi).contains(&value.log10());
        let fine = powers().flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * ten_to(power)));
        let fine: Vec<f64> = fine.filter(is_inside).collect();
        if fine.len() <= MARKS {
            return fine;
        }
        let coarse: Vec<f64> = powers().map(ten_to).filter(is_inside).collect();
        let every = coarse.len().div_ceil(MARKS).max(1);
        coarse.into_iter().step_by(every).collect()
    }
}

/// The nearest number to a power of ten.
fn ten_to(power: i32) -> f64 {
    if power < 0 { 1.0 / 10f64.powi(-power) } else { 10f64.powi(power) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(name: &str, [lo, hi]: [f64; 2], verdict: Verdict) -> Interval {
        let at = (lo + hi) / 2.0;
        let label = format!("{at:.2}x");
        Interval { name: name.into(), at, ends: [lo, hi], verdict: Some(verdict), label }
    }

    fn drawn(intervals: Vec<Interval>) -> String {
        let mark = |value: f64| format!("{value:.2}x");
        let base = Some((1.0, "the kernel alone"));
        Chart { name: "gains", base, mark: &mark, intervals }.markup().into_string()
    }

    #[test]
    fn a_verdict_has_a_form_and_texts_are_escaped() {
        let text = drawn(vec![
            interval("<fast>", [1.2, 1.4], Verdict::Better),
            interval("slow", [0.7, 0.9], Verdict::Worse),
            interval("same", [0.9, 1.1], Verdict::Undecided),
            interval("endless", [0.9, f64::INFINITY], Verdict::Undecided),
        ]);
        for part in ["&lt;fast&gt;", "1.30x", "the kernel alone", "line undecided", "line better"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert_eq!((text.matches("<circle").count(), text.matches("<rect").count()), (2, 1));
        assert!(!text.contains("endless") && !text.contains("inf") && !text.contains("NaN"));
    }

    #[test]
    fn every_interval_and_the_base_lie_in_the_picture() {
        for intervals in [
            &[[0.999, 1.001]][..],
            &[[0.2, 0.3], [1.1, 1.2]],
            &[[3.0, 40.0]],
            &[[1e-6, 2e-6]],
            &[[400.0, 600.0]],
            &[[-3.0, 5.0]],
            &[[0.0, 0.0]],
            &[[7.0, 7.0]],
            &[],
        ] {
            for base in [Some(1.0), None] {
                let scale = Scale::of(intervals.iter().copied(), base);
                let marks = scale.marks();
                for value in intervals.iter().flatten().chain(&base).chain(&marks) {
                    let place = scale.place_pct(*value);
                    assert!((0.0..=100.0).contains(&place), "{value} of {scale:?}: {place}");
                }
                assert!((1..=MARKS).contains(&marks.len()), "{scale:?}: {marks:?}");
            }
        }
    }

    #[test]
    fn marks_are_round_numbers() {
        let marks = |interval| {
            let marks = Scale::of([interval].into_iter(), Some(1.0)).marks();
            marks.into_iter().map(|mark| format!("{mark:.2}")).collect::<Vec<_>>()
        };
        assert_eq!(marks([0.9, 1.1]), ["0.90", "0.95", "1.00", "1.05", "1.10"]);
        assert_eq!(marks([5.0, 500.0]), ["1.00", "10.00", "100.00"]);
    }
}
