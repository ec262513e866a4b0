//! Plays a workload with threads of this process, under the real scheduler of this machine: a
//! simulation is compared with that. Both give a [`Share`] for each task.

use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_invariants::{Event, What};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::program::{Op, TaskPlan, Workload};
use crate::random::{about, stream};
use crate::tid::tid;

/// A task's run time and migrations during an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Time on a CPU.
    pub ran_ns: u64,
    /// How often it was migrated to another CPU.
    pub migrations: u64,
}

/// Why a workload cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// It holds a task or an op that this file does not support.
    #[error(
        "workload {0}: {1} cannot be played with real threads: use run, sleep, barrier, send, receive, \
         yield and goto, and tasks that start at once and may run on all CPUs"
    )]
    Unplayable(String, String),
    /// A thread could not be started, or its nice value could not be set.
    #[error(
        "a thread of the workload: {0}; allow more threads, or run as root for nice values below 0"
    )]
    Thread(io::Error),
    /// The kernel does not say how often a thread was migrated.
    #[error(
        "/proc/self/task/{0}/sched has no nr_migrations: the kernel must have CONFIG_SCHED_DEBUG"
    )]
    Unreadable(i32),
}

/// Plays a workload; returns the share of each task during `lasts`, after all ran for `settles`.
///
/// # Errors
/// [`PlayError`].
pub fn play(
    workload: &Workload,
    seed: u64,
    settles: Duration,
    lasts: Duration,
) -> Result<Vec<Share>, PlayError> {
    check(workload)?;
    let shared = Arc::new(Shared::new(workload));
    let mut threads = Threads { shared: shared.clone(), threads: Vec::new() };
    for (index, plan) in workload.tasks.iter().enumerate() {
        let player = Player {
            shared: shared.clone(),
            plan: plan.clone(),
            rng: stream(seed, index),
            repeats: vec![0; plan.ops.len()],
        };
        threads.spawn(player)?;
    }
    *shared.started.lock() = true;
    shared.started.changed.notify_all();
    std::thread::sleep(settles);
    let before = threads.shares()?;
    std::thread::sleep(lasts);
    let after = threads.shares()?;
    Ok(before.iter().zip(&after).map(|(before, after)| after.since(before)).collect())
}

/// The share of each task of a simulation with kept events, between two times.
pub fn shares(tasks: usize, record: &[Event], from_ns: u64, to_ns: u64) -> Vec<Share> {
    let mut shares = vec![Share::default(); tasks];
    let of = |shares: &mut Vec<Share>, task: u32, change: &dyn Fn(&mut Share)| {
        let at = task.checked_sub(tid(0)).map(|at| at as usize);
        if let Some(share) = at.and_then(|at| shares.get_mut(at)) {
            change(share);
        }
    };
    // The task that runs on each CPU, and since when.
    let mut on: Vec<(u32, u64)> = Vec::new();
    let time_on = |since: u64, until: u64| until.min(to_ns).saturating_sub(since.max(from_ns));
    for event in record {
        let now = event.time_ns;
        match event.what {
            What::Switch { next, .. } => {
                let cpu = event.cpu as usize;
                if cpu >= on.len() {
                    on.resize(cpu + 1, (0, 0));
                }
                let (task, since) = std::mem::replace(&mut on[cpu], (next, now));
                of(&mut shares, task, &|share| share.ran_ns += time_on(since, now));
            }
            What::Migrate { task, .. } if (from_ns..to_ns).contains(&now) => {
                of(&mut shares, task, &|share| share.migrations += 1);
            }
            _ => {}
        }
    }
    for (task, since) in on {
        of(&mut shares, task, &|share| share.ran_ns += time_on(since, to_ns));
    }
    shares
}

impl Share {
    fn since(&self, before: &Self) -> Self {
        Self {
            ran_ns: self.ran_ns - before.ran_ns,
            migrations: self.migrations - before.migrations,
        }
    }

    /// The share of a thread of this process so far.
    fn of(thread: i32) -> Result<Self, PlayError> {
        // The CPU clock of a thread by its tid (kernel: CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED).
        let clock = ClockId::from_raw((!thread << 3) | 6);
        let ran = clock_gettime(clock).map_err(|errno| PlayError::Thread(errno.into()))?;
        let said = std::fs::read_to_string(format!("/proc/self/task/{thread}/sched"));
        let line = said.unwrap_or_default();
        let line = line.lines().find(|line| line.starts_with("se.nr_migrations"));
        let migrations = line.and_then(|line| line.split(':').nth(1)?.trim().parse().ok());
        Ok(Self {
            ran_ns: Duration::from(ran).as_nanos() as u64,
            migrations: migrations.ok_or(PlayError::Unreadable(thread))?,
        })
    }
}

