//! What will happen when: one agenda, in the order of time, and at the same time as it was planned.

use std::collections::BTreeMap;

/// Something that will happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Who runs there may be done with its stretch of work.
    Complete { cpu: u16 },
    /// The tick of a busy CPU.
    Tick { cpu: u16 },
    /// The CPU is asked to choose anew.
    Resched { cpu: u16 },
    /// A kick arrives, with its flags.
    Kick { cpu: u16, flags: u8 },
    /// A task wakes: its time has come, or who woke it was on this CPU.
    Wake { task: u32, cpu: u16, sleep: u32 },
    /// A woken task gets into the runqueue chosen for it.
    Activate { task: u32, flags: u16 },
    /// A new task.
    Arrive { task: u32 },
    /// A real-time task takes its CPU, or lets it go.
    Thief { index: u16, takes: bool },
    /// An interrupt.
    Interrupt { index: u16 },
    /// A change from outside.
    Change { index: u32 },
    /// An interval of the user-level balancer is over.
    Balance,
    /// What CPUs can do is looked at.
    Capabilities,
    /// The helper thread looks at address spaces.
    Help,
    /// Who is to leave a shielded CPU is looked for.
    Relief,
    /// The kernel looks for tasks that wait for too long.
    Watchdog,
    /// Something unpleasant is made to happen.
    Fault,
}

impl Event {
    fn wakes(self) -> bool {
        matches!(self, Self::Wake { .. } | Self::Activate { .. } | Self::Arrive { .. })
    }
}

/// An event and its time. Those of the same time stand in the order in which they were planned, in every
/// slot: what was planned while it was far away has been filed there before anything else is.
type Entry = (u64, Event);

/// A wheel has so many slots, in a power of two.
const SLOT_BITS: u32 = 10;
const SLOTS: usize = 1 << SLOT_BITS;
/// The slots of the first wheel are of 2^10 ns, those of the second are turns of the first (1 ms),
/// and turns of the second (1 s) are far away.
const NEAR: u32 = 12;
const LATER: u32 = NEAR + SLOT_BITS;
const FAR: u32 = LATER + SLOT_BITS;

/// One turn of slots, which of them hold anything, and which words say so.
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

    /// The first slot that holds something, no longer marked as such.
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

/// All that is planned: a calendar of two wheels and what is farther away. An event is touched three
/// times, however many there are. Slots that are over hold nothing, because nothing is planned for
/// earlier than what is under way.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// What is under way, in order, ...
    now: Vec<Entry>,
    /// ... of which so many have happened.
    done: usize,
    /// Its slot of the first wheel, counted from the beginning of time.
    slot: u64,
    near: Wheel,
    later: Wheel,
    far: BTreeMap<u64, Vec<Entry>>,
    /// How many of them will make a task run that does not want to now.
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
    /// At `time_ns`, behind all that was planned for then before. What should have been already comes
    /// next.
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

    /// Goes on to the next slot that holds something, if nothing is under way.
    #[inline]
    fn turn(&mut self) {
        while self.done == self.now.len() {
            self.now.clear();
            self.done = 0;
            if let Some(slot) = self.near.first() {
                self.slot = (self.slot & !(SLOTS as u64 - 1)) | slot as u64;
                // The buffers change places: both are used again.
                std::mem::swap(&mut self.now, &mut self.near.slots[slot]);
                if self.now.len() > 1 {
                    self.now.sort_by_key(|(time, _)| *time);
                }
            } else if let Some(slot) = self.later.first() {
                let turn = self.slot >> (2 * SLOT_BITS) << SLOT_BITS | slot as u64;
                self.slot = turn << SLOT_BITS;
                // Its buffer goes: a thousand of them, each as large as it ever was, would stay.
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

    /// When the next thing happens.
    #[inline]
    pub fn next_ns(&mut self) -> Option<u64> {
        self.turn();
        self.now.get(self.done).map(|(time, ..)| *time)
    }

    /// The next thing.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        self.turn();
        let (time, event) = *self.now.get(self.done)?;
        self.done += 1;
        self.wakes -= usize::from(event.wakes());
        Some((time, event))
    }

    /// What follows soon, if that is known without a search.
    #[inline]
    pub fn coming(&self) -> Option<Event> {
        self.now.get(self.done).map(|(_, event)| *event)
    }

    /// Whether anything is planned that makes a task run.
    pub fn wakes_any(&self) -> bool {
        self.wakes > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn by_time_and_then_as_planned() {
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
        /// However far away: what comes is what a sorted list would give, while more is planned from
        /// what has come on.
        #[test]
        fn as_a_sorted_list(plans in prop::collection::vec((0u32..42, any::<u64>(), 0usize..3), 1..200)) {
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
