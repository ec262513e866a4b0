//! The service's end of the socket. It never blocks: the service polls the server's descriptors together
//! with everything else that it waits for, and then calls [`Server::serve`]. Everything that clients can
//! fill (connections, lines, unread answers) is bounded, and a user cannot take another user's share
//! (`shares`). The server itself answers the request `connections`: what each user has.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::json;

use crate::message::{Answer, MAX_REQUEST_BYTES, Request};
use crate::shares::{MAX_PER_USER, Shares, own_time};

/// Connections of all users but root (root can always connect, to see what is wrong). Beyond that, the
/// user with most of them loses one to a user with fewer.
const MAX_CLIENTS: usize = 128;
/// A connection is closed if for so long no whole request comes on it, or its answer is not read.
const IDLE: Duration = Duration::from_secs(60);
/// A connection that was idle for so long may be closed for another user.
const IDLE_FOR_OTHERS: Duration = Duration::from_secs(1);
/// Unread answers of one client, in bytes: beyond that, its requests wait.
const MAX_UNREAD_BYTES: usize = 256 * 1024;
/// How often a locked folder is tried, and the pause between.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Requests of one connection that are answered before the next connection has its turn.
const MAX_PER_TURN: usize = 8;
/// Connections that are accepted before the service has its turn, and the pause that follows: clients
/// connect as fast as the server accepts.
const MAX_ACCEPTS: usize = 64;
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

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
    shares: Shares,
    idle: Duration,
    /// The end of the pause in which no connection is accepted. `None`: there is none.
    accept_at: Option<Instant>,
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
    /// Its next request has to wait, because its user has used up its time.
    is_waiting: bool,
    /// When a request of it was answered, or a part of an answer was read.
    active_at: Instant,
}

