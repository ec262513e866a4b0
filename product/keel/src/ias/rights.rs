//! What an address space may be given, by the user that asks. An ordinary user sets how long others
//! wait for a program, so there are limits; root may set what it likes.

use super::aggregation::Aggregation;
use super::error::IasError;

/// An ordinary user's largest bonus: 25 slices by default.
pub const USER_BONUS_NS: u64 = 100_000_000;
/// An ordinary user's largest multiple of the last run.
pub const USER_TIMES: u64 = 25;
/// For so long, siblings of an ordinary user's program let all other tasks of a CPU wait together.
pub const USER_TURN_NS: u64 = 1_000_000_000;

/// On behalf of which user an address space is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Root, or the keel by its configuration or its helper.
    Root,
    /// The ordinary user of this number.
    User(u32),
}

impl Rights {
    pub(crate) fn of(uid: u32) -> Self {
        if uid == 0 { Self::Root } else { Self::User(uid) }
    }

    /// The ordinary user.
    pub(crate) fn user(self) -> Option<u32> {
        match self {
            Self::Root => None,
            Self::User(uid) => Some(uid),
        }
    }

    /// The largest bonus, and for how long siblings let others wait, in ns.
    pub(crate) fn limits_ns(self) -> (u64, u64) {
        match self {
            Self::Root => (u64::MAX, u64::MAX),
            Self::User(_) => (USER_BONUS_NS, USER_TURN_NS),
        }
    }

    /// Refuses a bonus that is too large for this user.
    pub(crate) fn check(self, how: &Aggregation) -> Result<(), IasError> {
        let (most, unit) = if how.bonus_type == 0 {
            (USER_BONUS_NS, "ns")
        } else {
            (USER_TIMES, "times the last run")
        };
        if self == Self::Root || how.agg == 0 || how.bonus_value <= most {
            return Ok(());
        }
        Err(IasError::TooLarge { value: how.bonus_value, most, unit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Rights = Rights::User(1000);

    #[test]
    fn ordinary_users_have_a_largest_bonus() {
        let how = |bonus_type, bonus_value| Aggregation {
            pid: 7,
            agg: 1,
            bonus_type,
            bonus_value,
            limit: 0,
        };
        for (kind, most) in [(0, USER_BONUS_NS), (1, USER_TIMES)] {
            assert!(USER.check(&how(kind, most)).is_ok());
            assert!(USER.check(&how(kind, most + 1)).is_err());
            assert!(Rights::of(0).check(&how(kind, u64::MAX)).is_ok());
            assert!(USER.check(&Aggregation { agg: 0, ..how(kind, u64::MAX) }).is_ok());
        }
        let raw = how(0, 5).raw(Rights::of(1000));
        assert_eq!((raw.bonus_max_ns, raw.turn_max_ns), (USER_BONUS_NS, USER_TURN_NS));
        let raw = how(0, 5).raw(Rights::Root);
        assert_eq!((raw.bonus_max_ns, raw.turn_max_ns), (u64::MAX, u64::MAX));
    }
}
