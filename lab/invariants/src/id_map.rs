//! Hash maps keyed by the number of a task or a CPU. No adversary chooses these numbers, so a
//! multiplication is hash enough.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a `u32`.
pub(crate) type IdMap<T> = HashMap<u32, T, BuildHasherDefault<IdHasher>>;

/// Spreads a number over all bits.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

/// 2^64 by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u32(&mut self, id: u32) {
        let product = u64::from(id).wrapping_mul(GOLDEN);
        // The table uses the lower bits, but the upper bits of a product are mixed better.
        self.0 = product ^ product >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(self.0 as u32 ^ u32::from(*byte)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_hash_to_different_slots() {
        let place = |id: u32| {
            let mut hasher = IdHasher::default();
            hasher.write_u32(id);
            hasher.finish() % 1024
        };
        let mut places: Vec<u64> = (0..512).map(|id| place(1 << 30 | id)).collect();
        places.sort_unstable();
        places.dedup();
        // At random, 403 of them would be different.
        assert!(places.len() > 350, "{}", places.len());
    }
}
