//! `evenkeel run --shares`: loops are divided by capability where CPUs differ, equally where they do
//! not, and the result is right; what cannot be divided is said; and a program outlives its balancer.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};
use serde_json::Value;

use super::programs::{LIBRARY, Shares, Steady, build, check_library};
use crate::compiled::Compiled;
use crate::support::*;

const ROUNDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/host/shares/rounds.c");

/// What a program prints at its end when each iteration was executed once.
const RIGHT: &str = "right";

/// A program of clang's; nothing, and a message, where there is none.
fn by_clang(host: &Host, test: &str) -> Option<PathBuf> {
    let shares = Shares::new(test)?;
    let path = host.path("rounds");
    std::fs::copy(shares.compile("rounds.c", "rounds", &[]), &path).unwrap();
    Some(path)
}

/// `rounds.c` with two threads under `evenkeel run --shares`.
struct Rounds {
    steady: Steady,
    stderr: ChildStderr,
    evenkeel: i32,
}

impl Rounds {
    fn start(host: &Host, flags: &[&str], command: &[&str]) -> Self {
        let flags = [&["--shares"], flags].concat();
        let mut command = host.run(&flags, command);
        let mut child: Child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let evenkeel = child.id() as i32;
        Self { steady: Steady::of(child), stderr, evenkeel }
    }

    /// Iterations of each thread in the last region.
    fn counts(&mut self) -> Vec<u64> {
        self.steady.ask("")
    }

    /// The program's end. Returns what evenkeel said.
    fn end(mut self) -> String {
        let line = self.steady.last_line();
        assert_eq!(line, RIGHT);
        self.steady.end();
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        said
    }
}

/// What `status` says of the only run's shares.
fn status(host: &Host) -> Value {
    host.status().pop().map_or(Value::Null, |run| run["shares"].clone())
}

fn unequal(x: u32, y: u32) -> String {
    format!("{x}=1.0,{y}=0.5")
}

#[test]
fn a_cpu_that_noise_makes_slow_gets_fewer_iterations() {
    let test = "a_cpu_that_noise_makes_slow_gets_fewer_iterations";
    let Some((x, _)) = two_cpus(test) else { return };
    let host = Host::alone();
    let Some(program) = by_clang(&host, test) else { return };
    let config = NoiseConfig { busy_us: 40, period_us: 100, limit: crate::support::PATIENCE };
    let noise = match Noise::start(NoiseKind::Softirq, x, config) {
        Ok(noise) => noise,
        Err(why) if why.is_privilege() => return evenkeel_skip::skip(test, why),
        Err(why) => panic!("{why}"),
    };
    // By /proc, a thread has run while interrupts were handled, and has waited for nothing.
    for accounting in ["auto", "procfs"] {
        let flags = ["--accounting", accounting];
        let mut rounds = Rounds::start(&host, &flags, &[program.to_str().unwrap(), "2"]);
        // Whatever else runs here decides whether that is a gain.
        wait_for("unequal shares", || {
            let counts = rounds.counts();
            counts.iter().max() >= counts.iter().min().map(|least| least + 40).as_ref()
        });
        wait_for("the weights in status", || !status(&host)["weights"].is_null());
        let said = rounds.end();
        assert!(said.contains("shares of loops: "), "{said}");
    }
    noise.stop().unwrap();
}

