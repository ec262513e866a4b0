//! `evenkeel status`: which services run, and the programs that are balanced.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Result;
use evenkeel_capability::Reason;
use evenkeel_control::Request;
use evenkeel_host::{
    Accounting, DecisionInWords, Placement, ProgramStatus, Proven, Waits, read_status_files,
};
use evenkeel_journal::{Standing, runtime_dir};
use nix::unistd::{Uid, User};
use ratatui::crossterm::terminal::size;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::StatusArgs;
use crate::terminal::{can_draw, clean, width};
use crate::wrap::broken;
use crate::{daemon_client, decision_text, irq, keel_client, sais};

/// How long a daemon may take for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// ... where only that is asked: a probe of a container's health waits for 5 s.
const PATIENCE_OF_PROBES: Duration = Duration::from_secs(4);

/// The version of [`Programs`].
pub const FORMAT: u32 = 3;

/// What `status --json` and `explain --json` print.
#[derive(Serialize, JsonSchema)]
pub struct Programs {
    /// The version of this document.
    format: u32,
    /// The programs that are balanced.
    programs: Vec<ProgramStatus<DecisionInWords>>,
    /// The programs of daemons that ended or left last, in this order.
    ended: Vec<ProgramStatus<DecisionInWords>>,
}

impl Programs {
    /// Programs that are balanced and programs that have ended, in words.
    pub fn of(programs: &[ProgramStatus], ended: &[ProgramStatus]) -> Self {
        let in_words =
            |programs: &[ProgramStatus]| programs.iter().map(ProgramStatus::in_words).collect();
        Self { format: FORMAT, programs: in_words(programs), ended: in_words(ended) }
    }
}

/// Prints the keel that runs, the daemon, where packets are steered, what `irq once` left moved, and
/// each balanced program; with `--watch` again and again, until a signal ends this process. With
/// `--daemon` it only asks whether that answers.
///
/// # Errors
/// The status files cannot be read, the output cannot be written to, or the daemon does not answer.
pub fn main(args: &StatusArgs) -> Result<i32> {
    if args.daemon {
        // The loop that balances answers this, and the answer is short.
        daemon_client::ask_daemon_within(&Request::new("quotas"), PATIENCE_OF_PROBES)?;
        io::stdout().write_all(b"The daemon answers.\n")?;
        return Ok(0);
    }
    if args.json {
        let programs = Programs::of(&read_all()?, &daemon_client::read_ended());
        println!("{}", serde_json::to_string_pretty(&programs)?);
        return Ok(0);
    }
    let Some(every) = args.watch else {
        io::stdout().write_all(broken(&text()?, width()).as_bytes())?;
        return Ok(0);
    };
    loop {
        let text = text()?;
        let drawn = match size().ok().filter(|_| can_draw()) {
            Some(size) => redrawn(&text, size),
            None => text + "\n",
        };
        let mut stdout = io::stdout();
        stdout.write_all(drawn.as_bytes())?;
        stdout.flush()?;
        std::thread::sleep(Duration::from_nanos(every.ns));
    }
}

/// What draws the text over that of before, on a terminal with so many columns and lines: what does not
/// fit is left out.
fn redrawn(text: &str, (columns, lines): (u16, u16)) -> String {
    let mut drawn = "\x1b[H".to_owned();
    // The last line is for the cursor.
    for line in text.lines().take(usize::from(lines).saturating_sub(1)) {
        drawn.extend(line.chars().take(columns.into()));
        drawn += "\x1b[K\n";
    }
    drawn + "\x1b[J"
}

