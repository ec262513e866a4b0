//! The terminal, for both executables: logging, errors and exit codes, broken pipes.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use evenkeel_host::daemon::SERVICE_LOG;
use ratatui::crossterm::terminal::size;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use crate::exit::{IMPOSSIBLE, Impossible, REFUSED};

/// Logs to standard error at a level of the number of `-v`. `EVENKEEL_LOG` overrides it: a level
/// (`debug`), or levels of crates and modules (`info,evenkeel_host=trace`).
pub fn start_logging(verbose: u8) {
    let by_number = by_number(verbose);
    let wanted = std::env::var("EVENKEEL_LOG").ok().filter(|wanted| !wanted.is_empty());
    let levels = wanted.as_deref().map(str::parse::<Targets>).transpose();
    let is_journal = is_journal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(ToLog { is_journal })
        .with_target(false)
        // The journal has the level by itself.
        .with_level(!is_journal)
        .with_ansi(!is_journal && io::stderr().is_terminal())
        // With a broken standard error, the logger would report that there, and panic.
        .log_internal_errors(false)
        .without_time();
    let filter = levels.as_ref().ok().cloned().flatten();
    let filter = filter.unwrap_or(by_number);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    if let Err(error) = levels {
        tracing::warn!(
            "EVENKEEL_LOG={:?}: {error}; give a level (error, warn, info, debug, trace), or levels of \
             modules: info,evenkeel_host=trace",
            wanted.unwrap_or_default()
        );
    }
}

/// Where the keel says that it schedules.
const KEEL_LOG: &str = "evenkeel_keel::service";

/// What is logged with so many `-v`. What services say of themselves is logged without any, too.
fn by_number(verbose: u8) -> Targets {
    match verbose {
        0 => Targets::new()
            .with_default(LevelFilter::WARN)
            .with_target(SERVICE_LOG, LevelFilter::INFO)
            .with_target(KEEL_LOG, LevelFilter::INFO),
        1 => Targets::new().with_default(LevelFilter::INFO),
        2 => Targets::new().with_default(LevelFilter::DEBUG),
        _ => Targets::new().with_default(LevelFilter::TRACE),
    }
}

/// Whether standard error is a stream to systemd's journal, which takes a level from the begin of each
/// line: sd-daemon(3), and JOURNAL_STREAM in systemd.exec(5).
fn is_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let numbers = stream.split_once(':').and_then(|(device, inode)| {
        Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?))
    });
    // A process that was started by a service may have the variable and another stream.
    let here = nix::sys::stat::fstat(io::stderr()).map(|file| (file.st_dev, file.st_ino));
    here.ok().is_some_and(|here| Some(here) == numbers)
}

/// The level of an event as syslog(3) numbers it, in front of a line.
fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Where log lines go, by their level.
struct ToLog {
    is_journal: bool,
}

impl<'a> MakeWriter<'a> for ToLog {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        Log { prefix: "" }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Log {
        Log { prefix: if self.is_journal { prefix(*event.level()) } else { "" } }
    }
}

/// The most lines that are held back: the last ones.
const MAX_HELD: usize = 50;

