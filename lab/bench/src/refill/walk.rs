//! A working set, and a walk over it. A walk visits each cache line once and finds its address in
//! the line before, so the processor cannot request a line before the last one has arrived. It
//! writes to each line, as threads write to what they share.

use std::hint::black_box;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A line of the cache.
pub const LINE_BYTES: usize = 64;

/// In which order lines are walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// As they lie in memory: the processor fetches ahead.
    InSequence,
    /// At random: each line takes its whole latency.
    Scattered,
}

impl Order {
    /// Both, the dearer one last.
    pub const ALL: [Self; 2] = [Self::InSequence, Self::Scattered];

    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InSequence => "in sequence",
            Self::Scattered => "scattered",
        }
    }
}

/// One line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    /// The next one, by number.
    next: u32,
    walked: u32,
}

/// Memory that is walked over and over.
#[derive(Debug)]
pub struct Set(Vec<Line>);

impl Set {
    /// A set of `kib` KiB (at least 1), all of it in memory already.
    pub fn new(kib: usize, order: Order) -> Self {
        let lines = (kib.max(1) * 1024 / LINE_BYTES) as u32;
        let mut turn: Vec<u32> = (0..lines).collect();
        if order == Order::Scattered {
            shuffle(&mut turn);
        }
        let mut set = vec![Line { next: 0, walked: 0 }; lines as usize];
        for (at, line) in turn.iter().enumerate() {
            set[*line as usize].next = turn[(at + 1) % turn.len()];
        }
        Self(set)
    }

    /// Walks over all of it once.
    pub fn walk(&mut self) {
        let mut at = 0;
        for _ in 0..self.0.len() {
            let line = &mut self.0[at as usize];
            line.walked = line.walked.wrapping_add(1);
            at = line.next;
        }
        black_box(at);
    }

    /// The same, and how long it took.
    pub fn time(&mut self) -> Duration {
        let start = Instant::now();
        self.walk();
        start.elapsed()
    }
}

/// Always the same way: what is measured twice is the same.
fn shuffle(values: &mut [u32]) {
    let mut drawn = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..values.len()).rev() {
        drawn ^= drawn << 13;
        drawn ^= drawn >> 7;
        drawn ^= drawn << 17;
        values.swap(at, (drawn % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_comes_by_every_line_once() {
        assert_eq!(size_of::<Line>(), LINE_BYTES);
        for order in Order::ALL {
            let mut set = Set::new(16, order);
            assert_eq!(set.0.len(), 256);
            set.walk();
            assert!(set.0.iter().all(|line| line.walked == 1), "{order:?}");
            set.time();
            assert!(set.0.iter().all(|line| line.walked == 2), "{order:?}");
        }
    }

    #[test]
    fn lines_are_scattered_or_in_sequence() {
        let steps = |order| {
            let set = Set::new(16, order);
            let steps = set.0.iter().enumerate();
            steps.filter(|(at, line)| line.next as usize == (at + 1) % 256).count()
        };
        assert_eq!(steps(Order::InSequence), 256);
        assert!(steps(Order::Scattered) < 16);
    }
}
