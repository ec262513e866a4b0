//! How strongly the threads of an address space aggregate, in the paper's words: the arguments of
//! `set_ias_agg`, read from a request and laid out for the keel.

use evenkeel_control::{Request, aggregation_request};
use serde::{Deserialize, Serialize};

use super::error::IasError;
use super::rights::Rights;
use crate::layout::RawSpace;

/// The arguments of `set_ias_agg`, in the paper's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aggregation {
    /// A process; what is set holds for its address space.
    pub pid: u32,
    /// 1: its threads are aggregated; 0: not.
    pub agg: u32,
    /// 0: `bonus_value` is in ns of vruntime; 1: it multiplies how long the last task ran on the CPU.
    pub bonus_type: u32,
    /// How much.
    pub bonus_value: u64,
    /// Preferred at most so often in a row on a CPU; 0: no limit.
    pub limit: u64,
}

/// The kernel's PID_MAX_LIMIT: larger ones are not even asked for.
const MAX_PID: u32 = 1 << 22;

impl Aggregation {
    /// By the arguments' names, as text.
    ///
    /// # Errors
    /// One is missing, or is no number that it may be.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Result<Self, IasError> {
        fn number<T: std::str::FromStr>(
            name: &'static str,
            value: Option<String>,
            expected: &'static str,
            fits: impl Fn(&T) -> bool,
        ) -> Result<T, IasError> {
            let value = value.unwrap_or_default();
            let number = value.parse().ok().filter(fits);
            number.ok_or(IasError::Value { name, value, expected })
        }
        const MOST: &str = "a whole number from 0 to 18446744073709551615";
        const LIMIT: &str = "a whole number from 0 (no limit) to 18446744073709551615";
        Ok(Self {
            pid: number("pid", get("pid"), "a process's number, from 1 to 4194304", |pid| {
                (1..=MAX_PID).contains(pid)
            })?,
            agg: number("agg", get("agg"), "0 (off) or 1 (on)", |agg| *agg <= 1)?,
            bonus_type: number(
                "bonus_type",
                get("bonus_type"),
                "0 (ns of vruntime) or 1 (times what ran last)",
                |kind| *kind <= 1,
            )?,
            bonus_value: number("bonus_value", get("bonus_value"), MOST, |_| true)?,
            limit: number("limit", get("limit"), LIMIT, |_| true)?,
        })
    }

    /// The call, for [`evenkeel_control::ask`] and the keel's control socket.
    pub fn request(&self) -> Request {
        aggregation_request(self.pid, self.agg, self.bonus_type, self.bonus_value, self.limit)
    }

    /// The record of `bpf/keel/intf.h`, for hosts of the keel outside of the kernel.
    pub fn record(&self, rights: Rights) -> Vec<u8> {
        bytemuck::bytes_of(&self.raw(rights)).to_vec()
    }

    pub(super) fn raw(&self, rights: Rights) -> RawSpace {
        let (bonus_max_ns, turn_max_ns) = rights.limits_ns();
        RawSpace {
            bonus_value: self.bonus_value,
            bonus_max_ns,
            turn_max_ns,
            limit: self.limit,
            bonus_type: self.bonus_type,
            agg: self.agg,
            process: self.pid,
            pad: 0,
        }
    }
}
