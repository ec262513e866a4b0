//! The daemon's metrics: what is served and to which clients, how many series a node has, and what
//! probes are told.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::time::Duration;

use evenkeel_host::daemon::{MAX_SERIES, METRICS};
use serde_json::json;

use crate::daemon::says;
use crate::running_daemon::Daemon;
use crate::support::*;

/// A daemon with metrics, at a port that was free a moment ago.
fn daemon_with_metrics(host: &Host, flags: &[&str]) -> (Daemon, SocketAddr) {
    // Another port in the rare case that it is taken before the daemon has it.
    let started = (0..5).find_map(|_| {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // What is behind `public:` is served like any other address.
        let address = format!("public:{port}");
        let words = [&["daemon", "--metrics", &address][..], flags].concat();
        let mut child = host.evenkeel(words).spawn().unwrap();
        let socket = host.runtime().join("daemon.sock");
        let mut is_there = false;
        wait_for("the daemon", || {
            is_there = TcpStream::connect(port).is_ok();
            is_there || child.try_wait().unwrap().is_some()
        });
        is_there.then_some((Daemon { child, socket }, port))
    });
    started.unwrap()
}

/// The answer to a request of a path, with its header.
fn answer(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

fn page(address: SocketAddr) -> String {
    answer(address, "/metrics")
}

/// Each series of the page: its name, and the names of its labels.
fn series(page: &str) -> Vec<(String, Vec<String>)> {
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split(',').filter(|part| !part.is_empty());
            let names = labels.map(|label| label.split_once('=').unwrap().0.to_owned());
            (name.to_owned(), names.collect())
        })
        .collect()
}

#[test]
fn metrics_are_served_on_loopback() {
    let host = Host::new();
    says(&mut host.evenkeel(["daemon", "--metrics", "0.0.0.0:0"]), 2, "not a loopback address");
    let config = host.path("config.toml");
    std::fs::write(&config, "[daemon]\nmetrics = \"0.0.0.0:80\"\n").unwrap();
    let file = ["--config", config.to_str().unwrap()];
    for command in [&["daemon"][..], &["run", "true"]] {
        let words = [&file[..], command].concat();
        says(&mut host.evenkeel(words), 2, "not a loopback address");
    }
    let (daemon, address) = daemon_with_metrics(&host, &[]);
    assert!(page(address).contains("evenkeel_programs 0"), "{}", page(address));
    // Figures of CPUs are there once the daemon has read them, also without a program.
    let lost = "evenkeel_lost_seconds_total{cause=\"softirq\"}";
    wait_for("what CPUs lost", || page(address).contains(lost));
    let worst = "evenkeel_worst_cpu_lost_ratio{cause=\"softirq\"}";
    wait_for("the worst CPU", || {
        std::thread::sleep(Duration::from_millis(200));
        page(address).contains(worst)
    });
    daemon.end();
}

/// Whatever the clients of the metrics do, the daemon has one thread, answers others and ends.
#[test]
fn clients_of_the_metrics_keep_neither_each_other_nor_the_end_waiting() {
    let host = Host::new();
    let (daemon, address) = daemon_with_metrics(&host, &[]);
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut held = Vec::new();
    for kind in 0..60 {
        let mut stream = connect();
        let sent = match kind % 3 {
            // Nothing; a header without end; many requests at once, with answers that are not read.
            0 => String::new(),
            1 => format!("GET /metrics HTTP/1.1\r\n{}", "X: y\r\n".repeat(500)),
            _ => "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".repeat(500),
        };
        // The daemon may have closed it.
        let _ = stream.write_all(sent.as_bytes());
        held.push(stream);
    }
    assert!(page(address).contains("evenkeel_programs 0"));
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names: Vec<String> = threads.flatten().filter_map(|thread| name(thread).ok()).collect();
    let others = names.iter().filter(|name| name.trim() != "reads-in-time").count();
    assert_eq!(others, 1, "threads of the daemon: {names:?}");
    assert_eq!(daemon.ask(&json!({"req": "stats"}))["errno"], 0);
    daemon.end();
    drop(held);
}

/// Processes that sleep; they are killed when this is dropped.
struct Sleepers(Vec<Child>);

