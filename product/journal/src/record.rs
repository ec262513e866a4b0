//! One line of a journal: a JSON object whose last member is the CRC-32 (IEEE, hexadecimal) of
//! all text before that member, so that a torn or altered line is seen and never acted upon.
//!
//! ```text
//! {"header":{"version":1,"boot_id":"..","pid_ns":..,"writer":{..},"adopter":{..},"command":[..]},"sum":"1c291ca3"}
//! {"program":{"root":{"tid":7,"tgid":7,"start":99},"session":7},"sum":"..."}
//! {"pin":{"id":1,"task":{..},"process":{..},"original":"all","replaces":null,"set":"1",..},"sum":"..."}
//! {"restored":{"id":1,"time_ns":..},"sum":"..."}
//! {"setting":{"file":"/proc/sys/..","net_ns":..,"before":"0","set":"1","time_ns":..},"sum":"..."}
//! ```

use evenkeel_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::affinity::Original;
use crate::setting::{Setting, SettingClosed};
use crate::task::TaskRef;

/// Version of the format; another one is left alone.
pub(crate) const VERSION: u32 = 1;

/// Longest line that is believed to be ours, in bytes. Three lists of every second of 8,192 CPUs
/// are 60 KiB.
pub(crate) const MAX_LINE_BYTES: usize = 256 * 1024;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// The first line.
    Header(Header),
    /// A program that the session looks after.
    Program(Program),
    /// An affinity that is about to be set.
    Pin(Pin),
    /// The original was given back.
    Restored(Closed),
    /// Somebody else changed the mask: let go.
    Yielded(Closed),
    /// Compaction: what one process held before.
    Held(Held),
    /// A knob of the kernel that is about to be turned.
    Setting(Setting),
    /// It was turned back, or somebody else has turned it.
    SettingClosed(SettingClosed),
}

/// Whose journal this is, and where it is valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// `/proc/sys/kernel/random/boot_id`: void after a reboot.
    pub boot_id: String,
    /// Inode of `/proc/self/ns/pid`: process numbers mean nothing in another one.
    pub pid_ns: u64,
    /// Inode of `/proc/self/ns/time` (0: none): start times differ in another one.
    pub time_ns: u64,
    /// The process that writes it.
    pub writer: TaskRef,
    /// The process that adopts orphans of the writer and its programs, if that is known.
    pub adopter: Option<TaskRef>,
    /// Its command line, for people.
    pub command: Vec<String>,
}

/// The first process of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The process.
    pub root: TaskRef,
    /// Its session: orphans of the program keep it.
    pub session: i32,
}

/// Written before an affinity is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pin {
    /// Number of the task in this journal; the last pin of an id counts.
    pub id: u64,
    /// The thread.
    pub task: TaskRef,
    /// The leader of its process.
    pub process: TaskRef,
    /// What the user gave it.
    pub original: Original,
    /// The mask of ours that it has now and that this one replaces; none if it has its own.
    pub replaces: Option<CpuSet>,
    /// The mask that is set next.
    pub set: CpuSet,
    /// Clock of `CLOCK_BOOTTIME`.
    pub time_ns: u64,
}

/// The end of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closed {
    /// Of the pin.
    pub id: u64,
    /// Clock of `CLOCK_BOOTTIME`.
    pub time_ns: u64,
}

/// A mask that threads of one process held for a time: what a child may have inherited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The process.
    pub process: TaskRef,
    /// The mask.
    pub mask: CpuSet,
    /// What its holder had before.
    pub original: Original,
    /// Since when.
    pub from_ns: u64,
    /// Until when, if nobody holds it any more.
    pub until_ns: u64,
    /// How many threads hold it now; not written, counted from the pins.
    #[serde(skip)]
    pub holders: u32,
}

/// Start of the last member.
const SUM_KEY: &str = ",\"sum\":\"";
/// Length of the last member with the closing brace.
const SUM_LEN: usize = SUM_KEY.len() + 8 + 2;

impl Record {
    /// The line, with its line feed.
    ///
    /// # Errors
    /// None in practice: every field has a JSON form.
    pub fn encode(&self) -> Result<String, serde_json::Error> {
        let mut line = serde_json::to_string(self)?;
        line.pop();
        let sum = crc32(line.as_bytes());
        line.push_str(&format!("{SUM_KEY}{sum:08x}\"}}\n"));
        Ok(line)
    }

