//! Which launcher started this process as one rank of several, by the variables that it set: `srun`, or
//! one of MPI. All ranks of a job on a machine find the same name for the job here, and those of other
//! jobs, steps and nodes find another one. And where in a job of Slurm a process is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Variables that launchers set for each rank of MPI, and the option that leaves ranks unbound: MPICH's
/// hydra (and others with PMI), launchers with PMIx, Open MPI.
pub const RANK_VARIABLES: [&str; 3] = ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"];

/// The ranks that were started together on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// The job as text in a file name; `None`: the launcher's process is all that tells one from
    /// another.
    pub name: Option<String>,
    /// The same for people.
    pub title: String,
    /// Whether this is the first rank here; where the launcher does not number the ranks of a machine,
    /// the first one of all.
    pub is_first: bool,
    /// The launcher's option that leaves ranks unbound.
    pub unbind: &'static str,
}

/// What a rank of a job is called among all of its ranks, on all machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankNumber {
    pub number: u32,
    /// How many there are; `None`: the launcher does not say.
    pub count: Option<u32>,
}

/// The rank that a process with these variables is.
pub fn rank_number(variable: impl Fn(&str) -> Option<String>) -> Option<RankNumber> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let mut of_mpi = [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        // PMIx tells the count by a call alone.
        ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    ]
    .into_iter();
    let of_mpi = of_mpi
        .find_map(|(rank, count)| Some(RankNumber { number: number(rank)?, count: number(count) }));
    // The script of a job has a number, too, and starts steps.
    let of_step = || {
        number("SLURM_STEP_ID")?;
        let count = number("SLURM_STEP_NUM_TASKS");
        Some(RankNumber { number: number("SLURM_PROCID")?, count })
    };
    of_mpi.or_else(of_step)
}

/// Where in a job of Slurm a process is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlurmPlace {
    /// The number of its job.
    pub job: u32,
    /// The job as a task of an array, like `70_3`.
    pub array_task: Option<String>,
    /// The number of its step; none: the script of the job.
    pub step: Option<u32>,
    /// How often the job had been requeued before.
    pub restarts: u32,
    /// The name of its node.
    pub node: String,
    /// The node's place among those of the step, from 0.
    pub node_index: u32,
    /// How many nodes the step has.
    pub nodes: u32,
    /// Their names, as Slurm lists them.
    pub node_list: String,
}

/// The place of a process with these variables in a job of Slurm. `None` also for the shell of an
/// allocation, which runs on no node of it.
pub fn slurm_place(variable: impl Fn(&str) -> Option<String>) -> Option<SlurmPlace> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let (job, node_index) = (number("SLURM_JOB_ID")?, number("SLURM_NODEID")?);
    let node = variable("SLURMD_NODENAME").unwrap_or_else(|| format!("node {node_index}"));
    let array = number("SLURM_ARRAY_JOB_ID").zip(number("SLURM_ARRAY_TASK_ID"));
    let step = number("SLURM_STEP_ID");
    let of_step = |name: &str| step.and_then(|_| variable(name));
    Some(SlurmPlace {
        job,
        array_task: array.map(|(array, task)| format!("{array}_{task}")),
        step,
        restarts: number("SLURM_RESTART_COUNT").unwrap_or_default(),
        nodes: of_step("SLURM_STEP_NUM_NODES").and_then(|count| count.parse().ok()).unwrap_or(1),
        node_list: of_step("SLURM_STEP_NODELIST").unwrap_or_else(|| node.clone()),
        node,
        node_index,
    })
}

/// The number of the step of Slurm that a process with these variables is part of, like `77.0`; of the
/// script of a job that of the job. A task of an array has a number as a job of its own.
pub fn step_number(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let SlurmPlace { job, step, .. } = slurm_place(variable)?;
    Some(step.map_or_else(|| job.to_string(), |step| format!("{job}.{step}")))
}

/// The ranks among which this process is one, by its variables. `None` for a single process.
pub fn launched(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    // Before MPI's own variables: `srun --mpi=pmi2` sets both, and a script of the step may be between
    // srun and the rank. A launcher of MPI has its daemons started by srun, one on each node.
    step(&variable).or_else(|| ranks_of_mpi(&variable))
}

/// Several tasks of one job step of Slurm on this node.
fn step(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let (job, step) = (number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?);
    let (node, local) = (number("SLURM_NODEID")?, number("SLURM_LOCALID")?);
    if tasks_on(&variable("SLURM_STEP_TASKS_PER_NODE")?, node)? < 2 {
        return None;
    }
    let host = variable("SLURMD_NODENAME").unwrap_or_else(|| format!("node {node}"));
    Some(Launched {
        // The node, too: several may share a machine where Slurm is tested.
        name: Some(format!("slurm-{job}.{step}-{node}")),
        title: format!("step {job}.{step} on {host}"),
        is_first: local == 0,
        unbind: "srun --cpu-bind=none",
    })
}

