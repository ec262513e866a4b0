//! The page that the balancer and the programs under it share: its layout. Every field is an atomic that
//! one side writes: the head and the weights by the balancer, the state, the rows and the laps by the
//! programs' threads.
//!
//! The page is an anonymous file that cannot change its size (sealed), so neither side can be killed by
//! the other through it. The balancer believes nothing in it but plain numbers.

mod library;
mod owner;

use std::ffi::CStr;
use std::mem::size_of;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

pub use library::{Slot, Weights, attach, claim_slot, now_ns, release_slot};
pub use owner::{Effect, PageError, PageOwner, Report, Site, SiteLaps, ThreadReport};

/// CPUs from this number on have no weight.
pub const MAX_CPUS: usize = 1024;

/// Threads that can be told apart at one time; more are divided for, but not reported.
pub const MAX_ROWS: usize = 1024;

/// Regions of a thread, by their places in the program, that are timed; further ones are not.
pub const MAX_SITES: usize = 32;

/// "evnkeel" and the version of the layout.
const MAGIC: u64 = 0x6576_6e6b_6565_6c02;

/// The name of the anonymous file, as /proc shows it.
const FILE_NAME: &CStr = c"evenkeel-shares";

/// The whole page.
#[repr(C, align(64))]
pub struct Page {
    magic: AtomicU64,
    size: AtomicU64,
    /// Names this page: a process identifier may be reused, and another page stand at the same address.
    token: AtomicU64,
    /// Odd while the weights are being written.
    sequence: AtomicU64,
    /// When the balancer was last alive: ns of `CLOCK_MONOTONIC`; 0 once it has ended.
    heartbeat_ns: AtomicU64,
    /// For how long the weights hold without another heartbeat.
    patience_ns: AtomicU64,
    /// By CPU number; 0 where the balancer gives none.
    weights: [AtomicU16; MAX_CPUS],
    /// Bits of [`flag`], set by the library and never cleared.
    pub flags: AtomicU32,
    /// Loops that threads divided before they ended.
    past_loops_divided: AtomicU64,
    /// Regions that threads forked before they ended.
    past_regions: AtomicU64,
    /// One for each thread that runs parallel regions.
    rows: [Row; MAX_ROWS],
    /// The laps of the thread that has the row of the same number.
    laps: [Laps; MAX_ROWS],
}

/// What the library says of the programs as a whole.
pub mod flag {
    /// A process has mapped the page.
    pub const ATTACHED: u32 = 1;
    /// A process has LLVM's OpenMP runtime.
    pub const RUNTIME: u32 = 1 << 1;
    /// The runtime accepted the library as its tool: teams are seen.
    pub const TOOL: u32 = 1 << 2;
    /// Another tool has the runtime's tool interface, or the runtime has none: nothing is divided.
    pub const TOOL_REFUSED: u32 = 1 << 3;
    /// A loop of an eligible kind was begun.
    pub const CALLED: u32 = 1 << 4;
    /// A team was larger than `MAX_TEAM`.
    pub const TEAM_TOO_LARGE: u32 = 1 << 5;
    /// More teams were active at once than the library has room for.
    pub const TOO_MANY_TEAMS: u32 = 1 << 6;
    /// A second OpenMP runtime came in the same process: only the first one's loops are divided.
    pub const SECOND_RUNTIME: u32 = 1 << 7;
}

/// One thread of a program. Only the thread itself writes it, once it has claimed it.
#[repr(C, align(64))]
pub struct Row {
    /// 0: the row is free.
    tid: AtomicU32,
    /// The thread's process.
    pid: AtomicU32,
    /// The thread that forked the team which this thread was last in; its own if it forked it itself.
    pub primary_tid: AtomicU32,
    /// Its number in that team.
    pub number: AtomicU32,
    /// How many threads that team has.
    pub team_size: AtomicU32,
    /// Regions with more than one thread that it has forked.
    pub regions: AtomicU64,
    /// Loops that were divided for it.
    pub loops_divided: AtomicU64,
}

/// The laps of a thread that forks regions: a lap lasts from the fork of a region to the fork of the
/// thread's next one, nested ones left out. Laps are told apart by the region with which they begin,
/// and by whether its loops were divided by weights that differ.
#[repr(C, align(64))]
pub struct Laps {
    equal: [Lap; MAX_SITES],
    divided: [Lap; MAX_SITES],
}

/// The laps that began at one place in the program. Only the thread itself writes it.
#[repr(C)]
struct Lap {
    /// The place: the address of the code that forks the region; 0: free.
    site: AtomicU64,
    /// How many laps have ended, ...
    count: AtomicU64,
    /// ... and how long all of them took, in ns.
    total_ns: AtomicU64,
}

/// Of the mapping: the page, rounded to the machine's pages (4 KiB; larger ones round up by themselves).
const PAGE_BYTES: usize = size_of::<Page>().next_multiple_of(4096);

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    #[test]
    fn what_different_sides_write_lies_in_different_lines_of_the_cache() {
        assert_eq!(size_of::<Row>(), 64);
        assert_eq!(align_of::<Page>(), 64);
        assert_eq!(offset_of!(Page, rows) % 64, 0);
        assert_eq!((offset_of!(Page, laps) % 64, size_of::<Laps>() % 64), (0, 0));
        let line = |offset: usize| offset / 64;
        assert_ne!(line(offset_of!(Page, flags)), line(offset_of!(Page, heartbeat_ns)));
    }
}
