//! The real executables on the live host: what `evenkeel` promises to the programs that it runs, to
//! their users and to the machine. The tests run as any user; a test that needs root, two CPUs or a
//! missing tool says so and is skipped. No test asserts on how long something takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench_programs;
mod compare;
mod compiled;
mod cpuset;
mod daemon;
mod figures;
mod hotplug;
mod interrupts;
mod invalid_options;
mod job;
mod journals;
mod kill_moments;
mod kill_points;
mod papers_commands;
mod privilege;
mod programs;
mod quotas;
mod report;
mod repro;
mod roles;
#[path = "../common/running_daemon.rs"]
mod running_daemon;
mod sais;
mod shares;
mod signals;
mod signs;
mod sim;
mod streams;
#[path = "../common/support.rs"]
mod support;
mod terminal;
mod threads;
mod top;
mod transparency;
mod user_masks;
mod waiting;
#[path = "../common/worker.rs"]
mod worker;
mod working_set;
