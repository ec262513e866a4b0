//! Tracks, and what happens on them: slices, instants and counters, each with a time of its own. For
//! histories that are looked at now and then.

use crate::message::Message;
use crate::packed;

/// `TracePacket`: `.timestamp`, `.track_event`, `.sequence_flags` and `.track_descriptor`.
const PACKET_TIME: u32 = 8;
const PACKET_EVENT: u32 = 11;
const PACKET_FLAGS: u32 = 13;
const PACKET_TRACK: u32 = 60;
/// `TracePacket.SequenceFlags`: nothing that came before is needed to read this packet.
const STATE_CLEARED: u64 = 1;

/// What a track shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrackKind<'a> {
    /// A process: what belongs to it as a whole.
    Process {
        /// Its number.
        pid: u32,
        /// Its command line.
        words: &'a [String],
    },
    /// A thread.
    Thread {
        /// Its process.
        pid: u32,
        /// Its own number.
        tid: u32,
    },
    /// A value over time.
    Counter {
        /// Its unit, as shown.
        unit: &'a str,
    },
    /// Slices and instants of no process or thread.
    Other,
}

/// A track. The viewer shows it below its parent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Track<'a> {
    /// Its number, which events name; not 0.
    pub uuid: u64,
    /// The track that it belongs to.
    pub parent: Option<u64>,
    /// Its name.
    pub name: &'a str,
    /// What it shows.
    pub kind: TrackKind<'a>,
}

impl Track<'_> {
    /// The track as a packet of a trace. It comes before the first event on the track.
    pub fn packet(&self) -> Vec<u8> {
        let mut track = Message::new().uint(1, self.uuid);
        // A process and a thread have their names in their own messages.
        if matches!(self.kind, TrackKind::Counter { .. } | TrackKind::Other) {
            track = track.text(2, self.name);
        }
        if let Some(parent) = self.parent {
            track = track.uint(5, parent);
        }
        track = match self.kind {
            TrackKind::Process { pid, words } => {
                let mut process = Message::new().uint(1, u64::from(pid));
                for word in words {
                    process = process.text(2, word);
                }
                track.message(3, process.text(6, self.name))
            }
            TrackKind::Thread { pid, tid } => {
                let thread = Message::new().uint(1, u64::from(pid)).uint(2, u64::from(tid));
                track.message(4, thread.text(5, self.name))
            }
            TrackKind::Counter { unit } => track.message(8, Message::new().text(6, unit)),
            TrackKind::Other => track,
        };
        packed(Message::new().message(PACKET_TRACK, track).uint(PACKET_FLAGS, STATE_CLEARED))
    }
}

/// A named text beside a slice or an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// Its name.
    pub name: String,
    /// The text.
    pub text: String,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EventKind<'a> {
    /// A slice begins on its track.
    Begin {
        /// Its name, by which the viewer colours it.
        name: &'a str,
        /// What is shown beside it.
        annotations: &'a [Annotation],
    },
    /// The slice that began last on its track ends.
    End,
    /// Something happens that takes no time.
    Instant {
        /// Its name.
        name: &'a str,
        /// What is shown beside it.
        annotations: &'a [Annotation],
    },
    /// From now on, a counter has this value.
    Count(f64),
}

