//! The ways to run a program that are compared, and where each applies.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

/// The name of the baseline.
pub const KERNEL: &str = "default";

/// What pins an OpenMP program: one thread on each CPU, and none leaves its CPU.
const PINNED: [(&str, &str); 2] = [("OMP_PROC_BIND", "true"), ("OMP_PLACES", "threads")];

/// A way to run the program.
#[derive(Debug, Clone)]
pub struct Contestant {
    /// Its name in the table.
    pub name: &'static str,
    /// What it does, for the legend of the table.
    pub what: &'static str,
    how: How,
}

#[derive(Debug, Clone, Copy)]
enum How {
    Kernel,
    Pinned,
    Run,
}

impl Contestant {
    /// All, the baseline first.
    pub fn all() -> Vec<Self> {
        vec![
            Self { name: KERNEL, what: "the kernel's scheduler alone", how: How::Kernel },
            Self {
                name: "pinned",
                what: "OpenMP threads bound to CPUs by the OpenMP runtime",
                how: How::Pinned,
            },
            Self { name: "run", what: "evenkeel run: threads are moved", how: How::Run },
        ]
    }

    /// The command that runs the program this way. `summary` is the file for the balancer's summary.
    ///
    /// # Errors
    /// The path of this executable is not known.
    pub fn command(&self, words: &[OsString], summary: &Path) -> io::Result<Command> {
        let mut command;
        match self.how {
            How::Kernel | How::Pinned => {
                command = Command::new(&words[0]);
                command.args(&words[1..]);
            }
            How::Run => {
                command = Command::new(std::env::current_exe()?);
                command.args(["run", "--quiet", "--json"]).arg(summary).arg("--").args(words);
            }
        }
        if let How::Pinned = self.how {
            command.envs(PINNED);
        }
        Ok(command)
    }

    /// Whether its summary tells of moves.
    pub fn has_summary(&self) -> bool {
        matches!(self.how, How::Run)
    }

    /// The command line for the user.
    pub fn line(&self, words: &[OsString]) -> String {
        let words: Vec<_> = words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        let words = words.join(" ");
        match self.how {
            How::Kernel => words,
            How::Pinned => {
                let variables = PINNED.map(|(name, value)| format!("{name}={value}"));
                format!("{} {words}", variables.join(" "))
            }
            How::Run => format!("evenkeel run -- {words}"),
        }
    }

    /// Why it does not apply to a program in which a runtime of OpenMP was seen, or none.
    pub fn why_not(&self, has_openmp: bool) -> Option<&'static str> {
        match self.how {
            How::Pinned if !has_openmp => Some(
                "it acts on OpenMP programs only, and no runtime of OpenMP was seen in this one",
            ),
            _ => None,
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_can_be_pasted_into_a_shell() {
        let words = ["./app", "a b", "it's", ""].map(OsString::from);
        let lines: Vec<String> = Contestant::all().iter().map(|one| one.line(&words)).collect();
        assert_eq!(
            lines,
            [
                r"./app 'a b' 'it'\''s' ''",
                r"OMP_PROC_BIND=true OMP_PLACES=threads ./app 'a b' 'it'\''s' ''",
                r"evenkeel run -- ./app 'a b' 'it'\''s' ''",
            ]
        );
    }

    #[test]
    fn pinning_applies_where_an_openmp_runtime_was_seen() {
        let all = Contestant::all();
        let applying = |has_openmp: bool| -> Vec<&str> {
            let applies = |one: &&Contestant| one.why_not(has_openmp).is_none();
            all.iter().filter(applies).map(|one| one.name).collect()
        };
        assert_eq!(applying(false), ["default", "run"]);
        assert_eq!(applying(true), ["default", "pinned", "run"]);
    }
}
