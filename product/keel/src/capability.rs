//! What each CPU can do now. Interrupts, real-time tasks and a hypervisor take a part of its time; what
//! they leave is its capability, by which the balance policy `capability` measures load. They count
//! there, and nowhere else.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_cbinfo::{Cbinfo, CpuAccount};
use evenkeel_machine::Machine;

use crate::options::{Balance, Options};
use crate::records::{MAX_CPUS, RawCapability};

/// A whole share of a CPU's time.
const WHOLE: u64 = 1 << 16;
/// What is new counts for one part in so many: with [`Capabilities::INTERVAL`] a change is half known
/// after a quarter of a second.
const MEMORY: u64 = 4;
/// Capabilities change in steps of this: less is no reason to move anybody.
const STEP: u64 = 32;

/// The record `capabilities` of a machine, as time goes by.
#[derive(Debug, Clone)]
pub struct Capabilities {
    cpus: BTreeMap<u32, Cpu>,
}

#[derive(Debug, Clone, Copy)]
struct Cpu {
    /// What it is made for, 0..=1024.
    nominal: u64,
    /// The share that is taken of it, smoothed, 0..=[`WHOLE`].
    taken: u64,
    /// What it can do, as it was told last.
    told: u64,
}

impl Capabilities {
    /// How often what was taken is to be noted.
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// Of the CPUs that are online, from which nothing is taken so far. What the user has said of a
    /// CPU goes before what the machine says.
    pub fn new(machine: &Machine, options: &Options) -> Self {
        let given = &options.capacities.0;
        let cpu = |cpu: &evenkeel_machine::Cpu| {
            let nominal = given.get(&cpu.id).copied().unwrap_or(cpu.capability).into();
            (cpu.id, Cpu { nominal, taken: 0, told: nominal })
        };
        Self { cpus: machine.cpus.iter().filter(|cpu| cpu.online).map(cpu).collect() }
    }

    /// Whether anybody wants to know what is taken.
    pub fn are_wanted(options: &Options) -> bool {
        options.balance == Balance::Capability && !options.static_capacity
    }

    /// During the last `window_ns` so much of a CPU was taken. More than all of it is all of it.
    pub fn note(&mut self, cpu: u32, taken_ns: u64, window_ns: u64) {
        let Some(cpu) = self.cpus.get_mut(&cpu) else { return };
        let share = (u128::from(taken_ns) * u128::from(WHOLE) / u128::from(window_ns.max(1)))
            .min(u128::from(WHOLE)) as u64;
        cpu.taken = (cpu.taken * (MEMORY - 1) + share) / MEMORY;
    }

    /// The record, if something in it has changed.
    pub fn news(&mut self) -> Option<Vec<u8>> {
        let mut is_new = false;
        for cpu in self.cpus.values_mut() {
            let exact = cpu.nominal * (WHOLE - cpu.taken) / WHOLE;
            // Not at each step's edge: noise that stays the same must not change anything.
            if exact.abs_diff(cpu.told) * 4 > STEP * 3 {
                let rounded = (exact + STEP / 2) / STEP * STEP;
                let next = if cpu.nominal - exact < STEP / 2 { cpu.nominal } else { rounded };
                is_new |= next != cpu.told;
                cpu.told = next.min(cpu.nominal);
            }
        }
        is_new.then(|| self.record())
    }

    /// The record as it is.
    pub fn record(&self) -> Vec<u8> {
        let mut record = vec![RawCapability::default(); MAX_CPUS];
        let mut sorted: Vec<u64> = self.cpus.values().map(|cpu| cpu.told).collect();
        sorted.sort_unstable();
        for (id, cpu) in &self.cpus {
            let faster = sorted.len() - sorted.partition_point(|told| *told <= cpu.told);
            let slower = sorted.partition_point(|told| *told < cpu.told);
            if let Some(raw) = record.get_mut(*id as usize) {
                *raw = RawCapability {
                    now: cpu.told as u16,
                    faster: faster as u16,
                    slower: slower as u16,
                    pad: 0,
                };
            }
        }
        bytemuck::cast_slice(&record).to_vec()
    }
}

/// Watches this machine.
pub(crate) struct Watch {
    capabilities: Capabilities,
    cbinfo: Cbinfo,
    before: Vec<CpuAccount>,
    at: Instant,
}

