//! The first process in the guest: mounts the file systems that programs expect, then serves the host's
//! requests one after the other ([`serve`]). Where systemd is the first process, it starts this one as a
//! service, and only the processes in the service's cgroup are this one's business.
//!
//! For each job it starts the command with its output in two files under /run, reports every two
//! seconds that it is alive, kills the command when its time is over, kills what the command left
//! behind, and sends how it ended together with the output. It inherits the orphans, and reaps them.
//!
//! It runs with SCHED_FIFO at the highest priority, so that a scheduler under test, which has ordinary
//! tasks only, can neither silence it nor keep it from killing a command.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::initramfs::MARK;
use crate::protocol::{Answer, Request};
use crate::{Ending, Job};

/// The second serial line. Its other end is QEMU's standard input and output.
const LINE: &str = "/dev/ttyS1";
const OUTPUTS: [&str; 2] = ["/run/stdout", "/run/stderr"];
/// How much of an output is sent at most: its end.
const OUTPUT_BYTES: u64 = 1 << 20;
/// How often `Alive` is sent while a job runs.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long the processes that a job left behind may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);

/// File systems by type and place. A type that the kernel lacks is skipped. Nothing is mounted at /tmp:
/// the whole root is in memory anyway, and the initramfs may hold programs of a checkout below /tmp.
const MOUNTS: &[(&str, &str)] = &[
    ("devtmpfs", "/dev"),
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("tmpfs", "/run"),
    ("tmpfs", "/dev/shm"),
    ("devpts", "/dev/pts"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("debugfs", "/sys/kernel/debug"),
    ("tracefs", "/sys/kernel/tracing"),
];

/// The environment of the service has this variable (`initramfs.rs`); that of a job has not.
const SERVICE: &str = "EVENKEEL_VM_SERVICE";

/// Whether this process serves the host in a guest that this crate booted: it is the first one, or
/// systemd's service.
pub fn is_init() -> bool {
    let serves = is_first() || std::env::var_os(SERVICE).is_some();
    serves && Path::new(MARK).exists()
}

fn is_first() -> bool {
    std::process::id() == 1
}

/// Serves the host's requests until `Off`, then powers the guest off. Does not return.
pub fn serve() -> ! {
    if let Err(error) = try_serve() {
        // On the console: the line to the host has failed.
        let _ = writeln!(std::io::stderr(), "evenkeel-vm: {error}");
    }
    // Flushes pending output.
    nix::unistd::sync();
    let Err(error) = reboot(RebootMode::RB_POWER_OFF);
    let _ = writeln!(std::io::stderr(), "evenkeel-vm: cannot power off: {error}");
    std::process::exit(1);
}

fn try_serve() -> std::io::Result<()> {
    if is_first() {
        mount_all();
    } else {
        nix::sys::prctl::set_child_subreaper(true)?;
    }
    set_highest_priority();
    // Blocked, so that sigtimedwait() can wait for it.
    let children: SigSet = [Signal::SIGCHLD].into_iter().collect();
    children.thread_block()?;

    let mut line = File::options().read(true).write(true).open(LINE)?;
    let mut settings = tcgetattr(&line)?;
    cfmakeraw(&mut settings);
    tcsetattr(&line, SetArg::TCSANOW, &settings)?;
    let requests = BufReader::new(line.try_clone()?);
    send(&mut line, &Answer::Ready)?;
    for request in requests.lines() {
        match serde_json::from_str(&request?)? {
            Request::Off => return Ok(()),
            Request::Run(job) => {
                let ending = run(&job, &mut line)?;
                send(&mut line, &Answer::Ended(ending))?;
            }
        }
    }
    Ok(())
}

fn mount_all() {
    for (kind, place) in MOUNTS {
        let made = std::fs::create_dir_all(place);
        let none = None::<&str>;
        let mounted = mount(Some(*kind), *place, Some(*kind), MsFlags::empty(), none);
        if made.is_err() || mounted.is_err() {
            let _ = writeln!(std::io::stderr(), "evenkeel-vm: no {kind} at {place}");
        }
    }
    // World-writable and sticky, as programs expect.
    if std::fs::set_permissions("/tmp", Permissions::from_mode(0o1777)).is_err() {
        let _ = writeln!(std::io::stderr(), "evenkeel-vm: /tmp is not world-writable");
    }
}

/// SCHED_FIFO at the highest priority for this process; its children start as ordinary tasks.
fn set_highest_priority() {
    let highest = libc::sched_param { sched_priority: 99 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: a valid place for the parameters of a plain system call.
    if unsafe { libc::sched_setscheduler(0, policy, &highest) } != 0 {
        let _ =
            writeln!(std::io::stderr(), "evenkeel-vm: cannot get the highest real-time priority");
    }
}

fn send(line: &mut File, answer: &Answer) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    line.write_all(&text)
}

/// Runs a job to its end, kills the processes that it left behind, and reports. Errors are those of the
/// line to the host.
fn run(job: &Job, line: &mut File) -> std::io::Result<Ending> {
    let mut ending = Ending {
        code: 127,
        timed_out: false,
        stdout: String::new(),
        stderr: String::new(),
        left: Vec::new(),
    };
    let child = match start(job) {
        Ok(child) => child,
        Err(error) => {
            ending.stderr = format!("cannot start {:?}: {error}", job.command);
            return Ok(ending);
        }
    };
    let deadline = Instant::now() + Duration::from_secs(job.limit_s.into());
    let mut hanging_threads = String::new();
    loop {
        if let Some(status) = reap(child) {
            ending.code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            break;
        }
        if !ending.timed_out && Instant::now() > deadline {
            ending.timed_out = true;
            hanging_threads = describe_threads();
            kill_all();
        }
        wait_for_child(HEARTBEAT);
        send(line, &Answer::Alive)?;
    }
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline && !processes().is_empty() {
        wait_for_child(Duration::from_millis(10));
        reap(child);
    }
    ending.left = processes();
    kill_all();
    // Without `Alive`: if a process cannot be killed, the host ends the silent guest. Again and again:
    // one that was forked meanwhile was not in the list.
    while !processes().is_empty() {
        kill_all();
        wait_for_child(Duration::from_millis(10));
        reap(child);
    }
    [ending.stdout, ending.stderr] = OUTPUTS.map(end_of);
    ending.stderr.push_str(&hanging_threads);
    Ok(ending)
}

fn start(job: &Job) -> std::io::Result<Pid> {
    let (program, arguments) = job.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let [stdout, stderr] = OUTPUTS.map(File::create);
    let child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/root"), ("TERM", "dumb")])
        .stdin(Stdio::null())
        .stdout(stdout?)
        .stderr(stderr?)
        .spawn()?;
    // reap() reaps it by its pid, with all orphans.
    Ok(Pid::from_raw(child.id() as i32))
}

/// Reaps all processes that have ended: the first process inherits orphans. Returns the status of
/// `child` if it is among them.
fn reap(child: Pid) -> Option<ExitStatus> {
    let mut end = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                end = Some(ExitStatus::from_raw(code << 8));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                end = Some(ExitStatus::from_raw(signal as i32));
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return end,
            Ok(_) => {}
        }
    }
}

