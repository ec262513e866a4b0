//! How many tasks of other programs a program has to share a CPU with.

/// What the program's own tasks did on one CPU in an interval.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Own {
    pub(crate) run_ns: u64,
    pub(crate) wait_ns: u64,
}

/// Tasks that waited less than this share of the interval had no competitor: 1/20.
const CONTENDED_SHARE: u64 = 20;

impl Own {
    /// The tasks of other programs that compete on this CPU, integrated over the interval
    /// (task-nanoseconds) and counted as tasks of the program's own weight.
    ///
    /// Where the program had to wait, this comes from the time that each side got, which is right for
    /// any weight (nice levels, cgroups, autogroups). Elsewhere it is the number of runnable tasks.
    pub(crate) fn competitors(self, interval_ns: u64, foreign_ns: u64, runnable_ns: u64) -> u64 {
        let demand_ns = self.run_ns + self.wait_ns;
        if self.wait_ns * CONTENDED_SHARE < interval_ns || self.run_ns == 0 {
            return runnable_ns.saturating_sub(demand_ns);
        }
        (u128::from(demand_ns) * u128::from(foreign_ns) / u128::from(self.run_ns)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn competitors_are_weighed_by_the_time_that_they_got() {
        let own = |run_ns, wait_ns| Own { run_ns, wait_ns };
        // One task of the program got half: there is one competitor of equal weight.
        assert_eq!(own(500, 500).competitors(1000, 500, 2000), 1000);
        // It got a third: there are two, or one of double weight.
        assert_eq!(own(333, 666).competitors(1000, 666, 2000), 1998);
        // Two tasks of the program against one.
        assert_eq!(own(666, 1334).competitors(1000, 334, 3000), 2000 * 334 / 666);
        // The program waited for a real-time task only.
        assert_eq!(own(500, 500).competitors(1000, 0, 1000), 0);
        // The program has no task there: one runnable task is one competitor.
        assert_eq!(own(0, 0).competitors(1000, 1000, 1000), 1000);
    }
}
