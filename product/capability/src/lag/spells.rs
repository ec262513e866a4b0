//! How long a task works between two spells of spinning, told by samples: the length of the program's
//! phases where no barrier is counted, as with MPI.
//!
//! A task that is early works, and then spins until the others are there: of its samples in one phase
//! two differ from the one before them, the first that finds it spinning and the first that finds it
//! at work again. So the number of such changes gives the number of phases. In phases that are shorter
//! than the time between two samples, each sample falls as it likes: of samples of which a share p
//! finds the task spinning, 2 p (1 - p) then differ from the one before. Where they differ
//! so often, phases are too short to be balanced in, whatever their number says.

use crate::snapshot::TaskView;

/// Samples count for this time of a task on its CPU.
const COUNTED_NS: u64 = 2_000_000_000;
/// Where a task spins for less than this share of the time, single samples that find it spinning do not
/// tell of short phases: tasks that are well balanced spin for a moment at the ends of long ones. 1/16.
const LITTLE_SHARE: u128 = 16;
/// Changes that tell anything: those of two phases.
const MIN_CHANGES: u64 = 4;

/// Samples with at most so much of the task's time between them come often enough to show a moment.
const FREQUENT_NS: u64 = 4_000_000;

/// Whether the task was sampled so often that a moment of spinning shows as what it is.
pub(super) fn are_frequent(view: &TaskView) -> bool {
    u64::from(view.samples).saturating_mul(FREQUENT_NS) >= view.run_ns
}

/// What samples found of one task lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spells {
    /// Time on a CPU in which it was sampled.
    run_ns: u64,
    samples: u64,
    /// Samples that found it spinning, ...
    spun: u64,
    /// ... and those that found otherwise than the one before.
    changes: u64,
}

/// How the work of a task is divided by its spinning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Division {
    /// Into pieces, each with the spinning after it about so long, in ns.
    Long(u64),
    /// Into pieces so short that samples do not show them; they are at most so long.
    Short(u64),
}

impl Division {
    /// Time from one spell to the next, as far as samples show it.
    pub(super) fn length_ns(self) -> u64 {
        let (Self::Long(length_ns) | Self::Short(length_ns)) = self;
        length_ns
    }
}

impl Spells {
    /// Takes in an interval.
    pub(super) fn add(&mut self, view: &TaskView) {
        if view.samples == 0 {
            return;
        }
        if self.run_ns > COUNTED_NS {
            self.run_ns /= 2;
            self.samples /= 2;
            self.spun /= 2;
            self.changes /= 2;
        }
        let samples = u64::from(view.samples);
        // To the nearest: the time was calculated from the samples, and rounded down.
        let run_ns = u128::from(view.run_ns.max(1));
        let spun_ns = u128::from(view.spun_ns.min(view.run_ns));
        let spun = (u128::from(samples) * spun_ns + run_ns / 2) / run_ns;
        self.run_ns = self.run_ns.saturating_add(view.run_ns);
        self.samples = self.samples.saturating_add(samples);
        // At most the number of samples.
        self.spun = self.spun.saturating_add(spun as u64);
        self.changes = self.changes.saturating_add(u64::from(view.changes).min(samples));
    }

    /// How its work is divided; none where it hardly ever spins.
    pub(super) fn division(&self) -> Option<Division> {
        if self.changes < MIN_CHANGES {
            return None;
        }
        let length_ns = self.run_ns / self.changes * 2;
        // Half as many as if each sample fell as it likes: p (1 - p) of them.
        let (samples, spun) = (u128::from(self.samples), u128::from(self.spun));
        let is_by_chance = u128::from(self.changes) * samples > spun * samples.saturating_sub(spun);
        if !is_by_chance {
            return Some(Division::Long(length_ns));
        }
        (spun * LITTLE_SHARE > samples).then_some(Division::Short(length_ns))
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_machine::CpuSet;

    use super::*;
    use crate::snapshot::TaskId;

    const MS: u64 = 1_000_000;

    fn task() -> TaskView {
        TaskView {
            id: TaskId { tid: 1, start: 1 },
            process: 1,
            cpu: 0,
            queue: 0,
            run_ns: 0,
            spun_ns: 0,
            samples: 0,
            changes: 0,
            received_ns: 0,
            stolen_ns: 0,
            wait_ns: 0,
            sleeps: 0,
            runnable: true,
            allowed: CpuSet::first(2),
            fixed: false,
            working_set_bytes: None,
        }
    }

    /// A task that works, and then spins for a part of each phase (in percent of it), sampled each
    /// `gap_ms` for ten seconds.
    fn seen(phase_ms: u64, spins_percent: u64, gap_ms: u64) -> Option<Division> {
        let mut spells = Spells::default();
        let mut before = false;
        let mut random = phase_ms;
        for _ in 0..200 {
            let (mut samples, mut spun, mut changes) = (0, 0, 0);
            for _ in 0..50 / gap_ms {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Neither phases nor samples are as regular as that.
                let at_us =
                    (spells.run_ns + samples * gap_ms * MS) / 1_000 + (random >> 33) % 2_000;
                let spins = at_us % (phase_ms * 1_000) >= phase_ms * (100 - spins_percent) * 10;
                samples += 1;
                spun += u64::from(spins);
                changes += u32::from(spins != before);
                before = spins;
            }
            spells.add(&TaskView {
                run_ns: 50 * MS,
                spun_ns: 50 * MS * spun / samples,
                samples: samples as u32,
                changes,
                ..task()
            });
        }
        spells.division()
    }

    #[test]
    fn phases_of_samples_in_a_row_are_as_long_as_they_are() {
        for (phase_ms, spins_percent) in [(60, 40), (100, 40), (130, 10), (300, 30), (400, 5)] {
            let Some(Division::Long(length_ns)) = seen(phase_ms, spins_percent, 2) else {
                panic!("{phase_ms} ms of which {spins_percent} %")
            };
            let least_ms = phase_ms - phase_ms / 4;
            assert!((least_ms..phase_ms * 5 / 4).contains(&(length_ns / MS)), "{length_ns}");
        }
    }

    #[test]
    fn phases_shorter_than_what_is_between_samples_are_short() {
        for phase_ms in [1, 2, 3, 5] {
            for spins_percent in [10, 25, 40, 60] {
                let seen = seen(phase_ms, spins_percent, 2);
                assert!(matches!(seen, Some(Division::Short(_))), "{seen:?} of {phase_ms} ms");
            }
        }
        // Samples that come seldom.
        assert!(matches!(seen(20, 40, 16), Some(Division::Short(_))));
    }

    #[test]
    fn what_never_spins_has_no_spells() {
        assert_eq!(seen(100, 0, 2), None);
        assert_eq!(Spells::default().division(), None);
    }

    #[test]
    fn the_largest_figures_do_no_harm() {
        let mut spells = Spells::default();
        for _ in 0..3 {
            spells.add(&TaskView {
                run_ns: u64::MAX,
                spun_ns: u64::MAX / 2,
                samples: u32::MAX,
                changes: u32::MAX,
                ..task()
            });
        }
        assert!(spells.division().is_some());
    }
}
