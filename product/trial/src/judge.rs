//! Comparisons with the baseline, and their verdicts.

use evenkeel_stats::{Comparison, Judged, judge as judge_family};

use crate::{Figure, Record, Role};

/// One judged figure of one contestant in one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// The index of the record.
    pub record: usize,
    /// The index of its line.
    pub line: usize,
    /// The index of the figure.
    pub figure: usize,
    /// Against the baseline.
    pub judged: Judged,
}

/// Compares all lines of all records with their baselines. The rows of contestants are one family:
/// the chance of even one wrong verdict among them is 5 %, however often they are looked at within
/// `looks`. A/A rows are a family of their own: they make no claim, and must not cost the claims
/// any power.
pub fn judge(records: &[Record], figures: &[Figure], looks: usize) -> Vec<Judgement> {
    let mut rows: Vec<Judgement> = [Role::Contestant, Role::SecondBaseline]
        .into_iter()
        .flat_map(|role| judge_role(records, figures, looks, role))
        .collect();
    rows.sort_by_key(|row| (row.record, row.figure, row.line));
    rows
}

fn judge_role(records: &[Record], figures: &[Figure], looks: usize, role: Role) -> Vec<Judgement> {
    let mut places = Vec::new();
    let mut comparisons: Vec<Comparison> = Vec::new();
    for (r, record) in records.iter().enumerate() {
        let Some(baseline) = record.lines.first() else { continue };
        for (l, line) in record.lines.iter().enumerate().filter(|(_, line)| line.role == role) {
            for (f, figure) in figures.iter().enumerate() {
                let compared = record.compare(figure, &baseline.contestant, &line.contestant);
                places.extend(compared.map(|_| (r, l, f)));
                comparisons.extend(compared);
            }
        }
    }
    let judged = judge_family(&comparisons, looks);
    let row = |((record, line, figure), judged)| Judgement { record, line, figure, judged };
    places.into_iter().zip(judged).map(row).collect()
}
