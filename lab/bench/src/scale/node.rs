//! One node of a bulk-synchronous job, simulated: how long each of its phases takes, with the kernel
//! alone and with evenkeel.
//!
//! The node has a thread for each CPU, and noise on its first one. All threads do the same work in a
//! phase, and wait for the slowest of them. Tasks on a CPU that is none of the node's only pass barriers
//! with the threads: one for the network, for which all wait between two phases, and markers, which wake
//! when a phase begins and when it is over.

use std::sync::Arc;

use anyhow::{Result, bail};
use evenkeel_capability::{LagParameters, Policy};
use evenkeel_invariants::What;
use evenkeel_keel::Options;
use evenkeel_machine::Machine;
use evenkeel_sim::program::{Interrupts, Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{FaultPlan, MAX_EVENTS, Mask, STRICT, Scheduler, Simulation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::{Theft, mean, weights};

/// The balancer has found and confirmed the noise after this time, and phases before do not count.
const SETTLE_MS: f64 = 4_000.0;

/// The markers, by their numbers behind those of the threads.
const END: u32 = 1;
const BEGIN: u32 = 2;

/// What helps the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Lever {
    /// Nothing: the kernel alone.
    Kernel,
    /// `evenkeel run`: threads are moved. The simulator runs the product's balancer.
    Threads,
    /// `evenkeel run --shares`: each thread gets the part of the work that its CPU is worth. The weights
    /// are the product's.
    Work,
}

impl Lever {
    /// All of them, the baseline first.
    pub const ALL: [Self; 3] = [Self::Kernel, Self::Threads, Self::Work];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Threads => "threads",
            Self::Work => "work",
        }
    }
}

/// A node and its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// CPUs, and threads of the job.
    pub cpus: u32,
    /// The noise of the first CPU; none: a quiet node.
    pub theft: Option<Theft>,
    /// Whether the noise is a real-time task, before which a thread can flee; otherwise interrupts.
    pub is_realtime: bool,
    /// The work of each thread in a phase.
    pub phase_ms: f64,
}

/// What a simulation shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Phases {
    /// How long each phase took.
    pub times_ms: Vec<f64>,
    /// Moves of the balancer, those before the first counted phase included.
    pub moves: u64,
}

impl Phases {
    /// The mean time.
    pub fn mean_ms(&self) -> f64 {
        mean(&self.times_ms)
    }
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

fn only(cpus: impl IntoIterator<Item = u32>) -> Option<Arc<Mask>> {
    Some(Arc::new(Mask::from(&cpus.into_iter().collect())))
}

impl Node {
    /// Simulates so many phases once the balancer has settled. Between two phases the node waits for
    /// other nodes: for `gap_ms`, and as long again on average (exponentially distributed), so that
    /// phases begin at any point of the noise's period. Without a gap the next phase begins at once.
    ///
    /// # Errors
    /// The simulation cannot be made, or broke a rule.
    pub fn simulate(&self, lever: Lever, gap_ms: f64, count: u64, seed: u64) -> Result<Phases> {
        // A noisy CPU takes at least as long as a quiet one, so this many phases are enough.
        let settle = (SETTLE_MS / (self.phase_ms + 2.0 * gap_ms)).ceil() as u64;
        let simulation = self.simulation(lever, gap_ms, settle + count, seed)?;
        let outcome = simulation.run()?;
        if let Some(end) = outcome.end {
            bail!("a node of {} CPUs, phases of {} ms: {end}", self.cpus, self.phase_ms);
        }
        if let Some(broken) = outcome.broken.first() {
            bail!("a node of {} CPUs broke a rule: {:?}", self.cpus, broken.violation);
        }
        // Numbers of tasks begin at 1; the threads come first.
        let woke_ms = |marker: u32| -> Vec<f64> {
            let task = self.cpus + marker;
            let is_of = |what: &What| matches!(what, What::Wakeup { task: woke } if *woke == task);
            let woke = outcome.record.iter().filter(|event| is_of(&event.what));
            woke.map(|event| event.time_ns as f64 / 1e6).collect()
        };
        let ends = woke_ms(END);
        let mut times_ms: Vec<f64> = match gap_ms > 0.0 {
            // From the last phase backwards: a task may also wake when it is new.
            true => {
                ends.iter().rev().zip(woke_ms(BEGIN).iter().rev()).map(|(b, a)| b - a).collect()
            }
            false => ends.windows(2).rev().map(|pair| pair[1] - pair[0]).collect(),
        };
        times_ms.truncate(count as usize);
        if times_ms.is_empty() {
            bail!("no phase of {} ms has ended", self.phase_ms);
        }
        Ok(Phases { times_ms, moves: outcome.moves })
    }

