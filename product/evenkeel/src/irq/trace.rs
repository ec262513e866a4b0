//! `irq run --perfetto`: the history of moved interrupts as a trace for Perfetto's viewer, written round
//! by round.
//!
//! It shows what interrupts take of each CPU and what capability is left, on which CPU each source is
//! that takes time, and what happens to sources, with the reasons. A round that is too quiet for a move
//! reads no source, and none is read for the trace: the slices end there. Kept are the tracks of the
//! sources of the last round, and of a limited number of earlier ones, which may come back.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_irq::{Accounting, Event, Snapshot};
use evenkeel_journal::UndoReport;
use evenkeel_machine::{CAPABILITY_SCALE, CpuSet, Machine};
use evenkeel_perfetto::{Annotation, Counter, EventKind, Track, TrackKind};

use super::common::taken_back;
use crate::trace_file::{Recorder, TraceFile, now_ns, numbered};

/// Numbers of tracks: what happens, ...
const MOVES: u64 = 1;
/// ... the two figures of each CPU, ...
const CPUS: u64 = 1 << 20;
const PER_CPU: u64 = 2;
/// ... and the sources from here on, in the order in which they are seen.
const FIRST_SEEN: u64 = 1 << 40;

/// A source that takes less than this of a CPU, in percent, has no slice.
const LEAST_PCT: f64 = 0.1;
/// So many sources keep their tracks while they take no time.
const LANES: usize = 1024;

/// What a round has observed.
pub struct Seen<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The CPUs of `--for`.
    pub protected: &'a CpuSet,
    /// What handlers and softirqs took of each CPU, in percent; empty where that is not measured.
    pub taken_pct: &'a BTreeMap<u32, f64>,
    /// The sources; none: the round is too quiet for a move.
    pub snapshot: Option<&'a Snapshot>,
}

/// A source's track.
struct Lane {
    track: u64,
    /// The CPU of its open slice.
    cpu: Option<u32>,
}

/// A trace that is being written; without a file, nothing.
pub struct Trace {
    recorder: Recorder,
    /// The CPUs that have figures.
    cpus: BTreeSet<u32>,
    /// By name and kind.
    lanes: BTreeMap<String, Lane>,
    seen: u64,
    protected: CpuSet,
    /// The end of the last round.
    last_ns: u64,
}

impl Trace {
    /// Begins the trace: what was in the file is replaced.
    pub fn start(file: Option<TraceFile>) -> Self {
        let mut trace = Self {
            recorder: Recorder::begin(file),
            cpus: BTreeSet::new(),
            lanes: BTreeMap::new(),
            seen: 0,
            protected: CpuSet::new(),
            last_ns: now_ns(),
        };
        let kind = TrackKind::Other;
        let track = Track { uuid: MOVES, parent: None, name: "moves of interrupts", kind };
        trace.recorder.writer().declare(track);
        trace
    }

    /// Writes down something that happens now, and why.
    pub fn note(&mut self, what: &str, why: &str) {
        if self.recorder.is_open() {
            self.recorder.note(now_ns(), MOVES, what, vec![("why".to_owned(), why.to_owned())]);
            self.recorder.flush();
        }
    }

    /// Writes down what a round that has just been observed shows since the one before.
    pub fn round(&mut self, seen: &Seen<'_>) {
        if self.recorder.is_open() {
            self.round_at(now_ns(), seen);
            self.recorder.flush();
        }
    }

    /// Writes down what became of a source.
    pub fn event(&mut self, event: &Event) {
        let what = match event {
            Event::Moved(step) => format!("moved {} to CPU {}", step.name, step.to),
            Event::LetGo(moved) => format!("left alone {}", moved.name),
            Event::SetBack { name, .. } => format!("set back {name}"),
            Event::Refused { name, .. } => format!("stays {name}"),
            Event::Spread(step) => {
                format!("spread {} to queue {}", step.device, step.to_queue)
            }
            Event::Withdrawn(step) => format!("took back {}", step.device),
            Event::Unspread { device, .. } => format!("stays {device}"),
        };
        self.note(&what, &event.to_string());
    }

