//! The barriers that a program is seen to pass in windows.

use evenkeel_cbinfo::Window;

use crate::reading::Watched;

/// Whether a program passes barriers that can be seen.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    has_passed_one: bool,
}

impl Barriers {
    /// Adds those of a window to what was found in the program with this number.
    pub(super) fn add(&mut self, window: &Window, program: u32, found: &mut Watched) {
        let barriers = passed(window, program);
        // A program that has none by which they can be told has not passed a long phase. The first one
        // that is seen ends the wait for it, during which none was counted, so it does not count.
        let is_first = !self.has_passed_one && barriers > 0;
        self.has_passed_one |= is_first;
        if self.has_passed_one {
            found.barriers += barriers - u64::from(is_first);
            found.observed_ns += window.observed_ns;
        }
    }
}

/// The barriers that a program has passed: the wake-ups at the word that has most of them. (A region of
/// OpenMP begins at another word than that of its barriers, and each process has words of its own.)
fn passed(window: &Window, program: u32) -> u64 {
    let of_program = window.wakes.iter().filter(|wakes| wakes.program == program);
    of_program.map(|wakes| wakes.count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use evenkeel_cbinfo::Wakes;

    use super::*;

    fn wakes(program: u32, tgid: u32, address: u64, count: u64) -> Wakes {
        Wakes { program, tgid, address, count }
    }

    #[test]
    fn barriers_are_the_wake_ups_of_the_busiest_word() {
        let all = vec![wakes(1, 7, 0x10, 50), wakes(1, 7, 0x20, 200), wakes(2, 9, 0x20, 900)];
        let window = Window { observed_ns: 1, wakes: all };
        assert_eq!([1, 2, 3].map(|program| passed(&window, program)), [200, 900, 0]);
    }

    #[test]
    fn a_barrier_that_was_waited_for_is_not_counted() {
        let found = |windows: &[u64]| {
            let (mut barriers, mut found) = (Barriers::default(), Watched::default());
            for count in windows {
                let window = Window { observed_ns: 12, wakes: vec![wakes(1, 7, 0x10, *count)] };
                barriers.add(&window, 1, &mut found);
            }
            (found.barriers, found.observed_ns)
        };
        assert_eq!(found(&[0, 0, 1, 0, 2]), (2, 36));
        assert_eq!(found(&[6]), (5, 12));
    }
}