    fn simulation(&self, lever: Lever, gap_ms: f64, phases: u64, seed: u64) -> Result<Simulation> {
        let Self { cpus, theft, is_realtime, phase_ms } = *self;
        let text = format!("name = \"node\"\nkinds = [{{ cpus = \"0-{cpus}\" }}]\n");
        let shares = match (lever, theft) {
            (Lever::Work, Some(theft)) => weights(cpus, &theft, is_realtime),
            _ => vec![1.0; cpus as usize],
        };
        let whole: f64 = shares.iter().sum();
        let again = Op::Repeat { to: 0, times: phases };
        let is_apart = gap_ms > 0.0;
        // The second barrier is passed when a phase begins, if that is not at once.
        let (over, begins) = (Op::Barrier(0), Op::Barrier(1));
        let thread = |(cpu, share): (u32, &f64)| {
            let work = Op::Run(ns(phase_ms * f64::from(cpus) * share / whole));
            let ops = match is_apart {
                true => vec![begins.clone(), work, over.clone(), again.clone()],
                false => vec![work, over.clone(), again.clone()],
            };
            let allowed = match lever {
                // `--shares` keeps threads on their CPUs.
                Lever::Work => only([cpu]),
                Lever::Kernel | Lever::Threads => only(0..cpus),
            };
            TaskPlan { allowed, ..TaskPlan::new(format!("thread{cpu}"), ops) }
        };
        let mut tasks: Vec<TaskPlan> = (0..cpus).zip(&shares).map(thread).collect();
        let apart = |name: &str, ops: Vec<Op>| {
            let ops = ops.into_iter().chain([again.clone()]).collect();
            TaskPlan { allowed: only([cpus]), ..TaskPlan::new(name, ops) }
        };
        tasks.push(apart("end", vec![over.clone()]));
        if is_apart {
            tasks.push(apart("begin", vec![begins.clone()]));
            // At first so long that all threads are there again, whatever noise holds them up.
            let waits = [Op::Sleep(ns(gap_ms)), Op::SleepAbout(ns(gap_ms))];
            tasks.push(apart("network", waits.into_iter().chain([begins, over]).collect()));
        }
        // The threads and a marker; and the network, where there is one.
        let members = cpus + 1 + u32::from(is_apart);
        let mut workload = Workload {
            name: "node".to_owned(),
            tasks,
            barriers: vec![members; 2],
            ..Workload::default()
        };
        if let Some(theft) = theft {
            let (run_ns, period_ns) = (ns(theft.busy_ms), ns(theft.period_ms));
            match is_realtime {
                true => {
                    workload.thieves.push(Thief { cpu: 0, run_ns, period_ns, from_ns: period_ns })
                }
                false => workload.interrupts.push(Interrupts { cpu: 0, run_ns, period_ns }),
            }
        }
        let machine = Machine::parse_toml(&text, "a node of bench scale")?;
        workload.check(&machine)?;
        Ok(Simulation {
            machine,
            scheduler: Scheduler::Keel(Options::default()),
            balancer: (lever == Lever::Threads).then(|| Policy::Lag(LagParameters::default())),
            workload: Arc::new(workload),
            faults: FaultPlan::default(),
            seed,
            limits: Some(STRICT),
            records: true,
            max_events: MAX_EVENTS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Theft = Theft { busy_ms: 2.0, period_ms: 4.0 };

    fn node(phase_ms: f64) -> Node {
        Node { cpus: 2, theft: Some(HALF), is_realtime: false, phase_ms }
    }

    #[test]
    fn a_quiet_node_takes_as_long_as_its_work() {
        let quiet = Node { theft: None, ..node(10.0) };
        for lever in Lever::ALL {
            let phases = quiet.simulate(lever, 0.0, 50, 1).unwrap();
            assert_eq!((phases.times_ms.len(), phases.moves), (50, 0));
            assert!((10.0..10.1).contains(&phases.mean_ms()), "{lever:?}: {}", phases.mean_ms());
        }
    }

    #[test]
    fn simulated_phases_are_those_of_the_model() {
        for (phase_ms, gap_ms) in [(1.0, 4.0), (10.0, 4.0), (100.0, 0.0)] {
            let phases = node(phase_ms).simulate(Lever::Kernel, gap_ms, 300, 1).unwrap();
            // The switches at its begin and end belong to a phase.
            let times = HALF.times_ms(phase_ms + 0.01);
            let expected = mean(&times);
            let found = phases.mean_ms();
            assert!((found / expected - 1.0).abs() < 0.1, "{phase_ms}: {found}, not {expected}");
            let longest = phases.times_ms.iter().copied().fold(0.0, f64::max);
            assert!(longest < times[times.len() - 1] + 0.1, "{phase_ms}: {longest}");
        }
    }

    #[test]
    fn long_phases_gain_by_moves_and_shorter_ones_by_shares() {
        let took = |phase_ms, lever| {
            node(phase_ms).simulate(lever, 0.0, 20, 1).unwrap().mean_ms() / phase_ms
        };
        let gain = |phase_ms, lever| took(phase_ms, Lever::Kernel) / took(phase_ms, lever);
        // At most half as much again is to be had.
        assert!(gain(1000.0, Lever::Threads) > 1.2, "{}", gain(1000.0, Lever::Threads));
        assert!(gain(100.0, Lever::Work) > 1.3, "{}", gain(100.0, Lever::Work));
        assert!(gain(10.0, Lever::Threads) > 0.95, "{}", gain(10.0, Lever::Threads));
    }

    #[test]
    fn the_same_seed_gives_the_same_phases() {
        let phases = |seed| node(10.0).simulate(Lever::Threads, 4.0, 50, seed).unwrap();
        assert_eq!(phases(1), phases(1));
        assert_ne!(phases(1), phases(2));
    }
}
