//! A session: one process's journal and everything that the process has changed. Opens the journal,
//! writes each entry before its change, changes settings, and restores everything when it closes.
//! `place` adds what a session does with threads.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::device;
use crate::directory::{journal_dir, keep_from_ageing};
use crate::entry::{Entry, Persistent, Setting, SettingEnd};
use crate::file::{JournalError, JournalFile};
use crate::hotplug::Looks;
use crate::report::UndoReport;
use crate::setting::{RestoredSetting, SettingError, network_namespace, read_value, write_value};
use crate::state::JournalState;
use crate::task::now_ns;
use crate::undo::{free_all_inherited, restore_all};
use crate::validity::own_header;

/// How a session behaves.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Command line of this process, for people who read the journal.
    pub command: Vec<String>,
    /// Also place threads that their user pinned (`--override`), on any CPU of their cpuset. They are
    /// given back what their user set last.
    pub override_user: bool,
    /// The journal is compacted whenever it has grown by this many bytes; `None`: 512 KiB.
    pub compact_bytes: Option<u64>,
}

/// One process's journal and everything that the process has changed. Dropping it restores everything,
/// as [`Session::close`] does, but without a report.
#[derive(Debug)]
pub struct Session {
    file: JournalFile,
    /// The directory of all files of this process, and whether it is kept from ageing by now.
    directory: Option<File>,
    is_kept: bool,
    header: Entry,
    pub(crate) state: JournalState,
    /// The next free [`crate::entry::Pin::id`].
    pub(crate) next_id: u64,
    pub(crate) override_user: bool,
    /// Looks at CPUs: they tell the kernel's moves of lines from another process's.
    pub(crate) looks: Looks,
    is_closed: bool,
}

impl Session {
    /// Creates the journal `DIR/journal/PID-STARTTIME.jsonl`; `dir` is [`crate::runtime_dir`] or a
    /// test's own. What dead sessions left there is not touched: call [`crate::undo`] first.
    ///
    /// # Errors
    /// All of [`JournalError`]: then change nothing, observe only.
    pub fn open(dir: &Path, options: SessionOptions) -> Result<Self, JournalError> {
        let header = own_header(options.command)?;
        let writer = header.writer;
        let header = Entry::Header(header);
        let journals = journal_dir(dir)?;
        let directory = File::open(dir).ok();
        let is_kept = directory.as_ref().is_none_or(keep_from_ageing);
        let file = JournalFile::create(&journals, &writer, &header, options.compact_bytes)?;
        Ok(Self {
            file,
            directory,
            is_kept,
            header,
            state: JournalState::default(),
            next_id: 1,
            override_user: options.override_user,
            looks: Looks::default(),
            is_closed: false,
        })
    }

    /// Where the journal is: what the supervisor is started with.
    pub fn journal_path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// Changes a setting of the kernel to `value`. False: it is not ours, because it had that value
    /// already, or because another process has changed it since this session did.
    ///
    /// # Errors
    /// All of [`SettingError`]; the setting is not changed then.
    pub fn change_setting(&mut self, file: &Path, value: &str) -> Result<bool, SettingError> {
        let index = device::index_of(file);
        // Restored first: if killed between two values of ours, an undo could not tell which one the
        // setting has. A network device may have had another name at the first change. Where another
        // device had this name then, its entry would be lost to the next one of this path.
        let is_in_the_way = |held: &&Setting| held.file == file || held.is_same(file, index);
        let held: Vec<Setting> =
            self.state.settings().iter().filter(is_in_the_way).cloned().collect();
        for setting in held {
            let restored = self.restore_and_end(&setting)?;
            let is_kept = matches!(restored, RestoredSetting::Kept { .. });
            if is_kept && setting.is_same(file, index) {
                return Ok(false);
            }
        }
        let before = read_value(file)
            .map_err(|source| SettingError::Unreadable { file: file.to_owned(), source })?;
        if before == value {
            return Ok(false);
        }
        self.write(Entry::Setting(Setting {
            file: file.to_owned(),
            index,
            net_ns: network_namespace()?,
            before,
            set: value.to_owned(),
            time_ns: now_ns(),
        }))?;
        if let Err(error) = write_value(file, value) {
            self.end_setting(file);
            return Err(error);
        }
        self.compact_if_large();
        Ok(true)
    }

