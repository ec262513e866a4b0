//! A histogram of times, exact to a 32nd.

use std::collections::BTreeMap;

/// The number of classes for each power of two. Times below twice that are exact.
const CLASSES: u64 = 32;

/// The class of a time.
fn class_of(ns: u64) -> usize {
    let shift = u64::from(ns.checked_ilog2().unwrap_or_default().saturating_sub(CLASSES.ilog2()));
    (shift * CLASSES + (ns >> shift)) as usize
}

/// The smallest time of a class.
fn least_of(class: usize) -> u64 {
    let shift = (class as u64 / CLASSES).saturating_sub(1);
    (class as u64 - shift * CLASSES) << shift
}

/// How often each time was seen, by class.
#[derive(Debug, Default)]
pub(crate) struct Histogram(Vec<u64>);

impl Histogram {
    pub fn add(&mut self, ns: u64) {
        let class = class_of(ns);
        if self.0.len() <= class {
            self.0.resize(class + 1, 0);
        }
        self.0[class] += 1;
    }

    /// The smallest time of each class that was seen, and how often it was.
    pub fn times(&self) -> BTreeMap<u64, u64> {
        let counted = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.map(|(class, count)| (least_of(class), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_at_most_a_32nd_wide() {
        let mut last = 0;
        for ns in (0..70).chain([100, 1_000, 1_023, 1_024, 999_999, 1 << 40, u64::MAX]) {
            let class = class_of(ns);
            let least = least_of(class);
            assert!(least <= ns && ns - least <= ns / 32, "{ns} in {class} from {least}");
            assert!(class >= last, "{ns}");
            last = class;
        }
        assert!((0..64).all(|ns| least_of(class_of(ns)) == ns));
    }
}
