//! Man pages, and what shells offer on Tab, from the definition of the command line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::cli::{Example, GenerateArgs, Generated, OTHER_NAMES, examples};
use crate::config::page;
use crate::exit::CODES;

/// What the man pages of an executable say beside the definition of its command line.
#[derive(Clone, Copy)]
pub struct Sections {
    /// The examples of a command, by the name of its page.
    pub examples: fn(&str) -> &'static [Example],
    /// The exit codes, each with what it means.
    pub codes: &'static [(&'static str, &'static str)],
    /// The files that a user may meet, each with what it holds.
    pub files: &'static [(&'static str, &'static str)],
}

/// Those of the product.
pub const SECTIONS: Sections = Sections { examples, codes: &CODES, files: &FILES };

/// The files that a user may meet, each with what it holds.
const FILES: [(&str, &str); 5] = [
    (
        "/etc/evenkeel/config.toml",
        "Options of the system, in tables named for the command; evenkeel.toml(5).",
    ),
    ("$XDG_CONFIG_HOME/evenkeel/config.toml", "The user's, which win over those of the system."),
    ("/run/evenkeel", "Root's journals, status files and control sockets."),
    ("$XDG_RUNTIME_DIR/evenkeel", "Those of a user; without that directory, /tmp/evenkeel-UID."),
    ("jobs in these", "What was measured of jobs of Slurm on this node; evenkeel-cluster(1)."),
];

/// The environment variable by which a shell asks the executable what to offer on Tab.
const COMPLETE: &str = "EVENKEEL_COMPLETE";

/// The files by which shells know that, `*` for the name of the executable.
const COMPLETIONS: [(&str, &dyn EnvCompleter); 3] =
    [("*.bash", &Bash), ("_*", &Zsh), ("*.fish", &Fish)];

/// Answers a shell that asks what to offer, and ends the process; returns where none asks.
pub fn complete(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(COMPLETE).complete();
}

/// Writes the man pages or the completions of a command line into a directory, which is created.
///
/// # Errors
/// A file cannot be written. Schemas are wanted, which the laboratory writes.
pub fn main(command: Command, sections: Sections, args: &GenerateArgs) -> Result<i32> {
    let directory = &args.directory;
    let create =
        || fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()));
    match args.what {
        Generated::Schemas => bail!(
            "schemas are written by: evenkeel-lab generate schemas {}; those of this version are \
             installed in share/doc/evenkeel/docs/schemas",
            directory.display()
        ),
        Generated::Man => {
            create()?;
            write_pages(command, sections, directory)?;
        }
        Generated::Completions => {
            create()?;
            for (file, shell) in COMPLETIONS {
                let name = command.get_name();
                let mut script = Vec::new();
                shell.write_registration(COMPLETE, name, name, name, &mut script)?;
                write(directory, &file.replace('*', name), &script)?;
            }
        }
    }
    Ok(0)
}

fn write_pages(command: Command, sections: Sections, directory: &Path) -> Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut names = names(&command);
    names.sort();
    write_page(&command, &names, sections, directory)?;
    if command.get_name() == "evenkeel" {
        for (name, words) in OTHER_NAMES {
            let target = format!(".so man1/evenkeel-{}.1\n", words.join("-"));
            write(directory, &format!("{name}.1"), target.as_bytes())?;
        }
        write(directory, &format!("{}.5", page::NAME), &page::page())?;
    }
    Ok(())
}

/// The names of all pages.
fn names(command: &Command) -> Vec<String> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let own = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    [own].into_iter().chain(visible.flat_map(names)).collect()
}

