//! `--hold`: the paper's "the application process should be bundled on the core which requested data
//! before data return". A thread that waits for an answer is pinned to the core where it asked, under
//! the journal, and given its own CPUs back when something has come.
//!
//! The programs record waiting threads (bpf/sais/consumer.h), which are read every
//! [`INTERVAL`]: a read that is answered in less may pass without, and in so short a time the kernel
//! hardly moves any thread.
//!
//! A request that got no answer within the limit holds its thread no longer, whatever comes on the
//! thread's other connections. Which requests these are is looked up among the connections, but only
//! for a thread that is held for that long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use evenkeel_journal::{PlaceError, Placed, Released, SupervisedSession, SupervisorError, TaskRef};
use evenkeel_machine::CpuSet;
use libbpf_rs::{MapHandle, Object};
use nix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::thread_of;
use crate::layout::{FLOWS, MAX_FLOWS, RawFlow, RawKey, RawReader};
use crate::object::{ObjectError, bpf, entries, map};

/// How often waiting threads are read.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);
/// How often threads that were born with a pin of ours are looked for, while any thread is held.
const SWEEP: Duration = Duration::from_secs(1);
/// `MAX_READERS`: threads that may wait at once.
const MAX_READERS: u32 = 4096;
const READERS: &str = "readers";

/// Why threads are not held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The kernel does not list waiting threads.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// No process would let go of them.
    #[error("no thread is held without a supervisor: {0}")]
    Supervisor(#[from] SupervisorError),
}

/// What came of it, since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HoldCounts {
    /// Threads that are held now.
    pub held: u64,
    /// How often a thread was pinned to the core where it had asked.
    pub holds: u64,
    /// How many requests got no answer for too long: their threads are held for them no more.
    pub timed_out: u64,
    /// How often its user had chosen other CPUs for it, which wins.
    pub yielded: u64,
    /// How often the kernel or a cpuset had something against it.
    pub refused: u64,
}

/// What is to be done with a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Pinned to this core.
    Hold(u32),
    /// Let go.
    Release,
}

/// A thread that waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Waiter {
    /// When it was started: tells it from a later thread with its number.
    start_boottime_ns: u64,
    /// Its requests that got no answer in time: it is not held for these.
    ignored: u32,
    /// How many of those were answered later.
    late: u32,
    /// Since when it is held, for the oldest request that is not ignored.
    held_since: Option<Instant>,
}

/// The requests of a thread that are younger than the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Young {
    count: u32,
    /// The age of the oldest of them.
    oldest: Duration,
}

/// Threads that wait for data.
pub(crate) struct Hold {
    waiting: Waiting,
    readers: MapHandle,
    flows: MapHandle,
    /// Those that we pinned.
    tasks: HashMap<u32, TaskRef>,
    /// Those to be let go that cannot be read now.
    late: Vec<TaskRef>,
    counts: HoldCounts,
    swept: Instant,
}

impl Hold {
    /// No thread is held for longer than `limit` without an answer.
    pub(crate) fn new(object: &Object, limit: Duration) -> Result<Self, ObjectError> {
        Ok(Self {
            waiting: Waiting { limit, waiters: HashMap::new(), timed_out: 0 },
            readers: map::<RawReader>(object, READERS)?,
            flows: map::<RawFlow>(object, FLOWS)?,
            tasks: HashMap::new(),
            late: Vec::new(),
            counts: HoldCounts::default(),
            swept: Instant::now(),
        })
    }

    /// What came of it.
    pub(crate) fn counts(&self) -> HoldCounts {
        HoldCounts { held: self.tasks.len() as u64, ..self.counts }
    }

