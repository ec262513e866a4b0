//! What the help of `evenkeel` shows beside the definition of its commands: the commands in groups, and
//! examples. The man pages are made of the same.

use clap::Command;

/// The commands by what they are for. Each visible command is in one group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Programs", &["run", "compare", "daemon", "join", "leave", "oci-hook"]),
    ("What happens, and why", &["doctor", "status", "top", "explain", "cluster", "undo", "config"]),
    ("The whole machine", &["sched", "ias", "zone"]),
    ("Interrupts and packets", &["irq", "sais"]),
    ("Help", &["help", "bugreport"]),
];

/// An example: what it does, and the command line.
pub type Example = (&'static str, &'static str);

/// Examples by command; "evenkeel" is the help of all.
const EXAMPLES: [(&str, &[Example]); 18] = [
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
    ("evenkeel-top", &[("One screen as text, without a terminal:", "evenkeel top --once")]),
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
    ("evenkeel-undo", &[("Take back what a killed evenkeel left:", "evenkeel undo")]),
    (
        "evenkeel-config",
        &[
            ("Are the files right?", "evenkeel config check"),
            ("Which values hold, and from which file?", "evenkeel config show"),
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
        "evenkeel-irq",
        &[
            ("Where interrupts run, and their cost:", "evenkeel irq status"),
            ("What would be moved?", "evenkeel irq plan"),
            ("Keep them away from a program:", "evenkeel irq run --for 1234"),
            ("Bring them to the receivers:", "evenkeel irq run --mode source-aware"),
            ("Look at it in ui.perfetto.dev:", "evenkeel irq run --perfetto irq.pftrace"),
        ],
    ),
    ("evenkeel-sais", &[("Steer packets of a device:", "evenkeel sais attach eth0")]),
];

/// The examples of a command by its name, like `evenkeel-run`.
pub fn examples(name: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(of, _)| *of == name).map_or(&[], |(_, examples)| examples)
}

/// The command line with its commands in groups, and with examples.
pub fn with_groups_and_examples(command: Command) -> Command {
    let groups: String =
        GROUPS.iter().map(|(title, names)| group(&command, title, names)).collect();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\n\
         Options:\n{{options}}{{after-help}}"
    );
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(&name, |sub| match as_text(examples(&format!("evenkeel-{name}"))) {
            Some(text) => sub.after_long_help(text),
            None => sub,
        })
    });
    let command = command.help_template(template);
    match as_text(examples("evenkeel")) {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// One group as it is printed.
fn group(command: &Command, title: &str, names: &[&str]) -> String {
    let line = |name: &&str| {
        let about = match *name {
            "help" => "Print this, or the help of a command".to_owned(),
            _ => command.find_subcommand(name)?.get_about()?.to_string(),
        };
        Some(format!("  {name:<11}{about}\n"))
    };
    format!("\n{title}:\n{}", names.iter().filter_map(line).collect::<String>())
}

fn as_text(examples: &[Example]) -> Option<String> {
    let lines = examples.iter().map(|(what, line)| format!("  {what}\n      {line}\n"));
    (!examples.is_empty()).then(|| format!("Examples:\n{}", lines.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cli::command;

    #[test]
    fn each_visible_command_is_in_one_group() {
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let command = command();
        let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(Command::get_name).chain(["help"]).collect();
        assert_eq!(grouped.len(), visible.len(), "a command twice: {grouped:?}");
        assert_eq!(grouped.into_iter().collect::<BTreeSet<_>>(), visible);
    }

    #[test]
    fn the_help_of_all_fits_a_terminal_of_80_columns() {
        let help = command().render_help().to_string();
        for line in help.lines().take_while(|line| !line.starts_with("Options")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(help.contains("Examples:") && help.contains("Interrupts and packets:"), "{help}");
    }

    #[test]
    fn every_example_is_a_command_line_of_the_command_that_it_is_shown_with() {
        for (name, examples) in EXAMPLES {
            for (_, line) in examples {
                let words: Vec<&str> = line.split(' ').collect();
                command()
                    .try_get_matches_from(&words)
                    .unwrap_or_else(|why| panic!("{line}: {why}"));
                let of = format!("evenkeel-{}", words[1]);
                assert!(name == "evenkeel" || name == of, "{line} is shown with {name}");
            }
        }
    }
}
