//! Figure 4: how strongly programs aggregate, by multiples of what ran last and by times.

use anyhow::Result;

use super::lab::{Bonus, Lab, SHOWN, Seen, names, quad, time_ms, touch, with_fair};
use super::paper::{ENOUGH_NS, MULTIPLES, TIMES_NS};
use crate::simulated::median;
use crate::study::{Finding, Panel, Part, Point, Status};

/// How many times as fast as by the paper's latency memory is fetched: caches fetch ahead.
const FETCHES: [f64; 2] = [1.0, 4.0];
/// Times that differ by less than this are the same.
const SAME: f64 = 1.01;
/// So much of the largest gain is as good as all of it.
const MOST: f64 = 0.9;

fn multiples() -> Vec<(String, Bonus)> {
    MULTIPLES.map(|times| (format!("d_{times}"), Bonus::Times(times))).to_vec()
}

fn times() -> Vec<(String, Bonus)> {
    TIMES_NS.map(|(name, ns)| (format!("s_{name}"), Bonus::Ns(ns))).to_vec()
}

/// Ten programs that write to a block of 4 MiB each.
pub fn load(is_quick: bool) -> String {
    match is_quick {
        true => format!("memory:threads=20,total=1,touch={}", touch()),
        false => format!("memory:block=4,total=10,touch={}", touch()),
    }
}

/// All bonuses of the figure.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let load = load(lab.is_quick);
    let contestants = with_fair([multiples(), times()].concat())?;
    let shown = names(&contestants).split_off(1);
    let mut series = Vec::new();
    let mut first = None;
    for fetch in FETCHES {
        let seen = lab.see(std::slice::from_ref(&load), &quad(fetch)?, &contestants, lab.seeds)?;
        let points = shown.iter().map(|name| Point::of(&seen.by_fair(&load, name, time_ms)));
        let name = if fetch == 1.0 {
            "the paper's latency"
        } else {
            "memory fetched ahead, 4 times as fast"
        };
        series.push((name, points.collect()));
        first.get_or_insert(seen);
    }
    let y = "execution time by that under fair";
    let texts = ["figure-4", "Figure 4: execution time", "bonus", y];
    let mut panels = vec![Panel::new(texts, shown, series)];
    let mut findings = Vec::new();
    if let Some(seen) = &first {
        for (id, y, value) in SHOWN {
            panels.push(seen.panel((&format!("figure-4-{id}"), y, value), &load, &contestants));
        }
        findings = found(seen, &load);
    }
    Ok(Part {
        title: "Figure 4: the strength of aggregation".into(),
        method: format!(
            "`{load}`: SysBench's memory program ten times, 100 threads each, which write to a block \
             of 4 MiB of their program's until together they have written 10 GiB. Four cores, two to \
             a cache of 3 MiB; a line of 64 bytes takes 5.6 ns from there and 74.4 ns from memory \
             (table 4), or a quarter of that. Slices are 32 ms: the paper measured a mean quantum of \
             33M. d_N is N times what ran last (type 1), s_N is N ns of vruntime (type 0). `fair` \
             stands for CFS. Execution times are the simulator's model of caches; which thread runs \
             when is not."
        ),
        findings,
        panels,
        ..Part::default()
    })
}

fn found(seen: &Seen, load: &str) -> Vec<Finding> {
    let ratios = |all: Vec<(String, Bonus)>| -> Vec<f64> {
        all.iter().map(|(name, _)| median(&seen.by_fair(load, name, time_ms))).collect()
    };
    let (multiple, time) = (ratios(multiples()), ratios(times()));
    let text = |values: &[f64]| {
        values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
    };
    let gain = |ratio: f64| 1.0 - ratio;
    let best = [&multiple[..], &time].concat().into_iter().fold(1.0, f64::min);
    let falls = multiple.windows(2).all(|pair| pair[1] <= pair[0] * SAME)
        && multiple[4] * SAME < multiple[0];
    let small = TIMES_NS.iter().zip(&time).filter(|((_, ns), _)| *ns < ENOUGH_NS);
    let little = small.map(|(_, ratio)| gain(*ratio)).fold(0.0, f64::max);
    let least = multiple.iter().map(|ratio| gain(*ratio)).fold(f64::INFINITY, f64::min);
    vec![
        Finding::new(
            "type 1: the larger the multiple, the shorter the execution time",
            "falls from d_1 to d_5",
            format!(
                "{} times that under fair: a thread has its share written after two or three slices, \
                 and its siblings never are more than one apart",
                text(&multiple)
            ),
            Status::reproduced(falls),
        ),
        Finding::new(
            "type 0: little effect below 1M, more above",
            "little from 1K to 100K",
            format!("{} times", text(&time)),
            Status::reproduced(little < 0.5 * gain(best) && time[4] < time[0]),
        ),
        Finding::new(
            "type 1 needs no guess: every multiple gains almost all that there is to gain",
            "the conclusion of section 4.2",
            format!("{:.0} % of the largest gain at least", 100.0 * least / gain(best)),
            Status::reproduced(least >= MOST * gain(best)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bonus_has_its_time_and_multiples_gain() {
        let part = measure(&Lab::quick(2)).unwrap();
        let panel = &part.panels[0];
        assert_eq!((panel.places.len(), panel.series.len()), (11, FETCHES.len()));
        let points: Vec<f64> =
            panel.series[0].points.iter().map(|point| point.unwrap().median).collect();
        assert!(points[..5].iter().all(|ratio| *ratio < 1.0), "{points:?}");
        assert!(points[5] > points[0], "1K does less than d_1: {points:?}");
    }
}
