//! A cpuset that shrinks and grows in mid-run: no task is placed outside it, and tasks that were moved
//! get back the CPUs that it gains. Nor is one where the tasks of one program have different cpusets.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::roles::role;
use crate::running_daemon::{Daemon, lone_worker};
use crate::support::*;
use crate::worker::Worker;

/// A cpuset of our own in cgroup v1 or v2, removed when dropped.
struct Group {
    path: PathBuf,
}

impl Group {
    fn new(host: &Host) -> Result<Self, String> {
        Self::named(host, "")
    }

    /// One of several of a test.
    fn named(host: &Host, name: &str) -> Result<Self, String> {
        let v1 = Path::new("/sys/fs/cgroup/cpuset");
        let v2 = Path::new("/sys/fs/cgroup");
        let (parent, mems) = if v1.join("cpuset.cpus").exists() {
            (v1, "cpuset.effective_mems")
        } else {
            let enabled = std::fs::read_to_string(v2.join("cgroup.subtree_control"));
            if !enabled.is_ok_and(|text| text.split_whitespace().any(|name| name == "cpuset")) {
                return Err("there is no cgroup with the cpuset controller".into());
            }
            (v2, "cpuset.mems.effective")
        };
        let name = format!("{}{name}", host.path("").file_name().unwrap().to_str().unwrap());
        let path = parent.join(name);
        std::fs::create_dir(&path).map_err(|error| error.to_string())?;
        let group = Self { path };
        let mems = std::fs::read_to_string(parent.join(mems)).map_err(|error| error.to_string())?;
        group.write("cpuset.mems", mems.trim())?;
        group.write("cpuset.cpus", &all().to_string())?;
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        std::fs::write(self.path.join(file), text).map_err(|error| format!("{file}: {error}"))
    }

    fn allow(&self, cpus: &str) {
        self.write("cpuset.cpus", cpus).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let home = self.path.parent().unwrap().join("cgroup.procs");
        let path = &self.path;
        wait_for("the cgroup's removal", || {
            for pid in
                std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines()
            {
                let _ = std::fs::write(&home, pid);
            }
            std::fs::remove_dir(path).is_ok() || !path.exists()
        });
    }
}

#[test]
fn a_cpuset_that_shrinks_and_grows_is_followed() {
    let Some((x, y)) = two_cpus("a_cpuset_that_shrinks_and_grows_is_followed") else { return };
    let both = [x, y].into_iter().collect::<evenkeel_machine::CpuSet>();
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let group = match Group::new(&host) {
            Ok(group) => group,
            Err(why) => {
                return evenkeel_skip::skip("a_cpuset_that_shrinks_and_grows_is_followed", why);
            }
        };
        group.allow(&both.to_string());
        let procs =
            std::fs::OpenOptions::new().write(true).open(group.path.join("cgroup.procs")).unwrap();
        let flags = [&["--placement", placement], &EAGER[..]].concat();
        let mut command = host.run(&flags, &role("worker"));
        let fd = std::os::fd::AsRawFd::as_raw_fd(&procs);
        // "0" stands for the process that writes it.
        // SAFETY: one system call with a static buffer.
        let join = move || match unsafe { libc::write(fd, c"0".as_ptr().cast(), 1) } {
            1 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: a system call only.
        unsafe { command.pre_exec(join) };
        command.stderr(std::process::Stdio::piped());
        let mut worker = Worker::start_by(&mut command, 2);
        worker.wait_moved(&host, 2);
        for only in [x, y] {
            group.allow(&only.to_string());
            wait_for("the kernel", || worker.is_as(&just(only)));
            let before = host.pins().len();
            host.wait_intervals(20);
            // A move that was under way may still have been written to the journal.
            let late: Vec<_> =
                host.pins().split_off(before).into_iter().filter(|(_, cpu)| *cpu != only).collect();
            assert!(late.len() <= 2, "{placement}: placed outside: {late:?}");
            assert!(worker.is_as(&just(only)), "{placement}");
            group.allow(&both.to_string());
            let before = host.pins().len();
            wait_for("moves to both", || {
                let pins = host.pins().split_off(before);
                [x, y].iter().all(|cpu| pins.iter().filter(|pin| pin.1 == *cpu).count() > 2)
            });
        }
        // evenkeel's own threads, too, whatever the cpuset was when they visited a CPU.
        let threads = format!("/proc/{}/task", worker.evenkeel.id());
        wait_for("evenkeel on both", || {
            let tids =
                std::fs::read_dir(&threads).unwrap().flatten().map(|entry| entry.file_name());
            let masks = tids.map(|tid| mask(tid.to_str().unwrap().parse().unwrap()));
            masks.filter(|mask| *mask != both).count() == 0
        });
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert!(worker.is_as(&both), "{placement}");
        // The threads are not pinned to these CPUs: they follow the cpuset.
        group.allow(&x.to_string());
        wait_for("shrinking", || worker.is_as(&just(x)));
        group.allow(&both.to_string());
        wait_for("growing", || worker.is_as(&both));
        host.status();
        let mut said = String::new();
        let mut stderr = worker.evenkeel.stderr.take().unwrap();
        worker.let_end();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        assert_eq!(said, "", "{placement}");
    }
}

