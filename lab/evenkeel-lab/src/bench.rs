//! `evenkeel-lab bench`: turns the flags into a benchmark's options, and runs that benchmark. The
//! benchmarks themselves are in `lab/bench`. With a hidden flag (`hogs`, `stranger`) this process is not
//! the benchmark, but a helper that the benchmark has started.

use std::path::PathBuf;

use anyhow::Result;
use evenkeel_bench::cost_page::Files;
use evenkeel_bench::{
    balance, capability, cluster, daemon_cost, free, ias, irq, keel, large_machines, levers,
    plan_cost, refill, sais, scale, startup_cost, waiting_cost, zone,
};
use evenkeel_experiment::{Only, Options, executable};

use crate::cli::{
    BalanceArgs, BenchArgs, BenchPart, CapabilityArgs, ClusterArgs, FileArgs, IrqBenchArgs,
    PageArgs, PlanArgs, ProgramsArgs, RefillArgs, SaisBenchArgs, ScaleArgs, Stranger, TurnArgs,
};
use crate::command_line::command_line;

/// Runs the benchmark that the command line names. Returns the exit code.
///
/// # Errors
/// A flag makes no sense, or nothing can be measured.
pub fn main(args: BenchArgs) -> Result<i32> {
    // What is measured is of this commit, whatever is checked out meanwhile.
    evenkeel_experiment::commit();
    match args.part {
        BenchPart::Capability(args) => capability::run(&capability_options(args)?),
        BenchPart::Cluster(args) => cluster::run(&cluster_options(args)?),
        BenchPart::Programs(args) => levers::run(&programs_options(args)?),
        BenchPart::Balance(BalanceArgs { hogs: Some(work), .. }) => balance::be_hogs(work),
        BenchPart::Balance(args) => balance::run(&guest_options(args.turns)),
        BenchPart::Keel(args) => keel::run(&args.peers, &guest_options(args.turns)),
        BenchPart::Zone(turns) => zone::run(&guest_options(turns)),
        BenchPart::Free(turns) => free::run(&guest_options(turns)),
        BenchPart::Ias(turns) => ias::run(&guest_options(turns)),
        BenchPart::Plan(args) => plan_cost::run(&plan_options(args)),
        BenchPart::Refill(RefillArgs { stranger: Some(Stranger { cpu, kib }), .. }) => {
            refill::be_stranger(cpu, kib)
        }
        BenchPart::Refill(args) => refill::run(&refill_options(args)),
        BenchPart::Sais(args) => sais::run(&sais_options(args)?),
        BenchPart::Irq(args) => irq::run(&irq_options(args)?),
        BenchPart::Scale(args) => scale::run(&scale_options(args)?),
        BenchPart::Large(args) => large_machines::run(&files(args.files), args.quick),
        BenchPart::Waiting(args) => waiting_cost::run(&files(args.files), args.quick),
        BenchPart::Startup(args) => startup_cost::run(&files(args.files), args.quick),
        BenchPart::Daemon(args) => daemon_cost::run(&daemon_cost::Options {
            executable: executable::product()?,
            files: files(args.files),
        }),
    }
}

fn capability_options(args: CapabilityArgs) -> Result<capability::Asked> {
    let options = Options {
        runs: args.runs,
        max_runs: args.max_runs,
        only: Only {
            cases: args.cases,
            programs: args.programs,
            contestants: args.contestants,
            ..Only::default()
        },
        json: args.json,
        markdown: args.markdown,
        html: args.html,
        from: args.from,
        command: command_line(),
        ..Options::default()
    };
    Ok(capability::Asked { executable: executable::product()?, loop_s: None, options })
}

fn cluster_options(args: ClusterArgs) -> Result<cluster::Asked> {
    let node = match args.node {
        Some(node) => node,
        None => nix::sys::utsname::uname()?.nodename().to_string_lossy().into_owned(),
    };
    let options = Options {
        runs: args.runs,
        quick: args.quick,
        json: args.json,
        markdown: args.markdown,
        html: args.html,
        from: args.from,
        command: command_line(),
        ..Options::default()
    };
    Ok(cluster::Asked { node, options })
}

fn programs_options(args: ProgramsArgs) -> Result<levers::Asked> {
    Ok(levers::Asked {
        executable: executable::product()?,
        only: args.only,
        is_for_claims: args.claims,
        hours: args.hours,
        is_demo: args.demo,
        options: Options {
            runs: args.runs,
            quick: args.quick,
            json: args.json,
            markdown: args.markdown,
            html: args.html,
            from: args.from,
            command: command_line(),
            ..Options::default()
        },
    })
}

fn guest_options(args: TurnArgs) -> Options {
    Options {
        runs: args.rounds,
        only: Only {
            cases: args.clocks.iter().map(|clock| clock.name().to_owned()).collect(),
            contestants: args.contestants,
            figures: args.figures,
            ..Only::default()
        },
        json: args.json,
        markdown: args.markdown,
        html: args.html,
        from: args.from,
        inside: args.inside,
        costs: args.costs,
        command: command_line(),
        ..Options::default()
    }
}

/// What each benchmark with a page can be asked for.
fn page_options(quick: bool, from: Option<PathBuf>, pages: PageArgs) -> Options {
    let PageArgs { json, markdown, html } = pages;
    Options { quick, from, json, markdown, html, command: command_line(), ..Options::default() }
}

fn sais_options(args: SaisBenchArgs) -> Result<sais::Asked> {
    Ok(sais::Asked {
        executable: executable::product()?,
        measure_pm: args.measure_pm,
        parts: args.parts,
        inside: args.inside,
        reader: args.reader,
        options: page_options(args.quick, args.from, args.pages),
    })
}

fn irq_options(args: IrqBenchArgs) -> Result<irq::Asked> {
    let options = page_options(args.quick, args.from, args.pages);
    Ok(irq::Asked { executable: executable::product()?, parts: args.parts, options })
}

fn scale_options(args: ScaleArgs) -> Result<scale::Asked> {
    let options = page_options(args.quick, args.from, args.pages);
    Ok(scale::Asked { executable: executable::product()?, options })
}

fn files(args: FileArgs) -> Files {
    Files { json: args.json, html: args.html, command: command_line() }
}

fn plan_options(args: PlanArgs) -> plan_cost::Options {
    plan_cost::Options {
        files: files(args.files),
        size: args.size.map(|size| (size.cpus, size.tasks)),
        crowd: args.crowd,
    }
}

fn refill_options(args: RefillArgs) -> refill::Asked {
    let options = Options {
        quick: args.quick,
        from: args.from,
        json: args.json,
        markdown: args.markdown,
        html: args.html,
        command: command_line(),
        ..Options::default()
    };
    refill::Asked { machine: args.machine, options }
}
