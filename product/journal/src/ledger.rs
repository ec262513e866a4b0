//! What the lines of a journal add up to: which threads carry a mask of ours, what they had
//! before, and which masks a process held when. The same ledger serves the session while it runs
//! and whoever replays the file after it.

use std::collections::{BTreeMap, HashMap};

use evenkeel_machine::CpuSet;

use crate::affinity::Original;
use crate::record::{Closed, Header, Held, Pin, Program, Record};
use crate::setting::Setting;
use crate::task::{Processes, TaskRef, ticks_per_second};

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Carries our mask.
    Pinned,
    /// Has its own again.
    Released,
    /// Changed by somebody else: let go for good.
    Yielded,
}

/// A task that we touched.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its last pin.
    pub pin: Pin,
    /// How it stands.
    pub state: State,
    /// What "all CPUs" was when it was given that back: before 6.2 the kernel makes a list of it,
    /// which lacks the CPUs that come later.
    pub left: Option<CpuSet>,
}

/// Whose mask it is that a task carries now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Ours, and this is what to give back.
    Ours(Original),
    /// We touched the task, and it has what it had before.
    AsBefore,
    /// We touched the task, and somebody else changed it since.
    Foreign,
    /// We never touched the task, and it inherited nothing of ours.
    Unknown,
}

/// See the file's head.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<u64, Entry>,
    by_task: HashMap<TaskRef, u64>,
    held: HashMap<TaskRef, Vec<Held>>,
    programs: Vec<Program>,
    /// Knobs that we turned.
    settings: Vec<Setting>,
    /// The pin of the last line: whether its call was made is not known yet.
    pending: Option<u64>,
    /// Who adopts orphans, if the writer died and did not see what was forked last.
    adopter: Option<TaskRef>,
}

/// Closed records of ended processes kept by compaction, for orphans of theirs.
const MAX_ENDED_HELD: usize = 1024;

/// Programs whose first process has ended that compaction keeps, for the same reason.
const MAX_ENDED_PROGRAMS: usize = 64;

impl Ledger {
    /// The books of a writer that has ended without closing them.
    pub fn of_dead_writer(header: &Header, records: &[Record]) -> Self {
        let mut ledger = Self { adopter: header.adopter, ..Self::default() };
        records.iter().for_each(|record| ledger.apply(record));
        ledger
    }

