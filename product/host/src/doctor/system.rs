//! Facts in /proc and /sys below any root directory: that of the live system, or one that a test laid
//! out. A file that cannot be read leaves its fact unknown; it is never an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_cbinfo::INITIAL_PID_NAMESPACE;

/// Services that move tasks or interrupts, or change how tasks share a CPU: command name (as in
/// /proc/PID/comm, cut after 15 characters) and effect.
pub(super) const MOVERS: &[(&str, &str)] = &[
    ("irqbalance", "moves interrupts between CPUs"),
    ("tuned", "sets affinities, interrupts and governors by profile"),
    ("numad", "moves processes between NUMA nodes"),
    ("ananicy", "sets nice levels and classes by name"),
    ("ananicy-cpp", "sets nice levels and classes by name"),
    ("system76-schedu", "sets nice levels by window focus"),
    ("gamemoded", "pins games and parks cores"),
    ("kubelet", "gives containers CPUs of their own"),
    ("slurmstepd", "binds tasks of a job to CPUs"),
];

/// Levels of cgroups that are read (the keel's MAX_DEPTH).
const MAX_DEPTH: usize = 32;

/// The facts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct System {
    /// Kernel release, like `6.18.44`.
    pub release: Option<String>,
    /// Architecture, like `x86_64`.
    pub arch: Option<String>,
    /// /proc/stat can be read.
    pub has_proc: bool,
    /// The kernel has type information (BTF).
    pub has_btf: bool,
    /// The kernel's lockdown mode: `none`, `integrity` or `confidentiality`.
    pub lockdown: Option<String>,
    /// Whether this process is in the initial PID namespace.
    pub initial_pid_namespace: Option<bool>,
    /// The container manager, where a marker file names it.
    pub container: Option<String>,
    /// The CPU bandwidth limit of the cgroup, in CPUs.
    pub quota_cpus: Option<f64>,
    /// Cgroups with a CPU bandwidth limit, by their paths below the mount point, sorted.
    pub limited_groups: BTreeSet<String>,
    /// Command names of running services that move tasks or interrupts.
    pub services: BTreeSet<String>,
    /// Whether processes of other users are hidden (hidepid).
    pub hides_processes: bool,
    /// sched_ext, where the kernel has it.
    pub sched_ext: Option<SchedExt>,
    /// Whether autogroup is on.
    pub autogroup: Option<bool>,
    /// CPUs with cpufreq, ascending.
    pub frequencies: Vec<Frequency>,
    /// Resource limits.
    pub limits: Limits,
}

/// /sys/kernel/sched_ext.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedExt {
    /// `disabled`, `enabled`, and the states in between.
    pub state: String,
    /// The loaded scheduler's name.
    pub ops: Option<String>,
}

/// cpufreq and throttling of a CPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frequency {
    /// Its number.
    pub cpu: u32,
    /// The governor.
    pub governor: Option<String>,
    /// The driver.
    pub driver: Option<String>,
    /// The hardware's highest frequency in kHz.
    pub max_khz: Option<u64>,
    /// The highest allowed frequency now, in kHz.
    pub cap_khz: Option<u64>,
    /// How often heat throttled the core since boot.
    pub throttled: Option<u64>,
}

/// Soft resource limits of this process; `None`: unlimited or not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Size of a file, in bytes.
    pub file_size_bytes: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Memory locked by this user, in bytes.
    pub locked_bytes: Option<u64>,
}

impl System {
    /// Reads `root`/proc, `root`/sys and the marker files of containers; `/` is the live system.
    pub fn read(root: &Path) -> Self {
        let files = Files { root };
        let namespace = fs::read_link(root.join("proc/self/ns/pid")).ok();
        let (services, hides_processes) = files.services();
        Self {
            release: files.text("proc/sys/kernel/osrelease"),
            arch: files.text("proc/sys/kernel/arch"),
            has_proc: files.text("proc/stat").is_some(),
            has_btf: root.join("sys/kernel/btf/vmlinux").exists(),
            lockdown: files.text("sys/kernel/security/lockdown").as_deref().and_then(chosen),
            initial_pid_namespace: namespace.map(|link| link == Path::new(INITIAL_PID_NAMESPACE)),
            container: files.container(),
            quota_cpus: files.quota_cpus(),
            limited_groups: files.limited_groups(),
            services,
            hides_processes,
            sched_ext: files
                .text("sys/kernel/sched_ext/state")
                .map(|state| SchedExt { state, ops: files.text("sys/kernel/sched_ext/root/ops") }),
            autogroup: files.text("proc/sys/kernel/sched_autogroup_enabled").map(|on| on == "1"),
            frequencies: files.frequencies(),
            limits: files.limits(),
        }
    }
}

/// The bracketed word of `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    let word = text.split_once('[')?.1.split_once(']')?.0;
    Some(word.to_owned())
}

struct Files<'a> {
    root: &'a Path,
}

