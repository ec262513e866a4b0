//! Hint mode, the paper's way: hints go to the server and come back with the data, and both sides'
//! counters agree with what was captured on the cable.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use serde_json::Value;

use super::capture::Capture;
use super::net::{Network, PEER, SERVER, run_on};
use super::traffic::{Client, Server};
use super::{DEVICE, Stage, Steering, can_run};
use crate::support::*;

const MEGABYTE: usize = 1 << 20;
/// Hints for the test's networks only.
pub const HINTS: [&str; 4] = ["--mode", "hint", "--peers", "198.18.0.0/15,2001:2::/48"];

/// `evenkeel sais serve /`, ended when it is dropped.
pub struct Serving<'a> {
    host: &'a Host,
    child: Child,
}

impl<'a> Serving<'a> {
    /// For all of the test's networks, unless the flags name others.
    pub fn start(host: &'a Host, flags: &[&str]) -> Self {
        let [.., peers, networks] = HINTS;
        let all = if flags.contains(&peers) { &[][..] } else { &[peers, networks] };
        let mut command = host.evenkeel([&["sais", "serve", "/"], all, flags].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("hints of"), "it does not serve: {said}");
        Self { host, child }
    }

    fn count(&self, counter: &str) -> u64 {
        let output = output(&mut self.host.evenkeel(["sais", "status", "--json"]));
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answers = status["processes"].as_array().unwrap();
        let own = answers.iter().find(|answer| answer.get("cgroup").is_some()).unwrap();
        own["counters"][counter].as_u64().unwrap()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        kill(self.child.id() as i32, libc::SIGTERM);
        let _ = self.child.wait();
    }
}

#[test]
fn hints_come_back_and_all_counters_agree_with_the_cable() {
    let Some(stage) = Stage::new("hints_come_back_and_all_counters_agree_with_the_cable") else {
        return;
    };
    let Stage { consumer, ref host, ref network, .. } = stage;
    for address in Network::addresses() {
        let serving = Serving::start(host, &["--peers", "198.18.0.0/24,2001:2::/64"]);
        let steering = Steering::start(host, network, &HINTS);
        let capture = Capture::start(&network.router, PEER);
        network.client.within(|| {
            run_on(&just(consumer));
            let mut client = Client::connect(address);
            // The first round trip: the server learns where the consumer is.
            client.fetch(1, consumer);
            for _ in 0..8 {
                client.fetch(4 * MEGABYTE, consumer);
            }
            assert_eq!(steering.flows()[0]["echoes"], true);
        });
        // The counters are those of the connection only.
        let (to_client, to_server) = capture.end(address);
        let sent: Vec<[u8; 8]> = to_server.iter().filter_map(|packet| packet.hint).collect();
        let hint = *sent.first().unwrap();
        assert!(sent.iter().all(|other| *other == hint), "the consumer never moved");
        assert_eq!(u16::from_be_bytes([hint[0], hint[1]]), consumer as u16);

        // After the first round trip, each and every packet of data bears the hint.
        let first = to_client.iter().position(|packet| packet.hint.is_some()).unwrap();
        let data: Vec<_> = to_client[first..].iter().filter(|packet| packet.payload > 0).collect();
        assert!(data.len() > 100, "{}", data.len());
        assert!(data.iter().all(|packet| packet.hint == Some(hint)));
        let late = to_client[..first].iter().map(|packet| packet.payload).sum::<usize>();
        assert!(late <= 1, "{late} bytes of data came before any hint");

        // All three agree: the client, the server, and the cable.
        let hinted = to_client.iter().filter(|packet| packet.hint.is_some()).count() as u64;
        wait_for("the last packets", || steering.count("hint_echoed") == hinted);
        assert_eq!(serving.count("echoed"), hinted);
        assert_eq!(steering.count("hints_sent"), sent.len() as u64);
        // While the server's socket is busy, the kernel merges equal acknowledgements.
        assert!((1..=sent.len() as u64).contains(&serving.count("heard")));
        assert_eq!(serving.count("connections"), 1);
        assert_eq!(serving.count("malformed"), 0);
        for kind in ["stale", "replayed", "forged", "malformed"] {
            assert_eq!(steering.count(&format!("hint_{kind}")), 0, "{kind}");
        }
        let [right, wrong] = [["steered", "home"], ["kept", "distrusted"]]
            .map(|names| names.map(|name| steering.count(name)).iter().sum::<u64>());
        assert!(right >= 100 * wrong, "{right} {wrong}");
    }
}