    /// Takes a line into account. Headers are the reader's business.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Header(_) => {}
            Record::Program(program) => {
                if !self.programs.contains(program) {
                    self.programs.push(*program);
                }
            }
            Record::Pin(pin) => self.apply_pin(pin),
            Record::Restored(closed) => self.close(*closed, State::Released),
            Record::Yielded(closed) => self.close(*closed, State::Yielded),
            Record::Setting(setting) => {
                self.settings.retain(|known| known.file != setting.file);
                self.settings.push(setting.clone());
            }
            Record::SettingClosed(closed) => {
                self.settings.retain(|known| known.file != closed.file);
            }
            Record::Held(held) => {
                let mine = self.held_of(&held.process, &held.mask, &held.original, held.from_ns);
                mine.until_ns = mine.until_ns.max(held.until_ns);
            }
        }
    }

    fn apply_pin(&mut self, pin: &Pin) {
        // A writer announces its next call after it has made the last one. (Other lines say less:
        // an undo writes them, too.)
        self.confirm();
        let before = self.entries.get(&pin.id).filter(|entry| entry.state == State::Pinned);
        if let Some(old) = before.map(|entry| entry.pin.clone()) {
            self.let_loose(&old, pin.time_ns);
        } else if let Some(inherited) = &pin.replaces {
            // It was born with a mask of ours, and so are its children until now.
            let born_ns = pin.task.start_time_ticks.saturating_mul(tick_ns());
            let mine = self.held_of(&pin.process, inherited, &pin.original, born_ns);
            mine.until_ns = mine.until_ns.max(pin.time_ns);
        }
        let mine = self.held_of(&pin.process, &pin.set, &pin.original, pin.time_ns);
        mine.holders += 1;
        self.by_task.insert(pin.task, pin.id);
        self.entries.insert(pin.id, Entry { pin: pin.clone(), state: State::Pinned, left: None });
        self.pending = Some(pin.id);
    }

    /// The last pin was carried out: from now on, the mask that it replaced is no longer ours. A
    /// task that carries it again was given it by its user.
    pub fn confirm(&mut self) {
        if let Some(entry) = self.pending.take().and_then(|id| self.entries.get_mut(&id)) {
            entry.pin.replaces = None;
        }
    }

    fn close(&mut self, closed: Closed, state: State) {
        // No entry: the line of its pin is damaged; nothing is known, so nothing is done.
        let Some(entry) = self.entries.get_mut(&closed.id) else { return };
        let was = std::mem::replace(&mut entry.state, state);
        let pin = entry.pin.clone();
        if was == State::Pinned {
            self.let_loose(&pin, closed.time_ns);
        }
    }

    /// A task that was given back all CPUs has these now.
    pub fn note_left(&mut self, id: u64, left: CpuSet) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.left = Some(left);
        }
    }

    /// One holder of the pin's mask less.
    fn let_loose(&mut self, pin: &Pin, time_ns: u64) {
        let mine = self.held_of(&pin.process, &pin.set, &pin.original, pin.time_ns);
        mine.holders = mine.holders.saturating_sub(1);
        mine.until_ns = mine.until_ns.max(time_ns);
    }

    fn held_of(
        &mut self,
        process: &TaskRef,
        mask: &CpuSet,
        original: &Original,
        from_ns: u64,
    ) -> &mut Held {
        let list = self.held.entry(*process).or_default();
        let index = list.iter().position(|held| held.mask == *mask && held.original == *original);
        let index = index.unwrap_or_else(|| {
            list.push(Held {
                process: *process,
                mask: mask.clone(),
                original: original.clone(),
                from_ns,
                until_ns: from_ns,
                holders: 0,
            });
            list.len() - 1
        });
        let mine = &mut list[index];
        mine.from_ns = mine.from_ns.min(from_ns);
        mine
    }

    /// What is known of a task.
    pub fn entry(&self, task: &TaskRef) -> Option<&Entry> {
        self.by_task.get(task).and_then(|id| self.entries.get(id))
    }

    /// The tasks that carry our mask as far as we know.
    pub fn pinned(&self) -> Vec<Pin> {
        let pinned = self.entries.values().filter(|entry| entry.state == State::Pinned);
        pinned.map(|entry| entry.pin.clone()).collect()
    }

    /// Whether we ever set any mask.
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether we ever set this mask.
    pub fn has_set(&self, mask: &CpuSet) -> bool {
        self.held.values().flatten().any(|held| held.mask == *mask)
    }

    /// What this process held.
    pub fn held_by(&self, process: &TaskRef) -> &[Held] {
        self.held.get(process).map(Vec::as_slice).unwrap_or_default()
    }

    /// What any process held.
    pub fn all_held(&self) -> impl Iterator<Item = &Held> {
        self.held.values().flatten()
    }

    /// The process whose children may be orphans that a dead writer did not see made.
    pub fn adopter(&self) -> Option<TaskRef> {
        self.adopter
    }

    /// The programs that the session looks after.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The knobs that we turned, in that order.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// A task was found to have inherited a mask; its own children may have done so, too.
    pub fn note_heir(&mut self, process: &TaskRef, mask: &CpuSet, original: &Original, born: u64) {
        let until_ns = crate::task::now_ns();
        let mine = self.held_of(process, mask, original, born.saturating_mul(tick_ns()));
        mine.until_ns = mine.until_ns.max(until_ns);
    }

    /// Whose the mask `current` of `task` is, while its cpuset is `effective`.
    pub fn claim(
        &self,
        task: &TaskRef,
        current: &CpuSet,
        effective: &CpuSet,
        processes: &mut Processes,
    ) -> Claim {
        let Some(entry) = self.entry(task) else {
            return match self.heir(task, current, processes) {
                Some(original) => Claim::Ours(original),
                None => Claim::Unknown,
            };
        };
        let pin = &entry.pin;
        match entry.state {
            State::Yielded => return Claim::Foreign,
            State::Pinned if is_ours(pin, current, effective) => {
                return Claim::Ours(pin.original.clone());
            }
            State::Pinned | State::Released => {}
        }
        if let Some(original) = self.heir_by_exec(task, current) {
            return Claim::Ours(original);
        }
        // A CPU that comes online is in the mask before it is in the cpuset.
        let has_all = pin.original == Original::All && effective.is_subset(current);
        let is_left = entry.state == State::Released && entry.left.as_ref() == Some(current);
        if has_all || is_left || pin.original.shown_in(effective) == *current {
            Claim::AsBefore
        } else {
            Claim::Foreign
        }
    }

    /// exec(2) by a thread that is not the leader gives the leader's number and start time to that
    /// thread, which keeps its own mask: then the leader carries what we gave to another thread
    /// that exists no more.
    pub fn heir_by_exec(&self, task: &TaskRef, current: &CpuSet) -> Option<Original> {
        if task.tid != task.tgid {
            return None;
        }
        self.entries
            .values()
            .filter(|entry| entry.state == State::Pinned)
            .map(|entry| &entry.pin)
            .find(|pin| {
                pin.process == *task
                    && pin.task != *task
                    && (pin.set == *current || pin.replaces.as_ref() == Some(current))
                    && !pin.task.is_alive()
            })
            .map(|pin| pin.original.clone())
    }

    /// Forgets tasks that have ended, and gives the lines that say all the rest.
    pub fn compact(&mut self, now_ns: u64) -> Vec<Record> {
        let ended: Vec<u64> = self
            .entries
            .values()
            .filter(|entry| !entry.pin.task.is_alive() && !self.may_live_on_by_exec(&entry.pin))
            .map(|entry| entry.pin.id)
            .collect();
        for id in ended {
            self.close(Closed { id, time_ns: now_ns }, State::Released);
            if let Some(entry) = self.entries.remove(&id) {
                self.by_task.remove(&entry.pin.task);
            }
        }
        self.drop_old_held();
        self.drop_old_programs();
        let programs = self.programs.iter().map(|program| Record::Program(*program));
        let mut records: Vec<Record> = programs.collect();
        records.extend(self.settings.iter().cloned().map(Record::Setting));
        // Before the pins: these count the holders again.
        records.extend(self.all_held().map(|held| Record::Held(held.clone())));
        for Entry { pin, state, .. } in self.entries.values() {
            records.push(Record::Pin(pin.clone()));
            let closed = Closed { id: pin.id, time_ns: pin.time_ns };
            match state {
                State::Pinned => {}
                State::Released => records.push(Record::Restored(closed)),
                State::Yielded => records.push(Record::Yielded(closed)),
            }
        }
        records
    }

    fn may_live_on_by_exec(&self, pin: &Pin) -> bool {
        pin.task != pin.process
            && pin.process.is_alive()
            && crate::affinity::get(pin.process.tid).is_ok_and(|mask| mask == pin.set)
    }

    /// The oldest first.
    fn drop_old_programs(&mut self) {
        let ended = self.programs.iter().filter(|program| !program.root.is_alive()).count();
        let mut surplus = ended.saturating_sub(MAX_ENDED_PROGRAMS);
        self.programs.retain(|program| {
            if surplus == 0 || program.root.is_alive() {
                return true;
            }
            surplus -= 1;
            false
        });
    }

    /// Children may outlive a process that held a mask, but not without limit.
    fn drop_old_held(&mut self) {
        let mut ended: Vec<(u64, TaskRef)> = self
            .held
            .iter()
            .filter(|(process, list)| {
                list.iter().all(|held| held.holders == 0) && !process.is_alive()
            })
            .map(|(process, list)| {
                (list.iter().map(|held| held.until_ns).max().unwrap_or(0), *process)
            })
            .collect();
        ended.sort_unstable();
        let surplus = ended.len().saturating_sub(MAX_ENDED_HELD);
        for (_, process) in ended.into_iter().take(surplus) {
            self.held.remove(&process);
        }
    }
}

