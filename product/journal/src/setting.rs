//! A knob of the kernel (a file of /proc/sys or /sys) that is turned and turned back: only where it
//! still is as we left it. What an administrator has changed meanwhile stays.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failpoint;
use crate::file::JournalError;
use crate::ledger::Ledger;
use crate::record::Record;
use crate::session::Session;
use crate::task::now_ns;
use crate::undo::UndoReport;

/// Written before a knob is turned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// The file.
    pub file: PathBuf,
    /// Inode of the writer's network namespace: in another one the same path is another knob.
    pub net_ns: u64,
    /// What it said.
    pub before: String,
    /// What it is to say.
    pub set: String,
    /// Clock of `CLOCK_BOOTTIME`.
    pub time_ns: u64,
}

/// It is not ours any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SettingClosed {
    /// The file.
    pub file: PathBuf,
    /// Clock of `CLOCK_BOOTTIME`.
    pub time_ns: u64,
}

/// A knob that somebody else has turned since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptSetting {
    /// The file.
    pub file: PathBuf,
    /// What it says.
    pub found: String,
}

/// Why a knob was not turned. It is as before then.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// It cannot be read.
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
        /// What was to be written.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What came of turning a knob back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnedBack {
    /// It says again what it said before.
    Restored,
    /// Somebody else has changed it: left as it is.
    Kept {
        /// What it says.
        found: String,
    },
    /// It does not exist any more, like the device that it belonged to.
    Gone,
    /// It was not turned by us.
    NotHeld,
}

impl Session {
    /// Has a knob of the kernel say `value`; false: it is none of ours then, because it said so already
    /// or because somebody else has changed it since we turned it.
    ///
    /// # Errors
    /// All of [`SettingError`].
    pub fn turn(&mut self, file: &Path, value: &str) -> Result<bool, SettingError> {
        // Never from one value of ours to another: then it would not be known which it has.
        if let TurnedBack::Kept { .. } = self.turn_back(file)? {
            return Ok(false);
        }
        let before = read(file)
            .map_err(|source| SettingError::Unreadable { file: file.to_owned(), source })?;
        if before == value {
            return Ok(false);
        }
        let net_ns =
            net_ns().map_err(|source| JournalError::Validity { path: NET_NS.into(), source })?;
        let (file, set) = (file.to_owned(), value.to_owned());
        self.write(Record::Setting(Setting {
            file: file.clone(),
            net_ns,
            before,
            set,
            time_ns: now_ns(),
        }))?;
        if let Err(source) = write(&file, value) {
            self.close_setting(&file);
            return Err(SettingError::Refused { file, value: value.to_owned(), source });
        }
        Ok(true)
    }

    /// Has a knob say again what it said before it was turned.
    ///
    /// # Errors
    /// [`SettingError::Unreadable`], [`SettingError::Refused`]; it stays on the books then.
    pub fn turn_back(&mut self, file: &Path) -> Result<TurnedBack, SettingError> {
        let Some(setting) = self.settings().iter().find(|setting| setting.file == file).cloned()
        else {
            return Ok(TurnedBack::NotHeld);
        };
        let outcome = setting.turn_back()?;
        self.close_setting(file);
        Ok(outcome)
    }

    fn close_setting(&mut self, file: &Path) {
        let closed = SettingClosed { file: file.to_owned(), time_ns: now_ns() };
        self.write_or_warn(Record::SettingClosed(closed));
    }
}

impl Setting {
    /// Whether it is a knob of this network namespace.
    pub fn is_here(&self) -> bool {
        net_ns().is_ok_and(|here| here == self.net_ns)
    }

    /// Turns it back if it still is as we left it.
    pub fn turn_back(&self) -> Result<TurnedBack, SettingError> {
        let found = match read(&self.file) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(TurnedBack::Gone),
            found => found
                .map_err(|source| SettingError::Unreadable { file: self.file.clone(), source })?,
        };
        // Killed between the line and the change: it says what it said before.
        if found == self.before {
            return Ok(TurnedBack::Restored);
        }
        if found != self.set {
            return Ok(TurnedBack::Kept { found });
        }
        write(&self.file, &self.before).map_err(|source| SettingError::Refused {
            file: self.file.clone(),
            value: self.before.clone(),
            source,
        })?;
        Ok(TurnedBack::Restored)
    }
}

/// Turns back the knobs, the last one first.
pub(crate) fn turn_back_all(
    ledger: &mut Ledger,
    written: &mut dyn FnMut(&Record),
    report: &mut UndoReport,
) {
    for setting in ledger.settings().iter().rev().cloned().collect::<Vec<_>>() {
        let file = setting.file.clone();
        if !setting.is_here() {
            let why = "it is of another network namespace: run `evenkeel undo` there".to_owned();
            report.error(Some(&file), None, why);
            continue;
        }
        match setting.turn_back() {
            Ok(TurnedBack::Restored) => report.turned_back.push(file.clone()),
            Ok(TurnedBack::Kept { found }) => {
                report.kept_settings.push(KeptSetting { file: file.clone(), found });
            }
            Ok(TurnedBack::Gone | TurnedBack::NotHeld) => {}
            Err(why) => {
                report.error(None, None, why.to_string());
                continue;
            }
        }
        let record = Record::SettingClosed(SettingClosed { file, time_ns: now_ns() });
        written(&record);
        ledger.apply(&record);
    }
}

const NET_NS: &str = "/proc/thread-self/ns/net";

fn net_ns() -> io::Result<u64> {
    fs::metadata(NET_NS).map(|meta| meta.ino())
}

fn read(file: &Path) -> io::Result<String> {
    fs::read_to_string(file).map(|text| text.trim().to_owned())
}

fn write(file: &Path, value: &str) -> io::Result<()> {
    let written = fs::write(file, value);
    failpoint::hit("setting");
    written
}
