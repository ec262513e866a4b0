//! The report of an experiment, as `--json` writes it and `--from` reads it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use evenkeel_trial::{Plan, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{AimRow, Document, Experiment, MachineInfo, Row, commit, judge_aims, rows};

/// The version of [`Report`] as a document.
pub const REPORT_FORMAT: u32 = 1;

/// The result of an experiment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The experiment's name, as in `evenkeel-lab bench NAME`.
    pub experiment: String,
    /// The command line that measured it.
    pub command: String,
    /// The commit that was measured.
    pub commit: String,
    /// Where it was measured.
    pub machine: MachineInfo,
    /// What was left out, and why.
    #[serde(default)]
    pub said: Vec<String>,
    /// Contestants that failed.
    #[serde(default)]
    pub failed: Vec<Failed>,
    /// Programs that were asked for and not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Absent>,
    /// Which aims were set, and whether they were reached.
    pub aims: Vec<AimRow>,
    /// The figures.
    pub rows: Vec<Row>,
    /// What else the experiment has to say, as lists of sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sections: Vec<Section>,
    /// What else the experiment has for programs that read the JSON, its own later runs included.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, serde_json::Value>,
    /// What the terminal shows as its last line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<String>,
}

/// A contestant that failed, and was left out from then on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failed {
    /// The case.
    pub case: String,
    /// The program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The contestant.
    pub contestant: String,
    /// Why.
    pub why: String,
}

impl Failed {
    /// As a sentence, with the beginning of the reason: that may be the output of a whole program.
    pub fn words(&self) -> String {
        const MOST: usize = 200;
        let place = [self.case.as_str(), self.program.as_str()];
        let place =
            place.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let mut why = self.why.replace('\n', " ");
        if let Some((end, _)) = why.char_indices().nth(MOST) {
            why.replace_range(end.., " ...");
        }
        format!("{} failed, {place}: {why}", self.contestant)
    }
}

/// A program that could not be measured in a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Absent {
    /// The case.
    pub case: String,
    /// The program.
    pub program: String,
    /// Why.
    pub why: String,
}

impl Absent {
    /// As a sentence.
    pub fn words(&self) -> String {
        let Self { case, program, why } = self;
        format!("{program}, {case}: not measured: {}", why.replace('\n', " "))
    }
}

/// Sentences under a heading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The sentences, in Markdown.
    pub items: Vec<String>,
    /// They are plain text instead: they quote what other programs say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_plain: bool,
}

impl Section {
    /// Sentences in Markdown.
    pub fn new(title: &str, items: Vec<String>) -> Self {
        Self { title: title.to_owned(), items, is_plain: false }
    }

    /// Sentences that quote what other programs say, such as errors.
    pub fn plain(title: &str, items: Vec<String>) -> Self {
        Self { is_plain: true, ..Self::new(title, items) }
    }
}

impl Report {
    /// What the records show.
    pub fn new<How>(
        experiment: &Experiment<How>,
        records: &[Record],
        plan: &Plan,
        command: &str,
    ) -> Self {
        let failed = records.iter().flat_map(|record| {
            record.lines.iter().filter_map(|line| {
                Some(Failed {
                    case: record.case.clone(),
                    program: record.program.clone(),
                    contestant: line.contestant.clone(),
                    why: line.failed.clone()?,
                })
            })
        });
        Self {
            experiment: experiment.name.to_owned(),
            command: command.to_owned(),
            commit: commit(),
            machine: MachineInfo::read(),
            failed: failed.collect(),
            aims: judge_aims(&experiment.aims, experiment.metrics, records, plan.looks()),
            rows: rows(experiment.metrics, records, plan),
            ..Self::default()
        }
    }

