//! The requests of the daemon's control socket: decoded here, carried out by `programs.rs`. A user sees
//! and changes the user's own programs only; root, all.

use evenkeel_control::{Answer, Peer, Request};
use nix::errno::Errno;
use serde_json::{Map, Value, json};

use super::admission::{ProcessToJoin, Refusal, refuse};
use super::programs::Programs;
use super::statistics::Statistics;
use super::told::ToldProgram;
use crate::clock::monotonic_ns;
use crate::proof::Proven;

const KNOWN: &str = "join, leave, watch, observe, figures, tell, status, summary, ended, stats, \
                     stats_meta, quotas, connections";

/// A request, decoded without a look at the system: its processes may not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonRequest {
    /// A process joins.
    JoinProcess(ProcessToJoin),
    /// A process joins as a part of an MPI job.
    JoinJob {
        /// The process.
        pid: i32,
        /// The job.
        job: String,
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
    /// The program of this process is only watched, or balanced again.
    Watch {
        /// The process.
        pid: i32,
        /// Only watched.
        watch: bool,
    },
    /// The process that asks will balance the program of this process by itself, and wants the daemon to
    /// account that program.
    Observe {
        /// The process.
        pid: i32,
        /// The observed program that it is a rank of; `None`: it is a program by itself.
        program: Option<u32>,
    },
    /// The accounted figures of the CPUs, and of an observed program.
    Figures(Option<u32>),
    /// The process that asks balances a program by itself, and tells what is known of its gain.
    Tell(ToldProgram),
    /// The programs.
    Status,
    /// How the program of this process went.
    Summary {
        /// The process.
        pid: i32,
        /// When it was started ([`ProcessToJoin::start`]).
        start: Option<u64>,
    },
    /// The programs that ended or left last.
    Ended,
    /// The daemon's counters.
    Statistics,
    /// What each counter means.
    Meta,
    /// How much of each quota each user has used.
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
            "watch" => {
                only(args, &["pid", "watch"])?;
                match (args.get("pid"), args.get("watch")) {
                    (Some(pid), Some(watch)) => {
                        Ok(Self::Watch { pid: number(pid)?, watch: flag(watch)? })
                    }
                    _ => refuse(Errno::EINVAL, "give pid and watch"),
                }
            }
            "observe" => {
                only(args, &["pid", "program"])?;
                let missing = || Refusal { errno: Errno::EINVAL, why: "give pid".to_owned() };
                let pid = number(args.get("pid").ok_or_else(missing)?)?;
                let program = args.get("program").map(number).transpose()?;
                let program = program.map(|program| u32::try_from(program).unwrap_or(0));
                Ok(Self::Observe { pid, program })
            }
            "figures" => {
                only(args, &["program"])?;
                let program = args.get("program").map(number).transpose()?;
                Ok(Self::Figures(program.map(|program| u32::try_from(program).unwrap_or(0))))
            }
            "tell" => decode_told(args).map(Self::Tell),
            "status" => only(args, &[]).map(|()| Self::Status),
            "summary" => {
                only(args, &["pid", "start"])?;
                let missing = || Refusal { errno: Errno::EINVAL, why: "give pid".to_owned() };
                let pid = number(args.get("pid").ok_or_else(missing)?)?;
                Ok(Self::Summary { pid, start: args.get("start").map(ticks).transpose()? })
            }
            "ended" => only(args, &[]).map(|()| Self::Ended),
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
    if let Some(job) = args.remove("job") {
        return match exactly_one(&args, &["pid", "name", "cgroup"])? {
            ("pid", value) => Ok(DaemonRequest::JoinJob { pid: number(value)?, job: text(&job)? }),
            _ => refuse(Errno::EINVAL, "a job takes processes only: give pid"),
        };
    }
    let (start, watch) = (args.remove("start"), args.remove("watch"));
    let is_of_process = start.is_some() || watch.is_some();
    match exactly_one(&args, &["pid", "name", "cgroup"])? {
        ("pid", value) => Ok(DaemonRequest::JoinProcess(ProcessToJoin {
            pid: number(value)?,
            start: start.as_ref().map(ticks).transpose()?,
            watch: watch.as_ref().map(flag).transpose()?.unwrap_or_default(),
        })),
        _ if is_of_process => refuse(Errno::EINVAL, "start and watch are of one process: give pid"),
        ("name", value) => Ok(DaemonRequest::JoinNamed(text(value)?)),
        (_, value) => Ok(DaemonRequest::JoinCgroup(text(value)?)),
    }
}

