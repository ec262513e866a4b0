//! The CPUs that a thread's cgroup lets it use: `cpuset.cpus.effective` of cgroup v2, or
//! `cpuset.effective_cpus` of v1, whichever hierarchy has the controller; without a controller, the
//! online CPUs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use evenkeel_machine::CpuSet;

use crate::affinity::{self, AffinityError};

/// The kernel's directory of CPUs.
const CPUS: &str = "/sys/devices/system/cpu";

/// How often mask and cpuset are read until they belong together.
const MAX_READS: usize = 3;

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// The directory of the hierarchy that is mounted (a container may see only a part).
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
    /// Version 2.
    is_v2: bool,
}

/// The online CPUs that the cpuset of thread `tid` allows now; all online CPUs where its cgroup is out
/// of view, as that of another container is in a cgroup namespace. Then the thread's mask, which the
/// kernel keeps within the cpuset, is taken for its user's choice. Empty only if neither cgroup nor /sys
/// can be read.
pub fn effective_cpuset(tid: i32) -> CpuSet {
    // Read once: cgroup mounts do not change during a run, and reading them costs more than the rest.
    static MOUNTS: OnceLock<Vec<Mount>> = OnceLock::new();
    let mounts = MOUNTS.get_or_init(|| {
        std::fs::read_to_string("/proc/self/mountinfo")
            .map(|text| parse_mounts(&text))
            .unwrap_or_default()
    });
    let cgroup = std::fs::read_to_string(format!("/proc/{tid}/cgroup")).ok();
    let in_cgroup = cgroup.and_then(|text| find_cpuset(&text, mounts));
    drop_offline(in_cgroup, online_cpus())
}

/// The mask of thread `tid` and the CPUs that its cpuset allows, as of the same moment. So a CPU that is
/// in the cpuset and not in the mask was taken out of the mask by a process.
///
/// # Errors
/// As [`affinity::get`].
pub fn mask_in_cpuset(tid: i32) -> Result<(CpuSet, CpuSet), AffinityError> {
    let mut mask = affinity::get(tid)?;
    let mut effective = effective_cpuset(tid);
    for _ in 0..MAX_READS {
        if effective.is_subset(&mask) {
            break;
        }
        let moving = find_in_transition(Path::new(CPUS), &effective.difference(&mask));
        effective = effective.difference(&moving);
        let again = affinity::get(tid)?;
        if again == mask {
            break;
        }
        mask = again;
        effective = effective_cpuset(tid);
    }
    Ok((mask, effective))
}

/// Those of `cpus` that are just going online or offline. The kernel calls them online for the longest
/// part of that, but leaves them out of every mask that it shows (cpu_active_mask).
fn find_in_transition(root: &Path, cpus: &CpuSet) -> CpuSet {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    // The last hotplug state of all, as in "236: online". (A CPU's `hotplug/target` says less: before
    // 6.2 the boot CPU has none.)
    let last_of = |steps: String| Some(steps.trim().lines().last()?.split_once(':')?.0.to_owned());
    let Some(last) = read("hotplug/states").and_then(last_of) else { return CpuSet::new() };
    let is_there =
        |cpu: &u32| read(&format!("cpu{cpu}/hotplug/state")).is_none_or(|step| step.trim() == last);
    cpus.iter().filter(|cpu| !is_there(cpu)).collect()
}

/// Leaves out offline CPUs, which a cpuset still names for some time.
fn drop_offline(in_cgroup: Option<CpuSet>, online: CpuSet) -> CpuSet {
    let Some(in_cgroup) = in_cgroup else { return online };
    let both = in_cgroup.intersection(&online);
    if both.is_empty() { in_cgroup } else { both }
}

fn online_cpus() -> CpuSet {
    read_list(&Path::new(CPUS).join("online")).unwrap_or_default()
}

/// The CPUs that a file names; `None`: it cannot be read, or names none.
pub(crate) fn read_list(path: &Path) -> Option<CpuSet> {
    std::fs::read_to_string(path).ok()?.parse().ok().filter(|set: &CpuSet| !set.is_empty())
}

/// `text` is /proc/TID/cgroup: lines `ID:CONTROLLERS:PATH`, v2 being `0::PATH`.
fn find_cpuset(text: &str, mounts: &[Mount]) -> Option<CpuSet> {
    let mut v2_path = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if controllers.split(',').any(|name| name == "cpuset") {
            return look_up(path, mounts, false, &["cpuset.effective_cpus", "cpuset.cpus"]);
        }
        if controllers.is_empty() {
            v2_path = Some(path);
        }
    }
    look_up(v2_path?, mounts, true, &["cpuset.cpus.effective"])
}