/// An event on a track, as a packet of a trace. The time is in nanoseconds on CLOCK_BOOTTIME, the clock
/// of Perfetto's own recordings.
pub fn event(at_ns: u64, track: u64, kind: EventKind<'_>) -> Vec<u8> {
    let (number, name, annotations) = match kind {
        EventKind::Begin { name, annotations } => (1, Some(name), annotations),
        EventKind::End => (2, None, &[][..]),
        EventKind::Instant { name, annotations } => (3, Some(name), annotations),
        EventKind::Count(_) => (4, None, &[][..]),
    };
    let mut event = Message::new();
    for Annotation { name, text } in annotations {
        event = event.message(4, Message::new().text(6, text).text(10, name));
    }
    event = event.uint(9, number).uint(11, track);
    if let Some(name) = name {
        event = event.text(23, name);
    }
    if let EventKind::Count(value) = kind {
        event = event.double(44, value);
    }
    packed(Message::new().uint(PACKET_TIME, at_ns).message(PACKET_EVENT, event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Value, fields};

    /// The field of that path, in a message of messages.
    fn at<'a>(bytes: &'a [u8], path: &[u32]) -> Option<Value<'a>> {
        let (first, rest) = path.split_first()?;
        let found = fields(bytes).unwrap().into_iter().find(|(field, _)| field == first)?.1;
        if rest.is_empty() { Some(found) } else { at(found.bytes(), rest) }
    }

    /// Paths as in `trace_packet.proto`, `track_descriptor.proto` and the files of its parts.
    #[test]
    fn tracks_have_the_field_numbers_of_the_schema() {
        let words = ["app".to_owned(), "input".to_owned()];
        let kind = TrackKind::Process { pid: 9, words: &words };
        let process = Track { uuid: 1, parent: None, name: "app", kind }.packet();
        assert_eq!(at(&process, &[1, 60, 1]), Some(Value::Number(1)));
        assert_eq!(at(&process, &[1, 60, 3, 1]), Some(Value::Number(9)));
        assert_eq!(at(&process, &[1, 60, 3, 2]), Some(Value::Bytes(b"app")));
        assert_eq!(at(&process, &[1, 60, 3, 6]), Some(Value::Bytes(b"app")));
        assert_eq!(at(&process, &[1, 60, 2]), None);
        assert_eq!(at(&process, &[1, 10]), Some(Value::Number(1)), "the writer has a number");
        assert_eq!(at(&process, &[1, 13]), Some(Value::Number(1)));
        let kind = TrackKind::Thread { pid: 9, tid: 10 };
        let thread = Track { uuid: 2, parent: None, name: "worker", kind }.packet();
        assert_eq!(at(&thread, &[1, 60, 4, 1]), Some(Value::Number(9)));
        assert_eq!(at(&thread, &[1, 60, 4, 2]), Some(Value::Number(10)));
        assert_eq!(at(&thread, &[1, 60, 4, 5]), Some(Value::Bytes(b"worker")));
        let kind = TrackKind::Counter { unit: "%" };
        let counter = Track { uuid: 3, parent: Some(1), name: "steal", kind }.packet();
        assert_eq!(at(&counter, &[1, 60, 2]), Some(Value::Bytes(b"steal")));
        assert_eq!(at(&counter, &[1, 60, 5]), Some(Value::Number(1)));
        assert_eq!(at(&counter, &[1, 60, 8, 6]), Some(Value::Bytes(b"%")));
    }

    #[test]
    fn events_have_the_field_numbers_of_the_schema() {
        let annotations = [Annotation { name: "why".to_owned(), text: "it lags".to_owned() }];
        let begin = event(5, 7, EventKind::Begin { name: "CPU 1", annotations: &annotations });
        assert_eq!(at(&begin, &[1, 8]), Some(Value::Number(5)));
        assert_eq!(at(&begin, &[1, 10]), Some(Value::Number(1)));
        assert_eq!(at(&begin, &[1, 11, 9]), Some(Value::Number(1)));
        assert_eq!(at(&begin, &[1, 11, 11]), Some(Value::Number(7)));
        assert_eq!(at(&begin, &[1, 11, 23]), Some(Value::Bytes(b"CPU 1")));
        assert_eq!(at(&begin, &[1, 11, 4, 10]), Some(Value::Bytes(b"why")));
        assert_eq!(at(&begin, &[1, 11, 4, 6]), Some(Value::Bytes(b"it lags")));
        let number = |kind| at(&event(5, 7, kind), &[1, 11, 9]).map(Value::number);
        assert_eq!(number(EventKind::End), Some(2));
        assert_eq!(number(EventKind::Instant { name: "", annotations: &[] }), Some(3));
        let count = event(5, 7, EventKind::Count(12.5));
        assert_eq!(at(&count, &[1, 11, 9]), Some(Value::Number(4)));
        assert_eq!(at(&count, &[1, 11, 44]).map(Value::double), Some(12.5));
    }
}
