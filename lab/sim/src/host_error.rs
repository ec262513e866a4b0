//! Why a scheduler could not be hosted.

/// Why a scheduler could not be hosted.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is no room for its copy.
    #[error("a copy of scheduler {name}: {source}; free memory or file descriptors")]
    Copy {
        /// The scheduler.
        name: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The machine's topology does not fit the scheduler.
    #[error(transparent)]
    Topology(#[from] evenkeel_keel::TopologyError),
    /// It is not a shared object for this simulator.
    #[error("scheduler {name}: {source}; build it against lab/sim/native/kernel.h")]
    Load {
        /// The scheduler.
        name: String,
        /// What the loader says.
        source: libloading::Error,
    },
}
