//! The points and the fits as tables, and as pages that are a pure function of the JSON.

use std::fmt::{self, Write as _};

use super::fit::Fit;
use super::measure::{Event, Point};
use super::walk::Order;
use super::{Report, fit};
use crate::stats::Verdict;
use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::chart::{Chart, Interval};
use evenkeel_experiment::html::{Sheet, charts, prose};
use evenkeel_experiment::measured_at;
use maud::html;

const HEADER: [&str; 9] = [
    "lines",
    "after",
    "KiB",
    "walk, us",
    "refill, us",
    "95 % interval",
    "ns a KiB",
    "model, us",
    "verdict",
];

fn us(ns: f64) -> String {
    format!("{:.2}", ns / 1e3)
}

fn cells(report: &Report, point: &Point) -> Vec<String> {
    let Point { order, kib, event, cost_ns, ci95_ns: [lo, hi], walk_ns, verdict, .. } = point;
    let fit = report.fits.iter().find(|fit| fit.order == *order);
    let model = fit.and_then(|fit| fit.model_ns(*event, *kib, report.near_kib));
    vec![
        order.name().to_owned(),
        event.name().to_owned(),
        kib.to_string(),
        us(*walk_ns),
        us(*cost_ns),
        format!("{} - {}", us(*lo), us(*hi)),
        format!("{:.0}", cost_ns / *kib as f64),
        model.map_or_else(|| "-".to_owned(), us),
        word(*verdict).to_owned(),
    ]
}

fn word(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Worse) => "longer",
        Some(Verdict::Better) => "shorter",
        Some(Verdict::Undecided) | None => "undecided",
    }
}

fn sentence(fit: &Fit) -> String {
    let Fit { order, refill_space_ns, near_fetch_ns, points, residual, worst, .. } = fit;
    let moved = match fit.refill_moved_ns {
        Some(ns) => format!("{ns:.0} ns after another CPU, "),
        None => String::new(),
    };
    format!(
        "{}: {refill_space_ns:.0} ns after another address space, {moved}and {near_fetch_ns:.0} ns \
         for each KiB ({points} points; root mean square of the relative errors {:.1} %, the \
         largest {:+.1} %)",
        order.name(),
        100.0 * residual,
        100.0 * worst
    )
}

/// For the terminal.
pub fn terminal(report: &Report) -> String {
    let fits: Vec<String> = report.fits.iter().map(sentence).collect();
    format!("{}\n\n{}", table(report).terminal(), fits.join("\n"))
}

fn table(report: &Report) -> Cells {
    Cells {
        header: HEADER.map(str::to_owned).into(),
        numbers: (2..HEADER.len() - 1).collect(),
        rows: report.points.iter().map(|point| cells(report, point)).collect(),
    }
}

/// What the machine file says of itself, as comments.
pub fn provenance(report: &Report) -> String {
    let Report { machine, commit, command, .. } = report;
    let mut text = format!(
        "# The host as a machine of the simulator; refilling costs were measured and fitted.\n\
         # Written by `{command}`; do not edit.\n\
         # Measured at commit {commit}: {}, {} CPUs, Linux {}; {}.\n",
        machine.model,
        machine.cpus,
        machine.kernel,
        disturbance(report)
    );
    for fit in &report.fits {
        let is_kept = fit.order == fit::KEPT;
        let kept = if is_kept { "taken" } else { "not taken, for comparison" };
        let _ = writeln!(text, "# Lines {} ({kept}).", sentence(fit));
    }
    text
}

/// How quiet it was.
fn disturbance(report: &Report) -> String {
    let worst = report.points.iter().map(|point| point.foreign_pct).fold(0.0, f64::max);
    format!("in the most disturbed median turn other programs took {worst:.1} % of the CPU time")
}

/// The page.
pub fn page(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, report);
    text
}

