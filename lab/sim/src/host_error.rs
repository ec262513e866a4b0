//! Why a scheduler could not be hosted.

/// Why a scheduler could not be hosted.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No room for its copy.
    #[error("a copy of scheduler {name}: {source}; free memory or file descriptors")]
    Copy {
        /// Which.
        name: String,
        /// The system's word.
        source: std::io::Error,
    },
    /// It does not fit the machine.
    #[error(transparent)]
    Topology(#[from] evenkeel_keel::TopologyError),
    /// It is no shared object for this simulator.
    #[error("scheduler {name}: {source}; build it against lab/sim/native/kernel.h")]
    Load {
        /// Which.
        name: String,
        /// The loader's word.
        source: libloading::Error,
    },
}
