//! `--stateless`, the paper's own way: the hint of each packet says its core, and no table of
//! connections is looked up.

use super::capture::{Capture, Packet, send};
use super::hints::{HINTS, Serving};
use super::net::{Network, PEER, SERVER, run_on};
use super::traffic::{Client, Server};
use super::{Stage, Steering, can_run};
use crate::support::*;

const MEGABYTE: usize = 1 << 20;
const EACH: u64 = 1000;
const NAMES: [&str; 7] =
    ["steered", "home", "refused", "distrusted", "unknown", "hint_echoed", "hint_forged"];

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&HINTS[..], &["--stateless", "--policy", "issuer"], more].concat()
}

fn counts(steering: &Steering) -> [u64; 7] {
    NAMES.map(|name| steering.count(name))
}

/// By how much each counter grows while a frame is sent [`EACH`] times; waits until all arrived.
fn growth(steering: &Steering, sent: impl FnOnce()) -> Vec<(&'static str, u64)> {
    let before = counts(steering);
    sent();
    let grown = || -> Vec<(&'static str, u64)> {
        let pairs = NAMES.into_iter().zip(counts(steering).into_iter().zip(before));
        pairs.map(|(name, (now, then))| (name, now - then)).filter(|(_, by)| *by > 0).collect()
    };
    wait_for("the frames", || {
        let kinds = grown();
        let packets = kinds.iter().filter(|(name, _)| !name.starts_with("hint_"));
        packets.map(|(_, by)| by).sum::<u64>() >= EACH
    });
    grown()
}

/// Fetches data until its packets bear hints, and returns the last packet that came.
fn hinted_packet(network: &Network, client: &mut Client, cpu: u32) -> Packet {
    let capture = Capture::start(&network.router, PEER);
    client.fetch(MEGABYTE, cpu);
    client.fetch(MEGABYTE, cpu);
    let (mut to_client, _) = capture.end(Network::address());
    let last = to_client.pop().unwrap();
    assert!(last.hint.is_some());
    last
}

#[test]
fn a_hint_steers_a_packet_of_a_connection_that_no_table_has() {
    let Some(stage) = Stage::new("a_hint_steers_a_packet_of_a_connection_that_no_table_has") else {
        return;
    };
    let Stage { interrupts, consumer, ref host, ref network, .. } = stage;
    let _serving = Serving::start(host, &[]);
    let steering = Steering::start(host, network, &flags(&[]));
    let last = network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        let last = hinted_packet(network, &mut client, consumer);
        let sight = client.fetch(64 * MEGABYTE, consumer);
        assert!(sight.share() >= 0.99, "{sight:?}");
        let flow = &steering.flows()[0];
        assert_eq!(flow["is_stateless"], true);
        assert!(flow["echoes"].is_null());
        last
    });
    wait_for("the connection to be forgotten", || steering.flows().is_empty());
    let with = |hint: [u8; 8]| last.with_option(&[&[253, 12, 0xa1, 0xf5], &hint[..]].concat());
    // From this CPU: all that comes over a virtual cable arrives where it was sent.
    let grown = |frame: &[u8]| {
        let from_here = || {
            run_on(&just(interrupts));
            send(PEER, frame, EACH);
        };
        growth(&steering, || network.router.within(from_here))
    };
    let hint = last.hint.unwrap();
    assert_eq!(grown(&with(hint)), [("steered", EACH), ("hint_echoed", EACH)]);
    // Another core, another number, another tag.
    for (byte, bit) in [(1, 1), (3, 1), (7, 0x80)] {
        let mut forged = hint;
        forged[byte] ^= bit;
        assert_eq!(grown(&with(forged)), [("distrusted", EACH), ("hint_forged", EACH)]);
    }
    assert_eq!(grown(&last.with_option(&[])), [("unknown", EACH)]);
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn a_hint_alone_names_no_core_that_may_not_be_used() {
    let Some(stage) = Stage::new("a_hint_alone_names_no_core_that_may_not_be_used") else { return };
    let Stage { interrupts, consumer, ref host, ref network, .. } = stage;
    let _serving = Serving::start(host, &[]);
    let cpus = interrupts.to_string();
    let steering = Steering::start(host, network, &flags(&["--cpus", &cpus]));
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        let last = hinted_packet(network, &mut client, consumer);
        let hint = last.hint.unwrap();
        let frame = last.with_option(&[&[253, 12, 0xa1, 0xf5], &hint[..]].concat());
        let grown = growth(&steering, || network.router.within(|| send(PEER, &frame, EACH)));
        assert_eq!(grown, [("refused", EACH), ("hint_echoed", EACH)]);
        assert_eq!(steering.count("steered"), 0);
    });
}

#[test]
fn the_papers_byte_alone_steers_a_peers_packet() {
    let Some((interrupts, consumer)) = can_run("the_papers_byte_alone_steers_a_peers_packet")
    else {
        return;
    };
    let host = Host::alone();
    let network = Network::direct();
    let _server = Server::start(&network.server, interrupts);
    let byte = ["--wire", "paper", "--device", SERVER];
    let _serving = network.server.within(|| Serving::start(&host, &byte));
    let steering = Steering::start(&host, &network, &flags(&["--wire", "paper"]));
    let last = network.client.within(|| {
        run_on(&just(consumer));
        let capture = Capture::start(&network.server, SERVER);
        let mut client = Client::connect(Network::address());
        client.fetch(1, consumer);
        client.fetch(4 * MEGABYTE, consumer);
        let (mut to_client, _) = capture.end(Network::address());
        let last = to_client.pop().unwrap();
        assert_eq!(last.core, Some(consumer as u8));
        last
    });
    wait_for("the connection to be forgotten", || steering.flows().is_empty());
    let grown = |core: u32| {
        let frame = last.with_core(core as u8);
        let from_here = || {
            run_on(&just(interrupts));
            send(SERVER, &frame, EACH);
        };
        growth(&steering, || network.server.within(from_here))
    };
    assert_eq!(grown(consumer), [("steered", EACH), ("hint_echoed", EACH)]);
    assert_eq!(grown(interrupts), [("home", EACH), ("hint_echoed", EACH)]);
    // There is no such CPU.
    assert_eq!(grown(31), [("refused", EACH), ("hint_echoed", EACH)]);
}

#[test]
fn without_hints_there_is_nothing_to_believe() {
    let host = Host::new();
    for words in [&["--mode", "flow"][..], &[&HINTS[..], &["--policy", "auto"]].concat()] {
        let words = [&["sais", "attach", "lo", "--stateless"], words].concat();
        let run = output(&mut host.evenkeel(words));
        assert!(
            text(&run.stderr).starts_with("evenkeel: --stateless believes the hint"),
            "{run:?}"
        );
        assert_eq!(run.status.code(), Some(2));
    }
}
