//! `--hold`: the paper's "the application process should be bundled on the core which requested data
//! before data return". A thread that waits for an answer is pinned to the core where it asked, under
//! the journal, and given its own CPUs back when something has come.
//!
//! The programs record waiting threads (bpf/sais/consumer.h), which are read every
//! [`INTERVAL`]: a read that is answered in less may pass without, and in so short a time the kernel
//! hardly moves anybody.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use evenkeel_journal::{
    PlaceError, Placed, Released, Style, SupervisedSession, SupervisorError, TaskRef,
};
use evenkeel_machine::CpuSet;
use libbpf_rs::{MapHandle, Object};
use serde::{Deserialize, Serialize};

use crate::object::{ObjectError, bpf, entries, map};
use crate::records::RawReader;

/// How often waiting threads are read.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);
/// How often threads that were born with a pin of ours are looked for, while anybody is held.
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
    /// Nobody would let go of them.
    #[error("no thread is held without a supervisor: {0}")]
    Supervisor(#[from] SupervisorError),
}

/// What came of it, since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldCounts {
    /// Threads that are held now.
    pub held: u64,
    /// How often a thread was pinned to the core where it had asked.
    pub holds: u64,
    /// How often one was let go because no answer came for too long.
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

/// How a thread stands that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Held, for this answer since then.
    Held { since: Instant, answers: u32 },
    /// Let go, because none came.
    GivenUp { answers: u32 },
}

/// Threads that wait for data.
pub(crate) struct Hold {
    waiting: Waiting,
    readers: MapHandle,
    /// Those that we pinned.
    tasks: HashMap<u32, TaskRef>,
    counts: HoldCounts,
    swept: Instant,
}

