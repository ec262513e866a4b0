//! The RSS indirection table of a network device: changed, restored, and left alone if another process
//! has changed it since. A device is known by its number: it may get another name, and another device
//! its name. What the driver makes of the table when the number of queues changes counts as another
//! process's choice, too.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::entry::{Entry, Table, TableEnd};
use crate::ethtool::{self, EthtoolError};
use crate::failpoint;
use crate::file::JournalError;
use crate::session::Session;
use crate::setting::{RestoredSetting, network_namespace};
use crate::task::now_ns;

/// Queues that a table's text names.
const NAMED_QUEUES: usize = 8;

/// Why a table was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The device, or its driver.
    #[error(transparent)]
    Device(#[from] EthtoolError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What came of changing a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedTable {
    /// The device has it.
    Changed,
    /// The device had that table already.
    Unchanged,
    /// Another process has changed the table since this session did: left as it is.
    LetGo,
    /// There is no such device, or it has no table of this size.
    Gone,
}

/// How many buckets each queue has, as text: `0: 64, 1: 64`.
pub fn buckets_by_queue(table: &[u32]) -> String {
    let mut counts = std::collections::BTreeMap::<u32, usize>::new();
    table.iter().for_each(|queue| *counts.entry(*queue).or_default() += 1);
    let words = counts.iter().take(NAMED_QUEUES).map(|(queue, count)| format!("{queue}: {count}"));
    let mut text = words.collect::<Vec<_>>().join(", ");
    if counts.len() > NAMED_QUEUES {
        text += ", ...";
    }
    text
}

/// The file that stands for the table of a device below a test's own root; `None`: the kernel is asked.
fn stand_in(root: &Path, device: &str) -> Option<PathBuf> {
    (root != Path::new("/")).then(|| root.join("ethtool").join(device))
}

/// The number of the device that has this name now; `None`: there is none.
fn index_of(root: &Path, device: &str) -> Option<u32> {
    match stand_in(root, device) {
        // A file keeps this number when it is renamed.
        Some(file) => fs::metadata(file).ok().map(|file| file.ino() as u32),
        None => ethtool::index(device),
    }
}

/// The name that the device of this number has now; `None`: there is no such device here.
fn name_of(root: &Path, index: u32) -> Option<String> {
    if root == Path::new("/") {
        return ethtool::name(index);
    }
    let names = fs::read_dir(root.join("ethtool")).ok()?.flatten();
    let mut names = names.filter_map(|file| file.file_name().into_string().ok());
    names.find(|name| index_of(root, name) == Some(index))
}

/// The queue of each bucket now; `None`: there is no such device, or it has no table. `root` is `/`, or
/// a test's own.
///
/// # Errors
/// [`EthtoolError::Refused`].
pub fn read_table(root: &Path, device: &str) -> Result<Option<Vec<u32>>, EthtoolError> {
    let Some(file) = stand_in(root, device) else {
        return match ethtool::rss(device) {
            Ok(rss) => Ok(rss.map(|rss| rss.table)),
            Err(EthtoolError::Gone { .. }) => Ok(None),
            Err(why) => Err(why),
        };
    };
    match fs::read_to_string(file) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(refused(device, source)),
        Ok(text) => {
            let queues: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
            queues.map(Some).map_err(|why| refused(device, io::Error::other(why)))
        }
    }
}

fn write(root: &Path, device: &str, table: &[u32]) -> Result<(), EthtoolError> {
    let written = match stand_in(root, device) {
        None => ethtool::set_table(device, table),
        Some(file) => {
            let text: String = table.iter().map(|queue| format!("{queue} ")).collect();
            fs::write(file, text).map_err(|source| refused(device, source))
        }
    };
    failpoint::hit("table");
    written
}

fn refused(device: &str, source: io::Error) -> EthtoolError {
    EthtoolError::Refused { device: device.to_owned(), what: "a stand-in for its table", source }
}

impl Table {
    /// Whether it is a table of this network namespace.
    pub(crate) fn is_of_this_namespace(&self) -> bool {
        network_namespace().is_ok_and(|here| here == self.net_ns)
    }

    /// The table that the device has now, and its name; `None`: it is gone, or has none.
    fn read(&self) -> Result<Option<(String, Vec<u32>)>, EthtoolError> {
        let Some(name) = name_of(&self.root, self.index) else { return Ok(None) };
        Ok(read_table(&self.root, &name)?.map(|table| (name, table)))
    }

