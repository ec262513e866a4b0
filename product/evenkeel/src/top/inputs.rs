//! What the live screen waits for, each from a thread of its own: readings and keys. So keys are
//! answered at once while a service that is asked for figures takes its time, and a signal is while the
//! terminal has sent half of a key.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::keys::Key;
use super::model::Model;
use super::sources::Sources;

/// The first interval is short, so that figures of an interval are soon there.
const FIRST: Duration = Duration::from_millis(250);

/// An input of the screen.
pub enum Input {
    /// A reading.
    Reading(Box<Model>),
    /// A key.
    Key(Key),
}

/// Gives inputs to the loop.
struct Giver {
    send: Sender<Input>,
    tell: PipeWriter,
    /// The end that the loop reads. Kept open here, too: the loop may end while an input is on its way,
    /// and to write to a pipe that nothing can read would end this process by SIGPIPE.
    ready: Arc<PipeReader>,
}

impl Giver {
    /// Returns whether they are still wanted.
    fn give(&mut self, input: Input) -> bool {
        // The byte follows, so that there is something once it is read.
        self.send.send(input).is_ok() && self.tell.write_all(&[0]).is_ok()
    }

    fn try_clone(&self) -> io::Result<Self> {
        let (tell, ready) = (self.tell.try_clone()?, Arc::clone(&self.ready));
        Ok(Self { send: self.send.clone(), tell, ready })
    }
}

/// The loop's end.
pub struct Inputs {
    given: Receiver<Input>,
    /// Whether readings are to be taken.
    orders: Sender<bool>,
    /// It has the pipe, with a byte for each input.
    giver: Giver,
}

impl Inputs {
    /// Takes the first reading at once, the next one soon, and then one in each interval.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(interval: Duration) -> io::Result<Self> {
        let (ready, tell) = pipe()?;
        let (send, given) = channel();
        let giver = Giver { send, tell, ready: Arc::new(ready) };
        let mut of_reader = giver.try_clone()?;
        let (orders, told) = channel();
        thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let mut sources = Sources::open();
            let mut pause = FIRST.min(interval);
            while of_reader.give(Input::Reading(Box::new(sources.read()))) && wait(&told, pause) {
                pause = interval;
            }
        })?;
        Ok(Self { given, orders, giver })
    }

    /// Takes keys, too, each from `next`, which waits for one; until it fails.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn take_keys(
        &self,
        mut next: impl FnMut() -> io::Result<Option<Key>> + Send + 'static,
    ) -> io::Result<()> {
        let mut giver = self.giver.try_clone()?;
        let keys = move || {
            while let Ok(key) = next() {
                if !key.is_none_or(|key| giver.give(Input::Key(key))) {
                    return;
                }
            }
        };
        thread::Builder::new().name("keys".to_owned()).spawn(keys)?;
        Ok(())
    }

    /// Readable when [`Inputs::take`] has something.
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.giver.ready.as_fd()
    }

    /// What has come. Call it when [`Inputs::ready`] is readable: else it waits.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&mut self) -> io::Result<Vec<Input>> {
        // More may have come than bytes are read; then some bytes are left for nothing.
        let _ = (&*self.giver.ready).read(&mut [0; 64])?;
        Ok(self.given.try_iter().collect())
    }

    /// Takes no more readings, or takes them again. One may just be on its way.
    pub fn order(&self, takes_readings: bool) {
        // Fails if the thread has ended, which it does only when this is dropped.
        let _ = self.orders.send(takes_readings);
    }
}

/// Waits for the next interval; while no reading is wanted, for longer. Returns whether there is one.
fn wait(told: &Receiver<bool>, pause: Duration) -> bool {
    let is_wanted = match told.recv_timeout(pause) {
        Err(RecvTimeoutError::Timeout) => return true,
        Err(RecvTimeoutError::Disconnected) => return false,
        Ok(is_wanted) => is_wanted,
    };
    is_wanted || told.iter().any(|is_wanted| is_wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(inputs: &mut Inputs) -> Option<Box<Model>> {
        let of_reading = |input| match input {
            Input::Reading(model) => Some(model),
            Input::Key(_) => None,
        };
        inputs.take().unwrap().into_iter().filter_map(of_reading).next_back()
    }

    #[test]
    fn readings_come_one_after_the_other() {
        let mut inputs = Inputs::start(Duration::from_millis(1)).unwrap();
        let first = newest(&mut inputs).unwrap();
        let mut later = first.clone();
        while later.cpus.figures.is_none() || later.at_ns == first.at_ns {
            later = newest(&mut inputs).unwrap_or(later);
        }
        assert!(later.at_ns > first.at_ns);
    }

    #[test]
    fn keys_come_until_there_are_no_more() {
        let mut inputs = Inputs::start(Duration::from_secs(60)).unwrap();
        let mut keys = vec![Err(io::ErrorKind::UnexpectedEof.into()), Ok(Some(Key::Tab)), Ok(None)];
        inputs.take_keys(move || keys.pop().unwrap_or(Ok(Some(Key::Up)))).unwrap();
        let mut came = Vec::new();
        while came.is_empty() {
            let inputs = inputs.take().unwrap();
            came.extend(inputs.into_iter().filter(|input| matches!(input, Input::Key(_))));
        }
        assert!(matches!(came[..], [Input::Key(Key::Tab)]));
    }

    /// `top` ends by SIGPIPE as any tool that prints; its tests ignore the signal, and see an error.
    #[test]
    fn an_input_that_comes_too_late_ends_nothing() {
        let inputs = Inputs::start(Duration::from_secs(60)).unwrap();
        let mut late = inputs.giver.try_clone().unwrap();
        drop(inputs);
        late.tell.write_all(&[0]).unwrap();
        assert!(!late.give(Input::Key(Key::Tab)), "nothing waits for it any more");
    }

    #[test]
    fn while_it_is_frozen_nothing_is_read() {
        let (orders, told) = channel();
        orders.send(false).unwrap();
        orders.send(true).unwrap();
        assert!(wait(&told, Duration::from_secs(600)), "the second order ends the waiting");
        orders.send(false).unwrap();
        drop(orders);
        assert!(!wait(&told, Duration::from_secs(600)), "the screen has ended while it was frozen");
    }
}
