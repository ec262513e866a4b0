//! `evenkeel-lab bench scale`: what noise costs a bulk-synchronous job on 1 to 10,000 nodes, with and
//! without evenkeel, by calculation and by simulation; and what evenkeel says on each node.
//!
//! | file | what it holds |
//! |---|---|
//! | `noises` | the noises, made on this machine for a moment and measured |
//! | `model` | a phase on a noisy CPU, and the slowest of many nodes, calculated |
//! | `node` | the phases of one node, simulated with the product's balancer |
//! | `talk` | messages, sockets and metrics of a node, measured |
//! | `page` | all of it as tables and a page |

mod model;
mod node;
mod noises;
mod page;
mod talk;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::capability::Case;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::output::{Output, tell};
use evenkeel_experiment::{Document, MachineInfo, Options, commit, interrupt};
use evenkeel_noise::NoiseKind;
use model::{Theft, expected_max, expected_max_of_some};
use node::{Lever, Node};
use noises::MeasuredNoise;
use talk::Talk;

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// Sizes of jobs.
const NODES: [u32; 5] = [1, 10, 100, 1_000, 10_000];
/// CPUs of a node: the machine on which most pages were measured, and a larger one.
const CPUS: [u32; 2] = [2, 16];
/// The work between two barriers.
const PHASES_MS: [f64; 4] = [1.0, 10.0, 100.0, 1_000.0];
/// Simulated phases of each kind, or as many as this time holds.
const COUNT: u64 = 150;
const SIMULATED_MS: f64 = 3_000.0;
/// The noises, which `bench capability` makes on a real machine.
const NOISES: [Case; 3] = [Case::SoftirqFine, Case::Softirq, Case::FifoSleep];
/// Where few nodes are noisy, so many of all.
const FEW: f64 = 0.001;
/// The seed of the simulations.
const SEED: u64 = 1;

/// What is asked for. With [`Options::quick`] few cells and phases; [`Options::from`] shows an earlier
/// result.
#[derive(Debug, Default)]
pub struct Asked {
    /// The program file of evenkeel.
    pub executable: PathBuf,
    /// The options of any experiment.
    pub options: Options,
}

/// What noise costs a job of many nodes, and what evenkeel says on each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Where it was simulated and measured.
    machine: MachineInfo,
    /// The commit that was simulated and measured.
    commit: String,
    /// The command line that did it.
    command: String,
    /// Sizes of jobs.
    nodes: Vec<u32>,
    /// Of all nodes where few are noisy.
    few: f64,
    /// What each noise takes.
    #[serde(default)]
    noises: Vec<MeasuredNoise>,
    /// What each noise costs.
    cells: Vec<Cell>,
    /// What evenkeel says on a node.
    talk: Talk,
}

/// One noise, one length of phases, one kind of node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Cell {
    /// The noise.
    noise: String,
    /// What it takes of each period.
    busy_ms: f64,
    /// Its period.
    period_ms: f64,
    /// CPUs of the node.
    cpus: u32,
    /// The work between two barriers.
    phase_ms: f64,
    /// The mean of a simulated phase without noise. All ratios are to this.
    quiet_ms: f64,
    /// By calculation, for the kernel alone.
    model: Slowdowns,
    /// By simulation.
    levers: Vec<Simulated>,
}

/// How many times as long as without noise a phase takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Slowdowns {
    /// One node is noisy, whatever the number of all.
    one: f64,
    /// All nodes are noisy, by the number of nodes.
    all: Vec<f64>,
    /// Few nodes are, by the number of nodes.
    few: Vec<f64>,
}

/// The same, with one of the levers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Simulated {
    /// The lever.
    lever: Lever,
    /// Moves of threads in the simulation of one noisy node.
    moves: u64,
    #[serde(flatten)]
    slowdowns: Slowdowns,
}

impl Cell {
    fn of(&self, lever: Lever) -> Option<&Slowdowns> {
        let found = self.levers.iter().find(|simulated| simulated.lever == lever);
        found.map(|simulated| &simulated.slowdowns)
    }

    /// How many times as fast as with the kernel alone the node is, perfectly balanced. Like the gains
    /// it compares with the simulated kernel, under which a thread may flee from the noise.
    fn bound(&self) -> f64 {
        let theft = Theft { busy_ms: self.busy_ms, period_ms: self.period_ms };
        self.of(Lever::Kernel).map_or(f64::NAN, |kernel| kernel.one * theft.left_of_node(self.cpus))
    }

    /// The lever with which one noisy node is fastest.
    fn best(&self) -> Lever {
        let all = Lever::ALL.into_iter().filter_map(|lever| Some((lever, self.of(lever)?.one)));
        all.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(Lever::Kernel, |(lever, _)| lever)
    }
}

