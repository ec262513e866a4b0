//! `evenkeel sched`: runs the keel in the foreground, or prints the statistics of a keel that runs.

mod trace;

use std::cell::RefCell;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_control::Request;
use evenkeel_journal::runtime_dir;
use evenkeel_keel::{
    Exit, ExitKind, Gate, IasOptions, IdleWait, Observed, Options, Order, Scheduler, Service,
    ServiceError, Statistics, Zone, grouped, run,
};
use evenkeel_machine::Machine;
use schemars::JsonSchema;
use serde::Serialize;

use self::trace::Trace;
use crate::cli::{SchedArgs, SchedOptions};
use crate::config::{Config, turn_knobs};
use crate::exit::{IMPOSSIBLE, UNSUCCESSFUL};
use crate::keel_client::{ask_keel, socket};
use crate::trace_file::TraceFile;

/// Runs the keel until a signal or the kernel ends it. Returns the exit code. `trace` is the file of
/// `--perfetto`.
///
/// # Errors
/// The configuration is invalid, or the control socket or signals cannot be set up. A keel that
/// cannot run here gives an exit code instead.
pub fn main(args: &SchedArgs, config: &Config, trace: Option<TraceFile>) -> Result<i32> {
    if let Some(path) = &args.tape {
        bail!(
            "sched --tape is now: evenkeel-lab record {}, with the same options of `sched`; the \
             laboratory has an executable of its own",
            path.display()
        );
    }
    if let Some(seconds) = args.monitor {
        return monitor(Duration::from_secs(seconds), args.json);
    }
    let options = options(&args.options, config)?;
    if let (Order::Ias, Some(groups)) = (options.order, &config.ias.groups) {
        grouped(&machine()?, groups).context("configuration, table [ias]")?;
    }
    if args.load_only {
        return load_only(&options);
    }
    // Before a directory is made: no scheduler may be possible here.
    if let Err(why) = evenkeel_keel::support() {
        return Ok(impossible(&why));
    }
    let trace = RefCell::new(Trace::new(trace));
    let observe = |seen: &Observed<'_>| trace.borrow_mut().tell(seen);
    let is_observed = trace.borrow().is_wanted();
    let service = Service {
        options,
        ias: config.ias.clone(),
        machine: &machine,
        socket: socket(&runtime_dir()?),
        stats: args.stats.map(Duration::from_secs),
        observer: is_observed.then_some(&observe),
    };
    match run(&service) {
        Ok(exit) => Ok(report(&exit)),
        Err(ServiceError::Load(why)) => Ok(impossible(&why)),
        Err(why) => Err(why.into()),
    }
}

/// The options that the flags set, and for the rest the configuration.
///
/// # Errors
/// Flags or configuration do not fit together.
pub fn options(flags: &SchedOptions, config: &Config) -> Result<Options> {
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
            mode: set.ias_mode.unwrap_or_default(),
            turn: set.ias_turn.unwrap_or_default(),
            window: set.ias_window.unwrap_or_default(),
            kick: set.ias_kick.unwrap_or_default(),
            auto: set.ias_auto,
        },
        compact: set.compact,
        shield: set.shield.unwrap_or_default(),
        ..Options::default()
    };
    options.check_parts()?;
    // A flag that does not go with compaction wins over a file.
    options.compact &= flags.compact || options.check_compact().is_ok();
    options.check_compact()?;
    // In a file, options of another order policy are ignored; as flags, they are an error.
    if flags.ias_mode.is_some() {
        options.check_order("--ias-mode")?;
    }
    if flags.ias_turn.is_some() {
        options.check_rounds("--ias-turn")?;
    }
    if flags.ias_window.is_some() {
        options.check_order("--ias-window")?;
    }
    if flags.ias_auto {
        options.check_order("--ias-auto")?;
    }
    if flags.ias_kick.is_some() {
        options.check_order("--ias-kick")?;
    }
    turn_knobs(&mut options.zone, &config.zone).context("configuration")?;
    // Another gate ignores them. A flag wins over the level in files.
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

fn machine() -> Result<Machine, evenkeel_machine::Error> {
    Machine::from_sysfs(Path::new("/"))
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
    // Not by eprintln, which panics when standard error is closed.
    let _ = writeln!(std::io::stderr(), "evenkeel: {why}");
    IMPOSSIBLE
}

/// Says how the keel ended, and returns the exit code.
pub fn report(exit: &Exit) -> i32 {
    let mut stderr = std::io::stderr();
    if !exit.dump.is_empty() {
        let _ = writeln!(stderr, "{}", exit.dump);
    }
    let _ =
        writeln!(stderr, "evenkeel: the keel has ended: {exit}; the kernel's own scheduler runs");
    match exit.kind {
        ExitKind::Unloaded | ExitKind::SysRq => 0,
        ExitKind::Restart | ExitKind::Fault => UNSUCCESSFUL,
    }
}

/// The version of a line of `--monitor --json`.
pub const MONITOR_FORMAT: u32 = 1;

/// A line of `--monitor --json`.
#[derive(Serialize, JsonSchema)]
pub struct Monitored<'a> {
    /// The version of this line.
    format: u32,
    #[serde(flatten)]
    statistics: &'a Statistics,
}

fn monitor(every: Duration, is_json: bool) -> Result<i32> {
    let mut earlier: Option<Statistics> = None;
    loop {
        let now: Statistics = serde_json::from_value(ask_keel(&Request::new("stats"), "")?)?;
        let line = if is_json {
            let monitored = Monitored { format: MONITOR_FORMAT, statistics: &now };
            Some(serde_json::to_string(&monitored)?)
        } else {
            earlier.as_ref().map(|earlier| now.line_since(earlier))
        };
        if let Some(line) = line {
            match writeln!(std::io::stdout(), "{line}") {
                // The reader has closed the pipe.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(0),
                other => other?,
            }
        }
        earlier = Some(now);
        std::thread::sleep(every);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_keel::Mode;

    use super::*;

    #[test]
    fn options_of_ias_need_their_order_and_mode() {
        let options = |order, ias_mode, config: &str| {
            let config: Config = toml::from_str(config).unwrap();
            let ias_turn = Some("8ms".parse().unwrap());
            let flags = SchedOptions { order, ias_mode, ias_turn, ..SchedOptions::default() };
            options(&flags, &config).map(|options| options.ias).map_err(|why| why.to_string())
        };
        let ias = options(Some(Order::Ias), None, "").unwrap();
        assert_eq!((ias.mode, ias.turn.to_string()), (Mode::Rounds, "8ms".to_owned()));
        let paper = "[sched]\nias-mode = \"paper\"\n";
        for (order, mode, config, expected) in [
            (None, None, "", "start it with --order ias"),
            (None, Some(Mode::Rounds), "", "--ias-mode: the keel runs with --order fair"),
            (Some(Order::Ias), Some(Mode::Paper), "", "start it with --ias-mode rounds"),
            (Some(Order::Ias), None, paper, "start it with --ias-mode rounds"),
        ] {
            let why = options(order, mode, config).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        // A flag wins over a file.
        assert!(options(Some(Order::Ias), Some(Mode::Rounds), paper).is_ok());
    }
}
