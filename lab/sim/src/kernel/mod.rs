//! A model of the Linux kernel as a sched_ext scheduler sees it, after Linux 6.18: runqueues, dispatch
//! queues, idle masks, kicks, ticks, and the order of callbacks.
//!
//! | file | models | in the kernel |
//! |---|---|---|
//! | `state` | tasks, runqueues, cgroups | `task_struct`, `rq`, `cgroup` |
//! | `boot` | CPUs, cgroups and tasks at the start | `sched_init()` |
//! | `callbacks` | the kernel calls the scheduler | `SCX_CALL_OP` in `ext.c` |
//! | `kfuncs` | the scheduler calls the kernel | the `scx_bpf_*` functions in `ext.c` |
//! | `wakeup` | new tasks and wake-ups | `wake_up_new_task()`, `try_to_wake_up()` |
//! | `queue` | enqueue, dequeue | `do_enqueue_task()`, `dequeue_task_scx()`, `consume_dispatch_q()` |
//! | `schedule` | a CPU picks its next task | `__schedule()`, `balance_one()`, `pick_task_scx()` |
//! | `kick` | kicks, and asking a CPU to reschedule | `scx_bpf_kick_cpu()`, `resched_curr()` |
//! | `tick` | ticks, interrupts, the watchdog | `task_tick_scx()`, `scx_watchdog_workfn()` |
//! | `idle` | idle masks | `ext_idle.c` |
//! | `change` | affinity, nice, cgroups | `sched_change_begin()`, `affine_move_task()` |
//! | `hotplug` | CPUs come and go; restarts | `handle_hotplug()`, `scx_enable()`, `scx_disable()` |
//!
//! The hardware and what runs on it:
//!
//! | file | models |
//! |---|---|
//! | `progress` | how fast a running task makes progress, and what does not count as progress |
//! | `memory` | the node of a task's memory, and what the scheduler is told of it |
//! | `times` | where the time of CPUs and tasks went |
//! | `cache` | what caches hold of the memory that threads share |
//! | `steps` | the ops of tasks between stretches of work: sleeps, barriers, mutexes, channels |
//!
//! User space. Its code is the product's own; only what it reads and writes is modelled:
//!
//! | file | runs the code of |
//! |---|---|
//! | `balancer` | product/capability: the user-level balancer |
//! | `capability_feed` | product/keel: measured capabilities of CPUs, passed to the keel |
//! | `shield` | product/keel: shielded CPUs, and taking lone tasks off them |
//! | `ias_auto` | product/keel: the helper thread of `--ias-auto` |
//!
//! The simulator's own:
//!
//! | file | what it does |
//! |---|---|
//! | `emit` | shows scheduling events to the observer |
//! | `recorder` | records callbacks and calls on a tape |
//! | `gauge` | shows another thread how much is done |
//! | `siblings_first` | a checker of the order `ias` that needs to see the queues |
//! | `coscheduling` | how long slaves run the address space of their master |
//! | `faults` | injects faults, by the seed |
//! | `interleave` | callbacks of several CPUs in flight at the same time |
//! | `prefetch` | fetches what the next event needs into the cache |
//!
//! Not modelled: core scheduling, per-node idle masks, the bandwidth and the order of deadline tasks,
//! deadline servers, proxy execution, throttled cgroups.

mod balancer;
mod boot;
mod cache;
mod callbacks;
mod capability_feed;
mod change;
mod coscheduling;
mod emit;
mod faults;
mod gauge;
mod hotplug;
mod ias_auto;
mod idle;
mod interleave;
mod kfuncs;
mod kick;
mod memory;
mod prefetch;
mod progress;
mod queue;
mod recorder;
mod schedule;
mod shield;
mod siblings_first;
mod state;
mod steps;
mod tick;
mod times;
mod wakeup;

use std::collections::BTreeMap;
use std::marker::PhantomPinned;
use std::ptr::NonNull;
use std::sync::Arc;

use evenkeel_machine::Machine;
use evenkeel_tape::{Callback, Entry};

