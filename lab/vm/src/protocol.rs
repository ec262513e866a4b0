//! The messages between host and guest: one line of JSON each, over the guest's second serial line (the
//! first one is its console).
//!
//! The guest begins with `Ready`. The host then sends one request at a time. While a job runs the guest
//! sends `Alive` every two seconds, and at its end `Ended`. After `Off` it sends nothing more.

use serde::{Deserialize, Serialize};

/// What the host sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Run this job.
    Run(Job),
    /// Power off.
    Off,
}

/// What the guest sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It has booted and takes requests.
    Ready,
    /// A job is still running.
    Alive,
    /// A job has ended.
    Ended(Ending),
}

/// A command to run in the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The command is killed after this many seconds of the guest's own time.
    pub limit_s: u32,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// Its exit code, or 128 plus the signal that killed it, as in shells.
    pub code: i32,
    /// Whether it was killed because its time was over.
    pub timed_out: bool,
    /// The end of its standard output: 1 MiB at most.
    pub stdout: String,
    /// The end of its standard error: 1 MiB at most.
    pub stderr: String,
    /// The command lines of processes that it left behind. They were killed.
    pub left: Vec<String>,
}

impl Ending {
    /// Whether it ended by itself, with success, and left no process behind.
    pub fn is_clean(&self) -> bool {
        self.code == 0 && !self.timed_out && self.left.is_empty()
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.timed_out { " (killed: out of time)" } else { "" };
        write!(f, "exit code {}{how}", self.code)?;
        if !self.left.is_empty() {
            write!(f, "\nleft behind: {}", self.left.join(", "))?;
        }
        for (name, text) in [("output", &self.stdout), ("errors", &self.stderr)] {
            if !text.is_empty() {
                write!(f, "\n--- {name}\n{}", text.trim_end())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_as_one_line() {
        let command = vec!["a b".to_owned(), "\"quoted\"\n".to_owned()];
        let request = Request::Run(Job { command, limit_s: 3 });
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn leftovers_timeouts_and_failures_are_no_clean_end() {
        let clean = Ending {
            code: 0,
            timed_out: false,
            stdout: String::new(),
            stderr: String::new(),
            left: Vec::new(),
        };
        assert!(clean.is_clean());
        let left = Ending { left: vec!["sleep".to_owned()], ..clean.clone() };
        assert!(!left.is_clean());
        assert!(left.to_string().contains("left behind: sleep"), "{left}");
        assert!(!Ending { timed_out: true, ..clean.clone() }.is_clean());
        assert!(!Ending { code: 1, ..clean }.is_clean());
    }
}
