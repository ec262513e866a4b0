//! `evenkeel sched`: the keel in the foreground, and looking at one that runs.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_control::{AskError, Request, ask};
use evenkeel_journal::runtime_dir;
use evenkeel_keel::{
    Exit, ExitKind, Gate, IasOptions, IdleWait, Options, Order, Scheduler, Service, ServiceError,
    Statistics, Zone, grouped, run,
};
use evenkeel_machine::Machine;

use crate::cli::{SchedArgs, SchedOptions, ZoneOptions};
use crate::config::Config;

/// Exit code when the kernel threw the keel out. (Nonsense in options gives 2, as everywhere.)
const THROWN_OUT: i32 = 1;
/// Exit code when the keel cannot run on this kernel or machine, for this user, or now.
const IMPOSSIBLE: i32 = 3;

/// Runs the keel until it is told to end, or the kernel ends it. Returns the exit code.
///
/// # Errors
/// What is no matter of the scheduler: nonsense in the configuration, a control socket that cannot
/// be had, signals that cannot be waited for.
pub fn main(args: &SchedArgs, config: &Config) -> Result<i32> {
    if let Some(seconds) = args.monitor {
        return monitor(Duration::from_secs(seconds));
    }
    let options = options(&args.options, config)?;
    if let (Order::Ias, Some(groups)) = (options.order, &config.ias.groups) {
        grouped(&machine()?, groups).context("configuration, table [ias]")?;
    }
    if args.load_only {
        return load_only(&options);
    }
    // What stands in the way of every scheduler is told before a directory is made for this one.
    if let Err(why) = evenkeel_keel::support() {
        return Ok(impossible(&why));
    }
    let service = Service {
        options,
        ias: config.ias.clone(),
        machine: &machine,
        socket: socket(&runtime_dir()?),
        stats: args.stats.map(Duration::from_secs),
        tape: args.tape.clone(),
    };
    match run(&service) {
        Ok(exit) => Ok(report(&exit)),
        Err(ServiceError::Load(why)) => Ok(impossible(&why)),
        Err(why) => Err(why.into()),
    }
}

/// What the flags say, and for the rest the configuration.
fn options(flags: &SchedOptions, config: &Config) -> Result<Options> {
    let set = flags.clone().or(config.sched.clone());
    let max_idle_wait = if set.strict { Some(IdleWait::NEVER) } else { set.max_idle_wait };
    let mut options = Options {
        order: set.order.unwrap_or_default(),
        gate: set.gate.unwrap_or_default(),
        balance: set.balance.unwrap_or_default(),
        parts: set.parts.unwrap_or_default(),
        slice: set.slice_us.unwrap_or_default(),
        capacities: set.capacity.unwrap_or_default(),
        static_capacity: set.static_capacity,
        max_idle_wait: max_idle_wait.unwrap_or_default(),
        ias: IasOptions {
            window: set.ias_window.unwrap_or_default(),
            kick: set.ias_kick.unwrap_or_default(),
            auto: set.ias_auto,
        },
        shield: set.shield.unwrap_or_default(),
        ..Options::default()
    };
    options.check_parts()?;
    // What files say of another order than the one that runs rests.
    if flags.ias_window.is_some() {
        options.check_order("--ias-window")?;
    }
    if flags.ias_auto {
        options.check_order("--ias-auto")?;
    }
    if flags.ias_kick.is_some() {
        options.check_order("--ias-kick")?;
    }
    turn_knobs(&mut options, &config.zone)?;
    // A flag wins over all that files say of the level.
    if let Some(level) = flags.zone.or(set.zone.filter(|_| !config.zone.contains_key(Zone::LEVEL)))
    {
        if options.gate != Gate::Zone {
            bail!(
                "--zone {level}: the keel would run with --gate {}; add --gate zone",
                options.gate
            );
        }
        options.zone.set_level(level);
    }
    Ok(options)
}

/// The knobs of table `[zone]`; they rest while another gate runs.
fn turn_knobs(options: &mut Options, knobs: &ZoneOptions) -> Result<()> {
    for (name, value) in knobs {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        options.zone.set(name, &text).context("configuration, table [zone]")?;
    }
    Ok(())
}

/// Asks the keel that runs; `flags`: with which it has what is asked for.
///
/// # Errors
/// None runs, or it refuses.
pub fn ask_keel(request: &Request, flags: &str) -> Result<serde_json::Value> {
    match ask(&running(), request) {
        Err(AskError::Nobody { .. }) => {
            let start = format!("evenkeel sched {flags}");
            bail!("the keel does not run; start it with: {}", start.trim_end())
        }
        answer => Ok(answer?),
    }
}

/// The control socket of the keel that runs: one's own, or the machine's.
fn running() -> PathBuf {
    let own = runtime_dir().map(|dir| socket(&dir)).ok().filter(|path| path.exists());
    own.unwrap_or_else(|| socket(Path::new("/run/evenkeel")))
}

/// What the keel is doing, in a line; None: it does not run.
///
/// # Errors
/// It runs and does not answer.
pub fn keel_line() -> Result<Option<String>> {
    let asked = |request| match ask(&running(), &Request::new(request)) {
        Err(AskError::Nobody { .. }) => Ok(None),
        answer => answer.map(Some),
    };
    let (Some(statistics), Some(parameters)) = (asked("stats")?, asked("get")?) else {
        return Ok(None);
    };
    let statistics: Statistics = serde_json::from_value(statistics)?;
    let mut line = format!("The keel schedules: {}", statistics.policies.join("/"));
    for name in ["zone", "shield"] {
        if let Some(value) = parameters[name].as_str() {
            line += &format!(", {name} {value}");
        }
    }
    Ok(Some(line))
}

fn machine() -> Result<Machine, evenkeel_machine::Error> {
    Machine::from_sysfs(Path::new("/"))
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("keel.sock")
}

fn load_only(options: &Options) -> Result<i32> {
    let machine = machine()?;
    options.shield.check(&machine)?;
    match Scheduler::load(&machine, options) {
        Ok(_) => {
            println!("the kernel accepts the keel");
            Ok(0)
        }
        Err(why) => Ok(impossible(&why)),
    }
}

fn impossible(why: &(impl std::error::Error + ?Sized)) -> i32 {
    // Not by eprintln, which panics when nobody reads.
    let _ = writeln!(std::io::stderr(), "evenkeel: {why}");
    IMPOSSIBLE
}

/// Says how the keel ended.
fn report(exit: &Exit) -> i32 {
    let mut stderr = std::io::stderr();
    if !exit.dump.is_empty() {
        let _ = writeln!(stderr, "{}", exit.dump);
    }
    let _ =
        writeln!(stderr, "evenkeel: the keel has ended: {exit}; the kernel's own scheduler runs");
    match exit.kind {
        ExitKind::Unloaded | ExitKind::SysRq => 0,
        ExitKind::Restart | ExitKind::Fault => THROWN_OUT,
    }
}

fn monitor(every: Duration) -> Result<i32> {
    let mut earlier: Option<Statistics> = None;
    loop {
        let now: Statistics = serde_json::from_value(ask_keel(&Request::new("stats"), "")?)?;
        if let Some(earlier) = &earlier {
            match writeln!(std::io::stdout(), "{}", now.line_since(earlier)) {
                // Whoever read it has seen enough.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(0),
                other => other?,
            }
        }
        earlier = Some(now);
        std::thread::sleep(every);
    }
}
