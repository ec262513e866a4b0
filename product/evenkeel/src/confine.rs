//! Confinement of the services: the kernel refuses what they never do, so that a fault in them reaches
//! less of the machine. `evenkeel run` is not confined, because its program would inherit that.
//!
//! - seccomp (`daemon`, `sched`, `sais attach` and `serve`, `irq run` and `once`, the supervisor): no
//!   tracing of processes, mounts, modules, kexec, clocks, other users, namespaces or kernel interfaces
//!   that none of them uses; no sockets but those that they need; and no new program where none is
//!   started.
//! - Landlock (`sais`, `irq` and the supervisor): no change of a file outside the folder of sockets
//!   and journals and, where knobs are turned or lines moved, outside /proc and /sys; no program but
//!   this one.
//!
//! Landlock also hides from a process what `ptrace` could show of others: the file that they run
//! (`/proc/PID/exe`), how often they read and write (`io`), and on older kernels their memory
//! (`smaps_rollup`). The daemon and the keel find and measure programs by these, so Landlock is not for
//! them; their units close the file system instead (packaging/systemd).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use evenkeel_control::guard_reads;
use landlock::{
    ABI, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::cli::{Command, IrqPart, SaisPart};

/// System calls that no service makes. What is added to kernels later is not here; the units allow only
/// what they list.
const NEVER: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // File systems.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_mknodat,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_personality,
    libc::SYS_vhangup,
    // Clocks and names.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Other users and namespaces.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Interfaces with many faults in their past.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];
#[cfg(target_arch = "x86_64")]
const NEVER_HERE: &[libc::c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_kexec_file_load,
    libc::SYS_mknod,
];
#[cfg(not(target_arch = "x86_64"))]
const NEVER_HERE: &[libc::c_long] = &[];

/// What a command may still do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bounds {
    /// The families of sockets.
    sockets: &'static [libc::c_int],
    programs: Programs,
    /// Below these folders files may be changed; `None`: wherever the process may.
    writable: Option<Vec<PathBuf>>,
}

/// Which programs may be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Programs {
    None,
    /// This program: a supervisor.
    Own,
}

const LOCAL: &[libc::c_int] = &[libc::AF_UNIX];
/// Also to serve metrics, and to ask a device about itself.
const LOCAL_OR_INET: &[libc::c_int] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
/// Where the knobs are that `sais` turns, and the affinities of interrupt lines. Not a file each: the
/// kernel forgets which file of /proc/sys a rule meant once its memory is short.
const KNOBS: [&str; 2] = ["/proc", "/sys"];
/// For the supervisor's output.
const NOWHERE: &str = "/dev/null";

/// The bounds of a command; `None`: it is not confined. `runtime` gives the folder of sockets and
/// journals.
fn of(command: &Command, runtime: impl FnOnce() -> Option<PathBuf>) -> Option<Bounds> {
    let knobs = || KNOBS.iter().map(PathBuf::from);
    Some(match command {
        Command::Daemon(_) => {
            Bounds { sockets: LOCAL_OR_INET, programs: Programs::Own, writable: None }
        }
        Command::Sched(_) => Bounds { sockets: LOCAL, programs: Programs::None, writable: None },
        Command::Sais(args) => match &args.part {
            SaisPart::Attach(args) => {
                // Also those that a killed one left: whatever keeps a journal undoes them first.
                let keeps_journal = args.manage_rfs || args.hold.is_some();
                let knobs = knobs().filter(|_| keeps_journal);
                let writable = runtime().map(|folder| knobs.chain([folder]).collect());
                Bounds { sockets: LOCAL_OR_INET, programs: Programs::Own, writable }
            }
            SaisPart::Serve(_) => Bounds {
                sockets: LOCAL_OR_INET,
                programs: Programs::None,
                writable: runtime().map(|folder| vec![folder]),
            },
            SaisPart::Status(_) | SaisPart::Explain(_) | SaisPart::Model(_) => return None,
        },
        Command::Irq(args) if matches!(args.part, IrqPart::Run(_) | IrqPart::Once(_)) => Bounds {
            sockets: LOCAL,
            programs: Programs::Own,
            writable: runtime().map(|folder| knobs().chain([folder]).collect()),
        },
        Command::Supervise(args) => {
            let folder = args.journal.parent().map(Path::to_owned);
            let writable = folder.map(|folder| knobs().chain([folder]).collect());
            Bounds { sockets: LOCAL, programs: Programs::None, writable }
        }
        _ => return None,
    })
}

