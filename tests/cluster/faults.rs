//! What goes wrong on a node never fails a job: the task runs as without evenkeel, and one line says
//! why.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::cluster::{Cluster, Wanted, from_root};
use crate::steps::{Step, be_eager, busy, busy_in_a_script};
use crate::support::*;

/// Runs a step whose two tasks must run as without; its line says why.
fn runs_without(cluster: &Cluster, why: &str) {
    let script = ["sh", "-c", "echo out; env | grep EVENKEEL_TASK; exit 3"];
    let step = Step::run(cluster.srun(&["-n2", "--evenkeel"]).args(script));
    assert!(step.code == Some(3) && step.stdout == ["out", "out"], "{step:?}");
    assert!(!step.ours.is_empty(), "{step:?}");
    for line in &step.ours {
        assert!(line.contains(why) && line.ends_with(" runs without evenkeel"), "{step:?}");
    }
}

/// Has the plugin run this script in place of evenkeel, from the next step on.
fn stand_in(cluster: &Cluster, script: &str) {
    let program = cluster.host.path("stand-in");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let stack = cluster.host.path("plugstack.conf");
    let text = std::fs::read_to_string(&stack).unwrap();
    let replaced = text.replace(EVENKEEL, program.to_str().unwrap());
    assert_ne!(replaced, text);
    std::fs::write(&stack, replaced).unwrap();
}

