//! A cpuset that shrinks and grows under a placed thread.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use evenkeel_journal::{PlaceError, Placed, Released, affinity, effective_cpuset};
use evenkeel_machine::CpuSet;

use crate::tools::*;

/// A cpuset of the test's own, removed when dropped.
struct Group {
    path: PathBuf,
}

impl Group {
    /// Creates one in cgroup v1 or v2, whichever has the controller.
    fn new(name: &str, cpus: &CpuSet) -> Result<Self, String> {
        let v1 = Path::new("/sys/fs/cgroup/cpuset");
        let (parent, unified) = if v1.join("cpuset.cpus").exists() {
            (v1, false)
        } else {
            let v2 = Path::new("/sys/fs/cgroup");
            let enabled = std::fs::read_to_string(v2.join("cgroup.subtree_control"));
            if !enabled.is_ok_and(|text| text.split_whitespace().any(|name| name == "cpuset")) {
                return Err("no cgroup with the cpuset controller to make one in".into());
            }
            (v2, true)
        };
        let path = parent.join(format!("evenkeel-test-{}-{name}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o755).create(&path).map_err(|error| error.to_string())?;
        let group = Self { path };
        let mems = std::fs::read_to_string(parent.join(if unified {
            "cpuset.mems.effective"
        } else {
            "cpuset.effective_mems"
        }));
        group.write("cpuset.mems", mems.unwrap_or_else(|_| "0".into()).trim())?;
        group.allow(cpus)?;
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        std::fs::write(self.path.join(file), text).map_err(|error| format!("{file}: {error}"))
    }

    fn allow(&self, cpus: &CpuSet) -> Result<(), String> {
        self.write("cpuset.cpus", &cpus.to_string())
    }

    fn join(&self, pid: i32) -> Result<(), String> {
        self.write("cgroup.procs", &pid.to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that are still in it go back to the parent first.
        let home = self.path.parent().unwrap().join("cgroup.procs");
        for pid in
            std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines()
        {
            let _ = std::fs::write(&home, pid);
        }
        let path = &self.path;
        wait_for("the cgroup's removal", || std::fs::remove_dir(path).is_ok() || !path.exists());
    }
}

/// A group, or a message that the test is skipped.
fn group(test: &str, cpus: &CpuSet) -> Option<Group> {
    match Group::new(test, cpus) {
        Ok(group) => Some(group),
        Err(why) => {
            evenkeel_skip::skip(test, why);
            None
        }
    }
}

/// Since Linux 6.2 a mask is restored when its cpuset grows.
fn kernel_keeps_user_masks() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 2)
}

#[test]
fn only_cpus_of_the_cpuset_are_used() {
    let Some((x, y)) = two_cpus("only_cpus_of_the_cpuset_are_used") else { return };
    let Some(group) = group("bounds", &just(y)) else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    group.join(sleeper.task.tid).unwrap();
    assert_eq!(effective_cpuset(sleeper.task.tid), just(y));
    let mut session = open(dir.path());
    let error = session.place(&sleeper.task, x).unwrap_err();
    assert!(matches!(error, PlaceError::OutsideCpuset { .. }), "{error}");
    // Its only CPU: a pin would keep the mask from growing.
    assert_eq!(session.place(&sleeper.task, y).unwrap(), Placed::Unchanged);
}

#[test]
fn a_cpuset_that_shrinks_is_not_taken_for_the_user() {
    let Some((x, y)) = two_cpus("a_cpuset_that_shrinks_is_not_taken_for_the_user") else { return };
    let Some(group) = group("shrinks", &all()) else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    group.join(sleeper.task.tid).unwrap();
    let mut session = open(dir.path());
    session.place(&sleeper.task, x).unwrap();
    group.allow(&just(y)).unwrap();
    wait_for("the kernel's fallback", || sleeper.mask() == just(y));
    // Not a change by the user: the session still holds the task, but this is its only CPU.
    assert!(matches!(session.place(&sleeper.task, x), Err(PlaceError::OutsideCpuset { .. })));
    assert!(!matches!(session.place(&sleeper.task, y).unwrap(), Placed::Yielded { .. }));
    group.allow(&all()).unwrap();
    let report = session.close();
    assert!(report.is_clean() && report.kept.is_empty(), "{report:?}");
    wait_for("all CPUs again", || sleeper.mask() == all());
}

#[test]
fn a_mask_of_the_whole_cpuset_grows_with_it_again() {
    let Some((x, y)) = two_cpus("a_mask_of_the_whole_cpuset_grows_with_it_again") else { return };
    let Some(group) = group("grows", &all()) else { return };
    for is_released in [false, true] {
        let (dir, sleeper) = (directory(), Sleeper::new());
        group.join(sleeper.task.tid).unwrap();
        let mut session = open(dir.path());
        session.place(&sleeper.task, x).unwrap();
        if is_released {
            assert_eq!(session.release(&sleeper.task).unwrap(), Released::Restored);
        }
        // A task that is still pinned is restored while the cpuset is small.
        group.allow(&just(y)).unwrap();
        let report = session.close();
        assert!(report.is_clean() && report.kept.is_empty(), "{report:?}");
        assert_eq!(sleeper.mask(), just(y));
        group.allow(&all()).unwrap();
        if kernel_keeps_user_masks() || is_released {
            wait_for("growing again", || sleeper.mask() == all());
        }
        // And shrunk and grown once more after that.
        group.allow(&just(x)).unwrap();
        wait_for("shrinking", || sleeper.mask() == just(x));
        group.allow(&all()).unwrap();
        wait_for("growing", || sleeper.mask() == all());
    }
    // The problem that this avoids: a mask that is a list does not grow.
    if kernel_keeps_user_masks() {
        let sleeper = Sleeper::new();
        group.join(sleeper.task.tid).unwrap();
        group.allow(&just(x)).unwrap();
        affinity::set(sleeper.task.tid, &just(x)).unwrap();
        group.allow(&all()).unwrap();
        assert_eq!(sleeper.mask(), just(x));
    }
}
