//! The queue of future events, in the order of time; events of the same time in the order in which they
//! were planned.

use std::collections::BTreeMap;

/// An event of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The task that runs there may have completed its stretch of work.
    Complete { cpu: u16 },
    /// The tick of a busy CPU.
    Tick { cpu: u16 },
    /// The CPU is asked to reschedule.
    Resched { cpu: u16 },
    /// A kick arrives, with its flags.
    Kick { cpu: u16, flags: u8 },
    /// A task wakes up: its timer on this CPU expired, or a task on this CPU wakes it.
    Wake { task: u32, cpu: u16, sleep: u32 },
    /// A woken task enters the runqueue chosen for it.
    Activate { task: u32, flags: u16 },
    /// A new task.
    Arrive { task: u32 },
    /// A task of a higher class takes its CPU, or releases it.
    Thief { index: u16, takes: bool },
    /// An interrupt.
    Interrupt { index: u16 },
    /// A change of a task, a cgroup or a CPU from outside.
    Change { index: u32 },
    /// An interval of the user-level balancer is over.
    Balance,
    /// User space measures the capability of CPUs.
    Capabilities,
    /// The helper thread of `--ias-auto` measures address spaces.
    Help,
    /// User space looks for tasks that must leave shielded CPUs.
    Relief,
    /// The watchdog looks for tasks that wait for too long.
    Watchdog,
    /// A random change is made, where faults are wanted.
    Fault,
    /// The kernel names the node of a task's memory.
    TellHome { task: u32 },
}

impl Event {
    fn wakes(self) -> bool {
        matches!(self, Self::Wake { .. } | Self::Activate { .. } | Self::Arrive { .. })
    }
}

/// A time and its event. In every slot, events of the same time are in the order in which they were
/// planned: an event that was far away when it was planned is filed into its slot before any later one
/// is.
type Entry = (u64, Event);

/// A wheel has 2^10 slots.
const SLOT_BITS: u32 = 10;
const SLOTS: usize = 1 << SLOT_BITS;
/// A slot of the first wheel is 2^12 ns. A slot of the second wheel is one turn of the first (4 ms).
/// What is farther away than the current turn of the second wheel (4 s) is kept in a map.
const NEAR: u32 = 12;
const LATER: u32 = NEAR + SLOT_BITS;
const FAR: u32 = LATER + SLOT_BITS;

/// A wheel of slots. `held` marks the slots that hold events, `words` the words of `held` that are not
/// zero.
#[derive(Debug)]
struct Wheel {
    slots: Vec<Vec<Entry>>,
    held: [u64; SLOTS / 64],
    words: u64,
}

impl Wheel {
    fn new() -> Self {
        Self { slots: vec![Vec::new(); SLOTS], held: [0; SLOTS / 64], words: 0 }
    }

