//! The server's part: clients' hints go back with the data.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use ipnet::IpNet;
use libbpf_rs::{Link, MapHandle, Object};
use libbpf_sys::BPF_TCX_EGRESS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attachment::link_to;
use crate::cgroup::{Cgroup, CgroupError};
use crate::device::Device;
use crate::layout::{RawServeSettings, RawServed, SERVED_COUNTERS};
use crate::object::{Aligned, ObjectError, bpf, by_cpu, fill_peers, map, open};

/// Why hints do not go back.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The object is not in the kernel.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The program is not on the cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The program is not on the device.
    #[error(
        "{device}: the program that puts the paper's byte into packets was refused: {source} (it \
         needs Linux 6.6 or newer)"
    )]
    Device {
        /// The device.
        device: String,
        /// Why.
        source: io::Error,
    },
}

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sais-serve.bpf.o")));

const CPUS: &str = "cpus";
const SETTINGS: &str = ".rodata.settings";
/// Hears clients' hints, and gives them back in TCP options.
const CAPSULE: &str = "capsule";
/// Gives them back in the paper's byte.
const CAPSULE_BYTE: &str = "capsule_byte";

/// What a server did since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Served {
    /// The cgroup of the sockets.
    pub cgroup: PathBuf,
    /// How much of what, by the names of [`Served::meaning`].
    pub counters: BTreeMap<String, u64>,
}

impl Served {
    /// What a counter means; `None`: there is none of this name.
    pub fn meaning(counter: &str) -> Option<&'static str> {
        SERVED_COUNTERS.iter().find(|(name, _)| *name == counter).map(|(_, meaning)| *meaning)
    }
}

/// Hints go back from all servers in a cgroup, on connections that are made from now on. Dropping it
/// ends that, and leaves nothing.
pub struct Serving {
    _link: Link,
    _device_link: Option<OwnedFd>,
    cgroup: Cgroup,
    cpus: MapHandle,
    /// Last, so that it outlives what it loaded.
    _object: Object,
}

impl Serving {
    /// Begins, for clients in these networks: in TCP options, or, where a device is given by which
    /// packets leave to them, in the paper's byte.
    ///
    /// # Errors
    /// All of [`ServingError`]; then nothing is attached.
    pub fn start(
        cgroup: Cgroup,
        peers: &[IpNet],
        device: Option<&Device>,
    ) -> Result<Self, ServingError> {
        evenkeel_cbinfo::support().map_err(ObjectError::from)?;
        let mut opened = open("sais_serve", &OBJECT.0)?;
        let settings = RawServeSettings { wire: u32::from(device.is_some()) };
        let mut map_of_settings = opened.maps_mut().find(|map| map.name() == SETTINGS);
        map_of_settings
            .as_mut()
            .and_then(|map| map.set_initial_value(bytemuck::bytes_of(&settings)).ok())
            .ok_or(ObjectError::Mismatch(SETTINGS))?;
        let byte = opened.progs_mut().find(|program| program.name() == CAPSULE_BYTE);
        // Kernels that cannot do it need not.
        byte.ok_or(ObjectError::Mismatch(CAPSULE_BYTE))?.set_autoload(device.is_some());
        let object = opened.load().map_err(bpf("loading: the kernel refused the program"))?;
        fill_peers(&object, peers)?;
        let cpus = map::<RawServed>(&object, CPUS)?;
        let program = |name: &'static str| {
            let found = object.progs_mut().find(|program| program.name() == name);
            found.ok_or(ObjectError::Mismatch(name))
        };
        let device_link = match device {
            Some(device) => {
                let byte = program(CAPSULE_BYTE)?;
                Some(link_to(byte.as_fd(), device, BPF_TCX_EGRESS, 0).map_err(|source| {
                    ServingError::Device { device: device.name.clone(), source }
                })?)
            }
            None => None,
        };
        let link = cgroup.attach(&program(CAPSULE)?)?;
        Ok(Self { _link: link, _device_link: device_link, cgroup, cpus, _object: object })
    }

    /// The cgroup.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// What it did so far.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn served(&self) -> Result<Served, ObjectError> {
        let mut served =
            Served { cgroup: self.cgroup.path().to_owned(), counters: BTreeMap::new() };
        for cpu in by_cpu::<RawServed>(&self.cpus, CPUS)? {
            for ((name, _), count) in SERVED_COUNTERS.iter().zip(cpu.counters) {
                *served.counters.entry((*name).to_owned()).or_default() += count;
            }
        }
        Ok(served)
    }
}
