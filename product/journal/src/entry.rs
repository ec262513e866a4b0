//! One entry of a journal is one line: a JSON object. Its last member is the CRC-32 (IEEE, hexadecimal)
//! of all text before that member. A torn or altered line does not match its checksum
//! and is never acted upon.
//!
//! ```text
//! {"header":{"version":1,"boot_id":"..","pid_ns":..,"writer":{..},"adopter":{..},..},"sum":"1c291ca3"}
//! {"program":{"root":{"tid":7,"tgid":7,"start":99},"session":7},"sum":"..."}
//! {"pin":{"id":1,"task":{..},"process":{..},"original":"all","replaces":null,"set":"1",..},"sum":"..."}
//! {"restored":{"id":1,"time_ns":..},"sum":"..."}
//! {"setting":{"file":"/proc/sys/..","net_ns":..,"before":"0","set":"1","time_ns":..},"sum":"..."}
//! {"setting":{"file":"/sys/class/net/..","index":2,"net_ns":..,"before":"1",..},"sum":"..."}
//! {"line":{"root":"/","number":4,"name":"ttyS0","before":"0-1",..,"set":"1","time_ns":..},"sum":"..."}
//! {"table":{"root":"/","device":"eth0","index":2,"before":[0,1],..,"set":[1,1],..},"sum":"..."}
//! {"ban":{"process":{..},"socket":"/run/irqbalance/irqbalance812.sock","line":4,..},"sum":"..."}
//! {"persistent":{"time_ns":..},"sum":"..."}
//! ```
//!
//! Every `time_ns` is nanoseconds of CLOCK_BOOTTIME, the clock of the start times in /proc.

use std::path::PathBuf;

use evenkeel_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::affinity::Original;
use crate::task::TaskRef;

/// Version of the format; a journal of another version is left alone.
pub(crate) const VERSION: u32 = 1;

/// Longest line that is read, in bytes: three lists of every second of 8,192 CPUs are 60 KiB.
pub(crate) const MAX_LINE_BYTES: usize = 256 * 1024;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// The first line.
    Header(Header),
    /// A program that the session balances.
    Program(Program),
    /// An affinity that is about to be set.
    Pin(Pin),
    /// The thread has its own mask again.
    Restored(PinEnd),
    /// Another process changed the mask: the thread is let go.
    Yielded(PinEnd),
    /// Written by compaction: a mask that threads of one process had for a time.
    Held(Held),
    /// A setting that is about to be changed.
    Setting(Setting),
    /// The setting was restored, or another process has changed it.
    SettingClosed(SettingEnd),
    /// An interrupt line's affinity that is about to be set.
    Line(Line),
    /// The line has its affinity of before, another process has changed it, or the line is gone.
    LineClosed(LineEnd),
    /// An RSS indirection table that is about to be set.
    Table(Table),
    /// The device has its table of before, another process has changed it, or the device is gone.
    TableClosed(TableEnd),
    /// A line that irqbalance is about to be told to leave alone.
    Ban(Ban),
    /// irqbalance may move the line again, or has ended.
    BanClosed(BanEnd),
    /// From here on the changes outlive their writer: only a user's own undo takes them back.
    Persistent(Persistent),
}

/// The writer of a journal, and where the journal is valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id`: void after a reboot.
    pub boot_id: String,
    /// Inode of `/proc/self/ns/pid`: process numbers mean other processes elsewhere.
    pub pid_ns: u64,
    /// Inode of `/proc/self/ns/time` (0: none): start times differ elsewhere.
    pub time_ns: u64,
    /// The process that writes the journal.
    pub writer: TaskRef,
    /// The process that adopts orphans of the writer and its programs, if it is known.
    #[serde(rename = "adopter")]
    pub reaper: Option<TaskRef>,
    /// The writer's command line, for people.
    pub command: Vec<String>,
}

/// The first process of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The process.
    pub root: TaskRef,
    /// Its session id: orphans of the program keep it.
    pub session: i32,
}

