//! Makes workloads from a shape and its numbers, like `barrier:tasks=8,work=10ms,rounds=20`.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::program::{Op, SharedMemory, TaskPlan, Workload};

use super::catalogue::SHAPES;
use super::error::{MAX_TASKS, WorkloadError};
use super::numbers::Numbers;
use super::paper002::{Homes, Reading, TABLES, Table};
use super::paper003;

/// The workload of this text, if it begins with the name of a shape.
pub(super) fn parse(text: &str, seed: u64) -> Option<Result<Workload, WorkloadError>> {
    let (name, given) = text.split_once(':').unwrap_or((text, ""));
    let (_, defaults, _) = SHAPES.iter().find(|(known, _, _)| *known == name)?;
    let workload = Numbers::parse(text, defaults, given).and_then(|numbers| {
        let workload = match name {
            "hogs" => hogs(&numbers),
            "barrier" => barrier(&numbers),
            "pool" => pool(&numbers),
            "arrivals" => arrivals(&numbers, seed),
            "background" => background(&numbers),
            "paper002" => paper002(&numbers, seed),
            "memory" => paper003::memory(&numbers, seed),
            "spawn" => paper003::spawn(&numbers),
            "tiers" => paper003::tiers(&numbers),
            _ => groups(&numbers),
        }?;
        Ok(Workload { name: text.to_owned(), ..workload })
    });
    Some(workload)
}

fn hogs(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let (tasks, work) = (numbers.count("tasks", 1, MAX_TASKS as u64)?, numbers.time("work")?);
    let tasks = (0..tasks).map(|at| TaskPlan {
        space: at as u32,
        ..TaskPlan::new(format!("hog{at}"), vec![Op::Run(work)])
    });
    Ok(Workload { tasks: tasks.collect(), ..Workload::default() })
}

fn barrier(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let tasks = numbers.count("tasks", 1, MAX_TASKS as u64)?;
    let rounds = numbers.count("rounds", 1, 1_000_000)?;
    let spread = numbers.count("spread", 0, 100)?;
    let work = numbers.time("work")?;
    let drawn = work * spread / 100;
    let ops = vec![
        Op::Run(work - drawn),
        Op::RunAbout(drawn),
        Op::Barrier(0),
        Op::Repeat { to: 0, times: rounds - 1 },
    ];
    let plan = |at| TaskPlan::new(format!("thread{at}"), ops.clone());
    Ok(Workload {
        tasks: (0..tasks).map(plan).collect(),
        barriers: vec![tasks as u32],
        ..Workload::default()
    })
}

fn pool(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let most = MAX_TASKS as u64 / 2;
    let (clients, servers) =
        (numbers.count("clients", 1, most)?, numbers.count("servers", 1, most)?);
    let requests = numbers.count("requests", 1, 1_000_000)?;
    let (think, work) = (numbers.time("think")?, numbers.time("work")?);
    // Channel 0 holds requests, channel 1 answers. Answers have no address: the client that has waited
    // longest takes the next one, so that each gets as many as it requested.
    let client = |at: u64| TaskPlan {
        space: 1,
        ..TaskPlan::new(
            format!("client{at}"),
            vec![
                Op::SleepAbout(think),
                Op::Send(0),
                Op::Receive(1),
                Op::Repeat { to: 0, times: requests - 1 },
            ],
        )
    };
    let total = clients * requests;
    let server = |at: u64| {
        let share = total / servers + u64::from(at < total % servers);
        let serve = vec![
            Op::Receive(0),
            Op::RunAbout(work),
            Op::Send(1),
            Op::Repeat { to: 0, times: share.max(1) - 1 },
        ];
        TaskPlan::new(format!("server{at}"), if share > 0 { serve } else { Vec::new() })
    };
    let tasks = (0..servers).map(server).chain((0..clients).map(client)).collect();
    Ok(Workload { tasks, channels: 2, ..Workload::default() })
}

fn arrivals(numbers: &Numbers, seed: u64) -> Result<Workload, WorkloadError> {
    let tasks = numbers.count("tasks", 1, MAX_TASKS as u64)?;
    let io = numbers.count("io", 0, 100)?;
    let (gap, work, burst) = (numbers.time("gap")?, numbers.time("work")?, numbers.time("burst")?);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut at_ns = 0u64;
    let tasks = (0..tasks).map(|at| {
        at_ns = at_ns.saturating_add(crate::random::about(gap, rng.next_u64()));
        let sleeps = rng.next_u64() % 100 < io;
        let bursts = work.checked_div(burst).unwrap_or_default();
        let ops = if sleeps && bursts > 0 {
            vec![Op::Run(burst), Op::Sleep(burst), Op::Repeat { to: 0, times: bursts - 1 }]
        } else {
            vec![Op::Run(work)]
        };
        let kind = if sleeps { "io" } else { "cpu" };
        TaskPlan {
            arrives_ns: Some(at_ns),
            space: at as u32,
            ..TaskPlan::new(format!("{kind}{at}"), ops)
        }
    });
    Ok(Workload { tasks: tasks.collect(), ..Workload::default() })
}

