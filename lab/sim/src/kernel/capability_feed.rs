//! What user space tells the keel while it runs: what each CPU can do, less what real-time tasks and
//! interrupts take of it. It is product/keel's own code that finds it out.

use evenkeel_keel::Capabilities;

use crate::agenda::Event;

use super::{End, Kernel};

/// Between two looks.
pub(super) const INTERVAL_NS: u64 = Capabilities::INTERVAL.as_nanos() as u64;

/// Nothing is taken of a CPU.
const WHOLE: u64 = 1024;

/// Who tells it.
pub(super) struct Watch {
    capabilities: Capabilities,
    /// What has been taken of each CPU up to the last look.
    taken_ns: Vec<u64>,
    since_ns: u64,
}

impl Kernel {
    /// Where nothing is taken there is nothing to tell, and on a tape nobody does.
    pub(super) fn watches_capabilities(&self) -> bool {
        let is_noisy = !self.workload.thieves.is_empty() || !self.workload.interrupts.is_empty();
        is_noisy && self.tape.is_none() && self.untouched().is_some()
    }

    /// Of the CPUs that are there, nothing being taken; `None`: the scheduler does not want to know.
    fn untouched(&self) -> Option<Capabilities> {
        let options =
            self.scheduler.options().filter(|options| Capabilities::are_wanted(options))?;
        Some(Capabilities::new(&self.machine, options))
    }

    /// From now on, for the CPUs that are there.
    pub(super) fn watch_capabilities(&mut self) {
        let Some(capabilities) = self.untouched() else { return };
        let taken_ns = (0..self.cpus.len() as u32).map(|cpu| self.taken_ns(cpu)).collect();
        self.watch = Some(Watch { capabilities, taken_ns, since_ns: self.now });
    }

    /// Tells anything that could be: of each CPU nothing is taken, something, or all of it.
    pub(super) fn tell_anything(&mut self) {
        if self.untouched().is_none() {
            return;
        }
        let left = |_| {
            let taken = [0, self.hazards.below(WHOLE), WHOLE][self.hazards.below(3) as usize];
            (WHOLE - taken) as u32
        };
        let left: Vec<u32> = (0..self.cpus.len()).map(left).collect();
        self.tell_left(&left);
    }

    /// Tells how much is left of each CPU.
    pub(super) fn tell_left(&mut self, left: &[u32]) {
        let Some(mut capabilities) = self.untouched() else { return };
        for (cpu, left) in left.iter().enumerate() {
            // It is smoothed.
            (0..32).for_each(|_| {
                capabilities.note(cpu as u32, WHOLE.saturating_sub(u64::from(*left)), WHOLE);
            });
        }
        let record = capabilities.news().unwrap_or_else(|| capabilities.record());
        self.tell_capabilities(&record);
    }

    fn tell_capabilities(&mut self, record: &[u8]) {
        if let Err(why) = self.instance.set_record("capabilities", record) {
            self.end = Some(End::Host(why.to_string()));
        }
    }

    fn taken_ns(&mut self, cpu: u32) -> u64 {
        self.update(cpu);
        let times = self.cpus[cpu as usize].times;
        times.taken_ns + times.interrupted_ns
    }

    /// An interval is over.
    pub(super) fn capability_event(&mut self) {
        if self.wants_to_be_alone(Event::Capabilities) {
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
            self.tell_capabilities(&record);
        }
        self.watch = Some(watch);
        self.agenda.plan(self.now + INTERVAL_NS, Event::Capabilities);
    }
}
