//! `run --perfetto`: the history of a run as a trace for Perfetto's viewer, written round by round.
//!
//! It shows what the balancer saw: for each thread the CPU on which it was found at each round, for each
//! CPU its capability and what took the rest, the decisions with their reasons, and the measured gain.
//! What happens between two rounds is not seen. Values that stay the same are written once.
//!
//! Each round is one write of whole packets, so that the file of a killed run is a trace up to its last
//! round. Kept are the threads that are alive and the last values. Nothing here has a say in what is
//! decided; a file that cannot be written ends the trace, not the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_capability::TaskId;
use evenkeel_perfetto::{Annotation, Counter, EventKind, Track, TrackKind, Writer};

use crate::clock::{boottime_ns, monotonic_ns};
use crate::decision::{Decision, DecisionInWords};
use crate::proof::{Gain, Proven};
use crate::reading::{CpuReading, Reading, TaskReading};

/// Numbers of tracks: the command's process, its decisions, ...
const PROCESS: u64 = 1;
const DECISIONS: u64 = 2;
/// ... the gain and the two ends of its interval, ...
const GAIN: [(u64, &str); 3] = [(3, "gain"), (4, "gain, lowest"), (5, "gain, highest")];
/// ... the figures of each CPU, ...
const CPUS: u64 = 1 << 20;
const PER_CPU: u64 = 16;
/// ... and processes and threads from here on, in the order in which they are seen.
const FIRST_SEEN: u64 = 1 << 40;

