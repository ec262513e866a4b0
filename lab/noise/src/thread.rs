//! What the generators' own threads need: a CPU, a priority, a clock, and a report of how it went.
//!
//! These are threads of this process that no other program knows, so their affinity needs no journal:
//! it ends with them.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use evenkeel_machine::CpuSet;
use nix::sched::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::NoiseError;

/// Lets the calling thread run on this CPU only.
pub(super) fn pin(cpu: u32) -> Result<(), NoiseError> {
    let mut cpus = CpuSet::new();
    cpus.insert(cpu);
    pin_to(&cpus)
}

/// Does something while the calling thread runs on this CPU only; afterwards it may run where it
/// might before.
///
/// # Errors
/// The thread may not be pinned, or not be let go again.
pub fn on_cpu<T>(cpu: u32, work: impl FnOnce() -> T) -> Result<T, NoiseError> {
    let failed = |e| NoiseError::failed("cannot tell where a thread may run", e);
    let before = sched_getaffinity(Pid::from_raw(0)).map_err(failed)?;
    pin(cpu)?;
    let done = work();
    sched_setaffinity(Pid::from_raw(0), &before)
        .map_err(|e| NoiseError::failed("cannot let a thread go again", e))?;
    Ok(done)
}

/// Lets the calling thread run on these CPUs only.
pub(super) fn pin_to(cpus: &CpuSet) -> Result<(), NoiseError> {
    let what = || format!("cannot pin a thread to CPU {cpus}");
    let mut mask = Mask::new();
    for cpu in cpus.iter() {
        mask.set(cpu as usize).map_err(|e| NoiseError::failed(what(), e))?;
    }
    sched_setaffinity(Pid::from_raw(0), &mask).map_err(|e| NoiseError::failed(what(), e))
}

/// Makes the calling thread a real-time one (SCHED_FIFO, priority 1..=99).
pub(super) fn become_fifo(priority: i32) -> Result<(), NoiseError> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter is a valid sched_param that the call only reads; 0 is this thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(NoiseError::from_io("a real-time thread (SCHED_FIFO)", "CAP_SYS_NICE", &error))
}

/// The time of a clock, in ns. A clock that cannot be read says 0; the two used here always can.
pub(super) fn now_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// CLOCK_MONOTONIC, in ns.
pub(super) fn monotonic_ns() -> u64 {
    now_ns(ClockId::CLOCK_MONOTONIC)
}

/// Sleeps until CLOCK_MONOTONIC shows this time; a signal only wakes it early.
pub(super) fn sleep_until(at_ns: u64) {
    let at = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `at` is a valid timespec; with an absolute time the remainder is not written.
    unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &at, std::ptr::null_mut())
    };
}

/// Starts a thread that first sets itself up, and returns when it has: `setup` makes what `work`
/// goes on with. The thread's name shows in `top`.
pub(super) fn start<S, T: Send + 'static>(
    name: &str,
    setup: impl FnOnce() -> Result<S, NoiseError> + Send + 'static,
    work: impl FnOnce(S) -> T + Send + 'static,
) -> Result<JoinHandle<Option<T>>, NoiseError> {
    let (tell, told) = mpsc::channel();
    let handle = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || match setup() {
            Ok(made) => {
                let _ = tell.send(Ok(()));
                Some(work(made))
            }
            Err(error) => {
                let _ = tell.send(Err(error));
                None
            }
        })
        .map_err(|e| NoiseError::failed(format!("cannot start the thread {name}"), e))?;
    match told.recv() {
        Ok(Ok(())) => Ok(handle),
        Ok(Err(error)) => {
            let _ = handle.join();
            Err(error)
        }
        Err(_) => Err(NoiseError::failed(format!("the thread {name}"), "it died while starting")),
    }
}

/// Waits for a thread of [`start`] and takes what it made.
pub(super) fn finish<T>(name: &str, handle: JoinHandle<Option<T>>) -> Result<T, NoiseError> {
    match handle.join() {
        Ok(Some(made)) => Ok(made),
        _ => Err(NoiseError::failed(format!("the thread {name}"), "it died")),
    }
}
