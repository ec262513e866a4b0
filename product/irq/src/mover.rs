//! The actuator of `evenkeel irq run` and `once`: moves lines and the kernel threads of threaded NAPI,
//! and changes indirection tables of network cards, under the journal, so that everything is taken back
//! whatever ends the run; and has irqbalance leave the moved lines alone, if that is asked for. The send
//! queue of a line that is moved follows it (`xps`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_journal::{
    BanError, ChangedTable, DisplacedLine, Irqbalance, JournalError, LetGoLine, MovedLine,
    PlaceError, Placed, Session, SessionOptions, SettingError, Standing, SupervisedSession,
    SupervisorCommand, SupervisorError, TableError, TaskRef, UndoReport, find_irqbalance,
    read_table, undo_earlier,
};

use crate::decide::Move;
use crate::observe::Originals;
use crate::rounds::{Actuator, Change, MovedByOther, Outcome};
use crate::snapshot::SourceId;
use crate::spread::Spread;
use crate::threads;
use crate::xps::SendQueues;

/// Between two changes of tables: a card may pause for each.
const TABLE_PAUSE: Duration = Duration::from_secs(1);

/// Why nothing can be moved any more.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The supervisor does not start.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The affinity of a line that was moved cannot be read.
    #[error(transparent)]
    Line(#[from] SettingError),
}

/// Moves sources, and takes that back when it is closed.
#[derive(Debug)]
pub struct Mover {
    /// `/`, or a test's own.
    root: PathBuf,
    session: SupervisedSession,
    /// By number.
    placed: BTreeMap<i32, (TaskRef, String)>,
    /// What the lines that an earlier `once` has moved were allowed before.
    standing: Originals,
    irqbalance: Beside,
    send_queues: SendQueues,
    /// When a table was changed last.
    table_changed: Option<Instant>,
}

/// What is done about irqbalance.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Beside {
    /// It does not run, or its lines stay.
    Yields,
    /// It is told to leave each moved line alone. These were told of all that are moved.
    TakesOver(Vec<Irqbalance>),
}

impl Mover {
    /// Takes back what killed processes left, and opens a journal. `takes_over`: irqbalance is told to
    /// leave the moved lines alone.
    ///
    /// # Errors
    /// All of [`JournalError`].
    pub fn open(
        directory: &Path,
        command: Vec<String>,
        supervisor: SupervisorCommand,
        takes_over: bool,
    ) -> Result<Self, JournalError> {
        undo_earlier(directory);
        let options = SessionOptions { command, ..SessionOptions::default() };
        let session = Session::open(directory, options)?;
        Ok(Self {
            root: "/".into(),
            session: SupervisedSession::new(session, supervisor),
            placed: BTreeMap::new(),
            standing: Originals::of(&Standing::read(directory)),
            irqbalance: if takes_over { Beside::TakesOver(Vec::new()) } else { Beside::Yields },
            send_queues: SendQueues::default(),
            table_changed: None,
        })
    }

    /// What the moved sources were allowed before.
    pub fn originals(&mut self) -> Originals {
        let session = self.session.session();
        let mut originals = self.standing.clone();
        session.lines().iter().for_each(|line| originals.add(line));
        for (number, (task, _)) in &self.placed {
            if let Ok(cpus) = session.allowed_cpus(task) {
                originals.threads.insert(*number, cpus);
            }
        }
        originals
    }

    /// Lets all moves stand when this process ends. Returns their journal.
    ///
    /// # Errors
    /// All of [`JournalError`]; everything is taken back then.
    pub fn persist(self) -> Result<PathBuf, JournalError> {
        self.session.persist()
    }

