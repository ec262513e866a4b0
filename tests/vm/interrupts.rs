//! Interrupt lines, which only a guest has for a test to move: `evenkeel irq` and `evenkeel run
//! --move-noise`, on every kernel. The first serial line, which every guest has, interrupts again and
//! again, on the CPU of a program.

use std::fs;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use serde_json::Value;

use crate::Test;
use crate::hotplug::switch;
use crate::running_daemon::lone_worker;
use crate::schema::check;
use crate::stand_in::StandIn;
use crate::support::*;
use crate::trace::{read, read_whole};
use crate::worker::{Worker, lines_of};

/// On every kernel but the one in between: what asks most of it.
pub const SHORT: &[Test] = &[
    Test {
        name: "interrupts::a_line_leaves_the_cpu_of_a_program_and_is_given_back",
        run: a_line_leaves_the_cpu_of_a_program_and_is_given_back,
    },
    Test {
        name: "interrupts::run_moves_the_noise_of_its_program",
        run: run_moves_the_noise_of_its_program,
    },
];

/// On one kernel, and on all of them by `make vm-kernels`.
pub const TESTS: &[Test] = &[
    Test {
        name: "interrupts::a_cpu_that_goes_offline_is_no_other_process",
        run: a_cpu_that_goes_offline_is_no_other_process,
    },
    Test {
        name: "interrupts::irqbalance_is_told_to_leave_moved_lines_alone",
        run: irqbalance_is_told_to_leave_moved_lines_alone,
    },
    Test {
        name: "interrupts::what_once_moved_stands_until_undo",
        run: what_once_moved_stands_until_undo,
    },
];

/// The first serial line, which interrupts while this lives.
pub struct Noise {
    is_over: Arc<AtomicBool>,
    directory: String,
}

impl Noise {
    /// Starts it, on CPU 0, although it may run on all CPUs.
    pub fn start(host: &Host) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut console = fs::File::options().write(true).open("/dev/ttyS0").unwrap();
        let ends = Arc::clone(&is_over);
        std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                std::io::Write::write_all(&mut console, &[b'\r'; 64]).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let status = output(&mut host.evenkeel(["irq", "status", "--json"]));
        assert!(status.status.success(), "{status:?}");
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        if status["accounting"] != "exact" {
            let status = output(&mut host.evenkeel(["irq", "status", "-vv"]));
            panic!("the kernel takes no counters: {}", text(&status.stderr));
        }
        let sources = status["sources"].as_array().unwrap();
        let console = sources.iter().find(|source| source["name"] == "ttyS0").unwrap();
        let times = console["ns"].as_object().unwrap().values();
        assert!(times.filter_map(Value::as_u64).sum::<u64>() > 0, "{console:#}");
        let directory = format!("/proc/irq/{}", console["id"]["line"]);
        let noise = Self { is_over, directory };
        noise.send_home();
        noise
    }

    fn read(&self, file: &str) -> CpuSet {
        let list = fs::read_to_string(format!("{}/{file}", self.directory)).unwrap();
        list.trim().parse().unwrap()
    }

    pub fn affinity(&self) -> CpuSet {
        self.read("smp_affinity_list")
    }

    fn set_affinity(&self, cpus: &CpuSet) {
        fs::write(format!("{}/smp_affinity_list", self.directory), cpus.to_string()).unwrap();
    }

    pub fn line(&self) -> u32 {
        self.directory.rsplit('/').next().unwrap().parse().unwrap()
    }

    /// A line that may run on all CPUs stays where it last had to be.
    pub fn send_home(&self) {
        for cpus in [home(), all()] {
            self.set_affinity(&cpus);
            wait_for("the line at home", || self.read("effective_affinity_list") == home());
        }
    }

    pub fn has_left(&self) -> bool {
        self.affinity().intersection(&home()).is_empty()
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The CPU of the program and its noise.
fn home() -> CpuSet {
    just(0)
}

/// Pins all threads of a process.
fn pin_all(pid: i32, cpus: &CpuSet) {
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let tid = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
        affinity::set(tid, cpus).unwrap();
    }
}

