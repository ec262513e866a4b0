//! Why packets are not steered: what steering and the support check of its programs share.

use crate::attachment::AttachError;
use crate::auto::AutoError;
use crate::cgroup::CgroupError;
use crate::flow_steering::FlowSteeringError;
use crate::hold::HoldError;
use crate::object::ObjectError;

/// Why packets are not steered.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// The kernel does not tell when a thread receives.
    #[error(
        "this kernel has no tracepoint {0}, by which consumers are found: run Linux 6.3 or newer"
    )]
    NoHook(&'static str),
    /// The objects are not in the kernel.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The program is not on the device.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Connections cannot be judged.
    #[error(transparent)]
    Auto(#[from] AutoError),
    /// Threads are not held.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The kernel does not steer in our place.
    #[error(transparent)]
    FlowSteering(#[from] FlowSteeringError),
    /// The program that sends hints is not on the cgroup of all processes.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}
