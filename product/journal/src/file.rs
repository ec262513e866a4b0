//! A journal on disk: created whole, appended to by one write a line, compacted by writing it anew
//! and renaming. Readers and writers take turns by flock(2).
//!
//! No fsync: /run lives in memory, and the boot id in the header voids what outlives a reboot.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::failpoint;
use crate::record::Record;
use crate::task::{TaskError, TaskRef};

/// A file that has grown by this since it was last compacted is compacted, if not told otherwise.
const COMPACT_BYTES: u64 = 512 * 1024;

/// A file never grows beyond this, compacted or not.
pub(crate) const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// How long to wait while somebody else works on the file.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Why a journal cannot be kept. Without one no affinity is changed: go on by observing only.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The directory cannot be had, or not safely.
    #[error("cannot keep a journal in {}: {why}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        why: String,
    },
    /// This process already has a session there.
    #[error("{} exists: one session a process and directory; close the other one first", .path.display())]
    AlreadyOpen {
        /// The file.
        path: PathBuf,
    },
    /// Creating, writing or renaming failed (full, read-only, ...).
    #[error("cannot write the journal {}: {source}; no CPU affinity is changed without it: make room there or make it writable", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Somebody deleted it.
    #[error("the journal {} was removed while in use; no CPU affinity is changed without it: start again", .path.display())]
    Removed {
        /// The file.
        path: PathBuf,
    },
    /// It is as large as it may become, by our limit or by RLIMIT_FSIZE.
    #[error("the journal {} may not grow beyond {limit_bytes} bytes; no CPU affinity is changed without it: raise `ulimit -f` or manage fewer threads", .path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit_bytes: u64,
    },
    /// Another process works on it and does not end.
    #[error("the journal {} stays locked by another process: end it (see: fuser {})", .path.display(), .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// /proc does not say who we are.
    #[error("cannot tell who writes the journal: {0}")]
    Identity(#[from] TaskError),
    /// The boot id or the name space cannot be read.
    #[error("cannot tell where the journal is valid: {}: {source}; is /proc mounted?", .path.display())]
    Validity {
        /// What was read.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// An open journal that belongs to this process.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    file: File,
    /// Length after the last compaction.
    base_bytes: u64,
    /// How much it may grow from there.
    compact_bytes: u64,
}

impl JournalFile {
    /// Creates the journal of a writer. It appears under its name with the header in it.
    pub fn create(
        dir: &Path,
        writer: &TaskRef,
        header: &Record,
        compact_bytes: Option<u64>,
    ) -> Result<Self, JournalError> {
        let path = dir.join(file_name(writer));
        if path.symlink_metadata().is_ok() {
            return Err(JournalError::AlreadyOpen { path });
        }
        let file = write_anew(&path, &encode(&path, header)?)?;
        let base_bytes = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        let compact_bytes = compact_bytes.unwrap_or(COMPACT_BYTES);
        Ok(Self { path, file, base_bytes, compact_bytes })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line. When this returns an error, the file is as before.
    pub fn append(&mut self, record: &Record) -> Result<(), JournalError> {
        let line = encode(&self.path, record)?;
        let _lock = Lock::take(&self.file, &self.path)?;
        let fail = |source| JournalError::Write { path: self.path.clone(), source };
        let meta = self.file.metadata().map_err(fail)?;
        if meta.nlink() == 0 || !is_same(&self.path, &meta) {
            return Err(JournalError::Removed { path: self.path.clone() });
        }
        // Writing beyond RLIMIT_FSIZE would be answered by a signal that ends the process.
        let limit_bytes = MAX_BYTES.min(file_size_limit());
        if meta.len() + line.len() as u64 > limit_bytes {
            return Err(JournalError::Full { path: self.path.clone(), limit_bytes });
        }
        let written = (&self.file).write(line.as_bytes());
        failpoint::hit("journal line");
        match written {
            Ok(n) if n == line.len() => Ok(()),
            result => {
                // Take a partial line back, so that the next one starts on its own line.
                let _ = self.file.set_len(meta.len());
                // A file system that takes only a part of a line is full.
                let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                Err(fail(result.err().unwrap_or(full)))
            }
        }
    }

    /// Whether it is time to compact.
    pub fn wants_compaction(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.len() > self.base_bytes + self.compact_bytes)
    }

    /// Puts these lines in the place of all that were there.
    pub fn replace(&mut self, records: &[Record]) -> Result<(), JournalError> {
        let mut text = String::new();
        for record in records {
            text.push_str(&encode(&self.path, record)?);
        }
        let lock = Lock::take(&self.file, &self.path)?;
        let meta = self.file.metadata();
        if !meta.is_ok_and(|meta| is_same(&self.path, &meta)) {
            return Err(JournalError::Removed { path: self.path.clone() });
        }
        let anew = write_anew(&self.path, &text)?;
        drop(lock);
        self.file = anew;
        self.base_bytes = text.len() as u64;
        Ok(())
    }

    /// Removes it, if it still is ours.
    pub fn remove(&self) -> std::io::Result<()> {
        match self.file.metadata() {
            Ok(meta) if is_same(&self.path, &meta) => remove(&self.path),
            _ => Ok(()),
        }
    }
}

/// `PID-STARTTIME.jsonl`.
pub(crate) fn file_name(writer: &TaskRef) -> String {
    format!("{}-{}.jsonl", writer.tgid, writer.start_time_ticks)
}

/// Removes a journal.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    let result = std::fs::remove_file(path);
    failpoint::hit("journal removed");
    result
}

/// Appends a line to a journal that is not ours but locked by us.
pub(crate) fn append_locked(file: &File, record: &Record) -> std::io::Result<()> {
    let line = record.encode()?;
    let len = file.metadata()?.len();
    if len + line.len() as u64 > file_size_limit() {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    // A torn last line must not swallow this one.
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

fn encode(path: &Path, record: &Record) -> Result<String, JournalError> {
    record
        .encode()
        .map_err(|error| JournalError::Write { path: path.to_owned(), source: error.into() })
}

/// Writes `text` to a temporary file and renames it to `path`: whole or not at all.
fn write_anew(path: &Path, text: &str) -> Result<File, JournalError> {
    let limit_bytes = MAX_BYTES.min(file_size_limit());
    if text.len() as u64 > limit_bytes {
        return Err(JournalError::Full { path: path.to_owned(), limit_bytes });
    }
    let temporary = path.with_extension("tmp");
    let attempt = || {
        // Left over by an attempt that did not get to the end: nobody else uses our name.
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
pub(crate) fn is_same(path: &Path, meta: &std::fs::Metadata) -> bool {
    path.symlink_metadata().is_ok_and(|now| (now.dev(), now.ino()) == (meta.dev(), meta.ino()))
}

/// An exclusive flock on an open file, given back when dropped.
pub(crate) struct Lock<'a>(&'a File);

impl<'a> Lock<'a> {
    /// Waits for the lock, but not for ever: its holder may be stopped.
    pub fn take(file: &'a File, path: &Path) -> Result<Self, JournalError> {
        let deadline = Instant::now() + LOCK_WAIT;
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
