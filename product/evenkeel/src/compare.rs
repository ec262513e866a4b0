//! `evenkeel compare`: runs the user's own program under the kernel alone and under every other
//! contestant that applies, in turn, and says which command line to use from now on. It changes
//! nothing that outlives it.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `contestant` | the ways to run a program, and where each applies |
//! | `runtime` | which families of runtimes the program has |
//! | `turns` | one run of the program |
//! | `printed` | whether the program prints the same under all contestants |
//! | `result` | the rows, the sentence for the user, JSON |
//! | `page` | the same as a page for a browser |

mod contestant;
mod page;
mod printed;
mod result;
mod runtime;
mod turns;

use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_trial::{Case, Plan, interrupt, run};

use crate::cli::CompareArgs;
use crate::config;
use crate::config::usable::check_run;
use crate::exit::UNSUCCESSFUL;
use crate::report_file::{ReportFile, is_standard_output};
use crate::terminal::width;
use contestant::Contestant;
pub use result::{Comparison, FORMAT};
use turns::{TIME, Turns};

/// Compares, and prints the table. `file` is the configuration file of the runs under evenkeel, in place
/// of the default ones. Returns 0; 1 where evenkeel itself failed in a run, and nothing is shown to be
/// faster; or 128 + n where signal n ended it early: then the table has what was measured until then.
///
/// # Errors
/// A contestant has a wrong name, the configuration is wrong or can be read only once, the program
/// cannot be run by the kernel alone, or the result cannot be written, also because both of its forms
/// have one file.
pub fn main(args: &CompareArgs, file: Option<&Path>) -> Result<i32> {
    let contestants = chosen(&args.contestants)?;
    let is_pipe = |path: &&Path| path.metadata().is_ok_and(|file| file.file_type().is_fifo());
    if let Some(path) = file.filter(is_pipe) {
        bail!(
            "--config {}: it is a pipe, and each run under evenkeel reads the configuration anew: give \
             a regular file",
            path.display()
        );
    }
    // Each run under evenkeel would end by what is wrong in it.
    check_run(&config::load(file)?).with_context(|| {
        let default = "configuration (evenkeel config check names the file)".to_owned();
        file.map_or(default, |path| path.display().to_string())
    })?;
    let open = |option, path: &Option<PathBuf>| {
        path.as_deref().map(|path| ReportFile::open(option, path)).transpose()
    };
    let (json, html) = (open("--json", &args.json)?, open("--html", &args.html)?);
    if let Some((json, html)) = json.as_ref().zip(html.as_ref()) {
        json.must_differ(html)?;
    }
    let plan = plan(args);
    let case = Case {
        program: args.command[0].to_string_lossy().into_owned(),
        contestants: contestants.iter().map(|one| one.name.to_owned()).collect(),
        has_second_baseline: true,
        ..Case::default()
    };
    let mut turns = Turns::new(&args.command, file, &contestants, args.run_limit.into())?;
    let records = {
        let _watch = interrupt::watch();
        run(&[case], &[turns::time()], &plan, &mut turns)?
    };
    turns.finish();
    let record = records.first().context("nothing was run")?;
    if record.line(contestant::KERNEL).is_none_or(|line| line.estimate(TIME).is_none()) {
        if interrupt::asked().is_some() {
            return Ok(interrupt::exit_code());
        }
        let why = record.lines.first().and_then(|line| line.failed.as_deref());
        bail!(
            "the program gave no time under the kernel alone, so there is nothing to compare: {}",
            why.unwrap_or("no run ended")
        );
    }
    let result = Comparison::new(args, record, &plan, &turns);
    let mut text = result.text(width());
    text.push('\n');
    let to_stdout = |path: &Option<PathBuf>| path.as_deref().is_some_and(is_standard_output);
    if to_stdout(&args.json) || to_stdout(&args.html) {
        // Standard output has the report, and nothing else.
        std::io::stderr().write_all(text.as_bytes()).context("cannot write to standard error")?;
    } else {
        std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    }
    if let Some(file) = json {
        file.write(&[&serde_json::to_vec_pretty(&result)?[..], b"\n"].concat())?;
    }
    if let Some(file) = html {
        file.write(page::page(&result, &page::MachineNow::read()).as_bytes())?;
    }
    let was_in_vain = interrupt::asked().is_none() && !result.has_verdict();
    Ok(if was_in_vain { UNSUCCESSFUL } else { interrupt::exit_code() })
}

/// The kernel alone, and the contestants of these names; without names all.
fn chosen(names: &[String]) -> Result<Vec<Contestant>> {
    let known = || Contestant::all().into_iter().filter(|one| one.name != contestant::KERNEL);
    for name in names {
        if !known().any(|one| one.name == name) {
            let known: Vec<_> = known().map(|one| one.name).collect();
            bail!("there is no contestant {name:?}: give some of {}", known.join(", "));
        }
    }
    let is_chosen =
        |one: &Contestant| names.is_empty() || names.iter().any(|name| name == one.name);
    let kernel = Contestant::all().into_iter().filter(|one| one.name == contestant::KERNEL);
    Ok(kernel.chain(known().filter(is_chosen)).collect())
}

/// Foreign load is part of the user's machine, and often the very thing that is to be balanced: no run
/// is repeated because of it. The pairing by rounds levels it out, and the user is told of it.
fn plan(args: &CompareArgs) -> Plan {
    let plan = match args.rounds {
        Some(rounds) => Plan::fixed(usize::from(rounds)),
        None => Plan::default(),
    };
    Plan { max_repeats: 0, budget: Duration::from(args.budget), ..plan }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::PLAIN_CONTESTANTS;

    #[test]
    fn the_kernel_alone_always_comes_first() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names).map(|chosen| chosen.iter().map(|one| one.name).collect::<Vec<_>>())
        };
        let all = ["default", "pinned", "run", "run --shares", "run --threads 4"];
        assert_eq!(names(&[]).unwrap(), all);
        assert_eq!(names(&["run"]).unwrap(), ["default", "run"]);
        let error = names(&["ran"]).unwrap_err().to_string();
        let rest = all[1..].join(", ");
        assert_eq!(error, format!("there is no contestant \"ran\": give some of {rest}"));
        // What the shell offers: all but those with several words.
        let plain: Vec<&str> =
            all[1..].iter().copied().filter(|name| !name.contains(' ')).collect();
        assert_eq!(plain, PLAIN_CONTESTANTS);
    }
}
