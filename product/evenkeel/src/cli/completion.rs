//! What the shell offers on Tab where only the machine knows the values: processes, network devices,
//! commands, files, and names that are no enumeration of the command line.
//!
//! Bash inserts what is offered as it is, without quotes. So a name that a shell would not take as one
//! word is not offered: a file may be named by another user, and be a command.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;

use clap::Command;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use evenkeel_keel::{Parts, Zone};
use procfs::process::{Process, all_processes};

use super::compare::PLAIN_CONTESTANTS;

/// Lists values of an option.
pub type Candidates = fn() -> Vec<CompletionCandidate>;

/// An option with such values: the command, the option's name in it, and its values.
pub type Offer = (&'static [&'static str], &'static str, Candidates);

/// The options with such values.
const OPTIONS: [Offer; 28] = [
    (&["join"], "pid", processes),
    (&["leave"], "pid", processes),
    (&["watch"], "pid", processes),
    (&["explain"], "pid", processes),
    (&["join"], "name", programs),
    (&["daemon"], "names", programs),
    (&["run"], "speed", || {
        words(&["auto", "cpu-capacity", "cppc", "max-frequency", "bogomips", "calibrated"])
    }),
    (&["daemon"], "speed", || {
        words(&["auto", "cpu-capacity", "cppc", "max-frequency", "bogomips", "calibrated"])
    }),
    (&["compare"], "contestants", || words(&PLAIN_CONTESTANTS)),
    (&["zone", "get"], "knob", || Zone::names().map(CompletionCandidate::new).collect()),
    (&["zone", "set"], "knob", || Zone::names().map(CompletionCandidate::new).collect()),
    (&["ias", "agg"], "pid", processes),
    (&["ias", "agg"], "programs", programs),
    (&["ias", "set-agg"], "pid", processes),
    (&["ias", "alloc"], "groups", || words(&["llc", "l2", "node"])),
    (&["sais", "attach"], "device", devices),
    (&["sais", "attach"], "mode", || words(&["flow", "hint"])),
    (&["sais", "attach"], "wire", || words(&WIRES)),
    (&["sais", "attach"], "policy", || words(&["issuer", "runner", "least-loaded", "auto"])),
    (&["sais", "attach"], "xdp", || words(&["auto", "native", "generic"])),
    (&["sais", "serve"], "device", devices),
    (&["sais", "serve"], "wire", || words(&WIRES)),
    (&["irq", "run"], "program", processes),
    (&["irq", "run"], "mode", || words(&AIMS)),
    (&["irq", "plan"], "mode", || words(&AIMS)),
    (&["irq", "once"], "mode", || words(&AIMS)),
    (&["irq", "plan"], "program", processes),
    (&["irq", "once"], "program", processes),
];

/// The keel's policies, by the names of their options in each command that has them.
pub const POLICIES: [(&str, Candidates); 4] = [
    ("order", || words(&["fair", "ias"])),
    ("gate", || words(&["always", "zone"])),
    ("balance", || words(&["count", "capability"])),
    ("parts", || Parts::names().map(CompletionCandidate::new).collect()),
];

/// What `sched` has beside them.
pub const SCHED: [(&str, Candidates); 2] =
    [("ias_kick", || words(&["none", "idle", "busy"])), ("zone", || words(&LEVELS))];

/// How a server gives hints back.
const WIRES: [&str; 2] = ["tcp", "paper"];

/// What interrupts are moved for.
const AIMS: [&str; 2] = ["level", "source-aware"];

/// The levels of the gate's zone.
const LEVELS: [&str; 5] = ["cold", "warm-low", "warm-mid", "warm-high", "hot"];

/// The command line of the product with all that is offered.
pub fn with_candidates(command: Command) -> Command {
    let of_sched = of_command(&["sched"], POLICIES.into_iter().chain(SCHED));
    let command = with_offers(command, OPTIONS.into_iter().chain(of_sched));
    let command = with_plain_files(command);
    ["run", "compare"].into_iter().fold(command, |command, name| {
        with_argument(command, &[name], "command", &|argument| {
            argument.add(ArgValueCompleter::new(commands_and_files))
        })
    })
}

/// These options as those of the command at a path.
pub fn of_command(
    path: &'static [&'static str],
    options: impl IntoIterator<Item = (&'static str, Candidates)>,
) -> impl Iterator<Item = Offer> {
    options.into_iter().map(move |(option, candidates)| (path, option, candidates))
}