fn check(workload: &Workload) -> Result<(), PlayError> {
    let refuse = |what: String| Err(PlayError::Unplayable(workload.name.clone(), what));
    if !(workload.higher().next().is_none()
        && workload.interrupts.is_empty()
        && workload.changes.is_empty())
    {
        return refuse("a real-time task, an interrupt or a change from outside".to_owned());
    }
    for plan in &workload.tasks {
        if plan.arrives_ns != Some(0) || plan.allowed.is_some() || plan.group != 0 {
            return refuse(format!("task {}", plan.name));
        }
        let is_unplayable = |op: &&Op| {
            !matches!(
                op,
                Op::Run(_)
                    | Op::RunAbout(_)
                    | Op::Sleep(_)
                    | Op::SleepAbout(_)
                    | Op::Barrier(_)
                    | Op::Send(_)
                    | Op::Receive(_)
                    | Op::Yield
                    | Op::Repeat { .. }
                    | Op::Goto(_)
            )
        };
        if let Some(op) = plan.ops.iter().find(is_unplayable) {
            return refuse(format!("{op:?} of task {}", plan.name));
        }
    }
    Ok(())
}

/// A state that threads wait on until it changes, or until the play is over.
#[derive(Default)]
struct Place<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Place<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting threads, because the play is over.
    fn release(&self) {
        // A thread that has just seen that it is not over holds the lock until it waits.
        drop(self.lock());
        self.changed.notify_all();
    }
}

/// The state of a barrier: how many threads wait, and how often all have come.
#[derive(Default)]
struct Gathering {
    waiting: u32,
    rounds: u64,
}

/// What all threads share.
struct Shared {
    /// All threads start together, when this becomes true.
    started: Place<bool>,
    over: AtomicBool,
    barriers: Vec<(u32, Place<Gathering>)>,
    channels: Vec<Place<u64>>,
}

impl Shared {
    fn new(workload: &Workload) -> Self {
        Self {
            started: Place::default(),
            over: AtomicBool::new(false),
            barriers: workload.barriers.iter().map(|size| (*size, Place::default())).collect(),
            channels: (0..workload.channels).map(|_| Place::default()).collect(),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends all threads, wherever they wait.
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.started.release();
        self.barriers.iter().for_each(|(_, place)| place.release());
        self.channels.iter().for_each(Place::release);
    }
}

/// The threads. They end when this is dropped.
struct Threads {
    shared: Arc<Shared>,
    threads: Vec<(JoinHandle<()>, i32)>,
}

impl Threads {
    fn spawn(&mut self, player: Player) -> Result<(), PlayError> {
        let (tell, told) = mpsc::channel();
        let begin = move || {
            let thread = gettid().as_raw();
            let ready = set_nice(thread, player.plan.nice).map(|()| thread);
            let plays = ready.is_ok();
            // The receiver outlives this.
            let _ = tell.send(ready);
            if plays {
                player.play();
            }
        };
        let handle = std::thread::Builder::new().spawn(begin).map_err(PlayError::Thread)?;
        let ready = told.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        self.threads.push((handle, ready.map_err(PlayError::Thread)?));
        Ok(())
    }

    fn shares(&self) -> Result<Vec<Share>, PlayError> {
        self.threads.iter().map(|(_, thread)| Share::of(*thread)).collect()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.end();
        for (handle, _) in self.threads.drain(..) {
            // Nothing in play() panics.
            let _ = handle.join();
        }
    }
}

/// One thread and its ops.
struct Player {
    shared: Arc<Shared>,
    plan: TaskPlan,
    rng: Xoshiro256PlusPlus,
    /// How often each Repeat has gone back.
    repeats: Vec<u64>,
}

impl Player {
    /// Executes all ops, or stops when the play is over.
    fn play(mut self) {
        let shared = self.shared.clone();
        shared.wait_for_start(|started| started);
        let mut at = 0;
        while let Some(op) = self.plan.ops.get(at).filter(|_| !shared.is_over()) {
            let here = at;
            at += 1;
            match *op {
                Op::Run(ns) => shared.work(ns),
                Op::RunAbout(mean) => shared.work(about(mean, self.rng.next_u64())),
                Op::Sleep(ns) => std::thread::sleep(Duration::from_nanos(ns)),
                Op::SleepAbout(mean) => {
                    let ns = about(mean, self.rng.next_u64());
                    std::thread::sleep(Duration::from_nanos(ns));
                }
                Op::Barrier(barrier) => shared.wait_at_barrier(barrier),
                Op::Send(channel) => shared.send(channel),
                Op::Receive(channel) => shared.receive(channel),
                Op::Yield => std::thread::yield_now(),
                Op::Repeat { to, times } => {
                    let count = &mut self.repeats[here];
                    *count = if *count < times { *count + 1 } else { 0 };
                    if *count > 0 {
                        at = to;
                    }
                }
                Op::Goto(to) => at = to,
                // check() has refused all other ops.
                _ => break,
            }
        }
        // Its share can be read only while the thread exists.
        shared.wait_for_start(|_| false);
    }
}

impl Shared {
    /// Waits until `is_wanted` holds for `started`, or the play is over.
    fn wait_for_start(&self, is_wanted: fn(bool) -> bool) {
        let mut started = self.started.lock();
        while !is_wanted(*started) && !self.is_over() {
            started = self.started.wait(started);
        }
    }

