//! `evenkeel cluster`: what evenkeel did for a job of Slurm, node by node.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `record` | what is kept of a program of a job on its node |
//! | `node` | what one node answers |
//! | `slurm` | asking all nodes of a job by Slurm's commands |
//! | `answers` | what the nodes answer, as it comes |
//! | `report` | from the records to what is said of the job |

mod answers;
mod node;
pub mod record;
mod report;
mod slurm;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

pub use report::{FORMAT, Report};

use crate::cli::{ClusterArgs, ClusterLineArgs, ClusterPart, ClusterReportArgs};
use crate::config;
use crate::exit::UNSUCCESSFUL;

/// Reports on a job; or prints what this node knows of it. Returns the exit code: 1 where a node has no
/// record, or a record cannot be used.
///
/// # Errors
/// The directory of the records cannot be read, or the nodes cannot be asked.
pub fn main(args: &ClusterArgs, config: Option<&Path>) -> Result<i32> {
    match &args.part {
        ClusterPart::Node(args) => node::print(&args.job),
        ClusterPart::Report(args) => report(args, config),
        ClusterPart::Line(args) => line(args, config),
    }
}

/// Prints the line of a step on several nodes. Nothing where each node keeps its own records: none is
/// asked, since the step has ended.
fn line(args: &ClusterLineArgs, config: Option<&Path>) -> Result<i32> {
    let Some(folder) = config::load(config)?.cluster.records else { return Ok(0) };
    let found = record::read(&folder, &args.job).with_context(|| {
        format!("{}: the directory of the records of jobs cannot be read", folder.display())
    })?;
    if let Some(line) = Report::of(&args.job, found, &[]).line_of_step(args.step) {
        let written = std::io::stdout().write_all(format!("evenkeel: {line}\n").as_bytes());
        written.context("cannot write to standard output")?;
    }
    Ok(0)
}

fn report(args: &ClusterReportArgs, config: Option<&Path>) -> Result<i32> {
    let job = &args.job;
    let configured = config::load(config)?.cluster.records.filter(|_| args.nodes.is_none());
    let (found, nodes, place) = match args.from.clone().or(configured) {
        Some(folder) => {
            let place = folder.display().to_string();
            let found = record::read(&folder, job).with_context(|| {
                format!("{place}: the directory of the records of jobs cannot be read")
            })?;
            (found, Vec::new(), place)
        }
        None => {
            let asked = slurm::ask(job, args.nodes.as_deref())?;
            let place = asked.nodes.join(", ");
            (asked.found, asked.nodes, place)
        }
    };
    if found.records.is_empty() && found.problems.is_empty() {
        // Not by eprintln, which panics when standard error is closed.
        let _ = writeln!(
            std::io::stderr(),
            "evenkeel: no record of job {job} ({place}): there is one for each program that has ended \
             under srun --evenkeel, or under evenkeel run without --quiet, and was not killed by SIGKILL"
        );
        return Ok(UNSUCCESSFUL);
    }
    let report = Report::of(job, found, &nodes);
    let text =
        if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.to_string() };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(if report.is_complete() { 0 } else { UNSUCCESSFUL })
}
