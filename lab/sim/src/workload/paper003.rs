//! The workloads of paper 003: threads that write to one block of memory of their program (sysbench
//! memory), threads that are created and joined, and a web server with its database (RUBiS).

use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::mask::Mask;
use crate::program::{Op, SharedMemory, TaskPlan, Workload};
use crate::random::about;

use super::error::{MAX_TASKS, WorkloadError};
use super::numbers::Numbers;

const KIB_PER_MIB: u64 = 1 << 10;
const KIB_PER_GIB: u64 = 1 << 20;
const NS_PER_MS: u64 = 1_000_000;

/// Channels: an item goes to the task that has waited longest.
const REQUEST: usize = 0;
const QUERY: usize = 1;
const ROWS: usize = 2;
const ANSWER: usize = 3;

/// Section 4.1, table 3. Each thread writes its share of its program's total. The real program hands
/// the total out block by block; while all threads progress alike that makes no difference to the
/// schedule.
pub fn memory(numbers: &Numbers, seed: u64) -> Result<Workload, WorkloadError> {
    let programs = numbers.count("programs", 1, 1000)?;
    let threads = numbers.count("threads", 1, MAX_TASKS as u64 / 1000)?;
    let block_kib = numbers.count("block", 1, 1 << 16)? * KIB_PER_MIB;
    let total_kib = numbers.count("total", 1, 1 << 10)? * KIB_PER_GIB;
    let sizes = numbers.count("sizes", 1, 1000)?;
    let halves = numbers.count("halves", 0, 1024)?;
    let touch = numbers.count("touch", 1, 1 << 20)?;
    let gap = numbers.time("gap")?;
    let half = |upper: u64| {
        let mut mask = Mask::EMPTY;
        (0..halves / 2).for_each(|cpu| mask.set((cpu + upper * (halves / 2)) as u32));
        Arc::new(mask)
    };
    let masks = [half(0), half(1)];
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tasks = Vec::new();
    for program in 0..programs {
        let work_ns = total_kib * (1 + program % sizes) / threads * NS_PER_MS / touch;
        let allowed = (halves > 1).then(|| masks[(program / sizes % 2) as usize].clone());
        let mut at_ns = 0u64;
        for thread in 0..threads {
            at_ns = at_ns.saturating_add(about(gap, rng.next_u64()));
            tasks.push(TaskPlan {
                arrives_ns: Some(at_ns),
                space: program as u32,
                allowed: allowed.clone(),
                memory: Some(SharedMemory { kib: block_kib as u32, kib_per_ms: touch as u32 }),
                ..TaskPlan::new(format!("p{program}t{thread}"), vec![Op::Run(work_ns)])
            });
        }
    }
    Ok(Workload { tasks, ..Workload::default() })
}

/// Section 2.3, "Overhead of IAS": a created thread "just joins to the parent thread".
pub fn spawn(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let threads = numbers.count("threads", 1, MAX_TASKS as u64 - 1)? as usize;
    let work = numbers.time("work")?;
    let parent = (1..=threads).flat_map(|child| [Op::Run(work), Op::Fork(child), Op::Receive(0)]);
    let child =
        TaskPlan { arrives_ns: None, ..TaskPlan::new("thread", vec![Op::Run(work), Op::Send(0)]) };
    let mut tasks = vec![TaskPlan::new("parent", parent.collect())];
    tasks.resize(threads + 1, child);
    Ok(Workload { tasks, channels: 1, ..Workload::default() })
}