/// The command line with these values. Each option must exist.
pub fn with_offers(command: Command, offers: impl IntoIterator<Item = Offer>) -> Command {
    offers.into_iter().fold(command, |command, (path, option, candidates)| {
        with_argument(command, path, option, &|argument| {
            argument.add(ArgValueCandidates::new(candidates))
        })
    })
}

/// The command line with an option that takes one of these names, or else a file.
pub fn with_names_or_files(command: Command, (path, option, candidates): Offer) -> Command {
    let offered = move |beginning: &OsStr| -> Vec<CompletionCandidate> {
        let word = beginning.to_string_lossy();
        let begins =
            |name: &CompletionCandidate| name.get_value().to_string_lossy().starts_with(&*word);
        candidates().into_iter().filter(begins).chain(files(beginning)).collect()
    };
    with_argument(command, path, option, &|argument| argument.add(ArgValueCompleter::new(offered)))
}

/// Takes over all options whose values are files.
pub fn with_plain_files(command: Command) -> Command {
    let is_path = |hint| {
        use clap::ValueHint::{AnyPath, DirPath, ExecutablePath, FilePath};
        matches!(hint, AnyPath | DirPath | ExecutablePath | FilePath)
    };
    command
        .mut_args(|argument| {
            if is_path(argument.get_value_hint()) {
                argument.add(ArgValueCompleter::new(files))
            } else {
                argument
            }
        })
        .mut_subcommands(with_plain_files)
}

/// The command line with a changed argument of the command at this path.
pub fn with_argument(
    command: Command,
    path: &[&str],
    option: &str,
    change: &dyn Fn(clap::Arg) -> clap::Arg,
) -> Command {
    match path {
        [] => command.mut_arg(option, change),
        [first, rest @ ..] => {
            command.mut_subcommand(first, |part| with_argument(part, rest, option, change))
        }
    }
}

/// Words to offer.
pub fn words(words: &[&'static str]) -> Vec<CompletionCandidate> {
    words.iter().map(CompletionCandidate::new).collect()
}

/// The processes of this user, for root all, each with its command.
fn processes() -> Vec<CompletionCandidate> {
    let candidate = |(process, words): (Process, Vec<String>)| {
        let pid = process.pid().to_string();
        CompletionCandidate::new(pid).help(Some(words.join(" ").into()))
    };
    own_processes().map(candidate).collect()
}

/// The command names of these processes, as the kernel has them: at most 15 characters.
fn programs() -> Vec<CompletionCandidate> {
    let names = own_processes().filter_map(|(process, _)| Some(process.stat().ok()?.comm));
    let names: BTreeSet<String> = names.filter(|name| !name.contains('/')).collect();
    names.into_iter().map(CompletionCandidate::new).filter(is_plain).collect()
}

/// The processes of this user, for root all, each with its words. Kernel threads, which have none, are
/// left out.
fn own_processes() -> impl Iterator<Item = (Process, Vec<String>)> {
    // SAFETY: geteuid takes nothing and cannot fail.
    let own_uid = unsafe { libc::geteuid() };
    all_processes().into_iter().flatten().flatten().filter_map(move |process| {
        let is_own = own_uid == 0 || process.uid().ok()? == own_uid;
        let words = process.cmdline().ok().filter(|words| is_own && !words.is_empty())?;
        Some((process, words))
    })
}

/// The network devices of this namespace.
fn devices() -> Vec<CompletionCandidate> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.map(|entry| CompletionCandidate::new(entry.file_name()));
    names.filter(is_plain).collect()
}

/// Files and directories that begin with this.
fn files(beginning: &OsStr) -> Vec<CompletionCandidate> {
    PathCompleter::any().complete(beginning).into_iter().filter(is_plain).collect()
}

/// Whether every shell takes it as one word, and as no more.
fn is_plain(candidate: &CompletionCandidate) -> bool {
    let bytes = candidate.get_value().as_encoded_bytes();
    bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_./+:,=@%-".contains(byte))
}