#[test]
fn hints_follow_a_consumer_that_moves() {
    let Some(stage) = Stage::new("hints_follow_a_consumer_that_moves") else { return };
    let Stage { interrupts, consumer: other, ref host, ref network, .. } = stage;
    let _serving = Serving::start(host, &[]);
    let steering = Steering::start(host, network, &[&HINTS[..], &["--policy", "runner"]].concat());
    const MOVES: usize = 40;
    let sight = network.client.within(|| {
        let mut client = Client::connect(Network::address());
        let stay = std::time::Duration::from_millis(40);
        super::traffic::wander(&mut client, [other, interrupts], MOVES, stay)
    });
    assert!(sight.share() >= 0.99, "{sight:?}");
    assert!(sight.right > 500, "{sight:?}");
    // Packets that were under way at the move came with the hint before, and count as late only.
    assert!(steering.count("hint_stale") > 0);
    assert_eq!(steering.count("hint_replayed") + steering.count("hint_forged"), 0);
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn a_server_that_serves_no_hints_is_named_and_its_packets_are_steered_all_the_same() {
    let Some(stage) = Stage::new(
        "a_server_that_serves_no_hints_is_named_and_its_packets_are_steered_all_the_same",
    ) else {
        return;
    };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let mut command = super::attach(host, &HINTS);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut steering = Steering::spawn(host, network, command);
    let mut said = BufReader::new(steering.stderr());
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        client.fetch(MEGABYTE, consumer);
        let sight = client.fetch(64 * MEGABYTE, consumer);
        assert!(sight.share() >= 0.99, "{sight:?}");
        let flow = &steering.flows()[0];
        assert_eq!(flow["echoes"], false);
        let reason = flow["reason"].as_str().unwrap();
        assert!(reason.contains("has sent no hint back"), "{reason}");
        // While the connection lives, its server is named once.
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("198.18.1.2 sends no hints back"), "{line}");
    });
    assert!(steering.count("hint_absent") > 100);
    assert_eq!(steering.count("distrusted"), 0);
}

#[test]
fn hosts_that_are_no_peers_get_no_hints() {
    let Some(stage) = Stage::new("hosts_that_are_no_peers_get_no_hints") else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    // Neither is the server a peer of the client, nor then the client one of the server.
    let cases = [("10.0.0.0/8", "0.0.0.0/0", false), ("198.18.0.0/15", "10.0.0.0/8", true)];
    for (clients, servers, is_sent) in cases {
        let serving = Serving::start(host, &["--peers", servers]);
        let flags = ["--mode", "hint", "--peers", clients];
        let steering = Steering::start(host, network, &flags);
        network.client.within(|| {
            let mut client = Client::connect(Network::address());
            client.fetch(MEGABYTE, consumer);
            client.fetch(MEGABYTE, consumer);
        });
        assert_eq!(steering.count("hints_sent") > 0, is_sent, "{clients}");
        assert_eq!(steering.count("hint_echoed"), 0);
        assert_eq!(serving.count("heard"), 0);
        assert_eq!(serving.count("echoed"), 0);
    }
}

