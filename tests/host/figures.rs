//! The figures that root's daemon hands to users without privileges: exact ones, of a user's own tasks
//! and of no other user's; and what `evenkeel run` does with them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;

use evenkeel_cbinfo::Cbinfo;
use evenkeel_host::{Figures, TaskReading};
use serde_json::{Value, json};

use crate::roles::role;
use crate::running_daemon::Daemon;
use crate::support::*;
use crate::worker::{Worker, lines_of};

/// Another user than `nobody`.
const OTHER: u32 = 60_001;
/// Programs of one user that the daemon observes at a time.
const SHARE: usize = 64;

/// A command of a user, without groups or privilege.
fn by_user(host: &Host, uid: u32, words: &[&str]) -> Command {
    let mut command = host.command("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
    command.arg("--clear-groups").args(words);
    command
}

/// The role: sends each line of its input to the daemon, on a connection of its own; says the answer.
pub fn asker() {
    let path = std::env::var("SOCKET").unwrap();
    for line in std::io::stdin().lines() {
        let mut stream = UnixStream::connect(&path).unwrap();
        writeln!(stream, "{}", line.unwrap()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        say("answer", answer.trim_end());
    }
    // The pipe of what the test harness would print at its end is closed by then.
    std::process::exit(0);
}

/// A process of a user that asks the daemon.
struct Asker {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Asker {
    fn start(host: &Host, daemon: &Daemon, uid: u32) -> Self {
        let mut command = by_user(host, uid, &role("asker"));
        command.env("EVENKEEL_TEST_ROLE", "asker").env("SOCKET", &daemon.socket);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        Self { child, stdin, lines }
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.stdin, "{request}").unwrap();
        let said = self.lines.iter().find_map(|line| {
            let (_, said) = line.split_once("@answer=")?;
            Some(serde_json::from_str(said).unwrap())
        });
        said.unwrap()
    }

    fn observe(&mut self, pid: i32) -> Value {
        self.ask(&json!({"req": "observe", "args": {"pid": pid}}))
    }

    /// Has a program observed, and returns its number.
    fn program_of(&mut self, pid: i32) -> u64 {
        let answer = self.observe(pid);
        assert_eq!(answer["errno"], 0, "{answer}");
        answer["args"]["resp"]["program"].as_u64().unwrap()
    }

    fn figures(&mut self, program: u64) -> Figures {
        figures_of(self.ask(&json!({"req": "figures", "args": {"program": program}})))
    }

    fn end(mut self) {
        drop(self.stdin);
        assert!(ended(&mut self.child).success());
    }
}

fn figures_of(mut answer: Value) -> Figures {
    assert_eq!(answer["errno"], 0, "{answer}");
    serde_json::from_value(answer["args"]["resp"]["figures"].take()).unwrap()
}

/// A daemon with exact figures, or a message that the test is skipped.
fn daemon(test: &str, host: &Host) -> Option<Daemon> {
    let daemon = Daemon::start(host, &["--dry-run"]);
    let answer = daemon.ask(&json!({"req": "figures"}));
    if answer["errno"] == libc::EOPNOTSUPP {
        evenkeel_skip::skip(test, &answer["args"]["resp"]);
        daemon.end();
        return None;
    }
    Some(daemon)
}

/// A worker of a user, with two busy threads.
fn worker_of(host: &Host, uid: u32) -> Worker {
    Worker::start_by(&mut by_user(host, uid, &role("worker")), 2)
}

/// The threads of a process.
fn threads_of(pid: i32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tid = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().file_name().to_str().unwrap().parse().unwrap()
    };
    let mut threads: Vec<u32> = tasks.map(tid).collect();
    threads.sort_unstable();
    threads
}

fn tids(figures: &Figures) -> Vec<u32> {
    let mut tids: Vec<u32> = figures.tasks.iter().map(|figures| figures.task.tid).collect();
    tids.sort_unstable();
    tids
}

#[test]
fn a_user_has_the_figures_of_its_own_tasks_and_of_no_others() {
    let test = "a_user_has_the_figures_of_its_own_tasks_and_of_no_others";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(daemon) = daemon(test, &host) else { return };
    let users = [NOBODY, OTHER];
    let mut askers = users.map(|uid| Asker::start(&host, &daemon, uid));
    let workers = users.map(|uid| worker_of(&host, uid));
    let mut programs = Vec::new();
    for (asker, worker) in askers.iter_mut().zip(&workers) {
        programs.push(asker.program_of(worker.pid));
    }
    for (at, asker) in askers.iter_mut().enumerate() {
        let (own, other) = (&workers[at], &workers[1 - at]);
        let figures = asker.figures(programs[at]);
        assert_eq!(tids(&figures), threads_of(own.pid));
        assert!(figures.tasks.iter().all(|task| task.reading.process == own.pid as u32));
        assert!(all().iter().all(|cpu| figures.cpus.contains_key(&cpu)));
        // Asked for again by the same process, it is the same program.
        assert_eq!(asker.program_of(own.pid), programs[at]);
        let refused = asker.observe(other.pid);
        assert_eq!(refused["errno"], libc::EPERM, "{refused}");
        let request = json!({"req": "figures", "args": {"program": programs[1 - at]}});
        let refused = asker.ask(&request);
        assert_eq!(refused["errno"], libc::ESRCH, "{refused}");
        // Without a program, no task of any user is shown.
        assert!(figures_of(asker.ask(&json!({"req": "figures"}))).tasks.is_empty());
    }
    // Root sees both.
    for (program, worker) in programs.iter().zip(&workers) {
        let request = json!({"req": "figures", "args": {"program": program}});
        assert_eq!(tids(&figures_of(daemon.ask(&request))), threads_of(worker.pid));
    }
    // A program that joins is balanced by the daemon, and observed no more.
    let joined = askers[0].ask(&json!({"req": "join", "args": {"pid": workers[0].pid}}));
    assert_eq!(joined["errno"], 0, "{joined}");
    let request = json!({"req": "figures", "args": {"program": programs[0]}});
    assert_eq!(askers[0].ask(&request)["errno"], libc::ESRCH);
    assert_eq!(askers[0].observe(workers[0].pid)["errno"], libc::EBUSY);
    let status = askers[0].ask(&json!({"req": "status"}));
    assert_eq!(status["args"]["resp"][0]["root"], workers[0].pid, "{status}");
    askers.into_iter().for_each(Asker::end);
    for worker in workers {
        assert!(worker.end().success());
    }
    // The observation ends with the process that asked for it.
    let observed = || daemon.ask(&json!({"req": "stats"}))["args"]["resp"]["observed"].clone();
    wait_for("the end of the observations", || observed() == 0);
    daemon.end();
}

/// The balancer of a job asks for each of its ranks, which no process of the job has started.
#[test]
fn the_ranks_of_a_job_are_observed_as_one_program() {
    let test = "the_ranks_of_a_job_are_observed_as_one_program";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(daemon) = daemon(test, &host) else { return };
    let mut asker = Asker::start(&host, &daemon, NOBODY);
    let ranks = [NOBODY, NOBODY].map(|uid| worker_of(&host, uid));
    let program = asker.program_of(ranks[0].pid);
    let observe = |asker: &mut Asker, pid: i32| {
        asker.ask(&json!({"req": "observe", "args": {"pid": pid, "program": program}}))
    };
    // Neither a process of another user, nor a program of another process.
    let foreign = worker_of(&host, OTHER);
    assert_eq!(observe(&mut asker, foreign.pid)["errno"], libc::EPERM);
    let mut other = Asker::start(&host, &daemon, NOBODY);
    assert_eq!(observe(&mut other, ranks[1].pid)["errno"], libc::ESRCH);
    // The second time nothing is new.
    for _ in 0..2 {
        let answer = observe(&mut asker, ranks[1].pid);
        assert_eq!(answer["args"]["resp"]["program"], program, "{answer}");
    }
    let mut threads = ranks.iter().flat_map(|rank| threads_of(rank.pid)).collect::<Vec<u32>>();
    threads.sort_unstable();
    assert_eq!(tids(&asker.figures(program)), threads);
    assert_eq!(other.observe(ranks[1].pid)["errno"], libc::EBUSY);
    [asker, other].into_iter().for_each(Asker::end);
    for worker in ranks.into_iter().chain([foreign]) {
        assert!(worker.end().success());
    }
    daemon.end();
}

#[test]
fn a_set_user_id_child_is_not_shown_to_its_caller() {
    let test = "a_set_user_id_child_is_not_shown_to_its_caller";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let file = host.path("sleep");
    std::fs::copy("/bin/sleep", &file).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let Some(daemon) = daemon(test, &host) else { return };
    let mut asker = Asker::start(&host, &daemon, NOBODY);
    let script = format!("{} 600 & sleep 600 & wait", file.display());
    let mut shell = by_user(&host, NOBODY, &["sh", "-c", &script]).spawn().unwrap();
    let pid = shell.id() as i32;
    let children = || {
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let list = list.unwrap_or_default();
        list.split_whitespace().map(|child| child.parse().unwrap()).collect::<Vec<i32>>()
    };
    let owner = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line =
            status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or("").to_owned();
        line.split_whitespace().nth(1).and_then(|uid| uid.parse::<u32>().ok())
    };
    let is_sleep = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n")
    };
    wait_for("both children", || {
        let children = children();
        children.len() == 2 && children.iter().all(is_sleep)
    });
    let own: Vec<i32> =
        children().into_iter().filter(|child| owner(child) == Some(NOBODY)).collect();
    if own.len() == 2 {
        evenkeel_skip::skip(test, "set-user-id executables have no effect here");
    } else {
        let program = asker.program_of(pid);
        let mut seen = vec![pid as u32, own[0] as u32];
        seen.sort_unstable();
        assert_eq!(tids(&asker.figures(program)), seen);
        // It is followed, though: root sees it.
        let request = json!({"req": "figures", "args": {"program": program}});
        assert_eq!(tids(&figures_of(daemon.ask(&request))).len(), 3);
    }
    for child in children() {
        kill(child, libc::SIGKILL);
    }
    ended(&mut shell);
    asker.end();
    daemon.end();
}

