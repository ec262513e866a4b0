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
//! stuck thread can be killed: it does not outlast the service. Once a read is
//! late, processes of that user alone are left out for a while.
//!
//! The keel does without such a thread, which would wait for a CPU in a queue of the keel, and beside
//! tasks that are preferred a client would wait for its answer too long. When a process was started it
//! asks the kernel (`bpf/keel/space.bpf.c`). Its helper for `--ias-auto` reads `stat` directly.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};
use procfs::process::Process;

/// How long one process may hold up a call, ...
const PATIENCE: Duration = Duration::from_millis(200);
/// ... beside the time that a process takes that holds up nothing.
const TIME_FOR_EACH: Duration = Duration::from_micros(100);

/// How often a call is held up for so long again by a process that waits for a CPU itself: its call of
/// exec goes on when it gets one.
const MORE_FOR_PROCESS: u32 = 4;

/// How long nothing is read of a user's processes after a read of one of them that was waited for in
/// vain. That may be an accident: a process that gets no CPU in the middle of exec.
const PAUSE: Duration = Duration::from_secs(1);

/// After so many such reads within [`MEMORY`], or as long as they are stuck, nothing is read of the
/// user's processes: a user takes less than a twentieth of the service's time. Root is trusted.
const MAX_LATE_OF_USER: usize = 4;
const MEMORY: Duration = Duration::from_secs(20);
/// The most threads that are stuck at a time, of all users: one may have the numbers of many by user
/// namespaces.
const MAX_STUCK: usize = 8;

/// What reads for this process, by [`Lock`].
static READERS: [Mutex<Readers>; 2] = [const { Mutex::new(Readers::new(user_of)) }; 2];

const ROOT: u32 = 0;

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
    tid: Pid,
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
        let is_over = |late: &LateRead| late.thread.is_finished() && late.at.elapsed() >= MEMORY;
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
            let mut patience = PATIENCE + TIME_FOR_EACH.saturating_mul(number);
            rest = &[];
            let mut asked = asked.into_iter().peekable();
            let (mut begin, mut for_process) = (Instant::now(), MORE_FOR_PROCESS);
            while let Some(pid) = asked.peek().copied() {
                match answers.recv_timeout(patience.saturating_sub(begin.elapsed())) {
                    Ok(()) => drop(asked.next()),
                    Err(RecvTimeoutError::Disconnected) => return,
                    // On a busy machine, no process is to blame.
                    Err(RecvTimeoutError::Timeout) if self.is_running() => {
                        (begin, patience) = (Instant::now(), PATIENCE);
                    }
                    Err(RecvTimeoutError::Timeout) if for_process > 0 && wants_cpu(pid) => {
                        (begin, patience) = (Instant::now(), PATIENCE);
                        for_process -= 1;
                    }
                    // It may have read since.
                    Err(RecvTimeoutError::Timeout) if answers.try_recv().is_ok() => {
                        asked.next();
                    }
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
        let Some(user) = (self.user_of)(pid) else { return true };
        let of_user: Vec<_> = self.late.iter().filter(|late| late.user == Some(user)).collect();
        let is_paused = || {
            of_user.len() >= MAX_LATE_OF_USER || of_user.iter().any(|it| it.at.elapsed() < PAUSE)
        };
        let stuck = || self.late.iter().filter(|late| !late.thread.is_finished());
        stuck().count() < MAX_STUCK
            && stuck().all(|late| late.pid != pid)
            && (user == ROOT || !is_paused())
    }

    /// Whether the thread that reads only waits for a CPU.
    fn is_running(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| wants_cpu(worker.tid.as_raw()))
    }

    /// Gives the thread that reads something to do; `false` if there can be none.
    fn send(&mut self, job: Job) -> bool {
        if self.worker.as_ref().is_none_or(|worker| worker.thread.is_finished()) {
            let (jobs, to_do) = channel();
            let (tell, told) = channel();
            let work = move || {
                let _ = tell.send(gettid());
                to_do.into_iter().for_each(Job::run);
            };
            match Builder::new().name("reads-in-time".to_owned()).spawn(work) {
                Ok(thread) => {
                    let worker = told.recv().map(|tid| Worker { tid, jobs, thread });
                    self.worker = worker.ok();
                }
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
            "process {pid} could not be read in time: none of its user is for a while, and this one not \
             as long as the kernel makes its readers wait"
        );
        self.late.push(LateRead { pid, user, at: Instant::now(), thread });
    }
}