/// Written before an affinity is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Number of the thread in this journal; the last pin of an id counts.
    pub id: u64,
    /// The thread.
    pub task: TaskRef,
    /// The leader of its process.
    pub process: TaskRef,
    /// What the user gave the thread.
    pub original: Original,
    /// The mask of ours that the thread has now and that this pin replaces; `None` if it has its
    /// own.
    pub replaces: Option<CpuSet>,
    /// The mask that is set next.
    pub set: CpuSet,
    /// When the entry was written.
    pub time_ns: u64,
}

/// The end of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinEnd {
    /// [`Pin::id`].
    pub id: u64,
    /// When the entry was written.
    pub time_ns: u64,
}

/// A mask that threads of one process had for a time: what a child may have inherited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The process.
    pub process: TaskRef,
    /// The mask.
    pub mask: CpuSet,
    /// What the threads had before.
    pub original: Original,
    /// When the first thread got the mask.
    pub from_ns: u64,
    /// When the last thread lost it; meaningful only while `holders` is 0.
    pub until_ns: u64,
    /// How many threads have the mask now; not written, counted from the pins.
    #[serde(skip)]
    pub holders: u32,
}

/// Written before a setting of the kernel is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The file in /proc/sys or /sys.
    pub file: PathBuf,
    /// The number of its network device, which may be renamed; `None`: it is known by its path alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Inode of the writer's network namespace: the same path is another setting elsewhere.
    pub net_ns: u64,
    /// Its value before, without surrounding white space.
    pub before: String,
    /// The value that is written next.
    pub set: String,
    /// When the entry was written.
    pub time_ns: u64,
}

/// The setting is no longer ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingEnd {
    /// The file in /proc/sys or /sys.
    pub file: PathBuf,
    /// When the entry was written.
    pub time_ns: u64,
}

/// Written before an interrupt line's affinity is set. /proc/irq is the same in all namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// `/`, or a test's own directory: below it are `proc/irq` and `sys/kernel/irq`.
    pub root: PathBuf,
    /// The line's number.
    pub number: u32,
    /// The names of its handlers: the kernel gives a number to another line once it is free.
    pub name: String,
    /// Its affinity before this session changed it.
    pub before: CpuSet,
    /// The affinity of ours that the line has now; `None`: it has that of before.
    pub replaces: Option<CpuSet>,
    /// The affinity that is set next.
    pub set: CpuSet,
    /// When the entry was written.
    pub time_ns: u64,
}

/// The line's affinity is no longer ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineEnd {
    /// [`Line::root`].
    pub root: PathBuf,
    /// [`Line::number`].
    pub number: u32,
    /// When the entry was written.
    pub time_ns: u64,
}

/// Written before the RSS indirection table of a network device is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// `/`, or a test's own directory: below it is a file for each device, `ethtool/NAME`.
    pub root: PathBuf,
    /// The device's name.
    pub device: String,
    /// Its number in its network namespace: a name may become another device's.
    pub index: u32,
    /// Inode of the writer's network namespace: the same name is another device elsewhere.
    pub net_ns: u64,
    /// The queue of each bucket before this session changed any.
    pub before: Vec<u32>,
    /// The table of ours that the device has now; `None`: it has that of before.
    pub replaces: Option<Vec<u32>>,
    /// The table that is set next.
    pub set: Vec<u32>,
    /// When the entry was written.
    pub time_ns: u64,
}

/// The device's table is no longer ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEnd {
    /// [`Table::root`].
    pub root: PathBuf,
    /// [`Table::device`].
    pub device: String,
    /// When the entry was written.
    pub time_ns: u64,
}

/// Written before irqbalance is told to leave a line alone (its word: to ban the line).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ban {
    /// The process of irqbalance: its list of lines ends with it.
    pub process: TaskRef,
    /// Its socket: a path, or `@` and an abstract name.
    pub socket: String,
    /// The line's number.
    pub line: u32,
    /// When the entry was written.
    pub time_ns: u64,
}

