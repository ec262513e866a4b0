//! `evenkeel-lab report`: what an owner of a machine can send in, as one archive: what `doctor` finds,
//! the topology, whether the accounting is right here, and `evenkeel compare` on programs that the
//! laboratory brings along. docs/machines/README.md says what becomes of it.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `archive` | the archive, and the machine in one |
//! | `names` | names of this host and its users, which are left out |
//! | `page_text` | what a page says, to be shown on a terminal |

pub mod archive;
mod names;
mod page_text;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evenkeel_bench::programs::{Installed, Program};
use evenkeel_bench::verify::{noises, verify};
use evenkeel_experiment::executable::product;
use evenkeel_experiment::host::usable_cpus;
use evenkeel_experiment::output::Output;
use evenkeel_experiment::{MachineInfo, time_left};
use evenkeel_machine::Machine;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::ReportArgs;
use archive::Archive;
use names::Names;
use page_text::text_of;

/// The version of [`MachineReport`]: raised when a field goes away or changes its meaning.
pub(crate) const FORMAT: u32 = 1;

/// The programs in the order of what they tell, each with its arguments: one to two seconds each. The
/// static loop comes first: its arguments depend on the number of CPUs.
const PROGRAMS: [(Program, &[&str]); 6] = [
    (Program::StaticLoop, &[]),
    (Program::Cg, &["--class", "A", "--repeat", "4"]),
    (Program::Ep, &["--class", "A"]),
    (Program::Mg, &["--class", "A"]),
    (Program::Lu, &["--class", "W"]),
    (Program::Ft, &["--class", "A"]),
];
/// A comparison gets at least so long, or there are fewer.
const LEAST: Duration = Duration::from_secs(60);
/// With less than this, a comparison has one round.
const FOR_ROUNDS: Duration = Duration::from_secs(120);
/// With less than this in all, one kind of noise is verified.
const FOR_ALL_NOISES: Duration = Duration::from_secs(300);
/// How long a comparison that is told to end may take for that.
const PATIENCE: Duration = Duration::from_secs(60);

/// What report.json holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MachineReport {
    /// The version of this document.
    format: u32,
    /// The version of evenkeel.
    version: &'static str,
    /// The processor, the CPUs and the kernel.
    machine: MachineInfo,
    /// What `evenkeel doctor --json` prints, which has a version of its own.
    doctor: Value,
    /// What `evenkeel-lab noise --verify --json` writes, or `why_not`.
    accounting: Value,
    /// For each program what `evenkeel compare --json` writes, or `why_not`.
    programs: Vec<Compared>,
}

/// A program.
#[derive(Debug, Serialize, JsonSchema)]
struct Compared {
    /// Its name.
    program: &'static str,
    /// What `evenkeel compare --json FILE` writes, or `why_not`.
    comparison: Value,
    #[serde(skip)]
    page: Option<String>,
}

/// Makes the report, shows it, and writes it if that is wanted. Returns the exit code.
///
/// # Errors
/// The file cannot be written, the product's executable is missing, or the CPUs cannot be read.
pub fn main(args: &ReportArgs) -> Result<i32> {
    let output = Output::prepare(&args.file)?;
    let until = Instant::now() + Duration::from_secs(60 * args.minutes);
    let product = product()?;
    let machine = Machine::from_sysfs(Path::new("/"))?;
    say(&step("doctor", until));
    let doctor = doctor(&product)?;
    let is_long = until.saturating_duration_since(Instant::now()) >= FOR_ALL_NOISES;
    say(&step("accounting", until));
    let accounting = accounting(is_long);
    let programs = compare_all(&product, until)?;
    let report = MachineReport {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        machine: MachineInfo::read(),
        doctor,
        accounting,
        programs,
    };
    let names = Names::of_this_host();
    let text = names.left_out(&(serde_json::to_string_pretty(&report)? + "\n"));
    let topology = names.left_out(&Machine { name: "host".to_owned(), ..machine }.to_toml());
    let mut archive = Archive::new();
    archive.add("report.json", &text)?;
    archive.add(archive::MACHINE, &topology)?;
    let mut stdout = std::io::stdout();
    write!(stdout, "report.json:\n{text}\n{}:\n{topology}\n", archive::MACHINE)?;
    for compared in &report.programs {
        if let Some(page) = &compared.page {
            let (name, page) = (format!("{}.html", compared.program), names.left_out(page));
            archive.add(&name, &page)?;
            let text = text_of(&page);
            writeln!(stdout, "{name}, its comparison of report.json as a page:\n{text}\n")?;
        }
    }
    if !args.yes && !may_be_written(&args.file)? {
        say("nothing was written");
        return Ok(0);
    }
    output.write_bytes(&archive.finish()?)?;
    writeln!(stdout, "Written to {}", args.file.display())?;
    Ok(0)
}

