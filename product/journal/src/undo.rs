//! Undo: restores what the journals of dead writers say, and what a session that ends still holds.
//!
//! A journal's undo ([`undo_one`]) goes like this:
//! 1. lock the journal, and make sure that it is a file of ours ([`undo_locked`]);
//! 2. leave it alone if its writer lives, if it is of another boot or namespace (`validity`), or if its
//!    changes are to outlive their writer and the undo is not meant for such (`persistent`);
//! 3. parse it; damaged lines are skipped and reported ([`parse_entries`]);
//! 4. replay it, and give every thread its own mask back, if the thread still has ours ([`restore_all`],
//!    by the rule in `claim`); free threads that inherited a mask; restore settings, lines and tables;
//! 5. append an entry for each thread that is done, so that an undo that is killed itself is completed
//!    by the next one;
//! 6. remove the journal, or rename it to `.damaged` if lines were skipped.
//!
//! An undo that runs twice, or twice at a time, does the same as one.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use evenkeel_machine::CpuSet;

use crate::affinity::{self, AffinityError};
use crate::claim::Claim;
use crate::cpuset::{effective_cpuset, mask_in_cpuset};
use crate::directory::{check_is_private, own_uid};
use crate::entry::{
    Ban, BanEnd, Entry, Line, LineEnd, Pin, PinEnd, Setting, SettingEnd, Table, TableEnd,
    parse_entries,
};
use crate::file::{Lock, MAX_BYTES, append_locked, is_same_file, remove_journal, writer_of};
use crate::persistent::{find_above, newest_first};
use crate::report::{Kept, KeptSetting, KeptTable, LiftedBan, UndoError, UndoReport};
use crate::setting::{RestoredSetting, SettingError};
use crate::state::JournalState;
use crate::stranger;
use crate::task::{Processes, TaskError, TaskRef, all_threads, now_ns};
use crate::validity::find_mismatch;

/// Damaged lines that [`undo_earlier`] logs; `evenkeel undo` names more.
const MAX_LOGGED_DAMAGE: usize = 3;

/// Sweeps for threads that inherited a mask: the next sweep finds a thread that is forked during one.
const MAX_SWEEPS: usize = 5;

/// How often threads are restored again that could not be read in time, and the pause before each time:
/// together longer than `evenkeel_control` pauses after a read that was late by accident.
const LATE_TRIES: usize = 4;
const LATE_PAUSE: Duration = Duration::from_millis(400);

/// How often an undo tries to lock a journal that is replaced or removed meanwhile.
const MAX_LOCK_TRIES: usize = 10;

/// How to undo.
#[derive(Debug, Clone, Copy, Default)]
pub struct UndoOptions {
    /// Also undo the journals of living sessions. These will see it, and let the threads go.
    pub force: bool,
    /// Also undo what is to outlive its writer ([`crate::Session::persist`]).
    pub persistent: bool,
}

/// Which journals are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Those of writers that have ended.
    DeadOnly,
    /// All.
    Force,
    /// This one: its writer's end was seen, even if its process still shows in /proc.
    WriterIsGone,
}

impl Mode {
    fn of(options: UndoOptions) -> Self {
        if options.force { Self::Force } else { Self::DeadOnly }
    }
}

/// Undoes and removes every journal of an ended writer below `dir`. `dir` is
/// [`crate::runtime_dir`], or a test's own; if it does not exist, there is nothing to undo.
///
/// What could not be done is in the report: see [`UndoReport::is_clean`].
pub fn undo(dir: &Path, options: UndoOptions) -> UndoReport {
    undo_all([dir], options)
}

/// The same below each of these directories.
pub fn undo_all<'a>(dirs: impl IntoIterator<Item = &'a Path>, options: UndoOptions) -> UndoReport {
    let mut report = UndoReport::default();
    dirs.into_iter().for_each(|dir| undo_below(dir, options, &mut report));
    report
}

