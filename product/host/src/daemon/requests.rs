//! The requests of the daemon's control socket. A user sees and changes only own programs; root, all.

use evenkeel_control::{Answer, Peer, Request};
use nix::errno::Errno;
use serde_json::{Map, Value, json};

use super::admission::{Refusal, refuse};
use super::programs::Programs;
use super::statistics::Statistics;

const KNOWN: &str = "join, leave, observe, figures, status, stats, stats_meta, quotas, connections";

/// A request, decoded: nothing of the system was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonRequest {
    /// A process joins, as a part of an MPI job if that has a name.
    JoinProcess {
        /// The process.
        pid: i32,
        /// The job.
        job: Option<String>,
    },
    /// All programs with this command name join.
    JoinNamed(String),
    /// All processes of this cgroup join.
    JoinCgroup(String),
    /// The program of this process leaves.
    LeaveProcess(i32),
    /// This rank of an MPI job has ended.
    LeaveJob {
        /// The rank's process.
        pid: i32,
        /// The job.
        job: String,
    },
    /// The program with this number leaves.
    Leave(u32),
    /// The process that asks balances the program of this process itself, and wants its figures.
    Observe(i32),
    /// The figures of the CPUs, and of a program that is observed.
    Figures(Option<u32>),
    /// The programs.
    Status,
    /// Figures.
    Statistics,
    /// What the figures mean.
    Meta,
    /// What each user has, and may have.
    Quotas,
}

impl DaemonRequest {
    /// Decodes a request.
    ///
    /// # Errors
    /// There is no such request, or it has not these arguments.
    pub fn decode(request: &Request) -> Result<Self, Refusal> {
        let args = &request.args;
        match request.req.as_str() {
            "join" => decode_join(args),
            "leave" if args.contains_key("job") => {
                only(args, &["pid", "job"])?;
                let missing = || Refusal { errno: Errno::EINVAL, why: "give pid, too".to_owned() };
                let pid = number(args.get("pid").ok_or_else(missing)?)?;
                Ok(Self::LeaveJob { pid, job: text(&args["job"])? })
            }
            "leave" => match exactly_one(args, &["pid", "program"])? {
                ("pid", value) => Ok(Self::LeaveProcess(number(value)?)),
                (_, value) => Ok(Self::Leave(u32::try_from(number(value)?).unwrap_or(0))),
            },
            "observe" => Ok(Self::Observe(number(exactly_one(args, &["pid"])?.1)?)),
            "figures" => {
                only(args, &["program"])?;
                let program = args.get("program").map(number).transpose()?;
                Ok(Self::Figures(program.map(|program| u32::try_from(program).unwrap_or(0))))
            }
            "status" => only(args, &[]).map(|()| Self::Status),
            // Clients of scx_stats name a target. There is only one here.
            "stats" => only(args, &["target"]).map(|()| Self::Statistics),
            "quotas" => only(args, &[]).map(|()| Self::Quotas),
            "stats_meta" => Ok(Self::Meta),
            other => refuse(Errno::ENOSYS, format!("no request \"{other}\"; there are {KNOWN}")),
        }
    }
}

fn decode_join(args: &Map<String, Value>) -> Result<DaemonRequest, Refusal> {
    let mut args = args.clone();
    let job = args.remove("job");
    match (exactly_one(&args, &["pid", "name", "cgroup"])?, job) {
        (("pid", value), job) => {
            let job = job.as_ref().map(text).transpose()?;
            Ok(DaemonRequest::JoinProcess { pid: number(value)?, job })
        }
        (_, Some(_)) => refuse(Errno::EINVAL, "a job takes processes only: give pid"),
        (("name", value), None) => Ok(DaemonRequest::JoinNamed(text(value)?)),
        ((_, value), None) => Ok(DaemonRequest::JoinCgroup(text(value)?)),
    }
}

/// Answers a request.
pub(crate) fn answer(programs: &mut Programs, peer: &Peer, request: &Request) -> Answer {
    let asked = DaemonRequest::decode(request);
    match asked.and_then(|asked| carry_out(programs, peer, asked)) {
        Ok(value) => Answer::ok(value),
        Err(Refusal { errno, why }) => Answer::refused(errno, why),
    }
}

fn carry_out(programs: &mut Programs, peer: &Peer, asked: DaemonRequest) -> Result<Value, Refusal> {
    let joined = match asked {
        DaemonRequest::JoinProcess { pid, job: Some(job) } => programs.join_job(pid, &job, peer)?,
        DaemonRequest::JoinProcess { pid, job: None } => programs.join_process(pid, peer)?,
        DaemonRequest::JoinNamed(name) => programs.join_named(&name, peer)?,
        DaemonRequest::JoinCgroup(path) => programs.join_cgroup(&path, peer)?,
        DaemonRequest::LeaveProcess(pid) => {
            let program = programs.program_of(pid).ok_or_else(|| Refusal {
                errno: Errno::ESRCH,
                why: format!("process {pid} has not joined, or is not yours"),
            })?;
            return leave(programs, peer, program);
        }
        DaemonRequest::LeaveJob { pid, job } => {
            return Ok(json!({"summary": programs.leave_job(pid, &job, peer)?}));
        }
        DaemonRequest::Leave(program) => return leave(programs, peer, program),
        DaemonRequest::Observe(pid) => return Ok(json!({"program": programs.observe(pid, peer)?})),
        DaemonRequest::Figures(program) => {
            return Ok(json!({"figures": programs.figures(program, peer)?}));
        }
        DaemonRequest::Status => return Ok(json!(programs.status(peer))),
        DaemonRequest::Statistics => return Ok(json!(programs.statistics())),
        DaemonRequest::Meta => return Ok(Statistics::meta()),
        DaemonRequest::Quotas => return Ok(json!(programs.quotas(peer))),
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

fn leave(programs: &mut Programs, peer: &Peer, program: u32) -> Result<Value, Refusal> {
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

fn text(value: &Value) -> Result<String, Refusal> {
    let text = value.as_str().map(str::to_owned);
    text.map_or_else(|| refuse(Errno::EINVAL, format!("{value} is not a string")), Ok)
}
