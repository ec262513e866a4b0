//! Which thread or process a record of the programs means. A number alone does not tell: when its task
//! has ended, the kernel gives the number to a later one. So the programs record when a task was
//! started, too (bpf/sais/consumer.h), and here that is compared with what /proc says of the task that
//! has the number now.

use evenkeel_journal::TaskRef;

use crate::layout::RawReader;

/// A start time of the programs in the unit of those in /proc.
fn start_ticks(start_boottime_ns: u64) -> u64 {
    start_boottime_ns / (1_000_000_000 / procfs::ticks_per_second().max(1))
}

/// The thread that was recorded under this number; `None`: it has ended, or is of another PID namespace
/// than ours.
pub(crate) fn thread_of(tid: u32, reader: &RawReader) -> Option<TaskRef> {
    let task = TaskRef::in_process(reader.tgid as i32, tid as i32).ok()?;
    (task.start_time_ticks == start_ticks(reader.start_boottime_ns)).then_some(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick_ns() -> u64 {
        1_000_000_000 / procfs::ticks_per_second()
    }

    #[test]
    fn a_thread_that_got_the_number_later_is_not_the_one_that_waited() {
        let own = TaskRef::own_process().unwrap();
        let start_ns = own.start_time_ticks * tick_ns();
        let (tid, tgid) = (own.tid as u32, own.tgid as u32);
        let found = |start_boottime_ns| {
            let reader = RawReader { start_boottime_ns, tgid, core: 0, late: 0, outstanding: 1 };
            thread_of(tid, &reader)
        };
        // The kernel cuts off what is less than a tick.
        assert_eq!(found(start_ns), Some(own));
        assert_eq!(found(start_ns + tick_ns() - 1), Some(own));
        // The record is of another thread, which had the number at another time.
        assert_eq!(found(start_ns - 1), None);
        assert_eq!(found(start_ns + tick_ns()), None);
        let nothing =
            RawReader { start_boottime_ns: start_ns, tgid, ..bytemuck::Zeroable::zeroed() };
        assert_eq!(thread_of(u32::MAX, &nothing), None);
    }
}
