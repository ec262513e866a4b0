//! `run --threads K`: OpenMP programs get K threads for each CPU, which are spread by capability and
//! kept there; what contradicts is refused, and a program that does not follow is told.

use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;

use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};

use crate::compiled::Compiled;
use crate::shares::clang_with_openmp;
use crate::support::*;
use crate::worker::lines_of;

fn json(path: &std::path::Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn compile(host: &Host, compiler: &str) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/host/threads.c");
    let name = if compiler == "cc" { "threads_gcc" } else { "threads_clang" };
    Compiled::compile_with(compiler, host, source, name, &["-fopenmp"]).path
}

/// A program under `run --threads 4`, which goes on until [`Run::end`].
struct Run<'a> {
    host: &'a Host,
    child: Child,
    json: String,
    /// What the program said first.
    first: String,
    /// What evenkeel says.
    stderr: Receiver<String>,
}

impl<'a> Run<'a> {
    fn start(host: &'a Host, flags: &[&str], program: &[&str]) -> Self {
        let json = host.path("summary.json").to_str().unwrap().to_owned();
        let flags = [&["--threads", "4", "--json", &json], flags].concat();
        let mut command = host.run(&flags, program);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let first = lines.recv_timeout(PATIENCE).unwrap();
        let stderr = lines_of(child.stderr.take().unwrap());
        Self { host, child, json, first, stderr }
    }

    /// How many threads of the program are pinned to this CPU.
    fn pinned_to(&self, cpu: u32) -> usize {
        let Some(run) = self.host.status().pop() else { return 0 };
        let tasks = std::fs::read_dir(format!("/proc/{}/task", run["root"]));
        let tids = tasks.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let tids = tids.filter_map(|tid| tid.to_str()?.parse::<i32>().ok());
        let masks = tids.filter_map(|tid| evenkeel_journal::affinity::get(tid).ok());
        masks.filter(|mask| *mask == just(cpu)).count()
    }

    /// Ends the program. Returns what evenkeel said, and the summary.
    fn end(mut self) -> (String, serde_json::Value) {
        drop(self.child.stdin.take());
        let said: Vec<String> = self.stderr.iter().collect();
        assert!(ended(&mut self.child).success(), "{said:?}");
        (said.join("\n"), json(std::path::Path::new(&self.json)))
    }
}

/// The slower CPU of two has fewer threads, all of which are kept there.
fn wait_for_split(run: &Run<'_>, slow: u32, fast: u32) {
    wait_for("an uneven split", || {
        let (few, many) = (run.pinned_to(slow), run.pinned_to(fast));
        few > 0 && few < many && few + many == 8
    });
}

#[test]
fn gcc_and_clang_programs_get_threads_and_a_split() {
    let test = "gcc_and_clang_programs_get_threads_and_a_split";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::new();
    let (cpus, speeds) = (format!("{x},{y}"), format!("{x}=0.6,{y}=1.0"));
    let flags = ["--cpus", &cpus, "--speed", &speeds];
    for compiler in [Some("cc".to_owned()), clang_with_openmp(test)].into_iter().flatten() {
        let run = Run::start(&host, &flags, &[&compile(&host, &compiler)]);
        assert_eq!(run.first, "@told=8,8", "{compiler}");
        wait_for_split(&run, x, y);
        let (said, summary) = run.end();
        assert!(said.contains("4 threads for each CPU, 8 in all"), "{compiler}: {said}");
        assert_eq!(summary["threads_per_cpu"], 4);
        let count = serde_json::json!({ "asked": 8, "most": 8, "why_no_effect": null });
        assert_eq!(summary["threads"], count, "{compiler}");
    }
}

#[test]
fn threads_are_spread_when_softirqs_slow_a_cpu() {
    let test = "threads_are_spread_when_softirqs_slow_a_cpu";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::alone();
    let program = compile(&host, "cc");
    let limit = std::time::Duration::from_secs(90);
    let config = NoiseConfig { busy_us: 40, period_us: 100, limit };
    let noise = match Noise::start(NoiseKind::Softirq, x, config) {
        Ok(noise) => noise,
        Err(why) if why.is_privilege() => return evenkeel_skip::skip(test, why),
        Err(why) => panic!("{why}"),
    };
    let cpus = format!("{x},{y}");
    let run = Run::start(&host, &["--cpus", &cpus], &[&program]);
    wait_for_split(&run, x, y);
    let (said, _) = run.end();
    noise.stop().unwrap();
    assert!(said.contains("8 in all"), "{said}");
}

