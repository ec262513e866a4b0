//! Slurm's commands, which know the nodes of a job and run `evenkeel cluster node` on each of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use super::answers::{by_task, collect};
use super::node::Answer;
use super::record::Found;
use crate::cli::JobId;
use crate::exit::Impossible;

/// What a report can do without Slurm.
const REMEDY: &str =
    "run this where Slurm's commands are, or give the directory of the records (--from)";
/// The same where the nodes cannot be asked.
const OTHER_WAYS: &str = "ask again later, name other nodes (--nodes), or have the records on a file \
                          system that all nodes share (table [cluster], --from)";
/// What Slurm's commands say where its controller does not answer.
const UNREACHABLE: &str = "Unable to contact slurm controller";
/// ... and where it does, but does not know the job.
const UNKNOWN: &str = "Invalid job id";
/// The states of a node, as `sinfo` abbreviates them, in which it takes no job: down, drained, draining,
/// failed.
const CLOSED: [&str; 3] = ["down", "dr", "fail"];
/// How long the nodes of a job that has ended may be busy with others, in seconds.
const PATIENCE_S: u32 = 30;

/// What the nodes of a job said.
#[derive(Debug, Default)]
pub struct Asked {
    pub found: Found,
    /// The nodes that were asked.
    pub nodes: Vec<String>,
}

/// What Slurm knows of a job.
#[derive(Debug, Default, PartialEq, Eq)]
struct Job {
    /// Its nodes, as a list like `node[1-2]`; of a heterogeneous job, a list for each component.
    nodes: Vec<String>,
    /// Its number, while it runs: the nodes can be asked by a step of it.
    runs_as: Option<String>,
    partition: Option<String>,
}

/// Asks the nodes of a job: these, or those that Slurm knows.
///
/// # Errors
/// There is no Slurm here, it does not know the job (any more), the job is another user's, or no node
/// answers.
pub fn ask(job: &JobId, nodes: Option<&str>) -> Result<Asked> {
    let known = match nodes {
        Some(list) => Job { nodes: vec![list.to_owned()], ..Job::default() },
        None => find(job)?,
    };
    let nodes = expand(&known.nodes.join(","))?;
    // A job of its own would wait for nodes that take none. A step of a running job starts on them, too.
    let closed = if known.runs_as.is_none() { closed(&nodes) } else { BTreeMap::new() };
    let open: Vec<&str> =
        nodes.iter().map(String::as_str).filter(|node| !closed.contains_key(*node)).collect();
    let why_closed =
        closed.iter().map(|(node, state)| format!("{node} takes no job now ({state})"));
    let why_closed: Vec<String> = why_closed.collect();
    if open.is_empty() {
        return not_now(format!("job {job}: {}; {OTHER_WAYS}", why_closed.join(", ")));
    }
    let list = if closed.is_empty() { known.nodes.join(",") } else { open.join(",") };
    let output = start_step(job, &known, &list, open.len())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let answers = by_task(&output.stdout);
    if answers.is_empty() {
        let how = match known.runs_as {
            Some(_) => "a step of the job".to_owned(),
            None => format!("a job of its own, which waits for its nodes for {PATIENCE_S} s"),
        };
        let said = in_a_line(&said);
        return not_now(format!(
            "job {job}: srun could not ask {list} by {how}: {said}; {OTHER_WAYS}"
        ));
    }
    let mut silent: Vec<String> = open.into_iter().map(str::to_owned).collect();
    let mut asked = Asked { nodes, ..Asked::default() };
    asked.found.problems.extend(why_closed);
    for answer in answers.values() {
        match Answer::parse(answer) {
            Ok(answer) => {
                silent.retain(|node| *node != answer.node);
                let found = answer.into_found();
                asked.found.records.extend(found.records);
                asked.found.problems.extend(found.problems);
            }
            Err(why) => asked.found.problems.push(format!("a node's answer: {why}")),
        }
    }
    if !silent.is_empty() && !output.status.success() {
        let problem = format!("{} did not answer: {}", silent.join(", "), in_a_line(&said));
        asked.found.problems.push(problem);
    }
    Ok(asked)
}

