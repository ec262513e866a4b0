//! A program under evenkeel that keeps CPUs busy and obeys orders: the role [`worker`], and the handle
//! that a test has of it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use evenkeel_journal::affinity;

use crate::roles::role;
use crate::support::*;

/// A run of evenkeel with a worker.
pub struct Worker {
    pub evenkeel: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The worker's busy threads.
    pub threads: Vec<i32>,
    pub pid: i32,
}

impl Worker {
    /// Starts it with two busy threads; `arguments` are those of `evenkeel run`.
    pub fn start(host: &Host, flags: &[&str]) -> Self {
        Self::start_by(&mut host.run(flags, &role("worker")), 2)
    }

    /// Starts it by this command. Its standard error is the test's, unless set before.
    pub fn start_by(command: &mut Command, threads: usize) -> Self {
        command.env("EVENKEEL_TEST_ROLE", "worker").env("THREADS", threads.to_string());
        let mut evenkeel = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = evenkeel.stdin.take();
        let lines = lines_of(evenkeel.stdout.take().unwrap());
        let mut worker = Self { evenkeel, stdin, lines, threads: Vec::new(), pid: 0 };
        worker.pid = worker.answer("pid").parse().unwrap();
        for _ in 0..threads {
            let tid = worker.answer("tid").parse().unwrap();
            worker.threads.push(tid);
        }
        worker
    }

    /// The value that the worker prints next under this name.
    pub fn answer(&self, name: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(90));
            let line = line.unwrap_or_else(|why| panic!("no answer \"{name}\": {why}"));
            // The test harness around the role prints, too, and does not end its line.
            if let Some((_, said)) = line.split_once(&format!("@{name}=")) {
                return said.to_owned();
            }
        }
    }

    pub fn tell(&mut self, order: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    pub fn ask(&mut self, order: &str, name: &str) -> String {
        self.tell(order);
        self.answer(name)
    }

    pub fn pid_of_evenkeel(&self) -> i32 {
        self.evenkeel.id() as i32
    }

    /// Waits until each busy thread was placed by us this many times.
    pub fn wait_moved(&self, host: &Host, times: usize) {
        for tid in &self.threads {
            wait_for("a move", || host.pins_of(*tid) >= times);
        }
    }

    /// Lets the worker end, and returns how evenkeel ended.
    pub fn end(mut self) -> ExitStatus {
        self.let_end();
        ended(&mut self.evenkeel)
    }

    pub fn let_end(&mut self) {
        drop(self.stdin.take());
    }

    /// Kills evenkeel alone.
    pub fn kill_evenkeel(&mut self) {
        self.evenkeel.kill().unwrap();
        ended(&mut self.evenkeel);
    }

    pub fn is_as(&self, cpus: &evenkeel_machine::CpuSet) -> bool {
        self.threads.iter().all(|tid| mask(*tid) == *cpus)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The worker ends when its standard input does.
        self.let_end();
        if std::thread::panicking() {
            let _ = self.evenkeel.kill();
            let _ = self.evenkeel.wait();
        }
        let _ = self.evenkeel.try_wait();
    }
}

/// The lines that come from a pipe.
pub fn lines_of(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The role: busy threads, and orders by standard input:
///
/// - `CPU`: the first busy thread pins itself there;
/// - `spawn COMMAND`: the first busy thread runs a shell command and says what it printed;
/// - `orphan`: the first busy thread leaves a sleeper behind and says its number;
/// - `exec COMMAND`: the first busy thread becomes a shell command;
/// - `barriers`: the first busy thread wakes all waiters of a word every 50 µs, as the last thread
///   at a barrier does, until the next order;
/// - `work`: the first busy thread works on.
pub fn worker() {
    let pinned = std::env::var("PINNED").is_ok();
    let parent = nix::unistd::getppid().as_raw();
    if pinned {
        // A thread that pins itself to the CPU to which we have just pinned it cannot be told from one
        // that inherited our pin. So evenkeel is stopped until all of them are pinned.
        kill(parent, libc::SIGSTOP);
        wait_for("evenkeel's stop", || state(parent) == 'T');
    }
    say("pid", std::process::id());
    let threads: usize = std::env::var("THREADS").unwrap().parse().unwrap();
    let cpus: Vec<u32> = all().iter().collect();
    let mut orders = Vec::new();
    let start = Arc::new(Barrier::new(threads + 1));
    for index in 0..threads {
        let (sender, receiver) = channel();
        orders.push(sender);
        let cpu = pinned.then(|| cpus[index % cpus.len()]);
        let start = Arc::clone(&start);
        let (ready, is_ready) = channel();
        std::thread::spawn(move || {
            let tid = nix::unistd::gettid().as_raw();
            if let Some(cpu) = cpu {
                affinity::set(tid, &just(cpu)).unwrap();
            }
            ready.send(tid).unwrap();
            start.wait();
            busy(&receiver);
        });
        say("tid", is_ready.recv().unwrap());
    }
    if pinned {
        kill(parent, libc::SIGCONT);
    }
    if std::env::var("YOUNG").is_err() {
        // evenkeel does not move a program that has just started, so a test would see nothing. And a
        // thread that pins itself right after its start cannot be told from one that inherited a pin of
        // ours: here the threads have done so before anything is moved.
        std::thread::sleep(Duration::from_millis(600));
    }
    start.wait();
    for order in std::io::stdin().lock().lines() {
        let order: String = order.unwrap();
        let first: &Sender<String> = orders.first().unwrap();
        first.send(order).unwrap();
    }
    std::process::exit(0);
}

fn busy(orders: &Receiver<String>) {
    let mut value = 1u64;
    loop {
        for _ in 0..100_000 {
            value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) + 1);
        }
        if let Ok(order) = orders.try_recv() {
            obey(&order, orders);
        }
    }
}

fn obey(order: &str, orders: &Receiver<String>) {
    let (verb, rest) = order.split_once(' ').unwrap_or((order, ""));
    let mut shell = Command::new("sh");
    match verb {
        "spawn" => {
            let output = shell.args(["-c", rest]).stdin(Stdio::null()).output().unwrap();
            say("printed", text(&output.stdout).trim());
        }
        "orphan" => {
            let mut sleeper = Command::new("sleep");
            sleeper.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            say("orphan", sleeper.spawn().unwrap().id());
        }
        "barriers" => {
            say("barriers", 1);
            while pass_barrier(orders) {}
        }
        "work" => {}
        "exec" => panic!("{}", shell.args(["-c", rest]).exec()),
        cpu => {
            let tid = nix::unistd::gettid().as_raw();
            affinity::set(tid, &just(cpu.parse().unwrap())).unwrap();
            say("pinned", cpu);
        }
    }
}

/// Whether no order has come yet.
fn pass_barrier(orders: &Receiver<String>) -> bool {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(50) {
        std::hint::spin_loop();
    }
    let (word, wake) = (WORD.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG);
    // SAFETY: wakes the waiters at a word that lives for ever; there are none.
    unsafe { libc::syscall(libc::SYS_futex, word, wake, i32::MAX) };
    matches!(orders.try_recv(), Err(TryRecvError::Empty))
}
