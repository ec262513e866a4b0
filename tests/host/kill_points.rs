//! Kills evenkeel at its first, second, third ... journal write or affinity call, each in a run of its
//! own, until a run reaches its end. Afterwards all masks are as before: the supervisor, or `evenkeel
//! undo`, has restored them.

use std::os::unix::process::ExitStatusExt;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// After this many moves the program ends, so that the points of the end are among the first.
const MOVES: usize = 4;
/// A run that has more points than this never reaches its end.
const MAX_POINTS: u64 = 80;

fn kill_at_every_point(test: &str, placement: &str, supervised: bool) {
    let Some(_) = two_cpus(test) else { return };
    let host = Host::new();
    let (mut killed, mut killed_with_pins, mut narrow) = (0, 0, 0);
    for point in 1.. {
        assert!(point <= MAX_POINTS, "no run reached its end");
        let at = point.to_string();
        let mut flags = vec!["-q", "--placement", placement, "--abort-at", &at];
        flags.extend(EAGER);
        if !supervised {
            flags.push("--no-supervisor");
        }
        let mut command = host.run(&flags, &role("worker"));
        if placement == "soft" {
            command.env("YOUNG", "1");
        }
        let mut worker = Worker::start_by(&mut command, 2);
        let orphan: i32 = worker.ask("orphan", "orphan").parse().unwrap();
        let tasks = [&worker.threads[..], &[orphan, worker.pid]].concat();
        let mut most = 0;
        let mut status = None;
        wait_for("its death, or moves", || {
            let pins = host.pins();
            let busy = pins.iter().filter(|(tid, _)| worker.threads.contains(tid));
            most = most.max(busy.count());
            status = worker.evenkeel.try_wait().unwrap();
            status.is_some() || most >= MOVES
        });
        // If evenkeel was killed in mid-run, the program is alive and its masks can be read; else
        // it ends now.
        let was_alive = status.is_some();
        if !was_alive {
            worker.let_end();
        }
        let status = status.unwrap_or_else(|| ended(&mut worker.evenkeel));
        let was_killed = status.signal() == Some(libc::SIGKILL);
        let is_as_before = || match was_alive {
            true => tasks.iter().all(|tid| mask(*tid) == all()),
            false => mask(orphan) == all(),
        };
        if supervised {
            wait_for(&format!("the supervisor at point {point}"), is_as_before);
            // A run that was killed before it had a supervisor leaves a journal without a pin.
            wait_for("the journal's end", || {
                host.journals().is_empty() || host.pins().is_empty() && was_killed
            });
        } else {
            killed_with_pins += u32::from(!host.pins().is_empty());
            narrow += u32::from(!is_as_before());
        }
        let report = host.undo();
        assert_eq!(report["errors"].as_array().unwrap().len(), 0, "point {point}: {report}");
        assert_eq!(report["damaged"].as_array().unwrap().len(), 0, "point {point}: {report}");
        assert!(is_as_before(), "point {point}: {report}");
        assert!(host.journals().is_empty(), "point {point}");
        host.status();
        kill(orphan, libc::SIGKILL);
        if !was_killed {
            assert!(status.success(), "point {point}: {status}");
            break;
        }
        killed += 1;
    }
    println!("{test}: {killed} points; {killed_with_pins} with pins, {narrow} with narrow masks");
    if placement == "hard" && !supervised {
        // Beside other load a thread is alone on its CPU for a while, and is let go.
        assert!(narrow >= MOVES as u32 / 2, "threads were not pinned");
    }
    // Its start, at least one line and one call for each move, and the end.
    assert!(killed >= 2 * MOVES as u32, "only {killed} points: nothing was moved");
    if !supervised {
        assert!(killed_with_pins >= MOVES as u32, "only {killed_with_pins} deaths with pins");
        assert!(narrow >= 1, "no mask was ever left narrow: there was nothing to undo");
    }
}

#[test]
fn hard_pins_of_a_killed_run_are_undone_by_its_supervisor() {
    kill_at_every_point("hard_pins_of_a_killed_run_are_undone_by_its_supervisor", "hard", true);
}

#[test]
fn soft_pins_of_a_killed_run_are_undone_by_its_supervisor() {
    kill_at_every_point("soft_pins_of_a_killed_run_are_undone_by_its_supervisor", "soft", true);
}

#[test]
fn hard_pins_of_a_killed_run_are_undone_by_undo() {
    kill_at_every_point("hard_pins_of_a_killed_run_are_undone_by_undo", "hard", false);
}

#[test]
fn soft_pins_of_a_killed_run_are_undone_by_undo() {
    kill_at_every_point("soft_pins_of_a_killed_run_are_undone_by_undo", "soft", false);
}
