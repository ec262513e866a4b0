//! Events that are under way at the same time, so that races can happen: each is handled on a stack
//! of its own, and at the points where a callback may be interrupted by what other CPUs do, anybody
//! may go on. Only where faults are wanted: a simulation without them handles one event after the
//! other, and knows nothing of this.
//!
//! Who goes on is drawn by the seed. What keeps them apart is what does so on a real machine: who
//! holds a runqueue's lock, or has its interrupts off, keeps all others out of there.

use std::ptr::NonNull;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::agenda::Event;

use super::{End, Kernel};

/// How long a callback can take on a real CPU: nothing that comes later begins before it has ended.
const WINDOW_NS: u64 = 20_000;
/// So many events are under way at most.
const MOST: usize = 4;
/// For the scheduler's frames and ours, with room for what sanitizers add.
const STACK_BYTES: usize = 256 * 1024;

type Handler = Coroutine<(), (), (), DefaultStack>;

/// An event that is being handled.
struct Flight {
    handler: Handler,
    began_ns: u64,
}

/// The events that are being handled.
#[derive(Default)]
pub(super) struct Flights {
    /// Those that wait in the middle of a callback.
    open: Vec<Flight>,
    /// Where the one that runs can wait.
    here: Option<NonNull<Yielder<(), ()>>>,
    /// Of handlers that have ended.
    stacks: Vec<DefaultStack>,
    /// Something wants to be alone: nothing new begins before that.
    drains: bool,
}

impl Flights {
    /// Whether anything else is under way, for who runs.
    pub fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// None of them will go on: the scheduler hangs.
    pub fn abandon(&mut self) {
        for mut flight in self.open.drain(..) {
            // SAFETY: what is on its stack is the scheduler's, or the kernel's, which has ended.
            unsafe { flight.handler.force_reset() };
        }
    }
}

impl Kernel {
    /// The next event is handled, or one that is under way goes on.
    pub(super) fn proceed(&mut self) {
        if self.flights.any() && self.is_landing() {
            let at = self.hazards.below(self.flights.open.len() as u64) as usize;
            let flight = self.flights.open.swap_remove(at);
            self.fly(flight);
            return;
        }
        let Some((time, event)) = self.agenda.pop() else { return };
        self.now = self.now.max(time);
        self.observer.events += 1;
        self.lockup.progress();
        self.look_ahead();
        if self.hazards.pauses() {
            self.take_off(time, event);
        } else {
            self.happen(time, event);
            self.settle();
        }
    }

    /// Whether one of those under way goes on, and nothing begins.
    fn is_landing(&mut self) -> bool {
        let flights = &self.flights;
        let oldest = flights.open.iter().map(|flight| flight.began_ns).min().unwrap_or_default();
        if flights.drains || flights.open.len() == MOST || self.end.is_some() {
            return true;
        }
        self.agenda.next_ns().is_none_or(|next| next > oldest + WINDOW_NS) || self.hazards.flip()
    }

    /// Everything that is under way comes to its end.
    pub(super) fn land(&mut self) {
        // By turns: one may wait for another.
        while !self.flights.open.is_empty() {
            let flight = self.flights.open.remove(0);
            self.fly(flight);
        }
    }

    fn take_off(&mut self, time: u64, event: Event) {
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
            // SAFETY: the kernel outlives its handlers: run() lets them all land. It is used by who
            // runs only; that others have changed it meanwhile is what every caller of a callback
            // expects, and that references to it may be shared like that is what its pin is for.
            let kernel = unsafe { kernel.as_mut() };
            kernel.flights.here = Some(NonNull::from(here));
            kernel.happen(time, event);
        });
        let began_ns = self.now;
        self.fly(Flight { handler, began_ns });
    }

    /// One goes on until it waits again or has ended.
    fn fly(&mut self, mut flight: Flight) {
        let result = flight.handler.resume(());
        self.flights.here = None;
        match result {
            CoroutineResult::Yield(()) => self.flights.open.push(flight),
            CoroutineResult::Return(()) => {
                self.flights.stacks.push(flight.handler.into_stack());
                self.settle();
            }
        }
    }

    /// An event has been handled: what had to wait for that is tried again.
    fn settle(&mut self) {
        self.flights.drains &= self.flights.any();
        if !self.deferred.is_empty() {
            for event in std::mem::take(&mut self.deferred) {
                self.agenda.plan(self.now, event);
            }
        }
    }

    /// Whether this event, which needs the whole machine to itself, has to wait for that.
    pub(super) fn wants_to_be_alone(&mut self, event: Event) -> bool {
        let waits = self.flights.any();
        if waits {
            self.flights.drains = true;
            self.deferred.push(event);
        }
        waits
    }

    /// A point in a callback where other CPUs may go on. (This one may not: it has its interrupts
    /// off, and so has whoever holds a lock.)
    pub(super) fn let_others_in(&mut self) {
        self.lockup.called();
        let Some(here) = self.flights.here else { return };
        if self.end.is_none() && self.hazards.lets_others_in() {
            self.wait(here);
        }
    }

    /// Until nobody holds the lock of this CPU's runqueue: for who is not on that CPU, and holds no other
    /// lock.
    pub(super) fn wait_for(&mut self, cpu: u32) {
        while let (true, Some(here)) = (self.cpus[cpu as usize].is_held(), self.flights.here) {
            if self.end.is_some() {
                return;
            }
            self.wait(here);
        }
    }

    /// Others go on, and this one later.
    fn wait(&mut self, here: NonNull<Yielder<(), ()>>) {
        let host = &self.instance.host;
        let (context, cpu, direct) = (host.context, host.cpu, self.direct);
        let (in_interrupt, awaited) = (host.in_interrupt, host.awaited_by_real_time);
        let within = self.within;
        // SAFETY: it is the one of the handler that runs, which lives as long as this call.
        unsafe { here.as_ref() }.suspend(());
        self.flights.here = Some(here);
        self.direct = direct;
        self.within = within;
        let host = &mut *self.instance.host;
        (host.context, host.cpu, host.now_ns) = (context, cpu, self.now);
        (host.in_interrupt, host.awaited_by_real_time) = (in_interrupt, awaited);
    }
}
