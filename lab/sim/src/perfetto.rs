//! A simulation as a trace for Perfetto's viewer (ui.perfetto.dev): its scheduling events as if ftrace
//! had recorded them.

use evenkeel_invariants::{Event, IDLE, Left, What};
use evenkeel_perfetto::{Bundle, PrevState, Task};

use crate::program::Workload;
use crate::tid::THIEF_TIDS;

/// Priorities as the kernel shows them: nice 0, and that of a real-time task.
const FAIR: u32 = 120;
const REAL_TIME: u32 = 49;

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

fn priority(tid: u32) -> u32 {
    if tid >= THIEF_TIDS { REAL_TIME } else { FAIR }
}

/// Encodes these events as a trace.
pub fn trace(events: &[Event], workload: &Workload) -> Vec<u8> {
    let cpus = events.iter().map(|event| event.cpu + 1).max().unwrap_or_default();
    let mut bundles: Vec<Bundle> = (0..cpus).map(Bundle::new).collect();
    for event in events {
        let bundle = &mut bundles[event.cpu as usize];
        let named = |tid: u32| (tid, name_of(tid, workload));
        match event.what {
            What::Switch { prev, left, next, .. } => {
                let state = match left {
                    Left::Runnable => PrevState::Runnable,
                    Left::Asleep => PrevState::Sleeping,
                    Left::Dead => PrevState::Dead,
                };
                let (prev, next) = (named(prev), named(next));
                bundle.switch(event.time_ns, task(&prev), state, task(&next));
            }
            What::Wakeup { task: woken } => bundle.wakeup(event.time_ns, task(&named(woken))),
            _ => {}
        }
    }
    bundles.into_iter().filter(|bundle| !bundle.is_empty()).flat_map(Bundle::packet).collect()
}

fn task((tid, name): &(u32, String)) -> Task<'_> {
    Task { comm: name, pid: *tid, prio: priority(*tid) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Op, TaskPlan};
    use evenkeel_perfetto::{Value, fields};

    /// The fields with this number.
    fn of(message: &[u8], number: u32) -> Vec<Value<'_>> {
        let all = fields(message).unwrap().into_iter();
        all.filter(|(field, _)| *field == number).map(|(_, value)| value).collect()
    }

    #[test]
    fn each_cpu_has_a_packet_with_its_switches_and_wakeups() {
        let workload =
            Workload { tasks: vec![TaskPlan::new("hog", vec![Op::Run(1)])], ..Workload::default() };
        let switch = What::Switch { prev: 1, left: Left::Asleep, charged_ns: 9, next: IDLE };
        let events = [
            Event { time_ns: 5, cpu: 3, what: What::Wakeup { task: 1 } },
            Event { time_ns: 7, cpu: 3, what: switch },
        ];
        let bytes = trace(&events, &workload);
        // CPUs without events have none. Trace.packet = 1, TracePacket.ftrace_events = 1.
        let packets = of(&bytes, 1);
        assert_eq!(packets.len(), 1);
        let bundle = of(packets[0].bytes(), 1)[0].bytes();
        // FtraceEventBundle.cpu = 1, .event = 2; FtraceEvent.timestamp = 1, .sched_switch = 4.
        assert_eq!(of(bundle, 1), [Value::Number(3)]);
        let times: Vec<_> = of(bundle, 2).iter().map(|event| of(event.bytes(), 1)[0]).collect();
        assert_eq!(times, [Value::Number(5), Value::Number(7)]);
        let switch = of(of(bundle, 2)[1].bytes(), 4)[0].bytes();
        assert_eq!(of(switch, 1), [Value::Bytes(b"hog")]);
        assert_eq!(of(switch, 5), [Value::Bytes(b"swapper")]);
    }
}
