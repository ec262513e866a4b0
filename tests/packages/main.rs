//! The Debian packages in clean systems: each is installed by apt, used and purged. `make deb-test` runs
//! this program; the ordinary tests leave it out, since it needs packages and systems that they do not
//! make. It never changes the systems in the cache: they are the lower layer of an overlay.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod header;
mod system;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use system::System;

/// The version of the workspace, which the packages must have.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What apt is asked for; without recommended packages, as in a container or on a compute node.
const APT: &str = "DEBIAN_FRONTEND=noninteractive apt-get --quiet=2 --no-install-recommends";
/// From a clean system to the answer of `doctor`, in s.
const GOAL_S: f64 = 30.0;

/// The time until doctor's answer beside its goal. `make deb-test` fails on the words "goal missed":
/// tests themselves do not assert on wall-clock times.
fn beside_the_goal(suite: &str, took_s: f64) -> String {
    let verdict = if took_s <= GOAL_S { "reached" } else { "missed" };
    format!(
        "{suite}: {took_s:.1} s from the clean system to doctor's answer, wanted {GOAL_S:.0} s at most: \
         goal {verdict}"
    )
}

/// The folder of the packages, and the names of the files in it.
fn packages() -> (PathBuf, Vec<String>) {
    let folder = std::env::var_os("EVENKEEL_PACKAGES").map(PathBuf::from);
    let folder = folder.expect("EVENKEEL_PACKAGES names no folder: run `make deb-test`");
    let names = std::fs::read_dir(&folder).unwrap().map(|entry| {
        let name = entry.unwrap().file_name();
        name.into_string().unwrap()
    });
    let names: Vec<String> = names.filter(|name| name.ends_with(".deb")).collect();
    assert_eq!(names.len(), 3, "evenkeel, evenkeel-lab, libevenkeel-dev: {names:?}");
    (folder, names)
}

/// Paths in the system that a package might leave. What apt and dpkg keep of their own work is left out.
fn files(system: &System) -> BTreeSet<String> {
    let pruned = ["/proc", "/sys", "/dev", "/packages", "/var/cache", "/var/lib/apt", "/var/log"]
        .map(|path| format!("-path {path}"))
        .join(" -o ");
    let found = system.run(&format!("find / '(' {pruned} ')' -prune -o -print"));
    let is_of_dpkg = |path: &str| {
        let name = path.strip_prefix("/var/lib/dpkg/").unwrap_or_default();
        name.starts_with("status") || name.starts_with("available") || name.starts_with("lock")
    };
    found.lines().filter(|path| !is_of_dpkg(path)).map(str::to_owned).collect()
}

/// Of them, those that were not there before.
fn left_since(before: &BTreeSet<String>, system: &System) -> Vec<String> {
    files(system).difference(before).cloned().collect()
}