fn undo_below(dir: &Path, options: UndoOptions, report: &mut UndoReport) {
    let dir = dir.join("journal");
    if matches!(dir.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
    {
        return;
    }
    if let Err(why) = check_is_private(&dir) {
        report.add_error(Some(&dir), None, why);
        return;
    }
    if let Err(error) = std::fs::read_dir(&dir) {
        report.add_error(Some(&dir), None, error.to_string());
        return;
    }
    for path in newest_first(&dir) {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") => undo_one(&path, Mode::of(options), options.persistent, report),
            // Left by a writer that was killed while it created or compacted its journal.
            Some("tmp") if writer_of(&path).is_some_and(|writer| !writer.is_alive()) => {
                if let Err(error) = remove_journal(&path)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    report.add_error(Some(&path), None, format!("cannot remove it: {error}"));
                }
            }
            _ => {}
        }
    }
}

/// The undo of a starting process: undoes what killed processes left below `dir`, and logs what could
/// not be done.
pub fn undo_earlier(dir: &Path) {
    let report = undo(dir, UndoOptions::default());
    for damage in report.damaged.iter().take(MAX_LOGGED_DAMAGE) {
        tracing::warn!("{damage}");
    }
    for foreign in report.foreign {
        tracing::info!("{}: {}", foreign.path.display(), foreign.why);
    }
    for error in report.errors {
        tracing::warn!("{error}");
    }
}

/// Undoes and removes one journal, if its writer has ended or `options` force it.
pub fn undo_file(path: &Path, options: UndoOptions) -> UndoReport {
    let mut report = UndoReport::default();
    undo_one(path, Mode::of(options), options.persistent, &mut report);
    report
}

/// Undoes the journal of a writer that was seen to end.
pub(crate) fn undo_of_ended_writer(path: &Path) -> UndoReport {
    let mut report = UndoReport::default();
    undo_one(path, Mode::WriterIsGone, false, &mut report);
    report
}

/// Undoes and removes one journal. See the file's head. `report` is of all journals until now.
fn undo_one(path: &Path, mode: Mode, persistent: bool, report: &mut UndoReport) {
    // While this waits for the lock, the journal may be replaced (compaction) or removed (another undo).
    for _ in 0..MAX_LOCK_TRIES {
        let file = match open_journal(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                report.add_error(Some(path), None, format!("cannot open it: {error}"));
                return;
            }
        };
        let lock = match Lock::take(&file, path) {
            Ok(lock) => lock,
            Err(error) => {
                report.add_error(Some(path), None, error.to_string());
                return;
            }
        };
        let meta = file.metadata();
        if meta.as_ref().is_ok_and(|meta| is_same_file(path, meta)) {
            if let Err(why) = undo_locked(path, &file, (mode, persistent), report) {
                report.add_error(Some(path), None, why);
            }
            return;
        }
        drop(lock);
    }
    report.add_error(Some(path), None, "it was replaced each time it was locked; try again".into());
}

fn open_journal(path: &Path) -> std::io::Result<File> {
    // Follow no symbolic link, and do not wait for the other end of a pipe that was planted there.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let writable = OpenOptions::new().read(true).append(true).custom_flags(flags).open(path);
    match writable {
        // A mask can be restored even if no entry can be appended.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => {
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        }
        result => result,
    }
}

fn undo_locked(
    path: &Path,
    file: &File,
    (mode, persistent): (Mode, bool),
    report: &mut UndoReport,
) -> Result<(), String> {
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() || meta.uid() != own_uid() {
        return Err("it is not a file of ours and is left alone; remove it".into());
    }
    if meta.len() > MAX_BYTES {
        return Err(format!(
            "it has {} bytes, more than any journal; nothing in it is trusted: remove it",
            meta.len()
        ));
    }
    let mut bytes = Vec::new();
    (&mut &*file).take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let is_alive_by_name = writer_of(path).is_some_and(|writer| writer.is_alive());
    if mode == Mode::DeadOnly && is_alive_by_name {
        report.live.push(path.to_owned());
        return Ok(());
    }
    if bytes.is_empty() {
        return remove_with_temporary(path);
    }

    let note_damage = |line, why| report.add_damage(path, line, why);
    let (entries, has_damage) = parse_entries(&bytes, note_damage);
    let Some(Entry::Header(header)) = entries.first() else {
        // Without a header it is unknown for which boot and namespace these process numbers hold.
        rename_damaged(path, report)?;
        return Err(
            "it has no valid first line, so nothing in it can be trusted; check CPU affinities by hand \
             (taskset -p PID)"
                .into(),
        );
    };
    if let Some(foreign) = find_mismatch(path, header) {
        let removed = foreign.removed;
        report.foreign.push(foreign);
        return if removed { remove_with_temporary(path) } else { Ok(()) };
    }
    let is_alive = header.writer.is_alive() && mode != Mode::WriterIsGone;
    if is_alive && mode == Mode::DeadOnly {
        report.live.push(path.to_owned());
        return Ok(());
    }

    let mut state = JournalState::of_dead_writer(header, &entries);
    if state.is_persistent() {
        if !persistent {
            report.persistent.push(path.to_owned());
            return Ok(());
        }
        if let Some(above) = find_above(&report.live, &state) {
            return Err(format!(
                "its lines are moved by a living process, too ({}): end that first, then undo again",
                above.display()
            ));
        }
    }
    let errors_before = report.errors.len();
    let part = restore_all(&mut state, &mut |entry| {
        if let Err(error) = append_locked(file, entry) {
            tracing::debug!(path = %path.display(), %error, "cannot append what was restored");
        }
    });
    report.merge(part);
    if report.errors.len() > errors_before || is_alive {
        // Something is left to restore, or the writer goes on.
        return Ok(());
    }
    if has_damage { rename_damaged(path, report) } else { remove_with_temporary(path) }
}

