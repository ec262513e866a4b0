//! Where packets are processed, and in which order they arrive.

use std::process::Stdio;
use std::time::Duration;

use evenkeel_cbinfo::Cbinfo;
use serde_json::Value;

use super::capture::{Capture, send, with_tags};
use super::hints::{HINTS, Serving};
use super::net::{Network, PEER, run_on};
use super::traffic::{Client, wander};
use super::{Stage, Steering, attach, flows_of, only, threads};
use crate::support::*;
use crate::worker::lines_of;

const MEGABYTE: usize = 1 << 20;

#[test]
fn packets_are_processed_on_the_core_of_a_pinned_consumer() {
    let Some(stage) = Stage::new("packets_are_processed_on_the_core_of_a_pinned_consumer") else {
        return;
    };
    let Stage { interrupts, consumer, ref host, ref network, .. } = stage;
    for address in Network::addresses() {
        let steering = Steering::start(host, network, &["--policy", "runner"]);
        let mut accounting = Cbinfo::open(&[]).unwrap();
        for (pid, cpu) in threads() {
            assert_eq!(accounting.follow(pid, cpu + 1).unwrap(), 1);
        }
        let sight = network.client.within(|| {
            run_on(&just(consumer));
            let mut client = Client::connect(address);
            let sight = client.fetch(256 * MEGABYTE, consumer);
            let flows = steering.flows();
            assert_eq!(flows.len(), 1, "{flows:?}");
            assert_eq!(flows[0]["tid"], nix::unistd::gettid().as_raw());
            assert_eq!(flows[0]["core"], consumer);
            assert_eq!(flows[0]["received_bytes"], 256 * MEGABYTE);
            sight
        });
        // The kernel's word for where packets were processed, our counters and the time taken all agree.
        assert!(sight.share() >= 0.999, "{address}: {sight:?}");
        let [right, wrong] = [["steered", "home"], ["kept", "refused"]]
            .map(|names| names.map(|name| steering.count(name)).iter().sum::<u64>());
        assert!(right >= 999 * wrong && right >= 1000, "{address}: {right} {wrong}");
        assert_eq!(steering.count("dropped"), 0);
        assert_eq!(steering.count("malformed"), 0);
        // These counters tell whether anything is still under way.
        wait_for("all that is handed over to be processed", || {
            steering.count("steered") + steering.count("followed") == steering.count("processed")
        });
        let took_ns = |cpu: u32| -> u64 {
            let tasks = accounting.tasks().unwrap();
            tasks.iter().filter(|task| task.program == cpu + 1).map(|task| task.run_ns).sum()
        };
        let [there, elsewhere] = [consumer, interrupts].map(took_ns);
        assert!(there > 100 * elsewhere, "{address}: {there} {elsewhere}");
    }
}

#[test]
fn a_user_sees_no_consumer_of_another_user() {
    let Some(stage) = Stage::new("a_user_sees_no_consumer_of_another_user") else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &["--policy", "runner"]);
    network.client.within(|| {
        let mut client = Client::connect(Network::address());
        client.fetch(MEGABYTE, consumer);
        let consumers = |status: &Value| status["consumers"].as_array().unwrap().len();
        let status = steering.status();
        assert_eq!((consumers(&status), &status["flows"]), (1, &Value::from(1)), "{status}");
        let users = only(&mut as_nobody(host, &["sais", "status", "--json"]), "device");
        assert_eq!(consumers(&users), 0, "{users}");
        // What is counted of all packets names no process.
        assert_eq!(users["flows"], 1);
        let flows = flows_of(&mut as_nobody(host, &["sais", "explain", "--json"]));
        assert!(flows.is_empty(), "{flows:?}");
        assert_eq!(steering.flows().len(), 1);
    });
}

