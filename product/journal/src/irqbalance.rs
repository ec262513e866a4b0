//! irqbalance, the daemon that moves interrupt lines by itself: whether it runs, and its list of lines
//! that it leaves alone, which is read, extended and restored. A list is that of one process, and ends
//! with it.
//!
//! irqbalance(1), "API": a stream socket `irqbalancePID.sock`, in /run/irqbalance, or an abstract one
//! where no such file can be made. `setup` is answered by its settings, among them the list.
//! `settings ban irqs 4 7` replaces the whole list (`NONE`: by an empty one) and has no answer: so the
//! list is read before and after. Each request carries the credentials of its sender: it must be root.
//! A connection without a request makes old versions crash: none is made.
//!
//! Any user may name a process irqbalance, or an abstract socket: only root's processes are believed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, IoSlice, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials,
    connect, getsockopt, sendmsg, socket, sockopt,
};

use crate::directory::own_uid;
use crate::entry::{Ban, BanEnd, Entry};
use crate::failpoint;
use crate::file::JournalError;
use crate::session::Session;
use crate::task::{TaskError, TaskRef, now_ns};

/// Its name, and what the names of its sockets begin with.
const NAME: &str = "irqbalance";
const SOCKET_END: &str = ".sock";
/// Where its sockets are files.
const FOLDER: &str = "run/irqbalance";
/// All sockets of this network namespace; the names of abstract ones begin with `@`.
const SOCKETS: &str = "proc/net/unix";
/// How long it may take to answer, from the connection to the end of the answer. It answers between its
/// rounds, which take milliseconds. Long, because an answer that nothing reads may end it by SIGPIPE.
const PATIENCE: Duration = Duration::from_secs(10);
/// An answer is not longer: 16,000 lines.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// An irqbalance that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irqbalance {
    /// Its process.
    pub pid: i32,
    /// Its socket, if there is one: a path, or `@` and an abstract name.
    pub socket: Option<String>,
}

/// Why irqbalance cannot be told to leave a line alone.
#[derive(Debug, thiserror::Error)]
pub enum BanError {
    /// There is no socket.
    #[error(
        "irqbalance (process {pid}) has no socket here that it could be told by: stop it \
         (systemctl stop irqbalance)"
    )]
    NoSocket {
        /// Its process.
        pid: i32,
    },
    /// The socket does not answer.
    #[error(
        "{socket}: irqbalance (process {pid}) does not answer: {source}; stop it (systemctl stop \
         irqbalance)"
    )]
    Silent {
        /// Its process.
        pid: i32,
        /// Its socket.
        socket: String,
        /// Why not.
        source: io::Error,
    },
    /// Not the answer that irqbalance(1) describes.
    #[error(
        "{socket}: process {pid} does not answer as irqbalance does (only root may ask it): stop it \
         (systemctl stop irqbalance)"
    )]
    Strange {
        /// The process.
        pid: i32,
        /// Its socket.
        socket: String,
    },
    /// The list is not what it was told.
    #[error(
        "{socket}: irqbalance (process {pid}) does not take line {line} into the list of lines that it \
         leaves alone: start it with --banirq={line}, or stop it (systemctl stop irqbalance)"
    )]
    NotTaken {
        /// Its process.
        pid: i32,
        /// Its socket.
        socket: String,
        /// The line.
        line: u32,
    },
    /// /proc does not identify the process.
    #[error(transparent)]
    Identity(#[from] TaskError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Every irqbalance that runs: a process of root, known by its name, or by its socket. `root` is `/`, or
/// a test's own.
pub fn find_irqbalance(root: &Path) -> Vec<Irqbalance> {
    let mut found: BTreeMap<i32, Option<String>> = BTreeMap::new();
    for name in names_in(&root.join("proc")) {
        let Ok(pid) = name.parse::<i32>() else { continue };
        let command = fs::read_to_string(root.join(format!("proc/{pid}/comm")));
        if command.is_ok_and(|command| command.trim() == NAME) {
            found.insert(pid, None);
        }
    }
    let table = fs::read_to_string(root.join(SOCKETS)).unwrap_or_default();
    let abstract_names = table.lines().filter_map(|row| row.split_whitespace().nth(7));
    for name in abstract_names.filter(|name| name.starts_with('@')) {
        // The kernel shows each NUL as another @; old versions have NULs at the end.
        let owner = owner_of(name.trim_matches('@'));
        // The name may be any user's: without a process of irqbalance's name it tells nothing.
        if let Some(socket) = owner.and_then(|pid| found.get_mut(&pid)) {
            *socket = Some(name.to_owned());
        }
    }
    for name in names_in(&root.join(FOLDER)) {
        if let Some(pid) = owner_of(&name) {
            let file = root.join(FOLDER).join(name);
            found.insert(pid, file.to_str().map(str::to_owned));
        }
    }
    // A killed irqbalance leaves its socket.
    found.retain(|pid, _| is_believed_process(root, *pid));
    found.into_iter().map(|(pid, socket)| Irqbalance { pid, socket }).collect()
}

/// Whether the process is there, and root's: by each of its user ids, because a set-user-id program that
/// another user has started has root's rights as well.
fn is_believed_process(root: &Path, pid: i32) -> bool {
    let status = fs::read_to_string(root.join(format!("proc/{pid}/status"))).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id.parse::<u32>().is_ok_and(is_believed)))
}

