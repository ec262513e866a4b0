//! `evenkeel-lab bench refill`: what it costs to refill a core's caches after another address space
//! ran, or on another CPU, by the size of a thread's working set; and the costs of the simulator's
//! machine, fitted to that. The order `ias` exists because of these costs, and its helper thread is
//! judged by them.
//!
//! | file | what it holds |
//! |---|---|
//! | `walk` | a working set, and a walk over it |
//! | `others` | the thread and the process that run between two walks |
//! | `measure` | the turns, and the points that they give |
//! | `fit` | from points to costs |
//! | `page` | both as tables and a page |

mod fit;
mod measure;
mod others;
mod page;
mod walk;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use evenkeel_machine::Machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use others::be_stranger;

use evenkeel_experiment::interrupt;
use evenkeel_experiment::output::{Output, tell};
use evenkeel_experiment::{Document, MachineInfo, Options, commit};
use fit::{Between, Fit};
use measure::{Place, Point};
use walk::Order;

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// What the machine of the machine file is called, there and as a preset of the simulator.
const NAME: &str = "measured";

/// What is asked for. With [`Options::quick`] a few sizes and turns; [`Options::from`] fits and shows
/// an earlier measurement.
#[derive(Debug, Default)]
pub struct Asked {
    /// Where to write this machine, with the costs that were fitted, as a machine file.
    pub machine: Option<PathBuf>,
    /// The options of any experiment.
    pub options: Options,
}

/// What it costs to refill a core's caches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Where it was measured.
    machine: MachineInfo,
    /// The commit that was measured.
    commit: String,
    /// The command line that measured it.
    command: String,
    /// What the caches of the core hold, in KiB.
    near_kib: u64,
    /// The two CPUs are this to each other.
    between: Between,
    /// What was measured.
    points: Vec<Point>,
    /// One for each order.
    fits: Vec<Fit>,
    /// This machine as a machine file, without the costs that are fitted.
    host: String,
}

impl Report {
    /// The machine file.
    fn machine_file(&self) -> Result<String> {
        let mut machine = Machine::parse_toml(&self.host, "host")?;
        NAME.clone_into(&mut machine.name);
        let fit = self.fits.iter().find(|fit| fit.order == fit::KEPT);
        let fit = fit.context("nothing was fitted")?;
        fit::apply(fit, self.near_kib, self.between, &mut machine);
        Ok(page::provenance(self) + &machine.to_toml())
    }

    /// The cost of a thread that comes from the other CPU.
    fn moved_cost(&self) -> &'static str {
        match self.between {
            Between::Threads | Between::Cores => "refill_core_ns",
            Between::Caches => "refill_cache_ns",
            Between::Nodes => "refill_node_ns",
        }
    }
}

/// Measures and fits, prints, and writes what was asked for. Returns the exit code.
///
/// # Errors
/// A process cannot be started or pinned, the caches are not known, or a file cannot be read or
/// written.
pub fn run(asked: &Asked) -> Result<i32> {
    let options = &asked.options;
    options.check_page()?;
    let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
    let json = prepare(&options.json)?;
    let machine = prepare(&asked.machine)?;
    let (markdown, html) = (prepare(&options.markdown)?, prepare(&options.html)?);
    let _watch = interrupt::watch();
    let report = match &options.from {
        Some(path) => read(path)?,
        None => match measure_all(options) {
            Err(_) if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
            report => report?,
        },
    };
    tell([&json, &machine, &markdown, &html], page::terminal(&report));
    if let Some(output) = json {
        output.write(&(Document::new(FORMAT, &report).to_json()? + "\n"))?;
    }
    if let Some(output) = machine {
        output.write(&report.machine_file()?)?;
    }
    if let Some(output) = markdown {
        let command = output.command("--markdown", &report.command);
        output.write_page(&page::page(&Report { command, ..report.clone() }))?;
    }
    if let Some(output) = html {
        let command = output.command("--html", &report.command);
        output.write(&page::html(&Report { command, ..report }))?;
    }
    Ok(0)
}