    /// Ends the trace: everything was taken back, or could not be.
    pub fn end(&mut self, report: &UndoReport) {
        if !self.recorder.is_open() {
            return;
        }
        let at_ns = now_ns();
        self.end_slices(at_ns, |_| true);
        let errors = report.errors.iter().map(ToString::to_string);
        let mut why = numbered("taken back", taken_back(report));
        why.extend(numbered("error", errors));
        self.recorder.note(at_ns, MOVES, "ended", why);
        self.recorder.flush();
    }

    fn round_at(&mut self, at_ns: u64, seen: &Seen<'_>) {
        if self.protected != *seen.protected {
            self.protected = seen.protected.clone();
            let what = format!("keeps CPUs {} free", self.protected);
            self.recorder.note(at_ns, MOVES, &what, Vec::new());
        }
        self.draw_cpus(seen);
        match seen.snapshot {
            Some(snapshot) => self.draw_sources(snapshot),
            None => self.end_slices(self.last_ns, |_| true),
        }
        self.last_ns = at_ns;
    }

    fn draw_cpus(&mut self, seen: &Seen<'_>) {
        // A snapshot has the kernel threads of interrupts, too.
        let exact = seen.snapshot.filter(|it| it.accounting == Accounting::Exact);
        let taken_pct: BTreeMap<u32, f64> = match exact {
            Some(snapshot) => {
                let loads = snapshot.loads().into_iter();
                loads.map(|(cpu, ns)| (cpu, snapshot.percent(ns))).collect()
            }
            None => seen.taken_pct.clone(),
        };
        // One that went offline has nothing to give.
        let gone = self.cpus.iter().filter(|cpu| !taken_pct.contains_key(*cpu));
        let gone: Vec<_> = gone.map(|cpu| (*cpu, 0.0, 0.0)).collect();
        let capability_pct = |cpu| {
            let capability = seen.machine.cpu(cpu).map_or(CAPABILITY_SCALE, |cpu| cpu.capability);
            f64::from(capability) * 100.0 / f64::from(CAPABILITY_SCALE)
        };
        let there = taken_pct.into_iter().map(|(cpu, taken_pct)| {
            let left = (1.0 - taken_pct / 100.0).max(0.0);
            (cpu, taken_pct, capability_pct(cpu) * left)
        });
        for (cpu, taken_pct, left_pct) in there.chain(gone) {
            self.cpus.insert(cpu);
            let first = CPUS + u64::from(cpu) * PER_CPU;
            self.count(first, &format!("CPU {cpu}: capability"), left_pct);
            self.count(first + 1, &format!("CPU {cpu}: interrupts"), taken_pct);
        }
    }

    /// Writes a value in percent that holds since the last round.
    fn count(&mut self, uuid: u64, name: &str, pct: f64) {
        let counter = Counter { uuid, parent: None, name, unit: "%" };
        self.recorder.writer().count(self.last_ns, counter, pct);
    }

    fn draw_sources(&mut self, snapshot: &Snapshot) {
        let busy = busy(snapshot);
        self.end_slices(self.last_ns, |name| !busy.contains_key(name));
        if self.lanes.len() + busy.len() > LANES {
            self.lanes.retain(|_, lane| lane.cpu.is_some());
        }
        for (name, (cpu, pct)) in busy {
            let (track, was) = match self.lanes.get(&name) {
                Some(lane) => (lane.track, lane.cpu),
                None => (self.declare_source(&name), None),
            };
            if was == Some(cpu) {
                continue;
            }
            let (at_ns, writer) = (self.last_ns, self.recorder.writer());
            if was.is_some() {
                writer.event(at_ns, track, EventKind::End);
            }
            let text = format!("{pct:.1} % of a CPU in the first round");
            let annotations = [Annotation { name: "takes".to_owned(), text }];
            let slice = format!("CPU {cpu}");
            let kind = EventKind::Begin { name: &slice, annotations: &annotations };
            writer.event(at_ns, track, kind);
            self.lanes.insert(name, Lane { track, cpu: Some(cpu) });
        }
    }

    fn declare_source(&mut self, name: &str) -> u64 {
        self.seen += 1;
        let uuid = FIRST_SEEN + self.seen;
        let track = Track { uuid, parent: None, name, kind: TrackKind::Other };
        self.recorder.writer().declare(track);
        uuid
    }

