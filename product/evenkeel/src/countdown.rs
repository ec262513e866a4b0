//! What a command shows on a terminal while it watches the machine for a given time: how much of it has
//! passed, and how long it takes yet. Standard error has it, so that output and JSON stay alone.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_trial::display::Display;

/// Of a time that is not longer, nothing is shown.
const SHORT: Duration = Duration::from_secs(2);
/// How often the line is drawn: seldom, since to draw it is work on the machine that is watched.
const LOOK: Duration = Duration::from_millis(500);

/// Does what takes this time, and shows meanwhile how long it takes yet. `now` says what is done.
pub fn shown<T>(time: Duration, now: &str, work: impl FnOnce() -> T) -> T {
    if time <= SHORT || !stderr().is_terminal() {
        return work();
    }
    thread::scope(|scope| {
        // Dropped when the work ends, in whatever way: that ends the display.
        let (_working, ended) = channel::<()>();
        let show = move || {
            let (display, begin) = (Display::counting("%"), Instant::now());
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                display.step(passed_pct(begin.elapsed(), time), 100, now);
            }
            display.finish();
        };
        // Without a thread, the work is done without a display.
        let _ = thread::Builder::new().name("countdown".to_owned()).spawn_scoped(scope, show);
        work()
    })
}

/// The part of the time that has passed. What comes after the time belongs to it.
fn passed_pct(passed: Duration, time: Duration) -> u64 {
    (passed.as_secs_f64() * 100.0 / time.as_secs_f64()).min(100.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_planned_is_all_of_it() {
        let pct = |passed_ms| passed_pct(Duration::from_millis(passed_ms), Duration::from_secs(3));
        assert_eq!([pct(0), pct(1500), pct(2999), pct(3000), pct(9000)], [0, 50, 99, 100, 100]);
    }

    #[test]
    fn the_work_is_done_on_this_thread_and_its_result_returned() {
        let caller = thread::current().id();
        for time in [Duration::ZERO, Duration::from_secs(60)] {
            assert_eq!(shown(time, "watching", || thread::current().id()), caller);
        }
    }
}
