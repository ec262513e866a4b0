//! The workloads of paper 002 (Mehta, Kanungo), tables 1 to 3, and the paper's results for them.
//!
//! The paper gives the number of processes, their execution time, whether they are CPU-bound, and how
//! they arrive. What it leaves open is read as follows. The execution time is that on a normal core
//! (speed cores are twice as fast), up to a common factor `pace`, which is fitted. Each process is
//! single-threaded, and its memory is on a random node. In a mix every other process is I/O-bound: it
//! works for half of its time and sleeps for the other half. "Varying" times are uniformly distributed.
//! "Random" arrivals are a Poisson process, and "almost the same time" is a dense one.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::program::{Op, TaskPlan, Told, Workload};
use crate::random::about;

/// How processes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// All at once.
    Same,
    /// Shortly one after the other.
    AlmostSame,
    /// At random times.
    Random,
}

/// Half of one of the paper's tables.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table {
    /// The machine: the name of a preset.
    pub system: &'static str,
    /// `w1` or `w2`.
    pub workload: &'static str,
    /// The least and the largest execution time of a process in ms.
    pub exec_ms: (u64, u64),
    /// Whether every other process is I/O-bound.
    pub is_mix: bool,
    /// How they arrive.
    pub arrival: Arrival,
    /// Nodes of the machine.
    pub nodes: u32,
    /// The rows.
    pub rows: [Row; 5],
}

/// The paper's results for a number of processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The number of processes.
    pub processes: u64,
    /// Mean turn-around time under the balancer that is unaware of capability.
    pub tat_unaware_ms: f64,
    /// The gain of the paper's balancer, in percent of that.
    pub gain_pct: f64,
}

const fn row(processes: u64, tat_unaware_ms: f64, gain_pct: f64) -> Row {
    Row { processes, tat_unaware_ms, gain_pct }
}

/// The paper's tables.
pub static TABLES: [Table; 6] = [
    Table {
        system: "amc1",
        workload: "w1",
        exec_ms: (200, 200),
        is_mix: false,
        arrival: Arrival::Random,
        nodes: 16,
        rows: [
            row(100, 248.0, 4.03),
            row(200, 419.0, 3.82),
            row(300, 603.0, 4.64),
            row(400, 786.0, 4.58),
            row(600, 1172.0, 5.20),
        ],
    },
    Table {
        system: "amc1",
        workload: "w2",
        exec_ms: (50, 300),
        is_mix: true,
        arrival: Arrival::Random,
        nodes: 16,
        rows: [
            row(100, 164.0, 3.66),
            row(200, 244.0, 4.92),
            row(300, 316.0, 4.43),
            row(400, 388.0, 4.90),
            row(600, 564.0, 4.79),
        ],
    },
    Table {
        system: "amc2",
        workload: "w1",
        exec_ms: (300, 300),
        is_mix: false,
        arrival: Arrival::Same,
        nodes: 32,
        rows: [
            row(64, 301.0, 3.99),
            row(128, 459.0, 5.45),
            row(256, 862.0, 4.06),
            row(384, 1132.0, 4.59),
            row(512, 1534.0, 6.19),
        ],
    },
    Table {
        system: "amc2",
        workload: "w2",
        exec_ms: (400, 400),
        is_mix: false,
        arrival: Arrival::AlmostSame,
        nodes: 32,
        rows: [
            row(64, 384.0, 4.17),
            row(128, 660.0, 3.18),
            row(256, 1186.0, 6.75),
            row(384, 1560.0, 4.74),
            row(512, 2141.0, 6.91),
        ],
    },
    Table {
        system: "amc3",
        workload: "w1",
        exec_ms: (300, 300),
        is_mix: false,
        arrival: Arrival::AlmostSame,
        nodes: 32,
        rows: [
            row(100, 380.0, 6.31),
            row(200, 485.0, 7.63),
            row(300, 759.0, 7.77),
            row(400, 890.0, 6.63),
            row(500, 1204.0, 9.21),
        ],
    },
    Table {
        system: "amc3",
        workload: "w2",
        exec_ms: (50, 400),
        is_mix: true,
        arrival: Arrival::Same,
        nodes: 32,
        rows: [
            row(100, 285.0, 3.86),
            row(200, 331.0, 4.53),
            row(300, 490.0, 6.73),
            row(400, 599.0, 6.34),
            row(500, 730.0, 6.98),
        ],
    },
];

