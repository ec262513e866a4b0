//! A checker of the order `ias` (paper 003, expression (1)): the head of a DSQ gets the CPU only if no
//! sibling of the task that ran there waits in the DSQ and goes first by its bonus. It is not in
//! lab/invariants because it must see the DSQs. Judged where the rule is exact: in the mode `paper`,
//! the bonus is a number of ns without a limit, the sibling index had room for all tasks, callbacks do
//! not interleave, and the head has not fallen behind the CPU's fair clock by more than bonus and
//! slice.

use evenkeel_invariants::Violation;
use evenkeel_keel::{Aggregation, Mode, Order, USER_TURN_NS};

use super::{Kernel, Queue};

/// Its name in reports.
const SIBLINGS_FIRST: &str = "siblings_first";
/// The weight of a task of nice 0 (policy/views.h).
const NICE_0_WEIGHT: u64 = 1 << 20;
/// The keel's counter of tasks for which the sibling index had no room.
const LEFT_OUT: &str = "window";

impl Kernel {
    /// Judges that this task, the head of the CPU's DSQ, gets the CPU.
    pub(super) fn judge_head(&mut self, cpu: u32, dsq: usize, head: u32) {
        let options = self.scheduler.options();
        if options.is_none_or(|options| options.order != Order::Ias || options.ias.mode != Mode::Paper)
            || self.instance.host.hazards != 0
            || self.dsqs[dsq].0 != u64::from(cpu)
            // A rescued task goes first, so this task does not follow the one that ran.
            || !self.cpus[cpu as usize].local.is_empty()
        {
            return;
        }
        let Some(space) = self.cpus[cpu as usize].space else { return };
        let counts = |how: &&Aggregation| {
            how.pid == space + 1 && how.agg == 1 && how.bonus_type == 0 && how.limit == 0
        };
        let Some(bonus) = self.workload.aggregations.iter().find(counts).map(|how| how.bonus_value)
        else {
            return;
        };
        let Queue::Dsq(_, place) = self.tasks[head as usize].queue else { return };
        let goes_first = |task: u32, vtime: u64| {
            self.tasks[task as usize].space == space
                && self.may_run_here(task, cpu)
                && (vtime.wrapping_sub(bonus).wrapping_sub(place.vtime) as i64) < 0
        };
        if self.tasks[head as usize].space == space || self.is_owed(cpu, space, bonus, place.vtime)
        {
            return;
        }
        let passed = self.dsqs[dsq].1.iter().find(|(at, task)| goes_first(*task, at.vtime));
        if let Some((at, task)) = passed
            && self.instance.counters().get(LEFT_OUT) == Some(&0)
        {
            let what = format!(
                "{} waits at {} for CPU {cpu}, where its program ran, with a bonus of {bonus}, and {} \
                 at {} gets the CPU",
                self.name(task),
                at.vtime,
                self.name(head),
                place.vtime
            );
            let violation = Violation { invariant: SIBLINGS_FIRST, time_ns: self.now, what };
            self.observer.note(violation, false);
        }
    }

    /// Whether a task with this vruntime has fallen so far behind that no sibling with this bonus goes
    /// first (`order_may_prefer()` of policy/order.h).
    fn is_owed(&self, cpu: u32, space: u32, bonus_ns: u64, vruntime: u64) -> bool {
        let (Some(fairness), Some(options)) =
            (self.instance.fairness(cpu), self.scheduler.options())
        else {
            return false;
        };
        let is_ordinary = self.workload.ordinary.contains(&(space + 1));
        let turn_ns = if is_ordinary { USER_TURN_NS } else { u64::MAX };
        let wait_ns = ((bonus_ns + options.slice.ns()) * fairness.tasks).min(turn_ns);
        let owed = wait_ns * NICE_0_WEIGHT / fairness.load.max(1);
        (fairness.fair_clock.wrapping_sub(vruntime) as i64) > owed as i64
    }
}
