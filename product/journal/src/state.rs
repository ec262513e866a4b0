//! What the entries of a journal add up to: which threads have a mask of ours, what they had before,
//! and which masks the threads of a process had when. A session applies each entry as it writes it;
//! an undo applies the entries of a dead writer's journal: both see the same state.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use evenkeel_machine::CpuSet;

use crate::affinity::{self, Original};
use crate::entry::{
    Ban, Entry, Header, Held, Line, Persistent, Pin, PinEnd, Program, Setting, Table,
};
use crate::task::{TaskRef, now_ns, tick_ns};

/// Held masks of ended processes that compaction keeps, for their orphans.
const MAX_ENDED_HELD: usize = 1024;

/// Ended programs (their first process has ended) that compaction keeps, for the same reason.
const MAX_ENDED_PROGRAMS: usize = 64;

/// What has become of a task's last pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinState {
    /// The task has our mask.
    Pinned,
    /// The task has its own mask again.
    Released,
    /// Another process changed the mask: the task is let go for good.
    Yielded,
}

/// A task that was placed at least once.
#[derive(Debug, Clone)]
pub struct TrackedTask {
    /// Its last pin.
    pub pin: Pin,
    /// What has become of that pin.
    pub pin_state: PinState,
    /// The mask that the kernel showed right after the task was given back all CPUs. Before 6.2 the
    /// kernel turns "all" into a list of the CPUs online at that moment.
    pub mask_after_restore: Option<CpuSet>,
}

/// What the entries of a journal add up to.
#[derive(Debug, Default)]
pub struct JournalState {
    /// By [`Pin::id`].
    tasks: BTreeMap<u64, TrackedTask>,
    ids: HashMap<TaskRef, u64>,
    /// By process.
    held: HashMap<TaskRef, Vec<Held>>,
    programs: Vec<Program>,
    /// In the order in which they were changed.
    settings: Vec<Setting>,
    /// The interrupt lines that have an affinity of ours.
    lines: Vec<Line>,
    /// The network devices that have an RSS indirection table of ours.
    tables: Vec<Table>,
    /// The lines that irqbalance leaves alone for us.
    bans: Vec<Ban>,
    /// The changes outlive their writer.
    is_persistent: bool,
    /// The pin of the last entry: it is not known yet whether the mask was set.
    pending: Option<u64>,
    /// The process that adopts orphans, if the writer died and may have missed its last forks.
    reaper: Option<TaskRef>,
}

impl JournalState {
    /// The state that a writer left which died before it closed its journal.
    pub fn of_dead_writer(header: &Header, entries: &[Entry]) -> Self {
        let mut state = Self { reaper: header.reaper, ..Self::default() };
        entries.iter().for_each(|entry| state.apply(entry));
        state
    }

