//! The server's part: clients' hints go back with the data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipnet::IpNet;
use libbpf_rs::{Link, MapHandle, Object};
use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, CgroupError};
use crate::object::{Aligned, ObjectError, bpf, by_cpu, fill_peers, map, open};
use crate::records::{RawServed, SERVED_COUNTERS};

/// Why hints do not go back.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The object is not in the kernel.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The program is not on the cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sais-serve.bpf.o")));

const CPUS: &str = "cpus";

/// What a server did since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// The cgroup whose sockets it is about.
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
    cgroup: Cgroup,
    cpus: MapHandle,
    /// Last, so that it outlives what it loaded.
    _object: Object,
}

impl Serving {
    /// Begins, for clients in these networks.
    ///
    /// # Errors
    /// All of [`ServingError`]; then nothing is attached.
    pub fn start(cgroup: Cgroup, peers: &[IpNet]) -> Result<Self, ServingError> {
        evenkeel_cbinfo::support().map_err(ObjectError::from)?;
        let object = open("sais_serve", &OBJECT.0)?
            .load()
            .map_err(bpf("loading: the kernel refused the program"))?;
        fill_peers(&object, peers)?;
        let cpus = map::<RawServed>(&object, CPUS)?;
        let program = object.progs_mut().next().ok_or(ObjectError::Mismatch("capsule"))?;
        Ok(Self { _link: cgroup.attach(&program)?, cgroup, cpus, _object: object })
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
