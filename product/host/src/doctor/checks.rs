//! From facts to checks: can programs be observed and tasks be placed here.

use evenkeel_cbinfo::Unsupported;
use evenkeel_machine::{CAPABILITY_SCALE, CpuSet, Machine, SpeedOrigin};

use super::check::{Check, CheckName, count};
use super::facts::Facts;
use crate::Accounting;

/// The oldest kernel that evenkeel is tested on: major and minor.
const OLDEST_TESTED: (u32, u32) = (6, 1);
/// Up to this many different speeds are listed one by one; more are printed as a range.
const LISTED_SPEEDS: usize = 4;
/// Open files that accounting, journal and supervisor need, with a margin.
const OPEN_FILES: u64 = 128;
/// File size that a journal needs: it is compacted after it has grown by 512 KiB, and a large program
/// needs more.
const FILE_SIZE_BYTES: u64 = 4 << 20;
/// Before this version, BPF maps counted as locked memory.
const LOCKED_BPF_BEFORE: (u32, u32) = (5, 11);
/// Locked memory that the maps of cbinfo need, with a margin.
const LOCKED_BYTES: u64 = 16 << 20;

/// The checks of this file, in the order in which they are shown.
pub(super) fn all(facts: &Facts) -> Vec<Check> {
    let always = [
        kernel(facts),
        proc(facts),
        btf(facts),
        bpf(facts),
        pid_namespace(facts),
        cpus(facts),
        cpuset(facts),
    ];
    let also = [isolated(facts), Some(topology(facts)), Some(run_time(facts))];
    let acting = [journal(facts), affinity(facts), left_behind(facts), limits(facts)];
    always.into_iter().chain(also.into_iter().flatten()).chain(acting).collect()
}

/// Major and minor number of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(facts: &Facts) -> Check {
    let release = facts.system.release.as_deref();
    let arch = facts.system.arch.as_deref().unwrap_or(std::env::consts::ARCH);
    let found = format!("Linux {} {arch}", release.unwrap_or("of unknown release"));
    match release.and_then(version) {
        Some(version) if version < OLDEST_TESTED => Check::limited(CheckName::Kernel, found)
            .means("evenkeel is tested on 6.1 and newer: accounting may fail here")
            .remedy("run Linux 6.1 or newer"),
        _ if arch != "x86_64" => {
            Check::limited(CheckName::Kernel, found).means("evenkeel is tested on x86_64 only")
        }
        _ => Check::ok(CheckName::Kernel, found),
    }
}

fn proc(facts: &Facts) -> Check {
    if facts.system.has_proc {
        return Check::ok(CheckName::Proc, "readable").needed();
    }
    Check::missing(CheckName::Proc, "/proc/stat cannot be read")
        .means("neither tasks nor CPUs can be observed")
        .remedy("mount -t proc proc /proc")
        .needed()
}

/// The loss without exact accounting.
fn approximate(facts: &Facts) -> &'static str {
    match facts.process.excludes {
        Some(excludes) if excludes.irq => {
            "figures come from /proc, where real-time tasks look like all others"
        }
        _ => {
            "figures come from /proc, which does not show softirq theft, and where real-time tasks \
             look like all others"
        }
    }
}

fn btf(facts: &Facts) -> Check {
    if facts.system.has_btf {
        return Check::ok(CheckName::Btf, "/sys/kernel/btf/vmlinux");
    }
    Check::missing(CheckName::Btf, "the kernel has no type information (BTF)")
        .means(approximate(facts))
        .remedy("run a kernel built with CONFIG_DEBUG_INFO_BTF=y, as distributions ship")
}

fn bpf(facts: &Facts) -> Check {
    match (&facts.process.bpf, &facts.exact) {
        (_, Some(Ok(Accounting::Daemon))) => {
            Check::ok(CheckName::Bpf, "exact figures come from the daemon")
        }
        (_, Some(Ok(_))) => Check::ok(CheckName::Bpf, "exact accounting works (it was started)"),
        // The check BTF tells the rest.
        (Err(Unsupported::NoBtf), _) => {
            Check::missing(CheckName::Bpf, "needs BTF").means("no exact accounting")
        }
        (Err(Unsupported::NoPrivilege), _) => Check::missing(
            CheckName::Bpf,
            "no privilege to load BPF programs",
        )
        .means(approximate(facts))
        .remedy(
            "have root's daemon run (systemctl start evenkeel): it hands figures to run; or \
                     run as root (CAP_BPF, CAP_PERFMON)",
        ),
        (Err(Unsupported::PidNamespace), _) => {
            Check::missing(CheckName::Bpf, "not usable in a PID namespace")
                .means(approximate(facts))
        }
        (Ok(()), Some(Err(why))) => {
            let check = Check::missing(CheckName::Bpf, why.as_str()).means(approximate(facts));
            match facts.system.lockdown.as_deref() {
                Some("confidentiality") => check.remedy(
                    "the kernel's lockdown (confidentiality) forbids BPF to read kernel memory: \
                     boot with lockdown=integrity or none",
                ),
                _ => check.remedy("see why with: evenkeel -vv doctor"),
            }
        }
        (Ok(()), None) => Check::ok(CheckName::Bpf, "allowed (not tried)"),
    }
}

