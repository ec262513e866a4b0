//! The service's end of the socket. It never blocks: the service polls the server's descriptors together
//! with everything else that it waits for, and then calls [`Server::serve`]. Everything that clients can
//! fill (connections, lines, unread answers) is bounded, and a user cannot take another user's share.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::message::{Answer, MAX_REQUEST_BYTES, Request, encode_line};

/// Connections of one user.
const MAX_CLIENTS_PER_USER: usize = 16;
/// Connections of all users but root, which can always connect to see what is wrong.
const MAX_CLIENTS: usize = 128;
/// Requests of one connection that are answered before the next connection has its turn.
const MAX_PER_TURN: usize = 8;
/// Unread answers of one client, in bytes: beyond that, its requests wait.
const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// The process that connected, as the kernel identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user id.
    pub uid: u32,
    /// Its pid when it connected; 0 if it is not visible from this PID namespace.
    pub pid: i32,
}

impl Peer {
    /// Whether it may control what belongs to user `uid`: root and that user may.
    pub fn may_steer(&self, uid: u32) -> bool {
        self.uid == 0 || self.uid == uid
    }
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another service answers there.
    #[error(
        "{}: another service is running already; end it first, or ask it (evenkeel status)",
        .path.display()
    )]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// The path is not a socket.
    #[error("{}: not a socket; remove it", .path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("{}: cannot listen: {source}", .path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The listening socket and its connections. Dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    peer: Peer,
    /// Received and not yet handled.
    received: Vec<u8>,
    /// Answers that are not sent yet.
    unread: Vec<u8>,
    /// No more is read from it; it is closed when its answers are sent.
    is_ending: bool,
}

impl Server {
    /// Listens at `path`, to which every user may connect. Replaces the socket of a service that was
    /// killed.
    ///
    /// # Errors
    /// All of [`BindError`].
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let system = |source| BindError::System { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(BindError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(BindError::Busy { path: path.to_owned() });
            }
            Ok(_) => fs::remove_file(path).map_err(system)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(system)?;
        listener.set_nonblocking(true).map_err(system)?;
        // Permission is decided by request and peer, not by the file.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(system)?;
        Ok(Self { listener, path: path.to_owned(), clients: Vec::new() })
    }

    /// The descriptors to poll: call [`Server::serve`] when any of them is ready.
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let listener = PollFd::new(self.listener.as_fd(), PollFlags::POLLIN);
        let clients = self.clients.iter().map(|client| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, !client.is_ending && !client.is_behind());
            flags.set(PollFlags::POLLOUT, !client.unread.is_empty());
            PollFd::new(client.as_fd(), flags)
        });
        std::iter::once(listener).chain(clients).collect()
    }

    /// Accepts connections, answers the requests that have come by `handle`, and sends what can be sent.
    /// Never blocks. True if requests are left: call it again without waiting.
    pub fn serve(&mut self, mut handle: impl FnMut(&Peer, &Request) -> Answer) -> bool {
        self.accept();
        let mut is_left = false;
        self.clients.retain_mut(|client| match client.serve(&mut handle) {
            Ok(left) => {
                is_left |= left;
                !(client.is_ending && client.unread.is_empty())
            }
            Err(why) => {
                tracing::debug!(peer = ?client.peer, "connection closed: {why}");
                false
            }
        });
        is_left
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    return;
                }
            };
            let Ok(mut client) = Client::new(stream) else { continue };
            let uid = client.peer.uid;
            let of_user = self.clients.iter().filter(|client| client.peer.uid == uid).count();
            let of_users = self.clients.iter().filter(|client| client.peer.uid != 0).count();
            if uid != 0 && (of_user >= MAX_CLIENTS_PER_USER || of_users >= MAX_CLIENTS) {
                let why = format!(
                    "too many connections: close one (at most {MAX_CLIENTS_PER_USER} per user)"
                );
                client.unread = encode_line(&Answer::refused(Errno::EAGAIN, why));
                // Closed at once: an answer that cannot be sent now is not kept.
                let _ = client.send();
                continue;
            }
            self.clients.push(client);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that another process has removed it.
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let credentials = getsockopt(&stream, PeerCredentials)?;
        let peer = Peer { uid: credentials.uid(), pid: credentials.pid() };
        Ok(Self { stream, peer, received: Vec::new(), unread: Vec::new(), is_ending: false })
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn is_behind(&self) -> bool {
        self.unread.len() > MAX_UNREAD_BYTES
    }

    /// Gives the client a turn: reads, answers, sends. True if whole requests are left.
    fn serve(&mut self, handle: &mut impl FnMut(&Peer, &Request) -> Answer) -> io::Result<bool> {
        if !self.is_ending {
            self.receive()?;
        }
        for _ in 0..MAX_PER_TURN {
            if self.is_behind() {
                break;
            }
            let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else { break };
            let request: Vec<u8> = self.received.drain(..=end).collect();
            let answer = match serde_json::from_slice::<Request>(&request) {
                Ok(request) => handle(&self.peer, &request),
                Err(why) => Answer::refused(
                    Errno::EINVAL,
                    format!("not a request like {{\"req\":\"status\",\"args\":{{}}}}: {why}"),
                ),
            };
            self.unread.extend(encode_line(&answer));
        }
        if self.received.len() >= MAX_REQUEST_BYTES && !self.received.contains(&b'\n') {
            let why = format!("a request is one line of at most {MAX_REQUEST_BYTES} bytes");
            self.unread.extend(encode_line(&Answer::refused(Errno::EMSGSIZE, why)));
            self.received.clear();
            self.is_ending = true;
        }
        self.send()?;
        Ok(!self.is_behind() && self.received.contains(&b'\n'))
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while self.received.len() < MAX_REQUEST_BYTES {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.is_ending = true;
                    return Ok(());
                }
                Ok(length) => self.received.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.unread.is_empty() {
            match self.stream.write(&self.unread) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => drop(self.unread.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
