//! The kernel as a sched_ext scheduler knows it: runqueues, dispatch queues, idle CPUs, kicks, ticks,
//! and the order in which callbacks come. Modelled on Linux 6.18, kernel/sched/ext.c.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `start` | the machine as the workload wants it, and what is planned for it |
//! | `callbacks` | the scheduler is called, and what that costs |
//! | `kfuncs` | the scheduler calls |
//! | `recorder` | both written down |
//! | `schedule` | a CPU chooses who runs next |
//! | `queue` | tasks get into queues and out of them; wake-ups |
//! | `idle` | which CPUs idle, and which of them a task gets |
//! | `clock` | the time that passes for who runs: progress, ticks |
//! | `cache` | what caches hold of shared memory |
//! | `company` | how much slaves run what their master runs |
//! | `change` | affinity, nice, cgroups, capability |
//! | `hotplug` | CPUs come and go, and the scheduler is loaded anew |
//! | `steps` | what tasks do between stretches of work |
//! | `balancer` | the user-level balancer on top |
//! | `capability` | what user space tells the keel of the CPUs while it runs |
//! | `shield` | what it does about shielded CPUs |
//! | `siblings` | whether siblings get what their bonus promises |
//! | `auto` | what user space finds out about address spaces, and tells the keel |
//! | `tell` | what whoever watches is told |
//! | `faults` | calls that fail, delays, changes |
//! | `interleave` | callbacks that are under way at the same time |
//! | `ahead` | what the next event needs is fetched |

mod balancer;
mod boot;
mod cache;
mod callbacks;
mod capability_feed;
mod change;
mod coscheduling;
mod emit;
mod faults;
mod hotplug;
mod ias_auto;
mod idle;
mod interleave;
mod kfuncs;
mod kick;
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

use evenkeel_keel::tape::{Callback, Entry};
use evenkeel_machine::Machine;

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
    /// Whether it hangs.
    lockup: Arc<Detector>,
    /// Which of its callbacks is being called.
    within: Option<Callback>,
    /// Whose select_cpu or enqueue is being called.
    direct: Option<u32>,
    /// What the scheduler is told and what it does, if that is recorded.
    tape: Option<Vec<Entry>>,
    cpus: Vec<Cpu>,
    online: Mask,
    idle: idle::IdleCpus,
    tasks: Vec<Task>,
    dsqs: Vec<(u64, Dsq)>,
    groups: Vec<Group>,
    /// The number of the one that was made last.
    last_group_id: u64,
    /// What the real-time tasks have run, by number.
    thieves_ran: BTreeMap<u32, u64>,
    workload: Arc<Workload>,
    sync: steps::Objects,
    caches: cache::Caches,
    /// Each core's own, by the core's first CPU.
    near_caches: cache::Caches,
    coscheduling: CoScheduling,
    balancer: Option<balancer::Balancer>,
    watch: Option<capability_feed::Watch>,
    helper: Option<ias_auto::Helper>,
    live: usize,
    hazards: Hazards,
    /// What must wait until who holds a lock is done.
    deferred: Vec<Event>,
    /// Events that are under way at the same time.
    flights: interleave::Flights,
    end: Option<End>,
    seed: u64,
    observer: Observer,
    /// Callbacks that are under way at the same time all have a `&mut Kernel`, each up to where it
    /// waits: what is pinned is not taken to be theirs alone by the compiler.
    _pinned: PhantomPinned,
}

/// The global queue's number in `dsqs`.
const GLOBAL: usize = 0;
/// Its id: `SCX_DSQ_GLOBAL`, `SCX_DSQ_LOCAL`.
const GLOBAL_ID: u64 = 0x8000_0000_0000_0001;
const LOCAL_ID: u64 = 0x8000_0000_0000_0002;

impl Kernel {
    /// A machine that has just been started, with everything planned.
    /// `records`: what the scheduler is told and what it does is written down.
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
        // Who runs under them at the same time is one, or SMT siblings: that does not count.
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
            coscheduling: CoScheduling::new(&workload.roles(machine)),
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
            end: None,
            seed: *seed,
            observer,
            _pinned: PhantomPinned,
        });
        kernel.make_cpus();
        kernel.make_groups();
        kernel.make_tasks();
        kernel.plan_all();
        Ok(kernel)
    }

    /// Lets things happen until all tasks have ended, the time is over, or something went wrong.
    pub fn run(&mut self, max_events: u64) {
        if self.watched(move |kernel| kernel.let_happen(max_events)) {
            return;
        }
        let (cpu, within) = (self.instance.host.cpu, self.within);
        let within = within.map_or_else(String::new, |within| format!(" in {within:?}"));
        self.broken(format!("soft lockup - CPU {cpu} is stuck{within}: it does not come back"));
        self.flights.abandon();
    }

    /// Whether this has come to its end: the scheduler may hang in it.
    fn watched(&mut self, work: impl FnOnce(&mut Self) + 'static) -> bool {
        self.lockup.set_scheduler(&mut self.instance);
        let lockup = self.lockup.clone();
        let kernel = NonNull::from(&mut *self);
        let work = move || {
            let mut kernel = kernel;
            // SAFETY: the kernel waits here for the end; see its pin.
            work(unsafe { kernel.as_mut() });
        };
        // SAFETY: the kernel outlives the call, and ends if it does not come to its end.
        unsafe { lockup.watch(work) }.unwrap_or_else(|why| {
            self.end = Some(End::Host(format!(
                "a stack and a timer for a simulation: {why}; free memory, or raise the limit of pending \
                 signals (ulimit -i)"
            )));
            true
        })
    }

    fn let_happen(&mut self, max_events: u64) {
        self.start_scheduler();
        while self.end.is_none() && self.live > 0 {
            let next = self.agenda.next_ns();
            if next.is_none() && !self.flights.any() {
                break;
            }
            let last = self.workload.duration_ns;
            if last > 0 && next.is_some_and(|next| next > last) {
                if self.flights.any() {
                    // What they lead to may still be in time.
                    self.land();
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
            self.proceed();
        }
        self.land();
    }

    fn deadlock(&self) -> End {
        let waiting = || (0..self.tasks.len()).filter(|task| self.tasks[*task].life != Life::Dead);
        let example = waiting().next().map_or_else(String::new, |task| self.name(task as u32));
        End::Deadlock { waiting: waiting().count(), example }
    }

    /// An event is handled that was planned for `time`.
    fn happen(&mut self, time: u64, event: Event) {
        // A task that wakes another does so while it runs, and not by an event of its own.
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
            Event::Fault => self.fault(),
        }
    }

    /// A rule of sched_ext was broken: the kernel would end the scheduler.
    fn broken(&mut self, what: String) {
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

    /// What came of it, and what was recorded.
    pub fn finish(mut self: Box<Self>) -> (Outcome, Vec<Entry>) {
        if matches!(self.end, Some(End::Scheduler(_))) {
            // Who hangs may do so there, too.
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
