//! Traces what the whole machine's scheduler does: BPF programs write events into a ring buffer, and a
//! callback gets them one by one.

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_invariants::Event;
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use crate::object::{Aligned, Error, bpf};
use crate::raw_event::{RawEvent, Reader};

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/witness.bpf.o")));

/// The attached BPF programs and their ring buffer. Dropping it detaches everything.
pub struct Tracer {
    object: Object,
    links: Vec<Link>,
    events: RingBuffer<'static>,
    sink: Rc<RefCell<Sink>>,
}

/// What becomes of the events that are read from the ring buffer.
struct Sink {
    /// Whether all programs are attached: events before that are dropped.
    is_complete: bool,
    passed_on: u64,
    reader: Reader,
    on_event: Box<dyn FnMut(&Event)>,
}

impl Tracer {
    /// Begins to trace; `on_event` gets each event at the next [`Tracer::look`]. The ring buffer holds
    /// `buffer_mib` MiB (a power of two) of unread events, about 10,000 in each MiB.
    ///
    /// # Errors
    /// Without BTF, BPF trampolines or privilege.
    pub fn open(buffer_mib: u32, on_event: impl FnMut(&Event) + 'static) -> Result<Self, Error> {
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
        let sink = Rc::new(RefCell::new(Sink {
            is_complete: false,
            passed_on: 0,
            reader: Reader::default(),
            on_event: Box::new(on_event),
        }));
        let events = {
            let map = object.maps().find(|map| map.name() == "events");
            let map = map.ok_or(Error::Missing("events"))?;
            let sink = Rc::clone(&sink);
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&map, move |bytes| {
                    if let Ok(raw) = bytemuck::try_pod_read_unaligned::<RawEvent>(bytes) {
                        sink.borrow_mut().take(&raw);
                    }
                    0
                })
                .map_err(bpf("opening the events"))?;
            builder.build().map_err(bpf("opening the events"))?
        };
        let mut tracer = Self { object, links: Vec::new(), events, sink };
        for program in tracer.object.progs_mut() {
            tracer.links.push(program.attach().map_err(bpf("attaching"))?);
        }
        // Events from before the last program was attached have gaps: they are dropped.
        tracer.look()?;
        tracer.sink.borrow_mut().is_complete = true;
        Ok(tracer)
    }

    /// Passes on all events so far. Takes long if there are many.
    ///
    /// # Errors
    /// When the buffer cannot be read.
    pub fn look(&self) -> Result<(), Error> {
        self.events.consume().map_err(bpf("reading the events"))
    }

    /// Passes on the remaining events, and stops tracing.
    ///
    /// # Errors
    /// [`Error::Lost`] when events were lost.
    pub fn end(self) -> Result<(), Error> {
        // Before the first program is detached: later events would have gaps, too.
        self.look()?;
        match self.lost()? {
            0 => Ok(()),
            lost => Err(Error::Lost { lost, seen: self.sink.borrow().passed_on }),
        }
    }

    fn lost(&self) -> Result<u64, Error> {
        let bss = self.object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss"));
        let value = bss
            .ok_or(Error::Missing("counter"))?
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("reading the number of lost events"))?;
        let bytes = value.as_deref().and_then(|bytes| bytes.first_chunk::<8>());
        bytes.map(|bytes| u64::from_ne_bytes(*bytes)).ok_or(Error::Missing("counter"))
    }
}

impl Sink {
    fn take(&mut self, raw: &RawEvent) {
        if !self.is_complete {
            return;
        }
        self.passed_on += 1;
        let Self { reader, on_event, .. } = self;
        reader.read(raw, |event| on_event(&event));
    }
}
