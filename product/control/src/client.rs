//! The client's end of the socket: sends one request to a running service, and waits for its answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::Value;

use crate::message::{Answer, Request};

/// How long an answer may take. A service that balances answers between two intervals; the keel answers
/// when it has been loaded anew, for which a slow machine's verifier takes many seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No service listens at the socket.
    #[error("{}: no service answers ({source}); is the service running?", .path.display())]
    NoService {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The connection broke, or there was no answer in time.
    #[error("{}: no answer: {source}", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The service refused the request.
    #[error("{why}")]
    Refused {
        /// An error number of errno(3).
        errno: i32,
        /// What is refused, why, and what to do.
        why: String,
    },
}

/// Sends a request to the service at `path`, and waits for its answer for at most 60 s. Returns the
/// result.
///
/// # Errors
/// All of [`AskError`].
pub fn ask(path: &Path, request: &Request) -> Result<Value, AskError> {
    ask_within(path, request, TIMEOUT)
}

/// Does the same, but no step (connecting, sending, receiving) waits for longer than `timeout`. For a
/// process that has something else to do, too.
///
/// # Errors
/// All of [`AskError`].
pub fn ask_within(path: &Path, request: &Request, timeout: Duration) -> Result<Value, AskError> {
    let connect = || {
        connect_within(path, timeout)
            .map_err(|source| AskError::NoService { path: path.to_owned(), source })
    };
    let answer = exchange(connect()?, request).map_err(|source| match connect() {
        // The service has ended since the request was sent.
        Err(no_service) => no_service,
        Ok(_) => AskError::Broken { path: path.to_owned(), source },
    })?;
    answer.into_result().map_err(|(errno, why)| AskError::Refused { errno, why })
}

/// Connects. A service that accepts no connections (it is stopped, and its queue is full) is waited for
/// within the time limit, too: the kernel takes that for connecting from the limit for sending.
fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let limit = TimeVal::microseconds(i64::try_from(timeout.as_micros()).unwrap_or(i64::MAX));
    setsockopt(&fd, SendTimeout, &limit)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    let stream = UnixStream::from(fd);
    stream.set_read_timeout(Some(timeout))?;
    Ok(stream)
}

fn exchange(mut stream: UnixStream, request: &Request) -> io::Result<Answer> {
    // A service that refuses the connection may close it during this write: then there is an answer to
    // read all the same.
    let sent = stream.write_all(&request.encode());
    let mut text = String::new();
    BufReader::new(stream.take(MAX_ANSWER_BYTES)).read_line(&mut text)?;
    if text.is_empty() {
        sent?;
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Answer::decode(text.as_bytes())?)
}