/// Asks Slurm's controller, and then its accounting, which few sites without a database have.
fn find(job: &JobId) -> Result<Job> {
    let shown = run("scontrol", ["--oneliner", "show", "job", job.as_str()])?;
    if shown.status.success() {
        let text = String::from_utf8_lossy(&shown.stdout);
        let line = line_of(&text, job)?;
        let mut known = of_controller(job, line)?;
        for component in text.lines().filter(|other| is_further_component(other, line)) {
            let state = field(component, "JobState").unwrap_or("unknown");
            known.nodes.push(check_nodes(job, field(component, "NodeList"), state)?);
        }
        return Ok(known);
    }
    let job_flag = format!("--jobs={job}");
    let format = "--format=JobID,JobIDRaw,NodeList,Partition,UID";
    let words = [job_flag.as_str(), "--allocations", "--noheader", "--parsable2", format];
    let kept = run("sacct", words).ok().filter(|kept| kept.status.success());
    let kept = kept.map(|kept| String::from_utf8_lossy(&kept.stdout).into_owned());
    let kept = kept.as_deref().unwrap_or_default();
    if let Some(line) = line_of_accounting(kept, job)? {
        return of_accounting(job, line, kept);
    }
    Err(why_unknown(job, &in_a_line(&String::from_utf8_lossy(&shown.stderr))))
}

/// Why neither the controller nor the accounting has the job: the first may not answer now, or be none.
fn why_unknown(job: &JobId, said: &str) -> anyhow::Error {
    if said.contains(UNREACHABLE) {
        return Impossible(format!("job {job}: Slurm cannot be reached: {said}; {OTHER_WAYS}"))
            .into();
    }
    if !said.contains(UNKNOWN) {
        return Impossible(format!("job {job}: scontrol failed: {said}; {REMEDY}")).into();
    }
    anyhow!(
        "job {job}: Slurm does not know it: {said}; without accounting it forgets a job some minutes \
         after its end: name the job's nodes (--nodes), or give the directory of the records (--from)"
    )
}

/// The error of what Slurm cannot do now.
fn not_now<T>(why: String) -> Result<T> {
    Err(Impossible(why).into())
}

/// Whether a line of `scontrol` is about this job: that of an array has one for each task.
fn is_of(line: &str, job: &JobId) -> bool {
    let number = |name: &str| field(line, name)?.parse::<u32>().ok();
    let array = number("ArrayJobId").zip(number("ArrayTaskId"));
    let array = array.map(|(array, task)| format!("{array}_{task}"));
    number("JobId").is_some_and(|number| job.is(number, array.as_deref()))
}

/// The line of the job; of an array there is one for each task.
///
/// # Errors
/// None of the lines is of the job: it is an array.
fn line_of<'a>(text: &'a str, job: &JobId) -> Result<&'a str> {
    if text.trim().is_empty() {
        return Ok("");
    }
    let line = text.lines().find(|line| is_of(line, job));
    line.with_context(|| array_error(job))
}

/// Whether a line of `scontrol` is about another component of the heterogeneous job of a line.
fn is_further_component(other: &str, line: &str) -> bool {
    let leader = field(line, "HetJobId");
    leader.is_some() && field(other, "HetJobId") == leader && other != line
}

/// Whether a line of `sacct` is about exactly this job. The last task of an array has the array's own
/// number, too, and is not what the array's number means.
fn is_accounted(line: &str, job: &JobId) -> bool {
    let mut fields = line.split('|');
    let mut next = || fields.next().unwrap_or_default();
    let (name, number) = (next(), next());
    let is_task_of_it = name.strip_prefix(job.as_str()).is_some_and(|rest| rest.starts_with('_'));
    name == job.as_str() || (number == job.as_str() && !is_task_of_it)
}

/// The line of the job in what `sacct` says, if it says anything.
///
/// # Errors
/// None of the lines is of the job: it is an array.
fn line_of_accounting<'a>(text: &'a str, job: &JobId) -> Result<Option<&'a str>> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let line = text.lines().rev().find(|line| is_accounted(line, job));
    line.map(Some).with_context(|| array_error(job))
}

/// What is said of an array where one job is meant.
fn array_error(job: &JobId) -> String {
    format!("job {job} is an array: name one of its tasks, as in {job}_1")
}

/// The value of a field in a line of `NAME=VALUE` words.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
    line.split_whitespace().find_map(value)
}

fn of_controller(job: &JobId, line: &str) -> Result<Job> {
    let user = field(line, "UserId").unwrap_or_default();
    let uid = user.rsplit_once('(').map(|(_, uid)| uid.trim_end_matches(')'));
    check_user(job, uid)?;
    let state = field(line, "JobState").unwrap_or("unknown");
    check_leader(job, field(line, "HetJobId"))?;
    let nodes = vec![check_nodes(job, field(line, "NodeList"), state)?];
    let runs = matches!(state, "RUNNING" | "SUSPENDED");
    Ok(Job {
        nodes,
        runs_as: field(line, "JobId").filter(|_| runs).map(str::to_owned),
        partition: field(line, "Partition").map(str::to_owned),
    })
}

