//! Taking everything back: from the books of a running session, or from the journals of those
//! that died. Doing it twice, or twice at a time, does no more than doing it once.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use evenkeel_machine::CpuSet;
use serde::Serialize;

use crate::adopter::adopter;
use crate::affinity::{self, AffinityError};
use crate::cpuset::{effective_cpuset, mask_in_cpuset};
use crate::directory::{check, own_uid};
use crate::file::{JournalError, Lock, MAX_BYTES, append_locked, is_same, remove};
use crate::ledger::{Claim, Ledger};
use crate::record::{Closed, Header, MAX_LINE_BYTES, Record, VERSION};
use crate::setting::{self, KeptSetting};
use crate::task::{Processes, TaskRef, all_threads, now_ns};

/// Damaged lines that are listed; more are counted.
const MAX_LISTED_DAMAGE: usize = 100;

/// Damaged lines that [`undo_earlier`] names; `evenkeel undo` names more.
const LOGGED_DAMAGE: usize = 3;

/// Sweeps for heirs of a pin: a thread that is being forked while one runs is found by the next.
const MAX_SWEEPS: usize = 5;

/// What was taken back and what was not.
#[derive(Debug, Clone, Default, Serialize)]
pub struct UndoReport {
    /// Threads that we placed and that have again what they had.
    pub restored: Vec<TaskRef>,
    /// Threads that inherited a pin and were freed.
    pub freed: Vec<TaskRef>,
    /// Threads that somebody else gave another mask since: left as they are.
    pub kept: Vec<Kept>,
    /// Threads that had their own mask already.
    pub unchanged: Vec<TaskRef>,
    /// Threads that ended.
    pub gone: Vec<TaskRef>,
    /// Knobs that say again what they said before.
    pub turned_back: Vec<PathBuf>,
    /// Knobs that somebody else has turned since: left as they are.
    pub kept_settings: Vec<KeptSetting>,
    /// Journals of another boot (removed) or another name space or version (left alone).
    pub foreign: Vec<Foreign>,
    /// Journals whose writer is alive: left to it.
    pub live: Vec<PathBuf>,
    /// Damaged lines, the first of them.
    pub damaged: Vec<Damage>,
    /// How many lines are damaged.
    pub damaged_lines: u64,
    /// What could not be done.
    pub errors: Vec<UndoError>,
}

/// A thread that somebody else gave another mask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// The thread.
    pub task: TaskRef,
    /// Its mask.
    pub found: CpuSet,
}

/// A journal that is not valid here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Foreign {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub why: String,
    /// Whether it was removed.
    pub removed: bool,
}

/// A line that cannot be believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}:{line}: this line of the journal is damaged and was skipped: {why}", .path.display())]
pub struct Damage {
    /// The file; where it is kept now, if it was renamed.
    pub path: PathBuf,
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong.
    pub why: String,
}

/// Something that could not be taken back or cleared away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}{}{why}", .path.as_ref().map(|path| format!("{}: ", path.display())).unwrap_or_default(), .task.map(|task| format!("{task}: ")).unwrap_or_default())]
pub struct UndoError {
    /// The journal, if it is about one.
    pub path: Option<PathBuf>,
    /// The thread, if it is about one.
    pub task: Option<TaskRef>,
    /// What and why, and what to do.
    pub why: String,
}

/// How to undo.
#[derive(Debug, Clone, Copy, Default)]
pub struct UndoOptions {
    /// Also take back what living sessions did; they will see it and let go of these threads.
    pub force: bool,
}

impl UndoReport {
    /// Whether nothing is left that somebody should look at.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty() && self.damaged_lines == 0
    }

    /// Adds another one.
    pub fn merge(&mut self, other: Self) {
        self.restored.extend(other.restored);
        self.freed.extend(other.freed);
        self.kept.extend(other.kept);
        self.unchanged.extend(other.unchanged);
        self.gone.extend(other.gone);
        self.turned_back.extend(other.turned_back);
        self.kept_settings.extend(other.kept_settings);
        self.foreign.extend(other.foreign);
        self.live.extend(other.live);
        self.damaged.extend(other.damaged);
        self.damaged_lines += other.damaged_lines;
        self.errors.extend(other.errors);
    }

    pub(crate) fn error(&mut self, path: Option<&Path>, task: Option<TaskRef>, why: String) {
        self.errors.push(UndoError { path: path.map(Path::to_owned), task, why });
    }

    fn damage(&mut self, path: &Path, line: u64, why: String) {
        self.damaged_lines += 1;
        if self.damaged.len() < MAX_LISTED_DAMAGE {
            self.damaged.push(Damage { path: path.to_owned(), line, why });
        }
    }
}

