//! A simulation as a trace for Perfetto's viewer (ui.perfetto.dev): its scheduling events as if ftrace
//! had recorded them. The messages are the needed parts of `protos/perfetto/trace/trace.proto`, with
//! its numbers.

use evenkeel_invariants::{Event, IDLE, Left, What};
use prost::Message;

use crate::program::Workload;
use crate::tid::THIEF_TIDS;

/// `perfetto.protos.Trace`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<Packet>,
}

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Packet {
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<Bundle>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
}

/// `FtraceEventBundle`: events of one CPU.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Bundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

/// `FtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub sched_switch: Option<SchedSwitch>,
    #[prost(message, optional, tag = "17")]
    pub sched_wakeup: Option<SchedWakeup>,
}

/// `SchedSwitchFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prev_prio: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
    #[prost(int32, optional, tag = "7")]
    pub next_prio: Option<i32>,
}

/// `SchedWakeupFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SchedWakeup {
    #[prost(string, optional, tag = "1")]
    pub comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prio: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub success: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub target_cpu: Option<i32>,
}

/// Priorities as the kernel shows them: nice 0, and that of a real-time task.
const FAIR: i32 = 120;
const REAL_TIME: i32 = 49;
/// States as ftrace shows them.
const RUNNABLE: i64 = 0;
const SLEEPING: i64 = 1;
const DEAD: i64 = 16;
/// The writer of the packets: any number but 0.
const SEQUENCE: u32 = 1;

/// The name of the task with this number, for traces, timelines and histories.
pub(crate) fn name_of(tid: u32, workload: &Workload) -> String {
    if tid == IDLE {
        return "swapper".to_owned();
    }
    if tid >= THIEF_TIDS {
        return "real-time".to_owned();
    }
    let plan = workload.tasks.get(tid as usize - 1);
    plan.map_or_else(|| format!("task {tid}"), |plan| plan.name.to_string())
}

fn priority(tid: u32) -> i32 {
    if tid >= THIEF_TIDS { REAL_TIME } else { FAIR }
}

/// Encodes these events as a trace.
pub fn trace(events: &[Event], workload: &Workload) -> Vec<u8> {
    let cpus = events.iter().map(|event| event.cpu + 1).max().unwrap_or_default();
    let mut bundles: Vec<Vec<FtraceEvent>> = vec![Vec::new(); cpus as usize];
    for event in events {
        let common = FtraceEvent { timestamp: Some(event.time_ns), ..FtraceEvent::default() };
        let shown = match event.what {
            What::Switch { prev, left, next, .. } => FtraceEvent {
                pid: Some(prev),
                sched_switch: Some(SchedSwitch {
                    prev_comm: Some(name_of(prev, workload)),
                    prev_pid: Some(prev as i32),
                    prev_prio: Some(priority(prev)),
                    prev_state: Some(match left {
                        Left::Runnable => RUNNABLE,
                        Left::Asleep => SLEEPING,
                        Left::Dead => DEAD,
                    }),
                    next_comm: Some(name_of(next, workload)),
                    next_pid: Some(next as i32),
                    next_prio: Some(priority(next)),
                }),
                ..common
            },
            What::Wakeup { task } => FtraceEvent {
                pid: Some(IDLE),
                sched_wakeup: Some(SchedWakeup {
                    comm: Some(name_of(task, workload)),
                    pid: Some(task as i32),
                    prio: Some(priority(task)),
                    success: Some(1),
                    target_cpu: Some(event.cpu as i32),
                }),
                ..common
            },
            _ => continue,
        };
        bundles[event.cpu as usize].push(shown);
    }
    let packet = |(cpu, event): (usize, Vec<FtraceEvent>)| Packet {
        ftrace_events: Some(Bundle { cpu: Some(cpu as u32), event }),
        trusted_packet_sequence_id: Some(SEQUENCE),
    };
    let bundles = bundles.into_iter().enumerate().filter(|(_, events)| !events.is_empty());
    Trace { packet: bundles.map(packet).collect() }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Op, TaskPlan};

    /// The fields of an encoded message: number and content.
    fn fields(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = prost::encoding::decode_varint(&mut bytes).unwrap();
            let content = match key & 7 {
                0 => prost::encoding::decode_varint(&mut bytes).unwrap().to_le_bytes().to_vec(),
                2 => {
                    let length = prost::encoding::decode_varint(&mut bytes).unwrap() as usize;
                    let (content, rest) = bytes.split_at(length);
                    bytes = rest;
                    content.to_vec()
                }
                other => panic!("wire type {other}"),
            };
            found.push(((key >> 3) as u32, content));
        }
        found
    }

    fn field(message: &[u8], number: u32) -> Vec<u8> {
        let found = fields(message).into_iter().find(|(known, _)| *known == number);
        found.unwrap_or_else(|| panic!("no field {number}")).1
    }

    #[test]
    fn events_have_the_field_numbers_of_the_schema() {
        let workload =
            Workload { tasks: vec![TaskPlan::new("hog", vec![Op::Run(1)])], ..Workload::default() };
        let switch = What::Switch { prev: 1, left: Left::Asleep, charged_ns: 9, next: IDLE };
        let events = [
            Event { time_ns: 5, cpu: 3, what: What::Wakeup { task: 1 } },
            Event { time_ns: 7, cpu: 3, what: switch },
        ];
        let bytes = trace(&events, &workload);
        // Trace.packet = 1, TracePacket.ftrace_events = 1, FtraceEventBundle.cpu = 1, .event = 2.
        let bundle = field(&field(&bytes, 1), 1);
        assert_eq!(field(&bundle, 1), 3u64.to_le_bytes());
        let of_bundle = fields(&bundle);
        let of_bundle: Vec<_> = of_bundle.iter().filter(|(number, _)| *number == 2).collect();
        assert_eq!(of_bundle.len(), 2);
        // FtraceEvent.timestamp = 1, .sched_wakeup = 17, .sched_switch = 4.
        assert_eq!(field(&of_bundle[0].1, 1), 5u64.to_le_bytes());
        assert_eq!(field(&field(&of_bundle[0].1, 17), 1), b"hog");
        let switch = field(&of_bundle[1].1, 4);
        assert_eq!(field(&switch, 1), b"hog");
        assert_eq!(field(&switch, 2), 1u64.to_le_bytes());
        assert_eq!(field(&switch, 4), (SLEEPING as u64).to_le_bytes());
        assert_eq!(field(&switch, 5), b"swapper");
        assert_eq!(Trace::decode(&*bytes).unwrap().packet.len(), 1);
    }
}
