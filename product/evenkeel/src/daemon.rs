//! `evenkeel daemon`, and how others speak to it: `join`, `leave`, and what it adds to `status`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evenkeel_control::{AskError, Request, ask};
use evenkeel_host::Record;
use evenkeel_host::daemon::{Daemon, Settings, serve, socket_path};
use evenkeel_journal::{failpoint, runtime_dir};
use serde_json::Value;

use crate::cli::{DaemonArgs, JoinArgs, LeaveArgs};
use crate::config;
use crate::run::{balancing_options, machine, speed_source, supervisor};

/// Where root's daemon listens, which serves everybody.
const SYSTEM_DIR: &str = "/run/evenkeel";

/// Runs the daemon until it is told to end.
///
/// # Errors
/// It cannot start: another one runs, a flag or the configuration makes no sense, or the machine
/// cannot be read.
pub fn main(args: &DaemonArgs, file: Option<&Path>) -> Result<i32> {
    failpoint::arm(args.faults.abort_at);
    let read = || -> Result<_> {
        let config = config::load(file)?;
        let options = args.options.clone().or(config.run);
        let daemon = args.daemon.clone().or(config.daemon);
        Ok((options, daemon))
    };
    let settings = || -> Result<Settings> {
        let (options, daemon) = read()?;
        let options = balancing_options(&options, args.dry_run)?;
        Ok(Settings { options, names: daemon.names, cgroups: daemon.cgroups })
    };
    let (options, daemon) = read()?;
    let machine = machine(speed_source(options.speed.as_deref())?)
        .context("without the CPUs in /sys/devices/system/cpu nothing can be balanced")?;
    let dir = runtime_dir()?;
    serve(
        Daemon {
            socket: args.job.clone().unwrap_or_else(|| socket_path(&dir)),
            dir,
            settings: settings()?,
            reload: &|| settings().map_err(|why| format!("{why:#}")),
            override_user: options.override_user,
            supervisor: supervisor(&args.faults),
            metrics: daemon.metrics,
        },
        machine,
    )?;
    Ok(0)
}

/// The socket of one's own daemon if there is one, else of the system's.
fn socket() -> PathBuf {
    let own = runtime_dir().ok().map(|dir| socket_path(&dir)).filter(|path| path.exists());
    own.unwrap_or_else(|| socket_path(Path::new(SYSTEM_DIR)))
}

/// Has a process that was just started balanced by the daemon.
///
/// # Errors
/// There is no daemon, or it refuses.
pub fn join(pid: u32) -> Result<()> {
    ask(&socket(), &Request::new("join").with("pid", pid))?;
    Ok(())
}

/// `evenkeel join`.
///
/// # Errors
/// There is no daemon, or it refuses.
pub fn join_command(args: &JoinArgs) -> Result<i32> {
    let request = Request::new("join");
    let request = match (args.pid, &args.name, &args.cgroup) {
        (Some(pid), _, _) => request.with("pid", pid),
        (_, Some(name), _) => request.with("name", name.as_str()),
        (_, _, Some(cgroup)) => request.with("cgroup", cgroup.as_str()),
        _ => bail!("say who is to join: a process number, --name or --cgroup"),
    };
    let answer = ask(&socket(), &request)?;
    for program in answer["programs"].as_array().into_iter().flatten() {
        let words = program["command"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        println!("{} (pid {}) is balanced", words.join(" "), program["pid"]);
    }
    Ok(0)
}

/// `evenkeel leave`.
///
/// # Errors
/// There is no daemon, or it refuses.
pub fn leave_command(args: &LeaveArgs) -> Result<i32> {
    ask(&socket(), &Request::new("leave").with("pid", args.pid))?;
    Ok(0)
}

/// What daemons look after, as far as it is ours: the system's, our own, and those of jobs.
pub fn records() -> Vec<Record> {
    let own = runtime_dir().ok().into_iter().flat_map(|dir| std::fs::read_dir(dir).ok());
    let mut sockets: Vec<PathBuf> = own.flatten().flatten().map(|entry| entry.path()).collect();
    sockets.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    let system = socket_path(Path::new(SYSTEM_DIR));
    if system.exists() && !sockets.contains(&system) {
        sockets.push(system);
    }
    sockets.sort();
    sockets.iter().flat_map(|socket| records_at(socket)).collect()
}

fn records_at(socket: &Path) -> Vec<Record> {
    let answer = ask(socket, &Request::new("status"));
    if matches!(answer, Err(AskError::Nobody { .. })) {
        // Left by a daemon that was killed.
        return Vec::new();
    }
    let answer = answer.map_err(anyhow::Error::from);
    let records = answer.and_then(|answer| Ok(serde_json::from_value(answer)?));
    records.unwrap_or_else(|why| {
        tracing::warn!("{why:#}; what it looks after is not shown");
        Vec::new()
    })
}
