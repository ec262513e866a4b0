//! Examples by command, for its help and its man page.

use clap::Command;

/// An example: what it does, and the command line.
pub type Example = (&'static str, &'static str);

/// Examples by command; "evenkeel" is the help of all.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "evenkeel",
        &[
            ("What works here, and how unequal are the CPUs?", "evenkeel doctor"),
            ("Does a program gain anything?", "evenkeel compare -- ./app input"),
            ("Run it at the average of its CPUs:", "evenkeel run -- ./app input"),
        ],
    ),
    (
        "evenkeel-run",
        &[
            ("Balance a program by moving its threads:", "evenkeel run -- ./app input"),
            (
                "Divide the loops of a program that clang built:",
                "evenkeel run --shares -- ./app input",
            ),
            (
                "Say each decision, and only observe:",
                "evenkeel run --dry-run --explain -- ./app input",
            ),
            ("Keep the figures:", "evenkeel run --json figures.json -- ./app input"),
            (
                "Look at the run in ui.perfetto.dev:",
                "evenkeel run --perfetto run.pftrace -- ./app input",
            ),
        ],
    ),
    (
        "evenkeel-compare",
        &[
            ("Compare all that applies to a program:", "evenkeel compare -- ./app input"),
            (
                "Five times each, as JSON:",
                "evenkeel compare --rounds 5 --json out.json -- ./app input",
            ),
        ],
    ),
    (
        "evenkeel-daemon",
        &[
            ("Balance what joins:", "evenkeel daemon"),
            (
                "Also each program lmp, with metrics:",
                "evenkeel daemon --name lmp --metrics 127.0.0.1:9469",
            ),
        ],
    ),
    (
        "evenkeel-join",
        &[
            ("A process and what it starts:", "evenkeel join 1234"),
            ("All of a cgroup:", "evenkeel join --cgroup /user.slice/job"),
        ],
    ),
    (
        "evenkeel-bugreport",
        &[("Write down how this machine is, to send it in:", "evenkeel bugreport report.md")],
    ),
    ("evenkeel-leave", &[("Leave a program to the kernel again:", "evenkeel leave 1234")]),
    (
        "evenkeel-watch",
        &[
            ("Only count the moves of a program from now on:", "evenkeel watch 1234"),
            ("Balance it again:", "evenkeel watch 1234 --off"),
        ],
    ),
    (
        "evenkeel-doctor",
        &[("Also measure how fast each CPU is:", "evenkeel doctor --calibrate --watch 5s")],
    ),
    (
        "evenkeel-status",
        &[
            ("All that is balanced, for a script:", "evenkeel status --json"),
            ("The same for people, each second anew:", "evenkeel status --watch 1s"),
            ("Whether the daemon answers:", "evenkeel status --daemon"),
        ],
    ),
    (
        "evenkeel-top",
        &[
            ("One screen as text, without a terminal:", "evenkeel top --once"),
            ("The same for a program:", "evenkeel top --json"),
        ],
    ),
    (
        "evenkeel-explain",
        &[
            ("The last three decisions about each program:", "evenkeel explain --last 3"),
            ("Why the gate of the keel refused moves:", "evenkeel explain --keel"),
        ],
    ),
    (
        "evenkeel-cluster",
        &[
            ("Which node of a job was the slowest, and why?", "evenkeel cluster report 1234"),
            (
                "From records that all nodes write to one place:",
                "evenkeel cluster report --from /shared/evenkeel 1234",
            ),
        ],
    ),
    (
        "evenkeel-cluster-report",
        &[
            ("Which node of a job was the slowest, and why?", "evenkeel cluster report 1234"),
            ("For a script:", "evenkeel cluster report --json 1234"),
            (
                "From records that all nodes write to one place:",
                "evenkeel cluster report --from /shared/evenkeel 1234",
            ),
        ],
    ),
    (
        "evenkeel-oci-hook",
        &[(
            "What the runtime starts, with the container's state as its input:",
            "evenkeel oci-hook",
        )],
    ),
    ("evenkeel-undo", &[("Take back what a killed evenkeel left:", "evenkeel undo")]),
    (
        "evenkeel-config",
        &[
            ("Are the files right?", "evenkeel config check"),
            ("Which values hold, and from which file?", "evenkeel config show"),
        ],
    ),
    (
        "evenkeel-config-check",
        &[
            ("Are the system's file and yours right?", "evenkeel config check"),
            ("Is this one, before it is installed?", "evenkeel config check ./config.toml"),
        ],
    ),
    (
        "evenkeel-config-show",
        &[
            ("Which values hold, and from which file?", "evenkeel config show"),
            ("What would hold with this file?", "evenkeel config show --config ./config.toml"),
        ],
    ),
    (
        "evenkeel-sched",
        &[
            ("The keel, fair as the kernel's scheduler:", "evenkeel sched"),
            (
                "Balancing by capability, and a quiet zone:",
                "evenkeel sched --balance capability --gate zone",
            ),
            ("Look at it in ui.perfetto.dev:", "evenkeel sched --perfetto keel.pftrace"),
        ],
    ),
    ("evenkeel-ias", &[("What is set:", "evenkeel ias show")]),
    (
        "evenkeel-ias-agg",
        &[
            ("Run the threads of a process in a row:", "evenkeel ias agg 1234 --bonus 3x"),
            ("Those of all processes of a program:", "evenkeel ias agg --program mysqld"),
            ("No longer:", "evenkeel ias agg 1234 --off"),
        ],
    ),
    (
        "evenkeel-ias-set-agg",
        &[("A bonus of three times the last run:", "evenkeel ias set-agg 1234 1 1 3 0")],
    ),
    (
        "evenkeel-ias-alloc",
        &[
            ("CPUs that share a cache aggregate together:", "evenkeel ias alloc --groups llc"),
            ("The first of four CPUs leads the others:", "evenkeel ias alloc 0 1 1 1"),
        ],
    ),
    (
        "evenkeel-ias-show",
        &[
            ("What is set, and what was found:", "evenkeel ias show"),
            ("For a script:", "evenkeel ias show --json"),
        ],
    ),
    (
        "evenkeel-zone",
        &[
            ("All knobs of the gate:", "evenkeel zone get"),
            ("Balance freely only on a busy machine:", "evenkeel zone set balance_level warm-high"),
        ],
    ),
    (
        "evenkeel-zone-get",
        &[("All knobs:", "evenkeel zone get"), ("One of them:", "evenkeel zone get balance_level")],
    ),
    (
        "evenkeel-zone-set",
        &[(
            "Balance freely only above 80 % utilisation:",
            "evenkeel zone set balance_level warm-high",
        )],
    ),
    (
        "evenkeel-zone-shield",
        &[
            ("Keep CPUs 2 and 3 for tasks that are pinned there:", "evenkeel zone shield 2-3"),
            ("No longer:", "evenkeel zone shield none"),
        ],
    ),
    (
        "evenkeel-irq",
        &[
            ("Where interrupts run, and their cost:", "evenkeel irq status"),
            ("What would be moved?", "evenkeel irq plan"),
            ("Keep them away from a program:", "evenkeel irq run --for 1234"),
            ("Bring them to the receivers:", "evenkeel irq run --mode source-aware"),
            ("Look at it in ui.perfetto.dev:", "evenkeel irq run --perfetto irq.pftrace"),
        ],
    ),
    (
        "evenkeel-irq-status",
        &[
            ("Where interrupts run, and their cost, over 5 s:", "evenkeel irq status --watch 5s"),
            ("For a script:", "evenkeel irq status --json"),
        ],
    ),
    (
        "evenkeel-irq-plan",
        &[
            ("What would be moved so that all CPUs lose alike?", "evenkeel irq plan"),
            ("What, to keep a program's CPUs free of it?", "evenkeel irq plan --for 1234"),
        ],
    ),
    (
        "evenkeel-irq-once",
        &[
            ("Level them now, and leave it so:", "evenkeel irq once"),
            ("The same beside irqbalance:", "evenkeel irq once --take-over"),
        ],
    ),
    (
        "evenkeel-irq-run",
        &[
            ("Keep them away from a program while it runs:", "evenkeel irq run --for 1234"),
            ("Bring them to the receivers of packets:", "evenkeel irq run --mode source-aware"),
            ("Look at it in ui.perfetto.dev:", "evenkeel irq run --perfetto irq.pftrace"),
        ],
    ),
    (
        "evenkeel-sais",
        &[
            ("Steer packets of a device:", "evenkeel sais attach eth0"),
            ("Which cores do they go to, and why?", "evenkeel sais explain"),
        ],
    ),
    (
        "evenkeel-sais-attach",
        &[
            ("To the core where the consumer runs:", "evenkeel sais attach eth0"),
            ("Only where that gains:", "evenkeel sais attach eth0 --policy auto"),
            (
                "By hints in the packets, as in paper 001:",
                "evenkeel sais attach eth0 --mode hint --peers 10.0.0.0/8",
            ),
        ],
    ),
    (
        "evenkeel-sais-serve",
        &[(
            "Send the hints of clients in these networks back:",
            "evenkeel sais serve system.slice/nfs-server.service --peers 10.0.0.0/8",
        )],
    ),
    (
        "evenkeel-sais-status",
        &[
            ("How many packets did each core process?", "evenkeel sais status"),
            ("For a script:", "evenkeel sais status --json"),
        ],
    ),
    (
        "evenkeel-sais-explain",
        &[
            ("Which core does each connection go to, and why?", "evenkeel sais explain"),
            ("For a script:", "evenkeel sais explain --json"),
        ],
    ),
    (
        "evenkeel-sais-model",
        &[(
            "A client of 8 cores reads from 48 servers:",
            "evenkeel sais model --cores 8 --servers 48",
        )],
    ),
];

