//! CPU masks as the simulated scheduler sees them: `struct cpumask` of `native/kernel.h`.

use evenkeel_machine::CpuSet;

/// CPU numbers are below this: `SIM_CPUS`.
pub const MAX_CPUS: usize = 1024;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Mask {
    words: [u64; WORDS],
}

impl Mask {
    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// Whether this CPU is in the mask.
    #[inline]
    pub fn has(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Adds a CPU; numbers that are too large are ignored.
    #[inline]
    pub fn set(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// Removes a CPU.
    #[inline]
    pub fn clear(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word &= !(1 << (cpu % 64));
        }
    }

    /// The number of CPUs.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The first CPU that is in all of these masks, searching upwards from `start` and wrapping around.
    #[inline]
    pub fn first_common<const N: usize>(sets: [&Mask; N], start: u32) -> Option<u32> {
        let start = start as usize % MAX_CPUS;
        let common = |word: usize| sets.iter().fold(!0u64, |all, set| all & set.words[word]);
        let found = |word: usize, bits: u64| (word * 64) as u32 + bits.trailing_zeros();
        let first = start / 64;
        let from = common(first) & (!0 << (start % 64));
        if from != 0 {
            return Some(found(first, from));
        }
        for word in (first + 1..WORDS).chain(0..=first) {
            let bits = common(word);
            if bits != 0 {
                return Some(found(word, bits));
            }
        }
        None
    }

    /// Whether the mask holds no CPU.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.iter().fold(0, |all, word| all | word) == 0
    }

    /// Whether a CPU is in both masks.
    pub fn intersects(&self, other: &Mask) -> bool {
        self.words.iter().zip(&other.words).any(|(a, b)| a & b != 0)
    }

    /// CPUs 0 to 63 as bits.
    pub(crate) fn first_word(&self) -> u64 {
        self.words[0]
    }

    /// A mask of CPUs 0 to 63.
    pub(crate) fn from_word(word: u64) -> Self {
        let mut mask = Self::EMPTY;
        mask.words[0] = word;
        mask
    }

    /// The same as a `CpuSet`.
    pub fn to_set(&self) -> CpuSet {
        CpuSet::from_words(&self.words)
    }
}

impl From<&CpuSet> for Mask {
    fn from(set: &CpuSet) -> Self {
        let mut mask = Self::EMPTY;
        set.iter().for_each(|cpu| mask.set(cpu));
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(list: &str) -> Mask {
        Mask::from(&list.parse::<CpuSet>().unwrap())
    }

    #[test]
    fn a_mask_keeps_the_set_that_it_is_made_from() {
        for list in ["0", "0-3,63-64,1023", "5,700"] {
            let mask = mask(list);
            assert_eq!(mask.to_set().to_string(), list);
            assert_eq!(mask.count() as usize, mask.to_set().len());
        }
        assert!(!mask("0-3").has(4) && !mask("0-3").has(5000));
    }

    #[test]
    fn the_search_wraps_around() {
        let (a, b) = (mask("3,70,200"), mask("3,200,900"));
        for (start, found) in [(0, 3), (3, 3), (4, 200), (200, 200), (201, 3), (1023, 3)] {
            assert_eq!(Mask::first_common([&a, &b], start), Some(found), "{start}");
        }
        assert_eq!(Mask::first_common([&a, &mask("4")], 7), None);
        assert!(a.intersects(&b) && !a.intersects(&mask("4")));
        // The only CPU is below `start`, in the same word.
        assert_eq!(Mask::first_common([&mask("3")], 4), Some(3));
    }
}