pub fn worker_at_home(host: &Host) -> Worker {
    let worker = lone_worker(host);
    pin_all(worker.pid, &home());
    worker
}

/// `evenkeel irq run --for` this process.
pub fn irq_run(host: &Host, pid: i32, flags: &[&str]) -> Child {
    let pid = pid.to_string();
    let words = [&["irq", "run", "--interval", "1s", "--for", &pid], flags].concat();
    host.evenkeel(words).stdout(Stdio::piped()).spawn().unwrap()
}

/// Ends it in order, and returns what it said.
pub fn end(run: Child) -> String {
    kill(run.id() as i32, libc::SIGTERM);
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{run:?}");
    text(&run.stdout)
}

fn a_line_leaves_the_cpu_of_a_program_and_is_given_back() {
    let host = Host::new();
    let noise = Noise::start(&host);
    let worker = worker_at_home(&host);

    let path = host.path("irq.pftrace");
    let run = irq_run(&host, worker.pid, &["--perfetto", path.to_str().unwrap()]);
    wait_for("the line to leave", || noise.has_left());
    // Its trace has it on its CPU of before, and then on the other one.
    let line = format!("ttyS0 (line {})", noise.line());
    wait_for("a round on the other CPU", || {
        read_whole(&path).is_some_and(|seen| seen.on(&line).len() > 1)
    });
    let second = output(&mut host.evenkeel(["irq", "run"]));
    let wanted = format!(
        "evenkeel: process {} moves interrupts already (evenkeel irq run): end it first\n",
        run.id()
    );
    assert_eq!((text(&second.stderr), second.status.code()), (wanted, Some(3)));
    let said = end(run);
    assert_eq!(noise.affinity(), all(), "{said}");
    assert!(said.contains("moved ttyS0 (line ") && said.contains("is the program's"), "{said}");
    let seen = read(&path);
    seen.assert_sound();
    let stays = seen.on(&line);
    assert_eq!((stays[0], stays[1] == stays[0]), ("CPU 0", false), "{seen:?}");
    for counter in ["CPU 0: interrupts", "CPU 0: capability"] {
        assert!(seen.counters.iter().any(|name| name == counter), "{counter}: {seen:?}");
    }
    let told = seen.on("moves of interrupts");
    assert_eq!((told.first(), told.last()), (Some(&"started"), Some(&"ended")), "{seen:?}");
    assert!(told.iter().any(|what| what.starts_with("moved ttyS0 to CPU ")), "{seen:?}");
    assert!(seen.annotations.iter().any(|name| name == "taken back 1"), "{seen:?}");

    // The same as lines of JSON.
    noise.send_home();
    let run = irq_run(&host, worker.pid, &["--json"]);
    wait_for("the line to leave", || noise.has_left());
    let said = end(run);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.iter().for_each(|line| check("irq-run", line));
    assert!(lines.iter().any(|line| line["moved"].is_object()), "{said}");
    assert!(lines.last().is_some_and(|line| line["undone"].is_object()), "{said}");

    // What another process sets stays, and is said.
    noise.send_home();
    let mut run = irq_run(&host, worker.pid, &[]);
    let said = lines_of(run.stdout.take().unwrap());
    wait_for("the line to leave for another's choice", || noise.has_left());
    noise.set_affinity(&home());
    let is_let_go = |line: String| line.starts_with("left alone ttyS0 (line ");
    wait_for("the line to be let go", || said.try_iter().any(is_let_go));
    kill(run.id() as i32, libc::SIGTERM);
    assert!(ended(&mut run).success());
    assert_eq!(noise.affinity(), home());

    noise.send_home();
    let mut run = irq_run(&host, worker.pid, &["--no-supervisor"]);
    wait_for("the line to leave again", || noise.has_left());
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(noise.has_left(), "nothing was left to undo");
    let undone = host.undo();
    assert_eq!(noise.affinity(), all(), "{undone:#}");

    noise.send_home();
    let mut run = irq_run(&host, worker.pid, &[]);
    wait_for("the line to leave once more", || noise.has_left());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for("the supervisor", || noise.affinity() == all() && host.journals().is_empty());
    assert!(worker.end().success());
}

