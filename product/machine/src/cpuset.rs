//! A set of CPUs: the kernel's list format, set algebra, and the raw bit mask of the
//! affinity system calls. Grows with its content, so a machine of any size fits.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CPU numbers above this are refused: the kernel's own `NR_CPUS` limit on 64-bit machines.
pub const MAX_CPU: u32 = 8191;

/// A set of logical CPU numbers (0..=[`MAX_CPU`]).
///
/// Text form is the kernel's CPU list (`Documentation/core-api/cpu_hotplug.rst` and
/// `Documentation/admin-guide/kernel-parameters.rst`), for example `0-3,8`.
#[derive(
    Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    /// 64 CPUs a word, lowest first; no trailing zero word, so that equal sets are equal values.
    words: Vec<u64>,
}

/// Why a text is not a CPU list. The kernel refuses the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// Not a number, or not `FIRST-LAST`.
    #[error("\"{0}\" is not a CPU list: expected numbers and ranges like 0-3,8")]
    Syntax(String),
    /// `3-1`.
    #[error("CPU range \"{0}\" runs backwards: write the smaller number first")]
    Backwards(String),
    /// Larger than any kernel supports.
    #[error("CPU {0} is larger than {MAX_CPU}, the largest that Linux supports")]
    TooLarge(u64),
}

impl CpuSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// CPUs `0..n`.
    pub fn first(n: u32) -> Self {
        let mut words = vec![u64::MAX; n as usize / 64];
        if !n.is_multiple_of(64) {
            words.push((1 << (n % 64)) - 1);
        }
        Self { words }
    }

    /// Adds a CPU, 0..=[`MAX_CPU`].
    pub fn insert(&mut self, cpu: u32) {
        let word = cpu as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % 64);
    }

    /// Removes a CPU, if it is in the set.
    pub fn remove(&mut self, cpu: u32) {
        if let Some(word) = self.words.get_mut(cpu as usize / 64) {
            *word &= !(1 << (cpu % 64));
        }
        self.trim();
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get(cpu as usize / 64).is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| index as u32 * 64 + bit)
        })
    }

    /// CPUs that are in both.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut set =
            Self { words: self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect() };
        set.trim();
        set
    }

    /// CPUs that are in either.
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// CPUs that are in `self` and not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        self.iter().filter(|cpu| !other.contains(*cpu)).collect()
    }

    /// Whether every CPU of `self` is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|cpu| other.contains(cpu))
    }

    /// The bit mask of `sched_setaffinity(2)`: 64-bit words, lowest CPU first.
    pub fn as_words(&self) -> &[u64] {
        &self.words
    }

    /// The set of a bit mask as `sched_getaffinity(2)` fills it.
    pub fn from_words(words: &[u64]) -> Self {
        let mut set = Self { words: words.to_vec() };
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.peek() == Some(&(last + 1)) {
                last += 1;
                cpus.next();
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(list: &str) -> Result<Self, CpuListError> {
        let mut set = Self::new();
        let list = list.trim();
        if list.is_empty() {
            return Ok(set);
        }
        for part in list.split(',') {
            let part = part.trim();
            let number = |text: &str| -> Result<u32, CpuListError> {
                if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(CpuListError::Syntax(part.to_owned()));
                }
                let value: u64 = text.parse().map_err(|_| CpuListError::TooLarge(u64::MAX))?;
                u32::try_from(value)
                    .ok()
                    .filter(|cpu| *cpu <= MAX_CPU)
                    .ok_or(CpuListError::TooLarge(value))
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(CpuListError::Backwards(part.to_owned()));
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuListError;

    fn try_from(list: String) -> Result<Self, CpuListError> {
        list.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_cpus_are_those_below_a_number() {
        for n in 0..200 {
            assert_eq!(CpuSet::first(n), (0..n).collect());
        }
    }

    #[test]
    fn the_kernels_lists_are_read() {
        for (list, cpus) in [
            ("", vec![]),
            ("0", vec![0]),
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("63-65\n", vec![63, 64, 65]),
            ("5,1", vec![1, 5]),
        ] {
            assert_eq!(list.parse::<CpuSet>().unwrap().iter().collect::<Vec<_>>(), cpus, "{list}");
        }
    }

    #[test]
    fn malformed_lists_are_refused() {
        assert_eq!("a".parse::<CpuSet>(), Err(CpuListError::Syntax("a".into())));
        assert_eq!("0-".parse::<CpuSet>(), Err(CpuListError::Syntax("0-".into())));
        assert_eq!("1,,2".parse::<CpuSet>(), Err(CpuListError::Syntax("".into())));
        assert_eq!("-1".parse::<CpuSet>(), Err(CpuListError::Syntax("-1".into())));
        assert_eq!("3-1".parse::<CpuSet>(), Err(CpuListError::Backwards("3-1".into())));
        assert_eq!("8192".parse::<CpuSet>(), Err(CpuListError::TooLarge(8192)));
    }

    proptest! {
        #[test]
        fn text_and_words_round_trip(cpus in prop::collection::btree_set(0..=MAX_CPU, 0..40)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert_eq!(CpuSet::from_words(set.as_words()), set.clone());
            prop_assert_eq!(set.len(), cpus.len());
        }

        #[test]
        fn set_algebra_agrees_with_btree_sets(a in prop::collection::btree_set(0u32..200, 0..40),
                   b in prop::collection::btree_set(0u32..200, 0..40)) {
            let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(x.intersection(&y), a.intersection(&b).copied().collect());
            prop_assert_eq!(x.union(&y), a.union(&b).copied().collect());
            prop_assert_eq!(x.difference(&y), a.difference(&b).copied().collect());
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            let mut gone = x.clone();
            a.iter().for_each(|cpu| gone.remove(*cpu));
            prop_assert_eq!(gone, CpuSet::new());
        }
    }
}
