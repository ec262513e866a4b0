//! A journal on disk. It appears under its name with its header in it; each entry is appended by one
//! write(2); it is compacted by writing a new file and renaming it. Writer and undo lock it by
//! flock(2).
//!
//! There is no fsync: /run is in memory, and the boot id in the header voids a journal that outlives a
//! reboot.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::entry::Entry;
use crate::failpoint;
use crate::task::{TaskError, TaskRef};

/// A journal is compacted when it has grown by this many bytes since the last time, by default.
const COMPACT_BYTES: u64 = 512 * 1024;

/// A journal never grows beyond this many bytes.
pub(crate) const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// How long to wait for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no journal. Without one nothing is changed: observe only.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The directory cannot be created, or another user could write to it.
    #[error("cannot keep a journal in {}: {why}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// This process already has a session in that directory.
    #[error(
        "{} exists: a process has at most one session in a directory; close the other one first",
        .path.display()
    )]
    AlreadyOpen {
        /// The file.
        path: PathBuf,
    },
    /// Creating, writing or renaming failed (full, read-only, ...).
    #[error(
        "cannot write the journal {}: {source}; no CPU affinity is changed without it: make room there \
         or make it writable",
        .path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process removed it.
    #[error(
        "the journal {} was removed while in use; no CPU affinity is changed without it: start again",
        .path.display()
    )]
    Removed {
        /// The file.
        path: PathBuf,
    },
    /// It would exceed its largest size: 64 MiB, or RLIMIT_FSIZE if that is less.
    #[error(
        "the journal {} may not grow beyond {limit_bytes} bytes; no CPU affinity is changed without it: \
         raise `ulimit -f` or balance fewer threads",
        .path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// That size, in bytes.
        limit_bytes: u64,
    },
    /// Another process has held the lock for 10 s.
    #[error(
        "the journal {} stays locked by another process: end it (see: fuser {})",
        .path.display(),
        .path.display()
    )]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// /proc does not identify this process.
    #[error("cannot identify the process that writes the journal: {0}")]
    Identity(#[from] TaskError),
    /// The boot id or a namespace cannot be read.
    #[error(
        "cannot tell for which boot and namespaces the journal holds: {}: {source}; is /proc mounted?",
        .path.display()
    )]
    Validity {
        /// What was read.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// The open journal of this process.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    file: File,
    /// Its length after the last compaction.
    base_bytes: u64,
    /// How far it may grow from there before it is compacted.
    compact_bytes: u64,
}

impl JournalFile {
    /// Creates the journal of `writer`, with its header.
    pub fn create(
        dir: &Path,
        writer: &TaskRef,
        header: &Entry,
        compact_bytes: Option<u64>,
    ) -> Result<Self, JournalError> {
        let path = dir.join(file_name(writer));
        if path.symlink_metadata().is_ok() {
            return Err(JournalError::AlreadyOpen { path });
        }
        let file = write_new(&path, &encode(&path, header)?)?;
        let base_bytes = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        let compact_bytes = compact_bytes.unwrap_or(COMPACT_BYTES);
        Ok(Self { path, file, base_bytes, compact_bytes })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it still is where it was created.
    pub fn is_in_place(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| is_same_file(&self.path, &meta))
    }

    /// Appends an entry. If this returns an error, the file is as before.
    pub fn append(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let line = encode(&self.path, entry)?;
        let _lock = Lock::take(&self.file, &self.path)?;
        let fail = |source| JournalError::Write { path: self.path.clone(), source };
        let meta = self.file.metadata().map_err(fail)?;
        if meta.nlink() == 0 || !is_same_file(&self.path, &meta) {
            return Err(JournalError::Removed { path: self.path.clone() });
        }
        // The kernel answers a write beyond RLIMIT_FSIZE by SIGXFSZ, which ends the process.
        let limit_bytes = MAX_BYTES.min(file_size_limit());
        if meta.len() + line.len() as u64 > limit_bytes {
            return Err(JournalError::Full { path: self.path.clone(), limit_bytes });
        }
        let written = (&self.file).write(line.as_bytes());
        failpoint::hit("journal line");
        match written {
            Ok(n) if n == line.len() => Ok(()),
            result => {
                // Remove a partial line, so that the next entry starts on a line of its own.
                let _ = self.file.set_len(meta.len());
                // A file system that writes only a part of a line is full.
                let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                Err(fail(result.err().unwrap_or(full)))
            }
        }
    }

