//! A cluster of Slurm on this host, for one test: a controller and two nodes, on loopback, with all
//! state in the test's folder. Its daemons die with the test, also if that is killed.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::*;

/// Where Slurm's tracker of cgroups keeps a folder for each node.
const FREEZER: &str = "/sys/fs/cgroup/freezer";

/// Where Slurm's plugin that confines jobs to their CPUs keeps one.
const CPUSETS: &str = "/sys/fs/cgroup/cpuset";

/// The header by which the plugin is built; the rest of Slurm is looked for in PATH and sbin.
const HEADER: &str = "/usr/include/slurm/spank.h";

/// How a test wants its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The plugins that bind tasks, or do not.
    pub task_plugin: &'static str,
    /// What tracks the processes of a step.
    pub proctrack: &'static str,
    /// What starts jobs. Heterogeneous ones are started by backfill alone.
    pub scheduler: &'static str,
    /// The executable that the plugin is told, in place of the one under test.
    pub program: Option<&'static str>,
    /// slurmd runs the script of packaging/slurm before and after each job.
    pub has_epilog: bool,
    /// The nodes may load BPF; otherwise no process there has the rights for it, root's neither.
    pub has_bpf: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            task_plugin: "task/none",
            proctrack: "proctrack/linuxproc",
            scheduler: "sched/builtin",
            program: None,
            has_epilog: false,
            has_bpf: true,
        }
    }
}

/// The trackers of processes that work here. The first one kills only what has not left its step's tree
/// of processes; that of cgroups kills all that is left when the last task has ended.
pub fn trackers() -> Vec<&'static str> {
    let of_cgroups = Path::new(FREEZER).exists().then_some("proctrack/cgroup");
    std::iter::once("proctrack/linuxproc").chain(of_cgroups).collect()
}

/// The running cluster.
pub struct Cluster {
    pub host: Host,
    munged: Option<Child>,
    controller: Option<Child>,
    nodes: [Option<Child>; 2],
    has_bpf: bool,
}

/// A program of the system, by its name.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders.map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// Why no cluster can be set up here.
fn missing() -> Option<String> {
    if !is_root() {
        return Some("it needs root".to_owned());
    }
    let needed = ["slurmctld", "slurmd", "srun", "sbatch", "munged", "cc", "setpriv"];
    let absent: Vec<&str> = needed.into_iter().filter(|name| program(name).is_none()).collect();
    if absent.is_empty() && Path::new(HEADER).exists() {
        return None;
    }
    Some("no Slurm here (scripts/slurm installs it)".to_owned())
}

impl Cluster {
    /// Sets a cluster up and waits until its nodes are idle; or says that the test is skipped.
    pub fn start(test: &str, wanted: Wanted) -> Option<Self> {
        if let Some(why) = missing() {
            evenkeel_skip::skip(test, why);
            return None;
        }
        let host = Host::alone();
        configure(&host, wanted);
        let nodes = [None, None];
        let has_bpf = wanted.has_bpf;
        let mut cluster = Self { host, munged: None, controller: None, nodes, has_bpf };
        cluster.start_munged();
        let controller = cluster.daemon("slurmctld", &["-D", "-i"]);
        cluster.controller = Some(controller);
        for node in 0..2 {
            cluster.start_node(node);
        }
        wait_for("two idle nodes", || cluster.states() == ["idle", "idle"]);
        Some(cluster)
    }

    fn start_munged(&mut self) {
        let file = |name: &str| self.host.path("munge").join(name).display().to_string();
        let mut munged = self.host.command("setpriv");
        munged
            .args(["--reuid=munge", "--regid=munge", "--clear-groups", "--pdeathsig=KILL"])
            .arg(program("munged").unwrap())
            .args(["--foreground", "--force", "--num-threads=2"])
            .arg(format!("--socket={}", file("socket")))
            .arg(format!("--key-file={}", file("key")))
            .arg(format!("--pid-file={}", file("pid")))
            .arg(format!("--seed-file={}", file("seed")))
            .arg(format!("--log-file={}", file("log")));
        self.munged = Some(silent(&mut munged).spawn().unwrap());
        wait_for("munged", || Path::new(&file("socket")).exists());
    }