fn pid_namespace(facts: &Facts) -> Check {
    let name = CheckName::PidNamespace;
    let inside = facts.system.container.as_ref().map(|manager| format!(" (container: {manager})"));
    let inside = inside.unwrap_or_default();
    match facts.system.initial_pid_namespace {
        Some(true) => Check::ok(name, format!("the machine's own{inside}")),
        Some(false) => Check::limited(name, format!("one of its own{inside}"))
            .means("the kernel's task ids mean other tasks here, so there is no exact accounting")
            .remedy("run evenkeel on the host, or the container with --pid=host"),
        None => Check::ok(name, format!("not known{inside}")),
    }
}

fn cpus(facts: &Facts) -> Check {
    let usable = facts.usable();
    let (cpuset, affinity) = (&facts.process.cpuset, &facts.process.affinity);
    let confined = !cpuset.is_subset(affinity);
    let widen = format!("allow all CPUs to this shell: taskset -pc {cpuset} $$");
    let check = match usable.len() {
        0 => Check::missing(CheckName::Cpus, "no CPU may be used")
            .means("there is no CPU to balance over: programs run as without evenkeel"),
        1 => Check::missing(CheckName::Cpus, format!("only CPU {usable} may be used"))
            .means("one CPU leaves nothing to balance: programs run as without evenkeel"),
        count if confined => {
            Check::limited(CheckName::Cpus, format!("{count}: {usable}, by the affinity mask here"))
                .means("programs that are started here inherit the mask and are balanced within it")
        }
        count => Check::ok(CheckName::Cpus, format!("{count}: {usable}")),
    };
    if confined { check.remedy(widen) } else { check }.needed()
}

fn cpuset(facts: &Facts) -> Check {
    let cpuset = &facts.process.cpuset;
    let online = facts.machine.as_ref().map(Machine::online).unwrap_or_default();
    let kept_out = online.difference(cpuset);
    if kept_out.is_empty() {
        return Check::ok(CheckName::Cpuset, "all CPUs that are online");
    }
    Check::limited(CheckName::Cpuset, format!("CPUs {cpuset} of {online}, by the cgroup"))
        .means(format!("programs are balanced within these; CPUs {kept_out} are never used"))
        .remedy("widen cpuset.cpus of the cgroup (containers: --cpuset-cpus)")
}

fn isolated(facts: &Facts) -> Option<Check> {
    let isolated = facts.machine.as_ref().ok()?.isolated();
    if isolated.is_empty() {
        return None;
    }
    let check = Check::limited(CheckName::Isolated, format!("CPUs {isolated}"))
        .means("no task is moved there: isolated CPUs are left alone");
    Some(check.remedy("boot without isolcpus=, or dissolve the isolated cpuset partition"))
}

fn topology(facts: &Facts) -> Check {
    let machine = match &facts.machine {
        Ok(machine) => machine,
        Err(why) => {
            return Check::missing(CheckName::Topology, why.as_str())
                .means("nothing is balanced without knowing the CPUs")
                .remedy("mount -t sysfs sysfs /sys")
                .needed();
        }
    };
    let mut found = format!(
        "{} on {}{}, {}",
        count(machine.online().len(), "CPU"),
        count(machine.online_cores(), "core"),
        if machine.is_smt() { " (SMT)" } else { "" },
        count(machine.nodes.len(), "NUMA node"),
    );
    if machine.speed == SpeedOrigin::Equal {
        return Check::limited(CheckName::Topology, found + "; no speeds known")
            .means("all CPUs count as equally fast")
            .remedy("if they are not: evenkeel run --speed calibrated")
            .needed();
    }
    found += &format!("; {} (source: {})", speeds(machine), machine.speed);
    Check::ok(CheckName::Topology, found).needed()
}

/// The speeds, with the CPUs of each.
fn speeds(machine: &Machine) -> String {
    let mut capabilities: Vec<u32> =
        machine.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.capability).collect();
    capabilities.sort_unstable_by(|a, b| b.cmp(a));
    capabilities.dedup();
    let share = |capability: u32| f64::from(capability) / f64::from(CAPABILITY_SCALE);
    match capabilities.as_slice() {
        [] | [_] => "equally fast".to_owned(),
        [fastest, .., slowest] if capabilities.len() > LISTED_SPEEDS => {
            format!("speeds {:.2} to {:.2}", share(*slowest), share(*fastest))
        }
        _ => {
            let groups = capabilities.iter().map(|capability| {
                let of_speed =
                    |cpu: &&evenkeel_machine::Cpu| cpu.online && cpu.capability == *capability;
                let cpus: CpuSet = machine.cpus.iter().filter(of_speed).map(|cpu| cpu.id).collect();
                format!("{:.2} on CPU {cpus}", share(*capability))
            });
            format!("speed {}", groups.collect::<Vec<_>>().join(", "))
        }
    }
}

