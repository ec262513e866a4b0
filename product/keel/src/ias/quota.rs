//! How many address spaces users may have aggregate: the table is the whole machine's, so that no user
//! can fill it for others, and all users together leave room for root and the configuration.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::IasError;
use crate::layout::MAX_SPACES;

/// The most address spaces of one user.
pub const MAX_PER_USER: usize = 64;
/// The most address spaces of all users but root together.
const MAX_OF_USERS: usize = MAX_SPACES * 3 / 4;
/// Users with refusals that are counted.
const MAX_COUNTED: usize = 1024;

/// What a user has, and how often it was refused more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UserSpaces {
    /// The user.
    pub user: u32,
    /// Its address spaces that aggregate now: by its own wish, by the configuration or by the helper.
    pub spaces: usize,
    /// How many it may have.
    pub most_spaces: usize,
    /// How many more were refused.
    pub refused: u64,
}

/// What was refused, by user.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    refused: BTreeMap<u32, u64>,
}

/// Whether user `uid` may have one more address space; `owners` has the user of each that a user other
/// than root has now.
pub(crate) fn check_room(
    uid: u32,
    owners: impl Iterator<Item = u32> + Clone,
) -> Result<(), IasError> {
    if uid == 0 {
        Ok(())
    } else if owners.clone().filter(|owner| *owner == uid).count() >= MAX_PER_USER {
        Err(IasError::TooManyOfUser { most: MAX_PER_USER })
    } else if owners.count() >= MAX_OF_USERS {
        Err(IasError::TooManyOfUsers { most: MAX_OF_USERS })
    } else {
        Ok(())
    }
}

impl Quotas {
    /// The same; a refusal is counted.
    pub fn check(
        &mut self,
        uid: u32,
        owners: impl Iterator<Item = u32> + Clone,
    ) -> Result<(), IasError> {
        let result = check_room(uid, owners);
        let is_counted = self.refused.len() < MAX_COUNTED || self.refused.contains_key(&uid);
        if result.is_err() && is_counted {
            *self.refused.entry(uid).or_default() += 1;
        }
        result
    }

    /// What users have.
    pub fn list(&self, owners: impl Iterator<Item = u32>) -> Vec<UserSpaces> {
        let mut spaces: BTreeMap<u32, usize> = self.refused.keys().map(|uid| (*uid, 0)).collect();
        owners.for_each(|owner| *spaces.entry(owner).or_default() += 1);
        let list = spaces.into_iter().map(|(user, spaces)| UserSpaces {
            user,
            spaces,
            most_spaces: MAX_PER_USER,
            refused: self.refused.get(&user).copied().unwrap_or_default(),
        });
        list.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_fills_the_table_for_others() {
        let mut quotas = Quotas::default();
        let mut owners = Vec::new();
        // A user that asks for as many as the table has, and then others, until the users' part is full.
        for uid in 1..=20 {
            for _ in 0..MAX_SPACES {
                if quotas.check(uid, owners.iter().copied()).is_ok() {
                    owners.push(uid);
                }
            }
        }
        assert_eq!(owners.len(), MAX_OF_USERS);
        for uid in 1..=MAX_OF_USERS / MAX_PER_USER {
            let of_user = owners.iter().filter(|owner| **owner as usize == uid).count();
            assert_eq!(of_user, MAX_PER_USER, "user {uid}");
        }
        let first = quotas.check(1, owners.iter().copied()).unwrap_err().to_string();
        assert!(first.contains("64 address spaces") && first.contains("--off"), "{first}");
        let last = quotas.check(20, owners.iter().copied()).unwrap_err().to_string();
        assert!(last.contains("all users together"), "{last}");
        assert!(quotas.check(0, owners.iter().copied()).is_ok());
        let list = quotas.list(owners.iter().copied());
        assert_eq!((list[0].user, list[0].spaces), (1, MAX_PER_USER));
        assert_eq!(list[0].refused, (MAX_SPACES - MAX_PER_USER) as u64 + 1);
    }
}
