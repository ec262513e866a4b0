//! Asking a running service.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::message::{Answer, Request, line};

/// How long an answer may take: a service that balances answers between two of its looks.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is believed, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("{}: nobody answers ({source}); is the service running?", .path.display())]
    Nobody {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The connection broke, or the answer took too long.
    #[error("{}: no answer: {source}", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Refused, with a reason.
    #[error("{why}")]
    Refused {
        /// An error number of errno(3).
        errno: i32,
        /// What and why, and what to do.
        why: String,
    },
}

/// Asks the service at `path`, and waits for its answer for at most 10 s.
///
/// # Errors
/// All of [`AskError`].
pub fn ask(path: &Path, request: &Request) -> Result<Value, AskError> {
    let connect = || {
        UnixStream::connect(path)
            .map_err(|source| AskError::Nobody { path: path.to_owned(), source })
    };
    let answer = exchange(connect()?, request).map_err(|source| match connect() {
        // It was there, and has ended meanwhile.
        Err(nobody) => nobody,
        Ok(_) => AskError::Broken { path: path.to_owned(), source },
    })?;
    answer.into_result().map_err(|(errno, why)| AskError::Refused { errno, why })
}

fn exchange(mut stream: UnixStream, request: &Request) -> io::Result<Answer> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // Who is turned away finds the connection closed while he still writes, and an answer in it.
    let sent = stream.write_all(&line(request));
    let mut text = String::new();
    BufReader::new(stream.take(MAX_ANSWER_BYTES)).read_line(&mut text)?;
    if text.is_empty() {
        sent?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&text)?)
}
