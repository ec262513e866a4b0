//! Per-packet round robin: each packet to the next core (lab/bpf/scatter.bpf.c). No machine is steered
//! like that; it shows what becomes of a connection that is spread over cores.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use bytemuck::bytes_of;
use evenkeel_machine::CpuSet;
use evenkeel_sais::{Attachment, Device, XdpMode};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};

use super::network::DEVICE;

/// lab/bpf/scatter.bpf.c, compiled by build.rs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scatter.bpf.o"));

/// `MAX_CPUS`.
const MAX_CPUS: usize = 1024;
/// As many packets may wait for a core as `sais attach` lets wait.
const QUEUE_PACKETS: u32 = 4096;

/// Until this is dropped.
pub struct Scatter {
    _attachment: Attachment,
    /// Last, so that it outlives the attachment.
    _object: Object,
}

impl Scatter {
    /// Spreads the packets of the client's device, which is in the calling thread's namespace, over
    /// these CPUs.
    ///
    /// # Errors
    /// There is no device, or the kernel refused.
    pub fn start(cpus: &CpuSet) -> Result<Self> {
        let cannot = "the kernel refuses the program that spreads packets";
        let mut open = ObjectBuilder::default().open_memory(OBJECT).context(cannot)?;
        // The cores, and behind them their number.
        let mut order = vec![0_u32; MAX_CPUS + 1];
        let cores: Vec<u32> = cpus.iter().take(MAX_CPUS).collect();
        order[..cores.len()].copy_from_slice(&cores);
        order[MAX_CPUS] = cores.len() as u32;
        for mut map in open.maps_mut() {
            if map.name() == ".rodata.order" {
                map.set_initial_value(bytemuck::cast_slice(&order)).context(cannot)?;
            } else if map.name() == "threads" {
                map.set_max_entries(libbpf_rs::num_possible_cpus()? as u32).context(cannot)?;
            }
        }
        let object = open.load().context(cannot)?;
        let threads = object.maps().find(|map| map.name() == "threads").context(cannot)?;
        for core in &cores {
            let queue = [QUEUE_PACKETS, 0];
            threads.update(&core.to_ne_bytes(), bytes_of(&queue), MapFlags::ANY)?;
        }
        let program = object.progs().next().context(cannot)?;
        let attachment =
            Attachment::new(program.as_fd(), &Device::find(DEVICE)?, XdpMode::Generic)?;
        Ok(Self { _attachment: attachment, _object: object })
    }
}