use crate::agenda::{Agenda, Event};
use crate::dsq::Dsq;
use crate::host_error::HostError;
use crate::lockup::Detector;
use crate::mask::{MAX_CPUS, Mask};
use crate::native::Instance;
use crate::observe::Observer;
use crate::outcome::{End, MAX_KEPT, Outcome};
use crate::program::Workload;
use crate::scheduler::Scheduler;
use crate::simulation::Simulation;
use crate::topology::{Level, Topology};

use faults::Hazards;
use state::{Cpu, Direct, Group, Life, Queue, Task};
use times::FRACTION;

pub use coscheduling::CoScheduling;
pub use gauge::Gauge;

/// After so many steps it is shown how much is done.
const STEPS_A_LOOK: u32 = 1 << 14;
/// `SCX_CPUPERF_ONE`.
const FULL_FREQUENCY: u32 = 1024;
/// A running simulation.
pub(crate) struct Kernel {
    now: u64,
    agenda: Agenda,
    machine: Machine,
    topology: Topology,
    scheduler: Scheduler,
    instance: Instance,
    /// Detects a scheduler that hangs.
    lockup: Arc<Detector>,
    /// The callback that is being called.
    within: Option<Callback>,
    /// The task of the select_cpu or enqueue that is being called: it may be dispatched directly.
    direct: Option<u32>,
    /// Callbacks and calls, if they are recorded.
    tape: Option<Vec<Entry>>,
    cpus: Vec<Cpu>,
    online: Mask,
    idle: idle::IdleCpus,
    tasks: Vec<Task>,
    dsqs: Vec<(u64, Dsq)>,
    groups: Vec<Group>,
    /// The id of the cgroup that was created last.
    last_group_id: u64,
    /// The run time of each real-time task, by number.
    thieves_ran: BTreeMap<u32, u64>,
    workload: Arc<Workload>,
    sync: steps::Objects,
    caches: cache::Caches,
    /// Each core's own caches, by the core's first CPU.
    near_caches: cache::Caches,
    coscheduling: CoScheduling,
    balancer: Option<balancer::Balancer>,
    watch: Option<capability_feed::Watch>,
    helper: Option<ias_auto::Helper>,
    /// Tasks that have not ended.
    live: usize,
    hazards: Hazards,
    /// Events that wait until the lock that they need is released.
    deferred: Vec<Event>,
    /// Events in flight.
    flights: interleave::Flights,
    /// How often a task was found in another queue than the scheduler takes it to be in.
    misplaced: u64,
    end: Option<End>,
    seed: u64,
    observer: Observer,
    /// Shows how much is done, if that is wanted.
    gauged: Option<gauge::Gauged>,
    /// All events in flight hold a `&mut Kernel` while they are suspended. The pin keeps the compiler
    /// from assuming that each of these is unique.
    _pinned: PhantomPinned,
}

/// The index of the global DSQ in `dsqs`.
const GLOBAL: usize = 0;
/// `SCX_DSQ_GLOBAL`, `SCX_DSQ_LOCAL`.
const GLOBAL_ID: u64 = 0x8000_0000_0000_0001;
const LOCAL_ID: u64 = 0x8000_0000_0000_0002;

