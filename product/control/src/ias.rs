//! The two calls of the IAS scheduler (Yamada, Kusakabe, section 3) for Rust programs, as `evenkeel.h` has
//! them for those in C: they ask the keel that runs (`evenkeel sched --order ias`).
//!
//! ```no_run
//! # fn main() -> Result<(), evenkeel_control::AskError> {
//! // My threads run ahead by 3 times what ran last.
//! evenkeel_control::Ias::default().set_ias_agg(std::process::id(), 1, 1, 3, 0)?;
//! # Ok(())
//! # }
//! ```

use std::path::PathBuf;

use crate::client::{AskError, ask};
use crate::message::Request;

/// Where the machine's keel listens.
pub const KEEL_SOCKET: &str = "/run/evenkeel/keel.sock";

/// What [`Ias::set_ias_agg`] asks.
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

/// What [`Ias::set_ias_alloc`] asks.
pub fn allocation_request(roles: &[u16]) -> Request {
    Request::new("ias_alloc").with("roles", roles.to_vec())
}

/// A keel that runs.
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
    /// The one that listens there.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The threads of the process `pid` are aggregated (`agg` 1) or not (0). `bonus_type` 0: `bonus_value`
    /// is in ns of vruntime; 1: it multiplies what ran last on the CPU, in vruntime. They are preferred at most `limit`
    /// times in a row on a CPU; 0: no limit.
    ///
    /// # Errors
    /// No keel runs, or it refuses; nothing is changed then.
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

    /// One number for each CPU that is online: 2k for the master of group k, 2k + 1 for a slave of it. Root
    /// only.
    ///
    /// # Errors
    /// No keel runs, or it refuses; nothing is changed then.
    pub fn set_ias_alloc(&self, roles: &[u16]) -> Result<(), AskError> {
        ask(&self.socket, &allocation_request(roles)).map(drop)
    }
}
