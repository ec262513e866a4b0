//! `sched --perfetto`: what the keel publishes while it runs, as a trace for Perfetto's viewer, written
//! once a second.
//!
//! It shows each load of the keel and how it ended, each CPU's capability, utilisation and tasks, the
//! counters by second, changes of parameters, and the gate's refusals with their figures, of which each
//! CPU keeps a sample. Which task runs where is not in it: to record that would make each switch dearer.
//! Kept are the last figures, and the time of the last refusal of each CPU.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_keel::layout::COUNTERS;
use evenkeel_keel::{Decision, Exit, Observed, Statistics};
use evenkeel_machine::CAPABILITY_SCALE;
use evenkeel_perfetto::{Annotation, Counter, EventKind, Track, TrackKind};
use serde_json::{Map, Value};

use crate::trace_file::{Recorder, TraceFile, now_ns};

/// Tracks of slices and instants: loads, parameters and refusals, ...
const KEEL: u64 = 1;
const EVENTS: u64 = 2;
const REFUSALS: u64 = 3;
const NAMED: [(u64, &str); 3] =
    [(KEEL, "the keel"), (EVENTS, "changes"), (REFUSALS, "refusals of the gate")];
/// ... those of the counters, in their order, ...
const COUNTED: u64 = 1 << 16;
/// ... and of each CPU.
const CPUS: u64 = 1 << 20;
const PER_CPU: u64 = 8;

/// No rate is calculated for a shorter time.
const LEAST_NS: u64 = 100_000_000;

/// A trace that is being written; without a file, nothing.
pub struct Trace {
    /// The file, until the keel is loaded.
    waits: Option<TraceFile>,
    recorder: Recorder,
    parameters: Map<String, Value>,
    /// The last refusal of each CPU.
    refused_ns: BTreeMap<u32, u64>,
    /// The counters, by name, and when they were read.
    counted: BTreeMap<String, u64>,
    counted_ns: u64,
    /// Counters that have a track.
    shown: BTreeSet<usize>,
    /// When figures were read last.
    last_ns: u64,
}

impl Trace {
    /// A trace that begins when the keel is loaded. Until then the file stays as it was.
    pub fn new(file: Option<TraceFile>) -> Self {
        Self {
            waits: file,
            recorder: Recorder::begin(None),
            parameters: Map::new(),
            refused_ns: BTreeMap::new(),
            counted: BTreeMap::new(),
            counted_ns: 0,
            shown: BTreeSet::new(),
            last_ns: 0,
        }
    }

    /// Whether there is a file.
    pub fn is_wanted(&self) -> bool {
        self.waits.is_some() || self.recorder.is_open()
    }

    /// Writes down what the keel tells now.
    pub fn tell(&mut self, seen: &Observed<'_>) {
        self.tell_at(now_ns(), seen);
    }

    fn tell_at(&mut self, now_ns: u64, seen: &Observed<'_>) {
        if let Some(file) = self.waits.take() {
            self.recorder = Recorder::begin(Some(file));
            for (uuid, name) in NAMED {
                let track = Track { uuid, parent: None, name, kind: TrackKind::Other };
                self.recorder.writer().declare(track);
            }
            (self.counted_ns, self.last_ns) = (now_ns, now_ns);
        }
        if !self.recorder.is_open() {
            return;
        }
        match seen {
            Observed::Loaded { policies, parameters } => {
                self.draw_load(now_ns, policies, parameters)
            }
            Observed::Figures { statistics, decisions, parameters } => {
                self.draw_parameters(now_ns, parameters);
                self.draw_cpus(now_ns, statistics);
                self.draw_counters(now_ns, statistics);
                self.draw_refusals(now_ns, decisions);
                self.last_ns = now_ns;
            }
            Observed::Ended(exit) => self.draw_end(now_ns, exit),
        }
        self.recorder.flush();
    }

    fn draw_load(&mut self, at_ns: u64, policies: &[String; 3], parameters: &Map<String, Value>) {
        let of = |(name, value): (&String, &Value)| Annotation {
            name: name.clone(),
            text: in_words(value),
        };
        let annotations: Vec<Annotation> = parameters.iter().map(of).collect();
        let name = &policies.join("/");
        let kind = EventKind::Begin { name, annotations: &annotations };
        self.recorder.writer().event(at_ns, KEEL, kind);
        self.parameters = parameters.clone();
    }

