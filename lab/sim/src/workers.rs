//! Who simulates the runs of a sweep: threads of this process, or processes of their own, so that a
//! scheduler that crashes takes one run with it and no other.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::socket::{MsgFlags, send};
use serde::{Deserialize, Serialize};

use crate::grid::{Grid, Row, Run, SweepError};

/// Who simulates.
#[derive(Clone, Copy)]
pub enum Workers<'a> {
    /// So many threads of this process.
    Threads(usize),
    /// So many processes that this starts, each of which does [`work`] with the same grid.
    Processes(usize, &'a (dyn Fn() -> Command + Sync)),
}

impl Workers<'_> {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Threads(count) | Self::Processes(count, _) => *count,
        }
    }
}

/// What a process says of a run that it was asked for, in a line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Row(Box<Row>),
    /// Why it cannot be simulated.
    Refused(String),
}

/// What came of a run.
pub(crate) enum Ended {
    Row(Box<Row>),
    /// Its process ended, and how.
    Lost(String),
}

/// One of the workers.
pub(crate) struct Worker<'a> {
    workers: Workers<'a>,
    process: Option<Process>,
}

impl<'a> Worker<'a> {
    pub fn new(workers: Workers<'a>) -> Self {
        Self { workers, process: None }
    }

    /// Simulates this run of the grid. `then`: the place of the one that will be wanted next.
    pub fn simulate(
        &mut self,
        grid: &Grid,
        (at, run): &(usize, Run),
        then: Option<usize>,
    ) -> Result<Ended, SweepError> {
        let Workers::Processes(_, command) = self.workers else {
            return Ok(Ended::Row(Box::new(run.simulate(grid)?)));
        };
        let mut process = match self.process.take() {
            Some(process) => process,
            None => Process::start(command()).map_err(SweepError::Worker)?,
        };
        // It is told of the next one before it is done with this, and waits for nobody.
        process.ask(*at);
        if let Some(then) = then {
            process.ask(then);
        }
        let Some(line) = process.answer() else {
            return Ok(Ended::Lost(process.end()));
        };
        self.process = Some(process);
        match serde_json::from_slice(&line) {
            Ok(Answer::Row(row)) if row.is_of(run) => Ok(Ended::Row(row)),
            Ok(Answer::Row(_)) => Err(SweepError::Changed),
            Ok(Answer::Refused(why)) => Err(SweepError::Refused(why)),
            Err(why) => Err(SweepError::Worker(why.into())),
        }
    }
}

/// A process that simulates.
struct Process {
    child: Child,
    requests: Option<UnixStream>,
    answers: BufReader<ChildStdout>,
    /// What it was asked for last.
    asked: Option<usize>,
}

impl Process {
    fn start(mut command: Command) -> std::io::Result<Self> {
        let (requests, input) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(input)).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let answers = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let answers = BufReader::new(answers);
        Ok(Self { child, requests: Some(requests), answers, asked: None })
    }

    /// Asks it for the run at this place, unless that was done before. Places only grow.
    fn ask(&mut self, at: usize) {
        if let Some(requests) =
            self.requests.as_ref().filter(|_| self.asked.is_none_or(|last| last < at))
        {
            // A socket, because one that nobody reads any more can be written to without a signal. That
            // it has ended is found when it does not answer.
            let text = format!("{at}\n");
            let _ = send(requests.as_raw_fd(), text.as_bytes(), MsgFlags::MSG_NOSIGNAL);
            self.asked = Some(at);
        }
    }

    /// Its next answer; none: it has ended.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let mut line = Vec::new();
        self.answers.read_until(b'\n', &mut line).ok()?;
        line.ends_with(b"\n").then_some(line)
    }

    /// How it has ended.
    fn end(mut self) -> String {
        self.requests = None;
        self.child.wait().map_or_else(|why| why.to_string(), |status| status.to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Who is asked for nothing more ends.
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// What a worker's process does: the runs that it is asked for by their places in the grid, one a line.
///
/// # Errors
/// [`SweepError::Worker`]: whoever asks is gone.
pub fn work(
    grid: &Grid,
    requests: impl BufRead,
    mut answers: impl Write,
) -> Result<(), SweepError> {
    let runs = grid.runs()?;
    for line in requests.lines() {
        let line = line.map_err(SweepError::Worker)?;
        let run = line.parse::<usize>().ok().and_then(|at| runs.get(at));
        let answer = match run.map(|run| run.simulate(grid)) {
            Some(Ok(row)) => Answer::Row(Box::new(row)),
            Some(Err(why)) => Answer::Refused(why.to_string()),
            None => Answer::Refused(format!("there is no run {line}")),
        };
        let mut text = serde_json::to_vec(&answer).map_err(|why| SweepError::Worker(why.into()))?;
        text.push(b'\n');
        answers.write_all(&text).and_then(|()| answers.flush()).map_err(SweepError::Worker)?;
    }
    Ok(())
}