/// Asks on a terminal. Elsewhere there is no answer to be had, and the file was named on purpose.
fn may_be_written(file: &Path) -> Result<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Ok(true);
    }
    let mut stdout = std::io::stdout();
    write!(stdout, "This is all that will be in {}. Write it? [y/N] ", file.display())?;
    stdout.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn doctor(product: &Path) -> Result<Value> {
    let done = Command::new(product).args(["doctor", "--json"]).output();
    let done = done.with_context(|| format!("cannot start {}", product.display()))?;
    serde_json::from_slice(&done.stdout).with_context(|| {
        format!("evenkeel doctor --json: {}", String::from_utf8_lossy(&done.stderr).trim_end())
    })
}

/// Whether the accounting is right, on the last of this process' CPUs; or why that was not seen.
fn accounting(all_noises: bool) -> Value {
    let kind = if all_noises { "all" } else { "fifo" };
    let verified = || -> Result<Value> {
        let cpu = usable_cpus()?.iter().last().context("this process may use no CPU")?;
        Ok(serde_json::to_value(verify(cpu, &noises(kind, None)?)?)?)
    };
    verified().unwrap_or_else(|why| json!({ "why_not": format!("{why:#}") }))
}

/// How many programs are compared in this time, and for how long each.
fn shares_of(time: Duration) -> (usize, Duration) {
    let count = (time.as_secs() / LEAST.as_secs()).clamp(1, PROGRAMS.len() as u64);
    (count as usize, time / count as u32)
}

fn compare_all(product: &Path, until: Instant) -> Result<Vec<Compared>> {
    let installed = Installed::new()?;
    let (count, _) = shares_of(until.saturating_duration_since(Instant::now()));
    let mut all = Vec::new();
    for (place, (program, arguments)) in PROGRAMS.iter().take(count).enumerate() {
        say(&step(&format!("comparing {}", program.name()), until));
        let left = until.saturating_duration_since(Instant::now());
        let time = left / (count - place) as u32;
        let path = installed.path(*program);
        let mut words = vec![path.clone().into_os_string()];
        words.extend(arguments.iter().map(OsString::from));
        if *program == Program::StaticLoop {
            // A unit is about 1 ms of one core.
            let units = 1_500 * usable_cpus()?.len();
            words.extend(["--work".into(), units.to_string().into()]);
        }
        let (comparison, page) = match compare(product, &words, time) {
            Ok((comparison, page)) => (comparison, Some(page)),
            Err(why) => (json!({ "why_not": format!("{why:#}") }), None),
        };
        // Where this process has put the program is of no use to others.
        let folder = format!("{}/", path.parent().unwrap_or(Path::new("")).display());
        let comparison = serde_json::from_str(&comparison.to_string().replace(&folder, ""))?;
        let page = page.map(|page| page.replace(&folder, ""));
        all.push(Compared { program: program.name(), comparison, page });
    }
    Ok(all)
}

/// Compares a command for about this long. Returns the figures and the page.
fn compare(product: &Path, words: &[OsString], time: Duration) -> Result<(Value, String)> {
    let [json, page] = [tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?];
    let mut command = Command::new(product);
    let budget = format!("{}s", time.as_secs().max(1));
    command.args(["compare", "--budget", &budget, "--run-limit", &budget]);
    if time < FOR_ROUNDS {
        command.args(["--rounds", "1"]);
    }
    command.arg("--json").arg(json.path()).arg("--html").arg(page.path()).arg("--").args(words);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let until = Instant::now() + time + PATIENCE / 2;
    let mut is_told = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let now = Instant::now();
        if now >= until + PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("it did not end in {} s", (time + PATIENCE * 3 / 2).as_secs());
        }
        if now >= until && !is_told {
            // It then says what it has found so far.
            is_told = true;
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = std::fs::read_to_string(json.path())?;
    ensure!(!text.is_empty(), "evenkeel compare ended with {status}");
    Ok((serde_json::from_str(&text)?, std::fs::read_to_string(page.path())?))
}

/// What is done now, and how long all takes yet. What a step shows by itself is about that step.
fn step(now: &str, until: Instant) -> String {
    let left = until.saturating_duration_since(Instant::now());
    format!("{now} ... (about {} left in all)", time_left::words(left))
}

/// Says on standard error what is done.
fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "evenkeel-lab: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_said_with_the_time_that_is_left() {
        let said = step("accounting", Instant::now() + Duration::from_secs(899));
        assert_eq!(said, "accounting ... (about 15 min left in all)");
    }

    #[test]
    fn the_time_is_shared_by_as_many_programs_as_it_allows() {
        let shares = |seconds| shares_of(Duration::from_secs(seconds));
        assert_eq!(shares(0).0, 1);
        assert_eq!(shares(50), (1, Duration::from_secs(50)));
        assert_eq!(shares(200), (3, Duration::from_secs(200) / 3));
        assert_eq!(shares(840), (6, Duration::from_secs(140)));
        assert!(shares(840).1 >= FOR_ROUNDS, "a quarter of an hour allows rounds");
    }
}
