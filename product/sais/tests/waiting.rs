//! Counting requests that wait, by the functions that the kernel runs, on several threads at once.

use std::sync::atomic::{AtomicU32, Ordering};

#[link(name = "sais_parse", kind = "static")]
unsafe extern "C" {
    fn sais_begin_wait(asker: *mut u32, tid: u32) -> bool;
    fn sais_begin_request(asker: *mut u32, tid: u32, outstanding: *mut u32) -> bool;
    fn sais_end_wait(asker: *mut u32) -> u32;
    fn sais_subtract_one(outstanding: *mut u32);
}

const ROUNDS: u32 = 200_000;

/// Runs both at the same time.
fn race(one: impl Fn() + Sync, other: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(&one);
        other();
    });
}

#[test]
fn no_count_falls_below_zero() {
    let outstanding = AtomicU32::new(0);
    // SAFETY: a word that lives across the call, and is changed by atomic operations only.
    let subtract = || (0..ROUNDS).for_each(|_| unsafe { sais_subtract_one(outstanding.as_ptr()) });
    // Both threads meet a one again and again, and only one of them may take it.
    for _ in 0..20 {
        outstanding.store(ROUNDS, Ordering::Relaxed);
        race(subtract, subtract);
        assert_eq!(outstanding.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_request_is_counted_once_and_answered_once() {
    let (asker, begun, ended) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let act = |tid: u32| {
        let (asker, begun, ended) = (&asker, &begun, &ended);
        move || {
            for _ in 0..ROUNDS {
                // SAFETY: as above.
                let (has_begun, owner) = unsafe {
                    (sais_begin_wait(asker.as_ptr(), tid), sais_end_wait(asker.as_ptr()))
                };
                begun.fetch_add(u32::from(has_begun), Ordering::Relaxed);
                ended.fetch_add(u32::from(owner != 0), Ordering::Relaxed);
                assert!(owner <= 2, "{owner}");
            }
        }
    };
    race(act(1), act(2));
    assert_eq!(asker.load(Ordering::Relaxed), 0);
    assert_eq!(begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
}

/// An answer may come before the thread that asked goes on: the count must hold the request by then, or
/// one that no thread waits for stays in it.
#[test]
fn a_request_that_is_answered_at_once_leaves_no_count() {
    /// In a cache line of its own, as in the kernel's tables: a CPU that has the one may lack the other.
    #[repr(align(128))]
    #[derive(Default)]
    struct Apart(AtomicU32);
    let (asker, outstanding) = (Apart::default(), Apart::default());
    let act = |tid: u32| {
        let (asker, outstanding) = (&asker.0, &outstanding.0);
        move || {
            // The moment is short: more rounds than elsewhere.
            for _ in 0..40 * ROUNDS {
                // SAFETY: as above.
                unsafe {
                    sais_begin_request(asker.as_ptr(), tid, outstanding.as_ptr());
                    if sais_end_wait(asker.as_ptr()) != 0 {
                        sais_subtract_one(outstanding.as_ptr());
                    }
                }
            }
        }
    };
    race(act(1), act(2));
    assert_eq!((asker.0.into_inner(), outstanding.0.into_inner()), (0, 0));
}
