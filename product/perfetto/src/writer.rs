//! A trace that is being written: whole packets, batch by batch, so that the file of a process that is
//! killed is a trace up to its last batch. Kept are the packets of the batch and the last value of each
//! counter: a value that stays the same is written once.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::track::{EventKind, Track, TrackKind, event};

/// The track of a value over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter<'a> {
    /// Its number, which no other track has; not 0.
    pub uuid: u64,
    /// The track that it belongs to.
    pub parent: Option<u64>,
    /// Its name.
    pub name: &'a str,
    /// Its unit, as shown.
    pub unit: &'a str,
}

/// Writes a trace; without a place to write to, nothing.
#[derive(Debug)]
pub struct Writer<W> {
    to: Option<W>,
    /// Packets of this batch.
    packets: Vec<u8>,
    /// The last value of each counter, in tenths.
    counters: BTreeMap<u64, i64>,
    ahead_ns: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace at this place. Times of events are those of the trace.
    pub fn new(to: Option<W>) -> Self {
        Self { to, packets: Vec::new(), counters: BTreeMap::new(), ahead_ns: 0 }
    }

    /// Whether anything is written.
    pub fn is_open(&self) -> bool {
        self.to.is_some()
    }

    /// Writes no more.
    pub fn close(&mut self) {
        self.to = None;
        self.packets.clear();
    }

    /// By how much the clock of the trace is ahead of that of the events from now on, in ns.
    pub fn set_ahead(&mut self, ahead_ns: u64) {
        self.ahead_ns = ahead_ns;
    }

    /// Adds a track to the batch.
    pub fn declare(&mut self, track: Track<'_>) {
        if self.is_open() {
            self.packets.extend(track.packet());
        }
    }

    /// Adds an event at a time in ns to the batch.
    pub fn event(&mut self, at_ns: u64, track: u64, kind: EventKind<'_>) {
        if self.is_open() {
            self.packets.extend(event(at_ns + self.ahead_ns, track, kind));
        }
    }

    /// Adds a value, in tenths, if it is another one than before. The first value declares the track.
    pub fn count(&mut self, at_ns: u64, counter: Counter<'_>, value: f64) {
        let Counter { uuid, parent, name, unit } = counter;
        let tenths = (value * 10.0).round() as i64;
        match self.counters.insert(uuid, tenths) {
            Some(before) if before == tenths => return,
            Some(_) => {}
            None => self.declare(Track { uuid, parent, name, kind: TrackKind::Counter { unit } }),
        }
        self.event(at_ns, uuid, EventKind::Count(tenths as f64 / 10.0));
    }

    /// Writes the batch.
    ///
    /// # Errors
    /// It cannot be written. Nothing is written from then on.
    pub fn flush(&mut self) -> io::Result<()> {
        let packets = std::mem::take(&mut self.packets);
        let Some(to) = &mut self.to else { return Ok(()) };
        let written = to.write_all(&packets);
        if written.is_err() {
            self.close();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::fields;

    fn counter(uuid: u64) -> Counter<'static> {
        Counter { uuid, parent: None, name: "load", unit: "%" }
    }

    /// How many packets the trace has.
    fn packets(writer: &Writer<Vec<u8>>) -> usize {
        fields(writer.to.as_deref().unwrap()).unwrap().len()
    }

    #[test]
    fn a_value_that_stays_is_written_once() {
        let mut writer = Writer::new(Some(Vec::new()));
        for (at_ns, value) in [(1, 0.0), (2, 0.04), (3, 0.1), (4, 0.1), (5, 0.0)] {
            writer.count(at_ns, counter(7), value);
        }
        assert_eq!(packets(&writer), 0, "nothing before the end of the batch");
        writer.flush().unwrap();
        // The track, and three values.
        assert_eq!(packets(&writer), 4);
        writer.flush().unwrap();
        assert_eq!(packets(&writer), 4);
        writer.count(6, counter(8), 0.0);
        writer.flush().unwrap();
        assert_eq!(packets(&writer), 6);
    }

    #[test]
    fn times_are_those_of_the_traces_clock() {
        let mut writer = Writer::new(Some(Vec::new()));
        writer.set_ahead(40);
        writer.event(2, 7, EventKind::End);
        writer.flush().unwrap();
        assert_eq!(writer.to.unwrap(), event(42, 7, EventKind::End));
    }

    /// A disk that is full.
    #[derive(Debug)]
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_ends_the_trace_and_is_returned_once() {
        let mut writer = Writer::new(Some(Full));
        writer.event(1, 7, EventKind::End);
        assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(!writer.is_open());
        writer.event(2, 7, EventKind::End);
        writer.count(3, counter(8), 1.0);
        assert!(writer.packets.is_empty());
        writer.flush().unwrap();
    }
}