impl Server {
    /// Listens at `path`, to which every user may connect. Replaces the socket of a service that was
    /// killed.
    ///
    /// # Errors
    /// All of [`BindError`].
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let _lock = lock_folder(path);
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
        let (path, shares) = (path.to_owned(), Shares::default());
        Ok(Self { listener, path, clients: Vec::new(), shares, idle: IDLE, accept_at: None })
    }

    /// The descriptors to poll: call [`Server::serve`] when any of them is ready.
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        // During a pause it is readable all the time. `patience` tells when the pause ends.
        let accepts = self.accept_at.is_none();
        let listener = accepts.then(|| PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        // A client for which nothing can be done now is left out: poll would report its hang-up again
        // and again.
        let clients = self.clients.iter().filter_map(|client| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, client.may_receive());
            flags.set(PollFlags::POLLOUT, !client.unread.is_empty());
            (!flags.is_empty()).then(|| PollFd::new(client.as_fd(), flags))
        });
        listener.into_iter().chain(clients).collect()
    }

    /// How long a service that has nothing else to do may wait for these descriptors, before a request
    /// that had to wait may be answered, or the next connection accepted. `None`: nothing waits.
    pub fn patience(&self) -> Option<Duration> {
        let now = Instant::now();
        let waiting = self.clients.iter().filter(|client| client.is_waiting);
        let waits = waiting.map(|client| self.shares.wait(client.peer.uid, now));
        let accepts = self.accept_at.map(|at| at.saturating_duration_since(now));
        let least = waits.chain(accepts).min()?;
        // In milliseconds, as poll counts: rounded down, the last one of them would be a busy loop.
        Some(Duration::from_millis(least.as_nanos().div_ceil(1_000_000) as u64))
    }

    /// Accepts connections, answers the requests that have come by `handle`, and sends what can be sent.
    /// Never blocks. True if requests are left: call it again without waiting.
    pub fn serve(&mut self, mut handle: impl FnMut(&Peer, &Request) -> Answer) -> bool {
        self.accept();
        // Each client is the first one in its turn.
        let first = usize::from(!self.clients.is_empty());
        self.clients.rotate_left(first);
        let mut is_left = false;
        let Self { clients, shares, idle, .. } = self;
        clients.retain_mut(|client| {
            let (uid, unread) = (client.peer.uid, client.unread.len());
            let served = client.serve(shares, &mut handle);
            shares.note_unread(uid, unread, client.unread.len());
            let stays = match served {
                Ok(left) => {
                    is_left |= left;
                    !client.has_ended() && !client.is_idle_for(*idle)
                }
                Err(why) => {
                    tracing::debug!(peer = ?client.peer, "connection closed: {why}");
                    false
                }
            };
            if !stays {
                let why = format!("no request for {} s: connect again", idle.as_secs());
                client.dismiss(Errno::ETIMEDOUT, why);
                shares.close(uid, client.unread.len());
            }
            stays
        });
        self.close_unread();
        is_left
    }

    /// Closes connections of users with too many unread answers, the one that was idle for longest
    /// first; one may have any answer.
    fn close_unread(&mut self) {
        for uid in self.shares.behind() {
            let now = Instant::now();
            while self.shares.is_behind(uid) {
                let unread = self
                    .clients
                    .iter()
                    .enumerate()
                    .filter(|(_, client)| client.peer.uid == uid && !client.unread.is_empty());
                let mut unread: Vec<(usize, Instant)> =
                    unread.map(|(at, client)| (at, client.active_at)).collect();
                unread.sort_by_key(|(_, active_at)| *active_at);
                let [(at, _), _, ..] = unread[..] else { break };
                let client = self.clients.swap_remove(at);
                self.shares.close(uid, client.unread.len());
                self.shares.refuse(uid, now);
                tracing::debug!(peer = ?client.peer, "connection closed: its answers are not read");
            }
        }
    }

    fn accept(&mut self) {
        if self.accept_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.accept_at = None;
        for _ in 0..MAX_ACCEPTS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // There may be no descriptor left; poll would report the listener again and again.
                    tracing::debug!("cannot accept a connection: {error}");
                    break;
                }
            };
            let Ok(mut client) = Client::new(stream) else { continue };
            let (uid, now) = (client.peer.uid, Instant::now());
            if uid != 0 && self.shares.connections(uid) >= MAX_PER_USER {
                self.shares.refuse(uid, now);
                let why =
                    format!("too many connections: close one (at most {MAX_PER_USER} per user)");
                client.dismiss(Errno::EAGAIN, why);
            } else if uid != 0 && !self.has_room_for(uid, now) {
                self.shares.refuse(uid, now);
                let why = format!("too many connections of all users ({MAX_CLIENTS}): try again");
                client.dismiss(Errno::EAGAIN, why);
            } else {
                self.shares.open(uid, now);
                self.clients.push(client);
            }
        }
        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
    }

    /// Whether a user other than root may have one more connection. If need be, another one is closed:
    /// of the user with most of them, or else the one that was idle for longest.
    fn has_room_for(&mut self, uid: u32, now: Instant) -> bool {
        if self.shares.connections_of_users() < MAX_CLIENTS {
            return true;
        }
        let greediest = self.shares.greediest().filter(|greediest| {
            self.shares.connections(*greediest) > self.shares.connections(uid) + 1
        });
        let may_lose = |client: &Client| match greediest {
            Some(greediest) => client.peer.uid == greediest,
            None => client.peer.uid != 0 && now > client.active_at + IDLE_FOR_OTHERS,
        };
        let candidates = self.clients.iter().enumerate().filter(|(_, client)| may_lose(client));
        let Some((at, _)) = candidates.min_by_key(|(_, client)| client.active_at) else {
            return false;
        };
        let mut client = self.clients.swap_remove(at);
        self.shares.close(client.peer.uid, client.unread.len());
        self.shares.refuse(client.peer.uid, now);
        client.dismiss(
            Errno::EAGAIN,
            "closed for another user, that has fewer connections".to_owned(),
        );
        true
    }
}

/// Removes the socket of a service that was killed. False if there is none, or if a service listens.
pub fn remove_dead(path: &Path) -> bool {
    let _lock = lock_folder(path);
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let is_dead = || match UnixStream::connect(path) {
        Ok(_) => false,
        Err(why) => why.kind() == io::ErrorKind::ConnectionRefused,
    };
    is_socket && is_dead() && fs::remove_file(path).is_ok()
}