/// The line is no longer in irqbalance's list because of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BanEnd {
    /// [`Ban::process`].
    pub process: TaskRef,
    /// [`Ban::line`].
    pub line: u32,
    /// When the entry was written.
    pub time_ns: u64,
}

/// Written once all changes are made that are to outlive their writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persistent {
    /// When the entry was written.
    pub time_ns: u64,
}

/// Start of the last member, the checksum.
const SUM_KEY: &str = ",\"sum\":\"";
/// Length of the last member with the closing brace, in bytes.
const SUM_LEN: usize = SUM_KEY.len() + 8 + 2;

impl Entry {
    /// The line, with its line feed.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn encode(&self) -> Result<String, serde_json::Error> {
        let mut object = serde_json::to_string(self)?;
        object.pop();
        Ok(Self::seal(object))
    }

    /// The line of a JSON object without its closing brace: adds the checksum.
    pub fn seal(mut object: String) -> String {
        let sum = crc32(object.as_bytes());
        object.push_str(&format!("{SUM_KEY}{sum:08x}\"}}\n"));
        object
    }

    /// The entry of a line (without its line feed).
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn decode(line: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(line).map_err(|_| "it is not text".to_owned())?;
        let body_len = text.len().checked_sub(SUM_LEN).ok_or("it is too short")?;
        let (Some(body), Some(tail)) = (text.get(..body_len), text.get(body_len..)) else {
            return Err("it has no checksum".into());
        };
        let sum = tail
            .strip_prefix(SUM_KEY)
            .and_then(|tail| tail.strip_suffix("\"}"))
            .ok_or("it has no checksum")?;
        if format!("{:08x}", crc32(body.as_bytes())) != sum {
            return Err("its checksum does not match: it is torn or was altered".into());
        }
        let entry: Self =
            serde_json::from_str(&format!("{body}}}")).map_err(|error| error.to_string())?;
        entry.check()?;
        Ok(entry)
    }

    /// Refuses what the kernel would take for something else: thread number 0 means "the caller".
    fn check(&self) -> Result<(), String> {
        let tasks: Vec<&TaskRef> = match self {
            Self::Header(header) => vec![&header.writer],
            Self::Program(program) => vec![&program.root],
            Self::Pin(pin) => vec![&pin.task, &pin.process],
            Self::Held(held) => vec![&held.process],
            Self::Ban(ban) => vec![&ban.process],
            Self::BanClosed(end) => vec![&end.process],
            Self::Restored(_)
            | Self::Yielded(_)
            | Self::Setting(_)
            | Self::SettingClosed(_)
            | Self::Line(_)
            | Self::LineClosed(_)
            | Self::Table(_)
            | Self::TableClosed(_)
            | Self::Persistent(_) => vec![],
        };
        if tasks.iter().any(|task| task.tid <= 0 || task.tgid <= 0) {
            return Err("it names a process number below 1".into());
        }
        if let Self::Table(table) = self
            && (table.set.is_empty() || table.before.len() != table.set.len())
        {
            return Err("it names a table without buckets, or two of different sizes".into());
        }
        let masks = match self {
            Self::Pin(pin) => [Some(&pin.set), mask_of(&pin.original)],
            Self::Held(held) => [Some(&held.mask), mask_of(&held.original)],
            Self::Line(line) => [Some(&line.set), Some(&line.before)],
            _ => return Ok(()),
        };
        if masks.into_iter().flatten().any(CpuSet::is_empty) {
            return Err("it names an empty set of CPUs".into());
        }
        Ok(())
    }
}

fn mask_of(original: &Original) -> Option<&CpuSet> {
    match original {
        Original::All => None,
        Original::Mask(mask) => Some(mask),
    }
}

