//! The capability of each CPU: its speed less what interrupts, real-time tasks and a hypervisor take of
//! its time. The balance policy `capability` measures load by it. Only this file subtracts noise; the
//! keel in the kernel gets the result.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel_cbinfo::{Cbinfo, CpuAccount};
use evenkeel_machine::Machine;

use crate::layout::{MAX_CPUS, RawCapability};
use crate::options::Options;
use crate::policies::Balance;

/// All of a CPU's time, as a share.
const WHOLE: u64 = 1 << 16;
/// The newest interval counts for one part in so many. With [`Capabilities::INTERVAL`], half of a
/// change is seen after a quarter of a second.
const SMOOTHING: u64 = 4;
/// Capabilities change in steps of this size: a smaller change is no reason to migrate a task.
const STEP: u64 = 32;

/// The capabilities of a machine's CPUs over time, and the bytes of `struct keel_capabilities` for them.
#[derive(Debug, Clone)]
pub struct Capabilities {
    cpus: BTreeMap<u32, Cpu>,
}

#[derive(Debug, Clone, Copy)]
struct Cpu {
    /// Its capability without noise, 0..=1024.
    nominal: u64,
    /// The share of its time that noise takes, smoothed, 0..=[`WHOLE`].
    taken: u64,
    /// The capability that the keel was given last, 0..=1024.
    published: u64,
}

impl Capabilities {
    /// The interval at which [`Self::note`] expects the time that noise took.
    pub const INTERVAL: Duration = Duration::from_millis(100);

    /// The capabilities of the online CPUs, without noise so far. A capacity in the options wins over
    /// what the machine says.
    pub fn new(machine: &Machine, options: &Options) -> Self {
        let given = &options.capacities.0;
        let cpu = |cpu: &evenkeel_machine::Cpu| {
            let nominal = given.get(&cpu.id).copied().unwrap_or(cpu.capability).into();
            (cpu.id, Cpu { nominal, taken: 0, published: nominal })
        };
        Self { cpus: machine.cpus.iter().filter(|cpu| cpu.online).map(cpu).collect() }
    }

    /// After a restart of the keel because CPUs came or went: begins with the noise that was measured
    /// before it. Returns the bytes for the keel, if noise lowers any capability.
    pub fn go_on_from(&mut self, earlier: &Self) -> Option<Vec<u8>> {
        for (id, cpu) in &mut self.cpus {
            cpu.taken = earlier.cpus.get(id).map_or(0, |known| known.taken);
        }
        self.news()
    }

    /// Whether noise changes capabilities under these options.
    pub fn are_wanted(options: &Options) -> bool {
        options.balance == Balance::Capability && !options.static_capacity
    }

    /// Notes that noise took `taken_ns` of a CPU during the last `window_ns`; more than all counts as
    /// all.
    pub fn note(&mut self, cpu: u32, taken_ns: u64, window_ns: u64) {
        let Some(cpu) = self.cpus.get_mut(&cpu) else { return };
        let share = (u128::from(taken_ns) * u128::from(WHOLE) / u128::from(window_ns.max(1)))
            .min(u128::from(WHOLE)) as u64;
        cpu.taken = (cpu.taken * (SMOOTHING - 1) + share) / SMOOTHING;
    }

    /// The bytes for the keel, if a capability has changed.
    pub fn news(&mut self) -> Option<Vec<u8>> {
        let mut has_changed = false;
        for cpu in self.cpus.values_mut() {
            let exact = cpu.nominal * (WHOLE - cpu.taken) / WHOLE;
            // With hysteresis: noise that stays the same must not change the capability back and forth.
            if exact.abs_diff(cpu.published) * 4 > STEP * 3 {
                let rounded = (exact + STEP / 2) / STEP * STEP;
                let next = if cpu.nominal - exact < STEP / 2 { cpu.nominal } else { rounded };
                has_changed |= next != cpu.published;
                cpu.published = next.min(cpu.nominal);
            }
        }
        has_changed.then(|| self.lay_out())
    }

    /// The bytes for the keel.
    pub fn lay_out(&self) -> Vec<u8> {
        let mut layout = vec![RawCapability::default(); MAX_CPUS];
        let mut sorted: Vec<u64> = self.cpus.values().map(|cpu| cpu.published).collect();
        sorted.sort_unstable();
        for (id, cpu) in &self.cpus {
            let faster = sorted.len() - sorted.partition_point(|other| *other <= cpu.published);
            let slower = sorted.partition_point(|other| *other < cpu.published);
            if let Some(raw) = layout.get_mut(*id as usize) {
                *raw = RawCapability {
                    now: cpu.published as u16,
                    faster: faster as u16,
                    slower: slower as u16,
                    pad: 0,
                };
            }
        }
        bytemuck::cast_slice(&layout).to_vec()
    }
}

