//! Without privilege, without BPF, and in namespaces of its own, evenkeel works, or says why it
//! does not.

use std::process::Output;

use crate::roles::role;
use crate::running_daemon::Daemon;
use crate::support::*;
use crate::worker::Worker;

/// Checks that the command ran as it should, and returns what evenkeel said.
fn said(run: &Output, code: i32, stdout: &str) -> String {
    assert_eq!(run.status.code(), Some(code), "{run:?}");
    assert_eq!(text(&run.stdout), stdout, "{run:?}");
    text(&run.stderr)
}

#[test]
fn as_nobody_it_falls_back_to_proc() {
    if !needs_root("as_nobody_it_falls_back_to_proc") {
        return;
    }
    let host = Host::new();
    let words = [&["run"], &EAGER[..], &["--", "sh", "-c", "id -u; sleep 1; exit 3"]].concat();
    let run = output(&mut as_nobody(&host, &words));
    let said = said(&run, 3, "65534\n");
    only_summary(&run);
    assert!(said.contains("figures from /proc"), "{said}");
    // The message names what is missing.
    assert!(said.contains("CAP_BPF") || said.contains("root"), "{said}");
}

#[test]
fn as_nobody_tasks_are_moved_too() {
    if !needs_root("as_nobody_tasks_are_moved_too")
        || two_cpus("as_nobody_tasks_are_moved_too").is_none()
    {
        return;
    }
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["run", "-q", "--placement", placement], &EAGER[..], &["--"]].concat();
        let flags = [&flags[..], &role("worker")[..]].concat();
        let mut worker = Worker::start_by(&mut as_nobody(&host, &flags), 2);
        worker.wait_moved(&host, 2);
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert!(worker.is_as(&all()));
        let status = output(&mut as_nobody(&host, &["status"]));
        assert!(status.status.success());
    }
}

/// libbpf prints by itself what fails, in lines that help no user. They are in the log at level debug.
/// What makes it fail here is that too few files may be open.
#[test]
fn no_line_of_libbpf_is_printed() {
    const TEST: &str = "no_line_of_libbpf_is_printed";
    if !needs_root(TEST) {
        return;
    }
    if let Err(why) = evenkeel_cbinfo::support() {
        evenkeel_skip::skip(TEST, why);
        return;
    }
    let host = Host::new();
    for words in [&["doctor", "--watch", "10ms"][..], &["irq", "status", "--watch", "10ms"]] {
        let said = |files: u32, more: &[&str]| {
            let mut command = host.command("prlimit");
            command.arg(format!("--nofile={files}:{files}")).arg(EVENKEEL).args(words).args(more);
            text(&output(&mut command).stderr)
        };
        let limits = [8, 12, 16, 24];
        for files in limits {
            let plain = said(files, &[]);
            assert!(!plain.contains("libbpf"), "{words:?}, {files} files: {plain}");
        }
        let is_logged = limits.iter().any(|files| said(*files, &["-vv"]).contains("libbpf: "));
        assert!(is_logged, "{words:?}: nothing failed in libbpf, so this shows nothing");
    }
}

#[test]
fn the_laboratory_prints_no_line_of_libbpf() {
    if !needs_root("the_laboratory_prints_no_line_of_libbpf") {
        return;
    }
    let host = Host::new();
    for more in [&[][..], &["--verify"]] {
        let noise = |flags: &[&str]| {
            let words = [&[EVENKEEL_LAB, "noise", "softirq"], more, flags].concat();
            text(&output(&mut by_nobody(&host, &words)).stderr)
        };
        let plain = noise(&[]);
        assert!(plain.contains("not permitted") && !plain.contains("libbpf"), "{more:?}: {plain}");
        let logged = noise(&["-vv"]);
        assert!(logged.contains("libbpf: "), "{more:?}: nothing failed in libbpf: {logged}");
    }
}