/// How the paper is read where it leaves a value open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// The time on an undisturbed speed core with near memory, in percent of the execution time. 50:
    /// the execution time is that of a normal core of half the speed.
    pub pace_pct: u64,
    /// Mean time between two random arrivals, in ns.
    pub random_gap_ns: u64,
    /// Mean time between two arrivals at almost the same time, in ns.
    pub almost_gap_ns: u64,
}

impl Default for Reading {
    fn default() -> Self {
        Self { pace_pct: 48, random_gap_ns: 2_000_000, almost_gap_ns: 20_000 }
    }
}

/// A quarter of the processes have memory that only page faults show: it is named so long after they
/// first ran (what measures anything of them does so ten times a second), ...
pub const LEARNED_AFTER_NS: u64 = 100_000_000;
/// ... and for so many percent of them it is not where most of it is.
pub const ERROR_PCT: u64 = 10;

/// Where processes have their memory, and what the kernel tells of it. The numbers are those in a
/// workload's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Homes {
    /// Where a process first runs, told never.
    FirstRun = 0,
    /// On a node drawn at random, told at fork.
    AtFork = 1,
    /// As a real kernel has it. Half of the processes: on a node drawn at random, told at fork (bound by
    /// a mempolicy, or forked without exec, with the parent's memory). A quarter: where it first runs
    /// (exec). A quarter: on a node drawn at random, told as page faults show it.
    Real = 2,
    /// The same memory, told at fork where there is any then.
    RealAtFork = 3,
}

impl Homes {
    /// By the number in a workload's text.
    pub fn of(number: u64) -> Option<Self> {
        let all = [Self::FirstRun, Self::AtFork, Self::Real, Self::RealAtFork];
        all.into_iter().find(|homes| *homes as u64 == number)
    }

    /// Gives the tasks, each of which has a node drawn at random, their memory.
    pub fn give(self, nodes: u32, tasks: &mut [TaskPlan], seed: u64) {
        // Its own stream: what the tasks do does not depend on where their memory is.
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(!seed);
        for task in tasks {
            let (kind, error, wrong) = (rng.next_u64() % 4, rng.next_u64() % 100, rng.next_u64());
            match (self, kind) {
                (Self::FirstRun, _) | (Self::Real | Self::RealAtFork, 2) => task.home = None,
                (Self::Real, 3) => {
                    let node = (wrong % u64::from(nodes)) as u32;
                    let node = task.home.filter(|_| error >= ERROR_PCT).unwrap_or(node);
                    task.told = Told::Later { after_ns: LEARNED_AFTER_NS, node };
                }
                _ => {}
            }
        }
    }
}

/// How long an I/O-bound process works at a stretch; it then sleeps as long.
const IO_BURST_NS: u64 = 5_000_000;

impl Table {
    /// The table of this name.
    pub fn of(system: &str, workload: &str) -> Option<&'static Self> {
        TABLES.iter().find(|table| (table.system, table.workload) == (system, workload))
    }

    /// A workload of this many processes.
    pub fn workload(&self, processes: u64, reading: &Reading, seed: u64) -> Workload {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let gap_ns = match self.arrival {
            Arrival::Same => 0,
            Arrival::AlmostSame => reading.almost_gap_ns,
            Arrival::Random => reading.random_gap_ns,
        };
        let (least, most) = (self.exec_ms.0 * 1_000_000, self.exec_ms.1 * 1_000_000);
        let mut at_ns = 0u64;
        let tasks = (0..processes).map(|at| {
            at_ns = at_ns.saturating_add(about(gap_ns, rng.next_u64()));
            let exec_ns = least + rng.next_u64() % (most - least + 1);
            let home = (rng.next_u64() % u64::from(self.nodes)) as u32;
            let work_ns = exec_ns * reading.pace_pct / 100;
            let is_io = self.is_mix && at % 2 == 1;
            let ops = if is_io { by_turns(work_ns) } else { vec![Op::Run(work_ns)] };
            let kind = if is_io { "io" } else { "cpu" };
            TaskPlan {
                arrives_ns: Some(at_ns),
                space: at as u32,
                home: Some(home),
                ..TaskPlan::new(format!("{kind}{at}"), ops)
            }
        });
        Workload { tasks: tasks.collect(), ..Workload::default() }
    }
}

