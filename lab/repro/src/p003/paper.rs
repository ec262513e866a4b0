//! What the paper says, as data. Its figures 4 and 5 have no numbers in the text: of them there are the
//! statements.

/// A column of table 1: RUBiS.
pub struct Servers {
    /// The bonus, in ns of vruntime; 0: CFS.
    pub bonus_ns: u64,
    /// Completed sessions.
    pub sessions: f64,
    /// Response time.
    pub response_ms: f64,
}

/// Table 1.
pub const TABLE_1: [Servers; 4] = [
    Servers { bonus_ns: 0, sessions: 230.0, response_ms: 62_556.0 },
    Servers { bonus_ns: 1_000_000, sessions: 259.0, response_ms: 48_760.0 },
    Servers { bonus_ns: 10_000_000, sessions: 301.0, response_ms: 43_090.0 },
    Servers { bonus_ns: 100_000_000, sessions: 265.0, response_ms: 53_230.0 },
];

/// Table 4: the L2 cache of each pair of cores, ...
pub const L2_KIB: u64 = 3 << 10;
/// ... what a line of 64 bytes from there takes, ...
pub const L2_NS: f64 = 5.6;
/// ... and what one from memory takes.
pub const MEMORY_NS: f64 = 74.4;
/// Lines of a KiB.
pub const LINES: f64 = 16.0;

/// Section 4.2: "the average additional vruntime, which we measure simultaneously during the experiment,
/// is 33M": about so long did a thread run at a stretch. The next multiple of a tick.
pub const SLICE_US: u64 = 32_000;

/// Figure 4: multiples of what ran last, ...
pub const MULTIPLES: [u64; 5] = [1, 2, 3, 4, 5];
/// ... and ns of vruntime.
pub const TIMES_NS: [(&str, u64); 5] =
    [("1K", 1_000), ("10K", 10_000), ("100K", 100_000), ("1M", 1_000_000), ("10M", 10_000_000)];
/// "bonus_value below 1M vruntime is too small."
pub const ENOUGH_NS: u64 = 1_000_000;

/// Figure 5: blocks, in MiB.
pub const BLOCKS_MIB: [u64; 9] = [1, 2, 4, 6, 8, 10, 12, 14, 16];
/// "Case 3 is advantageous only when the memory block is less than 6MB."
pub const EQUAL_FROM_MIB: u64 = 6;
/// The bonus there.
pub const GROUPS_BONUS_NS: u64 = 50_000_000;
