//! What the shell offers on Tab where only the laboratory knows the values: papers and their parts,
//! kinds of noise, workloads, machines, knobs, and parts of benchmarks. How it is offered is the
//! product's.

use std::ffi::OsStr;

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use evenkeel::cli::completion::{
    Candidates, Offer, POLICIES, SCHED, of_command, with_argument, with_names_or_files,
    with_offers, with_plain_files, words,
};
use evenkeel_bench::capability::{Case, Method, Subject};
use evenkeel_bench::sais::Part;
use evenkeel_bench::{irq, levers, make_noise};
use evenkeel_experiment::guest::Clock;
use evenkeel_keel::{Mode, Zone};
use evenkeel_machine::{Costs, PRESETS};
use evenkeel_repro::papers;
use evenkeel_sim::SHAPES;

/// Options with such values.
const OPTIONS: [Offer; 13] = [
    (&["noise"], "kind", || make_noise::kinds().map(CompletionCandidate::new).collect()),
    (&["repro"], "paper", || {
        papers().map(|(number, _)| CompletionCandidate::new(number)).collect()
    }),
    (&["repro"], "parts", parts_of_papers),
    (&["bench", "capability"], "cases", || words(&Case::ALL.map(Case::name))),
    (&["bench", "capability"], "contestants", || words(&Method::ALL.map(Method::name))),
    (&["bench", "capability"], "programs", || words(&Subject::ALL.map(Subject::name))),
    (&["bench", "sais"], "parts", || words(&Part::ALL.map(Part::name))),
    (&["bench", "irq"], "parts", || words(&irq::Part::ALL.map(irq::Part::name))),
    (&["bench", "keel"], "clocks", clocks),
    (&["bench", "ias"], "clocks", clocks),
    (&["bench", "balance"], "clocks", clocks),
    (&["bench", "zone"], "clocks", clocks),
    (&["bench", "free"], "clocks", clocks),
];

/// Where a workload is simulated, and its options beside the policies.
const SIMULATED: [(&[&str], &str, &str); 2] =
    [(&["sim", "run"], "workload", "machine"), (&["sim", "sweep"], "workloads", "machines")];
const OF_SIMULATED: [(&str, Candidates); 4] = [
    ("knobs", knobs),
    ("costs", || Costs::NAMES.iter().map(|name| with_equals(name)).collect()),
    ("ias_mode", modes),
    ("groups", || words(&["llc", "node"])),
];

/// The command line of the laboratory with all that is offered.
pub fn with_candidates(command: Command) -> Command {
    let of_record = of_command(&["record"], POLICIES.into_iter().chain(SCHED));
    let command = with_offers(command, OPTIONS.into_iter().chain(of_record));
    let command = SIMULATED.into_iter().fold(command, |command, (path, workload, machine)| {
        let options = of_command(path, POLICIES.into_iter().chain(OF_SIMULATED));
        let command = with_offers(command, options);
        let command = with_names_or_files(command, (path, workload, shapes));
        with_names_or_files(command, (path, machine, machines))
    });
    let command = with_argument(command, &["bench", "programs"], "only", &|argument| {
        argument.add(ArgValueCompleter::new(cells))
    });
    with_plain_files(command)
}

/// The parts of all papers, each with the papers that have it.
fn parts_of_papers() -> Vec<CompletionCandidate> {
    let mut parts: Vec<(&str, Vec<&str>)> = Vec::new();
    for (number, names) in papers() {
        for name in names {
            match parts.iter_mut().find(|(known, _)| *known == name) {
                Some((_, numbers)) => numbers.push(number),
                None => parts.push((name, vec![number])),
            }
        }
    }
    let candidate = |(name, numbers): (&str, Vec<&str>)| {
        CompletionCandidate::new(name).help(Some(format!("paper {}", numbers.join(", ")).into()))
    };
    parts.into_iter().map(candidate).collect()
}

fn clocks() -> Vec<CompletionCandidate> {
    words(&Clock::ALL.map(Clock::name))
}

fn modes() -> Vec<CompletionCandidate> {
    Mode::ALL.into_iter().map(|mode| CompletionCandidate::new(mode.to_string())).collect()
}

/// Names that a value follows.
fn with_equals(name: &str) -> CompletionCandidate {
    CompletionCandidate::new(format!("{name}="))
}

/// The knobs of `evenkeel zone`, and what the help names beside them.
fn knobs() -> Vec<CompletionCandidate> {
    Zone::names().chain(["zone", "max_idle_wait"]).map(with_equals).collect()
}

/// Shapes of workloads; their numbers are typed behind a colon.
fn shapes() -> Vec<CompletionCandidate> {
    let all = SHAPES.into_iter();
    all.map(|(name, _, what)| CompletionCandidate::new(name).help(Some(what.into()))).collect()
}

/// Machines with a name.
fn machines() -> Vec<CompletionCandidate> {
    PRESETS.into_iter().chain(["host"]).map(CompletionCandidate::new).collect()
}

/// Parts of the table of `bench programs` that begin so.
fn cells(beginning: &OsStr) -> Vec<CompletionCandidate> {
    levers::patterns(&beginning.to_string_lossy())
        .into_iter()
        .map(CompletionCandidate::new)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

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
    fn names_that_only_the_laboratory_knows_are_offered() {
        for (line, expected) in [
            ("repro 0", &["000", "001", "002", "003", "004"][..]),
            ("repro 002 --parts ta", &["tables", "table-1", "table-3"]),
            ("repro 000 --parts figure-6,cg", &["figure-6,cg"]),
            ("noise so", &["softirq"]),
            ("sim run h", &["hogs"]),
            ("sim run hogs --machine s", &["small", "server"]),
            ("sim sweep hogs --machine amc1,am", &["amc1,amc1", "amc1,amc2", "amc1,amc3"]),
            ("sim run hogs --machine ho", &["host"]),
            ("sim run hogs --order ", &["fair", "ias"]),
            ("sim run hogs --parts ho", &["home"]),
            ("sim run hogs --knob ba", &["balance_level="]),
            ("sim sweep hogs --cost sw", &["switch_ns="]),
            ("record tape --gate z", &["zone"]),
            ("bench sais --parts memory,n", &["memory,network"]),
            ("bench capability --cases ho", &["hog"]),
            ("bench keel --clocks ", &["counted", "timed"]),
            ("bench programs --only cg.W", &["cg.W-gcc", "cg.W-clang"]),
            ("bench programs --only lu/udp,c", &["lu/udp,cg.W-gcc"]),
        ] {
            let found = offered(&format!("evenkeel-lab {line}"));
            let is_there = |name: &&str| found.iter().any(|one| one == name);
            let missing: Vec<_> = expected.iter().filter(|name| !is_there(name)).collect();
            assert!(missing.is_empty(), "{line}: {missing:?} is missing in {found:?}");
        }
    }

    #[test]
    fn each_word_that_is_offered_is_accepted() {
        for (line, count) in [
            ("sim run hogs --order", 2),
            ("sim run hogs --gate", 2),
            ("sim run hogs --balance", 2),
            ("sim run hogs --ias-mode", 2),
            ("bench free --clocks", 2),
            ("bench sais --parts", 5),
            ("bench irq --parts", 2),
        ] {
            let found = offered(&format!("evenkeel-lab {line} "));
            assert_eq!(found.len(), count, "{line}: {found:?}");
            for value in found {
                let words = format!("evenkeel-lab {line} {value}");
                command().try_get_matches_from(words.split(' ')).unwrap();
            }
        }
    }
}
