//! Reads of /proc that the process which is read can hold up: a service that serves all users reads them
//! in time, or does without.
//!
//! To read `/proc/PID/cmdline`, `environ` or `smaps_rollup`, or to write `clear_refs`, the kernel waits
//! for the lock of the process's memory map. The user of the process can have that lock held for ever:
//! one thread reads `/proc/self/mem` where a file of a FUSE server is mapped that does not answer,
//! another thread wants to map something, and every later reader queues behind it.
//!
//! To read `stat`, `exe`, `root`, `ns/*`, `io` or `maps`, some kernels (6.18.44) wait for a call of exec
//! of that process to get over the closing of its files: for ever, if a FUSE server does not answer
//! that. `comm`, `status`, `statm`, `schedstat`, `cgroup`, `children` and the lists of processes and
//! threads wait for neither: they are read directly.
//!
//! So a thread of its own reads here, and the service waits for that thread for a short time only. A
//! stuck thread can be killed: it does not outlast the service. What one user holds up is not read of
//! that user's processes only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use procfs::process::Process;

/// How long one process may hold up a call, ...
const PATIENCE: Duration = Duration::from_millis(200);
/// ... beside the time that a process takes that holds up nothing.
const TIME_FOR_EACH: Duration = Duration::from_micros(100);

/// How long nothing is read of a user's processes after a read of one of them that was waited for in
/// vain. A user that holds up one process after another takes a hundredth of the service's time.
const PAUSE: Duration = Duration::from_secs(20);

/// Once a user has so many threads stuck, nothing is read of its processes until one of these goes on or
/// ends. A few may be stuck by accident, as with a file system of the network that does not answer.
const MAX_STUCK_OF_USER: usize = 4;
/// The same of all users: one may have the numbers of many by user namespaces.
const MAX_STUCK: usize = 8;

/// What reads for this process, by [`Lock`].
static READERS: [Mutex<Readers>; 2] = [const { Mutex::new(Readers::new(user_of)) }; 2];

/// Whether [`read_in_time`] is in time: see [`guard_reads`].
static IS_GUARDED: AtomicBool = AtomicBool::new(false);

/// What a read of a process waits for. A large process may have its memory map locked for long without
/// any bad will: that holds up no other reads of it.
#[derive(Debug, Clone, Copy)]
pub enum Lock {
    /// A call of exec.
    Exec,
    /// The lock of the memory map, perhaps a call of exec, too.
    Memory,
}

/// The read was not made, or is not over in time. Nothing follows from that: the process may run, or
/// have ended meanwhile. It may be read again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be read in time: its process makes each reader wait")]
pub struct Late;

/// Has [`read_in_time`] wait for no process from now on. A service that serves all users calls it at its
/// start. Without, a read takes no thread: a program that balances its own user's processes reads them
/// often, and is held up by that user alone.
pub fn guard_reads() {
    IS_GUARDED.store(true, Ordering::Relaxed);
}

/// What `read` reads of this process or thread.
///
/// # Errors
/// [`Late`], in a service alone ([`guard_reads`]).
pub fn read_in_time<T: Send + 'static>(
    lock: Lock,
    pid: i32,
    read: impl Fn() -> T + Send + Sync + 'static,
) -> Result<T, Late> {
    if !IS_GUARDED.load(Ordering::Relaxed) {
        return Ok(read());
    }
    let answer = Arc::new(Mutex::new(None));
    let to_fill = Arc::clone(&answer);
    open(&READERS[lock as usize]).read(
        &[pid],
        Arc::new(move |_| {
            let read = read();
            *open(&to_fill) = Some(read);
        }),
    );
    open(&answer).take().ok_or(Late)
}

