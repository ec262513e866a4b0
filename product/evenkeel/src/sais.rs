//! `evenkeel sais`: steers packets to the core of the program that waits for them, and shows what is
//! steered.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_control::{Request, ask};
use evenkeel_journal::{failpoint, runtime_dir};
use evenkeel_machine::Machine;
use evenkeel_sais::{
    Analysis, Case, Ending, Flow, Options, ServeError, ServeOptions, Served, Service, ServiceError,
    Statistics, StripTimes, run, serve, sockets,
};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::{AttachArgs, ModelArgs, SaisArgs, SaisPart, ServeArgs};
use crate::exit::{IMPOSSIBLE, UNSUCCESSFUL};
use crate::supervisor;

const NOT_STEERED: &str = "No packets are steered. Start with: evenkeel sais attach DEVICE";

/// Steers packets, or shows the steering of others. Returns the exit code.
///
/// # Errors
/// The options are invalid, signals or a control socket cannot be set up, or a running process does not
/// answer.
pub fn main(args: SaisArgs) -> Result<i32> {
    match args.part {
        SaisPart::Attach(args) => attach(args),
        SaisPart::Serve(args) => send_hints_back(args),
        SaisPart::Status(args) => {
            let status = |processes| Status { format: STATUS_FORMAT, processes };
            report("stats", args.json, status, |figures: &Figures| match figures {
                Figures::Steered(statistics) => show(statistics),
                Figures::Served(served) => show_served(served),
            })
        }
        SaisPart::Explain(args) => explain(args.json),
        SaisPart::Model(args) => model(&args),
    }
}

/// The version of [`Status`].
pub const STATUS_FORMAT: u32 = 2;

/// What `status --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Status {
    /// The version of this document.
    format: u32,
    /// The processes that steer packets, and those that send hints back.
    processes: Vec<Figures>,
}

/// The version of [`Explanation`].
pub const EXPLANATION_FORMAT: u32 = 2;

/// What `explain --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Explanation {
    /// The version of this document.
    format: u32,
    /// The processes that steer packets, and those that send hints back, which have no connections.
    processes: Vec<Connections>,
}

/// The connections of a process that steers.
#[derive(Serialize, JsonSchema)]
pub struct Connections {
    /// Each with the core that its packets go to.
    flows: Vec<Flow>,
}

/// The statistics of a process that steers, or of one that sends hints back.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged, try_from = "Value")]
pub enum Figures {
    Steered(Box<Statistics>),
    Served(Served),
}

impl TryFrom<Value> for Figures {
    type Error = serde_json::Error;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        if value.get("cgroup").is_some() {
            return serde_json::from_value(value).map(Self::Served);
        }
        serde_json::from_value(value).map(|figures| Self::Steered(Box::new(figures)))
    }
}

fn send_hints_back(args: ServeArgs) -> Result<i32> {
    let ServeArgs { cgroup, peers, wire, device } = args;
    let options = ServeOptions { cgroup, peers, wire, device };
    match serve(&options, &runtime_dir()?) {
        Ok(Ending::Told) => Ok(0),
        Ok(Ending::Gone) => {
            say(&format!("{}: the cgroup is gone, so no hints go back", options.cgroup.display()));
            Ok(UNSUCCESSFUL)
        }
        Err(why @ (ServeError::Serving(_) | ServeError::Device(_))) => {
            say(&why.to_string());
            Ok(IMPOSSIBLE)
        }
        Err(why) => Err(why.into()),
    }
}

fn heading_of_served(served: &Served) -> String {
    format!("{}: hints of clients go back", served.cgroup.display())
}

fn show_served(served: &Served) {
    println!("{}", heading_of_served(served));
    for (name, count) in &served.counters {
        println!("    {count} {name}: {}", Served::meaning(name).unwrap_or_default());
    }
}

fn attach(args: AttachArgs) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let supervisor = supervisor::command(&args.faults);
    let AttachArgs { device, mode, wire, peers, policy, cpus, xdp, manage_rfs, .. } = args;
    let options = Options {
        device,
        mode,
        wire,
        is_stateless: args.stateless,
        policy,
        strip_times: args.strip_us,
        cpus,
        peers,
        xdp,
        hold: args.hold.map(Duration::from_secs),
        manage_rfs,
    };
    let command: Vec<String> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let directory = runtime_dir()?;
    let service =
        Service { options: &options, directory: &directory, supervisor, command: &command };
    match run(&service) {
        Ok(Ending::Told) => Ok(0),
        Ok(Ending::Gone) => {
            let name = &options.device;
            say(&format!("{name}: the device is gone, so no packets are steered"));
            Ok(UNSUCCESSFUL)
        }
        Err(
            why @ (ServiceError::Steering(_) | ServiceError::Device(_) | ServiceError::Load(_)),
        ) => {
            say(&why.to_string());
            Ok(IMPOSSIBLE)
        }
        Err(why) => Err(why.into()),
    }
}