#[test]
fn bad_hints_are_counted_by_kind_and_steer_nothing() {
    let Some(stage) = Stage::new("bad_hints_are_counted_by_kind_and_steer_nothing") else { return };
    let Stage { interrupts, consumer, ref host, ref network, .. } = stage;
    let _serving = Serving::start(host, &[]);
    let steering = Steering::start(host, network, &[&HINTS[..], &["--policy", "runner"]].concat());
    network.client.within(|| {
        let capture = Capture::start(&network.router, PEER);
        let mut client = Client::connect(Network::address());
        let mut settle = |cpu: u32| {
            run_on(&just(cpu));
            client.fetch(MEGABYTE, cpu);
            client.fetch(MEGABYTE, cpu);
        };
        // Two hints, of which the second comes back last.
        settle(consumer);
        settle(interrupts);
        let (to_client, _) = capture.end(Network::address());
        let mut hints: Vec<[u8; 8]> = to_client.iter().filter_map(|packet| packet.hint).collect();
        hints.dedup();
        assert!(hints.len() >= 2, "{hints:?}");
        let (old, new) = (hints[0], *hints.last().unwrap());
        let last = to_client.last().unwrap();
        let with = |change: fn(&mut [u8; 8])| {
            let mut hint = new;
            change(&mut hint);
            last.with_option(&[&[253, 12, 0xa1, 0xf5], &hint[..]].concat())
        };
        let cases = [
            ("hint_forged", with(|hint| hint[1] ^= 1)),
            ("hint_forged", with(|hint| hint[3] ^= 1)),
            ("hint_forged", with(|hint| hint[7] ^= 0x80)),
            ("hint_replayed", last.with_option(&[&[253, 12, 0xa1, 0xf5], &old[..]].concat())),
            ("hint_malformed", last.with_option(&[253, 6, 0xa1, 0xf5, 0, 1])),
            ("hint_malformed", last.with_option(&[77, 0, 0, 0])),
            ("hint_absent", last.with_option(&[])),
        ];
        const EACH: u64 = 1000;
        for (kind, frame) in cases {
            let count =
                || [kind, "distrusted", "steered", "moved"].map(|name| steering.count(name));
            let before = count();
            network.router.within(|| super::capture::send(PEER, &frame, EACH));
            wait_for(kind, || steering.count(kind) >= before[0] + EACH);
            let after = count();
            assert_eq!(after[0] - before[0], EACH, "{kind}");
            assert_eq!(after[1] - before[1], EACH, "{kind}: each is passed as it is");
            assert_eq!(after[2], before[2], "{kind}: nothing is steered");
        }
        // The connection goes on, and its good hints are still believed.
        let before = steering.count("hint_echoed");
        settle(interrupts);
        assert!(steering.count("hint_echoed") > before);
    });
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn a_flood_of_forged_hints_disturbs_no_connection() {
    let Some(stage) = Stage::new("a_flood_of_forged_hints_disturbs_no_connection") else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let _serving = Serving::start(host, &[]);
    let steering = Steering::start(host, network, &HINTS);
    const FLOOD: u64 = 100_000;
    network.client.within(|| {
        run_on(&just(consumer));
        let capture = Capture::start(&network.router, PEER);
        let mut client = Client::connect(Network::address());
        client.fetch(MEGABYTE, consumer);
        client.fetch(MEGABYTE, consumer);
        let (to_client, _) = capture.end(Network::address());
        let forged =
            to_client.last().unwrap().with_option(&[253, 12, 0xa1, 0xf5, 0, 0, 9, 9, 1, 2, 3, 4]);
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                network.router.within(|| super::capture::send(PEER, &forged, FLOOD));
            });
            // What is received is checked byte by byte.
            while !flood.is_finished() {
                client.fetch(MEGABYTE, consumer);
            }
        });
        let before = steering.count("hint_echoed");
        client.fetch(MEGABYTE, consumer);
        assert!(steering.count("hint_echoed") > before, "good hints are still believed");
    });
    // Each hint was counted, but for those that a full queue of the kernel dropped before.
    let forged = steering.count("hint_forged");
    assert!(forged > FLOOD / 10 && forged <= FLOOD, "{forged}");
    assert_eq!(steering.count("hint_replayed") + steering.count("hint_malformed"), 0);
}