    fn daemon(&self, name: &str, arguments: &[&str]) -> Child {
        let mut command = self.command(program(name).unwrap().to_str().unwrap());
        command.args(arguments);
        // SAFETY: one system call, between fork and exec.
        unsafe { command.pre_exec(die_with_the_test) };
        silent(&mut command).spawn().unwrap()
    }

    pub fn start_node(&mut self, node: usize) {
        let name = format!("node{}", node + 1);
        let words = ["-D", "-N", &name];
        let daemon = if self.has_bpf {
            self.daemon("slurmd", &words)
        } else {
            let slurmd = program("slurmd").unwrap();
            let without = ["--bounding-set=-bpf,-perfmon,-sys_admin", slurmd.to_str().unwrap()];
            self.daemon("setpriv", &[&without[..], &words].concat())
        };
        self.nodes[node] = Some(daemon);
    }

    /// Kills the daemon of a node, as a crash does. Its steps go on.
    pub fn kill_node(&mut self, node: usize) {
        let mut daemon = self.nodes[node].take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// A command that talks to this cluster.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.host.command(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLURM") {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.host.path("slurm.conf")).env("LC_ALL", "C");
        command
    }

    /// `srun` on the first node, with these words; a step that hangs is ended by Slurm.
    pub fn srun(&self, words: &[&str]) -> Command {
        let mut command = self.command("srun");
        command.args(["--nodelist=node1", "--time=2", "--quiet"]).args(words);
        command
    }

    /// Submits a script, and returns the job's number.
    pub fn sbatch(&self, flags: &[&str], script: &str) -> u32 {
        let mut command = self.command("sbatch");
        command.args(["--parsable", "--time=2"]).args(flags);
        let submitted = output_of(&mut command, format!("#!/bin/sh\n{script}\n").as_bytes());
        assert!(submitted.status.success(), "{submitted:?}");
        text(&submitted.stdout).trim().parse().unwrap()
    }

    fn ask(&self, command: &str, arguments: &[&str]) -> String {
        text(&output(self.command(command).args(arguments)).stdout)
    }

    /// The states of the nodes, like `idle`.
    pub fn states(&self) -> Vec<String> {
        let said = self.ask("sinfo", &["--noheader", "--Node", "--format=%t"]);
        said.lines().map(str::to_owned).collect()
    }

    /// The jobs that have not ended.
    pub fn jobs(&self) -> Vec<String> {
        let said = self.ask("squeue", &["--noheader", "--format=%i %t"]);
        said.lines().map(str::to_owned).collect()
    }

    /// What `scontrol` shows of a job under this name.
    pub fn of_job(&self, job: u32, name: &str) -> String {
        let said = self.ask("scontrol", &["show", "job", &job.to_string()]);
        let mut words = said.split_whitespace();
        let found =
            words.find_map(|word| word.strip_prefix(&format!("{name}=")).map(str::to_owned));
        found.unwrap_or_default()
    }

    /// `scontrol`, which must succeed.
    pub fn scontrol(&self, words: &[&str]) {
        let done = output(self.command("scontrol").args(words));
        assert!(done.status.success(), "{words:?}: {done:?}");
    }

    /// The number of the job that runs alone, once it does.
    pub fn running_job(&self) -> u32 {
        let running = || {
            let jobs = self.jobs();
            jobs.iter().find_map(|job| job.strip_suffix(" R")?.parse::<u32>().ok())
        };
        wait_for("a job that runs", || running().is_some());
        running().unwrap()
    }

    /// `evenkeel cluster report`.
    pub fn report(&self, words: &[&str]) -> Output {
        output(self.command(EVENKEEL).args(["cluster", "report"]).args(words))
    }

    pub fn scancel(&self, words: &[&str]) {
        output(self.command("scancel").args(words));
    }

    /// Waits until no job, no step and no process of evenkeel is left.
    pub fn wait_for_no_process(&self) {
        wait_for("the end of all jobs", || self.jobs().is_empty());
        wait_for("the end of all steps", || self.processes_named("slurmstepd").is_empty());
        // The balancer of a step is started by /proc/self/exe; its supervisor has a name of its own.
        for name in ["evenkeel", "exe", "evenkeel-super"] {
            wait_for("the end of evenkeel", || self.processes_named(name).is_empty());
        }
    }