    /// The report of this experiment that a file holds.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn load(experiment: &str, path: &Path) -> Result<Self> {
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let report = serde_json::from_slice::<Self>(&bytes).ok();
        report.filter(|report| report.experiment == experiment).with_context(|| {
            let path = path.display();
            format!(
                "{path} is not what `evenkeel-lab bench {experiment} --json` writes; measure anew"
            )
        })
    }

    /// As `--json` writes it.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn to_json(&self) -> Result<String> {
        Ok(Document::new(REPORT_FORMAT, self).to_json()?)
    }

    /// Takes over all rows, aims and failures of cases that this report has not. Of a case that was
    /// measured anew, nothing of the earlier report is kept: rows of two runs are not comparable.
    pub fn merge(&mut self, earlier: Self) {
        let place = |case: &str, program: &str| (case.to_owned(), program.to_owned());
        let measured: Vec<_> = self.rows.iter().map(|row| place(&row.case, &row.program)).collect();
        let is_new = |case: &str, program: &str| !measured.contains(&place(case, program));
        self.rows.extend(earlier.rows.into_iter().filter(|row| is_new(&row.case, &row.program)));
        self.aims.extend(earlier.aims.into_iter().filter(|aim| is_new(&aim.case, &aim.program)));
        self.failed
            .extend(earlier.failed.into_iter().filter(|one| is_new(&one.case, &one.program)));
    }

    /// A row by its place, its figure and its contestant.
    pub fn row(&self, case: &str, program: &str, metric: &str, contestant: &str) -> Option<&Row> {
        self.rows.iter().find(|row| {
            (row.case.as_str(), row.program.as_str()) == (case, program)
                && row.metric == metric
                && row.contestant == contestant
        })
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_trial::{Case, Sample};

    use super::*;
    use crate::{Aim, Contestant, Kind, Metric, Wanted};

    fn row(case: &str, median: f64) -> Row {
        serde_json::from_value(serde_json::json!({
            "case": case, "metric": "time", "contestant": "a", "median": median,
            "ci95": [median, median], "foreign_pct": 0.0, "runs": 5,
        }))
        .unwrap()
    }

    #[test]
    fn cases_that_were_measured_anew_replace_the_earlier_ones() {
        let mut report = Report { rows: vec![row("x", 1.0)], ..Report::default() };
        report.merge(Report { rows: vec![row("x", 2.0), row("y", 3.0)], ..Report::default() });
        let medians: Vec<f64> = report.rows.iter().map(|row| row.median).collect();
        assert_eq!(medians, [1.0, 3.0]);
    }

    /// The fields are what other programs read: none may vanish or be renamed unnoticed.
    #[test]
    fn json_has_exactly_the_documented_fields_and_comes_back() {
        const METRICS: [Metric; 1] = [Metric::new("time", Kind::Time, "").summed()];
        let contestants = ["default", "lag"].map(|name| Contestant::new(name, "", ()));
        let aims = vec![Aim::new("lag", "time", Wanted::Better("default"))];
        let experiment = Experiment { aims, ..Experiment::sample(contestants.to_vec(), &METRICS) };
        let mut record = Record::new(&Case {
            name: "softirq".into(),
            program: "static_loop".into(),
            contestants: vec!["default".into(), "lag".into()],
            has_second_baseline: true,
            ..Case::default()
        });
        for (line, seconds) in record.lines.iter_mut().zip([3.2, 2.5, 3.2]) {
            let sample = Sample { foreign_pct: 1.0, ..Sample::new([("time", seconds)]) };
            line.rounds = vec![Some(sample); 6];
        }
        record.lines[2].failed = Some("no CPU\nis left".into());
        record.lines[1].repeated = 1;
        let mut report = Report::new(&experiment, &[record], &Plan::fixed(6), "command");
        report.machine.notes.insert("irq_time_accounting".into(), "no".into());
        let json = serde_json::to_value(&report).unwrap();
        let fields = |value: &serde_json::Value| {
            let fields: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            fields.join(" ")
        };
        assert_eq!(fields(&json), "aims command commit experiment failed machine rows said");
        let row = &json["rows"][1];
        assert_eq!(
            fields(row),
            "against case ci95 contestant foreign_pct median metric program ratio ratio_ci95 \
             repeated runs total verdict"
        );
        assert_eq!(
            fields(&json["aims"][0]),
            "case ci95 contestant found metric program reached verdict wanted"
        );
        assert_eq!(fields(&json["failed"][0]), "case contestant program why");
        assert_eq!((&row["verdict"], &row["runs"]), (&"better".into(), &6.into()));
        assert_eq!((&row["median"], &row["repeated"]), (&2.5.into(), &1.into()));
        assert_eq!(row["ci95"].as_array().unwrap().len(), 2);
        assert_eq!(json["machine"]["irq_time_accounting"], "no");
        // The baseline is compared with nothing; the A/A row says that it is one.
        assert!(json["rows"][0]["verdict"].is_null() && json["rows"][0]["ratio"].is_null());
        assert_eq!(json["rows"][2]["is_again"], true);
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    #[test]
    fn a_long_reason_is_cut() {
        let failed = |why: &str| {
            let (case, program, contestant) = ("counted".into(), String::new(), "scx_lavd".into());
            Failed { case, program, contestant, why: why.into() }.words()
        };
        assert_eq!(failed("it\nended"), "scx_lavd failed, counted: it ended");
        let long = failed(&"µ".repeat(1000));
        assert_eq!(long, format!("scx_lavd failed, counted: {} ...", "µ".repeat(200)));
    }
}
