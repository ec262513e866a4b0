//! Table 1: RUBiS, a web server and its database, each of one address space with many threads.

use anyhow::Result;

use super::lab::{Bonus, Lab, SHOWN, duo, names, time_ms, with_fair};
use super::paper::TABLE_1;
use crate::simulated::{Contestant, median};
use crate::study::{Finding, Panel, Part, Point, Status};

/// How many requests each client sends, ...
const REQUESTS: f64 = 50.0;
const QUICK_REQUESTS: f64 = 3.0;
/// ... and how long it thinks before each.
const THINK_MS: f64 = 50.0;

fn requests(is_quick: bool) -> f64 {
    if is_quick { QUICK_REQUESTS } else { REQUESTS }
}

/// The clients and both servers.
pub fn load(is_quick: bool) -> String {
    format!("tiers:requests={},think={THINK_MS}ms", requests(is_quick))
}

fn contestants() -> Result<Vec<Contestant>> {
    let bonuses = TABLE_1.iter().skip(1).map(|column| column.bonus_ns);
    with_fair(bonuses.map(|ns| (format!("{}M", ns / 1_000_000), Bonus::Ns(ns))))
}

/// The table's columns.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let (requests, load) = (requests(lab.is_quick), load(lab.is_quick));
    let contestants = contestants()?;
    let names = names(&contestants);
    let seen = lab.see(std::slice::from_ref(&load), &duo()?, &contestants, lab.seeds)?;
    let mut sessions = Vec::new();
    let mut responses = Vec::new();
    for name in &names {
        let times = seen.of(&load, name, time_ms);
        let slower = seen.by_fair(&load, name, time_ms);
        sessions.push(slower.iter().map(|ratio| 1.0 / ratio).collect::<Vec<f64>>());
        // A client asks, waits and thinks again, all the time.
        responses.push(times.iter().map(|ms| ms / requests - THINK_MS).collect::<Vec<f64>>());
    }
    let panel = |id: &str, y: &str, paper: fn(usize) -> f64, ours: &[Vec<f64>]| {
        let mut papers: Vec<_> =
            (0..TABLE_1.len()).map(|at| Some(Point::once(paper(at)))).collect();
        papers.push(None);
        let ours = ours.iter().map(|values| Point::of(values)).collect();
        let texts = [&format!("table-1-{id}"), &format!("Table 1: {y}"), "bonus", y];
        Panel::new(texts, &names, [("paper", papers), ("keel, simulated", ours)])
    };
    let times: Vec<Vec<f64>> = responses
        .iter()
        .map(|values| values.iter().map(|ms| ms / median(&responses[0])).collect())
        .collect();
    let mut panels = vec![
        panel(
            "sessions",
            "requests a second, by those under fair",
            |at| TABLE_1[at].sessions / TABLE_1[0].sessions,
            &sessions,
        ),
        panel(
            "response",
            "response time, by that under fair",
            |at| TABLE_1[at].response_ms / TABLE_1[0].response_ms,
            &times,
        ),
    ];
    for (id, y, value) in SHOWN {
        panels.push(seen.panel((&format!("table-1-{id}"), y, value), &load, &contestants));
    }
    // Without the A/A line.
    let medians = |all: &[Vec<f64>]| -> Vec<f64> {
        all.iter().take(contestants.len()).map(|values| median(values)).collect()
    };
    let (more, less) = (medians(&sessions), medians(&times));
    let text = |values: &[f64]| {
        values.iter().skip(1).map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
    };
    let rises = more.iter().skip(1).all(|ratio| *ratio > 1.0);
    let falls_again = more.last() < more.iter().rev().nth(1);
    Ok(Part {
        title: "Table 1: a web server and its database (RUBiS)".into(),
        method: format!(
            "`{load}` on two cores with one cache of 3 MiB: 200 clients, which take no CPU time but \
             their switches, ask a web server of 100 threads (1 ms on the average), which asks a \
             database of 100 threads (2 ms); each server's threads use 2 MiB, a KiB of it every 3.3 \
             us. All but the number of servers is our choice: the paper gives no parameters of RUBiS. \
             Sessions are requests a second; the response time follows from it, since each client \
             asks, waits and thinks by turns."
        ),
        findings: vec![
            Finding::new(
                "all three bonuses let more sessions be completed",
                "1.12, 1.30, 1.15 times",
                format!("{} times", text(&more)),
                Status::substitute(rises),
            ),
            Finding::new(
                "and shorten the response time",
                "0.77, 0.68, 0.85 times",
                format!("{} times", text(&less)),
                Status::substitute(less.iter().skip(1).all(|ratio| *ratio < 1.0)),
            ),
            Finding::new(
                "100M is too much: the other server's threads wait too long",
                "less gained than with 10M",
                format!("{:.2} times with 100M, {:.2} with 10M", more[3], more[2]),
                Status::reproduced(falls_again),
            ),
        ],
        panels,
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bonus_fewer_switches_between_the_servers() {
        let part = measure(&Lab::quick(2)).unwrap();
        let spaces = part.panels.iter().find(|panel| panel.id == "table-1-spaces").unwrap();
        let points = &spaces.series[0].points;
        assert!(points[3].unwrap().median < 0.8 * points[0].unwrap().median, "{points:?}");
        assert_eq!(part.panels[0].series[0].points[2].unwrap().median, 301.0 / 230.0);
    }
}
