//! Teams: the weights of their members, taken once for each region, and the CPUs on which the members
//! are.
//!
//! The thread that forks a region claims a team of a fixed pool and writes the weights of its members
//! there. No member reads them too early or too late: the runtime's own barriers at fork and join make
//! all members start after the writing, and end before the team is claimed again. A thread gets the same
//! team again for its next region if that is free, and with it the CPUs that the members noted. Another
//! thread's notes would only make a worse division, never a wrong one; they are cleared all the same.
//!
//! A thread that forks regions says how long they take: from each fork to its next one (`Laps` of the
//! page), by the place of the fork in the program and by whether the region's weights differed.
//!
//! Since regions nest, each thread keeps two stacks: its parts of regions, and the regions that it has
//! forked. A member that is not the primary thread comes from the runtime's pool, and is in no other
//! region: its stacks begin anew. So a report that the runtime omits cannot shift the stack of a member.
//! A region that nests too deep for the stacks of its primary thread is not divided for any member.
//!
//! The runtime keeps a number for each region, by which its members find their team. By the time that
//! the runtime reports the end of a region, it has freed the memory of that number, and another thread's
//! region may use it. So only members read the number, and an end is taken for that of the region which
//! the thread forked last.

use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use shares::page::{MAX_CPUS, Page, Slot, claim_slot, flag, now_ns, release_slot};
use shares::partition::{MAX_TEAM, Part, divide};

use crate::process::page;

/// Teams that are active at one time.
const TEAMS: usize = u64::BITS as usize;

/// How deep regions may nest in one thread.
const DEPTH: usize = 8;

struct Team {
    /// The thread, and how deep it was nested, that had this team last.
    owner: AtomicU64,
    /// How many members have a weight in this region.
    weighed: AtomicU32,
    /// How many members have noted a CPU.
    noted: AtomicU32,
    weights: [AtomicU16; MAX_TEAM],
    /// The CPU under each member, plus one; 0 where it is unknown.
    cpus: [AtomicU16; MAX_TEAM],
}

static POOL: [Team; TEAMS] = [const { Team::new() }; TEAMS];

/// A bit for each team that is active.
static ACTIVE: AtomicU64 = AtomicU64::new(0);

/// A thread's part of a region.
struct Membership {
    team: Cell<Option<&'static Team>>,
    number: Cell<usize>,
    size: Cell<usize>,
    /// The last division of this region: loops of one region often have as many iterations.
    iterations: Cell<u64>,
    part: Cell<Option<Part>>,
}

/// From the fork of a region to the fork of the next one.
#[derive(Clone, Copy)]
struct Lap {
    site: u64,
    begun_ns: u64,
    is_divided: bool,
}

struct Thread {
    tid: Cell<u32>,
    slot: Cell<Option<Slot<'static>>>,
    lap: Cell<Option<Lap>>,
    depth: Cell<usize>,
    memberships: [Membership; DEPTH],
    /// The team that this thread forked last at each depth.
    last_teams: [Cell<u8>; DEPTH],
    /// How many regions it has forked that have not ended, and the numbers of the outer ones: 0 for a
    /// region that is not divided.
    open: Cell<usize>,
    regions: [Cell<u64>; DEPTH],
}

thread_local! {
    static THREAD: Thread = const { Thread::new() };
}

/// A region is about to be forked by this thread, by the code at the address `site`. Returns what its
/// members are told: 0 for a region that is not divided.
pub fn fork_region(site: u64) -> u64 {
    let fork = |thread: &Thread| {
        let region = page().and_then(|page| thread.fork_region(page, site)).unwrap_or(0);
        thread.open_region(region);
        region
    };
    with_thread(fork).unwrap_or(0)
}

/// The same for a league: its members are teams, not threads, so nothing is divided among them.
pub fn fork_league() -> u64 {
    with_thread(|thread| thread.open_region(0));
    0
}

/// Ends the region, or league, that this thread forked last: all its members have ended their parts.
pub fn end_region() {
    with_thread(Thread::end_region);
}

/// This thread begins its part of a region.
pub fn begin_part(region: u64, number: u32, size: u32) {
    if let Some(page) = page() {
        with_thread(|thread| thread.begin_part(page, region, number as usize, size as usize));
    }
}

/// This thread has ended its part of a region.
pub fn end_part() {
    with_thread(|thread| thread.depth.set(thread.depth.get().saturating_sub(1)));
}

/// This thread ends.
pub fn end_thread() {
    with_thread(|thread| {
        if let (Some(page), Some(slot)) = (page(), thread.slot.take()) {
            release_slot(page, slot);
        }
    });
}

