//! The share that each user has of a service: connections, unread answers, and time. A user has a
//! twentieth of the service's time in the long run, and all users together a fifth, with a reserve for
//! bursts. A user that has used up its time is not refused: its requests wait. Root has no limits.
//!
//! The rule for time is that of a leaky bucket: each request moves the moment at which its user has paid
//! for it by a multiple of the time that it took; requests are answered while that moment is at most the
//! reserve ahead. All users together have such a moment, too, since one user may own thousands of user
//! numbers (`/etc/subuid`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Connections of one user.
pub(crate) const MAX_PER_USER: usize = 16;
/// Unread answers of one user, in bytes: beyond that, connections that are not read are closed.
const MAX_UNREAD_BYTES: usize = 1024 * 1024;
/// One user: a twentieth of the time.
const PRICE_PER_USER: u32 = 20;
/// All users together: a fifth of the time.
const PRICE_OF_ALL: u32 = 5;
/// How far ahead of its payment a user may be: a burst of 200 ms of the service's time.
const RESERVE: Duration = Duration::from_secs(4);
/// Users that are remembered; beyond that, those without a connection are forgotten once they have paid.
const MAX_REMEMBERED: usize = 1024;

/// What a user has of a service, and what it was refused: the answer to the request `connections` has
/// one for each user (for users but root, only their own).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The user.
    pub user: u32,
    /// Its connections now.
    pub connections: usize,
    /// How many it may have; `None`: no limit.
    pub most_connections: Option<usize>,
    /// Connections that were refused, or closed for another user.
    pub refused: u64,
    /// Requests that waited because the user had used up its time.
    pub delayed: u64,
}

#[derive(Debug, Default)]
struct User {
    connections: usize,
    unread_bytes: usize,
    refused: u64,
    delayed: u64,
    paid_at: Option<Instant>,
}

/// What all users have.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    users: HashMap<u32, User>,
    paid_at: Option<Instant>,
}

impl Shares {
    fn user(&mut self, uid: u32, now: Instant) -> &mut User {
        if self.users.len() >= MAX_REMEMBERED {
            let is_active = |user: &User| user.connections > 0 || user.paid_at > Some(now);
            self.users.retain(|_, user| is_active(user));
        }
        self.users.entry(uid).or_default()
    }

    /// Counts a new connection.
    pub fn open(&mut self, uid: u32, now: Instant) {
        self.user(uid, now).connections += 1;
    }