/// The valid entries of a journal's text, and whether any other line is damaged; `note_damage` gets the
/// number and the fault of each such line. A last line without its line feed does not count as damage
/// here, though it is noted: what it announces was never done. After a damaged first line nothing is
/// read.
pub fn parse_entries(bytes: &[u8], mut note_damage: impl FnMut(u64, String)) -> (Vec<Entry>, bool) {
    let mut entries = Vec::new();
    let mut has_damage = false;
    let ends_whole = bytes.ends_with(b"\n");
    let lines: Vec<&[u8]> =
        bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|b| *b == b'\n').collect();
    for (index, line) in lines.iter().enumerate() {
        let result = if line.len() > MAX_LINE_BYTES {
            Err("it is longer than any entry".to_owned())
        } else {
            Entry::decode(line)
        };
        let is_first = index == 0;
        match result {
            Ok(Entry::Header(_)) if !is_first => {
                note_damage(index as u64 + 1, "a second header".into());
                has_damage = true;
            }
            Ok(entry) => entries.push(entry),
            Err(why) => {
                note_damage(index as u64 + 1, why);
                has_damage |= is_first || ends_whole || index + 1 < lines.len();
                if is_first {
                    break;
                }
            }
        }
    }
    (entries, has_damage)
}

/// CRC-32 as in zlib, gzip and PNG; bit by bit, for a few hundred bytes.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 }
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task() -> impl Strategy<Value = TaskRef> {
        (1..i32::MAX, 1..i32::MAX, any::<u64>()).prop_map(|(tid, tgid, start_time_ticks)| TaskRef {
            tid,
            tgid,
            start_time_ticks,
        })
    }

    fn mask() -> impl Strategy<Value = CpuSet> {
        prop::collection::btree_set(0u32..=evenkeel_machine::MAX_CPU, 1..20)
            .prop_map(|cpus| cpus.into_iter().collect())
    }

    fn buckets() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0u32..1024, 1..300)
    }

    fn original() -> impl Strategy<Value = Original> {
        prop_oneof![Just(Original::All), mask().prop_map(Original::Mask)]
    }

    pub(crate) fn entry() -> impl Strategy<Value = Entry> {
        let closed = (any::<u64>(), any::<u64>()).prop_map(|(id, time_ns)| PinEnd { id, time_ns });
        prop_oneof![
            (".*", any::<u64>(), task(), prop::collection::vec(".*", 0..4)).prop_map(
                |(boot_id, pid_ns, writer, command)| Entry::Header(Header {
                    version: VERSION,
                    boot_id,
                    pid_ns,
                    time_ns: pid_ns ^ 1,
                    writer,
                    reaper: (pid_ns % 2 == 0).then_some(writer),
                    command
                })
            ),
            (task(), any::<i32>())
                .prop_map(|(root, session)| Entry::Program(Program { root, session })),
            (any::<u64>(), task(), original(), prop::option::of(mask()), mask(), any::<u64>())
                .prop_map(|(id, task, original, replaces, set, time_ns)| Entry::Pin(Pin {
                    id,
                    task,
                    process: task,
                    original,
                    replaces,
                    set,
                    time_ns
                })),
            closed.clone().prop_map(Entry::Restored),
            closed.prop_map(Entry::Yielded),
            (".*", ".*", ".*", any::<u64>(), any::<u64>()).prop_map(
                |(file, before, set, net_ns, time_ns)| Entry::Setting(Setting {
                    file: file.into(),
                    index: (net_ns % 2 == 0).then_some(time_ns as u32),
                    net_ns,
                    before,
                    set,
                    time_ns
                })
            ),
            (".*", any::<u64>()).prop_map(|(file, time_ns)| Entry::SettingClosed(SettingEnd {
                file: file.into(),
                time_ns
            })),
            (".*", any::<u32>(), ".*", mask(), prop::option::of(mask()), mask(), any::<u64>())
                .prop_map(|(root, number, name, before, replaces, set, time_ns)| {
                    let root = root.into();
                    Entry::Line(Line { root, number, name, before, replaces, set, time_ns })
                }),
            (".*", any::<u32>(), any::<u64>()).prop_map(|(root, number, time_ns)| {
                Entry::LineClosed(LineEnd { root: root.into(), number, time_ns })
            }),
            (".*", ".*", any::<u32>(), any::<bool>(), buckets(), any::<u64>()).prop_map(
                |(root, device, index, is_second, set, time_ns)| {
                    let before: Vec<u32> = set.iter().map(|queue| queue ^ 1).collect();
                    Entry::Table(Table {
                        root: root.into(),
                        device,
                        index,
                        net_ns: time_ns ^ 1,
                        replaces: is_second.then(|| before.clone()),
                        before,
                        set,
                        time_ns,
                    })
                }
            ),
            (".*", ".*", any::<u64>()).prop_map(|(root, device, time_ns)| {
                Entry::TableClosed(TableEnd { root: root.into(), device, time_ns })
            }),
            (task(), ".*", any::<u32>(), any::<u64>()).prop_map(
                |(process, socket, line, time_ns)| Entry::Ban(Ban {
                    process,
                    socket,
                    line,
                    time_ns
                })
            ),
            (task(), any::<u32>(), any::<u64>()).prop_map(|(process, line, time_ns)| {
                Entry::BanClosed(BanEnd { process, line, time_ns })
            }),
            any::<u64>().prop_map(|time_ns| Entry::Persistent(Persistent { time_ns })),
            (task(), mask(), original(), any::<u64>(), any::<u64>()).prop_map(
                |(process, mask, original, from_ns, until_ns)| Entry::Held(Held {
                    process,
                    mask,
                    original,
                    from_ns,
                    until_ns,
                    holders: 0
                })
            ),
        ]
    }

    #[test]
    fn checksum_is_the_common_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn process_number_0_is_refused() {
        let task = TaskRef { tid: 0, tgid: 5, start_time_ticks: 1 };
        let line = Entry::Program(Program { root: task, session: 1 }).encode().unwrap();
        assert!(Entry::decode(line.trim_end().as_bytes()).unwrap_err().contains("below 1"));
    }

    #[test]
    fn a_table_without_buckets_is_refused() {
        let table = |before: &[u32], set: &[u32]| {
            let table = Table {
                root: "/".into(),
                device: "eth0".to_owned(),
                index: 2,
                net_ns: 1,
                before: before.to_vec(),
                replaces: None,
                set: set.to_vec(),
                time_ns: 1,
            };
            let line = Entry::Table(table).encode().unwrap();
            Entry::decode(line.trim_end().as_bytes())
        };
        assert!(table(&[0, 1], &[1, 1]).is_ok());
        for (before, set) in [(&[][..], &[][..]), (&[0], &[0, 1])] {
            assert!(table(before, set).unwrap_err().contains("without buckets"));
        }
    }

    #[test]
    fn the_longest_tables_fit_a_line() {
        let longest = vec![u32::from(u16::MAX); 8192];
        let table = Table {
            root: "/".into(),
            device: "eth0".to_owned(),
            index: 2,
            net_ns: 1,
            before: longest.clone(),
            replaces: Some(longest.clone()),
            set: longest,
            time_ns: 1,
        };
        assert!(Entry::Table(table).encode().unwrap().len() <= MAX_LINE_BYTES);
    }

    proptest! {
        #[test]
        fn a_line_is_one_line_and_comes_back(entry in entry()) {
            let line = entry.encode().unwrap();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert!(line.len() <= MAX_LINE_BYTES);
            // A JSON object for other tools, too.
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
            prop_assert_eq!(Entry::decode(line.trim_end_matches('\n').as_bytes()), Ok(entry));
        }

        #[test]
        fn an_altered_or_torn_line_is_never_believed(
            entry in entry(), at in any::<prop::sample::Index>(), flip in 1u8..=255, cut in any::<bool>()
        ) {
            let mut line = entry.encode().unwrap().into_bytes();
            line.pop();
            let at = at.index(line.len());
            if cut { line.truncate(at) } else { line[at] ^= flip }
            prop_assert!(Entry::decode(&line).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Entry::decode(&bytes);
        }
    }
}