    /// Holds the threads that wait on one of these cores, and lets go of all others.
    ///
    /// # Errors
    /// The kernel does not list waiting threads, or there is no supervisor.
    pub(crate) fn look(
        &mut self,
        guarded: &mut SupervisedSession,
        cores: &CpuSet,
    ) -> Result<(), HoldError> {
        for task in std::mem::take(&mut self.late) {
            // Not if it is held again.
            if self.tasks.get(&(task.tid as u32)) != Some(&task) {
                self.release(guarded, task);
            }
        }
        let readers = self.read()?;
        // Read once for all threads, and only if it is needed.
        let mut asked: Option<Vec<RawFlow>> = None;
        let (flows, limit) = (&self.flows, self.waiting.limit);
        let young = |tid: u32| {
            let asked = asked.get_or_insert_with(|| read_asked(flows));
            young_requests(asked, tid, monotonic_ms(), limit)
        };
        for (tid, step) in self.waiting.judge(Instant::now(), &readers, cores, young) {
            match step {
                Step::Hold(core) => {
                    let Some((_, reader)) = readers.iter().find(|(known, _)| *known == tid) else {
                        continue;
                    };
                    self.hold(guarded, tid, reader, core)?;
                }
                Step::Release => {
                    if let Some(task) = self.tasks.remove(&tid) {
                        self.release(guarded, task);
                    }
                }
            }
        }
        self.counts.timed_out = self.waiting.timed_out;
        if self.counts.holds > 0 && self.swept.elapsed() >= SWEEP {
            self.swept = Instant::now();
            for why in guarded.session().free_all_inherited().errors {
                tracing::debug!("{why}");
            }
        }
        Ok(())
    }

    fn read(&self) -> Result<Vec<(u32, RawReader)>, ObjectError> {
        entries(&self.readers, MAX_READERS).map_err(bpf("reading the threads that wait for data"))
    }

    fn hold(
        &mut self,
        guarded: &mut SupervisedSession,
        tid: u32,
        reader: &RawReader,
        core: u32,
    ) -> Result<(), SupervisorError> {
        let Some(task) = thread_of(tid, reader) else { return Ok(()) };
        match guarded.supervised()?.place(&task, core) {
            Ok(Placed::Pinned) => {
                self.counts.holds += 1;
                self.tasks.insert(tid, task);
            }
            Ok(Placed::Yielded { newly, .. }) => self.counts.yielded += u64::from(newly),
            // It can run nowhere else anyway.
            Ok(Placed::Unchanged) | Err(PlaceError::Gone { .. }) => {}
            Err(why) => {
                tracing::debug!("{task} is not held: {why}");
                self.counts.refused += 1;
            }
        }
        Ok(())
    }

    fn release(&mut self, guarded: &mut SupervisedSession, task: TaskRef) {
        match guarded.session().release(&task) {
            Ok(Released::Kept { .. }) => self.counts.yielded += 1,
            Ok(_) => {}
            Err(why) if why.is_late() => self.late.push(task),
            Err(why) => tracing::warn!("{task} cannot be let go: {why}"),
        }
    }
}

/// The connections with a request that waits. Where they cannot be read, none: then no thread is held
/// for longer than the limit.
fn read_asked(flows: &MapHandle) -> Vec<RawFlow> {
    let read: Vec<(RawKey, RawFlow)> = entries(flows, MAX_FLOWS)
        .inspect_err(|why| tracing::debug!("reading the connections: {why}"))
        .unwrap_or_default();
    read.into_iter().map(|(_, flow)| flow).filter(|flow| flow.asker != 0).collect()
}

/// Milliseconds of CLOCK_MONOTONIC, as the programs count them: in 32 bits.
fn monotonic_ms() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    now.as_millis() as u32
}

fn young_requests(asked: &[RawFlow], tid: u32, now_ms: u32, limit: Duration) -> Young {
    let ages = asked.iter().filter(|flow| flow.asker == tid).map(|flow| {
        // A request that was sent since `now_ms` was read has no age.
        let age_ms = now_ms.wrapping_sub(flow.asked_ms).cast_signed().max(0);
        Duration::from_millis(u64::from(age_ms.cast_unsigned()))
    });
    ages.filter(|age| *age < limit).fold(Young::default(), |young, age| Young {
        count: young.count + 1,
        oldest: young.oldest.max(age),
    })
}

/// The threads to hold, by what the programs recorded.
struct Waiting {
    limit: Duration,
    waiters: HashMap<u32, Waiter>,
    timed_out: u64,
}

