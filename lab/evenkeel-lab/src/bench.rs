//! `evenkeel-lab bench`, `noise` and `repro`: from flags to an experiment. What it does is in the
//! crate of its name.

use std::path::Path;

use anyhow::Result;
use evenkeel_bench::{
    balance, capability, daemon_cost, free, ias, keel, make_noise, plan_cost, refill, repro, sais, zone,
};
use evenkeel_experiment::{Only, Options, executable};

use crate::cli::{
    BalanceArgs, BenchArgs, BenchPart, CapabilityArgs, NoiseArgs, PlanArgs, RefillArgs, ReproArgs,
    SaisBenchArgs, Stranger, TurnArgs,
};

/// Runs the part that was asked for. Returns the exit code.
///
/// # Errors
/// A flag makes no sense, or nothing can be measured.
pub fn main(args: BenchArgs) -> Result<i32> {
    match args.part {
        BenchPart::Capability(args) => capability::run(&experiment(args)?),
        BenchPart::Balance(BalanceArgs { hogs: Some(work), .. }) => balance::be_hogs(work),
        BenchPart::Balance(args) => balance::run(&in_turn(args.turns)?),
        BenchPart::Keel(args) => keel::run(&args.peers, &in_turn(args.turns)?),
        BenchPart::Zone(args) => zone::run(&in_turn(args.turns)?),
        BenchPart::Free(turns) => free::run(&in_turn(turns)?),
        BenchPart::Ias(turns) => ias::run(&in_turn(turns)?),
        BenchPart::Plan(args) => plan_cost::run(&cost(args)?),
        BenchPart::Refill(RefillArgs { stranger: Some(Stranger { cpu, kib }), .. }) => {
            refill::be_stranger(cpu, kib)
        }
        BenchPart::Refill(args) => refill::run(&caches(args)),
        BenchPart::Sais(args) => sais::run(&packets(args)?),
        BenchPart::Daemon(args) => {
            daemon_cost::run(&daemon_cost::Options { executable: executable::product()?, json: args.json })
        }
    }
}

/// Runs `evenkeel-lab repro`. Returns the exit code.
///
/// # Errors
/// There is no such paper or part, or nothing can be measured.
pub fn repro(args: ReproArgs) -> Result<i32> {
    let usual = Path::new("docs/results");
    let docs = args.docs.or_else(|| usual.is_dir().then(|| usual.to_owned()));
    let options = repro::Options {
        executable: executable::product()?,
        parts: args.parts,
        runs: args.runs.map(usize::from),
        quick: args.quick,
        check: args.check,
        from: args.from,
        json: args.json,
        docs,
        command: command_line(),
    };
    repro::run(&args.paper, &options)
}

fn experiment(args: CapabilityArgs) -> Result<capability::Asked> {
    let options = Options {
        runs: args.runs,
        max_runs: args.max_runs,
        only: Only {
            cases: args.cases,
            programs: args.programs,
            contestants: args.contestants,
            ..Only::default()
        },
        quick: args.demo,
        json: args.json,
        markdown: args.markdown,
        from: args.from,
        command: command_line(),
        ..Options::default()
    };
    Ok(capability::Asked { executable: executable::product()?, loop_s: None, options })
}

fn in_turn(args: TurnArgs) -> Result<Options> {
    Ok(Options {
        runs: args.rounds,
        only: Only {
            cases: args.clocks.iter().map(|clock| clock.name().to_owned()).collect(),
            contestants: args.contestants,
            figures: args.figures,
            ..Only::default()
        },
        json: args.json,
        markdown: args.markdown,
        from: args.from,
        inside: args.inside,
        costs: args.costs,
        command: command_line(),
        ..Options::default()
    })
}

fn packets(args: SaisBenchArgs) -> Result<sais::Options> {
    Ok(sais::Options {
        executable: executable::product()?,
        measure_pm: args.measure_pm,
        parts: args.parts,
        inside: args.inside,
        reader: args.reader,
        quick: args.quick,
        from: args.from,
        json: args.json,
        markdown: args.markdown,
        command: command_line(),
    })
}

fn cost(args: PlanArgs) -> Result<plan_cost::Options> {
    Ok(plan_cost::Options {
        json: args.json,
        size: args.size.map(|size| (size.cpus, size.tasks)),
        crowd: args.crowd,
    })
}

fn caches(args: RefillArgs) -> refill::Asked {
    let options = Options {
        quick: args.quick,
        from: args.from,
        json: args.json,
        markdown: args.markdown,
        command: command_line(),
        ..Options::default()
    };
    refill::Asked { machine: args.machine, options }
}

/// Runs `evenkeel-lab noise`. Returns the exit code.
///
/// # Errors
/// A flag makes no sense, or the noise cannot be made.
pub fn noise(args: NoiseArgs) -> Result<i32> {
    make_noise::run(&make_noise::Options {
        kind: args.kind,
        cpu: args.cpu,
        busy_us: args.busy_us,
        period_us: args.period_us,
        limit: args.limit.into(),
        verify: args.verify,
        json: args.json,
    })
}

/// The command line as one would type it: the program by its name, wherever this file lies and whatever a
/// copy of it is called.
pub(crate) fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("evenkeel-lab".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