impl Kernel {
    /// A machine that has just booted, with all known events planned.
    /// `records`: callbacks and calls are recorded.
    pub fn new(
        simulation: &Simulation,
        observer: Observer,
        records: bool,
    ) -> Result<Box<Self>, HostError> {
        let Simulation { machine, scheduler, workload, seed, .. } = simulation;
        let topology = Topology::new(machine);
        let machine_cpus = topology.cpus();
        let online = Mask::from(&machine.online());
        let idle = idle::IdleCpus::new(&topology, &online);
        let caches = cache::Caches::new(topology.caches(), machine_cpus);
        // No CPUs: sharing a core between SMT siblings is not modelled here.
        let near_caches = cache::Caches::new(machine_cpus, 0);
        let functions = if records { recorder::FUNCTIONS } else { kfuncs::FUNCTIONS };
        let instance = scheduler.load(machine, functions)?;
        let mut kernel = Box::new(Self {
            now: 0,
            agenda: Agenda::default(),
            machine: machine.clone(),
            topology,
            scheduler: scheduler.clone(),
            lockup: Arc::new(Detector::default()),
            within: None,
            instance,
            direct: None,
            tape: records.then(Vec::new),
            cpus: Vec::new(),
            online,
            idle,
            tasks: Vec::new(),
            dsqs: vec![(GLOBAL_ID, Dsq::default())],
            groups: Vec::new(),
            last_group_id: 0,
            thieves_ran: BTreeMap::new(),
            sync: steps::Objects::new(workload),
            caches,
            near_caches,
            coscheduling: CoScheduling::new(&workload.roles(machine, scheduler.ias_mode())),
            balancer: simulation
                .balancer
                .clone()
                .map(|policy| balancer::Balancer::new(policy, machine_cpus, workload.tasks.len())),
            watch: None,
            helper: None,
            live: workload.tasks.len(),
            workload: workload.clone(),
            hazards: Hazards::new(simulation.faults, *seed),
            deferred: Vec::new(),
            flights: interleave::Flights::default(),
            misplaced: 0,
            end: None,
            seed: *seed,
            observer,
            gauged: None,
            _pinned: PhantomPinned,
        });
        kernel.make_cpus();
        kernel.make_groups();
        kernel.make_tasks();
        kernel.plan_all();
        Ok(kernel)
    }

    /// Runs until all tasks have ended, the time is over, or something went wrong.
    pub fn run(&mut self, max_events: u64) {
        if self.watched(move |kernel| kernel.run_events(max_events)) {
            return;
        }
        let (cpu, within) = (self.instance.host.cpu, self.within);
        let within = within.map_or_else(String::new, |within| format!(" in {within:?}"));
        self.end_at_fault(format!("soft lockup - CPU {cpu} is stuck{within}: it does not return"));
        self.flights.abandon();
    }

    /// Does `work`, in which the scheduler may hang. Returns whether it ended.
    fn watched(&mut self, work: impl FnOnce(&mut Self) + 'static) -> bool {
        self.lockup.set_scheduler(&mut self.instance);
        let lockup = self.lockup.clone();
        let kernel = NonNull::from(&mut *self);
        let work = move || {
            let mut kernel = kernel;
            // SAFETY: the kernel is not used here until `work` has ended; see its pin.
            work(unsafe { kernel.as_mut() });
        };
        // SAFETY: the kernel outlives the call, and is not run on if `work` is abandoned.
        unsafe { lockup.watch(work) }.unwrap_or_else(|why| {
            self.end = Some(End::Host(format!(
                "a stack and a timer for a simulation: {why}; free memory, or raise the limit of \
                 pending signals (ulimit -i)"
            )));
            true
        })
    }

    fn run_events(&mut self, max_events: u64) {
        self.start_scheduler();
        let mut steps = 0_u32;
        while self.end.is_none() && self.live > 0 {
            let next = self.agenda.next_ns();
            if next.is_none() && !self.flights.any() {
                break;
            }
            let last = self.workload.duration_ns;
            if last > 0 && next.is_some_and(|next| next > last) {
                if self.flights.any() {
                    // They may plan events that are still in time.
                    self.finish_flights();
                    continue;
                }
                self.now = self.workload.duration_ns;
                break;
            }
            if self.observer.events >= max_events {
                self.end = Some(End::Events(max_events));
                break;
            }
            let kept = self.observer.record.len().max(self.tape.as_ref().map_or(0, Vec::len));
            if kept >= MAX_KEPT {
                self.end = Some(End::Kept);
                break;
            }
            self.step();
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(STEPS_A_LOOK) {
                self.show_gauge(max_events);
            }
        }
        self.finish_flights();
    }

    fn deadlock_end(&self) -> End {
        let waiting = || (0..self.tasks.len()).filter(|task| self.tasks[*task].life != Life::Dead);
        let example = waiting().next().map_or_else(String::new, |task| self.name(task as u32));
        End::Deadlock { waiting: waiting().count(), example }
    }

