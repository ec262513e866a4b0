//! From the ring buffer's C struct (lab/bpf/witness.h) to events. Each raw event carries its task's
//! mask and class; where these are new, they become events of their own, before the event itself.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use evenkeel_invariants::{Class, Event, IDLE, Left, Tid, What, weight_of_nice};
use evenkeel_machine::CpuSet;

/// `struct witness_event`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct RawEvent {
    pub time_ns: u64,
    pub allowed: u64,
    pub group: u64,
    pub policy: u32,
    pub prio: u32,
    pub static_prio: u32,
    pub cpu: u32,
    pub kind: u32,
    pub task: u32,
    pub other: u32,
    pub left: u32,
    pub charged_ns: u64,
}

/// `enum witness_kind`.
const SWITCH: u32 = 0;
const WAKEUP: u32 = 1;
const MIGRATE: u32 = 2;
const AFFINITY: u32 = 3;
const FORK: u32 = 4;
const EXIT: u32 = 5;

/// A task below this priority is a real-time task, by its own policy or by inheritance.
const MAX_RT_PRIO: u32 = 100;
/// SCHED_OTHER, SCHED_BATCH, SCHED_EXT. (SCHED_IDLE runs by the same rules, but hardly ever.)
const FAIR: [u32; 3] = [0, 3, 7];

/// Remembers the mask and class that were last passed on for each task.
#[derive(Default)]
pub(crate) struct Reader {
    known: HashMap<Tid, (u64, Class)>,
}

impl Reader {
    /// Passes on the events of one raw event.
    pub fn read(&mut self, raw: &RawEvent, mut pass_on: impl FnMut(Event)) {
        let mut emit = |what| pass_on(Event { time_ns: raw.time_ns, cpu: raw.cpu, what });
        let subject = if matches!(raw.kind, SWITCH | FORK) { raw.other } else { raw.task };
        if raw.kind == FORK {
            self.known.remove(&subject);
            emit(What::Fork { child: subject });
        }
        if subject != IDLE {
            let class = class_of(raw);
            let before = self.known.insert(subject, (raw.allowed, class));
            if before.is_none_or(|(allowed, _)| allowed != raw.allowed) {
                let allowed = CpuSet::from_words(&[raw.allowed]);
                emit(What::Affinity { task: subject, allowed });
            }
            if before.is_none_or(|(_, before)| before != class) {
                emit(What::Class { task: subject, class });
            }
        }
        match raw.kind {
            SWITCH => emit(What::Switch {
                prev: raw.task,
                left: left_of(raw),
                charged_ns: raw.charged_ns,
                next: raw.other,
            }),
            WAKEUP => emit(What::Wakeup { task: raw.task }),
            MIGRATE => emit(What::Migrate { task: raw.task, to: raw.other }),
            EXIT => emit(What::Exit { task: raw.task }),
            // The new mask itself was passed on above.
            AFFINITY if raw.other > 0 => emit(What::Waking { task: raw.task, on: raw.other - 1 }),
            _ => {}
        }
    }
}

fn class_of(raw: &RawEvent) -> Class {
    if raw.prio < MAX_RT_PRIO || !FAIR.contains(&raw.policy) {
        return Class::Other;
    }
    let nice = raw.static_prio as i32 - 120;
    Class::Fair { weight: weight_of_nice(nice), group: raw.group }
}

fn left_of(raw: &RawEvent) -> Left {
    match raw.left {
        0 => Left::Runnable,
        1 => Left::Asleep,
        _ => Left::Dead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, task: u32, other: u32) -> RawEvent {
        RawEvent {
            allowed: 0b11,
            prio: 120,
            static_prio: 120,
            kind,
            task,
            other,
            ..RawEvent::zeroed()
        }
    }

    fn read(reader: &mut Reader, raw: &RawEvent) -> Vec<What> {
        let mut said = Vec::new();
        reader.read(raw, |event| said.push(event.what));
        said
    }

    #[test]
    fn a_new_mask_or_class_is_passed_on_once_and_first() {
        let mut reader = Reader::default();
        let class = Class::Fair { weight: 1024, group: 0 };
        let allowed = |list: &str| list.parse::<CpuSet>().unwrap();
        let wakeup = What::Wakeup { task: 7 };
        assert_eq!(
            read(&mut reader, &record(WAKEUP, 7, 0)),
            [
                What::Affinity { task: 7, allowed: allowed("0-1") },
                What::Class { task: 7, class },
                wakeup.clone()
            ]
        );
        assert_eq!(read(&mut reader, &record(WAKEUP, 7, 0)), [wakeup]);
        let narrowed = RawEvent { allowed: 0b10, ..record(AFFINITY, 7, 0) };
        let affinity = What::Affinity { task: 7, allowed: allowed("1") };
        assert_eq!(read(&mut reader, &narrowed), [affinity]);
        let waking = RawEvent { allowed: 0b10, ..record(AFFINITY, 7, 1) };
        assert_eq!(read(&mut reader, &waking), [What::Waking { task: 7, on: 0 }]);
        // A child of this number is another task.
        let said = read(&mut reader, &RawEvent { allowed: 0b10, ..record(FORK, 1, 7) });
        assert_eq!(said.len(), 3);
        assert_eq!(said[0], What::Fork { child: 7 });
    }

    #[test]
    fn a_switch_carries_the_next_tasks_mask_and_class() {
        let mut reader = Reader::default();
        let raw = RawEvent { prio: 98, left: 1, charged_ns: 5, ..record(SWITCH, 7, 8) };
        let said = read(&mut reader, &raw);
        assert_eq!(said[1], What::Class { task: 8, class: Class::Other });
        let switch = What::Switch { prev: 7, left: Left::Asleep, charged_ns: 5, next: 8 };
        assert_eq!(said[2], switch);
        // The idle task has no mask and no class.
        assert_eq!(read(&mut reader, &record(SWITCH, 8, 0)).len(), 1);
    }

    #[test]
    fn batch_and_ext_tasks_are_fair_and_idle_priority_is_not() {
        let of = |policy| class_of(&RawEvent { policy, ..record(WAKEUP, 7, 0) });
        let fair = Class::Fair { weight: 1024, group: 0 };
        assert_eq!([of(0), of(3), of(7)], [fair; 3]);
        assert_eq!([of(1), of(5), of(6)], [Class::Other; 3]);
    }
}
