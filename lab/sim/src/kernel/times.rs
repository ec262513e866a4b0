//! Where the time of CPUs and tasks went.

/// Work is kept in 2^-20 ns, so that no fraction is lost however often a stretch is cut.
pub(super) const FRACTION: u32 = 20;

/// Where a CPU's time has gone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CpuTimes {
    pub idle_ns: u64,
    pub taken_ns: u64,
    pub interrupted_ns: u64,
}

/// What a task has had.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TaskTimes {
    pub ran_ns: u64,
    pub stolen_ns: u64,
    /// Of the best CPU, in 1/1024 ns.
    pub received: u64,
    pub switches: u64,
    pub waited_ns: u64,
    worked_ns: u64,
    /// Of the next ns worked, in 2^-FRACTION.
    part: u64,
}

impl TaskTimes {
    /// It has worked so much, in 2^-FRACTION ns.
    #[inline]
    pub fn work(&mut self, work: u64) {
        let work = self.part + work;
        self.worked_ns += work >> FRACTION;
        self.part = work & ((1 << FRACTION) - 1);
    }

    /// What it worked, in ns of a CPU of full capability with near memory and warm caches.
    pub fn worked_ns(&self) -> u64 {
        self.worked_ns
    }
}