/// A part of a CPU's time that other work takes: its name, and how long it was in a reading.
type Cause = (&'static str, fn(&CpuReading) -> u64);

const CAUSES: [Cause; 5] = [
    ("interrupts", |cpu| cpu.irq_ns),
    ("softirqs", |cpu| cpu.softirq_ns),
    ("steal", |cpu| cpu.steal_ns),
    ("real-time tasks", |cpu| cpu.rt_ns),
    ("other programs", |cpu| cpu.foreign_ns),
];

/// A thread's track.
struct Lane {
    track: u64,
    /// The CPU of its open slice.
    cpu: Option<u32>,
}

/// A trace that is being written; without a file, nothing.
pub(crate) struct Trace {
    /// Its clock is ahead of that of readings by how long the machine was suspended. That is read once a
    /// round: events of one moment must keep one time, or slices would nest.
    writer: Writer<Arc<File>>,
    root: u32,
    processes: BTreeSet<u32>,
    threads: BTreeMap<TaskId, Lane>,
    seen: u64,
    /// The CPUs of the last decision.
    cpus: Vec<u32>,
    last: Option<Rc<Reading>>,
    decided_ns: u64,
    /// The reasons of the last round without a move.
    at_rest: Vec<String>,
    proven: Proven,
}

impl Trace {
    /// Begins the trace of a command that has just been started as process `root`. What was in the file
    /// is replaced.
    pub(crate) fn start(file: Option<Arc<File>>, words: &[String], root: u32) -> Self {
        let mut trace = Self {
            writer: Writer::new(file.clone()),
            root,
            processes: [root].into(),
            threads: BTreeMap::new(),
            seen: 0,
            cpus: Vec::new(),
            last: None,
            decided_ns: 0,
            at_rest: Vec::new(),
            proven: Proven::Nothing,
        };
        if let Some(Err(why)) = file.map(|file| file.set_len(0)) {
            trace.writer.close();
            warn_of_end(&why);
        }
        if !trace.writer.is_open() {
            return trace;
        }
        trace.writer.set_ahead(suspended_ns());
        let name = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
        let kind = TrackKind::Process { pid: root, words };
        trace.declare(Track { uuid: PROCESS, parent: None, name, kind });
        let kind = TrackKind::Other;
        trace.declare(Track { uuid: DECISIONS, parent: Some(PROCESS), name: "decisions", kind });
        trace.note("started", &words.join(" "));
        trace
    }

    /// Writes down something that happens now, and why.
    pub(crate) fn note(&mut self, what: &str, why: &str) {
        if !self.writer.is_open() {
            return;
        }
        let why = [Annotation { name: "why".to_owned(), text: why.to_owned() }];
        let annotations = &why[..usize::from(!why[0].text.is_empty())];
        self.event(monotonic_ns(), DECISIONS, EventKind::Instant { name: what, annotations });
        self.flush();
    }

    /// Nothing is observed from now on.
    pub(crate) fn pause(&mut self, what: &str, why: &str) {
        if !self.writer.is_open() {
            return;
        }
        self.last = None;
        self.end_slices(monotonic_ns(), |_| true);
        self.note(what, why);
    }

    /// Writes down a round: what its reading shows since the one before, and what was decided.
    pub(crate) fn round(&mut self, now: &Rc<Reading>, decision: Option<&Decision>, gain: &Gain) {
        if !self.writer.is_open() {
            return;
        }
        self.writer.set_ahead(suspended_ns());
        let decision = decision.filter(|decision| decision.at_ns > self.decided_ns);
        if let Some(decision) = decision {
            self.cpus = decision.cpus.iter().map(|it| it.cpu).collect();
        }
        let last = self.last.replace(Rc::clone(now));
        if let Some(last) = last.filter(|last| last.at_ns < now.at_ns) {
            self.draw_threads(&last, now);
            self.draw_cpus(&last, now, decision);
        }
        if let Some(decision) = decision {
            self.decided_ns = decision.at_ns;
            self.draw_decision(decision.at_ns, decision.in_words());
        }
        self.draw_gain(now.at_ns, gain);
        self.flush();
    }

    /// Ends the trace: the command has ended.
    pub(crate) fn end(&mut self, how: &str, gain: Option<&Gain>) {
        if !self.writer.is_open() {
            return;
        }
        let now_ns = monotonic_ns();
        if let Some(gain) = gain {
            self.draw_gain(now_ns, gain);
        }
        self.pause("ended", how);
    }

    fn draw_threads(&mut self, last: &Reading, now: &Reading) {
        let nothing = BTreeMap::new();
        let tasks = now.tasks_of(self.root).unwrap_or(&nothing);
        let before = last.tasks_of(self.root).unwrap_or(&nothing);
        self.end_slices(now.at_ns, |id| !tasks.contains_key(&id));
        self.threads.retain(|id, _| tasks.contains_key(id));
        let alive: BTreeSet<u32> = tasks.values().map(|task| task.process).collect();
        self.processes.retain(|process| *process == self.root || alive.contains(process));
        for (id, task) in tasks {
            let then = before.get(id).copied().unwrap_or_default();
            let cpu = has_wanted_a_cpu(task, &then).then_some(task.cpu);
            let lane = self.threads.get(id);
            let (track, was) = match lane {
                Some(lane) => (lane.track, lane.cpu),
                // A thread that only sleeps has no track.
                None if cpu.is_none() => continue,
                None => (self.declare_thread(*id, task.process), None),
            };
            if was != cpu {
                if was.is_some() {
                    self.event(last.at_ns, track, EventKind::End);
                }
                if let Some(cpu) = cpu {
                    let name = &format!("CPU {cpu}");
                    self.event(last.at_ns, track, EventKind::Begin { name, annotations: &[] });
                }
            }
            self.threads.insert(*id, Lane { track, cpu });
        }
    }

    /// Ends the open slices of these threads.
    fn end_slices(&mut self, at_ns: u64, of: impl Fn(TaskId) -> bool) {
        let lanes = self.threads.iter_mut().filter(|(id, lane)| lane.cpu.is_some() && of(**id));
        let open: Vec<u64> = lanes
            .map(|(_, lane)| {
                lane.cpu = None;
                lane.track
            })
            .collect();
        for track in open {
            self.event(at_ns, track, EventKind::End);
        }
    }

    fn draw_cpus(&mut self, last: &Reading, now: &Reading, decision: Option<&Decision>) {
        let interval_ns = now.at_ns - last.at_ns;
        let shown = decision.iter().flat_map(|decision| &decision.cpus);
        let given: BTreeMap<u32, u64> =
            shown.map(|shown| (shown.cpu, shown.capability_per_mille)).collect();
        for cpu in self.cpus.clone() {
            let first = CPUS + u64::from(cpu) * PER_CPU;
            if let Some(per_mille) = given.get(&cpu) {
                let name = &format!("CPU {cpu}: capability");
                self.count(last.at_ns, (first, None, name), *per_mille as f64 / 10.0);
            }
            let Some((before, after)) = last.cpus.get(&cpu).zip(now.cpus.get(&cpu)) else {
                continue;
            };
            for (track, (cause, of)) in (first + 1..).zip(CAUSES) {
                let share = of(after).saturating_sub(of(before)) as f64 / interval_ns as f64;
                let name = &format!("CPU {cpu}: {cause}");
                self.count(last.at_ns, (track, None, name), 100.0 * share);
            }
        }
    }

    fn draw_decision(&mut self, at_ns: u64, words: DecisionInWords) {
        let DecisionInWords { waits, news, moves, reasons, refused, .. } = words;
        let count = |lines: &[String], one: &str, many: &str| match lines.len() {
            1 => format!("1 {one}"),
            count => format!("{count} {many}"),
        };
        let name = if !moves.is_empty() {
            count(&moves, "move", "moves")
        } else if !refused.is_empty() {
            count(&refused, "move refused", "moves refused")
        } else if let Some(first) = news.first() {
            first.clone()
        } else if reasons == self.at_rest {
            // Said already, and not over since.
            return;
        } else {
            self.at_rest.clone_from(&reasons);
            reasons.first().cloned().unwrap_or_else(|| "no moves".to_owned())
        };
        if !(moves.is_empty() && refused.is_empty() && news.is_empty()) {
            self.at_rest.clear();
        }
        let lines = |kind: &'static str, lines: Vec<String>| {
            let numbered = (1..).zip(lines);
            numbered
                .map(move |(number, text)| Annotation { name: format!("{kind} {number}"), text })
        };
        let annotations: Vec<Annotation> = lines("move", moves)
            .chain(lines("refused", refused))
            .chain(lines("change of CPUs", news))
            .chain(lines("reason", reasons))
            .chain(waits.map(|text| Annotation { name: "waits".to_owned(), text }))
            .collect();
        let kind = EventKind::Instant { name: &name, annotations: &annotations };
        self.event(at_ns, DECISIONS, kind);
    }

    fn draw_gain(&mut self, at_ns: u64, gain: &Gain) {
        for ((track, name), ratio) in GAIN.into_iter().zip([gain.ratio, gain.low, gain.high]) {
            if let Some(ratio) = ratio {
                self.count(at_ns, (track, Some(PROCESS), name), (ratio - 1.0) * 100.0);
            }
        }
        if gain.proven != self.proven {
            self.proven = gain.proven;
            let name = &gain.to_string();
            self.event(at_ns, DECISIONS, EventKind::Instant { name, annotations: &[] });
        }
    }

    /// Writes a value in percent, if it is another one than before.
    fn count(&mut self, at_ns: u64, (uuid, parent, name): (u64, Option<u64>, &str), pct: f64) {
        self.writer.count(at_ns, Counter { uuid, parent, name, unit: "%" }, pct);
    }

    fn declare_thread(&mut self, id: TaskId, process: u32) -> u64 {
        if self.processes.insert(process) {
            let uuid = self.next_seen();
            let name = &comm(&format!("/proc/{process}/comm"));
            let kind = TrackKind::Process { pid: process, words: &[] };
            self.declare(Track { uuid, parent: None, name, kind });
        }
        let uuid = self.next_seen();
        let name = &comm(&format!("/proc/{process}/task/{}/comm", id.tid));
        let kind = TrackKind::Thread { pid: process, tid: id.tid };
        self.declare(Track { uuid, parent: None, name, kind });
        uuid
    }

    fn next_seen(&mut self) -> u64 {
        self.seen += 1;
        FIRST_SEEN + self.seen
    }

    fn declare(&mut self, track: Track<'_>) {
        self.writer.declare(track);
    }

    /// Adds an event at a time of the monotonic clock.
    fn event(&mut self, at_ns: u64, track: u64, kind: EventKind<'_>) {
        self.writer.event(at_ns, track, kind);
    }

    fn flush(&mut self) {
        if let Err(why) = self.writer.flush() {
            warn_of_end(&why);
        }
    }
}

