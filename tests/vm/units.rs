//! The units of packaging/systemd, started by systemd in a guest: each feature of both works with the
//! rights that they grant. `make vm-units` runs them.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_control::{KEEL_SOCKET, Request, ask};
use serde_json::Value;

use crate::Test;
use crate::hotplug::switch;
use crate::roles::role;
use crate::sais::transfer;
use crate::scheduler::{loads, state};
use crate::storms::spin;
use crate::support::*;
use crate::worker::{Worker, lines_of};

pub const TESTS: &[Test] = &[
    Test { name: "units::the_daemon_serves_every_user", run: the_daemon_serves_every_user },
    Test {
        name: "units::the_daemon_measures_the_memory_of_every_user",
        run: the_daemon_measures_the_memory_of_every_user,
    },
    Test {
        name: "units::a_killed_daemon_is_undone_by_the_next",
        run: a_killed_daemon_is_undone_by_the_next,
    },
    Test {
        name: "units::the_daemon_sets_back_the_knobs_of_a_killed_sais",
        run: the_daemon_sets_back_the_knobs_of_a_killed_sais,
    },
    Test { name: "units::the_keel_serves_every_user", run: the_keel_serves_every_user },
    Test { name: "units::a_killed_keel_stays_off", run: a_killed_keel_stays_off },
    Test { name: "units::both_run_beside_each_other", run: both_run_beside_each_other },
    Test { name: "units::little_is_exposed", run: little_is_exposed },
];

const DAEMON: &str = "evenkeel.service";
const KEEL: &str = "evenkeel-keel.service";
/// As `make install` has it, and as the units name it.
pub const INSTALLED: &str = "/usr/local/bin/evenkeel";
/// systemd looks for units here, too; `make install` puts them there.
pub const UNITS: &str = "/usr/local/lib/systemd/system";

const CONFIG: &str = "/etc/evenkeel/config.toml";
/// Moves tasks at every opportunity, by exact figures only, so that each move shows in a mask.
const EAGER_DAEMON: &str = "[run]\npolicy = \"paper\"\ninterval = \"20ms\"\nplacement = \"hard\"\n\
                            accounting = \"cbinfo\"\n";

/// Every user may write to /tmp; here no systemd-tmpfiles has seen to that.
fn open_tmp() {
    std::fs::set_permissions("/tmp", Permissions::from_mode(0o1777)).unwrap();
}

fn configure(text: &str) {
    std::fs::create_dir_all(Path::new(CONFIG).parent().unwrap()).unwrap();
    std::fs::write(CONFIG, text).unwrap();
}

/// Runs a command that must succeed, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = output(command.stdin(Stdio::null()));
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

fn systemctl(arguments: &[&str]) -> String {
    run(Command::new("systemctl").args(arguments))
}

fn evenkeel(arguments: &[&str]) -> String {
    run(Command::new(INSTALLED).args(arguments))
}

fn evenkeel_by_nobody(arguments: &[&str]) -> String {
    run(Command::new(INSTALLED).args(arguments).uid(NOBODY).gid(NOBODY))
}

/// A unit that a test has started. It is stopped when this is dropped.
struct Unit(&'static str);

impl Unit {
    fn start(name: &'static str, config: &str) -> Self {
        open_tmp();
        configure(config);
        let started = output(Command::new("systemctl").args(["start", name]));
        let unit = Self(name);
        assert!(started.status.success(), "{}\n{}", text(&started.stderr), unit.logged());
        assert_eq!(systemctl(&["is-active", name]), "active");
        unit
    }

    fn property(&self, name: &str) -> String {
        systemctl(&["show", "--value", "--property", name, self.0])
    }

    /// What it wrote to the journal of systemd since the boot.
    fn logged(&self) -> String {
        run(Command::new("journalctl").args(["--no-pager", "--output=cat", "--unit", self.0]))
    }

    /// Stops it as a user does.
    fn stop(self) {
        systemctl(&["stop", self.0]);
        let end = ["ActiveState", "Result"].map(|name| self.property(name));
        assert_eq!(end, ["inactive", "success"], "{}", self.logged());
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.0, self.logged());
        }
        for verb in ["stop", "reset-failed"] {
            // The second is refused where nothing failed.
            let mut command = Command::new("systemctl");
            let _ = command.args([verb, self.0]).stderr(Stdio::null()).status();
        }
    }
}

/// The file of a program of another user, which has none of these words in its command.
const FILE: &str = "/opt/worker-file";

/// The command of a role, as user `nobody`: only its file tells which program it is.
fn by_nobody(name: &'static str) -> Command {
    if !Path::new(FILE).exists() {
        std::fs::create_dir_all("/opt").unwrap();
        std::fs::hard_link("/init", FILE).unwrap();
        std::os::unix::fs::symlink(FILE, "/opt/alias").unwrap();
    }
    let mut command = Command::new("/opt/alias");
    command.arg0("alias").args(&role(name)[1..]).uid(NOBODY).gid(NOBODY);
    command
}

