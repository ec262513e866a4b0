//! `evenkeel bugreport`: what a maintainer asks for first, as text that can be pasted into an issue.
//! Names of users, of this host and of programs that run are left out; it changes nothing.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_host::ProgramStatus;
use evenkeel_journal::runtime_dir;
use nix::sys::utsname::uname;
use serde_json::json;

use crate::cli::BugreportArgs;
use crate::report_file::ReportFile;
use crate::version::COMMIT;
use crate::{config, doctor, keel_client, status};

/// Directories whose paths have the user's name, the inner ones first.
const HOMES: [&str; 3] = ["XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "HOME"];

/// How long the CPUs are watched.
const WATCHED: Duration = Duration::from_secs(1);

/// Prints the report, or writes it to a file.
///
/// # Errors
/// The file or standard output cannot be written. What cannot be found out is part of the report.
pub fn main(args: &BugreportArgs, config: Option<&Path>) -> Result<i32> {
    let file = args.file.as_deref().map(|path| ReportFile::open("bugreport", path)).transpose()?;
    let text = report(config);
    match file {
        Some(file) => file.write(text.as_bytes())?,
        None => std::io::stdout()
            .write_all(text.as_bytes())
            .context("cannot write to standard output")?,
    }
    Ok(0)
}

fn report(config: Option<&Path>) -> String {
    let parts = [
        ("Versions", versions()),
        ("evenkeel doctor", doctor::text(WATCHED)),
        ("evenkeel config show", or_why(config::report::shown(config))),
        ("Running", running()),
        ("Files of this user's evenkeel", files()),
    ];
    let mut text = String::from(
        "Names of users, of the host and of running programs are left out; the configuration is whole. \
         Read it before you send it.\n",
    );
    for (title, content) in parts {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {title}\n\n```\n{}\n```\n", content.trim_end());
    }
    HOMES.iter().fold(text, |text, name| match std::env::var(name) {
        Ok(home) if home.len() > 1 => text.replace(&home, &format!("${name}")),
        _ => text,
    })
}

fn versions() -> String {
    let kernel = uname().map(|names| {
        let [release, machine] =
            [names.release(), names.machine()].map(|name| name.to_string_lossy());
        format!("{release} {machine}")
    });
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    // SAFETY: geteuid takes nothing and cannot fail.
    let user = if unsafe { libc::geteuid() } == 0 { "root" } else { "not root" };
    format!(
        "evenkeel {}, commit {COMMIT}\nLinux {}\n{}\nas {user}\n",
        env!("CARGO_PKG_VERSION"),
        kernel.unwrap_or_else(|why| format!("unknown: {why}")),
        os.unwrap_or("unknown distribution").trim_matches('"'),
    )
}

/// The keel, and each balanced program without its name.
fn running() -> String {
    let keel = match keel_client::status_line() {
        // Below its first line are users.
        Ok(Some(lines)) => lines.lines().next().unwrap_or_default().to_owned(),
        Ok(None) => "The keel does not run.".to_owned(),
        Err(why) => format!("{why:#}"),
    };
    let programs = match status::read_all() {
        Ok(programs) if programs.is_empty() => "No program is balanced.\n".to_owned(),
        Ok(programs) => programs.iter().map(line).collect(),
        Err(why) => format!("{why:#}\n"),
    };
    format!("{keel}\n{programs}")
}

fn line(program: &ProgramStatus) -> String {
    let ProgramStatus { accounting, placement, dry_run, resting, moves, intervals, gain, .. } =
        program;
    // As `status --json` has them.
    let [accounting, placement] = [json!(accounting), json!(placement)]
        .map(|word| word.as_str().unwrap_or_default().to_owned());
    format!(
        "A program: accounting {accounting}, placement {placement}, dry_run {dry_run}, resting \
         {resting}, {moves} moves in {intervals} intervals, {gain}\n"
    )
}

/// The names of files alone: what runs, and what a killed process left.
fn files() -> String {
    let directory = match runtime_dir() {
        Ok(directory) => directory,
        Err(why) => return why.to_string(),
    };
    let names = |path: &Path| -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let mut all = names(&directory);
    all.extend(names(&directory.join("journal")).into_iter().map(|name| format!("journal/{name}")));
    all.sort();
    if all.is_empty() { "none".to_owned() } else { all.join("\n") }
}

fn or_why(text: Result<String>) -> String {
    text.unwrap_or_else(|why| format!("{why:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_in_the_words_of_status() {
        let task = json!({"tid": 8, "tgid": 8, "start": 5});
        let program = serde_json::from_value(json!({
            "balancer": task, "program": 3, "root": 7, "command": ["app"], "accounting": "cbinfo",
            "placement": "soft", "dry_run": false, "intervals": 3, "moves": 1, "cpus": [],
            "decisions": [],
        }));
        let line = line(&program.unwrap());
        let expected =
            "A program: accounting cbinfo, placement soft, dry_run false, resting false, ";
        assert!(line.starts_with(expected) && !line.contains("app"), "{line}");
    }
}