/// Whether what this user runs can be irqbalance: root, or, for tests, the own user.
fn is_believed(uid: u32) -> bool {
    uid == 0 || uid == own_uid()
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// The process that a socket of this name belongs to.
fn owner_of(name: &str) -> Option<i32> {
    let number = name.strip_prefix(NAME)?.strip_suffix(SOCKET_END)?;
    number.parse().ok().filter(|pid| *pid > 0)
}

impl Irqbalance {
    /// Whether it could be told to leave lines alone; tells it nothing.
    ///
    /// # Errors
    /// All of [`BanError`] but those of the journal.
    pub fn check(&self) -> Result<(), BanError> {
        let socket = self.socket.as_deref().ok_or(BanError::NoSocket { pid: self.pid })?;
        Interface { pid: self.pid, socket, patience: PATIENCE }.list().map(drop)
    }
}

/// The interface of one irqbalance.
struct Interface<'a> {
    pid: i32,
    socket: &'a str,
    /// [`PATIENCE`], or a test's own.
    patience: Duration,
}

impl Interface<'_> {
    /// The lines that it leaves alone because its user, or a request, said so.
    fn list(&self) -> Result<BTreeSet<u32>, BanError> {
        let answer = self.ask("setup")?;
        let strange = || BanError::Strange { pid: self.pid, socket: self.socket.to_owned() };
        parse_list(&answer).ok_or_else(strange)
    }

    fn set_list(&self, lines: &BTreeSet<u32>) -> Result<(), BanError> {
        let list: String = lines.iter().map(|line| format!(" {line}")).collect();
        let list = if lines.is_empty() { " NONE" } else { &list };
        self.ask(&format!("settings ban irqs{list}"))?;
        failpoint::hit("irqbalance");
        Ok(())
    }

    /// Adds a line to what is in the list. If it does not take the line, the list is as before.
    fn add(&self, before: &BTreeSet<u32>, line: u32) -> Result<(), BanError> {
        let mut wanted = before.clone();
        wanted.insert(line);
        self.set_list(&wanted)?;
        if self.list()? == wanted {
            return Ok(());
        }
        // Some versions read no more than so many characters of a list.
        self.set_list(before)?;
        Err(BanError::NotTaken { pid: self.pid, socket: self.socket.to_owned(), line })
    }

    fn ask(&self, request: &str) -> Result<String, BanError> {
        self.exchange(request).map_err(|source| BanError::Silent {
            pid: self.pid,
            socket: self.socket.to_owned(),
            source,
        })
    }

    /// One request on a connection of its own, until the other end is closed.
    fn exchange(&self, request: &str) -> io::Result<String> {
        let address = match self.socket.strip_prefix('@') {
            Some(name) => UnixAddr::new_abstract(name.replace('@', "\0").as_bytes())?,
            None => UnixAddr::new(self.socket)?,
        };
        let flags = SockFlag::SOCK_CLOEXEC;
        let deadline = Instant::now() + self.patience;
        let mut stream =
            UnixStream::from(socket(AddressFamily::Unix, SockType::Stream, flags, None)?);
        // A stopped irqbalance is not waited for. This counts for connect(2), too.
        stream.set_write_timeout(Some(self.patience))?;
        connect(stream.as_raw_fd(), &address)?;
        let owner = getsockopt(&stream, sockopt::PeerCredentials)?;
        if !is_believed(owner.uid()) {
            return Err(io::Error::other(format!("it belongs to user {}", owner.uid())));
        }
        // Whatever root's process says, a request follows. The first one on each socket changes nothing.
        let bytes = [IoSlice::new(request.as_bytes())];
        let credentials = UnixCredentials::new();
        let control = [ControlMessage::ScmCredentials(&credentials)];
        stream.set_write_timeout(Some(time_until(deadline)?))?;
        sendmsg::<()>(stream.as_raw_fd(), &bytes, &control, MsgFlags::MSG_NOSIGNAL, None)?;
        let answer = read_until(&mut stream, deadline)?;
        if owner.pid() != self.pid {
            return Err(io::Error::other(format!("it belongs to process {}", owner.pid())));
        }
        Ok(answer)
    }
}