/// Confines this process to what the command does, and guards its reads of processes. Called before any
/// other thread runs. What the kernel cannot do is left out: the command works without. From
/// `trace_folder` files may be removed until [`remove_only_from`] is called: a trace that does not begin
/// leaves no file.
pub fn confine_for(command: &Command, trace_folder: Option<&Path>) {
    let runtime = || evenkeel_journal::runtime_dir().ok();
    if let Some(bounds) = of(command, runtime) {
        // It serves all users, or undoes what was done for them: none of them may hold it up.
        guard_reads();
        confine(&bounds, trace_folder);
    }
}

/// Lets files be removed from this folder only, that of sockets and journals.
pub fn remove_only_from(folder: &Path) {
    if let Err(why) = close_removal(folder) {
        tracing::debug!("removing files is not closed by Landlock: {why}");
    }
}

fn close_removal(folder: &Path) -> Result<(), landlock::RulesetError> {
    let remove = AccessFs::RemoveFile;
    let rules = Ruleset::default().handle_access(remove)?.create()?;
    rules.add_rules(path_beneath_rules([folder], remove))?.restrict_self()?;
    Ok(())
}

fn confine(bounds: &Bounds, trace_folder: Option<&Path>) {
    let close = |writable: &[PathBuf]| close_files(writable, bounds.programs, trace_folder);
    match bounds.writable.as_deref().map(close) {
        None | Some(Ok(true)) => {}
        Some(Ok(false)) => tracing::debug!("this kernel has no Landlock: files are not closed"),
        Some(Err(why)) => tracing::debug!("files are not closed by Landlock: {why}"),
    }
    if let Err(why) = close_system_calls(bounds) {
        tracing::debug!("system calls are not closed by seccomp: {why}");
    }
}