/// Whether a pinned task still carries what we wrote.
fn is_ours(pin: &Pin, current: &CpuSet, effective: &CpuSet) -> bool {
    *current == pin.set
        || pin.replaces.as_ref() == Some(current)
        // Its CPU left the cpuset or went offline. Nobody but the kernel widened the mask; and as
        // long as the task sleeps it has not, and shows none of the CPUs that there are.
        || (pin.set.intersection(effective).is_empty()
            && (effective.is_subset(current) || current.is_empty()))
}

/// Length of a clock tick.
pub(crate) fn tick_ns() -> u64 {
    1_000_000_000 / ticks_per_second()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::just;

    fn task(tid: i32) -> TaskRef {
        // Far above any real number: nothing of the host is touched by these tests.
        TaskRef { tid: 2_000_000_000 + tid, tgid: 2_000_000_000, start_time_ticks: 500 }
    }

    fn pin(id: u64, replaces: Option<u32>, set: u32, time_ns: u64) -> Record {
        Record::Pin(Pin {
            id,
            task: task(id as i32),
            process: task(0),
            original: Original::All,
            replaces: replaces.map(just),
            set: just(set),
            time_ns,
        })
    }

    fn claim(ledger: &Ledger, id: i32, current: &str, effective: &str) -> Claim {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        ledger.claim(&task(id), &cpus(current), &cpus(effective), &mut Processes::default())
    }

    #[test]
    fn only_what_we_wrote_is_ours() {
        let mut ledger = Ledger::default();
        ledger.apply(&pin(1, None, 2, 10));
        assert_eq!(claim(&ledger, 1, "2", "0-3"), Claim::Ours(Original::All));
        assert_eq!(claim(&ledger, 1, "0-3", "0-3"), Claim::AsBefore);
        assert_eq!(claim(&ledger, 1, "1", "0-3"), Claim::Foreign);
        assert_eq!(claim(&ledger, 9, "1", "0-3"), Claim::Unknown);
        // The cpuset took the CPU away: the kernel's doing, not the user's.
        assert_eq!(claim(&ledger, 1, "0-1", "0-1"), Claim::Ours(Original::All));
        // It was switched off, and the task has slept since.
        assert_eq!(claim(&ledger, 1, "", "0-1"), Claim::Ours(Original::All));
        assert_eq!(claim(&ledger, 1, "", "0-2"), Claim::Foreign);

        // Killed between the line and the call: the old mask of ours is there.
        ledger.apply(&pin(1, Some(2), 3, 20));
        assert_eq!(claim(&ledger, 1, "2", "0-3"), Claim::Ours(Original::All));
        assert_eq!(claim(&ledger, 1, "3", "0-3"), Claim::Ours(Original::All));

        ledger.apply(&Record::Restored(Closed { id: 1, time_ns: 30 }));
        assert_eq!(claim(&ledger, 1, "3", "0-3"), Claim::Foreign);
        assert_eq!(claim(&ledger, 1, "0-3", "0-3"), Claim::AsBefore);
        assert!(ledger.pinned().is_empty());
        // A CPU was off when it was given back all, and has come since.
        assert_eq!(claim(&ledger, 1, "0-2", "0-3"), Claim::Foreign);
        ledger.note_left(1, "0-2".parse().unwrap());
        assert_eq!(claim(&ledger, 1, "0-2", "0-3"), Claim::AsBefore);
        assert_eq!(claim(&ledger, 1, "0-1", "0-3"), Claim::Foreign);

        ledger.apply(&Record::Yielded(Closed { id: 1, time_ns: 30 }));
        assert_eq!(claim(&ledger, 1, "0-3", "0-3"), Claim::Foreign);
        // Lines about unknown ids change nothing.
        ledger.apply(&Record::Restored(Closed { id: 77, time_ns: 30 }));
    }

    #[test]
    fn times_of_a_mask_are_kept_a_process() {
        let mut ledger = Ledger::default();
        ledger.apply(&pin(1, None, 2, 10));
        ledger.apply(&pin(2, None, 2, 15));
        ledger.apply(&pin(1, Some(2), 3, 20));
        let find = |ledger: &Ledger, cpu: u32| {
            let held = ledger.held_by(&task(0)).iter().find(|held| held.mask == just(cpu)).cloned();
            held.map(|held| (held.from_ns, held.until_ns, held.holders))
        };
        assert_eq!(find(&ledger, 2), Some((10, 20, 1)));
        assert_eq!(find(&ledger, 3), Some((20, 20, 1)));
        ledger.apply(&Record::Restored(Closed { id: 2, time_ns: 40 }));
        ledger.apply(&Record::Restored(Closed { id: 2, time_ns: 50 }));
        assert_eq!(find(&ledger, 2), Some((10, 40, 0)));
        assert!(ledger.has_set(&just(2)) && !ledger.has_set(&just(1)));
    }

    #[test]
    fn programs_that_come_and_go_leave_no_growth() {
        let own = TaskRef::own_process().unwrap();
        let mut ledger = Ledger::default();
        ledger.apply(&Record::Program(Program { root: own, session: 7 }));
        for tid in 0..5000 {
            ledger.apply(&Record::Program(Program { root: task(tid), session: 7 }));
        }
        let records = ledger.compact(1000);
        assert_eq!(records.len(), 1 + MAX_ENDED_PROGRAMS);
        assert_eq!(ledger.programs().first().map(|program| program.root), Some(own));
        assert_eq!(ledger.programs().last().map(|program| program.root), Some(task(4999)));
    }

    #[test]
    fn compaction_forgets_the_dead_and_says_the_rest() {
        let own = TaskRef::own_process().unwrap();
        let mut ledger = Ledger::default();
        ledger.apply(&Record::Program(Program { root: own, session: 7 }));
        for round in 0..100 {
            ledger.apply(&pin(1, None, round % 4, 10));
            let mine = Pin {
                id: 2,
                task: own,
                process: own,
                original: Original::All,
                replaces: None,
                set: just(round % 2),
                time_ns: 10 + u64::from(round),
            };
            ledger.apply(&Record::Pin(mine));
        }
        let records = ledger.compact(1000);
        let mut again = Ledger::default();
        records.iter().for_each(|record| again.apply(record));
        assert_eq!(again.pinned(), ledger.pinned());
        assert_eq!(again.pinned().len(), 1);
        assert_eq!(again.programs(), ledger.programs());
        let sorted = |ledger: &Ledger| {
            let mut list: Vec<String> = ledger.all_held().map(|held| format!("{held:?}")).collect();
            list.sort();
            list
        };
        assert_eq!(sorted(&again), sorted(&ledger));
        assert_eq!(sorted(&ledger).len(), 6);
        assert!(records.len() <= 8, "{records:?}");
    }
}