fn a_cpu_that_goes_offline_is_no_other_process() {
    let host = Host::new();
    let noise = Noise::start(&host);
    let worker = worker_at_home(&host);
    let before = all();
    let mut run = irq_run(&host, worker.pid, &[]);
    let said = lines_of(run.stdout.take().unwrap());
    wait_for("the line to leave", || noise.has_left());
    let gone = noise.affinity();
    let cpu = gone.iter().next().unwrap();
    switch(cpu, false);
    let mut lines = Vec::new();
    wait_for("the line to be set back", || {
        lines.extend(said.try_iter());
        lines.iter().any(|line| line.starts_with("set back ttyS0 (line "))
    });
    assert!(!lines.iter().any(|line| line.starts_with("left alone")), "{lines:?}");
    switch(cpu, true);
    // The kernel may have it on a third CPU now.
    noise.send_home();
    wait_for("the line to leave again", || noise.has_left());
    kill(run.id() as i32, libc::SIGTERM);
    assert!(ended(&mut run).success());
    assert_eq!(noise.affinity(), before);

    // It goes at the very end, unseen.
    noise.send_home();
    let mut run = irq_run(&host, worker.pid, &["--no-supervisor"]);
    wait_for("the line to leave once more", || noise.has_left());
    run.kill().unwrap();
    run.wait().unwrap();
    let cpu = noise.affinity().iter().next().unwrap();
    switch(cpu, false);
    let undone = host.undo();
    switch(cpu, true);
    assert_eq!(noise.affinity(), before, "{undone:#}");
    assert!(worker.end().success());
}

fn irqbalance_is_told_to_leave_moved_lines_alone() {
    let host = Host::new();
    let noise = Noise::start(&host);
    let worker = worker_at_home(&host);

    // This process for irqbalance, which is known by its name, and has no socket.
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    fs::write("/proc/self/comm", "irqbalance").unwrap();
    let refused = output(&mut host.evenkeel(["irq", "run"]));
    let cannot = output(&mut host.evenkeel(["irq", "run", "--take-over"]));
    fs::write("/proc/self/comm", name.trim()).unwrap();
    let said = text(&refused.stderr);
    let has_remedy = said.contains("systemctl stop irqbalance") && said.contains("--take-over");
    assert!(refused.status.code() == Some(3) && has_remedy, "{refused:?}");
    let said = text(&cannot.stderr);
    assert!(cannot.status.code() == Some(3) && said.contains("has no socket"), "{cannot:?}");

    // By its socket.
    let stand_in = StandIn::start(&host.path(""), [250], usize::MAX);
    let refused = output(&mut host.evenkeel(["irq", "run"]));
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let run = irq_run(&host, worker.pid, &["--take-over"]);
    wait_for("the line to leave", || noise.has_left());
    assert_eq!(stand_in.list(), [noise.line(), 250]);
    let said = end(run);
    assert!(said.contains(&format!("may move line {} again", noise.line())), "{said}");
    assert_eq!((noise.affinity(), stand_in.list()), (all(), vec![250]));

    for flags in [&["--take-over"][..], &["--take-over", "--no-supervisor"]] {
        noise.send_home();
        let mut run = irq_run(&host, worker.pid, flags);
        wait_for("the line to leave again", || noise.has_left());
        run.kill().unwrap();
        run.wait().unwrap();
        if flags.len() > 1 {
            assert_eq!(stand_in.list(), [noise.line(), 250]);
            assert_eq!(host.undo()["lifted_bans"][0]["line"], noise.line());
        }
        wait_for("all to be taken back", || {
            noise.affinity() == all() && stand_in.list() == [250] && host.journals().is_empty()
        });
    }
    assert!(worker.end().success());
}

