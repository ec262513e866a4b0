//! The laps of a program's threads in some time, by the region with which each began: how long a program
//! takes for the same work, whichever regions happen to fall into a window.

use std::collections::BTreeMap;

use evenkeel_shares::page::{Site, SiteLaps};

/// Two windows can be compared if regions that both have are so much of the time of each.
const COMMON_SHARE: f64 = 0.8;

/// Laps by the place where they began.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Laps {
    sites: BTreeMap<(u32, u64), Sum>,
}

/// The laps of one place. The unit of the count cancels out, so that older ones can count for less.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    count: f64,
    total_ns: f64,
}

impl Sum {
    fn mean_ns(&self) -> f64 {
        self.total_ns / self.count
    }
}

impl Laps {
    /// What was added from one report to the next, of regions that were divided or of the others.
    pub(crate) fn between(
        before: &BTreeMap<Site, SiteLaps>,
        after: &BTreeMap<Site, SiteLaps>,
        is_divided: bool,
    ) -> Self {
        let mut laps = Self::default();
        for (site, sum) in after.iter().filter(|(site, _)| site.is_divided == is_divided) {
            let known = before.get(site).copied().unwrap_or_default();
            // The program may write to the page, so sums may go down.
            let count = sum.count.saturating_sub(known.count);
            let total_ns = sum.total_ns.saturating_sub(known.total_ns);
            if count > 0 && total_ns > 0 {
                laps.add((site.tid, site.code), count as f64, total_ns as f64);
            }
        }
        laps
    }

    pub(super) fn add(&mut self, site: (u32, u64), count: f64, total_ns: f64) {
        let sum = self.sites.entry(site).or_default();
        sum.count += count;
        sum.total_ns += total_ns;
    }

    /// Adds the laps of another time.
    pub(crate) fn extend(&mut self, other: &Self) {
        other.sites.iter().for_each(|(site, sum)| self.add(*site, sum.count, sum.total_ns));
    }

    /// All laps so far count for `share` of what they did.
    pub(crate) fn fade(&mut self, share: f64) {
        for sum in self.sites.values_mut() {
            (sum.count, sum.total_ns) = (sum.count * share, sum.total_ns * share);
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> f64 {
        self.sites.values().map(|sum| sum.count).sum()
    }

    fn total_ns(&self) -> f64 {
        self.sites.values().map(|sum| sum.total_ns).sum()
    }

    /// How many times as fast as in `other` the program went through the regions that both have, each
    /// as often as in both together; none where they have too little in common.
    pub(crate) fn ratio_to(&self, other: &Self) -> Option<f64> {
        let common = || {
            let both = |(site, sum)| Some((sum, other.sites.get(site)?));
            self.sites.iter().filter_map(both)
        };
        let share = |part: f64, whole: f64| part >= COMMON_SHARE * whole && whole > 0.0;
        if !share(common().map(|(sum, _)| sum.total_ns).sum(), self.total_ns())
            || !share(common().map(|(_, sum)| sum.total_ns).sum(), other.total_ns())
        {
            return None;
        }
        let time = |of: fn(&Sum, &Sum) -> f64| -> f64 {
            common().map(|(sum, others)| (sum.count + others.count) * of(sum, others)).sum()
        };
        Some(time(|_, others| others.mean_ns()) / time(|sum, _| sum.mean_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laps(sites: &[(u64, u64, u64)]) -> Laps {
        let mut laps = Laps::default();
        for (code, count, mean_ns) in sites {
            laps.add((1, *code), *count as f64, (count * mean_ns) as f64);
        }
        laps
    }

    #[test]
    fn the_same_regions_are_compared_however_often_each_ran() {
        let slow = laps(&[(1, 10, 300), (2, 1, 6_000)]);
        let fast = laps(&[(1, 3, 240), (2, 4, 4_800)]);
        assert!((fast.ratio_to(&slow).unwrap() - 1.25).abs() < 1e-9);
        assert!((slow.ratio_to(&fast).unwrap() - 0.8).abs() < 1e-9);
    }

    #[test]
    fn what_has_little_in_common_is_not_compared() {
        let one = laps(&[(1, 10, 100), (2, 1, 1_000)]);
        assert_eq!(one.ratio_to(&laps(&[(1, 20, 100)])), None);
        assert_eq!(laps(&[(1, 20, 100)]).ratio_to(&one), None);
        assert_eq!(one.ratio_to(&Laps::default()), None);
        assert_eq!(Laps::default().ratio_to(&Laps::default()), None);
        assert!(one.ratio_to(&laps(&[(1, 10, 100), (2, 1, 1_000), (3, 1, 400)])).is_some());
    }

    #[test]
    fn an_interval_has_what_was_added_and_nothing_of_a_faulty_page() {
        let site = |code, is_divided| Site { tid: 1, code, is_divided };
        let sum = |count, total_ns| SiteLaps { count, total_ns };
        let before = BTreeMap::from([(site(1, false), sum(5, 500)), (site(2, false), sum(9, 900))]);
        let after = BTreeMap::from([
            (site(1, false), sum(7, 740)),
            (site(2, false), sum(8, u64::MAX)),
            (site(3, false), sum(2, 20)),
            (site(1, true), sum(3, 300)),
        ]);
        assert_eq!(Laps::between(&before, &after, false), laps(&[(1, 2, 120), (3, 2, 10)]));
        assert_eq!(Laps::between(&before, &after, true), laps(&[(1, 3, 100)]));
    }

    #[test]
    fn older_laps_count_for_less() {
        let mut usual = laps(&[(1, 8, 100)]);
        usual.fade(0.5);
        usual.extend(&laps(&[(1, 4, 200)]));
        assert_eq!(usual.count(), 8.0);
        assert_eq!(laps(&[(1, 1, 150)]).ratio_to(&usual), Some(1.0));
    }
}
