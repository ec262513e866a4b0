//! What the events so far add up to: who runs where, who waits since when.

use evenkeel_machine::CpuSet;

use crate::event::{Class, Event, IDLE, Left, Tid, What};
use crate::ids::IdMap;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Nothing was heard of it that tells.
    Unknown,
    /// It has this CPU, since then.
    Runs {
        /// The CPU.
        cpu: u32,
        /// When it got it.
        since_ns: u64,
    },
    /// It wants a CPU, since then.
    Waits {
        /// When it began to wait.
        since_ns: u64,
    },
    /// It waits for something else.
    Sleeps,
    /// It will never run again.
    Dead,
}

/// What is known of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What it does.
    pub condition: Condition,
    /// Where it may run, if that was heard.
    pub allowed: Option<CpuSet>,
    /// When that was changed last.
    pub allowed_since_ns: u64,
    /// The CPU that it had then, if any, until it has another.
    pub caught_on: Option<u32>,
    /// How it competes, if that was heard.
    pub class: Option<Class>,
}

impl Task {
    fn unknown() -> Self {
        Self {
            condition: Condition::Unknown,
            allowed: None,
            allowed_since_ns: 0,
            caught_on: None,
            class: None,
        }
    }

    /// Whether a fair scheduler answers for it.
    pub fn is_fair(&self) -> bool {
        matches!(self.class, Some(Class::Fair { .. }))
    }

    /// Since when it waits, if it does.
    pub fn waits_since(&self) -> Option<u64> {
        match self.condition {
            Condition::Waits { since_ns } => Some(since_ns),
            _ => None,
        }
    }
}

/// All tasks and CPUs.
#[derive(Debug, Clone, Default)]
pub struct World {
    tasks: IdMap<Task>,
    /// Who has each CPU, and since when, if that was heard.
    cpus: Vec<Option<(Tid, u64)>>,
    /// Fair tasks that run or wait.
    runnable: usize,
    /// CPUs come or go.
    is_changing: bool,
    /// CPUs that take only who may run nowhere else, and since when.
    shield: CpuSet,
    shield_since_ns: u64,
}

impl World {
    /// What is known of a task.
    pub fn task(&self, tid: Tid) -> Option<&Task> {
        self.tasks.get(&tid)
    }

    /// All tasks of which something is known.
    pub fn tasks(&self) -> impl Iterator<Item = (Tid, &Task)> {
        self.tasks.iter().map(|(tid, task)| (*tid, task))
    }

    /// Who has a CPU, and since when.
    pub fn on(&self, cpu: u32) -> Option<(Tid, u64)> {
        self.cpus.get(cpu as usize).copied().flatten()
    }

