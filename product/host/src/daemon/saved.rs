//! Who had joined, on disk: a daemon that is started again goes on with the programs that still
//! run. Threads carry no mask of ours then (the journal saw to that), so nothing is reset.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use evenkeel_journal::TaskRef;
use serde::{Deserialize, Serialize};

use super::admission::How;

/// A program as it is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedProgram {
    pub uid: u32,
    pub how: How,
    pub command: Vec<String>,
    pub root: TaskRef,
    /// Its processes when this was written.
    pub processes: Vec<TaskRef>,
}

/// The file, and what it says; without a file nothing is kept.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    path: Option<PathBuf>,
    written: Vec<SavedProgram>,
}

impl Saved {
    /// What an earlier daemon wrote; one that cannot be read says nothing, and that is logged.
    pub fn load(path: &Path) -> Self {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(why) => {
                if why.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("{}: {why}; no program is taken over", path.display());
                }
                return Self { path: Some(path.to_owned()), written: Vec::new() };
            }
        };
        let written = serde_json::from_slice(&text).unwrap_or_else(|why| {
            tracing::warn!("{}: {why}; no program is taken over", path.display());
            Vec::new()
        });
        Self { path: Some(path.to_owned()), written }
    }

    pub fn programs(&self) -> &[SavedProgram] {
        &self.written
    }

    /// Writes it, all or nothing, if it changed.
    pub fn save(&mut self, programs: Vec<SavedProgram>) {
        let Some(path) = self.path.as_ref().filter(|_| programs != self.written) else { return };
        let new = path.with_extension("new");
        let text = serde_json::to_vec(&programs).map_err(io::Error::from);
        let result = text.and_then(|text| {
            fs::write(&new, text)?;
            fs::rename(&new, path)
        });
        match result {
            Ok(()) => self.written = programs,
            Err(why) => tracing::warn!(
                "{}: {why}; a daemon that is started again would not know its programs",
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
        SavedProgram { uid: 5, how, command: vec!["a b".into()], root, processes: vec![root] }
    }

    #[test]
    fn what_is_saved_is_loaded_and_damage_is_nothing() {
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