/// What a line of `sacct` says, and the others of the text, if these are further components.
fn of_accounting(job: &JobId, line: &str, text: &str) -> Result<Job> {
    let mut fields = line.split('|');
    let mut next = || fields.next();
    let (name, _number, nodes, partition, uid) = (next(), next(), next(), next(), next());
    check_user(job, uid)?;
    // A component's name, like 77+1, begins with the number of the heterogeneous job.
    let leader = name.and_then(|name| name.split_once('+')).map(|(leader, _)| leader);
    check_leader(job, leader)?;
    let mut nodes = vec![check_nodes(job, nodes, "unknown")?];
    let component = format!("{job}+");
    let is_further = |other: &&str| other.starts_with(&component) && *other != line;
    for other in text.lines().filter(is_further) {
        nodes.push(check_nodes(job, other.split('|').nth(2), "unknown")?);
    }
    let partition = partition.filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(Job { nodes, runs_as: None, partition })
}

/// # Errors
/// The job is another user's.
fn check_user(job: &JobId, uid: Option<&str>) -> Result<()> {
    let own = nix::unistd::geteuid().as_raw();
    match uid.and_then(|uid| uid.trim().parse::<u32>().ok()) {
        Some(uid) if uid != own => bail!(
            "job {job} is of user {uid}, and only that user can read its records: run this command as \
             that user"
        ),
        _ => Ok(()),
    }
}

/// # Errors
/// The job is a component of the heterogeneous job `leader`, and not its first one.
fn check_leader(job: &JobId, leader: Option<&str>) -> Result<()> {
    let is_other = |leader: &&str| leader.parse().is_ok_and(|leader| !job.is(leader, None));
    match leader.filter(is_other) {
        Some(leader) => {
            bail!("job {job} is a component of the heterogeneous job {leader}: name that")
        }
        None => Ok(()),
    }
}

/// # Errors
/// The job has had no nodes.
fn check_nodes(job: &JobId, nodes: Option<&str>, state: &str) -> Result<String> {
    let is_list =
        |nodes: &&str| !nodes.is_empty() && *nodes != "(null)" && *nodes != "None assigned";
    match nodes.map(str::trim).filter(is_list) {
        Some(nodes) => Ok(nodes.to_owned()),
        None => bail!("job {job} has had no nodes (its state: {state}): ask once it has run"),
    }
}

/// The names in a list like `node[1-2]`.
fn expand(list: &str) -> Result<Vec<String>> {
    let shown = run("scontrol", ["show", "hostnames", list])?;
    let text = String::from_utf8_lossy(&shown.stdout);
    let names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if names.is_empty() {
        let why = in_a_line(&String::from_utf8_lossy(&shown.stderr));
        bail!("\"{list}\" names no node ({why}): give a list like node1,node[5-7]");
    }
    Ok(names)
}

/// The nodes that take no job now, and the state of each. Where `sinfo` does not tell, none.
fn closed(nodes: &[String]) -> BTreeMap<String, String> {
    let list = format!("--nodes={}", nodes.join(","));
    let shown = run("sinfo", ["--noheader", "--Node", "--format=%N %t", &list]);
    let text = shown.map(|shown| String::from_utf8_lossy(&shown.stdout).into_owned());
    closed_in(&text.unwrap_or_default())
}

fn closed_in(text: &str) -> BTreeMap<String, String> {
    let closed = text.lines().filter_map(|line| {
        let (node, state) = line.trim().split_once(' ')?;
        let is_closed = CLOSED.iter().any(|closed| state.starts_with(closed));
        is_closed.then(|| (node.to_owned(), state.to_owned()))
    });
    closed.collect()
}