#[test]
fn shares_that_only_cost_are_withdrawn_and_equal_again() {
    let test = "shares_that_only_cost_are_withdrawn_and_equal_again";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::alone();
    let Some(program) = by_clang(&host, test) else { return };
    // The CPUs are alike, but evenkeel is told otherwise: so it divides 1 : 2, which is a loss.
    let json = host.path("summary.json");
    let flags = ["--speed", &unequal(x, y), "--json", json.to_str().unwrap()];
    let mut rounds = Rounds::start(&host, &flags, &[program.to_str().unwrap(), "2"]);
    let is_skewed = |counts: &[u64]| counts.iter().any(|count| *count > 250);
    wait_for("shares of one to two", || is_skewed(&rounds.counts()));
    wait_for("that they are withdrawn", || status(&host)["gain"]["proven"] == "withdrawn");
    wait_for("equal shares", || rounds.counts() == [200, 200]);
    let weights = status(&host)["weights"].to_string();
    assert!(weights.matches("1024").count() >= 2, "{weights}");
    let said = rounds.end();
    assert!(said.contains("shares of loops: withdrawn: no gain was shown, "), "{said}");
    let summary: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let shares = &summary["shares"];
    assert_eq!((&shares["has_effect"], &shares["gain"]["by"]), (&true.into(), &"regions".into()));
    assert!(shares["gain"]["windows"].as_u64() > Some(0), "{shares}");
    assert!(shares["loops_divided"].as_u64() > Some(0), "{shares}");
}

#[test]
fn equal_cpus_get_equal_shares() {
    let test = "equal_cpus_get_equal_shares";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::alone();
    let Some(program) = by_clang(&host, test) else { return };
    let speeds = format!("{x}=1.0,{y}=1.0");
    let flags = ["--speed", &speeds, "--accounting", "procfs"];
    let mut rounds = Rounds::start(&host, &flags, &[program.to_str().unwrap(), "2"]);
    host.wait_intervals(3);
    // In /proc, what other programs take may look like an asymmetry for a while.
    wait_for("equal shares", || rounds.counts() == [200, 200]);
    let said = rounds.end();
    assert!(said.contains("shares of loops"), "{said}");
}

#[test]
fn a_shell_in_front_of_the_program_passes_the_page_on() {
    let test = "a_shell_in_front_of_the_program_passes_the_page_on";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::alone();
    let Some(program) = by_clang(&host, test) else { return };
    let script = host.path("launch");
    // The program's own list stays, and its children do not see the page.
    let lines = format!("#!/bin/sh\n'{}' 2\n", program.display());
    std::fs::write(&script, lines).unwrap();
    make_executable(&script);
    let flags = ["--speed", &unequal(x, y)];
    let mut rounds = Rounds::start(&host, &flags, &[script.to_str().unwrap()]);
    wait_for("shares of one to two", || rounds.counts().iter().any(|count| *count > 250));
    rounds.end();
}

#[test]
fn a_preloaded_library_of_the_user_stays() {
    let host = Host::new();
    check_library();
    let mut command = host.run(&["-q", "--shares"], &["sh", "-c", "echo $LD_PRELOAD"]);
    let run = output(command.env("LD_PRELOAD", "libm.so.6"));
    assert_eq!(text(&run.stdout), format!("libm.so.6:{LIBRARY}\n"), "{run:?}");
}

#[test]
fn a_program_of_gcc_is_told_that_shares_have_no_effect() {
    let host = Host::new();
    check_library();
    let program = Compiled::compile(&host, ROUNDS, "by_gcc", &["-fopenmp"]).path;
    let json = host.path("summary.json");
    let flags = ["--shares", "--json", json.to_str().unwrap()];
    let run = output(&mut host.run(&flags, &[&program, "2"]));
    assert_eq!(text(&run.stdout), "right\n", "{run:?}");
    let said = text(&run.stderr);
    let expected = ["--shares has no effect", "libgomp.so.1", "--threads 4"];
    assert!(expected.iter().all(|word| said.contains(word)), "{said}");
    let summary: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(summary["shares"]["has_effect"], false);
}

#[test]
fn programs_that_cannot_preload_are_told_and_run_as_without() {
    let host = Host::new();
    check_library();
    let of = |flags: &[&str], name: &str| Compiled::compile(&host, ROUNDS, name, flags).path;
    let fixed = of(&["-fopenmp", "-static"], "static");
    let mut cases = vec![(fixed, "is linked statically")];
    if is_root() {
        let other = of(&["-fopenmp"], "set_uid");
        std::os::unix::fs::chown(&other, Some(NOBODY), None).unwrap();
        let mut chmod = Command::new("chmod");
        build(chmod.args(["4755", &other]));
        cases.push((other, "changes its user"));
    }
    for (program, why) in cases {
        let run = output(&mut host.run(&["--shares"], &[&program, "2"]));
        assert_eq!(text(&run.stdout), "right\n", "{run:?}");
        let said = text(&run.stderr);
        assert!(said.contains("--shares has no effect") && said.contains(why), "{said}");
    }
}

