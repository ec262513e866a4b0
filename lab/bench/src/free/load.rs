//! Five programs that real threads and simulated tasks can run. Threads of the same name do the same.

use evenkeel_sim::program::{Op, TaskPlan, Workload};

const MS: u64 = 1_000_000;

/// All of them, for so many CPUs.
pub fn all(cpus: usize) -> [Workload; 5] {
    [weights(cpus), crowd(cpus), periodic(cpus), barrier(cpus), pool(cpus)]
}

fn again(name: &str, ops: impl IntoIterator<Item = Op>) -> TaskPlan {
    TaskPlan::new(name, ops.into_iter().chain([Op::Goto(0)]).collect())
}

fn hog() -> TaskPlan {
    again("hog", [Op::Run(100 * MS)])
}

fn times(count: usize, plan: TaskPlan) -> impl Iterator<Item = TaskPlan> {
    std::iter::repeat_n(plan, count)
}

fn named(name: &str, tasks: impl Iterator<Item = TaskPlan>) -> Workload {
    Workload { name: name.to_owned(), tasks: tasks.collect(), ..Workload::default() }
}

fn weights(cpus: usize) -> Workload {
    let nice = |name: &str, nice| TaskPlan { nice, name: name.into(), ..hog() };
    let kinds = [nice("usual", 0), nice("less", 5), nice("more", -5)];
    named("weights", kinds.into_iter().flat_map(|plan| times(cpus, plan)))
}

fn crowd(cpus: usize) -> Workload {
    let member = again("member", [Op::RunAbout(3 * MS), Op::SleepAbout(5 * MS)]);
    named("crowd", times(4 * cpus, member))
}

fn periodic(cpus: usize) -> Workload {
    let periodic = again("periodic", [Op::Run(MS), Op::Sleep(9 * MS)]);
    named("periodic", times(2 * cpus, periodic).chain(times(cpus, hog())))
}

fn barrier(cpus: usize) -> Workload {
    let member = again("member", [Op::RunAbout(4 * MS), Op::Barrier(0)]);
    let all = times(2 * cpus, member).chain(times(1, hog()));
    Workload { barriers: vec![2 * cpus as u32], ..named("barrier", all) }
}

fn pool(cpus: usize) -> Workload {
    let client = again("client", [Op::SleepAbout(2 * MS), Op::Send(0), Op::Receive(1)]);
    let server = again("server", [Op::Receive(0), Op::RunAbout(2 * MS), Op::Send(1)]);
    let all = times(2 * cpus, client).chain(times(cpus, server)).chain(times(cpus, hog()));
    Workload { channels: 2, ..named("pool", all) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Whatever they get: the whole of each program is something that threads can do.
    #[test]
    fn all_can_be_played() {
        for mut load in all(2) {
            // That needs root below 0.
            load.tasks.iter_mut().for_each(|task| task.nice = task.nice.max(0));
            let shares = evenkeel_sim::play(&load, 1, Duration::ZERO, Duration::ZERO).unwrap();
            assert_eq!(shares.len(), load.tasks.len(), "{}", load.name);
        }
    }
}
