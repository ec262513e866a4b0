//! A panel as an SVG picture.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::study::{Panel, Point};

const SIZE: (u32, u32) = (640, 400);
/// Distinct also for those who do not see red and green as different (Okabe and Ito, but grey for their yellow,
/// which is hard to see on white).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
    RGBColor(128, 128, 128),
];
/// Room above the highest value and below the lowest, as a share of what is between them.
const HEADROOM: f64 = 0.1;

/// The picture's text: a line for each series, a bar for each interval.
///
/// # Errors
/// The drawing library gives up.
pub fn svg(panel: &Panel) -> Result<String> {
    let mut text = String::new();
    draw(panel, &mut text).map_err(|why| anyhow!("cannot draw {}: {why}", panel.id))?;
    Ok(text)
}

fn draw(panel: &Panel, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let highest = points(panel).map(|(_, point)| point.ci95[1]).fold(0.0, f64::max);
    let lowest = points(panel).map(|(_, point)| point.ci95[0]).fold(0.0, f64::min);
    let room = (highest - lowest) * HEADROOM;
    let top = if highest > 0.0 { highest + room } else { 1.0 };
    let bottom = if lowest < 0.0 { lowest - room } else { 0.0 };
    let right = panel.places.len().saturating_sub(1) as f64 + 0.5;
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(&panel.title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(45)
        .y_label_area_size(65)
        .build_cartesian_2d(-0.5..right, bottom..top)?;
    let place = |x: &f64| {
        let whole = (x - x.round()).abs() < 1e-6;
        let name = whole.then(|| panel.places.get(x.round() as usize)).flatten();
        name.cloned().unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * panel.places.len() + 1)
        .x_label_formatter(&place)
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .draw()?;
    for (index, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let line: Vec<(f64, f64)> = (0..)
            .zip(&series.points)
            .filter_map(|(x, point)| Some((f64::from(x), point.as_ref()?.median)))
            .collect();
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour));
        chart.draw_series(line.into_iter().map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    // Beside each other, so that bars of the same place do not hide one another.
    let step = 0.04;
    chart.draw_series(points(panel).map(|((series, x), point)| {
        let x = x as f64 + step * (series as f64 - (panel.series.len() as f64 - 1.0) / 2.0);
        let colour = COLOURS[series % COLOURS.len()];
        PathElement::new(vec![(x, point.ci95[0]), (x, point.ci95[1])], colour)
    }))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

/// All points, with the numbers of their series and of their places.
fn points(panel: &Panel) -> impl Iterator<Item = ((usize, usize), &Point)> {
    panel.series.iter().enumerate().flat_map(|(series, one)| {
        let points = one.points.iter().enumerate();
        points.filter_map(move |(x, point)| Some(((series, x), point.as_ref()?)))
    })
}

#[cfg(test)]
mod tests {
    use super::super::study::Series;
    use super::*;

    #[test]
    fn names_places_and_lines_are_in_the_picture() {
        let series = |name: &str, values: &[f64]| Series {
            name: name.into(),
            points: values.iter().map(|value| Some(Point::once(*value))).collect(),
        };
        let panel = Panel {
            id: "p".into(),
            title: "avg_chore".into(),
            x: "tasks".into(),
            y: "chores".into(),
            places: vec!["one".into(), "two".into(), "three".into()],
            series: vec![series("default", &[1.0, 2.0, 3.0]), series("lag", &[3.0, 2.0, 1.0])],
        };
        let text = svg(&panel).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"), "{text}");
        for word in ["avg_chore", "tasks", "chores", "one", "two", "three", "default", "lag"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
    }

    #[test]
    fn what_is_below_zero_is_in_the_picture() {
        let series = Series {
            name: "loss".into(),
            points: [-10.0, 5.0].map(|value| Some(Point::once(value))).to_vec(),
        };
        let places = vec!["a".into(), "b".into()];
        let text = svg(&Panel { places, series: vec![series], ..Panel::default() }).unwrap();
        assert!(text.contains("-10"), "the axis goes down to it: {text}");
    }

    #[test]
    fn a_panel_without_values_is_drawn_too() {
        svg(&Panel::default()).unwrap();
    }
}
