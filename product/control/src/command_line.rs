//! Command lines of processes, for services that serve all users: no user can hold up the reading.
//!
//! To read `/proc/PID/cmdline` or `environ`, the kernel waits for the lock of the process's memory map.
//! The user of the process can have that lock held for ever: one thread reads `/proc/self/mem` where a
//! file of a FUSE server is mapped that does not answer, another thread wants to map something, and
//! every later reader queues behind it. So a thread of its own reads here, and the service waits for
//! that thread for a short time only. A stuck thread can be killed: it does not outlast the service.
//!
//! `comm`, `status`, `stat`, `statm`, `exe` and `cgroup` do not take this lock and read no memory of the
//! process, so they are read directly. (On some kernels, such as 6.18.44, `stat` and `exe` wait for a
//! call of exec of that process to get over the closing of its files. Nothing here is against that.)

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The longest part of a command line that is read: its user chooses the length, and all users share the
/// service's memory.
const MAX_BYTES: u64 = 4096;

/// The most words that are kept of one: a word takes more memory than its bytes.
const MAX_WORDS: usize = 256;

/// How long one process may hold up a call, ...
const PATIENCE: Duration = Duration::from_millis(200);
/// ... beside the time that a process takes that holds up nothing.
const TIME_FOR_EACH: Duration = Duration::from_micros(100);

/// How long no command line is read after a call that waited in vain. A user that holds up one process
/// after another takes a hundredth of the service's time.
const PAUSE: Duration = Duration::from_secs(20);

/// Once so many threads are stuck, no command line is read until one of their processes goes on or ends.
/// A few may be stuck by accident, as with a file system of the network that does not answer.
const MAX_STUCK: usize = 4;

/// What reads for this process.
static READERS: Mutex<Readers> = Mutex::new(Readers { stuck: Vec::new(), late_at: None });

struct Readers {
    /// The threads that were late, each with the process that held it up: as long as the thread is
    /// there, that process is not asked again.
    stuck: Vec<(i32, JoinHandle<()>)>,
    /// When a thread was late last.
    late_at: Option<Instant>,
}

/// The command lines of these processes: the beginning of each, as words. A process that has none (a
/// kernel thread, one that has ended), or with a command line that cannot be read in time, is left out.
/// By the time of the answer another process may have the number.
pub fn command_lines(pids: &[i32]) -> BTreeMap<i32, Vec<String>> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner).read(pids, words_of)
}

/// What `judge` makes of the word that each of these processes was started with. The words themselves
/// are not kept: all processes of a machine may be asked for.
pub(crate) fn judge_first_words<T: Send + 'static>(
    pids: &[i32],
    judge: impl Fn(&str) -> Option<T> + Send + 'static,
) -> BTreeMap<i32, T> {
    let read = move |pid| judge(words_of(pid)?.first()?);
    READERS.lock().unwrap_or_else(PoisonError::into_inner).read(pids, read)
}

impl Readers {
    /// Asks `read_one` of each process, which may wait for ever.
    fn read<T: Send + 'static>(
        &mut self,
        pids: &[i32],
        read_one: impl Fn(i32) -> Option<T> + Send + 'static,
    ) -> BTreeMap<i32, T> {
        let mut found = BTreeMap::new();
        self.stuck.retain(|(_, thread)| !thread.is_finished());
        let is_paused = self.late_at.is_some_and(|at| at.elapsed() < PAUSE);
        if is_paused || self.stuck.len() >= MAX_STUCK {
            return found;
        }
        let is_stuck = |pid: &i32| self.stuck.iter().any(|(stuck, _)| stuck == pid);
        let asked: Vec<i32> = pids.iter().copied().filter(|pid| !is_stuck(pid)).collect();
        if asked.is_empty() {
            return found;
        }
        let (sender, answers) = channel();
        let to_read = asked.clone();
        let read_all = move || {
            for pid in to_read {
                // Without a receiver, nothing waits for the rest.
                if sender.send(read_one(pid)).is_err() {
                    return;
                }
            }
        };
        let thread = match Builder::new().name("command-lines".to_owned()).spawn(read_all) {
            Ok(thread) => thread,
            Err(why) => {
                tracing::debug!("command lines are not read: no thread can be started: {why}");
                return found;
            }
        };
        let number = u32::try_from(asked.len()).unwrap_or(u32::MAX);
        let deadline = Instant::now() + PATIENCE + TIME_FOR_EACH.saturating_mul(number);
        for pid in asked {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => found.extend(answer.map(|answer| (pid, answer))),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!(
                        "the command line of process {pid} could not be read in time: none is read \
                         for {} s, and that of this process not as long as the kernel makes it wait",
                        PAUSE.as_secs()
                    );
                    self.stuck.push((pid, thread));
                    self.late_at = Some(Instant::now());
                    break;
                }
            }
        }
        found
    }
}

/// The words of one command line; `None`: there are none. This may wait for ever.
fn words_of(pid: i32) -> Option<Vec<String>> {
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty()).take(MAX_WORDS);
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    fn no_readers() -> Readers {
        Readers { stuck: Vec::new(), late_at: None }
    }

    fn answer(pid: i32) -> Option<Vec<String>> {
        Some(vec![pid.to_string()])
    }

    /// Answers for each process but this one, which answers when the sender is gone.
    fn held_up_by(held_up: i32) -> (Sender<()>, impl Fn(i32) -> Option<Vec<String>> + Send) {
        let (release, wait): (Sender<()>, Receiver<()>) = channel();
        let words_of = move |pid: i32| {
            if pid == held_up {
                let _ = wait.recv();
            }
            answer(pid)
        };
        (release, words_of)
    }

    /// Reads until this process answers, as after a pause each time.
    fn read_at_last(readers: &mut Readers, pid: i32) {
        let reads = std::iter::repeat_with(|| {
            readers.late_at = None;
            std::thread::sleep(Duration::from_millis(1));
            readers.read(&[pid], answer)
        });
        assert!(reads.take(10_000).any(|found| found.contains_key(&pid)), "{pid}");
    }

    #[test]
    fn a_process_that_holds_up_a_read_is_not_asked_again() {
        let mut readers = no_readers();
        let (release, words_of) = held_up_by(2);
        assert!(readers.read(&[2, 3], words_of).is_empty());
        assert!(readers.read(&[1], answer).is_empty(), "there is no pause");
        readers.late_at = None;
        assert!(readers.read(&[2], answer).is_empty(), "it is asked again");
        read_at_last(&mut readers, 1);
        drop(release);
        read_at_last(&mut readers, 2);
    }

    #[test]
    fn few_threads_are_stuck_at_a_time() {
        let mut readers = no_readers();
        let mut held = Vec::new();
        for pid in 1..=MAX_STUCK as i32 {
            let (release, words_of) = held_up_by(pid);
            held.push(release);
            readers.late_at = None;
            assert!(readers.read(&[pid], words_of).is_empty());
        }
        readers.late_at = None;
        assert!(readers.read(&[100], answer).is_empty(), "another thread was started");
        drop(held.pop());
        read_at_last(&mut readers, 100);
    }
}