    /// Whether it has grown enough to be compacted.
    pub fn wants_compaction(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.len() > self.base_bytes + self.compact_bytes)
    }

    /// Replaces all entries by these.
    pub fn replace(&mut self, entries: &[Entry]) -> Result<(), JournalError> {
        let mut text = String::new();
        for entry in entries {
            text.push_str(&encode(&self.path, entry)?);
        }
        let lock = Lock::take(&self.file, &self.path)?;
        if !self.is_in_place() {
            return Err(JournalError::Removed { path: self.path.clone() });
        }
        let file = write_new(&self.path, &text)?;
        drop(lock);
        self.file = file;
        self.base_bytes = text.len() as u64;
        Ok(())
    }

    /// Removes it, if the path still names this file.
    pub fn remove(&self) -> std::io::Result<()> {
        if self.is_in_place() { remove_journal(&self.path) } else { Ok(()) }
    }
}

/// `PID-STARTTIME.jsonl`.
pub(crate) fn file_name(writer: &TaskRef) -> String {
    format!("{}-{}.jsonl", writer.tgid, writer.start_time_ticks)
}

/// The writer that a journal's name gives, `PID-STARTTIME.jsonl`; `None` for any other name.
pub fn writer_of(path: &Path) -> Option<TaskRef> {
    let (pid, start) = path.file_stem()?.to_str()?.split_once('-')?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
    Some(TaskRef { tid: pid, tgid: pid, start_time_ticks: start.parse().ok()? })
}

/// Removes a journal.
pub(crate) fn remove_journal(path: &Path) -> std::io::Result<()> {
    let result = std::fs::remove_file(path);
    failpoint::hit("journal removed");
    result
}

/// Appends an entry to the journal of another writer, which the caller has locked.
pub(crate) fn append_locked(file: &File, entry: &Entry) -> std::io::Result<()> {
    let line = entry.encode()?;
    let len = file.metadata()?.len();
    if len + line.len() as u64 > file_size_limit() {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    // If the last line is torn, this entry must not become a part of it.
    let mut last = [b'\n'];
    if len > 0 {
        file.read_exact_at(&mut last, len - 1)?;
    }
    let line = if last == [b'\n'] { line } else { format!("\n{line}") };
    let mut writer: &File = file;
    let written = writer.write(line.as_bytes());
    failpoint::hit("journal line");
    if written? != line.len() {
        return Err(std::io::Error::from_raw_os_error(libc::ENOSPC));
    }
    Ok(())
}

fn encode(path: &Path, entry: &Entry) -> Result<String, JournalError> {
    entry
        .encode()
        .map_err(|error| JournalError::Write { path: path.to_owned(), source: error.into() })
}

/// Writes `text` to a temporary file and renames that to `path`: whole or not at all.
fn write_new(path: &Path, text: &str) -> Result<File, JournalError> {
    let limit_bytes = MAX_BYTES.min(file_size_limit());
    if text.len() as u64 > limit_bytes {
        return Err(JournalError::Full { path: path.to_owned(), limit_bytes });
    }
    let temporary = path.with_extension("tmp");
    let attempt = || {
        // Left by an earlier attempt of this process: no other process uses this name.
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&temporary)?;
        file.write_all(text.as_bytes())?;
        failpoint::hit("temporary journal");
        std::fs::rename(&temporary, path)?;
        failpoint::hit("journal renamed");
        Ok(file)
    };
    attempt().map_err(|source| {
        let _ = std::fs::remove_file(&temporary);
        JournalError::Write { path: path.to_owned(), source }
    })
}

fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel fills the one rlimit that the pointer names; on failure it stays as is.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

/// Whether `path` still names the file of `meta`.
pub(crate) fn is_same_file(path: &Path, meta: &std::fs::Metadata) -> bool {
    path.symlink_metadata().is_ok_and(|now| (now.dev(), now.ino()) == (meta.dev(), meta.ino()))
}

/// An exclusive flock(2) on an open file, released when dropped.
pub(crate) struct Lock<'a>(&'a File);

impl<'a> Lock<'a> {
    /// Waits for the lock, for at most 10 s: its holder may be stopped.
    pub fn take(file: &'a File, path: &Path) -> Result<Self, JournalError> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(std::fs::TryLockError::WouldBlock) => {}
                Err(std::fs::TryLockError::Error(source)) => {
                    return Err(JournalError::Write { path: path.to_owned(), source });
                }
            }
            if Instant::now() >= deadline {
                return Err(JournalError::Locked { path: path.to_owned() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}