/// What `read_one` reads of each of these processes; those are left out that are [`Late`].
pub fn read_each_in_time<T: Send + 'static>(
    lock: Lock,
    pids: &[i32],
    read_one: impl Fn(i32) -> T + Send + Sync + 'static,
) -> BTreeMap<i32, T> {
    let answers = Arc::new(Mutex::new(BTreeMap::new()));
    let to_fill = Arc::clone(&answers);
    let read_one = move |pid| {
        let answer = read_one(pid);
        open(&to_fill).insert(pid, answer);
    };
    open(&READERS[lock as usize]).read(pids, Arc::new(read_one));
    std::mem::take(&mut *open(&answers))
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a process, and keeps what it reads.
type Read = Arc<dyn Fn(i32) + Send + Sync>;

struct Readers {
    /// The thread that reads; none before the first read, and after one that is late.
    worker: Option<Worker>,
    late: Vec<LateRead>,
    user_of: fn(i32) -> Option<u32>,
}

struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

struct Job {
    pids: Vec<i32>,
    read_one: Read,
    /// Gets a word after each process.
    sender: Sender<()>,
}

impl Job {
    fn run(self) {
        for pid in self.pids {
            (self.read_one)(pid);
            // Without a receiver, nothing waits for the rest.
            if self.sender.send(()).is_err() {
                return;
            }
        }
    }
}

/// A read that was waited for in vain.
struct LateRead {
    /// As long as the thread is there, this process is not asked again.
    pid: i32,
    user: Option<u32>,
    at: Instant,
    thread: JoinHandle<()>,
}

impl Readers {
    const fn new(user_of: fn(i32) -> Option<u32>) -> Self {
        Self { worker: None, late: Vec::new(), user_of }
    }

    /// Has each process read by `read_one`, which may wait for ever. The same code for all that is read.
    fn read(&mut self, pids: &[i32], read_one: Read) {
        let is_over = |late: &LateRead| late.thread.is_finished() && late.at.elapsed() >= PAUSE;
        self.late.retain(|late| !is_over(late));
        let mut rest = pids;
        while !rest.is_empty() {
            let asked: Vec<i32> = rest.iter().copied().filter(|pid| self.may_ask(*pid)).collect();
            if asked.is_empty() {
                return;
            }
            let (sender, answers) = channel();
            let job = Job { pids: asked.clone(), read_one: Arc::clone(&read_one), sender };
            if !self.send(job) {
                return;
            }
            let number = u32::try_from(asked.len()).unwrap_or(u32::MAX);
            let deadline = Instant::now() + PATIENCE + TIME_FOR_EACH.saturating_mul(number);
            rest = &[];
            for pid in asked {
                match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        self.note_late(pid);
                        // Those of other users are read on.
                        let at = pids.iter().position(|other| *other == pid);
                        rest = at.map_or(&[], |at| &pids[at + 1..]);
                        break;
                    }
                }
            }
        }
    }

    /// Whether nothing that is known speaks against reading this process.
    fn may_ask(&self, pid: i32) -> bool {
        if self.late.is_empty() {
            return true;
        }
        // One that has ended makes no reader wait.
        let Some(user) = (self.user_of)(pid) else { return true };
        let of_user = || self.late.iter().filter(|late| late.user == Some(user));
        self.late.len() < MAX_STUCK
            && of_user().count() < MAX_STUCK_OF_USER
            && of_user().all(|late| late.at.elapsed() >= PAUSE)
            && self.late.iter().all(|late| late.pid != pid)
    }

    /// Gives the thread that reads something to do; `false` if there can be none.
    fn send(&mut self, job: Job) -> bool {
        if self.worker.as_ref().is_none_or(|worker| worker.thread.is_finished()) {
            let (jobs, to_do) = channel();
            let work = move || to_do.into_iter().for_each(Job::run);
            match Builder::new().name("reads-in-time".to_owned()).spawn(work) {
                Ok(thread) => self.worker = Some(Worker { jobs, thread }),
                Err(why) => {
                    tracing::debug!("processes are not read: no thread can be started: {why}");
                    return false;
                }
            }
        }
        self.worker.as_ref().is_some_and(|worker| worker.jobs.send(job).is_ok())
    }

    fn note_late(&mut self, pid: i32) {
        // It ends once it goes on: nothing more is sent to it.
        let Some(Worker { thread, .. }) = self.worker.take() else { return };
        let user = (self.user_of)(pid);
        tracing::warn!(
            "process {pid} could not be read in time: none of its user is for {} s, and this one not as \
             long as the kernel makes its readers wait",
            PAUSE.as_secs()
        );
        self.late.push(LateRead { pid, user, at: Instant::now(), thread });
    }
}

