//! Steering that ends in any way leaves the traffic going and nothing else behind. Requests that
//! cannot be met are refused with the exact reason.

use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};

use super::net::{DEVICE, Network, PEER, run_on};
use super::traffic::{Client, Server, goes_on};
use super::{Stage, Steering, attach, can_run, wait_no_threads};
use crate::support::*;

/// Waits until the program and the steering threads are gone, some moments after the process.
fn wait_nothing_is_left(network: &Network) {
    wait_for("the program to be taken off", || !network.is_taken());
    wait_no_threads();
}

/// The error of a steering that cannot begin, and its exit code.
fn refusal(network: &Network, host: &Host, flags: &[&str]) -> (String, Option<i32>) {
    let run: Output = network.client.within(|| output(&mut attach(host, flags)));
    assert_eq!(text(&run.stdout), "");
    (text(&run.stderr), run.status.code())
}

#[test]
fn however_it_ends_nothing_is_left_and_connections_live_on() {
    let Some(stage) = Stage::new("however_it_ends_nothing_is_left_and_connections_live_on") else {
        return;
    };
    let Stage { ref host, ref network, .. } = stage;
    network.client.within(|| {
        // One connection lives through all of it.
        let mut client = Client::connect(Network::address());
        let ends = [(libc::SIGTERM, Some(0)), (libc::SIGINT, Some(0)), (libc::SIGKILL, None)];
        for (signal, code) in ends {
            let steering = Steering::start(host, network, &[]);
            assert!(network.is_taken());
            goes_on(&mut client);
            assert!(steering.count("steered") + steering.count("home") > 0);
            assert_eq!(steering.end(signal), code);
            wait_nothing_is_left(network);
            goes_on(&mut client);
        }
    });
}

/// No packet overtakes those that are still on their way through a steering thread that is not used any
/// more.
#[test]
fn a_stream_is_in_order_when_it_begins_and_when_it_ends() {
    let test = "a_stream_is_in_order";
    let Some(stage) = Stage::new(test) else { return };
    let Stage { consumer, ref host, ref network, .. } = stage;
    const TIMES: usize = 10;
    // Packets then wait in the queue of the core for half of the time.
    let config = NoiseConfig { busy_us: 5_000, period_us: 10_000, limit: PATIENCE };
    let noise = match Noise::start(NoiseKind::Fifo, consumer, config) {
        Ok(noise) => noise,
        Err(why) if why.is_privilege() => return evenkeel_skip::skip(test, why),
        Err(why) => panic!("{why}"),
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| {
            network.client.within(|| {
                run_on(&just(consumer));
                let mut client = Client::connect(Network::address());
                while !is_over.load(Ordering::Relaxed) {
                    client.fetch(64 << 20, consumer);
                }
            });
        });
        for _ in 0..TIMES {
            let steering = Steering::start(host, network, &[]);
            wait_for("packets", || steering.count("processed") > 1000);
            assert_eq!(steering.end(libc::SIGTERM), Some(0));
        }
        is_over.store(true, Ordering::Relaxed);
        stream.join().unwrap();
    });
    noise.stop().unwrap();
    assert_eq!(network.client.counter("TcpExt", "TCPOFOQueue"), 0);
}

#[test]
fn a_link_that_goes_down_and_up_is_steered_on() {
    let Some(stage) = Stage::new("a_link_that_goes_down_and_up_is_steered_on") else { return };
    let Stage { ref host, ref network, .. } = stage;
    let steering = Steering::start(host, network, &[]);
    network.client.within(|| {
        let mut client = Client::connect(Network::address());
        goes_on(&mut client);
        network.client.ip(&format!("link set {DEVICE} down"));
        network.client.ip(&format!("link set {DEVICE} up"));
        network.client.ip("route add default via 198.18.0.2");
        let before = steering.count("steered") + steering.count("home");
        goes_on(&mut client);
        assert!(steering.count("steered") + steering.count("home") > before);
    });
}

#[test]
fn a_device_that_goes_ends_the_steering() {
    let Some((interrupts, _)) = can_run("a_device_that_goes_ends_the_steering") else { return };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| network.client.within(|| output(&mut attach(&host, &[]))));
        wait_for("the program", || network.is_taken());
        // The device goes with its peer, as when the peer's namespace is deleted.
        network.router.ip(&format!("link delete {PEER}"));
        run.join().unwrap()
    });
    assert_eq!(run.status.code(), Some(1));
    let wanted = "evenkeel: client0: the device is gone, so no packets are steered\n";
    assert_eq!(text(&run.stderr), wanted);
}

