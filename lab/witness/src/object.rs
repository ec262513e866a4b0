//! What both BPF objects of this crate share: their bytes' alignment, and their errors.

/// Why there is no witness, or it saw only a part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libbpf or the kernel refused.
    #[error("witness: {what}: {source}")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// A part of the object that this version needs is not in it.
    #[error("witness: the BPF object has no {0}: rebuild evenkeel")]
    Missing(&'static str),
    /// The stream has gaps, so no rule can be judged.
    #[error(
        "witness: the buffer was full for {lost} events beside {seen} that were seen, so no rule can be \
         judged: use a larger buffer or read it more often"
    )]
    Lost {
        /// Events that found the buffer full.
        lost: u64,
        /// Events that were passed on.
        seen: u64,
    },
}

pub(crate) fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { what, source }
}

/// An object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);