fn remove_with_temporary(path: &Path) -> Result<(), String> {
    // Left by a writer that was killed while it compacted its journal.
    let _ = std::fs::remove_file(path.with_extension("tmp"));
    remove_journal(path).map_err(|error| {
        format!("everything is restored, but the journal cannot be removed: {error}")
    })
}

/// Renames a damaged journal: it is reported only once, and its owner can still read it.
fn rename_damaged(path: &Path, report: &mut UndoReport) -> Result<(), String> {
    let kept = path.with_extension("damaged");
    std::fs::rename(path, &kept)
        .map_err(|error| format!("cannot rename it to {}: {error}", kept.display()))?;
    for damage in report.damaged.iter_mut().filter(|damage| damage.path == path) {
        damage.path.clone_from(&kept);
    }
    Ok(())
}

/// What came of restoring one thread's mask.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has its own mask again.
    Restored,
    /// It had its own mask already.
    Unchanged,
    /// Another process gave it this mask: left as it is.
    Kept(CpuSet),
    /// It has ended.
    Gone,
}

/// Restores everything that a journal's state holds. `written` gets an entry for each change that is
/// undone. Used by a session that closes and by the undo of a dead writer's journal.
pub(crate) fn restore_all(state: &mut JournalState, written: &mut dyn FnMut(&Entry)) -> UndoReport {
    let mut report = restore_threads(state, written);
    for _ in 0..LATE_TRIES {
        if !std::mem::take(&mut report.is_late) {
            break;
        }
        std::thread::sleep(LATE_PAUSE);
        report.errors.clear();
        report.gone.clear();
        report.merge(restore_threads(state, written));
    }
    restore_settings(state, written, &mut report);
    restore_lines(state, written, &mut report);
    restore_tables(state, written, &mut report);
    // After the lines, which irqbalance may move again from then on.
    lift_bans(state, written, &mut report);
    report
}

fn restore_threads(state: &mut JournalState, written: &mut dyn FnMut(&Entry)) -> UndoReport {
    let mut report = UndoReport::default();
    let mut processes = Processes::default();
    let unconfirmed = state.unconfirmed_pin().cloned();
    for pin in state.pinned().cloned().collect::<Vec<Pin>>() {
        let task = pin.task;
        let end = PinEnd { id: pin.id, time_ns: now_ns() };
        let mut entry = Entry::Restored(end);
        match restore_thread(state, &task, &mut processes) {
            Ok(Outcome::Restored) => report.restored.push(task),
            Ok(Outcome::Unchanged) => report.unchanged.push(task),
            Ok(Outcome::Gone) => {
                report.gone.push(task);
                if unconfirmed.as_ref() == Some(&pin) {
                    report.freed.extend(stranger::free_stranger_of_dead_writer(state, &pin));
                }
                // Stays pinned in the state: free_all_inherited asks whether it lives on by exec.
                continue;
            }
            Ok(Outcome::Kept(found)) => {
                report.kept.push(Kept { task, found });
                entry = Entry::Yielded(end);
            }
            Err(error) => {
                report.is_late |= matches!(error, AffinityError::Transient { .. });
                report.add_error(None, Some(task), error.to_string());
                continue;
            }
        }
        written(&entry);
        state.apply(&entry);
    }
    for _ in 0..MAX_SWEEPS {
        if free_all_inherited(state, &mut report) == 0 {
            break;
        }
    }
    report
}

