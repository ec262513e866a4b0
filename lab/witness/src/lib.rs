//! Sees what a kernel's scheduler does, by BPF, as the stream of events that invariants are checked
//! against.
//!
//! For tests in a virtual machine: it writes down every context switch of the whole machine. Masks
//! are followed for the first 64 CPUs.

mod ear;
mod fault;
mod records;

pub use ear::Ear;
pub use fault::{FAULT, report_fault};

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_invariants::{Event, Findings, Limits, Watch, What};
use evenkeel_machine::CpuSet;

/// Why there is no witness, or it saw only a part.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libbpf or the kernel refused.
    #[error("witness: {what}: {source}")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// A part of the object that this version needs is not in it.
    #[error("witness: the BPF object has no {0}: rebuild evenkeel")]
    Missing(&'static str),
    /// What was seen has gaps, so nothing can be said about it.
    #[error(
        "witness: {lost} of {seen} events found the buffer full, so nothing is certain: take more memory or look more often"
    )]
    Lost {
        /// Events that were not written down.
        lost: u64,
        /// Events that were.
        seen: u64,
    },
}

fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { what, source }
}

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

/// A witness that looks on. Dropping it detaches everything.
pub struct Witness {
    ear: Ear,
    seen: Rc<RefCell<Seen>>,
}

struct Seen {
    watch: Watch,
    last_ns: u64,
}

impl Witness {
    /// Begins to look on. The buffer holds `buffer_mib` MiB (a power of two) of events that nobody
    /// has looked at yet, about 10,000 each.
    ///
    /// # Errors
    /// Without BTF, BPF trampolines or privilege.
    pub fn open(limits: Limits, buffer_mib: u32) -> Result<Self, Error> {
        let seen = Seen { watch: Watch::new(limits), last_ns: 0 };
        let seen = Rc::new(RefCell::new(seen));
        let told = Rc::clone(&seen);
        let ear = Ear::open(buffer_mib, move |event| {
            let mut seen = told.borrow_mut();
            seen.last_ns = event.time_ns;
            seen.watch.see(event);
        })?;
        Ok(Self { ear, seen })
    }

    /// Looks at what has happened so far: takes a while after much has.
    ///
    /// # Errors
    /// When the buffer cannot be read.
    pub fn look(&self) -> Result<(), Error> {
        self.ear.look()
    }

    /// Does something by which CPUs come or go. Nobody sees what a CPU does that is not online.
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

    /// From now on these CPUs take only who may run nowhere else.
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

    /// Stops looking on, and says what was found.
    ///
    /// # Errors
    /// [`Error::Lost`] when something was missed.
    pub fn end(self) -> Result<Findings, Error> {
        let Self { ear, seen } = self;
        ear.end()?;
        // The ear held the other half.
        let Some(seen) = Rc::into_inner(seen) else { return Err(Error::Missing("end")) };
        let Seen { watch, last_ns, .. } = seen.into_inner();
        Ok(watch.end(last_ns))
    }
}