    /// Handles an event that was planned for `time`.
    fn handle(&mut self, time: u64, event: Event) {
        // Wake-ups by timers are interrupts. A wake-up by a running task is not an event of its own.
        let wakes = matches!(event, Event::Wake { .. } | Event::Activate { .. });
        self.instance.host.in_interrupt = wakes.into();
        match event {
            Event::Complete { cpu } => self.complete(cpu.into(), time),
            Event::Tick { cpu } => self.tick(cpu.into()),
            Event::Resched { cpu } => self.resched_event(cpu.into()),
            Event::Kick { cpu, flags } => self.kick_event(cpu.into(), flags),
            Event::Wake { task, cpu, sleep } => self.wake_event(task, cpu.into(), sleep),
            Event::Activate { task, flags } => self.activate_event(task, flags),
            Event::Arrive { task } => self.arrive(task),
            Event::Thief { index, takes } => self.thief_event(index, takes),
            Event::Interrupt { index } => self.interrupt(index),
            Event::Change { index } => self.change_event(index),
            Event::Balance => self.balance_event(),
            Event::Capabilities => self.capability_event(),
            Event::Help => self.help_event(),
            Event::Relief => self.relief_event(),
            Event::Watchdog => self.watchdog(),
            Event::Fault => self.make_random_change(),
            Event::TellHome { task } => self.tell_home(task),
        }
    }

    /// The scheduler broke a rule of sched_ext: the kernel would end it.
    fn end_at_fault(&mut self, what: String) {
        if self.end.is_none() {
            self.end = Some(End::Scheduler(what));
        }
    }

    fn name(&self, task: u32) -> String {
        self.workload
            .tasks
            .get(task as usize)
            .map_or_else(|| format!("task {task}"), |plan| plan.name.to_string())
    }

    /// How far apart two CPUs are.
    fn level(&self, from: u32, to: u32) -> Level {
        self.topology.level(from, to)
    }

    /// The outcome, and the recorded tape.
    pub fn finish(mut self: Box<Self>) -> (Outcome, Vec<Entry>) {
        if matches!(self.end, Some(End::Scheduler(_))) {
            // A scheduler that hangs may hang there, too.
            self.watched(Self::call_dump);
        }
        let wants = |task: &&Task| matches!(task.life, Life::Waits | Life::Runs);
        let runnable = self.tasks.iter().filter(wants).count() as u64;
        let believed_runnable = self.instance.runnable();
        let listed = self.instance.listed();
        let (calls, scanned) = (self.instance.host.calls, self.instance.host.scanned);
        self.coscheduling.end(self.now);
        let mut observer = self.observer;
        for (account, task) in observer.accounts.iter_mut().zip(&self.tasks) {
            account.worked_ns = task.times.worked_ns();
            // The last switch told of it when it began.
            let since_then = self.now - account.since_ns;
            match task.life {
                Life::Runs => account.ran_ns += since_then,
                Life::Waits if account.waits => account.waited_ns += since_then,
                _ => {}
            }
        }
        let (findings, hash) = observer.end(self.now, self.instance.counters());
        let responses = observer.responses.times();
        let outcome = Outcome {
            time_ns: self.now,
            responses,
            waits: observer.waits.times(),
            events: observer.events,
            hash,
            end: self.end,
            findings,
            counters: observer.counters().clone(),
            broken: observer.broken,
            accounts: observer.accounts,
            migrations: observer.migrations,
            switches_same: observer.switches_same,
            switches_other: observer.switches_other,
            idle_while_waiting_ns: observer.idle_while_waiting_ns,
            idle_ns: observer.idle_ns,
            overhead: observer.overhead,
            closed: observer.closed,
            together_ns: self.coscheduling.together_ns,
            same_space_ns: self.coscheduling.same_ns,
            unborn: observer.unborn,
            frequencies: self.cpus.iter().map(|cpu| cpu.frequency).collect(),
            runnable,
            believed_runnable,
            listed,
            misplaced: self.misplaced,
            restarts: observer.restarts,
            moves: observer.moves,
            calls,
            scanned,
            record: observer.record,
            dump: observer.dump,
            changes: self.helper.map(|helper| helper.changes).unwrap_or_default(),
        };
        (outcome, self.tape.unwrap_or_default())
    }
}

const _: () = assert!(MAX_CPUS <= u16::MAX as usize);
