//! `--manage-rfs`: under `auto` the kernel's own receive flow steering (RFS) takes the place of our
//! program. It sends packets to the core that received from their connection last, copies nothing, and
//! needs no thread. While that pays, its knobs are turned on, under the journal; then they are turned
//! back.

use std::path::{Path, PathBuf};

use evenkeel_journal::{
    RestoredSetting, Session, SettingError, SupervisedSession, SupervisorError,
};

use crate::device::Device;

/// The table of all connections of the machine; 0: the kernel steers nothing.
const TABLE: &str = "/proc/sys/net/core/rps_sock_flow_entries";
/// What the kernel's documentation recommends for a server with a few connections.
const ENTRIES: u32 = 32_768;
/// The size of a receive queue's part of that table.
const QUEUE_KNOB: &str = "rps_flow_cnt";

/// Why the kernel does not steer.
#[derive(Debug, thiserror::Error)]
pub enum FlowSteeringError {
    /// Not here.
    #[error(
        "--manage-rfs: {TABLE} cannot be seen, because it is the whole machine's: run it in the \
         machine's own network namespace"
    )]
    NoTable,
    /// The device's queues cannot be found.
    #[error(
        "--manage-rfs: /sys/class/net/{0}/queues has no receive queue with a knob {QUEUE_KNOB}, or \
         shows another network namespace: mount sysfs anew there"
    )]
    NoQueue(String),
    /// A knob cannot be turned.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// No process would turn it back.
    #[error("no knob is turned without a supervisor: {0}")]
    Supervisor(#[from] SupervisorError),
}

/// The kernel's own steering of a device's packets.
pub(crate) struct FlowSteering {
    /// Each knob, and its value where the kernel steers.
    /// The first one is the whole machine's.
    knobs: Vec<(PathBuf, u32)>,
    is_on: bool,
    /// That one was turned on here, and not by another process.
    is_table_ours: bool,
    /// Another process has turned it off then, and decides from there on.
    is_left: bool,
}

/// A queue's part of the table: a power of two, because the kernel rounds any other number up, and then
/// a queue would not have the value that the journal says.
fn entries_of_queue(queues: usize) -> u32 {
    1 << (ENTRIES / queues as u32).max(1).ilog2()
}

impl FlowSteering {
    /// Finds the knobs, and turns none.
    pub(crate) fn find(device: &Device) -> Result<Self, FlowSteeringError> {
        if !Path::new(TABLE).exists() {
            return Err(FlowSteeringError::NoTable);
        }
        let queues = device.queue_knobs(QUEUE_KNOB);
        if queues.is_empty() {
            return Err(FlowSteeringError::NoQueue(device.name.clone()));
        }
        let each = entries_of_queue(queues.len());
        let queues = queues.into_iter().map(|queue| (queue, each));
        let knobs = std::iter::once((PathBuf::from(TABLE), ENTRIES)).chain(queues).collect();
        Ok(Self { knobs, is_on: false, is_table_ours: false, is_left: false })
    }

    /// Whether the kernel was told to steer.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Lets the kernel steer, or ends that. Knobs that are on already are the administrator's and stay.
    pub(crate) fn switch(
        &mut self,
        guarded: &mut SupervisedSession,
        on: bool,
    ) -> Result<(), FlowSteeringError> {
        if on && self.is_on && self.has_no_table() {
            // Either it was on because of another process, which has ended; or an administrator does not
            // want it.
            self.turn_back(guarded.supervised()?)?;
            self.is_on = false;
            self.is_left = self.is_table_ours;
        }
        if on == self.is_on || on && self.is_left {
            return Ok(());
        }
        let session = guarded.supervised()?;
        if !on {
            self.turn_back(session)?;
        } else if let Err(why) = self.turn_on(session) {
            // Some knobs without the others would stay turned on, and steer nothing.
            if let Err(stays) = self.turn_back(session) {
                tracing::warn!("{stays}");
            }
            return Err(why.into());
        }
        self.is_on = on;
        Ok(())
    }

    fn turn_on(&mut self, session: &mut Session) -> Result<(), SettingError> {
        self.is_table_ours = self.has_no_table();
        self.knobs.iter().try_for_each(|(knob, entries)| turn(session, knob, *entries))
    }

    fn turn_back(&self, session: &mut Session) -> Result<(), SettingError> {
        for (knob, _) in &self.knobs {
            if let RestoredSetting::Kept { found } = session.restore_setting(knob)? {
                tracing::info!("{}: another process has set it to {found}", knob.display());
            }
        }
        Ok(())
    }

