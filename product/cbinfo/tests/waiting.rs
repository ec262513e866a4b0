//! Waiting that spins is told from work, against programs that measure their own waiting; and barriers
//! are counted, against programs that count their own.
//!
//! Needs the privilege to load BPF programs, and a C compiler; without them, says so and passes.

// In a test a panic is the report, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use evenkeel_cbinfo::{Barriers, Cbinfo, Place, Runtimes, TaskAccount, Text, support};
use evenkeel_skip::skip;

const PROGRAM: u32 = 1;
const HERTZ: u64 = 997;

/// What a program says of one of its threads.
#[derive(Debug, Clone, Copy)]
struct Own {
    tid: u32,
    run_ns: f64,
    waited_ns: f64,
}

/// A program that starts when it is told so, and that ends with this value.
struct Subject {
    child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Subject {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .envs([("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "infinite")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                if sender.send(line.unwrap()).is_err() {
                    break;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines }
    }

    /// The lines before `last`; `meanwhile` is called all the time.
    fn watch(&mut self, last: &str, mut meanwhile: impl FnMut()) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) if line == last => return lines,
                Ok(line) => lines.push(line),
                Err(mpsc::RecvTimeoutError::Timeout) => meanwhile(),
                Err(why) => panic!("it ended before {last:?}: {lines:?}: {why}"),
            }
        }
    }

    fn until(&mut self, last: &str) -> Vec<String> {
        self.watch(last, || {})
    }

    fn go(&mut self) {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// What it measured, once it has done its work.
    fn done(&mut self, meanwhile: impl FnMut()) -> (Vec<Own>, u64) {
        let (mut threads, mut barriers) = (Vec::new(), 0);
        for line in self.watch("done", meanwhile) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["thread", tid, run_ns, waited_ns] => threads.push(Own {
                    tid: tid.parse().unwrap(),
                    run_ns: run_ns.parse().unwrap(),
                    waited_ns: waited_ns.parse().unwrap(),
                }),
                ["barriers", count] => barriers = count.parse().unwrap(),
                _ => panic!("{line:?}"),
            }
        }
        (threads, barriers)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a compiled program; `None`, with a note, where the compiler is missing.
fn compile(
    dir: &tempfile::TempDir,
    test: &str,
    compiler: &str,
    arguments: &[&str],
    name: &str,
) -> Option<String> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/");
    let path = dir.path().join(name).to_str().unwrap().to_owned();
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-o", &path]).args(arguments.iter().map(|argument| {
        if argument.ends_with(".c") { format!("{sources}{argument}") } else { (*argument).into() }
    }));
    match command.output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
            Some(path)
        }
        Err(why) => {
            skip(test, format!("{compiler}: {why}"));
            None
        }
    }
}

/// Programs compiled for one test, and the accounting that looks at them.
struct Setup {
    dir: tempfile::TempDir,
    cbinfo: Cbinfo,
}