/// Runs this executable on each node of a list.
fn start_step(job: &JobId, known: &Job, list: &str, nodes: usize) -> Result<Output> {
    let program = std::env::current_exe().context("this executable cannot be found")?;
    let mut srun = command("srun");
    if known.runs_as.is_some() && known.nodes.len() > 1 {
        // A step of several components takes no list: it has all nodes of all.
        srun.arg(format!("--het-group=0-{}", known.nodes.len() - 1));
    } else {
        srun.arg(format!("--nodelist={list}"))
            .arg(format!("--nodes={nodes}"))
            .arg(format!("--ntasks={nodes}"));
    }
    // Lines of different nodes are kept apart by a label.
    srun.args(["--ntasks-per-node=1", "--label", "--quiet", "--chdir=/", "--mpi=none", "--wait=0"]);
    // A job that is suspended takes no step: it must not be waited for.
    srun.arg(format!("--immediate={PATIENCE_S}"));
    if let Some(number) = &known.runs_as {
        srun.arg(format!("--jobid={number}")).arg("--overlap");
    } else {
        srun.args(["--overcommit", "--time=1", "--job-name=evenkeel-report"]);
        if let Some(partition) = &known.partition {
            srun.arg(format!("--partition={partition}"));
        }
    }
    // The step is none to be balanced, whatever the job or the user's environment says.
    let help = run("srun", ["--help"])?;
    if String::from_utf8_lossy(&help.stdout).contains("--evenkeel") {
        srun.arg("--evenkeel=off");
    }
    srun.arg(program).args(["cluster", "node", job.as_str()]);
    collect(srun, list, nodes).map_err(|why| not_started(why, "srun"))
}

