//! What the keel is given before it starts, byte for byte: its read-only settings and topology, and the
//! first values of what changes while it runs. The loader writes it into the BPF object, the lab's
//! simulator into a native build of the keel.

use bytemuck::Zeroable;
use evenkeel_machine::Machine;

use crate::capability::Capabilities;
use crate::layout::{CPU_ROWS, RawSettings, RawTunables};
use crate::options::Options;
use crate::parts::Parts;
use crate::policies::{Balance, Order};
use crate::topology::{Topology, TopologyError};

/// Entries of a queue that one search for a task to migrate looks at.
const SCAN_LIMIT: u64 = 64;

/// The structs of `bpf/keel/intf.h` that user space fills in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialData {
    /// `settings`: the policies and the number of CPUs.
    pub settings: Vec<u8>,
    /// `topology`: the place of each CPU among the others.
    pub topology: Vec<u8>,
    /// `tunables`: what may be changed while the keel runs.
    pub tunables: Vec<u8>,
    /// `capabilities`: the capability of each CPU while no noise takes a part of it.
    pub capabilities: Vec<u8>,
    /// Entries of the map `cpus`: CPU numbers are below this.
    pub cpus: u32,
}

impl InitialData {
    /// Lays out the options and the online CPUs of this machine.
    ///
    /// # Errors
    /// The machine is larger than the keel was built for, or the options give a capacity to a CPU that
    /// the machine does not have.
    pub fn new(machine: &Machine, options: &Options) -> Result<Self, TopologyError> {
        let topology = Topology::new(machine, &options.capacities)?;
        let settings = RawSettings {
            order: options.order as u32,
            gate: options.gate as u32,
            balance: options.balance as u32,
            cpus: topology.cpu_numbers,
            levels: topology.levels,
            online: topology.online,
            parts: match options.balance {
                Balance::Capability => options.parts.bits(),
                Balance::Count => options.parts.unknown_bits(),
            },
            smt: u32::from(topology.smt),
            ias_mode: options.ias.mode as u32,
            compact: u32::from(options.compact),
        };
        let parts: [&[u8]; 6] = [
            bytemuck::cast_slice(&topology.cpu_at),
            bytemuck::cast_slice(&topology.cpus),
            bytemuck::cast_slice(&topology.ranges),
            &topology.distances,
            bytemuck::cast_slice(&topology.caches),
            bytemuck::cast_slice(&topology.cache_cpus),
        ];
        Ok(Self {
            settings: bytemuck::bytes_of(&settings).to_vec(),
            topology: parts.concat(),
            tunables: bytemuck::bytes_of(&lay_out_tunables(options)).to_vec(),
            capabilities: Capabilities::new(machine, options).lay_out(),
            cpus: topology.cpu_numbers,
        })
    }

    /// `SCX_OPS_KEEP_BUILTIN_IDLE`, a flag of `struct sched_ext_ops`: the kernel tracks idle CPUs
    /// although the keel has a callback for them.
    const OPS_KEEP_BUILTIN_IDLE: u64 = 1 << 0;

    /// `SCX_OPS_ENQ_LAST`, another flag: a task that is alone on its CPU is enqueued at the end of its
    /// slice like any other. Without the flag the kernel itself keeps it running.
    pub const OPS_ENQ_LAST: u64 = 1 << 1;

    /// `flags` of the keel's `struct sched_ext_ops`. `SCX_OPS_ENQ_LAST` is set only where active
    /// migration needs it: on a CPU that goes offline, the kernel takes such a task for itself and
    /// forgets to run it.
    pub fn flags(&self) -> u64 {
        let needs_enq_last = Parts::from_bits(self.settings().parts).migrate_actively();
        Self::OPS_KEEP_BUILTIN_IDLE | if needs_enq_last { Self::OPS_ENQ_LAST } else { 0 }
    }

    /// Entries of the map `sibling_rows`, the rows of the index of siblings. Only the order `ias` uses
    /// more than one.
    pub fn sibling_rows(&self) -> u32 {
        if self.settings().order == Order::Ias as u32 { self.cpus * CPU_ROWS } else { 1 }
    }

    fn settings(&self) -> RawSettings {
        let settings = bytemuck::try_pod_read_unaligned(&self.settings);
        settings.unwrap_or_else(|_| RawSettings::zeroed())
    }
}

/// `tunables` as these options set them.
pub(crate) fn lay_out_tunables(options: &Options) -> RawTunables {
    RawTunables {
        slice_ns: options.slice.ns(),
        scan_limit: SCAN_LIMIT,
        max_idle_wait_ns: options.max_idle_wait.ns(),
        sibling_window: options.ias.window.tasks(),
        sibling_kick: options.ias.kick as u64,
        turn_ns: options.ias.turn.ns(),
        zone_at: 0,
        zone: [options.zone.raw(); 2],
        shielded: options.shield.cpus().len() as u64,
        shield: options.shield.raw(),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    #[test]
    fn initial_data_fits_machine_and_options() {
        let machine = Machine::preset("amc1").unwrap();
        let data = InitialData::new(&machine, &Options::default()).unwrap();
        assert_eq!(data.cpus, 32);
        assert_eq!(data.settings.len(), size_of::<RawSettings>());
        assert_eq!(data.tunables.len(), size_of::<RawTunables>());
        assert_eq!(data.flags(), 1);
        let parts = "home,active".parse().unwrap();
        let active = Options { balance: Balance::Capability, parts, ..Options::default() };
        assert_eq!(
            InitialData::new(&machine, &active).unwrap().flags(),
            1 | InitialData::OPS_ENQ_LAST
        );
        let without = Options { balance: Balance::Count, ..active };
        assert_eq!(InitialData::new(&machine, &without).unwrap().flags(), 1);
    }
}