#[test]
fn a_program_that_fixes_its_threads_is_told_once() {
    let test = "a_program_that_fixes_its_threads_is_told_once";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::new();
    let (cpus, openmp) = (format!("{x},{y}"), compile(&host, "cc"));
    let loop_forever = "echo @told; (while :; do :; done) & loop=$!; cat; kill $loop";
    for (program, said_first, why) in [
        (&[openmp.as_str(), "2"][..], "@told=8,2", "runs 2 threads so far and not 8"),
        (&["sh", "-c", loop_forever], "@told", "has no OpenMP runtime"),
    ] {
        let run = Run::start(&host, &["--cpus", &cpus], program);
        assert_eq!(run.first, said_first);
        let told = run.stderr.recv_timeout(PATIENCE).unwrap();
        assert!(told.contains("--threads has no effect: the program"), "{told}");
        assert!(told.contains(why), "{told}");
        let (said, summary) = run.end();
        assert!(said.starts_with("evenkeel: ") && said.lines().count() == 1, "{said}");
        assert!(said.contains("--threads 4 had no effect: the program"), "{said}");
        assert!(said.contains(why), "{said}");
        assert_eq!(summary["threads_per_cpu"], 4);
        assert!(summary["threads"]["why_no_effect"].as_str().unwrap().contains(why), "{summary}");
    }
}

#[test]
fn a_variable_that_contradicts_is_refused() {
    let Some(_) = two_cpus("a_variable_that_contradicts_is_refused") else { return };
    let host = Host::new();
    for (name, value) in
        [("OMP_NUM_THREADS", "1"), ("OMP_PROC_BIND", "true"), ("OMP_WAIT_POLICY", "active")]
    {
        let mut command = host.run(&["--threads", "2"], &["sh", "-c", "echo started"]);
        let refused = output(command.env(name, value));
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(refused.stdout.is_empty(), "the program was started: {refused:?}");
        let error = text(&refused.stderr);
        let named = format!("evenkeel: --threads 2 contradicts {name}={value}: ");
        let remedy = format!("; unset {name}, or leave --threads out\n");
        assert!(error.starts_with(&named) && error.ends_with(&remedy), "{error}");
    }
    // Where there is nothing to spread over, and in a rank.
    let one = all().iter().next().unwrap().to_string();
    let alone = output(&mut host.run(&["--threads", "2", "--cpus", &one], &["true"]));
    assert!(text(&alone.stderr).contains(&format!("may use CPU {one} only")), "{alone:?}");
    let rank = output(host.run(&["--threads", "2"], &["true"]).env("PMI_RANK", "0"));
    assert!(text(&rank.stderr).contains("start 2 ranks for each CPU instead"), "{rank:?}");
}

#[test]
fn the_program_alone_gets_the_variables() {
    let Some(_) = two_cpus("the_program_alone_gets_the_variables") else { return };
    let host = Host::new();
    let show = ["sh", "-c", "env | grep -E '^(OMP|GOMP|KMP)_' | sort"];
    let shown = output(&mut host.run(&["-q", "--threads", "2"], &show));
    let threads = 2 * all().len();
    let expected = format!(
        "GOMP_SPINCOUNT=0\nKMP_BLOCKTIME=0\nOMP_DYNAMIC=false\nOMP_NUM_THREADS={threads}\n\
         OMP_PROC_BIND=false\nOMP_WAIT_POLICY=passive\n"
    );
    assert_eq!(text(&shown.stdout), expected, "{shown:?}");
    let plain = output(&mut host.run(&["-q"], &show));
    assert!(plain.stdout.is_empty(), "{plain:?}");
}

#[test]
fn compare_tries_more_threads_for_openmp_programs_only() {
    let test = "compare_tries_more_threads_for_openmp_programs_only";
    let Some(_) = two_cpus(test) else { return };
    let host = Host::new();
    let openmp = compile(&host, "cc");
    let json_file = host.path("comparison.json");
    // It is judged in the interval after it has run for a second.
    for (program, why) in [
        (vec!["sh", "-c", "sleep 0.1"], Some("it acts on OpenMP programs only")),
        (vec!["sh", "-c", "sleep 1 | exec \"$0\"", &openmp], None),
        (vec![&openmp, "2", "5"], Some("sets their number itself")),
    ] {
        let mut command = host.evenkeel(["compare", "--rounds", "1", "--json"]);
        command.arg(&json_file).args(["--contestants", "run --threads 4", "--"]).args(&program);
        let compared = output(&mut command);
        assert!(compared.status.success(), "{compared:?}");
        let row = json(&json_file)["rows"][1].clone();
        assert_eq!(row["contestant"], "run --threads 4");
        let left_out = row["left_out"].as_str();
        assert_eq!(left_out.is_some(), why.is_some(), "{row}");
        assert!(left_out.unwrap_or_default().contains(why.unwrap_or_default()), "{row}");
        let shown = text(&compared.stdout);
        assert!(shown.contains("run --threads 4: evenkeel run with 4 OpenMP threads"), "{shown}");
    }
}