    fn draw_parameters(&mut self, at_ns: u64, parameters: &Map<String, Value>) {
        for (name, value) in parameters {
            let before = self.parameters.insert(name.clone(), value.clone());
            if before.as_ref() != Some(value) {
                let before = before.as_ref().map_or_else(String::new, in_words);
                let why = vec![("before".to_owned(), before)];
                let what = format!("{name} = {}", in_words(value));
                self.recorder.note(at_ns, EVENTS, &what, why);
            }
        }
    }

    fn draw_cpus(&mut self, at_ns: u64, statistics: &Statistics) {
        for (cpu, state) in &statistics.cpus {
            let capability = f64::from(state.capability) / f64::from(CAPABILITY_SCALE);
            let figures = [
                ("capability", "%", 100.0 * capability),
                ("utilisation", "%", state.busy_pct as f64),
                ("tasks that run or wait", "tasks", state.runnable as f64),
                ("taken by a higher class", "1 = yes", f64::from(u8::from(state.taken))),
            ];
            let first = CPUS + u64::from(*cpu) * PER_CPU;
            for (uuid, (what, unit, value)) in (first..).zip(figures) {
                let name = &format!("CPU {cpu}: {what}");
                let counter = Counter { uuid, parent: None, name, unit };
                self.recorder.writer().count(at_ns, counter, value);
            }
        }
    }

    /// How often a second each event was counted since the last time; what was never counted has no
    /// track.
    fn draw_counters(&mut self, now_ns: u64, statistics: &Statistics) {
        let since_ns = self.counted_ns;
        let interval_ns = now_ns.saturating_sub(since_ns);
        if interval_ns < LEAST_NS {
            return;
        }
        for (place, (name, _)) in COUNTERS.iter().enumerate() {
            let now = statistics.counters.get(*name).copied().unwrap_or(0);
            let before = self.counted.insert((*name).to_owned(), now).unwrap_or(0);
            let count = now.saturating_sub(before);
            if count == 0 && !self.shown.contains(&place) {
                continue;
            }
            self.shown.insert(place);
            let uuid = COUNTED + place as u64;
            let counter = Counter { uuid, parent: None, name, unit: "/s" };
            let rate = count as f64 * 1e9 / interval_ns as f64;
            self.recorder.writer().count(since_ns, counter, rate);
        }
        self.counted_ns = now_ns;
    }

    fn draw_refusals(&mut self, now_ns: u64, decisions: &[Decision]) {
        for decision in decisions {
            let last_ns = self.refused_ns.entry(decision.cpu).or_default();
            if decision.at_ns <= *last_ns {
                continue;
            }
            *last_ns = decision.at_ns;
            let why = [
                ("refusal", decision.to_string()),
                ("task", decision.pid.to_string()),
                ("from", format!("CPU {}", decision.source)),
                ("asked by", format!("CPU {}", decision.cpu)),
                ("level", format!("{}: {} %", decision.level, decision.limit_pct)),
            ];
            let why = why.map(|(name, text)| (name.to_owned(), text)).to_vec();
            // The scheduler's clock drifts from that of the trace: by no more than to the next second.
            let at_ns = decision.at_ns.clamp(self.last_ns.min(now_ns), now_ns);
            self.recorder.note(at_ns, REFUSALS, &decision.verdict, why);
        }
    }

    fn draw_end(&mut self, at_ns: u64, exit: &Exit) {
        self.recorder.writer().event(at_ns, KEEL, EventKind::End);
        let why = vec![("why".to_owned(), exit.to_string())];
        self.recorder.note(at_ns, EVENTS, "ended", why);
    }
}

