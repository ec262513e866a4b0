//! Slurm: a job array, each task of which makes one part. Slurm queues the tasks and runs them where
//! there is room. A task that fails puts itself back into Slurm's queue, as often as it may. Where
//! a node fails, Slurm puts its tasks back.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::folder::{Folder, Plan};
use super::{Spread, Told};
use crate::engine_error::EngineError;
use crate::grid::fnv1a;

pub(super) const NAME: &str = "slurm";

const REMEDY: &str = "it is in Debian's package slurm-client: apt-get install slurm-client, on a \
                      machine that belongs to a cluster";

/// How often to look whether parts are done: a look at files.
const LOOK: Duration = Duration::from_millis(100);
/// How often to ask Slurm whether its job still exists: a request to the controller.
const ASK: Duration = Duration::from_secs(3);
/// What parts have written may be seen later here than Slurm sees their end.
const LATE: Duration = Duration::from_secs(1);

/// What each task of the array runs, with the number of retries and the command as arguments.
const SCRIPT: &str = include_str!("slurm.sh");

/// The name of the jobs that make rows for this file: found again by the next command.
fn job_name(out: &Path) -> String {
    format!("evenkeel-sweep-{:016x}", fnv1a(out.as_os_str().as_encoded_bytes().iter().copied()))
}

fn output(command: &mut Command) -> Result<Output, EngineError> {
    command.stdin(Stdio::null()).output().map_err(|source| EngineError::NotInstalled {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
        remedy: REMEDY,
    })
}

/// The numbers of this user's jobs that wait or run for this file.
pub(super) fn jobs_of(out: &Path) -> Result<Vec<String>, EngineError> {
    let mut command = Command::new("squeue");
    command.args(["--noheader", "--me", "--format=%F", "--name"]).arg(job_name(out));
    let answer = output(&mut command)?;
    if !answer.status.success() {
        return Err(EngineError::failed("squeue", &answer.stderr));
    }
    let said = String::from_utf8_lossy(&answer.stdout).into_owned();
    let mut jobs: Vec<String> = said.split_whitespace().map(str::to_owned).collect();
    jobs.dedup();
    Ok(jobs)
}

/// Submits the parts, and waits for their end.
///
/// # Errors
/// They cannot be submitted.
pub(super) fn run(
    spread: &Spread,
    out: &Path,
    folder: &Folder,
    plan: &Plan,
    tell: &mut dyn FnMut(Told),
) -> Result<(), EngineError> {
    let script = folder.path().join("job.sh");
    let not_written = |why: io::Error| {
        EngineError::failed(&script.display().to_string(), why.to_string().as_bytes())
    };
    std::fs::write(&script, SCRIPT).map_err(not_written)?;
    let most = spread.at_once.map_or(String::new(), |most| format!("%{most}"));
    // In the name of a log `%` begins a part that Slurm fills in.
    let log = folder.log("").display().to_string().replace('%', "%%");
    let mut command = Command::new("sbatch");
    command
        .args(["--parsable", "--ntasks=1", "--cpus-per-task=1", "--requeue", "--open-mode=append"])
        .arg(format!("--job-name={}", job_name(out)))
        .arg(format!("--array=0-{}{most}", plan.parts.len().saturating_sub(1)))
        .arg(format!("--output={log}%a"))
        .arg(&script)
        .arg(spread.retries.to_string())
        .args(&spread.command);
    let answer = output(&mut command)?;
    if !answer.status.success() {
        return Err(EngineError::failed("sbatch", &answer.stderr));
    }
    let said = String::from_utf8_lossy(&answer.stdout);
    // The number, and behind a semicolon the cluster, if there are several.
    let job = said.trim().split(';').next().unwrap_or_default();
    let parts = plan.parts.len();
    tell(Told::Said(format!(
        "Slurm's job {job} makes it (parts: {parts}); Ctrl-C leaves it alone, the same command then \
         waits for it, and scancel {job} ends it"
    )));
    wait(out, folder, plan, tell);
    Ok(())
}

/// Waits until all parts are done, or no job for this file is left.
pub(super) fn wait(out: &Path, folder: &Folder, plan: &Plan, tell: &mut dyn FnMut(Told)) {
    let mut asked = Instant::now();
    let mut is_answered = true;
    loop {
        let done = folder.done(plan);
        let runs = done.iter().map(|part| plan.parts[*part].len()).sum();
        tell(Told::Done(runs, plan.runs()));
        if done.len() == plan.parts.len() {
            return;
        }
        if asked.elapsed() >= ASK {
            asked = Instant::now();
            match jobs_of(out) {
                Ok(jobs) if jobs.is_empty() => return sleep(LATE),
                Ok(_) => is_answered = true,
                Err(why) if is_answered => {
                    is_answered = false;
                    tell(Told::Said(format!(
                        "{why}; the parts go on, and so does waiting for them"
                    )));
                }
                Err(_) => {}
            }
        }
        sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_by_their_file() {
        let name = |path: &str| job_name(Path::new(path));
        assert_eq!(name("/a/rows"), name("/a/rows"));
        assert_ne!(name("/a/rows"), name("/b/rows"));
        assert!(name("/a/rows with spaces, %a").bytes().all(|byte| byte.is_ascii_graphic()));
    }
}