fn worker_of_nobody() -> Worker {
    Worker::start_by(&mut by_nobody("worker"), 2)
}

fn wait_pinned(worker: &Worker) {
    for tid in &worker.threads {
        wait_for("a move", || mask(*tid).len() == 1);
    }
}

fn wait_free(worker: &Worker) {
    wait_for("masks to be given back", || worker.is_as(&all()));
}

fn journals() -> usize {
    std::fs::read_dir("/run/evenkeel/journal").map_or(0, Iterator::count)
}

fn the_daemon_serves_every_user() {
    let endpoint = "127.0.0.1:9469";
    let config = format!("{EAGER_DAEMON}[daemon]\nmetrics = \"{endpoint}\"\n");
    let unit = Unit::start(DAEMON, &config);
    let worker = worker_of_nobody();
    let pid = worker.pid.to_string();
    // By its own user.
    evenkeel_by_nobody(&["join", &pid]);
    wait_pinned(&worker);
    let status: Value = serde_json::from_str(&evenkeel(&["status", "--json"])).unwrap();
    assert_eq!(status["programs"].as_array().unwrap().len(), 1, "{status:#}");
    evenkeel_by_nobody(&["leave", &pid]);
    wait_free(&worker);
    // By the administrator, by what it runs.
    evenkeel(&["join", "--name", "worker-file"]);
    wait_pinned(&worker);
    let mut stream = TcpStream::connect(endpoint).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("evenkeel_"), "{page}");
    evenkeel(&["leave", &pid]);
    wait_free(&worker);
    // By its cgroup.
    let group = Path::new("/sys/fs/cgroup/units");
    std::fs::create_dir(group).unwrap();
    let inside = worker_of_nobody();
    std::fs::write(group.join("cgroup.procs"), inside.pid.to_string()).unwrap();
    evenkeel(&["join", "--cgroup", "/units"]);
    wait_pinned(&inside);
    assert!(inside.end().success());
    wait_for("an empty cgroup", || std::fs::remove_dir(group).is_ok());
    // By a standing rule that a reload brings.
    configure(&format!("{config}names = [\"worker-file\"]\n"));
    systemctl(&["reload", DAEMON]);
    wait_pinned(&worker);
    unit.stop();
    assert!(worker.is_as(&all()));
    assert_eq!(journals(), 0);
    assert!(TcpStream::connect(endpoint).is_err());
    assert!(worker.end().success());
}

const MEMORY_BYTES: usize = 32 << 20;

/// The role: touches its memory once, says so, and computes until its input ends.
pub fn play_toucher() {
    let memory = vec![1u8; MEMORY_BYTES];
    std::hint::black_box(&memory);
    say("touched", memory.len());
    for _ in 0..2 {
        std::thread::spawn(|| {
            loop {
                spin(Duration::from_secs(1));
            }
        });
    }
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    std::process::exit(0);
}