/// Restores one thread's own mask, if the thread still has the mask that we wrote.
pub(crate) fn restore_thread(
    state: &JournalState,
    task: &TaskRef,
    processes: &mut Processes,
) -> Result<Outcome, AffinityError> {
    let mut claim = Claim::Unknown;
    let mut current = CpuSet::new();
    // A second look, because the cpuset that was read may be older than the mask: that must not be
    // taken for a user's change.
    for _ in 0..2 {
        current = match affinity::get(task.tid) {
            Err(AffinityError::Gone { .. }) => return Ok(Outcome::Gone),
            result => result?,
        };
        if let Some(by_mask) = state.claim_by_mask(task, &current) {
            claim = by_mask;
            break;
        }
        let effective;
        (current, effective) = match mask_in_cpuset(task.tid) {
            Err(AffinityError::Gone { .. }) => return Ok(Outcome::Gone),
            result => result?,
        };
        claim = state.claim(task, &current, &effective, processes);
        if claim != Claim::Foreign {
            break;
        }
    }
    // If the thread is still the same now, what was read was its own.
    match task.check() {
        Err(AffinityError::Gone { .. }) => return Ok(Outcome::Gone),
        result => result?,
    }
    match claim {
        Claim::Ours(original) => match stranger::give_back(state, task, &original) {
            Err(AffinityError::Gone { .. }) => Ok(Outcome::Gone),
            result => result.map(|()| Outcome::Restored),
        },
        Claim::AsBefore => Ok(Outcome::Unchanged),
        Claim::Foreign | Claim::Unknown => Ok(Outcome::Kept(current)),
    }
}

/// Frees every thread of the system that inherited a mask of ours; returns how many it freed.
pub(crate) fn free_all_inherited(state: &mut JournalState, report: &mut UndoReport) -> usize {
    if !state.has_set_any_mask() {
        return 0;
    }
    let mut candidates: Vec<(TaskRef, CpuSet)> = Vec::new();
    for (tgid, tid) in all_threads() {
        let Ok(mask) = affinity::get(tid) else { continue };
        if !state.has_set_mask(&mask) {
            continue;
        }
        match TaskRef::in_process(tgid, tid) {
            Ok(task) => candidates.push((task, mask)),
            // It may have inherited the mask: the journal stays for another undo.
            Err(why @ TaskError::Late { .. }) => add_late(report, None, why.to_string()),
            Err(_) => {}
        }
    }
    // Oldest first: the children of a thread that inherited a mask are recognised by their parent.
    candidates.sort_by_key(|(task, _)| (task.start_time_ticks, task.tid));
    let mut processes = Processes::default();
    let mut freed = 0;
    for (task, mask) in candidates {
        let original = if state.tracked(&task).is_some() {
            state.find_inherited_by_exec(&task, &mask)
        } else {
            state.find_inherited(&task, &mask, &mut processes)
        };
        let Some(original) = original else {
            if std::mem::take(&mut processes.is_any_late) {
                let why = "it is not known now which process started it".to_owned();
                add_late(report, Some(task), why);
            }
            continue;
        };
        if original.shown_in(&effective_cpuset(task.tid)) == mask {
            continue;
        }
        match task.check() {
            Err(AffinityError::Gone { .. }) => continue,
            Err(why) => {
                add_late(report, Some(task), why.to_string());
                continue;
            }
            Ok(()) => {}
        }
        if let Some(process) = processes.get(task.tgid) {
            let process =
                TaskRef { tid: task.tgid, tgid: task.tgid, start_time_ticks: process.start_ticks };
            state.note_inherited(&process, &mask, &original, task.start_time_ticks);
        }
        match stranger::give_back(state, &task, &original) {
            Ok(()) => {
                freed += 1;
                report.freed.push(task);
            }
            Err(AffinityError::Gone { .. }) => {}
            Err(error) => add_once(report, Some(task), error.to_string()),
        }
    }
    freed
}