/// Writes the page of a command and those of its parts.
fn write_page(
    command: &Command,
    names: &[String],
    sections: Sections,
    directory: &Path,
) -> Result<()> {
    for part in command.get_subcommands().filter(|part| !part.is_hide_set()) {
        write_page(part, names, sections, directory)?;
    }
    // The synopsis is the line of `--help`: of itself, clap_mangen names each option without its value,
    // and leaves out `--` and the dots.
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    let command = command.override_usage(usage);
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.get_subcommands().any(|part| !part.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let of_examples = (sections.examples)(name).iter();
    let of_examples = of_examples.map(|(what, line)| (*line, what.trim_end_matches(':')));
    section("EXAMPLES", of_examples).to_writer(&mut text)?;
    section("EXIT STATUS", sections.codes.iter().copied()).to_writer(&mut text)?;
    section("FILES", sections.files.iter().copied()).to_writer(&mut text)?;
    let mut others = Roff::new();
    others.control("SH", ["SEE ALSO"]);
    let see: Vec<_> = names.iter().filter(|other| is_near(name, other)).collect();
    for (index, other) in see.iter().enumerate() {
        let end = if index + 1 < see.len() { "(1), " } else { "(1)" };
        others.text([bold(other.as_str()), roman(end)]);
    }
    others.to_writer(&mut text)?;
    write(directory, &page.get_filename(), &text)
}

/// Whether the page of `name` refers to that of `other`: to those below it and beside it, and to the one
/// above it.
fn is_near(name: &str, other: &str) -> bool {
    fn parent(name: &str) -> &str {
        name.rsplit_once('-').map_or("", |(above, _)| above)
    }
    name != other
        && (parent(other) == name || parent(name) == other || parent(other) == parent(name))
}

/// A section of terms, each with its text. Without any, it is left out.
fn section<'a>(title: &str, terms: impl Iterator<Item = (&'a str, &'a str)>) -> Roff {
    let mut roff = Roff::new();
    for (index, (term, text)) in terms.enumerate() {
        if index == 0 {
            roff.control("SH", [title]);
        }
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(text)]);
    }
    roff
}

fn write(directory: &Path, name: &str, text: &[u8]) -> Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn each_page_has_its_sections_and_the_papers_names_lead_to_one() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(command(), SECTIONS, dir.path()).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let page = read("evenkeel-run.1");
        let titles = ["EXAMPLES", "EXIT STATUS", "FILES", "SEE ALSO"];
        let places =
            titles.map(|title| page.find(&format!(".SH \"{title}\"")).or(page.find(title)));
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{page}");
        // A part of a command has its own.
        let of_part = read("evenkeel-irq-plan.1");
        assert!(titles.iter().all(|title| of_part.contains(title)), "{of_part}");
        assert!(page.contains("evenkeel\\-compare") && !page.contains("evenkeel\\-irq\\-plan"));
        assert!(!dir.path().join("evenkeel-supervise.1").exists());
        for (name, _) in OTHER_NAMES {
            let target = read(&format!("{name}.1"));
            let target = target.trim_end().strip_prefix(".so man1/").unwrap();
            assert!(dir.path().join(target).exists(), "{target}");
        }
        let synopsis = "\\fBevenkeel run\\fR [OPTIONS] \\-\\- <CMD>...\n";
        assert!(page.contains(synopsis), "{page}");
    }

    /// Texts of the pages are comments in our sources, but their readers know no Rust.
    #[test]
    fn no_page_has_words_of_rust() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(command(), SECTIONS, dir.path()).unwrap();
        for entry in fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            let page = fs::read_to_string(&path).unwrap();
            for line in page.lines() {
                assert_eq!(word_of_rust(line), None, "{path:?}: {line}");
            }
        }
        assert_eq!(word_of_rust("in these networks (all: 0.0.0.0/0,::/0); none: all"), None);
        assert_eq!(word_of_rust("as crate::grouped takes them"), Some("::"));
        assert_eq!(word_of_rust("None: it moves none"), Some("None"));
    }

    /// A path of Rust, or a value of it.
    fn word_of_rust(line: &str) -> Option<&'static str> {
        // Without a name before it, `::` is an address of IPv6.
        let is_path = |(at, _): (usize, &str)| line[..at].ends_with(char::is_alphanumeric);
        if line.match_indices("::").any(is_path) {
            return Some("::");
        }
        let mut words = line.split(|c: char| !c.is_alphanumeric());
        words.any(|word| word == "None").then_some("None")
    }
}