    /// Whether the machine's table is off, so that nothing is steered.
    fn has_no_table(&self) -> bool {
        let found = self.knobs.first().and_then(|(table, _)| std::fs::read_to_string(table).ok());
        found.is_some_and(|found| found.trim() == "0")
    }
}

fn turn(session: &mut Session, knob: &Path, entries: u32) -> Result<(), SettingError> {
    let found = std::fs::read_to_string(knob)
        .map_err(|source| SettingError::Unreadable { file: knob.to_owned(), source })?;
    if found.trim() == "0" {
        session.change_setting(knob, &entries.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_journal::{SessionOptions, SupervisorCommand};

    fn guarded(folder: &Path, supervisor: SupervisorCommand) -> SupervisedSession {
        let session = Session::open(folder, SessionOptions::default()).unwrap();
        SupervisedSession::new(session, supervisor)
    }

    fn values(files: [&Path; 2]) -> [String; 2] {
        files.map(|file| std::fs::read_to_string(file).unwrap().trim().to_owned())
    }

    #[test]
    fn it_is_on_only_when_every_knob_is_turned() {
        let folder = tempfile::tempdir().unwrap();
        let (table, queue) = (folder.path().join("table"), folder.path().join("queue"));
        std::fs::write(&table, "0\n").unwrap();
        let knobs = vec![(table.clone(), 8), (queue.clone(), 4)];
        let mut steering =
            FlowSteering { knobs, is_on: false, is_table_ours: false, is_left: false };
        // A supervisor that does not start.
        let mut alone = guarded(folder.path(), |_| Some(("/no/such/file".into(), Vec::new())));
        assert!(steering.switch(&mut alone, true).is_err() && !steering.is_on());
        assert!(alone.close().is_clean());
        // One of the knobs is missing: the other one is turned back.
        let mut session = guarded(folder.path(), |_| None);
        assert!(steering.switch(&mut session, true).is_err() && !steering.is_on());
        std::fs::write(&queue, "0\n").unwrap();
        assert_eq!(values([&table, &queue]), ["0", "0"]);
        steering.switch(&mut session, true).unwrap();
        assert_eq!(
            (steering.is_on(), values([&table, &queue])),
            (true, ["8", "4"].map(String::from))
        );
        steering.switch(&mut session, false).unwrap();
        assert_eq!(
            (steering.is_on(), values([&table, &queue])),
            (false, ["0", "0"].map(String::from))
        );
        assert!(session.close().is_clean());
    }

    #[test]
    fn the_machines_table_outlives_another_one_that_turned_it_on_but_no_administrator() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let table = folders[0].path().join("table");
        std::fs::write(&table, "0\n").unwrap();
        let mut both = folders.each_ref().map(|folder| {
            let queue = folder.path().join("queue");
            std::fs::write(&queue, "0\n").unwrap();
            let knobs = vec![(table.clone(), 8), (queue, 4)];
            let steering =
                FlowSteering { knobs, is_on: false, is_table_ours: false, is_left: false };
            (steering, guarded(folder.path(), |_| None))
        });
        for (steering, session) in &mut both {
            steering.switch(session, true).unwrap();
        }
        let [(first, session), (second, other)] = &mut both;
        first.switch(session, false).unwrap();
        let queue = folders[1].path().join("queue");
        assert_eq!(values([&table, &queue]), ["0", "4"]);
        second.switch(other, true).unwrap();
        assert_eq!(
            (second.is_on(), values([&table, &queue])),
            (true, ["8", "4"].map(String::from))
        );
        std::fs::write(&table, "0\n").unwrap();
        for _ in 0..2 {
            second.switch(other, true).unwrap();
            assert_eq!(
                (second.is_on(), values([&table, &queue])),
                (false, ["0", "0"].map(String::from))
            );
        }
        for (_, session) in both {
            assert!(session.close().is_clean());
        }
    }

    #[test]
    fn a_queues_part_is_a_number_that_the_kernel_keeps() {
        let parts = [(1, 32_768), (2, 16_384), (3, 8192), (6, 4096), (12, 2048), (24, 1024)];
        for (queues, part) in parts {
            assert_eq!(entries_of_queue(queues), part, "{queues} queues");
        }
        assert_eq!(entries_of_queue(100_000), 1);
    }
}
