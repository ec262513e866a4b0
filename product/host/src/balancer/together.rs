//! The paper's policy balances the tasks of all programs together (000, section 3.2): one vector of
//! ECPT, one plan, tasks selected across programs.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_capability::{Plan, Reason, Snapshot, State, TaskId, plan};
use evenkeel_machine::CpuSet;

use super::{Balancer, BalancerError, Seen};
use crate::program::Program;
use crate::reading::Freedom;

impl Balancer {
    /// One round over these programs with one plan, without those that are only watched.
    pub(super) fn balance_together(
        &mut self,
        programs: &mut [(u32, Program)],
        state: &mut State,
    ) -> Result<(), BalancerError> {
        let is_moved = |(_, program): &&(u32, Program)| !program.is_watched;
        let moved = programs.iter().filter(is_moved);
        // All of them were there then.
        let Some(earlier) = moved.map(|(_, program)| &program.last).max_by_key(|last| last.at_ns)
        else {
            return Ok(());
        };
        let earlier = Rc::clone(earlier);
        let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
        for (number, program) in programs.iter_mut().filter(|(_, program)| !program.is_watched) {
            seen.extend(self.look(*number, program).map(|seen| (*number, seen)));
        }
        if seen.is_empty() {
            return Ok(());
        }
        let looked_at = programs.iter().filter(|(number, _)| seen.contains_key(number));
        let usable =
            looked_at.fold(CpuSet::new(), |all, (_, program)| all.union(&self.usable(program)));
        let numbers: Vec<u32> = seen.keys().copied().collect();
        let tasks = seen.values().flat_map(|seen| &seen.snapshot.tasks);
        let tasks: BTreeMap<TaskId, _> = tasks.map(|task| (task.id, task)).collect();
        // What a task may do was asked for its program.
        let freedom = |id: TaskId, _: &_| {
            tasks.get(&id).map_or_else(
                || Freedom { allowed: CpuSet::new(), fixed: true },
                |task| Freedom { allowed: task.allowed.clone(), fixed: task.fixed },
            )
        };
        let Some(mut all) = self.observer.snapshot(&earlier, &numbers, &usable, freedom) else {
            return Ok(());
        };
        for task in &mut all.tasks {
            task.working_set_bytes = tasks.get(&task.id).and_then(|task| task.working_set_bytes);
        }
        let planned = plan(&all, state);
        for (number, program) in programs {
            let Some(seen) = seen.remove(number) else { continue };
            let own = planned.clone().map(|plan| part_of(plan, &seen.snapshot));
            self.carry_out(own, seen, program)?;
        }
        Ok(())
    }
}

/// What a plan of all programs means for one of them.
fn part_of(mut plan: Plan, snapshot: &Snapshot) -> Plan {
    let own: BTreeSet<TaskId> = snapshot.tasks.iter().map(|task| task.id).collect();
    let all = plan.moves.len();
    plan.moves.retain(|made| own.contains(&made.task));
    plan.pins.retain(|pin| own.contains(&pin.task));
    if plan.moves.is_empty() && all > 0 {
        plan.reasons = vec![Reason::OthersMoved];
    }
    plan
}