fn install_use_and_purge(suite: &str) {
    let (folder, names) = packages();
    let system = System::of(suite, &folder);
    let path = |package: &str| {
        let start = format!("{package}_");
        let name = names.iter().find(|name| name.starts_with(&start)).expect(package);
        format!("/packages/{name}")
    };
    let before = files(&system);

    // From the clean system to the answer of `doctor`.
    let begin = Instant::now();
    system.run(&format!("apt-get --quiet=2 update && {APT} install {}", path("evenkeel")));
    let answer = system.run("evenkeel doctor");
    println!("{}", beside_the_goal(suite, begin.elapsed().as_secs_f64()));
    assert!(answer.contains("evenkeel run works here"), "{answer}");

    assert_eq!(system.run("evenkeel --version"), format!("evenkeel {VERSION}\n"));
    system.run("evenkeel run -- true");
    assert_eq!(system.run("evenkeel run -q -- sh -c 'exit 3' || echo $?"), "3\n");
    assert_eq!(system.run("chcb -q echo run"), "run\n");
    for compiler in ["cc", "gcc", "clang", "cargo", "make"] {
        assert_eq!(
            system.run(&format!("command -v {compiler} || true")),
            "",
            "{suite} is not clean"
        );
    }
    for file in [
        "/etc/evenkeel/config.toml",
        "/usr/lib/evenkeel/libevenkeel_shares.so",
        "/usr/share/bash-completion/completions/evenkeel",
        "/usr/share/doc/evenkeel/README.md",
        "/usr/share/doc/evenkeel/docs/guide.md",
        "/usr/share/doc/evenkeel/docs/schemas/run-2.json",
        "/usr/share/man/man1/evenkeel-run.1.gz",
        "/usr/share/man/man1/chcb.1.gz",
        "/usr/share/man/man5/evenkeel.toml.5.gz",
    ] {
        system.run(&format!("test -f {file}"));
    }
    // The configuration that is shipped is good, and nothing in it is set.
    system.run("evenkeel config check");
    assert_eq!(system.run("grep -v -e '^#' -e '^$' /etc/evenkeel/config.toml || true"), "");
    // Both units are there, and neither is enabled.
    for unit in ["evenkeel.service", "evenkeel-keel.service"] {
        let start = system.run(&format!("grep ^ExecStart= /lib/systemd/system/{unit}"));
        assert!(start.starts_with("ExecStart=/usr/bin/evenkeel "), "{start}");
        assert_eq!(system.run(&format!("find /etc/systemd -name {unit}")), "", "{unit} is enabled");
    }
    assert_eq!(system.run("dpkg --verify evenkeel"), "", "files are not as packaged");

    system.run(&format!("{APT} install {} {}", path("evenkeel-lab"), path("libevenkeel-dev")));
    assert_eq!(system.run("evenkeel-lab --version"), format!("evenkeel-lab {VERSION}\n"));
    system.run("evenkeel-lab sim run pool --machine small >/dev/null");
    system.run("test -f /usr/include/evenkeel.h");

    // The administrator's configuration outlives a removal, but no purge. The laboratory goes with what
    // it needs.
    system.run("echo '# changed' >>/etc/evenkeel/config.toml");
    system.run(&format!("{APT} remove evenkeel"));
    system.run("grep -qx '# changed' /etc/evenkeel/config.toml");
    assert_eq!(system.run("command -v evenkeel || true"), "");
    system.run(&format!("{APT} purge --auto-remove evenkeel libevenkeel-dev"));
    assert_eq!(left_since(&before, &system), [] as [String; 0], "left after the purge");
}

#[test]
fn a_missed_goal_is_said_in_the_words_that_make_looks_for() {
    let said = |took_s| beside_the_goal("bookworm", took_s);
    assert!(
        said(29.9).ends_with(" 30 s at most: goal reached") && said(30.1).ends_with("goal missed")
    );
    let makefile = include_str!("../../Makefile");
    assert!(makefile.contains("! grep 'goal missed' target/deb-test.log"));
}

#[test]
#[ignore = "needs packages and a clean system: make deb-test"]
fn bookworm_installs_uses_and_purges_the_packages() {
    install_use_and_purge("bookworm");
}

#[test]
#[ignore = "needs packages and a clean system: make deb-test"]
fn trixie_installs_uses_and_purges_the_packages() {
    install_use_and_purge("trixie");
}

#[test]
#[ignore = "needs packages and a clean system: make deb-test"]
fn bookworm_compiles_and_runs_a_program_with_the_header() {
    header::compile_and_run("bookworm");
}

#[test]
#[ignore = "needs packages and a clean system: make deb-test"]
fn trixie_compiles_and_runs_a_program_with_the_header() {
    header::compile_and_run("trixie");
}

/// A step that fails is seen, and leaves neither a mount nor a process.
#[test]
#[ignore = "needs packages and a clean system: make deb-test"]
fn nothing_is_left_after_a_step_that_failed() {
    let (folder, _) = packages();
    let system = System::of("bookworm", &folder);
    let top = system.top().to_owned();
    // What is looked for afterwards is there while the step runs.
    let step = format!(
        "sleep 1000 & tr '\\0' '\\n' </proc/$$/environ | grep -qx SYSTEM={} && \
         grep -q ' /packages ' /proc/mounts && echo prepared; false",
        top.display()
    );
    let failure = system.attempt(&step).unwrap_err();
    assert!(failure.contains("\nprepared\n"), "{failure}");
    assert_eq!(system::processes_of(&top), [] as [u32; 0]);
    drop(system);
    assert!(!top.exists(), "{} is left", top.display());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(top.to_str().unwrap()), "{mounts}");
}