/// The parent of this process, if that sends each signal to all processes that it has started, and not
/// to this one alone: Slurm's daemon of a job step. To the script of a batch job it sends them alone,
/// and where it tracks processes by their cgroup, to its own children alone. In doubt none does: a
/// signal that comes twice is the smaller evil.
pub fn signals_all() -> Option<u32> {
    let parent = std::os::unix::process::parent_id();
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    let is_of_step = is_of_step(name.trim(), std::env::var("SLURM_STEP_ID").ok().as_deref());
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    (is_of_step && !is_tracked_by_cgroup(&cgroups)).then_some(parent)
}

/// Whether a step's processes are tracked by their cgroup, by the lines of /proc/PID/cgroup.
fn is_tracked_by_cgroup(lines: &str) -> bool {
    let tracks = |controllers: &str| {
        controllers.is_empty() || controllers.split(',').any(|controller| controller == "freezer")
    };
    lines.lines().any(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next().unwrap_or_default();
        tracks(controllers) && parts.next().is_some_and(|path| path.contains("/step_"))
    })
}

fn is_of_step(parent: &str, step: Option<&str>) -> bool {
    parent == "slurmstepd" && step.is_some_and(|step| step.parse::<u32>().is_ok())
}

/// The tasks on a node, by a list like `2(x3),1`: the first three nodes have two.
fn tasks_on(list: &str, node: u32) -> Option<u32> {
    let mut nodes = 0u32;
    let mut most = None;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let tasks: u32 = tasks.parse().ok()?;
        nodes = nodes.checked_add(times)?;
        if node < nodes {
            return Some(tasks);
        }
        most = most.max(Some(tasks));
    }
    // A component of a heterogeneous job lists its own nodes, but counts those of all.
    most
}