    /// Has every irqbalance that was started since leave alone what is moved.
    fn tell_new_irqbalance(&mut self) -> Result<(), JournalError> {
        let Beside::TakesOver(told) = &mut self.irqbalance else { return Ok(()) };
        let session = self.session.session();
        let lines = numbers_of_lines(session);
        // Nothing to tell, and to look for it takes a look at every process.
        if lines.is_empty() {
            return Ok(());
        }
        let running = find_irqbalance(&self.root);
        for one in running.iter().filter(|one| !told.contains(one)) {
            for line in &lines {
                match session.ban_line(one, *line) {
                    Err(BanError::Journal(why)) => return Err(why),
                    Err(why) => tracing::warn!("{why}; it may move line {line}"),
                    Ok(()) => {}
                }
            }
        }
        *told = running;
        Ok(())
    }

    /// Has irqbalance leave a line alone; or says why it does not.
    fn ban(&mut self, line: u32) -> Result<Option<String>, MoveError> {
        if self.irqbalance == Beside::Yields {
            return Ok(None);
        }
        for one in find_irqbalance(&self.root) {
            match self.session.supervised()?.ban_line(&one, line) {
                Err(BanError::Journal(why)) => return Err(why.into()),
                Err(why) => return Ok(Some(why.to_string())),
                Ok(()) => {}
            }
        }
        Ok(None)
    }

    /// Lets irqbalance move a line again, unless it has an affinity of ours.
    fn allow_unless_moved(&mut self, line: u32) {
        let session = self.session.session();
        if !numbers_of_lines(session).contains(&line) {
            session.allow_line(line);
        }
    }

    /// Takes everything back.
    pub fn close(self) -> UndoReport {
        self.session.close()
    }

    fn move_thread(&mut self, number: i32, step: &Move) -> Result<Outcome, MoveError> {
        let Some(task) = threads::find(number, &step.name) else { return Ok(Outcome::Nothing) };
        Ok(match self.session.supervised()?.place(&task, step.to) {
            Ok(Placed::Pinned) => {
                self.placed.insert(number, (task, step.name.clone()));
                Outcome::Moved
            }
            Ok(Placed::Unchanged) | Err(PlaceError::Gone { .. }) => Outcome::Nothing,
            Ok(Placed::Yielded { found, .. }) => Outcome::LetGo { found },
            Err(PlaceError::Journal(why)) => return Err(why.into()),
            Err(why) => Outcome::Refused { why: why.to_string() },
        })
    }
}

impl Actuator for Mover {
    type Error = MoveError;

    fn look(&mut self) -> Result<Vec<Change>, MoveError> {
        self.tell_new_irqbalance()?;
        let session = self.session.session();
        let before = numbers_of_lines(session);
        let lines = session.release_changed_lines()?;
        let after = numbers_of_lines(session);
        for line in before.difference(&after) {
            self.session.session().allow_line(*line);
            self.send_queues.restore(self.session.session(), *line);
        }
        let by_other = |LetGoLine { number, name, found }| {
            Change::ByOther(MovedByOther { source: SourceId::Line(number), name, found })
        };
        let set_back = |DisplacedLine { number, name, offline }| Change::SetBack {
            source: SourceId::Line(number),
            name,
            offline,
        };
        let let_go = lines.let_go.into_iter().map(by_other);
        let mut changes: Vec<Change> =
            let_go.chain(lines.displaced.into_iter().map(set_back)).collect();
        let session = self.session.session();
        self.placed.retain(|number, (task, name)| {
            let Some(cpu) = session.pinned_cpu(task) else { return false };
            // Its place: nothing is done but to look whether the thread is still there.
            match session.place(task, cpu) {
                Ok(Placed::Yielded { found, .. }) => {
                    let (source, name) = (SourceId::Thread(*number), name.clone());
                    changes.push(Change::ByOther(MovedByOther { source, name, found }));
                    false
                }
                Err(PlaceError::Gone { .. }) => false,
                _ => true,
            }
        });
        Ok(changes)
    }

