//! What was counted since a common beginning, by line, by NAPI instance and by CPU; and the difference
//! of two readings. Pure.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// A figure for each CPU, by its number. CPUs beyond the end have 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PerCpu(Vec<u64>);

impl PerCpu {
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    pub fn get(&self, cpu: u32) -> u64 {
        self.0.get(cpu as usize).copied().unwrap_or(0)
    }

    /// Adds to the figure of a CPU.
    pub fn add(&mut self, cpu: u32, figure: u64) {
        let place = cpu as usize;
        if self.0.len() <= place {
            self.0.resize(place + 1, 0);
        }
        if let Some(sum) = self.0.get_mut(place) {
            *sum += figure;
        }
    }

    /// The CPUs with a figure other than 0.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        (0..).zip(&self.0).filter(|(_, figure)| **figure > 0).map(|(cpu, figure)| (cpu, *figure))
    }

    /// What was added since `before`: nothing where a figure began anew.
    pub fn since(&self, before: &Self) -> Self {
        (0..).zip(&self.0).map(|(cpu, now)| now.saturating_sub(before.get(cpu))).collect()
    }
}

impl FromIterator<u64> for PerCpu {
    fn from_iter<I: IntoIterator<Item = u64>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

impl AddAssign<&Self> for PerCpu {
    fn add_assign(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// One interrupt line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LineTotals {
    pub interrupts: PerCpu,
    /// Its handlers, and softirqs that it alone raised, without NAPI polls.
    pub ns: PerCpu,
}

/// One NAPI instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NapiTotals {
    /// Its network device; empty where it has none.
    pub device: String,
    /// 0: none.
    pub napi_id: u32,
    /// Inode of the device's network namespace.
    pub net_ns: u64,
    /// Its kernel thread, if that polls it.
    pub thread: Option<i32>,
    /// Its line, if the driver tells.
    pub line: Option<u32>,
    /// Polls in softirqs that a line alone had raised, by line.
    pub raisers: BTreeMap<u32, u64>,
    pub polls: PerCpu,
    pub packets: PerCpu,
    /// In softirqs only.
    pub ns: PerCpu,
    /// Bytes that it brought, by the CPU on which a thread received them: a sample, and only where
    /// consumers are watched.
    pub received_bytes: PerCpu,
}

/// Softirqs of all kinds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SoftirqTotals {
    pub ns: PerCpu,
    /// How often NET_RX ran.
    pub net_rx: PerCpu,
}

/// All that was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub lines: BTreeMap<u32, LineTotals>,
    /// By the kernel's address of the instance.
    pub napis: BTreeMap<u64, NapiTotals>,
    pub softirqs: SoftirqTotals,
}

impl Totals {
    /// What was counted after `before` was read.
    pub fn since(&self, before: &Self) -> Self {
        let no_line = LineTotals::default();
        let lines = self.lines.iter().map(|(line, now)| {
            let then = before.lines.get(line).unwrap_or(&no_line);
            let difference = LineTotals {
                interrupts: now.interrupts.since(&then.interrupts),
                ns: now.ns.since(&then.ns),
            };
            (*line, difference)
        });
        let no_napi = NapiTotals::default();
        let napis = self.napis.iter().map(|(address, now)| {
            let then = before.napis.get(address);
            // Another instance has the address now.
            let then = then.filter(|then| then.napi_id == now.napi_id).unwrap_or(&no_napi);
            let difference = NapiTotals {
                polls: now.polls.since(&then.polls),
                packets: now.packets.since(&then.packets),
                ns: now.ns.since(&then.ns),
                received_bytes: now.received_bytes.since(&then.received_bytes),
                ..now.clone()
            };
            (*address, difference)
        });
        Self {
            lines: lines.collect(),
            napis: napis.collect(),
            softirqs: SoftirqTotals {
                ns: self.softirqs.ns.since(&before.softirqs.ns),
                net_rx: self.softirqs.net_rx.since(&before.softirqs.net_rx),
            },
        }
    }
}

impl NapiTotals {
    /// The line that has it polled: what the driver tells, or else what raised most of its
    /// softirqs.
    pub fn line(&self) -> Option<u32> {
        let most = self.raisers.iter().max_by_key(|(line, polls)| (**polls, **line));
        self.line.or_else(|| most.map(|(line, _)| *line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_cpu(figures: &[u64]) -> PerCpu {
        figures.iter().copied().collect()
    }

    #[test]
    fn a_difference_leaves_out_what_began_anew() {
        assert_eq!(per_cpu(&[5, 9, 2]).since(&per_cpu(&[1, 9])), per_cpu(&[4, 0, 2]));
        assert_eq!(per_cpu(&[1]).since(&per_cpu(&[7])), per_cpu(&[0]));
    }

    #[test]
    fn another_instance_at_the_same_address_counts_from_its_beginning() {
        let totals = |napi_id, packets: &[u64]| {
            let napi = NapiTotals { napi_id, packets: per_cpu(packets), ..NapiTotals::default() };
            Totals { napis: [(0xff, napi)].into(), ..Totals::default() }
        };
        let packets = |now: &Totals, then: &Totals| now.since(then).napis[&0xff].packets.sum();
        assert_eq!(packets(&totals(8193, &[10]), &totals(8193, &[4])), 6);
        assert_eq!(packets(&totals(8194, &[10]), &totals(8193, &[4])), 10);
    }

    #[test]
    fn the_driver_is_believed_before_the_counts() {
        let mut napi = NapiTotals { raisers: [(30, 2), (31, 90)].into(), ..NapiTotals::default() };
        assert_eq!(napi.line(), Some(31));
        napi.line = Some(29);
        assert_eq!(napi.line(), Some(29));
        assert_eq!(NapiTotals::default().line(), None);
    }
}
