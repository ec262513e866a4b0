//! A simulation as a timeline in SVG: a row for each CPU, time from left to right, a colour for each
//! address space.

use std::fmt::Write;

use evenkeel_invariants::{Event, IDLE, What};

use crate::perfetto::name_of;
use crate::program::Workload;
use crate::tid::THIEF_TIDS;

const WIDTH: u64 = 960;
const LEFT: u64 = 60;
const ROW: u64 = 14;
const TOP: u64 = 24;
/// At most this many CPUs are drawn.
pub const MOST_CPUS: usize = 128;
/// Colours that are distinguishable with colour blindness and in print (by Okabe and Ito, without
/// black).
const COLOURS: [&str; 7] =
    ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00"];
const REAL_TIME: &str = "#404040";

/// A stretch of time in which a task had a CPU.
struct Stretch {
    cpu: u32,
    from_ns: u64,
    to_ns: u64,
    tid: u32,
}

fn stretches(events: &[Event], end_ns: u64) -> Vec<Stretch> {
    let cpus = events.iter().map(|event| event.cpu as usize + 1).max().unwrap_or_default();
    let mut running: Vec<(u32, u64)> = vec![(IDLE, 0); cpus];
    let mut found = Vec::new();
    let mut close = |cpu: u32, (tid, from_ns): (u32, u64), to_ns: u64| {
        if tid != IDLE && to_ns > from_ns {
            found.push(Stretch { cpu, from_ns, to_ns, tid });
        }
    };
    for event in events {
        let What::Switch { next, .. } = event.what else { continue };
        let before = std::mem::replace(&mut running[event.cpu as usize], (next, event.time_ns));
        close(event.cpu, before, event.time_ns);
    }
    for (cpu, last) in running.into_iter().enumerate() {
        close(cpu as u32, last, end_ns);
    }
    found
}

/// Draws the timeline.
pub fn picture(events: &[Event], end_ns: u64, workload: &Workload, title: &str) -> String {
    let end_ns = end_ns.max(1);
    let stretches = stretches(events, end_ns);
    let mut cpus: Vec<u32> = stretches.iter().map(|stretch| stretch.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus.truncate(MOST_CPUS);
    let height = TOP + cpus.len() as u64 * ROW + 2 * TOP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"14\" font-size=\"12\">{}</text>\n",
        escape(title)
    );
    let x = |ns: u64| LEFT as f64 + ns as f64 * (WIDTH - LEFT - 10) as f64 / end_ns as f64;
    for (row, cpu) in cpus.iter().enumerate() {
        let y = TOP + row as u64 * ROW;
        line(&mut svg, format_args!("<text x=\"4\" y=\"{}\">CPU {cpu}</text>", y + ROW - 4));
    }
    for stretch in &stretches {
        let Ok(row) = cpus.binary_search(&stretch.cpu) else { continue };
        let y = TOP + row as u64 * ROW + 1;
        let (from, to) = (x(stretch.from_ns), x(stretch.to_ns));
        let name = name_of(stretch.tid, workload);
        let colour = colour(stretch.tid, workload);
        line(
            &mut svg,
            format_args!(
                "<rect x=\"{from:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" fill=\"{colour}\">\
                 <title>{}: {} to {} us</title></rect>",
                (to - from).max(0.3),
                ROW - 2,
                escape(&name),
                stretch.from_ns / 1000,
                stretch.to_ns / 1000,
            ),
        );
    }
    let bottom = TOP + cpus.len() as u64 * ROW + 14;
    for tenth in 0..=10u64 {
        let ns = end_ns / 10 * tenth;
        let ms = ns as f64 / 1e6;
        line(
            &mut svg,
            format_args!("<text x=\"{:.0}\" y=\"{bottom}\">{ms:.1}</text>", x(ns) - 8.0),
        );
    }
    line(
        &mut svg,
        format_args!(
            "<text x=\"{LEFT}\" y=\"{}\">time in ms; a colour for each address space, dark for \
             real-time tasks</text>",
            bottom + 16
        ),
    );
    svg.push_str("</svg>\n");
    svg
}

fn line(svg: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(svg, "{line}"); // writing to a String cannot fail
}

fn colour(tid: u32, workload: &Workload) -> &'static str {
    if tid >= THIEF_TIDS {
        return REAL_TIME;
    }
    let space = workload.tasks.get(tid as usize - 1).map_or(0, |plan| plan.space as usize);
    COLOURS[space % COLOURS.len()]
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use evenkeel_invariants::Left;

    use super::*;
    use crate::program::TaskPlan;

    #[test]
    fn each_run_of_a_task_is_drawn() {
        let switch = |time_ns, prev, next| Event {
            time_ns,
            cpu: 2,
            what: What::Switch { prev, left: Left::Runnable, charged_ns: 0, next },
        };
        let workload =
            Workload { tasks: vec![TaskPlan::new("a<b", Vec::new())], ..Workload::default() };
        let events = [switch(0, 0, 0), switch(1_000, 0, 1), switch(5_000, 1, THIEF_TIDS)];
        let svg = picture(&events, 9_000, &workload, "x & y");
        assert_eq!(svg.matches("<title>").count(), 2, "{svg}");
        assert!(svg.contains("<title>a&lt;b: 1 to 5 us</title>"));
        assert!(svg.contains("<title>real-time: 5 to 9 us</title>"));
        assert!(svg.contains(">CPU 2<") && svg.contains("x &amp; y"));
    }
}
