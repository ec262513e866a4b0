//! Several events in flight at the same time, so that races can happen. Each event is handled on a
//! stack of its own. At each point where other CPUs could intervene in a callback, its handler may be
//! suspended and another one resumed; the seed decides. Without this fault, events are handled one
//! after the other.
//!
//! Handlers exclude each other as CPUs do on a real machine: while a handler holds a runqueue's lock or
//! runs a callback on a CPU with interrupts off, others that need that CPU wait.

use std::ptr::NonNull;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::agenda::Event;
use crate::dsq::Place;
use crate::keel_state;

use super::{End, Kernel};

/// How long a callback can take on a real CPU: later events do not begin before it has ended.
const WINDOW_NS: u64 = 20_000;
/// At most this many events are in flight.
const MOST: usize = 4;
/// Enough for the frames of the scheduler and the kernel, with sanitizers.
const STACK_BYTES: usize = 256 * 1024;

type Handler = Coroutine<(), (), (), DefaultStack>;

/// An event in flight: its suspended handler.
struct Flight {
    handler: Handler,
    began_ns: u64,
}

/// All events in flight.
#[derive(Default)]
pub(super) struct Flights {
    /// Handlers that are suspended in a callback.
    open: Vec<Flight>,
    /// Suspends the running handler.
    here: Option<NonNull<Yielder<(), ()>>>,
    /// Stacks of ended handlers, to be reused.
    stacks: Vec<DefaultStack>,
    /// An event needs the whole machine: no new event begins before it.
    drains: bool,
}

impl Flights {
    /// Whether a handler is suspended.
    pub fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Abandons all handlers, because the scheduler hangs.
    pub fn abandon(&mut self) {
        for mut flight in self.open.drain(..) {
            // SAFETY: its frames belong to the scheduler and to the kernel, which both have ended.
            unsafe { flight.handler.force_reset() };
        }
    }
}

impl Kernel {
    /// Handles the next event, or resumes one in flight.
    pub(super) fn step(&mut self) {
        if self.flights.any() && self.resumes_flight() {
            let at = self.hazards.below(self.flights.open.len() as u64) as usize;
            let flight = self.flights.open.swap_remove(at);
            self.resume(flight);
            return;
        }
        let Some((time, event)) = self.agenda.pop() else { return };
        self.now = self.now.max(time);
        self.observer.events += 1;
        self.lockup.progress();
        self.prefetch_next();
        if self.hazards.pauses() {
            self.start_flight(time, event);
        } else {
            self.handle(time, event);
            self.retry_deferred();
        }
    }

    /// Whether an event in flight is resumed, instead of a new one begun.
    fn resumes_flight(&mut self) -> bool {
        let flights = &self.flights;
        let oldest = flights.open.iter().map(|flight| flight.began_ns).min().unwrap_or_default();
        if flights.drains || flights.open.len() == MOST || self.end.is_some() {
            return true;
        }
        self.agenda.next_ns().is_none_or(|next| next > oldest + WINDOW_NS) || self.hazards.flip()
    }

    /// Counts the tasks in the queue of a CPU with a state that says something else. Judged only while
    /// no handler is suspended: one that moves a task notes that before or after.
    pub(super) fn count_misplaced(&mut self, cpu: u32) {
        if !self.hazards.pauses() || self.flights.any() || self.instance.runnable().is_none() {
            return;
        }
        let Some(dsq) = self.find_dsq(u64::from(cpu)) else { return };
        let is_misplaced = |(place, task): &(Place, u32)| {
            let Some(state) = NonNull::new(self.tasks[*task as usize].raw.storage.cast::<u8>())
            else {
                return false;
            };
            let bytes = keel_state::TASK_STATE_BYTES;
            // SAFETY: the keel's map `tasks` allocated the state, which is at least as long.
            let state = unsafe { std::slice::from_raw_parts(state.as_ptr(), bytes) };
            !keel_state::is_placed(state, u64::from(cpu), place.vtime)
        };
        self.misplaced += self.dsqs[dsq].1.iter().filter(is_misplaced).count() as u64;
    }

