//! Machines, tasks and simulations in one line each, and the worlds of the tests.

#![allow(dead_code)]

pub mod adversaries;
pub mod build;
pub mod torture;
pub mod worlds;

use std::sync::Arc;

use evenkeel_capability::Policy;
use evenkeel_invariants::{Left, What};
use evenkeel_keel::Options;
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Interrupts, Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{FaultPlan, Mask, Outcome, STRICT, Scheduler, Simulation};

pub const MS: u64 = 1_000_000;

/// A machine of equal CPUs that share a cache, without costs.
pub fn paper(cpus: u32) -> Machine {
    let list = if cpus == 1 { "0".to_owned() } else { format!("0-{}", cpus - 1) };
    let text = format!("name = \"paper\"\nkinds = [{{ cpus = \"{list}\", capability = 1024 }}]\n");
    Machine { costs: Costs::none(), ..Machine::parse_toml(&text, "paper").unwrap() }
}

/// Equal CPUs under last-level caches of so many CPUs each, without costs.
pub fn caches(count: u32, each: u32) -> Machine {
    let list = |cache: u32| format!("\"{}-{}\"", cache * each, (cache + 1) * each - 1);
    let llcs: Vec<String> = (0..count).map(list).collect();
    let text = format!(
        "name = \"caches\"\nllcs = [{}]\nkinds = [{{ cpus = \"0-{}\", capability = 1024 }}]\n",
        llcs.join(", "),
        count * each - 1
    );
    Machine { costs: Costs::none(), ..Machine::parse_toml(&text, "caches").unwrap() }
}

/// A task that works and ends.
pub fn hog(ns: u64) -> TaskPlan {
    TaskPlan::new("hog", vec![Op::Run(ns)])
}

/// A mask of this CPU.
pub fn only(cpu: u32) -> Option<Arc<Mask>> {
    let mut mask = Mask::EMPTY;
    mask.set(cpu);
    Some(Arc::new(mask))
}

/// Another build of the keel, named by EVENKEEL_SIM_KEEL: with sanitizers, or with a fault of
/// `scripts/mutate`.
pub fn keel_build() -> Option<Arc<[u8]>> {
    let path = std::env::var_os("EVENKEEL_SIM_KEEL")?;
    Some(std::fs::read(path).unwrap().into())
}

/// A simulation that is being built.
#[derive(Clone)]
pub struct Sim {
    pub machine: Machine,
    pub scheduler: Scheduler,
    pub balancer: Option<Policy>,
    pub workload: Workload,
    pub faults: FaultPlan,
    pub seed: u64,
}

impl Sim {
    pub fn new(machine: Machine) -> Self {
        let (workload, faults) = (Workload::default(), FaultPlan::default());
        let scheduler = Scheduler::Fifo;
        Self { machine, scheduler, balancer: None, workload, faults, seed: 1 }
    }

    pub fn keel(machine: Machine) -> Self {
        Self::keel_with(machine, Options::default())
    }

    pub fn keel_with(machine: Machine, options: Options) -> Self {
        let scheduler = match keel_build() {
            Some(build) => Scheduler::Built(options, build),
            None => Scheduler::Keel(options),
        };
        Self { scheduler, ..Self::new(machine) }
    }

    pub fn task(mut self, task: TaskPlan) -> Self {
        self.workload.tasks.push(task);
        self
    }

    pub fn tasks(mut self, count: usize, task: TaskPlan) -> Self {
        self.workload.tasks.extend(std::iter::repeat_n(task, count));
        self
    }

    pub fn thief(mut self, thief: Thief) -> Self {
        self.workload.thieves.push(thief);
        self
    }

    pub fn interrupts(mut self, source: Interrupts) -> Self {
        self.workload.interrupts.push(source);
        self
    }

    pub fn simulation(&self) -> Simulation {
        Simulation {
            machine: self.machine.clone(),
            scheduler: self.scheduler.clone(),
            balancer: self.balancer.clone(),
            workload: Arc::new(self.workload.clone()),
            faults: self.faults,
            seed: self.seed,
            limits: Some(STRICT),
            records: false,
            max_events: 100_000_000,
        }
    }

    /// Runs it, however it ends.
    pub fn outcome(&self) -> Outcome {
        self.simulation().run().unwrap()
    }

    /// Runs it, and checks that it ends well and no rule is broken.
    pub fn run(&self) -> Outcome {
        let outcome = self.outcome();
        assert_eq!(outcome.end, None, "{}", outcome.dump);
        assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
        outcome
    }
}

/// The longest wait of any of the first tasks of a workload, in ns; the simulation has records.
pub fn longest_wait_ns(outcome: &Outcome, tasks: u32) -> u64 {
    let (mut since_ns, mut longest_ns) = (vec![None; tasks as usize + 1], 0);
    for event in &outcome.record {
        let now = event.time_ns;
        let (waits, runs) = match event.what {
            What::Wakeup { task } => (Some(task), None),
            What::Switch { prev, left: Left::Runnable, next, .. } => (Some(prev), Some(next)),
            What::Switch { next, .. } => (None, Some(next)),
            _ => continue,
        };
        if let Some(since) = waits.and_then(|task| since_ns.get_mut(task as usize)) {
            since.get_or_insert(now);
        }
        if let Some(since) = runs.and_then(|task| since_ns.get_mut(task as usize)) {
            longest_ns = longest_ns.max(since.take().map_or(0, |since| now - since));
        }
        // The idle task does not wait.
        since_ns[0] = None;
    }
    let unfinished = since_ns.iter().flatten().map(|since| outcome.time_ns - since);
    unfinished.fold(longest_ns, u64::max)
}
