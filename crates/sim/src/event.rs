//! What will happen when: one queue, in the order of time, and at the same time as it was planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// All that is planned.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    seq: u64,
    /// How many of them will make a task run that does not want to now.
    wakes: usize,
}

impl Agenda {
    /// At `time_ns`, behind all that was planned for then before.
    #[inline]
    pub fn plan(&mut self, time_ns: u64, event: Event) {
        self.seq += 1;
        self.wakes += usize::from(event.wakes());
        self.heap.push(Reverse((time_ns, self.seq, event)));
    }

    /// When the next thing happens.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time, _, _))| *time)
    }

    /// The next thing.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((time, _, event)) = self.heap.pop()?;
        self.wakes -= usize::from(event.wakes());
        Some((time, event))
    }

    /// Whether anything is planned that makes a task run.
    pub fn wakes_any(&self) -> bool {
        self.wakes > 0
    }
}

#[cfg(test)]
mod tests {
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
}