fn background(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let cpus = numbers.count("cpus", 1, 1024)?;
    let each = numbers.count("each", 1, MAX_TASKS as u64 / cpus)?;
    let pct = numbers.count("pct", 1, 100 * each)?;
    let rounds = numbers.count("rounds", 1, 1_000_000)?;
    let (work, gap) = (numbers.time("work")?, numbers.time("gap")?);
    let sleep = work * (100 * each - pct) / pct;
    let ops =
        vec![Op::SleepAbout(sleep), Op::RunAbout(work), Op::Repeat { to: 0, times: rounds - 1 }];
    let task = |at: u64| TaskPlan {
        space: at as u32,
        arrives_ns: Some(at * gap),
        ..TaskPlan::new(format!("task{at}"), ops.clone())
    };
    Ok(Workload { tasks: (0..cpus * each).map(task).collect(), ..Workload::default() })
}

fn paper002(numbers: &Numbers, seed: u64) -> Result<Workload, WorkloadError> {
    let (system, table) = (numbers.text("system"), numbers.text("table"));
    let found = Table::of(system, table).ok_or_else(|| {
        let known = TABLES.iter().map(|table| format!("{} {}", table.system, table.workload));
        let known = known.collect::<Vec<_>>().join(", ");
        numbers.wrong(format!("system={system},table={table}: there are {known}"))
    })?;
    let reading = Reading {
        pace_pct: numbers.count("pace", 1, 1000)?,
        random_gap_ns: numbers.time("random")?,
        almost_gap_ns: numbers.time("almost")?,
    };
    let processes = numbers.count("processes", 1, MAX_TASKS as u64)?;
    let mut workload = found.workload(processes, &reading, seed);
    if let Some(homes) = Homes::of(numbers.count("homes", 0, 3)?) {
        homes.give(found.nodes, &mut workload.tasks, seed);
    }
    Ok(workload)
}

fn groups(numbers: &Numbers) -> Result<Workload, WorkloadError> {
    let programs = numbers.count("programs", 1, 1000)?;
    let threads = numbers.count("threads", 1, MAX_TASKS as u64 / 1000)?;
    let rounds = numbers.count("rounds", 1, 1_000_000)?;
    let (work, pause) = (numbers.time("work")?, numbers.time("pause")?);
    let kib = numbers.count("kib", 0, 1 << 26)? as u32;
    let ops =
        vec![Op::RunAbout(work), Op::SleepAbout(pause), Op::Repeat { to: 0, times: rounds - 1 }];
    // All of it in every ms: only what caches hold matters here, not how often it is used.
    let memory = (kib > 0).then_some(SharedMemory { kib, kib_per_ms: kib });
    let tasks = (0..programs * threads).map(|at| TaskPlan {
        space: (at / threads) as u32,
        memory,
        ..TaskPlan::new(format!("p{}t{}", at / threads, at % threads), ops.clone())
    });
    Ok(Workload { tasks: tasks.collect(), ..Workload::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Workload {
        parse(text, 1).unwrap().unwrap()
    }

    #[test]
    fn the_defaults_of_every_shape_make_a_workload() {
        for (name, defaults, _) in SHAPES {
            let plain = shape(name);
            assert!(!plain.tasks.is_empty());
            let spelt_out = shape(&format!("{name}:{defaults}"));
            assert_eq!(plain.tasks, spelt_out.tasks);
        }
    }

    #[test]
    fn given_numbers_replace_defaults() {
        assert_eq!(shape("hogs:tasks=3").tasks.len(), 3);
        assert_eq!(*shape("hogs:work=2us").tasks[0].ops, [Op::Run(2_000)]);
        assert_eq!(shape("barrier:tasks=5").barriers, [5]);
    }

    #[test]
    fn without_homes_it_is_the_same_work() {
        let (known, unknown) = (shape("paper002"), shape("paper002:homes=0"));
        assert!(known.tasks.iter().all(|task| task.home.is_some()));
        assert!(unknown.tasks.iter().all(|task| task.home.is_none()));
        let work = |workload: &Workload| {
            let tasks = workload.tasks.iter();
            tasks.map(|task| (task.arrives_ns, task.space, task.ops.clone())).collect::<Vec<_>>()
        };
        assert_eq!(work(&known), work(&unknown));
    }

    #[test]
    fn arrivals_depend_on_the_seed_alone() {
        let times = |seed| -> Vec<_> {
            let workload = parse("arrivals", seed).unwrap().unwrap();
            workload.tasks.iter().map(|task| task.arrives_ns.unwrap()).collect()
        };
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
        assert!(times(3).is_sorted());
    }

    #[test]
    fn errors_name_the_wrong_number() {
        for (text, expected) in [
            ("hogs:tasks=0", "tasks=0: expected 1 to 100000"),
            ("hogs:tasks=x", "tasks=x: expected 1"),
            ("hogs:task=3", "\"task\": there are tasks, work"),
            ("hogs:tasks", "\"tasks\": expected NAME=NUMBER"),
            ("hogs:work=3", "work=3: expected a time"),
            ("hogs:work=ms", "work=ms: expected a time"),
            ("hogs:work=2h", "expected a time"),
            ("hogs:work=3601s", "up to an hour"),
            ("hogs:work=99999999999999999999s", "up to an hour"),
            ("paper002:system=amc4", "system=amc4,table=w1: there are amc1 w1, amc1 w2, amc2 w1"),
            ("paper002:table=w3", "system=amc1,table=w3: there are"),
        ] {
            let why = parse(text, 1).unwrap().unwrap_err().to_string();
            assert!(why.starts_with(&format!("workload \"{text}\": ")), "{why}");
            assert!(why.contains(expected), "{text}: {why}");
        }
        assert!(parse("hogs.json", 1).is_none());
    }
}