/// Work and sleep in turn, half of this time each.
fn by_turns(ns: u64) -> Vec<Op> {
    let turns = (ns / (2 * IO_BURST_NS)).max(1);
    let burst = ns / (2 * turns);
    vec![Op::Run(burst), Op::Sleep(burst), Op::Repeat { to: 0, times: turns - 1 }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_machine::Machine;

    fn work_ns(task: &TaskPlan) -> u64 {
        match task.ops[..] {
            [Op::Run(ns)] => ns,
            [Op::Run(ns), Op::Sleep(_), Op::Repeat { times, .. }] => ns * (times + 1),
            _ => unreachable!("{:?}", task.ops),
        }
    }

    #[test]
    fn each_cell_makes_its_processes_for_its_machine() {
        for table in &TABLES {
            let machine = Machine::preset(table.system).unwrap();
            assert_eq!(machine.nodes.len(), table.nodes as usize);
            for row in &table.rows {
                let workload = table.workload(row.processes, &Reading::default(), 1);
                assert_eq!(workload.tasks.len() as u64, row.processes);
                workload.check(&machine).unwrap();
            }
        }
    }

    #[test]
    fn times_and_arrivals_follow_the_paper() {
        let reading = Reading { pace_pct: 50, random_gap_ns: 3_000_000, ..Reading::default() };
        let fixed = Table::of("amc2", "w1").unwrap().workload(512, &reading, 1);
        assert!(fixed.tasks.iter().all(|task| work_ns(task) == 150_000_000));
        assert!(fixed.tasks.iter().all(|task| task.arrives_ns == Some(0)));
        let homes: std::collections::BTreeSet<_> = fixed.tasks.iter().map(|t| t.home).collect();
        assert_eq!(homes.len(), 32);

        let mix = Table::of("amc1", "w2").unwrap().workload(600, &reading, 1);
        let (io, cpu): (Vec<_>, Vec<_>) = mix.tasks.iter().partition(|task| task.ops.len() > 1);
        assert_eq!(io.len(), cpu.len());
        let mean = |tasks: &[&TaskPlan]| {
            tasks.iter().map(|task| work_ns(task)).sum::<u64>() / tasks.len() as u64
        };
        // Half of 50 to 300 ms, and half of that again: within a tenth.
        assert!((78_000_000..97_000_000).contains(&mean(&cpu)), "{}", mean(&cpu));
        assert!((39_000_000..49_000_000).contains(&mean(&io)), "{}", mean(&io));
        let last = mix.tasks.last().unwrap().arrives_ns.unwrap();
        assert!((1_500_000_000..2_100_000_000).contains(&last), "{last}");
    }

    #[test]
    fn a_real_kernel_tells_of_memory_by_how_a_process_came_to_be() {
        let table = Table::of("amc3", "w1").unwrap();
        let drawn = table.workload(4_000, &Reading::default(), 1).tasks;
        let with = |number| {
            let mut tasks = drawn.clone();
            Homes::of(number).unwrap().give(table.nodes, &mut tasks, 1);
            tasks
        };
        assert_eq!(with(1), drawn);
        assert!(with(0).iter().all(|task| task.home.is_none()));
        let (real, known) = (with(2), with(3));
        let homes = |tasks: &[TaskPlan]| tasks.iter().map(|task| task.home).collect::<Vec<_>>();
        assert_eq!(homes(&real), homes(&known), "the same memory");
        assert!(known.iter().all(|task| task.told == Told::AtFork));
        let about = |count: usize, due: usize| count.abs_diff(due) < due / 5;
        assert!(about(real.iter().filter(|task| task.home.is_none()).count(), 1_000));
        let later = real.iter().filter_map(|task| match task.told {
            Told::Later { node, .. } => Some((task.home, Some(node))),
            Told::AtFork => None,
        });
        let (right, wrong): (Vec<_>, Vec<_>) = later.partition(|(home, told)| home == told);
        assert!(
            about(right.len() + wrong.len(), 1_000) && about(wrong.len(), 97),
            "{}",
            wrong.len()
        );
        assert!(Homes::of(4).is_none());
    }

    #[test]
    fn the_seed_determines_the_workload() {
        let table = Table::of("amc3", "w2").unwrap();
        let make = |seed| table.workload(100, &Reading::default(), seed);
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }
}