/// This thread's part of a loop; `None` where the loop is to be left to the runtime. All members of a
/// team come to the same conclusion. `least_per_thread` is the number of iterations for each thread
/// below which the loop is left.
pub fn divide_loop(page: &Page, iterations: u64, least_per_thread: u64) -> Option<Part> {
    with_thread(|thread| {
        let part = thread.divide_loop(iterations, least_per_thread);
        if let (Some(_), Some(Slot { row, .. })) = (&part, thread.slot.get()) {
            increment(&row.loops_divided);
        }
        if thread.innermost().is_some_and(|membership| membership.size.get() > MAX_TEAM) {
            page.set_flag(flag::TEAM_TOO_LARGE);
        }
        part
    })?
}

/// A child of fork(2) has one thread and no teams, and its parent keeps the rows.
pub extern "C" fn forget_parent() {
    ACTIVE.store(0, Relaxed);
    with_thread(|thread| {
        thread.tid.set(0);
        thread.slot.set(None);
        thread.lap.set(None);
        thread.depth.set(0);
        thread.open.set(0);
    });
}

/// Runs `action` on this thread's state; `None` in a thread that ends.
fn with_thread<R>(action: impl FnOnce(&Thread) -> R) -> Option<R> {
    THREAD.try_with(action).ok()
}

/// Adds to a counter that only this thread writes.
fn increment(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

fn team_of(region: u64) -> Option<&'static Team> {
    POOL.get(usize::try_from(region).ok()?.checked_sub(1)?)
}

fn bit_of(region: u64) -> Option<u64> {
    1_u64.checked_shl(u32::try_from(region.checked_sub(1)?).ok()?)
}

/// Claims a team: the wanted one if it is free, or else any.
fn claim_team(wanted: u8) -> Option<u8> {
    let claim = |number: u32| {
        let bit = 1_u64.checked_shl(number)?;
        (ACTIVE.fetch_or(bit, AcqRel) & bit == 0).then_some(number as u8)
    };
    claim(wanted.into()).or_else(|| {
        // A try fails only because another thread claimed that team: so the tries can be bounded.
        (0..TEAMS).find_map(|_| claim(ACTIVE.load(Relaxed).trailing_ones()))
    })
}

impl Thread {
    const fn new() -> Self {
        Self {
            tid: Cell::new(0),
            slot: Cell::new(None),
            lap: Cell::new(None),
            depth: Cell::new(0),
            memberships: [const { Membership::new() }; DEPTH],
            last_teams: [const { Cell::new(0) }; DEPTH],
            open: Cell::new(0),
            regions: [const { Cell::new(0) }; DEPTH],
        }
    }

    fn tid(&self) -> u32 {
        if self.tid.get() == 0 {
            // SAFETY: the call has no arguments.
            self.tid.set(unsafe { libc::gettid() } as u32);
        }
        self.tid.get()
    }

