//! The checks on machines that are not at hand: a kernel without BTF, another scheduler, no
//! privilege, one CPU, a container with a cpuset, irqbalance.

use std::fs;
use std::path::Path;

use evenkeel_cbinfo::{RunTimeExcludes, Unsupported};
use evenkeel_machine::{CpuSet, Machine, SpeedOrigin};

use super::*;
use crate::summary::CpuSummary;

/// A root directory that the test removes at its end.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn with(self, path: &str, content: &str) -> Self {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn in_pid_namespace(self, inode: &str) -> Self {
        let directory = self.path().join("proc/self/ns");
        fs::create_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink(format!("pid:[{inode}]"), directory.join("pid")).unwrap();
        self
    }

    fn read(&self) -> System {
        System::read(self.path())
    }
}

/// The files of a stock machine.
fn stock() -> Root {
    Root::new()
        .with("proc/sys/kernel/osrelease", "6.18.15-amd64\n")
        .with("proc/sys/kernel/arch", "x86_64\n")
        .with("proc/stat", "cpu 0 0 0 0\n")
        .with("proc/1/comm", "systemd\n")
        .with("proc/sys/kernel/sched_autogroup_enabled", "0\n")
        .with("sys/kernel/btf/vmlinux", "btf")
        .with("sys/kernel/sched_ext/state", "disabled\n")
        .in_pid_namespace("4026531836")
}

/// Two CPUs of known speed.
fn small(speeds: &str) -> Machine {
    Machine::preset("small").unwrap().with_speed(&speeds.parse().unwrap()).unwrap()
}

fn facts(root: &Root) -> Facts {
    Facts {
        system: root.read(),
        process: Process {
            bpf: Ok(()),
            excludes: Some(RunTimeExcludes { irq: false, steal: true }),
            malformed_functions: Vec::new(),
            keeps_time_for_sched_ext: Some(true),
            cpuset: CpuSet::first(2),
            affinity: CpuSet::first(2),
            may_place_others: true,
            placing: Ok(()),
            journal: Ok("/run/evenkeel".into()),
            journals: Journals::default(),
        },
        machine: Ok(small("0-1=1")),
        exact: Some(Ok(Accounting::Cbinfo)),
    }
}

fn find(facts: &Facts, name: CheckName) -> Check {
    checks(facts).into_iter().find(|check| check.name == name).unwrap()
}