#[test]
fn a_missing_or_foreign_evenkeel_fails_no_job() {
    let test = "a_missing_or_foreign_evenkeel_fails_no_job";
    let program = "/nonexistent/evenkeel";
    let wanted = Wanted { program: Some(program), ..Wanted::default() };
    let Some(cluster) = Cluster::start(test, wanted) else { return };
    runs_without(&cluster, "/nonexistent/evenkeel: No such file or directory");
    // The next step reads the file anew.
    let stack = cluster.host.path("plugstack.conf");
    let other = cluster.host.path("other");
    let text = std::fs::read_to_string(&stack).unwrap();
    std::fs::write(&stack, text.replace(program, other.to_str().unwrap())).unwrap();
    for (script, why) in [
        ("echo evenkeel 99.0.0", "is evenkeel 99.0.0, and the plugin is of evenkeel"),
        ("exec sleep 600", "is not to be run, and the plugin is of evenkeel"),
        ("exit 127", "is not to be run, and the plugin is of evenkeel"),
    ] {
        std::fs::write(&other, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
        runs_without(&cluster, why);
    }
    cluster.wait_for_nothing_left();
}

/// slurmstepd asks it with the effective ids of the job's user, and could become root again.
#[test]
fn an_evenkeel_that_is_asked_on_a_node_has_the_ids_of_the_user_alone() {
    let test = "an_evenkeel_that_is_asked_on_a_node_has_the_ids_of_the_user_alone";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    let ids = cluster.host.path("ids");
    std::fs::write(&ids, "").unwrap();
    std::os::unix::fs::chown(&ids, Some(NOBODY), Some(NOBODY)).unwrap();
    let status = "grep -E '^[UG]id:' /proc/self/status";
    stand_in(&cluster, &format!("{{ echo \"$1\"; {status}; }} >>'{}'", ids.display()));
    let srun = ["srun", "-n1", "--quiet", "--time=2", "--evenkeel", "echo", "ran"];
    let mut command = by_nobody(&cluster.host, &srun);
    let conf = cluster.host.path("slurm.conf");
    let step = Step::run(command.env("SLURM_CONF", conf).current_dir("/tmp"));
    assert!(step.code == Some(0) && step.stdout == ["ran"], "{step:?}");
    step.says("is not to be run, and the plugin is of evenkeel");
    // Real, effective, saved, and that of files; srun may have asked, too.
    let written = std::fs::read_to_string(&ids).unwrap();
    let of_user = [NOBODY; 4].map(|id| id.to_string()).join("\t");
    let of_node = format!("--version\nUid:\t{of_user}\nGid:\t{of_user}\n");
    assert!(written.starts_with(&of_node), "{written}");
    let mut lines = written.lines().filter(|line| line.contains("id:"));
    assert!(lines.all(|line| line.ends_with(&of_user)), "{written}");
    cluster.wait_for_nothing_left();
}

/// srun asks evenkeel for the line of all nodes as it ends: a file system may hang by then.
#[test]
fn an_evenkeel_that_hangs_as_srun_ends_holds_nothing_up() {
    let test = "an_evenkeel_that_hangs_as_srun_ends_holds_nothing_up";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    let asked = cluster.host.path("asked");
    // It is evenkeel in all else, and hangs for ever: srun ends only if it does not wait for it. The
    // `sleep` holds the pipe to srun, and has to be killed with it.
    let script = format!(
        "[ \"$1 $2\" != 'cluster line' ] || {{ : >'{}'; sleep infinity; }}\n\
         exec '{EVENKEEL}' \"$@\"",
        asked.display()
    );
    stand_in(&cluster, &script);
    let step = Step::run(cluster.srun(&["-n1", "--evenkeel"]).args(["sh", "-c", "exit 3"]));
    assert_eq!(step.code, Some(3), "{step:?}");
    assert!(asked.exists(), "it was not asked: {step:?}");
    wait_for("the end of what hangs", || cluster.processes_named("sleep").is_empty());
    cluster.wait_for_nothing_left();
}

/// Slurm itself leaves such a plugin out, and `srun` does not know the option then. Where the node alone
/// does not know it, the job runs.
#[test]
fn a_plugin_for_another_slurm_fails_no_job() {
    let test = "a_plugin_for_another_slurm_fails_no_job";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    let path = |name: &str| cluster.host.path(name);
    // A host from which jobs are submitted keeps the plugin that fits.
    std::fs::rename(path("plugstack.conf"), path("submit-plugstack.conf")).unwrap();
    let conf = std::fs::read_to_string(path("slurm.conf")).unwrap();
    let submit = conf.replace("/plugstack.conf\n", "/submit-plugstack.conf\n");
    assert_ne!(submit, conf);
    std::fs::write(path("submit.conf"), submit).unwrap();
    let foreign = path("foreign.so");
    build_for_another_slurm(&cluster.host, &foreign);
    // As packaging/slurm/plugstack.conf has it.
    std::fs::write(path("plugstack.conf"), format!("optional {}\n", foreign.display())).unwrap();

    let without = Step::run(&mut cluster.srun(&["-n1", "echo", "ran"]));
    assert!(without.code == Some(0) && without.stdout == ["ran"], "{without:?}");
    let mut srun = cluster.srun(&["-n1", "--evenkeel", "echo", "ran"]);
    let on_node = Step::run(srun.env("SLURM_CONF", path("submit.conf")));
    assert!(on_node.code == Some(0) && on_node.stdout == ["ran"], "{on_node:?}");
    assert!(on_node.ours.is_empty(), "{on_node:?}");
    let refused = output(&mut cluster.srun(&["-n1", "--evenkeel", "echo", "ran"]));
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    assert!(said.contains("Incompatible plugin version"), "{said}");
    assert!(said.contains("unrecognized option"), "{said}");
    cluster.wait_for_nothing_left();
}

/// Builds the plugin as with the headers of Slurm 99.11: the compiler looks into CPATH first.
fn build_for_another_slurm(host: &Host, plugin: &Path) {
    let version = std::fs::read_to_string("/usr/include/slurm/slurm_version.h").unwrap();
    let is_number = |line: &&str| line.starts_with("#define SLURM_VERSION_NUMBER");
    let number = version.lines().find(is_number).unwrap();
    let folder = host.path("headers/slurm");
    std::fs::create_dir_all(&folder).unwrap();
    let version = version.replace(number, "#define SLURM_VERSION_NUMBER 0x630b00");
    std::fs::write(folder.join("slurm_version.h"), version).unwrap();
    let mut build = host.command(from_root("packaging/slurm/build"));
    let built = output(build.arg(plugin).env("CPATH", host.path("headers")));
    assert!(built.status.success(), "{}", text(&built.stderr));
}

#[test]
fn a_configuration_that_is_wrong_fails_no_job() {
    let test = "a_configuration_that_is_wrong_fails_no_job";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let file = cluster.host.path("home/.config/evenkeel/config.toml");
    std::fs::write(file, "[run]\npolicy = \"fastest\"\n").unwrap();
    runs_without(&cluster, "fastest");
    cluster.wait_for_nothing_left();
}

#[test]
fn a_user_without_rights_is_balanced_by_figures_of_proc() {
    let test = "a_user_without_rights_is_balanced_by_figures_of_proc";
    if two_cpus(test).is_none() {
        return;
    }
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let srun = ["srun", "-n2", "--quiet", "--time=2", "--evenkeel"];
    let mut command = by_nobody(&cluster.host, &[&srun[..], &busy("1")].concat());
    let conf = cluster.host.path("slurm.conf");
    let step = Step::run(command.env("SLURM_CONF", conf).current_dir("/tmp"));
    assert_eq!(step.code, Some(124), "{step:?}");
    step.says("2 ranks of step ");
    step.says("figures from /proc");
    cluster.wait_for_nothing_left();
}

/// How many ranks there are is srun's to say.
#[test]
fn ranks_of_mpi_are_refused_more_threads_and_run() {
    let test = "ranks_of_mpi_are_refused_more_threads_and_run";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    let words = ["-n2", "--overcommit", "--mpi=pmi2", "--evenkeel=threads=2", "echo", "ran"];
    let step = Step::run(&mut cluster.srun(&words));
    assert!(step.code == Some(0) && step.stdout == ["ran", "ran"], "{step:?}");
    step.says("--threads is for OpenMP, and this is a rank of an MPI program");
    step.says("start 2 ranks for each CPU instead; the task runs without evenkeel");
    cluster.wait_for_nothing_left();
}

/// Its steps go on without it, and so does the balancer.
#[test]
fn a_killed_daemon_of_a_node_fails_no_job() {
    let Some(mut cluster) =
        Cluster::start("a_killed_daemon_of_a_node_fails_no_job", Wanted::default())
    else {
        return;
    };
    be_eager(&cluster.host);
    let mut command = cluster.srun(&["-n2", "--overcommit", "--evenkeel"]);
    command.args(busy("3"));
    let step = std::thread::spawn(move || Step::run(&mut command));
    wait_for("the balancer", || cluster.host.status().len() == 1 || step.is_finished());
    cluster.kill_node(0);
    let ended = step.join().unwrap();
    assert_eq!(ended.code, Some(124), "{ended:?}");
    ended.says("2 ranks of step ");
    cluster.start_node(0);
    cluster.wait_for_nothing_left();
}

/// All of a step is killed at once, the supervisor included.
#[test]
fn the_epilog_clears_up_after_a_user() {
    let Some(cluster) = Cluster::start("the_epilog_clears_up_after_a_user", Wanted::default())
    else {
        return;
    };
    be_eager(&cluster.host);
    // As seen in the cluster: /run/user/65534.
    let runtime = cluster.host.path(&format!("run/user/{NOBODY}"));
    std::fs::create_dir_all(&runtime).unwrap();
    let srun = ["srun", "-n2", "--overcommit", "--time=2", "--job-name=victim", "--evenkeel"];
    let mut command = by_nobody(&cluster.host, &[&srun[..], &busy("30")].concat());
    std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
    command
        .env("SLURM_CONF", cluster.host.path("slurm.conf"))
        .env("XDG_RUNTIME_DIR", format!("/run/user/{NOBODY}"))
        .current_dir("/tmp")
        .stderr(std::process::Stdio::null());
    let mut step = command.spawn().unwrap();
    let files = |folder: &str| {
        let entries = std::fs::read_dir(runtime.join("evenkeel").join(folder));
        let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.is_dir()).count()
    };
    wait_for("the balancer", || files("journal") > 0 || step.try_wait().unwrap().is_some());
    cluster.scancel(&["--name=victim", "--signal=KILL"]);
    ended(&mut step);
    cluster.wait_for_no_process();
    // What is left depends on the order of the kills; this is left in any case.
    let socket = runtime.join("evenkeel/job-1-2.sock");
    drop(UnixListener::bind(&socket).unwrap());
    std::os::unix::fs::chown(&socket, Some(NOBODY), Some(NOBODY)).unwrap();
    let epilog = cluster.epilog(NOBODY);
    assert!(epilog.status.success(), "{epilog:?}");
    assert_eq!((files(""), files("journal")), (0, 0), "{epilog:?}");
    cluster.wait_for_nothing_left();
}

