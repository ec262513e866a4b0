//! Tests on real kernels in a virtual machine. This one program is the host's side (it boots guests
//! and reports each test under its name, as `cargo test` does), the guest's first process, and in
//! the guest each of the tests and the processes that these start.
//!
//! A test's name says which kernel it runs on; `make vm-test ONLY=6.18` picks some. Guests
//! are emulated and slow: nothing asserts on how long something takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// What the tests on the live host use, too; not all of it is needed here.
#[allow(dead_code)]
#[path = "../common/running_daemon.rs"]
mod running_daemon;
#[path = "../common/schema.rs"]
mod schema;
#[allow(dead_code)]
#[path = "../../product/journal/tests/host/stand_in.rs"]
mod stand_in;
#[allow(dead_code)]
#[path = "../common/support.rs"]
mod support;
#[allow(dead_code)]
#[path = "../common/trace.rs"]
mod trace;
#[allow(dead_code)]
#[path = "../common/worker.rs"]
mod worker;

mod accepted;
mod adversaries;
mod boots;
mod card;
mod demo;
mod hotplug;
mod interrupts;
mod invariants;
mod irqbalance;
mod keel;
mod kill_moments;
mod policies;
mod replay;
mod roles;
mod sais;
mod scheduler;
mod shield;
mod storms;
mod unequal;
mod units;
mod user_level;
mod users;
mod watched;

use std::process::ExitCode;

/// A test in a guest.
pub struct Test {
    /// What it shows.
    pub name: &'static str,
    /// It fails by a panic.
    pub run: fn(),
}

fn main() -> ExitCode {
    if evenkeel_vm::is_init() {
        evenkeel_vm::serve();
    }
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some(roles::ROLE), Some(name)) => roles::play(&name),
        (Some(boots::TEST), Some(name)) => boots::run_in_guest(&name, arguments.next().as_deref()),
        _ => return boots::run_on_host(),
    }
    ExitCode::SUCCESS
}
