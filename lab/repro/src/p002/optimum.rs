//! What no balancer can do better: the cell's processes on its CPUs, nothing costs anything, and all
//! memory is near.
//!
//! *SRPT*: at each moment the process with least work left has the fastest CPU, the next one the next
//! fastest (optimal on CPUs of different speeds where all come at once). *Non-preemptive*: in the order
//! in which they come, the shortest first, each to the CPU on which it ends first (optimal for processes
//! of one length); what it sleeps is added.

use evenkeel_machine::Machine;
use evenkeel_sim::program::{Op, Workload};

/// A process: works and sleeps by turns.
struct Job {
    arrives_ns: f64,
    turns: u64,
    work_ns: f64,
    sleep_ns: f64,
}

impl Job {
    fn all(workload: &Workload) -> Vec<Self> {
        let job = |task: &evenkeel_sim::program::TaskPlan| {
            let (mut turns, mut work, mut sleep) = (1, 0, 0);
            for op in task.ops.iter() {
                match op {
                    Op::Run(ns) => work += ns,
                    Op::Sleep(ns) => sleep += ns,
                    Op::Repeat { times, .. } => turns = times + 1,
                    _ => {}
                }
            }
            Self {
                arrives_ns: task.arrives_ns.unwrap_or_default() as f64,
                turns,
                work_ns: work as f64,
                sleep_ns: sleep as f64,
            }
        };
        workload.tasks.iter().map(job).collect()
    }
}

/// Speeds of the CPUs, fastest first; 1: full capability.
fn speeds(machine: &Machine) -> Vec<f64> {
    let mut speeds: Vec<f64> = machine
        .cpus
        .iter()
        .filter(|cpu| cpu.online)
        .map(|cpu| f64::from(cpu.capability) / f64::from(evenkeel_machine::CAPABILITY_SCALE))
        .collect();
    speeds.sort_by(|a, b| b.total_cmp(a));
    speeds
}

/// The mean turn-around time in ms, without preemption.
pub fn non_preemptive_ms(workload: &Workload, machine: &Machine) -> f64 {
    let speeds = speeds(machine);
    let mut free_ns = vec![0.0f64; speeds.len()];
    let mut jobs = Job::all(workload);
    let work = |job: &Job| job.work_ns * job.turns as f64;
    jobs.sort_by(|a, b| a.arrives_ns.total_cmp(&b.arrives_ns).then(work(a).total_cmp(&work(b))));
    let mut sum_ns = 0.0;
    for job in &jobs {
        let end = |cpu: usize| free_ns[cpu].max(job.arrives_ns) + work(job) / speeds[cpu];
        let best = (0..speeds.len()).min_by(|a, b| end(*a).total_cmp(&end(*b))).unwrap_or(0);
        free_ns[best] = end(best);
        sum_ns += free_ns[best] - job.arrives_ns + job.sleep_ns * job.turns as f64;
    }
    sum_ns / jobs.len().max(1) as f64 / 1e6
}

/// A process under SRPT.
struct Running {
    turns_left: u64,
    work_left_ns: f64,
    /// It sleeps, or has not come, until then.
    away_until_ns: f64,
}

/// The mean turn-around time in ms, shortest remaining processing time first.
pub fn srpt_ms(workload: &Workload, machine: &Machine) -> f64 {
    let speeds = speeds(machine);
    let jobs = Job::all(workload);
    let mut left: Vec<(usize, Running)> = jobs
        .iter()
        .map(|job| Running {
            turns_left: job.turns,
            work_left_ns: job.work_ns,
            away_until_ns: job.arrives_ns,
        })
        .enumerate()
        .collect();
    let (mut now_ns, mut sum_ns) = (0.0f64, 0.0);
    while !left.is_empty() {
        let total = |(at, one): &(usize, Running)| {
            one.work_left_ns + (one.turns_left - 1) as f64 * jobs[*at].work_ns
        };
        let mut ready: Vec<usize> =
            (0..left.len()).filter(|at| left[*at].1.away_until_ns <= now_ns).collect();
        ready.sort_by(|a, b| total(&left[*a]).total_cmp(&total(&left[*b])));
        // Until the first one is done with its turn, or another one comes.
        let done = ready.iter().zip(&speeds).map(|(at, speed)| left[*at].1.work_left_ns / speed);
        let comes =
            left.iter().map(|(_, one)| one.away_until_ns - now_ns).filter(|after| *after > 0.0);
        let step_ns = done.chain(comes).fold(f64::INFINITY, f64::min);
        if !step_ns.is_finite() {
            break;
        }
        now_ns += step_ns;
        for (at, speed) in ready.iter().zip(&speeds) {
            left[*at].1.work_left_ns -= step_ns * speed;
        }
        left.retain_mut(|(at, one)| {
            let job = &jobs[*at];
            if one.away_until_ns > now_ns || one.work_left_ns > 1e-3 {
                return true;
            }
            one.turns_left -= 1;
            one.work_left_ns = job.work_ns;
            one.away_until_ns = now_ns + job.sleep_ns;
            if one.turns_left == 0 {
                sum_ns += one.away_until_ns - job.arrives_ns;
            }
            one.turns_left > 0
        });
    }
    sum_ns / jobs.len().max(1) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim::paper002::{Reading, Table};

    /// Worked out by hand for AMC2 with bursts of 200 ms on speed cores and 400 ms on normal ones.
    #[test]
    fn the_known_optima_of_amc2() {
        let machine = Machine::preset("amc2").unwrap();
        let table = Table::of("amc2", "w1").unwrap();
        for (processes, non_preemptive, srpt) in [
            (64, 300.0, 250.0),
            (128, 400.0, 381.0),
            (256, 675.0, 646.0),
            (384, 933.0, 912.0),
            (512, 1200.0, 1179.0),
        ] {
            let reading = Reading { pace_pct: 67, ..Reading::default() };
            let workload = table.workload(processes, &reading, 1);
            let found = [non_preemptive_ms(&workload, &machine), srpt_ms(&workload, &machine)];
            for (found, known) in found.into_iter().zip([non_preemptive, srpt]) {
                // 67 percent are not quite two thirds.
                assert!((found / known - 1.005).abs() < 0.01, "{processes}: {found} {known}");
            }
        }
    }

    #[test]
    fn a_process_that_sleeps_is_away_meanwhile() {
        let machine = Machine::preset("small").unwrap();
        let mut workload = Workload::by_name("hogs:tasks=2,work=10ms", 1).unwrap();
        workload.tasks[0].ops =
            vec![Op::Run(1_000_000), Op::Sleep(2_000_000), Op::Repeat { to: 0, times: 1 }].into();
        // 2 of work and 4 of sleep, and 10 of work: on a CPU each.
        assert!((srpt_ms(&workload, &machine) - 8.0).abs() < 1e-6);
        assert!((non_preemptive_ms(&workload, &machine) - 8.0).abs() < 1e-6);
    }
}
