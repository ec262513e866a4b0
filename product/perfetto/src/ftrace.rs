//! Scheduling events as the kernel's ftrace records them: switches and wake-ups. For callers that know
//! every switch, as the simulator does.

use crate::message::Message;
use crate::packed;

/// Packets and bundles: `TracePacket.ftrace_events`, `FtraceEventBundle.cpu` and `.event`.
const PACKET_EVENTS: u32 = 1;
const BUNDLE_CPU: u32 = 1;
const BUNDLE_EVENT: u32 = 2;
/// `FtraceEvent`: `.timestamp`, `.pid`, and the kinds.
const EVENT_TIME: u32 = 1;
const EVENT_PID: u32 = 2;
const EVENT_SWITCH: u32 = 4;
const EVENT_WAKEUP: u32 = 17;

/// A task as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task<'a> {
    /// Its name.
    pub comm: &'a str,
    /// Its thread id; 0: idle.
    pub pid: u32,
    /// Its priority as the kernel shows it: 120 is nice 0, below 100 is real-time.
    pub prio: u32,
}

/// Why a task leaves the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrevState {
    /// Preempted: it would run on.
    Runnable,
    /// It sleeps.
    Sleeping,
    /// It has ended.
    Dead,
}

impl PrevState {
    /// The number that ftrace shows.
    fn number(self) -> u64 {
        match self {
            Self::Runnable => 0,
            Self::Sleeping => 1,
            Self::Dead => 16,
        }
    }
}

/// Events of one CPU, which share a packet.
#[derive(Debug, Clone)]
pub struct Bundle {
    cpu: u32,
    events: Message,
}

impl Bundle {
    /// Without events.
    pub fn new(cpu: u32) -> Self {
        Self { cpu, events: Message::new().uint(BUNDLE_CPU, u64::from(cpu)) }
    }

    /// Adds a switch from one task to another at a time in nanoseconds.
    pub fn switch(&mut self, at_ns: u64, prev: Task<'_>, state: PrevState, next: Task<'_>) {
        let switch = Message::new()
            .text(1, prev.comm)
            .uint(2, u64::from(prev.pid))
            .uint(3, u64::from(prev.prio))
            .uint(4, state.number())
            .text(5, next.comm)
            .uint(6, u64::from(next.pid))
            .uint(7, u64::from(next.prio));
        self.add(at_ns, prev.pid, EVENT_SWITCH, switch);
    }

    /// Adds the wake-up of a task, to run on this CPU, at a time in nanoseconds.
    pub fn wakeup(&mut self, at_ns: u64, task: Task<'_>) {
        let wakeup = Message::new()
            .text(1, task.comm)
            .uint(2, u64::from(task.pid))
            .uint(3, u64::from(task.prio))
            // `success`.
            .uint(4, 1)
            .uint(5, u64::from(self.cpu));
        self.add(at_ns, 0, EVENT_WAKEUP, wakeup);
    }

    /// Whether no event was added.
    pub fn is_empty(&self) -> bool {
        self.events == Self::new(self.cpu).events
    }

    /// The events as a packet of a trace.
    pub fn packet(self) -> Vec<u8> {
        packed(Message::new().message(PACKET_EVENTS, self.events))
    }

    fn add(&mut self, at_ns: u64, pid: u32, kind: u32, what: Message) {
        let event = Message::new().uint(EVENT_TIME, at_ns).uint(EVENT_PID, u64::from(pid));
        let events = std::mem::take(&mut self.events);
        self.events = events.message(BUNDLE_EVENT, event.message(kind, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::{Value, fields};

    #[test]
    fn events_have_the_field_numbers_of_the_schema() {
        let hog = Task { comm: "hog", pid: 7, prio: 120 };
        let idle = Task { comm: "swapper", pid: 0, prio: 120 };
        let mut bundle = Bundle::new(3);
        assert!(bundle.is_empty());
        bundle.wakeup(5, hog);
        bundle.switch(9, hog, PrevState::Sleeping, idle);
        assert!(!bundle.is_empty());
        let bytes = bundle.packet();
        let inner = |bytes, number: u32| {
            let all: Vec<(u32, Value<'_>)> = fields(bytes).unwrap();
            let of: Vec<_> = all.iter().filter(|(field, _)| *field == number).collect();
            of.iter().map(|(_, value)| *value).collect::<Vec<_>>()
        };
        // Trace.packet = 1; TracePacket.ftrace_events = 1, .trusted_packet_sequence_id = 10.
        let packet = inner(&bytes, 1)[0].bytes();
        assert_eq!(inner(packet, 10), [Value::Number(1)]);
        let bundle = inner(packet, 1)[0].bytes();
        assert_eq!(inner(bundle, 1), [Value::Number(3)]);
        let events = inner(bundle, 2);
        // FtraceEvent.timestamp = 1, .pid = 2, .sched_switch = 4, .sched_wakeup = 17.
        let (wakeup, switch) = (events[0].bytes(), events[1].bytes());
        assert_eq!((inner(wakeup, 1)[0].number(), inner(wakeup, 2)[0].number()), (5, 0));
        let wakeup: Vec<_> = fields(inner(wakeup, 17)[0].bytes()).unwrap();
        let number = Value::Number;
        let expected = [
            (1, Value::Bytes(b"hog")),
            (2, number(7)),
            (3, number(120)),
            (4, number(1)),
            (5, number(3)),
        ];
        assert_eq!(wakeup, expected);
        assert_eq!((inner(switch, 1)[0].number(), inner(switch, 2)[0].number()), (9, 7));
        let switch: Vec<_> = fields(inner(switch, 4)[0].bytes()).unwrap();
        let prev = [(1, Value::Bytes(b"hog")), (2, number(7)), (3, number(120)), (4, number(1))];
        let next = [(5, Value::Bytes(b"swapper")), (6, number(0)), (7, number(120))];
        assert_eq!(switch, [&prev[..], &next[..]].concat());
    }
}
