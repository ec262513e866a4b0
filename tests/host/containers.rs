//! The hook of container runtimes (`evenkeel oci-hook`): what joins the daemon by a container's
//! annotation, and that nothing fails a container. With a real runtime where podman and runc are
//! installed (`scripts/setup fleet`).

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::running_daemon::{Daemon, lone_worker};
use crate::support::*;

/// The hook's configuration, as it is installed.
const HOOK: &str = include_str!("../../packaging/oci/evenkeel-hook.json");

/// The hook's configuration, with another executable than the one that is installed.
fn hook_of(executable: &str) -> Value {
    let mut hook: Value = serde_json::from_str(HOOK).unwrap();
    let script = hook["hook"]["args"][2].as_str().unwrap();
    let rest = script.strip_prefix("/usr/local/bin/evenkeel ").expect("where make install puts it");
    let script = format!("{executable} {rest}");
    hook["hook"]["args"][2] = json!(script);
    hook
}

/// The state that a runtime gives a hook.
fn state(pid: impl Into<Value>, mode: &str) -> String {
    let annotations = json!({"evenkeel.io/mode": mode, "io.container.manager": "libpod"});
    json!({"ociVersion": "1.0.2-dev", "id": "c1", "status": "running", "pid": pid.into(),
        "bundle": "/var/lib/bundle", "annotations": annotations})
    .to_string()
}

/// Runs the hook, which never fails.
fn hook(command: &mut Command, input: &str) -> String {
    let output = output_of(command, input.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{input:.200}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    text(&output.stderr)
}

/// Asserts that the hook says why it does nothing, in one line.
fn says_why(command: &mut Command, input: &str, why: &str) {
    let said = hook(command, input);
    assert!(said.starts_with("evenkeel: ") && said.lines().count() == 1, "{input:.200}: {said}");
    assert!(said.contains(why), "{input:.200}: {said}");
    assert!(said.ends_with("the container runs without evenkeel\n"), "{said}");
}

#[test]
fn containers_are_moved_or_only_watched_as_their_annotation_says() {
    let test = "containers_are_moved_or_only_watched_as_their_annotation_says";
    if two_cpus(test).is_none() || !needs_root(test) {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &EAGER);
    let oci_hook = || host.evenkeel(["oci-hook"]);
    // Each command of a test has a mount namespace of its own, as a container has.
    let watched = lone_worker(&host);
    for ignored in [state(watched.pid, "off"), json!({"id": "c1", "pid": watched.pid}).to_string()]
    {
        assert_eq!(hook(&mut oci_hook(), &ignored), "");
    }
    assert!(host.status().is_empty());
    assert_eq!(hook(&mut oci_hook(), &state(watched.pid, "watch")), "");
    host.wait_intervals(40);
    let status = host.status();
    assert_eq!((&status[0]["root"], &status[0]["dry_run"]), (&json!(watched.pid), &json!(true)));
    assert_eq!(status[0]["moves"], 0);
    assert!(host.pins().is_empty(), "{:?}", host.pins());

    let moved = lone_worker(&host);
    assert_eq!(hook(&mut oci_hook(), &state(moved.pid, "run")), "");
    moved.wait_moved(&host, 2);
    // What is moved is not only watched from then on, and that is said.
    says_why(&mut oci_hook(), &state(moved.pid, "watch"), "has joined already");
    assert!(watched.threads.iter().all(|tid| host.pins_of(*tid) == 0));
    daemon.end();
    // The next daemon goes on with each as it was.
    let daemon = Daemon::start(&host, &EAGER);
    let before = host.pins_of(moved.threads[0]);
    wait_for("more moves", || host.pins_of(moved.threads[0]) > before);
    // As the key l of top asks: the annotation holds.
    let asked = json!({"req": "watch", "args": {"pid": watched.pid, "watch": false}});
    let answer = daemon.ask(&asked);
    let why = answer["args"]["resp"].as_str().unwrap_or_default();
    assert!(answer["errno"] == libc::EPERM && why.contains("evenkeel.io/mode: watch"), "{answer}");
    assert!(watched.threads.iter().all(|tid| host.pins_of(*tid) == 0));
    assert!(watched.end().success() && moved.end().success());
    wait_for("their end to be seen", || host.status().is_empty());
    daemon.end();
}

#[test]
fn whatever_a_hook_is_given_it_fails_no_container() {
    let test = "whatever_a_hook_is_given_it_fails_no_container";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let oci_hook = || host.evenkeel(["oci-hook"]);
    let mut sleeper = host.command("sleep").arg("600").spawn().unwrap();
    let pid = sleeper.id();
    // It has exec behind it, and its own mount namespace.
    wait_for("the sleeper", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    });
    says_why(&mut oci_hook(), &state(pid, "run"), "no daemon runs");
    let daemon = Daemon::start(&host, &[]);
    for (input, why) in [
        (String::new(), "no state of a container"),
        ("{\"id\":".to_owned(), "no state of a container"),
        (format!("{{\"x\":{}", "[".repeat(50_000)), "no state of a container"),
        (format!("{}{}", state(pid, "run"), " ".repeat(2_000_000)), "more than 1048576 bytes"),
        (state(pid, "warp"), "give run, watch or off"),
        (state(pid, "run\n<0>evenkeel: all is well\u{1b}[2J"), "give run, watch or off"),
        (state(0, "run"), "has no process"),
        (state(-1, "run"), "has no process"),
        (state(u64::MAX, "run"), "has no process"),
        (state("1", "run"), "has no process"),
        (state(i32::MAX, "run"), "it may have ended"),
        (state(daemon.pid(), "run"), "is the balancer"),
    ] {
        says_why(&mut oci_hook(), &input, why);
    }
    // A process that another user names is not that user's to have balanced.
    says_why(&mut as_nobody(&host, &["oci-hook"]), &state(pid, "run"), "container c1: ");
    for words in [
        &["oci-hook", "--warp"][..],
        &["oci-hook", "extra"],
        &["--config", "/no/such", "oci-hook"],
        &["oci-hook", "--config", "/no/such"],
    ] {
        says_why(&mut host.evenkeel(words), "{}", "");
    }
    assert!(host.status().is_empty());
    // A runtime that never ends the state; a daemon that does not answer.
    let mut waiting = oci_hook();
    let mut waiting = waiting.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(ended(&mut waiting).code(), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut waiting.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("nothing came of it"), "{said}");
    kill(daemon.pid(), libc::SIGSTOP);
    wait_for("its stop", || crate::support::state(daemon.pid()) == 'T');
    says_why(&mut oci_hook(), &state(pid, "run"), "no answer");
    kill(daemon.pid(), libc::SIGCONT);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    says_why(&mut oci_hook(), &state(pid, "run"), "it may have ended");
    // What was asked while the daemon was stopped is carried out, and ends with the process.
    wait_for("no program", || host.status().is_empty());
    daemon.end();
}