    /// Uses this much CPU time of this thread.
    fn work(&self, ns: u64) {
        const STEPS: u32 = 500;
        let end = own_time() + Duration::from_nanos(ns);
        while own_time() < end && !self.is_over() {
            (0..STEPS).for_each(|step| {
                black_box(step);
            });
        }
    }

    fn wait_at_barrier(&self, barrier: usize) {
        let Some((size, place)) = self.barriers.get(barrier) else { return };
        let mut gathering = place.lock();
        if gathering.waiting + 1 == *size {
            gathering.waiting = 0;
            gathering.rounds += 1;
            place.changed.notify_all();
            return;
        }
        gathering.waiting += 1;
        let round = gathering.rounds;
        while gathering.rounds == round && !self.is_over() {
            gathering = place.wait(gathering);
        }
    }

    fn send(&self, channel: usize) {
        let Some(place) = self.channels.get(channel) else { return };
        *place.lock() += 1;
        place.changed.notify_one();
    }

    fn receive(&self, channel: usize) {
        let Some(place) = self.channels.get(channel) else { return };
        let mut items = place.lock();
        while *items == 0 && !self.is_over() {
            items = place.wait(items);
        }
        *items = items.saturating_sub(1);
    }
}

/// The CPU time of this thread.
fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

fn set_nice(thread: i32, nice: i32) -> io::Result<()> {
    if nice == 0 {
        return Ok(());
    }
    // SAFETY: takes plain numbers.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as u32, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_invariants::{IDLE, Left};

    const MS: u64 = 1_000_000;

    fn at(ms: u64, cpu: u32, what: What) -> Event {
        Event { time_ns: ms * MS, cpu, what }
    }

    fn switch(ms: u64, cpu: u32, prev: u32, next: u32) -> Event {
        at(ms, cpu, What::Switch { prev, left: Left::Runnable, charged_ns: 0, next })
    }

    #[test]
    fn simulated_shares_cover_only_the_interval() {
        let record = [
            switch(0, 0, IDLE, tid(0)),
            switch(0, 1, IDLE, tid(1)),
            at(5, 0, What::Migrate { task: tid(0), to: 1 }),
            switch(12, 1, tid(1), IDLE),
            at(13, 1, What::Migrate { task: tid(1), to: 0 }),
            switch(15, 0, tid(0), tid(1)),
            at(20, 0, What::Migrate { task: tid(1), to: 1 }),
        ];
        let found = shares(2, &record, 10 * MS, 20 * MS);
        let share = |ran_ms, migrations| Share { ran_ns: ran_ms * MS, migrations };
        assert_eq!(found, [share(5, 0), share(2 + 5, 1)]);
    }

    /// All kinds of ops; each thread ends its program, or is released where it waits.
    #[test]
    fn real_threads_play_all_supported_ops() {
        let hog = TaskPlan::new("hog", vec![Op::Run(MS), Op::Yield, Op::Goto(0)]);
        let member = vec![Op::RunAbout(MS / 10), Op::Barrier(0), Op::Repeat { to: 0, times: 3 }];
        let server = vec![Op::Receive(0), Op::Run(MS / 10), Op::Send(1), Op::Goto(0)];
        let client = vec![Op::SleepAbout(MS / 10), Op::Send(0), Op::Receive(1), Op::Goto(0)];
        let alone = vec![Op::Sleep(1), Op::Barrier(1)];
        let plan = |ops: Vec<Op>| TaskPlan::new("thread", ops);
        let workload = Workload {
            tasks: vec![
                hog,
                plan(member.clone()),
                plan(member),
                plan(server),
                plan(client),
                plan(alone),
            ],
            barriers: vec![2, 2],
            channels: 2,
            ..Workload::default()
        };
        let settles = Duration::from_millis(5);
        // Repeated until the hog has run, because the machine may be slow.
        let found = (0..1000)
            .map(|_| play(&workload, 1, settles, Duration::from_millis(20)).unwrap())
            .find(|shares| shares[0].ran_ns > 0)
            .unwrap();
        assert_eq!(found.len(), workload.tasks.len());
    }

    #[test]
    fn unsupported_tasks_and_ops_are_refused() {
        let plan = |op| TaskPlan::new("thread", vec![op]);
        let late = TaskPlan { arrives_ns: None, ..plan(Op::Yield) };
        for (task, said) in [(plan(Op::Lock(0)), "Lock(0) of task thread"), (late, "task thread")] {
            let workload = Workload { tasks: vec![task], ..Workload::default() };
            let why = play(&workload, 1, Duration::ZERO, Duration::ZERO).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
        }
    }
}
