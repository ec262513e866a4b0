//! Writes a tape of the keel on a real kernel, by BPF programs before and after each of its callbacks
//! and after each kernel function that it calls (`lab/bpf/recorder.bpf.c`). It knows the functions of
//! Linux 6.18. The keel itself does not know that it is recorded.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::rc::Rc;

use evenkeel_keel::{InitialData, Options, Scheduler, TopologyError};
use evenkeel_machine::Machine;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use crate::tape::{Callback, Entry, Kind, MOST_CPUS, Tape, TapeError};

/// Why nothing can be recorded, or the recording was lost.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// libbpf or the kernel refused.
    #[error("recorder: {what}: {source} (it needs Linux 6.18, with BTF and BPF trampolines)")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// The error of libbpf.
        source: libbpf_rs::Error,
    },
    /// The machine has more CPUs than a mask on the tape holds.
    #[error(
        "recorder: {0} CPU numbers, and a tape holds masks of {MOST_CPUS}: record on a smaller machine"
    )]
    TooManyCpus(u32),
    /// The BPF object lacks a part that this version needs.
    #[error("recorder: the BPF object has no {0}: rebuild evenkeel-lab")]
    Missing(&'static str),
    /// The tape has gaps.
    #[error(
        "recorder: {0} entries found the buffer full: record for a shorter time, or under less load"
    )]
    Lost(u64),
    /// The keel does not fit the machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The tape cannot be written.
    #[error(transparent)]
    Tape(#[from] TapeError),
}

fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> RecorderError {
    move |source| RecorderError::Bpf { what, source }
}

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/recorder.bpf.o")));

/// The entries so far. Each task has a number in them in place of its address, because the kernel may
/// give the address to another task later.
#[derive(Default)]
struct Entries {
    entries: Vec<Entry>,
    /// The number of each task that lives, by address.
    numbers: BTreeMap<u64, u64>,
    last_number: u64,
}

impl Entries {
    fn append(&mut self, mut entry: Entry) {
        let address = entry.task;
        if address != 0 {
            let last = &mut self.last_number;
            entry.task = *self.numbers.entry(address).or_insert_with(|| {
                *last += 1;
                *last
            });
        }
        if (entry.kind, entry.id) == (Kind::Leave as u8, Callback::ExitTask as u8) {
            self.numbers.remove(&address);
        }
        self.entries.push(entry);
    }
}

/// Records while it exists.
pub(crate) struct Recorder {
    object: Object,
    _links: Vec<Link>,
    buffer: RingBuffer<'static>,
    entries: Rc<RefCell<Entries>>,
    scheduler: String,
    data: InitialData,
}

