//! From facts to checks: what else on this machine has a hand in where tasks run and how fast.

use evenkeel_machine::CpuSet;

use super::Facts;
use super::check::{Check, CheckName};
use super::checks::count;
use super::policies;
use super::system::{Frequency, MOVERS};

/// A CPU whose frequency is capped below this share of its highest is named.
const CAPPED_SHARE: f64 = 0.95;

/// What the keel's name begins with, where the kernel says which scheduler is loaded.
const KEEL: &str = "evenkeel";

/// The checks of this concern, in the order in which they are shown.
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
    let found = format!("the cgroup may use {quota:.2} CPUs' time");
    if quota >= usable as f64 {
        return Some(Check::ok(CheckName::Quota, found));
    }
    Some(
        Check::limited(CheckName::Quota, found)
            .means("busy programs are stopped for a part of each period, wherever they run")
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
            "what they change wins over evenkeel and is followed: tasks that they pin are let go, \
             and the slow CPU may be another one from time to time",
        )
        .remedy(format!("nothing, or while measuring: systemctl stop {}", stop.join(" ")))
}

fn sched_ext(facts: &Facts) -> Check {
    let name = CheckName::SchedExt;
    let Some(ext) = &facts.system.sched_ext else {
        return Check::missing(name, "the kernel has no sched_ext")
            .means("not needed by evenkeel run; the keel (evenkeel sched) needs it")
            .remedy("run Linux 6.18 or newer with CONFIG_SCHED_CLASS_EXT=y");
    };
    let malformed = &facts.process.malformed_functions;
    if !malformed.is_empty() {
        let found = format!("the kernel's BTF describes {} wrongly", malformed.join(", "));
        return Check::limited(name, found)
            .means("it was made by a pahole older than 1.26: no scheduler can be loaded")
            .remedy("for evenkeel sched, run another build of the kernel");
    }
    match (ext.state.as_str(), &ext.ops) {
        ("disabled", _) if !facts.system.has_btf => Check::limited(name, "available, without BTF")
            .means("evenkeel sched cannot load a scheduler")
            .remedy("run a kernel built with CONFIG_DEBUG_INFO_BTF=y"),
        ("disabled", _) => Check::ok(name, "available, no scheduler loaded"),
        (state, ops) => {
            let scheduler = ops.as_deref().unwrap_or("a scheduler without a name");
            Check::limited(name, format!("{scheduler} is loaded ({state})"))
                .means(
                    "it decides where tasks run: a moved task may not stay, and the gain may be \
                     smaller than shown",
                )
                .remedy("stop it if evenkeel run does not help (systemctl stop scx, or its loader)")
        }
    }
}

/// Whether the keel runs, or nothing is in the way of loading it but a privilege.
pub(super) fn has_room_for_the_keel(facts: &Facts) -> bool {
    let is_free = facts.system.sched_ext.as_ref().is_some_and(|ext| {
        ext.state == "disabled" || ext.ops.as_deref().is_some_and(|name| name.starts_with(KEEL))
    });
    is_free && facts.system.has_btf && facts.process.malformed_functions.is_empty()
}

fn cpu_max(facts: &Facts) -> Option<Check> {
    let groups = &facts.system.limited_groups;
    let example = groups.first().filter(|_| has_room_for_the_keel(facts))?;
    let found = format!("{} with a limit, as {example}", count(groups.len(), "cgroup"));
    Some(
        Check::limited(CheckName::CpuMax, found)
            .means("the keel enforces none: under evenkeel sched they may use more than that")
            .remedy("use cpu.weight, which the keel honours, or evenkeel run instead of the keel"),
    )
}

fn autogroup(facts: &Facts) -> Option<Check> {
    if !facts.system.autogroup? {
        return Some(Check::ok(CheckName::Autogroup, "off"));
    }
    Some(
        Check::limited(CheckName::Autogroup, "on: sessions share each CPU equally")
            .means("nice has no effect on tasks of other sessions (outside of CPU cgroups)")
            .remedy("if you rely on nice: sysctl kernel.sched_autogroup_enabled=0"),
    )
}

/// Nothing is said where nothing can be read.
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
            .means("they are slower than the speed that they are taken for")
            .remedy("evenkeel run --speed calibrated, or raise the cap")
    } else if governors.len() > 1 {
        Check::limited(name, found)
            .means("CPUs under different governors may differ in speed, unknown to evenkeel")
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

/// In active mode intel_pstate and amd-pstate give the name another meaning: there it is the
/// normal governor.
fn is_slow(frequency: &Frequency) -> bool {
    let own_meaning = ["intel_pstate", "amd-pstate", "amd-pstate-epp", "amd_pstate_epp"];
    frequency.governor.as_deref() == Some("powersave")
        && !frequency.driver.as_deref().is_some_and(|driver| own_meaning.contains(&driver))
}
