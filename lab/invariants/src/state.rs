//! What the events so far add up to: which task runs on which CPU, and which waits since when.

use evenkeel_machine::CpuSet;

use crate::event::{Class, Event, IDLE, Left, Tid, What};
use crate::groups::Groups;
use crate::id_map::IdMap;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// No event has shown it yet.
    Unknown,
    /// It runs on a CPU.
    Runs {
        /// The CPU.
        cpu: u32,
        /// When it got the CPU.
        since_ns: u64,
    },
    /// It is runnable and waits for a CPU.
    Waits {
        /// When it began to wait.
        since_ns: u64,
    },
    /// It sleeps.
    Sleeps,
    /// It will never run again.
    Dead,
}

/// What is known of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What it does.
    pub condition: Condition,
    /// The CPUs that it may run on, if an event said so.
    pub allowed: Option<CpuSet>,
    /// When its mask changed last.
    pub allowed_since_ns: u64,
    /// The CPU that it ran on, or was about to wake on, when its mask changed, until it runs on another
    /// one.
    pub caught_on: Option<u32>,
    /// How it competes, if an event said so.
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

    /// Whether a fair scheduler schedules it.
    pub fn is_fair(&self) -> bool {
        matches!(self.class, Some(Class::Fair { .. }))
    }

    /// Since when it waits for a CPU, if it does.
    pub fn waits_since(&self) -> Option<u64> {
        match self.condition {
            Condition::Waits { since_ns } => Some(since_ns),
            _ => None,
        }
    }
}

/// What is known of all tasks and CPUs.
#[derive(Debug, Clone, Default)]
pub struct State {
    tasks: IdMap<Task>,
    /// The task that runs on each CPU, and since when; none: no event of this CPU yet.
    cpus: Vec<Option<(Tid, u64)>>,
    /// Fair tasks that run or wait.
    runnable: usize,
    groups: Groups,
    /// Whether CPUs come or go right now.
    is_changing: bool,
    /// CPUs that run only tasks that may run nowhere else, and since when.
    shield: CpuSet,
    shield_since_ns: u64,
}

impl State {
    /// What is known of a task.
    pub fn task(&self, tid: Tid) -> Option<&Task> {
        self.tasks.get(&tid)
    }

    /// All tasks that events have named.
    pub fn tasks(&self) -> impl Iterator<Item = (Tid, &Task)> {
        self.tasks.iter().map(|(tid, task)| (*tid, task))
    }

    /// The task that runs on a CPU, and since when.
    pub fn on(&self, cpu: u32) -> Option<(Tid, u64)> {
        self.cpus.get(cpu as usize).copied().flatten()
    }

