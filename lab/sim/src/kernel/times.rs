//! Where the time of CPUs and tasks went.

use evenkeel_capability::ONE_SLEEP_NS;

/// Work is counted in 2^-20 ns, so that no fraction is lost when a stretch is interrupted.
pub(super) const FRACTION: u32 = 20;

/// Where a CPU's time went.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CpuTimes {
    pub idle_ns: u64,
    /// Real-time tasks.
    pub taken_ns: u64,
    pub interrupted_ns: u64,
}

/// The times of a task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TaskTimes {
    pub ran_ns: u64,
    /// Interrupts while it ran.
    pub stolen_ns: u64,
    /// Run time weighted by the capability of the CPU, in 1/1024 ns.
    pub received: u64,
    /// How often it went to sleep, as the accounting counts it.
    pub sleeps: u64,
    /// The end of the last sleep that counts; `None`: it is asleep in one.
    awake_since: Option<u64>,
    pub waited_ns: u64,
    worked_ns: u64,
    /// The fraction of the next ns of work, in 2^-FRACTION ns.
    part: u64,
}

impl TaskTimes {
    /// Adds work in 2^-FRACTION ns.
    #[inline]
    pub fn add_work(&mut self, work: u64) {
        let work = self.part + work;
        self.worked_ns += work >> FRACTION;
        self.part = work & ((1 << FRACTION) - 1);
    }

    /// It begins to run.
    pub fn begin(&mut self, now: u64) {
        self.awake_since.get_or_insert(now);
    }

    /// It goes to sleep.
    pub fn sleep(&mut self, now: u64) {
        if self.awake_since.is_some_and(|since| now - since >= ONE_SLEEP_NS) {
            self.sleeps += 1;
            self.awake_since = None;
        }
    }

    /// The work that it did, in ns of a CPU of full capability with near memory and warm caches.
    pub fn worked_ns(&self) -> u64 {
        self.worked_ns
    }
}
