//! Ends a scheduler that does not return from a callback, as the kernel's soft lockup detector would.
//!
//! Code that may hang runs on a stack of its own. A timer of the thread's CPU time checks whether
//! anything has happened since it last went off. If nothing has for a second, that stack is abandoned:
//! at once if the timer interrupted the scheduler's code, else as soon as the scheduler calls a
//! function of the kernel.
//!
//! The abandoned frames are those of the scheduler and of its callers: C code without destructors, and a
//! simulated kernel that ends right then.

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

/// How often the timer goes off, in CPU time.
const INTERVAL: Duration = Duration::from_millis(100);
/// After so many intervals without progress the scheduler hangs: the longest callbacks take some
/// milliseconds.
const PATIENCE: u64 = 10;
/// The size of a thread's stack.
const STACK_BYTES: usize = 2 << 20;
/// In `hazards`: the scheduler calls `pause` wherever other CPUs could intervene.
const PAUSES: u32 = 2;
/// Not used for anything else in this process.
const SIGNAL: Signal = Signal::SIGVTALRM;

thread_local! {
    /// The detector of the simulation that this thread runs.
    static DETECTOR: Cell<*const Detector> = const { Cell::new(ptr::null()) };
}

/// What the signal handler knows of a simulation.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    /// Counts events and callbacks: it grows unless the scheduler hangs.
    progress: AtomicU64,
    /// The address range of the scheduler's code.
    code: (AtomicUsize, AtomicUsize),
    /// `progress` when the timer last went off, and for how many intervals it has been the same.
    known: AtomicU64,
    same: AtomicU64,
    /// The progress at which the scheduler hangs, plus one; 0: it does not hang.
    stuck_at: AtomicU64,
    /// `hazards` of `struct sim_host`.
    hazards: AtomicPtr<u32>,
    /// Suspends the stack that may hang.
    way_out: AtomicPtr<c_void>,
}

impl Detector {
    /// Watches this scheduler from now on.
    pub fn set_scheduler(&self, instance: &mut Instance) {
        let code = instance.code();
        self.code.0.store(code.start, Relaxed);
        self.code.1.store(code.end, Relaxed);
        self.hazards.store(&raw mut instance.host.hazards, Relaxed);
    }

    /// An event has happened, or the scheduler was told of another task.
    #[inline]
    pub fn progress(&self) {
        // Only this thread writes it.
        self.progress.store(self.progress.load(Relaxed) + 1, Relaxed);
    }

    /// Does `work` on a stack of its own. Returns whether it ended; if not, the scheduler hangs.
    ///
    /// # Errors
    /// There is no memory for a stack, or no timer.
    ///
    /// # Safety
    /// What `work` refers to must outlive the call, and `work` may be abandoned in any call of the
    /// scheduler.
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
            // SAFETY: the caller allows its frames to be abandoned, and it is never resumed.
            unsafe { coroutine.force_reset() };
        }
        Ok(has_ended)
    }

    /// The scheduler calls a function of the kernel. If it hangs, this does not return.
    #[inline]
    pub fn called(&self) {
        let stuck_at = self.stuck_at.load(Relaxed);
        if stuck_at > 0 && stuck_at == self.progress.load(Relaxed) + 1 {
            self.abandon();
        }
    }

    fn abandon(&self) {
        let way_out = self.way_out.swap(ptr::null_mut(), Relaxed).cast::<Yielder<(), ()>>();
        if let Some(way_out) = NonNull::new(way_out) {
            // SAFETY: the coroutine that it belongs to runs, or waits for one that runs within it.
            unsafe { way_out.as_ref() }.suspend(());
        }
    }

    /// Checks for progress; the timer interrupted code at this address.
    fn check(&self, at: usize) {
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
            // The scheduler was interrupted, so no lock of this program's libraries is held.
            self.abandon();
        } else if let Some(hazards) = NonNull::new(self.hazards.load(Relaxed)) {
            self.stuck_at.store(progress + 1, Relaxed);
            // SAFETY: it belongs to the scheduler's host, which outlives the watched work.
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

/// Installs the signal handler, once. The handler may not return, so the signal is not blocked in it.
fn install() -> nix::Result<()> {
    static INSTALLED: OnceLock<nix::Result<()>> = OnceLock::new();
    let install = || {
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_NODEFER | SaFlags::SA_RESTART;
        let action = SigAction::new(SigHandler::SigAction(on_timer), flags, SigSet::empty());
        // SAFETY: the handler only uses atomics, and switches stacks where check() says that it may.
        unsafe { sigaction(SIGNAL, &action) }.map(drop)
    };
    *INSTALLED.get_or_init(install)
}

/// The timer has gone off.
extern "C" fn on_timer(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: watch() put it there, and resets it before the detector can go.
    let Some(detector) = (unsafe { DETECTOR.get().as_ref() }) else { return };
    // SAFETY: the kernel passes the interrupted context.
    let at = unsafe { interrupted_at(&*context.cast()) };
    detector.check(at);
}

#[cfg(target_arch = "x86_64")]
fn interrupted_at(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

#[cfg(target_arch = "aarch64")]
fn interrupted_at(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}