#[test]
fn exact_accounting_that_cannot_be_had_is_refused() {
    if !needs_root("exact_accounting_that_cannot_be_had_is_refused") {
        return;
    }
    let host = Host::new();
    let flags = ["run", "--accounting", "cbinfo", "--", "sh", "-c", "sleep 0.3; echo ran; exit 5"];
    let run = output(&mut as_nobody(&host, &flags));
    let said = said(&run, 5, "ran\n");
    assert!(said.contains("not balanced"), "{said}");
    assert!(said.contains("CAP_BPF") || said.contains("root"), "{said}");
}

#[test]
fn as_nobody_with_the_home_of_root() {
    if !needs_root("as_nobody_with_the_home_of_root") {
        return;
    }
    // `setpriv`, and `su` without `-`, leave HOME as it was. A file in a directory that may not be
    // searched counts as missing.
    let host = Host::new();
    let closed = host.path("closed");
    std::fs::create_dir(&closed).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&closed, mode).unwrap();
    let mut command = as_nobody(&host, &["run", "-q", "--", "echo", "ran"]);
    let run = output(command.env("HOME", &closed));
    let said = said(&run, 0, "ran\n");
    assert!(said.contains("closed/.config/evenkeel/config.toml"), "{said}");
}

/// As of many users of services.
#[test]
fn a_home_that_is_no_directory_has_no_configuration() {
    let host = Host::new();
    let mut command = host.run(&["-q"], &["echo", "ran"]);
    let run = output(command.env("HOME", "/dev/null"));
    let said = said(&run, 0, "ran\n");
    assert!(!said.contains("config.toml"), "{said}");
}

/// As under `sudo -E`, or `su` without `-`.
#[test]
fn root_does_not_follow_a_configuration_of_another_user() {
    if !needs_root("root_does_not_follow_a_configuration_of_another_user") {
        return;
    }
    let host = Host::new();
    let folder = host.path("home/.config/evenkeel");
    std::fs::create_dir_all(&folder).unwrap();
    let config = folder.join("config.toml");
    std::fs::write(&config, "[run]\ncpus = \"no list\"\n").unwrap();
    let name = config.display().to_string();
    let run = || output(&mut host.run(&["-q"], &["echo", "ran"]));
    // Root's own: it is read.
    let first = said(&run(), 2, "");
    assert!(first.contains(&format!("{name}: table [run]: cpus: ")), "{first}");
    let refused = |rule: &str| {
        for command in [&["run", "-q", "--", "echo", "ran"][..], &["daemon"], &["sched"]] {
            let said = said(&output(&mut host.evenkeel(command)), 2, "");
            assert!(said.contains(&name) && said.contains(rule), "{said}");
            assert!(said.contains("--config"), "{said}");
        }
    };
    std::os::unix::fs::chown(&config, Some(NOBODY), Some(NOBODY)).unwrap();
    refused("it belongs to user 65534, and evenkeel runs as user 0");
    // The caller may name it.
    let named = output(&mut host.evenkeel(["run", "-q", "--config", &name, "--", "echo", "ran"]));
    assert!(said(&named, 2, "").contains("table [run]: cpus: "), "{named:?}");
    std::os::unix::fs::chown(&config, Some(0), Some(0)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&config, mode).unwrap();
    refused("other users may write to it (mode 0666)");
    // A path that depends on the current directory is none.
    let mut relative = host.run(&["-q"], &["echo", "ran"]);
    relative.current_dir(host.path("home")).env("HOME", ".").env("XDG_CONFIG_HOME", ".config");
    said(&output(&mut relative), 0, "ran\n");
}

#[test]
fn a_run_works_in_name_spaces_of_its_own() {
    if !needs_root("a_run_works_in_name_spaces_of_its_own") {
        return;
    }
    for flags in [
        &["-p", "-f", "--mount-proc"][..],
        &["-n"],
        &["-u", "-i"],
        &["-C"],
        &["-T", "-f"],
        &["-p", "-f", "-n", "-u", "-i", "-C", "--mount-proc"],
    ] {
        let host = Host::new();
        let mut command = host.command("unshare");
        command.args(flags).args([EVENKEEL, "run"]).args(EAGER);
        command.args(["--", "sh", "-c", "sleep 0.2; echo ran; exit 3"]);
        let run = output(&mut command);
        let said = said(&run, 3, "ran\n");
        only_summary(&run);
        println!("unshare {}: {}", flags.join(" "), said.trim());
    }
}