impl Waiting {
    /// `young` counts the requests of a thread that are younger than the limit.
    fn judge(
        &mut self,
        now: Instant,
        readers: &[(u32, RawReader)],
        cores: &CpuSet,
        mut young: impl FnMut(u32) -> Young,
    ) -> Vec<(u32, Step)> {
        let mut steps = Vec::new();
        let mut before = std::mem::take(&mut self.waiters);
        for (tid, reader) in readers {
            let mut was = before.remove(tid);
            let is_other = |was: &mut Waiter| was.start_boottime_ns != reader.start_boottime_ns;
            // A later thread has the number now.
            if was.take_if(is_other).is_some_and(|ended| ended.held_since.is_some()) {
                steps.push((*tid, Step::Release));
            }
            let mut waiter = was.unwrap_or(Waiter {
                start_boottime_ns: reader.start_boottime_ns,
                late: reader.late,
                ..Waiter::default()
            });
            let answered_late = reader.late.wrapping_sub(waiter.late);
            waiter.late = reader.late;
            waiter.ignored = waiter.ignored.saturating_sub(answered_late).min(reader.outstanding);
            let is_usable = cores.contains(reader.core);
            let is_too_long = |since: Instant| now.saturating_duration_since(since) >= self.limit;
            if is_usable
                && reader.outstanding > waiter.ignored
                && waiter.held_since.is_some_and(is_too_long)
            {
                let young = young(*tid);
                let ignored = reader.outstanding.saturating_sub(young.count);
                // Also beside a younger request, for which the thread stays held.
                self.timed_out += u64::from(ignored.saturating_sub(waiter.ignored));
                waiter.ignored = ignored;
                waiter.held_since = now.checked_sub(young.oldest);
            }
            let waits = is_usable && reader.outstanding > waiter.ignored;
            let was_held = was.is_some_and(|waiter| waiter.held_since.is_some());
            match (was_held, waits) {
                (false, true) => {
                    waiter.held_since = Some(now);
                    steps.push((*tid, Step::Hold(reader.core)));
                }
                (true, false) => {
                    waiter.held_since = None;
                    steps.push((*tid, Step::Release));
                }
                _ => {}
            }
            if waits || waiter.ignored > 0 {
                self.waiters.insert(*tid, waiter);
            }
        }
        // Nothing is known of them any more.
        let forgotten = before.into_iter().filter(|(_, waiter)| waiter.held_since.is_some());
        steps.extend(forgotten.map(|(tid, _)| (tid, Step::Release)));
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn waiting() -> (Waiting, Instant, CpuSet) {
        let waiting = Waiting { limit: LIMIT, waiters: HashMap::new(), timed_out: 0 };
        (waiting, Instant::now(), CpuSet::first(2))
    }

    fn reader(core: u32, late: u32, outstanding: u32) -> [(u32, RawReader); 1] {
        [(7, RawReader { start_boottime_ns: 5, tgid: 7, core, late, outstanding })]
    }

    fn none(_: u32) -> Young {
        Young::default()
    }

    #[test]
    fn held_until_the_last_answer_has_come() {
        let (mut waiting, now, cores) = waiting();
        let mut judge = |outstanding| waiting.judge(now, &reader(1, 0, outstanding), &cores, none);
        assert_eq!(judge(0), []);
        assert_eq!(judge(3), [(7, Step::Hold(1))]);
        assert_eq!(judge(2), []);
        assert_eq!(judge(0), [(7, Step::Release)]);
        assert_eq!(judge(0), []);
        assert_eq!(judge(1), [(7, Step::Hold(1))]);
        // The programs forgot it: too many other threads wait.
        assert_eq!(waiting.judge(now, &[], &cores, none), [(7, Step::Release)]);
        assert_eq!(waiting.judge(now, &[], &cores, none), []);
    }

    #[test]
    fn a_later_thread_with_the_number_waits_for_its_own_requests() {
        let (mut waiting, now, cores) = waiting();
        let mut judge = |start_boottime_ns, core| {
            let readers = reader(core, 0, 1)
                .map(|(tid, asks)| (tid, RawReader { start_boottime_ns, ..asks }));
            waiting.judge(now, &readers, &cores, none)
        };
        assert_eq!(judge(5, 1), [(7, Step::Hold(1))]);
        assert_eq!(judge(5, 1), []);
        assert_eq!(judge(9, 0), [(7, Step::Release), (7, Step::Hold(0))]);
        assert_eq!(judge(9, 0), []);
    }

    #[test]
    fn a_thread_that_waits_too_long_is_let_go_until_it_asks_again() {
        let (mut waiting, start, cores) = waiting();
        let mut judge = |at: u32, late, outstanding| {
            waiting.judge(start + LIMIT / 2 * at, &reader(0, late, outstanding), &cores, none)
        };
        assert_eq!(judge(0, 0, 1), [(7, Step::Hold(0))]);
        assert_eq!(judge(1, 0, 1), []);
        assert_eq!(judge(2, 0, 1), [(7, Step::Release)]);
        assert_eq!(judge(3, 0, 1), []);
        // The late answer, and the next request since the last look: that one is waited for.
        assert_eq!(judge(4, 1, 1), [(7, Step::Hold(0))]);
        assert_eq!(waiting.timed_out, 1);
    }

    #[test]
    fn a_silent_connection_beside_an_active_one_does_not_hold() {
        let (mut waiting, start, cores) = waiting();
        // One request is never answered; another one is sent, and answered, four times a second.
        let mut held = 0;
        for at in 0..400 {
            let now = start + LIMIT / 40 * at;
            let is_asked = at % 10 < 2;
            let young = |_| Young { count: u32::from(is_asked), oldest: LIMIT / 40 * (at % 10) };
            let readers = reader(0, 0, 1 + u32::from(is_asked));
            waiting.judge(now, &readers, &cores, young);
            let is_held = waiting.waiters[&7].held_since.is_some();
            // Once the silent one is known, only while the other one waits.
            assert!(at < 50 || is_held == is_asked, "{at}");
            held += u32::from(is_held);
        }
        // The first second, and a fifth of the rest.
        assert!(held < 120, "{held}");
    }

    #[test]
    fn a_request_that_times_out_beside_a_younger_one_is_counted() {
        let (mut waiting, start, cores) = waiting();
        let young = |_| Young { count: 1, oldest: LIMIT / 10 };
        for (at, outstanding, steps) in [(0, 1, 1), (1, 2, 0), (2, 2, 0), (3, 2, 0)] {
            let now = start + LIMIT / 2 * at;
            let judged = waiting.judge(now, &reader(0, 0, outstanding), &cores, young);
            assert_eq!(judged.len(), steps, "{at}");
        }
        assert_eq!(waiting.timed_out, 1);
    }

    #[test]
    fn a_thread_that_is_answered_stays_held_while_it_asks() {
        let (mut waiting, start, cores) = waiting();
        // At every look a request waits, never the same one for long.
        for at in 0..100 {
            let young = |_| Young { count: 1, oldest: LIMIT / 10 };
            let now = start + LIMIT / 4 * at;
            let steps = waiting.judge(now, &reader(0, 0, 1), &cores, young);
            assert_eq!(steps.len(), usize::from(at == 0), "{at}: {steps:?}");
        }
        assert_eq!(waiting.timed_out, 0);
    }

    #[test]
    fn requests_are_young_up_to_the_limit() {
        let flow = |asker, asked_ms| RawFlow { asker, asked_ms, ..bytemuck::Zeroable::zeroed() };
        let now_ms = 500_u32;
        // The clock counts in 32 bits; one request was sent after it was read.
        let ago = |ms| now_ms.wrapping_sub(ms);
        let asked = [flow(7, ago(300)), flow(7, ago(1000)), flow(8, ago(1)), flow(7, now_ms + 2)];
        let young = young_requests(&asked, 7, now_ms, LIMIT);
        assert_eq!(young, Young { count: 2, oldest: Duration::from_millis(300) });
        assert_eq!(young_requests(&asked, 9, now_ms, LIMIT), Young::default());
    }

    #[test]
    fn no_thread_is_held_on_a_core_that_must_not_be_used() {
        let (mut waiting, now, cores) = waiting();
        let mut judge = |core, cores: &CpuSet| waiting.judge(now, &reader(core, 0, 1), cores, none);
        assert_eq!(judge(5, &cores), []);
        assert_eq!(judge(crate::layout::NO_CORE, &cores), []);
        assert_eq!(judge(1, &cores), [(7, Step::Hold(1))]);
        // The core went.
        assert_eq!(judge(1, &CpuSet::first(1)), [(7, Step::Release)]);
    }
}