    /// Whether the device has the table that was set.
    pub(crate) fn is_as_set(&self) -> bool {
        let found = self.is_of_this_namespace().then(|| self.read().ok()).flatten().flatten();
        found.is_some_and(|(_, found)| found == self.set)
    }

    /// Restores the table from before the change, if the device still has the one that was set.
    pub(crate) fn restore(&self) -> Result<RestoredSetting, EthtoolError> {
        let Some((name, found)) = self.read()? else {
            if name_of(&self.root, self.index).is_none() {
                tracing::warn!(
                    "{}: its RSS indirection table was not restored: the device was removed, or is in \
                     another network namespace; there, set the table by `ethtool -X`",
                    self.device
                );
            }
            return Ok(RestoredSetting::Gone);
        };
        // Killed between the entry and the change: nothing to do.
        if found == self.before {
            return Ok(RestoredSetting::Restored);
        }
        if found != self.set && Some(&found) != self.replaces.as_ref() {
            return Ok(RestoredSetting::Kept { found: buckets_by_queue(&found) });
        }
        write(&self.root, &name, &self.before)?;
        Ok(RestoredSetting::Restored)
    }
}

impl Session {
    /// The tables that this session has changed.
    pub fn tables(&self) -> &[Table] {
        self.state.tables()
    }

    /// Sets the RSS indirection table of a device. `root` is `/`, or a test's own.
    ///
    /// # Errors
    /// All of [`TableError`]; the device has the table of before then, as far as its driver lets it.
    pub fn change_table(
        &mut self,
        root: &Path,
        device: &str,
        set: &[u32],
    ) -> Result<ChangedTable, TableError> {
        let index = index_of(root, device);
        let mut tables = self.state.tables().iter().filter(|table| table.root == root);
        let is_it = |table: &Table| Some(table.index) == index;
        let of_name = tables.clone().find(|table| table.device == device && !is_it(table)).cloned();
        // Perhaps by another name.
        let held = tables.find(|table| is_it(table)).cloned();
        if let Some(other) = of_name {
            // The name is another device's now, and the entry of that name will be, too.
            if let Err(why) = other.restore() {
                tracing::warn!("{why}");
            }
            self.end_table(root, device);
        }
        let found = if index.is_some() { read_table(root, device)? } else { None };
        let (Some(index), Some(found)) = (index, found) else {
            if let Some(table) = held {
                self.end_table(root, &table.device);
            }
            return Ok(ChangedTable::Gone);
        };
        if let Some(table) = &held
            && table.set != found
        {
            self.end_table(root, &table.device);
            return Ok(ChangedTable::LetGo);
        }
        if found.len() != set.len() {
            return Ok(ChangedTable::Gone);
        }
        if found == *set {
            return Ok(ChangedTable::Unchanged);
        }
        let table = Table {
            root: root.to_owned(),
            device: device.to_owned(),
            index,
            net_ns: network_namespace()?,
            before: held.as_ref().map_or(&found, |table| &table.before).clone(),
            replaces: held.is_some().then(|| found.clone()),
            set: set.to_vec(),
            time_ns: now_ns(),
        };
        let is_as_before = table.before == *set;
        self.write(Entry::Table(table))?;
        if let Err(why) = write(root, device, set) {
            // What the driver made of the table instead, if it took it at all.
            if matches!(why, EthtoolError::NotTaken { .. }) {
                let back = write(root, device, &found);
                back.unwrap_or_else(|why| tracing::warn!("{why}"));
            }
            match held {
                // The device still has the table of the change before this one.
                Some(table) => {
                    let is_renamed = table.device != device;
                    self.write_or_warn(Entry::Table(table));
                    if is_renamed {
                        self.end_table(root, device);
                    }
                }
                None => self.end_table(root, device),
            }
            return Err(why.into());
        }
        self.state.confirm_tables();
        if let Some(table) = held.filter(|table| table.device != device) {
            self.end_table(root, &table.device);
        }
        if is_as_before {
            self.end_table(root, device);
        }
        self.compact_if_large();
        Ok(ChangedTable::Changed)
    }

    fn end_table(&mut self, root: &Path, device: &str) {
        let end = TableEnd { root: root.to_owned(), device: device.to_owned(), time_ns: now_ns() };
        self.write_or_warn(Entry::TableClosed(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_told_by_the_buckets_of_each_queue() {
        assert_eq!(buckets_by_queue(&[0, 1, 0, 3]), "0: 2, 1: 1, 3: 1");
        let many: Vec<u32> = (0..20).collect();
        assert!(buckets_by_queue(&many).ends_with("7: 1, ..."));
    }
}
