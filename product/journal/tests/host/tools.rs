//! What all tests need: tasks to place, waiting for a condition, and journals made by hand.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_journal::{Session, SessionOptions, TaskRef, affinity};
use evenkeel_machine::CpuSet;
use serde_json::{Value, json};

/// Waits for a condition; nothing here depends on how long it takes.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// All CPUs that this process may use.
pub fn all() -> CpuSet {
    affinity::get(std::process::id() as i32).unwrap()
}

/// Two of them, or a message that the test is skipped.
pub fn two_cpus(test: &str) -> Option<(u32, u32)> {
    let cpus: Vec<u32> = all().iter().collect();
    if let [a, b, ..] = cpus[..] {
        return Some((a, b));
    }
    evenkeel_skip::skip(test, format!("it needs two CPUs, here is {}", all()));
    None
}

pub fn just(cpu: u32) -> CpuSet {
    [cpu].into_iter().collect()
}

pub fn mask(tid: i32) -> CpuSet {
    affinity::get(tid).unwrap()
}

pub fn open(dir: &Path) -> Session {
    Session::open(dir, SessionOptions::default()).unwrap()
}

/// The files in the directory of journals.
pub fn journals(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir.join("journal")) else { return vec![] };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// A command that runs one of the roles of this test program.
pub fn role(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", &format!("roles::{name}")]);
    command.args(["--nocapture", "--test-threads=1", "--quiet"]);
    command.env("EVENKEEL_TEST_ROLE", name);
    command
}

/// A sleeping process; killed when dropped.
pub struct Sleeper {
    child: Child,
    pub task: TaskRef,
}

impl Sleeper {
    pub fn new() -> Self {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let task = TaskRef::of(child.id() as i32).unwrap();
        Self { child, task }
    }

    pub fn mask(&self) -> CpuSet {
        mask(self.task.tid)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process in a session of its own that forks threads and children on command.
pub struct Victim {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Its first process.
    pub root: TaskRef,
    /// The thread that does what it is told: not the leader.
    pub worker: TaskRef,
    made: Vec<TaskRef>,
}

impl Victim {
    pub fn new() -> Self {
        let mut command = role("victim");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: setsid is async-signal-safe and takes nothing.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                Ok(())
            })
        };
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let root = TaskRef::of(child.id() as i32).unwrap();
        let output = BufReader::new(output);
        let mut victim = Self { child, input, output, root, worker: root, made: vec![] };
        victim.worker = TaskRef::of(victim.answer()).unwrap();
        victim
    }

    fn answer(&mut self) -> i32 {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the victim ended");
            // The test harness writes to it, too.
            if let Some((_, number)) = line.split_once("tid=") {
                return number.trim().parse().unwrap();
            }
        }
    }

    /// `thread`, `child` or `orphan`: the new thread.
    pub fn make(&mut self, what: &str) -> TaskRef {
        writeln!(self.input, "{what}").unwrap();
        let task = TaskRef::of(self.answer()).unwrap();
        self.made.push(task);
        task
    }

    /// A child whose fork is held back while `stopped` runs; `None`: that needs privilege.
    pub fn make_slowly(&mut self, stopped: impl FnOnce()) -> Option<TaskRef> {
        writeln!(self.input, "slow child").unwrap();
        if self.answer() != 0 {
            return None;
        }
        stopped();
        writeln!(self.input).unwrap();
        let task = TaskRef::of(self.answer()).unwrap();
        self.made.push(task);
        Some(task)
    }

    /// The worker calls exec(2): it becomes the leader.
    pub fn exec(&mut self) {
        writeln!(self.input, "exec").unwrap();
        let worker = self.worker;
        wait_for("exec", || !worker.is_alive());
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        for task in self.made.iter().filter(|task| task.tgid != self.root.tgid) {
            if task.is_alive() {
                // SAFETY: two integers; the process is one that the victim made.
                unsafe { libc::kill(task.tgid, libc::SIGKILL) };
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An entry in the journal's format, encoded without the code under test.
pub fn line(value: &Value) -> String {
    let text = value.to_string();
    let body = text.strip_suffix('}').unwrap();
    let crc = !body.bytes().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 }
        })
    });
    format!("{body},\"sum\":\"{crc:08x}\"}}\n")
}

pub fn task_json(task: &TaskRef) -> Value {
    json!({"tid": task.tid, "tgid": task.tgid, "start": task.start_time_ticks})
}

/// A header that is valid here, of a writer that has ended.
pub fn header() -> Value {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &str| std::fs::metadata(path).map_or(0, |meta| meta.ino());
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    json!({"header": {
        "version": 1, "boot_id": boot_id.trim(),
        "pid_ns": inode("/proc/self/ns/pid"), "time_ns": inode("/proc/self/ns/time"),
        "writer": {"tid": 1, "tgid": 1, "start": 987_654_321_987u64}, "command": ["evenkeel"],
    }})
}

/// A pin of a task that had all CPUs.
pub fn pin(id: u64, task: &TaskRef, cpu: u32) -> Value {
    json!({"pin": {"id": id, "task": task_json(task), "process": task_json(task),
        "original": "all", "replaces": null, "set": cpu.to_string(), "time_ns": 1}})
}

/// Writes a journal.
pub fn put(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    use std::os::unix::fs::DirBuilderExt;
    let dir = dir.join("journal");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).unwrap();
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// A directory of the test's own.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Ordinary files that stand for an interrupt line with this handler; returns that of its affinity.
pub fn put_line(root: &Path, number: u32, name: &str, affinity: &str) -> PathBuf {
    let [about, line] =
        ["sys/kernel/irq", "proc/irq"].map(|place| root.join(place).join(number.to_string()));
    [&about, &line].into_iter().for_each(|place| std::fs::create_dir_all(place).unwrap());
    std::fs::write(about.join("actions"), format!("{name}\n")).unwrap();
    let file = line.join("smp_affinity_list");
    std::fs::write(&file, format!("{affinity}\n")).unwrap();
    file
}

/// An ordinary file that stands for the RSS indirection table of a network device.
pub fn put_table(root: &Path, device: &str, queues: &str) -> PathBuf {
    let folder = root.join("ethtool");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join(device);
    std::fs::write(&file, queues).unwrap();
    file
}

/// The queue of each bucket in such a file.
pub fn table(file: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(file).unwrap();
    text.split_whitespace().map(|queue| queue.parse().unwrap()).collect()
}

/// The path of the file that stands for the CPUs of a network device's first send queue.
pub fn send_queue(root: &Path, device: &str) -> PathBuf {
    root.join("sys/class/net").join(device).join("queues/tx-0/xps_cpus")
}

/// Ordinary files that stand for a network device of this number; returns that of its send queue.
pub fn put_send_queue(root: &Path, device: &str, index: u32, cpus: &str) -> PathBuf {
    let file = send_queue(root, device);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let number = root.join("sys/class/net").join(device).join("ifindex");
    std::fs::write(number, format!("{index}\n")).unwrap();
    std::fs::write(&file, format!("{cpus}\n")).unwrap();
    file
}

/// Gives such a device another name; returns the file of its send queue.
pub fn rename_device(root: &Path, from: &str, to: &str) -> PathBuf {
    let devices = root.join("sys/class/net");
    std::fs::rename(devices.join(from), devices.join(to)).unwrap();
    send_queue(root, to)
}