/// A runtime ends a container if it cannot start the hook, and an upgrade may take the executable away.
#[test]
fn a_hook_without_its_executable_fails_no_container() {
    let host = Host::new();
    let broken = host.path("evenkeel");
    std::fs::write(&broken, "this cannot be executed").unwrap();
    for executable in ["/no/such/evenkeel", broken.to_str().unwrap()] {
        let installed = hook_of(executable);
        let words = installed["hook"]["args"].as_array().unwrap();
        let mut command = host.command(installed["hook"]["path"].as_str().unwrap());
        command.args(words.iter().skip(1).map(|word| word.as_str().unwrap()));
        let said = hook(&mut command, &state(1, "run"));
        assert!(said.contains(executable), "{said}");
    }
}

/// podman with runc, a store of its own, and a container made of a program of this machine.
struct Podman<'a> {
    host: &'a Host,
}

impl<'a> Podman<'a> {
    /// Nothing, with a skip, where they are not installed.
    fn new(host: &'a Host, test: &str) -> Option<Self> {
        for program in ["podman", "runc", "conmon"] {
            if Command::new(program).arg("--version").output().is_err() {
                let why = format!("there is no {program}: scripts/setup fleet installs it");
                evenkeel_skip::skip(test, why);
                return None;
            }
        }
        std::fs::create_dir(host.path("hooks")).unwrap();
        let podman = Self { host };
        podman.install_hook(EVENKEEL);
        Some(podman)
    }

    /// Installs the hook of this executable, in place of an earlier one.
    fn install_hook(&self, executable: &str) {
        let file = self.host.path("hooks").join("evenkeel-hook.json");
        std::fs::write(file, hook_of(executable).to_string()).unwrap();
    }