/// Every check that is not `ok` has a meaning, and no subject is checked twice.
fn is_well_formed(checks: &[Check]) {
    for check in checks {
        assert!(!check.found.is_empty(), "{check:?}");
        assert!(check.state == State::Ok || check.meaning.is_some(), "{check:?}");
        assert!(check.found.chars().count() < 200, "{check:?}");
    }
    let mut names: Vec<String> = checks.iter().map(|check| format!("{:?}", check.name)).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn a_stock_machine_is_fine() {
    let root = stock();
    let facts = facts(&root);
    let checks = checks(&facts);
    is_well_formed(&checks);
    assert!(can_balance(&checks));
    let not_ok: Vec<&Check> = checks.iter().filter(|check| check.state != State::Ok).collect();
    assert!(not_ok.is_empty(), "{not_ok:?}");
    assert_eq!(find(&facts, CheckName::Kernel).found, "Linux 6.18.15-amd64 x86_64");
    assert!(find(&facts, CheckName::RunTime).meaning.unwrap().contains("are not used"));
}

#[test]
fn an_empty_root_is_reported_and_not_an_error() {
    let root = Root::new();
    assert_eq!(root.read(), System::default());
    let mut facts = facts(&root);
    facts.machine = Err("nothing there".to_owned());
    facts.exact = None;
    facts.process.bpf = Err(Unsupported::NoBtf);
    facts.process.excludes = None;
    facts.process.cpuset = CpuSet::new();
    let checks = checks(&facts);
    is_well_formed(&checks);
    assert!(!can_balance(&checks));
    for name in [CheckName::Proc, CheckName::Btf, CheckName::Bpf, CheckName::Topology] {
        assert_eq!(find(&facts, name).state, State::Missing, "{name:?}");
    }
}

#[test]
fn without_btf_it_works_by_proc() {
    let root = stock();
    fs::remove_file(root.path().join("sys/kernel/btf/vmlinux")).unwrap();
    let mut facts = facts(&root);
    facts.process.bpf = Err(Unsupported::NoBtf);
    facts.exact = Some(Err(Unsupported::NoBtf.to_string()));
    let btf = find(&facts, CheckName::Btf);
    assert_eq!(btf.state, State::Missing);
    assert!(btf.meaning.unwrap().contains("does not show softirq theft"));
    assert!(btf.remedy.unwrap().contains("CONFIG_DEBUG_INFO_BTF"));
    assert_eq!(find(&facts, CheckName::Bpf).state, State::Missing);
    assert_eq!(find(&facts, CheckName::RunTime).state, State::Limited);
    assert!(can_balance(&checks(&facts)));
}

#[test]
fn without_privilege_it_works_by_proc() {
    let root = stock();
    let mut facts = facts(&root);
    facts.process.bpf = Err(Unsupported::NoPrivilege);
    facts.process.may_place_others = false;
    facts.exact = Some(Err(Unsupported::NoPrivilege.to_string()));
    let bpf = find(&facts, CheckName::Bpf);
    assert_eq!(bpf.state, State::Missing);
    assert!(bpf.remedy.unwrap().contains("CAP_PERFMON"));
    let affinity = find(&facts, CheckName::Affinity);
    assert_eq!(
        (affinity.state, affinity.found.as_str()),
        (State::Ok, "your own tasks may be placed")
    );
    assert!(find(&facts, CheckName::RunTime).meaning.unwrap().contains("cannot be trusted"));
    assert!(can_balance(&checks(&facts)));
}

#[test]
fn bpf_that_is_refused_in_the_act_names_lockdown() {
    let root = stock().with("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
    let mut facts = facts(&root);
    facts.exact = Some(Err("cbinfo: loading: Operation not permitted".to_owned()));
    let bpf = find(&facts, CheckName::Bpf);
    assert_eq!(bpf.state, State::Missing);
    assert!(bpf.found.contains("not permitted"));
    assert!(bpf.remedy.unwrap().contains("lockdown=integrity"));
}

#[test]
fn the_contents_of_run_times_are_reported() {
    let root = stock();
    let mut facts = facts(&root);
    let mut told = |irq: Option<bool>| {
        facts.process.excludes = irq.map(|irq| RunTimeExcludes { irq, steal: false });
        let check = find(&facts, CheckName::RunTime);
        (check.state, check.found, check.meaning.unwrap_or_default())
    };
    let (state, found, meaning) = told(Some(true));
    assert!(found.contains("(IRQ_TIME_ACCOUNTING)") && meaning.contains("smaller"), "{found}");
    assert_eq!(state, State::Limited);
    let (state, found, meaning) = told(Some(false));
    assert!(found.contains("the kernel does not see softirq theft"), "{found}");
    assert!(meaning.contains("without IRQ_TIME_ACCOUNTING"), "{meaning}");
    assert_eq!(state, State::Ok);
    // Neither BTF nor a configuration file tells.
    let (state, found, _) = told(None);
    assert!(found.starts_with("not known"), "{found}");
    assert_eq!(state, State::Limited);
}

#[test]
fn one_cpu_leaves_nothing_to_balance() {
    let root = stock();
    let mut facts = facts(&root);
    facts.process.affinity = CpuSet::first(1);
    let cpus = find(&facts, CheckName::Cpus);
    assert_eq!((cpus.state, cpus.found.as_str()), (State::Missing, "only CPU 0 may be used"));
    assert_eq!(cpus.remedy.as_deref(), Some("allow all CPUs to this shell: taskset -pc 0-1 $$"));
    assert!(!can_balance(&checks(&facts)));

    facts.process.cpuset = CpuSet::first(1);
    assert_eq!(find(&facts, CheckName::Cpus).remedy, None);
}

#[test]
fn a_container_with_a_cpuset_and_a_quota() {
    let root = stock()
        .with("run/.containerenv", "engine=podman\n")
        .with("proc/self/cgroup", "0::/machine/box\n")
        .with("sys/fs/cgroup/machine/cpu.max", "150000 100000\n")
        .with("sys/fs/cgroup/machine/box/cpu.max", "max 100000\n");
    fs::remove_file(root.path().join("proc/self/ns/pid")).unwrap();
    let root = root.in_pid_namespace("4026532000");
    let mut facts = facts(&root);
    facts.machine = Machine::preset("hybrid").map_err(|why| why.to_string());
    facts.process.cpuset = "2-3".parse().unwrap();
    facts.process.affinity = "2-3".parse().unwrap();
    facts.process.bpf = Err(Unsupported::PidNamespace);
    facts.exact = Some(Err(Unsupported::PidNamespace.to_string()));
    let cpuset = find(&facts, CheckName::Cpuset);
    assert_eq!(cpuset.state, State::Limited);
    assert!(cpuset.found.starts_with("CPUs 2-3 of 0-"), "{cpuset:?}");
    let namespace = find(&facts, CheckName::PidNamespace);
    assert_eq!(namespace.found, "one of its own (container: podman)");
    let quota = find(&facts, CheckName::Quota);
    assert_eq!(quota.state, State::Limited);
    assert!(quota.found.contains("1.50 CPUs"));
    assert!(can_balance(&checks(&facts)));
}

#[test]
fn the_quota_of_the_first_cgroup_version() {
    let groups = "4:memory:/x\n2:cpu,cpuacct:/job\n0::/\n";
    let group = "sys/fs/cgroup/cpu,cpuacct/job";
    let root = Root::new()
        .with("proc/self/cgroup", groups)
        .with(&format!("{group}/cpu.cfs_quota_us"), "50000\n")
        .with(&format!("{group}/cpu.cfs_period_us"), "100000\n");
    assert_eq!(root.read().quota_cpus, Some(0.5));
    let root = root.with(&format!("{group}/cpu.cfs_quota_us"), "-1\n");
    assert_eq!(root.read().quota_cpus, None);
}

#[test]
fn another_scheduler_and_services_are_named() {
    let root = stock()
        .with("sys/kernel/sched_ext/state", "enabled\n")
        .with("sys/kernel/sched_ext/root/ops", "lavd\n")
        .with("proc/812/comm", "irqbalance\n")
        .with("proc/813/comm", "bash\n")
        .with("proc/sys/kernel/sched_autogroup_enabled", "1\n");
    let facts = facts(&root);
    let ext = find(&facts, CheckName::SchedExt);
    assert_eq!((ext.state, ext.found.as_str()), (State::Limited, "lavd is loaded (enabled)"));
    let services = find(&facts, CheckName::Services);
    assert_eq!(services.found, "irqbalance (moves interrupts between CPUs)");
    assert!(services.remedy.unwrap().ends_with("systemctl stop irqbalance"));
    assert!(find(&facts, CheckName::Autogroup).meaning.unwrap().contains("nice"));
    let recommends =
        |facts: &Facts| checks(facts).iter().any(|check| check.name == CheckName::Policies);
    assert!(!recommends(&facts), "no recommendation that would be refused");
    let ours = stock()
        .with("sys/kernel/sched_ext/state", "enabled\n")
        .with("sys/kernel/sched_ext/root/ops", "evenkeel\n");
    assert!(recommends(&self::facts(&ours)));
    is_well_formed(&checks(&facts));

    fs::remove_dir_all(root.path().join("proc/1")).unwrap();
    fs::remove_dir_all(root.path().join("proc/812")).unwrap();
    assert!(root.read().hides_processes);
    fs::remove_dir_all(root.path().join("sys/kernel/sched_ext")).unwrap();
    assert_eq!(root.read().sched_ext, None);
}

#[test]
fn cpu_limits_that_the_keel_does_not_enforce_are_reported() {
    let root = stock()
        .with("sys/fs/cgroup/cgroup.controllers", "cpu\n")
        .with("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n")
        .with("sys/fs/cgroup/system.slice/web.service/cpu.max", "50000 100000\n")
        .with("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n");
    let mut facts = facts(&root);
    let limits = find(&facts, CheckName::CpuMax);
    assert_eq!(limits.found, "2 cgroups with a limit, as system.slice/web.service");
    is_well_formed(&checks(&facts));
    // Not where the keel cannot run.
    facts.system.sched_ext = None;
    assert!(checks(&facts).iter().all(|check| check.name != CheckName::CpuMax));
}

#[test]
fn a_kernel_that_keeps_no_time_back_for_sched_ext_is_reported() {
    let loaded = stock()
        .with("sys/kernel/sched_ext/state", "enabled\n")
        .with("sys/kernel/sched_ext/root/ops", "evenkeel\n");
    for (root, state) in [(stock(), State::Ok), (loaded, State::Limited)] {
        let mut facts = facts(&root);
        for keeps_time in [Some(true), Some(false), None] {
            facts.process.keeps_time_for_sched_ext = keeps_time;
            let ext = find(&facts, CheckName::SchedExt);
            let is_told = ext.meaning.is_some_and(|means| means.contains("keeps no time back"));
            assert_eq!((ext.state, is_told), (state, keeps_time == Some(false)), "{keeps_time:?}");
        }
    }
}

#[test]
fn obstacles_to_loading_a_scheduler_are_reported() {
    let root = stock();
    let mut facts = facts(&root);
    assert_eq!(find(&facts, CheckName::SchedExt).state, State::Ok);
    facts.process.malformed_functions = vec!["scx_bpf_now".to_owned()];
    let ext = find(&facts, CheckName::SchedExt);
    assert_eq!(ext.found, "the kernel's BTF describes scx_bpf_now wrongly");
    assert!(ext.meaning.unwrap().contains("pahole"));
    facts.process.malformed_functions.clear();
    facts.system.has_btf = false;
    let ext = find(&facts, CheckName::SchedExt);
    assert_eq!((ext.state, ext.found.as_str()), (State::Limited, "available, without BTF"));
    let recommends =
        |facts: &Facts| checks(facts).iter().any(|check| check.name == CheckName::Policies);
    assert!(!recommends(&facts), "no recommendation that cannot be loaded");
    facts.system.has_btf = true;
    facts.machine = Machine::preset("amc1").map_err(|why| why.to_string());
    let policies = find(&facts, CheckName::Policies);
    let (command, _) = policies.found.split_once(": ").unwrap();
    assert_eq!(
        command,
        "evenkeel sched --order fair --gate always --balance capability --parts active,turns"
    );
    assert!(policies.found.ends_with("(docs/choosing.md)"), "{policies:?}");
    facts.system.sched_ext = None;
    assert!(!recommends(&facts), "no recommendation that cannot be loaded");
    assert!(find(&facts, CheckName::SchedExt).remedy.unwrap().contains("6.18"));
    is_well_formed(&checks(&facts));
}

#[test]
fn frequencies_are_judged_where_they_can_be_read() {
    let set = |root: Root, cpu: u32, name: &str, value: &str| {
        root.with(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}"), value)
    };
    let mut root = stock();
    for cpu in 0..2 {
        for (name, value) in [
            ("scaling_governor", "powersave"),
            ("scaling_driver", "intel_pstate"),
            ("cpuinfo_max_freq", "4000000"),
            ("scaling_max_freq", "4000000"),
        ] {
            root = set(root, cpu, name, value);
        }
    }
    assert_eq!(find(&facts(&root), CheckName::Frequency).state, State::Ok);
    let root = set(root, 1, "scaling_max_freq", "2000000");
    let capped = find(&facts(&root), CheckName::Frequency);
    assert!(capped.found.ends_with("CPUs 1 are capped (scaling_max_freq)"), "{capped:?}");
    let root = set(root, 0, "scaling_driver", "acpi-cpufreq");
    let slow = find(&facts(&root), CheckName::Frequency);
    assert_eq!(slow.meaning.as_deref(), Some("CPUs 0 stay at their lowest frequency"));
}

#[test]
fn journals_of_killed_runs_and_an_unwritable_journal_are_reported() {
    let root = stock();
    let mut facts = facts(&root);
    facts.process.journals = Journals { live: 1, left: vec!["/run/x.jsonl".into()] };
    let left = find(&facts, CheckName::LeftBehind);
    assert_eq!(left.found, "1 journal of killed runs; 1 program running now");
    assert_eq!(left.remedy.as_deref(), Some("evenkeel undo"));
    assert!(can_balance(&checks(&facts)));
    facts.process.journal = Err("/run/evenkeel: Read-only file system".to_owned());
    assert_eq!(find(&facts, CheckName::Journal).state, State::Missing);
    assert!(!can_balance(&checks(&facts)));
}

#[test]
fn resource_limits_that_are_too_low_are_reported() {
    let limits = "Limit          Soft Limit  Hard Limit  Units\n\
        Max file size             1024                 unlimited            bytes\n\
        Max open files            16                   1048576              files\n\
        Max locked memory         65536                65536                bytes\n";
    let root = stock().with("proc/self/limits", limits);
    let check = find(&facts(&root), CheckName::Limits);
    assert_eq!(check.found, "at most 16 open files, files of 1024 bytes");
    let root = root.with("proc/sys/kernel/osrelease", "5.10.0-28-amd64\n");
    let facts = facts(&root);
    assert!(find(&facts, CheckName::Limits).found.ends_with("65536 bytes of locked memory"));
    assert_eq!(find(&facts, CheckName::Kernel).state, State::Limited);
}

#[test]
fn speeds_are_summed_up() {
    let root = stock();
    let mut facts = facts(&root);
    let mut machine = small("0=1,1=0.5");
    facts.machine = Ok(machine.clone());
    let found = find(&facts, CheckName::Topology).found;
    assert!(
        found.contains("2 CPUs on ") && found.contains("1.00 on CPU 0, 0.50 on CPU 1"),
        "{found}"
    );
    machine.speed = SpeedOrigin::Equal;
    machine.cpus[0].isolated = true;
    facts.machine = Ok(machine);
    assert_eq!(find(&facts, CheckName::Topology).state, State::Limited);
    assert_eq!(find(&facts, CheckName::Isolated).found, "CPUs 0");
    assert_eq!(facts.usable().to_string(), "1");
}

fn cpu(cpu: u32, speed: u32, softirq_ns: u64, rt_ns: u64) -> CpuSummary {
    let (irq_ns, steal_ns) = (0, 0);
    let idle_ns = 1000 - softirq_ns - rt_ns;
    CpuSummary { cpu, speed, elapsed_ns: 1000, irq_ns, softirq_ns, rt_ns, steal_ns, idle_ns }
}

fn exact(cpus: &[CpuSummary]) -> Watched {
    Watched {
        accounting: Accounting::Cbinfo,
        why_not_exact: None,
        runnable: vec![0.0; cpus.len()],
        cpus: cpus.to_vec(),
    }
}

const BLIND: Option<RunTimeExcludes> = Some(RunTimeExcludes { irq: false, steal: true });

#[test]
fn the_bound_of_theft_is_the_average_by_the_worst() {
    let asymmetry = judge(exact(&[cpu(0, 1024, 400, 0), cpu(1, 1024, 0, 0)]), BLIND);
    assert_eq!((asymmetry.min_capability, asymmetry.avg_capability), (614, 819));
    assert_eq!(asymmetry.bound, Some(1.333));
    assert!(asymmetry.is_worth_balancing);
    assert_eq!(
        asymmetry.verdict,
        "CPU 0 loses 40 % to softirqs: the average CPU gives 1.33x as much as the slowest."
    );
    assert!(asymmetry.remarks.is_empty());
    let seen = Some(RunTimeExcludes { irq: true, steal: true });
    let asymmetry = judge(exact(&[cpu(0, 1024, 400, 0), cpu(1, 1024, 0, 0)]), seen);
    assert!(asymmetry.remarks[0].contains("smaller"));
}

#[test]
fn equal_cpus_gain_nothing() {
    for (taken, words) in [(5, "The CPUs are equal: balancing has nothing"), (300, "about 70 %")] {
        let asymmetry = judge(exact(&[cpu(0, 1024, taken, 0), cpu(1, 1024, taken - 5, 0)]), BLIND);
        assert!(!asymmetry.is_worth_balancing);
        assert!(asymmetry.verdict.contains(words), "{}", asymmetry.verdict);
    }
}

#[test]
fn other_programs_on_a_part_of_equal_cpus_are_something_to_gain_from() {
    let verdict = |runnable: [f64; 3]| {
        let mut watched = exact(&[0, 1, 2].map(|id| cpu(id, 1024, 0, 0)));
        watched.runnable = runnable.to_vec();
        judge(watched, BLIND).verdict
    };
    let said = verdict([1.0, 0.1, 0.0]);
    assert!(said.starts_with("The CPUs are equal but for other programs on CPU 0: "), "{said}");
    assert!(said.contains("evenkeel compare") && !said.contains("nothing to gain"), "{said}");
    assert!(verdict([1.0, 0.0, 2.0]).contains("on CPUs 0,2: "));
    // Equal parts of all CPUs are taken.
    assert!(verdict([1.0, 1.1, 0.9]).ends_with("nothing to gain."));
}

#[test]
fn slow_cores_are_named_together() {
    let cpus: Vec<CpuSummary> =
        (0..8).map(|id| cpu(id, if id < 4 { 1024 } else { 512 }, 0, 0)).collect();
    let asymmetry = judge(exact(&cpus), BLIND);
    assert_eq!(
        asymmetry.verdict,
        "CPUs 4-7 are 0.50x as fast as the fastest: the average CPU gives 1.50x as much as the \
         slowest."
    );
}

#[test]
fn a_cpu_with_nothing_left_has_no_bound() {
    let asymmetry = judge(exact(&[cpu(0, 1024, 0, 1000), cpu(1, 1024, 0, 0)]), BLIND);
    assert_eq!(asymmetry.bound, None);
    assert!(asymmetry.is_worth_balancing);
    assert!(asymmetry.verdict.starts_with("CPU 0 loses 100 % to real-time tasks: next to nothing"));
}

#[test]
fn proc_is_not_trusted() {
    let mut watched = exact(&[cpu(0, 1024, 40, 0), cpu(1, 1024, 0, 0)]);
    watched.accounting = Accounting::Procfs;
    watched.why_not_exact = Some("no privilege".to_owned());
    watched.runnable.clear();
    let asymmetry = judge(watched, BLIND);
    // The difference is below the tolerance for figures in ticks.
    assert!(!asymmetry.is_worth_balancing);
    assert!(asymmetry.verdict.contains("as far as /proc can show"));
    assert!(asymmetry.remarks[0].contains("not to be trusted"));
    assert!(asymmetry.cpus.iter().all(|cpu| cpu.rt_pct.is_none() && cpu.runnable.is_none()));
}

#[test]
fn competitors_are_reported() {
    let mut watched = exact(&[cpu(0, 1024, 0, 0), cpu(1, 1024, 0, 0)]);
    watched.runnable = vec![0.05, 2.0];
    let asymmetry = judge(watched, BLIND);
    assert!(
        asymmetry.remarks[0].starts_with("Other programs run on 1 CPU (1), 2.0 tasks"),
        "{asymmetry:?}"
    );
}

#[test]
fn this_machine_is_examined_and_its_report_survives_json() {
    let report = examine(&Request {
        watch: Duration::from_millis(50),
        calibrate: false,
        daemons: Vec::new(),
    });
    is_well_formed(&report.checks);
    assert_eq!(report.asymmetry.is_none(), report.not_watched.is_some());
    let text = serde_json::to_string(&report).unwrap();
    let again: Report = serde_json::from_str(&text).unwrap();
    assert_eq!((again.checks, again.asymmetry), (report.checks, report.asymmetry));
    assert!(Path::new("/proc/stat").exists() || !report.can_balance);
}
