//! The balancer's side of the page: creates it, writes weights, reads what the programs say. What it
//! reads was written by programs that may be faulty or hostile: plain numbers, never an index or a
//! length.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use thiserror::Error;

use super::library::{Slot, map_sealed, now_ns, release_slot};
use super::{FILE_NAME, Lap, MAGIC, PAGE_BYTES, Page, Row, flag};
use crate::environment::page_address;
use crate::partition::MAX_WEIGHT;

/// Why there is no page.
#[derive(Debug, Error)]
#[error("cannot {step} the memory that is shared with programs under --shares: {source}")]
pub struct PageError {
    step: &'static str,
    source: io::Error,
}

/// The page of one program, while it is balanced. It ends with this value: the program goes on with
/// equal shares.
pub struct PageOwner {
    page: &'static Page,
    /// Keeps the address in /proc alive.
    file: File,
    token: u64,
}

/// What the programs say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The threads that are or were in a team, and have not ended.
    pub threads: Vec<ThreadReport>,
    /// Regions with more than one thread, so far.
    pub regions: u64,
    /// Parts of loops that threads got by weight, so far: a loop of a team of eight counts eight times.
    pub loops_divided: u64,
    /// The laps of threads that fork teams, so far. A thread that ends takes its laps with it.
    pub laps: BTreeMap<Site, SiteLaps>,
    flags: u32,
}

/// A place in a program where a thread forks regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The thread.
    pub tid: u32,
    /// The address of the code. Only a name.
    pub code: u64,
    /// The loops of these regions were divided by weights that differ.
    pub is_divided: bool,
}

/// Laps that began at one place; see [`super::Laps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SiteLaps {
    /// How many.
    pub count: u64,
    /// How long all of them took, in ns.
    pub total_ns: u64,
}

/// A thread of a team.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadReport {
    /// Its thread identifier; the balancer checks that it follows this thread.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// The thread that forked the team: a team is all threads of one process with the same
    /// `primary_tid`.
    pub primary_tid: u32,
    /// Its number in the team; 0 is the primary thread.
    pub number: u32,
    /// How many threads the team has.
    pub team_size: u32,
    /// Parts of loops that it got by weight.
    pub loops_divided: u64,
}

/// What the library does for the programs, as far as it can be told; worse news come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// No process has loaded the library.
    NotLoaded,
    /// No process has LLVM's OpenMP runtime (yet).
    NoRuntime,
    /// The runtime's tool interface is taken, or the runtime has none: loops stay as they are.
    NoToolInterface,
    /// The runtime is there, but no loop of an eligible kind was begun (yet).
    NoLoop,
    /// Loops are begun, and none was divided so far: all weights are equal, teams have one thread, or
    /// this is the first region of a team.
    Equal,
    /// Loops are divided.
    Divides,
}

impl PageOwner {
    /// Creates a page without weights. Programs divide by the last weights for as long as `patience`
    /// after the last heartbeat, and then equally.
    pub fn create(patience: Duration) -> Result<Self, PageError> {
        let failed = |step| PageError { step, source: io::Error::last_os_error() };
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe {
            libc::memfd_create(FILE_NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(failed("create"));
        }
        // SAFETY: the descriptor was made above and belongs to nothing else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(PAGE_BYTES as u64).map_err(|source| PageError { step: "size", source })?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the call takes no pointer.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(failed("seal"));
        }
        let page = map_sealed(fd).ok_or_else(|| failed("map"))?;
        let mut token = [0_u8; size_of::<u64>()];
        // SAFETY: the buffer has the length that is given.
        let drawn = unsafe { libc::getrandom(token.as_mut_ptr().cast(), token.len(), 0) };
        if usize::try_from(drawn) != Ok(token.len()) {
            return Err(failed("name"));
        }
        let token = u64::from_ne_bytes(token);
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        page.patience_ns.store(patience_ns, Relaxed);
        page.size.store(size_of::<Page>() as u64, Relaxed);
        page.token.store(token, Relaxed);
        page.magic.store(MAGIC, Release);
        Ok(Self { page, file, token })
    }

    /// The value of [`crate::environment::PAGE_VARIABLE`] in the program's environment. It is good while
    /// this process lives, for programs of the same user.
    pub fn address(&self) -> String {
        page_address(process::id(), self.file.as_raw_fd(), self.token)
    }

