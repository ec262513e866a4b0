//! The thread that measures does not wait for the threads that it measures: beside 1,000 busy threads an
//! ordinary thread has its turn once a second. (A real-time thread would not wait either, but takes CPUs
//! away from the scheduler that is measured.)

use nix::errno::Errno;

const MOST_IMPORTANT: i32 = -20;

/// From now on this thread, and none that it starts, has the largest share of an ordinary thread.
///
/// # Errors
/// It may not.
pub fn hurry() -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: 0 };
    // What children inherit is the ordinary.
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    // SAFETY: takes integers and reads a record that lives here.
    Errno::result(unsafe { libc::sched_setscheduler(0, policy, &raw const param) })?;
    // SAFETY: takes plain numbers.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, MOST_IMPORTANT) }).map(drop)
}