/// Returns whether the kernel has Landlock.
fn close_files(
    writable: &[PathBuf],
    programs: Programs,
    trace_folder: Option<&Path>,
) -> Result<bool, landlock::RulesetError> {
    let write = AccessFs::from_write(ABI::V3);
    let executable = match programs {
        Programs::None => Vec::new(),
        Programs::Own => [std::env::current_exe().ok(), loader()].into_iter().flatten().collect(),
    };
    let mut rules = Ruleset::default()
        .handle_access(write | AccessFs::Execute)?
        .create()?
        .add_rules(path_beneath_rules(writable, write))?
        .add_rules(path_beneath_rules(trace_folder, AccessFs::RemoveFile))?
        .add_rules(path_beneath_rules(&executable, AccessFs::Execute))?;
    if let Ok(nowhere) = PathFd::new(NOWHERE) {
        rules = rules.add_rule(PathBeneath::new(nowhere, AccessFs::WriteFile))?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// The dynamic loader of this process, which the kernel executes with each program that needs it.
fn loader() -> Option<PathBuf> {
    // SAFETY: takes an integer and reads the auxiliary vector.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let map = maps.lines().find(|line| line.starts_with(&format!("{base:x}-")))?;
    map.split_whitespace().nth(5).map(PathBuf::from)
}

fn close_system_calls(bounds: &Bounds) -> Result<(), seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        NEVER.iter().chain(NEVER_HERE).map(|call| (*call, Vec::new())).collect();
    if bounds.programs == Programs::None {
        rules.extend([libc::SYS_execve, libc::SYS_execveat].map(|call| (call, Vec::new())));
    }
    let is_other = |family: &libc::c_int| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *family as u64)
    };
    let others = bounds.sockets.iter().map(is_other).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(others)?]);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let architecture = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?;
    let program: BpfProgram = filter.try_into()?;
    apply_filter(&program)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::process::Stdio;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// The bounds of a command, with this folder of sockets and journals.
    fn bounds(words: &[&str], runtime: &Path) -> Option<Bounds> {
        let cli = Cli::try_parse_from([&["evenkeel"], words].concat()).unwrap();
        of(&cli.command, || Some(runtime.to_owned()))
    }

    /// Runs on a thread of its own, which alone is confined.
    fn confined<T: Send>(bounds: &Bounds, run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                confine(bounds, None);
                run()
            });
            thread.join().unwrap()
        })
    }

    fn errno_of(result: libc::c_long) -> Option<i32> {
        (result < 0).then(|| std::io::Error::last_os_error().raw_os_error().unwrap())
    }

    /// What the kernel says of a system call without arguments.
    fn call(number: libc::c_long) -> Option<i32> {
        // SAFETY: without arguments these fail, or change nothing.
        errno_of(unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) })
    }

    fn socket(family: libc::c_int) -> Option<i32> {
        // SAFETY: plain numbers; the descriptor stays open until the end of the test.
        errno_of(unsafe { libc::syscall(libc::SYS_socket, family, libc::SOCK_DGRAM, 0) })
    }

    const SERVICES: [&[&str]; 7] = [
        &["daemon"],
        &["sched"],
        &["sais", "attach", "lo"],
        &["sais", "serve", "/"],
        &["irq", "run"],
        &["irq", "once"],
        &["supervise", "/run/evenkeel/journal/1.jsonl"],
    ];

    #[test]
    fn services_cannot_do_what_they_never_do() {
        let folder = tempfile::tempdir().unwrap();
        for words in SERVICES {
            let bounds = bounds(words, folder.path()).unwrap();
            // Not reboot, which is never called here without a filter.
            for number in [libc::SYS_ptrace, libc::SYS_mount, libc::SYS_delete_module] {
                let refused = confined(&bounds, || call(number));
                assert_eq!(refused, Some(libc::EPERM), "{words:?}: system call {number}");
            }
            for number in [libc::SYS_unshare, libc::SYS_setuid, libc::SYS_io_uring_setup] {
                let refused = confined(&bounds, || call(number));
                assert_eq!(refused, Some(libc::EPERM), "{words:?}: system call {number}");
            }
            assert_eq!(confined(&bounds, || socket(libc::AF_NETLINK)), Some(libc::EPERM));
            assert_eq!(confined(&bounds, || socket(libc::AF_UNIX)), None, "{words:?}");
            let inet = confined(&bounds, || socket(libc::AF_INET));
            assert_eq!(inet.is_some(), bounds.sockets == LOCAL, "{words:?}");
        }
        // The thread of this test is not confined, as a check of the check.
        assert_eq!(call(libc::SYS_unshare), None);
        assert_eq!(socket(libc::AF_NETLINK), None);
    }

    #[test]
    fn only_services_that_have_a_supervisor_start_programs() {
        let folder = tempfile::tempdir().unwrap();
        let start = |program: &Path| {
            let mut command = std::process::Command::new(program);
            command.arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status()
        };
        let own = std::env::current_exe().unwrap();
        for words in SERVICES {
            let bounds = bounds(words, folder.path()).unwrap();
            let started = confined(&bounds, || start(&own));
            match bounds.programs {
                Programs::Own => assert!(started.unwrap().success(), "{words:?}"),
                Programs::None => {
                    assert_eq!(started.unwrap_err().kind(), ErrorKind::PermissionDenied);
                }
            }
        }
        let bounds = bounds(&["sais", "attach", "lo"], folder.path()).unwrap();
        if has_landlock() {
            let other = confined(&bounds, || start(Path::new("/bin/true")));
            assert_eq!(other.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
    }

    /// Whether the kernel has it; if not, says that the test is skipped.
    fn has_landlock() -> bool {
        // SAFETY: asks for the version, and reads nothing.
        let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, 1) };
        if version < 1 {
            evenkeel_skip::skip("confine", "this kernel has no Landlock");
        }
        version >= 1
    }

    #[test]
    fn sais_changes_no_file_but_its_own() {
        if !has_landlock() {
            return;
        }
        let [own, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let file = other.path().join("file");
        std::fs::write(&file, "before").unwrap();
        let (own, other) = (own.path(), other.path());
        for words in [&["sais", "attach", "lo"][..], &["sais", "serve", "/"]] {
            let bounds = bounds(words, own).unwrap();
            confined(&bounds, || {
                let refused = |result: std::io::Result<()>| {
                    assert_eq!(
                        result.unwrap_err().kind(),
                        ErrorKind::PermissionDenied,
                        "{words:?}"
                    );
                };
                refused(std::fs::write(&file, "after"));
                refused(std::fs::write(other.join("new"), ""));
                refused(std::fs::remove_file(&file));
                refused(std::fs::create_dir(other.join("folder")));
                refused(std::fs::rename(&file, own.join("file")));
                // A knob that needs no capability.
                refused(std::fs::write("/proc/self/oom_score_adj", "1000"));
                assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
                std::fs::create_dir(own.join("journal")).unwrap();
                std::fs::write(own.join("journal/1.tmp"), "entry").unwrap();
                std::fs::rename(own.join("journal/1.tmp"), own.join("journal/1.jsonl")).unwrap();
                std::os::unix::net::UnixListener::bind(own.join("sais.sock")).unwrap();
                std::fs::remove_file(own.join("sais.sock")).unwrap();
                std::fs::remove_dir_all(own.join("journal")).unwrap();
                std::fs::write(NOWHERE, "").unwrap();
            });
        }
        // Where it turns knobs, it may.
        let words = ["sais", "attach", "lo", "--policy", "auto", "--manage-rfs"];
        confined(&bounds(&words, own).unwrap(), || {
            let knob = std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj");
            assert!(knob.is_ok(), "{knob:?}");
        });
    }

    #[test]
    fn a_trace_that_does_not_begin_can_be_removed() {
        if !has_landlock() {
            return;
        }
        let [own, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let (own, other) = (own.path(), other.path());
        let [journal, trace, begun] = [own.join("1"), other.join("trace"), other.join("begun")];
        for file in [&journal, &trace, &begun] {
            std::fs::write(file, "").unwrap();
        }
        let bounds = bounds(&["irq", "run"], own).unwrap();
        let refused = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                confine(&bounds, Some(other));
                refused(std::fs::write(&begun, "after"));
                std::fs::remove_file(&trace).unwrap();
                remove_only_from(own);
                refused(std::fs::remove_file(&begun));
                std::fs::remove_file(&journal).unwrap();
            });
        });
    }

    /// Why the daemon and the keel are without it: they see of other processes what `ptrace` shows.
    #[test]
    fn landlock_hides_what_other_processes_run_and_do() {
        if !has_landlock() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", sleeper.id()));
        let sees = |words: &[&str]| {
            confined(&bounds(words, folder.path()).unwrap(), || {
                let file = std::fs::read_link(process.join("exe")).is_ok();
                (file, std::fs::read_to_string(process.join("io")).is_ok())
            })
        };
        let seen = [&["sais", "serve", "/"][..], &["daemon"], &["sched"]].map(sees);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert_eq!(seen, [(false, false), (true, true), (true, true)]);
    }

    #[test]
    fn no_command_that_runs_a_users_program_is_confined() {
        let folder = Path::new("/run/evenkeel");
        let reports: [&[&str]; 5] =
            [&["run", "--", "true"], &["status"], &["undo"], &["doctor"], &["irq", "plan"]];
        for words in reports {
            assert_eq!(bounds(words, folder), None, "{words:?}");
        }
    }
}