    /// All CPUs that were heard of.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.cpus).filter_map(|(cpu, on)| on.map(|_| cpu))
    }

    /// How many fair tasks run or wait.
    pub fn runnable(&self) -> usize {
        self.runnable
    }

    /// When the shield was changed last.
    pub fn shield_since_ns(&self) -> u64 {
        self.shield_since_ns
    }

    /// Whether the shield keeps a task off a CPU: it may run on another one that was heard of.
    pub fn is_closed(&self, task: &Task, cpu: u32) -> bool {
        if !self.shield.contains(cpu) {
            return false;
        }
        let is_open = |cpu: u32| !self.shield.contains(cpu) && self.on(cpu).is_some();
        task.allowed.as_ref().is_some_and(|allowed| allowed.iter().any(is_open))
    }

    /// Whether CPUs come or go: then not all that happens is in the stream.
    pub fn is_changing(&self) -> bool {
        self.is_changing
    }

    /// CPUs begin to come or go, or have done so. Who slept may have been woken unseen by then, and
    /// any CPU have turned to somebody else.
    pub(crate) fn set_changing(&mut self, is_changing: bool) {
        self.is_changing = is_changing;
        self.cpus.clear();
        for task in self.tasks.values_mut() {
            if task.condition == Condition::Sleeps {
                task.condition = Condition::Unknown;
            }
        }
    }

    /// Takes an event into account.
    pub(crate) fn apply(&mut self, event: &Event) {
        let now = event.time_ns;
        match &event.what {
            What::Wakeup { task } => {
                let is_news = matches!(
                    self.known(*task).condition,
                    Condition::Unknown | Condition::Sleeps | Condition::Dead
                );
                if is_news {
                    self.set(*task, Condition::Waits { since_ns: now });
                }
            }
            What::Switch { prev, left, next, .. } => {
                if *prev != IDLE {
                    let condition = match left {
                        Left::Runnable => Condition::Waits { since_ns: now },
                        Left::Asleep => Condition::Sleeps,
                        Left::Dead => Condition::Dead,
                    };
                    self.set(*prev, condition);
                }
                if *next != IDLE {
                    self.set(*next, Condition::Runs { cpu: event.cpu, since_ns: now });
                    let known = self.known(*next);
                    known.caught_on = known.caught_on.filter(|cpu| *cpu == event.cpu);
                }
                let cpu = event.cpu as usize;
                if cpu >= self.cpus.len() {
                    self.cpus.resize(cpu + 1, None);
                }
                self.cpus[cpu] = Some((*next, now));
            }
            What::Migrate { .. } | What::Exit { .. } => {}
            What::Shield { cpus } => {
                self.shield = cpus.clone();
                self.shield_since_ns = now;
            }
            What::Affinity { task, allowed } => {
                let known = self.known(*task);
                known.allowed = Some(allowed.clone());
                known.allowed_since_ns = now;
                known.caught_on = match known.condition {
                    Condition::Runs { cpu, .. } => Some(cpu),
                    _ => None,
                };
            }
            What::Class { task, class } => {
                // Counted anew under its new class.
                let condition = self.known(*task).condition;
                self.set(*task, Condition::Unknown);
                self.known(*task).class = Some(*class);
                self.set(*task, condition);
            }
            What::Fork { child } => {
                // Numbers are used again.
                self.set(*child, Condition::Unknown);
                self.tasks.insert(*child, Task::unknown());
            }
        }
    }

    fn known(&mut self, tid: Tid) -> &mut Task {
        self.tasks.entry(tid).or_insert_with(Task::unknown)
    }

    fn set(&mut self, tid: Tid, condition: Condition) {
        let task = self.known(tid);
        let counts = |condition| {
            usize::from(matches!(condition, Condition::Runs { .. } | Condition::Waits { .. }))
        };
        let before = counts(std::mem::replace(&mut task.condition, condition));
        if task.is_fair() {
            self.runnable = self.runnable + counts(condition) - before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::*;

    fn world(events: &[Event]) -> World {
        let mut world = World::default();
        events.iter().for_each(|event| world.apply(event));
        world
    }

    fn condition(world: &World, tid: Tid) -> Condition {
        world.task(tid).unwrap().condition
    }

    #[test]
    fn a_task_wakes_runs_waits_and_sleeps() {
        let mut events = vec![fair(0, 7), wake(1, 7)];
        assert_eq!(condition(&world(&events), 7), Condition::Waits { since_ns: ms(1) });
        events.push(switch(2, 0, 0, Left::Runnable, 7));
        assert_eq!(condition(&world(&events), 7), Condition::Runs { cpu: 0, since_ns: ms(2) });
        // Woken while it runs: nothing new.
        events.push(wake(3, 7));
        assert_eq!(condition(&world(&events), 7), Condition::Runs { cpu: 0, since_ns: ms(2) });
        events.push(switch(4, 0, 7, Left::Runnable, 0));
        assert_eq!(condition(&world(&events), 7), Condition::Waits { since_ns: ms(4) });
        assert_eq!(world(&events).runnable(), 1);
        events.push(switch(5, 0, 0, Left::Runnable, 7));
        events.push(switch(6, 0, 7, Left::Asleep, 0));
        assert_eq!(condition(&world(&events), 7), Condition::Sleeps);
        assert_eq!(world(&events).runnable(), 0);
        assert_eq!(world(&events).on(0), Some((IDLE, ms(6))));
    }

    #[test]
    fn after_cpus_came_or_went_only_who_waits_is_known() {
        let asleep = [fair(0, 7), switch(1, 0, 7, Left::Asleep, 8)];
        let mut world = world(&[&asleep[..], &[fair(0, 9), wake(2, 9)]].concat());
        world.set_changing(true);
        assert!(world.is_changing());
        world.set_changing(false);
        assert_eq!(condition(&world, 7), Condition::Unknown);
        assert_eq!(condition(&world, 9), Condition::Waits { since_ns: ms(2) });
        assert_eq!((world.on(0), world.runnable()), (None, 1));
    }

    #[test]
    fn a_number_that_is_used_again_is_another_task() {
        let events = [fair(0, 7), affinity(0, 7, "1"), switch(1, 0, 7, Left::Dead, 0), fork(2, 7)];
        assert_eq!(world(&events).task(7), Some(&Task::unknown()));
    }

    #[test]
    fn only_fair_tasks_count() {
        let mut events = vec![wake(1, 7), fair(2, 7)];
        assert_eq!(world(&events).runnable(), 1, "its class was heard after it woke");
        events.push(at(3, What::Class { task: 7, class: Class::Other }));
        assert_eq!(world(&events).runnable(), 0);
        events.push(switch(4, 0, 7, Left::Asleep, 0));
        assert_eq!(world(&events).runnable(), 0);
    }
}
