//! A BPF object of ours in the kernel: what can go wrong, and what all objects need.

use std::io;
use std::mem::size_of;

use bytemuck::{AnyBitPattern, Pod, Zeroable};
use ipnet::IpNet;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::layout::RawPeer;

/// Why an object is not in the kernel, or nothing can be told it.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Not possible on this kernel or for this user.
    #[error(transparent)]
    Unsupported(#[from] evenkeel_cbinfo::Unsupported),
    /// libbpf or the kernel refused.
    #[error("sais: {what}: {source} (run again with -vv for the kernel's words)")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// A part of the object is not what this version expects.
    #[error("sais: {0} in the BPF object is not what it should be: rebuild evenkeel")]
    Mismatch(&'static str),
    /// More networks than there is room for.
    #[error("--peers: {given} networks, but {most} at most; give wider ones")]
    TooManyPeers {
        /// What was asked for.
        given: usize,
        /// What fits.
        most: usize,
    },
    /// No key for hints.
    #[error("sais: no random key for the hints: {0}")]
    Random(io::Error),
}

/// Entries of a hash that are first read at once.
const BATCH: u32 = 1024;

pub(crate) fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> ObjectError {
    move |source| ObjectError::Bpf { what, source }
}

/// An object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// Opens an object; libbpf writes to our log: what fails is told by our own
/// errors.
pub(crate) fn open(name: &str, bytes: &[u8]) -> Result<OpenObject, ObjectError> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
        tracing::debug!("libbpf: {}", text.trim_end());
    })));
    ObjectBuilder::default()
        .name(name)
        .and_then(|builder| builder.open_memory(bytes))
        .map_err(bpf("opening the object"))
}

/// A map of a loaded object, with values of this type.
pub(crate) fn map<Value: Pod>(
    object: &Object,
    name: &'static str,
) -> Result<MapHandle, ObjectError> {
    let found = object.maps().find(|map| map.name() == name);
    let handle = found.map(|map| MapHandle::try_from(&map)).transpose();
    let handle = handle.map_err(bpf("opening a map"))?.ok_or(ObjectError::Mismatch(name))?;
    if handle.value_size() as usize != size_of::<Value>() {
        return Err(ObjectError::Mismatch(name));
    }
    Ok(handle)
}

/// The map of each object that holds the networks that hints may be exchanged with.
pub(crate) const PEERS: &str = "peers";
/// `MAX_PEERS`.
const MAX_PEERS: usize = 64;

/// Fills the map of peers.
pub(crate) fn fill_peers(object: &Object, peers: &[IpNet]) -> Result<(), ObjectError> {
    if peers.len() > MAX_PEERS {
        return Err(ObjectError::TooManyPeers { given: peers.len(), most: MAX_PEERS });
    }
    let map = map::<u32>(object, PEERS)?;
    for peer in peers {
        let key = RawPeer::new(peer);
        map.update(bytemuck::bytes_of(&key), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(bpf("writing which peers there are"))?;
    }
    Ok(())
}

/// All entries of a hash that holds at most so many. The library takes a batch that is not full for the
/// last one, and the kernel fills none but the last to the brim, so they must all be in one. There must
/// be no place for all that there could be: to clear that much memory would drive the programs out of
/// their caches.
pub(crate) fn entries<Key: AnyBitPattern, Value: AnyBitPattern>(
    hash: &MapHandle,
    most: u32,
) -> libbpf_rs::Result<Vec<(Key, Value)>> {
    let mut batch = BATCH.min(most);
    loop {
        let read = hash.lookup_batch(batch, MapFlags::ANY, MapFlags::ANY)?;
        let entries: Vec<(Key, Value)> = read
            .filter_map(|(key, value)| {
                let key = bytemuck::try_pod_read_unaligned(&key).ok()?;
                Some((key, bytemuck::try_pod_read_unaligned(&value).ok()?))
            })
            .collect();
        // The kernel ends early only where the next bucket does not fit, and none is nearly that long.
        if entries.len() <= batch as usize / 2 || batch >= most {
            return Ok(entries);
        }
        batch = (batch * 2).min(most);
    }
}

/// One record of each CPU, from the only element of a map.
pub(crate) fn by_cpu<Value: Pod + Zeroable>(
    map: &MapHandle,
    name: &'static str,
) -> Result<Vec<Value>, ObjectError> {
    let records = map.lookup_percpu(&[0; 4], MapFlags::ANY).map_err(bpf("reading the counters"))?;
    let records = records.unwrap_or_default();
    let read = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned(bytes);
    records.iter().map(read).collect::<Result<_, _>>().map_err(|_| ObjectError::Mismatch(name))
}