#[test]
fn connections_survive_the_end_of_the_serving() {
    let Some(stage) = Stage::new("connections_survive_the_end_of_the_serving") else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let serving = Serving::start(host, &[]);
    let steering = Steering::start(host, network, &HINTS);
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        client.fetch(MEGABYTE, consumer);
        client.fetch(MEGABYTE, consumer);
        assert!(steering.count("hint_echoed") > 0);
        kill(serving.child.id() as i32, libc::SIGKILL);
        // The kernel takes the program off some moments after.
        wait_for("packets without hints", || {
            let before = steering.count("hint_echoed");
            client.fetch(MEGABYTE, consumer);
            steering.count("hint_echoed") == before
        });
        let passed = steering.count("distrusted");
        client.fetch(4 * MEGABYTE, consumer);
        assert!(steering.count("distrusted") > passed, "they go up as without steering");
    });
}

#[test]
fn the_papers_byte_comes_back_and_is_taken_off() {
    let Some((interrupts, consumer)) = can_run("the_papers_byte_comes_back_and_is_taken_off")
    else {
        return;
    };
    let host = Host::alone();
    let network = Network::direct();
    let _server = Server::start(&network.server, interrupts);
    let flags = ["--wire", "paper", "--device", SERVER];
    let serving = network.server.within(|| Serving::start(&host, &flags));
    let flags = [&HINTS[..], &["--wire", "paper", "--policy", "issuer"]].concat();
    let steering = Steering::start(&host, &network, &flags);
    network.client.within(|| {
        run_on(&just(consumer));
        let capture = Capture::start(&network.server, SERVER);
        let mut client = Client::connect(Network::address());
        client.fetch(1, consumer);
        for _ in 0..8 {
            client.fetch(4 * MEGABYTE, consumer);
        }
        let (to_client, to_server) = capture.end(Network::address());
        assert!(to_server.iter().all(|packet| packet.core.is_none()));
        // After the first round trip each packet bears the byte, and no TCP option.
        let first = to_client.iter().position(|packet| packet.core.is_some()).unwrap();
        let late = to_client[..first].iter().map(|packet| packet.payload).sum::<usize>();
        assert!(late <= 1, "{late} bytes of data came before any hint");
        let hinted = &to_client[first..];
        assert!(hinted.len() > 100, "{}", hinted.len());
        assert!(hinted.iter().all(|packet| packet.core == Some(consumer as u8)));
        assert!(to_client.iter().all(|packet| packet.hint.is_none()));
        let hinted = hinted.len() as u64;
        wait_for("the last packets", || steering.count("hint_echoed") == hinted);
        assert_eq!((serving.count("echoed"), serving.count("no_room")), (hinted, 0));

        // Cores that were never issued; one of them does not exist.
        let last = to_client.last().unwrap();
        for core in [31, interrupts as u8] {
            let before = ["hint_forged", "distrusted"].map(|name| steering.count(name));
            network.server.within(|| super::capture::send(SERVER, &last.with_core(core), 100));
            wait_for("forged ones", || steering.count("hint_forged") == before[0] + 100);
            assert_eq!(steering.count("distrusted"), before[1] + 100);
        }
        // A damaged header stays damaged, and the byte stays in the packet of a host that is no peer:
        // the kernel drops both.
        let mut damaged = last.with_core(31);
        damaged[14 + 10] ^= 1;
        let foreign = super::capture::from_other(last.with_core(31), [203, 0, 113, 7]);
        for (frame, error) in
            [(damaged, ("IpExt", "InCsumErrors")), (foreign, ("Ip", "InHdrErrors"))]
        {
            let count = || network.client.counter(error.0, error.1);
            let (before, forged) = (count(), steering.count("hint_forged"));
            network.server.within(|| super::capture::send(SERVER, &frame, 100));
            wait_for("the kernel to drop them", || count() >= before + 100);
            assert_eq!(steering.count("hint_forged"), forged, "{error:?}");
        }
        // The consumer moves: packets with the core before count as late only.
        run_on(&just(interrupts));
        client.fetch(4 * MEGABYTE, interrupts);
        let stale = steering.count("hint_stale");
        network
            .server
            .within(|| super::capture::send(SERVER, &last.with_core(consumer as u8), 100));
        wait_for("late ones", || steering.count("hint_stale") == stale + 100);
        client.fetch(4 * MEGABYTE, interrupts);
        assert_eq!(steering.count("hint_forged"), 200);
    });
}