/// Follows the capabilities of this machine's CPUs: the accounting of cbinfo tells what noise takes.
pub(crate) struct Watch {
    capabilities: Capabilities,
    cbinfo: Cbinfo,
    before: Vec<CpuAccount>,
    at: Instant,
}

impl Watch {
    /// Begins to follow them.
    ///
    /// # Errors
    /// The accounting cannot be started.
    pub fn begin(machine: &Machine, options: &Options) -> Result<Self, evenkeel_cbinfo::Error> {
        let cbinfo = Cbinfo::open(&[])?;
        let before = cbinfo.cpus();
        let capabilities = Capabilities::new(machine, options);
        Ok(Self { capabilities, cbinfo, before, at: Instant::now() })
    }

    /// Begins with the noise that was measured before a restart: [`Capabilities::go_on_from`].
    pub fn go_on_from(&mut self, earlier: &Self) -> Option<Vec<u8>> {
        self.capabilities.go_on_from(&earlier.capabilities)
    }

    /// Once an interval: returns the bytes for the keel if a capability has changed.
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

    fn published(layout: &[u8]) -> Vec<(u16, u16)> {
        let raw: &[RawCapability] = bytemuck::cast_slice(layout);
        raw.iter().take(4).map(|cpu| (cpu.now, cpu.faster)).collect()
    }

    fn two_kinds() -> Capabilities {
        let options = Options { capacities: "1=512".parse().unwrap(), ..Options::default() };
        let machine = "name = \"x\"\nkinds = [{ cpus = \"0-2\", capability = 1024 }]\n";
        Capabilities::new(&Machine::parse_toml(machine, "x").unwrap(), &options)
    }

    #[test]
    fn capacities_of_the_options_are_published_first() {
        let expected = [(1024, 0), (512, 2), (1024, 0), (0, 0)];
        assert_eq!(published(&two_kinds().lay_out()), expected);
        assert_eq!(two_kinds().news(), None);
    }

    #[test]
    fn faster_cpus_are_counted() {
        let machine = Machine::preset("amc1").unwrap();
        let capacities = "0-3=1024,4-5=512,6-31=256".parse().unwrap();
        let options = Options { capacities, ..Options::default() };
        let layout = Capabilities::new(&machine, &options).lay_out();
        let raw: &[RawCapability] = bytemuck::cast_slice(&layout);
        assert_eq!([0, 3, 4, 6, 31].map(|cpu: usize| raw[cpu].faster), [0, 0, 4, 6, 6]);
        assert_eq!([0, 3, 4, 6, 31].map(|cpu: usize| raw[cpu].slower), [28, 28, 26, 0, 0]);
        let machine = Machine::preset("amc3").unwrap();
        let layout = Capabilities::new(&machine, &Options::default()).lay_out();
        let raw: &[RawCapability] = bytemuck::cast_slice(&layout);
        assert_eq!([5, 6].map(|cpu: usize| raw[cpu].now), [1024, 512]);
    }

    #[test]
    fn noise_lowers_a_capability_until_it_ends() {
        let mut capabilities = two_kinds();
        let mut last = capabilities.lay_out();
        for _ in 0..40 {
            // Three quarters of CPU 0, more than all of CPU 1, and half of CPU 9, which does not exist.
            for (cpu, taken_ns) in [(0, 75), (1, 400), (9, 50)] {
                capabilities.note(cpu, taken_ns, 100);
            }
            last = capabilities.news().unwrap_or(last);
        }
        assert_eq!(published(&last), [(256, 1), (0, 2), (1024, 0), (0, 0)]);
        for _ in 0..40 {
            capabilities.note(0, 0, 100);
            capabilities.note(1, 0, 0);
            last = capabilities.news().unwrap_or(last);
        }
        assert_eq!(last, two_kinds().lay_out());
    }

    #[test]
    fn what_noise_takes_is_known_after_a_restart() {
        let mut earlier = two_kinds();
        assert_eq!(two_kinds().go_on_from(&earlier), None);
        for _ in 0..40 {
            earlier.note(0, 75, 100);
            earlier.note(9, 75, 100);
        }
        let mut capabilities = two_kinds();
        let layout = capabilities.go_on_from(&earlier).unwrap();
        assert_eq!(published(&layout), [(256, 2), (512, 1), (1024, 0), (0, 0)]);
        assert_eq!(capabilities.news(), None);
    }

    #[test]
    fn small_or_steady_noise_changes_nothing() {
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
