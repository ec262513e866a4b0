//! The joined programs on disk, so that the next daemon continues with those that still run. Their tasks
//! have their own masks by then (the journal saw to that), so there is nothing to reset.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_journal::TaskRef;
use serde::{Deserialize, Serialize};

use super::admission::How;
use crate::private_file;

/// A joined program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedProgram {
    pub uid: u32,
    pub how: How,
    pub command: Vec<String>,
    pub root: TaskRef,
    /// Its processes when this was written.
    pub processes: Vec<TaskRef>,
    /// Its moves are not made.
    #[serde(default)]
    pub watch: bool,
    /// It joined so.
    #[serde(default)]
    pub stays_watched: bool,
}

/// The file and its content. Without a path, nothing is saved.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    path: Option<PathBuf>,
    written: Vec<SavedProgram>,
}

impl Saved {
    /// Reads the file of an earlier daemon. A file that cannot be read counts as empty, with a warning.
    pub fn load(path: &Path) -> Self {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(why) => {
                if why.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(
                        "{}: {why}; programs of the earlier daemon must join again",
                        path.display()
                    );
                }
                return Self { path: Some(path.to_owned()), written: Vec::new() };
            }
        };
        let written = serde_json::from_slice(&text).unwrap_or_else(|why| {
            tracing::warn!(
                "{}: {why}; programs of the earlier daemon must join again",
                path.display()
            );
            Vec::new()
        });
        Self { path: Some(path.to_owned()), written }
    }

    pub fn programs(&self) -> &[SavedProgram] {
        &self.written
    }

    /// Replaces the file as a whole, if the programs changed.
    pub fn save(&mut self, programs: Vec<SavedProgram>) {
        let Some(path) = self.path.as_ref().filter(|_| programs != self.written) else { return };
        let text = serde_json::to_vec(&programs).map_err(io::Error::from);
        let result = text.and_then(|text| private_file::replace(path, &text));
        match result {
            Ok(()) => self.written = programs,
            Err(why) => tracing::warn!(
                "{}: {why}; after a restart of the daemon, programs must join again",
                path.display()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(tid: i32, how: How) -> SavedProgram {
        let root = TaskRef { tid, tgid: tid, start_time_ticks: 7 };
        let command = vec!["a b".into()];
        let (watch, stays_watched) = (true, true);
        SavedProgram { uid: 5, how, command, root, processes: vec![root], watch, stays_watched }
    }

    #[test]
    fn a_saved_list_is_loaded_and_a_damaged_file_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.json");
        let mut saved = Saved::load(&path);
        assert!(saved.programs().is_empty());
        let programs =
            vec![program(3, How::Process), program(4, How::Cgroup("/sys/fs/cgroup/a".into()))];
        saved.save(programs.clone());
        assert_eq!(Saved::load(&path).programs(), programs);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::write(&path, "[{\"uid\":").unwrap();
        assert!(Saved::load(&path).programs().is_empty());
    }
}