fn ranks_of_mpi(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let rank = RANK_VARIABLES.into_iter().find_map(&variable)?;
    let is_open_mpi = variable("OMPI_COMM_WORLD_RANK").is_some();
    let local = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"].into_iter().find_map(&variable);
    Some(Launched {
        name: None,
        title: "an MPI job".to_owned(),
        is_first: local.unwrap_or(rank) == "0",
        unbind: if is_open_mpi { "mpirun --bind-to none" } else { "mpiexec -bind-to none" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Launched> {
        launched(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const STEP: [(&str, &str); 6] = [
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "3"),
        ("SLURM_NODEID", "1"),
        ("SLURM_LOCALID", "0"),
        ("SLURMD_NODENAME", "n7"),
        ("SLURM_STEP_TASKS_PER_NODE", "1,2(x2)"),
    ];

    fn step_with(name: &str, value: &str) -> Option<Launched> {
        let others = STEP.into_iter().filter(|(known, _)| *known != name);
        of(&others.chain([(name, value)]).collect::<Vec<_>>())
    }

    #[test]
    fn tasks_of_a_step_are_ranks_without_a_variable_of_mpi() {
        let found = of(&STEP).unwrap();
        assert_eq!(found.name.as_deref(), Some("slurm-77.3-1"));
        assert_eq!(found.title, "step 77.3 on n7");
        assert!(found.is_first && found.unbind == "srun --cpu-bind=none");
        assert!(!step_with("SLURM_LOCALID", "1").unwrap().is_first);
    }

    #[test]
    fn a_task_that_is_alone_on_its_node_is_no_rank() {
        assert_eq!(step_with("SLURM_NODEID", "0"), None);
        assert_eq!(step_with("SLURM_STEP_TASKS_PER_NODE", "1(x4)"), None);
        // Unless a launcher of MPI, which srun started once on each node, has started it.
        let mut variables = STEP.to_vec();
        variables[2].1 = "0";
        variables.push(("PMI_RANK", "5"));
        assert_eq!(of(&variables).unwrap().name, None);
    }

    #[test]
    fn a_batch_script_and_an_allocation_are_no_ranks() {
        for missing in STEP.map(|(name, _)| name) {
            if missing != "SLURMD_NODENAME" {
                let others = STEP.into_iter().filter(|(name, _)| *name != missing);
                assert_eq!(of(&others.collect::<Vec<_>>()), None, "without {missing}");
            }
        }
    }

    #[test]
    fn numbers_that_are_none_make_no_name() {
        for (name, value) in [
            ("SLURM_JOB_ID", "../../etc"),
            ("SLURM_STEP_ID", "batch"),
            ("SLURM_NODEID", "-1"),
            ("SLURM_LOCALID", ""),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x"),
            ("SLURM_STEP_TASKS_PER_NODE", "two"),
        ] {
            assert_eq!(step_with(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn a_list_of_tasks_names_each_node() {
        let tasks = |node| tasks_on("2(x2),1,4", node);
        assert_eq!([0, 1, 2, 3].map(tasks), [Some(2), Some(2), Some(1), Some(4)]);
        assert_eq!(tasks(9), Some(4), "a node of another component");
        assert_eq!(tasks_on("2(x4294967295),2(x4294967295)", u32::MAX), None);
    }

    #[test]
    fn a_rank_has_its_number_among_all() {
        let rank = |variables: &[(&str, &str)]| {
            rank_number(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
            .map(|rank| (rank.number, rank.count))
        };
        let step = [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8")];
        assert_eq!(rank(&step), None, "the script of a job");
        assert_eq!(rank(&[&step[..], &STEP].concat()), Some((5, Some(8))));
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        assert_eq!(rank(&[&step[..], &STEP, &hydra].concat()), Some((1, Some(4))));
        assert_eq!(rank(&[("PMIX_RANK", "3")]), Some((3, None)));
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(rank(&open_mpi), Some((0, Some(2))));
        assert_eq!(rank(&[]), None);
    }

    #[test]
    fn a_task_knows_its_place_and_a_script_and_a_shell_theirs() {
        let place = |variables: &[(&str, &str)]| {
            slurm_place(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let nodes = [("SLURM_STEP_NUM_NODES", "3"), ("SLURM_STEP_NODELIST", "n[6-8]")];
        let of_step = place(&[&STEP[..], &nodes].concat()).unwrap();
        assert_eq!((of_step.job, of_step.step, of_step.node_index), (77, Some(3), 1));
        assert_eq!((of_step.node.as_str(), of_step.node_list.as_str()), ("n7", "n[6-8]"));
        assert_eq!((of_step.nodes, of_step.restarts, of_step.array_task), (3, 0, None));
        let array = [("SLURM_ARRAY_JOB_ID", "70"), ("SLURM_ARRAY_TASK_ID", "5")];
        let script = [("SLURM_JOB_ID", "77"), ("SLURM_NODEID", "0"), ("SLURMD_NODENAME", "n6")];
        let again = [("SLURM_RESTART_COUNT", "2")];
        let of_script = place(&[&script[..], &nodes, &array, &again].concat()).unwrap();
        assert_eq!((of_script.step, of_script.nodes, of_script.restarts), (None, 1, 2));
        assert_eq!(of_script.node_list, "n6");
        assert_eq!(of_script.array_task.as_deref(), Some("70_5"));
        assert_eq!(place(&[("SLURM_JOB_ID", "77")]), None, "the shell of salloc");
        let number = |variables: &[(&str, &str)]| {
            step_number(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(number(&STEP).as_deref(), Some("77.3"));
        assert_eq!(number(&script).as_deref(), Some("77"));
        assert_eq!(number(&[]), None);
    }

    #[test]
    fn only_the_daemon_of_a_step_signals_all() {
        assert!(is_of_step("slurmstepd", Some("0")));
        assert!(!is_of_step("slurmstepd", None), "a batch script");
        assert!(!is_of_step("bash", Some("0")), "a script of the step");
        assert_eq!(signals_all(), None);
    }

    #[test]
    fn a_step_in_a_cgroup_of_its_own_is_tracked_by_that() {
        let v1 = "5:freezer:/slurm_n1/uid_0/job_7/step_0\n3:cpu,cpuacct:/\n";
        let v2 = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n";
        assert!(is_tracked_by_cgroup(v1) && is_tracked_by_cgroup(v2));
        let confined = "5:freezer:/\n4:cpuset:/slurm/uid_0/job_7/step_0\n0::/\n";
        assert!(!is_tracked_by_cgroup(confined) && !is_tracked_by_cgroup(""));
    }

    #[test]
    fn launchers_of_mpi_are_known() {
        let rank = |name, local| of(&[(name, "3"), (local, "0")]).unwrap();
        let open_mpi = rank("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK");
        assert!(open_mpi.is_first && open_mpi.unbind == "mpirun --bind-to none");
        assert!(rank("PMI_RANK", "MPI_LOCALRANKID").is_first);
        assert!(!rank("PMIX_RANK", "OTHER").is_first);
        assert!(of(&[("PMIX_RANK", "0")]).unwrap().is_first, "the first of all");
        assert!(!of(&[("PMI_RANK", "0"), ("MPI_LOCALRANKID", "1")]).unwrap().is_first);
        assert_eq!(of(&[]), None);
    }
}
