//! Dispatch queues (kernel: `struct scx_dispatch_q`): tasks in the order of their vtime, or of their
//! arrival.

use std::cmp::Ordering;
use std::collections::VecDeque;

/// A task's position in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub vtime: u64,
    /// Numbers all insertions into this queue.
    pub seq: u64,
}

impl Place {
    /// vtimes wrap, so only the sign of their difference counts (kernel: `time_before64`).
    fn compare(self, other: Place) -> Ordering {
        match self.vtime.wrapping_sub(other.vtime) as i64 {
            0 => self.seq.cmp(&other.seq),
            difference => difference.cmp(&0),
        }
    }
}

/// A queue. If all vtimes are 0 it is in the order of arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dsq {
    /// Sorted.
    entries: VecDeque<(Place, u32)>,
    seq: u64,
}

impl Dsq {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of the last insertion.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    /// Inserts a task by its vtime, behind equal ones.
    pub fn insert(&mut self, task: u32, vtime: u64) -> Place {
        self.seq += 1;
        let place = Place { vtime, seq: self.seq };
        // Most tasks are inserted at the end.
        match self.entries.back() {
            Some((last, _)) if last.compare(place).is_gt() => {
                let at = self.position(place);
                self.entries.insert(at, (place, task));
            }
            _ => self.entries.push_back((place, task)),
        }
        place
    }

    /// The index of this place, or where it would be inserted.
    fn position(&self, place: Place) -> usize {
        self.entries.partition_point(|(other, _)| other.compare(place).is_lt())
    }

    /// Removes the task at this place.
    pub fn remove(&mut self, place: Place) -> Option<u32> {
        // Most tasks are removed from the head.
        if self.entries.front().is_some_and(|(first, _)| *first == place) {
            return self.entries.pop_front().map(|(_, task)| task);
        }
        let at = self.position(place);
        let (found, _) = self.entries.get(at)?;
        if *found != place {
            return None;
        }
        self.entries.remove(at).map(|(_, task)| task)
    }

    /// The entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (Place, u32)> {
        self.entries.iter().copied()
    }

    /// The next task behind `after` (before it, if `backwards`), or the first one, among the insertions
    /// up to `last_seq`.
    pub fn next(
        &self,
        after: Option<Place>,
        backwards: bool,
        last_seq: u64,
    ) -> Option<(Place, u32)> {
        let old_enough = |(place, _): &&(Place, u32)| place.seq <= last_seq;
        let found = if backwards {
            let end = after.map_or(self.entries.len(), |place| self.position(place));
            self.entries.range(..end).rev().find(old_enough)
        } else {
            let start = after.map_or(0, |place| {
                let at = self.position(place);
                at + usize::from(self.entries.get(at).is_some_and(|(found, _)| *found == place))
            });
            self.entries.range(start..).find(old_enough)
        };
        found.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(dsq: &Dsq) -> Vec<u32> {
        dsq.iter().map(|(_, task)| task).collect()
    }

    #[test]
    fn tasks_are_ordered_by_vtime_and_then_by_arrival() {
        let mut dsq = Dsq::default();
        for (task, vtime) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 30)] {
            dsq.insert(task, vtime);
        }
        assert_eq!(order(&dsq), [2, 4, 3, 1, 5]);
    }

    #[test]
    fn the_order_survives_wrapping_vtimes() {
        let mut dsq = Dsq::default();
        for (task, vtime) in [(1, 5), (2, u64::MAX - 5), (3, 0)] {
            dsq.insert(task, vtime);
        }
        assert_eq!(order(&dsq), [2, 3, 1]);
    }

    #[test]
    fn a_task_is_removed_only_once() {
        let mut dsq = Dsq::default();
        let places: Vec<Place> = (0..5).map(|task| dsq.insert(task, 7)).collect();
        assert_eq!(dsq.remove(places[2]), Some(2));
        assert_eq!(dsq.remove(places[2]), None);
        assert_eq!(order(&dsq), [0, 1, 3, 4]);
    }

    #[test]
    fn an_iteration_survives_removals_and_skips_later_insertions() {
        let mut dsq = Dsq::default();
        let places: Vec<Place> =
            (0..4).map(|task| dsq.insert(task, u64::from(task) * 10)).collect();
        let seen_up_to = dsq.last_seq();
        let first = dsq.next(None, false, seen_up_to).unwrap();
        assert_eq!(first.1, 0);
        dsq.remove(places[0]);
        dsq.remove(places[1]);
        dsq.insert(9, 15);
        let second = dsq.next(Some(first.0), false, seen_up_to).unwrap();
        assert_eq!(second.1, 2, "task 1 was removed, and task 9 was inserted later");
        let back = dsq.next(None, true, seen_up_to).unwrap();
        assert_eq!(back.1, 3);
        assert_eq!(dsq.next(Some(back.0), true, seen_up_to).unwrap().1, 2);
        assert_eq!(dsq.next(Some(second.0), true, seen_up_to), None);
    }
}