/// The CPUs in the first of `files` of the cgroup or, where the controller is not enabled that far
/// down, of the nearest ancestor that has it.
fn look_up(cgroup: &str, mounts: &[Mount], is_v2: bool, files: &[&str]) -> Option<CpuSet> {
    for mount in mounts.iter().filter(|mount| mount.is_v2 == is_v2) {
        let Ok(inside) = Path::new(cgroup).strip_prefix(&mount.root) else {
            continue;
        };
        if inside.components().any(|part| part.as_os_str() == "..") {
            continue;
        }
        for directory in mount.point.join(inside).ancestors() {
            if !directory.starts_with(&mount.point) {
                break;
            }
            for file in files {
                if let Some(set) = read_list(&directory.join(file)) {
                    return Some(set);
                }
            }
        }
    }
    None
}

/// The cgroup mounts of a mountinfo file that can carry the cpuset controller.
fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            // "31 23 0:28 ROOT POINT OPTIONS [TAGS] - TYPE SOURCE SUPER_OPTIONS"
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(3);
            let (root, point) = (left.next()?, left.next()?);
            let mut right = right.split(' ');
            let kind = right.next()?;
            let options = right.nth(1).unwrap_or_default();
            let is_v2 = kind == "cgroup2";
            let is_v1 = kind == "cgroup" && options.split(',').any(|option| option == "cpuset");
            (is_v2 || is_v1).then(|| Mount {
                root: unescape(root).into(),
                point: unescape(point).into(),
                is_v2,
            })
        })
        .collect()
}

/// mountinfo writes white space and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = text.to_owned();
    for (code, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(code, plain);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_versions_are_parsed() {
        let text = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            41 31 0:38 /a\\040b /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n\
            nonsense\n";
        let mount = |root: &str, point: &str, is_v2| Mount {
            root: root.into(),
            point: point.into(),
            is_v2,
        };
        assert_eq!(
            parse_mounts(text),
            [
                mount("/", "/sys/fs/cgroup/cpuset", false),
                mount("/a b", "/sys/fs/cgroup/unified", true)
            ]
        );
    }

    #[test]
    fn a_cpuset_is_found_in_both_versions_and_in_ancestors() {
        let dir = tempfile::tempdir().unwrap();
        let (v1, v2) = (dir.path().join("v1"), dir.path().join("v2"));
        std::fs::create_dir_all(v1.join("job")).unwrap();
        std::fs::create_dir_all(v2.join("user/app")).unwrap();
        std::fs::write(v1.join("cpuset.effective_cpus"), "0-7\n").unwrap();
        std::fs::write(v1.join("job/cpuset.effective_cpus"), "2-3\n").unwrap();
        std::fs::write(v2.join("user/cpuset.cpus.effective"), "4-5\n").unwrap();
        let mounts = [
            Mount { root: "/".into(), point: v1, is_v2: false },
            Mount { root: "/slice".into(), point: v2, is_v2: true },
        ];
        let find = |text: &str| find_cpuset(text, &mounts).map(|set| set.to_string());
        assert_eq!(find("3:cpuset,cpu:/job\n0::/slice/user"), Some("2-3".into()));
        assert_eq!(find("3:cpuset:/\n"), Some("0-7".into()));
        assert_eq!(find("1:cpu:/\n0::/slice/user/app\n"), Some("4-5".into()));
        assert_eq!(find("0::/slice/gone/too"), None);
        assert_eq!(find("0::/../elsewhere"), None);
        assert_eq!(find("0::/slice/../../user"), None);
        assert_eq!(find("garbage"), None);
    }

    #[test]
    fn offline_cpus_are_left_out() {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        assert_eq!(drop_offline(Some(cpus("0-3")), cpus("0,2-7")), cpus("0,2-3"));
        assert_eq!(drop_offline(None, cpus("0,2-7")), cpus("0,2-7"));
        // No CPU is known to be online: the cpuset is all that is known.
        assert_eq!(drop_offline(Some(cpus("0-3")), CpuSet::new()), cpus("0-3"));
    }

    #[test]
    fn cpus_that_go_online_or_offline_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        assert_eq!(find_in_transition(root, &cpus("0-3")), CpuSet::new());
        std::fs::create_dir(root.join("hotplug")).unwrap();
        std::fs::write(root.join("hotplug/states"), "  0: offline\n235: a:b\n236: online\n")
            .unwrap();
        for (cpu, step) in [(1, 236), (2, 235), (3, 120)] {
            let hotplug = root.join(format!("cpu{cpu}/hotplug"));
            std::fs::create_dir_all(&hotplug).unwrap();
            std::fs::write(hotplug.join("state"), format!("{step}\n")).unwrap();
        }
        // CPU 0 has no hotplug state here: it cannot go offline.
        assert_eq!(find_in_transition(root, &cpus("0-3")), cpus("2-3"));
        assert_eq!(find_in_transition(root, &cpus("0-2")), cpus("2"));
    }

    #[test]
    fn the_mask_of_this_host_is_in_its_cpuset() {
        let tid = crate::task::own_pid();
        let set = effective_cpuset(tid);
        assert!(affinity::get(tid).unwrap().is_subset(&set), "{set}");
        assert_eq!(mask_in_cpuset(tid).unwrap(), (affinity::get(tid).unwrap(), set));
    }
}