#[test]
fn tasks_in_a_pid_name_space_are_moved_or_it_is_said_why_not() {
    let test = "tasks_in_a_pid_name_space";
    if !needs_root(test) || two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let json = host.path("json");
    // evenkeel is process 1 there, for which the kernel ignores signals without a handler.
    let flags = ["-p", "-f", "--mount-proc", EVENKEEL, "run", "--json", json.to_str().unwrap()];
    let mut command = host.command("unshare");
    command.args(flags).args(EAGER).arg("--").args(role("storm"));
    let run = output(command.env("EVENKEEL_TEST_ROLE", "storm"));
    assert_eq!(run.status.code(), Some(3), "{run:?}");
    only_summary(&run);
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let why = text(&run.stderr);
    println!("{test}: {}", why.trim());
    assert!(summary["moves"].as_u64().unwrap() > 0 || why.contains("name space"), "{why}");
}

#[test]
fn a_run_without_proc_says_what_is_missing() {
    if !needs_root("a_run_without_proc_says_what_is_missing") {
        return;
    }
    let host = Host::new();
    let script =
        format!("umount -l /proc; exec '{EVENKEEL}' run -- sh -c 'echo ran; sleep 1; exit 6'");
    let mut command = host.command("unshare");
    let run = output(command.args(["-m", "sh", "-c", &script]));
    let said = said(&run, 6, "ran\n");
    assert!(said.contains("/proc"), "{said}");
}

