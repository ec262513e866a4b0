//! Kills `evenkeel sais attach` at random moments, with and without traffic. Afterwards no program, no
//! thread and no knob is left (see `crate::kill_moments`).

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use super::net::run_on;
use super::rfs::{Cable, TABLE, says};
use super::traffic::{Client, Server};
use super::{can_run, wait_no_threads};
use crate::kill_moments::{Left, Moments, undo_all};
use crate::support::*;

/// Ends the traffic, also where a check fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn kill_steerings(test: &str, has_traffic: bool) {
    let Some((interrupts, consumer)) = can_run(test) else { return };
    if !std::path::Path::new(TABLE).exists() || says(TABLE) != "0" {
        return evenkeel_skip::skip(
            test,
            format!("{TABLE} is not this machine's own to turn, or on"),
        );
    }
    let host = Host::alone();
    let cable = Cable::new();
    let _server = Server::start(&cable.server, interrupts);
    let mut moments = Moments::of(test);
    let left = Left::now();
    let is_over = AtomicBool::new(false);
    let is_steered = || says(TABLE) != "0" && says(cable.knob()) != "0";
    // Without traffic there is no reason to turn the knobs, or to stay on the device: a program that is
    // there for a moment may be missed, so a journal is enough. It is opened once, and stays.
    let is_attached = || has_program(&cable.device) || !host.journals().is_empty();
    let is_changed: &dyn Fn() -> bool = if has_traffic { &is_steered } else { &is_attached };
    let mut with_settings = 0;
    std::thread::scope(|scope| {
        if has_traffic {
            scope.spawn(|| {
                run_on(&just(consumer));
                let mut client = Client::connect(cable.address());
                while !is_over.load(Ordering::Relaxed) {
                    client.fetch(4 << 20, consumer);
                }
            });
        }
        let _end = End(&is_over);
        for _ in 0..moments.kills {
            let is_supervised = moments.pick(&[true, false]);
            let words =
                ["sais", "attach", &cable.device, "--policy", "auto", "--strip-us", "100,1"];
            let mut words = [&words[..], &["--manage-rfs"]].concat();
            if !is_supervised {
                words.push("--no-supervisor");
            }
            let mut steering = host.evenkeel(words).stdout(Stdio::null()).spawn().unwrap();
            moments.wait(Some(is_changed));
            steering.kill().unwrap();
            ended(&mut steering);
            with_settings += usize::from(says(TABLE) != "0" || says(cable.knob()) != "0");
            let is_off = || says(TABLE) == "0" && says(cable.knob()) == "0";
            if is_supervised {
                wait_for("the supervisor", is_off);
            }
            undo_all(&host, is_supervised);
            assert!(is_off());
            wait_no_threads();
            left.wait_as_before();
            assert!(!has_program(&cable.device));
        }
    });
    println!("{test}: {} kills, {with_settings} with knobs turned", moments.kills);
    assert!(with_settings > 0 || !has_traffic);
}

/// Whether an XDP program is on the device.
fn has_program(device: &str) -> bool {
    let words = ["-details", "link", "show", device];
    let shown = output(std::process::Command::new("ip").args(words));
    assert!(shown.status.success(), "{shown:?}");
    text(&shown.stdout).contains("xdp")
}

#[test]
fn a_steering_that_is_killed_at_any_moment_leaves_nothing() {
    kill_steerings("a_steering_that_is_killed_at_any_moment_leaves_nothing", false);
}

#[test]
fn a_steering_that_is_killed_under_traffic_leaves_nothing() {
    kill_steerings("a_steering_that_is_killed_under_traffic_leaves_nothing", true);
}
