//! The two calls of the IAS scheduler (Yamada, Kusakabe, section 3) for Rust programs; `evenkeel.h` has
//! them for C programs. They ask the running keel (`evenkeel sched --order ias`).
//!
//! ```no_run
//! # fn main() -> Result<(), evenkeel_control::AskError> {
//! // Prefer siblings that are behind by at most 3 times the last run.
//! evenkeel_control::Ias::default().set_ias_agg(std::process::id(), 1, 1, 3, 0)?;
//! # Ok(())
//! # }
//! ```

use std::path::PathBuf;

use crate::client::{AskError, ask};
use crate::message::Request;

/// The socket of the machine's keel.
pub const KEEL_SOCKET: &str = "/run/evenkeel/keel.sock";

/// The request of [`Ias::set_ias_agg`].
pub fn aggregation_request(
    pid: u32,
    agg: u32,
    bonus_type: u32,
    bonus_value: u64,
    limit: u64,
) -> Request {
    Request::new("ias_agg")
        .with("pid", pid)
        .with("agg", agg)
        .with("bonus_type", bonus_type)
        .with("bonus_value", bonus_value)
        .with("limit", limit)
}

/// The request of [`Ias::set_ias_alloc`].
pub fn allocation_request(roles: &[u16]) -> Request {
    Request::new("ias_alloc").with("roles", roles.to_vec())
}

/// A running keel.
#[derive(Debug, Clone)]
pub struct Ias {
    socket: PathBuf,
}

impl Default for Ias {
    fn default() -> Self {
        Self::at(KEEL_SOCKET)
    }
}

impl Ias {
    /// The keel that listens at `socket`.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// Aggregates the threads of process `pid` (`agg` 1), or ends that (`agg` 0). The bonus says how far
    /// a sibling may be behind and still be preferred: `bonus_type` 0: `bonus_value` ns of vruntime;
    /// 1: `bonus_value` times the last run on the CPU. On a CPU, siblings are preferred at most `limit`
    /// times in a row; 0: no limit.
    ///
    /// # Errors
    /// All of [`AskError`]: no keel runs, or it refuses. Nothing is changed then.
    pub fn set_ias_agg(
        &self,
        pid: u32,
        agg: u32,
        bonus_type: u32,
        bonus_value: u64,
        limit: u64,
    ) -> Result<(), AskError> {
        let request = aggregation_request(pid, agg, bonus_type, bonus_value, limit);
        ask(&self.socket, &request).map(drop)
    }

    /// Sets the groups of CPUs. `roles` has one number for each online CPU: 2k for the master of group
    /// k, 2k + 1 for a slave of it. Root only.
    ///
    /// # Errors
    /// All of [`AskError`]: no keel runs, or it refuses. Nothing is changed then.
    pub fn set_ias_alloc(&self, roles: &[u16]) -> Result<(), AskError> {
        ask(&self.socket, &allocation_request(roles)).map(drop)
    }
}