/// What was measured before, fitted anew.
fn read(path: &Path) -> Result<Report> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut report: Report = serde_json::from_str(&text)
        .with_context(|| format!("{} is not what bench refill --json writes", path.display()))?;
    report.fits = fits(&report.points, report.near_kib)?;
    Ok(report)
}

fn fits(points: &[Point], near_kib: u64) -> Result<Vec<Fit>> {
    Order::ALL.into_iter().map(|order| fit::fit(points, order, near_kib)).collect()
}

fn measure_all(options: &Options) -> Result<Report> {
    let place = Place::find()?;
    let host = Machine::from_sysfs(Path::new("/"))?;
    let between =
        place.other.map_or(Between::Threads, |other| Between::of(&host, place.cpu, other));
    let points = measure::measure(&place, options.quick)?;
    Ok(Report {
        machine: MachineInfo::read(),
        commit: commit(),
        command: options.command.clone(),
        near_kib: place.near_kib,
        between,
        fits: fits(&points, place.near_kib)?,
        points,
        host: host.to_toml(),
    })
}

#[cfg(test)]
mod tests {
    use super::measure::Event;
    use super::*;

    fn report() -> Report {
        let mut points = Vec::new();
        for order in Order::ALL {
            let slope = if order == Order::Scattered { 800.0 } else { 100.0 };
            for kib in [4, 64, 1024, 4096] {
                for (event, constant) in
                    [(Event::Sibling, 0.0), (Event::Stranger, 2_000.0), (Event::Moved, 9_000.0)]
                {
                    let per_kib = if event == Event::Sibling { 0.0 } else { slope };
                    let cost_ns = constant + per_kib * kib as f64;
                    points.push(Point { order, kib, event, cost_ns, ..Point::default() });
                }
            }
        }
        Report {
            machine: MachineInfo { model: "a processor".into(), cpus: 2, ..MachineInfo::default() },
            commit: "0123abc".into(),
            command: "evenkeel-lab bench refill".into(),
            near_kib: 2048,
            between: Between::Cores,
            fits: fits(&points, 2048).unwrap(),
            points,
            host: Machine::preset("small").unwrap().to_toml(),
        }
    }

    #[test]
    fn the_machine_file_has_the_costs_and_where_they_come_from() {
        let text = report().machine_file().unwrap();
        for part in
            ["# Measured at commit 0123abc: a processor, 2 CPUs", "`evenkeel-lab bench refill`"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let costs = Machine::parse_toml(&text, "test").unwrap().costs;
        assert_eq!((costs.near_kib, costs.near_fetch_ns), (2048, 800));
        assert_eq!((costs.refill_space_ns, costs.refill_core_ns), (2_000, 9_000));
    }

    #[test]
    fn what_was_written_is_read_and_fitted_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut report = report();
        std::fs::write(path("first.json"), serde_json::to_string(&report).unwrap()).unwrap();
        let options = Options {
            from: Some(path("first.json")),
            json: Some(path("second.json")),
            markdown: Some(path("page.md")),
            html: Some(path("page.html")),
            ..Options::default()
        };
        let asked = Asked { machine: Some(path("machine.toml")), options };
        assert_eq!(run(&asked).unwrap(), 0);
        let second = read(&path("second.json")).unwrap();
        assert_eq!(second, report);
        let text = std::fs::read_to_string(path("second.json")).unwrap();
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(whole["format"], FORMAT);
        let machine = std::fs::read_to_string(path("machine.toml")).unwrap();
        assert_eq!(machine, report.machine_file().unwrap());
        let page = std::fs::read_to_string(path("page.md")).unwrap();
        assert!(page.contains("| scattered | stranger | 64 |"), "{page}");
        assert!(page.contains("800 ns for each KiB"), "{page}");
        let html = std::fs::read_to_string(path("page.html")).unwrap();
        assert!(html.contains("lines scattered, after stranger"), "{html}");
        assert!(html.contains("800 ns for each KiB"), "{html}");
        // A larger cache holds a point more.
        report.near_kib = 4096;
        std::fs::write(path("first.json"), serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(read(&path("first.json")).unwrap().fits[0].points, 8);
    }
}