    /// Ends the open slices of these sources.
    fn end_slices(&mut self, at_ns: u64, of: impl Fn(&str) -> bool) {
        let writer = self.recorder.writer();
        for (_, lane) in self.lanes.iter_mut().filter(|(name, _)| of(name)) {
            if lane.cpu.take().is_some() {
                writer.event(at_ns, lane.track, EventKind::End);
            }
        }
    }
}

/// The sources that take time, each with the CPU that it burdens and what it takes of a CPU, in percent.
/// NAPI instances that only their names tell apart are one.
fn busy(snapshot: &Snapshot) -> BTreeMap<String, (u32, f64)> {
    let mut busy: BTreeMap<String, (u32, f64)> = BTreeMap::new();
    for source in &snapshot.sources {
        let pct = snapshot.percent(source.total_ns());
        let Some(cpu) = source.home().filter(|_| pct >= LEAST_PCT) else { continue };
        let place = busy.entry(format!("{} ({})", source.name, source.id)).or_default();
        if pct > place.1 {
            *place = (cpu, pct);
        }
    }
    busy
}

#[cfg(test)]
mod tests {
    use evenkeel_irq::{Cpu, Move, Reason, Source, SourceId};
    use evenkeel_perfetto::{Value, fields};

    use super::*;

    const MS: u64 = 1_000_000;

    fn machine() -> Machine {
        let toml = "name = \"x\"\nkinds = [{ cpus = \"0\", capability = 1024 }, \
                    { cpus = \"1\", capability = 512 }]\n";
        Machine::parse_toml(toml, "x").unwrap()
    }

    /// A second in which each of these lines took so many ms on a CPU.
    fn snapshot(lines: &[(u32, u32, u64)]) -> Snapshot {
        let source = |(line, cpu, ms): &(u32, u32, u64)| Source {
            id: SourceId::Line(*line),
            name: format!("eth{line}"),
            device: None,
            queue: None,
            allowed: CpuSet::first(2),
            effective: [*cpu].into_iter().collect(),
            interrupts: 1,
            ns: [(*cpu, ms * MS)].into(),
            napis: Vec::new(),
            held: None,
        };
        let cpu =
            |number| Cpu { number, isolated: false, protected: false, other_ns: 0, net_rx: 0 };
        Snapshot {
            interval_ns: 1000 * MS,
            accounting: Accounting::Exact,
            cpus: (0..2).map(cpu).collect(),
            sources: lines.iter().map(source).collect(),
            devices: Vec::new(),
        }
    }

