//! `--policy auto`: steers where its figures say that steering pays, and nowhere else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::net::{Network, run_on};
use super::traffic::Client;
use super::{Stage, Steering};
use crate::support::*;

const MEGABYTE: usize = 1 << 20;
/// Times by which steering pays: fetching data takes long, handing a packet over does not. And the
/// reverse.
const PAYS: [&str; 4] = ["--policy", "auto", "--strip-us", "100,1"];
const DOES_NOT: [&str; 4] = ["--policy", "auto", "--strip-us", "1,100"];

#[test]
fn measured_times_decide_whether_auto_steers() {
    let Some(stage) = Stage::new("measured_times_decide_whether_auto_steers") else { return };
    let Stage { interrupts, consumer, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &["--policy", "auto"]);
    let times = &steering.status()["strip_times"];
    assert!(steering.said.contains("no XDP until steering pays"), "{}", steering.said);
    let time = |name: &str| times[name].as_f64();
    // The two CPUs may be SMT siblings, share a cache, or neither: one of the two times was measured.
    let pays = ["within", "across"].iter().any(|caches| {
        let migrate_us = time(&format!("{caches}_us"));
        let hand_over_us = time(&format!("hand_over_{caches}_us"));
        migrate_us.zip(hand_over_us).is_some_and(|(fetch, hand)| fetch > hand)
    });
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        let start = Instant::now();
        // This takes longer than the policy needs to decide.
        while start.elapsed().as_secs() < 3 {
            client.fetch(MEGABYTE, consumer);
        }
        let flow = &steering.flows()[0];
        let reason = flow["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(&format!("arrive on CPU {interrupts}")), "{reason}");
        assert_eq!(network.is_taken(), pays, "{reason}");
    });
}

#[test]
fn steering_begins_when_it_pays_and_ends_when_it_does_not() {
    let Some(stage) = Stage::new("steering_begins_when_it_pays_and_ends_when_it_does_not") else {
        return;
    };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &PAYS);
    assert!(!network.is_taken(), "no thread receives yet");
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        wait_for("the program", || {
            client.fetch(4 * MEGABYTE, consumer);
            network.is_taken()
        });
        client.fetch(4 * MEGABYTE, consumer);
        let sight = client.fetch(64 * MEGABYTE, consumer);
        assert!(sight.share() >= 0.99, "{sight:?}");
        let reason = steering.flows()[0]["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("fetching a strip takes 100.0 us"), "{reason}");
    });
    // No thread receives any more.
    wait_for("the program to be taken off", || !network.is_taken());
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn where_it_does_not_pay_nothing_is_on_the_device() {
    let Some(stage) = Stage::new("where_it_does_not_pay_nothing_is_on_the_device") else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &DOES_NOT);
    network.client.within(|| {
        run_on(&just(consumer));
        let mut client = Client::connect(Network::address());
        let start = Instant::now();
        while start.elapsed().as_secs() < 3 {
            client.fetch(4 * MEGABYTE, consumer);
            assert!(!network.is_taken());
        }
        let reason = steering.flows()[0]["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains("handing it over 100.0 us"), "{reason}");
    });
    assert_eq!(steering.count("steered"), 0);
}

#[test]
fn on_a_saturated_core_steering_threads_do_not_starve() {
    let Some(stage) = Stage::new("on_a_saturated_core_steering_threads_do_not_starve") else {
        return;
    };
    let Stage { consumer, ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &PAYS);
    let is_ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A hog keeps the CPU busy for as long as the test lasts.
        scope.spawn(|| {
            run_on(&just(consumer));
            let start = Instant::now();
            while !is_ending.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                std::hint::spin_loop();
            }
        });
        network.client.within(|| {
            run_on(&just(consumer));
            let mut client = Client::connect(Network::address());
            wait_for("the program", || {
                client.fetch(MEGABYTE, consumer);
                network.is_taken()
            });
            client.fetch(4 * MEGABYTE, consumer);
            let sight = client.fetch(64 * MEGABYTE, consumer);
            assert!(sight.share() >= 0.99, "{sight:?}");
            // No packet waited until its queue was full.
            assert_eq!(steering.count("dropped"), 0);
        });
        is_ending.store(true, Ordering::Relaxed);
    });
    assert_eq!(network.client.counter("TcpExt", "TCPTimeouts"), 0);
}
