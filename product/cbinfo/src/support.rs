//! Whether this kernel and this process can do exact accounting, and what the kernel's own run time
//! already leaves out.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use libbpf_rs::PrintLevel;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;

/// Why exact accounting does not work here; each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The kernel was built without type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux is missing): run a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y, as all current distributions ship"
    )]
    NoBtf,
    /// The process may not load BPF programs.
    #[error(
        "no privilege to load BPF programs (needs CAP_BPF and CAP_PERFMON): run as root or with sudo"
    )]
    NoPrivilege,
    /// Task ids inside this namespace are not the kernel's.
    #[error(
        "this process runs in a PID namespace of its own (a container), where the kernel's task \
         ids mean other tasks: run evenkeel on the host, or the container with --pid=host"
    )]
    PidNamespace,
}

/// What /proc/PID/ns/pid of a process in the initial PID namespace links to (kernel:
/// `include/linux/proc_ns.h`, `PROC_PID_INIT_INO`).
pub const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Whether [`Cbinfo`](crate::Cbinfo) can work here.
///
/// # Errors
/// The first requirement that is not met.
pub fn support() -> Result<(), Unsupported> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Unsupported::NoBtf);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !may_load(effective_capabilities(&status)) {
        return Err(Unsupported::NoPrivilege);
    }
    match fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) if namespace != Path::new(INITIAL_PID_NAMESPACE) => {
            Err(Unsupported::PidNamespace)
        }
        _ => Ok(()),
    }
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn may_load(capabilities: u64) -> bool {
    let has = |capability: u32| capabilities & (1 << capability) != 0;
    has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON))
}

/// What the kernel itself leaves out of a task's run time (`/proc/PID/schedstat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTimeExcludes {
    /// Interrupt and softirq time: kernels with `CONFIG_IRQ_TIME_ACCOUNTING`. Only their scheduler sees
    /// theft by softirqs.
    pub irq: bool,
    /// The hypervisor's steal: kernels with `CONFIG_PARAVIRT_TIME_ACCOUNTING`.
    pub steal: bool,
}

/// Probes the running kernel: its runqueue has a field for each of the two exactly when the option is on
/// (kernel: `kernel/sched/sched.h`, `struct rq`). Without BTF, the kernel's configuration in /boot is
/// read. `None` if neither can be read.
pub fn run_time_excludes() -> Option<RunTimeExcludes> {
    let built = from_btf().or_else(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        Some(from_config(&fs::read_to_string(format!("/boot/config-{}", release.trim())).ok()?))
    })?;
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    Some(RunTimeExcludes { irq: built.irq && !is_irq_time_off(&command_line), ..built })
}

/// Whether the command line switches the accounting of interrupts off (kernel:
/// Documentation/admin-guide/kernel-parameters.txt, `tsc=`).
fn is_irq_time_off(command_line: &str) -> bool {
    command_line.split_whitespace().any(|word| word == "tsc=noirqtime")
}

/// Sends libbpf's messages to our log as debug messages: our own errors report what fails.
pub fn redirect_libbpf_log() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        tracing::debug!("libbpf: {}", text.trim_end());
    })));
}

fn from_btf() -> Option<RunTimeExcludes> {
    let [irq, steal] = runqueue_has(["prev_irq_time", "prev_steal_time_rq"])?;
    Some(RunTimeExcludes { irq, steal })
}

/// Whether the kernel's runqueue has each of these fields; `None`: there is no BTF.
fn runqueue_has<const N: usize>(fields: [&str; N]) -> Option<[bool; N]> {
    redirect_libbpf_log();
    let btf = Btf::from_vmlinux().ok()?;
    let runqueue = btf.type_by_name::<Struct<'_>>("rq")?;
    let has = |field: &str| runqueue.iter().any(|member| member.name == Some(OsStr::new(field)));
    Some(fields.map(has))
}

/// Whether the kernel keeps time back for tasks of sched_ext beside real-time tasks that never sleep:
/// its runqueue has a deadline server for them (from Linux 7.0 on). `None`: there is no BTF.
pub fn keeps_time_for_sched_ext() -> Option<bool> {
    runqueue_has(["ext_server"]).map(|[has_server]| has_server)
}

fn from_config(config: &str) -> RunTimeExcludes {
    let on = |option: &str| config.lines().any(|line| line == format!("{option}=y"));
    RunTimeExcludes {
        irq: on("CONFIG_IRQ_TIME_ACCOUNTING"),
        steal: on("CONFIG_PARAVIRT_TIME_ACCOUNTING"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_is_read_from_the_effective_set() {
        let status = |mask: &str| format!("Name:\tx\nCapPrm:\t0\nCapEff:\t{mask}\n");
        assert!(may_load(effective_capabilities(&status("000001ffffffffff"))));
        assert!(may_load(effective_capabilities(&status("000000c000000000"))));
        assert!(!may_load(effective_capabilities(&status("0000008000000000"))));
        assert!(!may_load(effective_capabilities(&status("0"))));
        assert!(!may_load(effective_capabilities("")));
    }

    #[test]
    fn the_command_line_can_switch_irq_accounting_off() {
        assert!(is_irq_time_off("root=/dev/vda1 tsc=noirqtime quiet\n"));
        assert!(!is_irq_time_off("root=/dev/vda1 tsc=reliable quiet\n"));
    }

    #[test]
    fn only_a_whole_line_sets_an_option() {
        let config = "CONFIG_IRQ_TIME_ACCOUNTING=y\n# CONFIG_PARAVIRT_TIME_ACCOUNTING is not set\n";
        assert_eq!(from_config(config), RunTimeExcludes { irq: true, steal: false });
    }
}
