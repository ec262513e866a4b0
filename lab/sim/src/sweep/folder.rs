//! The folder beside a result file, `FILE.parts`: there the rows are that are not in the result yet. A
//! sweep that is killed leaves it behind; the next one takes the rows from there. The command that makes
//! the sweep holds its lock. The jobs of an engine only read the plan and write files of their own, so
//! that two attempts at one part, of which one is thought dead, cannot mix their lines.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Lost;
use super::rows::{Known, rows_error};
use crate::grid::{Grid, Row, Run, SweepError, fnv1a};

const PLAN: &str = "plan.json";
const ROWS: &str = "rows-";
const DONE: &str = "done-";
const LOST: &str = "lost-";
const LOG: &str = "log-";

/// What the jobs of an engine are to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// The engine.
    pub engine: String,
    /// [`Grid::id`].
    pub grid: String,
    /// The places in the grid of each part.
    pub parts: Vec<Vec<usize>>,
}

impl Plan {
    pub fn new(
        engine: &str,
        grid: &Grid,
        todo: &[(usize, Run)],
        part_runs: usize,
    ) -> Result<Self, SweepError> {
        let parts = todo.chunks(part_runs).map(|part| part.iter().map(|(at, _)| *at).collect());
        let grid = grid.id(&grid.runs()?);
        Ok(Self { engine: engine.to_owned(), grid, parts: parts.collect() })
    }

    pub fn runs(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }

    /// Names a part by what it makes, not by its number: a process that still works at an earlier plan
    /// must not pass for one of this plan.
    fn mark(&self, part: usize) -> String {
        let places = self.parts.get(part).map_or(&[][..], Vec::as_slice);
        let places = places.iter().flat_map(|at| at.to_le_bytes());
        format!("{:016x}", fnv1a(self.grid.bytes().chain(places)))
    }
}

/// The result file by a path that is the same for all its users: without links and without `..`.
pub(super) fn resolved(out: &Path) -> Result<PathBuf, SweepError> {
    let resolve = || -> io::Result<PathBuf> {
        if out.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        match fs::canonicalize(out) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                let name = out.file_name().ok_or(io::ErrorKind::InvalidInput)?;
                let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty());
                Ok(fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name))
            }
            resolved => resolved,
        }
    };
    resolve().map_err(rows_error(out))
}

/// The folder.
pub(super) struct Folder {
    path: PathBuf,
    /// Open as long as the lock is held.
    lock: Option<File>,
}

impl Folder {
    fn path_beside(out: &Path) -> PathBuf {
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(".parts");
        out.with_file_name(name)
    }

