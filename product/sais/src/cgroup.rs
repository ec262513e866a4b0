//! Cgroups with sockets that write hints: which there are, and a program on one.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, ProgramMut};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

/// Why a program is not on a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no hierarchy of version 2.
    #[error(
        "no cgroup2 file system is mounted, by which packets get their hints: mount -t cgroup2 none \
         /sys/fs/cgroup"
    )]
    NotMounted,
    /// The mounts cannot be read.
    #[error("the cgroup2 file system cannot be found: {0}")]
    Mounts(String),
    /// No such directory.
    #[error("{path}: no such cgroup: {source}; {} lists them", list(.root))]
    NotFound {
        /// What was asked for.
        path: PathBuf,
        /// Where cgroups are.
        root: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A directory, but none of a hierarchy of version 2.
    #[error("{path}: not a cgroup of version 2; {} lists them", list(.root))]
    NotACgroup {
        /// What was asked for.
        path: PathBuf,
        /// Where cgroups are.
        root: PathBuf,
    },
    /// The kernel refused.
    #[error("{path}: the program that writes hints was refused: {source}")]
    Refused {
        /// The cgroup.
        path: PathBuf,
        /// Why.
        source: libbpf_rs::Error,
    },
}

fn list(root: &Path) -> String {
    format!("`find {} -type d`", root.display())
}

/// A cgroup, open.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    directory: File,
}

impl Cgroup {
    /// The one that all processes are in.
    ///
    /// # Errors
    /// No hierarchy of version 2 is to be seen.
    pub fn root() -> Result<Self, CgroupError> {
        Self::open_at(root()?, Path::new(""))
    }

    /// By its directory, or by its name below the root.
    ///
    /// # Errors
    /// All of [`CgroupError`] but the last.
    pub fn open(path: &Path) -> Result<Self, CgroupError> {
        let root = root()?;
        let below = path.strip_prefix("/").unwrap_or(path);
        let path = if root.join(below).is_dir() { root.join(below) } else { path.to_owned() };
        Self::open_at(root, &path)
    }

    fn open_at(root: PathBuf, path: &Path) -> Result<Self, CgroupError> {
        let path = root.join(path);
        let directory = match File::open(&path) {
            Ok(directory) => directory,
            Err(source) => return Err(CgroupError::NotFound { path, root, source }),
        };
        match fstatfs(&directory) {
            Ok(system) if system.filesystem_type() == CGROUP2_SUPER_MAGIC => {
                Ok(Self { path, directory })
            }
            _ => Err(CgroupError::NotACgroup { path, root }),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it still is there.
    pub fn is_alive(&self) -> bool {
        // A directory that was removed has no links; its entries are gone, too.
        self.path.join("cgroup.procs").exists()
    }

    /// A program on it for as long as the link is held.
    pub(crate) fn attach(&self, program: &ProgramMut<'_>) -> Result<Link, CgroupError> {
        program
            .attach_cgroup(self.directory.as_raw_fd())
            .map_err(|source| CgroupError::Refused { path: self.path.clone(), source })
    }
}

/// Where cgroups of version 2 are mounted.
fn root() -> Result<PathBuf, CgroupError> {
    let mounts = procfs::process::Process::myself().and_then(|process| process.mountinfo());
    let mounts = mounts.map_err(|why| CgroupError::Mounts(why.to_string()))?;
    let found = mounts.into_iter().find(|mount| mount.fs_type == "cgroup2");
    found.map(|mount| mount.mount_point).ok_or(CgroupError::NotMounted)
}