fn say(what: &str) {
    // Not by eprintln, which panics when standard error is closed.
    let _ = writeln!(std::io::stderr(), "evenkeel: {what}");
}

/// The answers to a request from all processes that steer or send hints back.
fn answers<Answered: DeserializeOwned>(request: &str) -> Result<Vec<Answered>> {
    let mut answers: Vec<Answered> = Vec::new();
    // Mostly root steers, also where another user asks.
    let directories = BTreeSet::from([runtime_dir()?, PathBuf::from("/run/evenkeel")]);
    for socket in directories.iter().flat_map(|directory| sockets(directory)) {
        match ask(&socket, &Request::new(request)) {
            Ok(answer) => answers.push(serde_json::from_value(answer)?),
            // It was killed. The next process there removes the socket, or `evenkeel undo`.
            Err(why @ evenkeel_control::AskError::NoService { .. }) => tracing::debug!("{why}"),
            Err(why) => return Err(why.into()),
        }
    }
    Ok(answers)
}

/// A line for each process that steers packets or sends hints back. What does not answer is a line, too.
pub fn status_lines() -> Vec<String> {
    let line = |figures: &Figures| match figures {
        Figures::Steered(statistics) => {
            let Statistics { device, mode, policy, flows, .. } = &**statistics;
            format!("{device}: packets are steered ({mode} mode, {policy}), {flows} connections")
        }
        Figures::Served(served) => heading_of_served(served),
    };
    match answers::<Figures>("stats") {
        Ok(all) => all.iter().map(line).collect(),
        Err(why) => vec![format!("What steers packets does not answer: {why:#}")],
    }
}

/// Prints the answers to a request; as JSON, they are those of a document.
fn report<Answered: DeserializeOwned, Document: Serialize>(
    request: &str,
    is_json: bool,
    document: impl Fn(Vec<Answered>) -> Document,
    show: impl Fn(&Answered),
) -> Result<i32> {
    let answers: Vec<Answered> = answers(request)?;
    if is_json {
        println!("{}", serde_json::to_string_pretty(&document(answers))?);
        return Ok(0);
    }
    if answers.is_empty() {
        println!("{NOT_STEERED}");
    }
    answers.iter().for_each(show);
    Ok(0)
}

fn show(statistics: &Statistics) {
    let Statistics { device, mode, policy, xdp, reason, flows, .. } = statistics;
    println!("{device}: {mode} mode, {policy}, {xdp} XDP ({reason}), {flows} connections");
    match statistics.share_at_home() {
        Some(share) => println!(
            "    {} packets; {:.2} % of those with a known consumer were processed on its core",
            statistics.packets(),
            share * 100.0
        ),
        None => println!("    {} packets, none with a known consumer", statistics.packets()),
    }
    for (number, core) in &statistics.cores {
        let counts = core.counters.iter().filter(|(_, count)| **count > 0);
        let counts: Vec<String> = counts.map(|(name, count)| format!("{count} {name}")).collect();
        let allowed = if core.allowed { "" } else { " (not allowed)" };
        println!("    CPU {number}{allowed}: {}", counts.join(", "));
    }
    if let Some(hold) = &statistics.hold {
        println!(
            "    threads held on the core where they asked: {} now, {} in all; {} got no answer in \
             time, {} had a mask set by another process, {} could not be held",
            hold.held, hold.holds, hold.timed_out, hold.yielded, hold.refused
        );
    }
    for consumer in &statistics.consumers {
        println!(
            "    {} (pid {}): {} connections, {} bytes received",
            consumer.name, consumer.pid, consumer.flows, consumer.received_bytes
        );
    }
    let mut names: Vec<&String> =
        statistics.cores.values().flat_map(|c| c.counters.keys()).collect();
    names.sort();
    names.dedup();
    for name in names.into_iter().filter(|name| statistics.total(name) > 0) {
        println!("    {name}: {}", Statistics::meaning(name).unwrap_or_default());
    }
}