impl Watch {
    /// From now on.
    ///
    /// # Errors
    /// The kernel does not let itself be watched.
    pub fn begin(machine: &Machine, options: &Options) -> Result<Self, evenkeel_cbinfo::Error> {
        let cbinfo = Cbinfo::open(&[])?;
        let before = cbinfo.cpus();
        let capabilities = Capabilities::new(machine, options);
        Ok(Self { capabilities, cbinfo, before, at: Instant::now() })
    }

    /// When an interval is over: the record, if something in it has changed.
    pub fn look(&mut self) -> Option<Vec<u8>> {
        let window = self.at.elapsed();
        if window < Capabilities::INTERVAL {
            return None;
        }
        self.at = Instant::now();
        let now = self.cbinfo.cpus();
        for (now, before) in now.iter().zip(&self.before) {
            let taken_ns = now.noise.total_ns().saturating_sub(before.noise.total_ns());
            self.capabilities.note(now.cpu, taken_ns, window.as_nanos() as u64);
        }
        self.before = now;
        self.capabilities.news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(record: &[u8]) -> Vec<(u16, u16)> {
        let raw: &[RawCapability] = bytemuck::cast_slice(record);
        raw.iter().take(4).map(|cpu| (cpu.now, cpu.faster)).collect()
    }

    fn two_kinds() -> Capabilities {
        let options = Options { capacities: "1=512".parse().unwrap(), ..Options::default() };
        let machine = "name = \"x\"\nkinds = [{ cpus = \"0-2\", capability = 1024 }]\n";
        Capabilities::new(&Machine::parse_toml(machine, "x").unwrap(), &options)
    }

    #[test]
    fn what_is_given_is_told_first() {
        let expected = [(1024, 0), (512, 2), (1024, 0), (0, 0)];
        assert_eq!(told(&two_kinds().record()), expected);
        assert_eq!(two_kinds().news(), None);
    }

    #[test]
    fn faster_cpus_are_counted() {
        let machine = Machine::preset("amc1").unwrap();
        let capacities = "0-3=1024,4-5=512,6-31=256".parse().unwrap();
        let options = Options { capacities, ..Options::default() };
        let record = Capabilities::new(&machine, &options).record();
        let raw: &[RawCapability] = bytemuck::cast_slice(&record);
        assert_eq!([0, 3, 4, 6, 31].map(|cpu: usize| raw[cpu].faster), [0, 0, 4, 6, 6]);
        assert_eq!([0, 3, 4, 6, 31].map(|cpu: usize| raw[cpu].slower), [28, 28, 26, 0, 0]);
        let machine = Machine::preset("amc3").unwrap();
        let record = Capabilities::new(&machine, &Options::default()).record();
        let raw: &[RawCapability] = bytemuck::cast_slice(&record);
        assert_eq!([5, 6].map(|cpu: usize| raw[cpu].now), [1024, 512]);
    }

    #[test]
    fn what_is_taken_is_missing_and_comes_back() {
        let mut capabilities = two_kinds();
        let mut last = capabilities.record();
        for _ in 0..40 {
            // Three quarters of CPU 0, all that there is of CPU 1 and more, and of CPU 9, which is not.
            for (cpu, taken_ns) in [(0, 75), (1, 400), (9, 50)] {
                capabilities.note(cpu, taken_ns, 100);
            }
            last = capabilities.news().unwrap_or(last);
        }
        assert_eq!(told(&last), [(256, 1), (0, 2), (1024, 0), (0, 0)]);
        for _ in 0..40 {
            capabilities.note(0, 0, 100);
            capabilities.note(1, 0, 0);
            last = capabilities.news().unwrap_or(last);
        }
        assert_eq!(last, two_kinds().record());
    }

    #[test]
    fn what_is_small_or_stays_changes_nothing() {
        let mut capabilities = two_kinds();
        for _ in 0..100 {
            capabilities.note(0, 2, 100);
            assert_eq!(capabilities.news(), None);
        }
        for _ in 0..100 {
            capabilities.note(0, 30, 100);
            capabilities.news();
        }
        for taken_ns in [29, 31, 30, 29, 31].into_iter().cycle().take(100) {
            capabilities.note(0, taken_ns, 100);
            assert_eq!(capabilities.news(), None);
        }
    }
}