/// Whether a process or thread runs or waits for a CPU.
fn wants_cpu(tid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status"));
    status.is_ok_and(|status| status.contains("\nState:\tR"))
}

/// The user that runs a process or thread; `None`: it has no memory (it has ended, or is the kernel's),
/// so it makes no reader wait. The owner of /proc/PID is root where it cannot be dumped.
fn user_of(pid: i32) -> Option<u32> {
    let status = Process::new(pid).ok()?.status().ok()?;
    status.vmsize.map(|_| status.ruid)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::*;

    /// Each ten processes are of one user, the first ones of root.
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
        readers.late.iter_mut().for_each(|late| late.at -= MEMORY);
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
        let (release, read) = held_up_by(&[12]);
        assert!(answering(&mut readers, &[12, 13], read).is_empty(), "there is no pause");
        end_pauses(&mut readers);
        assert_eq!(answering(&mut readers, &[12, 13], answer), [13], "it is asked again");
        drop(release);
        read_at_last(&mut readers, 12);
    }

    #[test]
    fn a_user_holds_up_no_read_of_another_one() {
        let mut readers = readers();
        let (_release, read) = held_up_by(&[2, 12, 22]);
        let found = answering(&mut readers, &[1, 2, 3, 11, 12, 22, 31, -20], read);
        assert_eq!(found, [1, 3, 11, 31, -20], "root has no pause");
    }

    #[test]
    fn a_user_holds_up_few_reads() {
        let mut readers = readers();
        for pid in [11, 12, 13, 14] {
            let (release, read) = held_up_by(&[11, 12, 13, 14]);
            readers.late.iter_mut().for_each(|late| late.at -= PAUSE);
            assert!(answering(&mut readers, &[pid], read).is_empty());
            drop(release);
        }
        readers.late.iter_mut().for_each(|late| late.at -= PAUSE);
        assert_eq!(answering(&mut readers, &[15, 25], answer), [25]);
        read_at_last(&mut readers, 15);
    }

    #[test]
    fn a_thread_that_reads_and_has_no_cpu_is_no_reason_to_be_late() {
        let mut readers = readers();
        let busy = |pid| {
            let begin = Instant::now();
            while begin.elapsed() < PATIENCE * 2 {}
            answer(pid)
        };
        assert_eq!(answering(&mut readers, &[11, 12], busy), [11, 12]);
        assert!(readers.late.is_empty());
    }

    #[test]
    fn a_process_that_waits_for_a_cpu_is_given_more_time() {
        let spin = ["-c", "while :; do :; done"];
        let mut spinner = std::process::Command::new("sh").args(spin).spawn().unwrap();
        let pid = spinner.id() as i32;
        let mut readers = Readers::new(|_| Some(1));
        let found = answering(&mut readers, &[pid], |_| std::thread::sleep(PATIENCE * 2));
        spinner.kill().unwrap();
        spinner.wait().unwrap();
        assert_eq!(found, [pid]);
        assert!(readers.late.is_empty());
    }

    #[test]
    fn few_threads_are_stuck_at_a_time() {
        let mut readers = readers();
        let (pids, mut held) = ([1, 2, 3, 4, 5, 6, 7, 8], Vec::new());
        assert_eq!(pids.len(), MAX_STUCK);
        for pid in pids {
            let (release, read) = held_up_by(&[1, 2, 3, 4, 5, 6, 7, 8]);
            held.push(release);
            assert!(answering(&mut readers, &[pid], read).is_empty());
        }
        end_pauses(&mut readers);
        assert!(answering(&mut readers, &[9, 11], answer).is_empty(), "another thread was started");
        drop(held.pop());
        read_at_last(&mut readers, 11);
    }
}