impl Setup {
    /// `None`, with a note, where the test cannot run.
    fn new(test: &str) -> Option<Self> {
        if let Err(why) = support() {
            skip(test, why);
            return None;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Some(Self { dir, cbinfo: Cbinfo::open(&[]).unwrap() })
    }

    /// As [`compile`].
    fn compile(
        &self,
        test: &str,
        compiler: &str,
        arguments: &[&str],
        name: &str,
    ) -> Option<String> {
        compile(&self.dir, test, compiler, arguments, name)
    }

    fn follow(&mut self, subject: &Subject) {
        self.cbinfo.follow(subject.child.id(), PROGRAM).unwrap();
    }

    fn start_sampling(&mut self) {
        let cpus: Vec<u32> = (0..self.cbinfo.cpus().len() as u32).collect();
        self.cbinfo.waiting().unwrap().start_sampling(&cpus, HERTZ).unwrap();
    }

    /// What the subject measured, sampled at several rates meanwhile.
    fn sample_until_done(&mut self, subject: &mut Subject) -> (Vec<Own>, u64) {
        let waiting = self.cbinfo.waiting().unwrap();
        subject.done(|| waiting.vary_period())
    }

    fn look_at(&mut self, tgid: u32, runtimes: &mut Runtimes) -> Text {
        let text = runtimes.find(tgid).unwrap();
        let waiting = self.cbinfo.waiting().unwrap();
        waiting.set_ranges(tgid, &text.ranges).unwrap();
        waiting.barriers().watch(tgid, PROGRAM).unwrap();
        text
    }

    fn task(&mut self, tid: u32) -> TaskAccount {
        self.cbinfo.tasks().unwrap().into_iter().find(|task| task.tid == tid).unwrap()
    }

    /// Compares the shares of waiting that were sampled with those that the program measured itself.
    fn compare(&mut self, threads: &[Own]) {
        let (mut samples, mut spun, mut waited_ns, mut run_ns) = (0, 0, 0.0, 0.0);
        for own in threads {
            let task = self.task(own.tid);
            println!("{own:?} {task:?}");
            let seen = task.spun as f64 / task.samples as f64;
            let real = own.waited_ns / own.run_ns;
            // Four standard deviations.
            let error = 4.0 * (real * (1.0 - real) / task.samples as f64).sqrt() + 0.01;
            assert!((seen - real).abs() <= error, "{seen:.3}, really {real:.3} within {error:.3}");
            // A sample for each period of the run time, less those in interrupts.
            let expected = own.run_ns * HERTZ as f64 / 1e9;
            assert!((0.7..1.3).contains(&(task.samples as f64 / expected)), "{task:?}");
            samples += task.samples;
            spun += task.spun;
            run_ns += own.run_ns;
            waited_ns += own.waited_ns;
        }
        let (seen, real) = (spun as f64 / samples as f64, waited_ns / run_ns);
        println!(
            "the program waits {:.1} % of its run time, seen {:.1} %",
            100.0 * real,
            100.0 * seen
        );
        // Three points; but of one thread alone there are so few samples that three points are three
        // standard deviations, and one test in three hundred would fail by chance.
        let error = (4.0 * (real * (1.0 - real) / samples as f64).sqrt()).max(0.03);
        assert!((seen - real).abs() <= error, "{seen:.3}, really {real:.3} within {error:.3}");
    }
}

/// Runs phases.c, compiled like this, for two seconds of run time.
fn waiting_is_seen(test: &str, compiler: &str, flags: &[&str], runtime: &str) {
    let Some(mut setup) = Setup::new(test) else { return };
    let Some(path) = setup.compile(test, compiler, &[flags, &["phases.c"]].concat(), "phases")
    else {
        return;
    };
    let mut subject = Subject::start(Command::new(path).args(["0", "1000", "2000"]));
    subject.until("ready");
    setup.follow(&subject);
    let text = setup.look_at(subject.child.id(), &mut Runtimes::new(&[]));
    assert_eq!(text.runtimes.len(), 1, "{text:?}");
    assert!(text.runtimes[0].starts_with(runtime), "{text:?}");
    setup.start_sampling();
    subject.go();
    let (threads, _) = setup.sample_until_done(&mut subject);
    assert_eq!(threads.len(), 2);
    setup.compare(&threads);
    // The same samples by their addresses; one of the last may not be counted yet or any more.
    let places = setup.cbinfo.waiting().unwrap().places().unwrap();
    for own in threads {
        let task = setup.task(own.tid);
        let own = places.iter().filter(|place| place.tid == own.tid);
        let lies_there = |place: &&Place| {
            let mut ranges = text.ranges.iter();
            ranges.any(|range| range.contains(&place.address))
        };
        let (all, spun) = (own.clone().count() as u64, own.filter(lies_there).count() as u64);
        assert!(all.abs_diff(task.samples) <= 2, "{all} places: {task:?}");
        // Those in sched_yield wait wherever that was called.
        assert!(spun <= task.spun + 2, "{spun} places in {text:?}: {task:?}");
        assert!(spun + 2 >= task.spun || runtime == "libomp", "{spun} places: {task:?}");
    }
}

#[test]
fn waiting_in_libgomp_is_seen() {
    waiting_is_seen("waiting_in_libgomp_is_seen", "gcc", &["-fopenmp"], "libgomp");
}

#[test]
fn waiting_in_libomp_is_seen() {
    // As the build has it; `make` sets the variable.
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    waiting_is_seen("waiting_in_libomp_is_seen", &clang, &["-fopenmp"], "libomp");
}

#[test]
fn waiting_in_a_static_binary_is_seen() {
    let test = "waiting_in_a_static_binary_is_seen";
    waiting_is_seen(test, "gcc", &["-fopenmp", "-static"], "GOMP_parallel");
}

#[test]
fn a_runtime_that_is_loaded_late_is_found() {
    let test = "a_runtime_that_is_loaded_late_is_found";
    let Some(mut setup) = Setup::new(test) else { return };
    let library = ["-fopenmp", "-fPIC", "-shared", "-DLATE", "phases.c"];
    let Some(library) = setup.compile(test, "gcc", &library, "phases.so") else { return };
    let Some(path) = setup.compile(test, "gcc", &["late.c"], "late") else { return };
    let mut subject = Subject::start(Command::new(path).args([&library, "0", "1000", "2000"]));
    subject.until("loading");
    setup.follow(&subject);
    let mut runtimes = Runtimes::new(&[]);
    assert_eq!(runtimes.find(subject.child.id()).unwrap().runtimes, [""; 0]);
    subject.go();
    subject.until("ready");
    let text = setup.look_at(subject.child.id(), &mut runtimes);
    assert_eq!(text.runtimes, ["libgomp.so.1.0.0"]);
    setup.start_sampling();
    subject.go();
    let (threads, _) = setup.sample_until_done(&mut subject);
    setup.compare(&threads);
}

#[test]
fn a_forked_process_waits_by_its_own_ranges() {
    let test = "a_forked_process_waits_by_its_own_ranges";
    let Some(mut setup) = Setup::new(test) else { return };
    let Some(path) = setup.compile(test, "gcc", &["-fopenmp", "phases.c"], "phases") else {
        return;
    };
    let mut subject = Subject::start(Command::new(path).args(["0", "1000", "2000", "fork"]));
    subject.until("ready");
    setup.follow(&subject);
    let mut runtimes = Runtimes::new(&[]);
    setup.look_at(subject.child.id(), &mut runtimes);
    setup.start_sampling();
    subject.go();
    let deadline = Instant::now() + Duration::from_secs(30);
    let child = loop {
        let tasks = setup.cbinfo.tasks().unwrap();
        if let Some(task) = tasks.iter().find(|task| task.tgid != subject.child.id()) {
            break task.tgid;
        }
        assert!(Instant::now() < deadline, "no child");
    };
    // Until now nothing is known of the child, so it has no samples.
    assert_eq!(setup.task(child).samples, 0);
    setup.look_at(child, &mut runtimes);
    let (threads, _) = setup.sample_until_done(&mut subject);
    setup.compare(&threads);
    setup.cbinfo.waiting().unwrap().forget_ranges(child).unwrap();
    setup.cbinfo.waiting().unwrap().forget_ranges(child).unwrap();
}

#[test]
fn a_runtime_is_named_by_its_file_or_its_function() {
    let test = "a_runtime_is_named_by_its_file_or_its_function";
    for name in ["libown.so", "own_wait"] {
        let Some(mut setup) = Setup::new(test) else { return };
        let library = ["-fPIC", "-shared", "own_runtime.c"];
        let Some(library) = setup.compile(test, "gcc", &library, "libown.so") else { return };
        let Some(path) = setup.compile(test, "gcc", &["own_phases.c", &library], "own") else {
            return;
        };
        let mut command = Command::new(path);
        let mut subject = Subject::start(command.env("LD_LIBRARY_PATH", setup.dir.path()));
        subject.until("ready");
        setup.follow(&subject);
        let tgid = subject.child.id();
        assert_eq!(Runtimes::new(&[]).find(tgid).unwrap().runtimes, [""; 0]);
        let text = setup.look_at(tgid, &mut Runtimes::new(&[name.to_owned()]));
        assert_eq!(text.runtimes, [name]);
        setup.start_sampling();
        subject.go();
        let (threads, _) = setup.sample_until_done(&mut subject);
        setup.compare(&threads);
    }
}

/// A region of OpenMP has two words at which threads wait; the one with more wake-ups counts barriers.
fn count_barriers(setup: &mut Setup, subject: &mut Subject) -> u64 {
    setup.cbinfo.waiting().unwrap().barriers().open_window().unwrap();
    let start = Instant::now();
    subject.go();
    let (_, own) = subject.done(|| {});
    let window = setup.cbinfo.waiting().unwrap().barriers().close_window().unwrap();
    assert!(u128::from(window.observed_ns) <= start.elapsed().as_nanos() + 1_000_000_000);
    println!("{own} barriers: {window:?}");
    let wakes = window.wakes.iter();
    assert!(
        wakes.clone().all(|wakes| wakes.program == PROGRAM && wakes.tgid == subject.child.id())
    );
    assert_eq!(wakes.map(|wakes| wakes.count).max(), Some(own));
    own
}

#[test]
fn barriers_of_libgomp_are_counted_exactly() {
    let test = "barriers_of_libgomp_are_counted_exactly";
    for (regions, barriers) in [("1", "200"), ("50", "3"), ("100", "0")] {
        let Some(mut setup) = Setup::new(test) else { return };
        let Some(path) = setup.compile(test, "gcc", &["-fopenmp", "phases.c"], "phases") else {
            return;
        };
        let mut subject = Subject::start(Command::new(path).args([regions, barriers, "0"]));
        subject.until("ready");
        setup.follow(&subject);
        setup.look_at(subject.child.id(), &mut Runtimes::new(&[]));
        let own = count_barriers(&mut setup, &mut subject);
        let expected = |text: &str| text.parse::<u64>().unwrap();
        assert_eq!(own, expected(regions) * (expected(barriers) + 1));
        // The window is closed, and what it counted is forgotten.
        assert_eq!(
            setup.cbinfo.waiting().unwrap().barriers().close_window().unwrap(),
            Default::default()
        );
        setup.cbinfo.waiting().unwrap().barriers().open_window().unwrap();
        let next = setup.cbinfo.waiting().unwrap().barriers().close_window().unwrap();
        assert_eq!(next.wakes, []);
    }
}

/// Nothing else of the accounting is loaded.
#[test]
fn barriers_are_counted_alone() {
    let test = "barriers_are_counted_alone";
    if let Err(why) = support() {
        return skip(test, why);
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(path) = compile(&dir, test, "gcc", &["-fopenmp", "phases.c"], "phases") else {
        return;
    };
    let mut subject = Subject::start(Command::new(path).args(["50", "3", "0"]));
    subject.until("ready");
    let tgid = subject.child.id();
    let mut barriers = Barriers::load().unwrap();
    barriers.watch(tgid, PROGRAM).unwrap();
    // Neither counts: one that is forgotten, and one that is not told.
    barriers.watch(std::process::id(), PROGRAM).unwrap();
    barriers.forget(std::process::id()).unwrap();
    barriers.open_window().unwrap();
    subject.go();
    let (_, own) = subject.done(|| {});
    let window = barriers.close_window().unwrap();
    assert!(window.wakes.iter().all(|wakes| (wakes.program, wakes.tgid) == (PROGRAM, tgid)));
    assert_eq!(window.wakes.iter().map(|wakes| wakes.count).max(), Some(own));
    assert_eq!(own, 50 * 4);
    assert_eq!(barriers.close_window().unwrap(), Default::default());
}

#[test]
fn a_process_that_wakes_many_words_hides_no_barrier_of_others() {
    let test = "a_process_that_wakes_many_words_hides_no_barrier_of_others";
    let Some(mut setup) = Setup::new(test) else { return };
    let Some(path) = setup.compile(test, "gcc", &["-fopenmp", "phases.c"], "phases") else {
        return;
    };
    let Some(words) = setup.compile(test, "gcc", &["many_words.c"], "many_words") else { return };
    let mut crowd: Vec<_> = (0..4).map(|_| Subject::start(&mut Command::new(&words))).collect();
    let mut subject = Subject::start(Command::new(path).args(["1", "200", "0"]));
    let mut runtimes = Runtimes::new(&[]);
    for process in crowd.iter_mut().chain([&mut subject]) {
        process.until("ready");
        setup.follow(process);
        setup.look_at(process.child.id(), &mut runtimes);
    }
    let mut fill = |setup: &mut Setup| {
        setup.cbinfo.waiting().unwrap().barriers().open_window().unwrap();
        for process in &mut crowd {
            process.go();
            process.until("done");
        }
    };
    // In the second window each process has words again.
    fill(&mut setup);
    setup.cbinfo.waiting().unwrap().barriers().close_window().unwrap();
    fill(&mut setup);
    subject.go();
    let (_, own) = subject.done(|| {});
    let window = setup.cbinfo.waiting().unwrap().barriers().close_window().unwrap();
    let of = |process: &Subject| {
        let tgid = process.child.id();
        window.wakes.iter().filter(move |wakes| wakes.tgid == tgid).map(|wakes| wakes.count)
    };
    assert_eq!(of(&subject).max(), Some(own));
    for process in &crowd {
        assert_eq!(of(process).count(), 16);
    }
}

#[test]
fn a_library_that_was_replaced_by_a_fifo_is_not_waited_for() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let library = dir.path().join("libc.so");
    let page = 4096;
    std::fs::write(&library, vec![0; page]).unwrap();
    let file = std::fs::File::open(&library).unwrap();
    // SAFETY: a new mapping of a file that nothing else uses, which stays until the end of the process.
    let mapped = unsafe {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        libc::mmap(std::ptr::null_mut(), page, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    std::fs::remove_file(&library).unwrap();
    nix::unistd::mkfifo(&library, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (sender, found) = mpsc::channel();
    std::thread::spawn(move || sender.send(Runtimes::new(&[]).find(std::process::id()).is_ok()));
    assert_eq!(found.recv_timeout(Duration::from_secs(60)), Ok(true));
}

#[test]
fn sampling_on_no_cpu_is_an_error() {
    let Some(mut setup) = Setup::new("sampling_on_no_cpu_is_an_error") else { return };
    assert!(setup.cbinfo.waiting().unwrap().start_sampling(&[], HERTZ).is_err());
}

#[test]
fn forbidden_perf_events_are_an_error_that_names_the_remedy() {
    let test = "forbidden_perf_events_are_an_error_that_names_the_remedy";
    let Some(mut setup) = Setup::new(test) else { return };
    setup.cbinfo.waiting().unwrap();
    forbid_perf_events();
    let why = setup.cbinfo.waiting().unwrap().start_sampling(&[0], HERTZ).unwrap_err().to_string();
    assert!(why.contains("Permission denied") && why.contains("seccomp"), "{why}");
    // The rest goes on.
    setup.cbinfo.waiting().unwrap().barriers().open_window().unwrap();
    setup.cbinfo.waiting().unwrap().barriers().close_window().unwrap();
    assert_eq!(setup.cbinfo.tasks().unwrap(), []);
}

/// For this thread, from now on: perf_event_open fails as in a container.
fn forbid_perf_events() {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_perf_event_open as u32, 1),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32, 0),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives until the call returns; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            0
        );
    }
}

#[test]
fn a_process_that_has_ended_has_no_text() {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert!(!Path::new(&format!("/proc/{}", child.id())).exists());
    assert!(Runtimes::new(&[]).find(child.id()).is_err());
}
