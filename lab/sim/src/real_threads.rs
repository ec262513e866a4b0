//! The same program with real threads, on this machine and under whoever schedules it: what a free run of
//! the simulator is compared with. Both give a [`Share`] for each task.

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

/// What a task has had in a while.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Time on a CPU.
    pub ran_ns: u64,
    /// How often it was given to another CPU than the one that it was on.
    pub migrations: u64,
}

/// Why a program cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// It is more than threads that come at the start and do what threads can do here.
    #[error(
        "workload {0}: {1} cannot be played with real threads: use run, sleep, barrier, send, receive, \
         yield and goto, and tasks that come at the start and may run everywhere"
    )]
    Unplayable(String, String),
    /// No thread could be started, or it could not be given its nice value.
    #[error(
        "a thread of the workload: {0}; allow more threads, or run as root for nice values below 0"
    )]
    Thread(io::Error),
    /// What the kernel says of a thread cannot be read.
    #[error(
        "/proc/self/task/{0}/sched says no nr_migrations: the kernel must have CONFIG_SCHED_DEBUG"
    )]
    Unreadable(i32),
}

/// What each task has in `lasts`, after it has had `settles` to find its place.
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
    let stage = Arc::new(Stage::new(workload));
    let mut cast = Cast { stage: stage.clone(), threads: Vec::new() };
    for (index, plan) in workload.tasks.iter().enumerate() {
        let actor = Actor {
            stage: stage.clone(),
            plan: plan.clone(),
            rng: stream(seed, index),
            repeats: vec![0; plan.ops.len()],
        };
        cast.engage(actor)?;
    }
    *stage.curtain.enter() = true;
    stage.curtain.changed.notify_all();
    std::thread::sleep(settles);
    let before = cast.shares()?;
    std::thread::sleep(lasts);
    let after = cast.shares()?;
    Ok(before.iter().zip(&after).map(|(before, after)| after.since(before)).collect())
}