/// The script that an administrator names in slurm.conf, and slurmd runs.
#[test]
fn slurmd_clears_up_before_and_after_a_job() {
    let test = "slurmd_clears_up_before_and_after_a_job";
    let Some(cluster) = Cluster::start(test, Wanted { has_epilog: true, ..Wanted::default() })
    else {
        return;
    };
    // What is left here is what a killed job leaves in any case.
    let socket = cluster.host.runtime().join("job-1-2.sock");
    let leave = || drop(UnixListener::bind(&socket).unwrap());
    // The directory is evenkeel's own.
    assert_eq!(Step::run(&mut cluster.srun(&["-n1", "--evenkeel", "true"])).code, Some(0));
    cluster.wait_for_nothing_left();
    leave();
    let step = Step::run(&mut cluster.srun(&["-n1", "ls", "/run/evenkeel"]));
    assert!(step.code == Some(0), "{step:?}");
    assert!(step.stdout.iter().all(|name| name != "job-1-2.sock"), "not before: {step:?}");
    cluster.wait_for_nothing_left();
    let mut srun = cluster.srun(&["-n1", "sleep", "1"]).spawn().unwrap();
    wait_for("the step", || {
        !cluster.processes_named("sleep").is_empty() || srun.try_wait().unwrap().is_some()
    });
    leave();
    assert!(ended(&mut srun).success());
    wait_for("the epilog", || !socket.exists());
    // And no node is drained.
    cluster.wait_for_nothing_left();
}

