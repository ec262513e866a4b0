//! What one node says of a job: `evenkeel cluster node` prints it, and `report` reads it from all nodes.

use anyhow::Result;
use evenkeel_host::{Accounting, ProgramStatus, Proven};
use evenkeel_journal::{affinity, effective_cpuset};
use evenkeel_machine::CpuSet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{
    EVENKEEL, FORMAT, Found, JobRecord, Measured, check_format, folders_here, read,
};
use crate::cli::JobId;
use crate::launcher::slurm_place;
use crate::status;

/// How an answer begins, in every version.
const BEGIN: &[u8] = b"{\"format\":";

/// The answer of a node.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    format: u32,
    evenkeel: String,
    /// The node's name.
    pub node: String,
    records: Vec<JobRecord>,
    problems: Vec<String>,
}

/// Prints what this node knows of a job, as one line of JSON.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(job: &JobId) -> Result<i32> {
    println!("{}", serde_json::to_string(&Answer::here(job))?);
    Ok(0)
}

impl Answer {
    fn here(job: &JobId) -> Self {
        let node = std::env::var("SLURMD_NODENAME").ok();
        let mut records = running(job);
        let mut problems = Vec::new();
        for folder in folders_here() {
            match read(&folder, job) {
                Ok(found) => {
                    records.extend(found.records);
                    problems.extend(found.problems);
                }
                Err(why) => problems.push(format!("{}: {why}", folder.display())),
            }
        }
        // Where Slurm is tried out, several nodes share a machine.
        records.retain(|record| node.as_ref().is_none_or(|node| *node == record.place.node));
        let node = node.unwrap_or_default();
        Self { format: FORMAT, evenkeel: EVENKEEL.to_owned(), node, records, problems }
    }

    /// Whether an answer begins in this text.
    pub fn begins_in(text: &[u8]) -> bool {
        text.windows(BEGIN.len()).any(|part| part == BEGIN)
    }

    /// The answer that a node printed. What the site's prolog and epilog of tasks print stands around
    /// it.
    ///
    /// # Errors
    /// There is none, or it is one of another version.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let begin = text.windows(BEGIN.len()).position(|part| part == BEGIN);
        let value = begin.and_then(|begin| {
            let values = serde_json::Deserializer::from_slice(&text[begin..]);
            values.into_iter::<Value>().next()?.ok()
        });
        let value = value.ok_or_else(|| {
            let text = String::from_utf8_lossy(text);
            format!("\"{}\" is no answer of evenkeel cluster node", text.trim())
        })?;
        check_format(&value)?;
        serde_json::from_value(value).map_err(|why| why.to_string())
    }

    /// What was found there; a problem is named with the node.
    pub fn into_found(self) -> Found {
        let Self { node, records, problems, .. } = self;
        let problems = problems.into_iter().map(|why| format!("{node}: {why}")).collect();
        Found { records, problems }
    }
}

/// The job's programs that this user's balancers balance here now.
fn running(job: &JobId) -> Vec<JobRecord> {
    let programs = status::read_all().unwrap_or_else(|why| {
        tracing::warn!("{why:#}; programs that run are left out");
        Vec::new()
    });
    let record_of = |program: &ProgramStatus| {
        let variables = std::fs::read(format!("/proc/{}/environ", program.root)).ok()?;
        let place = slurm_place(|name| {
            variables.split(|byte| *byte == 0).find_map(|variable| {
                let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
                String::from_utf8(value.to_vec()).ok()
            })
        })?;
        if !job.is(place.job, place.array_task.as_deref()) {
            return None;
        }
        let measured = Measured::so_far(program, &cpus_of(program.root), so_far(program));
        Some(JobRecord::new(place, measured))
    };
    programs.iter().filter_map(record_of).collect()
}

/// The CPUs that a process may use; empty where that is not known.
fn cpus_of(pid: u32) -> CpuSet {
    let pid = pid as i32;
    let (mask, cpuset) = (affinity::get(pid).unwrap_or_default(), effective_cpuset(pid));
    if cpuset.is_empty() { mask } else { mask.intersection(&cpuset) }
}

/// What came of a program until now, in words.
fn so_far(program: &ProgramStatus) -> String {
    let ProgramStatus { accounting, moves, intervals, gain, shares, .. } = program;
    if *accounting == Accounting::None {
        return status::why_unobserved(program);
    }
    let mut text = format!("{moves} moves in {intervals} intervals so far");
    if gain.proven != Proven::Nothing {
        text = format!("{text}; {gain}");
    }
    match shares {
        Some(shares) => format!("{text}; {shares}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prologs_and_epilogs_print_is_no_part_of_the_answer() {
        let answer = Answer {
            format: FORMAT,
            evenkeel: EVENKEEL.to_owned(),
            node: "n7".to_owned(),
            records: Vec::new(),
            problems: Vec::new(),
        };
        let answer = serde_json::to_string(&answer).unwrap();
        for text in [answer.clone(), format!("modules: {{1}} [{answer}0 errors")] {
            assert_eq!(Answer::parse(text.as_bytes()).unwrap().node, "n7", "{text}");
        }
        for text in ["usage", "[]", "{\"format\":1,"] {
            let why = Answer::parse(text.as_bytes()).unwrap_err();
            assert_eq!(why, format!("\"{text}\" is no answer of evenkeel cluster node"));
        }
    }
}