/// Calculates, simulates and measures, prints, and writes what was asked for. Returns the exit code.
///
/// # Errors
/// Something cannot be simulated, a daemon cannot be measured, or a file cannot be read or written.
pub fn run(asked: &Asked) -> Result<i32> {
    let options = &asked.options;
    options.check_page()?;
    let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
    let json = prepare(&options.json)?;
    let (markdown, html) = (prepare(&options.markdown)?, prepare(&options.html)?);
    let _watch = interrupt::watch();
    let report = match &options.from {
        Some(path) => read(path)?,
        None => match measure_all(asked) {
            Err(_) if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
            report => report?,
        },
    };
    tell([&json, &markdown, &html], page::terminal(&report));
    if let Some(output) = json {
        output.write(&(Document::new(FORMAT, &report).to_json()? + "\n"))?;
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

fn read(path: &Path) -> Result<Report> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not what bench scale --json writes", path.display()))
}

/// What is simulated: a noise, a number of CPUs, a length of phases.
type Place = (Case, u32, f64);

fn measure_all(asked: &Asked) -> Result<Report> {
    let mut places: Vec<Place> = Vec::new();
    for noise in NOISES {
        for cpus in CPUS {
            places.extend(PHASES_MS.map(|phase_ms| (noise, cpus, phase_ms)));
        }
    }
    let mut count = COUNT;
    if asked.options.quick {
        places.retain(|(noise, cpus, phase_ms)| {
            *noise == Case::SoftirqFine && *cpus == CPUS[0] && *phase_ms <= 10.0
        });
        count = 20;
    }
    let display = Display::counting("cells");
    display.step(0, places.len() as u64, "what evenkeel says on a node");
    let talk = talk::measure(&asked.executable)?;
    display.step(0, places.len() as u64, "what the noises take");
    let noises = noises::measure(&NOISES)?;
    let cells = cells(&places, &noises, count, &display)?;
    display.finish();
    Ok(Report {
        machine: MachineInfo::read(),
        commit: commit(),
        command: asked.options.command.clone(),
        nodes: NODES.to_vec(),
        few: FEW,
        noises,
        cells,
        talk,
    })
}

/// All cells, on all CPUs of this machine. A cell depends on nothing but its place and its noise.
fn cells(
    places: &[Place],
    noises: &[MeasuredNoise],
    count: u64,
    display: &Display,
) -> Result<Vec<Cell>> {
    let show = |done: usize| display.step(done as u64, places.len() as u64, "simulating");
    show(0);
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let cell = interrupt::check().and_then(|()| cell(*place, noises, count));
                    let failed = cell.is_err();
                    let mut made = made.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    made.push((*place, cell));
                    show(made.len());
                    if failed {
                        return;
                    }
                }
            });
        }
    });
    let mut made = made.into_inner().map_err(|_| anyhow!("a simulation has panicked"))?;
    let index = |place: &Place| places.iter().position(|other| other == place);
    made.sort_by_key(|(place, _)| index(place));
    made.into_iter().map(|(_, cell)| cell).collect()
}

