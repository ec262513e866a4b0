//! The real `evenkeel` binary on the live host: what it promises to the programs that it runs, to
//! their users and to the machine. Works as any user; what needs root, two CPUs or a tool that is
//! not there says so when it is skipped. Nothing asserts on how long something takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod abort;
#[path = "../common/balancer.rs"]
mod balancer;
mod cpuset;
mod daemon;
mod flags;
mod fresh;
mod hotplug;
mod ias;
mod job;
mod journals;
mod privilege;
mod programs;
mod report;
mod repro;
mod roles;
mod sais;
mod share;
mod signals;
mod sim;
mod streams;
#[path = "../common/support.rs"]
mod support;
mod terminal;
mod transparency;
mod user;
#[path = "../common/worker.rs"]
mod worker;
mod working_set;
