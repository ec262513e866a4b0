//! From facts to checks: what else on this machine decides where tasks run and how fast.

use evenkeel_machine::CpuSet;

use super::check::{Check, CheckName, count};
use super::facts::Facts;
use super::policies;
use super::system::{Frequency, MOVERS};

/// A CPU with a frequency cap below this share of its highest frequency is named.
const CAPPED_SHARE: f64 = 0.95;
/// What it means for the keel that the kernel has no deadline server for sched_ext.
const KEEPS_NO_TIME: &str = "this kernel keeps no time back for tasks of sched_ext: under evenkeel \
                             sched, a real-time task that never sleeps starves what is pinned to its \
                             CPU, and after 30 s the kernel ends the keel (Linux 7.0 keeps some)";

/// The checks of this file, in the order in which they are shown.
pub(super) fn all(facts: &Facts) -> Vec<Check> {
    [
        quota(facts),
        Some(services(facts)),
        Some(sched_ext(facts)),
        policies::check(facts),
        cpu_max(facts),
        autogroup(facts),
        frequency(&facts.system.frequencies),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn quota(facts: &Facts) -> Option<Check> {
    let quota = facts.system.quota_cpus?;
    let usable = facts.usable().len();
    let found = format!("the cgroup may use the time of {quota:.2} CPUs");
    if quota >= usable as f64 {
        return Some(Check::ok(CheckName::Quota, found));
    }
    Some(
        Check::limited(CheckName::Quota, found)
            .means("busy programs are throttled for a part of each period, on any CPU")
            .remedy("raise cpu.max of the cgroup (containers: --cpus)"),
    )
}

fn services(facts: &Facts) -> Check {
    let running: Vec<String> = MOVERS
        .iter()
        .filter(|(name, _)| facts.system.services.contains(*name))
        .map(|(name, what)| format!("{name} ({what})"))
        .collect();
    let hidden = facts.system.hides_processes;
    if running.is_empty() {
        let found = if hidden {
            "none visible (/proc hides other users' processes)"
        } else {
            "none that moves tasks or interrupts"
        };
        return Check::ok(CheckName::Services, found);
    }
    let stop: Vec<&str> = facts.system.services.iter().map(String::as_str).collect();
    Check::limited(CheckName::Services, running.join(", "))
        .means(
            "their changes win: evenkeel no longer moves tasks that they pin, and another CPU may \
             become the slow one",
        )
        .remedy(format!("stop them while measuring: systemctl stop {}", stop.join(" ")))
}

fn sched_ext(facts: &Facts) -> Check {
    let name = CheckName::SchedExt;
    let Some(ext) = &facts.system.sched_ext else {
        return Check::missing(name, "the kernel has no sched_ext")
            .means("evenkeel sched (the keel) cannot run; evenkeel run does not need it")
            .remedy("run Linux 6.18 or newer with CONFIG_SCHED_CLASS_EXT=y");
    };
    let malformed = &facts.process.malformed_functions;
    if !malformed.is_empty() {
        let found = format!("the kernel's BTF describes {} wrongly", malformed.join(", "));
        return Check::limited(name, found)
            .means("a pahole before 1.26 made it: no scheduler can be loaded")
            .remedy("for evenkeel sched, run a kernel that was built with pahole 1.26 or newer");
    }
    let keeps_time = facts.process.keeps_time_for_sched_ext != Some(false);
    match (ext.state.as_str(), &ext.ops) {
        ("disabled", _) if !facts.system.has_btf => Check::limited(name, "available, without BTF")
            .means("evenkeel sched cannot load a scheduler")
            .remedy("run a kernel built with CONFIG_DEBUG_INFO_BTF=y"),
        ("disabled", _) => {
            let check = Check::ok(name, "available, no scheduler loaded");
            if keeps_time { check } else { check.means(KEEPS_NO_TIME) }
        }
        (state, ops) => {
            let scheduler = ops.as_deref().unwrap_or("a scheduler without a name");
            let mut meaning =
                "it decides where tasks run: it may move a task back, and the gain may \
                               be smaller than shown"
                    .to_owned();
            if !keeps_time {
                meaning += &format!("; {KEEPS_NO_TIME}");
            }
            Check::limited(name, format!("{scheduler} is loaded ({state})")).means(meaning).remedy(
                "stop it if evenkeel run does not help: systemctl stop scx, or end its loader",
            )
        }
    }
}

fn cpu_max(facts: &Facts) -> Option<Check> {
    let groups = &facts.system.limited_groups;
    let example = groups.first().filter(|_| facts.allow_the_keel())?;
    let found = format!("{} with a limit, as {example}", count(groups.len(), "cgroup"));
    Some(
        Check::limited(CheckName::CpuMax, found)
            .means("the keel does not enforce cpu.max: under evenkeel sched, these cgroups may use more")
            .remedy("use cpu.weight, which the keel honours, or use evenkeel run instead"),
    )
}

fn autogroup(facts: &Facts) -> Option<Check> {
    if !facts.system.autogroup? {
        return Some(Check::ok(CheckName::Autogroup, "off"));
    }
    Some(
        Check::limited(CheckName::Autogroup, "on: sessions share each CPU equally")
            .means("nice has no effect between sessions (outside of CPU cgroups)")
            .remedy("if you rely on nice: sysctl kernel.sched_autogroup_enabled=0"),
    )
}

/// None where no frequency can be read.
fn frequency(frequencies: &[Frequency]) -> Option<Check> {
    if frequencies.is_empty() {
        return None;
    }
    let mut governors: Vec<&str> =
        frequencies.iter().filter_map(|one| one.governor.as_deref()).collect();
    governors.sort_unstable();
    governors.dedup();
    let throttled = frequencies.iter().filter_map(|one| one.throttled).max().unwrap_or(0);
    let mut found = match governors.as_slice() {
        [] => "no governor".to_owned(),
        [one] => format!("governor {one}"),
        several => format!("governors {}", several.join(", ")),
    };
    if throttled > 0 {
        found += &format!("; slowed down by heat {} since boot", count(throttled as usize, "time"));
    }
    let capped: CpuSet =
        frequencies.iter().filter(|one| is_capped(one)).map(|one| one.cpu).collect();
    let slow: CpuSet = frequencies.iter().filter(|one| is_slow(one)).map(|one| one.cpu).collect();
    let name = CheckName::Frequency;
    Some(if !slow.is_empty() {
        Check::limited(name, found)
            .means(format!("CPUs {slow} stay at their lowest frequency"))
            .remedy("cpupower frequency-set -g schedutil")
    } else if !capped.is_empty() {
        Check::limited(name, format!("{found}; CPUs {capped} are capped (scaling_max_freq)"))
            .means("they are slower than evenkeel assumes")
            .remedy("evenkeel run --speed calibrated, or raise the cap")
    } else if governors.len() > 1 {
        Check::limited(name, found)
            .means("CPUs with different governors may differ in speed, which evenkeel does not see")
            .remedy("evenkeel run --speed calibrated, or one governor for all")
    } else {
        Check::ok(name, found)
    })
}

fn is_capped(frequency: &Frequency) -> bool {
    match (frequency.cap_khz, frequency.max_khz) {
        (Some(cap), Some(max)) => (cap as f64) < max as f64 * CAPPED_SHARE,
        _ => false,
    }
}

/// Whether the governor `powersave` keeps the CPU at its lowest frequency. With intel_pstate and
/// amd-pstate in active mode, `powersave` is the normal governor.
fn is_slow(frequency: &Frequency) -> bool {
    let own_meaning = ["intel_pstate", "amd-pstate", "amd-pstate-epp", "amd_pstate_epp"];
    frequency.governor.as_deref() == Some("powersave")
        && !frequency.driver.as_deref().is_some_and(|driver| own_meaning.contains(&driver))
}
