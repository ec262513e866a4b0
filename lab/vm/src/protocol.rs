//! What host and guest say to each other: one line of JSON each time, over a serial line of its own
//! (the console has the other).

use serde::{Deserialize, Serialize};

/// The host's side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Run(Job),
    Off,
}

/// The guest's side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It has booted.
    Ready,
    /// It is still there.
    Alive,
    /// A job is done.
    Ended(Ending),
}

/// A command for the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// After this much of the guest's own time it is killed, in seconds.
    pub limit_s: u32,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// Its exit code, or 128 and the signal that killed it, as shells have it.
    pub code: i32,
    /// The limit was reached.
    pub timed_out: bool,
    /// What it wrote to standard output; of very much the end.
    pub stdout: String,
    /// What it wrote to standard error; of very much the end.
    pub stderr: String,
    /// The names of processes that it left behind; they have been killed.
    pub left: Vec<String>,
}

impl Ending {
    /// Ended by itself, with success, and left nothing.
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
    fn words_survive_the_line() {
        let command = vec!["a b".to_owned(), "\"quoted\"\n".to_owned()];
        let request = Request::Run(Job { command, limit_s: 3 });
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn what_was_left_behind_is_no_clean_end() {
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