/// The kernel's page-referenced bits of another user's process are cleared and read.
fn the_daemon_measures_the_memory_of_every_user() {
    let unit = Unit::start(DAEMON, &format!("{EAGER_DAEMON}selection = \"cache\"\n"));
    let mut command = by_nobody("toucher");
    let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = lines_of(process.stdout.take().unwrap());
    assert!(lines.recv_timeout(PATIENCE).unwrap().contains("@touched="));
    let pid = process.id();
    let referenced_bytes = || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = maps.lines().find_map(|line| line.strip_prefix("Referenced:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    assert!(referenced_bytes() >= MEMORY_BYTES);
    evenkeel_by_nobody(&["join", &pid.to_string()]);
    wait_for("its page-referenced bits to be cleared", || referenced_bytes() < MEMORY_BYTES / 2);
    unit.stop();
    drop(process.stdin.take());
    assert!(ended(&mut process).success());
}

fn a_killed_daemon_is_undone_by_the_next() {
    let unit = Unit::start(DAEMON, EAGER_DAEMON);
    let worker = worker_of_nobody();
    evenkeel_by_nobody(&["join", &worker.pid.to_string()]);
    wait_pinned(&worker);
    // With its supervisor.
    systemctl(&["kill", "--signal=KILL", DAEMON]);
    wait_for("the next daemon", || {
        unit.property("NRestarts") == "1" && unit.property("ActiveState") == "active"
    });
    // It goes on with the program, and knows what its masks were before the first daemon.
    wait_pinned(&worker);
    unit.stop();
    assert!(worker.is_as(&all()));
    assert_eq!(journals(), 0);
    assert!(worker.end().success());
}

const TABLE: &str = "/proc/sys/net/core/rps_sock_flow_entries";
const QUEUE: &str = "/sys/class/net/lo/queues/rx-0/rps_flow_cnt";

fn knobs() -> [String; 2] {
    [TABLE, QUEUE].map(|knob| std::fs::read_to_string(knob).unwrap().trim().to_owned())
}

/// `sais` is no unit: it runs beside the daemon, and what it leaves the next daemon takes back.
fn the_daemon_sets_back_the_knobs_of_a_killed_sais() {
    let attach = |flags: &[&str]| {
        let words = ["sais", "attach", "lo", "--policy", "auto", "--strip-us", "100,1"];
        let mut command = Command::new(INSTALLED);
        command.args(words).args(flags).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        wait_for("the knobs", || {
            transfer(0, 1);
            knobs().iter().all(|value| value != "0")
        });
        child
    };
    assert_eq!(knobs(), ["0", "0"]);
    // It sets them back itself.
    let mut sais = attach(&["--manage-rfs"]);
    kill(sais.id() as i32, libc::SIGTERM);
    assert_eq!(ended(&mut sais).code(), Some(0));
    assert_eq!(knobs(), ["0", "0"]);
    // Its supervisor does.
    let mut sais = attach(&["--manage-rfs"]);
    kill(sais.id() as i32, libc::SIGKILL);
    ended(&mut sais);
    wait_for("the supervisor", || knobs() == ["0", "0"]);
    // The daemon's start does.
    let mut sais = attach(&["--manage-rfs", "--no-supervisor"]);
    kill(sais.id() as i32, libc::SIGKILL);
    ended(&mut sais);
    assert!(knobs().iter().all(|value| value != "0"));
    let unit = Unit::start(DAEMON, EAGER_DAEMON);
    assert_eq!(knobs(), ["0", "0"], "{}", unit.logged());
    unit.stop();
}

/// The CPU on which a task runs or ran last.
fn cpu_of(tid: i32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(36).unwrap().parse().unwrap()
}

fn the_keel_serves_every_user() {
    let config = "[sched]\norder = \"ias\"\ngate = \"zone\"\nbalance = \"capability\"\n\
                  [ias.programs.\"/opt/worker-file\"]\nbonus = \"2x\"\n";
    let unit = Unit::start(KEEL, config);
    assert_eq!(state(), "enabled");
    let worker = worker_of_nobody();
    // A configured program of another user is known by its file.
    wait_for("the program to aggregate", || {
        let shown: Value = serde_json::from_str(&evenkeel(&["ias", "show", "--json"])).unwrap();
        let mut spaces = shown["spaces"].as_array().unwrap().iter();
        spaces.any(|space| space["pid"] == worker.pid && space["bonus_value"] == 2)
    });
    assert!(evenkeel(&["status"]).contains("ias"), "{}", evenkeel(&["status"]));
    assert!(evenkeel_by_nobody(&["status"]).contains("ias"));
    // Knobs turn, for root.
    evenkeel(&["zone", "set", "balance_level", "3"]);
    assert_eq!(evenkeel_by_nobody(&["zone", "get", "balance_level"]), "3");
    let set = Request::new("set").with("slice_us", 2000);
    assert_eq!(ask(Path::new(KEEL_SOCKET), &set).unwrap()["slice_us"], 2000);
    let words = ["zone", "set", "balance_level", "2"];
    let refused = output(Command::new(INSTALLED).args(words).uid(NOBODY).stdin(Stdio::null()));
    assert!(!refused.status.success());
    // A shield is cleared.
    evenkeel(&["zone", "shield", "1"]);
    for tid in &worker.threads {
        wait_for("the shielded CPU to be left", || cpu_of(*tid) == 0);
    }
    evenkeel(&["zone", "shield", "none"]);
    // CPUs go and come: it is loaded anew.
    for on in [false, true] {
        let before = loads();
        switch(1, on);
        wait_for("the keel", || loads() > before && state() == "enabled");
    }
    wait_for("its answer", || evenkeel(&["zone", "get", "balance_level"]) == "3");
    let logged = unit.logged();
    assert!(!logged.contains("capabilities stay as they are"), "{logged}");
    unit.stop();
    assert_eq!(state(), "disabled");
    assert!(!Path::new(KEEL_SOCKET).exists());
    assert!(worker.end().success());
}

fn a_killed_keel_stays_off() {
    let unit = Unit::start(KEEL, "");
    systemctl(&["kill", "--signal=KILL", KEEL]);
    wait_for("systemd to notice", || unit.property("ActiveState") == "failed");
    assert_eq!(state(), "disabled");
    assert_eq!(unit.property("NRestarts"), "0");
}

fn both_run_beside_each_other() {
    let daemon = Unit::start(DAEMON, EAGER_DAEMON);
    let keel = Unit::start(KEEL, EAGER_DAEMON);
    let worker = worker_of_nobody();
    evenkeel_by_nobody(&["join", &worker.pid.to_string()]);
    wait_pinned(&worker);
    // Each keeps the directory that both have.
    keel.stop();
    evenkeel_by_nobody(&["leave", &worker.pid.to_string()]);
    wait_free(&worker);
    daemon.stop();
    assert!(worker.end().success());
}

/// The figure: at most 2.6, in tenths.
const MOST_EXPOSED: &str = "--threshold=26";

fn little_is_exposed() {
    for unit in [DAEMON, KEEL] {
        let path = format!("{UNITS}/{unit}");
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true", MOST_EXPOSED, &path]);
        println!("{}", run(&mut command).lines().last().unwrap_or_default());
    }
}
