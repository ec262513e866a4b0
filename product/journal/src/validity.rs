//! Where a journal is valid. Process numbers and start times mean something only within one boot,
//! one PID namespace and one time namespace: the header names all three, and an undo refuses a
//! journal of another boot or namespace.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::entry::{Header, VERSION};
use crate::file::JournalError;
use crate::reaper::find_reaper;
use crate::report::Foreign;
use crate::task::TaskRef;

/// The header of a journal that this process writes.
pub(crate) fn own_header(command: Vec<String>) -> Result<Header, JournalError> {
    let here = Place::read()?;
    Ok(Header {
        version: VERSION,
        boot_id: here.boot_id,
        pid_ns: here.pid_ns,
        time_ns: here.time_ns,
        writer: TaskRef::own_process()?,
        reaper: find_reaper(),
        command,
    })
}

/// Why the journal at `path` is not valid here; `None` if it is.
pub(crate) fn find_mismatch(path: &Path, header: &Header) -> Option<Foreign> {
    let found = |why: String, removed| Some(Foreign { path: path.to_owned(), why, removed });
    let here = match Place::read() {
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
        found("it is of another PID namespace: run `evenkeel undo` there".into(), false)
    } else if header.time_ns != here.time_ns {
        found("it is of another time namespace: run `evenkeel undo` there".into(), false)
    } else {
        None
    }
}

/// What a header is compared with.
struct Place {
    boot_id: String,
    /// Inode of the PID namespace.
    pid_ns: u64,
    /// Inode of the time namespace; 0 where the kernel has none.
    time_ns: u64,
}

impl Place {
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
            // Linux before 5.6 has no time namespaces.
            time_ns: std::fs::metadata("/proc/self/ns/time").map_or(0, |meta| meta.ino()),
        })
    }
}