/// A job that runs there ends as ever, and its step is asked. Afterwards no job starts there, and so the
/// report cannot ask that node.
#[test]
fn a_drained_node_ends_its_job_and_is_named_by_the_report() {
    let test = "a_drained_node_ends_its_job_and_is_named_by_the_report";
    let Some(cluster) = Cluster::start(test, Wanted::default()) else { return };
    be_eager(&cluster.host);
    let (out, end) = (cluster.host.path("out"), cluster.host.path("end"));
    let waits = format!("while [ ! -e '{}' ]; do sleep 0.1; done", end.display());
    let script = format!(
        "srun {}\n{waits}\n'{EVENKEEL}' cluster report $SLURM_JOB_ID; echo asked: $?",
        busy_in_a_script("1")
    );
    let output = format!("--output={}", out.display());
    let job = cluster.sbatch(&["-N2", "-n2", "--evenkeel", &output], &script).to_string();
    assert_eq!(cluster.running_job().to_string(), job);
    let drain = |node: &str| {
        cluster.scontrol(&["update", &format!("nodename={node}"), "state=drain", "reason=test"]);
    };
    drain("node1");
    std::fs::write(end, "").unwrap();
    cluster.wait_for_no_process();
    assert_eq!(cluster.of_job(job.parse().unwrap(), "JobState"), "COMPLETED");
    assert!(cluster.left().is_empty(), "{:?}", cluster.left());
    let written = std::fs::read_to_string(&out).unwrap();
    assert!(written.contains("asked: 0\n"), "{written}");
    let report = cluster.report(&[&job]);
    let said = text(&report.stdout);
    assert_eq!(report.status.code(), Some(1), "{report:?}");
    assert!(said.contains("\n  node2: ") && !said.contains("\n  node1: "), "{said}");
    assert!(said.contains("Not read: node1 takes no job now (drain)"), "{said}");
    drain("node2");
    let report = cluster.report(&[&job]);
    assert_eq!(report.status.code(), Some(3), "{report:?}");
    assert!(text(&report.stderr).contains("node2 takes no job now (drain)"), "{report:?}");
    for node in ["node1", "node2"] {
        cluster.scontrol(&["update", &format!("nodename={node}"), "state=resume"]);
    }
    wait_for("idle nodes", || cluster.states() == ["idle", "idle"]);
    cluster.wait_for_nothing_left();
}

/// The words of its program were given to the runtime before the plugin is called. The runtime here
/// starts nothing.
#[test]
fn a_container_of_slurm_runs_without() {
    let Some(cluster) = Cluster::start("a_container_of_slurm_runs_without", Wanted::default())
    else {
        return;
    };
    let runtime = "RunTimeRun=\"echo in a container\"\nRunTimeQuery=\"true\"\n\
                   RunTimeKill=\"true\"\nRunTimeDelete=\"true\"\n";
    std::fs::write(cluster.host.path("oci.conf"), runtime).unwrap();
    let bundle = cluster.host.path("bundle");
    std::fs::create_dir_all(bundle.join("rootfs")).unwrap();
    let config = r#"{"ociVersion": "1.0.0", "root": {"path": "rootfs"}, "process": {"args": ["sh"],
        "cwd": "/", "env": [], "user": {"uid": 0, "gid": 0}}, "mounts": [], "linux": {}}"#;
    std::fs::write(bundle.join("config.json"), config).unwrap();
    let container = format!("--container={}", bundle.display());
    let plain = Step::run(&mut cluster.srun(&["-n1", &container, "true"]));
    let under = Step::run(&mut cluster.srun(&["-n1", "--evenkeel", &container, "true"]));
    under.is_like(&plain);
    assert_eq!(under.stdout, ["in a container"]);
    under.says("the program of a container (--container) cannot be started by it; the job runs");
    cluster.wait_for_nothing_left();
}
