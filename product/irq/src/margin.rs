//! What counts as a clear gain of a move, and as a consumer. Pure.

/// The largest share must become smaller by this much of the interval, in percent.
pub(crate) const MARGIN_PCT: u64 = 2;
/// And by this part of itself.
const MARGIN_PART: u64 = 8;
/// At least so much of what a source brings is received on the CPU that counts as its consumer, in
/// percent.
pub(crate) const CONSUMER_PCT: u64 = 75;

/// By how much the largest share must become smaller, in ns.
pub(crate) fn margin_ns(interval_ns: u64, largest_ns: u64) -> u64 {
    (interval_ns / 100 * MARGIN_PCT).max(largest_ns / MARGIN_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_share_must_become_smaller_by_more() {
        assert_eq!(margin_ns(1000, 100), 20);
        assert_eq!(margin_ns(1000, 800), 100);
    }
}