#[test]
fn no_task_leaves_the_cpus_that_the_user_allows() {
    let Some((x, y)) = two_cpus("no_task_leaves_the_cpus_that_the_user_allows") else { return };
    // The flag --cpus holds like a cpuset, which the administrator sets.
    let host = Host::new();
    let list = x.to_string();
    let flags = [&["-q", "--cpus", &list], &EAGER[..]].concat();
    let worker = Worker::start(&host, &flags);
    host.wait_intervals(20);
    assert!(host.pins().iter().all(|pin| pin.1 != y), "{:?}", host.pins());
    assert!(worker.end().success());
}

/// As where the CPU manager of Kubernetes gives one container of a pod a CPU, and takes it out of the
/// cpusets of all others. All of it is one program, of which tasks change places.
#[test]
fn a_cpu_that_another_cpuset_has_for_itself_stays_so() {
    let test = "a_cpu_that_another_cpuset_has_for_itself_stays_so";
    let Some((x, y)) = two_cpus(test) else { return };
    let host = Host::new();
    let groups = [("-shared", x), ("-exclusive", y)].map(|(name, cpu)| {
        let group = Group::named(&host, name)?;
        group.allow(&cpu.to_string());
        Ok::<_, String>((group, cpu))
    });
    let [Ok(shared), Ok(exclusive)] = groups else {
        return evenkeel_skip::skip(test, "no cpusets can be made");
    };
    let daemon = Daemon::start(&host, &[&["--placement", "hard"][..], &EAGER].concat());
    let workers = [&shared, &exclusive].map(|(group, cpu)| {
        let worker = lone_worker(&host);
        std::fs::write(group.path.join("cgroup.procs"), worker.pid.to_string()).unwrap();
        wait_for("the kernel", || worker.is_as(&just(*cpu)));
        (worker, *cpu)
    });
    for (worker, _) in &workers {
        let asked = json!({"req": "join", "args": {"pid": worker.pid, "job": "pod"}});
        assert_eq!(daemon.ask(&asked)["errno"], 0);
    }
    assert_eq!(host.status().len(), 1, "one program");
    host.wait_intervals(40);
    let pins = host.pins();
    for (worker, cpu) in &workers {
        let outside = |pin: &&(i32, u32)| worker.threads.contains(&pin.0) && pin.1 != *cpu;
        let outside: Vec<_> = pins.iter().filter(outside).collect();
        assert!(outside.is_empty(), "placed outside CPU {cpu}: {outside:?}");
        assert!(worker.is_as(&just(*cpu)));
    }
    for (worker, _) in workers {
        assert!(worker.end().success());
    }
    daemon.end();
}