fn warn_of_end(why: &std::io::Error) {
    tracing::warn!("--perfetto: the trace ends here: {why}; the command runs on");
}

fn suspended_ns() -> u64 {
    boottime_ns().saturating_sub(monotonic_ns())
}

/// Whether a task was on a CPU, or waited for one, since `then`.
fn has_wanted_a_cpu(now: &TaskReading, then: &TaskReading) -> bool {
    let wanted_ns = |task: &TaskReading| task.on_cpu_ns() + task.wait_ns;
    wanted_ns(now) > wanted_ns(then)
}

/// The name in a file of /proc; empty for a task that has ended.
fn comm(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::DecisionCpu;
    use crate::observe::Accounting;
    use crate::reading::ProgramReading;
    use crate::waits::Waits;
    use evenkeel_capability::Reason;
    use evenkeel_perfetto::{Value, fields};

    const ROOT: u32 = 4_194_305;
    const MS: u64 = 1_000_000;

    /// Events by the number of their track, in words.
    fn events(file: &File) -> Vec<(u64, String)> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let of = |message: &[u8], number: u32| {
            let found = fields(message).unwrap().into_iter().find(|(field, _)| *field == number);
            found.map(|(_, value)| match value {
                Value::Bytes(bytes) => bytes.to_vec(),
                Value::Number(number) => number.to_le_bytes().to_vec(),
                Value::Eight(bytes) => bytes.to_vec(),
            })
        };
        let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
        let packets = fields(&bytes).unwrap();
        let events = packets.iter().filter_map(|(_, packet)| of(packet.bytes(), 11));
        events
            .map(|event| {
                let name = of(&event, 23).map(|name| String::from_utf8(name).unwrap());
                let what = match number(of(&event, 9).unwrap()) {
                    1 => format!("begin {}", name.unwrap()),
                    2 => "end".to_owned(),
                    3 => name.unwrap(),
                    4 => {
                        f64::from_le_bytes(of(&event, 44).unwrap().try_into().unwrap()).to_string()
                    }
                    other => panic!("type {other}"),
                };
                (number(of(&event, 11).unwrap()), what)
            })
            .collect()
    }

    fn on(events: &[(u64, String)], track: u64) -> Vec<&str> {
        let of_track = events.iter().filter(|(number, _)| *number == track);
        of_track.map(|(_, what)| what.as_str()).collect()
    }

    fn start() -> (Arc<File>, Trace) {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let trace = Trace::start(Some(Arc::clone(&file)), &["./app".to_owned()], ROOT);
        (file, trace)
    }

    /// A reading with threads, each with its CPU and its run time, in milliseconds.
    fn reading(at_ms: u64, threads: &[(u32, u32, u64)], steal_ms: u64) -> Rc<Reading> {
        let task = |(tid, cpu, run_ms): &(u32, u32, u64)| {
            let (process, run_ns) = (ROOT + tid % 3, run_ms * MS);
            let id = TaskId { tid: *tid, start: 1 };
            (id, TaskReading { process, cpu: *cpu, run_ns, ..TaskReading::default() })
        };
        let tasks = threads.iter().map(task).collect();
        let program = ProgramReading { tasks, ..ProgramReading::default() };
        let cpu = CpuReading { steal_ns: steal_ms * MS, ..CpuReading::default() };
        let (cpus, programs) = ([(0, cpu)].into(), [(ROOT, program)].into());
        Rc::new(Reading { at_ns: at_ms * MS, cpus, programs })
    }

    fn decision(at_ms: u64, reason: Reason) -> Decision {
        Decision {
            at_ns: at_ms * MS,
            at_boottime_ns: 0,
            accounting: Accounting::Cbinfo,
            interval_ns: 10 * MS,
            average_per_mille: 900,
            cpus: vec![DecisionCpu { cpu: 0, capability_per_mille: 900, tasks: 1 }],
            waits: Waits::default(),
            news: Vec::new(),
            moves: Vec::new(),
            reasons: vec![reason],
            refused: Vec::new(),
            dry_run: false,
        }
    }

    #[test]
    fn a_thread_has_a_slice_for_each_stay_on_a_cpu() {
        let (file, mut trace) = start();
        let gain = Gain::default();
        // Thread 9 only sleeps.
        let rounds: [&[(u32, u32, u64)]; 6] = [
            &[(7, 0, 10), (9, 1, 5)],
            &[(7, 0, 20), (9, 1, 5)],
            &[(7, 0, 30), (9, 1, 5)],
            &[(7, 1, 40), (9, 1, 5)],
            &[(7, 1, 40), (9, 1, 5)],
            &[(7, 1, 50), (9, 1, 5)],
        ];
        for (round, threads) in (1..).zip(rounds) {
            trace.round(&reading(round * 10, threads, 0), None, &gain);
        }
        trace.end("exit code 0", None);
        let events = events(&file);
        let first_seen = FIRST_SEEN + 2;
        let stays = ["begin CPU 0", "end", "begin CPU 1", "end", "begin CPU 1", "end"];
        assert_eq!(on(&events, first_seen), stays);
        assert_eq!(on(&events, DECISIONS), ["started", "ended"]);
        assert_eq!(events.len(), stays.len() + 2);
    }

    #[test]
    fn figures_and_reasons_that_stay_are_written_once() {
        let (file, mut trace) = start();
        let gain = Gain { proven: Proven::Measuring, ratio: Some(1.25), ..Gain::default() };
        let balanced = |at_ms| decision(at_ms, Reason::Balanced { spread_ppm: 0 });
        for round in 0..5 {
            // A tenth of the time is stolen, half of it at the end.
            let steal_ms = round + if round == 4 { 4 } else { 0 };
            let at_ms = (round + 1) * 10;
            trace.round(&reading(at_ms, &[], steal_ms), Some(&balanced(at_ms)), &gain);
        }
        trace.round(&reading(60, &[], 9), Some(&decision(60, Reason::OneCpu)), &gain);
        let events = events(&file);
        assert_eq!(on(&events, CPUS), ["90"], "capability");
        assert_eq!(on(&events, CPUS + 3), ["10", "50", "10"], "steal");
        assert_eq!(on(&events, CPUS + 1), ["0"], "interrupts");
        assert_eq!(on(&events, GAIN[0].0), ["25"]);
        let said = on(&events, DECISIONS);
        assert_eq!(said[0], "started");
        assert_eq!(said.iter().filter(|what| what.starts_with("no moves needed")).count(), 1);
        assert_eq!(said.iter().filter(|what| **what == gain.to_string()).count(), 1);
        assert_eq!(said.len(), 4, "{said:?}");
    }

    #[test]
    fn what_has_ended_is_kept_no_more() {
        let (_, mut trace) = start();
        for round in 1..100 {
            let tid = 100 + round as u32;
            trace.round(&reading(round, &[(tid, 0, round)], 0), None, &Gain::default());
            assert!(trace.threads.len() <= 1 && trace.processes.len() <= 2);
        }
    }

    /// What is in the file is a whole trace after each round: the run may be killed then.
    #[test]
    fn each_round_is_whole_in_the_file() {
        let (file, mut trace) = start();
        for round in 1..4 {
            let before = file.metadata().unwrap().len();
            let balanced = decision(round * 10, Reason::Balanced { spread_ppm: round * 10_000 });
            trace.round(
                &reading(round * 10, &[(7, 0, round)], round),
                Some(&balanced),
                &Gain::default(),
            );
            assert!(file.metadata().unwrap().len() > before, "round {round}");
            assert!(!events(&file).is_empty());
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_ends_the_trace_only() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let read_only = Arc::new(File::open(path.path()).unwrap());
        let mut trace = Trace::start(Some(read_only), &[], ROOT);
        trace.round(&reading(1, &[], 0), None, &Gain::default());
        trace.end("exit code 0", None);
        assert!(!trace.writer.is_open());
    }
}