/// A command of Slurm. What the surrounding job set for its own steps would hold for this one, too.
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        let is_of_job = text.starts_with("SLURM_") || text.starts_with("_SLURM");
        if is_of_job && text != "SLURM_CONF" {
            command.env_remove(variable);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn run<A: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Result<Output> {
    let mut command = command(name);
    command.args(arguments);
    output(command, name)
}

fn output(mut command: Command, name: &str) -> Result<Output> {
    command.output().map_err(|why| not_started(why, name))
}

fn not_started(why: io::Error, name: &str) -> anyhow::Error {
    match why.kind() {
        io::ErrorKind::NotFound => Impossible(format!("no {name} is in PATH: {REMEDY}")).into(),
        _ => anyhow::Error::from(why).context(format!("{name} cannot be started")),
    }
}

/// What a command of Slurm said on standard error, in one line.
fn in_a_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() { "it said nothing".to_owned() } else { lines.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> JobId {
        text.parse().unwrap()
    }

    fn line(user: u32, state: &str, nodes: &str) -> String {
        format!(
            "JobId=77 ArrayJobId=70 ArrayTaskId=3 JobName=x UserId=me({user}) GroupId=me(1) \
             JobState={state} Reason=None Partition=all ReqNodeList=(null) ExcNodeList=(null) \
             NodeList={nodes} BatchHost=node1"
        )
    }

    fn own_uid() -> u32 {
        nix::unistd::geteuid().as_raw()
    }

    #[test]
    fn a_controller_that_does_not_answer_is_told_from_an_unknown_job() {
        let why = |said| why_unknown(&job("77"), said);
        let unknown = why("slurm_load_jobs error: Invalid job id specified");
        assert!(!unknown.is::<Impossible>() && unknown.to_string().contains("does not know it"));
        let silent = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
        let silent = why(silent);
        assert!(silent.is::<Impossible>(), "{silent}");
        assert!(silent.to_string().contains("Slurm cannot be reached: "), "{silent}");
        let unconfigured = why("scontrol: fatal: Could not establish a configuration source");
        assert!(unconfigured.is::<Impossible>(), "{unconfigured}");
        let said = unconfigured.to_string();
        assert!(said.starts_with("job 77: scontrol failed: scontrol: fatal: Could not"), "{said}");
    }

    #[test]
    fn the_nodes_of_a_job_are_read_from_the_controller() {
        let known = |state, nodes| of_controller(&job("77"), &line(own_uid(), state, nodes));
        let running = known("RUNNING", "node[1-2]").unwrap();
        assert_eq!((&running.nodes[0][..], running.runs_as.as_deref()), ("node[1-2]", Some("77")));
        let ended = known("COMPLETED", "node1").unwrap();
        assert_eq!((ended.runs_as, ended.partition.as_deref()), (None, Some("all")));
        let why = known("PENDING", "(null)").unwrap_err().to_string();
        assert!(why.contains("has had no nodes (its state: PENDING)"), "{why}");
        let other = of_controller(&job("77"), &line(own_uid() + 1, "RUNNING", "node1"));
        let why = other.unwrap_err().to_string();
        assert!(why.contains("run this command as that user"), "{why}");
    }

    #[test]
    fn a_heterogeneous_job_has_the_nodes_of_all_components() {
        let component = |number: u32, node: &str| {
            let line = line(own_uid(), "RUNNING", node).replace("JobId=77", "JobId=NUMBER");
            line.replacen("JobId=NUMBER", &format!("JobId={number} HetJobId=77"), 1)
        };
        let (first, second) = (component(77, "node1"), component(78, "node2"));
        assert!(is_further_component(&second, &first) && !is_further_component(&first, &first));
        let other = line(own_uid(), "RUNNING", "node3");
        assert!(!is_further_component(&other, &first) && !is_further_component(&first, &other));
        let why = of_controller(&job("78"), &second).unwrap_err().to_string();
        assert!(why.contains("a component of the heterogeneous job 77: name that"), "{why}");
        assert_eq!(of_controller(&job("77"), &first).unwrap().nodes, ["node1"]);
    }

    #[test]
    fn nodes_that_take_no_job_are_told_by_their_state() {
        let text = "n1 idle\nn2 drain\nn3 down*\nn4 mix\nn2 drain\nn5 drng\nn6 idle*\n";
        let closed = closed_in(text);
        assert_eq!(closed.keys().collect::<Vec<_>>(), ["n2", "n3", "n5"]);
        assert_eq!(closed["n3"], "down*");
    }

    #[test]
    fn a_task_of_an_array_is_found_among_the_lines() {
        let line = line(0, "RUNNING", "node1");
        for (name, is_it) in [("77", true), ("70_3", true), ("70_4", false), ("70", false)] {
            assert_eq!(is_of(&line, &job(name)), is_it, "{name}");
        }
    }

    #[test]
    fn an_array_is_refused_where_one_of_its_tasks_is_meant() {
        let lines = [line(0, "RUNNING", "node1"), line(0, "RUNNING", "node2").replace("77", "70")];
        let lines = lines.join("\n");
        assert!(line_of(&lines, &job("70_3")).unwrap().contains("node1"));
        let alone = line(0, "RUNNING", "node1");
        let why = line_of(&alone, &job("70")).unwrap_err().to_string();
        assert!(why.contains("name one of its tasks, as in 70_1"), "{why}");
        assert_eq!(line_of("", &job("70")).unwrap(), "");
    }

    #[test]
    fn the_accounting_is_read_as_well() {
        let own = own_uid();
        let known = |line: &str, text: &str| of_accounting(&job("77"), line, text);
        let line = format!("77|77|node[1-2]|all|{own}");
        let expected =
            Job { nodes: vec!["node[1-2]".into()], runs_as: None, partition: Some("all".into()) };
        assert_eq!(known(&line, &line).unwrap(), expected);
        assert!(known(&format!("77|77|None assigned|all|{own}"), "").is_err());
        let text = format!("77+0|77|node1|all|{own}\n77+1|78|node2|all|{own}\n");
        let line = line_of_accounting(&text, &job("77")).unwrap().unwrap();
        assert_eq!(known(line, &text).unwrap().nodes, ["node1", "node2"]);
    }

    #[test]
    fn the_accounting_of_a_component_is_not_that_of_a_job() {
        // Asked for the component's number, it tells that component only, or all of them.
        let own = own_uid();
        let second = format!("77+1|78|node2|all|{own}\n");
        let unplaced = format!("77+1|78|None assigned|all|{own}\n");
        let both = format!("77+0|77|node1|all|{own}\n{second}");
        for text in [second, unplaced, both] {
            let line = line_of_accounting(&text, &job("78")).unwrap().unwrap();
            let why = of_accounting(&job("78"), line, &text).unwrap_err().to_string();
            assert!(why.contains("a component of the heterogeneous job 77: name that"), "{why}");
        }
    }

    #[test]
    fn the_accounting_of_an_array_is_that_of_a_task_that_is_named() {
        let text = "70_3|77|node1|all|0\n70_4|70|node2|all|0\n";
        let line = |name: &str| line_of_accounting(text, &job(name));
        for (name, node) in [("70_3", "node1"), ("77", "node1"), ("70_4", "node2")] {
            assert!(line(name).unwrap().unwrap().contains(node), "{name}");
        }
        let why = line("70").unwrap_err().to_string();
        assert!(why.contains("name one of its tasks, as in 70_1"), "{why}");
        let alone = "70|70|node1|all|0";
        assert_eq!(line_of_accounting(alone, &job("70")).unwrap(), Some(alone));
        assert_eq!(line_of_accounting("\n", &job("70")).unwrap(), None);
    }
}
