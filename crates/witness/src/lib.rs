//! Sees what a kernel's scheduler does, by BPF, as the stream of events that invariants are checked
//! against.
//!
//! For tests in a virtual machine: it writes down every context switch of the whole machine. Masks
//! are followed for the first 64 CPUs.

mod fault;
mod records;

pub use fault::{FAULT, report_fault};

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_invariants::{Event, Findings, Limits, Watch, What};
use evenkeel_machine::CpuSet;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use crate::records::{RawEvent, Reader};

/// Why there is no witness, or it saw only a part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libbpf or the kernel refused.
    #[error("witness: {what}: {source}")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// A part of the object that this version needs is not in it.
    #[error("witness: the BPF object has no {0}: rebuild evenkeel")]
    Missing(&'static str),
    /// What was seen has gaps, so nothing can be said about it.
    #[error(
        "witness: {lost} of {seen} events found the buffer full, so nothing is certain: take more memory or look more often"
    )]
    Lost {
        /// Events that were not written down.
        lost: u64,
        /// Events that were.
        seen: u64,
    },
}

fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { what, source }
}

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/witness.bpf.o")));

/// A witness that looks on. Dropping it detaches everything.
pub struct Witness {
    object: Object,
    links: Vec<Link>,
    events: RingBuffer<'static>,
    seen: Rc<RefCell<Seen>>,
}

struct Seen {
    /// All programs are there.
    is_whole: bool,
    reader: Reader,
    watch: Watch,
    last_ns: u64,
}

impl Witness {
    /// Begins to look on. The buffer holds `buffer_mib` MiB (a power of two) of events that nobody
    /// has looked at yet, about 10,000 each.
    ///
    /// # Errors
    /// Without BTF, BPF trampolines or privilege.
    pub fn open(limits: Limits, buffer_mib: u32) -> Result<Self, Error> {
        let mut open = ObjectBuilder::default()
            .name("witness")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf("opening the object"))?;
        for mut map in open.maps_mut() {
            if map.name() == "events" {
                map.set_max_entries(buffer_mib << 20).map_err(bpf("sizing the buffer"))?;
            }
        }
        let object = open.load().map_err(bpf("loading"))?;
        let watch = Watch::new(limits);
        let seen = Rc::new(RefCell::new(Seen {
            is_whole: false,
            reader: Reader::default(),
            watch,
            last_ns: 0,
        }));
        let events = {
            let map = object.maps().find(|map| map.name() == "events");
            let map = map.ok_or(Error::Missing("events"))?;
            let seen = Rc::clone(&seen);
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&map, move |bytes| {
                    if let Ok(raw) = bytemuck::try_pod_read_unaligned::<RawEvent>(bytes) {
                        seen.borrow_mut().see(&raw);
                    }
                    0
                })
                .map_err(bpf("opening the events"))?;
            builder.build().map_err(bpf("opening the events"))?
        };
        let mut witness = Self { object, links: Vec::new(), events, seen };
        for program in witness.object.progs_mut() {
            witness.links.push(program.attach().map_err(bpf("attaching"))?);
        }
        // What came while some were not there yet has gaps.
        witness.look()?;
        witness.seen.borrow_mut().is_whole = true;
        Ok(witness)
    }

    /// Looks at what has happened so far: takes a while after much has.
    ///
    /// # Errors
    /// When the buffer cannot be read.
    pub fn look(&self) -> Result<(), Error> {
        self.events.consume().map_err(bpf("reading the events"))
    }

    /// Does something by which CPUs come or go. Nobody sees what a CPU does that is not online.
    ///
    /// # Errors
    /// As [`Witness::look`].
    pub fn while_cpus_change(&self, step: impl FnOnce()) -> Result<(), Error> {
        self.look()?;
        self.seen.borrow_mut().watch.cpus_change(true);
        step();
        self.look()?;
        self.seen.borrow_mut().watch.cpus_change(false);
        Ok(())
    }

    /// From now on these CPUs take only who may run nowhere else.
    ///
    /// # Errors
    /// As [`Witness::look`].
    pub fn shield(&self, cpus: CpuSet) -> Result<(), Error> {
        self.look()?;
        let mut seen = self.seen.borrow_mut();
        let event = Event { time_ns: seen.last_ns, cpu: 0, what: What::Shield { cpus } };
        seen.watch.see(&event);
        Ok(())
    }

    /// Stops looking on, and says what was found.
    ///
    /// # Errors
    /// [`Error::Lost`] when something was missed.
    pub fn end(self) -> Result<Findings, Error> {
        // Before the first of the programs goes, for the same reason.
        self.look()?;
        let lost = self.lost()?;
        let Self { events, seen, .. } = self;
        // It holds the other half.
        drop(events);
        let Some(seen) = Rc::into_inner(seen) else { return Err(Error::Missing("end")) };
        let Seen { watch, last_ns, .. } = seen.into_inner();
        let findings = watch.end(last_ns);
        match lost {
            0 => Ok(findings),
            lost => Err(Error::Lost { lost, seen: findings.events }),
        }
    }

    fn lost(&self) -> Result<u64, Error> {
        let bss = self.object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let value = bss
            .ok_or(Error::Missing("counter"))?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("reading what was lost"))?;
        let bytes = value.as_deref().and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(Error::Missing("counter"))
    }
}

impl Seen {
    fn see(&mut self, raw: &RawEvent) {
        if !self.is_whole {
            return;
        }
        self.last_ns = raw.time_ns;
        let Self { reader, watch, .. } = self;
        reader.read(raw, |event| watch.see(&event));
    }
}
