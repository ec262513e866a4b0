//! How strongly the threads of an address space aggregate, in the paper's words: the arguments of
//! `set_ias_agg`, read from a request and laid out for the keel.

use evenkeel_control::{Request, aggregation_request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::IasError;
use super::rights::{Rights, USER_BONUS_NS, USER_TIMES};
use crate::layout::RawSpace;

/// The arguments of `set_ias_agg`, in the paper's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

    /// Refuses a bonus that is too large for this user.
    pub(super) fn check(&self, rights: Rights) -> Result<(), IasError> {
        let (most, unit) = if self.bonus_type == 0 {
            (USER_BONUS_NS, "ns")
        } else {
            (USER_TIMES, "times the last run")
        };
        if rights == Rights::Root || self.agg == 0 || self.bonus_value <= most {
            return Ok(());
        }
        Err(IasError::TooLarge { value: self.bonus_value, most, unit })
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

#[cfg(test)]
mod tests {
    use super::super::rights::USER_TURN_NS;
    use super::*;

    #[test]
    fn ordinary_users_have_a_largest_bonus() {
        let how = |bonus_type, bonus_value| Aggregation {
            pid: 7,
            agg: 1,
            bonus_type,
            bonus_value,
            limit: 0,
        };
        let user = Rights::of(1000);
        for (kind, most) in [(0, USER_BONUS_NS), (1, USER_TIMES)] {
            assert!(how(kind, most).check(user).is_ok());
            assert!(how(kind, most + 1).check(user).is_err());
            assert!(how(kind, u64::MAX).check(Rights::of(0)).is_ok());
            assert!(Aggregation { agg: 0, ..how(kind, u64::MAX) }.check(user).is_ok());
        }
        let raw = how(0, 5).raw(user);
        assert_eq!((raw.bonus_max_ns, raw.turn_max_ns), (USER_BONUS_NS, USER_TURN_NS));
        let raw = how(0, 5).raw(Rights::Root);
        assert_eq!((raw.bonus_max_ns, raw.turn_max_ns), (u64::MAX, u64::MAX));
    }
}
