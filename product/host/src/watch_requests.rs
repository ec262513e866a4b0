//! The request by which a user has a program only watched, and balanced again: `watch`, with the number
//! of the program's first process. A daemon answers it on its socket, and `evenkeel run` on one of its
//! own beside its status file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_control::{Answer, AskError, BindError, Peer, Request, Server, ask_within};
use evenkeel_journal::TaskRef;
use nix::errno::Errno;
use nix::poll::PollFd;
use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::status_file::folder;

/// The request.
const WATCH: &str = "watch";

/// Asks the balancer behind a socket only to watch a program (`watch`), or to balance it again. Each
/// step waits for at most `patience`.
///
/// # Errors
/// Nothing answers there, or the balancer refuses: the program is not its own or not the user's, or
/// nothing could be moved anyhow.
pub fn ask_to_watch(
    socket: &Path,
    root: u32,
    watch: bool,
    patience: Duration,
) -> Result<(), AskError> {
    let request = Request::new(WATCH).with("pid", root).with("watch", watch);
    ask_within(socket, &request, patience).map(drop)
}

/// Where `evenkeel run` answers, by its process.
pub fn run_socket(dir: &Path, balancer: &TaskRef) -> PathBuf {
    folder(dir).join(format!("{}.sock", balancer.tid))
}

/// The answering end of `evenkeel run`.
pub(crate) struct WatchRequests {
    server: Server,
    root: u32,
    /// Requests were read that are not answered yet: poll does not tell of them again.
    is_left: bool,
}

impl WatchRequests {
    /// Answers for the program with this first process.
    pub(crate) fn bind(dir: &Path, balancer: &TaskRef, root: u32) -> Result<Self, BindError> {
        Ok(Self { server: Server::bind(&run_socket(dir, balancer))?, root, is_left: false })
    }

    /// The descriptors to poll.
    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        self.server.poll_fds()
    }

    /// How long the balancer may wait for these descriptors before a request that was read may be
    /// answered, or the next connection accepted. `None`: nothing waits.
    pub(crate) fn patience(&self) -> Option<Duration> {
        if self.is_left { Some(Duration::ZERO) } else { self.server.patience() }
    }

    /// Answers what was asked, a few requests of each connection. Returns what is wanted now, if
    /// anything: whether the program is only to be watched. Where nothing can be moved, that is refused.
    pub(crate) fn serve(&mut self, can_move: bool) -> Option<bool> {
        let (root, mut wanted) = (self.root, None);
        self.is_left = self.server.serve(|peer, request| match decode(request, peer, root) {
            Ok(_) if !can_move => Answer::refused(
                Errno::EPERM,
                "its balancer moves nothing (--dry-run, or no journal)",
            ),
            Ok(watch) => {
                wanted = Some(watch);
                Answer::ok(json!({ "watch": watch }))
            }
            Err(refused) => refused,
        });
        wanted
    }
}

fn decode(request: &Request, peer: &Peer, root: u32) -> Result<bool, Answer> {
    if request.req != WATCH {
        let why = format!("no request \"{}\"; there is {WATCH}", request.req);
        return Err(Answer::refused(Errno::ENOSYS, why));
    }
    // To another user, the program does not exist.
    let is_asked = request.args.get("pid") == Some(&json!(root)) && request.args.len() == 2;
    if !is_asked || !peer.may_steer(geteuid().as_raw()) {
        return Err(Answer::refused(Errno::ESRCH, "you have no such program here"));
    }
    let watch = request.args.get("watch").and_then(Value::as_bool);
    watch.ok_or_else(|| Answer::refused(Errno::EINVAL, "give watch: true or false"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn a_program_is_named_by_its_first_process_and_only_its_user_is_answered() {
        let request =
            |root: u32, watch: Value| Request::new(WATCH).with("pid", root).with("watch", watch);
        let decode = |request: &Request, uid| {
            decode(request, &Peer { uid, pid: 1 }, 7).map_err(|refused| refused.errno)
        };
        let own = geteuid().as_raw();
        assert_eq!(decode(&request(7, true.into()), own), Ok(true));
        assert_eq!(decode(&request(7, false.into()), own), Ok(false));
        assert_eq!(decode(&request(8, true.into()), own), Err(Errno::ESRCH as i32));
        assert_eq!(decode(&request(7, true.into()), own + 1), Err(Errno::ESRCH as i32));
        assert_eq!(decode(&request(7, 1.into()), own), Err(Errno::EINVAL as i32));
        assert_eq!(decode(&Request::new("join"), own), Err(Errno::ENOSYS as i32));
    }

    #[test]
    fn requests_that_came_together_are_all_answered_without_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let own = TaskRef::own_process().unwrap();
        std::fs::create_dir(folder(dir.path())).unwrap();
        let mut requests = WatchRequests::bind(dir.path(), &own, 7).unwrap();
        assert_eq!(requests.patience(), None);
        let line = |watch: bool| Request::new(WATCH).with("pid", 7).with("watch", watch).encode();
        let mut lines = line(true).repeat(20);
        lines.extend(line(false));
        let mut stream = UnixStream::connect(run_socket(dir.path(), &own)).unwrap();
        stream.write_all(&lines).unwrap();
        let mut wanted = vec![requests.serve(true)];
        while requests.patience() == Some(Duration::ZERO) {
            wanted.push(requests.serve(true));
        }
        assert!(wanted.len() > 1, "a turn is too short for all of them");
        assert_eq!(wanted.last(), Some(&Some(false)));
        assert_eq!(requests.patience(), None);
    }

    #[test]
    fn what_is_wanted_is_returned_unless_nothing_can_be_moved() {
        let dir = tempfile::tempdir().unwrap();
        let own = TaskRef::own_process().unwrap();
        std::fs::create_dir(folder(dir.path())).unwrap();
        let socket = run_socket(dir.path(), &own);
        let mut requests = WatchRequests::bind(dir.path(), &own, 7).unwrap();
        let mut ask = |watch, can_move| {
            let socket = socket.clone();
            let patience = Duration::from_secs(60);
            let asking = thread::spawn(move || ask_to_watch(&socket, 7, watch, patience).is_ok());
            let mut wanted = None;
            while !asking.is_finished() {
                wanted = wanted.or(requests.serve(can_move));
                thread::yield_now();
            }
            (asking.join().unwrap(), wanted)
        };
        assert_eq!(ask(true, true), (true, Some(true)));
        assert_eq!(ask(false, true), (true, Some(false)));
        assert_eq!(ask(true, false), (false, None));
        drop(requests);
        assert!(!socket.exists());
    }
}