fn cell((noise, cpus, phase_ms): Place, noises: &[MeasuredNoise], count: u64) -> Result<Cell> {
    let (kind, ..) = noise.disturbance().noise.context("this is no noise")?;
    let measured = noises.iter().find(|measured| measured.noise == noise.name());
    let theft = measured.context("this noise was not measured")?.theft();
    let is_realtime = matches!(kind, NoiseKind::Fifo);
    let node = Node { cpus, theft: Some(theft), is_realtime, phase_ms };
    let quiet = Node { theft: None, ..node };
    let count = count.max((SIMULATED_MS / phase_ms) as u64 * count / COUNT);
    let quiet_ms = quiet.simulate(Lever::Kernel, 0.0, count, SEED)?.mean_ms();
    let ratio = |ms: f64| ms.max(quiet_ms) / quiet_ms;
    // With the time that a phase really takes: where it just fits into whole free stretches, some us
    // more meet one burst more.
    let times = theft.times_ms(quiet_ms);
    let some = |nodes| expected_max_of_some(&times, quiet_ms, nodes, FEW);
    let model = Slowdowns {
        one: 1.0 / theft.left(),
        all: NODES.map(|nodes| expected_max(&times, nodes) / quiet_ms).to_vec(),
        few: NODES.map(|nodes| some(nodes) / quiet_ms).to_vec(),
    };
    let simulated = |lever: Lever| -> Result<Simulated> {
        // A job with one noisy node goes on when that node does. Among other noisy nodes a node waits,
        // and its next phase begins at another point of its noise.
        let alone = node.simulate(lever, 0.0, count, SEED)?;
        let mut among = node.simulate(lever, theft.period_ms, count, SEED)?.times_ms;
        among.sort_unstable_by(f64::total_cmp);
        let of = |probability: f64| {
            let mean = |nodes| expected_max_of_some(&among, quiet_ms, nodes, probability);
            NODES.map(|nodes| ratio(mean(nodes))).to_vec()
        };
        let slowdowns = Slowdowns { one: ratio(alone.mean_ms()), all: of(1.0), few: of(FEW) };
        Ok(Simulated { lever, moves: alone.moves, slowdowns })
    };
    Ok(Cell {
        noise: noise.name().to_owned(),
        busy_ms: theft.busy_ms,
        period_ms: theft.period_ms,
        cpus,
        phase_ms,
        quiet_ms,
        model,
        levers: Lever::ALL.into_iter().map(simulated).collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let slowdowns = |one: f64| Slowdowns { one, all: vec![one; 5], few: vec![1.0; 5] };
        let simulated = |lever, one| Simulated { lever, moves: 3, slowdowns: slowdowns(one) };
        Report {
            machine: MachineInfo { model: "a processor".into(), cpus: 2, ..MachineInfo::default() },
            commit: "0123abc".into(),
            command: "evenkeel-lab bench scale".into(),
            nodes: NODES.to_vec(),
            few: FEW,
            noises: vec![MeasuredNoise {
                noise: "softirq-fine".into(),
                busy_ms: 2.0,
                period_ms: 8.0,
                duty: Some(0.2531),
            }],
            cells: vec![Cell {
                noise: "softirq-fine".into(),
                busy_ms: 2.0,
                period_ms: 8.0,
                cpus: 2,
                phase_ms: 100.0,
                quiet_ms: 100.0,
                model: slowdowns(2.0),
                levers: vec![
                    simulated(Lever::Kernel, 2.0),
                    simulated(Lever::Threads, 1.6),
                    simulated(Lever::Work, 1.25),
                ],
            }],
            talk: Talk {
                requests_a_rank: 2,
                bytes_a_rank: 321.5,
                internet_sockets: 0,
                cpus: 2,
                programs: 3,
                series: 11,
                most_series: 77,
                scrape_bytes: 2345,
            },
        }
    }

    #[test]
    fn the_page_is_made_of_the_figures() {
        let page = page::page(&report());
        for part in [
            "Measured at commit 0123abc by `evenkeel-lab bench scale`",
            "| softirq-fine | 2 of 8 ms | 25.00 % | 25.31 % |",
            // At best 7/8 of two CPUs, for a kernel that takes twice as long.
            "| softirq-fine | 2 | 100 ms | 2.000 | 2.000 | 1.600 | 1.250 | 1.250 | 1.600 | 1.750 |",
            // Half of 10,000 nodes' time, and a fifth of it with the better lever.
            "| softirq-fine | 2 | 100 ms | work | 0.500 -> 0.200 |",
            "5000 -> 2000",
            "2 requests and as many answers by the protocol, measured with 321.5 bytes",
            "11 series here, at most 77 a node",
            "(2 CPUs, 3 programs at rest) has 2345 bytes",
        ] {
            assert!(page.contains(part), "{part} is missing in\n{page}");
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("first"), serde_json::to_string(&report()).unwrap()).unwrap();
        let options = Options {
            from: Some(path("first")),
            json: Some(path("second")),
            markdown: Some(path("page.md")),
            html: Some(path("page.html")),
            ..Options::default()
        };
        assert_eq!(run(&Asked { options, ..Asked::default() }).unwrap(), 0);
        assert_eq!(read(&path("second")).unwrap(), report());
        let text = std::fs::read_to_string(path("second")).unwrap();
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(whole["format"], FORMAT);
        assert!(path("page.md").exists());
        let html = std::fs::read_to_string(path("page.html")).unwrap();
        for part in ["softirq-fine, 2 CPUs, 100 ms", "1.60x by work", "<td>softirq-fine</td>"] {
            assert!(html.contains(part), "{part} is missing in\n{html}");
        }
        let why = format!("{:#}", read(&path("page.md")).unwrap_err());
        assert!(why.contains("is not what bench scale --json writes"), "{why}");
    }

    #[test]
    fn a_cell_is_the_same_each_time_and_agrees_with_the_model() {
        let place = (Case::SoftirqFine, 2, 10.0);
        let places = [place, (Case::SoftirqFine, 2, 1.0)];
        let noises = [MeasuredNoise::told(Case::SoftirqFine).unwrap()];
        let made = cells(&places, &noises, 20, &Display::new()).unwrap();
        assert_eq!((made[0].phase_ms, made[1].phase_ms), (10.0, 1.0), "in their order");
        assert_eq!(cell(place, &noises, 20).unwrap(), made[0]);
        assert!(cell((Case::Softirq, 2, 10.0), &noises, 20).is_err(), "it was not measured");
        let kernel = made[0].of(Lever::Kernel).unwrap();
        assert!((kernel.one / made[0].model.one - 1.0).abs() < 0.1, "{kernel:?}");
        for (simulated, model) in kernel.all.iter().zip(&made[0].model.all) {
            assert!((simulated / model - 1.0).abs() < 0.1, "{kernel:?}, not {:?}", made[0].model);
        }
        // Calculated, not drawn: a larger job is never faster, and a single node is noisy as seldom as
        // it is meant to be.
        for means in [&kernel.all, &kernel.few] {
            assert!(means.is_sorted_by(|a, b| *a <= b + 1e-9), "{kernel:?}");
        }
        let seldom = 1.0 + FEW * (kernel.all[0] - 1.0);
        assert!((kernel.few[0] - seldom).abs() < 1e-9, "{kernel:?}, not {seldom}");
        assert_eq!(made[0].best(), Lever::Work);
    }
}
