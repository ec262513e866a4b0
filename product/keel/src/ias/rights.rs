//! What an address space may be given, by the user that asks. An ordinary user sets how long others
//! wait for a program, so there are limits; root may set what it likes.

/// An ordinary user's largest bonus: 25 slices by default.
pub const USER_BONUS_NS: u64 = 100_000_000;
/// An ordinary user's largest multiple of the last run.
pub const USER_TIMES: u64 = 25;
/// How long siblings of an ordinary user's program let all other tasks of a CPU wait together, at most.
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
}