/// The files of pages that processes of this test have open or mapped.
fn pages(pid: i32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.matches("evenkeel-shares").count()
}

#[test]
fn a_program_ends_right_when_its_balancer_is_killed() {
    let test = "a_program_ends_right_when_its_balancer_is_killed";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::alone();
    let Some(program) = by_clang(&host, test) else { return };
    let flags = ["--speed", &unequal(x, y)];
    let mut rounds = Rounds::start(&host, &flags, &[program.to_str().unwrap(), "2"]);
    wait_for("shares of one to two", || rounds.counts().iter().any(|count| *count > 250));
    assert_eq!(pages(rounds.evenkeel), 1);
    kill(rounds.evenkeel, libc::SIGKILL);
    // The last weights hold until the patience of the page is over; then shares are equal.
    wait_for("equal shares", || rounds.counts() == [200, 200]);
    assert_eq!(rounds.steady.last_line(), RIGHT);
    rounds.steady.wait();
    // There is a supervisor only from the first pin on; otherwise the next command removes the journal.
    output(&mut host.evenkeel(["undo"]));
    wait_for("the end of the journal", || host.journals().is_empty());
    host.status();
}

#[test]
fn weights_end_with_the_balancer() {
    let test = "weights_end_with_the_balancer";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::alone();
    let Some(program) = by_clang(&host, test) else { return };
    let end = host.path("end");
    // The program outlives the command, and evenkeel ends with the command.
    let script = format!(
        "exec 3<&0; '{}' 2 <&3 & while [ ! -e '{}' ]; do sleep 0.02; done",
        program.display(),
        end.display()
    );
    let flags = ["--speed", &unequal(x, y)];
    let mut rounds = Rounds::start(&host, &flags, &["sh", "-c", &script]);
    wait_for("shares of one to two", || rounds.counts().iter().any(|count| *count > 250));
    std::fs::write(end, "").unwrap();
    assert!(rounds.steady.wait().success());
    // A region that began before the end may still have the weights.
    rounds.counts();
    assert_eq!(rounds.counts(), [200, 200]);
    assert_eq!(rounds.steady.last_line(), RIGHT);
}

#[test]
fn compare_runs_it_where_the_runtime_was_seen() {
    let test = "compare_runs_it_where_the_runtime_was_seen";
    let host = Host::new();
    let Some(program) = by_clang(&host, test) else { return };
    let json = host.path("comparison.json");
    let json_path = json.to_str().unwrap();
    let script = format!("sleep 0.7 | '{}' 2", program.display());
    let mut command = host.evenkeel(["compare", "--json", json_path, "--rounds", "1"]);
    command.args(["--contestants", "run --shares", "--", "sh", "-c", &script]);
    let compared = output(&mut command);
    assert!(compared.status.success(), "{compared:?}");
    let comparison: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let row = &comparison["rows"][1];
    assert_eq!(row["contestant"], "run --shares");
    assert_eq!((&row["runs"], &row["left_out"]), (&1.into(), &Value::Null), "{row}");
    assert_eq!(row["printed"], "same", "{row}");
}

#[test]
fn a_missing_library_is_an_error_that_names_the_remedy() {
    let host = Host::new();
    // A copy of evenkeel has no library beside it.
    let copy = host.path("evenkeel");
    std::fs::copy(EVENKEEL, &copy).unwrap();
    make_executable(&copy);
    let run = output(host.command(&copy).args(["run", "--shares", "--", "true"]));
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    let said = text(&run.stderr);
    assert!(said.contains(host.path("libevenkeel_shares.so").to_str().unwrap()), "{said}");
    assert!(said.contains("make install"), "{said}");
}

fn make_executable(path: &Path) {
    build(Command::new("chmod").arg("755").arg(path));
}
