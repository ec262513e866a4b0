//! What help and man pages of the laboratory show beside the definition of its commands: examples, exit
//! codes and files.

use evenkeel::cli::Example;
use evenkeel::generate::Sections;

/// What the man pages say.
pub const SECTIONS: Sections = Sections { examples, codes: &CODES, files: &FILES };

/// The exit codes.
const CODES: [(&str, &str); 4] = [
    (
        "0",
        "Done; also where a claim is not reproduced or an aim is missed, which is a finding. noise ends \
         with the code of its command.",
    ),
    (
        "1",
        "A rule was broken in a simulation, a replay differs, a contestant or a part failed, or the \
         accounting is wrong; with repro --check also: an aim was missed.",
    ),
    (
        "2",
        "The command line is wrong, or it cannot be done here: a file cannot be read or written; a \
         right, a tool or a second CPU is missing.",
    ),
    ("128 + N", "Signal N ended it."),
];

/// The files that a user may meet.
const FILES: [(&str, &str); 2] = [
    (
        "$XDG_CACHE_HOME/evenkeel",
        "Kernels for virtual machines, and programs that scripts fetched; without that variable \
         ~/.cache/evenkeel.",
    ),
    ("evenkeel-machine.tar", "What report writes where no other file is named."),
];

/// Examples by command.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "evenkeel-lab",
        &[
            (
                "A load on a machine that is not at hand:",
                "evenkeel-lab sim run pool --machine hybrid",
            ),
            ("Do the programs gain from evenkeel here?", "evenkeel-lab bench programs --demo"),
            ("Describe this machine, to send that in:", "evenkeel-lab report"),
        ],
    ),
    (
        "evenkeel-lab-sim",
        &[
            ("What has a name:", "evenkeel-lab sim list"),
            ("A load on a machine, with a picture:", "evenkeel-lab sim run pool --svg pool.svg"),
        ],
    ),
    ("evenkeel-lab-bench", &[("Three programs, briefly:", "evenkeel-lab bench programs --demo")]),
    ("evenkeel-lab-sim-list", &[("What has a name:", "evenkeel-lab sim list")]),
    (
        "evenkeel-lab-sim-run",
        &[
            (
                "A shape with its numbers:",
                "evenkeel-lab sim run barrier:tasks=8,work=10ms --machine hybrid",
            ),
            (
                "The machine of a report:",
                "evenkeel-lab sim run pool --machine evenkeel-machine.tar",
            ),
            (
                "A CPU that loses time, and a picture:",
                "evenkeel-lab sim run hogs --thief 0:3ms/10ms --svg run.svg",
            ),
            ("Look at it in ui.perfetto.dev:", "evenkeel-lab sim run pool --perfetto sim.pftrace"),
        ],
    ),
    (
        "evenkeel-lab-sim-sweep",
        &[
            (
                "Two policies on two machines:",
                "evenkeel-lab sim sweep pool --machine amc1,server --balance count,capability --out \
                 rows.jsonl",
            ),
            (
                "A thousand seeds, on a cluster:",
                "evenkeel-lab sim sweep pool --seeds 1000 --out rows.jsonl --on slurm",
            ),
        ],
    ),
    (
        "evenkeel-lab-sim-compare",
        &[(
            "By the response times:",
            "evenkeel-lab sim compare before.jsonl after.jsonl --by response",
        )],
    ),
    (
        "evenkeel-lab-sim-bench",
        &[("As a page for a browser:", "evenkeel-lab sim bench --html sim.html")],
    ),
    (
        "evenkeel-lab-record",
        &[("The keel with siblings first:", "evenkeel-lab record keel.tape --order ias")],
    ),
    (
        "evenkeel-lab-replay",
        &[("Does this build decide the same?", "evenkeel-lab replay keel.tape")],
    ),
    (
        "evenkeel-lab-bench-capability",
        &[(
            "Two cases:",
            "evenkeel-lab bench capability --cases none,softirq --html capability.html",
        )],
    ),
    ("evenkeel-lab-bench-cluster", &[("Does it work here?", "evenkeel-lab bench cluster --quick")]),
    (
        "evenkeel-lab-bench-programs",
        &[
            (
                "Three programs, each with the lever that fits it:",
                "evenkeel-lab bench programs --demo",
            ),
            (
                "One program under one noise:",
                "evenkeel-lab bench programs --only lu.W-gcc/softirq-fine --json programs.json",
            ),
            (
                "What was measured, as a page for a browser:",
                "evenkeel-lab bench programs --from programs.json --html programs.html",
            ),
        ],
    ),
    (
        "evenkeel-lab-bench-plan",
        &[("As a page for a browser:", "evenkeel-lab bench plan --html plan.html")],
    ),
    (
        "evenkeel-lab-bench-large",
        &[
            ("The smallest machine:", "evenkeel-lab bench large --quick"),
            ("As a page for a browser:", "evenkeel-lab bench large --html large.html"),
        ],
    ),
    (
        "evenkeel-lab-bench-daemon",
        &[("As a page for a browser:", "evenkeel-lab bench daemon --html daemon.html")],
    ),
    (
        "evenkeel-lab-bench-waiting",
        &[
            ("Does it work here?", "evenkeel-lab bench waiting --quick"),
            ("As a page for a browser:", "evenkeel-lab bench waiting --html waiting.html"),
        ],
    ),
    (
        "evenkeel-lab-bench-startup",
        &[
            ("Does it work here?", "evenkeel-lab bench startup --quick"),
            ("As a page for a browser:", "evenkeel-lab bench startup --html startup.html"),
        ],
    ),
    (
        "evenkeel-lab-bench-keel",
        &[(
            "Beside one other scheduler, in one round:",
            "evenkeel-lab bench keel --peers scx_flash --clocks counted --rounds 1",
        )],
    ),
    (
        "evenkeel-lab-bench-ias",
        &[("In few rounds:", "evenkeel-lab bench ias --rounds 6 --html ias.html")],
    ),
    (
        "evenkeel-lab-bench-balance",
        &[("As a page for a browser:", "evenkeel-lab bench balance --html balance.html")],
    ),
    (
        "evenkeel-lab-bench-zone",
        &[("In few rounds:", "evenkeel-lab bench zone --rounds 6 --html zone.html")],
    ),
    (
        "evenkeel-lab-bench-free",
        &[("Where the clock counts:", "evenkeel-lab bench free --clocks counted")],
    ),
    (
        "evenkeel-lab-bench-refill",
        &[
            ("Does it work here?", "evenkeel-lab bench refill --quick"),
            (
                "This machine, for the simulator:",
                "evenkeel-lab bench refill --machine here.toml --html refill.html",
            ),
        ],
    ),
    (
        "evenkeel-lab-bench-scale",
        &[("Few cells, as a page:", "evenkeel-lab bench scale --quick --html scale.html")],
    ),
    (
        "evenkeel-lab-bench-sais",
        &[("One part, briefly:", "evenkeel-lab bench sais --parts placement --quick")],
    ),
    (
        "evenkeel-lab-bench-irq",
        &[("One part, briefly:", "evenkeel-lab bench irq --parts queues --quick")],
    ),
    (
        "evenkeel-lab-repro",
        &[
            ("Does it work here?", "evenkeel-lab repro 002 --quick"),
            ("All of a paper, as a page:", "evenkeel-lab repro 000 --json 000.json --html ."),
            (
                "Two parts again, all others as they were:",
                "evenkeel-lab repro 000 --parts figure-8,cg --from 000.json --html .",
            ),
        ],
    ),
    (
        "evenkeel-lab-noise",
        &[
            (
                "Softirqs on CPU 1 while a program runs:",
                "evenkeel-lab noise softirq --cpu 1 -- ./app input",
            ),
            ("Is the accounting right here?", "evenkeel-lab noise all --verify"),
        ],
    ),
    (
        "evenkeel-lab-report",
        &[
            ("A quarter of an hour; it asks before it writes:", "evenkeel-lab report"),
            ("Briefly, and without asking:", "evenkeel-lab report --minutes 2 --yes machine.tar"),
        ],
    ),
];

