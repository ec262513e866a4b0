//! `evenkeel top`: one screen of what is observed.

use clap::Args;

use super::shared::Interval;

/// `evenkeel top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print once, as plain text, what one interval showed, and end; also where standard output is no
    /// terminal.
    #[arg(long)]
    pub once: bool,
    /// Print the same once as JSON.
    #[arg(long)]
    pub json: bool,
    /// Time between two readings, 100ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = reading_time)]
    pub interval: Interval,
}

pub(super) fn reading_time(text: &str) -> Result<Interval, String> {
    match text.parse() {
        Ok(Interval { ns: ..100_000_000 }) => Err("out of range: give 100ms to 60s".to_owned()),
        parsed => parsed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_the_key_that_changes_what_is_done_to_a_program_and_its_command() {
        let mut command = crate::cli::command();
        let mut help = |name: &str| {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            help.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for (name, parts) in [
            ("top", &["The key l has the chosen program", "as evenkeel watch does"][..]),
            ("watch", &["Does what the key l of evenkeel top does", "evenkeel leave takes it out"]),
            ("leave", &["as the key l of evenkeel top does: evenkeel watch"]),
        ] {
            let help = help(name);
            assert!(parts.iter().all(|part| help.contains(part)), "{name}: {help}");
        }
    }

    #[test]
    fn readings_are_not_so_frequent_that_they_cost() {
        assert_eq!(reading_time("100ms").map(|interval| interval.ns), Ok(100_000_000));
        assert!(reading_time("99ms").is_err_and(|why| why.contains("100ms to 60s")));
        assert!(reading_time("61s").is_err() && reading_time("soon").is_err());
    }
}