    /// Does the same; evenkeel has left nothing then.
    pub fn wait_for_nothing_left(&self) {
        self.wait_for_no_process();
        assert_eq!(self.left(), Vec::<PathBuf>::new(), "files are left");
        let states = self.states();
        // An idle node may still be planned for a heterogeneous job that has run meanwhile.
        let is_idle = |state: &String| ["idle", "plnd"].contains(&state.as_str());
        assert!(states.len() == 2 && states.iter().all(is_idle), "{states:?}");
    }

    /// Processes of this cluster with this name.
    pub fn processes_named(&self, name: &str) -> Vec<i32> {
        let is_named = |pid: &i32| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            comm.trim() == name
        };
        self.host.processes().into_iter().filter(is_named).collect()
    }

    /// What evenkeel left of root's: journals, records, sockets.
    pub fn left(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.host.runtime()).into_iter().flatten().flatten();
        let sockets = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
        sockets.chain(self.host.journals()).chain(self.host.files_of_runs()).collect()
    }

    /// The epilog of packaging/slurm, as slurmd runs it for a job of this user.
    pub fn epilog(&self, user: u32) -> Output {
        let mut epilog = self.command(&from_root("packaging/slurm/epilog"));
        output(epilog.env("EVENKEEL", EVENKEEL).env("SLURM_JOB_UID", user.to_string()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for pid in self.processes_named("slurmstepd") {
                kill(pid, libc::SIGKILL);
            }
            for log in ["node1.log", "controller.log"] {
                let text = std::fs::read_to_string(self.host.path(log)).unwrap_or_default();
                let last: Vec<&str> = text.lines().rev().take(15).collect();
                println!("{log}:");
                last.iter().rev().for_each(|line| println!("  {line}"));
            }
            return self.end_daemons(libc::SIGKILL);
        }
        self.end_daemons(libc::SIGTERM);
        assert_eq!(self.left(), Vec::<PathBuf>::new(), "files are left");
    }
}