    #[inline]
    fn put(&mut self, slot: u64, entry: Entry) {
        let slot = slot as usize % SLOTS;
        self.slots[slot].push(entry);
        self.held[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
    }

    /// The first slot that holds events; its mark is cleared.
    #[inline]
    fn first(&mut self) -> Option<usize> {
        let word = self.words.trailing_zeros() as usize;
        let bits = *self.held.get(word)?;
        self.held[word] = bits & (bits - 1);
        if self.held[word] == 0 {
            self.words &= self.words - 1;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

/// All planned events: a calendar queue of two wheels, and a map for what is farther away. An event is
/// moved at most three times, however many events there are. Past slots are empty, because no event is
/// planned for a time before the current slot.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// The events of the current slot, in order, ...
    now: Vec<Entry>,
    /// ... of which this many have happened.
    done: usize,
    /// The current slot of the first wheel, counted from time 0.
    slot: u64,
    near: Wheel,
    later: Wheel,
    far: BTreeMap<u64, Vec<Entry>>,
    /// How many planned events make a task runnable.
    wakes: usize,
}

impl Default for Agenda {
    fn default() -> Self {
        Self {
            now: Vec::new(),
            done: 0,
            slot: 0,
            near: Wheel::new(),
            later: Wheel::new(),
            far: BTreeMap::new(),
            wakes: 0,
        }
    }
}

impl Agenda {
    /// Plans an event for `time_ns`, after all events that are already planned for that time. An event
    /// that is planned for the past becomes the next one.
    #[inline]
    pub fn plan(&mut self, time_ns: u64, event: Event) {
        self.wakes += usize::from(event.wakes());
        let entry = (time_ns, event);
        if time_ns >> NEAR <= self.slot {
            let left = &self.now[self.done..];
            let at = left.partition_point(|(time, _)| *time <= time_ns);
            self.now.insert(self.done + at, entry);
        } else {
            self.file(entry);
        }
    }

    #[inline]
    fn file(&mut self, entry: Entry) {
        let time = entry.0;
        if time >> LATER == self.slot >> SLOT_BITS {
            self.near.put(time >> NEAR, entry);
        } else if time >> FAR == self.slot >> (2 * SLOT_BITS) {
            self.later.put(time >> LATER, entry);
        } else {
            self.far.entry(time >> FAR).or_default().push(entry);
        }
    }

    /// Goes on to the next slot that holds events, if the current one is done.
    #[inline]
    fn turn(&mut self) {
        while self.done == self.now.len() {
            self.now.clear();
            self.done = 0;
            if let Some(slot) = self.near.first() {
                self.slot = (self.slot & !(SLOTS as u64 - 1)) | slot as u64;
                // Swapped, so that both buffers are reused.
                std::mem::swap(&mut self.now, &mut self.near.slots[slot]);
                if self.now.len() > 1 {
                    self.now.sort_by_key(|(time, _)| *time);
                }
            } else if let Some(slot) = self.later.first() {
                let turn = self.slot >> (2 * SLOT_BITS) << SLOT_BITS | slot as u64;
                self.slot = turn << SLOT_BITS;
                // Its buffer is freed: a thousand buffers would keep the largest size that each ever
                // had.
                let entries = std::mem::take(&mut self.later.slots[slot]);
                entries.into_iter().for_each(|entry| self.file(entry));
            } else if let Some((turn, entries)) = self.far.pop_first() {
                self.slot = turn << (2 * SLOT_BITS);
                entries.into_iter().for_each(|entry| self.file(entry));
            } else {
                return;
            }
        }
    }

    /// The time of the next event.
    #[inline]
    pub fn next_ns(&mut self) -> Option<u64> {
        self.turn();
        self.now.get(self.done).map(|(time, ..)| *time)
    }

    /// Removes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        self.turn();
        let (time, event) = *self.now.get(self.done)?;
        self.done += 1;
        self.wakes -= usize::from(event.wakes());
        Some((time, event))
    }

    /// The next event of the current slot, if there is one.
    #[inline]
    pub fn peek_current_slot(&self) -> Option<Event> {
        self.now.get(self.done).map(|(_, event)| *event)
    }

    /// Whether any planned event makes a task runnable.
    pub fn wakes_any(&self) -> bool {
        self.wakes > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_planning() {
        let mut agenda = Agenda::default();
        for (time, cpu) in [(5, 1), (3, 2), (5, 0), (3, 9), (4, 4)] {
            agenda.plan(time, Event::Resched { cpu });
        }
        assert_eq!(agenda.next_ns(), Some(3));
        let cpu = |(_, event)| match event {
            Event::Resched { cpu } => cpu,
            other => panic!("{other:?} was not planned"),
        };
        let order: Vec<u16> = std::iter::from_fn(|| agenda.pop()).map(cpu).collect();
        assert_eq!(order, [2, 9, 4, 1, 0]);
    }

    proptest! {
        /// Events at any distance come in the order that a sorted list gives, also while more are
        /// planned.
        #[test]
        fn the_order_is_that_of_a_sorted_list(
            plans in prop::collection::vec((0u32..42, any::<u64>(), 0usize..3), 1..200),
        ) {
            let mut agenda = Agenda::default();
            let mut sorted: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            let take = |agenda: &mut Agenda, sorted: &mut Vec<(u64, u32)>| {
                sorted.sort();
                let expected = (!sorted.is_empty()).then(|| sorted.remove(0));
                assert_eq!(agenda.next_ns(), expected.map(|(time, _)| time));
                let found = agenda.pop().map(|(time, event)| match event {
                    Event::Arrive { task } => (time, task),
                    other => panic!("{other:?} was not planned"),
                });
                assert_eq!(found, expected);
                found.map_or(0, |(time, _)| time)
            };
            for (task, (bits, random, taken)) in (0..).zip(plans) {
                let time = now + (random & ((1 << bits) - 1));
                agenda.plan(time, Event::Arrive { task });
                sorted.push((time, task));
                for _ in 0..taken {
                    now = take(&mut agenda, &mut sorted).max(now);
                }
            }
            while agenda.wakes_any() {
                take(&mut agenda, &mut sorted);
            }
            prop_assert_eq!(agenda.pop(), None);
        }
    }
}