/// What a task got according to an accounting of this process's own, by thread.
fn account(cbinfo: &mut Cbinfo, tid: u32) -> (u64, u64) {
    let tasks = cbinfo.tasks().unwrap();
    let task = tasks.iter().find(|task| task.tid == tid).unwrap();
    (task.run_ns, task.run_ns + task.stolen_ns)
}

fn reading(figures: &Figures, tid: u32) -> TaskReading {
    figures.tasks.iter().find(|figures| figures.task.tid == tid).unwrap().reading
}

#[test]
fn figures_for_users_are_those_of_roots_own_accounting() {
    let test = "figures_for_users_are_those_of_roots_own_accounting";
    if !needs_root(test) {
        return;
    }
    /// CPU time of the thread that is compared.
    const COMPARED_NS: u64 = 300_000_000;
    /// Between a switch's event in one accounting and in the other.
    const APART_NS: u64 = 1_000_000;
    let host = Host::new();
    let Some(daemon) = daemon(test, &host) else { return };
    let worker = worker_of(&host, NOBODY);
    let tid = worker.threads[0] as u32;
    let mut asker = Asker::start(&host, &daemon, NOBODY);
    let program = asker.program_of(worker.pid);
    let mut cbinfo = Cbinfo::open(&[]).unwrap();
    cbinfo.follow(worker.pid as u32, 1).unwrap();
    // Each reading of the daemon's is between two of our own.
    let mut readings = || {
        let before = account(&mut cbinfo, tid);
        let daemons = reading(&asker.figures(program), tid);
        (before, daemons, account(&mut cbinfo, tid))
    };
    let first = readings();
    let mut last = readings();
    wait_for("CPU time", || {
        last = readings();
        last.0.1 >= first.2.1 + COMPARED_NS
    });
    let on_cpu_ns = |reading: &TaskReading| reading.run_ns + reading.stolen_ns;
    let seen_ns = on_cpu_ns(&last.1) - on_cpu_ns(&first.1);
    let (least_ns, most_ns) = (last.0.1 - first.2.1, last.2.1 - first.0.1);
    println!("on a CPU: {seen_ns} ns, at least {least_ns}, at most {most_ns}");
    assert!(seen_ns + APART_NS >= least_ns && seen_ns <= most_ns + APART_NS);
    // Each accounting measures by itself what an interrupt costs outside its tracepoints.
    let run_ns = last.1.run_ns - first.1.run_ns;
    let (least_ns, most_ns) = (last.0.0 - first.2.0, last.2.0 - first.0.0);
    let apart_ns = APART_NS + most_ns / 20;
    println!("without what was stolen: {run_ns} ns, at least {least_ns}, at most {most_ns}");
    assert!(run_ns + apart_ns >= least_ns && run_ns <= most_ns + apart_ns);
    drop(cbinfo);
    asker.end();
    worker.end();
    daemon.end();
}