    /// Says that the balancer lives. Without it the weights hold for `patience`.
    pub fn heartbeat(&self) {
        self.page.heartbeat_ns.store(now_ns().max(1), Relaxed);
    }

    /// Sets the weight of each CPU (number, weight) and beats. All other CPUs get none: a team with a
    /// thread there is divided equally, and so is any team if there are no weights at all. Weights are
    /// bounded to `1..=MAX_WEIGHT`. Each thread has the weight of its CPU, so where several threads of
    /// a team share a CPU, its weight is its capability divided among them. A team takes the weights
    /// at its next region, all at once. To change them seldom (hysteresis) is the caller's part.
    pub fn set_weights(&mut self, weights: impl IntoIterator<Item = (u32, u32)>) {
        let mut by_cpu = [0_u16; super::MAX_CPUS];
        for (cpu, weight) in weights {
            if let Some(slot) = by_cpu.get_mut(cpu as usize) {
                *slot = weight.clamp(1, MAX_WEIGHT) as u16;
            }
        }
        let fields = || self.page.weights.iter().zip(by_cpu);
        if fields().any(|(field, weight)| field.load(Relaxed) != weight) {
            let sequence = self.page.sequence.load(Relaxed);
            self.page.sequence.store(sequence.wrapping_add(1) | 1, Relaxed);
            fence(Release);
            fields().for_each(|(field, weight)| field.store(weight, Relaxed));
            let even = (sequence.wrapping_add(1) | 1).wrapping_add(1);
            self.page.sequence.store(even, Release);
        }
        self.heartbeat();
    }

    /// What the programs have said so far.
    pub fn read(&self) -> Report {
        let mut report = Report {
            regions: self.page.past_regions.load(Relaxed),
            loops_divided: self.page.past_loops_divided.load(Relaxed),
            flags: self.page.flags.load(Relaxed),
            ..Report::default()
        };
        for slot in self.page.slots().filter(|slot| slot.row.tid.load(Acquire) != 0) {
            let row = slot.row;
            let thread = ThreadReport::of(row);
            report.regions = report.regions.saturating_add(row.regions.load(Relaxed));
            report.loops_divided = report.loops_divided.saturating_add(thread.loops_divided);
            if row.regions.load(Relaxed) != 0 {
                report.add_laps(&thread, slot);
            }
            if thread.team_size != 0 {
                report.threads.push(thread);
            }
        }
        report
    }

    /// Frees the rows of threads that were killed, so that others find room. What they counted stays.
    pub fn forget_dead(&mut self, is_alive: impl Fn(u32) -> bool) {
        let taken = self.page.slots().map(|slot| (slot, slot.row.tid.load(SeqCst)));
        let dead = taken.filter(|(_, tid)| *tid != 0 && !is_alive(*tid));
        dead.for_each(|(slot, _)| release_slot(self.page, slot));
    }
}

impl Drop for PageOwner {
    fn drop(&mut self) {
        self.page.heartbeat_ns.store(0, Relaxed);
        // SAFETY: the mapping was made by `create`, and no reference to it outlives this value.
        unsafe { libc::munmap(std::ptr::from_ref(self.page).cast_mut().cast(), PAGE_BYTES) };
    }
}

impl Lap {
    fn read(&self) -> (u64, SiteLaps) {
        let count = self.count.load(Acquire);
        let laps = SiteLaps { count, total_ns: self.total_ns.load(Relaxed) };
        (self.site.load(Relaxed), laps)
    }
}

impl ThreadReport {
    fn of(row: &Row) -> Self {
        Self {
            tid: row.tid.load(Relaxed),
            pid: row.pid.load(Relaxed),
            primary_tid: row.primary_tid.load(Relaxed),
            number: row.number.load(Relaxed),
            team_size: row.team_size.load(Relaxed),
            loops_divided: row.loops_divided.load(Relaxed),
        }
    }
}

impl Report {
    fn add_laps(&mut self, thread: &ThreadReport, slot: Slot<'_>) {
        for (is_divided, laps) in [(false, &slot.laps.equal), (true, &slot.laps.divided)] {
            let known = laps.iter().map(Lap::read).take_while(|(code, _)| *code != 0);
            let site = |code| Site { tid: thread.tid, code, is_divided };
            self.laps.extend(known.map(|(code, laps)| (site(code), laps)));
        }
    }

