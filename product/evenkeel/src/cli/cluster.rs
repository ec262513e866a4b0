//! `evenkeel cluster`: what the nodes of a job of Slurm say about it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueHint};
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::whole_number;

/// `evenkeel cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    pub part: ClusterPart,
}

/// Its parts.
#[derive(Debug, Subcommand)]
pub enum ClusterPart {
    /// Show for each node of a job what was gained and lost there, and which node was the slowest.
    ///
    /// Of a job that has ended, and of one that runs. The nodes are asked by a short step of the job
    /// while it runs, or else by a job of their own, which waits for the nodes for at most 30 s. The
    /// exit code is 1 where a node has no record, or a record cannot be used.
    Report(ClusterReportArgs),
    /// Print the records of a job on this node as JSON (`report` starts this on each node).
    #[command(hide = true)]
    Node(ClusterNodeArgs),
    /// Print one line about a step on several nodes that has ended, if the nodes share the directory of
    /// their records (srun's plugin starts this).
    #[command(hide = true)]
    Line(ClusterLineArgs),
}

/// `evenkeel cluster report`.
#[derive(Debug, Args)]
pub struct ClusterReportArgs {
    /// The job's number, or N_M for a task of an array.
    #[arg(value_name = "JOBID")]
    pub job: JobId,
    /// Read the records in this directory, and ask no node [default: `records` of the configuration's
    /// table `[cluster]`, else the nodes are asked].
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "nodes")]
    pub from: Option<PathBuf>,
    /// Ask these nodes, a list as for srun --nodelist [default: those that Slurm knows of the job].
    #[arg(long, value_name = "LIST")]
    pub nodes: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel cluster node`.
#[derive(Debug, Args)]
pub struct ClusterNodeArgs {
    /// The job's number, or N_M for a task of an array.
    #[arg(value_name = "JOBID")]
    pub job: JobId,
}

/// `evenkeel cluster line`.
#[derive(Debug, Args)]
pub struct ClusterLineArgs {
    /// The job's number.
    #[arg(value_name = "JOBID")]
    pub job: JobId,
    /// The step's number.
    #[arg(value_name = "STEP", value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub step: u32,
}

/// Table `[cluster]`: what is kept of jobs of Slurm, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ClusterOptions {
    /// Keep the records of jobs in this directory, which all nodes share and must exist [default: one on
    /// each node].
    pub records: Option<PathBuf>,
}

/// A job, as its user names it: its number, or an array and a task of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobId(String);

impl JobId {
    /// Whether this is the job of that number, or that task of an array, like `70_3`.
    pub fn is(&self, number: u32, array_task: Option<&str>) -> bool {
        self.0 == number.to_string() || array_task == Some(self.0.as_str())
    }

    /// Whether it is named by its place in an array.
    pub fn is_of_array(&self) -> bool {
        self.0.contains('_')
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u32>().ok().filter(|_| is_plain)
        };
        let name = match text.split_once('_') {
            None => number(text).map(|job| job.to_string()),
            Some((array, task)) => {
                number(array).zip(number(task)).map(|(array, task)| format!("{array}_{task}"))
            }
        };
        name.map(Self).ok_or_else(|| {
            "expected the number of a job, like 1234, or 1234_5 for a task of an array".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_its_number_or_its_place_in_an_array() {
        let job = |text: &str| text.parse::<JobId>();
        assert!(job("77").unwrap().is(77, None) && job("77").unwrap().is(77, Some("70_3")));
        assert!(job("70_3").unwrap().is(77, Some("70_3")));
        assert_eq!(job("0077"), job("77"));
        assert!(!job("70_3").unwrap().is(70, None) && !job("7").unwrap().is(77, None));
        for text in ["", "77.0", "70_", "_3", "7 7", "-7", "+7", "99999999999", "--help", "70_3_1"]
        {
            let why = job(text).unwrap_err();
            assert!(why.contains("like 1234"), "{text}: {why}");
        }
    }
}
