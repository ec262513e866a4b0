//! The terminal, for both executables: logging, errors and exit codes, broken pipes.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Result;
use tracing_subscriber::EnvFilter;

/// Logs to standard error at a level of the number of `-v`. `EVENKEEL_LOG` overrides it.
pub fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("EVENKEEL_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        // With a broken standard error, the logger would report that there, and panic.
        .log_internal_errors(false)
        .without_time()
        .init();
}

/// The exit code of a command; an error is printed and gives 2.
pub fn exit_code(program: &str, outcome: Result<i32>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            // eprintln! would panic where standard error is closed.
            let _ = writeln!(std::io::stderr(), "{program}: {}", in_full(&error));
            ExitCode::from(2)
        }
    }
}

/// An error with its causes, without those that its text already contains.
fn in_full(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Lets a broken pipe end this process, as with any other tool: for commands that only print.
pub fn end_at_a_broken_pipe() {
    // SAFETY: sets a disposition without a handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