/// Section 2.3, "Effect of IAS on RUBiS benchmark": two servers, each an address space with many
/// threads. The clients run elsewhere and use no CPU.
pub fn tiers(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let most = MAX_TASKS as u64 / 4;
    let clients = numbers.count("clients", 1, most)?;
    let (web, database) = (numbers.count("web", 1, most)?, numbers.count("database", 1, most)?);
    let requests = numbers.count("requests", 1, 1_000_000)?;
    let think = numbers.time("think")?;
    let (work, query) = (numbers.time("work")?, numbers.time("query")?);
    let touch = numbers.count("touch", 1, 1 << 20)? as u32;
    let total = clients * requests;
    // Thread `at` of `threads` serves its share of all requests.
    let server = |name: &str, space: u32, kib: u64, threads: u64, at: u64, turn: &[Op]| {
        let share = total / threads + u64::from(at < total % threads);
        let mut ops = turn.to_vec();
        ops.push(Op::Repeat { to: 0, times: share.max(1) - 1 });
        TaskPlan {
            space,
            memory: (kib > 0).then_some(SharedMemory { kib: kib as u32, kib_per_ms: touch }),
            ..TaskPlan::new(format!("{name}{at}"), if share > 0 { ops } else { Vec::new() })
        }
    };
    let web_turn = [
        Op::Receive(REQUEST),
        Op::RunAbout(work / 2),
        Op::Send(QUERY),
        Op::Receive(ROWS),
        Op::RunAbout(work / 2),
        Op::Send(ANSWER),
    ];
    let database_turn = [Op::Receive(QUERY), Op::RunAbout(query), Op::Send(ROWS)];
    let ask = vec![
        Op::SleepAbout(think),
        Op::Send(REQUEST),
        Op::Receive(ANSWER),
        Op::Repeat { to: 0, times: requests - 1 },
    ];
    let web_kib = numbers.count("web_kib", 0, 1 << 26)?;
    let database_kib = numbers.count("database_kib", 0, 1 << 26)?;
    let web_threads = (0..web).map(|at| server("web", 0, web_kib, web, at, &web_turn));
    let database_threads =
        (0..database).map(|at| server("database", 1, database_kib, database, at, &database_turn));
    let client = |at| TaskPlan { space: 2, ..TaskPlan::new(format!("client{at}"), ask.clone()) };
    let tasks = web_threads.chain(database_threads).chain((0..clients).map(client)).collect();
    Ok(Workload { tasks, channels: 4, ..Workload::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Workload {
        Workload::by_name(text, 1).unwrap()
    }

    #[test]
    fn programs_write_their_totals_on_their_half_of_the_cpus() {
        let all = shape("memory:programs=10,threads=3,total=5,sizes=5,halves=4,touch=1024");
        assert_eq!(all.tasks.len(), 30);
        for program in 0..10 {
            let of = |task: &&TaskPlan| task.space == program;
            let tasks: Vec<&TaskPlan> = all.tasks.iter().filter(of).collect();
            assert_eq!(tasks.len(), 3);
            let gib = 5 * (1 + u64::from(program) % 5);
            assert_eq!(*tasks[0].ops, [Op::Run(gib * KIB_PER_GIB / 3 * NS_PER_MS / 1024)]);
            let half = if program < 5 { "0-1" } else { "2-3" };
            assert_eq!(tasks[2].allowed.as_ref().unwrap().to_set().to_string(), half);
        }
        assert!(shape("memory").tasks.iter().all(|task| task.allowed.is_none()));
    }

    #[test]
    fn a_parent_creates_and_joins_one_thread_at_a_time() {
        let all = shape("spawn:threads=3,work=1us");
        assert_eq!(all.tasks.iter().filter(|task| task.arrives_ns.is_some()).count(), 1);
        assert_eq!(all.tasks[0].ops[..3], [Op::Run(1000), Op::Fork(1), Op::Receive(0)]);
        assert_eq!(all.tasks[0].ops.len(), 9);
    }

    #[test]
    fn each_tier_serves_every_request_once() {
        let all = shape("tiers:clients=7,web=4,database=3,requests=5");
        for (name, threads) in [("web", 4), ("database", 3)] {
            let of = |task: &&TaskPlan| task.name.starts_with(name);
            let served = all.tasks.iter().filter(of).map(|task| match task.ops.last() {
                Some(Op::Repeat { times, .. }) => times + 1,
                _ => 0,
            });
            assert_eq!((served.clone().count(), served.sum::<u64>()), (threads, 35), "{name}");
        }
    }
}
