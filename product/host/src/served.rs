//! Readings from the cbinfo of a daemon, by its control socket: exact, and without any privilege. The
//! daemon hands out figures and nothing else: no map, no program, no descriptor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_control::{AskError, Request, ask_within};
use evenkeel_journal::{TaskError, TaskRef};
use nix::errno::Errno;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::figures::Figures;
use crate::reading::{CpuFacts, ProgramReading, Reading};

/// How long a daemon may take for an answer. Meanwhile nothing else is done, and signals for the program
/// wait; so a daemon that takes longer is asked no more.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why there are no figures from a daemon.
#[derive(Debug, thiserror::Error)]
pub enum ServedError {
    /// It does not answer, or refuses.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// It is of another version.
    #[error("{}: the daemon's answer is not understood ({why}): restart the daemon", .socket.display())]
    Version {
        /// Its socket.
        socket: PathBuf,
        /// What is wrong with the answer.
        why: serde_json::Error,
    },
    /// It weights what tasks receive by other speeds.
    #[error(
        "{}: for the daemon, CPU {cpu} has speed {daemons}, and here {own}: give both the same --speed",
        .socket.display()
    )]
    Speed {
        /// Its socket.
        socket: PathBuf,
        /// The CPU.
        cpu: u32,
        /// Its speed for the daemon.
        daemons: u32,
        /// Its speed here.
        own: u32,
    },
    /// It has figures of one program only for each process that asks.
    #[error("a second program is not observed by the daemon: let it join (evenkeel join)")]
    SecondProgram,
}

impl ServedError {
    /// Whether the daemon does not find what it was asked for.
    fn is_of_no_process(&self) -> bool {
        matches!(self, Self::Ask(AskError::Refused { errno, .. }) if *errno == Errno::ESRCH as i32)
    }
}

/// Whether there is no such process any more. A zombie has ended.
fn has_ended(process: u32) -> bool {
    match TaskRef::of(process as i32) {
        Ok(task) => !task.is_alive(),
        Err(why) => matches!(why, TaskError::Gone { .. }),
    }
}

/// The program that is observed: its first process, or that of each rank of a job, and its number here
/// and at the daemon.
struct Observed {
    processes: Vec<u32>,
    program: u32,
    at_daemon: u32,
}

/// A daemon that is asked for figures.
pub(crate) struct Served {
    socket: PathBuf,
    /// By CPU number.
    speeds: BTreeMap<u32, u32>,
    observed: Option<Observed>,
}

impl Served {
    /// Asks the daemon at `socket` whether it has exact figures.
    pub(crate) fn open(
        socket: &Path,
        facts: &BTreeMap<u32, CpuFacts>,
    ) -> Result<Self, ServedError> {
        let speeds = facts.iter().map(|(cpu, facts)| (*cpu, facts.speed)).collect();
        let served = Self { socket: socket.to_owned(), speeds, observed: None };
        served.read()?;
        Ok(served)
    }

    /// Takes the speeds of CPUs that have come online.
    pub(crate) fn set_speeds(&mut self, facts: &BTreeMap<u32, CpuFacts>) {
        self.speeds = facts.iter().map(|(cpu, facts)| (*cpu, facts.speed)).collect();
    }

    /// Has the daemon count this process and its descendants, for `program`.
    pub(crate) fn follow(&mut self, process: u32, program: u32) -> Result<(), ServedError> {
        let request = Request::new("observe").with("pid", process);
        let request = match &self.observed {
            None => request,
            Some(observed) if observed.program == program => {
                request.with("program", observed.at_daemon)
            }
            Some(_) => return Err(ServedError::SecondProgram),
        };
        let at_daemon = match self.ask(&request, "program") {
            // A rank that has ended meanwhile has nothing to count, and the others go on.
            Err(why) if self.observed.is_some() && why.is_of_no_process() && has_ended(process) => {
                return Ok(());
            }
            answer => answer?,
        };
        match &mut self.observed {
            Some(observed) => observed.processes.push(process),
            None => {
                let processes = vec![process];
                self.observed = Some(Observed { processes, program, at_daemon });
            }
        }
        Ok(())
    }

    /// The first processes of the program that is observed, and the program's number.
    pub(crate) fn followed(&self) -> Option<(&[u32], u32)> {
        self.observed.as_ref().map(|observed| (&observed.processes[..], observed.program))
    }

    pub(crate) fn read(&self) -> Result<Reading, ServedError> {
        let request = match &self.observed {
            Some(observed) => Request::new("figures").with("program", observed.at_daemon),
            None => Request::new("figures"),
        };
        let figures: Figures = self.ask(&request, "figures")?;
        for (cpu, own) in &self.speeds {
            let daemons = figures.cpus.get(cpu).map_or(0, |figures| figures.speed);
            if daemons != *own {
                let (socket, cpu, own) = (self.socket.clone(), *cpu, *own);
                return Err(ServedError::Speed { socket, cpu, daemons, own });
            }
        }
        let tasks = figures.tasks.iter().map(|figures| (figures.task, figures.reading)).collect();
        let program = ProgramReading { tasks, ..ProgramReading::default() };
        let number = self.observed.as_ref().map(|observed| observed.program);
        Ok(Reading {
            at_ns: figures.at_ns,
            cpus: figures.cpus.iter().map(|(cpu, figures)| (*cpu, figures.reading)).collect(),
            programs: number.map(|number| (number, program)).into_iter().collect(),
        })
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request, field: &str) -> Result<T, ServedError> {
        let mut answer = ask_within(&self.socket, request, PATIENCE)?;
        let value = answer.get_mut(field).map_or(Value::Null, Value::take);
        serde_json::from_value(value)
            .map_err(|why| ServedError::Version { socket: self.socket.clone(), why })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use evenkeel_control::Answer;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rank_that_has_ended_is_no_reason_for_other_figures() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        // It knows process 1 alone.
        let daemon = std::thread::spawn(move || {
            for _ in 0..4 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                let request: Request = serde_json::from_str(&line).unwrap();
                let answer = match request.args["pid"].as_u64() {
                    Some(1) => Answer::ok(json!({"program": 3})),
                    _ => Answer::refused(Errno::ESRCH, "no such process"),
                };
                writeln!(stream, "{}", json!(answer)).unwrap();
            }
        });
        let mut served = Served { socket, speeds: BTreeMap::new(), observed: None };
        // Above all numbers of processes.
        let ended = 4_194_305;
        assert!(served.follow(ended, 9).is_err(), "the first process is the program");
        served.follow(1, 9).unwrap();
        served.follow(ended, 9).unwrap();
        assert_eq!(served.followed(), Some((&[1][..], 9)));
        // The daemon does not know a process that lives: its figures would lack that rank.
        assert!(served.follow(std::process::id(), 9).is_err());
        daemon.join().unwrap();
    }
}
