//! The RSS indirection table of a network device: changed, restored, and left alone if another process
//! has changed it since, or if the name is another device's now. What the driver makes of the table
//! when the number of queues changes counts as another process's choice, too.

use std::fs;
use std::io;
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
        Some(file) => file.exists().then_some(1),
        None => ethtool::index(device),
    }
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

    /// The table that the device has now; `None`: it is gone, or has none.
    fn read(&self) -> Result<Option<Vec<u32>>, EthtoolError> {
        if index_of(&self.root, &self.device) != Some(self.index) {
            return Ok(None);
        }
        read_table(&self.root, &self.device)
    }

    /// Whether the device has the table that was set.
    pub(crate) fn is_as_set(&self) -> bool {
        let found = self.is_of_this_namespace().then(|| self.read().ok()).flatten().flatten();
        found.as_ref() == Some(&self.set)
    }

    /// Restores the table from before the change, if the device still has the one that was set.
    pub(crate) fn restore(&self) -> Result<RestoredSetting, EthtoolError> {
        let Some(found) = self.read()? else { return Ok(RestoredSetting::Gone) };
        // Killed between the entry and the change: nothing to do.
        if found == self.before {
            return Ok(RestoredSetting::Restored);
        }
        if found != self.set && Some(&found) != self.replaces.as_ref() {
            return Ok(RestoredSetting::Kept { found: buckets_by_queue(&found) });
        }
        write(&self.root, &self.device, &self.before)?;
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
        let is_it = |table: &&Table| table.root == root && table.device == device;
        let known = self.state.tables().iter().find(is_it).cloned();
        let index = index_of(root, device);
        let held = known.clone().filter(|table| Some(table.index) == index);
        if known.is_some() && held.is_none() {
            self.end_table(root, device);
        }
        let found = if index.is_some() { read_table(root, device)? } else { None };
        let (Some(index), Some(found)) = (index, found) else {
            if held.is_some() {
                self.end_table(root, device);
            }
            return Ok(ChangedTable::Gone);
        };
        if held.as_ref().is_some_and(|table| table.set != found) {
            self.end_table(root, device);
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
                Some(table) => self.write_or_warn(Entry::Table(table)),
                None => self.end_table(root, device),
            }
            return Err(why.into());
        }
        self.state.confirm_tables();
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
