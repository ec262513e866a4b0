//! Traces for Perfetto, read back with the numbers of its schema: `trace_packet.proto` and the files
//! that it imports have them. That these numbers are the schema's is checked by `scripts/check-trace`,
//! which has the schema itself, from Perfetto's package on PyPI.
//!
//! Perfetto's own trace_processor is not asked: that package fetches the program from another server at
//! its first use, and a test would depend on that server. Where the program is at hand,
//! `trace_processor query FILE "SELECT name FROM slice"` shows what it reads.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_perfetto::{Value, fields};

/// What a trace says, as far as these tests ask.
#[derive(Debug, Default)]
pub struct Trace {
    /// Numbers of processes that have a track.
    pub processes: Vec<u64>,
    /// Threads that have a track, and its number.
    pub threads: BTreeMap<u64, u64>,
    /// All other tracks but counters by their names.
    pub tracks: BTreeMap<String, u64>,
    /// Names of tracks that are counters.
    pub counters: Vec<String>,
    /// Slices and instants: the track and the name.
    pub events: Vec<(u64, String)>,
    /// Names of what is said beside events.
    pub annotations: Vec<String>,
    /// Slices that begin less those that end, by track.
    pub open: BTreeMap<u64, i64>,
    pub times_ns: Vec<u64>,
}

/// All values of a field, by the path of its number.
fn values_of<'a>(bytes: &'a [u8], path: &[u32]) -> Vec<Value<'a>> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let found = fields(bytes).expect("a message is whole");
    let values = found.into_iter().filter(|(field, _)| field == first).map(|(_, value)| value);
    if rest.is_empty() {
        return values.collect();
    }
    values.flat_map(|value| values_of(value.bytes(), rest)).collect()
}

fn string(value: Value<'_>) -> String {
    String::from_utf8(value.bytes().to_vec()).unwrap()
}

/// Reads the packets of a trace.
pub fn read(path: &Path) -> Trace {
    read_whole(path).expect("the trace is whole")
}

/// The same of one that may be written to at this moment: then, none.
pub fn read_whole(path: &Path) -> Option<Trace> {
    let bytes = std::fs::read(path).unwrap();
    let mut seen = Trace::default();
    let number = |of: &[u8], path: &[u32]| values_of(of, path).first().map(|value| value.number());
    for (field, packet) in fields(&bytes).ok()? {
        assert_eq!(field, 1, "Trace.packet");
        let packet = packet.bytes();
        assert_eq!(number(packet, &[10]), Some(1), "each packet has its writer");
        seen.processes.extend(number(packet, &[60, 3, 1]));
        if let Some(tid) = number(packet, &[60, 4, 2]) {
            seen.threads.insert(tid, number(packet, &[60, 1]).unwrap());
        }
        if !values_of(packet, &[60, 8]).is_empty() {
            seen.counters.push(string(values_of(packet, &[60, 2])[0]));
        } else if let Some(name) = values_of(packet, &[60, 2]).first() {
            seen.tracks.insert(string(*name), number(packet, &[60, 1]).unwrap());
        }
        let Some(kind) = number(packet, &[11, 9]) else { continue };
        let track = number(packet, &[11, 11]).unwrap();
        *seen.open.entry(track).or_default() += match kind {
            1 => 1,
            2 => -1,
            _ => 0,
        };
        seen.events
            .extend(values_of(packet, &[11, 23]).into_iter().map(|name| (track, string(name))));
        seen.annotations.extend(values_of(packet, &[11, 4, 10]).into_iter().map(string));
        seen.times_ns.extend(number(packet, &[8]));
    }
    Some(seen)
}

impl Trace {
    /// Whether a slice or an instant has a name with this in it.
    pub fn says(&self, what: &str) -> bool {
        self.events.iter().any(|(_, name)| name.contains(what))
    }

    /// The names of the slices on a thread's track.
    pub fn stays(&self, tid: i32) -> Vec<&str> {
        self.names_on(self.threads.get(&(tid as u64)))
    }

    /// The names of the slices and instants on the track of this name.
    pub fn on(&self, track: &str) -> Vec<&str> {
        self.names_on(self.tracks.get(track))
    }

    /// Fails if a slice has no end, or a time is not of this boot.
    pub fn assert_sound(&self) {
        assert!(self.open.values().all(|open| *open == 0), "slices end: {self:?}");
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let now_s: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        let is_of_this_boot = |at_ns: &u64| *at_ns > 0 && *at_ns as f64 / 1e9 <= now_s + 1.0;
        assert!(self.times_ns.iter().all(is_of_this_boot), "{self:?}");
    }

    fn names_on(&self, track: Option<&u64>) -> Vec<&str> {
        let on_track = self.events.iter().filter(|(on, _)| Some(on) == track);
        on_track.map(|(_, name)| name.as_str()).collect()
    }
}