    /// The record of a line (without its line feed), or what is wrong with the line.
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
        let record: Self =
            serde_json::from_str(&format!("{body}}}")).map_err(|error| error.to_string())?;
        record.check()?;
        Ok(record)
    }

    /// Thread number 0 would mean "the caller" to the kernel, and an empty mask nothing at all.
    fn check(&self) -> Result<(), String> {
        let tasks: Vec<&TaskRef> = match self {
            Self::Header(header) => vec![&header.writer],
            Self::Program(program) => vec![&program.root],
            Self::Pin(pin) => vec![&pin.task, &pin.process],
            Self::Held(held) => vec![&held.process],
            Self::Restored(_) | Self::Yielded(_) | Self::Setting(_) | Self::SettingClosed(_) => {
                vec![]
            }
        };
        if tasks.iter().any(|task| task.tid <= 0 || task.tgid <= 0) {
            return Err("it names a process number below 1".into());
        }
        let (mask, original) = match self {
            Self::Pin(pin) => (&pin.set, &pin.original),
            Self::Held(held) => (&held.mask, &held.original),
            _ => return Ok(()),
        };
        if mask.is_empty() || matches!(original, Original::Mask(mask) if mask.is_empty()) {
            return Err("it names an empty set of CPUs".into());
        }
        Ok(())
    }
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

    fn original() -> impl Strategy<Value = Original> {
        prop_oneof![Just(Original::All), mask().prop_map(Original::Mask)]
    }

    pub(crate) fn record() -> impl Strategy<Value = Record> {
        let closed = (any::<u64>(), any::<u64>()).prop_map(|(id, time_ns)| Closed { id, time_ns });
        prop_oneof![
            (".*", any::<u64>(), task(), prop::collection::vec(".*", 0..4)).prop_map(
                |(boot_id, pid_ns, writer, command)| Record::Header(Header {
                    version: VERSION,
                    boot_id,
                    pid_ns,
                    time_ns: pid_ns ^ 1,
                    writer,
                    adopter: (pid_ns % 2 == 0).then_some(writer),
                    command
                })
            ),
            (task(), any::<i32>())
                .prop_map(|(root, session)| Record::Program(Program { root, session })),
            (any::<u64>(), task(), original(), prop::option::of(mask()), mask(), any::<u64>())
                .prop_map(|(id, task, original, replaces, set, time_ns)| Record::Pin(Pin {
                    id,
                    task,
                    process: task,
                    original,
                    replaces,
                    set,
                    time_ns
                })),
            closed.clone().prop_map(Record::Restored),
            closed.prop_map(Record::Yielded),
            (".*", ".*", ".*", any::<u64>(), any::<u64>()).prop_map(
                |(file, before, set, net_ns, time_ns)| Record::Setting(Setting {
                    file: file.into(),
                    net_ns,
                    before,
                    set,
                    time_ns
                })
            ),
            (".*", any::<u64>()).prop_map(|(file, time_ns)| Record::SettingClosed(SettingClosed {
                file: file.into(),
                time_ns
            })),
            (task(), mask(), original(), any::<u64>(), any::<u64>()).prop_map(
                |(process, mask, original, from_ns, until_ns)| Record::Held(Held {
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
    fn numbers_that_mean_somebody_else_are_refused() {
        let task = TaskRef { tid: 0, tgid: 5, start_time_ticks: 1 };
        let line = Record::Program(Program { root: task, session: 1 }).encode().unwrap();
        assert!(Record::decode(line.trim_end().as_bytes()).unwrap_err().contains("below 1"));
    }

    proptest! {
        #[test]
        fn a_line_is_one_line_and_comes_back(record in record()) {
            let line = record.encode().unwrap();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert!(line.len() <= MAX_LINE_BYTES);
            // A JSON object for other tools, too.
            prop_assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
            prop_assert_eq!(Record::decode(line.trim_end_matches('\n').as_bytes()), Ok(record));
        }

        #[test]
        fn an_altered_or_torn_line_is_never_believed(
            record in record(), at in any::<prop::sample::Index>(), flip in 1u8..=255, cut in any::<bool>()
        ) {
            let mut line = record.encode().unwrap().into_bytes();
            line.pop();
            let at = at.index(line.len());
            if cut { line.truncate(at) } else { line[at] ^= flip }
            prop_assert!(Record::decode(&line).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Record::decode(&bytes);
        }
    }
}
