//! The requests of the daemon's control socket. A user sees and changes only own programs; root, all.

use evenkeel_control::{Answer, Peer, Request};
use nix::errno::Errno;
use serde_json::{Map, Value, json};

use super::admission::{Refusal, refuse};
use super::programs::Programs;
use super::statistics::Statistics;

const KNOWN: &str = "join, leave, status, stats, stats_meta, quotas, connections";

/// Answers a request.
pub(crate) fn answer(programs: &mut Programs, peer: &Peer, request: &Request) -> Answer {
    let result = match request.req.as_str() {
        "join" => join(programs, peer, &request.args),
        "leave" => leave(programs, peer, &request.args),
        "status" => only(&request.args, &[]).map(|()| json!(programs.status(peer))),
        // Clients of scx_stats name a target. There is only one here.
        "stats" => only(&request.args, &["target"]).map(|()| json!(programs.statistics())),
        "quotas" => only(&request.args, &[]).map(|()| json!(programs.quotas(peer))),
        "stats_meta" => Ok(Statistics::meta()),
        other => refuse(Errno::ENOSYS, format!("no request \"{other}\"; there are {KNOWN}")),
    };
    match result {
        Ok(value) => Answer::ok(value),
        Err(Refusal { errno, why }) => Answer::refused(errno, why),
    }
}

fn join(programs: &mut Programs, peer: &Peer, args: &Map<String, Value>) -> Result<Value, Refusal> {
    let mut args = args.clone();
    let job = args.remove("job");
    let joined = match (exactly_one(&args, &["pid", "name", "cgroup"])?, job) {
        (("pid", pid), Some(job)) => programs.join_job(number(pid)?, text(&job)?, peer)?,
        (_, Some(_)) => return refuse(Errno::EINVAL, "a job takes processes only: give pid"),
        (one, None) => join_by(programs, peer, one)?,
    };
    let list: Vec<Value> = joined
        .into_iter()
        .filter_map(|program| {
            let joined = programs.get(program, peer)?;
            Some(json!({"program": program, "pid": joined.root.tgid, "command": joined.command}))
        })
        .collect();
    Ok(json!({"programs": list}))
}

fn join_by(programs: &mut Programs, peer: &Peer, by: (&str, &Value)) -> Result<Vec<u32>, Refusal> {
    match by {
        ("pid", value) => programs.join_process(number(value)?, peer),
        ("name", value) => programs.join_named(text(value)?, peer),
        (_, value) => programs.join_cgroup(text(value)?, peer),
    }
}

fn leave(
    programs: &mut Programs,
    peer: &Peer,
    args: &Map<String, Value>,
) -> Result<Value, Refusal> {
    let program = match exactly_one(args, &["pid", "program"])? {
        ("pid", value) => {
            let pid = number(value)?;
            programs.program_of(pid).ok_or_else(|| Refusal {
                errno: Errno::ESRCH,
                why: format!("process {pid} has not joined, or is not yours"),
            })?
        }
        (_, value) => u32::try_from(number(value)?).unwrap_or(0),
    };
    programs.leave(program, peer)?;
    Ok(json!({"program": program}))
}

fn only(args: &Map<String, Value>, known: &[&str]) -> Result<(), Refusal> {
    match args.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => refuse(Errno::EINVAL, format!("this request has no argument \"{name}\"")),
        None => Ok(()),
    }
}

fn exactly_one<'a>(
    args: &'a Map<String, Value>,
    known: &[&'a str],
) -> Result<(&'a str, &'a Value), Refusal> {
    only(args, known)?;
    let mut given = args.iter();
    match (given.next(), given.next()) {
        (Some((name, value)), None) => Ok((name, value)),
        _ => refuse(Errno::EINVAL, format!("give exactly one of: {}", known.join(", "))),
    }
}

/// A process or program number, also as text: clients of `scx_stats` send only texts.
fn number(value: &Value) -> Result<i32, Refusal> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_i64().and_then(|number| i32::try_from(number).ok()),
    };
    number.map_or_else(|| refuse(Errno::EINVAL, format!("{value} is not a number")), Ok)
}

fn text(value: &Value) -> Result<&str, Refusal> {
    value.as_str().map_or_else(|| refuse(Errno::EINVAL, format!("{value} is not a string")), Ok)
}
