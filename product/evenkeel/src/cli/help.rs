//! What the help of `evenkeel` shows beside the definition of its commands: the commands in groups, and
//! examples (`examples`).

use clap::Command;

use super::examples::{as_text, examples, with_examples};

/// The commands by what they are for. Each visible command is in one group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Programs", &["run", "compare", "daemon", "join", "leave", "watch", "oci-hook"]),
    ("What happens, and why", &["doctor", "status", "top", "explain", "cluster", "undo", "config"]),
    ("The whole machine", &["sched", "ias", "zone"]),
    ("Interrupts and packets", &["irq", "sais"]),
    ("Help", &["help", "bugreport"]),
];

/// The command line with its commands in groups, and with examples.
pub fn with_groups_and_examples(command: Command) -> Command {
    let groups: String =
        GROUPS.iter().map(|(title, names)| group(&command, title, names)).collect();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\n\
         Options:\n{{options}}{{after-help}}"
    );
    let command = command.mut_subcommands(|part| {
        let page = format!("evenkeel-{}", part.get_name());
        with_examples(part, &page, examples)
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
}
