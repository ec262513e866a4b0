//! The ways to run a program that are compared, and where each applies.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

use evenkeel_cbinfo::Family;

use super::runtime::has_openmp;
use crate::cli::CompareArgs;

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
    Shares,
    Threads,
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
            Self {
                name: "run --shares",
                what: "evenkeel run with OpenMP loops divided by capability",
                how: How::Shares,
            },
            Self {
                name: "run --threads 4",
                what: "evenkeel run with 4 OpenMP threads for each CPU, spread by capability",
                how: How::Threads,
            },
        ]
    }

    /// The command that runs the program this way. `config` is the balancer's configuration file, and
    /// `summary` is the file for its summary.
    ///
    /// # Errors
    /// The path of this executable is not known.
    pub fn command(
        &self,
        words: &[OsString],
        config: Option<&Path>,
        summary: &Path,
    ) -> io::Result<Command> {
        let mut command;
        match self.how {
            How::Kernel | How::Pinned => {
                command = Command::new(&words[0]);
                command.args(&words[1..]);
            }
            How::Run | How::Shares | How::Threads => {
                command = Command::new(std::env::current_exe()?);
                command.args(["run", "--quiet", "--json"]).arg(summary);
                command.args(words_of(config)).args(self.options()).arg("--").args(words);
            }
        }
        if let How::Pinned = self.how {
            command.envs(PINNED);
        }
        Ok(command)
    }

    /// Whether its summary tells of moves.
    pub fn has_summary(&self) -> bool {
        matches!(self.how, How::Run | How::Shares | How::Threads)
    }

    /// What it gives to `evenkeel run`.
    fn options(&self) -> &'static [&'static str] {
        match self.how {
            How::Shares => &["--shares"],
            How::Threads => &["--threads", "4"],
            How::Kernel | How::Pinned | How::Run => &[],
        }
    }

    /// The command line for the user.
    pub fn line(&self, words: &[OsString], config: Option<&Path>) -> String {
        let words = in_a_shell(words.iter().map(|word| word.to_string_lossy()));
        match self.how {
            How::Kernel => words,
            How::Pinned => {
                let variables = PINNED.map(|(name, value)| format!("{name}={value}"));
                format!("{} {words}", variables.join(" "))
            }
            How::Run | How::Shares | How::Threads => {
                let options: String =
                    self.options().iter().map(|option| format!("{option} ")).collect();
                format!("evenkeel run {}{options}-- {words}", in_front(&words_of(config)))
            }
        }
    }

    /// Why it does not apply to a program in which runtimes of these families were seen.
    pub fn why_not(&self, seen: &BTreeSet<Family>) -> Option<&'static str> {
        match self.how {
            How::Pinned | How::Threads if !has_openmp(seen) => Some(
                "it acts on OpenMP programs only, and no runtime of OpenMP was seen in this one",
            ),
            How::Shares if seen.contains(&Family::LlvmOpenMp) => None,
            How::Shares if seen.contains(&Family::GccOpenMp) => Some(
                "it divides loops of LLVM's OpenMP runtime only (clang, flang), and this program has \
                 gcc's",
            ),
            How::Shares => Some(
                "it divides loops of LLVM's OpenMP runtime only (clang, flang), which was not seen in \
                 this program",
            ),
            _ => None,
        }
    }
}

/// The command line that makes the comparison once more.
pub fn line_of_compare(args: &CompareArgs, config: Option<&Path>) -> String {
    let words = in_a_shell(args.command.iter().map(|word| word.to_string_lossy()));
    let flags = in_front(&[words_of(config), args.flags()].concat());
    format!("evenkeel compare {flags}-- {words}")
}

/// The option that names a configuration file, if there is one.
fn words_of(config: Option<&Path>) -> Vec<OsString> {
    config.map_or_else(Vec::new, |path| vec!["--config".into(), path.into()])
}

/// Words as they are typed in a shell, with a space behind each.
fn in_front(words: &[OsString]) -> String {
    words.iter().map(|word| quoted(&word.to_string_lossy()) + " ").collect()
}

/// Words as they are typed in a shell.
pub fn in_a_shell(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    words.map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
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
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command as Commands};

    #[test]
    fn the_line_can_be_pasted_into_a_shell() {
        let words = ["./app", "a b", "it's", ""].map(OsString::from);
        let lines = |config: Option<&Path>| -> Vec<String> {
            Contestant::all().iter().map(|one| one.line(&words, config)).collect()
        };
        assert_eq!(
            lines(None),
            [
                r"./app 'a b' 'it'\''s' ''",
                r"OMP_PROC_BIND=true OMP_PLACES=threads ./app 'a b' 'it'\''s' ''",
                r"evenkeel run -- ./app 'a b' 'it'\''s' ''",
                r"evenkeel run --shares -- ./app 'a b' 'it'\''s' ''",
                r"evenkeel run --threads 4 -- ./app 'a b' 'it'\''s' ''",
            ]
        );
        let lines = lines(Some(Path::new("my file")));
        let rest = r"-- ./app 'a b' 'it'\''s' ''";
        assert_eq!(lines[0], r"./app 'a b' 'it'\''s' ''");
        assert_eq!(lines[2], format!("evenkeel run --config 'my file' {rest}"));
        assert_eq!(lines[3], format!("evenkeel run --config 'my file' --shares {rest}"));
    }

    #[test]
    fn the_line_that_compares_once_more_has_all_options() {
        let again = |options: &[&str], config: Option<&Path>| {
            let line = [&["evenkeel", "compare"][..], options, &["--", "./app", "a b"]].concat();
            match Cli::try_parse_from(line).unwrap().command {
                Commands::Compare(args) => line_of_compare(&args, config),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(again(&[], None), "evenkeel compare -- ./app 'a b'");
        assert_eq!(again(&["--budget", "10m"], None), "evenkeel compare -- ./app 'a b'");
        let line = again(&["--contestants", "run,run --shares"], Some(Path::new("my file")));
        let options = "--config 'my file' --contestants 'run,run --shares'";
        assert_eq!(line, format!("evenkeel compare {options} -- ./app 'a b'"));
        let all =
            ["--rounds", "2", "--budget", "1m", "--run-limit", "9s", "--json", "-", "--html", "p"];
        let line = again(&all, None);
        assert_eq!(line, format!("evenkeel compare {} -- ./app 'a b'", all.join(" ")));
    }

    #[test]
    fn openmp_has_contestants_of_its_own_where_a_runtime_was_seen() {
        let all = Contestant::all();
        let applying = |seen: &BTreeSet<Family>| -> Vec<&str> {
            let applies = |one: &&Contestant| one.why_not(seen).is_none();
            all.iter().filter(applies).map(|one| one.name).collect()
        };
        assert_eq!(applying(&BTreeSet::new()), ["default", "run"]);
        let gcc = ["default", "pinned", "run", "run --threads 4"];
        assert_eq!(applying(&[Family::GccOpenMp].into()), gcc);
        let all_names = ["default", "pinned", "run", "run --shares", "run --threads 4"];
        assert_eq!(applying(&[Family::LlvmOpenMp].into()), all_names);
        assert_eq!(applying(&[Family::GccOpenMp, Family::LlvmOpenMp].into()), all_names);
        let shares = all.iter().find(|one| one.name == "run --shares").unwrap();
        assert!(
            shares.why_not(&[Family::GccOpenMp].into()).unwrap().contains("this program has gcc's")
        );
    }
}
