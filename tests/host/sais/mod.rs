//! `evenkeel sais` between two network namespaces: packets are processed on the core of the thread that
//! waits for them.

mod auto;
mod bench;
mod capture;
mod faults;
mod hints;
mod hold;
mod kill_moments;
mod net;
mod queues;
mod rfs;
mod stateless;
mod steering;
mod traffic;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use self::net::{DEVICE, Network};
use self::traffic::Server;
use crate::support::*;

/// `evenkeel sais attach` on the client's device, ended when it is dropped.
struct Steering<'a> {
    host: &'a Host,
    child: Child,
    /// The first line that it printed.
    said: String,
}

impl<'a> Steering<'a> {
    /// Waits until it steers.
    fn start(host: &'a Host, network: &Network, flags: &[&str]) -> Self {
        let mut command = attach(host, flags);
        command.stdout(Stdio::piped());
        Self::spawn(host, network, command)
    }

    /// Starts a command that is made already, and waits until it steers.
    fn spawn(host: &'a Host, network: &Network, mut command: Command) -> Self {
        let mut child = network.client.within(|| command.spawn().unwrap());
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with(DEVICE), "it does not steer: {said}");
        Self { host, child, said }
    }

    /// Its standard error, if that is a pipe.
    fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// `evenkeel sais status --json` of the only one.
    fn status(&self) -> Value {
        only(&mut self.host.evenkeel(["sais", "status", "--json"]), "device")
    }

    /// `evenkeel sais explain --json` of the only one.
    fn flows(&self) -> Vec<Value> {
        // Serving parts answer, too, and have no flows.
        flows_of(&mut self.host.evenkeel(["sais", "explain", "--json"]))
    }

    /// A counter of all CPUs together.
    fn count(&self, counter: &str) -> u64 {
        let status = self.status();
        let cores = status["cores"].as_object().unwrap();
        cores.values().map(|core| core["counters"][counter].as_u64().unwrap()).sum()
    }

    /// Ends it, and returns its exit code.
    fn end(mut self, signal: i32) -> Option<i32> {
        kill(self.pid(), signal);
        ended(&mut self.child).code()
    }
}

impl Drop for Steering<'_> {
    fn drop(&mut self) {
        // The process number stays valid only until the child is waited for.
        if let Ok(None) = self.child.try_wait() {
            kill(self.pid(), libc::SIGTERM);
            let _ = self.child.wait();
        }
    }
}

fn attach(host: &Host, flags: &[&str]) -> Command {
    host.evenkeel([&["sais", "attach", DEVICE], flags].concat())
}

/// The connections that a command prints as JSON.
fn flows_of(command: &mut Command) -> Vec<Value> {
    let output = output(command);
    assert!(output.status.success(), "{output:?}");
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    let processes = explained["processes"].as_array().unwrap().iter();
    processes.flat_map(|process| process["flows"].as_array().unwrap().clone()).collect()
}

/// The only answer with this field.
fn only(command: &mut Command, field: &str) -> Value {
    let output = output(command);
    assert!(output.status.success(), "{output:?}");
    let mut status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut answers: Vec<Value> = serde_json::from_value(status["processes"].take()).unwrap();
    answers.retain(|answer| answer.get(field).is_some());
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

/// The kernel's steering threads, each with the CPU that it is for.
fn threads() -> Vec<(u32, u32)> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let cpu =
            comm.strip_prefix("cpumap/").and_then(|rest| rest.split('/').next()?.parse().ok());
        threads.extend(cpu.map(|cpu| (pid, cpu)));
    }
    threads
}

/// Waits until there are none: they end some moments after the process that started them, perhaps
/// that of an earlier test.
fn wait_no_threads() {
    wait_for("the steering threads to end", || threads().is_empty());
}

/// A server, and a network that has packets arrive on the first of two CPUs. No other test runs
/// meanwhile.
struct Stage {
    interrupts: u32,
    consumer: u32,
    host: Host,
    network: Network,
    _server: Server,
}

impl Stage {
    fn new(test: &str) -> Option<Self> {
        let (interrupts, consumer) = can_run(test)?;
        let host = Host::alone();
        let network = Network::new(interrupts);
        let _server = Server::start(&network.server, interrupts);
        Some(Self { interrupts, consumer, host, network, _server })
    }
}

/// Root, two CPUs: the first takes the interrupts, on the second runs the consumer.
fn can_run(test: &str) -> Option<(u32, u32)> {
    if !needs_root(test) {
        return None;
    }
    two_cpus(test)
}