/// `evenkeel run` of a user with a runtime directory of its own; the daemon's is root's.
fn run_of(host: &Host, uid: u32, flags: &[&str], program: &[&str]) -> Command {
    evenkeel_of(host, uid, &[&["run"], flags, &["--"], program].concat())
}

/// `evenkeel` of such a user.
fn evenkeel_of(host: &Host, uid: u32, words: &[&str]) -> Command {
    let own = host.path("own");
    std::fs::create_dir_all(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(uid), Some(uid)).unwrap();
    let mut command = by_user(host, uid, &[&[EVENKEEL], words].concat());
    command.env("XDG_RUNTIME_DIR", own);
    command
}

/// The status file of the only run of `run_of`.
fn status_of(host: &Host) -> Option<Value> {
    let files = std::fs::read_dir(host.path("own/evenkeel/run")).ok()?;
    let mut paths = files.flatten().map(|entry| entry.path());
    let path = paths.find(|path| path.extension().is_some_and(|extension| extension == "json"))?;
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn has_intervals(host: &Host, accounting: &str) -> bool {
    status_of(host).is_some_and(|status| {
        status["accounting"] == accounting && status["intervals"].as_u64().unwrap() > 0
    })
}

fn summary(host: &Host) -> Value {
    serde_json::from_slice(&std::fs::read(host.path("own/summary")).unwrap()).unwrap()
}

#[test]
fn doctor_without_privileges_finds_the_daemons_figures() {
    let test = "doctor_without_privileges_finds_the_daemons_figures";
    if !needs_root(test) || two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let Some(daemon) = daemon(test, &host) else { return };
    let words = ["doctor", "--json", "--watch", "100ms"];
    let report = |host: &Host| {
        let run = output(&mut evenkeel_of(host, NOBODY, &words));
        serde_json::from_slice::<Value>(&run.stdout).unwrap_or_else(|why| panic!("{why}: {run:?}"))
    };
    assert_eq!(report(&host)["accounting"], "daemon");
    daemon.end();
    assert_eq!(report(&host)["accounting"], "procfs");
}

#[test]
fn a_run_without_privileges_has_the_daemons_figures() {
    let test = "a_run_without_privileges_has_the_daemons_figures";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(daemon) = daemon(test, &host) else { return };
    let json = host.path("own/summary").display().to_string();
    let flags = [&["--explain", "--json", &json][..], &EAGER].concat();
    let mut command = run_of(&host, NOBODY, &flags, &role("worker"));
    command.stderr(Stdio::piped());
    let mut worker = Worker::start_by(&mut command, 2);
    let said = lines_of(worker.evenkeel.stderr.take().unwrap());
    wait_for("intervals", || has_intervals(&host, "daemon"));
    let status = text(&output(&mut host.evenkeel(["status"])).stdout);
    let line = "User 65534 at the daemon: 0 of 512 programs, 1 of 64 observed for run";
    assert!(status.contains(line), "{status}");
    assert!(worker.end().success());
    let said: Vec<String> = said.iter().collect();
    assert!(said.iter().any(|line| line.contains("ms, by the daemon's cbinfo: CPU ")), "{said:?}");
    let last = said.last().unwrap();
    assert!(last.ends_with(" (figures from the daemon's cbinfo)"), "{said:?}");
    assert_eq!(summary(&host)["accounting"], "daemon");
    // What demands exact figures has them, too.
    let flags = ["--accounting", "cbinfo", "--json", &json];
    let run = output(&mut run_of(&host, NOBODY, &flags, &["sleep", "0.3"]));
    assert!(run.status.success(), "{run:?}");
    assert_eq!(summary(&host)["accounting"], "daemon");
    daemon.end();
}

#[test]
fn a_run_goes_on_by_itself_when_the_daemon_ends_or_stands_still() {
    let test = "a_run_goes_on_by_itself_when_the_daemon_ends_or_stands_still";
    if !needs_root(test) {
        return;
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSTOP] {
        let host = Host::new();
        let Some(daemon) = daemon(test, &host) else { return };
        let json = host.path("own/summary").display().to_string();
        let flags = [&["--json", &json][..], &EAGER].concat();
        let mut command = run_of(&host, NOBODY, &flags, &role("worker"));
        command.stderr(Stdio::piped());
        let mut worker = Worker::start_by(&mut command, 2);
        let said = lines_of(worker.evenkeel.stderr.take().unwrap());
        wait_for("intervals", || has_intervals(&host, "daemon"));
        kill(daemon.pid(), signal);
        wait_for("figures from /proc", || has_intervals(&host, "procfs"));
        let intervals =
            || status_of(&host).map_or(0, |status| status["intervals"].as_u64().unwrap());
        let before = intervals();
        wait_for("more intervals", || intervals() > before);
        assert!(worker.end().success());
        let said: Vec<String> = said.iter().collect();
        let told = said.iter().filter(|line| line.contains("from now on, figures are from /proc"));
        assert_eq!(told.count(), 1, "{said:?}");
        let summary = summary(&host);
        assert_eq!(summary["accounting"], "procfs");
        let why = summary["why_not_exact"].as_str().unwrap();
        assert!(why.contains("daemon.sock"), "{why}");
        // No CPU has lost more time than there was.
        for cpu in summary["cpus"].as_array().unwrap() {
            let ns = |name: &str| cpu[name].as_u64().unwrap();
            let lost_ns = ns("irq_ns") + ns("softirq_ns") + ns("rt_ns") + ns("steal_ns");
            assert!(lost_ns <= ns("elapsed_ns"), "{cpu}");
        }
        if signal == libc::SIGSTOP {
            kill(daemon.pid(), libc::SIGCONT);
            daemon.end();
        }
    }
}

#[test]
fn a_daemon_without_exact_figures_says_so_to_a_run() {
    let test = "a_daemon_without_exact_figures_says_so_to_a_run";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--dry-run", "--accounting", "procfs"]);
    let json = host.path("own/summary").display().to_string();
    let run = output(&mut run_of(&host, NOBODY, &["--json", &json], &["sleep", "0.3"]));
    assert!(run.status.success(), "{run:?}");
    only_summary(&run);
    let why = summary(&host)["why_not_exact"].as_str().unwrap().to_owned();
    assert!(why.contains("CAP_BPF") && why.contains("the daemon has no exact figures"), "{why}");
    daemon.end();
}

#[test]
fn each_user_has_a_share_of_the_figures() {
    let test = "each_user_has_a_share_of_the_figures";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(daemon) = daemon(test, &host) else { return };
    let mut asker = Asker::start(&host, &daemon, NOBODY);
    let mut sleepers: Vec<Child> =
        (0..=SHARE).map(|_| by_user(&host, NOBODY, &["sleep", "600"]).spawn().unwrap()).collect();
    let is_of_nobody = |child: &Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        status.contains("\nUid:\t65534\t65534")
    };
    wait_for("the user's sleepers", || sleepers.iter().all(is_of_nobody));
    let (last, others) = sleepers.split_last().unwrap();
    for sleeper in others {
        asker.program_of(sleeper.id() as i32);
    }
    let refused = asker.observe(last.id() as i32);
    assert_eq!(refused["errno"], libc::EAGAIN, "{refused}");
    // Another user is not affected.
    let mut other = Asker::start(&host, &daemon, OTHER);
    let others = by_user(&host, OTHER, &["sleep", "600"]).spawn().unwrap();
    wait_for("the other user's program", || other.observe(others.id() as i32)["errno"] == 0);
    let status = text(&output(&mut host.evenkeel(["status"])).stdout);
    let line = "User 65534 at the daemon: 0 of 512 programs, 64 of 64 observed for run, ";
    assert!(status.contains(line) && status.contains("1 refused beyond that"), "{status}");
    sleepers.push(others);
    for sleeper in &mut sleepers {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    asker.end();
    other.end();
    daemon.end();
}
