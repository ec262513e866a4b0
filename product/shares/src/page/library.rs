//! The preload library's side of the page: it finds the page that a balancer shares with this program,
//! and reads weights there. It runs inside of foreign programs: nothing here allocates or panics, and
//! only [`attach`] makes system calls.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::{FILE_NAME, Lap, Laps, MAGIC, PAGE_BYTES, Page, Row};
use crate::environment::parse_address;

/// A heartbeat that is further ahead than this comes from another clock.
const CLOCK_SLACK_NS: u64 = 1_000_000_000;

/// How often a reader tries again while the balancer writes.
const READ_TRIES: usize = 4;

/// Maps the page that the environment variable's value names. `None` if there is no such page, if it is
/// not a balancer's, or if its size can change. The mapping is never undone.
pub fn attach(value: &CStr) -> Option<&'static Page> {
    let (path, token) = parse_address(value.to_bytes())?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    if !names_a_page(path) {
        return None;
    }
    // SAFETY: the path ends with a zero byte.
    let fd =
        unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    let page = map_sealed(fd);
    // SAFETY: the descriptor was opened above and is used by nothing else.
    unsafe { libc::close(fd) };
    let page = page?;
    let is_ours = page.magic.load(Acquire) == MAGIC
        && page.size.load(Relaxed) == size_of::<Page>() as u64
        && page.token.load(Relaxed) == token;
    if !is_ours {
        // SAFETY: the mapping was made above, and no reference to it is left.
        unsafe { libc::munmap(ptr::from_ref(page).cast_mut().cast(), PAGE_BYTES) };
        return None;
    }
    Some(page)
}

/// Whether the link in /proc leads to an anonymous file of a page's name: opening any other file could
/// have side effects.
fn names_a_page(path: &CStr) -> bool {
    let mut target = [0_u8; 64];
    // SAFETY: the buffer has the length that is given.
    let length = unsafe { libc::readlink(path.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let target = usize::try_from(length).ok().and_then(|length| target.get(..length));
    target
        .and_then(|target| target.strip_prefix(b"/memfd:"))
        .is_some_and(|name| name.starts_with(FILE_NAME.to_bytes()))
}

/// Maps a file that is as large as a page and stays so.
pub(super) fn map_sealed(fd: i32) -> Option<&'static Page> {
    // SAFETY: the call takes no pointer.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return None;
    }
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the structure is large enough; it is read only if the call has filled it.
    let size = unsafe {
        if libc::fstat(fd, stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init().st_size
    };
    if usize::try_from(size).ok()? < PAGE_BYTES {
        return None;
    }
    // SAFETY: a new mapping of a file that cannot become shorter.
    let mapped = unsafe {
        libc::mmap(
            ptr::null_mut(),
            PAGE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is aligned, long enough, and stays; all fields are atomics, for which any bits
    // are a value.
    Some(unsafe { &*mapped.cast::<Page>() })
}

/// The time now, by the clock of the heartbeats: ns of `CLOCK_MONOTONIC`.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid. The clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// The weights at one moment, read consistently.
pub struct Weights<'page> {
    page: &'page Page,
    sequence: u64,
}

impl Page {
    /// Begins to read the weights at the time `now_ns`. `None` if the balancer has ended, or its
    /// heartbeat is too old: all weights are equal then.
    pub fn weights(&self, now_ns: u64) -> Option<Weights<'_>> {
        let heartbeat_ns = self.heartbeat_ns.load(Relaxed);
        let is_fresh = heartbeat_ns != 0
            && heartbeat_ns <= now_ns.saturating_add(CLOCK_SLACK_NS)
            && now_ns.saturating_sub(heartbeat_ns) <= self.patience_ns.load(Relaxed);
        if !is_fresh {
            return None;
        }
        (0..READ_TRIES)
            .map(|_| self.sequence.load(Acquire))
            .find(|sequence| sequence & 1 == 0)
            .map(|sequence| Weights { page: self, sequence })
    }

    /// Sets a flag. Where it is set already, nothing is written: all threads share it.
    pub fn set_flag(&self, flag: u32) {
        if self.flags.load(Relaxed) & flag == 0 {
            self.flags.fetch_or(flag, Relaxed);
        }
    }
}

impl Weights<'_> {
    /// The weight of a CPU; 0 where it has none.
    pub fn of_cpu(&self, cpu: usize) -> u16 {
        self.page.weights.get(cpu).map_or(0, |weight| weight.load(Relaxed))
    }

    /// Whether all that was read since [`Page::weights`] belongs together.
    pub fn is_consistent(&self) -> bool {
        fence(Acquire);
        self.page.sequence.load(Relaxed) == self.sequence
    }
}

/// A thread's place in the page.
#[derive(Clone, Copy)]
pub struct Slot<'page> {
    /// Its row.
    pub row: &'page Row,
    /// Its laps.
    pub laps: &'page Laps,
}

/// Claims a slot for this thread; nothing where all are taken.
pub fn claim_slot(page: &Page, tid: u32, pid: u32) -> Option<Slot<'_>> {
    let free = |slot: &Slot<'_>| {
        let field = &slot.row.tid;
        field.load(Relaxed) == 0 && field.compare_exchange(0, tid, SeqCst, Relaxed).is_ok()
    };
    let slot = page.slots().find(free)?;
    slot.row.pid.store(pid, Relaxed);
    Some(slot)
}

/// Gives a slot back at the end of its thread; what its row counted is kept.
pub fn release_slot(page: &Page, slot: Slot<'_>) {
    let row = slot.row;
    page.past_loops_divided.fetch_add(row.loops_divided.swap(0, Relaxed), Relaxed);
    page.past_regions.fetch_add(row.regions.swap(0, Relaxed), Relaxed);
    slot.laps.clear();
    row.clear();
}

impl Page {
    /// All slots, free or not.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        self.rows.iter().zip(&self.laps).map(|(row, laps)| Slot { row, laps })
    }
}

impl Laps {
    /// This thread has ended a lap that began at this place, and took `ns`. Not counted where too many
    /// other places are known.
    pub fn add(&self, site: u64, is_divided: bool, ns: u64) {
        let laps = if is_divided { &self.divided } else { &self.equal };
        // 0 stands for a free one.
        let site = site.max(1);
        let is_its = |lap: &&Lap| [0, site].contains(&lap.site.load(Relaxed));
        let Some(lap) = laps.iter().find(is_its) else { return };
        lap.site.store(site, Relaxed);
        lap.total_ns.store(lap.total_ns.load(Relaxed).wrapping_add(ns), Relaxed);
        // The balancer reads the count first: it never counts a lap without its time.
        lap.count.store(lap.count.load(Relaxed).wrapping_add(1), Release);
    }

    fn clear(&self) {
        for lap in self.equal.iter().chain(&self.divided) {
            // A page of the file that was never touched stays so.
            if lap.site.load(Relaxed) != 0 {
                for field in [&lap.count, &lap.total_ns, &lap.site] {
                    field.store(0, Relaxed);
                }
            }
        }
    }
}

impl Row {
    /// Frees the row.
    pub(super) fn clear(&self) {
        for field in [&self.pid, &self.primary_tid, &self.number, &self.team_size] {
            field.store(0, Relaxed);
        }
        for field in [&self.regions, &self.loops_divided] {
            field.store(0, Relaxed);
        }
        self.tid.store(0, SeqCst);
    }
}
