//! The chore-counter under each MPI that is here: what it prints is consistent in itself. And the NAS
//! Parallel Benchmarks for MPI: they verify. Where there is no MPI these tests say so and skip.
//! `timeout` stands before each launch, so that an MPI that hangs fails its test and leaves nothing
//! behind.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use evenkeel_bench::mpi::{Balanced, CG, CHORE_COUNTER, EP, Mpi, Source};
use evenkeel_bench::programs::field;

/// The chore-counter, compiled for one MPI.
struct Compiled<'a> {
    mpi: &'a Mpi,
    program: &'a Path,
}

impl Compiled<'_> {
    fn name(&self) -> &str {
        self.mpi.kind().name()
    }

    fn launch(&self, ranks: u32, args: &str) -> Output {
        let mut app = vec![OsString::from(self.program)];
        app.extend(args.split_whitespace().map(OsString::from));
        self.launch_words(ranks, &app)
    }

    fn launch_words(&self, ranks: u32, app: &[OsString]) -> Output {
        let words = self.mpi.launch(NonZeroU32::new(ranks).unwrap(), Balanced::Not, app);
        Command::new("timeout")
            .args(["-k", "5", "60"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

/// Runs a test body on the chore-counter for each MPI that is here.
fn with_each_mpi(test: &str, body: impl Fn(&Compiled)) {
    with_each_mpi_of(test, &[CHORE_COUNTER], |_, compiled| body(compiled));
}

/// Runs a test body on each of the programs for each MPI that is here.
fn with_each_mpi_of(test: &str, programs: &[Source], body: impl Fn(Source, &Compiled)) {
    let found = match Mpi::all() {
        Ok(found) => found,
        Err(why) => return evenkeel_skip::skip(test, why),
    };
    let directory = tempfile::tempdir().unwrap();
    for mpi in &found {
        for source in programs {
            let program = mpi.compile(*source, directory.path()).unwrap();
            body(*source, &Compiled { mpi, program: &program });
        }
    }
}

/// What the root printed.
struct Line {
    counts: Vec<f64>,
    avg: f64,
    stdev: f64,
    seconds: f64,
}

fn line(output: &Output) -> Line {
    assert!(output.status.success(), "{output:?}");
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let get = |key| field(text, key).unwrap();
    let number = |key| get(key).parse().unwrap();
    let counts: Vec<f64> = get("task_chores").split(',').map(|n| n.parse().unwrap()).collect();
    assert_eq!(get("ranks"), counts.len().to_string());
    Line {
        counts,
        avg: number("avg_chore"),
        stdev: number("stdev_chore"),
        seconds: number("seconds"),
    }
}

/// The mean and the standard deviation are those of the counts, as far as three decimals say.
fn is_consistent(line: &Line) {
    let ranks = line.counts.len() as f64;
    let avg = line.counts.iter().sum::<f64>() / ranks;
    let stdev = (line.counts.iter().map(|n| (n - avg).powi(2)).sum::<f64>() / ranks).sqrt();
    assert!((line.avg - avg).abs() < 1e-3, "{} is not {avg}", line.avg);
    assert!((line.stdev - stdev).abs() < 1e-3, "{} is not {stdev}", line.stdev);
    assert!(line.seconds > 0.0);
}

#[test]
fn chores_by_time_are_counted_and_summed_up() {
    with_each_mpi("chores_by_time_are_counted_and_summed_up", |compiled| {
        for args in ["--seconds 0.2", "--seconds 0.2 --barrier-every-us 1000"] {
            let line = line(&compiled.launch(2, args));
            assert_eq!(line.counts.len(), 2, "{} {args}", compiled.name());
            assert!(line.counts.iter().all(|&count| count >= 1.0), "{} {args}", compiled.name());
            is_consistent(&line);
        }
    });
}

#[test]
fn every_rank_does_its_fixed_work_with_and_without_barriers() {
    with_each_mpi("every_rank_does_its_fixed_work_with_and_without_barriers", |compiled| {
        // 1001 chores: the last stretch before a barrier is shorter than the others.
        for args in ["--chores 1001", "--chores 1001 --barrier-every-us 1000"] {
            let line = line(&compiled.launch(2, args));
            assert_eq!(line.counts, [1001.0, 1001.0], "{} {args}", compiled.name());
            is_consistent(&line);
        }
        // One rank has no other to differ from.
        let alone = line(&compiled.launch(1, "--chores 10"));
        assert_eq!((alone.avg, alone.stdev), (10.0, 0.0), "{}", compiled.name());
    });
}

#[test]
fn nonsense_arguments_are_refused() {
    with_each_mpi("nonsense_arguments_are_refused", |compiled| {
        for args in [
            "",
            "--seconds",
            "--seconds 0",
            "--seconds 1x",
            "--chores -1",
            "--chores 1 --seconds 1",
            "--chores 1 --barrier-every-us 9",
            "--barrier-every-us 1000",
        ] {
            // Refused before MPI is asked for, so no launcher is needed.
            let output =
                Command::new(compiled.program).args(args.split_whitespace()).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{args}: {output:?}");
            assert!(output.stdout.is_empty(), "{args}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.starts_with("usage: chore_counter"), "{args}: {said}");
        }
    });
}

#[test]
fn npb_verify_with_any_number_of_ranks() {
    with_each_mpi_of("npb_verify_with_any_number_of_ranks", &[EP, CG], |source, compiled| {
        for ranks in 1..=2 {
            let output = compiled.launch(ranks, "--class S");
            assert!(output.status.success(), "{} {output:?}", compiled.name());
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
            assert_eq!(text.split_whitespace().next(), Some(source.name), "{text}");
            assert_eq!(field(&text, "ranks"), Some(ranks.to_string().as_str()), "{text}");
            assert_eq!(field(&text, "verification"), Some("SUCCESSFUL"), "{text}");
        }
    });
}

/// A rank that is moved to and fro while it counts chores, more often than its start can hide.
#[test]
fn migrations_are_counted_whoever_makes_them() {
    const NAME: &str = "migrations_are_counted_whoever_makes_them";
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let mut cpus = (0..nix::sched::CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap());
    let (Some(here), Some(there)) = (cpus.next(), cpus.next()) else {
        return evenkeel_skip::skip(NAME, "one CPU");
    };
    let script = format!(
        "\"$0\" --seconds 2 & for i in $(seq 20); do sleep 0.05; \
         taskset -pc {there} $! && taskset -pc {here} $!; done >/dev/null; wait $!"
    );
    with_each_mpi(NAME, |compiled| {
        let mut app: Vec<OsString> = ["sh", "-c", &script].map(OsString::from).to_vec();
        app.push(compiled.program.into());
        let output = compiled.launch_words(1, &app);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if nix::unistd::geteuid().is_root() {
            let count: u64 = field(&text, "migrations").unwrap().parse().unwrap();
            assert!((4..100).contains(&count), "{}: {text} {output:?}", compiled.name());
        } else if field(&text, "migrations").is_none() {
            evenkeel_skip::skip(NAME, "the kernel counts migrations for root only");
        }
    });
}
