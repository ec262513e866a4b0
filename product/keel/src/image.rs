//! What the keel is given before it starts, byte for byte: for the kernel, and for whoever else hosts
//! it.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::sync::LazyLock;

use bytemuck::Zeroable;
use evenkeel_machine::Machine;

use crate::capability::Capabilities;
use crate::ias::groups::{default_roles, raw_roles};
use crate::options::{Balance, Options, Order};
use crate::parts::Parts;
use crate::records::{COUNTERS, CPU_ROWS, RawCpuState, RawRow, RawSettings, RawTunables};
use crate::statistics::Statistics;
use crate::topology::{Topology, TopologyError};

/// Entries of a queue that one search for a task to move looks at.
const SCAN_LIMIT: u64 = 64;

/// The records of `bpf/keel/intf.h` that are set from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `settings`: which policies, how many CPUs.
    pub settings: Vec<u8>,
    /// `topology`: where each CPU stands.
    pub topology: Vec<u8>,
    /// `tunables`: what may be changed while the keel runs.
    pub tunables: Vec<u8>,
    /// `capabilities`: what each CPU can do, as long as nothing is taken of it.
    pub capabilities: Vec<u8>,
    /// Entries of the map `cpus`: CPU numbers are below this.
    pub cpus: u32,
}

impl Image {
    /// For the CPUs of this machine that are online.
    ///
    /// # Errors
    /// The machine is larger than the keel was built for, or a capacity is for no CPU of it.
    pub fn new(machine: &Machine, options: &Options) -> Result<Self, TopologyError> {
        let topology = Topology::new(machine, &options.capacities)?;
        let settings = RawSettings {
            order: options.order as u32,
            gate: options.gate as u32,
            balance: options.balance as u32,
            cpus: topology.cpu_numbers,
            levels: topology.levels,
            online: topology.online,
            parts: if options.balance == Balance::Capability { options.parts.bits() } else { 0 },
            pad: 0,
        };
        let parts: [&[u8]; 4] = [
            bytemuck::cast_slice(&topology.cpu_at),
            bytemuck::cast_slice(&topology.cpus),
            bytemuck::cast_slice(&topology.ranges),
            &topology.distances,
        ];
        Ok(Self {
            settings: bytemuck::bytes_of(&settings).to_vec(),
            topology: parts.concat(),
            tunables: bytemuck::bytes_of(&tunables(options)).to_vec(),
            capabilities: Capabilities::new(machine, options).record(),
            cpus: topology.cpu_numbers,
        })
    }

    /// `SCX_OPS_KEEP_BUILTIN_IDLE`, of its flags: the kernel keeps account of CPUs that idle, although the
    /// keel hears of them.
    const OPS_KEEP_BUILTIN_IDLE: u64 = 1 << 0;

    /// `SCX_OPS_ENQ_LAST`, of these: who runs alone at the end of its slice is enqueued like others.
    /// Otherwise the kernel itself keeps it running.
    pub const OPS_ENQ_LAST: u64 = 1 << 1;

    /// `flags` of its `struct sched_ext_ops`. Only who may be asked to leave is enqueued when it is
    /// alone: on a CPU that is being switched off the kernel takes such a task for itself, and
    /// forgets to have it run.
    pub fn flags(&self) -> u64 {
        let settings = bytemuck::try_pod_read_unaligned(&self.settings);
        let settings: RawSettings = settings.unwrap_or_else(|_| RawSettings::zeroed());
        let is_last_ours = Parts::from_bits(settings.parts).move_who_runs();
        Self::OPS_KEEP_BUILTIN_IDLE | if is_last_ours { Self::OPS_ENQ_LAST } else { 0 }
    }

    /// Entries of the map `sibling_rows`: rows of the index of siblings. Only an order that asks it has
    /// any.
    pub fn sibling_rows(&self) -> u32 {
        let settings = bytemuck::try_pod_read_unaligned(&self.settings);
        let settings: RawSettings = settings.unwrap_or_else(|_| RawSettings::zeroed());
        if settings.order == Order::Ias as u32 { self.cpus * CPU_ROWS } else { 1 }
    }

    /// The roles with which it starts: CPUs that share a cache aggregate together.
    pub fn default_roles(machine: &Machine) -> BTreeMap<u32, u16> {
        default_roles(machine)
    }

    /// The record `roles` of these.
    pub fn role_record(roles: &BTreeMap<u32, u16>) -> Vec<u8> {
        bytemuck::cast_slice(&raw_roles(roles)).to_vec()
    }

