//! The real executables on the live host: what `evenkeel` promises to the programs that it runs, to
//! their users and to the machine. The tests run as any user; a test that needs root, two CPUs or a
//! missing tool says so and is skipped. No test asserts on how long something takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bench_costs;
mod bench_irq;
mod bench_programs;
mod bench_scale;
mod cluster_report;
mod compare;
mod compiled;
mod containers;
mod cpuset;
mod daemon;
mod efficient;
mod figures;
#[path = "../../product/control/tests/common/fuse.rs"]
mod fuse;
mod held_up;
mod hotplug;
#[path = "../common/html.rs"]
mod html;
mod installed;
mod interrupts;
mod invalid_options;
mod job;
mod journals;
mod kill_moments;
mod kill_points;
mod machine_report;
mod metrics;
mod pages;
mod papers_commands;
mod perfetto;
mod privilege;
mod programs;
mod quotas;
mod report;
mod repro;
mod roles;
#[path = "../common/running_daemon.rs"]
mod running_daemon;
mod sais;
#[path = "../common/schema.rs"]
mod schema;
mod schemas;
mod seen;
mod shares;
mod signals;
mod signs;
mod sim;
mod streams;
#[path = "../common/support.rs"]
mod support;
#[path = "../common/sweeps.rs"]
mod sweeps;
mod sweeps_on_engines;
mod terminal;
mod threads;
mod time_left;
mod top;
#[path = "../common/trace.rs"]
mod trace;
mod transparency;
mod user_masks;
mod version;
mod waiting;
#[path = "../common/worker.rs"]
mod worker;
mod working_set;