/// What came of giving one thread its mask back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Restored,
    Unchanged,
    Kept(CpuSet),
    Gone,
}

/// Gives one thread back what it had, if it still carries what we wrote.
pub(crate) fn settle(
    ledger: &Ledger,
    task: &TaskRef,
    processes: &mut Processes,
) -> Result<Outcome, AffinityError> {
    let mut claim = Claim::Unknown;
    let mut current = CpuSet::new();
    // Twice: see Session::look.
    for _ in 0..2 {
        let effective;
        (current, effective) = match mask_in_cpuset(task.tid) {
            Err(AffinityError::Gone { .. }) => return Ok(Outcome::Gone),
            result => result?,
        };
        claim = ledger.claim(task, &current, &effective, processes);
        if claim != Claim::Foreign {
            break;
        }
    }
    // What was read was the thread's own if it is still the same now.
    if !task.is_alive() {
        return Ok(Outcome::Gone);
    }
    match claim {
        Claim::Ours(original) => match original.give_back(task.tid) {
            Err(AffinityError::Gone { .. }) => Ok(Outcome::Gone),
            result => result.map(|()| Outcome::Restored),
        },
        Claim::AsBefore => Ok(Outcome::Unchanged),
        Claim::Foreign | Claim::Unknown => Ok(Outcome::Kept(current)),
    }
}

/// Takes back all that a ledger holds; `written` gets the lines that say so.
pub(crate) fn take_back(ledger: &mut Ledger, written: &mut dyn FnMut(&Record)) -> UndoReport {
    let mut report = UndoReport::default();
    let mut processes = Processes::default();
    for pin in ledger.pinned() {
        let task = pin.task;
        let closed = Closed { id: pin.id, time_ns: now_ns() };
        let mut record = Record::Restored(closed);
        match settle(ledger, &task, &mut processes) {
            Ok(Outcome::Restored) => report.restored.push(task),
            Ok(Outcome::Unchanged) => report.unchanged.push(task),
            Ok(Outcome::Gone) => {
                report.gone.push(task);
                // Kept on the books for the sweep: see Ledger::heir_by_exec.
                continue;
            }
            Ok(Outcome::Kept(found)) => {
                report.kept.push(Kept { task, found });
                record = Record::Yielded(closed);
            }
            Err(error) => {
                report.error(None, Some(task), error.to_string());
                continue;
            }
        }
        written(&record);
        ledger.apply(&record);
    }
    for _ in 0..MAX_SWEEPS {
        if free_heirs(ledger, &mut report) == 0 {
            break;
        }
    }
    setting::turn_back_all(ledger, written, &mut report);
    report
}

/// Frees every thread on the system that inherited a pin; how many were found.
pub(crate) fn free_heirs(ledger: &mut Ledger, report: &mut UndoReport) -> usize {
    if ledger.all_held().next().is_none() {
        return 0;
    }
    let mut candidates: Vec<(TaskRef, CpuSet)> = all_threads()
        .filter_map(|(tgid, tid)| {
            let mask = affinity::get(tid).ok()?;
            let task = ledger.has_set(&mask).then(|| TaskRef::in_process(tgid, tid).ok())??;
            Some((task, mask))
        })
        .collect();
    // Oldest first: an heir's children are known by their parent.
    candidates.sort_by_key(|(task, _)| (task.start_time_ticks, task.tid));
    let mut processes = Processes::default();
    let mut freed = 0;
    for (task, mask) in candidates {
        let is_known = ledger.entry(&task).is_some();
        let original = if is_known {
            ledger.heir_by_exec(&task, &mask)
        } else {
            ledger.heir(&task, &mask, &mut processes)
        };
        let Some(original) = original else { continue };
        if original.shown_in(&effective_cpuset(task.tid)) == mask || !task.is_alive() {
            continue;
        }
        if let Some(process) = processes.get(task.tgid) {
            let process =
                TaskRef { tid: task.tgid, tgid: task.tgid, start_time_ticks: process.start_ticks };
            ledger.note_heir(&process, &mask, &original, task.start_time_ticks);
        }
        match original.give_back(task.tid) {
            Ok(()) => {
                freed += 1;
                report.freed.push(task);
            }
            Err(AffinityError::Gone { .. }) => {}
            Err(error) => {
                let error = UndoError { path: None, task: Some(task), why: error.to_string() };
                if !report.errors.contains(&error) {
                    report.errors.push(error);
                }
            }
        }
    }
    freed
}

/// Who writes, and where it is valid.
pub(crate) fn header_of_writer(command: Vec<String>) -> Result<Header, JournalError> {
    let here = Here::read()?;
    Ok(Header {
        version: VERSION,
        boot_id: here.boot_id,
        pid_ns: here.pid_ns,
        time_ns: here.time_ns,
        writer: TaskRef::own_process()?,
        adopter: adopter(),
        command,
    })
}