impl Files<'_> {
    /// The trimmed content of a file that is not empty.
    fn text(&self, path: &str) -> Option<String> {
        read(&self.root.join(path))
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The numbers of directory entries that are named `prefix` and a number, ascending.
    fn numbered(&self, directory: &str, prefix: &str) -> Vec<u32> {
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    fn container(&self) -> Option<String> {
        // systemd-nspawn, podman and lxc follow systemd's container interface.
        if let Some(manager) = self.text("run/systemd/container") {
            return Some(manager);
        }
        [("run/.containerenv", "podman"), (".dockerenv", "docker")]
            .into_iter()
            .find(|(mark, _)| self.root.join(mark).exists())
            .map(|(_, manager)| manager.to_owned())
    }

    /// The tightest bandwidth limit from this process's cgroup up to the root.
    fn quota_cpus(&self) -> Option<f64> {
        let groups = self.text("proc/self/cgroup")?;
        let mut tightest: Option<f64> = None;
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let bases: &[&str] = if controllers.is_empty() {
                &["sys/fs/cgroup", "sys/fs/cgroup/unified"]
            } else if controllers.split(',').any(|name| name == "cpu") {
                &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
            } else {
                continue;
            };
            // In a container the path may not be visible: then only the top of the mount counts.
            let inside = Path::new(path.trim_start_matches('/'));
            for group in inside.ancestors() {
                for base in bases {
                    let quota = self.quota_of(&self.root.join(base).join(group));
                    tightest = tightest.into_iter().chain(quota).reduce(f64::min);
                }
            }
        }
        tightest
    }

    /// Limited cgroups of the unified hierarchy, as deep as the keel reads cgroups.
    fn limited_groups(&self) -> BTreeSet<String> {
        let bases = ["sys/fs/cgroup", "sys/fs/cgroup/unified"].map(|base| self.root.join(base));
        let mut limited = BTreeSet::new();
        for base in bases.iter().filter(|base| base.join("cgroup.controllers").exists()) {
            let mut level = vec![base.clone()];
            for _ in 0..MAX_DEPTH {
                let entries =
                    level.iter().filter_map(|group| fs::read_dir(group).ok()).flatten().flatten();
                let is_group =
                    |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
                level = entries.filter(is_group).map(|entry| entry.path()).collect();
                let with_limit = level.iter().filter(|group| self.quota_of(group).is_some());
                let path = |group: &PathBuf| {
                    group.strip_prefix(base).map(|path| path.display().to_string())
                };
                limited.extend(with_limit.filter_map(|group| path(group).ok()));
            }
        }
        limited
    }

    fn quota_of(&self, group: &Path) -> Option<f64> {
        let (quota, period) = match read(&group.join("cpu.max")) {
            Some(text) => {
                let (quota, period) = text.split_once(' ')?;
                (quota.to_owned(), period.to_owned())
            }
            None => {
                (read(&group.join("cpu.cfs_quota_us"))?, read(&group.join("cpu.cfs_period_us"))?)
            }
        };
        // "max" (v2) and "-1" (v1) are no limit.
        let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }

    /// The running services that move tasks or interrupts, and whether processes of other users are
    /// hidden.
    fn services(&self) -> (BTreeSet<String>, bool) {
        let pids = self.numbered("proc", "");
        let names = pids.iter().filter_map(|pid| self.text(&format!("proc/{pid}/comm")));
        let found = names.filter(|name| MOVERS.iter().any(|(mover, _)| name == mover)).collect();
        // Process 1 always exists: if /proc has processes but not process 1, some are hidden. (Process 1
        // of a PID namespace is visible inside.)
        (found, !pids.is_empty() && !pids.contains(&1))
    }

    fn frequencies(&self) -> Vec<Frequency> {
        let cpus = "sys/devices/system/cpu";
        self.numbered(cpus, "cpu")
            .into_iter()
            .filter_map(|cpu| {
                let policy = format!("{cpus}/cpu{cpu}/cpufreq");
                let frequency = Frequency {
                    cpu,
                    governor: self.text(&format!("{policy}/scaling_governor")),
                    driver: self.text(&format!("{policy}/scaling_driver")),
                    max_khz: self.number(&format!("{policy}/cpuinfo_max_freq")),
                    cap_khz: self.number(&format!("{policy}/scaling_max_freq")),
                    throttled: self
                        .number(&format!("{cpus}/cpu{cpu}/thermal_throttle/core_throttle_count")),
                };
                let nothing = Frequency { cpu, ..Frequency::default() };
                (frequency != nothing).then_some(frequency)
            })
            .collect()
    }

    fn limits(&self) -> Limits {
        let text = self.text("proc/self/limits").unwrap_or_default();
        let soft = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Limits {
            file_size_bytes: soft("Max file size"),
            open_files: soft("Max open files"),
            locked_bytes: soft("Max locked memory"),
        }
    }
}

fn read(path: &PathBuf) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}
