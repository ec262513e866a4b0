//! Hears what the whole machine's scheduler does: BPF programs write it down, and whoever listens is told
//! of it, event by event.

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_invariants::Event;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use crate::records::{RawEvent, Reader};
use crate::{Aligned, Error, bpf};

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/witness.bpf.o")));

/// As long as it lives, what happens is written down. Dropping it detaches everything.
pub struct Ear {
    object: Object,
    links: Vec<Link>,
    events: RingBuffer<'static>,
    heard: Rc<RefCell<Heard>>,
}

struct Heard {
    /// All programs are there.
    is_whole: bool,
    records: u64,
    reader: Reader,
    tell: Box<dyn FnMut(&Event)>,
}

impl Ear {
    /// Begins to listen; `tell` is told of each event at the next [`Ear::look`]. The buffer holds
    /// `buffer_mib` MiB (a power of two) of events that nobody has looked at yet, about 10,000 each.
    ///
    /// # Errors
    /// Without BTF, BPF trampolines or privilege.
    pub fn open(buffer_mib: u32, tell: impl FnMut(&Event) + 'static) -> Result<Self, Error> {
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
        let heard = Rc::new(RefCell::new(Heard {
            is_whole: false,
            records: 0,
            reader: Reader::default(),
            tell: Box::new(tell),
        }));
        let events = {
            let map = object.maps().find(|map| map.name() == "events");
            let map = map.ok_or(Error::Missing("events"))?;
            let heard = Rc::clone(&heard);
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&map, move |bytes| {
                    if let Ok(raw) = bytemuck::try_pod_read_unaligned::<RawEvent>(bytes) {
                        heard.borrow_mut().hear(&raw);
                    }
                    0
                })
                .map_err(bpf("opening the events"))?;
            builder.build().map_err(bpf("opening the events"))?
        };
        let mut ear = Self { object, links: Vec::new(), events, heard };
        for program in ear.object.progs_mut() {
            ear.links.push(program.attach().map_err(bpf("attaching"))?);
        }
        // What came while some were not there yet has gaps.
        ear.look()?;
        ear.heard.borrow_mut().is_whole = true;
        Ok(ear)
    }

    /// Passes on what has happened so far: takes a while after much has.
    ///
    /// # Errors
    /// When the buffer cannot be read.
    pub fn look(&self) -> Result<(), Error> {
        self.events.consume().map_err(bpf("reading the events"))
    }

    /// Passes on the rest, and stops listening.
    ///
    /// # Errors
    /// [`Error::Lost`] when something was missed.
    pub fn end(self) -> Result<(), Error> {
        // Before the first of the programs goes, for the same reason.
        self.look()?;
        match self.lost()? {
            0 => Ok(()),
            lost => Err(Error::Lost { lost, seen: self.heard.borrow().records }),
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

impl Heard {
    fn hear(&mut self, raw: &RawEvent) {
        if !self.is_whole {
            return;
        }
        self.records += 1;
        let Self { reader, tell, .. } = self;
        reader.read(raw, |event| tell(&event));
    }
}