/// What makes a journal valid.
struct Here {
    boot_id: String,
    pid_ns: u64,
    time_ns: u64,
}

impl Here {
    fn read() -> Result<Self, JournalError> {
        let fail = |path: &str| {
            let path = PathBuf::from(path);
            move |source| JournalError::Validity { path, source }
        };
        let boot = "/proc/sys/kernel/random/boot_id";
        let pid_ns = "/proc/self/ns/pid";
        Ok(Self {
            boot_id: std::fs::read_to_string(boot).map_err(fail(boot))?.trim().to_owned(),
            pid_ns: std::fs::metadata(pid_ns).map_err(fail(pid_ns))?.ino(),
            // Linux before 5.6 has only one.
            time_ns: std::fs::metadata("/proc/self/ns/time").map_or(0, |meta| meta.ino()),
        })
    }
}

/// Takes back what every journal below `dir` says whose writer has ended, and removes these
/// journals. `dir` is [`crate::runtime_dir`] or one of a test's own; no directory, nothing to do.
pub fn undo(dir: &Path, options: UndoOptions) -> UndoReport {
    let mut report = UndoReport::default();
    let dir = dir.join("journal");
    if matches!(dir.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
    {
        return report;
    }
    if let Err(why) = check(&dir) {
        report.error(Some(&dir), None, why);
        return report;
    }
    let mut paths: Vec<PathBuf> = match std::fs::read_dir(&dir) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) => {
            report.error(Some(&dir), None, error.to_string());
            return report;
        }
    };
    paths.sort();
    for path in paths {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") => report.merge(undo_file(&path, options)),
            // Left by a writer that was killed while it made its journal or made it smaller.
            Some("tmp") if writer_of(&path).is_some_and(|writer| !writer.is_alive()) => {
                if let Err(error) = remove(&path)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    report.error(Some(&path), None, format!("cannot remove it: {error}"));
                }
            }
            _ => {}
        }
    }
    report
}

/// Takes back what an earlier process that was killed has left below `dir`, and logs what it could
/// not.
pub fn undo_earlier(dir: &Path) {
    let report = undo(dir, UndoOptions::default());
    for damage in report.damaged.iter().take(LOGGED_DAMAGE) {
        tracing::warn!("{damage}");
    }
    for foreign in report.foreign {
        tracing::info!("{}: {}", foreign.path.display(), foreign.why);
    }
    for error in report.errors {
        tracing::warn!("{error}");
    }
}

/// Takes back what one journal says, if its writer has ended, and removes it.
pub fn undo_file(path: &Path, options: UndoOptions) -> UndoReport {
    undo_one(path, if options.force { Mode::Force } else { Mode::DeadOnly })
}

/// Which journals are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Those whose writer has ended.
    DeadOnly,
    /// All.
    Force,
    /// The writer's end was seen; its process may not be cleared away yet.
    WriterIsGone,
}

/// See [`undo_file`].
pub(crate) fn undo_one(path: &Path, mode: Mode) -> UndoReport {
    let mut report = UndoReport::default();
    // A journal may be replaced (compaction) or removed (another undo) while we wait for it.
    for _ in 0..10 {
        let file = match open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return report,
            Err(error) => {
                report.error(Some(path), None, format!("cannot open it: {error}"));
                return report;
            }
        };
        let lock = match Lock::take(&file, path) {
            Ok(lock) => lock,
            Err(error) => {
                report.error(Some(path), None, error.to_string());
                return report;
            }
        };
        let meta = file.metadata();
        if meta.as_ref().is_ok_and(|meta| is_same(path, meta)) {
            if let Err(why) = undo_locked(path, &file, mode, &mut report) {
                report.error(Some(path), None, why);
            }
            return report;
        }
        drop(lock);
    }
    report.error(Some(path), None, "it changes all the time; try again".into());
    report
}

fn open(path: &Path) -> std::io::Result<File> {
    // No symbolic link, and no waiting for the other end of a pipe that somebody put there.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let writable = OpenOptions::new().read(true).append(true).custom_flags(flags).open(path);
    match writable {
        // A mask can be given back even if that cannot be noted.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => {
            OpenOptions::new().read(true).custom_flags(flags).open(path)
        }
        result => result,
    }
}

/// The writer that a journal's name says, `PID-STARTTIME.jsonl`.
pub fn writer_of(path: &Path) -> Option<TaskRef> {
    let (pid, start) = path.file_stem()?.to_str()?.split_once('-')?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
    Some(TaskRef { tid: pid, tgid: pid, start_time_ticks: start.parse().ok()? })
}