    /// The folder of a container's files, with one program and the libraries that it needs.
    fn root(&self, program: &str) -> PathBuf {
        let root = self.host.path("container");
        let libraries = text(&output(Command::new("ldd").arg(program)).stdout);
        let words = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        for file in words.chain([program]) {
            let copy = root.join(file.trim_start_matches('/'));
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            std::fs::copy(file, &copy).unwrap();
        }
        root
    }

    /// `podman run` of a program of this machine, with an annotation.
    fn run(&self, mode: Option<&str>, words: &[&str]) -> Command {
        let path = |name: &str| self.host.path(name).to_str().unwrap().to_owned();
        let mut command = self.host.command("podman");
        command
            .args(["--root", &path("store"), "--runroot", &path("store-run")])
            .args(["--tmpdir", &path("store-tmp"), "--hooks-dir", &path("hooks")])
            .args(["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--runtime=runc"])
            .args(["--events-backend=none", "run", "--rm", "--network=host", "--log-driver=none"])
            .args(["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]);
        if let Some(mode) = mode {
            command.arg(format!("--annotation=evenkeel.io/mode={mode}"));
        }
        command.arg("--rootfs").arg(self.root(words[0])).args(words);
        command
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        // The cgroups of all containers stay behind; where there are others, they are not empty.
        let root = PathBuf::from("/sys/fs/cgroup");
        let controllers = std::fs::read_dir(&root).into_iter().flatten().flatten();
        for hierarchy in controllers.map(|entry| entry.path()).chain([root]) {
            for name in ["libpod_parent/conmon", "libpod_parent"] {
                // Once it is done, podman's helper ends a moment later.
                let group = hierarchy.join(name);
                let is_gone = || !group.exists() || std::fs::remove_dir(&group).is_ok();
                let _ = (0..1000).any(|_| {
                    let is_gone = is_gone();
                    if !is_gone {
                        std::thread::sleep(std::time::Duration::from_millis(2));
                    }
                    is_gone
                });
            }
        }
    }
}

#[test]
fn a_container_joins_by_its_annotation() {
    let test = "a_container_joins_by_its_annotation";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(podman) = Podman::new(&host, test) else { return };
    let daemon = Daemon::start(&host, &[]);
    for (mode, is_watched) in [("run", false), ("watch", true)] {
        let mut container = podman.run(Some(mode), &["/bin/sleep", "600"]).spawn().unwrap();
        let mut status = Vec::new();
        // Some runtimes call the hook before the process has called exec: it is the runtime's own then.
        wait_for("the container to join", || {
            status = host.status();
            let is_joined = status.iter().any(|run| run["command"] == json!(["/bin/sleep", "600"]));
            is_joined || container.try_wait().unwrap().is_some()
        });
        assert_eq!(status.len(), 1, "the container has ended");
        assert_eq!(status[0]["dry_run"], is_watched);
        kill(status[0]["root"].as_i64().unwrap() as i32, libc::SIGKILL);
        assert_eq!(ended(&mut container).code(), Some(137));
        wait_for("its end to be seen", || host.status().is_empty());
    }
    daemon.end();
}

#[test]
fn a_container_starts_whatever_becomes_of_its_hook() {
    let test = "a_container_starts_whatever_becomes_of_its_hook";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let Some(podman) = Podman::new(&host, test) else { return };
    let runs = |mode| {
        let output: Output = output(&mut podman.run(mode, &["/bin/echo", "it runs"]));
        assert!(output.status.success(), "{mode:?}: {output:?}");
        assert_eq!(text(&output.stdout), "it runs\n", "{mode:?}");
    };
    // Without a daemon; with a value that is none; and without any annotation.
    [Some("run"), Some("warp\n"), None].into_iter().for_each(runs);
    let daemon = Daemon::start(&host, &[]);
    runs(Some("off"));
    // One that has ended before the hook looks for it, perhaps.
    (0..3).for_each(|_| runs(Some("run")));
    kill(daemon.pid(), libc::SIGSTOP);
    wait_for("its stop", || crate::support::state(daemon.pid()) == 'T');
    runs(Some("run"));
    kill(daemon.pid(), libc::SIGCONT);
    wait_for("no program", || host.status().is_empty());
    daemon.end();
    podman.install_hook("/no/such/evenkeel");
    runs(Some("run"));
}