fn decode_told(args: &Map<String, Value>) -> Result<ToldProgram, Refusal> {
    only(args, &["proven", "pace_milli", "step"])?;
    let proven = args.get("proven").cloned().unwrap_or_default();
    let proven = serde_json::from_value::<Proven>(proven)
        .map_err(|why| Refusal { errno: Errno::EINVAL, why: format!("proven: {why}") })?;
    let pace_milli = args.get("pace_milli").map(milli).transpose()?;
    let step = args.get("step").map(text).transpose()?.unwrap_or_default();
    ToldProgram::new(proven, pace_milli, step)
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
        DaemonRequest::JoinJob { pid, job } => programs.join_job(pid, &job, peer)?,
        DaemonRequest::JoinProcess(process) => programs.join_process(&process, peer)?,
        DaemonRequest::JoinNamed(name) => programs.join_named(&name, peer)?,
        DaemonRequest::JoinCgroup(path) => programs.join_cgroup(&path, peer)?,
        DaemonRequest::LeaveProcess(pid) => {
            let program = program_of(programs, pid, peer)?;
            return leave(programs, peer, program);
        }
        DaemonRequest::Watch { pid, watch } => {
            let program = program_of(programs, pid, peer)?;
            programs.watch(program, watch, peer)?;
            return Ok(json!({"watch": watch}));
        }
        DaemonRequest::LeaveJob { pid, job } => {
            return Ok(json!({"summary": programs.leave_job(pid, &job, peer)?}));
        }
        DaemonRequest::Leave(program) => return leave(programs, peer, program),
        DaemonRequest::Observe { pid, program } => {
            let program = match program {
                None => programs.observe(pid, peer)?,
                Some(program) => programs.observe_rank(pid, program, peer)?,
            };
            return Ok(json!({"program": program}));
        }
        DaemonRequest::Figures(program) => {
            return Ok(json!({"figures": programs.figures(program, peer)?}));
        }
        DaemonRequest::Tell(told) => {
            return Ok(json!({"program": programs.told.tell(peer, told, monotonic_ns())?}));
        }
        DaemonRequest::Status => return Ok(json!(programs.status(peer))),
        DaemonRequest::Summary { pid, start } => {
            let summary = programs.summary(pid, start, peer)?;
            // In the summary, the reason is a text, from which no value can be made again.
            return Ok(json!({"reason": summary.reason, "summary": summary}));
        }
        DaemonRequest::Ended => return Ok(json!(programs.ended(peer))),
        DaemonRequest::Statistics => return Ok(json!(programs.statistics().seen_by(peer))),
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

fn program_of(programs: &mut Programs, pid: i32, peer: &Peer) -> Result<u32, Refusal> {
    // The list of joined programs before /proc: a process that has ended belongs to no program by /proc,
    // and its number may be another process's by now.
    let by_root = programs.program_of_root(pid, peer);
    by_root.or_else(|| programs.program_of(pid)).ok_or_else(|| Refusal {
        errno: Errno::ESRCH,
        why: format!(
            "process {pid} has not joined, or is not yours: evenkeel status lists your programs"
        ),
    })
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

fn ticks(value: &Value) -> Result<u64, Refusal> {
    let ticks = value.as_u64();
    ticks.map_or_else(|| refuse(Errno::EINVAL, format!("{value} is not a number of ticks")), Ok)
}

fn milli(value: &Value) -> Result<u64, Refusal> {
    let milli = value.as_u64();
    milli.map_or_else(|| refuse(Errno::EINVAL, format!("{value} is not a number")), Ok)
}

fn flag(value: &Value) -> Result<bool, Refusal> {
    let flag = value.as_bool();
    flag.map_or_else(|| refuse(Errno::EINVAL, format!("{value} is neither true nor false")), Ok)
}

fn text(value: &Value) -> Result<String, Refusal> {
    let text = value.as_str().map(str::to_owned);
    text.map_or_else(|| refuse(Errno::EINVAL, format!("{value} is not a string")), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(args: Value) -> Result<DaemonRequest, Errno> {
        let request = Request { req: "join".to_owned(), args: args.as_object().unwrap().clone() };
        DaemonRequest::decode(&request).map_err(|refusal| refusal.errno)
    }

    #[test]
    fn a_program_is_watched_by_its_process_and_a_word() {
        let decode = |args: Value| {
            let args = args.as_object().unwrap().clone();
            DaemonRequest::decode(&Request { req: "watch".to_owned(), args })
                .map_err(|refusal| refusal.errno)
        };
        let asked = |watch| Ok(DaemonRequest::Watch { pid: 7, watch });
        assert_eq!(decode(json!({"pid": 7, "watch": true})), asked(true));
        assert_eq!(decode(json!({"pid": "7", "watch": false})), asked(false));
        for args in [json!({"pid": 7}), json!({"watch": true}), json!({"pid": 7, "watch": 1})] {
            assert_eq!(decode(args.clone()), Err(Errno::EINVAL), "{args}");
        }
    }

    #[test]
    fn a_summary_is_of_a_process_that_may_be_named_with_its_start() {
        let decode = |args: Value| {
            let args = args.as_object().unwrap().clone();
            DaemonRequest::decode(&Request { req: "summary".to_owned(), args })
                .map_err(|refusal| refusal.errno)
        };
        let asked = |start| Ok(DaemonRequest::Summary { pid: 7, start });
        assert_eq!(decode(json!({"pid": 7})), asked(None));
        assert_eq!(decode(json!({"pid": 7, "start": 9})), asked(Some(9)));
        for args in [json!({}), json!({"start": 9}), json!({"pid": 7, "start": "x"})] {
            assert_eq!(decode(args.clone()), Err(Errno::EINVAL), "{args}");
        }
    }

    #[test]
    fn a_process_is_observed_by_itself_or_as_a_rank_of_a_program() {
        let decode = |args: Value| {
            let args = args.as_object().unwrap().clone();
            DaemonRequest::decode(&Request { req: "observe".to_owned(), args })
                .map_err(|refusal| refusal.errno)
        };
        let asked = |program| Ok(DaemonRequest::Observe { pid: 7, program });
        assert_eq!(decode(json!({"pid": 7})), asked(None));
        assert_eq!(decode(json!({"pid": 7, "program": 3})), asked(Some(3)));
        for args in [json!({}), json!({"program": 3}), json!({"pid": 7, "job": "a"})] {
            assert_eq!(decode(args.clone()), Err(Errno::EINVAL), "{args}");
        }
    }

    #[test]
    fn a_balancer_tells_what_is_known_of_a_gain() {
        let decode = |args: Value| {
            let args = args.as_object().unwrap().clone();
            DaemonRequest::decode(&Request { req: "tell".to_owned(), args })
                .map_err(|refusal| refusal.errno)
        };
        let told = |proven, pace_milli, step: &str| {
            Ok(DaemonRequest::Tell(ToldProgram::new(proven, pace_milli, step.to_owned()).unwrap()))
        };
        let all = json!({"proven": "gains", "pace_milli": 1220, "step": "77.0"});
        assert_eq!(decode(all), told(Proven::Gains, Some(1_220), "77.0"));
        assert_eq!(decode(json!({"proven": "nothing"})), told(Proven::Nothing, None, ""));
        for args in [
            json!({}),
            json!({"proven": "much"}),
            json!({"proven": "gains", "pace_milli": -1}),
            json!({"proven": "gains", "pace_milli": 0}),
            json!({"proven": "gains", "step": 77}),
            json!({"proven": "gains", "step": "app"}),
            json!({"proven": "gains", "pid": 7}),
        ] {
            assert_eq!(decode(args.clone()), Err(Errno::EINVAL), "{args}");
        }
    }

    #[test]
    fn a_process_may_be_named_with_its_start() {
        let process =
            |start, watch| Ok(DaemonRequest::JoinProcess(ProcessToJoin { pid: 7, start, watch }));
        assert_eq!(join(json!({"pid": 7})), process(None, false));
        assert_eq!(join(json!({"pid": 7, "start": 9, "watch": true})), process(Some(9), true));
        for args in [
            json!({"pid": 7, "start": -1}),
            json!({"pid": 7, "start": "9"}),
            json!({"pid": 7, "watch": 1}),
            json!({"name": "lmp", "watch": true}),
            json!({"cgroup": "/a", "start": 9}),
            json!({"pid": 7, "job": "a", "watch": true}),
            json!({"pid": 7, "until": 9}),
            json!({"start": 9}),
        ] {
            assert_eq!(join(args.clone()), Err(Errno::EINVAL), "{args}");
        }
        let job = DaemonRequest::JoinJob { pid: 7, job: "a".to_owned() };
        assert_eq!(join(json!({"pid": 7, "job": "a"})), Ok(job));
    }
}