/// Adds that a thread may need an undo that is not possible now.
fn add_late(report: &mut UndoReport, task: Option<TaskRef>, why: String) {
    report.is_late = true;
    add_once(report, task, why);
}

/// Adds an error, which each sweep may find.
fn add_once(report: &mut UndoReport, task: Option<TaskRef>, why: String) {
    let error = UndoError { path: None, task, why };
    if !report.errors.contains(&error) {
        report.errors.push(error);
    }
}

/// Restores the settings, the last one that was changed first.
fn restore_settings(
    state: &mut JournalState,
    written: &mut dyn FnMut(&Entry),
    report: &mut UndoReport,
) {
    for setting in state.settings().iter().rev().cloned().collect::<Vec<Setting>>() {
        let file = setting.file.clone();
        if !setting.is_of_this_namespace() {
            let why = "it is of another network namespace: run `evenkeel undo` there".to_owned();
            report.add_error(Some(&file), None, why);
            continue;
        }
        // A user finds it by the name that its device has now.
        let present = setting.present_file().ok().flatten().unwrap_or_else(|| file.clone());
        if !note_restored(report, &present, setting.restore()) {
            continue;
        }
        let entry = Entry::SettingClosed(SettingEnd { file, time_ns: now_ns() });
        written(&entry);
        state.apply(&entry);
    }
}

/// Reports what came of restoring a file. Returns whether that is done.
fn note_restored(
    report: &mut UndoReport,
    file: &Path,
    restored: Result<RestoredSetting, SettingError>,
) -> bool {
    match restored {
        Ok(RestoredSetting::Restored) => report.restored_settings.push(file.to_owned()),
        Ok(RestoredSetting::Kept { found }) => {
            report.kept_settings.push(KeptSetting { file: file.to_owned(), found });
        }
        Ok(RestoredSetting::Gone | RestoredSetting::NotHeld) => {}
        Err(why) => {
            report.add_error(None, None, why.to_string());
            return false;
        }
    }
    true
}

/// Restores the affinities of interrupt lines.
fn restore_lines(
    state: &mut JournalState,
    written: &mut dyn FnMut(&Entry),
    report: &mut UndoReport,
) {
    for line in state.lines().iter().rev().cloned().collect::<Vec<Line>>() {
        if !note_restored(report, &line.file(), line.restore()) {
            continue;
        }
        let end = LineEnd { root: line.root, number: line.number, time_ns: now_ns() };
        let entry = Entry::LineClosed(end);
        written(&entry);
        state.apply(&entry);
    }
}

/// Restores the RSS indirection tables of network devices.
fn restore_tables(
    state: &mut JournalState,
    written: &mut dyn FnMut(&Entry),
    report: &mut UndoReport,
) {
    for table in state.tables().iter().rev().cloned().collect::<Vec<Table>>() {
        let device = table.device.clone();
        if !table.is_of_this_namespace() {
            let why = "its RSS indirection table is of another network namespace: run `evenkeel undo` \
                       there";
            report.add_error(None, None, format!("{device}: {why}"));
            continue;
        }
        match table.restore() {
            Ok(RestoredSetting::Restored) => report.restored_tables.push(device.clone()),
            Ok(RestoredSetting::Kept { found }) => {
                report.kept_tables.push(KeptTable { device: device.clone(), found });
            }
            Ok(RestoredSetting::Gone | RestoredSetting::NotHeld) => {}
            Err(why) => {
                report.add_error(None, None, why.to_string());
                continue;
            }
        }
        let end = TableEnd { root: table.root, device, time_ns: now_ns() };
        let entry = Entry::TableClosed(end);
        written(&entry);
        state.apply(&entry);
    }
}

/// Lets irqbalance move lines again.
fn lift_bans(state: &mut JournalState, written: &mut dyn FnMut(&Entry), report: &mut UndoReport) {
    for ban in state.bans().iter().rev().cloned().collect::<Vec<Ban>>() {
        let Ban { process, line, .. } = ban;
        match ban.lift() {
            Ok(true) => report.lifted_bans.push(LiftedBan { pid: process.tgid, line }),
            Ok(false) => {}
            Err(why) => {
                report.add_error(None, None, why.to_string());
                continue;
            }
        }
        let entry = Entry::BanClosed(BanEnd { process, line, time_ns: now_ns() });
        written(&entry);
        state.apply(&entry);
    }
}