fn undo_locked(
    path: &Path,
    file: &File,
    mode: Mode,
    report: &mut UndoReport,
) -> Result<(), String> {
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() || meta.uid() != own_uid() {
        return Err("it is no file of ours and is left alone; remove it".into());
    }
    if meta.len() > MAX_BYTES {
        return Err(format!(
            "it has {} bytes, which no journal has; nothing in it is believed: remove it",
            meta.len()
        ));
    }
    let mut bytes = Vec::new();
    (&mut &*file).take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let name_says_alive = writer_of(path).is_some_and(|writer| writer.is_alive());
    if mode == Mode::DeadOnly && name_says_alive {
        report.live.push(path.to_owned());
        return Ok(());
    }
    if bytes.is_empty() {
        return clear(path);
    }

    let (records, has_damage) = parse(path, &bytes, report);
    let Some(Record::Header(header)) = records.first() else {
        // Without a header nobody knows on which boot these process numbers meant whom.
        keep_evidence(path, report)?;
        return Err(
            "it has no valid first line, so nothing in it can be trusted; check CPU affinities by hand (taskset -p PID)"
                .into(),
        );
    };
    if let Some(foreign) = foreign(path, header) {
        let removed = foreign.removed;
        report.foreign.push(foreign);
        return if removed { clear(path) } else { Ok(()) };
    }
    let is_alive = header.writer.is_alive() && mode != Mode::WriterIsGone;
    if is_alive && mode == Mode::DeadOnly {
        report.live.push(path.to_owned());
        return Ok(());
    }

    let mut ledger = Ledger::of_dead_writer(header, &records);
    let before = report.errors.len();
    let part = take_back(&mut ledger, &mut |record| {
        if let Err(error) = append_locked(file, record) {
            tracing::debug!(path = %path.display(), %error, "cannot note what was taken back");
        }
    });
    report.merge(part);
    if report.errors.len() > before || is_alive {
        // Something is left to do, or somebody writes on.
        return Ok(());
    }
    if has_damage { keep_evidence(path, report) } else { clear(path) }
}

/// The lines that can be believed, and whether any in the middle cannot. A last line without its
/// line feed is damage of a harmless kind: its affinity was never set.
fn parse(path: &Path, bytes: &[u8], report: &mut UndoReport) -> (Vec<Record>, bool) {
    let mut records = Vec::new();
    let mut has_damage = false;
    let ends_whole = bytes.ends_with(b"\n");
    let lines: Vec<&[u8]> =
        bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|b| *b == b'\n').collect();
    for (index, line) in lines.iter().enumerate() {
        let result = if line.len() > MAX_LINE_BYTES {
            Err("it is longer than any line of ours".to_owned())
        } else {
            Record::decode(line)
        };
        let is_first = index == 0;
        match result {
            Ok(Record::Header(_)) if !is_first => {
                report.damage(path, index as u64 + 1, "a second header".into());
                has_damage = true;
            }
            Ok(record) => records.push(record),
            Err(why) => {
                report.damage(path, index as u64 + 1, why);
                has_damage |= is_first || ends_whole || index + 1 < lines.len();
                if is_first {
                    break;
                }
            }
        }
    }
    (records, has_damage)
}

fn foreign(path: &Path, header: &Header) -> Option<Foreign> {
    let found = |why: String, removed| Some(Foreign { path: path.to_owned(), why, removed });
    let here = match Here::read() {
        Ok(here) => here,
        Err(error) => return found(error.to_string(), false),
    };
    if header.version != VERSION {
        let why = format!(
            "its format is version {}, ours is {VERSION}: undo it with the evenkeel that wrote it",
            header.version
        );
        found(why, false)
    } else if header.boot_id != here.boot_id {
        found("it is of an earlier boot: its threads are gone".into(), true)
    } else if header.pid_ns != here.pid_ns {
        found("it is of another PID name space: run `evenkeel undo` there".into(), false)
    } else if header.time_ns != here.time_ns {
        found("it is of another time name space: run `evenkeel undo` there".into(), false)
    } else {
        None
    }
}

fn clear(path: &Path) -> Result<(), String> {
    // Left by a writer that was killed while it made its journal smaller.
    let _ = std::fs::remove_file(path.with_extension("tmp"));
    remove(path).map_err(|error| format!("all is taken back, but cannot remove it: {error}"))
}

/// Out of the way, so that it is reported once, but there for whoever wants to know.
fn keep_evidence(path: &Path, report: &mut UndoReport) -> Result<(), String> {
    let kept = path.with_extension("damaged");
    std::fs::rename(path, &kept)
        .map_err(|error| format!("cannot rename it to {}: {error}", kept.display()))?;
    for damage in report.damaged.iter_mut().filter(|damage| damage.path == path) {
        damage.path.clone_from(&kept);
    }
    Ok(())
}