#[test]
fn a_consumer_that_moves_is_followed_and_no_packet_overtakes() {
    let Some(stage) = Stage::new("a_consumer_that_moves_is_followed_and_no_packet_overtakes")
    else {
        return;
    };
    let Stage { interrupts, consumer: other, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &["--policy", "runner"]);
    const MOVES: usize = 60;
    let sight = network.client.within(|| {
        let mut client = Client::connect(Network::address());
        wander(&mut client, [other, interrupts], MOVES, Duration::from_millis(40))
    });
    assert!(sight.share() >= 0.99, "{sight:?}");
    // Enough for that share; how many there are depends on what else the machine does.
    assert!(sight.right > 200, "{sight:?}");
    let moved = steering.count("moved");
    assert!(moved >= MOVES as u64 / 2, "{moved}");
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn a_stream_without_a_pause_is_not_overtaken_either() {
    let Some(stage) = Stage::new("a_stream_without_a_pause_is_not_overtaken_either") else {
        return;
    };
    let Stage { interrupts, consumer: other, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &["--policy", "runner"]);
    network.client.within(|| {
        let mut client = Client::connect(Network::address());
        let mut pieces = 0;
        client.stream(256 * MEGABYTE, |_| {
            pieces += 1;
            if pieces % 100 == 0 {
                run_on(&just([interrupts, other][pieces / 100 % 2]));
            }
        });
    });
    assert!(steering.count("moved") > 2);
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn each_policy_has_its_core() {
    let Some(stage) = Stage::new("each_policy_has_its_core") else { return };
    let Stage { interrupts, consumer: other, ref host, ref network, .. } = stage;
    let dedicated = format!("dedicated:{other}");
    let only = other.to_string();
    // Flags; the CPU that sends the request; the CPU that receives; the CPU that then processes packets.
    let cases: [(&[&str], u32, u32, u32); 6] = [
        (&["--policy", "issuer"], other, interrupts, other),
        (&["--policy", "issuer"], interrupts, other, interrupts),
        (&["--policy", "runner"], interrupts, other, other),
        (&["--policy", &dedicated], interrupts, interrupts, other),
        // If a single core is allowed, it is the least loaded.
        (&["--policy", "least-loaded", "--cpus", &only], interrupts, interrupts, other),
        // The consumer's core is not allowed: the packets stay where they arrive.
        (&["--policy", "runner", "--cpus", &interrupts.to_string()], other, other, interrupts),
    ];
    for (flags, sends, receives, processed) in cases {
        let steering = Steering::start(host, network, flags);
        network.client.within(|| {
            let mut client = Client::connect(Network::address());
            // A busy machine may let this thread wait once it has asked: the answer must not have
            // arrived whole before the thread is where it receives.
            client.set_room(64 << 10);
            // The first exchange tells where the consumer is.
            for round in 0..2 {
                run_on(&just(sends));
                client.ask(4 * MEGABYTE);
                run_on(&just(receives));
                let mut wrong = 0;
                let mut pieces = 0;
                client.receive(4 * MEGABYTE, |client| {
                    pieces += 1;
                    wrong += u64::from(client.incoming_cpu() != processed);
                });
                assert!(round == 0 || wrong * 10 < pieces, "{flags:?}: {wrong} of {pieces}");
            }
        });
        let is_refused = steering.count("refused") > 0;
        assert_eq!(is_refused, flags.contains(&"--cpus") && flags[1] == "runner", "{flags:?}");
        assert_eq!(steering.end(libc::SIGTERM), Some(0));
    }
}

/// A card may leave tags in packets. (Not all kernels would accept such packets; this test does not need
/// that.)
#[test]
fn packets_with_vlan_tags_are_steered_too() {
    let Some(stage) = Stage::new("packets_with_vlan_tags_are_steered_too") else { return };
    let Stage { interrupts, consumer, ref host, ref network, .. } = stage;
    let _serving = Serving::start(host, &[]);
    // Native mode passes bytes on unchanged.
    network.router.make_checksums(PEER);
    const EACH: u64 = 1000;
    const TAGS: [[u8; 4]; 2] = [[0x88, 0xa8, 0, 9], [0x81, 0, 0, 7]];
    for (xdp, hints) in
        [("generic", &[][..]), ("native", &[]), ("generic", &HINTS), ("native", &HINTS)]
    {
        let flags = [&["--xdp", xdp, "--policy", "runner"], hints].concat();
        let steering = Steering::start(host, network, &flags);
        network.client.within(|| {
            run_on(&just(consumer));
            let capture = Capture::start(&network.router, PEER);
            let mut client = Client::connect(Network::address());
            client.fetch(4 * MEGABYTE, consumer);
            let sight = client.fetch(16 * MEGABYTE, consumer);
            assert!(sight.share() >= 0.99, "{flags:?}: {sight:?}");
            let (to_client, _) = capture.end(Network::address());
            // The last packet is sent again as it came, with its hint.
            let option = to_client.last().unwrap().hint;
            let option = option.map(|hint| [&[253, 12, 0xa1, 0xf5], &hint[..]].concat());
            assert_eq!(option.is_some(), !hints.is_empty(), "{flags:?}");
            let frame = to_client.last().unwrap().with_option(&option.unwrap_or_default());
            for tags in [&TAGS[1..], &TAGS[..]] {
                let count =
                    || ["steered", "processed", "malformed"].map(|name| steering.count(name));
                let (before, echoed) = (count(), steering.count("hint_echoed"));
                let frame = with_tags(&frame, tags);
                network.router.within(|| {
                    run_on(&just(interrupts));
                    send(PEER, &frame, EACH);
                });
                let is_there = || count()[1] >= before[1] + EACH;
                wait_for("all of them to be processed", is_there);
                let after = count();
                let more: Vec<u64> = before.iter().zip(after).map(|(b, a)| a - b).collect();
                assert_eq!(more, [EACH, EACH, 0], "{flags:?}, {tags:?}");
                let echoed = steering.count("hint_echoed") - echoed;
                assert_eq!(echoed, if hints.is_empty() { 0 } else { EACH }, "{flags:?}");
            }
        });
    }
}

/// By default the signal would end it.
#[test]
fn the_state_is_logged_when_a_signal_asks_for_it() {
    let Some(stage) = Stage::new("the_state_is_logged_when_a_signal_asks_for_it") else { return };
    let Stage { ref host, ref network, .. } = stage;
    let mut command = attach(host, &[]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut steering = Steering::spawn(host, network, command);
    let said = lines_of(steering.stderr());
    for _ in 0..2 {
        kill(steering.pid(), libc::SIGUSR1);
        let is_state = |line: &String| line.contains("SIGUSR1: the state is {");
        wait_for("the state", || said.recv_timeout(PATIENCE).is_ok_and(|line| is_state(&line)));
    }
    assert_eq!(steering.end(libc::SIGTERM), Some(0));
}

#[test]
fn explain_shows_connections() {
    let Some(stage) = Stage::new("explain_shows_connections") else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let said = |words: &[&str]| {
        let run = output(&mut host.evenkeel(words));
        assert!(run.status.success(), "{run:?}");
        text(&run.stdout)
    };
    let nothing = said(&["explain"]);
    assert_eq!(nothing.lines().count(), 1, "{nothing}");
    let _steering = Steering::start(host, network, &[]);
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        client.fetch(MEGABYTE, consumer);
        let own = format!("(pid {}): ", std::process::id());
        for words in [&["explain"][..], &["explain", "--sais"]] {
            let said = said(words);
            assert!(said.contains(&own) && said.contains("its packets"), "{words:?}: {said}");
        }
        assert_eq!(said(&["explain", "--sais", "--json"]), said(&["sais", "explain", "--json"]));
        // The steering has a control socket, too, which knows nothing of programs.
        let status = output(&mut host.evenkeel(["status"]));
        assert!(status.status.success() && status.stderr.is_empty(), "{status:?}");
        let status = text(&status.stdout);
        assert_eq!(status.matches(": packets are steered (").count(), 1, "{status}");
    });
}
