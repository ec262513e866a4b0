//! A clean Debian system of `scripts/debian-system` in which steps run. What they change is an upper
//! layer that is removed with the system. Each step has mount and process namespaces of its own, which
//! end with it, so no mount and no process outlives a step, whatever becomes of this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Where `scripts/debian-system` keeps its systems.
fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    cache.join("evenkeel/debian")
}

/// Mounts the system, and runs the step in it: $0 the lower layer, $1 the folder of the layers, $2 that
/// of the packages, $3 the step.
const ENTER: &str = r#"set -eu
top=$1
mount -t overlay -o "lowerdir=$0,upperdir=$top/upper,workdir=$top/work" overlay "$top/root"
mount -t proc proc "$top/root/proc"
mount --rbind /sys "$top/root/sys"
mkdir "$top/root/packages" 2>/dev/null || true
mount --bind "$2" "$top/root/packages"
cp -L /etc/resolv.conf "$top/root/etc/resolv.conf"
exec chroot "$top/root" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 "SYSTEM=$top" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -e -c "$3"
"#;

/// A system, as far as it was changed.
pub struct System {
    lower: PathBuf,
    layers: TempDir,
    packages: PathBuf,
}

impl System {
    /// A clean one.
    pub fn of(suite: &str, packages: &Path) -> Self {
        let lower = cache().join(suite);
        assert!(lower.is_dir(), "no {}: run `make deb-test`", lower.display());
        let layers = tempfile::tempdir().unwrap();
        for name in ["upper", "work", "root"] {
            fs::create_dir(layers.path().join(name)).unwrap();
        }
        let system = Self { lower, layers, packages: packages.canonicalize().unwrap() };
        // The folder of packages is there before the first step, as it is after the last.
        system.run("test -d /packages");
        system
    }

    /// The folder of its layers.
    pub fn top(&self) -> &Path {
        self.layers.path()
    }

    /// Runs a step, which must succeed, and returns what it printed.
    pub fn run(&self, step: &str) -> String {
        self.attempt(step).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Runs a step, and returns what it printed, or how it failed with all that was printed.
    pub fn attempt(&self, step: &str) -> Result<String, String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        command.args(["sh", "-c", ENTER]).arg(&self.lower).arg(self.top()).arg(&self.packages);
        let ended = command.arg(step).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        if ended.status.success() {
            return Ok(said);
        }
        let complained = String::from_utf8_lossy(&ended.stderr);
        Err(format!("`{step}`: {}\n{said}\n{complained}", ended.status))
    }
}

/// The processes of a system's steps: `SYSTEM` in their environment names its folder.
pub fn processes_of(top: &Path) -> Vec<u32> {
    let mark = format!("SYSTEM={}", top.display()).into_bytes();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    let is_of_it = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark)
    };
    pids.filter(is_of_it).collect()
}
