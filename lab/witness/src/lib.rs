//! The witness: shows the checkers of lab/invariants what a real kernel's scheduler does.
//!
//! For tests in a virtual machine: its BPF programs (lab/bpf/witness.bpf.c) report every context switch
//! of the whole machine. Masks are followed for the first 64 CPUs.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `tracer` | the BPF programs, their ring buffer, and the stream of events from it |
//! | `raw_event` | from the ring buffer's C struct to events |
//! | `fault` | reports a fault of the running sched_ext scheduler to the kernel |
//! | `object` | alignment and errors of the BPF objects |

mod fault;
mod object;
mod raw_event;
mod tracer;

pub use fault::{FAULT, report_fault};
pub use object::Error;
pub use tracer::Tracer;

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_invariants::{Event, Findings, Limits, Watch, What};
use evenkeel_machine::CpuSet;

/// Traced events, shown to all checkers. Dropping it detaches everything.
pub struct Witness {
    tracer: Tracer,
    seen: Rc<RefCell<Seen>>,
}

struct Seen {
    watch: Watch,
    last_ns: u64,
}

impl Witness {
    /// Begins to trace. The ring buffer holds `buffer_mib` MiB (a power of two) of unread events, about
    /// 10,000 in each MiB.
    ///
    /// # Errors
    /// Without BTF, BPF trampolines or privilege.
    pub fn open(limits: Limits, buffer_mib: u32) -> Result<Self, Error> {
        let seen = Seen { watch: Watch::new(limits), last_ns: 0 };
        let seen = Rc::new(RefCell::new(seen));
        let shown = Rc::clone(&seen);
        let tracer = Tracer::open(buffer_mib, move |event| {
            let mut seen = shown.borrow_mut();
            seen.last_ns = event.time_ns;
            seen.watch.see(event);
        })?;
        Ok(Self { tracer, seen })
    }

    /// Shows the checkers all events so far. Takes long if there are many.
    ///
    /// # Errors
    /// When the buffer cannot be read.
    pub fn look(&self) -> Result<(), Error> {
        self.tracer.look()
    }

    /// Runs `step`, by which CPUs come or go. The kernel does not trace a CPU that is not online, so
    /// the checkers are told: events may be missing meanwhile.
    ///
    /// # Errors
    /// As [`Witness::look`].
    pub fn while_cpus_change(&self, step: impl FnOnce()) -> Result<(), Error> {
        self.look()?;
        self.seen.borrow_mut().watch.cpus_change(true);
        step();
        self.look()?;
        self.seen.borrow_mut().watch.cpus_change(false);
        Ok(())
    }

    /// Tells the checkers that these CPUs run only tasks that may run nowhere else from now on.
    ///
    /// # Errors
    /// As [`Witness::look`].
    pub fn shield(&self, cpus: CpuSet) -> Result<(), Error> {
        self.look()?;
        let mut seen = self.seen.borrow_mut();
        let event = Event { time_ns: seen.last_ns, cpu: 0, what: What::Shield { cpus } };
        seen.watch.see(&event);
        Ok(())
    }

    /// Stops tracing, and returns what the checkers found.
    ///
    /// # Errors
    /// [`Error::Lost`] when events were lost.
    pub fn end(self) -> Result<Findings, Error> {
        let Self { tracer, seen } = self;
        tracer.end()?;
        // The tracer, which has ended, held the other reference.
        let Some(seen) = Rc::into_inner(seen) else { return Err(Error::Missing("end")) };
        let Seen { watch, last_ns, .. } = seen.into_inner();
        Ok(watch.end(last_ns))
    }
}