fn text() -> Result<String> {
    let programs = read_all()?;
    let mut lines: Vec<String> = keel_client::status_line()?.into_iter().collect();
    lines.extend(daemon_client::status_lines());
    lines.extend(sais::status_lines());
    lines.extend(irq::standing_lines(&Standing::read(&runtime_dir()?)));
    if programs.is_empty() {
        let nothing = nothing_runs(Uid::effective().is_root());
        lines.push(format!("{nothing}. Start one with: evenkeel run -- CMD"));
    }
    for program in &programs {
        lines.push(headline(program));
        for cpu in &program.cpus {
            let left = cpu.capability() * 100.0;
            lines.push(format!("    CPU {:<4} {left:>5.1} % left for the program", cpu.cpu));
        }
        if program.accounting != Accounting::None {
            lines.push(format!("    {}", waits(program.accounting, &program.waits)));
        }
        if let Some(decision) = program.decisions.last() {
            lines.push(format!("    last: {}", decision_text::summarise(decision)));
        }
    }
    lines.extend(ended_lines(&daemon_client::read_ended()));
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

/// That no program is listed, and which would not be.
pub fn nothing_runs(is_root: bool) -> &'static str {
    if is_root {
        "No program runs under evenkeel as root or at the daemon (what other users run without the \
         daemon is not shown)"
    } else {
        "No program of yours runs under evenkeel (those of other users are not shown)"
    }
}

/// A line for each program that has ended, below what they are.
pub fn ended_lines(ended: &[ProgramStatus]) -> Vec<String> {
    if ended.is_empty() {
        return Vec::new();
    }
    let title = "Ended or left lately (evenkeel explain PID tells the last decisions):";
    let line = |program: &ProgramStatus| format!("    {}", headline(program));
    [title.to_owned()].into_iter().chain(ended.iter().map(line)).collect()
}

/// The status of every balanced program of this user: those with a balancer of their own, and those of
/// daemons.
///
/// # Errors
/// The status files cannot be read.
pub fn read_all() -> Result<Vec<ProgramStatus>> {
    read_all_within(PATIENCE)
}

/// The same; a daemon may take so long for its answer.
///
/// # Errors
/// The status files cannot be read.
pub fn read_all_within(patience: Duration) -> Result<Vec<ProgramStatus>> {
    let mut programs = read_status_files(&runtime_dir()?)?;
    programs.extend(daemon_client::read_status_within(patience));
    Ok(programs)
}

/// How a program waits, or why that is not seen with these figures.
pub fn waits(accounting: Accounting, waits: &Waits) -> String {
    match accounting {
        Accounting::Cbinfo => waits.to_string(),
        Accounting::Daemon => {
            "spinning not seen: the daemon looks for it only in programs that it \
                               balances itself (evenkeel run --join)"
                .to_owned()
        }
        Accounting::None => "spinning not seen: nothing is observed yet".to_owned(),
        Accounting::Procfs => "spinning not seen: without cbinfo it looks like work".to_owned(),
    }
}

/// One line about a program.
pub fn headline(program: &ProgramStatus) -> String {
    let placement = match (program.dry_run, program.placement) {
        (true, _) => "only observed",
        (false, Placement::Soft) => "soft placement",
        (false, Placement::Hard) => "hard placement",
    };
    let balancer = if program.program.is_some() { "daemon" } else { "balancer" };
    // Any user may name a program so that a terminal does what the name says.
    let command = clean(&program.command.join(" "));
    let mut heading =
        format!("{command} (pid {}, {balancer} {}", program.root, program.balancer.tid);
    // Writing to a String cannot fail.
    if let Some(user) = program.user {
        let _ = write!(heading, ", user {}", user_name(user));
    }
    if let Some(elapsed_ns) = program.elapsed_ns() {
        let elapsed = Duration::from_secs(elapsed_ns / 1_000_000_000);
        let _ = write!(heading, ", for {}", humantime::format_duration(elapsed));
    }
    if let Some(ago_ns) = program.ended_ago_ns() {
        let ago = Duration::from_secs(ago_ns / 1_000_000_000);
        let _ = write!(heading, ", balanced until {} ago", humantime::format_duration(ago));
    }
    heading.push(')');
    if program.accounting == Accounting::None {
        return format!("{heading}: {}", why_unobserved(program));
    }
    let gain = match program.gain.proven {
        Proven::Nothing => String::new(),
        _ => format!(", {}", program.gain),
    };
    let shares = program.shares.as_ref().map_or_else(String::new, |shares| format!(", {shares}"));
    let resting =
        if program.resting { "; nothing is loaded for a while, as it gains nothing" } else { "" };
    let (moves, intervals) = (count(program.moves, "move"), count(program.intervals, "interval"));
    let let_go = match program.yielded {
        0 => String::new(),
        tasks => format!(", {} let go (another process set the CPUs)", count(tasks, "task")),
    };
    format!("{heading}: {placement}, {moves} in {intervals}{let_go}{gain}{shares}{resting}")
}