#[test]
fn a_deleted_namespace_at_the_other_end_ends_the_steering() {
    let Some((interrupts, _)) = can_run("a_deleted_namespace_at_the_other_end_ends_the_steering")
    else {
        return;
    };
    let host = Host::alone();
    let Network { client, router, server } = Network::new(interrupts);
    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| client.within(|| output(&mut attach(&host, &[]))));
        let words = format!("-details link show {DEVICE}");
        wait_for("the program", || client.ip(&words).contains("xdp"));
        // Nothing else holds the namespace.
        drop(router);
        run.join().unwrap()
    });
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("the device is gone"), "{run:?}");
    drop(server);
}

#[test]
fn a_second_attach_is_refused() {
    let Some((interrupts, _)) = can_run("a_second_attach_is_refused") else { return };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &[]);
    let (said, code) = refusal(&network, &host, &[]);
    assert_eq!(code, Some(2));
    assert!(said.contains("another service is running already"), "{said}");
    // From a runtime directory without a steering, the program counts as foreign.
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().display();
    let script = format!("mount --bind {dir} /run && exec {EVENKEEL} sais attach {DEVICE}");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let run = network.client.within(|| output(&mut command));
    let wanted = "evenkeel: client0: another XDP program is attached there already; end its holder \
                  (`bpftool net` shows it), or take it off: ip link set dev client0 xdp off\n";
    assert_eq!((text(&run.stderr).as_str(), run.status.code()), (wanted, Some(3)));
    assert_eq!(steering.end(libc::SIGTERM), Some(0));
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    let Some((interrupts, _)) = can_run("impossible_requests_are_refused_with_the_reason") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online = online.trim();
    let cases: [(&[&str], i32, String); 4] = [
        (
            &["--cpus", "900-901"],
            2,
            format!(
                "evenkeel: CPUs 900-901: this machine has CPUs {online} online; name some of these\n"
            ),
        ),
        (
            &["--policy", "dedicated:900"],
            2,
            format!(
                "evenkeel: dedicated:900: packets may only be sent to CPUs {online}; \
                 choose one of these\n"
            ),
        ),
        (
            &["--cpus", ""],
            2,
            format!(
                "evenkeel: no CPU is left that packets may be sent to: name at least one of {online}\n"
            ),
        ),
        (&["--policy", "best"], 2, String::new()),
    ];
    for (flags, code, wanted) in cases {
        let (said, seen) = refusal(&network, &host, flags);
        assert_eq!(seen, Some(code), "{flags:?}: {said}");
        assert!(wanted.is_empty() || said == wanted, "{flags:?}: {said}");
    }
    let in_client = |words: &[&str]| {
        let run = network.client.within(|| output(&mut host.evenkeel(words)));
        (text(&run.stderr), run.status.code())
    };
    let wanted = "evenkeel: nosuch0: no such network device in this network namespace; `ip link` \
                  lists them\n";
    assert_eq!(in_client(&["sais", "attach", "nosuch0"]), (wanted.to_owned(), Some(3)));
    let wanted = "evenkeel: lo: native XDP was refused: Operation not supported (os error 95); try \
                  --xdp generic\n";
    assert_eq!(
        in_client(&["sais", "attach", "lo", "--xdp", "native"]),
        (wanted.to_owned(), Some(3))
    );
    let mut unprivileged = as_nobody(&host, &["sais", "attach", DEVICE]);
    let run = network.client.within(|| output(&mut unprivileged));
    let wanted = "evenkeel: no privilege to load BPF programs (needs CAP_BPF and CAP_PERFMON): run \
                  as root or with sudo\n";
    assert_eq!((text(&run.stderr).as_str(), run.status.code()), (wanted, Some(3)));
    assert!(!network.is_taken());
}

#[test]
fn the_xdp_mode_is_chosen_and_reported() {
    let Some((interrupts, _)) = can_run("the_xdp_mode_is_chosen_and_reported") else { return };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &[]);
    assert!(steering.said.contains("generic XDP: its peer leaves checksums"), "{}", steering.said);
    assert_eq!(steering.status()["xdp"], "generic");
    drop(steering);
    // Native mode, where the peer was told to make its checksums at once.
    network.router.make_checksums(PEER);
    let _server = Server::start(&network.server, interrupts);
    let steering = Steering::start(&host, &network, &["--xdp", "native"]);
    assert_eq!(steering.status()["xdp"], "native");
    network.client.within(|| goes_on(&mut Client::connect(Network::address())));
    assert!(steering.count("steered") + steering.count("home") > 0);
}