/// A value without quotes.
fn in_words(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use evenkeel_keel::{CpuStatistics, ExitKind};
    use evenkeel_perfetto::{Value as Field, fields};
    use serde_json::json;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn statistics(switches: u64) -> Statistics {
        let cpu = CpuStatistics { runnable: 2, busy_pct: 60, taken: false, capability: 512 };
        let counters = [("switch".to_owned(), switches), ("keep".to_owned(), 0)].into();
        Statistics { cpus: [(1, cpu)].into(), counters, ..Statistics::default() }
    }

    fn refusal(at_ns: u64) -> Decision {
        Decision {
            at_ns,
            cpu: 1,
            pid: 77,
            source: 0,
            reason: "woke".into(),
            verdict: "refused: the utilisation is not above the zone's limit".into(),
            level: "cold".into(),
            limit_pct: 30,
            source_pct: 20,
            mean_pct: 0,
            task_pct: 5,
            above_ms: 0,
        }
    }

    fn inner<'a>(message: &'a [u8], number: u32) -> Option<Field<'a>> {
        let found = fields(message).unwrap().into_iter().find(|(field, _)| *field == number);
        found.map(|(_, value)| value)
    }

    fn string(value: Field<'_>) -> String {
        String::from_utf8(value.bytes().to_vec()).unwrap()
    }

    /// What is on each track, each with its time.
    fn drawn(path: &std::path::Path) -> BTreeMap<String, Vec<(u64, String)>> {
        let bytes = std::fs::read(path).unwrap();
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        let mut drawn: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
        for (_, packet) in fields(&bytes).unwrap() {
            if let Some(track) = inner(packet.bytes(), 60) {
                let name = string(inner(track.bytes(), 2).unwrap());
                names.insert(inner(track.bytes(), 1).unwrap().number(), name);
            }
            let Some(event) = inner(packet.bytes(), 11).map(Field::bytes) else { continue };
            let at_ns = inner(packet.bytes(), 8).unwrap().number();
            let what = match inner(event, 9).unwrap().number() {
                2 => "end".to_owned(),
                4 => inner(event, 44).unwrap().double().to_string(),
                _ => string(inner(event, 23).unwrap()),
            };
            let track = names[&inner(event, 11).unwrap().number()].clone();
            drawn.entry(track).or_default().push((at_ns, what));
        }
        drawn
    }

    #[test]
    fn a_trace_shows_what_the_keel_published() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keel.pftrace");
        std::fs::write(&path, "older").unwrap();
        let mut trace = Trace::new(Some(TraceFile::open(&path).unwrap()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "older", "until it is loaded");
        assert!(trace.is_wanted());
        let parameters = |slice_us: u64| {
            let Value::Object(parameters) = json!({ "slice_us": slice_us }) else { panic!() };
            parameters
        };
        let policies = ["fair", "zone", "count"].map(str::to_owned);
        trace.tell_at(10 * S, &Observed::Loaded { policies, parameters: &parameters(4000) });
        // At once, when nothing can be said of a second; then a second later, and another one.
        for (at_ns, switches, refused, slice_us) in [
            (10 * S + 1, 3, &[][..], 4000),
            // One that the scheduler's clock has before the load, and one after all.
            (11 * S, 500, &[refusal(9 * S), refusal(12 * S)][..], 4000),
            (12 * S, 500, &[refusal(9 * S), refusal(12 * S)][..], 2000),
        ] {
            let (statistics, parameters) = (statistics(switches), parameters(slice_us));
            let figures = Observed::Figures {
                statistics: &statistics,
                decisions: refused,
                parameters: &parameters,
            };
            trace.tell_at(at_ns, &figures);
        }
        let exit = Exit {
            kind: ExitKind::Unloaded,
            reason: "unloaded".into(),
            message: String::new(),
            dump: String::new(),
        };
        trace.tell_at(13 * S, &Observed::Ended(&exit));
        let drawn = drawn(&path);
        let on = |track: &str| -> Vec<(u64, &str)> {
            drawn[track].iter().map(|(at_ns, what)| (*at_ns, what.as_str())).collect()
        };
        assert_eq!(on("the keel"), [(10 * S, "fair/zone/count"), (13 * S, "end")]);
        assert_eq!(on("changes"), [(12 * S, "slice_us = 2000"), (13 * S, "ended")]);
        assert_eq!(on("switch"), [(10 * S, "500"), (11 * S, "0")]);
        assert_eq!(on("CPU 1: capability"), [(10 * S + 1, "50")]);
        assert_eq!(on("CPU 1: utilisation"), [(10 * S + 1, "60")]);
        let refused: Vec<u64> = drawn["refusals of the gate"].iter().map(|(at, _)| *at).collect();
        assert_eq!(refused, [10 * S + 1, 11 * S]);
        assert!(!drawn.contains_key("keep"), "it was never counted: {drawn:?}");
    }
}
