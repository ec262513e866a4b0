//! Measured capabilities: user space measures what real-time tasks and interrupts take of each CPU, and
//! passes what is left to the keel. product/keel's own code computes it; the times that it reads are
//! modelled.

use evenkeel_keel::Capabilities;

use crate::agenda::Event;

use super::{End, Kernel};

/// Between two measurements.
pub(super) const INTERVAL_NS: u64 = Capabilities::INTERVAL.as_nanos() as u64;

/// The share of a CPU of which nothing is taken.
const WHOLE: u64 = 1024;

/// The measuring code and its last readings.
pub(super) struct Watch {
    capabilities: Capabilities,
    /// What had been taken of each CPU at the last measurement.
    taken_ns: Vec<u64>,
    since_ns: u64,
}

impl Kernel {
    /// Whether capabilities are measured: not if nothing is taken of any CPU, and not on a tape.
    pub(super) fn watches_capabilities(&self) -> bool {
        let is_noisy =
            self.workload.higher().next().is_some() || !self.workload.interrupts.is_empty();
        is_noisy && self.tape.is_none() && self.untouched().is_some()
    }

    /// The capabilities of all online CPUs with nothing taken; `None`: the options do not use measured
    /// ones.
    fn untouched(&self) -> Option<Capabilities> {
        let options =
            self.scheduler.options().filter(|options| Capabilities::are_wanted(options))?;
        Some(Capabilities::new(&self.machine, options))
    }

    /// Begins to measure the online CPUs, or goes on with what was known before others came or went.
    pub(super) fn watch_capabilities(&mut self) {
        let Some(mut capabilities) = self.untouched() else { return };
        if let Some(earlier) = self.watch.take()
            && let Some(record) = capabilities.go_on_from(&earlier.capabilities)
        {
            self.pass_capabilities(&record);
        }
        let taken_ns = (0..self.cpus.len() as u32).map(|cpu| self.taken_ns(cpu)).collect();
        self.watch = Some(Watch { capabilities, taken_ns, since_ns: self.now });
    }

    /// Passes random capabilities: of each CPU nothing, something or everything is taken.
    pub(super) fn pass_random_capabilities(&mut self) {
        if self.untouched().is_none() {
            return;
        }
        let left = |_| {
            let taken = [0, self.hazards.below(WHOLE), WHOLE][self.hazards.below(3) as usize];
            (WHOLE - taken) as u32
        };
        let left: Vec<u32> = (0..self.cpus.len()).map(left).collect();
        self.pass_shares(&left);
    }

    /// Passes the given share of each CPU to the keel.
    pub(super) fn pass_shares(&mut self, left: &[u32]) {
        let Some(mut capabilities) = self.untouched() else { return };
        for (cpu, left) in left.iter().enumerate() {
            // Measurements are smoothed: so many bring the average close to the given share.
            (0..32).for_each(|_| {
                capabilities.note(cpu as u32, WHOLE.saturating_sub(u64::from(*left)), WHOLE);
            });
        }
        let record = capabilities.news().unwrap_or_else(|| capabilities.lay_out());
        self.pass_capabilities(&record);
    }

    fn pass_capabilities(&mut self, record: &[u8]) {
        if let Err(why) = self.instance.set_record("capabilities", record) {
            self.end = Some(End::Host(why.to_string()));
        }
    }

    fn taken_ns(&mut self, cpu: u32) -> u64 {
        self.account_time(cpu);
        let times = self.cpus[cpu as usize].times;
        times.taken_ns + times.interrupted_ns
    }

    /// An interval is over.
    pub(super) fn capability_event(&mut self) {
        if self.defer_unless_alone(Event::Capabilities) {
            return;
        }
        let Some(mut watch) = self.watch.take() else { return };
        let window_ns = self.now - watch.since_ns;
        watch.since_ns = self.now;
        for cpu in 0..self.cpus.len() as u32 {
            let now_ns = self.taken_ns(cpu);
            let before_ns = std::mem::replace(&mut watch.taken_ns[cpu as usize], now_ns);
            watch.capabilities.note(cpu, now_ns - before_ns, window_ns);
        }
        if let Some(record) = watch.capabilities.news() {
            self.pass_capabilities(&record);
        }
        self.watch = Some(watch);
        self.agenda.plan(self.now + INTERVAL_NS, Event::Capabilities);
    }
}