impl Cluster {
    /// Ends the daemons, and removes the folders that Slurm leaves behind in the tree of cgroups.
    fn end_daemons(&mut self, signal: i32) {
        let nodes = self.nodes.iter_mut();
        for daemon in nodes.chain([&mut self.controller, &mut self.munged]) {
            let Some(mut daemon) = daemon.take() else { continue };
            kill(daemon.id() as i32, signal);
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while daemon.try_wait().unwrap().is_none() {
                if std::time::Instant::now() > deadline {
                    daemon.kill().unwrap();
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        for node in ["node1", "node2"] {
            for root in [FREEZER, CPUSETS] {
                let _ = std::fs::remove_dir(Path::new(root).join(format!("slurm_{node}")));
            }
        }
    }
}

/// Why jobs cannot be confined to their CPUs here.
pub fn why_not_confined() -> Option<String> {
    let is_there = Path::new(CPUSETS).join("cpuset.cpus").exists();
    (!is_there).then(|| "there are no cpusets of cgroup v1".to_owned())
}

/// The cpusets of jobs that are still there: those of steps that have not ended, or that a process in
/// them keeps.
pub fn cpusets_of_jobs() -> Vec<PathBuf> {
    let nodes = ["node1", "node2"].map(|node| Path::new(CPUSETS).join(format!("slurm_{node}")));
    let users = nodes.iter().flat_map(|node| folders(node));
    users.flat_map(|user| folders(&user)).collect()
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// A figure beside its goal, for people: no test asserts on how long something takes.
pub fn beside_the_goal(found_ms: f64, goal_ms: f64) -> String {
    let verdict = if found_ms <= goal_ms { "reached" } else { "missed" };
    format!("wanted {goal_ms:.0} ms at most: goal {verdict}")
}

/// A file of the project.
pub fn from_root(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join(path).display().to_string()
}

/// Between fork and exec: a system call only.
fn die_with_the_test() -> std::io::Result<()> {
    // SAFETY: two integers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    Ok(())
}

fn silent(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// A free port for each of the daemons.
fn ports<const N: usize>() -> [u16; N] {
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners: [_; N] = std::array::from_fn(|_| listen());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn configure(host: &Host, wanted: Wanted) {
    let folder = |name: &str| {
        std::fs::create_dir(host.path(name)).unwrap();
        host.path(name)
    };
    let munge = folder("munge");
    for state in ["state", "spool"] {
        folder(state);
    }
    std::fs::write(munge.join("key"), [7; 128]).unwrap();
    std::fs::set_permissions(munge.join("key"), std::fs::Permissions::from_mode(0o400)).unwrap();
    let owner = Command::new("chown").args(["-R", "munge:munge"]).arg(&munge).status().unwrap();
    assert!(owner.success());
    let plugin = host.path("spank_evenkeel.so");
    let program = wanted.program.unwrap_or(EVENKEEL);
    let built = Command::new(from_root("packaging/slurm/build")).arg(&plugin).status().unwrap();
    assert!(built.success(), "the plugin does not compile");
    let stack = format!("required {} program={program}\n", plugin.display());
    std::fs::write(host.path("plugstack.conf"), stack).unwrap();
    let is_confined = wanted.task_plugin.contains("task/cgroup");
    let constrain = if is_confined { "ConstrainCores=yes\n" } else { "" };
    let cgroups = format!("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n{constrain}");
    std::fs::write(host.path("cgroup.conf"), cgroups).unwrap();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let (name, dir) = (name.trim(), host.path(""));
    let dir = dir.to_str().unwrap().trim_end_matches('/');
    let [controller, first, second] = ports();
    let Wanted { task_plugin, proctrack, scheduler, .. } = wanted;
    let cpus = all().len();
    let scripts = if wanted.has_epilog { install_epilog(host) } else { String::new() };
    let text = format!(
        "ClusterName=evenkeel\n\
         SlurmctldHost={name}(127.0.0.1)\n\
         SlurmctldPort={controller}\n\
         SlurmUser=root\n\
         AuthInfo=socket={dir}/munge/socket\n\
         StateSaveLocation={dir}/state\n\
         SlurmdSpoolDir={dir}/spool/%n\n\
         SlurmctldPidFile={dir}/controller.pid\n\
         SlurmdPidFile={dir}/%n.pid\n\
         SlurmctldLogFile={dir}/controller.log\n\
         SlurmdLogFile={dir}/%n.log\n\
         PlugStackConfig={dir}/plugstack.conf\n\
         TaskProlog={dir}/task-prolog\n\
         ProctrackType={proctrack}\n\
         TaskPlugin={task_plugin}\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         SchedulerType={scheduler}\n\
         SchedulerParameters=batch_sched_delay=0,bf_interval=1\n\
         MpiDefault=none\n\
         ReturnToService=2\n\
         KillWait=1\n\
         NodeName=node1 NodeHostname={name} NodeAddr=127.0.0.1 Port={first} CPUs={cpus}\n\
         NodeName=node2 NodeHostname={name} NodeAddr=127.0.0.1 Port={second} CPUs={cpus}\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=5\n\
         {scripts}"
    );
    std::fs::write(host.path("slurm.conf"), text).unwrap();
    let prolog = host.path("task-prolog");
    std::fs::write(&prolog, "#!/bin/sh\necho export FROM_TASK_PROLOG=yes\n").unwrap();
    std::fs::set_permissions(&prolog, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Installs the epilog as docs/how-to/slurm.md has it: slurmd hands it no variable of ours. Returns the
/// lines for slurm.conf.
fn install_epilog(host: &Host) -> String {
    let script = host.path("epilog");
    let mut sed = Command::new("sed");
    sed.arg(format!("2i EVENKEEL={EVENKEEL}")).arg(from_root("packaging/slurm/epilog"));
    let text = output(&mut sed);
    assert!(text.status.success(), "{text:?}");
    std::fs::write(&script, text.stdout).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("Prolog={0}\nEpilog={0}\n", script.display())
}