/// Commands of PATH that begin with this, and files and directories.
fn commands_and_files(beginning: &OsStr) -> Vec<CompletionCandidate> {
    let files = files(beginning);
    let word = beginning.to_string_lossy();
    if word.is_empty() || word.contains('/') {
        return files;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let entries = std::env::split_paths(&path).filter_map(|folder| folder.read_dir().ok());
    let mut commands: Vec<_> = entries
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&*word))
        .filter(|entry| {
            let file = std::fs::metadata(entry.path());
            file.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
        .map(|entry| entry.file_name())
        .collect();
    commands.sort();
    commands.dedup();
    let commands = commands.into_iter().map(CompletionCandidate::new).filter(is_plain);
    commands.chain(files).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::command;

    /// What is offered for the last word.
    fn offered(line: &str) -> Vec<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let last = words.len() - 1;
        let candidates =
            clap_complete::engine::complete(&mut command(), words, last, None).unwrap();
        candidates.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn names_that_only_the_machine_knows_are_offered() {
        let own = std::process::id().to_string();
        for words in
            ["join", "ias agg", "ias set-agg", "irq run --for", "irq plan --for", "irq once --for"]
        {
            assert!(offered(&format!("evenkeel {words} ")).contains(&own), "{words}");
        }
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        for words in ["join --name", "daemon --name", "ias agg --program"] {
            let names = offered(&format!("evenkeel {words} "));
            assert!(names.iter().any(|offer| offer == name.trim()), "{words}: {names:?}");
        }
        assert!(offered("evenkeel sais serve / --device ").contains(&"lo".to_owned()));
        assert!(offered("evenkeel sais attach ").contains(&"lo".to_owned()));
        assert!(offered("evenkeel run -- s").contains(&"sh".to_owned()));
        assert_eq!(offered("evenkeel sched --gate "), ["always", "zone"]);
        assert_eq!(
            offered("evenkeel sched --balance=c"),
            ["--balance=count", "--balance=capability"]
        );
        assert!(offered("evenkeel zone get ").contains(&"balance_level".to_owned()));
        assert!(offered("evenkeel zone set bal").contains(&"balance_level".to_owned()));
        assert_eq!(offered("evenkeel compare --contestants "), PLAIN_CONTESTANTS);
        assert_eq!(offered("evenkeel compare --contestants run,p"), ["run,pinned"]);
    }

    #[test]
    fn each_word_that_is_offered_is_accepted() {
        let own = std::process::id().to_string();
        for (option, values) in [
            ("--order", &["fair", "ias"][..]),
            ("--gate", &["always", "zone"]),
            ("--balance", &["count", "capability"]),
            ("--ias-kick", &["none", "idle", "busy"]),
            ("--zone", &LEVELS),
        ] {
            assert_eq!(offered(&format!("evenkeel sched {option} ")), values, "{option}");
            for value in values {
                command().try_get_matches_from(["evenkeel", "sched", option, value]).unwrap();
            }
        }
        let numbers = ["evenkeel", "ias", "set-agg", &own, "1", "0", "5", "-1"];
        let matches = command().try_get_matches_from(numbers).unwrap();
        let (_, ias) = matches.subcommand().unwrap();
        let (_, set) = ias.subcommand().unwrap();
        let names = ["pid", "agg", "bonus_type", "bonus_value", "limit"];
        let told = names.map(|name| set.get_one::<String>(name).unwrap().as_str());
        assert_eq!(told, numbers[3..], "in the paper's order");
        for (line, count) in [
            ("ias alloc --groups", 3),
            ("irq once --mode", 2),
            ("sais attach lo --mode", 2),
            ("sais attach lo --policy", 4),
            ("sais attach lo --wire", 2),
            ("sais attach lo --xdp", 3),
            ("sais serve / --wire", 2),
        ] {
            let values = offered(&format!("evenkeel {line} "));
            assert_eq!(values.len(), count, "{line}: {values:?}");
            for value in values {
                let words = format!("evenkeel {line} {value}");
                command().try_get_matches_from(words.split(' ')).unwrap();
            }
        }
    }

    #[test]
    fn names_that_a_shell_would_not_take_as_one_word_are_not_offered() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["app", "app;reboot", "app $(reboot)", "app\nreboot"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let path = dir.path().join("ap").display().to_string();
        let only = [dir.path().join("app").display().to_string()];
        for words in ["run --", "run --json", "compare --html", "compare --", "--config"] {
            assert_eq!(offered(&format!("evenkeel {words} {path}")), only, "{words}");
        }
    }

    #[test]
    fn after_two_dashes_come_the_words_of_the_command_and_hidden_options_never() {
        assert!(!offered("evenkeel run -- --").iter().any(|word| word == "--policy"));
        let options = offered("evenkeel run --");
        assert!(options.contains(&"--policy".to_owned()), "{options:?}");
        assert!(!options.contains(&"--abort-at".to_owned()), "{options:?}");
        assert!(!offered("evenkeel ").contains(&"supervise".to_owned()));
    }
}