/// What was logged while a screen is drawn on the terminal; none: it is written at once.
static HELD: Mutex<Option<VecDeque<String>>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<VecDeque<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the lines of an event go.
struct Log {
    /// What each of them begins with.
    prefix: &'static str,
}

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut held = held();
        let Some(lines) = &mut *held else {
            if self.prefix.is_empty() {
                return io::stderr().write(text);
            }
            let lines = text.split_inclusive(|byte| *byte == b'\n');
            let lines = lines.flat_map(|line| [self.prefix.as_bytes(), line]);
            // In one piece: other threads write there, too.
            io::stderr().write_all(&lines.collect::<Vec<_>>().concat())?;
            return Ok(text.len());
        };
        for line in String::from_utf8_lossy(text).lines() {
            // A service that does not answer is asked again and again.
            if !lines.iter().any(|known| known == line) {
                lines.push_back(line.to_owned());
            }
        }
        while lines.len() > MAX_HELD {
            lines.pop_front();
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The log, held back. When this is dropped, its lines are written to standard error.
pub struct HeldLog(());

/// Holds the log back, each line once, while a screen is drawn on the terminal.
pub fn hold_log() -> HeldLog {
    held().get_or_insert_default();
    HeldLog(())
}

impl HeldLog {
    /// Its lines so far, without colours.
    pub fn lines(&self) -> Vec<String> {
        held().iter().flatten().map(|line| without_colours(line)).collect()
    }
}

impl Drop for HeldLog {
    fn drop(&mut self) {
        for line in held().take().into_iter().flatten() {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }
}

/// The text without sequences like `ESC [ 33 m`.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

/// The exit code of a command. An error is printed, and gives 2, or 3 where it is [`Impossible`].
pub fn exit_code(program: &str, outcome: Result<i32>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            // eprintln! would panic where standard error is closed.
            let prefix = if is_journal() { prefix(Level::ERROR) } else { "" };
            let _ = writeln!(io::stderr(), "{prefix}{program}: {}", in_full(&error));
            let is_impossible = error.downcast_ref::<Impossible>().is_some();
            ExitCode::from(if is_impossible { IMPOSSIBLE as u8 } else { REFUSED })
        }
    }
}

/// An error with its causes, without those that its text already contains.
pub(crate) fn in_full(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The text with a `?` for each character that would move the cursor, hide others or turn the direction
/// of writing: a program may have any name.
pub fn clean(text: &str) -> String {
    let is_harmful = |letter: char| {
        letter.is_control()
            || matches!(letter,
                '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().map(|letter| if is_harmful(letter) { '?' } else { letter }).collect()
}

/// Whether it is of use to draw: standard output is a terminal that can move its cursor and tells its
/// size.
pub fn can_draw() -> bool {
    let term = std::env::var_os("TERM").unwrap_or_default();
    let can_move = io::stdout().is_terminal() && !term.is_empty() && term != "dumb";
    can_move && size().is_ok_and(|(columns, lines)| columns > 0 && lines > 0)
}

/// The columns of the terminal that standard output is; none where it is none.
pub fn width() -> Option<u16> {
    let columns = io::stdout().is_terminal().then(size)?.ok().map(|(columns, _)| columns);
    columns.filter(|columns| *columns > 0)
}

/// Lets a broken pipe end this process, as with any other tool: for commands that only print.
pub fn end_at_a_broken_pipe() {
    // SAFETY: sets a disposition without a handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_speak_of_themselves_and_of_moves_only_if_asked() {
        for (verbose, are_moves_logged) in [(0, false), (1, true)] {
            let logged = by_number(verbose);
            assert!(logged.would_enable(SERVICE_LOG, &Level::INFO), "{verbose}");
            let is_logged = logged.would_enable("evenkeel_host::balancer", &Level::INFO);
            assert_eq!(is_logged, are_moves_logged, "{verbose}");
        }
    }

    #[test]
    fn what_is_logged_while_a_screen_is_drawn_is_held_back_once() {
        let log = hold_log();
        for line in ["\u{1b}[33m WARN\u{1b}[0m no answer\n", "other\n", "other\n"] {
            assert_eq!(Log { prefix: "" }.write(line.as_bytes()).unwrap(), line.len());
        }
        let has = |line: &str| log.lines().iter().filter(|held| *held == line).count();
        assert_eq!((has(" WARN no answer"), has("other")), (1, 1));
        for number in 0..2 * MAX_HELD {
            Log { prefix: "" }.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        assert_eq!((log.lines().len(), has("other")), (MAX_HELD, 0));
        // These are not for the output of the tests.
        held().iter_mut().for_each(VecDeque::clear);
        drop(log);
        assert!(held().is_none());
    }
}