    /// Makes or takes over the folder of a result file, and locks it until this is dropped.
    ///
    /// # Errors
    /// Another process has it, another user owns it, or it cannot be made.
    pub fn lock(out: &Path) -> Result<Self, SweepError> {
        let path = Self::path_beside(out);
        let error = |source| SweepError::Folder { path: path.clone(), source };
        loop {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(error(why)),
                _ => {}
            }
            let file = match Self::open(&path) {
                Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(error)?,
            };
            let opened = file.metadata().map_err(error)?;
            if opened.uid() != nix::unistd::geteuid().as_raw() {
                return Err(error(io::Error::other("it belongs to another user")));
            }
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    return Err(SweepError::Busy { path: out.to_owned() });
                }
                Err(TryLockError::Error(why)) => return Err(error(why)),
                Ok(()) => {}
            }
            // The sweep that held the lock may have removed the folder meanwhile.
            let is_same =
                |now: fs::Metadata| (now.dev(), now.ino()) == (opened.dev(), opened.ino());
            if fs::symlink_metadata(&path).is_ok_and(is_same) {
                return Ok(Self { path, lock: Some(file) });
            }
        }
    }

    /// Opens a directory, and nothing that only leads to one: in a directory that others may write
    /// to, that could be theirs.
    fn open(path: &Path) -> io::Result<File> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }

    /// The folder that another process has locked, for one of its jobs.
    ///
    /// # Errors
    /// There is none: that process has ended the sweep.
    pub fn join(out: &Path) -> Result<Self, SweepError> {
        let path = Self::path_beside(out);
        match Self::open(&path) {
            Ok(_) => Ok(Self { path, lock: None }),
            Err(source) => Err(SweepError::Folder { path, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log of a part.
    pub fn log(&self, part: impl std::fmt::Display) -> PathBuf {
        self.path.join(format!("{LOG}{part}"))
    }

    /// What an earlier command or this one has planned, if it was for an engine. A plan that was not
    /// written whole is none: it was never handed out.
    pub fn plan(&self) -> Result<Option<Plan>, SweepError> {
        match fs::read(self.path.join(PLAN)) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SweepError::Folder { path: self.path.clone(), source }),
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        }
    }

    /// Writes the plan, in place of an earlier one and of all that belonged to that.
    pub fn write_plan(&self, plan: &Plan) -> Result<(), SweepError> {
        self.clear(&[PLAN, DONE, LOST, LOG]).map_err(|why| self.error(why))?;
        self.write(PLAN, plan)
    }

    fn error(&self, source: io::Error) -> SweepError {
        SweepError::Folder { path: self.path.clone(), source }
    }

    /// Writes a file whole or not at all.
    fn write(&self, name: &str, content: &impl Serialize) -> Result<(), SweepError> {
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
            serde_json::to_writer(&mut file, content)?;
            file.flush()?;
            file.persist(self.path.join(name))?;
            Ok(())
        };
        write().map_err(|why| self.error(why))
    }

    /// The files with names that begin so.
    fn files(&self, beginning: &str) -> io::Result<Vec<PathBuf>> {
        let begins = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(beginning))
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            files.push(entry?.path());
        }
        files.retain(begins);
        files.sort_unstable();
        Ok(files)
    }

    fn clear(&self, beginnings: &[&str]) -> io::Result<()> {
        for beginning in beginnings {
            for path in self.files(beginning)? {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Merges the rows that lie here into the result, and returns all rows of the result.
    pub fn collect(&self, out: &Path) -> Result<Known, SweepError> {
        let files = self.files(ROWS).map_err(|why| self.error(why))?;
        let mut known = Known::default();
        for path in std::iter::once(out).chain(files.iter().map(PathBuf::as_path)) {
            known.add(path)?;
        }
        known.write(out)?;
        for path in files {
            fs::remove_file(&path).map_err(rows_error(&path))?;
        }
        Ok(known)
    }

    /// The rows that attempts at this part have written.
    pub fn rows_of(&self, plan: &Plan, part: usize) -> Result<Known, SweepError> {
        let mut known = Known::default();
        let beginning = format!("{ROWS}{}-", plan.mark(part));
        for path in self.files(&beginning).map_err(|why| self.error(why))? {
            known.add(&path)?;
        }
        Ok(known)
    }

    /// Notes that this part has all its rows, or which of its runs were lost.
    pub fn end_part(
        &self,
        plan: &Plan,
        part: usize,
        todo: &[(usize, Run)],
        lost: &[Lost],
    ) -> Result<(), SweepError> {
        let mark = plan.mark(part);
        if lost.is_empty() {
            return self.write(&format!("{DONE}{mark}"), &());
        }
        let place = |lost: &Lost| {
            let found = todo.iter().find(|(_, run)| run.to_string() == lost.run);
            found.map(|(at, _)| (*at, lost.why.clone()))
        };
        let lost: BTreeMap<usize, String> = lost.iter().filter_map(place).collect();
        self.write(&format!("{LOST}{mark}"), &lost)
    }

    /// The parts that have all their rows.
    pub fn done(&self, plan: &Plan) -> Vec<usize> {
        let is_done = |part: &usize| self.path.join(format!("{DONE}{}", plan.mark(*part))).exists();
        (0..plan.parts.len()).filter(is_done).collect()
    }

    /// Why runs were lost in the last attempt at their part, by their places in the grid.
    pub fn lost(&self, plan: &Plan) -> BTreeMap<usize, String> {
        let of_part = |part: usize| -> Option<BTreeMap<usize, String>> {
            let path = self.path.join(format!("{LOST}{}", plan.mark(part)));
            serde_json::from_slice(&fs::read(path).ok()?).ok()
        };
        (0..plan.parts.len()).filter_map(of_part).flatten().collect()
    }

    /// Removes it: the sweep is over, and the result has all rows.
    pub fn remove(mut self) -> Result<(), SweepError> {
        let removed = fs::remove_dir_all(&self.path);
        // From here on the name may be another sweep's.
        self.lock = None;
        match removed {
            // An attempt that was thought dead has just begun to write: the next sweep finds it.
            Err(why) if why.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(|why| self.error(why)),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Of a sweep that was refused nothing stays. What holds files is kept for the next one.
        if self.lock.is_some() {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Where one process writes rows. Its file is its own, and is made with the first row.
pub(super) struct RowsFile<'a> {
    folder: &'a Folder,
    /// What its name begins with.
    name: String,
    file: Option<(File, PathBuf)>,
}

impl<'a> RowsFile<'a> {
    /// Those of the process that has the lock.
    pub fn here(folder: &'a Folder) -> Self {
        Self { folder, name: format!("{ROWS}here-"), file: None }
    }

    /// Those of an attempt at a part.
    pub fn of_part(folder: &'a Folder, plan: &Plan, part: usize) -> Self {
        Self { folder, name: format!("{ROWS}{}-", plan.mark(part)), file: None }
    }

    pub fn write(&mut self, row: &Row) -> Result<(), SweepError> {
        let made = match self.file.take() {
            Some(made) => made,
            None => self.make().map_err(|why| self.folder.error(why))?,
        };
        let (file, path) = self.file.insert(made);
        let line = serde_json::to_string(row).map_err(io::Error::from);
        line.and_then(|line| file.write_all((line + "\n").as_bytes())).map_err(rows_error(path))
    }

    fn make(&self) -> io::Result<(File, PathBuf)> {
        let made = tempfile::Builder::new().prefix(&self.name).tempfile_in(&self.folder.path)?;
        made.keep().map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let out = resolved(&dir.path().join("rows")).unwrap();
        let first = Folder::lock(&out).unwrap();
        let why = Folder::lock(&out).err().unwrap().to_string();
        assert!(why.starts_with("another sweep writes to ") && why.contains("rows"), "{why}");
        drop(first);
        let again = Folder::lock(&out).unwrap();
        let path = again.path().to_owned();
        again.remove().unwrap();
        assert!(!path.exists());
        drop(Folder::lock(&out).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_or_a_file_in_its_place_is_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        let out = resolved(&dir.path().join("rows")).unwrap();
        let place = Folder::path_beside(&out);
        fs::create_dir(dir.path().join("others")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("others"), &place).unwrap();
        let why = Folder::lock(&out).err().unwrap().to_string();
        assert!(why.contains("rows.parts"), "{why}");
        fs::remove_file(&place).unwrap();
        fs::write(&place, "").unwrap();
        assert!(Folder::lock(&out).is_err());
    }

    #[test]
    fn a_plan_that_was_not_written_whole_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::lock(&resolved(&dir.path().join("rows")).unwrap()).unwrap();
        assert_eq!(folder.plan().unwrap(), None);
        let plan =
            Plan { engine: "slurm".into(), grid: "a".into(), parts: vec![vec![0, 2], vec![5]] };
        folder.write_plan(&plan).unwrap();
        assert_eq!((folder.plan().unwrap(), plan.runs()), (Some(plan.clone()), 3));
        folder.end_part(&plan, 1, &[], &[]).unwrap();
        assert_eq!(folder.done(&plan), [1]);
        // A part of an earlier plan says nothing about one of the same number that makes other runs.
        let other = Plan { parts: vec![vec![0], vec![2, 5]], ..plan.clone() };
        assert!(folder.done(&other).is_empty());
        fs::write(folder.path().join(PLAN), "{\"engine\":\"sl").unwrap();
        assert_eq!(folder.plan().unwrap(), None);
        // What belonged to an earlier plan is gone with it.
        folder.write_plan(&plan).unwrap();
        assert!(folder.done(&plan).is_empty());
    }
}
