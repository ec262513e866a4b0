//! How much of a simulation is done, for a display in another thread. It changes nothing of the
//! simulation, and is a model of nothing in a kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::program::{Op, TaskPlan, Workload};

use super::Kernel;

/// How much of a simulation is done.
#[derive(Debug, Default)]
pub struct Gauge {
    pct: AtomicU64,
}

impl Gauge {
    /// In per cent. It stays 0 where the end cannot be foreseen, and is no promise elsewhere: tasks also
    /// wait.
    pub fn pct(&self) -> u64 {
        self.pct.load(Ordering::Relaxed)
    }
}

/// A gauge, and what it measures by.
pub(super) struct Gauged {
    gauge: Arc<Gauge>,
    /// The work of all tasks; `None`: some never end.
    work_ns: Option<f64>,
}

/// The work of a task that ends, in ns; where it is drawn at random, the mean.
fn work_ns(task: &TaskPlan) -> Option<f64> {
    let mut work = vec![0.0; task.ops.len()];
    for (at, op) in task.ops.iter().enumerate() {
        match op {
            Op::Run(ns) | Op::RunAbout(ns) => work[at] = *ns as f64,
            Op::Repeat { to, times } => {
                let repeated = work.get_mut(*to..at).into_iter().flatten();
                repeated.for_each(|ns| *ns *= *times as f64 + 1.0);
            }
            Op::Goto(_) => return None,
            _ => {}
        }
    }
    Some(work.iter().sum())
}

fn work_of_all_ns(workload: &Workload) -> Option<f64> {
    workload.tasks.iter().map(work_ns).sum()
}

impl Kernel {
    /// Shows from now on how much is done.
    pub fn show_on(&mut self, gauge: Arc<Gauge>) {
        self.gauged = Some(Gauged { gauge, work_ns: work_of_all_ns(&self.workload) });
    }

    /// Shows how much is done of what ends the simulation first: the work, the time, or the events.
    pub(super) fn show_gauge(&self, max_events: u64) {
        let Some(Gauged { gauge, work_ns }) = &self.gauged else { return };
        let worked: u64 = self.tasks.iter().map(|task| task.times.worked_ns()).sum();
        let part = |done: u64, all: f64| if all > 0.0 { done as f64 / all } else { 0.0 };
        let parts = [
            part(worked, work_ns.unwrap_or(0.0)),
            part(self.now, self.workload.duration_ns as f64),
            part(self.observer.events, max_events as f64),
        ];
        let pct = parts.into_iter().fold(0.0, f64::max).min(1.0) * 100.0;
        gauge.pct.store(pct as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Option<f64> {
        work_of_all_ns(&Workload::by_name(name, 1).unwrap())
    }

    #[test]
    fn work_is_counted_as_often_as_it_is_repeated() {
        assert_eq!(of("hogs:tasks=3,work=2ms"), Some(6e6));
        assert_eq!(of("barrier:tasks=2,work=1ms,rounds=5"), Some(10e6));
        let endless =
            r#"{ "tasks": { "a": { "loop": -1, "run": 100 } }, "global": { "duration": 1 } }"#;
        assert_eq!(work_of_all_ns(&Workload::parse_rt_app(endless, "file").unwrap()), None);
        let nested = [Op::Run(1), Op::Repeat { to: 0, times: 2 }, Op::Repeat { to: 0, times: 1 }];
        assert_eq!(work_ns(&TaskPlan::new("nested", nested.to_vec())), Some(6.0));
    }
}