/// Prints where the packets of each connection go, and why.
///
/// # Errors
/// A process that steers does not answer.
pub fn explain(is_json: bool) -> Result<i32> {
    let explanation = |answers: Vec<Vec<Flow>>| {
        let processes = answers.into_iter().map(|flows| Connections { flows }).collect();
        Explanation { format: EXPLANATION_FORMAT, processes }
    };
    report("flows", is_json, explanation, show_flows)
}

/// The same as text; prints nothing where no packets are steered.
///
/// # Errors
/// A process that steers does not answer.
pub fn explain_all() -> Result<()> {
    answers("flows")?.iter().for_each(show_flows);
    Ok(())
}

fn show_flows(flows: &Vec<Flow>) {
    for flow in flows {
        let path = match flow.path {
            _ if flow.is_stateless => "go where their hints say, if they bear any".to_owned(),
            None => "are processed where they arrive".to_owned(),
            Some(core) => format!("go through the steering thread of CPU {core}"),
        };
        println!(
            "{} -> {} (pid {}): {}; its packets {path}",
            flow.remote, flow.local, flow.pid, flow.reason
        );
    }
}

/// The times P and M of the model, given or measured, in microseconds.
fn strip_times(args: &ModelArgs) -> Result<(f64, f64)> {
    if let (Some(process_us), Some(migrate_us)) = (args.process_us, args.migrate_us) {
        return Ok((process_us, migrate_us));
    }
    let machine = Machine::from_sysfs(Path::new("/"))?;
    let online = machine.online();
    let mut times = StripTimes::default();
    if args.migrate_us.is_none() {
        times = StripTimes::measure(&machine, &online)?;
    }
    if args.process_us.is_none() {
        times = times.with_process(&online).context("give --process-us")?;
    }
    let migrate_us = args.migrate_us.or(times.across_us).or(times.within_us);
    let migrate_us = migrate_us
        .context("this machine has one core, so M cannot be measured: give --migrate-us")?;
    let process_us = args.process_us.or(times.process_us).context("give --process-us")?;
    Ok((process_us, migrate_us))
}

/// The version of [`Model`].
pub const MODEL_FORMAT: u32 = 1;

/// What `model --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Model {
    /// The version of this document.
    format: u32,
    #[serde(flatten)]
    analysis: Analysis,
    /// With the size of strips and the rate of the network: so many requests fit through it in a second.
    most_requests_per_s: Option<f64>,
    /// P, in microseconds.
    process_us: f64,
    /// M, in microseconds.
    migrate_us: f64,
}

fn model(args: &ModelArgs) -> Result<i32> {
    let (process_us, migrate_us) = strip_times(args)?;
    let case = Case {
        cores: args.cores,
        servers: args.servers,
        requests: args.requests,
        programs: args.programs,
        process_us,
        migrate_us,
        rest_us: args.rest_us,
    };
    let analysis = case.analyse()?;
    let most_requests_per_s = args.strip_bytes.zip(args.gbit_per_s).map(|(bytes, gbit_per_s)| {
        evenkeel_sais::most_requests_per_s(args.servers, bytes, gbit_per_s * 1e9)
    });
    if args.json {
        let format = MODEL_FORMAT;
        let model = Model { format, analysis, most_requests_per_s, process_us, migrate_us };
        println!("{}", serde_json::to_string_pretty(&model)?);
        return Ok(0);
    }
    let of = |given: Option<f64>| if given.is_some() { "given" } else { "measured here" };
    println!(
        "to process a strip's interrupts takes P = {process_us:.3} us ({}), to move it M = \
         {migrate_us:.3} us ({})",
        of(args.process_us),
        of(args.migrate_us)
    );
    println!("strips moved when balanced      (2)       {}", analysis.migrations);
    println!("balanced, at least          (3) (6)       {:.3} us", analysis.balanced_at_least_us);
    println!(
        "source-aware, at most       (4) (5)       {:.3} us",
        analysis.source_aware_at_most_us
    );
    println!(
        "source-aware, at least          (8)       {:.3} us",
        analysis.source_aware_at_least_us
    );
    println!("difference as printed           (9)       {:.3} us", analysis.difference_printed_us);
    println!("difference of (6) and (5)                 {:.3} us", analysis.difference_exact_us);
    println!("source-aware wins when M is more than     {:.3} us", analysis.break_even_us);
    if let Some(most) = most_requests_per_s {
        println!("reads a second that the link can carry (7) {most:.1}");
    }
    Ok(0)
}
