//! A checker of the order `ias` (paper 003, expression (1)): the head of a DSQ gets the CPU only if no
//! sibling of the task that ran there waits in the DSQ and goes first by its bonus. It is not in
//! lab/invariants because it must see the DSQs. Judged where the rule is exact: the bonus is a number
//! of ns without a limit, the sibling index had room for all tasks, and callbacks do not interleave.

use evenkeel_invariants::Violation;
use evenkeel_keel::{Aggregation, Order};

use super::{Kernel, Queue};

/// Its name in reports.
const SIBLINGS_FIRST: &str = "siblings_first";
/// The keel's counter of tasks for which the sibling index had no room.
const LEFT_OUT: &str = "window";

impl Kernel {
    /// Judges that this task, the head of the CPU's DSQ, gets the CPU.
    pub(super) fn judge_head(&mut self, cpu: u32, dsq: usize, head: u32) {
        let options = self.scheduler.options();
        if options.is_none_or(|options| options.order != Order::Ias)
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
        if self.tasks[head as usize].space == space {
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
}
