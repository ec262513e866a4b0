//! Where `run --json`, `compare --json` and `compare --html` write. It is opened before the command
//! starts, so that no result is lost because of a wrong path, and written when the command has ended.
//! The trace of `run --perfetto` is opened the same way and written while the command runs. The command
//! does not inherit it.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::launcher::RankNumber;

/// What stands for the number of the rank in the name of a file.
const RANK: &str = "%r";

/// The option of a trace, which is written to a regular file alone ([`ReportFile::stream`]).
pub const TRACE: &str = "--perfetto";

/// Names of the standard streams.
const STDOUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
const STDERR: [&str; 3] = ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"];

/// The path with the number of the rank in place of `%r`; without ranks, that is 0.
///
/// # Errors
/// Several ranks would write to the same file: each has a report of its own.
pub fn path_of_rank(option: &str, path: &Path, rank: Option<RankNumber>) -> Result<PathBuf> {
    if let Some(text) = path.to_str().filter(|text| text.contains(RANK)) {
        let number = rank.map_or(0, |rank| rank.number);
        return Ok(text.replace(RANK, &number.to_string()).into());
    }
    let count = rank.and_then(|rank| rank.count).unwrap_or(1);
    // What is written to a stream or a pipe is not written over.
    let is_replaced =
        stream(path).is_none() && path.metadata().map_or(true, |found| found.is_file());
    if count > 1 && is_replaced {
        bail!(
            "{option} {}: each of the {count} ranks would write over the report of the others; \
             nothing was started: give each its own file, with {RANK} for its number, like \
             report-{RANK}",
            path.display()
        );
    }
    Ok(path.to_owned())
}

/// A place for one report. A file that this made and that got no report is removed.
pub struct ReportFile {
    /// The option and the path, for errors.
    name: String,
    path: PathBuf,
    file: File,
    /// Whether the file exists only because of this.
    is_new: bool,
    /// Whether the report replaces what is in the file; else it is appended, as to a pipe.
    replaces: bool,
}

impl ReportFile {
    /// Opens the file and leaves its content as it is. `-`, /dev/stdout and the like are a stream of
    /// this process.
    ///
    /// # Errors
    /// The file cannot be written; the text names option, file, reason and remedy.
    pub fn open(option: &str, path: &Path) -> Result<Self> {
        let name = format!("{option} {}", path.display());
        let stream = stream(path);
        let opened = match &stream {
            // Opened by its name, a file behind it would be written from its beginning.
            Some(stream) => stream.try_clone_to_owned().map(|fd| (File::from(fd), false)),
            None => open_without_truncation(path),
        };
        let (file, is_new) = opened.with_context(|| {
            let or_stream = if option == TRACE { "" } else { ", or - for standard output" };
            format!(
                "{name}: nothing was started; give a file in a directory that exists and that \
                 this user may write to{or_stream}"
            )
        })?;
        let replaces = stream.is_none() && file.metadata().is_ok_and(|file| file.is_file());
        Ok(Self { name, path: path.to_owned(), file, is_new, replaces })
    }

    /// Writes the report.
    ///
    /// # Errors
    /// The text names the file and the reason.
    pub fn write(mut self, report: &[u8]) -> Result<()> {
        self.is_new = false;
        let mut write = || {
            if self.replaces {
                self.file.set_len(0)?;
            }
            self.file.write_all(report)
        };
        write().with_context(|| self.name.clone())
    }

    /// The same file, for what is written while the command runs; what is in it stays until then.
    ///
    /// # Errors
    /// It is no regular file, since a pipe that is not read would hold this process up; or it is a
    /// standard stream, where the command writes, too.
    pub fn stream(&self) -> Result<File> {
        if !self.replaces {
            bail!(
                "{}: it is no regular file of its own; nothing was started: give the name of a file",
                self.name
            );
        }
        self.file.try_clone().with_context(|| self.name.clone())
    }

    /// Refuses two reports into one file: each would write over the other.
    ///
    /// # Errors
    /// Both replace what is in the same file.
    pub fn must_differ(&self, other: &Self) -> Result<()> {
        let place = |one: &Self| one.file.metadata().map(|file| (file.dev(), file.ino())).ok();
        if self.replaces && other.replaces && place(self) == place(other) {
            bail!(
                "{} and {}: both are the same file; nothing was started: give two files",
                self.name,
                other.name
            );
        }
        Ok(())
    }

    /// The file stays, although nothing was written by [`ReportFile::write`].
    pub fn keep(mut self) {
        self.is_new = false;
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = remove_file(&self.path);
        }
    }
}

/// Whether a report to this path goes to the standard output of this process.
pub fn is_standard_output(path: &Path) -> bool {
    STDOUT.iter().any(|name| path == Path::new(name))
}

/// The stream of this process that a path stands for.
fn stream(path: &Path) -> Option<BorrowedFd<'static>> {
    // SAFETY: only passed to dup, which refuses a descriptor that is closed.
    let borrowed = |fd| unsafe { BorrowedFd::borrow_raw(fd) };
    if is_standard_output(path) {
        return Some(borrowed(libc::STDOUT_FILENO));
    }
    STDERR.iter().any(|name| path == Path::new(name)).then(|| borrowed(libc::STDERR_FILENO))
}

/// The file, and whether it did not exist before.
fn open_without_truncation(path: &Path) -> io::Result<(File, bool)> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((OpenOptions::new().write(true).open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_an_older_one_and_no_report_leaves_no_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        drop(ReportFile::open("--json", &path).unwrap());
        assert!(!path.exists());
        ReportFile::open("--json", &path).unwrap().write(b"a long first one").unwrap();
        drop(ReportFile::open("--json", &path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"a long first one");
        ReportFile::open("--json", &path).unwrap().write(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
    }

    #[test]
    fn each_of_several_ranks_has_a_file_of_its_own() {
        let rank = |number, count| Some(RankNumber { number, count });
        let path = |path: &str, rank| {
            let path = path_of_rank("--json", Path::new(path), rank);
            path.map(|path| path.display().to_string()).map_err(|why| why.to_string())
        };
        assert_eq!(path("/o/%r-%r.json", rank(7, Some(8))).unwrap(), "/o/7-7.json");
        assert_eq!(path("out-%r", None).unwrap(), "out-0");
        let why = path("out.json", rank(7, Some(8))).unwrap_err();
        assert!(why.starts_with("--json out.json: each of the 8 ranks would write over"), "{why}");
        assert!(why.contains("with %r for its number"), "{why}");
        for (name, alone) in [
            ("out.json", None),
            ("out.json", rank(0, Some(1))),
            ("out.json", rank(3, None)),
            ("-", rank(0, Some(2))),
            ("/dev/null", rank(0, Some(2))),
        ] {
            assert_eq!(path(name, alone).unwrap(), name);
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused_with_option_file_and_remedy() {
        for path in ["/no/such/directory/file", "/"] {
            let said = format!("{:#}", ReportFile::open("--html", Path::new(path)).err().unwrap());
            assert!(said.starts_with(&format!("--html {path}: nothing was started")), "{said}");
            assert!(said.contains("- for standard output"), "{said}");
        }
    }

    #[test]
    fn standard_output_is_not_offered_to_a_trace_which_refuses_it() {
        let stream = ReportFile::open(TRACE, Path::new("-")).unwrap().stream();
        assert!(stream.unwrap_err().to_string().contains("it is no regular file"));
        let missing = ReportFile::open(TRACE, Path::new("/no/such/directory/file"));
        let said = format!("{:#}", missing.err().unwrap());
        assert!(said.contains("that this user may write to: "), "{said}");
    }
}