/// The page for a browser.
pub fn html(report: &Report) -> String {
    let Report { machine, commit, command, .. } = report;
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut text, report);
    let orders = Order::ALL.into_iter();
    let groups = orders.flat_map(|order| Event::ALL.map(|event| (order, event)));
    let groups: Vec<_> = groups.map(|(order, event)| group(report, order, event)).collect();
    let drawn = groups.iter().filter(|(_, intervals)| !intervals.is_empty());
    let drawn = drawn.map(|(name, intervals)| Chart {
        name,
        base: Some((0.0, "nothing happened")),
        mark: &|ns| format!("{} us", ns / 1e3),
        intervals: intervals.clone(),
    });
    let drawn: Vec<_> = drawn.collect();
    let body = html! { (charts("What a refill costs", &drawn)) (prose(&text)) };
    let disturbance = Some(disturbance(report));
    Sheet { title: TITLE, commit, command, machine, disturbance, body }.html()
}

/// A chart's name and its intervals: an order and an event, by the size of the working set.
fn group(report: &Report, order: Order, event: Event) -> (String, Vec<Interval>) {
    let points = report.points.iter().filter(|point| (point.order, point.event) == (order, event));
    let interval = |point: &Point| Interval {
        name: format!("{} KiB", point.kib),
        at: point.cost_ns,
        ends: point.ci95_ns,
        verdict: point.verdict,
        label: format!("{} us {}", us(point.cost_ns), word(point.verdict)),
    };
    (format!("lines {}, after {}", order.name(), event.name()), points.map(interval).collect())
}

const TITLE: &str = "Benchmarks: what it costs to refill caches";

fn write_page(text: &mut String, report: &Report) -> fmt::Result {
    let Report { machine, commit, command, .. } = report;
    writeln!(text, "# {TITLE}\n")?;
    writeln!(text, "{}\n", measured_at(commit, command))?;
    write!(text, "{}", machine.markdown())?;
    writeln!(text, "- {}\n", disturbance(report))?;
    write_text(text, report)
}

/// All but the head.
fn write_text(text: &mut String, report: &Report) -> fmt::Result {
    let near_kib = report.near_kib;
    writeln!(
        text,
        "A thread walks over memory of so many KiB. It visits every line of 64 bytes once, finds \
         each line in the line before, and writes to it. Then something happens on the same CPU. \
         *sibling*: a thread of the same address space does the same with the same memory. \
         *stranger*: a process with another address space walks over {} KiB, twice what the core's \
         own caches hold ({near_kib} KiB). *moved*: the thread itself goes to another CPU, walks \
         there, and comes back to a CPU that has meanwhile walked over {} KiB of other memory. \
         *nothing again*: none of these, once more (A/A); what a row cannot tell from this one, the \
         table cannot resolve. *Refill* is how much longer the next walk takes than one \
         after none of these.\n",
        2 * near_kib,
        2 * near_kib
    )?;
    writeln!(
        text,
        "One walk of each turn counts; a tenth of the walks are shorter. Other programs, \
         interrupts and other guests of the host only ever make a walk longer. Turns alternate. \
         Turns in which other programs took more than 5 % of the CPU time are repeated (at most \
         every other turn in all). The table shows the medians of the turns with their 95 % \
         interval. *Longer*: by a paired t test with Holm's correction over all rows.\n"
    )?;
    writeln!(text, "## The model\n")?;
    writeln!(
        text,
        "The simulator's machine has three numbers for it: `refill_space_ns`; one for another CPU \
         (here `{}`); and `near_fetch_ns` for each KiB of a program's memory, if the core's own \
         caches hold it (`near_kib`, from sysfs). Memory that they do not hold is fetched in every \
         pass anyway. The numbers are fitted to the points up to {near_kib} KiB by least squares \
         of relative errors; siblings cost nothing in the model. \
         `product/machine/presets/measured.toml` has the fit of lines that are walked {}; real \
         programs are between the two.\n",
        report.moved_cost(),
        fit::KEPT.name()
    )?;
    for fit in &report.fits {
        writeln!(text, "- {}", sentence(fit))?;
    }
    writeln!(text, "\n## All points\n")?;
    table(report).markdown(text)
}