/// The examples of a command by its name, like `evenkeel-run`.
pub fn examples(name: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, examples)| examples)
}

/// The command with the examples of its page in its help, and those of its parts in theirs.
pub fn with_examples(command: Command, page: &str, of: fn(&str) -> &'static [Example]) -> Command {
    let command = command.mut_subcommands(|part| {
        let page = format!("{page}-{}", part.get_name());
        with_examples(part, &page, of)
    });
    match as_text(of(page)) {
        Some(text) => {
            // What stands below the options already stays there.
            let before = command.get_after_help().map(|before| format!("{before}\n\n"));
            command.after_long_help(before.unwrap_or_default() + &text)
        }
        None => command,
    }
}

/// Examples as the help shows them; none for none.
pub(super) fn as_text(examples: &[Example]) -> Option<String> {
    let lines = examples.iter().map(|(what, line)| format!("  {what}\n      {line}\n"));
    (!examples.is_empty()).then(|| format!("Examples:\n{}", lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    /// The page of the command that a line calls.
    fn page_of(line: &str) -> String {
        let (root, mut page) = (command(), String::from("evenkeel"));
        let mut command = &root;
        for word in line.split(' ').skip(1) {
            let Some(part) = command.find_subcommand(word) else { break };
            page += &format!("-{word}");
            command = part;
        }
        page
    }

    #[test]
    fn every_example_is_a_command_line_of_the_command_that_it_is_shown_with() {
        for (name, examples) in EXAMPLES {
            for (_, line) in *examples {
                let words: Vec<&str> = line.split(' ').collect();
                command()
                    .try_get_matches_from(&words)
                    .unwrap_or_else(|why| panic!("{line}: {why}"));
                let page = page_of(line);
                let is_of_part = page.starts_with(&format!("{name}-"));
                assert!(page == *name || is_of_part, "{line} is shown with {name}");
            }
        }
    }

    /// The pages of commands without parts.
    fn leaves(command: &Command, page: &str) -> Vec<String> {
        let visible = command.get_subcommands().filter(|part| !part.is_hide_set());
        let parts: Vec<String> =
            visible.flat_map(|part| leaves(part, &format!("{page}-{}", part.get_name()))).collect();
        if parts.is_empty() { vec![page.to_owned()] } else { parts }
    }

    #[test]
    fn each_command_has_an_example_in_its_help() {
        let leaves = leaves(&command(), "evenkeel");
        assert!(leaves.contains(&"evenkeel-irq-plan".to_owned()), "{leaves:?}");
        for page in leaves {
            assert!(!examples(&page).is_empty(), "{page} has no example: add one to EXAMPLES");
        }
        let mut command = command();
        command.build();
        let irq = command.find_subcommand_mut("irq").unwrap();
        let help = irq.find_subcommand_mut("plan").unwrap().render_long_help().to_string();
        assert!(
            help.contains("Examples:") && help.contains("evenkeel irq plan --for 1234"),
            "{help}"
        );
    }
}
