//! `srun --evenkeel`, and sweeps of simulations, on a real Slurm, which each test sets up on this host
//! and takes down again. Without Slurm (scripts/slurm installs it) the tests say so and are skipped. No
//! test asserts on how long something takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod batch;
mod beside_daemon;
mod cluster;
mod controller;
mod faults;
mod gain;
mod heterogeneous;
mod launchers;
mod moments;
mod report;
mod start;
mod steps;
mod suspended;
// What the tests on the live host use, too; not all of it is needed here.
#[allow(dead_code)]
#[path = "../common/support.rs"]
mod support;
#[allow(dead_code)]
#[path = "../common/sweeps.rs"]
mod sweeps;
mod sweeps_on_slurm;
