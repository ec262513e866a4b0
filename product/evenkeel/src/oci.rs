//! `evenkeel oci-hook`: a hook of OCI container runtimes (runc, crun, youki) at the stage `poststart`,
//! which lets the processes of a container join the node's daemon, if the container's annotations ask
//! for it. packaging/oci has the hook's configuration.
//!
//! It never fails a container: whatever goes wrong, within [`TIME_LIMIT`] it ends with exit code 0 and
//! one line on standard error. It believes nothing that the state says without a look at it: annotations
//! are written by the user that starts the container, and a process number may belong to another process
//! by now.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write, stderr, stdin};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_control::Request;
use evenkeel_journal::TaskRef;
use serde::Deserialize;
use serde_json::Value;

use crate::daemon_client::ask_daemon_within;
use crate::terminal::{clean, in_full};

/// The name of the command.
pub const COMMAND: &str = "oci-hook";
/// The annotation that says what is to be done with a container.
const ANNOTATION: &str = "evenkeel.io/mode";
/// How long the start of a container may wait for the hook.
const TIME_LIMIT: Duration = Duration::from_secs(2);
/// How long each step of a request to the daemon may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// The longest state that is read, in bytes: Kubernetes lets all annotations of a pod have 256 KiB.
const MAX_STATE_BYTES: u64 = 1024 * 1024;
/// The longest line that is printed, and the longest name of a container in it, in characters.
const MAX_LINE: usize = 400;
const MAX_ID: usize = 64;
/// The socket of the system's log (syslog(3)).
const LOG: &str = "/dev/log";
/// A warning of a service, as syslog(3) numbers it.
const LOG_WARNING: u8 = 3 * 8 + 4;

/// The state of a container, as far as it is used (OCI runtime specification, "State"). The runtime adds
/// other fields.
#[derive(Debug, Deserialize)]
struct State {
    #[serde(default)]
    id: String,
    /// The container's first process, in the PID namespace of the runtime.
    #[serde(default)]
    pid: Option<Value>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, Value>>,
}

/// What is to be done with a container that joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Run,
    Watch,
}

/// A container that asks to join.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    /// Its name, for people.
    id: String,
    mode: Mode,
    pid: i32,
}

/// Runs the hook.
///
/// # Errors
/// Why the container runs without evenkeel although it asked for it: for [`exit_code`].
pub fn main() -> Result<i32> {
    let (send, ended) = channel();
    let work = move || {
        // Where the time is over, this is not waited for any more.
        let _ = send.send(serve(stdin()));
    };
    std::thread::Builder::new().spawn(work).context("no thread can be started")?;
    match ended.recv_timeout(TIME_LIMIT) {
        Ok(result) => result.map(|()| 0),
        Err(RecvTimeoutError::Timeout) => {
            bail!("nothing came of it within {} s", TIME_LIMIT.as_secs())
        }
        Err(RecvTimeoutError::Disconnected) => bail!("the hook has failed"),
    }
}

/// The exit code of the hook, whatever became of it: 0. An error is one line on standard error and in
/// the system's log.
pub fn exit_code(outcome: Result<i32>) -> ExitCode {
    if let Err(why) = outcome {
        say(&in_full(&why));
    }
    ExitCode::SUCCESS
}

/// Ends the hook, which was called in a way that it does not know.
pub fn leave_alone(why: &str) -> ! {
    say(why.trim_start_matches("error: ").lines().next().unwrap_or_default());
    std::process::exit(0)
}

fn serve(input: impl Read) -> Result<()> {
    let Some(asked) = read(input)? else { return Ok(()) };
    join(&asked).with_context(|| format!("container {}", asked.id))
}