    fn carry_out(&mut self, step: &Move) -> Result<Outcome, MoveError> {
        let line = match step.source {
            SourceId::Line(line) => line,
            SourceId::Thread(number) => return self.move_thread(number, step),
            SourceId::Napi(_) => return Ok(Outcome::Nothing),
        };
        if let Some(why) = self.ban(line)? {
            // Another irqbalance may have been told.
            self.allow_unless_moved(line);
            return Ok(Outcome::Refused { why });
        }
        let cpu = [step.to].into_iter().collect();
        let session = self.session.supervised()?;
        let outcome = match session.move_line(&self.root, line, &step.name, &cpu) {
            Ok(MovedLine::Moved) => Outcome::Moved,
            Ok(MovedLine::Unchanged | MovedLine::Gone) => Outcome::Nothing,
            Ok(MovedLine::LetGo { found }) => Outcome::LetGo { found },
            Err(SettingError::Journal(why)) => return Err(why.into()),
            // EPERM or EIO: a managed line, where the kernel does not show that before.
            Err(why) => Outcome::Refused { why: why.to_string() },
        };
        self.allow_unless_moved(line);
        match outcome {
            Outcome::Moved => {
                let session = self.session.supervised()?;
                self.send_queues.follow(session, &self.root, line, step)?;
            }
            Outcome::LetGo { .. } => self.send_queues.restore(self.session.session(), line),
            Outcome::Nothing | Outcome::Refused { .. } => {}
        }
        Ok(outcome)
    }

    fn spread(&mut self, step: &Spread) -> Result<Outcome, MoveError> {
        let mut table = match read_table(&self.root, &step.device) {
            Ok(Some(table)) => table,
            Ok(None) => return Ok(Outcome::Nothing),
            Err(why) => return Ok(Outcome::Refused { why: why.to_string() }),
        };
        for bucket in &step.buckets {
            match table.get_mut(*bucket as usize) {
                Some(queue) if *queue == step.from_queue => *queue = step.to_queue,
                // The table has been changed since this was planned.
                _ => return Ok(Outcome::Nothing),
            }
        }
        let passed = self.table_changed.map_or(TABLE_PAUSE, |changed| changed.elapsed());
        std::thread::sleep(TABLE_PAUSE.saturating_sub(passed));
        let session = self.session.supervised()?;
        let changed = session.change_table(&self.root, &step.device, &table);
        self.table_changed = Some(Instant::now());
        Ok(match changed {
            Ok(ChangedTable::Changed) => Outcome::Moved,
            Ok(ChangedTable::Unchanged | ChangedTable::Gone) => Outcome::Nothing,
            Ok(ChangedTable::LetGo) => {
                Outcome::Refused { why: "another process has changed it since".to_owned() }
            }
            Err(TableError::Journal(why)) => return Err(why.into()),
            Err(TableError::Device(why)) => Outcome::Refused { why: why.to_string() },
        })
    }
}

