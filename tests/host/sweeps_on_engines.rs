//! Sweeps of simulations on this machine and on Dask: one result file, whatever the engine. (Those on
//! Slurm are in tests/cluster.)

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::*;
use crate::sweeps::{Crash, crashing_keel, dask, swept, words};

/// A sweep with more words, without an engine that the surroundings may name.
fn sweep(host: &Host, seeds: usize, out: &str, more: &[&str]) -> Command {
    let mut command = host.evenkeel_lab(words(host, seeds, out));
    command.args(more).env_remove("DASK_SCHEDULER_ADDRESS");
    command
}

fn read(host: &Host, out: &str) -> String {
    std::fs::read_to_string(host.path(out)).unwrap()
}

/// What a sweep that must be refused says.
fn refused(command: &mut Command) -> String {
    let done = output(command);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}{}", text(&done.stdout));
    said
}

#[test]
fn the_file_is_the_same_in_whatever_order_its_runs_are_made() {
    let host = Host::new();
    swept(&mut sweep(&host, 9, "whole", &[]));
    for (shards, jobs) in [(&["3/3", "1/3", "2/3"][..], "1"), (&["1/1"], "3")] {
        for shard in shards {
            swept(&mut sweep(&host, 9, "parts", &["--shard", shard, "--jobs", jobs]));
        }
        assert_eq!(read(&host, "parts"), read(&host, "whole"));
        std::fs::remove_file(host.path("parts")).unwrap();
    }
    // A sweep that grows has the rows of one that was that large from the beginning.
    swept(&mut sweep(&host, 4, "grown", &[]));
    let said = swept(&mut sweep(&host, 9, "grown", &[]));
    assert!(said.starts_with("5 runs; 9 rows"), "{said}");
    assert_eq!(read(&host, "grown"), read(&host, "whole"));
    assert!(!host.path("whole.parts").exists());
}

/// What a sweep that was killed has written is used: whole rows; the row that it was writing is made
/// again.
#[test]
fn a_killed_sweep_goes_on_where_it_was() {
    let host = Host::new();
    swept(&mut sweep(&host, 6, "whole", &[]));
    let whole = read(&host, "whole");
    let lines: Vec<&str> = whole.lines().collect();
    let parts = host.path("rows.parts");
    std::fs::create_dir(&parts).unwrap();
    let half = &lines[4][..lines[4].len() / 2];
    std::fs::write(parts.join("rows-here-a"), format!("{}\n{}\n", lines[5], lines[2])).unwrap();
    std::fs::write(parts.join("rows-0123-b"), format!("{}\n{half}", lines[2])).unwrap();
    let said = swept(&mut sweep(&host, 6, "rows", &[]));
    assert!(said.starts_with("4 runs; 6 rows"), "{said}");
    assert_eq!(read(&host, "rows"), whole);
    assert!(!parts.exists());
    let said = swept(&mut sweep(&host, 6, "rows", &[]));
    assert!(said.starts_with("0 runs; 6 rows"), "{said}");
    // Killed at any moment, and resumed.
    let mut killed = sweep(&host, 6, "killed", &["--jobs", "1"]).spawn().unwrap();
    let is_begun = || {
        let files = std::fs::read_dir(host.path("killed.parts"));
        files.is_ok_and(|mut files| files.any(|file| file.is_ok()))
    };
    wait_for("its first row", || is_begun() || killed.try_wait().unwrap().is_some());
    killed.kill().unwrap();
    killed.wait().unwrap();
    swept(&mut sweep(&host, 6, "killed", &[]));
    assert_eq!(read(&host, "killed"), whole);
}

#[test]
fn a_file_belongs_to_one_sweep_at_a_time() {
    let host = Host::new();
    let parts = host.path("rows.parts");
    std::fs::create_dir(&parts).unwrap();
    let lock = std::fs::File::open(&parts).unwrap();
    lock.lock().unwrap();
    for on in ["local", "slurm", "dask"] {
        let said = refused(&mut sweep(&host, 2, "rows", &["--on", on]));
        assert!(said.contains("another sweep writes to ") && said.contains("rows: wait"), "{said}");
    }
    drop(lock);
    swept(&mut sweep(&host, 2, "rows", &[]));
}

#[test]
fn invalid_sweeps_are_refused_by_name() {
    let host = Host::new();
    std::fs::write(host.path("text"), "no row\n").unwrap();
    std::fs::create_dir(host.path("folder")).unwrap();
    std::fs::write(host.path("blocked.parts"), "").unwrap();
    for (out, more, expected) in [
        ("rows", &["--on", "kubernetes"][..], "[possible values: local, slurm, dask]"),
        ("rows", &["--on", "dask", "--part-runs", "0"], "out of range: give 1 or more"),
        ("rows", &["--retries", "1"], "give --on slurm or --on dask"),
        ("rows", &["--part", "0"], "rows.parts: No such file or directory"),
        ("no/such/place", &[], "no/such/place: No such file or directory"),
        ("folder", &[], "folder: is a directory"),
        ("text", &[], "text:1: expected ident at line 1 column 2"),
        ("blocked", &[], "blocked.parts: Not a directory"),
    ] {
        let said = refused(&mut sweep(&host, 2, out, more));
        assert!(said.contains(expected), "{out} {more:?}: {said}");
    }
    // Rows of another sweep under the same names.
    swept(&mut sweep(&host, 2, "rows", &[]));
    let other = refused(&mut sweep(&host, 2, "rows", &["--cost", "switch_ns=1"]));
    assert!(other.contains("rows:1: ") && other.contains("made of another input"), "{other}");
    // Two rows of one run that differ.
    let rows = read(&host, "rows");
    std::fs::create_dir(host.path("rows.parts")).unwrap();
    let forged = rows.lines().next().unwrap().replace("\"finished\":8", "\"finished\":9");
    std::fs::write(host.path("rows.parts/rows-here-a"), forged + "\n").unwrap();
    let said = refused(&mut sweep(&host, 2, "rows", &[]));
    assert!(said.contains("another row of the same input"), "{said}");
    assert_eq!(read(&host, "rows"), rows);
}