/// The container of a state, if it asks to join.
///
/// # Errors
/// It is no state, or what it asks for is not known.
fn read(input: impl Read) -> Result<Option<Asked>> {
    let mut text = Vec::new();
    input
        .take(MAX_STATE_BYTES + 1)
        .read_to_end(&mut text)
        .context("the state of the container cannot be read from standard input")?;
    if text.len() as u64 > MAX_STATE_BYTES {
        bail!("the state of the container has more than {MAX_STATE_BYTES} bytes");
    }
    let state: State = serde_json::from_slice(&text).context(
        "standard input has no state of a container (is this a hook of an OCI runtime?)",
    )?;
    let Some(mode) = state.annotations.unwrap_or_default().remove(ANNOTATION) else {
        return Ok(None);
    };
    let id: String = state.id.chars().take(MAX_ID).collect();
    let mode = match mode.as_str() {
        Some("run") => Mode::Run,
        Some("watch") => Mode::Watch,
        Some("off") => return Ok(None),
        _ => bail!("container {id}: {ANNOTATION} is {mode}: give run, watch or off"),
    };
    let pid = match state.pid {
        None => bail!("container {id} has no process yet: call the hook at the stage poststart"),
        Some(pid) => pid.as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0),
    };
    let Some(pid) = pid else {
        bail!("container {id} has no process: call the hook at the stage poststart");
    };
    Ok(Some(Asked { id, mode, pid }))
}

/// Lets the container's first process join the daemon with all its descendants.
fn join(asked: &Asked) -> Result<()> {
    let pid = asked.pid;
    let process = TaskRef::in_process(pid, pid)
        .with_context(|| format!("its process {pid} cannot be found; it may have ended"))?;
    check_is_contained(pid)?;
    // The daemon takes this process only: not another one that has got its number meanwhile, or that has
    // this number in the daemon's PID namespace.
    let request = Request::new("join")
        .with("pid", pid)
        .with("start", process.start_time_ticks)
        .with("watch", asked.mode == Mode::Watch);
    ask_daemon_within(&request, PATIENCE)?;
    Ok(())
}

/// Checks that a process is in a container: with another mount namespace than this process, which the
/// runtime has started. A process number that was used again is hardly ever that of one.
///
/// # Errors
/// It is in none, or that cannot be seen.
fn check_is_contained(pid: i32) -> Result<()> {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt"));
    let own = namespace("self").context("the own mount namespace cannot be seen")?;
    let its = namespace(&pid.to_string())
        .with_context(|| format!("the mount namespace of its process {pid} cannot be seen"))?;
    if its == own {
        bail!("process {pid} is in no container: it has the mount namespace of the hook");
    }
    Ok(())
}

/// Says what went wrong in one line, whatever the text: parts of it come from the user that started the
/// container.
fn say(why: &str) {
    let line = line(why);
    let _ = stderr().write_all(format!("evenkeel: {line}\n").as_bytes());
    // Runtimes throw away what a hook prints that has not failed.
    log(Path::new(LOG), &line);
}

/// Sends a line to the system's log, if that takes it at once.
fn log(socket: &Path, line: &str) {
    let message = format!("<{LOG_WARNING}>evenkeel[{}]: {line}", std::process::id());
    let send = || -> std::io::Result<usize> {
        let datagram = UnixDatagram::unbound()?;
        datagram.set_nonblocking(true)?;
        datagram.send_to(message.as_bytes(), socket)
    };
    let _ = send();
}

