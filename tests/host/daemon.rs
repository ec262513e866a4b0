//! The daemon with real programs: which of them may join and leave, and what is left when the daemon is
//! killed, stopped, started again or sent malformed requests.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::roles::role;
use crate::running_daemon::{Daemon, lone_worker};
use crate::schema::check;
use crate::support::*;
use crate::worker::Worker;

fn joined(host: &Host) -> Vec<u32> {
    host.status().iter().map(|run| run["root"].as_u64().unwrap() as u32).collect()
}

pub fn says(command: &mut Command, code: i32, what: &str) {
    let output = output(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(said.contains(what), "{said}");
}

const HARD: [&str; 2] = ["--placement", "hard"];

#[test]
fn a_program_joins_is_moved_and_leaves() {
    if two_cpus("a_program_joins_is_moved_and_leaves").is_none() {
        return;
    }
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let daemon = Daemon::start(&host, &[&["--placement", placement][..], &EAGER].concat());
        assert!(host.status().is_empty());
        let (mut one, two) = (lone_worker(&host), lone_worker(&host));
        for worker in [&one, &two] {
            let pid = worker.pid.to_string();
            let answer = output(&mut host.evenkeel(["join", &pid]));
            assert!(
                text(&answer.stdout).contains(&format!("(pid {pid}) joined the daemon")),
                "{answer:?}"
            );
        }
        let mut roots = [one.pid as u32, two.pid as u32];
        roots.sort_unstable();
        let mut shown = joined(&host);
        shown.sort_unstable();
        assert_eq!(shown, roots);
        for worker in [&one, &two] {
            worker.wait_moved(&host, 2);
        }
        // A second join changes nothing.
        assert!(output(&mut host.evenkeel(["join", &one.pid.to_string()])).status.success());
        assert_eq!(joined(&host).len(), 2);
        // Nor does the join of a child of a program that has joined.
        let child: i32 = one.ask("orphan", "orphan").parse().unwrap();
        assert!(output(&mut host.evenkeel(["join", &child.to_string()])).status.success());
        assert_eq!(joined(&host).len(), 2);
        kill(child, libc::SIGKILL);
        assert!(output(&mut host.evenkeel(["leave", &one.pid.to_string()])).status.success());
        assert!(one.is_as(&all()), "{placement}");
        assert_eq!(joined(&host), [two.pid as u32]);
        let pins = host.pins_of(one.threads[0]);
        two.wait_moved(&host, 4);
        assert_eq!(host.pins_of(one.threads[0]), pins, "it was moved after it had left");
        let explained = text(&output(&mut host.evenkeel(["explain"])).stdout);
        assert!(explained.contains("moved task"), "{explained}");
        daemon.end();
        assert!(two.is_as(&all()), "{placement}");
        assert!(one.end().success() && two.end().success());
    }
}