#[test]
fn missing_requirements_of_hints_are_reported() {
    let Some((interrupts, _)) = can_run("missing_requirements_of_hints_are_reported") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let said = |words: &[&str]| {
        let run = network.client.within(|| output(&mut host.evenkeel(words)));
        (text(&run.stderr), run.status.code())
    };
    let (why, code) = said(&["sais", "attach", DEVICE, "--mode", "hint"]);
    assert!(why.starts_with("evenkeel: --mode hint needs --peers"), "{why}");
    assert_eq!(code, Some(2));
    let (why, code) = said(&["sais", "serve", "/"]);
    assert!(why.starts_with("evenkeel: sais serve needs --peers"), "{why}");
    assert_eq!(code, Some(2));
    let peers = ["--peers", "198.18.0.0/15"];
    let serve = |words: &[&str]| said(&[&["sais", "serve"], words, &peers].concat());
    let (why, code) = serve(&["/", "--wire", "paper"]);
    assert!(why.starts_with("evenkeel: --wire paper needs --device"), "{why}");
    assert_eq!(code, Some(2));
    let (why, code) = serve(&["/", "--wire", "paper", "--device", "nosuch0"]);
    assert!(why.starts_with("evenkeel: nosuch0: no such network device"), "{why}");
    assert_eq!(code, Some(3));
    let (why, code) = serve(&["/no/such/cgroup"]);
    assert!(why.contains("no/such/cgroup: no such cgroup: No such file"), "{why}");
    assert_eq!(code, Some(3));
    let (why, code) = serve(&["/proc"]);
    assert!(why.contains("/proc: not a cgroup of version 2"), "{why}");
    assert_eq!(code, Some(3));
    let mut unprivileged = as_nobody(&host, &["sais", "serve", "/", "--peers", "198.18.0.0/15"]);
    let run = output(&mut unprivileged);
    assert!(text(&run.stderr).contains("no privilege to load BPF programs"), "{run:?}");
    assert_eq!(run.status.code(), Some(3));
}

#[test]
fn a_cgroup_that_goes_ends_the_serving() {
    if can_run("a_cgroup_that_goes_ends_the_serving").is_none() {
        return;
    }
    let host = Host::alone();
    let Some(root) = cgroup2() else {
        evenkeel_skip::skip("a_cgroup_that_goes_ends_the_serving", "no cgroup2 is mounted");
        return;
    };
    let group = Group::new(&root);
    let run = std::thread::scope(|scope| {
        let mut serve =
            host.evenkeel(["sais", "serve", group.0.to_str().unwrap(), "--peers", "198.18.0.0/15"]);
        let run = scope.spawn(move || output(&mut serve));
        wait_for("its socket", || {
            let answer = output(&mut host.evenkeel(["sais", "status", "--json"]));
            text(&answer.stdout).contains("evenkeel-test-")
        });
        drop(group);
        run.join().unwrap()
    });
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).ends_with("the cgroup is gone, so no hints go back\n"), "{run:?}");
}

/// A cgroup that is removed when this is dropped.
struct Group(std::path::PathBuf);

impl Group {
    fn new(root: &std::path::Path) -> Self {
        let path = root.join(format!("evenkeel-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

fn cgroup2() -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    Some(line.split(' ').nth(1)?.into())
}