/// Waits until a child has ended, for `limit` at most.
fn wait_for_child(limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    };
    let children: SigSet = [Signal::SIGCHLD].into_iter().collect();
    // SAFETY: the set and the limit are valid; a null pointer for the signal's information is allowed.
    unsafe { libc::sigtimedwait(children.as_ref(), std::ptr::null_mut(), &limit) };
}

fn kill_all() {
    if is_first() {
        // All processes but this one. It fails only if there are none.
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        return;
    }
    let pids = process_dirs().filter_map(|dir| dir.file_name()?.to_str()?.parse().ok());
    for pid in pids {
        // It may have ended meanwhile.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The directories in /proc of the processes that jobs started: of all beside this one, or of all in its
/// cgroup.
fn process_dirs() -> impl Iterator<Item = PathBuf> {
    let own = std::process::id().to_string();
    let cgroup = |path: &Path| std::fs::read_to_string(path.join("cgroup")).ok();
    let own_cgroup = cgroup(Path::new("/proc/self")).filter(|_| !is_first());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(move |entry| entry.file_name().to_str().is_some_and(|name| name != own))
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .map(|entry| entry.path())
        // Kernel threads and zombies have no executable.
        .filter(|path| std::fs::read_link(path.join("exe")).is_ok())
        .filter(move |path| own_cgroup.is_none() || cgroup(path) == own_cgroup)
}

/// Their command lines.
fn processes() -> Vec<String> {
    let name = |path: PathBuf| {
        let words = std::fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ").trim().to_owned()
    };
    process_dirs().map(name).collect()
}

/// What all threads wait for, to find out why a job does not end: their names, states, masks and kernel
/// stacks. Threads for which all of these are the same share an entry.
fn describe_threads() -> String {
    let mut threads = BTreeMap::<String, Vec<String>>::new();
    for dir in process_dirs() {
        let tasks = std::fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
        for task in tasks.map(|task| task.path()) {
            let read = |name| std::fs::read_to_string(task.join(name)).unwrap_or_default();
            let status = read("status");
            let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
            let [name, state, cpus] =
                ["Name:", "State:", "Cpus_allowed_list:"].map(|key| of(key).unwrap_or("?").trim());
            let place = format!("{name}, {state}, may use CPUs {cpus}\n{}", read("stack"));
            let tid = task.file_name().unwrap_or_default().to_string_lossy().into_owned();
            threads.entry(place).or_default().push(tid);
        }
    }
    threads.into_iter().map(|(place, tids)| format!("{}: {place}", tids.join(" "))).collect()
}

/// The end of an output, read as text.
fn end_of(path: &str) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_or_else(
        |error| format!("(cannot be read: {error})"),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_thread_is_described() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let tid = child.id().to_string();
        let name = Path::new("/proc").join(&tid).join("comm");
        while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let said = describe_threads();
        child.kill().unwrap();
        child.wait().unwrap();
        let is_named = |line: &str| {
            line.split_once(": sleep, ")
                .is_some_and(|(tids, _)| tids.split(' ').any(|one| one == tid))
        };
        assert!(said.lines().any(is_named), "{said}");
    }
}
