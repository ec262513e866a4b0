//! The service's end of the socket. It never waits: whoever owns it polls its descriptors together
//! with everything else that he waits for, and then lets it [serve](Server::serve). Everything
//! that others can fill (connections, lines, answers that nobody reads) is bounded, and no user can
//! take another one's share.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::message::{Answer, MAX_REQUEST_BYTES, Request, line};

/// Connections of one user.
const MAX_PER_USER: usize = 16;
/// Connections in all; root's are not counted, so that somebody can always look what is wrong.
const MAX_CLIENTS: usize = 128;
/// Requests of one connection that are answered before it is the others' turn.
const MAX_PER_TURN: usize = 8;
/// Answers that wait to be read by one client, in bytes: who does not read gets no more.
const MAX_UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// Who asks, by the kernel's word: the process that connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its number when it connected, 0 if it cannot be seen from this PID name space.
    pub pid: i32,
}

impl Peer {
    /// Whether he may steer what belongs to `uid`.
    pub fn may_steer(&self, uid: u32) -> bool {
        self.uid == 0 || self.uid == uid
    }
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another service answers there.
    #[error("{}: another one is running already; end it first, or ask it (evenkeel status)", .path.display())]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// Something that is not a socket lies there.
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

/// The listening socket and everybody who is connected; dropping it removes the socket.
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
    received: Vec<u8>,
    unread: Vec<u8>,
    /// Nothing more is read from it; it is gone when it has its answers.
    is_ending: bool,
}

impl Server {
    /// Listens at `path`, which everybody may connect to. What a service that was killed left
    /// there is replaced.
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
        // Who may do what is decided by request and peer, not by the file.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(system)?;
        Ok(Self { listener, path: path.to_owned(), clients: Vec::new() })
    }

    /// What to poll for: a change on any of these is a reason to call [`Server::serve`].
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

    /// Takes what has come, answers it by `handle`, and sends what can be sent. Never waits. True
    /// if requests were left for the next turn.
    pub fn serve(&mut self, mut handle: impl FnMut(&Peer, &Request) -> Answer) -> bool {
        self.accept();
        let mut is_left = false;
        self.clients.retain_mut(|client| match client.turn(&mut handle) {
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
            if uid != 0 && (of_user >= MAX_PER_USER || of_users >= MAX_CLIENTS) {
                let why = format!("too many connections: close one ({MAX_PER_USER} a user)");
                client.unread = line(&Answer::refused(Errno::EAGAIN, why));
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
        // Not there any more: somebody tidied up.
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

    /// Whether whole requests are left.
    fn turn(&mut self, handle: &mut impl FnMut(&Peer, &Request) -> Answer) -> io::Result<bool> {
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
            self.unread.extend(line(&answer));
        }
        if self.received.len() >= MAX_REQUEST_BYTES && !self.received.contains(&b'\n') {
            let why = format!("a request is one line of at most {MAX_REQUEST_BYTES} bytes");
            self.unread.extend(line(&Answer::refused(Errno::EMSGSIZE, why)));
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
