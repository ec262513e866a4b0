//! Records a tape of the keel on a real kernel, by BPF programs around each of its callbacks and behind
//! the kernel's functions (`lab/bpf/recorder.bpf.c`). For Linux 6.18, whose functions these are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::rc::Rc;

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use crate::image::Image;
use crate::tape::{Callback, Entry, Kind, MOST_CPUS, Tape, TapeError};
use crate::topology::TopologyError;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    /// libbpf or the kernel refused.
    #[error("recorder: {what}: {source} (it needs Linux 6.18, with BTF and BPF trampolines)")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// Masks are recorded up to there.
    #[error(
        "recorder: {0} CPU numbers, and a tape holds masks of {MOST_CPUS}: record on a smaller machine"
    )]
    TooManyCpus(u32),
    /// A part of the object that this version needs is not in it.
    #[error("recorder: the BPF object has no {0}: rebuild evenkeel")]
    Missing(&'static str),
    /// There are gaps.
    #[error(
        "recorder: {0} entries found the buffer full: record for a shorter time, or less of it"
    )]
    Lost(u64),
    /// The machine is not what the keel was built for.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It cannot be written down.
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

/// What came, with tasks by number.
#[derive(Default)]
struct Heard {
    entries: Vec<Entry>,
    /// By address, which may be another task's after its end.
    tasks: BTreeMap<u64, u64>,
    numbers: u64,
}

impl Heard {
    fn hear(&mut self, mut entry: Entry) {
        let address = entry.task;
        if address != 0 {
            let numbers = &mut self.numbers;
            entry.task = *self.tasks.entry(address).or_insert_with(|| {
                *numbers += 1;
                *numbers
            });
        }
        if (entry.kind, entry.id) == (Kind::Leave as u8, Callback::ExitTask as u8) {
            self.tasks.remove(&address);
        }
        self.entries.push(entry);
    }
}

/// Records as long as it lives.
pub(crate) struct Recorder {
    object: Object,
    _links: Vec<Link>,
    buffer: RingBuffer<'static>,
    heard: Rc<RefCell<Heard>>,
    scheduler: String,
    image: Image,
}

impl Recorder {
    /// Around the callbacks of this object, which is loaded and does not schedule yet: a tape begins
    /// with the beginning.
    pub fn open(keel: &Object, scheduler: String, image: Image) -> Result<Self, RecorderError> {
        if image.cpus > MOST_CPUS {
            return Err(RecorderError::TooManyCpus(image.cpus));
        }
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
        let heard = Rc::new(RefCell::new(Heard::default()));
        let buffer = {
            let map = object.maps().find(|map| map.name() == "entries");
            let map = map.ok_or(RecorderError::Missing("entries"))?;
            let heard = Rc::clone(&heard);
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&map, move |bytes| {
                    if let Ok(entry) = bytemuck::try_pod_read_unaligned::<Entry>(bytes) {
                        heard.borrow_mut().hear(entry);
                    }
                    0
                })
                .map_err(bpf("opening the buffer"))?;
            builder.build().map_err(bpf("opening the buffer"))?
        };
        let links: Result<Vec<Link>, _> =
            object.progs_mut().map(|program| program.attach_trace()).collect();
        let links = links.map_err(bpf("attaching"))?;
        Ok(Self { object, _links: links, buffer, heard, scheduler, image })
    }

    /// Takes what has come: before the buffer is full.
    pub fn listen(&self) -> Result<(), RecorderError> {
        self.buffer.consume().map_err(bpf("reading the buffer"))
    }

    /// Writes the tape.
    pub fn finish(&self, path: &Path) -> Result<(), RecorderError> {
        self.listen()?;
        match self.lost()? {
            0 => {}
            lost => return Err(RecorderError::Lost(lost)),
        }
        let tape = Tape {
            scheduler: self.scheduler.clone(),
            image: self.image.clone(),
            entries: std::mem::take(&mut self.heard.borrow_mut().entries),
        };
        Ok(tape.write(path)?)
    }

    fn lost(&self) -> Result<u64, RecorderError> {
        let bss = self.object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let value = bss
            .ok_or(RecorderError::Missing("counter"))?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("reading what was lost"))?;
        let bytes = value.as_deref().and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(RecorderError::Missing("counter"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tape::Function;

    #[test]
    fn an_address_is_another_task_s_after_its_end() {
        let mut heard = Heard::default();
        let of = |kind, callback, task| Entry::new(kind, callback as u8, 0, task, [0; 7]);
        for entry in [
            of(Kind::Enter, Callback::Tick, 0xa000),
            of(Kind::Enter, Callback::Tick, 0xb000),
            of(Kind::Leave, Callback::Tick, 0xa000),
            of(Kind::Leave, Callback::ExitTask, 0xa000),
            of(Kind::Enter, Callback::InitTask, 0xa000),
            of(Kind::Enter, Callback::Init, 0),
        ] {
            heard.hear(entry);
        }
        let numbers: Vec<u64> = heard.entries.iter().map(|entry| entry.task).collect();
        assert_eq!(numbers, [1, 2, 1, 1, 3, 0]);
    }

    #[test]
    fn the_c_side_numbers_them_alike() {
        let header = include_str!("../../../lab/bpf/recorder.h");
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
