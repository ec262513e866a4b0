//! A panel as an SVG picture: a line for each series, a bar for each interval, and a legend below.
//!
//! The picture is written here, without a drawing library: all sizes follow from the panel's texts,
//! so that no label is cut off, and coordinates have one decimal, so that the file stays small.

use std::fmt::Write as _;

use super::study::{Panel, Point};

/// The plotting area, in pixels.
const PLOT_WIDTH: f64 = 620.0;
const PLOT_HEIGHT: f64 = 300.0;
/// Left of the area, at least: the values and the name of the axis.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const LINE_HEIGHT: f64 = 16.0;
/// The width of a letter at the font size of 12, on the wide side.
const LETTER: f64 = 7.0;
/// Marks of the y axis, at most.
const MARKS: f64 = 8.0;
/// Names of places that are longer than their room are turned by this angle.
const TURN_DEGREES: f64 = 30.0;
/// More places than this do not all get a name.
const NAMED_PLACES: usize = 40;
/// Readers who cannot tell red from green can tell these colours (Okabe and Ito, with grey for their
/// yellow, which is hard to see on white).
const COLOURS: [&str; 8] =
    ["#000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#808080"];
/// How a page for a browser shows the pictures: with its own colours for ground, axes and texts, so that
/// they are dark on a dark page; the other colours are seen on both. The page has the titles as text.
pub const STYLE: &str = "
figure svg { display: block; margin: auto }
figure svg .title { display: none }
figure svg > rect { fill: var(--page) }
figure svg text, figure svg [fill='#000'] { fill: var(--ink) }
figure svg [stroke='#000'] { stroke: var(--ink) }
";
/// Room above the highest value and below the lowest, as a share of what is between them.
const HEADROOM: f64 = 0.1;

/// The picture's text.
pub fn svg(panel: &Panel) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = Picture::new(panel).write(&mut text);
    text
}

struct Picture<'a> {
    panel: &'a Panel,
    /// The lines of the title.
    title: Vec<String>,
    /// The legend: in rows, series by their index and their place from the left.
    legend: Vec<Vec<(usize, f64)>>,
    /// The y axis: its ends, and the distance of its marks.
    bottom: f64,
    top: f64,
    step: f64,
    are_names_turned: bool,
    left: f64,
}

impl<'a> Picture<'a> {
    fn new(panel: &'a Panel) -> Self {
        let highest = points(panel).map(|(_, point)| point.ci95[1]).fold(0.0, f64::max);
        let lowest = points(panel).map(|(_, point)| point.ci95[0]).fold(0.0, f64::min);
        let room = (highest - lowest) * HEADROOM;
        let top = if highest > 0.0 { highest + room } else { 1.0 };
        let bottom = if lowest < 0.0 { lowest - room } else { 0.0 };
        let slot = PLOT_WIDTH / panel.places.len().max(1) as f64;
        let are_names_turned = panel.places.iter().any(|name| width(name) > slot);
        let left = if are_names_turned { left_of_turned(&panel.places, slot) } else { LEFT };
        Self {
            panel,
            title: wrap(&panel.title, left + PLOT_WIDTH),
            legend: legend(panel, left + PLOT_WIDTH + RIGHT),
            bottom,
            top,
            step: step(top - bottom),
            are_names_turned,
            left,
        }
    }

    fn plot_top(&self) -> f64 {
        10.0 + LINE_HEIGHT * self.title.len() as f64
    }

    /// The room that the names of the places take below the plot.
    fn names_height(&self) -> f64 {
        if !self.are_names_turned {
            return LINE_HEIGHT + 6.0;
        }
        let longest = self.panel.places.iter().map(|name| width(name)).fold(0.0, f64::max);
        longest * TURN_DEGREES.to_radians().sin() + LINE_HEIGHT
    }

    fn x(&self, place: f64) -> f64 {
        self.left + PLOT_WIDTH * (place + 0.5) / self.panel.places.len().max(1) as f64
    }