    /// All CPUs that events have named.
    pub fn cpus(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.cpus).filter_map(|(cpu, on)| on.map(|_| cpu))
    }

    /// How many fair tasks run or wait.
    pub fn runnable(&self) -> usize {
        self.runnable
    }

    /// What a fair task weighs now beside all tasks of the machine, by the shares of its cgroups; none:
    /// it is not fair, or no event has told where its cgroup is.
    pub fn weight_of(&self, task: &Task) -> Option<u64> {
        match task.class {
            Some(Class::Fair { weight, group }) => self.groups.weigh(weight, group),
            _ => None,
        }
    }

    /// When the shield was changed last.
    pub fn shield_since_ns(&self) -> u64 {
        self.shield_since_ns
    }

    /// Whether the shield keeps a task off a CPU: the task may run on another CPU that events have
    /// named.
    pub fn is_closed(&self, task: &Task, cpu: u32) -> bool {
        if !self.shield.contains(cpu) {
            return false;
        }
        let is_open = |cpu: u32| !self.shield.contains(cpu) && self.on(cpu).is_some();
        task.allowed.as_ref().is_some_and(|allowed| allowed.iter().any(is_open))
    }

    /// Whether CPUs come or go right now: then events are missing from the stream.
    pub fn is_changing(&self) -> bool {
        self.is_changing
    }

    /// CPUs begin to come or go, or have done so. Wake-ups and switches may be missing from the stream
    /// meanwhile: whether a sleeping task still sleeps, and which task a CPU runs, is unknown
    /// afterwards.
    pub(crate) fn set_changing(&mut self, is_changing: bool) {
        self.is_changing = is_changing;
        self.cpus.clear();
        for task in self.tasks.values_mut() {
            if task.condition == Condition::Sleeps {
                task.condition = Condition::Unknown;
            }
        }
    }

    /// Adds an event.
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
            What::Group { group, parent, weight } => self.groups.place(*group, *parent, *weight),
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
            What::Waking { task, on } => self.known(*task).caught_on = Some(*on),
            What::Class { task, class } => {
                // It leaves the count of runnable tasks, and returns to it if its new class is fair.
                let condition = self.known(*task).condition;
                self.set(*task, Condition::Unknown);
                self.known(*task).class = Some(*class);
                self.set(*task, condition);
            }
            What::Fork { child } => {
                // The kernel reuses the numbers of dead tasks.
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
        let after = counts(condition);
        let Some(Class::Fair { weight, group }) = task.class else { return };
        self.runnable = self.runnable + after - before;
        if after != before {
            self.groups.count(group, weight.into(), after > before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_events::*;

    fn state_after(events: &[Event]) -> State {
        let mut state = State::default();
        events.iter().for_each(|event| state.apply(event));
        state
    }

    fn condition(state: &State, tid: Tid) -> Condition {
        state.task(tid).unwrap().condition
    }

    #[test]
    fn a_tasks_condition_follows_its_wakeups_and_switches() {
        let mut events = vec![fair(0, 7), wake(1, 7)];
        assert_eq!(condition(&state_after(&events), 7), Condition::Waits { since_ns: ms(1) });
        events.push(switch(2, 0, 0, Left::Runnable, 7));
        assert_eq!(
            condition(&state_after(&events), 7),
            Condition::Runs { cpu: 0, since_ns: ms(2) }
        );
        // A wake-up while it runs changes nothing.
        events.push(wake(3, 7));
        assert_eq!(
            condition(&state_after(&events), 7),
            Condition::Runs { cpu: 0, since_ns: ms(2) }
        );
        events.push(switch(4, 0, 7, Left::Runnable, 0));
        assert_eq!(condition(&state_after(&events), 7), Condition::Waits { since_ns: ms(4) });
        assert_eq!(state_after(&events).runnable(), 1);
        events.push(switch(5, 0, 0, Left::Runnable, 7));
        events.push(switch(6, 0, 7, Left::Asleep, 0));
        assert_eq!(condition(&state_after(&events), 7), Condition::Sleeps);
        assert_eq!(state_after(&events).runnable(), 0);
        assert_eq!(state_after(&events).on(0), Some((IDLE, ms(6))));
    }

    #[test]
    fn hotplug_makes_all_but_waiting_tasks_unknown() {
        let asleep = [fair(0, 7), switch(1, 0, 7, Left::Asleep, 8)];
        let mut state = state_after(&[&asleep[..], &[fair(0, 9), wake(2, 9)]].concat());
        state.set_changing(true);
        assert!(state.is_changing());
        state.set_changing(false);
        assert_eq!(condition(&state, 7), Condition::Unknown);
        assert_eq!(condition(&state, 9), Condition::Waits { since_ns: ms(2) });
        assert_eq!((state.on(0), state.runnable()), (None, 1));
    }

    #[test]
    fn a_reused_number_is_another_task() {
        let events = [fair(0, 7), affinity(0, 7, "1"), switch(1, 0, 7, Left::Dead, 0), fork(2, 7)];
        assert_eq!(state_after(&events).task(7), Some(&Task::unknown()));
    }

    #[test]
    fn only_fair_tasks_count_as_runnable() {
        let mut events = vec![wake(1, 7), fair(2, 7)];
        assert_eq!(state_after(&events).runnable(), 1, "its class became known after it woke");
        events.push(at(3, What::Class { task: 7, class: Class::Other }));
        assert_eq!(state_after(&events).runnable(), 0);
        events.push(switch(4, 0, 7, Left::Asleep, 0));
        assert_eq!(state_after(&events).runnable(), 0);
    }
}
