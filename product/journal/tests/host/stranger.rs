//! A thread that ends just before its mask is set, while another thread has its number by then. A
//! seccomp filter holds the calling thread's sched_setaffinity(2) back while the two change places.
//! Where the writer is killed after that call, its journal is made by hand.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::Duration;

use evenkeel_journal::{
    PlaceError, Placed, Released, Session, TaskRef, UndoOptions, affinity, undo,
};
use evenkeel_machine::CpuSet;
use serde_json::json;

use crate::tools::*;

/// Longer than two clock ticks: start times differ by then.
const TICKS: Duration = Duration::from_millis(30);

/// Reports each sched_setaffinity(2) of this thread at the returned descriptor, and holds it back.
fn watch_own_calls() -> Result<OwnedFd, Error> {
    let call = libc::SYS_sched_setaffinity as u32;
    let step =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut steps = [
        step(load, 0, 0, std::mem::offset_of!(libc::seccomp_data, nr) as u32),
        step(equal, 0, 1, call),
        step(answer, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: integers, and a filter that lives across the call. It is this thread's alone.
    let fd = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: just opened, with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Lets the calls that `calls` reports continue, until their thread has ended; runs `meanwhile` while
/// the first one is held back.
fn let_continue(calls: &OwnedFd, meanwhile: impl FnOnce()) {
    let mut meanwhile = Some(meanwhile);
    loop {
        let mut ready = libc::pollfd { fd: calls.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, in a structure that lives across the call.
        unsafe { libc::poll(&raw mut ready, 1, -1) };
        if ready.revents & libc::POLLIN == 0 {
            assert!(meanwhile.is_none(), "there was no call");
            return;
        }
        // SAFETY: all-zero structures, as the kernel wants them, which live across the calls.
        unsafe {
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            assert_eq!(
                libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call),
                0
            );
            if let Some(meanwhile) = meanwhile.take() {
                meanwhile();
            }
            let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
            answer.id = call.id;
            answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            assert_eq!(
                libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer),
                0
            );
        }
    }
}

/// Runs `act` in a thread of its own, and `meanwhile` in the middle of its first affinity call.
fn act_while<T: Send>(
    act: impl FnOnce() -> T + Send,
    meanwhile: impl FnOnce(),
) -> Result<T, Error> {
    let (send, receive) = channel();
    std::thread::scope(|scope| {
        let acting = scope.spawn(move || {
            let calls = watch_own_calls();
            let is_watched = calls.is_ok();
            send.send(calls).unwrap();
            is_watched.then(act)
        });
        let_continue(&receive.recv().unwrap()?, meanwhile);
        Ok(acting.join().unwrap().unwrap())
    })
}

/// A process with a chosen number, and its parent; both are killed when this is dropped.
struct Stranger {
    parent: i32,
    pid: i32,
}

impl Stranger {
    /// The parent may use only these CPUs, and so may its child.
    fn born(pid: i32, cpus: &CpuSet) -> Result<Self, Error> {
        let (mut from_parent, to_test) = std::io::pipe()?;
        let numbers = [pid];
        // SAFETY: an all-zero structure is one that asks for nothing.
        let mut wanted: libc::clone_args = unsafe { std::mem::zeroed() };
        wanted.exit_signal = libc::SIGCHLD as u64;
        wanted.set_tid = numbers.as_ptr() as u64;
        wanted.set_tid_size = 1;
        // SAFETY: the children make system calls only.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            // SAFETY: as above; the structures live across the calls.
            unsafe {
                let is_set = affinity::set(libc::getpid(), cpus).is_ok();
                let size = size_of::<libc::clone_args>();
                let child = libc::syscall(libc::SYS_clone3, &raw const wanted, size);
                if child != 0 {
                    let is_born = [u8::from(is_set && child == i64::from(pid))];
                    libc::write(to_test.as_raw_fd(), is_born.as_ptr().cast(), 1);
                }
                loop {
                    libc::pause();
                }
            }
        }
        drop(to_test);
        let stranger = Self { parent, pid };
        let mut is_born = [0];
        std::io::Read::read_exact(&mut from_parent, &mut is_born)?;
        if is_born == [1] { Ok(stranger) } else { Err(std::io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // SAFETY: two processes of this test, or, where the child was not born, a number that is free.
        unsafe {
            if TaskRef::of(self.pid).is_ok() {
                libc::kill(self.pid, libc::SIGKILL);
            }
            libc::kill(self.parent, libc::SIGKILL);
            libc::waitpid(self.parent, std::ptr::null_mut(), 0);
        }
    }
}

/// What `act` returned, and the mask that the stranger has after it.
type Outcome<T> = (T, CpuSet);

/// Runs `act` on a task that ends in the middle of the first affinity call. A process that was born with
/// `cpus` gets the task's number. `None`: that needs root.
fn with_stranger<T: Send>(
    cpus: &CpuSet,
    prepare: impl FnOnce(&mut Session, &TaskRef),
    act: impl FnOnce(&mut Session, &TaskRef) -> T + Send,
) -> Option<Outcome<T>> {
    let dir = directory();
    let mut session = open(dir.path());
    let sleeper = Sleeper::new();
    let task = sleeper.task;
    prepare(&mut session, &task);
    let mut stranger = None;
    let change_places = || {
        drop(sleeper);
        std::thread::sleep(TICKS);
        stranger = Some(Stranger::born(task.tid, cpus));
    };
    let result = act_while(|| act(&mut session, &task), change_places);
    match (result, stranger) {
        (Ok(result), Some(Ok(stranger))) => {
            let mask = mask(stranger.pid);
            drop(session);
            // Nor does the end of the session touch it.
            assert_eq!(self::mask(stranger.pid), mask);
            Some((result, mask))
        }
        (Err(why), _) | (_, Some(Err(why))) => {
            let why = format!("{why}: it needs root");
            evenkeel_skip::skip("a_stranger_with_the_number_of_a_thread", why);
            None
        }
        (Ok(_), None) => panic!("the call was not held back"),
    }
}

#[test]
fn a_stranger_with_the_number_of_a_placed_thread_has_its_own_mask() {
    let Some((x, y)) = two_cpus("a_stranger_with_the_number_of_a_placed_thread_has_its_own_mask")
    else {
        return;
    };
    for born in [all(), just(y)] {
        let place = |session: &mut Session, task: &TaskRef| session.place(task, x);
        let Some((placed, mask)) = with_stranger(&born, |_, _| {}, place) else { return };
        assert!(matches!(placed, Err(PlaceError::Gone { .. })), "{placed:?}");
        assert_eq!(mask, born);
    }
}

#[test]
fn a_stranger_with_the_number_of_a_released_thread_keeps_its_mask() {
    let Some((x, y)) = two_cpus("a_stranger_with_the_number_of_a_released_thread_keeps_its_mask")
    else {
        return;
    };
    let pin = |session: &mut Session, task: &TaskRef| {
        assert_eq!(session.place(task, x).unwrap(), Placed::Pinned);
    };
    let release = |session: &mut Session, task: &TaskRef| session.release(task);
    let Some((released, mask)) = with_stranger(&just(y), pin, release) else { return };
    assert_eq!(released.unwrap(), Released::Gone);
    assert_eq!(mask, just(y));
}

/// Nanoseconds since boot, as start times in /proc count.
fn since_boot_ns() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    (seconds * 1e9) as u64
}

/// A writer that is killed after it has set the mask of a thread that had ended, so that another thread
/// got that mask, leaves such a journal.
#[test]
fn a_stranger_that_a_killed_writer_pinned_is_freed() {
    let Some((x, y)) = two_cpus("a_stranger_that_a_killed_writer_pinned_is_freed") else { return };
    let entry = |id: u64, task: &TaskRef, time_ns: u64| {
        let mut pin = pin(id, task, x);
        pin["pin"]["time_ns"] = json!(time_ns);
        line(&pin)
    };
    /// When the writer wrote the last entry before the call.
    enum Written {
        Now,
        LongAgo,
        NotLast,
    }
    for (written, mask_now, freed) in [
        (Written::Now, x, true),
        // The mask is not the one that was set: its user set it.
        (Written::Now, y, false),
        // It was born long after the call.
        (Written::LongAgo, x, false),
        // The writer has looked at it, and gone on.
        (Written::NotLast, x, false),
    ] {
        let (dir, stranger, next) = (directory(), Sleeper::new(), Sleeper::new());
        affinity::set(stranger.task.tid, &just(mask_now)).unwrap();
        let mut gone = stranger.task;
        gone.start_time_ticks -= 100;
        let now_ns = since_boot_ns();
        let pins = match written {
            Written::Now => entry(1, &gone, now_ns),
            Written::LongAgo => entry(1, &gone, now_ns.saturating_sub(60_000_000_000)),
            Written::NotLast => entry(1, &gone, now_ns) + &entry(2, &next.task, now_ns),
        };
        put(dir.path(), "1-1.jsonl", (line(&header()) + &pins).as_bytes());
        let report = undo(dir.path(), UndoOptions::default());
        assert!(report.errors.is_empty() && report.gone == [gone], "{report:?}");
        let (list, mask) =
            if freed { (vec![stranger.task], all()) } else { (vec![], just(mask_now)) };
        assert_eq!(report.freed, list, "{report:?}");
        assert_eq!(stranger.mask(), mask);
        assert!(journals(dir.path()).is_empty());
    }
}