impl Recorder {
    /// Attaches to the callbacks of the keel, which is loaded with these options and does not schedule
    /// yet: a tape begins with the keel's first callback.
    pub fn attach(
        keel: &Scheduler,
        machine: &Machine,
        options: &Options,
    ) -> Result<Self, RecorderError> {
        let data = InitialData::new(machine, options)?;
        if data.cpus > MOST_CPUS {
            return Err(RecorderError::TooManyCpus(data.cpus));
        }
        let keel = keel.object();
        let mut open = ObjectBuilder::default()
            .name("recorder")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf("opening the object"))?;
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let callback = name.strip_prefix("enter_").or_else(|| name.strip_prefix("leave_"));
            let Some(callback) = callback else { continue };
            let target = format!("keel_{callback}");
            match keel.progs().find(|program| program.name() == target.as_str()) {
                Some(found) => program
                    .set_attach_target(found.as_fd().as_raw_fd(), Some(target))
                    .map_err(bpf("naming a callback"))?,
                None => return Err(RecorderError::Missing("program for a callback")),
            }
        }
        let object = open.load().map_err(bpf("loading"))?;
        let entries = Rc::new(RefCell::new(Entries::default()));
        let buffer = {
            let map = object.maps().find(|map| map.name() == "entries");
            let map = map.ok_or(RecorderError::Missing("entries"))?;
            let entries = Rc::clone(&entries);
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&map, move |bytes| {
                    if let Ok(entry) = bytemuck::try_pod_read_unaligned::<Entry>(bytes) {
                        entries.borrow_mut().append(entry);
                    }
                    0
                })
                .map_err(bpf("opening the buffer"))?;
            builder.build().map_err(bpf("opening the buffer"))?
        };
        let links: Result<Vec<Link>, _> =
            object.progs_mut().map(|program| program.attach_trace()).collect();
        let links = links.map_err(bpf("attaching"))?;
        let Options { order, gate, balance, .. } = options;
        let scheduler = format!("{order}/{gate}/{balance}");
        Ok(Self { object, _links: links, buffer, entries, scheduler, data })
    }

    /// Takes the entries from the buffer, so that it does not run full.
    pub fn empty_buffer(&self) -> Result<(), RecorderError> {
        self.buffer.consume().map_err(bpf("reading the buffer"))
    }

    /// Writes all entries to a tape.
    pub fn write_tape(&self, path: &Path) -> Result<(), RecorderError> {
        self.empty_buffer()?;
        match self.count_lost()? {
            0 => {}
            lost => return Err(RecorderError::Lost(lost)),
        }
        let tape = Tape {
            scheduler: self.scheduler.clone(),
            data: self.data.clone(),
            entries: std::mem::take(&mut self.entries.borrow_mut().entries),
        };
        Ok(tape.write(path)?)
    }

    fn count_lost(&self) -> Result<u64, RecorderError> {
        let bss = self.object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let value = bss
            .ok_or(RecorderError::Missing("counter"))?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("reading the number of lost entries"))?;
        let bytes = value.as_deref().and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(RecorderError::Missing("counter"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Function;

    #[test]
    fn an_address_gets_a_new_number_after_its_task_ended() {
        let mut entries = Entries::default();
        let of = |kind, callback, task| Entry::new(kind, callback as u8, 0, task, [0; 7]);
        for entry in [
            of(Kind::Enter, Callback::Tick, 0xa000),
            of(Kind::Enter, Callback::Tick, 0xb000),
            of(Kind::Leave, Callback::Tick, 0xa000),
            of(Kind::Leave, Callback::ExitTask, 0xa000),
            of(Kind::Enter, Callback::InitTask, 0xa000),
            of(Kind::Enter, Callback::Init, 0),
        ] {
            entries.append(entry);
        }
        let numbers: Vec<u64> = entries.entries.iter().map(|entry| entry.task).collect();
        assert_eq!(numbers, [1, 2, 1, 1, 3, 0]);
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        let header = include_str!("../../bpf/recorder.h");
        let numbers = |name: &str| -> Vec<String> {
            let body = header.split(&format!("enum {name} {{")).nth(1).unwrap();
            let body = body.split("};").next().unwrap();
            body.split(',').map(|item| item.trim().to_owned()).filter(|i| !i.is_empty()).collect()
        };
        // From `SelectCpu` to `CB_SELECT_CPU`.
        let spelled = |prefix: &str, name: String| {
            name.chars().fold(prefix.to_owned(), |text, letter| match letter.is_uppercase() {
                true => format!("{text}_{letter}"),
                false => format!("{text}{}", letter.to_ascii_uppercase()),
            })
        };
        for (at, name) in (0..).zip(numbers("tape_kind")) {
            assert_eq!(spelled("TAPE", format!("{:?}", Kind::by_number(at).unwrap())), name);
        }
        for (at, name) in (0..).zip(numbers("tape_callback")) {
            assert_eq!(spelled("CB", format!("{:?}", Callback::by_number(at).unwrap())), name);
        }
        for (at, name) in (0..).zip(numbers("tape_function")) {
            assert_eq!(spelled("FN", format!("{:?}", Function::by_number(at).unwrap())), name);
        }
        assert!(numbers("tape_function").len() > 10 && Function::by_number(13).is_none());
    }
}