/// What the other end says until it is closed, or until so much was said. The deadline is one for all of
/// it: an end that says a little now and then would be read without an end.
fn read_until(stream: &mut UnixStream, deadline: Instant) -> io::Result<String> {
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while answer.len() < MAX_ANSWER_BYTES {
        stream.set_read_timeout(Some(time_until(deadline)?))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    String::from_utf8(answer).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

/// The time until a deadline, which is not over.
fn time_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The list in an answer to `setup`: `SLEEP 10 IRQ 4 LOAD .. IRQ 7 LOAD .. BANNED 00000000`.
fn parse_list(answer: &str) -> Option<BTreeSet<u32>> {
    let words: Vec<&str> = answer.split_whitespace().collect();
    if words.first() != Some(&"SLEEP") {
        return None;
    }
    let pairs = words.windows(2).filter(|pair| pair[0] == "IRQ");
    pairs.map(|pair| pair[1].parse().ok()).collect()
}

impl Ban {
    /// Takes the line out of the list again. False: irqbalance has ended, or the line is not there.
    pub(crate) fn lift(&self) -> Result<bool, BanError> {
        if !self.process.is_alive() {
            return Ok(false);
        }
        let pid = self.process.tgid;
        let interface = Interface { pid, socket: &self.socket, patience: PATIENCE };
        let mut list = interface.list()?;
        if !list.remove(&self.line) {
            return Ok(false);
        }
        interface.set_list(&list)?;
        Ok(true)
    }
}

impl Session {
    /// The lines that irqbalance leaves alone because of this session.
    pub fn bans(&self) -> &[Ban] {
        self.state.bans()
    }

    /// Has irqbalance leave a line alone until the session is closed. Nothing is done if it does so
    /// already, or has ended.
    ///
    /// # Errors
    /// All of [`BanError`]; irqbalance goes on to move the line then.
    pub fn ban_line(&mut self, irqbalance: &Irqbalance, line: u32) -> Result<(), BanError> {
        let pid = irqbalance.pid;
        let process = match TaskRef::of(pid) {
            Err(TaskError::Gone { .. }) => return Ok(()),
            process => process?,
        };
        if self.state.bans().iter().any(|ban| ban.process == process && ban.line == line) {
            return Ok(());
        }
        let socket = irqbalance.socket.clone().ok_or(BanError::NoSocket { pid })?;
        let interface = Interface { pid, socket: &socket, patience: PATIENCE };
        let before = interface.list()?;
        if before.contains(&line) {
            return Ok(());
        }
        let ban = Ban { process, socket: socket.clone(), line, time_ns: now_ns() };
        self.write(Entry::Ban(ban.clone()))?;
        if let Err(why) = interface.add(&before, line) {
            // If this fails, too, it is tried again when the session is closed.
            if ban.lift().is_ok() {
                self.end_ban(&ban);
            }
            return Err(why);
        }
        self.compact_if_large();
        Ok(())
    }

    /// Lets irqbalance move a line again. If it cannot be told so, that is tried again when the session
    /// is closed.
    pub fn allow_line(&mut self, line: u32) {
        let bans = self.state.bans().iter().filter(|ban| ban.line == line);
        for ban in bans.cloned().collect::<Vec<Ban>>() {
            match ban.lift() {
                Ok(_) => self.end_ban(&ban),
                Err(why) => tracing::warn!("{why}; it leaves line {line} alone until the end"),
            }
        }
    }

    fn end_ban(&mut self, ban: &Ban) {
        let end = BanEnd { process: ban.process, line: ban.line, time_ns: now_ns() };
        self.write_or_warn(Entry::BanClosed(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    proptest! {
        #[test]
        fn any_list_comes_back(
            lines in prop::collection::btree_set(any::<u32>(), 0..50), sleep in any::<u32>()
        ) {
            let words: String = lines
                .iter()
                .map(|line| format!("IRQ {line} LOAD {sleep} DIFF {line} CLASS 4 "))
                .collect();
            let answer = format!("SLEEP {sleep} {words}BANNED 00000000,0000000f");
            prop_assert_eq!(parse_list(&answer), Some(lines));
        }

        #[test]
        fn garbage_never_panics(text in "(SLEEP )?(.*|(IRQ |[0-9]{0,12} )*)") {
            let _ = parse_list(&text);
        }
    }

    #[test]
    fn the_list_is_read_from_an_answer() {
        let list = |answer: &str| parse_list(answer).map(Vec::from_iter);
        assert_eq!(list("SLEEP 10 BANNED 00000000,00000003"), Some(vec![]));
        let answer = "SLEEP 10 IRQ 27 LOAD 5 DIFF 0 CLASS 4 IRQ 4 LOAD 0 DIFF 1 CLASS 0 BANNED 0";
        assert_eq!(list(answer), Some(vec![4, 27]));
        for strange in ["", "IRQ 4", "SLEEP 10 IRQ x BANNED 0", "HTTP/1.1 400"] {
            assert_eq!(list(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_socket_tells_its_process() {
        assert_eq!(owner_of("irqbalance812.sock"), Some(812));
        for name in ["irqbalance.sock", "irqbalance-1.sock", "irqbalance0.sock", "irqbalance-ui"] {
            assert_eq!(owner_of(name), None, "{name}");
        }
    }

    #[test]
    fn it_is_roots_and_found_by_its_name_or_its_socket() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let process = |pid: i32, name: &str, ids: [u32; 4]| {
            put(&format!("proc/{pid}/comm"), &format!("{name}\n"));
            let ids = ids.map(|id| format!("\t{id}")).concat();
            put(&format!("proc/{pid}/status"), &format!("Name:\t{name}\nUid:{ids}\nGid:\t0\n"));
        };
        let stranger = own_uid() + 1;
        process(1, "init", [0; 4]);
        process(7, "irqbalance", [0; 4]);
        process(8, "irqbalance-ui", [0; 4]);
        process(9, "renamed", [0; 4]);
        process(10, "irqbalance", [0; 4]);
        // Another user's, and what another user has started with root's rights.
        process(12, "irqbalance", [stranger; 4]);
        process(13, "irqbalance", [stranger, 0, 0, 0]);
        put(
            SOCKETS,
            "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 300 @irqbalance1.sock\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 301 @irqbalance10.sock@@\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 302\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 303 /run/systemd/notify\n",
        );
        put("run/irqbalance/irqbalance9.sock", "");
        // Its process has been killed.
        put("run/irqbalance/irqbalance11.sock", "");
        let file = root.path().join("run/irqbalance/irqbalance9.sock");
        let wanted = [
            (7, None),
            (9, Some(file.to_str().unwrap().to_owned())),
            (10, Some("@irqbalance10.sock@@".to_owned())),
        ];
        let found = find_irqbalance(root.path());
        let found: Vec<_> = found.into_iter().map(|it| (it.pid, it.socket)).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn an_answer_that_drips_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("irqbalance.sock");
        let listener = UnixListener::bind(&path).unwrap();
        // It ends by itself some seconds later, as an answer that is whole: that must not be seen.
        let drip = move || {
            let (mut stream, _) = listener.accept().unwrap();
            if stream.read_exact(&mut [0; "setup".len()]).is_err() {
                return;
            }
            for byte in b"SLEEP 10 ".iter().chain([b' '; 1000].iter()) {
                if stream.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let dripping = std::thread::spawn(drip);
        let (pid, socket) = (std::process::id() as i32, path.to_str().unwrap());
        let patience = Duration::from_millis(50);
        let outcome = Interface { pid, socket, patience }.list();
        assert!(matches!(outcome, Err(BanError::Silent { .. })), "{outcome:?}");
        dripping.join().unwrap();
    }
}