/// The user that runs a process or thread. The owner of /proc/PID is root where it cannot be dumped.
fn user_of(pid: i32) -> Option<u32> {
    Some(Process::new(pid).ok()?.status().ok()?.ruid)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;

    /// Each ten processes are of one user.
    fn readers() -> Readers {
        Readers::new(|pid| u32::try_from(pid / 10).ok())
    }

    fn answer(_: i32) {}

    /// Those of these processes that answer.
    fn answering(
        readers: &mut Readers,
        pids: &[i32],
        read_one: impl Fn(i32) + Send + Sync + 'static,
    ) -> Vec<i32> {
        let found = Arc::new(Mutex::new(Vec::new()));
        let to_fill = Arc::clone(&found);
        let read_one = move |pid| {
            read_one(pid);
            open(&to_fill).push(pid);
        };
        readers.read(pids, Arc::new(read_one));
        std::mem::take(&mut *open(&found))
    }

    /// Answers for each process but these, which answer when the sender is gone.
    fn held_up_by(held_up: &'static [i32]) -> (Sender<()>, impl Fn(i32) + Send + Sync) {
        let (release, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = Mutex::new(wait);
        let read = move |pid: i32| {
            if held_up.contains(&pid) {
                let _ = wait.lock().unwrap().recv();
            }
        };
        (release, read)
    }

    fn end_pauses(readers: &mut Readers) {
        readers.late.iter_mut().for_each(|late| late.at -= PAUSE);
    }

    /// Reads until this process answers, as after a pause each time.
    fn read_at_last(readers: &mut Readers, pid: i32) {
        let reads = std::iter::repeat_with(|| {
            end_pauses(readers);
            std::thread::sleep(Duration::from_millis(1));
            answering(readers, &[pid], answer)
        });
        assert!(reads.take(10_000).any(|found| found == [pid]), "{pid}");
    }

    #[test]
    fn a_process_that_holds_up_a_read_is_not_asked_again() {
        let mut readers = readers();
        let (release, read) = held_up_by(&[2]);
        assert!(answering(&mut readers, &[2, 3], read).is_empty());
        assert!(answering(&mut readers, &[1], answer).is_empty(), "there is no pause");
        end_pauses(&mut readers);
        assert!(answering(&mut readers, &[2], answer).is_empty(), "it is asked again");
        read_at_last(&mut readers, 1);
        drop(release);
        read_at_last(&mut readers, 2);
    }

    #[test]
    fn a_user_holds_up_no_read_of_another_one() {
        let mut readers = readers();
        let (_release, read) = held_up_by(&[2, 22]);
        assert_eq!(answering(&mut readers, &[1, 2, 3, 11, 22, 31], read), [1, 11, 31]);
        assert!(answering(&mut readers, &[3, 23], answer).is_empty());
        assert!(
            answering(&mut readers, &[-20, 12], answer).len() == 2,
            "one that has ended is read"
        );
    }

    #[test]
    fn few_threads_are_stuck_at_a_time() {
        let mut readers = readers();
        let mut held = Vec::new();
        let mut hold_up = |readers: &mut Readers, pid| {
            let (release, read) = held_up_by(&[1, 2, 3, 4]);
            held.push(release);
            end_pauses(readers);
            assert!(answering(readers, &[pid], read).is_empty());
        };
        (1..=MAX_STUCK_OF_USER as i32).for_each(|pid| hold_up(&mut readers, pid));
        end_pauses(&mut readers);
        assert!(answering(&mut readers, &[9], answer).is_empty(), "another thread was started");
        assert_eq!(answering(&mut readers, &[11], answer).len(), 1);
        drop(held.pop());
        read_at_last(&mut readers, 9);
    }
}