    /// Counts the end of a connection.
    pub fn close(&mut self, uid: u32, unread_bytes: usize) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.connections = user.connections.saturating_sub(1);
            user.unread_bytes = user.unread_bytes.saturating_sub(unread_bytes);
        }
    }

    /// Counts a connection that was refused, or closed for another user.
    pub fn refuse(&mut self, uid: u32, now: Instant) {
        self.user(uid, now).refused += 1;
    }

    /// Counts a request that has to wait.
    pub fn delay(&mut self, uid: u32, now: Instant) {
        self.user(uid, now).delayed += 1;
    }

    /// Replaces the number of unread bytes of one connection.
    pub fn note_unread(&mut self, uid: u32, before: usize, after: usize) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.unread_bytes = user.unread_bytes.saturating_sub(before) + after;
        }
    }

    /// Whether a user has too many unread answers.
    pub fn is_behind(&self, uid: u32) -> bool {
        let is_over = |user: &User| user.unread_bytes > MAX_UNREAD_BYTES;
        uid != 0 && self.users.get(&uid).is_some_and(is_over)
    }

    /// The users that have.
    pub fn behind(&self) -> Vec<u32> {
        self.users.keys().copied().filter(|uid| self.is_behind(*uid)).collect()
    }

    /// How many connections a user has.
    pub fn connections(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, |user| user.connections)
    }

    /// How many connections all users but root have.
    pub fn connections_of_users(&self) -> usize {
        let users = self.users.iter().filter(|(uid, _)| **uid != 0);
        users.map(|(_, user)| user.connections).sum()
    }

    /// The user but root with most connections.
    pub fn greediest(&self) -> Option<u32> {
        let users = self.users.iter().filter(|(uid, _)| **uid != 0);
        users.max_by_key(|(uid, user)| (user.connections, **uid)).map(|(uid, _)| *uid)
    }

    /// How long the next request of a user has to wait; zero: it may be answered now.
    pub fn wait(&self, uid: u32, now: Instant) -> Duration {
        if uid == 0 {
            return Duration::ZERO;
        }
        let paid_at = self.users.get(&uid).and_then(|user| user.paid_at).max(self.paid_at);
        paid_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now + RESERVE))
    }

    /// Notes that a request of a user took this long.
    pub fn charge(&mut self, uid: u32, now: Instant, took: Duration) {
        if uid == 0 {
            return;
        }
        let later =
            |paid_at: Option<Instant>, price| paid_at.unwrap_or(now).max(now) + took * price;
        let user = self.user(uid, now);
        user.paid_at = Some(later(user.paid_at, PRICE_PER_USER));
        self.paid_at = Some(later(self.paid_at, PRICE_OF_ALL));
    }

    /// The shares that a user may see: its own, and for root all.
    pub fn list(&self, peer_uid: u32) -> Vec<Share> {
        let seen = self.users.iter().filter(|(uid, _)| peer_uid == 0 || **uid == peer_uid);
        let share = |(uid, user): (&u32, &User)| Share {
            user: *uid,
            connections: user.connections,
            most_connections: (*uid != 0).then_some(MAX_PER_USER),
            refused: user.refused,
            delayed: user.delayed,
        };
        let mut shares: Vec<Share> = seen.map(share).collect();
        shares.sort_by_key(|share| share.user);
        shares
    }
}

/// The time that this process has run: a request may have work done by another thread, too.
pub(crate) fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The time that users get in `seconds` if each asks as often as it may, 1 ms each request.
    fn taken_in(seconds: u32, users: &[u32]) -> HashMap<u32, Duration> {
        let mut shares = Shares::default();
        let (start, mut taken) = (Instant::now(), HashMap::new());
        let mut now = start;
        while now < start + Duration::from_secs(seconds.into()) {
            for uid in users {
                if shares.wait(*uid, now).is_zero() {
                    shares.charge(*uid, now, MS);
                    *taken.entry(*uid).or_default() += MS;
                }
            }
            now += 2 * MS;
        }
        taken
    }

    #[test]
    fn a_user_gets_its_share_of_the_time_and_no_more() {
        let taken = taken_in(100, &[7]);
        // A twentieth of 100 s, and the reserve.
        assert!((5_000..=5_210).contains(&taken[&7].as_millis()), "{taken:?}");
    }

    #[test]
    fn many_users_together_leave_the_service_its_time() {
        let users: Vec<u32> = (1..=50).collect();
        let taken = taken_in(100, &users);
        let all: Duration = taken.values().sum();
        // A fifth, and the reserve of all; no user gets more than its own share.
        assert!((20_000..=20_860).contains(&all.as_millis()), "{all:?}");
        assert!(taken.values().all(|taken| taken.as_millis() <= 5_210), "{taken:?}");
    }

    #[test]
    fn root_and_users_that_ask_rarely_never_wait() {
        let mut shares = Shares::default();
        let now = Instant::now();
        for _ in 0..10_000 {
            assert!(shares.wait(0, now).is_zero());
            shares.charge(0, now, MS);
        }
        for second in 0..1000 {
            let now = now + Duration::from_secs(second);
            assert!(shares.wait(7, now).is_zero());
            shares.charge(7, now, 40 * MS);
        }
    }

    #[test]
    fn what_is_remembered_of_users_is_bounded() {
        let mut shares = Shares::default();
        let start = Instant::now();
        for uid in 1..=100_000 {
            shares.charge(uid, start + MS * uid, MS / 1000);
        }
        assert!(shares.users.len() <= MAX_REMEMBERED, "{}", shares.users.len());
    }
}