/// While this is held, no process of ours replaces or removes a dead socket there: the socket may be
/// another one by then. Any user may hold such a lock, so it is not waited for long.
fn lock_folder(path: &Path) -> Option<File> {
    let folder = File::open(path.parent()?).ok()?;
    for _ in 0..LOCK_TRIES {
        if folder.try_lock().is_ok() {
            return Some(folder);
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    None
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
        Ok(Self {
            stream,
            peer,
            received: Vec::new(),
            unread: Vec::new(),
            is_ending: false,
            is_waiting: false,
            active_at: Instant::now(),
        })
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn has_request(&self) -> bool {
        self.received.contains(&b'\n')
    }

    fn may_receive(&self) -> bool {
        let has_room =
            self.received.len() < MAX_REQUEST_BYTES && self.unread.len() <= MAX_UNREAD_BYTES;
        has_room && !self.is_ending && !self.is_waiting
    }

    /// Whether nothing is left to do for it.
    fn has_ended(&self) -> bool {
        self.is_ending && self.unread.is_empty() && !self.has_request()
    }

    /// Whether nothing came of it for so long. A request that waits for the user's time is not idle.
    fn is_idle_for(&self, idle: Duration) -> bool {
        !self.is_waiting && self.active_at.elapsed() >= idle
    }

    /// Says why the connection is closed, if that can be sent now: an answer is not kept for it.
    fn dismiss(&mut self, errno: Errno, why: String) {
        if self.unread.is_empty() && !self.is_ending {
            self.unread = Answer::refused(errno, why).encode();
            let _ = self.send();
            self.unread.clear();
        }
    }

    /// Gives the client a turn: reads, answers, sends. True if whole requests are left that may be
    /// answered at once.
    fn serve(
        &mut self,
        shares: &mut Shares,
        handle: &mut impl FnMut(&Peer, &Request) -> Answer,
    ) -> io::Result<bool> {
        let uid = self.peer.uid;
        if !self.is_ending {
            self.receive()?;
        }
        let had_to_wait = std::mem::take(&mut self.is_waiting);
        for _ in 0..MAX_PER_TURN {
            if self.unread.len() > MAX_UNREAD_BYTES {
                break;
            }
            let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else { break };
            let now = Instant::now();
            if !shares.wait(uid, now).is_zero() {
                self.is_waiting = true;
                if !had_to_wait {
                    shares.delay(uid, now);
                }
                break;
            }
            let request: Vec<u8> = self.received.drain(..=end).collect();
            let began = own_time();
            let answer = self.answer(&request, shares, handle);
            self.unread.extend(answer.encode());
            shares.charge(uid, now, own_time().saturating_sub(began));
            self.active_at = now;
        }
        if self.received.len() >= MAX_REQUEST_BYTES && !self.has_request() {
            let why = format!("a request is one line of at most {MAX_REQUEST_BYTES} bytes");
            self.unread.extend(Answer::refused(Errno::EMSGSIZE, why).encode());
            self.received.clear();
            self.is_ending = true;
        }
        self.send()?;
        Ok(self.unread.is_empty() && !self.is_waiting && self.has_request())
    }

    fn answer(
        &self,
        request: &[u8],
        shares: &Shares,
        handle: &mut impl FnMut(&Peer, &Request) -> Answer,
    ) -> Answer {
        match Request::decode(request) {
            Ok(request) if request.req == "connections" && request.args.is_empty() => {
                Answer::ok(json!(shares.list(self.peer.uid)))
            }
            Ok(request) => handle(&self.peer, &request),
            Err(refusal) => refusal,
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while self.received.len() < MAX_REQUEST_BYTES {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.is_ending = true;
                    // It has given up, and does by itself what it asked for.
                    if has_hung_up(&self.stream) {
                        self.received.clear();
                    }
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
                Ok(length) => {
                    self.unread.drain(..length);
                    self.active_at = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether the other end is closed, and not only for sending.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let is_ready = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
    is_ready && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;

    fn bind() -> (tempfile::TempDir, Server) {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::bind(&dir.path().join("socket")).unwrap();
        (dir, server)
    }

    /// A connection of this user.
    fn connect(server: &mut Server, uid: u32) -> UnixStream {
        let stream = UnixStream::connect(&server.path).unwrap();
        server.serve(|_, _| Answer::ok(1));
        // The process of a client that is known already was set to 0.
        for client in server.clients.iter_mut().filter(|client| client.peer.pid != 0) {
            server.shares.close(client.peer.uid, 0);
            client.peer = Peer { uid, pid: 0 };
            server.shares.open(uid, Instant::now());
        }
        stream
    }

    fn line_of(stream: &UnixStream) -> String {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn an_idle_connection_is_closed_and_told_why() {
        let (_dir, mut server) = bind();
        let mut streams = [connect(&mut server, 0), connect(&mut server, 7)];
        // Half a request counts for nothing.
        streams[0].write_all(b"{\"req\":").unwrap();
        server.serve(|_, _| Answer::ok(1));
        assert_eq!(server.clients.len(), 2);
        server.idle = Duration::ZERO;
        server.serve(|_, _| Answer::ok(1));
        assert_eq!(server.clients.len(), 0);
        for stream in &streams {
            let line = line_of(stream);
            assert!(line.contains("connect again"), "{line}");
        }
        assert_eq!((server.shares.connections(0), server.shares.connections(7)), (0, 0));
    }

    #[test]
    fn a_user_who_used_up_its_time_waits_and_others_do_not() {
        let (_dir, mut server) = bind();
        let [mut greedy, mut modest] = [7, 8].map(|uid| connect(&mut server, uid));
        // More than the user's reserve, and less than that of all.
        server.shares.charge(7, Instant::now(), Duration::from_millis(500));
        for stream in [&mut greedy, &mut modest] {
            stream.write_all(b"{\"req\":\"a\"}\n").unwrap();
        }
        let mut asked = Vec::new();
        let is_left = server.serve(|peer, _| {
            asked.push(peer.uid);
            Answer::ok(1)
        });
        // Nothing is left that may be answered now, and nothing is polled for the one that waits.
        assert_eq!((asked, is_left), (vec![8], false));
        assert_eq!(server.poll_fds().len(), 2);
        assert!(server.patience().is_some_and(|patience| !patience.is_zero()));
        assert_eq!(server.shares.list(7)[0].delayed, 1);
        // A request that waits is not lost when its client sends no more, and waits as one.
        greedy.shutdown(std::net::Shutdown::Write).unwrap();
        for _ in 0..3 {
            server.serve(|_, _| Answer::ok(2));
        }
        assert_eq!((server.clients.len(), server.shares.list(7)[0].delayed), (2, 1));
        server.shares = Shares::default();
        server.serve(|_, _| Answer::ok(3));
        assert!(line_of(&greedy).contains('3'));
        assert_eq!((server.clients.len(), server.patience()), (1, None));
    }

    #[test]
    fn unread_answers_of_a_user_are_bounded() {
        let (_dir, mut server) = bind();
        let mut streams: Vec<UnixStream> = (0..8).map(|_| connect(&mut server, 7)).collect();
        for stream in &mut streams {
            stream.write_all(b"{\"req\":\"a\"}\n").unwrap();
        }
        server.serve(|_, _| Answer::ok("x".repeat(900_000)));
        let unread = || server.clients.iter().map(|client| client.unread.len()).sum::<usize>();
        assert!((1..1_100_000).contains(&unread()), "{}", unread());
        assert_eq!(server.clients.len(), server.shares.connections(7));
        // Root's are not.
        let mut streams: Vec<UnixStream> = (0..8).map(|_| connect(&mut server, 0)).collect();
        for stream in &mut streams {
            stream.write_all(b"{\"req\":\"a\"}\n").unwrap();
        }
        server.serve(|_, _| Answer::ok("x".repeat(900_000)));
        assert_eq!(server.shares.connections(0), 8);
    }

    #[test]
    fn a_listener_that_fails_is_left_alone_for_a_moment() {
        let (_dir, mut server) = bind();
        // It does not listen.
        server.listener = OwnedFd::from(UnixStream::pair().unwrap().0).into();
        server.serve(|_, _| Answer::ok(1));
        assert!(server.poll_fds().is_empty() && server.patience().is_some());
    }

    #[test]
    fn users_with_many_connections_lose_one_to_a_user_with_none() {
        let (_dir, mut server) = bind();
        let users = (1..=8).flat_map(|uid| [uid; MAX_PER_USER]);
        let _held: Vec<UnixStream> = users.map(|uid| connect(&mut server, uid)).collect();
        assert_eq!(server.shares.connections_of_users(), MAX_CLIENTS);
        assert!(server.has_room_for(9, Instant::now()));
        assert_eq!(server.clients.len(), MAX_CLIENTS - 1);
        let refused: u64 = server.shares.list(0).iter().map(|share| share.refused).sum();
        assert_eq!(refused, 1);
    }

    #[test]
    fn one_connection_of_each_user_stays_while_it_is_used() {
        let (_dir, mut server) = bind();
        let users = 1..=MAX_CLIENTS as u32;
        let _held: Vec<UnixStream> = users.map(|uid| connect(&mut server, uid)).collect();
        let now = server.clients.iter().map(|client| client.active_at).min().unwrap();
        assert!(!server.has_room_for(1000, now));
        assert!(server.has_room_for(1000, now + Duration::from_secs(60)));
    }
}