#[test]
fn the_last_decisions_about_a_program_that_ended_are_told() {
    if two_cpus("the_last_decisions_about_a_program_that_ended_are_told").is_none() {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let worker = lone_worker(&host);
    let pid = worker.pid.to_string();
    assert!(output(&mut host.evenkeel(["join", &pid])).status.success());
    worker.wait_moved(&host, 2);
    assert!(worker.end().success());
    wait_for("its end to be seen", || host.status().is_empty());
    let said = |words: &[&str]| {
        let run = output(&mut host.evenkeel(words));
        assert!(run.status.success() && run.stderr.is_empty(), "{words:?}: {run:?}");
        text(&run.stdout)
    };
    let explained = said(&["explain", &pid]);
    assert!(explained.contains(" ago): ") && explained.contains("moved task"), "{explained}");
    let heading = format!("(pid {pid}, daemon {}, ", daemon.pid());
    for command in ["status", "explain"] {
        let listed = said(&[command]);
        assert!(listed.contains("Ended or left lately") && listed.contains(&heading), "{listed}");
        let shown = serde_json::from_str(&said(&[command, "--json"])).unwrap();
        check(command, &shown);
        assert_eq!(shown["programs"], json!([]), "{shown:#}");
        assert_eq!(shown["ended"][0]["root"].to_string(), pid, "{shown:#}");
        assert!(!shown["ended"][0]["decisions"].as_array().unwrap().is_empty(), "{shown:#}");
    }
    if is_root() {
        says(&mut as_nobody(&host, &["explain", &pid]), 2, "no program with pid");
    }
    daemon.end();
}

#[test]
fn the_papers_policy_selects_tasks_across_programs() {
    if two_cpus("the_papers_policy_selects_tasks_across_programs").is_none() {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--policy", "paper", "--interval", "100ms"]);
    let workers = [lone_worker(&host), lone_worker(&host)];
    for worker in &workers {
        assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
    }
    // A program of one task by itself could only pull.
    for worker in &workers {
        let pid = worker.pid.to_string();
        wait_for("it to be swapped", || {
            text(&output(&mut host.evenkeel(["explain", &pid])).stdout).contains(": swap: ECPT")
        });
    }
    daemon.end();
    for worker in workers {
        assert!(worker.end().success());
    }
}

#[test]
fn run_joins_and_without_a_daemon_balances_itself() {
    if two_cpus("run_joins_and_without_a_daemon_balances_itself").is_none() {
        return;
    }
    let host = Host::new();
    let start = |flags: &[&str]| {
        let mut command = host.run(&[flags, &EAGER].concat(), &role("worker"));
        let worker = Worker::start_by(command.stderr(Stdio::piped()), 2);
        worker.wait_moved(&host, 2);
        worker
    };
    let said_to_the_end = |mut worker: Worker| {
        let mut stderr = worker.evenkeel.stderr.take().unwrap();
        assert!(worker.end().success());
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        said
    };
    let worker = start(&["-q", "--join"]);
    assert!(host.status()[0]["program"].is_null());
    let said = said_to_the_end(worker);
    assert_eq!(said.lines().count(), 1, "{said}");
    let why = "no daemon runs; start one: evenkeel daemon, or systemctl start evenkeel";
    let instead = "; this process balances the program";
    assert!(said.contains(&format!("{why}{instead}")), "{said}");
    assert_eq!(said.matches("daemon runs").count(), 1, "{said}");

    let daemon = Daemon::start(&host, &EAGER);
    let worker = start(&["--join"]);
    assert_eq!(joined(&host), [worker.pid as u32]);
    assert!(host.status()[0]["program"].is_number());
    // The daemon has the figures, and forgets the program once it has told them.
    let pid = worker.pid.to_string();
    let said = said_to_the_end(worker);
    let [warning, summary] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert!(warning.contains("by its own options, not by --policy paper"), "{said}");
    assert!(summary.starts_with("evenkeel: worst CPU "), "{said}");
    assert!(summary.contains("; moved tasks "), "{said}");
    assert!(host.status().is_empty());
    let explained = text(&output(&mut host.evenkeel(["explain", &pid])).stdout);
    assert!(explained.contains("moved task"), "{explained}");
    // One that is over at once, and two without a summary.
    let short = output(&mut host.run(&["--join"], &["true"]));
    let last = text(&short.stderr).lines().last().map(str::to_owned);
    let is_summary = |line: String| line.starts_with("evenkeel: ") && !line.contains("no summary");
    assert!(short.status.success() && last.is_some_and(is_summary), "{short:?}");
    let quiet = output(&mut host.run(&["-q", "--join"], &["sleep", "0.3"]));
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
    let worker = start(&["--join"]);
    drop(daemon);
    wait_for("the supervisor's work", || host.journals().is_empty() && worker.is_as(&all()));
    let said = said_to_the_end(worker);
    let why = "evenkeel: no summary: no daemon runs; start one: evenkeel daemon";
    assert!(said.lines().last().is_some_and(|line| line.starts_with(why)), "{said}");
}

#[test]
fn a_command_that_runs_in_a_joined_program_has_no_summary_of_its_own() {
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--dry-run"]);
    let mut shell = host.command("sh");
    let script = format!("read line; {EVENKEEL} run --join -- sleep 0.2");
    shell.args(["-c", &script]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    assert!(output(&mut host.evenkeel(["join", &shell.id().to_string()])).status.success());
    drop(shell.stdin.take());
    let mut said = String::new();
    shell.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(ended(&mut shell).success());
    let why = "evenkeel: no summary: the daemon knows no program of process ";
    assert!(said.starts_with(why) && said.contains("a part of another one"), "{said}");
    wait_for("the end of the shell to be seen", || host.status().is_empty());
    daemon.end();
}

#[test]
fn programs_join_by_name_and_by_cgroup() {
    if two_cpus("programs_join_by_name_and_by_cgroup").is_none() {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let file = host.path("evenkeel-napper");
    std::fs::copy("/bin/sleep", &file).unwrap();
    let napper = || host.command(&file).arg("600").spawn().unwrap();
    let mut nappers = [napper(), napper()];
    wait_for("both to have joined", || {
        output(&mut host.evenkeel(["join", "--name", "evenkeel-napper"])).status.success()
            && joined(&host).len() == 2
    });
    for napper in &mut nappers {
        napper.kill().unwrap();
        napper.wait().unwrap();
    }
    wait_for("their end to be seen", || host.status().is_empty());

    let Some(group) = Cgroup::new("evenkeel-test-join") else {
        evenkeel_skip::skip(
            "programs_join_by_name_and_by_cgroup",
            "in part: no cgroup can be made",
        );
        daemon.end();
        return;
    };
    let path = group.0.to_str().unwrap().to_owned();
    says(&mut host.evenkeel(["join", "--cgroup", &path]), 2, "has no process");
    let (one, two) = (lone_worker(&host), lone_worker(&host));
    group.take_in(one.pid);
    assert!(output(&mut host.evenkeel(["join", "--cgroup", &path])).status.success());
    one.wait_moved(&host, 2);
    // A process that enters the cgroup later joins, too.
    group.take_in(two.pid);
    two.wait_moved(&host, 2);
    assert_eq!(joined(&host), [one.pid as u32]);
    // The cgroup is deleted when its processes have ended.
    assert!(one.end().success() && two.end().success());
    group.remove();
    wait_for("its end to be seen", || host.status().is_empty());
    says(&mut host.evenkeel(["join", "--cgroup", &path]), 2, "there is no cgroup");
    daemon.end();
}

/// A control group of a test.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Option<Self> {
        let roots = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let name = format!("{name}-{}", std::process::id());
        roots.iter().find_map(|root| {
            let dir = PathBuf::from(root).join(&name);
            std::fs::create_dir(&dir).ok()?;
            let group = Self(dir);
            group.0.join("cgroup.procs").exists().then_some(group)
        })
    }

    fn take_in(&self, pid: i32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn remove(&self) {
        wait_for("the cgroup's end", || std::fs::remove_dir(&self.0).is_ok());
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A user joins a cgroup before the rule of the administrator does, and cannot keep it.
#[test]
fn a_standing_rule_wins_over_a_users_join_of_its_cgroup() {
    let test = "a_standing_rule_wins_over_a_users_join_of_its_cgroup";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(group) = Cgroup::new("evenkeel-test-rule") else {
        evenkeel_skip::skip(test, "no cgroup can be made");
        return;
    };
    let path = group.0.to_str().unwrap().to_owned();
    let config = host.path("config.toml");
    std::fs::write(&config, "").unwrap();
    let daemon = Daemon::start(&host, &["--config", config.to_str().unwrap(), "--dry-run"]);
    let mut sleepers = [
        host.command("sleep").arg("600").spawn().unwrap(),
        by_nobody(&host, &["sleep", "600"]).spawn().unwrap(),
    ];
    let is_nobodys = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("\nUid:\t65534\t")
    };
    wait_for("the user's process", || is_nobodys(sleepers[1].id()));
    sleepers.iter().for_each(|sleeper| group.take_in(sleeper.id() as i32));
    let join = || as_nobody(&host, &["join", "--cgroup", &path]);
    assert!(output(&mut join()).status.success());
    let figure = |name: &str| {
        let answer = daemon.ask(&json!({"req": "stats"}));
        answer["args"]["resp"][name].as_u64().unwrap()
    };
    wait_for("the user's task", || (figure("programs"), figure("tasks")) == (1, 1));

    std::fs::write(&config, format!("[daemon]\ncgroups = [\"{path}\"]\n")).unwrap();
    kill(daemon.pid(), libc::SIGHUP);
    wait_for("both tasks", || (figure("programs"), figure("tasks")) == (1, 2));
    assert!(programs_of(&mut as_nobody(&host, &["status", "--json"])).is_empty());
    says(&mut join(), 2, "is balanced already, for the administrator");
    // Nor by a process of its own that is in it.
    let pid = sleepers[1].id().to_string();
    assert!(output(&mut as_nobody(&host, &["join", &pid])).status.success());
    assert_eq!((figure("programs"), figure("tasks")), (1, 2));
    for sleeper in &mut sleepers {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    group.remove();
    daemon.end();
}

#[test]
fn joins_that_are_refused_say_why() {
    let host = Host::new();
    says(&mut host.evenkeel(["join", "2"]), 3, "no daemon runs; start one: evenkeel daemon");
    for words in [["join", "--name", ""], ["join", "--name", "/bin/sh"], ["daemon", "--name", ""]] {
        let run = output(&mut host.evenkeel(words));
        assert_eq!(run.status.code(), Some(2), "{words:?}: {run:?}");
        assert!(text(&run.stderr).contains("without its directory"), "{words:?}: {run:?}");
    }
    // A rule that no process can match.
    says(&mut host.evenkeel(["daemon", "--cgroup", "hpc.slice"]), 2, "is not a cgroup");
    let daemon = Daemon::start(&host, &[]);
    let own = daemon.pid().to_string();
    for (program, why) in [
        (&["1"][..], "ancestor of all processes"),
        (&[own.as_str()], "is the balancer"),
        (&["999999999"], "there is no process"),
        (&["--name", "evenkeel-no-such-program"], "no program named"),
        (&["--cgroup", "/no/such/cgroup"], "there is no cgroup"),
        (&["--cgroup", "/"], "holds all processes"),
    ] {
        says(&mut host.evenkeel([&["join"], program].concat()), 2, why);
    }
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        says(&mut host.evenkeel(["join", "2"]), 2, "kernel thread");
    }
    says(&mut host.evenkeel(["leave", "2"]), 2, "evenkeel status");
    says(&mut host.evenkeel(["daemon"]), 2, "another service is running already");
    assert!(host.status().is_empty());
    daemon.end();
}

#[test]
fn a_user_neither_sees_nor_steers_programs_of_others() {
    if !needs_root("a_user_neither_sees_nor_steers_programs_of_others") {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let ours = lone_worker(&host);
    let pid = ours.pid.to_string();
    assert!(output(&mut host.evenkeel(["join", &pid])).status.success());
    says(&mut as_nobody(&host, &["join", &pid]), 2, "not to you");
    says(&mut as_nobody(&host, &["leave", &pid]), 2, "you have no program");
    assert!(programs_of(&mut as_nobody(&host, &["status", "--json"])).is_empty());
    assert_eq!(joined(&host), [ours.pid as u32]);
    assert!(ours.end().success());
    // The user's own program may join, and the user sees it.
    let mut his = host.command("setpriv");
    his.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "600"]);
    let mut his = his.spawn().unwrap();
    let pid = his.id().to_string();
    wait_for("his program to join", || {
        output(&mut as_nobody(&host, &["join", &pid])).status.success()
    });
    let status = output(&mut as_nobody(&host, &["status", "--json"]));
    assert!(text(&status.stdout).contains(&format!("\"root\": {pid}")), "{status:?}");
    his.kill().unwrap();
    his.wait().unwrap();
    daemon.end();
}

#[test]
fn a_daemon_killed_at_any_point_leaves_no_affinity() {
    if two_cpus("a_daemon_killed_at_any_point_leaves_no_affinity").is_none() {
        return;
    }
    let host = Host::new();
    let worker = lone_worker(&host);
    // A daemon passes so many points before it has moved both threads several times.
    for point in 1..=40 {
        let at = point.to_string();
        let flags = [&["--abort-at", &at][..], &HARD, &EAGER].concat();
        let mut daemon = host.evenkeel([&["daemon"], &flags[..]].concat()).spawn().unwrap();
        let socket = host.runtime().join("daemon.sock");
        let request = format!("{}\n", json!({"req": "join", "args": {"pid": worker.pid}}));
        wait_for("the daemon's end", || {
            // Whether the program has joined before the daemon dies depends on the point.
            if let Ok(mut stream) = UnixStream::connect(&socket) {
                let _ = stream.write_all(request.as_bytes());
                let _ = stream.read(&mut [0; 1]);
            }
            daemon.try_wait().unwrap().is_some()
        });
        wait_for("the supervisor's work", || worker.is_as(&all()));
        host.undo();
        assert!(worker.is_as(&all()) && host.journals().is_empty(), "point {point}");
        // The next daemon begins without a list of programs.
        let _ = std::fs::remove_file(host.runtime().join("daemon.json"));
    }
    assert!(worker.end().success());
    let _ = std::fs::remove_file(host.runtime().join("daemon.sock"));
}

#[test]
fn a_new_daemon_goes_on_with_the_programs_of_the_last_one() {
    if two_cpus("a_new_daemon_goes_on_with_the_programs_of_the_last_one").is_none() {
        return;
    }
    let host = Host::new();
    let worker = lone_worker(&host);
    let mut gone = host.command("sleep").arg("600").spawn().unwrap();
    let flags = [&HARD[..], &EAGER].concat();
    let mut daemon = Daemon::start(&host, &flags);
    for pid in [worker.pid, gone.id() as i32] {
        assert!(output(&mut host.evenkeel(["join", &pid.to_string()])).status.success());
    }
    worker.wait_moved(&host, 2);
    // The daemon is killed; one program runs on, and another one ends meanwhile.
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    gone.kill().unwrap();
    gone.wait().unwrap();
    wait_for("the supervisor's work", || host.journals().is_empty() && worker.is_as(&all()));
    drop(daemon);
    // A command that finds the socket of a killed daemon reports no error.
    let status = output(&mut host.evenkeel(["status"]));
    assert!(status.status.success() && status.stderr.is_empty(), "{status:?}");
    let daemon = Daemon::start(&host, &flags);
    assert_eq!(joined(&host), [worker.pid as u32]);
    worker.wait_moved(&host, 2);
    daemon.end();
    assert!(worker.is_as(&all()));
    // The same when the daemon ends in order.
    let daemon = Daemon::start(&host, &flags);
    assert_eq!(joined(&host), [worker.pid as u32]);
    assert!(worker.end().success());
    wait_for("its end to be seen", || host.status().is_empty());
    daemon.end();
    // A damaged list does not keep a daemon from starting.
    std::fs::write(host.runtime().join("daemon.json"), "[{").unwrap();
    Daemon::start(&host, &["-q"][..0]).end();
}

#[test]
fn a_stopped_daemon_goes_on_and_reads_its_configuration_again() {
    if two_cpus("a_stopped_daemon_goes_on_and_reads_its_configuration_again").is_none() {
        return;
    }
    let host = Host::new();
    let config = host.path("config.toml");
    std::fs::write(&config, "[daemon]\nnames = []\n").unwrap();
    let file = ["--config", config.to_str().unwrap()];
    let log = host.path("log");
    let mut command = host.evenkeel([&["daemon", "-v"], &file[..], &EAGER].concat());
    let daemon = Daemon::start_by(&host, command.stderr(std::fs::File::create(&log).unwrap()));
    let worker = lone_worker(&host);
    assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
    worker.wait_moved(&host, 2);
    kill(daemon.pid(), libc::SIGSTOP);
    wait_for("its stop", || state(daemon.pid()) == 'T');
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = host.pins_of(worker.threads[0]);
    kill(daemon.pid(), libc::SIGCONT);
    wait_for("more moves", || host.pins_of(worker.threads[0]) > before + 2);

    let logged = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    std::fs::write(&config, "[daemon]\nnames = 7\n").unwrap();
    kill(daemon.pid(), libc::SIGHUP);
    wait_for("the complaint", || logged("the old configuration stays in force"));
    let napper = host.path("evenkeel-dozer");
    std::fs::copy("/bin/sleep", &napper).unwrap();
    let mut napper = host.command(&napper).arg("600").spawn().unwrap();
    std::fs::write(&config, "[daemon]\nnames = [\"evenkeel-dozer\"]\n").unwrap();
    kill(daemon.pid(), libc::SIGHUP);
    wait_for("it to join by the new rule", || joined(&host).contains(&napper.id()));
    assert!(joined(&host).contains(&(worker.pid as u32)));
    napper.kill().unwrap();
    napper.wait().unwrap();
    assert!(worker.end().success());
    daemon.end();
}

#[test]
fn a_reload_takes_back_what_the_old_options_pinned() {
    let test = "a_reload_takes_back_what_the_old_options_pinned";
    let Some((x, _)) = two_cpus(test) else { return };
    let host = Host::new();
    let config = host.path("config.toml");
    std::fs::write(&config, "[run]\nplacement = \"hard\"\n").unwrap();
    let file = ["--config", config.to_str().unwrap()];
    let daemon = Daemon::start(&host, &[&file[..], &EAGER].concat());
    let worker = lone_worker(&host);
    assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
    worker.wait_moved(&host, 2);
    assert!(worker.threads.iter().any(|tid| mask(*tid) != all()));
    // On one CPU nothing is moved: no move gives the masks back.
    std::fs::write(&config, format!("[run]\nplacement = \"soft\"\ncpus = \"{x}\"\n")).unwrap();
    kill(daemon.pid(), libc::SIGHUP);
    wait_for("the masks as they were", || worker.is_as(&all()));
    assert!(worker.end().success());
    daemon.end();
}

#[test]
fn malformed_requests_and_floods_do_not_stop_the_balancing() {
    if two_cpus("malformed_requests_and_floods_do_not_stop_the_balancing").is_none() {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let worker = lone_worker(&host);
    assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
    for request in [
        json!({"req": "fly"}),
        json!({"req": "join"}),
        json!({"req": "join", "args": {"pid": "x"}}),
        json!({"req": "join", "args": {"pid": -1}}),
        json!({"req": "join", "args": {"pid": 1, "name": "a"}}),
        json!({"req": "leave", "args": {"program": 77}}),
        json!({"req": "status", "args": {"of": "everybody"}}),
        json!("join"),
    ] {
        assert_ne!(daemon.ask(&request)["errno"], 0, "{request}");
    }
    let stats = daemon.ask(&json!({"req": "stats", "args": {"target": "top"}}));
    assert_eq!(stats["args"]["resp"]["programs"], 1, "{stats}");
    let meta = daemon.ask(&json!({"req": "stats_meta"}));
    assert!(meta["args"]["resp"]["evenkeel"]["fields"]["moves"].is_object(), "{meta}");
    // Many connections that send nothing, or too much.
    let held: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    for mut stream in &held {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write_all(&[b'x'; 100_000]);
    }
    let before = host.pins_of(worker.threads[0]);
    wait_for("more moves", || host.pins_of(worker.threads[0]) > before + 2);
    assert_eq!(joined(&host), [worker.pid as u32]);
    drop(held);
    assert!(worker.end().success());
    daemon.end();
}