fn what_once_moved_stands_until_undo() {
    let host = Host::new();
    let noise = Noise::start(&host);
    let worker = worker_at_home(&host);
    let pid = worker.pid.to_string();
    let once = output(&mut host.evenkeel(["irq", "once", "--watch", "1s", "--for", &pid]));
    let said = text(&once.stdout);
    assert!(once.status.success() && noise.has_left(), "{once:?}");
    assert!(said.contains("moved ttyS0") && said.contains("until `evenkeel undo`"), "{said}");

    // No start takes it back, and a run moves upon it, and back to it.
    let stood = noise.affinity();
    pin_all(worker.pid, &stood);
    let run = irq_run(&host, worker.pid, &[]);
    wait_for("the line to leave again", || noise.affinity() != stood);
    let below = output(&mut host.evenkeel(["undo"]));
    let said = text(&below.stderr);
    assert!(!below.status.success() && said.contains("by a living process, too"), "{below:?}");
    end(run);
    assert_eq!(noise.affinity(), stood);

    for words in [&["status"][..], &["irq", "status"]] {
        let status = output(&mut host.evenkeel(words));
        let said = text(&status.stdout);
        let line = format!("    ttyS0 (line {}): CPUs {} -> CPUs {stood}", noise.line(), all());
        assert!(status.status.success() && said.contains(&line), "{words:?}: {status:?}");
    }
    // Nor does the epilog of a batch system.
    let killed = output(&mut host.evenkeel(["undo", "--killed"]));
    assert_eq!(text(&killed.stdout), "Nothing to undo.\n", "{killed:?}");
    assert_eq!(noise.affinity(), stood);
    let undone = host.undo();
    assert_eq!(noise.affinity(), all(), "{undone:#}");

    // The same as lines of JSON.
    pin_all(worker.pid, &home());
    noise.send_home();
    let words = ["irq", "once", "--watch", "1s", "--for", &pid, "--json"];
    let said = text(&output(&mut host.evenkeel(words)).stdout);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines.iter().for_each(|line| check("irq-once", line));
    assert!(noise.has_left() && lines.iter().any(|line| line["moved"].is_object()), "{said}");
    let undone = host.undo();
    assert_eq!(noise.affinity(), all(), "{undone:#}");
    assert!(worker.end().success());
}

fn run_moves_the_noise_of_its_program() {
    let host = Host::new();
    let noise = Noise::start(&host);
    let file = host.path("summary.json");
    let flags = ["--move-noise", "--json", file.to_str().unwrap()];
    let mut command = host.run(&flags, &crate::roles::role("worker"));
    let mut worker = Worker::start_by(command.stderr(Stdio::piped()), 2);
    pin_all(worker.pid, &home());
    wait_for("the line to leave", || noise.has_left());
    worker.let_end();
    let said = lines_of(worker.evenkeel.stderr.take().unwrap());
    assert!(ended(&mut worker.evenkeel).success());
    assert_eq!(noise.affinity(), all());
    let said: Vec<String> = said.iter().collect();
    let wanted = "evenkeel: interrupts: moved 1 times, 1 set back at the end (ttyS0: CPU 0 -> CPU ";
    assert!(said.iter().any(|line| line.starts_with(wanted)), "{said:?}");
    let summary: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let interrupts = &summary["interrupts"];
    assert_eq!(interrupts["moves"][0]["name"], "ttyS0", "{summary:#}");
    assert_eq!(interrupts["set_back"], 1, "{summary:#}");

    // Killed: the lines are moved back when the program ends.
    noise.send_home();
    let mut worker = Worker::start(&host, &["--move-noise", "-q"]);
    pin_all(worker.pid, &home());
    wait_for("the line to leave again", || noise.has_left());
    worker.kill_evenkeel();
    worker.let_end();
    wait_for("the line to be given back", || noise.affinity() == all());
    // It left its status file, too.
    wait_for("the end of the program", || host.status().is_empty());

    // One CPU, and none to move anything to.
    let others: Vec<u32> = all().iter().filter(|cpu| *cpu != 0).collect();
    others.iter().for_each(|cpu| switch(*cpu, false));
    let run = output(&mut host.run(&["--move-noise"], &["/init", "role", "nothing"]));
    others.iter().for_each(|cpu| switch(*cpu, true));
    let said = text(&run.stderr);
    assert!(run.status.success() && said.contains("CPU 0 is the only one online"), "{run:?}");
}
