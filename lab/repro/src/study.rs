//! What the reproduction of a paper is made of: parts, each with findings and panels. One
//! definition of a figure; the JSON, the tables and the plots are all made from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use evenkeel_experiment::MachineInfo;
use evenkeel_stats::{Estimate, Verdict};

/// The version of [`Study`] as a document.
pub const FORMAT: u32 = 1;

/// A paper's reproduction, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Study {
    /// The paper's number.
    pub paper: String,
    /// Its authors and title.
    pub title: String,
    /// The command line that measured it.
    pub command: String,
    /// The commit that was measured.
    #[serde(default)]
    pub commit: String,
    /// Where it was measured.
    pub machine: MachineInfo,
    /// In the order of the paper.
    pub parts: Vec<Part>,
}

/// A figure or table of the paper (or what belongs together).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// Its name on the command line, `figure-8`.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// How it was measured, and what is different from the paper.
    pub method: String,
    /// What the paper says, and what we found.
    pub findings: Vec<Finding>,
    /// The figures.
    pub panels: Vec<Panel>,
    /// The same as rows for other programs, if the part has such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<serde_json::Value>,
    /// What the paper has and this has not, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<String>,
    /// Why it could not be measured, though it should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What became of a statement of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It holds here.
    Reproduced,
    /// It does not hold here.
    NotReproduced,
    /// Something else that shows the same holds here.
    Substitute,
    /// It cannot be measured here.
    Cannot,
    /// Not the paper's but our own aim, and reached.
    Reached,
    /// The same, and missed.
    Missed,
    /// Neither the paper nor we set a mark for it.
    Reported,
}

impl Status {
    /// As the page has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Substitute => "substitute",
            Self::Cannot => "cannot",
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::Reported => "reported",
        }
    }

    /// [`Self::Reproduced`] or not.
    pub fn reproduced(holds: bool) -> Self {
        if holds { Self::Reproduced } else { Self::NotReproduced }
    }

    /// [`Self::Substitute`] or not reproduced.
    pub fn substitute(holds: bool) -> Self {
        if holds { Self::Substitute } else { Self::NotReproduced }
    }

    /// [`Self::Reached`] or not.
    pub fn reached(holds: bool) -> Self {
        if holds { Self::Reached } else { Self::Missed }
    }
}

/// One statement: the paper's figure, ours, the bound, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What is said.
    pub claim: String,
    /// The paper's figure, or the aim.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// The best that any balancer can do; "-" where there is no such figure.
    pub bound: String,
    /// What became of it.
    pub status: Status,
}

impl Finding {
    /// A finding without a bound.
    pub fn new(
        claim: impl Into<String>,
        paper: impl Into<String>,
        ours: impl Into<String>,
        status: Status,
    ) -> Self {
        let (claim, paper, ours) = (claim.into(), paper.into(), ours.into());
        Self { claim, paper, ours, bound: "-".to_owned(), status }
    }
}

/// One plot and one table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Panel {
    /// The file's name without directory and ending.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// What the places on the x axis are, with unit.
    pub x: String,
    /// What the values are, with unit.
    pub y: String,
    /// The places, from left to right, by name; each series has a point for each.
    pub places: Vec<String>,
    /// The series.
    pub series: Vec<Series>,
}

/// One line of a plot, one column of a table.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// By place; `None` where there is no value.
    pub points: Vec<Option<Point>>,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// The median.
    pub median: f64,
    /// Its 95 % interval (the range, with fewer than 6 runs).
    pub ci95: [f64; 2],
    /// Runs.
    pub runs: usize,
    /// Against the series that the others are compared with, where they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

impl Point {
    /// The median of some values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let Estimate { median, lo, hi, .. } = evenkeel_stats::estimate(values)?;
        Some(Self { median, ci95: [lo, hi], runs: values.len(), verdict: None })
    }

    /// One value, measured once.
    pub fn once(value: f64) -> Self {
        Self { median: value, ci95: [value, value], runs: 1, verdict: None }
    }
}

impl Panel {
    /// These series, with a point at each of these places.
    pub fn new(
        [id, title, x, y]: [&str; 4],
        places: impl IntoIterator<Item = impl ToString>,
        series: impl IntoIterator<Item = (impl ToString, Vec<Option<Point>>)>,
    ) -> Self {
        let series =
            series.into_iter().map(|(name, points)| Series { name: name.to_string(), points });
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            places: places.into_iter().map(|place| place.to_string()).collect(),
            series: series.collect(),
        }
    }

    /// Adds the first place of another panel under this name. A series that only one of them has is
    /// without points at the places of the other.
    pub fn append(&mut self, other: Self, place: &str) {
        let before = self.places.len();
        self.places.push(place.to_owned());
        for theirs in other.series {
            let point = theirs.points.into_iter().next().flatten();
            let at = self.series.iter().position(|ours| ours.name == theirs.name);
            let at = at.unwrap_or_else(|| {
                self.series.push(Series { name: theirs.name, points: vec![None; before] });
                self.series.len() - 1
            });
            self.series[at].points.push(point);
        }
        for series in &mut self.series {
            series.points.resize(before + 1, None);
        }
    }
}

impl Part {
    /// The result of measuring the part `id`; of a failure, the reason. A quick run proves nothing: of
    /// its findings only those stay that no run can make.
    pub fn measured(id: &str, measured: anyhow::Result<Self>, is_quick: bool) -> Self {
        let mut part = measured.unwrap_or_else(|why| Self {
            failed: Some(format!("{why:#}")),
            title: id.to_owned(),
            ..Self::default()
        });
        part.id = id.to_owned();
        if is_quick {
            part.findings.retain(|finding| finding.status == Status::Cannot);
        }
        part
    }

    /// The part where none of it can be measured: why not.
    pub fn cannot(id: &str, title: &str, claim: &str, paper: &str, why: String) -> Self {
        let finding = Finding::new(claim, paper, why, Status::Cannot);
        Self { id: id.into(), title: title.into(), findings: vec![finding], ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_of_some_places_has_no_points_at_the_others() {
        let panel = |names: &[&str]| {
            let series = names.iter().map(|name| Series {
                name: (*name).to_owned(),
                points: vec![Some(Point::once(1.0))],
            });
            Panel { series: series.collect(), ..Panel::default() }
        };
        let mut all = Panel::default();
        all.append(panel(&["default"]), "a");
        all.append(panel(&["default", "default again"]), "b");
        all.append(panel(&["default"]), "c");
        let is_there = |series: &Series| series.points.iter().map(Option::is_some).collect();
        let found: Vec<Vec<bool>> = all.series.iter().map(is_there).collect();
        assert_eq!(found, [vec![true; 3], vec![false, true, false]]);
    }
}
