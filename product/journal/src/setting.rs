//! A setting of the kernel: a file of /proc/sys or /sys that is changed and restored. It is restored
//! only if it still has the value that was written: what an administrator has changed since stays. A
//! setting of a network device is that of the same device, by whatever name (`device`).
//!
//! The journal's part (entry first, then the change) is in `session`; this file only reads, compares
//! and writes.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::device;
use crate::entry::Setting;
use crate::failpoint;
use crate::file::JournalError;

const NET_NS: &str = "/proc/thread-self/ns/net";

/// Why a setting was not changed or not restored. Its value is as before then.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The file cannot be read.
    #[error("{}: this setting cannot be read: {source}; is the kernel built with it?", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused the value.
    #[error("{}: \"{value}\" was refused: {source}; set it by hand to see why", .file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The value that was written.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What came of restoring a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoredSetting {
    /// It has the value that it had before.
    Restored,
    /// Another process has changed it since: left as it is.
    Kept {
        /// The value that it has.
        found: String,
    },
    /// It no longer exists, like the device that it belonged to.
    Gone,
    /// This session has not changed it.
    NotHeld,
}

impl Setting {
    /// Whether it is a setting of this network namespace.
    pub fn is_of_this_namespace(&self) -> bool {
        network_namespace().is_ok_and(|here| here == self.net_ns)
    }

    /// Its file now; `None`: there is no such network device here any more.
    ///
    /// # Errors
    /// That cannot be told.
    pub(crate) fn present_file(&self) -> io::Result<Option<PathBuf>> {
        match self.index {
            Some(index) => device::find_file(&self.file, index),
            None => Ok(Some(self.file.clone())),
        }
    }

    /// Whether its device has another name now.
    fn is_elsewhere_than(&self, file: &Path) -> io::Result<bool> {
        Ok(self.present_file()?.is_some_and(|now| now != file))
    }

    /// Whether this file, of the device of this number, is the same setting: perhaps by another name.
    pub(crate) fn is_same(&self, file: &Path, index: Option<u32>) -> bool {
        match (self.index, index) {
            (Some(own), Some(index)) => {
                own == index && device::without_name(&self.file) == device::without_name(file)
            }
            // Without a number, the path is all that is known.
            _ => self.file == file,
        }
    }

    /// Whether the setting has the value that was written.
    pub(crate) fn is_as_set(&self) -> bool {
        let found = || read_value(&self.present_file().ok()??).ok();
        self.is_of_this_namespace() && found().is_some_and(|found| found == self.set)
    }

    /// Restores the value before, if the setting still has the value that was written.
    pub fn restore(&self) -> Result<RestoredSetting, SettingError> {
        let unreadable = |source| SettingError::Unreadable { file: self.file.clone(), source };
        let Some(file) = self.present_file().map_err(unreadable)? else {
            tracing::warn!(
                "{}: not restored: its network device was removed, or is in another network namespace; \
                 there, set it by hand to \"{}\"",
                self.file.display(),
                self.before
            );
            return Ok(RestoredSetting::Gone);
        };
        let found = match read_value(&file) {
            // Renamed just now.
            Err(why) if is_gone(&why) && self.is_elsewhere_than(&file).map_err(unreadable)? => {
                return self.restore();
            }
            Err(why) if is_gone(&why) => return Ok(RestoredSetting::Gone),
            found => {
                found.map_err(|source| SettingError::Unreadable { file: file.clone(), source })?
            }
        };
        // Killed between the entry and the change: nothing to do.
        if found == self.before {
            return Ok(RestoredSetting::Restored);
        }
        if found != self.set {
            return Ok(RestoredSetting::Kept { found });
        }
        write_value(&file, &self.before)?;
        Ok(RestoredSetting::Restored)
    }
}

/// Inode of the calling thread's network namespace.
pub(crate) fn network_namespace() -> Result<u64, JournalError> {
    fs::metadata(NET_NS)
        .map(|meta| meta.ino())
        .map_err(|source| JournalError::Validity { path: NET_NS.into(), source })
}

/// A setting's value, without surrounding white space.
pub(crate) fn read_value(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map(|text| text.trim().to_owned())
}

/// Whether reading failed because the setting no longer exists: its file, or the device or the line that
/// the file belongs to. That may end while the file is open, and the kernel then says ENODEV in /sys,
/// and EIO in /proc.
pub(crate) fn is_gone(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EIO))
}

/// Writes a setting's value.
pub(crate) fn write_value(file: &Path, value: &str) -> Result<(), SettingError> {
    let written = fs::write(file, value);
    failpoint::hit("setting");
    written.map_err(|source| SettingError::Refused {
        file: file.to_owned(),
        value: value.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_which_the_device_ended_is_gone() {
        let is_gone = |errno| is_gone(&io::Error::from_raw_os_error(errno));
        assert!([libc::ENOENT, libc::ENODEV, libc::EIO].into_iter().all(is_gone));
        assert!(![libc::EACCES, libc::EPERM, libc::EINVAL].into_iter().any(is_gone));
    }
}
