//! The laboratory's benchmarks. Each is a list of contestants, metrics and aims on top of
//! `evenkeel-experiment`, and a function that makes one run.
//!
//! | module | what it measures |
//! |---|---|
//! | [`capability`] | the capability balancer against the kernel and pinning, under noise |
//! | [`cluster`] | jobs of Slurm on a node with a noisy CPU, with and without `srun --evenkeel` |
//! | [`levers`] | the three levers of `evenkeel run` on parallel programs (`bench programs`) |
//! | [`keel`] | the keel beside the kernel's own scheduler and its peers |
//! | [`balance`] | programs on unequal CPUs, under the keel and the user-level balancer |
//! | [`ias`] | what sibling aggregation costs, and which siblings it brings together |
//! | [`zone`] | what the zone gate saves under load |
//! | [`sais`] | packets processed on the CPU that reads their data |
//! | [`irq`] | where interrupts run: packets where they are consumed, and the noise levelled |
//! | [`free`] | free runs of the simulator beside those of a real kernel |
//! | [`refill`] | what it costs to refill caches, fitted for the simulator |
//! | [`scale`] | what noise costs jobs on many nodes, and what evenkeel says on each |
//! | [`simulator_speed`], [`sweeps`] | how fast the simulator is; two sweeps compared |
//! | [`plan_cost`], [`daemon_cost`] | what deciding costs; what the daemon costs with many programs |
//! | [`large_machines`] | `run` and `run --shares` on 16 to 128 CPUs, calculated |
//! | [`startup_cost`] | what `evenkeel run` adds to a short program |
//! | [`waiting_cost`] | what it costs to see how programs wait |
//! | [`make_noise`], [`verify`] | one noise for a while; what the accounting shows of it |
//!
//! They share [`programs`], the parallel programs that they run, [`mpi`], which launches ranks,
//! [`namespace`], a network namespace, [`private_daemon`], a daemon of a benchmark's own, and `crowd`, a
//! process with many sleeping threads.
//! Those of a cost share [`cost_page`]: where their figures go.

pub mod balance;
pub mod capability;
pub mod cluster;
pub mod cost_page;
mod crowd;
pub mod daemon_cost;
pub mod free;
pub mod ias;
pub mod irq;
pub mod keel;
pub mod large_machines;
pub mod levers;
pub mod make_noise;
pub mod mpi;
pub mod namespace;
pub mod plan_cost;
pub mod private_daemon;
pub mod programs;
pub mod refill;
pub mod sais;
pub mod scale;
pub mod simulator_speed;
pub mod startup_cost;
pub mod sweeps;
pub mod verify;
pub mod waiting_cost;
pub mod zone;

pub use evenkeel_stats as stats;