#[test]
fn an_engine_that_is_not_installed_is_named_with_its_package() {
    let host = Host::new();
    let said = refused(sweep(&host, 2, "rows", &["--on", "slurm"]).env("PATH", host.path("home")));
    assert!(said.contains("sbatch cannot be started (No such file or directory"), "{said}");
    assert!(said.contains("apt-get install slurm-client"), "{said}");
    let python = host.path("python");
    let dask = || {
        let mut command = sweep(&host, 2, "rows", &["--on", "dask"]);
        command.env("EVENKEEL_DASK_PYTHON", host.path("python"));
        command
    };
    let said = refused(&mut dask());
    assert!(said.contains("python cannot be started (No such file or directory"), "{said}");
    assert!(said.contains("`scripts/setup dask` installs it"), "{said}");
    for (code, expected) in [
        (3, "distributed, with "),
        // One that ends early is quoted.
        (1, "dask: the scheduler is gone"),
    ] {
        let script = format!("#!/bin/sh\necho the scheduler is gone >&2\nexit {code}\n");
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let said = refused(&mut dask());
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_sweep_on_dask_makes_the_same_file() {
    let host = Host::new();
    let Some(python) = dask("a_sweep_on_dask_makes_the_same_file") else { return };
    let temporary = host.path("temporary");
    std::fs::create_dir(&temporary).unwrap();
    swept(&mut sweep(&host, 12, "here", &[]));
    let on_dask = || {
        let mut command = sweep(&host, 12, "there", &["--on", "dask", "--part-runs", "5"]);
        command.env("EVENKEEL_DASK_PYTHON", &python).env("TMPDIR", &temporary);
        command
    };
    let said = swept(&mut on_dask());
    assert!(said.starts_with("12 runs; 12 rows"), "{said}");
    assert_eq!(read(&host, "there"), read(&host, "here"));
    let said = swept(&mut on_dask());
    assert!(said.starts_with("0 runs; 12 rows"), "{said}");
    assert!(!host.path("there.parts").exists());
    // Nor does Dask leave anything elsewhere.
    assert!(!temporary.join("dask-scratch-space").exists());
}

/// Dask tries a part again that has failed; that attempt makes only what is missing. Where it gives up,
/// that is said, and the next sweep tries again.
#[test]
fn dask_tries_again_and_says_when_it_gives_up() {
    let host = Host::new();
    let Some(python) = dask("dask_tries_again_and_says_when_it_gives_up") else { return };
    for (crash, out) in [(Crash::Once, "once"), (Crash::Always, "always")] {
        let (keel, marker) = crashing_keel(&host, crash);
        let keel = keel.to_str().unwrap();
        let on_dask = || {
            let more = ["--on", "dask", "--part-runs", "4", "--retries", "1", "--keel", keel];
            let mut command = sweep(&host, 6, out, &more);
            output(command.env("EVENKEEL_DASK_PYTHON", &python))
        };
        let done = on_dask();
        let said = text(&done.stdout);
        if crash == Crash::Once {
            assert_eq!(done.status.code(), Some(0), "{said}{}", text(&done.stderr));
            assert!(said.starts_with("6 runs; 6 rows"), "{said}");
            continue;
        }
        assert_eq!(done.status.code(), Some(1), "{said}{}", text(&done.stderr));
        assert!(said.starts_with("0 runs; 0 rows"), "{said}");
        assert!(said.contains(", seed 1: its process ended: signal: "), "{said}");
        assert!(said.contains("; dask gave up after attempt 2"), "{said}");
        assert!(said.contains("6 lost; the same command tries again"), "{said}");
        let log = std::fs::read_to_string(host.path("always.parts/log-0")).unwrap();
        assert_eq!(log.lines().filter(|line| line.starts_with("part 0: ")).count(), 2, "{log}");
        std::fs::remove_file(marker).unwrap();
        let said = text(&on_dask().stdout);
        assert!(said.starts_with("6 runs; 6 rows"), "{said}");
        assert!(!host.path("always.parts").exists());
    }
}

/// Dask's driver ends with the command, however that ends.
#[test]
fn a_killed_sweep_leaves_no_driver() {
    let host = Host::new();
    let Some(python) = dask("a_killed_sweep_leaves_no_driver") else { return };
    let mut command = sweep(&host, 200, "rows", &["--on", "dask", "--jobs", "1"]);
    let mut killed = command.env("EVENKEEL_DASK_PYTHON", &python).spawn().unwrap();
    wait_for("a part", || host.path("rows.parts/log-0").exists());
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_for("the driver's end", || host.processes().is_empty());
    swept(&mut sweep(&host, 200, "rows", &[]));
}