/// What root's balancers write down names command lines.
#[test]
fn files_with_command_lines_are_closed_to_other_users() {
    if !needs_root("files_with_command_lines_are_closed_to_other_users") {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--dry-run"]);
    let mut joined = host.command("sleep").arg("600").spawn().unwrap();
    let pid = joined.id().to_string();
    assert!(output(&mut host.evenkeel(["join", &pid])).status.success());
    let run = host.run(&["-q", "--dry-run"], &["sleep", "601"]).spawn().unwrap();
    wait_for("the status file", || !host.status_files().is_empty());
    let list = host.runtime().join("daemon.json");
    wait_for("the list of programs", || list.exists());
    for path in host.status_files().iter().chain([&list]) {
        let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        let read = output(&mut by_nobody(&host, &["cat", path.to_str().unwrap()]));
        assert!(!read.status.success() && read.stdout.is_empty(), "{}: {read:?}", path.display());
    }
    kill(run.id() as i32, libc::SIGTERM);
    joined.kill().unwrap();
    joined.wait().unwrap();
    ended(&mut { run });
    daemon.end();
}

/// Capabilities of a process, by a line of its status.
fn capabilities(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

/// CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL, CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_SYS_PTRACE,
/// CAP_SYS_NICE, CAP_SYS_RESOURCE, CAP_PERFMON, CAP_BPF.
const NEEDED: [u32; 10] = [1, 2, 5, 10, 12, 19, 23, 24, 38, 39];

#[test]
fn root_gives_up_the_capabilities_that_are_not_needed() {
    if !needs_root("root_gives_up_the_capabilities_that_are_not_needed") {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--dry-run"]);
    let mut run = host.run(&["-q", "--dry-run"], &["sleep", "600"]).spawn().unwrap();
    let needed: u64 = NEEDED.iter().map(|capability| 1 << capability).sum();
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let child = || std::fs::read_to_string(&children).unwrap().trim().parse::<u32>().ok();
    // It publishes its status after that.
    wait_for("the balancer", || !host.status_files().is_empty());
    for pid in [daemon.pid() as u32, run.id()] {
        for line in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:"] {
            let kept = capabilities(pid, line);
            assert_eq!(kept & !needed, 0, "process {pid}: {line} {kept:x}");
        }
        assert_ne!(capabilities(pid, "CapEff:"), 0);
    }
    // The program has what this test has.
    let child = child().unwrap();
    for line in ["CapEff:", "CapPrm:", "CapBnd:", "CapInh:"] {
        assert_eq!(capabilities(child, line), capabilities(std::process::id(), line), "{line}");
    }
    kill(run.id() as i32, libc::SIGTERM);
    ended(&mut run);
    daemon.end();
}

/// Those of CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_SYS_RESOURCE,
/// CAP_PERFMON, CAP_BPF.
const NEEDED_BY_DOCTOR: [u32; 7] = [1, 2, 19, 23, 24, 38, 39];
/// CAP_DAC_OVERRIDE.
const NEEDED_BY_GENERATE: [u32; 1] = [1];

#[test]
fn doctor_and_generate_give_up_what_they_do_not_need() {
    if !needs_root("doctor_and_generate_give_up_what_they_do_not_need") {
        return;
    }
    let host = Host::new();
    // A page that is a pipe without a reader holds it.
    let pages = host.path("pages");
    std::fs::create_dir(&pages).unwrap();
    nix::unistd::mkfifo(&pages.join("evenkeel.1"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let generate = ["generate", "man", pages.to_str().unwrap()];
    let doctor = ["doctor", "--watch", "60s"];
    for (words, needed) in [(&generate, &NEEDED_BY_GENERATE[..]), (&doctor, &NEEDED_BY_DOCTOR)] {
        let mut command = host.evenkeel(words);
        let mut process = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        let needed: u64 = needed.iter().map(|capability| 1 << capability).sum();
        let kept = |line| capabilities(process.id(), line);
        wait_for("the end of capabilities", || kept("CapBnd:") & !needed == 0);
        wait_for("their end in all sets", || {
            ["CapEff:", "CapPrm:", "CapInh:"].into_iter().all(|line| kept(line) & !needed == 0)
        });
        assert_eq!(kept("CapEff:"), needed & capabilities(std::process::id(), "CapEff:"));
        process.kill().unwrap();
        process.wait().unwrap();
    }
    // What doctor finds out with these is what it finds out with all.
    let report = output(&mut host.evenkeel(["doctor", "--json", "--watch", "100ms"]));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let bpf = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "bpf");
    let is_possible = evenkeel_cbinfo::Cbinfo::open(&[]).is_ok();
    assert_eq!(bpf.unwrap()["state"] == "ok", is_possible, "{report}");
}

/// An executable with file capabilities: its caller must not choose files for it by the environment.
#[test]
fn an_executable_with_capabilities_ignores_paths_in_the_environment() {
    let test = "an_executable_with_capabilities_ignores_paths_in_the_environment";
    if !needs_root(test) {
        return;
    }
    let host = Host::new();
    let [product, lab] = ["evenkeel", "evenkeel-lab"].map(|name| host.path(name));
    for (from, to) in [(EVENKEEL, &product), (EVENKEEL_LAB, &lab)] {
        std::fs::copy(from, to).unwrap();
        let mut command = host.command("setcap");
        command.arg("cap_bpf,cap_perfmon+ep").arg(to);
        if !command.status().is_ok_and(|status| status.success()) {
            evenkeel_skip::skip(test, "no file can have capabilities here, or setcap is missing");
            return;
        }
    }
    let folder = host.path("home/.config/evenkeel");
    std::fs::create_dir_all(&folder).unwrap();
    let config = folder.join("config.toml");
    std::fs::write(&config, "[run]\ncpus = \"no list\"\n").unwrap();
    std::os::unix::fs::chown(&config, Some(NOBODY), Some(NOBODY)).unwrap();
    let words = ["run", "-q", "--accounting", "procfs", "--", "echo", "ran"];
    // Without capabilities the user's configuration is read.
    assert!(said(&output(&mut as_nobody(&host, &words)), 2, "").contains("table [run]: cpus: "));
    let product = product.to_str().unwrap();
    said(&output(&mut by_nobody(&host, &[&[product], &words[..]].concat())), 0, "ran\n");
    assert!(!host.runtime().join("run").exists(), "XDG_RUNTIME_DIR was used");
    let lab = output(&mut by_nobody(&host, &[lab.to_str().unwrap(), "sim", "run", "pool"]));
    assert!(said(&lab, 2, "").contains("take them off"), "{lab:?}");
}