    fn y(&self, value: f64) -> f64 {
        self.plot_top() + PLOT_HEIGHT * (self.top - value) / (self.top - self.bottom)
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let names_bottom = self.plot_top() + PLOT_HEIGHT + self.names_height();
        let height = names_bottom + LINE_HEIGHT * (1.5 + self.legend.len() as f64);
        let width = self.left + PLOT_WIDTH + RIGHT;
        writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\">"
        )?;
        writeln!(text, r##"<rect width="100%" height="100%" fill="#fff"/>"##)?;
        for (row, line) in self.title.iter().enumerate() {
            let (x, y) = (width / 2.0, LINE_HEIGHT * (row as f64 + 1.0));
            let line = escape(line);
            writeln!(
                text,
                r#"<text class="title" x="{x:.0}" y="{y:.0}" text-anchor="middle">{line}</text>"#
            )?;
        }
        self.write_axes(text)?;
        for index in 0..self.panel.series.len() {
            self.write_series(text, index)?;
        }
        let (x, y) = (self.left + PLOT_WIDTH / 2.0, names_bottom + LINE_HEIGHT * 0.5);
        let name = escape(&self.panel.x);
        writeln!(text, r#"<text x="{x:.0}" y="{y:.0}" text-anchor="middle">{name}</text>"#)?;
        for (row, entries) in self.legend.iter().enumerate() {
            let y = names_bottom + LINE_HEIGHT * (1.75 + row as f64);
            for (index, x) in entries {
                let (colour, middle) = (COLOURS[index % COLOURS.len()], y - 4.0);
                let name = escape(&self.panel.series[*index].name);
                writeln!(
                    text,
                    "<path d=\"M{x:.0} {middle:.0}h18\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                     <text x=\"{:.0}\" y=\"{y:.0}\">{name}</text>",
                    x + 23.0
                )?;
            }
        }
        writeln!(text, "</svg>")
    }

    /// The axes, with their marks and names; no lines across the plot.
    fn write_axes(&self, text: &mut String) -> std::fmt::Result {
        let (left, top) = (self.left, self.plot_top());
        let floor = top + PLOT_HEIGHT;
        writeln!(
            text,
            r##"<path d="M{left:.1} {top:.1}V{floor:.1}h{PLOT_WIDTH}" fill="none" stroke="#000"/>"##
        )?;
        let (first, last) = (self.bottom / self.step, self.top / self.step);
        for mark in first.ceil() as i64..=last.floor() as i64 {
            let value = mark as f64 * self.step;
            let (y, value) = (self.y(value), mark_text(value, self.step));
            writeln!(
                text,
                "<path d=\"M{left:.1} {y:.1}h-5\" stroke=\"#000\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                left - 8.0,
                y + 4.0
            )?;
        }
        let (middle, name) = (top + PLOT_HEIGHT / 2.0, escape(&self.panel.y));
        // The name of the y axis stands upright; one that is longer than the plot is made to fit.
        let fit = if width(&self.panel.y) > PLOT_HEIGHT {
            format!(r#" textLength="{PLOT_HEIGHT}" lengthAdjust="spacingAndGlyphs""#)
        } else {
            String::new()
        };
        writeln!(
            text,
            "<text transform=\"translate({:.0} {middle:.0}) rotate(-90)\" \
             text-anchor=\"middle\"{fit}>{name}</text>",
            left - LEFT + 16.0
        )?;
        let every = self.panel.places.len().div_ceil(NAMED_PLACES).max(1);
        for (index, place) in self.panel.places.iter().enumerate().step_by(every) {
            let (x, y, place) = (self.x(index as f64), floor + LINE_HEIGHT, escape(place));
            let at = if self.are_names_turned {
                format!(
                    r#"transform="translate({x:.1} {:.1}) rotate(-{TURN_DEGREES})" text-anchor="end""#,
                    y - 4.0
                )
            } else {
                format!(r#"x="{x:.1}" y="{y:.1}" text-anchor="middle""#)
            };
            writeln!(text, "<text {at}>{place}</text>")?;
        }
        Ok(())
    }

    fn write_series(&self, text: &mut String, index: usize) -> std::fmt::Result {
        let colour = COLOURS[index % COLOURS.len()];
        let series = &self.panel.series[index];
        // Bars of one place stand beside each other: none hides another.
        let aside = 3.0 * (index as f64 - (self.panel.series.len() as f64 - 1.0) / 2.0);
        let (mut line, mut dots, mut bars) = (String::new(), String::new(), String::new());
        let places = series.points.iter().enumerate();
        for (place, point) in places.filter_map(|(place, point)| Some((place, point.as_ref()?))) {
            let (x, y) = (self.x(place as f64), self.y(point.median));
            write!(line, "{}{x:.1} {y:.1}", if line.is_empty() { "M" } else { "L" })?;
            write!(dots, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3"/>"#)?;
            let [lo, hi] = point.ci95.map(|value| self.y(value));
            if (lo - hi).abs() > 0.1 {
                write!(bars, "M{:.1} {lo:.1}V{hi:.1}", x + aside)?;
            }
        }
        if line.is_empty() {
            return Ok(());
        }
        writeln!(
            text,
            "<path d=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <g fill=\"{colour}\">{dots}</g>"
        )?;
        if !bars.is_empty() {
            writeln!(text, r#"<path d="{bars}" stroke="{colour}"/>"#)?;
        }
        Ok(())
    }
}

/// All points, with the numbers of their series and of their places.
fn points(panel: &Panel) -> impl Iterator<Item = ((usize, usize), &Point)> {
    panel.series.iter().enumerate().flat_map(|(series, one)| {
        let points = one.points.iter().enumerate();
        points.filter_map(move |(x, point)| Some(((series, x), point.as_ref()?)))
    })
}

/// The width of a text, estimated from above.
fn width(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

/// A text in lines of at most this width; a longer word has a line of its own.
fn wrap(text: &str, most: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if width(line) + width(word) + LETTER <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The room left of the plot so that no turned name is cut off.
fn left_of_turned(places: &[String], slot: f64) -> f64 {
    let reach = |name: &String| width(name) * TURN_DEGREES.to_radians().cos() + LETTER;
    let beyond = places.iter().enumerate().map(|(at, name)| reach(name) - slot * (at as f64 + 0.5));
    beyond.fold(LEFT, f64::max)
}

/// The rows of the legend of a picture with this width.
fn legend(panel: &Panel, most: f64) -> Vec<Vec<(usize, f64)>> {
    const LINE_AND_GAPS: f64 = 40.0;
    const LEFT_EDGE: f64 = 10.0;
    let mut rows: Vec<Vec<(usize, f64)>> = Vec::new();
    let mut x = f64::INFINITY;
    for (index, series) in panel.series.iter().enumerate() {
        let needed = LINE_AND_GAPS + width(&series.name);
        if x + needed > most {
            rows.push(Vec::new());
            x = LEFT_EDGE;
        }
        if let Some(row) = rows.last_mut() {
            row.push((index, x));
        }
        x += needed;
    }
    rows
}

/// The distance of marks, 1, 2 or 5 times a power of ten, so that there are at most [`MARKS`].
fn step(range: f64) -> f64 {
    let least = (range / MARKS).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|times| times * power)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least)
}

/// A mark's value, with as many decimals as its step has.
fn mark_text(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{value:.decimals$}")
}

/// A text inside an element of SVG or HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::study::Series;
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        let points = values.iter().map(|value| Some(Point::once(*value))).collect();
        Series { name: name.into(), points }
    }

    #[test]
    fn names_places_and_lines_are_in_the_picture() {
        let panel = Panel {
            id: "p".into(),
            title: "avg_chore".into(),
            x: "tasks".into(),
            y: "chores".into(),
            places: vec!["one".into(), "two".into(), "three".into()],
            series: vec![series("default", &[1.0, 2.0, 3.0]), series("lag", &[3.0, 2.0, 1.0])],
        };
        let text = svg(&panel);
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        for word in ["avg_chore", "tasks", "chores", "one", "two", "three", "default", "lag"] {
            assert!(text.contains(&format!(">{word}</text>")), "{word} is missing in {text}");
        }
    }

    #[test]
    fn values_below_zero_are_in_the_picture() {
        let places = vec!["a".into(), "b".into()];
        let series = vec![series("loss", &[-10.0, 5.0])];
        let text = svg(&Panel { places, series, ..Panel::default() });
        assert!(text.contains(">-10</text>"), "the axis goes down to it: {text}");
    }

    #[test]
    fn a_panel_without_values_is_drawn_too() {
        assert!(svg(&Panel::default()).contains("</svg>"));
    }

    #[test]
    fn long_labels_have_room_and_special_letters_are_escaped() {
        let place = |at| format!("a place with a very long name, number {at}");
        let name = |at| format!("series <{at}> with a name that needs half of a row");
        let panel = Panel {
            title: "word ".repeat(60),
            places: (0..6).map(place).collect(),
            series: (0..5).map(|at| series(&name(at), &[1.0; 6])).collect(),
            ..Panel::default()
        };
        let picture = Picture::new(&panel);
        assert!(picture.are_names_turned && picture.title.len() > 2);
        let most = picture.left + PLOT_WIDTH + RIGHT;
        for (index, x) in picture.legend.iter().flatten() {
            assert!(x + width(&panel.series[*index].name) < most, "{:?}", picture.legend);
        }
        let reach = width(&panel.places[0]) * TURN_DEGREES.to_radians().cos();
        assert!(picture.x(0.0) > reach, "the name begins left of the picture: {reach}");
        assert!(svg(&panel).contains("series &lt;0&gt;"));
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!([0.7, 1.0, 7.0, 30.0, 900.0].map(step), [0.1, 0.2, 1.0, 5.0, 200.0]);
        assert_eq!((mark_text(0.2, 0.1), mark_text(40.0, 5.0)), ("0.2".into(), "40".into()));
    }

    #[test]
    fn a_picture_is_small() {
        let panel = Panel {
            places: (0..40).map(|at| at.to_string()).collect(),
            series: (0..8).map(|at| series(&at.to_string(), &[1.0; 40])).collect(),
            ..Panel::default()
        };
        let bytes = svg(&panel).len();
        assert!(bytes < 40_000, "{bytes} bytes");
    }
}