    /// What the library does for the programs.
    pub fn effect(&self) -> Effect {
        let has = |flag: u32| self.flags & flag != 0;
        if self.loops_divided > 0 {
            Effect::Divides
        } else if !has(flag::ATTACHED) {
            Effect::NotLoaded
        } else if !has(flag::RUNTIME) && !has(flag::CALLED) {
            Effect::NoRuntime
        } else if has(flag::TOOL_REFUSED) || has(flag::CALLED) && !has(flag::TOOL) {
            Effect::NoToolInterface
        } else if !has(flag::CALLED) {
            Effect::NoLoop
        } else {
            Effect::Equal
        }
    }

    /// Whether some teams are left to the runtime because of a limit of the library, and which.
    pub fn limits(&self) -> Vec<&'static str> {
        let limits = [
            (flag::TEAM_TOO_LARGE, "a team has more than 512 threads"),
            (flag::TOO_MANY_TEAMS, "more than 64 teams were active at once"),
            (flag::SECOND_RUNTIME, "a process has two OpenMP runtimes"),
        ];
        limits
            .into_iter()
            .filter(|(flag, _)| self.flags & flag != 0)
            .map(|(_, text)| text)
            .collect()
    }
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotLoaded => {
                "no process has loaded the library: static, set-uid or 32-bit programs cannot"
            }
            Self::NoRuntime => {
                "no process has loaded LLVM's OpenMP runtime: programs of gcc have another one"
            }
            Self::NoToolInterface => {
                "another tool has the OpenMP runtime's tool interface, or the runtime has none"
            }
            Self::NoLoop => "no loop of schedule(static) without a chunk size was begun",
            Self::Equal => "loops are divided equally",
            Self::Divides => "loops are divided by capability",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{MAX_SITES, attach, claim_slot};
    use std::ffi::CString;

    fn create() -> PageOwner {
        PageOwner::create(Duration::from_secs(60)).unwrap()
    }

    fn attached(owner: &PageOwner) -> &'static Page {
        attach(&CString::new(owner.address()).unwrap()).unwrap()
    }

    fn weight(page: &Page, cpu: usize) -> Option<u16> {
        let weights = page.weights(now_ns())?;
        let weight = weights.of_cpu(cpu);
        weights.is_consistent().then_some(weight)
    }

    #[test]
    fn weights_reach_the_other_side_and_are_bounded() {
        let mut owner = create();
        let page = attached(&owner);
        assert_eq!(weight(page, 0), None);
        owner.set_weights([(0, 614), (1, 5000), (7, 0), (1_000_000, 3)]);
        assert_eq!([0, 1, 2, 7, 5000].map(|cpu| weight(page, cpu)), [614, 1024, 0, 1, 0].map(Some));
        owner.set_weights([(1, 9)]);
        assert_eq!([0, 1].map(|cpu| weight(page, cpu)), [Some(0), Some(9)]);
    }

    #[test]
    fn weights_end_with_the_balancer_or_with_its_heartbeat() {
        let mut owner = create();
        let page = attached(&owner);
        owner.set_weights([(0, 5)]);
        let now = now_ns();
        let later = |seconds: u64| page.weights(now + seconds * 1_000_000_000).is_some();
        assert!(later(0) && later(59) && !later(61));
        // From another clock.
        assert!(page.weights(now / 2).is_none());
        drop(owner);
        assert!(page.weights(now_ns()).is_none());
    }

    #[test]
    fn a_reader_notices_that_weights_change_under_it() {
        let mut owner = create();
        let page = attached(&owner);
        owner.set_weights([(0, 5)]);
        let reading = page.weights(now_ns()).unwrap();
        owner.set_weights([(0, 5)]);
        assert!(reading.is_consistent());
        owner.set_weights([(0, 6)]);
        assert!(!reading.is_consistent());
        // The balancer was killed while it wrote.
        page.sequence.fetch_add(1, Relaxed);
        assert!(page.weights(now_ns()).is_none());
    }

    #[test]
    fn only_a_page_is_attached() {
        let owner = create();
        let other = create();
        let address = |owner: &PageOwner, token: u64| {
            CString::new(page_address(process::id(), owner.file.as_raw_fd(), token)).unwrap()
        };
        assert!(attach(&address(&owner, owner.token)).is_some());
        assert!(attach(&address(&owner, other.token)).is_none());
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let plain = page_address(process::id(), file.as_raw_fd(), 1);
        assert!(attach(&CString::new(plain).unwrap()).is_none());
        let gone = address(&other, other.token);
        drop(other);
        assert!(attach(&gone).is_none());
    }

    #[test]
    fn the_page_keeps_its_size() {
        let owner = create();
        assert!(owner.file.set_len(0).is_err());
        assert!(owner.file.set_len(1 << 30).is_err());
    }

    #[test]
    fn threads_are_told_and_what_they_counted_outlives_them() {
        let mut owner = create();
        let page = attached(&owner);
        assert_eq!(owner.read().effect(), Effect::NotLoaded);
        page.set_flag(flag::ATTACHED);
        assert_eq!(owner.read().effect(), Effect::NoRuntime);
        page.set_flag(flag::RUNTIME);
        assert_eq!(owner.read().effect(), Effect::NoLoop);
        page.set_flag(flag::CALLED);
        assert_eq!(owner.read().effect(), Effect::NoToolInterface);
        page.set_flag(flag::TOOL);
        assert_eq!(owner.read().effect(), Effect::Equal);
        let slots = [11, 12].map(|tid| claim_slot(page, tid, 11).unwrap());
        for (number, slot) in slots.into_iter().enumerate() {
            let row = slot.row;
            row.primary_tid.store(11, Relaxed);
            row.number.store(number as u32, Relaxed);
            row.team_size.store(2, Relaxed);
            row.loops_divided.store(5, Relaxed);
        }
        slots[0].row.regions.store(3, Relaxed);
        let report = owner.read();
        assert_eq!(report.effect(), Effect::Divides);
        assert_eq!((report.regions, report.loops_divided), (3, 10));
        let members: Vec<_> =
            report.threads.iter().map(|it| (it.tid, it.primary_tid, it.number)).collect();
        assert_eq!(members, [(11, 11, 0), (12, 11, 1)]);
        release_slot(page, slots[0]);
        owner.forget_dead(|tid| tid != 12);
        let report = owner.read();
        assert_eq!((report.threads.len(), report.regions, report.loops_divided), (0, 3, 10));
        assert!(claim_slot(page, 13, 13).is_some());
    }

    #[test]
    fn laps_are_told_by_place_and_division_and_end_with_their_thread() {
        let mut owner = create();
        let page = attached(&owner);
        let slot = claim_slot(page, 11, 11).unwrap();
        slot.row.regions.store(1, Relaxed);
        for (code, is_divided, ns) in [(7, false, 30), (7, true, 20), (9, false, 5), (7, true, 24)]
        {
            slot.laps.add(code, is_divided, ns);
        }
        let site = |code, is_divided| Site { tid: 11, code, is_divided };
        let laps = |count, total_ns| SiteLaps { count, total_ns };
        let expected = [
            (site(7, false), laps(1, 30)),
            (site(7, true), laps(2, 44)),
            (site(9, false), laps(1, 5)),
        ];
        assert_eq!(owner.read().laps, BTreeMap::from(expected));
        // Places for which there is no room are not timed, and take nothing from the others.
        for code in 100..200 {
            slot.laps.add(code, false, 1);
        }
        slot.laps.add(7, false, 30);
        let report = owner.read();
        assert_eq!(report.laps.len(), MAX_SITES + 1);
        assert_eq!(report.laps[&site(7, false)], laps(2, 60));
        owner.forget_dead(|_| false);
        let slot = claim_slot(page, 12, 12).unwrap();
        slot.row.regions.store(1, Relaxed);
        assert_eq!(owner.read().laps, BTreeMap::new());
    }

    #[test]
    fn a_page_without_a_free_row_gives_none() {
        let owner = create();
        let page = attached(&owner);
        for tid in 1..=super::super::MAX_ROWS {
            assert!(claim_slot(page, tid as u32, 1).is_some());
        }
        assert!(claim_slot(page, 1, 1).is_none());
        assert_eq!(owner.read().threads.len(), 0);
    }
}
