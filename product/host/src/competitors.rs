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
    /// Where the program ran, this comes from the time that each side got, which is right for any weight
    /// (nice levels, cgroups, autogroups), and for tasks that mostly wait behind the program's, as
    /// evenkeel itself does. Elsewhere it is the number of runnable tasks; there are no more than these
    /// where the program hardly waited.
    pub(crate) fn competitors(self, interval_ns: u64, foreign_ns: u64, runnable_ns: u64) -> u64 {
        let demand_ns = self.run_ns + self.wait_ns;
        let others_ns = runnable_ns.saturating_sub(demand_ns);
        if self.run_ns == 0 {
            return others_ns;
        }
        let weighed = u128::from(demand_ns) * u128::from(foreign_ns) / u128::from(self.run_ns);
        let weighed_ns = u64::try_from(weighed).unwrap_or(u64::MAX);
        let hardly_waited = self.wait_ns * CONTENDED_SHARE < interval_ns;
        if hardly_waited { weighed_ns.min(others_ns) } else { weighed_ns }
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
        // Another task ran for a twentieth, and waited behind the program's for twice as long.
        assert_eq!(own(950, 40).competitors(1000, 50, 950 + 40 + 150), 52);
        // The program ran for a moment in the time of another task.
        assert_eq!(own(1, 5).competitors(1000, 999, 1006), 1000);
        // The program has no task there: one runnable task is one competitor.
        assert_eq!(own(0, 0).competitors(1000, 1000, 1000), 1000);
    }
}