    /// A trace, and the folder of its file.
    fn start() -> (tempfile::TempDir, Trace) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("irq.pftrace");
        std::fs::write(&path, "an older file that is longer than nothing").unwrap();
        let trace = Trace::start(Some(TraceFile::open(&path).unwrap()));
        (folder, trace)
    }

    /// Rounds of a second; without lines a quiet one, in which a per mille of CPU 0 is taken.
    fn draw(trace: &mut Trace, rounds: &[&[(u32, u32, u64)]]) {
        let (machine, protected) = (machine(), CpuSet::new());
        let quiet_pct = [(0, 0.1), (1, 0.0)].into();
        for lines in rounds {
            let snapshot = Some(snapshot(lines)).filter(|_| !lines.is_empty());
            let seen = Seen {
                machine: &machine,
                protected: &protected,
                taken_pct: &quiet_pct,
                snapshot: snapshot.as_ref(),
            };
            let at_ns = trace.last_ns + 1000 * MS;
            trace.round_at(at_ns, &seen);
        }
    }

    fn inner<'a>(message: &'a [u8], number: u32) -> Option<Value<'a>> {
        let found = fields(message).unwrap().into_iter().find(|(field, _)| *field == number);
        found.map(|(_, value)| value)
    }

    fn string(value: Value<'_>) -> String {
        String::from_utf8(value.bytes().to_vec()).unwrap()
    }

    /// What is on each track of the file, by the track's name.
    fn drawn(folder: &tempfile::TempDir) -> BTreeMap<String, Vec<String>> {
        let bytes = std::fs::read(folder.path().join("irq.pftrace")).unwrap();
        let mut names: BTreeMap<u64, String> = BTreeMap::new();
        let mut drawn: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, packet) in fields(&bytes).unwrap() {
            if let Some(track) = inner(packet.bytes(), 60) {
                let name = string(inner(track.bytes(), 2).unwrap());
                let uuid = inner(track.bytes(), 1).unwrap().number();
                assert_eq!(names.insert(uuid, name), None, "each track is declared once");
            }
            let Some(event) = inner(packet.bytes(), 11).map(Value::bytes) else { continue };
            let name = inner(event, 23).map(string);
            let what = match inner(event, 9).unwrap().number() {
                1 => format!("begin {}", name.unwrap()),
                2 => "end".to_owned(),
                3 => name.unwrap(),
                _ => inner(event, 44).unwrap().double().to_string(),
            };
            let track = names[&inner(event, 11).unwrap().number()].clone();
            drawn.entry(track).or_default().push(what);
        }
        drawn
    }

    #[test]
    fn a_source_has_a_slice_for_each_stay_and_a_cpu_its_figures() {
        let (folder, mut trace) = start();
        let rounds: [&[_]; 6] = [
            &[],
            // Line 9 takes next to nothing.
            &[(7, 0, 250), (9, 0, 0)],
            &[(7, 0, 250), (9, 0, 0)],
            &[(7, 1, 500)],
            &[],
            &[(7, 1, 500)],
        ];
        draw(&mut trace, &rounds);
        let step = Move {
            source: SourceId::Line(7),
            name: "eth7".into(),
            from: 0,
            to: 1,
            reason: Reason::Level,
            pct: 25.0,
            from_pct: 25.0,
            after_pct: 25.0,
        };
        trace.event(&Event::Moved(step));
        trace.end(&UndoReport::default());
        let drawn = drawn(&folder);
        let stays = ["begin CPU 0", "end", "begin CPU 1", "end", "begin CPU 1", "end"];
        assert_eq!(drawn["eth7 (line 7)"], stays);
        assert_eq!(drawn["CPU 0: interrupts"], ["0.1", "25", "0", "0.1", "0"]);
        assert_eq!(drawn["CPU 0: capability"], ["99.9", "75", "100", "99.9", "100"]);
        // Half as capable, and half of that is taken.
        assert_eq!(drawn["CPU 1: capability"], ["50", "25", "50", "25"]);
        assert_eq!(drawn["moves of interrupts"], ["moved eth7 to CPU 1", "ended"]);
        assert_eq!(drawn.len(), 6, "{drawn:?}");
    }

    #[test]
    fn tracks_of_sources_that_take_no_time_are_kept_within_bounds() {
        let (_folder, mut trace) = start();
        for round in 0..20 {
            let lines: Vec<_> = (0..100).map(|line| (round * 100 + line, 0, 10)).collect();
            draw(&mut trace, &[lines.as_slice(), &[]]);
            assert!(trace.lanes.len() <= LANES);
        }
    }

    #[test]
    fn a_cpu_that_goes_offline_has_no_capability() {
        let (folder, mut trace) = start();
        let (machine, protected) = (machine(), CpuSet::first(1));
        let rounds: [BTreeMap<_, _>; 2] = [[(0, 0.0), (1, 0.0)].into(), [(0, 0.0)].into()];
        for taken_pct in rounds {
            let (protected, taken_pct) = (&protected, &taken_pct);
            trace.round(&Seen { machine: &machine, protected, taken_pct, snapshot: None });
        }
        let drawn = drawn(&folder);
        assert_eq!(drawn["CPU 1: capability"], ["50", "0"]);
        assert_eq!(drawn["CPU 0: capability"], ["100"]);
        assert_eq!(drawn["moves of interrupts"], ["keeps CPUs 0 free"]);
    }

    #[test]
    fn a_file_that_waits_in_vain_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("irq.pftrace");
        drop(TraceFile::open(&path).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "older").unwrap();
        drop(TraceFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "older");
        assert_eq!(TraceFile::open(&path).unwrap().folder(), folder.path());
    }
}
