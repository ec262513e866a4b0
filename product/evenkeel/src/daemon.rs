//! `evenkeel daemon`, `join` and `leave`.

use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use evenkeel_control::Request;
use evenkeel_host::daemon::{Daemon, Settings, serve, socket_path};
use evenkeel_host::{Options, Tells};
use evenkeel_journal::{failpoint, runtime_dir};
use serde_json::Value;

use crate::balancing::{balancing_options, machine, speed_source, warn_of_unknown_energy};
use crate::cli::{DaemonArgs, DaemonOptions, JoinArgs, LeaveArgs};
use crate::config::usable::blame;
use crate::daemon_client::{ask_daemon, sockets};
use crate::dead_sockets::remove_dead_sockets;
use crate::irq::companion::Companion;
use crate::launcher::step_number;
use crate::{config, supervisor};

/// Runs the daemon until a signal ends it.
///
/// # Errors
/// It cannot start: another daemon runs, a flag or the configuration is invalid, or the CPUs cannot be
/// read.
pub fn main(args: &DaemonArgs, file: Option<&Path>) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let read = || -> Result<_> {
        let config = config::load(file)?;
        let options = args.options.clone().or(config.run);
        // The balancer of a job serves its ranks. Standing rules and metrics are for the daemon of a
        // user or of the system, and one address of metrics is for one of them.
        let daemon = match args.job {
            Some(_) => DaemonOptions::default(),
            None => args.daemon.clone().or(config.daemon),
        };
        Ok((options, daemon))
    };
    let companion = RefCell::new(Companion::new(Instant::now()));
    // The balancer of a job has nothing to do with them, and a dry run changes nothing.
    let follow_interrupts = || -> Result<()> {
        if args.job.is_none() && !args.dry_run {
            companion.borrow_mut().follow(&config::load(file)?.irq, Instant::now());
        }
        Ok(())
    };
    let look_after_interrupts = || companion.borrow_mut().look(&args.faults, Instant::now());
    let named = |why| blame(why, file);
    let settings = || -> Result<Settings> {
        let (options, daemon) = read()?;
        // The balancer of a user's job has figures from root's daemon, as a run has. Other daemons ask
        // none: their programs are many.
        let daemons = if args.job.is_some() { sockets() } else { Vec::new() };
        let balancing = balancing_options(&options, args.dry_run).map_err(&named)?;
        let options = Options { daemons, ..balancing };
        let names = daemon.names.into_iter().map(|name| name.0).collect();
        let cgroups = daemon.cgroups.into_iter().map(|cgroup| cgroup.0).collect();
        Ok(Settings { options, names, cgroups })
    };
    let (options, daemon) = read()?;
    let machine = machine(speed_source(options.speed.as_deref()).map_err(&named)?)
        .context("cannot balance without the CPUs in /sys/devices/system/cpu: mount sysfs")?;
    warn_of_unknown_energy(&options);
    let dir = runtime_dir()?;
    remove_dead_sockets(&dir);
    let settings_at_start = settings()?;
    follow_interrupts()?;
    let reload = || -> Result<Settings> {
        let settings = settings()?;
        follow_interrupts()?;
        Ok(settings)
    };
    serve(
        Daemon {
            socket: args.job.clone().unwrap_or_else(|| socket_path(&dir)),
            dir,
            settings: settings_at_start,
            reload: &|| reload().map_err(|why| format!("{why:#}")),
            beside: &look_after_interrupts,
            override_user: options.override_user,
            supervisor: supervisor::command(&args.faults),
            metrics: daemon.metrics,
            tells: args.job.is_some().then(|| Tells {
                daemons: sockets(),
                step: step_number(|name| std::env::var(name).ok()),
            }),
        },
        machine,
    )?;
    Ok(0)
}

/// `evenkeel join`: lets running programs join the daemon.
///
/// # Errors
/// No daemon runs, or it refuses.
pub fn join_command(args: &JoinArgs) -> Result<i32> {
    let request = Request::new("join");
    let request = match (args.pid, &args.name, &args.cgroup) {
        (Some(pid), _, _) => request.with("pid", pid),
        (_, Some(name), _) => request.with("name", name.0.as_str()),
        (_, _, Some(cgroup)) => request.with("cgroup", cgroup.as_str()),
        _ => bail!("give a process number, --name or --cgroup"),
    };
    let answer = ask_daemon(&request)?;
    for program in answer["programs"].as_array().into_iter().flatten() {
        let words = program["command"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        println!("{} (pid {}) joined the daemon", words.join(" "), program["pid"]);
    }
    Ok(0)
}

/// `evenkeel leave`: ends the balancing of a program.
///
/// # Errors
/// No daemon runs, or it refuses.
pub fn leave_command(args: &LeaveArgs) -> Result<i32> {
    ask_daemon(&Request::new("leave").with("pid", args.pid))?;
    println!(
        "The program of process {} is not balanced any more, and may use all its CPUs.",
        args.pid
    );
    Ok(0)
}
