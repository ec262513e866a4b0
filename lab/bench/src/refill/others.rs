//! What runs between two walks: a thread that shares the working set, or a process with a set of
//! its own. Both are switched to through the same kind of pipe, on the same CPU.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use evenkeel_journal::affinity;
use nix::unistd::gettid;

use super::walk::{Order, Set};

/// The message for one walk, and the answer after it.
const TURN: [u8; 1] = [1];

/// Pins the calling thread to this CPU. It is a thread of the benchmark: its mask needs no journal.
pub fn run_on(cpu: u32) -> Result<()> {
    Ok(affinity::set(gettid().as_raw(), &[cpu].into_iter().collect())?)
}

/// A thread or process that walks once for each message.
pub trait Other {
    /// Gives the CPU away until that is done.
    ///
    /// # Errors
    /// It has ended.
    fn turn(&mut self) -> Result<()>;
}

fn ask(orders: &mut impl Write, answers: &mut impl Read) -> Result<()> {
    let gone = "the thread or process that runs between two walks has ended";
    orders.write_all(&TURN).context(gone)?;
    answers.read_exact(&mut [0]).context(gone)
}

/// Walks once for each message, until the other end of the pipe is closed.
fn serve(orders: &mut impl Read, answers: &mut impl Write, mut walk: impl FnMut()) -> Result<()> {
    let mut order = [0];
    loop {
        match orders.read(&mut order) {
            Ok(0) => return Ok(()),
            Ok(_) => walk(),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("cannot read the next message"),
        }
        if answers.write_all(&TURN).is_err() {
            return Ok(());
        }
    }
}

/// A thread of the same address space, which walks over the same set.
pub struct Sibling {
    orders: Option<PipeWriter>,
    answers: PipeReader,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Sibling {
    /// On this CPU. The set is locked only while one of the two walks.
    ///
    /// # Errors
    /// No thread can be started or pinned.
    pub fn start(cpu: u32, set: &Arc<Mutex<Set>>) -> Result<Self> {
        let ((mut orders_in, orders), (answers, mut answers_in)) = (pipe()?, pipe()?);
        let set = set.clone();
        let thread = std::thread::Builder::new().name("sibling".into()).spawn(move || {
            run_on(cpu)?;
            let walk = || set.lock().unwrap_or_else(PoisonError::into_inner).walk();
            serve(&mut orders_in, &mut answers_in, walk)
        })?;
        Ok(Self { orders: Some(orders), answers, thread: Some(thread) })
    }
}

impl Other for Sibling {
    fn turn(&mut self) -> Result<()> {
        match &mut self.orders {
            Some(orders) => ask(orders, &mut self.answers),
            None => bail!("the thread has ended"),
        }
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        // Without orders it ends.
        self.orders = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A process with a set of its own. It ends with this process.
pub struct Stranger {
    process: Child,
    orders: ChildStdin,
    answers: ChildStdout,
}

impl Stranger {
    /// On this CPU, with so many KiB.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(cpu: u32, kib: usize) -> Result<Self> {
        let mut process = Command::new(evenkeel_experiment::executable::own()?)
            .args(["bench", "refill", "--stranger", &format!("{cpu}:{kib}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process with another address space")?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(orders), Some(answers)) => Ok(Self { process, orders, answers }),
            _ => bail!("a process was started without its pipes"),
        }
    }
}

impl Stranger {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Other for Stranger {
    fn turn(&mut self) -> Result<()> {
        ask(&mut self.orders, &mut self.answers)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The main function of a [`Stranger`]. Returns the exit code.
///
/// # Errors
/// It cannot run on that CPU, or cannot be told anything.
pub fn be_stranger(cpu: u32, kib: usize) -> Result<i32> {
    run_on(cpu)?;
    let mut set = Set::new(kib, Order::InSequence);
    serve(&mut std::io::stdin(), &mut RawOutput, || set.walk())?;
    Ok(0)
}

/// Standard output without a buffer.
struct RawOutput;

impl Write for RawOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(nix::unistd::write(std::io::stdout(), bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sibling_walks_on_each_message_and_ends_when_dropped() {
        let set = Arc::new(Mutex::new(Set::new(4, Order::Scattered)));
        let own = affinity::get(gettid().as_raw()).unwrap();
        let mut sibling = Sibling::start(own.iter().next().unwrap(), &set).unwrap();
        for _ in 0..10 {
            sibling.turn().unwrap();
        }
        drop(sibling);
        assert_eq!(Arc::strong_count(&set), 1);
    }

    #[test]
    fn each_message_makes_one_walk() {
        let mut walks = 0;
        let mut answers = Vec::new();
        serve(&mut [1, 1, 1].as_slice(), &mut answers, || walks += 1).unwrap();
        assert_eq!((walks, answers), (3, vec![1, 1, 1]));
    }
}
