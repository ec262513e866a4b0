//! What can fail, and what the loaders of BPF objects (`accounting`, `waiting`, `barriers`) need.

use libbpf_rs::{ErrorKind, MapCore, MapHandle, Object};

use crate::support::Unsupported;

/// Why accounting could not be started or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not possible on this kernel or for this user.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// libbpf or the kernel refused.
    #[error("cbinfo: {what}: {source}")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// The accounts of the CPUs could not be mapped into memory.
    #[error("cbinfo: cannot map the accounts of the CPUs: {0}")]
    Map(std::io::Error),
    /// The BPF object lacks a part: it was built from another version of the source.
    #[error("cbinfo: the BPF object has no {0}: rebuild evenkeel")]
    Missing(&'static str),
    /// The tasks could not be listed.
    #[error("cbinfo: cannot read the list of tasks: {0}")]
    Tasks(std::io::Error),
    /// No clock may interrupt the CPUs to look at their tasks.
    #[error(
        "cbinfo: no perf event can be opened to see what tasks do: {0}; allow perf_event_open in the \
         container's seccomp profile, with CAP_PERFMON"
    )]
    Samples(std::io::Error),
}

impl Error {
    /// Whether the kernel, or the container's seccomp profile, refuses it to this process alone.
    pub fn is_privilege(&self) -> bool {
        match self {
            Self::Unsupported(why) => matches!(why, Unsupported::NoPrivilege),
            Self::Bpf { source, .. } => source.kind() == ErrorKind::PermissionDenied,
            Self::Map(source) | Self::Tasks(source) | Self::Samples(source) => {
                source.kind() == std::io::ErrorKind::PermissionDenied
            }
            Self::Missing(_) => false,
        }
    }
}

pub(crate) fn bpf_error(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { what, source }
}

/// The bytes of the BPF object, aligned as an ELF file must be.
#[repr(align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub(crate) T);

pub(crate) fn find_map(object: &Object, name: &'static str) -> Result<MapHandle, Error> {
    let map = object.maps().find(|map| map.name() == name).ok_or(Error::Missing(name))?;
    MapHandle::try_from(&map).map_err(bpf_error("opening a map"))
}