impl Hold {
    /// Nobody is held for longer than `limit` without an answer.
    pub(crate) fn new(object: &Object, limit: Duration) -> Result<Self, ObjectError> {
        Ok(Self {
            waiting: Waiting { limit, states: HashMap::new(), timed_out: 0 },
            readers: map::<RawReader>(object, READERS)?,
            tasks: HashMap::new(),
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
        let readers = self.read()?;
        for (tid, step) in self.waiting.judge(Instant::now(), &readers, cores) {
            match step {
                Step::Hold(core) => {
                    let Some((_, reader)) = readers.iter().find(|(known, _)| *known == tid) else {
                        continue;
                    };
                    self.hold(guarded, tid, reader.tgid, core)?;
                }
                Step::Release => self.release(guarded, tid),
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
        tgid: u32,
        core: u32,
    ) -> Result<(), SupervisorError> {
        // Ended, or of another PID namespace than ours.
        let Ok(task) = TaskRef::in_process(tgid as i32, tid as i32) else { return Ok(()) };
        match guarded.supervised()?.place(&task, core, Style::Hard) {
            Ok(Placed::Pinned) => {
                self.counts.holds += 1;
                self.tasks.insert(tid, task);
            }
            Ok(Placed::Yielded { newly, .. }) => self.counts.yielded += u64::from(newly),
            // It can run nowhere else anyway.
            Ok(Placed::Unchanged | Placed::Moved) | Err(PlaceError::Gone { .. }) => {}
            Err(why) => {
                tracing::debug!("{task} is not held: {why}");
                self.counts.refused += 1;
            }
        }
        Ok(())
    }

    fn release(&mut self, guarded: &mut SupervisedSession, tid: u32) {
        let Some(task) = self.tasks.remove(&tid) else { return };
        match guarded.session().release(&task) {
            Ok(Released::Kept { .. }) => self.counts.yielded += 1,
            Ok(_) => {}
            Err(why) => tracing::warn!("{task} cannot be let go: {why}"),
        }
    }
}

/// The threads to hold, by what the programs recorded.
struct Waiting {
    limit: Duration,
    states: HashMap<u32, State>,
    timed_out: u64,
}

impl Waiting {
    fn judge(
        &mut self,
        now: Instant,
        readers: &[(u32, RawReader)],
        cores: &CpuSet,
    ) -> Vec<(u32, Step)> {
        let mut steps = Vec::new();
        let mut before = std::mem::take(&mut self.states);
        for (tid, reader) in readers {
            let was = before.remove(tid);
            let waits = reader.outstanding > 0 && cores.contains(reader.core);
            let answers = reader.answers;
            let held = State::Held { since: now, answers };
            let state = match was {
                Some(State::Held { .. }) if !waits => {
                    steps.push((*tid, Step::Release));
                    continue;
                }
                _ if !waits => continue,
                None => held,
                // Something has come meanwhile, and it waits for the next.
                Some(State::Held { answers: seen, .. }) if seen != answers => {
                    self.states.insert(*tid, held);
                    continue;
                }
                Some(State::Held { since, .. }) if now.duration_since(since) >= self.limit => {
                    steps.push((*tid, Step::Release));
                    self.timed_out += 1;
                    State::GivenUp { answers }
                }
                Some(State::GivenUp { answers: seen }) if seen != answers => held,
                Some(as_before) => {
                    self.states.insert(*tid, as_before);
                    continue;
                }
            };
            if state == held {
                steps.push((*tid, Step::Hold(reader.core)));
            }
            self.states.insert(*tid, state);
        }
        // Nothing is known of them any more.
        let forgotten = before.into_iter().filter(|(_, state)| matches!(state, State::Held { .. }));
        steps.extend(forgotten.map(|(tid, _)| (tid, Step::Release)));
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn waiting() -> (Waiting, Instant, CpuSet) {
        let waiting = Waiting { limit: LIMIT, states: HashMap::new(), timed_out: 0 };
        (waiting, Instant::now(), CpuSet::first(2))
    }

    fn reader(core: u32, answers: u32, outstanding: u32) -> [(u32, RawReader); 1] {
        [(7, RawReader { tgid: 7, core, answers, outstanding })]
    }

    #[test]
    fn held_until_the_last_answer_has_come() {
        let (mut waiting, now, cores) = waiting();
        let mut judge =
            |answers, outstanding| waiting.judge(now, &reader(1, answers, outstanding), &cores);
        assert_eq!(judge(0, 0), []);
        assert_eq!(judge(0, 3), [(7, Step::Hold(1))]);
        assert_eq!(judge(1, 2), []);
        assert_eq!(judge(3, 0), [(7, Step::Release)]);
        assert_eq!(judge(3, 0), []);
        assert_eq!(judge(3, 1), [(7, Step::Hold(1))]);
        // The programs forgot it: too many others wait.
        assert_eq!(waiting.judge(now, &[], &cores), [(7, Step::Release)]);
        assert_eq!(waiting.judge(now, &[], &cores), []);
    }

    #[test]
    fn who_waits_for_too_long_is_let_go_until_something_comes() {
        let (mut waiting, start, cores) = waiting();
        let mut judge = |at: u32, answers| {
            waiting.judge(start + LIMIT / 2 * at, &reader(0, answers, 1), &cores)
        };
        assert_eq!(judge(0, 0), [(7, Step::Hold(0))]);
        // An answer, and the next request: the time begins anew.
        assert_eq!(judge(1, 1), []);
        assert_eq!(judge(2, 1), []);
        assert_eq!(judge(3, 1), [(7, Step::Release)]);
        assert_eq!(judge(4, 1), []);
        assert_eq!(judge(5, 2), [(7, Step::Hold(0))]);
        assert_eq!(waiting.timed_out, 1);
    }

    #[test]
    fn nobody_is_held_on_a_core_that_must_not_be_used() {
        let (mut waiting, now, cores) = waiting();
        assert_eq!(waiting.judge(now, &reader(5, 0, 1), &cores), []);
        assert_eq!(waiting.judge(now, &reader(crate::records::NO_CORE, 0, 1), &cores), []);
        assert_eq!(waiting.judge(now, &reader(1, 0, 1), &cores), [(7, Step::Hold(1))]);
        // The core went.
        assert_eq!(waiting.judge(now, &reader(1, 0, 1), &CpuSet::first(1)), [(7, Step::Release)]);
    }
}
