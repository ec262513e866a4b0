//! Simulates the runs of a sweep in threads of this process, or in worker processes, so that a
//! scheduler that crashes loses only its own run.
//!
//! A worker process gets the same grid on its command line. It reads places in the grid from its
//! standard input, one on each line, and writes an answer to each as a line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::socket::{MsgFlags, send};
use serde::{Deserialize, Serialize};

use crate::grid::{Grid, Row, Run, SweepError};

/// Where runs are simulated.
#[derive(Clone, Copy)]
pub enum Workers<'a> {
    /// In this many threads of this process.
    Threads(usize),
    /// In this many processes, which the command starts. Each calls [`work`] with the same grid.
    Processes(usize, &'a (dyn Fn() -> Command + Sync)),
}

impl Workers<'_> {
    /// The number of workers.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Threads(count) | Self::Processes(count, _) => *count,
        }
    }
}

/// A worker process's answer, a line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Row(Box<Row>),
    /// Why the run cannot be simulated.
    Refused(String),
}

/// The result of a run.
pub(crate) enum Ended {
    Row(Box<Row>),
    /// Its process ended: how.
    Lost(String),
}

/// One worker.
pub(crate) struct Worker<'a> {
    workers: Workers<'a>,
    process: Option<Process>,
}

impl<'a> Worker<'a> {
    pub fn new(workers: Workers<'a>) -> Self {
        Self { workers, process: None }
    }

    /// Simulates this run of the grid. `then`: the place of the next run.
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
        // The next run is requested before this one is done, so that the process never waits.
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

/// A worker process, seen from its parent.
struct Process {
    child: Child,
    requests: Option<UnixStream>,
    answers: BufReader<ChildStdout>,
    /// The place that was requested last.
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

    /// Requests the run at this place, unless it was requested before. Places only grow.
    fn ask(&mut self, at: usize) {
        if let Some(requests) =
            self.requests.as_ref().filter(|_| self.asked.is_none_or(|last| last < at))
        {
            // A socket, because writing to a closed one can be told not to raise SIGPIPE. answer()
            // notices that the process has ended.
            let text = format!("{at}\n");
            let _ = send(requests.as_raw_fd(), text.as_bytes(), MsgFlags::MSG_NOSIGNAL);
            self.asked = Some(at);
        }
    }

    /// Its next answer; none: the process has ended.
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
        // The process ends at the end of its input.
        self.requests = None;
        let _ = self.child.wait();
    }
}

/// The worker process: simulates the runs whose places in the grid it reads, and writes the answers.
///
/// # Errors
/// [`SweepError::Worker`]: the parent process is gone.
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
