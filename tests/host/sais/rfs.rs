//! `--manage-rfs`: the kernel's own flow steering is turned on where it pays, and off again.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::can_run;
use super::net::{Namespace, run_on};
use super::traffic::{Client, Server};
use crate::support::*;

pub(super) const TABLE: &str = "/proc/sys/net/core/rps_sock_flow_entries";
const MEGABYTE: usize = 1 << 20;

/// A device in the machine's own network namespace, which alone has the table of flows, and a server in
/// another namespace. The device vanishes when this is dropped, and with the server's namespace.
pub(super) struct Cable {
    pub device: String,
    net: u8,
    pub server: Namespace,
}

impl Cable {
    pub fn new() -> Self {
        Self::with_queues(1)
    }

    /// With this number of receive queues.
    pub fn with_queues(queues: usize) -> Self {
        let pid = std::process::id();
        let (device, net) = (format!("evk{pid}"), 64 + (pid % 128) as u8);
        let server = Namespace::new();
        let cable = Self { device, net, server };
        let (device, path) = (&cable.device, cable.server.path());
        let kind = format!("numrxqueues {queues} type veth");
        ip(&format!("link add {device} {kind} peer name server0 netns {path}"));
        ip(&format!("address add 198.18.{net}.1/24 dev {device}"));
        ip(&format!("link set {device} up"));
        cable.server.ip(&format!("address add 198.18.{net}.2/24 dev server0"));
        cable.server.ip("link set server0 up");
        cable
    }

    pub fn address(&self) -> IpAddr {
        Ipv4Addr::new(198, 18, self.net, 2).into()
    }

    /// The part of the table that the device's first queue has.
    pub fn knob(&self) -> PathBuf {
        self.knob_of(0)
    }

    fn knob_of(&self, queue: usize) -> PathBuf {
        format!("/sys/class/net/{}/queues/rx-{queue}/rps_flow_cnt", self.device).into()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.device]).status();
    }
}

fn ip(words: &str) {
    let run = output(Command::new("ip").args(words.split(' ')));
    assert!(run.status.success(), "ip {words}: {run:?}");
}

pub(super) fn says(file: impl AsRef<std::path::Path>) -> String {
    std::fs::read_to_string(file).unwrap().trim().to_owned()
}

/// Ended when it is dropped.
struct Managing(Child);

impl Managing {
    fn start(host: &Host, cable: &Cable, flags: &[&str]) -> Self {
        let words = ["sais", "attach", &cable.device, "--policy", "auto", "--strip-us", "100,1"];
        let mut command = host.evenkeel([&words[..], &["--manage-rfs"], flags].concat());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn end(mut self, signal: i32) -> Option<i32> {
        kill(self.0.id() as i32, signal);
        ended(&mut self.0).code()
    }
}

impl Drop for Managing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Consumes on one CPU what is sent on another, until the kernel steers.
fn consume_until_it_steers(cable: &Cable, consumer: u32) {
    std::thread::scope(|scope| {
        let consume = || {
            run_on(&just(consumer));
            let mut client = Client::connect(cable.address());
            wait_for("the knobs", || {
                client.fetch(4 * MEGABYTE, consumer);
                says(cable.knob()) != "0" && says(TABLE) != "0"
            });
        };
        scope.spawn(consume).join().unwrap();
    });
}

#[test]
fn knobs_are_turned_where_steering_pays_and_back_whatever_happens() {
    let Some((interrupts, consumer)) =
        can_run("knobs_are_turned_where_steering_pays_and_back_whatever_happens")
    else {
        return;
    };
    if !std::path::Path::new(TABLE).exists() || says(TABLE) != "0" {
        let test = "knobs_are_turned_where_steering_pays_and_back_whatever_happens";
        evenkeel_skip::skip(test, format!("{TABLE} is not this machine's own to turn, or on"));
        return;
    }
    let host = Host::alone();
    // The kernel rounds a third of the table up: what it keeps must be what the journal says.
    let queues = 3;
    let cable = Cable::with_queues(queues);
    let _server = Server::start(&cable.server, interrupts);
    let is_off =
        || (0..queues).all(|queue| says(cable.knob_of(queue)) == "0") && says(TABLE) == "0";

    // The process turns it back at its end.
    let managing = Managing::start(&host, &cable, &[]);
    consume_until_it_steers(&cable, consumer);
    assert_eq!((says(cable.knob()), says(TABLE)), ("8192".into(), "32768".into()));
    let status = text(&output(&mut host.evenkeel(["sais", "status"])).stdout);
    assert!(status.contains("the kernel's receive flow steering does it"), "{status}");
    assert_eq!(managing.end(libc::SIGTERM), Some(0));
    assert!(is_off());

    // The supervisor turns it back.
    let managing = Managing::start(&host, &cable, &[]);
    consume_until_it_steers(&cable, consumer);
    assert_eq!(managing.end(libc::SIGKILL), None);
    wait_for("the supervisor", is_off);

    // `evenkeel undo` turns it back, but leaves what an administrator has set meanwhile.
    let managing = Managing::start(&host, &cable, &["--no-supervisor"]);
    consume_until_it_steers(&cable, consumer);
    assert_eq!(managing.end(libc::SIGKILL), None);
    std::fs::write(cable.knob(), "4096").unwrap();
    let undone = text(&output(&mut host.evenkeel(["undo"])).stdout);
    assert!(undone.contains(&format!("{TABLE}: set back to its earlier value.")), "{undone}");
    assert!(undone.contains("rps_flow_cnt: left at 4096, which another process set."), "{undone}");
    assert_eq!((says(cable.knob()), says(TABLE)), ("4096".into(), "0".into()));

    // So does the next one that keeps a journal, though it turns none itself.
    std::fs::write(cable.knob(), "0").unwrap();
    let managing = Managing::start(&host, &cable, &["--no-supervisor"]);
    consume_until_it_steers(&cable, consumer);
    assert_eq!(managing.end(libc::SIGKILL), None);
    let words = ["sais", "attach", &cable.device, "--policy", "issuer", "--hold=3600"];
    let holding = Managing(host.evenkeel(words).stdout(Stdio::null()).spawn().unwrap());
    wait_for("the next one", is_off);
    assert_eq!(holding.end(libc::SIGTERM), Some(0));
}

#[test]
fn a_table_that_cannot_be_seen_is_reported() {
    let Some(_) = can_run("a_table_that_cannot_be_seen_is_reported") else { return };
    let host = Host::alone();
    let elsewhere = Namespace::new();
    let words = ["sais", "attach", "lo", "--policy", "auto", "--manage-rfs"];
    let run = elsewhere.within(|| output(&mut host.evenkeel(words)));
    assert_eq!(run.status.code(), Some(3), "{run:?}");
    assert!(text(&run.stderr).contains("run it in the machine's own network namespace"), "{run:?}");
    let words = ["sais", "attach", "lo", "--policy", "runner", "--manage-rfs"];
    let run = elsewhere.within(|| output(&mut host.evenkeel(words)));
    assert_eq!(run.status.code(), Some(2), "{run:?}");
    let words = ["sais", "attach", "lo", "--policy", "dedicated:0", "--hold"];
    let run = elsewhere.within(|| output(&mut host.evenkeel(words)));
    assert_eq!(run.status.code(), Some(2), "{run:?}");
}