fn line(why: &str) -> String {
    let start: String = why.chars().take(MAX_LINE).collect();
    format!("{}; the container runs without evenkeel", clean(&start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn state(pid: &str, annotations: &str) -> String {
        format!(
            r#"{{"ociVersion":"1.0.2","id":"c1","status":"running","pid":{pid},"bundle":"/b",
                "annotations":{annotations}}}"#
        )
    }

    fn read_text(text: &str) -> Result<Option<Asked>, String> {
        read(text.as_bytes()).map_err(|why| in_full(&why))
    }

    fn with_mode(mode: &str) -> String {
        state("77", &format!(r#"{{"a":"b","evenkeel.io/mode":{mode}}}"#))
    }

    #[test]
    fn the_annotation_says_what_is_done() {
        let asked = |mode| Ok(Some(Asked { id: "c1".to_owned(), mode, pid: 77 }));
        assert_eq!(read_text(&with_mode(r#""run""#)), asked(Mode::Run));
        assert_eq!(read_text(&with_mode(r#""watch""#)), asked(Mode::Watch));
        assert_eq!(read_text(&with_mode(r#""off""#)), Ok(None));
        for annotations in ["{}", "null", r#"{"evenkeel.io/modes":"run"}"#] {
            assert_eq!(read_text(&state("77", annotations)), Ok(None), "{annotations}");
        }
        assert_eq!(read_text(r#"{"id":"c1","pid":77}"#), Ok(None));
        for mode in [r#""RUN""#, r#""""#, "true", "null", "7", r#"{"run":1}"#] {
            let why = read_text(&with_mode(mode)).unwrap_err();
            assert!(why.contains("give run, watch or off"), "{mode}: {why}");
        }
    }

    #[test]
    fn what_is_no_state_is_refused() {
        for text in [
            "",
            "7",
            "{",
            "\0",
            r#"{"id":7}"#,
            r#"{"id":"a","id":"b"}"#,
            r#"{"annotations":[]}"#,
            r#"{"id":"c1","pid":77}{"#,
        ] {
            let why = read_text(text).unwrap_err();
            assert!(why.contains("no state of a container"), "{text}: {why}");
        }
        let deep = format!("{{\"x\":{}", "[".repeat(100_000));
        assert!(read_text(&deep).is_err());
    }

    #[test]
    fn numbers_that_are_no_process_are_refused() {
        let run = r#"{"evenkeel.io/mode":"run"}"#;
        for pid in ["0", "-1", "2147483648", "1e30", "7.5", "\"77\"", "null", "[]", "true"] {
            let why = read_text(&state(pid, run)).unwrap_err();
            assert!(why.contains("has no process"), "{pid}: {why}");
        }
        assert!(read_text(&state("2147483647", run)).is_ok());
        // Without the annotation, nothing is asked for.
        assert_eq!(read_text(&state("-1", "{}")), Ok(None));
    }

    #[test]
    fn a_state_without_end_is_not_read_to_its_end() {
        let endless = || std::io::repeat(b' ');
        assert!(in_full(&read(endless()).unwrap_err()).contains("more than 1048576 bytes"));
        let text = with_mode(r#""run""#);
        let padded = format!("{text}{}", " ".repeat(MAX_STATE_BYTES as usize - text.len()));
        assert!(read_text(&padded).is_ok());
        assert!(read_text(&format!("{padded} ")).is_err());
    }

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_that_has_ended_or_is_in_no_container_does_not_join() {
        let why = |pid| {
            let asked = Asked { id: "c1".to_owned(), mode: Mode::Run, pid };
            in_full(&join(&asked).unwrap_err())
        };
        let mut sleeper = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
        let pid = sleeper.0.id() as i32;
        assert!(why(pid).contains("is in no container"), "{}", why(pid));
        sleeper.0.kill().unwrap();
        sleeper.0.wait().unwrap();
        assert!(why(pid).contains("it may have ended"), "{}", why(pid));
        // A thread of another process is no process.
        assert!(why(i32::MAX).contains("it may have ended"));
    }

    #[test]
    fn what_is_said_is_one_line_without_control_characters() {
        let said = line("container \u{1b}[31mx\ny\r\u{202e}\0: no daemon\u{9b}7m");
        assert!(!said.chars().any(char::is_control), "{said:?}");
        assert!(said.contains("x?y???: no"), "{said:?}");
        assert!(line(&"x\n".repeat(100_000)).len() < 3 * MAX_LINE);
        let text = with_mode(r#""warp""#).replace("c1", &"c".repeat(100_000));
        assert!(read_text(&text).unwrap_err().contains("give run, watch or off"));
    }

    #[test]
    fn the_log_gets_the_line_and_is_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        log(&path, "there is no log");
        let listener = UnixDatagram::bind(&path).unwrap();
        log(&path, "no daemon runs");
        let mut text = [0; 100];
        let length = listener.recv(&mut text).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        assert!(text.starts_with("<28>evenkeel[") && text.ends_with("]: no daemon runs"), "{text}");
        // Far more than a socket holds.
        (0..10_000).for_each(|_| log(&path, "full"));
    }
}