fn numbers_of_lines(session: &Session) -> BTreeSet<u32> {
    session.lines().iter().map(|line| line.number).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::decide::Reason;

    /// Lets this process stand for irqbalance below `root`; returns the list of lines that it leaves
    /// alone.
    fn irqbalance(root: &Path) -> Arc<Mutex<String>> {
        let pid = std::process::id();
        fs::create_dir_all(root.join("run/irqbalance")).unwrap();
        fs::create_dir_all(root.join(format!("proc/{pid}"))).unwrap();
        let status = fs::read("/proc/self/status").unwrap();
        fs::write(root.join(format!("proc/{pid}/status")), status).unwrap();
        let socket = root.join(format!("run/irqbalance/irqbalance{pid}.sock"));
        let listener = UnixListener::bind(socket).unwrap();
        let list = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&list);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 500];
                let length = stream.read(&mut bytes).unwrap();
                let request = std::str::from_utf8(&bytes[..length]).unwrap();
                let mut list = shared.lock().unwrap();
                match request.strip_prefix("settings ban irqs ") {
                    Some(lines) => *list = lines.replace("NONE", ""),
                    None => {
                        let lines = list.split_whitespace().map(|line| format!("IRQ {line} "));
                        let answer = format!("SLEEP 10 {}BANNED 0", lines.collect::<String>());
                        stream.write_all(answer.as_bytes()).unwrap();
                    }
                }
            }
        });
        list
    }

    /// A file that stands for a line's affinity.
    fn put_line(root: &Path, number: u32) -> PathBuf {
        for place in ["sys/kernel/irq", "proc/irq"] {
            fs::create_dir_all(root.join(place).join(number.to_string())).unwrap();
        }
        fs::write(root.join(format!("sys/kernel/irq/{number}/actions")), "eth0\n").unwrap();
        let file = root.join(format!("proc/irq/{number}/smp_affinity_list"));
        fs::write(&file, "0-1\n").unwrap();
        file
    }

    fn to_queue_1(buckets: &[u32]) -> Spread {
        Spread {
            device: "eth0".to_owned(),
            name: "eth0-0".to_owned(),
            from_queue: 0,
            to_queue: 1,
            from: 0,
            to: 1,
            buckets: buckets.to_vec(),
            of_buckets: 4,
            pct: 20.0,
            from_pct: 40.0,
            after_pct: 20.0,
        }
    }

    #[test]
    fn buckets_lead_to_another_queue_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("ethtool")).unwrap();
        let file = root.join("ethtool/eth0");
        fs::write(&file, "0 1 0 1 0 0").unwrap();
        let table = || fs::read_to_string(&file).unwrap().trim().to_owned();
        let mut mover = mover(root);
        let step = to_queue_1(&[2, 5]);
        let start = Instant::now();
        assert_eq!(mover.spread(&step).unwrap(), Outcome::Moved);
        assert_eq!(table(), "0 1 1 1 0 1");
        // What was planned for another table; a bucket or a device that is not there.
        assert_eq!(mover.spread(&step).unwrap(), Outcome::Nothing);
        assert_eq!(mover.spread(&to_queue_1(&[6])).unwrap(), Outcome::Nothing);
        let gone = Spread { device: "eth1".to_owned(), ..to_queue_1(&[0]) };
        assert_eq!(mover.spread(&gone).unwrap(), Outcome::Nothing);
        assert_eq!(mover.spread(&step.reversed()).unwrap(), Outcome::Moved);
        assert_eq!(table(), "0 1 0 1 0 0");
        assert!(start.elapsed() >= TABLE_PAUSE, "two changes in a second");
        assert_eq!(mover.spread(&step).unwrap(), Outcome::Moved);
        // Another process sets it.
        fs::write(&file, "0 0 0 0 0 0").unwrap();
        let outcome = mover.spread(&to_queue_1(&[0])).unwrap();
        assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
        let report = mover.close();
        assert!(report.is_clean() && report.restored_tables.is_empty(), "{report:?}");
        assert_eq!(table(), "0 0 0 0 0 0");
    }

    #[test]
    fn a_changed_table_is_taken_back_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("ethtool")).unwrap();
        let file = root.join("ethtool/eth0");
        fs::write(&file, "0 1 0 1").unwrap();
        let mut mover = mover(root);
        assert_eq!(mover.spread(&to_queue_1(&[0])).unwrap(), Outcome::Moved);
        let report = mover.close();
        assert_eq!(report.restored_tables, ["eth0"]);
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), "0 1 0 1");
    }

    /// Files that stand for the affinity of line 4, which is on CPUs 0 and 1, and for the CPUs of its
    /// send queue, which CPU 0 uses.
    fn put_line_with_queue(root: &Path) -> [PathBuf; 2] {
        let file = put_line(root, 4);
        fs::write(root.join("sys/kernel/irq/4/actions"), "eth0-TxRx-0\n").unwrap();
        let place = root.join("sys/devices/pci0");
        fs::create_dir_all(place.join("msi_irqs")).unwrap();
        fs::write(place.join("msi_irqs/4"), "").unwrap();
        let queue = root.join("sys/class/net/eth0/queues/tx-0");
        fs::create_dir_all(&queue).unwrap();
        std::os::unix::fs::symlink(&place, root.join("sys/class/net/eth0/device")).unwrap();
        fs::write(root.join("sys/class/net/eth0/ifindex"), "2\n").unwrap();
        let mask = queue.join("xps_cpus");
        fs::write(&mask, "1\n").unwrap();
        [file, mask]
    }

    /// Gives its device another name; returns the file of its send queue.
    fn rename(root: &Path) -> PathBuf {
        let devices = root.join("sys/class/net");
        fs::rename(devices.join("eth0"), devices.join("lan0")).unwrap();
        devices.join("lan0/queues/tx-0/xps_cpus")
    }

    fn value(file: &Path) -> String {
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// The move of that line.
    fn with_queue(to: u32) -> Move {
        Move { name: "eth0-TxRx-0".to_owned(), to, ..to_cpu_1(4) }
    }

    #[test]
    fn the_send_queue_of_a_line_follows_it_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let [file, mask] = put_line_with_queue(folder.path());
        let move_it = |mover: &mut Mover| {
            assert_eq!(mover.carry_out(&with_queue(1)).unwrap(), Outcome::Moved);
            assert_eq!((value(&file), value(&mask)), ("1".to_owned(), "2".to_owned()));
        };
        let mut mover = yielding(folder.path());
        move_it(&mut mover);
        // Another process moves the line: the send queue is as before.
        fs::write(&file, "0\n").unwrap();
        assert_eq!(mover.look().unwrap().len(), 1);
        assert_eq!((value(&file), value(&mask)), ("0".to_owned(), "1".to_owned()));
        fs::write(&file, "0-1\n").unwrap();
        move_it(&mut mover);
        // The same, and it is seen by the next move.
        fs::write(&file, "0\n").unwrap();
        let outcome = mover.carry_out(&with_queue(1)).unwrap();
        assert!(matches!(outcome, Outcome::LetGo { .. }), "{outcome:?}");
        assert_eq!((value(&file), value(&mask)), ("0".to_owned(), "1".to_owned()));
        fs::write(&file, "0-1\n").unwrap();
        move_it(&mut mover);
        // Back to its first CPU.
        assert_eq!(mover.carry_out(&with_queue(0)).unwrap(), Outcome::Moved);
        assert_eq!((value(&file), value(&mask)), ("0".to_owned(), "1".to_owned()));
        move_it(&mut mover);
        assert!(mover.close().is_clean());
        assert_eq!((value(&file), value(&mask)), ("0-1".to_owned(), "1".to_owned()));
    }

    #[test]
    fn a_send_queue_that_another_process_has_set_follows_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let [file, mask] = put_line_with_queue(folder.path());
        let mut mover = yielding(folder.path());
        assert_eq!(mover.carry_out(&with_queue(1)).unwrap(), Outcome::Moved);
        fs::write(&mask, "4\n").unwrap();
        for to in [0, 1, 0] {
            assert_eq!(mover.carry_out(&with_queue(to)).unwrap(), Outcome::Moved);
            assert_eq!((value(&file), value(&mask)), (to.to_string(), "4".to_owned()));
        }
        // Also by another name of its device.
        let mask = rename(folder.path());
        assert_eq!(mover.carry_out(&with_queue(1)).unwrap(), Outcome::Moved);
        assert_eq!(value(&mask), "4");
        assert!(mover.close().is_clean());
        // The same where the line is let go before the send queue is looked at.
        let folder = tempfile::tempdir().unwrap();
        let [file, mask] = put_line_with_queue(folder.path());
        let mut mover = yielding(folder.path());
        assert_eq!(mover.carry_out(&with_queue(1)).unwrap(), Outcome::Moved);
        fs::write(&mask, "4\n").unwrap();
        fs::write(&file, "0\n").unwrap();
        assert_eq!(mover.look().unwrap().len(), 1);
        fs::write(&file, "0-1\n").unwrap();
        assert_eq!(mover.carry_out(&with_queue(1)).unwrap(), Outcome::Moved);
        assert_eq!(value(&mask), "4");
        assert!(mover.close().is_clean());
        assert_eq!((value(&file), value(&mask)), ("0-1".to_owned(), "4".to_owned()));
    }

    #[test]
    fn a_send_queue_that_is_left_alone_is_known_by_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let [_, mask] = put_line_with_queue(root);
        put_line(root, 5);
        fs::write(root.join("sys/devices/pci0/msi_irqs/5"), "").unwrap();
        let other = root.join("sys/class/net/eth0/queues/tx-1/xps_cpus");
        fs::create_dir(other.parent().unwrap()).unwrap();
        fs::write(&other, "1\n").unwrap();
        let mut mover = yielding(root);
        let mut move_line = |line: u32, queue: u32, to| {
            let name = format!("eth0-TxRx-{queue}");
            fs::write(root.join(format!("sys/kernel/irq/{line}/actions")), &name).unwrap();
            let step = Move { source: SourceId::Line(line), name, ..with_queue(to) };
            assert_eq!(mover.carry_out(&step).unwrap(), Outcome::Moved);
            [value(&mask), value(&other)]
        };
        assert_eq!(move_line(4, 0, 1), ["2", "1"]);
        fs::write(&mask, "4\n").unwrap();
        assert_eq!(move_line(4, 0, 0), ["4", "1"]);
        // The queue gets another line, and another queue the line.
        assert_eq!(move_line(5, 0, 1), ["4", "1"]);
        assert_eq!(move_line(4, 1, 1), ["4", "2"]);
        // Another device gets the name.
        fs::write(root.join("sys/class/net/eth0/ifindex"), "3\n").unwrap();
        assert_eq!(move_line(5, 0, 0), ["1", "2"]);
        assert!(mover.close().is_clean());
    }

    #[test]
    fn the_send_queue_of_a_renamed_device_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let [_, mask] = put_line_with_queue(folder.path());
        let mut mover = yielding(folder.path());
        assert_eq!(mover.carry_out(&with_queue(1)).unwrap(), Outcome::Moved);
        assert_eq!(value(&mask), "2");
        let mask = rename(folder.path());
        assert!(mover.close().is_clean());
        assert_eq!(value(&mask), "1");
    }

    /// One that leaves irqbalance alone.
    fn yielding(root: &Path) -> Mover {
        let mut mover = Mover::open(root, Vec::new(), |_| None, false).unwrap();
        mover.root = root.to_owned();
        mover
    }

    fn mover(root: &Path) -> Mover {
        let mut mover = Mover::open(root, Vec::new(), |_| None, true).unwrap();
        mover.root = root.to_owned();
        mover
    }

    fn to_cpu_1(line: u32) -> Move {
        Move {
            source: SourceId::Line(line),
            name: "eth0".to_owned(),
            from: 0,
            to: 1,
            reason: Reason::Level,
            pct: 20.0,
            from_pct: 40.0,
            after_pct: 20.0,
        }
    }

    #[test]
    fn irqbalance_leaves_alone_only_lines_that_are_moved() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let list = irqbalance(root);
        let list = || list.lock().unwrap().clone();
        let mut mover = mover(root);
        let [first, second] = [4, 5].map(|line| put_line(root, line));
        assert_eq!(mover.carry_out(&to_cpu_1(4)).unwrap(), Outcome::Moved);
        assert_eq!(mover.carry_out(&to_cpu_1(5)).unwrap(), Outcome::Moved);
        assert_eq!(mover.carry_out(&to_cpu_1(5)).unwrap(), Outcome::Nothing);
        assert_eq!(list(), "4 5");
        // There is no such line.
        assert_eq!(mover.carry_out(&to_cpu_1(6)).unwrap(), Outcome::Nothing);
        assert_eq!(list(), "4 5");
        // Another process moves them.
        fs::write(first, "0\n").unwrap();
        let outcome = mover.carry_out(&to_cpu_1(4)).unwrap();
        assert!(matches!(outcome, Outcome::LetGo { .. }), "{outcome:?}");
        assert_eq!(list(), "5");
        fs::write(second, "0\n").unwrap();
        assert_eq!(mover.look().unwrap().len(), 1);
        assert_eq!(list(), "");
        assert!(mover.close().is_clean());
    }
}