    /// Applies one entry. A header changes nothing.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Header(_) => {}
            Entry::Program(program) => {
                if !self.programs.contains(program) {
                    self.programs.push(*program);
                }
            }
            Entry::Pin(pin) => self.apply_pin(pin),
            Entry::Restored(end) => self.end_pin(*end, PinState::Released),
            Entry::Yielded(end) => self.end_pin(*end, PinState::Yielded),
            Entry::Setting(setting) => {
                self.settings.retain(|known| known.file != setting.file);
                self.settings.push(setting.clone());
            }
            Entry::SettingClosed(end) => {
                self.settings.retain(|known| known.file != end.file);
            }
            Entry::Line(line) => {
                // A writer announces its next move after it has carried out the last one.
                self.confirm_lines();
                self.remove_line(&line.root, line.number);
                self.lines.push(line.clone());
            }
            Entry::LineClosed(end) => self.remove_line(&end.root, end.number),
            Entry::Table(table) => {
                // A writer announces its next table after it has set the last one.
                self.confirm_tables();
                self.remove_table(&table.root, &table.device);
                self.tables.push(table.clone());
            }
            Entry::TableClosed(end) => self.remove_table(&end.root, &end.device),
            Entry::Ban(ban) => {
                self.remove_ban(&ban.process, ban.line);
                self.bans.push(ban.clone());
            }
            Entry::BanClosed(end) => self.remove_ban(&end.process, end.line),
            Entry::Persistent(_) => self.is_persistent = true,
            Entry::Held(held) => {
                let known = self.held_mut(&held.process, &held.mask, &held.original, held.from_ns);
                known.until_ns = known.until_ns.max(held.until_ns);
            }
        }
    }

    fn remove_line(&mut self, root: &Path, number: u32) {
        self.lines.retain(|known| known.root != root || known.number != number);
    }

    fn remove_table(&mut self, root: &Path, device: &str) {
        self.tables.retain(|known| known.root != root || known.device != device);
    }

    /// Notes that each table was set: the one that the last change replaced is no longer ours.
    pub fn confirm_tables(&mut self) {
        self.tables.iter_mut().for_each(|table| table.replaces = None);
    }

    fn remove_ban(&mut self, process: &TaskRef, line: u32) {
        self.bans.retain(|known| known.process != *process || known.line != line);
    }

    /// Notes that each line was moved: the affinity that the last move replaced is no longer ours.
    pub fn confirm_lines(&mut self) {
        self.lines.iter_mut().for_each(|line| line.replaces = None);
    }

    fn apply_pin(&mut self, pin: &Pin) {
        // A writer announces its next pin after it has carried out the last one. Other entries prove
        // nothing: an undo appends them, too.
        self.confirm_pending_pin();
        let before = self.tasks.get(&pin.id);
        let before = before.filter(|tracked| tracked.pin_state == PinState::Pinned);
        if let Some(old) = before.map(|tracked| tracked.pin.clone()) {
            self.remove_holder(&old, pin.time_ns);
        } else if let Some(inherited) = &pin.replaces {
            // The task was born with a mask of ours, and so were its children until now.
            let born_ns = pin.task.start_time_ticks.saturating_mul(tick_ns());
            let held = self.held_mut(&pin.process, inherited, &pin.original, born_ns);
            held.until_ns = held.until_ns.max(pin.time_ns);
        }
        let held = self.held_mut(&pin.process, &pin.set, &pin.original, pin.time_ns);
        held.holders += 1;
        self.ids.insert(pin.task, pin.id);
        // Still known if this pin is not carried out.
        let before = self.tasks.get(&pin.id).filter(|before| before.pin.original == pin.original);
        let mask_after_restore = before.and_then(|before| before.mask_after_restore.clone());
        let tracked =
            TrackedTask { pin: pin.clone(), pin_state: PinState::Pinned, mask_after_restore };
        self.tasks.insert(pin.id, tracked);
        self.pending = Some(pin.id);
    }

    /// Notes that the last pin was carried out: the mask that it replaced is no longer ours. If the
    /// task has that mask again later, its user set it.
    pub fn confirm_pending_pin(&mut self) {
        if let Some(tracked) = self.pending.take().and_then(|id| self.tasks.get_mut(&id)) {
            tracked.pin.replaces = None;
        }
    }

    /// The last pin of a writer that died: it is unknown whether the mask was set, and to which thread.
    pub fn unconfirmed_pin(&self) -> Option<&Pin> {
        self.pending.and_then(|id| self.tasks.get(&id)).map(|tracked| &tracked.pin)
    }

    fn end_pin(&mut self, end: PinEnd, pin_state: PinState) {
        // An unknown id: the line of its pin is damaged. Nothing is known, so nothing is done.
        let Some(tracked) = self.tasks.get_mut(&end.id) else { return };
        let before = std::mem::replace(&mut tracked.pin_state, pin_state);
        let pin = tracked.pin.clone();
        if before == PinState::Pinned {
            self.remove_holder(&pin, end.time_ns);
        }
    }

    /// Notes the mask that a task shows after it was given back all CPUs.
    pub fn note_mask_after_restore(&mut self, id: u64, mask: CpuSet) {
        if let Some(tracked) = self.tasks.get_mut(&id) {
            tracked.mask_after_restore = Some(mask);
        }
    }

    /// Notes that a task inherited a mask when it was born: its own children may have done so, too.
    pub fn note_inherited(
        &mut self,
        process: &TaskRef,
        mask: &CpuSet,
        original: &Original,
        born_ticks: u64,
    ) {
        let until_ns = now_ns();
        let held = self.held_mut(process, mask, original, born_ticks.saturating_mul(tick_ns()));
        held.until_ns = held.until_ns.max(until_ns);
    }

    /// One thread less has the pin's mask.
    fn remove_holder(&mut self, pin: &Pin, time_ns: u64) {
        let held = self.held_mut(&pin.process, &pin.set, &pin.original, pin.time_ns);
        held.holders = held.holders.saturating_sub(1);
        held.until_ns = held.until_ns.max(time_ns);
    }

    fn held_mut(
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
        let held = &mut list[index];
        held.from_ns = held.from_ns.min(from_ns);
        held
    }

    /// What is known of a task; `None` if it was never placed.
    pub fn tracked(&self, task: &TaskRef) -> Option<&TrackedTask> {
        self.ids.get(task).and_then(|id| self.tasks.get(id))
    }

    /// The pins of the tasks that have our mask as far as the entries say.
    pub fn pinned(&self) -> impl Iterator<Item = &Pin> {
        let pinned = self.tasks.values().filter(|tracked| tracked.pin_state == PinState::Pinned);
        pinned.map(|tracked| &tracked.pin)
    }

    /// Whether any mask was ever set.
    pub fn has_set_any_mask(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether this mask was ever set.
    pub fn has_set_mask(&self, mask: &CpuSet) -> bool {
        self.all_held().any(|held| held.mask == *mask)
    }

    /// The masks that threads of this process had.
    pub fn held_by(&self, process: &TaskRef) -> &[Held] {
        self.held.get(process).map(Vec::as_slice).unwrap_or_default()
    }

    /// The masks that threads of any process had.
    pub fn all_held(&self) -> impl Iterator<Item = &Held> {
        self.held.values().flatten()
    }

    /// The process that may have adopted orphans of which a dead writer did not see the fork.
    pub fn reaper(&self) -> Option<TaskRef> {
        self.reaper
    }

    /// The programs that the session balances.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The settings that are changed, in the order in which that was done.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The interrupt lines that have an affinity of ours, those that were moved last at the end.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The network devices that have a table of ours, those that were changed last at the end.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The lines that irqbalance was told to leave alone, in the order in which that was done.
    pub fn bans(&self) -> &[Ban] {
        &self.bans
    }

    /// Whether the changes are to outlive their writer.
    pub fn is_persistent(&self) -> bool {
        self.is_persistent
    }

    /// Forgets tasks that have ended, and returns the entries that say all the rest.
    pub fn compact(&mut self, now_ns: u64) -> Vec<Entry> {
        let ended: Vec<u64> = self
            .tasks
            .values()
            .map(|tracked| &tracked.pin)
            .filter(|pin| !pin.task.is_alive() && !may_live_on_by_exec(pin))
            .map(|pin| pin.id)
            .collect();
        for id in ended {
            self.end_pin(PinEnd { id, time_ns: now_ns }, PinState::Released);
            if let Some(tracked) = self.tasks.remove(&id) {
                self.ids.remove(&tracked.pin.task);
            }
        }
        self.drop_old_held();
        self.drop_old_programs();
        let programs = self.programs.iter().map(|program| Entry::Program(*program));
        let mut entries: Vec<Entry> = programs.collect();
        entries.extend(self.settings.iter().cloned().map(Entry::Setting));
        entries.extend(self.lines.iter().cloned().map(Entry::Line));
        entries.extend(self.tables.iter().cloned().map(Entry::Table));
        entries.extend(self.bans.iter().cloned().map(Entry::Ban));
        let persistent = Entry::Persistent(Persistent { time_ns: now_ns });
        entries.extend(self.is_persistent.then_some(persistent));
        // Before the pins, which count the holders again.
        entries.extend(self.all_held().map(|held| Entry::Held(held.clone())));
        for TrackedTask { pin, pin_state, .. } in self.tasks.values() {
            entries.push(Entry::Pin(pin.clone()));
            let end = PinEnd { id: pin.id, time_ns: pin.time_ns };
            match pin_state {
                PinState::Pinned => {}
                PinState::Released => entries.push(Entry::Restored(end)),
                PinState::Yielded => entries.push(Entry::Yielded(end)),
            }
        }
        entries
    }

    /// Drops the oldest ended programs beyond [`MAX_ENDED_PROGRAMS`].
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

    /// Drops the masks of the processes that ended first, beyond [`MAX_ENDED_HELD`].
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

/// Whether a thread that is gone may have become its process's leader by exec(2).
pub(crate) fn may_live_on_by_exec(pin: &Pin) -> bool {
    pin.task != pin.process
        && pin.process.is_alive()
        && affinity::get(pin.process.tid).is_ok_and(|mask| mask == pin.set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::single_cpu;

    fn task(tid: i32) -> TaskRef {
        // Far above any real number: nothing of the host is touched by these tests.
        TaskRef { tid: 2_000_000_000 + tid, tgid: 2_000_000_000, start_time_ticks: 500 }
    }

    fn pin(id: u64, replaces: Option<u32>, set: u32, time_ns: u64) -> Entry {
        Entry::Pin(Pin {
            id,
            task: task(id as i32),
            process: task(0),
            original: Original::All,
            replaces: replaces.map(single_cpu),
            set: single_cpu(set),
            time_ns,
        })
    }

    #[test]
    fn the_times_of_a_mask_are_kept_for_each_process() {
        let mut state = JournalState::default();
        state.apply(&pin(1, None, 2, 10));
        state.apply(&pin(2, None, 2, 15));
        state.apply(&pin(1, Some(2), 3, 20));
        let find = |state: &JournalState, cpu: u32| {
            let held =
                state.held_by(&task(0)).iter().find(|held| held.mask == single_cpu(cpu)).cloned();
            held.map(|held| (held.from_ns, held.until_ns, held.holders))
        };
        assert_eq!(find(&state, 2), Some((10, 20, 1)));
        assert_eq!(find(&state, 3), Some((20, 20, 1)));
        state.apply(&Entry::Restored(PinEnd { id: 2, time_ns: 40 }));
        state.apply(&Entry::Restored(PinEnd { id: 2, time_ns: 50 }));
        assert_eq!(find(&state, 2), Some((10, 40, 0)));
        assert!(state.has_set_mask(&single_cpu(2)) && !state.has_set_mask(&single_cpu(1)));
    }

    #[test]
    fn the_mask_after_a_restore_is_known_after_a_move_that_failed() {
        let mut state = JournalState::default();
        let restored = Entry::Restored(PinEnd { id: 1, time_ns: 30 });
        let mask = || "0-2".parse::<CpuSet>().unwrap();
        state.apply(&pin(1, None, 2, 10));
        state.apply(&restored);
        state.note_mask_after_restore(1, mask());
        state.apply(&pin(1, None, 3, 20));
        state.apply(&restored);
        assert_eq!(state.tracked(&task(1)).unwrap().mask_after_restore, Some(mask()));
        // Not once its user had chosen other CPUs.
        let Entry::Pin(other) = pin(1, None, 3, 40) else { panic!() };
        state.apply(&Entry::Pin(Pin { original: Original::Mask(mask()), ..other }));
        assert_eq!(state.tracked(&task(1)).unwrap().mask_after_restore, None);
    }

    #[test]
    fn ended_programs_do_not_make_the_journal_grow() {
        let own = TaskRef::own_process().unwrap();
        let mut state = JournalState::default();
        state.apply(&Entry::Program(Program { root: own, session: 7 }));
        for tid in 0..5000 {
            state.apply(&Entry::Program(Program { root: task(tid), session: 7 }));
        }
        let entries = state.compact(1000);
        assert_eq!(entries.len(), 1 + MAX_ENDED_PROGRAMS);
        assert_eq!(state.programs().first().map(|program| program.root), Some(own));
        assert_eq!(state.programs().last().map(|program| program.root), Some(task(4999)));
    }

    #[test]
    fn compaction_forgets_ended_tasks_and_keeps_the_rest() {
        let own = TaskRef::own_process().unwrap();
        let mut state = JournalState::default();
        state.apply(&Entry::Program(Program { root: own, session: 7 }));
        for round in 0..100 {
            state.apply(&pin(1, None, round % 4, 10));
            let mine = Pin {
                id: 2,
                task: own,
                process: own,
                original: Original::All,
                replaces: None,
                set: single_cpu(round % 2),
                time_ns: 10 + u64::from(round),
            };
            state.apply(&Entry::Pin(mine));
        }
        let entries = state.compact(1000);
        let mut again = JournalState::default();
        entries.iter().for_each(|entry| again.apply(entry));
        assert!(again.pinned().eq(state.pinned()));
        assert_eq!(again.pinned().count(), 1);
        assert_eq!(again.programs(), state.programs());
        let sorted = |state: &JournalState| {
            let mut list: Vec<String> = state.all_held().map(|held| format!("{held:?}")).collect();
            list.sort();
            list
        };
        assert_eq!(sorted(&again), sorted(&state));
        assert_eq!(sorted(&state).len(), 6);
        assert!(entries.len() <= 8, "{entries:?}");
    }
}