fn run_time(facts: &Facts) -> Check {
    let exact = facts.exact.as_ref().map_or(facts.process.bpf.is_ok(), Result::is_ok);
    let Some(excludes) = facts.process.excludes else {
        return Check::limited(
            CheckName::RunTime,
            "not known: what the kernel's run time includes",
        )
        .means("run times from /proc may include softirq time")
        .remedy("run a kernel with BTF, or put its configuration file into /boot");
    };
    match (excludes.irq, exact) {
        (true, _) => Check::limited(
            CheckName::RunTime,
            "leaves interrupt and softirq time out (IRQ_TIME_ACCOUNTING)",
        )
        .means(
            "the kernel's own scheduler sees softirq theft, too: under softirq noise, the gain is \
             smaller than on other kernels",
        ),
        (false, true) => Check::ok(
            CheckName::RunTime,
            "includes softirq time: the kernel does not see softirq theft, evenkeel does",
        )
        .means("without IRQ_TIME_ACCOUNTING, figures of /proc are wrong; they are not used"),
        (false, false) => Check::limited(
            CheckName::RunTime,
            "includes softirq time, which /proc counts in ticks only",
        )
        .means("figures of /proc cannot be trusted: softirq time between two ticks is not seen")
        .remedy("make exact accounting possible: see BPF"),
    }
}

fn journal(facts: &Facts) -> Check {
    match &facts.process.journal {
        Ok(dir) => Check::ok(CheckName::Journal, format!("{}", dir.display())).needed(),
        Err(why) => Check::missing(CheckName::Journal, why.as_str())
            .means("programs are only observed: each move must be in the journal first")
            .remedy("make the directory writable, or set XDG_RUNTIME_DIR to a directory of yours")
            .needed(),
    }
}

fn affinity(facts: &Facts) -> Check {
    let name = CheckName::Affinity;
    match &facts.process.placing {
        Ok(()) if facts.process.may_place_others => {
            Check::ok(name, "tasks of all users may be placed").needed()
        }
        Ok(()) => Check::ok(name, "your own tasks may be placed")
            .means("evenkeel run needs no more; tasks of other users need CAP_SYS_NICE")
            .needed(),
        Err(why) => Check::missing(name, why.as_str())
            .means("tasks cannot be moved: programs are only observed")
            .remedy("allow sched_setaffinity (a container's seccomp profile may forbid it)")
            .needed(),
    }
}

fn left_behind(facts: &Facts) -> Check {
    let journals = &facts.process.journals;
    let live = match journals.live {
        0 => String::new(),
        live => format!("; {} running now", count(live, "program")),
    };
    if journals.left.is_empty() {
        return Check::ok(CheckName::LeftBehind, format!("nothing{live}"));
    }
    let found = format!("{} of killed runs{live}", count(journals.left.len(), "journal"));
    Check::limited(CheckName::LeftBehind, found)
        .means("they may have left tasks pinned")
        .remedy("evenkeel undo")
}

fn limits(facts: &Facts) -> Check {
    let limits = &facts.system.limits;
    let old = facts.system.release.as_deref().and_then(version);
    let old = old.is_some_and(|version| version < LOCKED_BPF_BEFORE);
    let low = |limit: Option<u64>, needed: u64| limit.filter(|limit| *limit < needed);
    let mut found = Vec::new();
    let mut remedies = Vec::new();
    if let Some(files) = low(limits.open_files, OPEN_FILES) {
        found.push(format!("{files} open files"));
        remedies.push(format!("ulimit -n {OPEN_FILES}"));
    }
    if let Some(bytes) = low(limits.file_size_bytes, FILE_SIZE_BYTES) {
        found.push(format!("files of {bytes} bytes"));
        remedies.push("ulimit -f unlimited".to_owned());
    }
    if let Some(bytes) = low(limits.locked_bytes, LOCKED_BYTES).filter(|_| old) {
        found.push(format!("{bytes} bytes of locked memory"));
        remedies.push("ulimit -l unlimited".to_owned());
    }
    if found.is_empty() {
        return Check::ok(CheckName::Limits, "none is too low");
    }
    Check::limited(CheckName::Limits, format!("at most {}", found.join(", ")))
        .means("accounting or the journal may fail during a run")
        .remedy(remedies.join("; "))
}