    /// Restores the value that a setting had before this session changed it. `file` is the path by which
    /// it was changed; if its network device was renamed since, it is found by that path all the same.
    ///
    /// # Errors
    /// [`SettingError::Unreadable`], [`SettingError::Refused`]; the session still holds it then.
    pub fn restore_setting(&mut self, file: &Path) -> Result<RestoredSetting, SettingError> {
        let held = self.state.settings().iter().find(|setting| setting.file == file).cloned();
        let Some(setting) = held else { return Ok(RestoredSetting::NotHeld) };
        self.restore_and_end(&setting)
    }

    fn restore_and_end(&mut self, setting: &Setting) -> Result<RestoredSetting, SettingError> {
        let outcome = setting.restore()?;
        self.end_setting(&setting.file);
        Ok(outcome)
    }

    fn end_setting(&mut self, file: &Path) {
        let end = SettingEnd { file: file.to_owned(), time_ns: now_ns() };
        self.write_or_warn(Entry::SettingClosed(end));
    }

    /// Frees every thread of the system that inherited a mask of ours, for a caller that does not see
    /// each fork. Reads the mask of every thread, once anything was placed.
    pub fn free_all_inherited(&mut self) -> UndoReport {
        let mut report = UndoReport::default();
        free_all_inherited(&mut self.state, &mut report);
        report
    }

    /// Gives every thread its own mask back, children that inherited one included, and restores every
    /// setting. The session stays usable.
    pub fn restore_all(&mut self) -> UndoReport {
        let Self { file, state, .. } = self;
        restore_all(state, &mut |entry| {
            if let Err(error) = file.append(entry) {
                tracing::warn!(%error, "a change was undone, but this is not in the journal");
            }
        })
    }

    /// Ends the session and lets all its changes stand: they outlive this process. Returns the journal,
    /// which stays for their undo.
    ///
    /// # Errors
    /// All of [`JournalError`]; everything is restored then, as far as that is possible.
    pub fn persist(mut self) -> Result<PathBuf, JournalError> {
        self.write(Entry::Persistent(Persistent { time_ns: now_ns() }))?;
        self.is_closed = true;
        Ok(self.journal_path())
    }

    /// Whether the journal still is where others find it. Without it, nothing takes back what is changed
    /// if this process is killed: close the session then.
    pub fn has_journal(&self) -> bool {
        self.file.is_in_place()
    }

    /// Restores everything and removes the journal. If something could not be restored (see the
    /// report's errors), the journal stays for `evenkeel undo`.
    pub fn close(mut self) -> UndoReport {
        self.close_once()
    }

    fn close_once(&mut self) -> UndoReport {
        self.is_closed = true;
        let mut report = self.restore_all();
        if report.errors.is_empty()
            && let Err(error) = self.file.remove()
        {
            report.add_error(Some(self.file.path()), None, format!("cannot remove it: {error}"));
        }
        report
    }

    /// Writes an entry that must be in the journal before its change is made.
    pub(crate) fn write(&mut self, entry: Entry) -> Result<(), JournalError> {
        if !self.is_kept {
            self.is_kept = self.directory.as_ref().is_none_or(keep_from_ageing);
        }
        self.file.append(&entry)?;
        self.state.apply(&entry);
        Ok(())
    }

    /// Writes an entry for a change that is undone already, and applies it even if it cannot be
    /// written. Without the entry, an undo looks at the thread once more, finds its own mask, and leaves
    /// it alone.
    pub(crate) fn write_or_warn(&mut self, entry: Entry) {
        if let Err(error) = self.file.append(&entry) {
            tracing::warn!(%error, "a change was undone, but this is not in the journal");
        }
        self.state.apply(&entry);
    }

    pub(crate) fn compact_if_large(&mut self) {
        if !self.file.wants_compaction() {
            return;
        }
        let mut entries = vec![self.header.clone()];
        entries.extend(self.state.compact(now_ns()));
        if let Err(error) = self.file.replace(&entries) {
            tracing::warn!(%error, "the journal could not be compacted; it goes on growing");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_closed {
            self.close_once();
        }
    }
}