/// The examples of a command by the name of its page, like `evenkeel-lab-sim-run`.
pub fn examples(page: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(of, _)| *of == page).map_or(&[], |(_, examples)| examples)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::cli::command;

    /// The pages of commands without parts, each with the words that call it.
    fn leaves(command: &Command, words: &str) -> Vec<String> {
        let visible = command.get_subcommands().filter(|part| !part.is_hide_set());
        let parts: Vec<String> = visible
            .flat_map(|part| leaves(part, &format!("{words} {}", part.get_name())))
            .collect();
        if parts.is_empty() { vec![words.to_owned()] } else { parts }
    }

    #[test]
    fn each_command_has_examples_and_each_of_them_is_taken() {
        let leaves = leaves(&command(), "evenkeel-lab");
        assert!(leaves.len() > 20, "{leaves:?}");
        for words in &leaves {
            let of_it = examples(&words.replace(' ', "-"));
            assert!(!of_it.is_empty(), "{words} has no example: add one to EXAMPLES");
            for (_, line) in of_it {
                assert!(line.starts_with(words.as_str()), "{line} is shown with {words}");
            }
        }
        for (_, line) in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            command()
                .try_get_matches_from(line.split(' '))
                .unwrap_or_else(|why| panic!("{line}: {why}"));
        }
    }

    #[test]
    fn examples_stand_below_what_the_help_says_of_rights() {
        let mut command = command();
        let record = command.find_subcommand_mut("record").unwrap();
        let help = record.render_long_help().to_string();
        let places = ["Needs root", "Examples:"].map(|text| help.find(text));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{help}");
    }

    #[test]
    fn man_pages_have_examples_and_exit_codes() {
        let directory = tempfile::tempdir().unwrap();
        let args = evenkeel::cli::GenerateArgs {
            what: evenkeel::cli::Generated::Man,
            directory: directory.path().to_owned(),
        };
        evenkeel::generate::main(command(), SECTIONS, &args).unwrap();
        let page = directory.path().join("evenkeel-lab-sim-run.1");
        let page = std::fs::read_to_string(page).unwrap();
        let titles = ["EXAMPLES", "EXIT STATUS", "FILES", "SEE ALSO"];
        let places = titles.map(|title| page.find(title));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{page}");
    }
}
