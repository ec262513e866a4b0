//! Changes that outlive their writer (`evenkeel irq once`): the writer marks its journal as its last
//! act, and leaves it ([`crate::Session::persist`]). No start of evenkeel takes them back, only a user's
//! own undo ([`crate::UndoOptions::persistent`]), or a reboot, which undoes everything.
//!
//! Such changes can lie upon each other, each in a journal of its own: what the later one notes as the
//! value before is what the earlier one set. So journals are undone in the opposite order of their
//! writers' starts, and not below the changes of a writer that lives.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::affinity;
use crate::device;
use crate::entry::{Entry, Line, Pin, Setting, Table, parse_entries};
use crate::file::writer_of;
use crate::state::JournalState;
use crate::validity::find_mismatch;

/// What stands although its writers have ended, and was changed by no other process since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Interrupt lines: `set` is what each has now, `before` what it had before all these changes.
    pub lines: Vec<Line>,
    /// RSS indirection tables, the same.
    pub tables: Vec<Table>,
    /// Settings, the same.
    pub settings: Vec<Setting>,
    /// Threads.
    pub pins: Vec<Pin>,
}

impl Standing {
    /// What stands by the journals below `dir`, as [`crate::undo()`] finds them. A journal that cannot
    /// be read is left out.
    pub fn read(dir: &Path) -> Self {
        let mut standing = Self::default();
        for path in newest_first(&dir.join("journal")).into_iter().rev() {
            let Some(state) = state_of(&path).filter(JournalState::is_persistent) else { continue };
            state.lines().iter().for_each(|line| standing.add(line));
            state.tables().iter().for_each(|table| standing.add_table(table));
            state.settings().iter().for_each(|setting| standing.add_setting(setting));
            standing.pins.extend(state.pinned().cloned());
        }
        standing.lines.retain(Line::is_as_set);
        standing.tables.retain(Table::is_as_set);
        standing.settings.retain(Setting::is_as_set);
        // As a user finds them: their devices may have been renamed.
        for setting in &mut standing.settings {
            if let Ok(Some(file)) = setting.present_file() {
                setting.file = file;
            }
        }
        let is_as_set = |pin: &Pin| affinity::get(pin.task.tid).is_ok_and(|mask| mask == pin.set);
        standing.pins.retain(|pin| pin.task.is_alive() && is_as_set(pin));
        standing
    }

    /// Adds a later change of a line.
    fn add(&mut self, line: &Line) {
        let is_it = |known: &Line| known.root == line.root && known.number == line.number;
        let mut added = line.clone();
        if let Some(place) = self.lines.iter().position(is_it) {
            let earlier = self.lines.remove(place);
            if earlier.name == added.name && earlier.set == added.before {
                added.before = earlier.before;
            }
        }
        self.lines.push(added);
    }

    /// Adds a later change of a table.
    fn add_table(&mut self, table: &Table) {
        let is_it = |known: &Table| {
            known.root == table.root && known.net_ns == table.net_ns && known.index == table.index
        };
        let mut added = table.clone();
        if let Some(place) = self.tables.iter().position(is_it) {
            let earlier = self.tables.remove(place);
            if earlier.set == added.before {
                added.before = earlier.before;
            }
        }
        self.tables.push(added);
    }

    /// Adds a later change of a setting.
    fn add_setting(&mut self, setting: &Setting) {
        let is_it = |known: &Setting| {
            known.net_ns == setting.net_ns && known.is_same(&setting.file, setting.index)
        };
        let mut added = setting.clone();
        if let Some(place) = self.settings.iter().position(is_it) {
            let earlier = self.settings.remove(place);
            if earlier.set == added.before {
                added.before = earlier.before;
            }
        }
        self.settings.push(added);
    }
}

/// The journals in a directory, those of the writers that were started last first.
pub(crate) fn newest_first(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let start = |path: &PathBuf| writer_of(path).map(|writer| writer.start_time_ticks);
    paths.sort_by_cached_key(|path| (std::cmp::Reverse(start(path)), path.clone()));
    paths
}

/// Of these journals, the first one by a writer that changed something, too, that this state holds.
pub(crate) fn find_above<'a>(journals: &'a [PathBuf], state: &JournalState) -> Option<&'a PathBuf> {
    let held = places(state);
    journals.iter().find(|path| {
        state_of(path).is_some_and(|above| places(&above).intersection(&held).next().is_some())
    })
}

/// What this state holds: lines and settings by their files; what belongs to a network device by the
/// device's number, since its name may be another device's by now.
fn places(state: &JournalState) -> BTreeSet<(PathBuf, String)> {
    let by_number = |index: u32| format!("number {index}");
    let lines = state.lines().iter().map(|line| (line.file(), String::new()));
    let tables = state.tables().iter().map(|table| (table.root.clone(), by_number(table.index)));
    let settings = state.settings().iter().map(|setting| match setting.index {
        Some(index) => {
            let (devices, below) = device::without_name(&setting.file);
            (devices.join(below), by_number(index))
        }
        None => (setting.file.clone(), String::new()),
    });
    lines.chain(tables).chain(settings).collect()
}

/// What a journal adds up to, if it is valid here.
fn state_of(path: &Path) -> Option<JournalState> {
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        return None;
    }
    let (entries, _) = parse_entries(&fs::read(path).ok()?, |_, _| {});
    match entries.first() {
        Some(Entry::Header(header)) if find_mismatch(path, header).is_none() => {
            Some(JournalState::of_dead_writer(header, &entries))
        }
        _ => None,
    }
}
