//! A reading for the tests of `evenkeel top`: two programs, a decision, interrupts and a keel, on as
//! many CPUs as a test wants.

use std::collections::BTreeMap;

use evenkeel_capability::Reason;
use evenkeel_host::doctor::{Asymmetry, CpuNow};
use evenkeel_host::{
    Accounting, Decision, DecisionCpu, Gain, Placement, ProgramStatus, Proven, Share, ThreadTimes,
    Waits,
};
use evenkeel_journal::TaskRef;
use evenkeel_keel::Statistics;

use super::interrupts::{Kind, Rate};
use super::model::{Cpus, Keel, Model, Program};

const NOW_NS: u64 = 100_000_000_000;

pub fn model(cpus: u32) -> Model {
    let mut idle = program(99, "sleep");
    idle.status.command = vec!["sleep".to_owned(), "9".to_owned()];
    idle.status.accounting = Accounting::None;
    (idle.status.moves, idle.status.gain) = (0, Gain::default());
    idle.status.decisions.clear();
    idle.threads.clear();
    Model {
        host: "ship".to_owned(),
        at_ns: NOW_NS,
        cpus: Cpus {
            speeds: (0..cpus).map(|cpu| (cpu, 1024)).collect(),
            figures: Some(asymmetry(cpus)),
            why_not_exact: Some("no privilege to load BPF programs".to_owned()),
        },
        programs: vec![program(1234, "./lu"), idle],
        have_ended: false,
        interrupts: Some(vec![
            rate(Kind::Interrupt, "36", "virtio1-req.0", [50.0, 0.0]),
            rate(Kind::Interrupt, "37", "virtio1-config", [0.0, 0.0]),
            rate(Kind::Softirq, "NET_RX", "", [3.0, 797.0]),
        ]),
        keel: Some(keel()),
        notes: vec!["a daemon does not answer".to_owned()],
    }
}

fn asymmetry(cpus: u32) -> Asymmetry {
    let cpu = |cpu| CpuNow {
        cpu,
        speed: 1024,
        irq_pct: 1.0,
        softirq_pct: if cpu == 1 { 40.0 } else { 0.0 },
        rt_pct: None,
        steal_pct: if cpu == 1 { 9.0 } else { 0.0 },
        idle_pct: 20.0,
        runnable: None,
        capability: if cpu == 1 { 512 } else { 1014 },
    };
    Asymmetry {
        accounting: Accounting::Procfs,
        watched_ns: 1_000_000_000,
        cpus: (0..cpus).map(cpu).collect(),
        min_capability: 512,
        avg_capability: 763,
        bound: Some(1.49),
        is_worth_balancing: true,
        verdict:
            "CPU 1 loses 40 % to softirqs: the average CPU gives 1.49x as much as the slowest."
                .to_owned(),
        remarks: vec!["Figures are from /proc.".to_owned()],
    }
}

pub fn program(root: u32, name: &str) -> Program {
    let thread = |tid, run_ns, at, queued_ns, slept_ns| ThreadTimes {
        tid,
        run_ns,
        spun: Some(Share { at, low: at - 0.05, high: at + 0.05 }),
        queued_ns,
        slept_ns,
    };
    Program {
        status: ProgramStatus {
            balancer: TaskRef { tid: root as i32 + 1, tgid: root as i32 + 1, start_time_ticks: 5 },
            program: None,
            root,
            user: Some(0),
            started_ns: None,
            elapsed_ns: None,
            ended_ns: None,
            command: vec![name.to_owned(), "-n".to_owned(), "4".to_owned()],
            accounting: Accounting::Cbinfo,
            placement: Placement::Soft,
            dry_run: false,
            resting: false,
            intervals: 77,
            moves: 42,
            yielded: 0,
            gain: Gain {
                proven: Proven::Gains,
                ratio: Some(1.27),
                low: Some(1.23),
                high: Some(1.29),
                windows: 9,
                ..Gain::default()
            },
            shares: None,
            cpus: Vec::new(),
            waits: Waits::default(),
            threads: Vec::new(),
            decisions: vec![Decision {
                at_ns: NOW_NS - 1_000_000_000,
                at_boottime_ns: 0,
                accounting: Accounting::Cbinfo,
                interval_ns: 50_000_000,
                average_per_mille: 800,
                cpus: vec![
                    DecisionCpu { cpu: 0, capability_per_mille: 990, tasks: 1 },
                    DecisionCpu { cpu: 1, capability_per_mille: 500, tasks: 1 },
                ],
                waits: Waits::default(),
                news: Vec::new(),
                moves: Vec::new(),
                dry_run: false,
                reasons: vec![Reason::Balanced { spread_ppm: 0 }],
                refused: Vec::new(),
            }],
        },
        threads: vec![thread(root, 800, 0.125, 50, 150), thread(root + 2, 800, 0.125, 50, 150)],
        is_from_proc: false,
    }
}

fn rate(kind: Kind, label: &str, name: &str, per_s: [f64; 2]) -> Rate {
    Rate {
        kind,
        label: label.to_owned(),
        name: name.to_owned(),
        queue: None,
        per_s: (0..).zip(per_s).collect(),
    }
}

/// The same, and the first line is for a queue.
pub fn model_with_queue() -> Model {
    let mut model = model(2);
    for rate in model.interrupts.iter_mut().flatten().take(1) {
        rate.name = "virtio2-input.3".to_owned();
        rate.queue = Some("eth0:3".to_owned());
    }
    model
}

fn keel() -> Keel {
    let counters = [("enqueue", 9000), ("gate_quiet", 5), ("gate_busy", 0)];
    Keel {
        statistics: Statistics {
            policies: ["fair", "zone", "count"].map(str::to_owned),
            slice_us: 4000,
            counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
            ..Statistics::default()
        },
        per_s: BTreeMap::from([("enqueue".to_owned(), 120.0)]),
        meanings: BTreeMap::from([("enqueue".to_owned(), "Tasks that were enqueued".to_owned())]),
        answers: vec![evenkeel_keel::Decision {
            at_ns: NOW_NS - 500_000_000,
            cpu: 1,
            pid: 4711,
            source: 0,
            reason: "woke".to_owned(),
            verdict: "refused: the utilisation is not above the zone's limit".to_owned(),
            level: "stable".to_owned(),
            limit_pct: 60,
            source_pct: 40,
            mean_pct: 0,
            task_pct: 10,
            above_ms: 0,
        }],
    }
}
