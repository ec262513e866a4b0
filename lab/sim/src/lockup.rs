//! A scheduler that does not come back from a callback: the kernel's soft lockup detector would notice, and
//! so does this. What may hang runs on a stack of its own; a timer of the thread's CPU time looks whether
//! anything has happened meanwhile, and if it has not, that stack is left for good: at once if the processor
//! is in the scheduler's code, and otherwise as soon as the scheduler calls us.
//!
//! Only the scheduler's own frames and those of who called it are left: C without destructors, and a kernel
//! that ends right then.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use nix::sys::signal::{
    SaFlags, SigAction, SigEvent, SigHandler, SigSet, SigevNotify, Signal, sigaction,
};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use nix::unistd::gettid;

use crate::native::Instance;

/// How often it looks, in CPU time ...
const INTERVAL: Duration = Duration::from_millis(100);
/// ... and how often nothing may have happened: the longest callbacks take some milliseconds.
const PATIENCE: u64 = 10;
/// As much as a thread has.
const STACK_BYTES: usize = 2 << 20;
/// In `hazards`: the scheduler calls `pause` wherever others could come in between.
const PAUSES: u32 = 2;
/// Nobody else here uses it.
const SIGNAL: Signal = Signal::SIGVTALRM;

thread_local! {
    /// The detector of what this thread does.
    static DETECTOR: Cell<*const Detector> = const { Cell::new(ptr::null()) };
}

/// What it goes by.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// How much has happened.
    progress: AtomicU64,
    /// Where the scheduler's code is.
    code: (AtomicUsize, AtomicUsize),
    /// What it knew at its last look, and how often that was the same.
    known: AtomicU64,
    same: AtomicU64,
    /// The progress at which the scheduler hangs, and this plus one; 0: it does not.
    stuck_at: AtomicU64,
    /// `hazards` of `struct sim_host`.
    hazards: AtomicPtr<u32>,
    /// Where the stack is left.
    way_out: AtomicPtr<c_void>,
}

impl Detector {
    /// The scheduler that may hang is this one.
    pub fn set_scheduler(&self, instance: &mut Instance) {
        let code = instance.code();
        self.code.0.store(code.start, Relaxed);
        self.code.1.store(code.end, Relaxed);
        self.hazards.store(&raw mut instance.host.hazards, Relaxed);
    }

    /// Something has happened: an event, or the scheduler was told of another task.
    #[inline]
    pub fn progress(&self) {
        // Only this thread writes it.
        self.progress.store(self.progress.load(Relaxed) + 1, Relaxed);
    }

    /// Does it, and says whether it has come to its end.
    ///
    /// # Errors
    /// There is no room for a stack, or no timer.
    ///
    /// # Safety
    /// What `work` refers to outlives the call, and may be left by it wherever the scheduler is called.
    pub unsafe fn watch<F: FnOnce() + 'static>(self: &Arc<Self>, work: F) -> nix::Result<bool> {
        install()?;
        let stack = DefaultStack::new(STACK_BYTES).map_err(|_| nix::Error::ENOMEM)?;
        let detector = self.clone();
        let body = move |here: &Yielder<(), ()>, ()| {
            detector.way_out.store(ptr::from_ref(here).cast_mut().cast(), Relaxed);
            work();
            detector.way_out.store(ptr::null_mut(), Relaxed);
        };
        let mut coroutine: Coroutine<(), (), (), _> = Coroutine::with_stack(stack, body);
        let timer = timer()?;
        let outer = DETECTOR.replace(Arc::as_ptr(self));
        let result = coroutine.resume(());
        DETECTOR.set(outer);
        drop(timer);
        let has_ended = matches!(result, CoroutineResult::Return(()));
        if !has_ended {
            // SAFETY: what is on its stack is left as the caller allows, and nobody goes on there.
            unsafe { coroutine.force_reset() };
        }
        Ok(has_ended)
    }

    /// The scheduler calls us: if it hangs, this does not come back.
    #[inline]
    pub fn called(&self) {
        let stuck_at = self.stuck_at.load(Relaxed);
        if stuck_at > 0 && stuck_at == self.progress.load(Relaxed) + 1 {
            self.leave();
        }
    }

    fn leave(&self) {
        let way_out = self.way_out.swap(ptr::null_mut(), Relaxed).cast::<Yielder<(), ()>>();
        if let Some(way_out) = NonNull::new(way_out) {
            // SAFETY: the coroutine that it belongs to runs, or waits for one that runs within it.
            unsafe { way_out.as_ref() }.suspend(());
        }
    }

    /// Looks whether nothing has happened for so long that nothing will; the processor was in code at this
    /// address.
    fn look(&self, at: usize) {
        let progress = self.progress.load(Relaxed);
        let same = if self.known.swap(progress, Relaxed) == progress {
            self.same.load(Relaxed) + 1
        } else {
            0
        };
        self.same.store(same, Relaxed);
        if same < PATIENCE {
            return;
        }
        let code = self.code.0.load(Relaxed)..self.code.1.load(Relaxed);
        if code.contains(&at) {
            // What was interrupted is the scheduler: nobody holds anything of the program's libraries.
            self.leave();
        } else if let Some(hazards) = NonNull::new(self.hazards.load(Relaxed)) {
            self.stuck_at.store(progress + 1, Relaxed);
            // SAFETY: it is that of the scheduler's host, which lives as long as what is watched.
            unsafe { hazards.write(hazards.read() | PAUSES) };
        }
    }
}

/// A timer of this thread's CPU time.
fn timer() -> nix::Result<Timer> {
    let notify =
        SigevNotify::SigevThreadId { signal: SIGNAL, thread_id: gettid().as_raw(), si_value: 0 };
    let mut timer = Timer::new(ClockId::CLOCK_THREAD_CPUTIME_ID, SigEvent::new(notify))?;
    timer.set(Expiration::Interval(INTERVAL.into()), TimerSetTimeFlags::empty())?;
    Ok(timer)
}

/// The signal's handler is installed, once. It may not come back, so the signal is not held off in it.
fn install() -> nix::Result<()> {
    static INSTALLED: OnceLock<nix::Result<()>> = OnceLock::new();
    let install = || {
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER | SaFlags::SA_RESTART;
        let action = SigAction::new(SigHandler::SigAction(look), flags, SigSet::empty());
        // SAFETY: the handler does nothing but what may be done in one: see there.
        unsafe { sigaction(SIGNAL, &action) }.map(drop)
    };
    *INSTALLED.get_or_init(install)
}

/// The timer has gone off.
extern "C" fn look(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: whoever put it there waits for what this thread does.
    let Some(detector) = (unsafe { DETECTOR.get().as_ref() }) else { return };
    // SAFETY: the kernel's record of what was interrupted.
    let at = unsafe { interrupted_at(&*context.cast()) };
    detector.look(at);
}

#[cfg(target_arch = "x86_64")]
fn interrupted_at(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

#[cfg(target_arch = "aarch64")]
fn interrupted_at(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}