/// The same of a simulation whose events were kept, between these two times.
pub fn shares(tasks: usize, record: &[Event], from_ns: u64, to_ns: u64) -> Vec<Share> {
    let mut shares = vec![Share::default(); tasks];
    let of = |shares: &mut Vec<Share>, who: u32, change: &dyn Fn(&mut Share)| {
        let at = who.checked_sub(tid(0)).map(|at| at as usize);
        if let Some(share) = at.and_then(|at| shares.get_mut(at)) {
            change(share);
        }
    };
    // Who has each CPU, and since when.
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
                let (who, since) = std::mem::replace(&mut on[cpu], (next, now));
                of(&mut shares, who, &|share| share.ran_ns += time_on(since, now));
            }
            What::Migrate { task, .. } if (from_ns..to_ns).contains(&now) => {
                of(&mut shares, task, &|share| share.migrations += 1);
            }
            _ => {}
        }
    }
    for (who, since) in on {
        of(&mut shares, who, &|share| share.ran_ns += time_on(since, to_ns));
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

    /// What a thread of this process has had up to now.
    fn of(thread: i32) -> Result<Self, PlayError> {
        // The clock of a thread by its number (kernel: CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED).
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
    if !(workload.thieves.is_empty()
        && workload.interrupts.is_empty()
        && workload.changes.is_empty())
    {
        return refuse("what real-time tasks, interrupts and others do to it".to_owned());
    }
    for plan in &workload.tasks {
        if plan.arrives_ns != Some(0) || plan.allowed.is_some() || plan.group != 0 {
            return refuse(format!("task {}", plan.name));
        }
        let playable = |op: &&Op| {
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
        if let Some(op) = plan.ops.iter().find(playable) {
            return refuse(format!("{op:?} of task {}", plan.name));
        }
    }
    Ok(())
}

/// Where threads meet: they wait there until something is so, or all is over.
#[derive(Default)]
struct Place<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> Place<T> {
    fn enter(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody waits here any more, because all is over.
    fn leave(&self) {
        // Who has just seen that it is not over waits when the lock is free.
        drop(self.enter());
        self.changed.notify_all();
    }
}

/// Who has come to a barrier, and how often all had.
#[derive(Default)]
struct Gathering {
    waiting: u32,
    rounds: u64,
}

/// What all threads share.
struct Stage {
    /// All begin together, when it is open.
    curtain: Place<bool>,
    over: AtomicBool,
    barriers: Vec<(u32, Place<Gathering>)>,
    channels: Vec<Place<u64>>,
}

impl Stage {
    fn new(workload: &Workload) -> Self {
        Self {
            curtain: Place::default(),
            over: AtomicBool::new(false),
            barriers: workload.barriers.iter().map(|size| (*size, Place::default())).collect(),
            channels: (0..workload.channels).map(|_| Place::default()).collect(),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// All threads come to their end, wherever they wait.
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.curtain.leave();
        self.barriers.iter().for_each(|(_, place)| place.leave());
        self.channels.iter().for_each(Place::leave);
    }
}

/// The threads. They end when this is dropped.
struct Cast {
    stage: Arc<Stage>,
    threads: Vec<(JoinHandle<()>, i32)>,
}

impl Cast {
    fn engage(&mut self, actor: Actor) -> Result<(), PlayError> {
        let (tell, told) = mpsc::channel();
        let begin = move || {
            let thread = gettid().as_raw();
            let ready = set_nice(thread, actor.plan.nice).map(|()| thread);
            let plays = ready.is_ok();
            // Nobody listens any more when that fails.
            let _ = tell.send(ready);
            if plays {
                actor.act();
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

impl Drop for Cast {
    fn drop(&mut self) {
        self.stage.end();
        for (handle, _) in self.threads.drain(..) {
            // They have nothing to panic about.
            let _ = handle.join();
        }
    }
}

/// A thread and what it does.
struct Actor {
    stage: Arc<Stage>,
    plan: TaskPlan,
    rng: Xoshiro256PlusPlus,
    /// How often each Repeat has gone back.
    repeats: Vec<u64>,
}

impl Actor {
    /// From the beginning to its end, or until all is over.
    fn act(mut self) {
        let stage = self.stage.clone();
        stage.wait_for_curtain(|open| open);
        let mut at = 0;
        while let Some(op) = self.plan.ops.get(at).filter(|_| !stage.is_over()) {
            let here = at;
            at += 1;
            match *op {
                Op::Run(ns) => stage.work(ns),
                Op::RunAbout(mean) => stage.work(about(mean, self.rng.next_u64())),
                Op::Sleep(ns) => std::thread::sleep(Duration::from_nanos(ns)),
                Op::SleepAbout(mean) => {
                    let ns = about(mean, self.rng.next_u64());
                    std::thread::sleep(Duration::from_nanos(ns));
                }
                Op::Barrier(barrier) => stage.gather(barrier),
                Op::Send(channel) => stage.send(channel),
                Op::Receive(channel) => stage.receive(channel),
                Op::Yield => std::thread::yield_now(),
                Op::Repeat { to, times } => {
                    let count = &mut self.repeats[here];
                    *count = if *count < times { *count + 1 } else { 0 };
                    if *count > 0 {
                        at = to;
                    }
                }
                Op::Goto(to) => at = to,
                // check() lets no others come this far.
                _ => break,
            }
        }
        // What it has had can be asked for only as long as it is there.
        stage.wait_for_curtain(|_| false);
    }
}

impl Stage {
    /// Until the curtain is as wanted, or all is over.
    fn wait_for_curtain(&self, is_wanted: fn(bool) -> bool) {
        let mut open = self.curtain.enter();
        while !is_wanted(*open) && !self.is_over() {
            open = self.curtain.wait(open);
        }
    }

    /// Uses so much CPU time, of this thread's.
    fn work(&self, ns: u64) {
        const STEPS: u32 = 500;
        let end = own_time() + Duration::from_nanos(ns);
        while own_time() < end && !self.is_over() {
            (0..STEPS).for_each(|step| {
                black_box(step);
            });
        }
    }

    fn gather(&self, barrier: usize) {
        let Some((size, place)) = self.barriers.get(barrier) else { return };
        let mut gathering = place.enter();
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
        *place.enter() += 1;
        place.changed.notify_one();
    }

    fn receive(&self, channel: usize) {
        let Some(place) = self.channels.get(channel) else { return };
        let mut items = place.enter();
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
    fn shares_are_what_lies_between_two_times() {
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

    /// All kinds of steps; each thread gets through its program or is let go where it waits.
    #[test]
    fn real_threads_do_what_is_planned() {
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
        // However slow the machine is: until the hog has run.
        let found = (0..1000)
            .map(|_| play(&workload, 1, settles, Duration::from_millis(20)).unwrap())
            .find(|shares| shares[0].ran_ns > 0)
            .unwrap();
        assert_eq!(found.len(), workload.tasks.len());
    }

    #[test]
    fn what_threads_cannot_do_here_is_refused() {
        let plan = |op| TaskPlan::new("thread", vec![op]);
        let late = TaskPlan { arrives_ns: None, ..plan(Op::Yield) };
        for (task, said) in [(plan(Op::Lock(0)), "Lock(0) of task thread"), (late, "task thread")] {
            let workload = Workload { tasks: vec![task], ..Workload::default() };
            let why = play(&workload, 1, Duration::ZERO, Duration::ZERO).unwrap_err().to_string();
            assert!(why.contains(said), "{why}");
        }
    }
}