    /// The same with searches that go through whole queues: what the policy would do if looking were free.
    pub fn with_endless_searches(mut self) -> Self {
        for at in [offset_of!(RawTunables, scan_limit), offset_of!(RawTunables, sibling_window)] {
            if let Some(place) = self.tunables.get_mut(at..at + size_of::<u64>()) {
                // Whoever adds one to it must not come round to 0.
                place.copy_from_slice(&(u64::MAX / 2).to_ne_bytes());
            }
        }
        self
    }

    /// Bytes of an entry of the map `cpus`.
    pub const CPU_STATE_BYTES: usize = size_of::<RawCpuState>();

    /// How often a CPU has looked for work elsewhere, from its entry of the map `cpus`.
    pub fn attempts(cpu: &[u8]) -> u64 {
        static TRIES: LazyLock<Vec<usize>> = LazyLock::new(|| {
            let counted = COUNTERS.iter().zip(0..);
            counted.filter(|((name, _), _)| name.starts_with("try_")).map(|(_, at)| at).collect()
        });
        let counter = |at: &usize| {
            let start = offset_of!(RawCpuState, counters) + at * size_of::<u64>();
            let bytes = cpu.get(start..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        TRIES.iter().filter_map(counter).sum()
    }

    /// Whether somebody runs on a CPU whom the shield keeps off it, alone, from its entry of the map
    /// `cpus`.
    pub fn lodges(cpu: &[u8]) -> bool {
        let state = bytemuck::try_pod_read_unaligned::<RawCpuState>(cpu);
        state.is_ok_and(|state| state.lodges != 0)
    }

    /// How many tasks the scheduler takes for runnable, from the entries of the map `cpus`.
    pub fn runnable(cpus: &[u8]) -> u64 {
        let state = |entry: &[u8]| bytemuck::pod_read_unaligned::<RawCpuState>(entry).runnable;
        cpus.chunks_exact(Self::CPU_STATE_BYTES).map(state).fold(0, u64::wrapping_add)
    }

    /// How long an entry of the map `sibling_rows` is.
    pub const ROW_BYTES: usize = size_of::<RawRow>();

    /// How many tasks stand in the index of siblings, from the entries of the map `sibling_rows`.
    pub fn listed(rows: &[u8]) -> u64 {
        let count = |row: &[u8]| bytemuck::pod_read_unaligned::<RawRow>(row).count;
        rows.chunks_exact(Self::ROW_BYTES).map(count).map(u64::from).sum()
    }

    /// What was counted, by name, from the entries of the map `cpus`.
    pub fn counters(cpus: &[u8]) -> BTreeMap<String, u64> {
        let mut statistics = Statistics::default();
        let entries = cpus.chunks_exact(Self::CPU_STATE_BYTES).zip(0u32..);
        let states: Vec<_> =
            entries.map(|(entry, cpu)| (cpu, bytemuck::pod_read_unaligned(entry))).collect();
        statistics.add(&states);
        statistics.counters
    }
}

/// `tunables` as these options want them.
pub(crate) fn tunables(options: &Options) -> RawTunables {
    RawTunables {
        slice_ns: options.slice.ns(),
        scan_limit: SCAN_LIMIT,
        max_idle_wait_ns: options.max_idle_wait.ns(),
        sibling_window: options.ias.window.tasks(),
        sibling_kick: options.ias.kick as u64,
        zone_at: 0,
        zone: [options.zone.raw(); 2],
        shielded: options.shield.cpus().len() as u64,
        shield: options.shield.raw(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_cpus() {
        let mut bytes = vec![0; 2 * Image::CPU_STATE_BYTES];
        let first_counter = offset_of!(RawCpuState, counters);
        bytes[first_counter] = 3;
        bytes[Image::CPU_STATE_BYTES + first_counter] = 4;
        assert_eq!(Image::counters(&bytes)["wake_idle"], 7);
        let tries = COUNTERS.iter().position(|(name, _)| *name == "try_periodic").unwrap();
        bytes[first_counter + tries * size_of::<u64>()] = 5;
        assert_eq!(Image::attempts(&bytes[..Image::CPU_STATE_BYTES]), 5);
    }

    #[test]
    fn an_image_is_of_the_machine() {
        let machine = Machine::preset("amc1").unwrap();
        let image = Image::new(&machine, &Options::default()).unwrap();
        assert_eq!(image.cpus, 32);
        assert_eq!(image.settings.len(), size_of::<RawSettings>());
        assert_eq!(image.tunables.len(), size_of::<RawTunables>());
        assert_eq!(image.flags(), 1);
        let parts = "home,active".parse().unwrap();
        let active = Options { balance: Balance::Capability, parts, ..Options::default() };
        assert_eq!(Image::new(&machine, &active).unwrap().flags(), 1 | Image::OPS_ENQ_LAST);
        let without = Options { balance: Balance::Count, ..active };
        assert_eq!(Image::new(&machine, &without).unwrap().flags(), 1);
    }
}