    fn slot(&self, page: &'static Page) -> Option<Slot<'static>> {
        if self.slot.get().is_none() {
            // SAFETY: the call has no arguments.
            let pid = unsafe { libc::getpid() } as u32;
            self.slot.set(claim_slot(page, self.tid(), pid));
        }
        self.slot.get()
    }

    fn innermost(&self) -> Option<&Membership> {
        self.memberships.get(self.depth.get().checked_sub(1)?)
    }

    fn fork_region(&self, page: &'static Page, site: u64) -> Option<u64> {
        let depth = self.depth.get();
        let now_ns = now_ns();
        let is_nested = self.innermost().is_some_and(|outer| outer.size.get() > 1);
        if !is_nested {
            self.end_lap(now_ns);
        }
        let last = self.last_teams.get(depth)?;
        // Too deep for the stack: the end of this region could not be told from another region's end.
        self.regions.get(self.open.get())?;
        let Some(number) = claim_team(last.get()) else {
            page.set_flag(flag::TOO_MANY_TEAMS);
            return None;
        };
        last.set(number);
        let region = u64::from(number).wrapping_add(1);
        let team = team_of(region)?;
        team.be_owned_by(u64::from(self.tid()) << 8 | depth as u64);
        let is_divided = team.weigh(page, now_ns);
        if !is_nested {
            self.lap.set(Some(Lap { site, begun_ns: now_ns, is_divided }));
        }
        Some(region)
    }

    /// This thread has forked a region of this number.
    fn open_region(&self, region: u64) {
        let open = self.open.get();
        if let Some(place) = self.regions.get(open) {
            place.set(region);
        }
        self.open.set(open.saturating_add(1));
    }

    /// The region that this thread forked last has ended.
    fn end_region(&self) {
        let Some(open) = self.open.get().checked_sub(1) else { return };
        self.open.set(open);
        if let Some(bit) = self.regions.get(open).and_then(|region| bit_of(region.get())) {
            ACTIVE.fetch_and(!bit, Release);
        }
    }

    /// Ends the thread's lap, if it is in one, and notes it in the thread's slot. Before a thread has
    /// forked a region of several members, it has no slot, and the lap is not noted.
    fn end_lap(&self, now_ns: u64) {
        if let (Some(lap), Some(slot)) = (self.lap.take(), self.slot.get()) {
            slot.laps.add(lap.site, lap.is_divided, now_ns.saturating_sub(lap.begun_ns));
        }
    }

    fn begin_part(&self, page: &'static Page, region: u64, number: usize, size: usize) {
        if number > 0 {
            self.depth.set(0);
            while self.open.get() > 0 {
                self.end_region();
            }
        }
        let depth = self.depth.get();
        self.depth.set(depth.saturating_add(1));
        let team = team_of(region);
        if let Some(membership) = self.memberships.get(depth) {
            membership.team.set(team);
            membership.number.set(number);
            membership.size.set(size);
            membership.iterations.set(0);
        }
        let Some(team) = team.filter(|_| size > 1) else { return };
        team.note_cpu(number);
        if let Some(Slot { row, .. }) = self.slot(page) {
            row.primary_tid.store((team.owner.load(Relaxed) >> 8) as u32, Relaxed);
            row.number.store(number as u32, Relaxed);
            row.team_size.store(size as u32, Relaxed);
            if number == 0 {
                increment(&row.regions);
            }
        }
    }

    fn divide_loop(&self, iterations: u64, least_per_thread: u64) -> Option<Part> {
        let membership = self.innermost()?;
        // A region may last long: what counts is the CPU at its last loop.
        membership.team.get()?.note_cpu(membership.number.get());
        if membership.iterations.get() != iterations {
            membership.iterations.set(iterations);
            membership.part.set(membership.divide(iterations));
        }
        let least = least_per_thread.checked_mul(membership.size.get() as u64)?;
        membership.part.get().filter(|_| iterations >= least)
    }
}

impl Membership {
    const fn new() -> Self {
        Self {
            team: Cell::new(None),
            number: Cell::new(0),
            size: Cell::new(0),
            iterations: Cell::new(0),
            part: Cell::new(None),
        }
    }

    fn divide(&self, iterations: u64) -> Option<Part> {
        let team = self.team.get()?;
        let size = self.size.get();
        if size > team.weighed.load(Relaxed) as usize {
            return None;
        }
        let weights = team.weights.get(..size)?.iter();
        divide(iterations, self.number.get(), weights.map(|weight| weight.load(Relaxed).into()))
    }
}

impl Team {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            weighed: AtomicU32::new(0),
            noted: AtomicU32::new(0),
            weights: [const { AtomicU16::new(0) }; MAX_TEAM],
            cpus: [const { AtomicU16::new(0) }; MAX_TEAM],
        }
    }

    /// Makes the team this owner's; forgets what the members of another owner noted.
    fn be_owned_by(&self, owner: u64) {
        if self.owner.swap(owner, Relaxed) != owner {
            self.cpus.iter().for_each(|cpu| cpu.store(0, Relaxed));
            self.noted.store(0, Relaxed);
        }
    }

    /// Takes the weights of the members by the CPUs on which they were last: all of one moment, or none.
    /// Returns whether they differ.
    fn weigh(&self, page: &Page, now_ns: u64) -> bool {
        self.weighed.store(0, Relaxed);
        let noted = self.noted.load(Relaxed);
        let Some(read) = (noted > 1).then(|| page.weights(now_ns)).flatten() else { return false };
        let (mut least, mut most) = (u16::MAX, 0);
        for (cpu, weight) in self.cpus.iter().zip(&self.weights).take(noted as usize) {
            let cpu = usize::from(cpu.load(Relaxed)).checked_sub(1);
            let taken = cpu.map_or(0, |cpu| read.of_cpu(cpu));
            weight.store(taken, Relaxed);
            (least, most) = (least.min(taken), most.max(taken));
        }
        if !read.is_consistent() {
            return false;
        }
        self.weighed.store(noted, Release);
        // Without the weight of each member nothing is divided.
        least > 0 && least < most
    }

    /// Notes the CPU under member `number`, which is this thread: for the next region. The notes of
    /// several members share a line of the cache, so it is written only where the CPU is another one.
    fn note_cpu(&self, number: usize) {
        let Some(place) = self.cpus.get(number) else { return };
        // SAFETY: the call has no arguments.
        let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).ok();
        let note = cpu.filter(|cpu| *cpu < MAX_CPUS).map_or(0, |cpu| cpu.saturating_add(1));
        if place.load(Relaxed) != note as u16 {
            place.store(note as u16, Relaxed);
        }
        let members = number.saturating_add(1) as u32;
        if self.noted.load(Acquire) < members {
            self.noted.fetch_max(members, AcqRel);
        }
    }
}