    /// Resumes all events in flight until they have ended.
    pub(super) fn finish_flights(&mut self) {
        // In turn, because one may wait for another.
        while !self.flights.open.is_empty() {
            let flight = self.flights.open.remove(0);
            self.resume(flight);
        }
    }

    /// Handles an event on a stack of its own.
    fn start_flight(&mut self, time: u64, event: Event) {
        let used = self.flights.stacks.pop();
        let stack = match used.map_or_else(|| DefaultStack::new(STACK_BYTES), Ok) {
            Ok(stack) => stack,
            Err(why) => {
                let why = format!("a stack for a callback: {why}; free memory");
                self.end = Some(End::Host(why));
                return;
            }
        };
        let kernel = NonNull::from(&mut *self);
        let handler = Coroutine::with_stack(stack, move |here: &Yielder<(), ()>, ()| {
            let mut kernel = kernel;
            // SAFETY: the kernel outlives its handlers: run() finishes or abandons them all. Only the
            // running handler uses it. Every caller of a callback expects that the kernel has changed
            // meanwhile, and its pin allows references to be shared like this.
            let kernel = unsafe { kernel.as_mut() };
            kernel.flights.here = Some(NonNull::from(here));
            kernel.handle(time, event);
        });
        let began_ns = self.now;
        self.resume(Flight { handler, began_ns });
    }

    /// Runs a handler until it is suspended again or has ended.
    fn resume(&mut self, mut flight: Flight) {
        let result = flight.handler.resume(());
        self.flights.here = None;
        match result {
            CoroutineResult::Yield(()) => self.flights.open.push(flight),
            CoroutineResult::Return(()) => {
                self.flights.stacks.push(flight.handler.into_stack());
                self.retry_deferred();
            }
        }
    }

    /// An event has been handled: deferred events are tried again.
    fn retry_deferred(&mut self) {
        self.flights.drains &= self.flights.any();
        if !self.deferred.is_empty() {
            for event in std::mem::take(&mut self.deferred) {
                self.agenda.plan(self.now, event);
            }
        }
    }

    /// Defers an event that needs the whole machine if others are in flight. Returns whether it did.
    pub(super) fn defer_unless_alone(&mut self, event: Event) -> bool {
        let waits = self.flights.any();
        if waits {
            self.flights.drains = true;
            self.deferred.push(event);
        }
        waits
    }

    /// A point in a callback where other CPUs may intervene. (This CPU may not: its interrupts are off.)
    pub(super) fn pause_point(&mut self) {
        self.lockup.called();
        let Some(here) = self.flights.here else { return };
        if self.end.is_none() && self.hazards.lets_others_in() {
            self.suspend(here);
        }
    }

    /// Waits until the lock of this CPU's runqueue is free. The caller must not run on that CPU nor
    /// hold another lock.
    pub(super) fn wait_for_lock(&mut self, cpu: u32) {
        while let (true, Some(here)) = (self.cpus[cpu as usize].is_held(), self.flights.here) {
            if self.end.is_some() {
                return;
            }
            self.suspend(here);
        }
    }

    /// Suspends the running handler, and restores its context when it is resumed.
    fn suspend(&mut self, here: NonNull<Yielder<(), ()>>) {
        let host = &self.instance.host;
        let (context, cpu, direct) = (host.context, host.cpu, self.direct);
        let (in_interrupt, awaited) = (host.in_interrupt, host.awaited_by_higher_class);
        let within = self.within;
        // SAFETY: it belongs to the running handler, which lives as long as this call.
        unsafe { here.as_ref() }.suspend(());
        self.flights.here = Some(here);
        self.direct = direct;
        self.within = within;
        let host = &mut *self.instance.host;
        (host.context, host.cpu, host.now_ns) = (context, cpu, self.now);
        (host.in_interrupt, host.awaited_by_higher_class) = (in_interrupt, awaited);
    }
}