impl Sleepers {
    fn start(host: &Host, number: usize) -> Self {
        Self((0..number).map(|_| host.command("sleep").arg("600").spawn().unwrap()).collect())
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for sleeper in &mut self.0 {
            let _ = sleeper.kill();
            let _ = sleeper.wait();
        }
    }
}

#[test]
fn a_node_with_many_programs_has_a_bounded_number_of_series() {
    let host = Host::new();
    let (daemon, address) = daemon_with_metrics(&host, &[]);
    let sleepers = Sleepers::start(&host, 150);
    for sleeper in &sleepers.0 {
        let answer = daemon.ask(&json!({"req": "join", "args": {"pid": sleeper.id()}}));
        assert_eq!(answer["errno"], 0, "{answer}");
    }
    wait_for("all programs", || {
        std::thread::sleep(Duration::from_millis(100));
        page(address).contains("evenkeel_programs 150\n")
    });
    let page = page(address);
    let found = series(&page);
    assert!(found.len() <= MAX_SERIES, "{} series:\n{page}", found.len());
    // Each is one of those that are documented, with these labels.
    for (name, labels) in &found {
        let metric = METRICS.iter().find(|metric| metric.name == *name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is not documented"));
        assert_eq!(metric.labels, labels, "{name}");
        let of = found.iter().filter(|(other, _)| other == name).count();
        assert!(of <= metric.most_series, "{name}: {of} series");
    }
    // All are there that need no measurement.
    let names: BTreeSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["evenkeel_build_info", "evenkeel_gains", "evenkeel_cpus", "evenkeel_moving"] {
        assert!(names.contains(name), "{name} is missing in\n{page}");
    }
    drop(sleepers);
    daemon.end();
}

/// They have a balancer of their own, which tells the daemon of them.
#[test]
fn programs_of_run_are_in_the_metrics_of_their_node() {
    let host = Host::new();
    let (daemon, address) = daemon_with_metrics(&host, &[]);
    let busy = ["timeout", "60", "sh", "-c", "while :; do :; done"];
    let mut run = host.run(&["--quiet", "--interval", "20ms"], &busy).spawn().unwrap();
    let has = |line: &str| {
        std::thread::sleep(Duration::from_millis(100));
        page(address).contains(line)
    };
    wait_for("the program", || has("evenkeel_run_programs 1\n"));
    let page = page(address);
    let gains = page.lines().filter_map(|line| line.strip_prefix("evenkeel_run_gains{"));
    let sum: f64 = gains.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert!(sum > 0.9 && sum < 1.1, "{page}");
    assert!(page.contains("evenkeel_programs 0\n"), "the daemon balances nothing: {page}");
    // What a user says of its own program is bounded.
    let telling = |args: serde_json::Value| daemon.ask(&json!({"req": "tell", "args": args}));
    let named = telling(json!({"proven": "gains", "step": "root"}));
    assert_eq!(named["errno"], libc::EINVAL, "{named}");
    kill(run.id() as i32, libc::SIGTERM);
    ended(&mut run);
    wait_for("the end of the program", || has("evenkeel_run_programs 0\n"));
    daemon.end();
}

#[test]
fn probes_are_told_whether_tasks_can_be_moved() {
    let host = Host::new();
    let status = |address: SocketAddr, path: &str| {
        answer(address, path).split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let (daemon, address) = daemon_with_metrics(&host, &[]);
    assert_eq!((status(address, "/livez"), status(address, "/readyz")), (200, 200));
    assert!(page(address).contains("evenkeel_moving 1\n"));
    daemon.end();
    // A file where the folder of journals should be: no journal can be written.
    std::fs::create_dir_all(host.runtime()).unwrap();
    let in_the_way = host.runtime().join("journal");
    let _ = std::fs::remove_dir(&in_the_way);
    std::fs::write(&in_the_way, "").unwrap();
    let (daemon, address) = daemon_with_metrics(&host, &[]);
    assert_eq!((status(address, "/livez"), status(address, "/readyz")), (200, 503));
    let why = answer(address, "/readyz");
    assert!(why.contains("no journal can be written"), "{why}");
    assert!(page(address).contains("evenkeel_moving 0\n"));
    daemon.end();
    // To move nothing may be what is wanted.
    let (daemon, address) = daemon_with_metrics(&host, &["--dry-run"]);
    assert_eq!(status(address, "/readyz"), 200);
    daemon.end();
    std::fs::remove_file(&in_the_way).unwrap();
}
