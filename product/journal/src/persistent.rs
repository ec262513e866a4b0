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
use crate::entry::{Entry, Line, Pin, parse_entries};
use crate::file::writer_of;
use crate::state::JournalState;
use crate::validity::find_mismatch;

/// What stands although its writers have ended, and was changed by no other process since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Interrupt lines: `set` is what each has now, `before` what it had before all these changes.
    pub lines: Vec<Line>,
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
            standing.pins.extend(state.pinned().cloned());
        }
        standing.lines.retain(Line::is_as_set);
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
}

/// The journals in a directory, those of the writers that were started last first.
pub(crate) fn newest_first(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let start = |path: &PathBuf| writer_of(path).map(|writer| writer.start_time_ticks);
    paths.sort_by_cached_key(|path| (std::cmp::Reverse(start(path)), path.clone()));
    paths
}

/// Of these journals, the first one whose writer changed a line, too, that this state holds.
pub(crate) fn find_above<'a>(journals: &'a [PathBuf], state: &JournalState) -> Option<&'a PathBuf> {
    let key = |line: &Line| (line.root.clone(), line.number);
    let held: BTreeSet<_> = state.lines().iter().map(key).collect();
    journals.iter().find(|path| {
        state_of(path)
            .is_some_and(|above| above.lines().iter().any(|line| held.contains(&key(line))))
    })
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