/// Why nothing is loaded beside a program.
pub fn why_unobserved(program: &ProgramStatus) -> String {
    match program.waits.phase_ns().filter(|_| program.resting) {
        Some(phase_ns) => format!(
            "{}, so nothing is loaded for a while, and nothing is moved",
            Reason::PhasesTooShort { phase_ns }
        ),
        None => "the CPUs look alike, so nothing is loaded and nothing is moved".to_owned(),
    }
}

/// "1 move", "2 moves".
fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The name of a user, or its number.
fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| clean(&user.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_program_has_its_user_and_its_time_and_a_name_that_does_no_harm() {
        let task = serde_json::json!({"tid": 8, "tgid": 8, "start": 5});
        let mut status: ProgramStatus = serde_json::from_value(serde_json::json!({
            "balancer": task, "program": null, "root": 7, "command": ["a\x1b[2J", "-n", "4"],
            "accounting": "cbinfo", "placement": "soft", "dry_run": false, "intervals": 1,
            "moves": 0, "cpus": [], "decisions": [], "user": 0,
        }))
        .unwrap();
        let line = headline(&status);
        assert!(line.starts_with("a?[2J -n 4 (pid 7, balancer 8, user root): soft"), "{line}");
        status.user = Some(4_000_000_000);
        status.started_ns = Some(0);
        let line = headline(&status);
        assert!(line.contains(", user 4000000000, for ") && line.contains("): soft"), "{line}");
        assert!(line.ends_with("soft placement, 0 moves in 1 interval"), "{line}");
        (status.moves, status.intervals) = (1, 3);
        let line = headline(&status);
        assert!(line.ends_with("soft placement, 1 move in 3 intervals"), "{line}");
        status.yielded = 2;
        let line = headline(&status);
        assert!(line.ends_with(", 2 tasks let go (another process set the CPUs)"), "{line}");
        let words = status.in_words();
        assert!(words.elapsed_ns > Some(0), "{words:?}");
    }

    #[test]
    fn a_program_that_ended_or_left_says_how_long_it_ran_and_until_when_it_was_balanced() {
        let task = serde_json::json!({"tid": 8, "tgid": 8, "start": 5});
        let status: ProgramStatus = serde_json::from_value(serde_json::json!({
            "balancer": task, "program": 3, "root": 7, "command": ["app"], "accounting": "cbinfo",
            "placement": "soft", "dry_run": false, "intervals": 3, "moves": 1, "cpus": [],
            "decisions": [], "started_ns": 0, "ended_ns": 5_000_000_000u64,
        }))
        .unwrap();
        assert_eq!(status.elapsed_ns(), Some(5_000_000_000));
        let lines = ended_lines(&[status]);
        let [title, line] = &lines[..] else { panic!("two lines: {lines:?}") };
        assert!(title.contains("evenkeel explain PID"), "{title}");
        let beginning = "    app (pid 7, daemon 8, for 5s, balanced until ";
        assert!(line.starts_with(beginning) && line.contains(" ago): soft placement, "), "{line}");
        assert!(ended_lines(&[]).is_empty());
    }

    #[test]
    fn it_is_not_said_that_nothing_runs_where_another_user_may_run_a_program() {
        assert!(
            nothing_runs(false)
                .ends_with("yours runs under evenkeel (those of other users are not shown)")
        );
        let said = nothing_runs(true);
        assert!(said.contains("as root or at the daemon (what other users run without"), "{said}");
    }

    #[test]
    fn what_does_not_fit_is_not_drawn() {
        let drawn = redrawn("one\ntwo and more\nthree\n", (7, 3));
        assert_eq!(drawn, "\x1b[Hone\x1b[K\ntwo and\x1b[K\n\x1b[J");
    }

    #[test]
    fn each_source_says_why_spinning_is_not_seen() {
        let text = |accounting| waits(accounting, &Waits::default());
        assert!(text(Accounting::Cbinfo).starts_with("spinning not looked for"));
        assert!(text(Accounting::Daemon).contains("run --join"));
        assert!(text(Accounting::Procfs).contains("without cbinfo"));
    }
}
