//! What evenkeel says and opens on one node, measured: the messages of a job's ranks to their balancer,
//! its sockets, and the metrics of a daemon. No figure of these depends on how many nodes there are.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_control::{Answer, Request, ask};
use evenkeel_host::daemon::MAX_SERIES;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crowd::Crowd;
use crate::private_daemon::{PrivateDaemon, until};

/// Ranks of the job that is measured.
const RANKS: usize = 4;
/// Programs of the daemon that gives the metrics.
const PROGRAMS: usize = 4;
/// The metric that comes last: ten seconds after a daemon's start, with its first window.
const LAST: &str = "evenkeel_worst_cpu_lost_ratio{";
/// How long an answer of the endpoint may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Talk {
    /// Requests of each rank to the balancer of its node, over the rank's whole life: by the protocol.
    pub requests_a_rank: usize,
    /// Bytes of these and of their answers, on average for a rank: measured.
    pub bytes_a_rank: f64,
    /// Sockets of the balancer over which another machine could be reached.
    pub internet_sockets: usize,
    /// CPUs of the node.
    pub cpus: usize,
    /// Programs at rest that its daemon balances.
    pub programs: usize,
    /// Series of the daemon's metrics.
    pub series: usize,
    /// The most that any daemon exports: [`MAX_SERIES`] of the commit that was measured.
    pub most_series: usize,
    /// Bytes of a scrape.
    pub scrape_bytes: usize,
}

/// Measures all of it.
///
/// # Errors
/// A daemon cannot be started, or does not answer.
pub fn measure(executable: &Path) -> Result<Talk> {
    let (bytes, internet_sockets) = job(executable)?;
    let page = metrics(executable)?;
    Ok(Talk {
        requests_a_rank: REQUESTS.len(),
        bytes_a_rank: bytes as f64 / RANKS as f64,
        internet_sockets,
        cpus: number(&page, "evenkeel_cpus").context("the metrics do not have evenkeel_cpus")?,
        programs: PROGRAMS,
        series: series(&page).count(),
        most_series: MAX_SERIES,
        scrape_bytes: page.len(),
    })
}

/// What `evenkeel run` asks the balancer of its node as one rank of a job, at its begin and its end.
const REQUESTS: [&str; 2] = ["join", "leave"];

/// Bytes that the ranks of a job and their balancer exchange, and the balancer's sockets of the kinds
/// that reach other machines.
fn job(executable: &Path) -> Result<(usize, usize)> {
    let daemon = PrivateDaemon::start(executable, &[])?;
    let ranks = (0..RANKS).map(|_| Crowd::start(0)).collect::<Result<Vec<Crowd>>>()?;
    let mut bytes = 0;
    let mut sockets = 0;
    for name in REQUESTS {
        for rank in &ranks {
            // The name that ranks of a Slurm step have; its numbers may be longer by some digits.
            let request = Request::new(name).with("pid", rank.pid()).with("job", "job-123456.0");
            bytes += request.encode().len();
            bytes += Answer::ok(daemon.ask(&request)?).encode().len();
        }
        sockets = sockets.max(internet_sockets(daemon.pid())?.len());
    }
    Ok((bytes, sockets))
}

/// Sockets of a process in the tables of the internet protocols, as its descriptors name them.
fn internet_sockets(pid: u32) -> Result<BTreeSet<String>> {
    let mut inodes = BTreeSet::new();
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        // The tenth word of each line but the first.
        let words = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9));
        inodes.extend(words.map(|inode| format!("socket:[{inode}]")));
    }
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .with_context(|| format!("cannot see the sockets of process {pid}"))?;
    let targets = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let names = targets.map(|target| target.display().to_string());
    Ok(names.filter(|name| inodes.contains(name)).collect())
}

/// A daemon as a node has it, in a runtime directory of its own. It ends when this is dropped.
struct NodeDaemon {
    child: Child,
    dir: tempfile::TempDir,
}

impl NodeDaemon {
    fn start(executable: &Path, address: &str) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a runtime directory")?;
        let words = ["--config", "/dev/null", "daemon", "--metrics", address];
        // Root's runtime directory is below /run: this process gets another /run.
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = Command::new("unshare");
            let script = "mount --bind \"$0\" /run && exec \"$@\"";
            command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
            command.arg(dir.path()).arg(executable);
            command
        } else {
            let mut command = Command::new(executable);
            command.env("XDG_RUNTIME_DIR", dir.path());
            command
        };
        command.args(words).stdin(Stdio::null());
        let child = command.spawn().context("cannot start a daemon")?;
        let daemon = Self { child, dir };
        until("the daemon", || Ok(daemon.socket().is_some_and(|socket| ping(&socket))))?;
        Ok(daemon)
    }

    /// Its control socket, from outside.
    fn socket(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path().join("evenkeel")).ok()?.flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.extension().is_some_and(|extension| extension == "sock"))
    }
}

fn ping(socket: &Path) -> bool {
    ask(socket, &Request::new("status")).is_ok()
}

impl Drop for NodeDaemon {
    fn drop(&mut self) {
        // SAFETY: two integers; the process is our own child.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

/// A daemon's page of metrics, with all programs and all that comes later.
fn metrics(executable: &Path) -> Result<String> {
    let free = TcpListener::bind("127.0.0.1:0").context("cannot find a free port")?;
    let address = free.local_addr()?.to_string();
    drop(free);
    let daemon = NodeDaemon::start(executable, &address)?;
    let socket = daemon.socket().context("the daemon has no socket")?;
    let crowds = (0..PROGRAMS).map(|_| Crowd::start(0)).collect::<Result<Vec<Crowd>>>()?;
    for crowd in &crowds {
        ask(&socket, &Request::new("join").with("pid", crowd.pid()))?;
    }
    let mut page = String::new();
    until("its metrics", || {
        page = scrape(&address)?;
        Ok(is_whole(&page))
    })?;
    Ok(page)
}

/// Whether a page of metrics has what comes some time after the daemon's start.
fn is_whole(page: &str) -> bool {
    let has_all = number(page, "evenkeel_programs") == Some(PROGRAMS);
    has_all && series(page).any(|line| line.starts_with(LAST))
}

/// The body of a page of metrics.
fn scrape(address: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).context("the metrics do not answer")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").context("the metrics have no body")?;
    Ok(body.to_owned())
}

/// The series of a page: its lines that are neither descriptions nor the end.
fn series(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// The value of a series without labels, which is a whole number.
fn number(page: &str, name: &str) -> Option<usize> {
    series(page).find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use evenkeel_host::daemon::{METRICS, Statistics};

    use super::*;

    #[test]
    fn the_daemons_own_page_is_read_and_waited_for_until_it_is_whole() {
        let page = |programs: usize, worst: &[(&'static str, u64)]| {
            let worst_cpu_lost_milli = worst.iter().copied().collect();
            let programs = programs as u64;
            Statistics { programs, cpus: 3, worst_cpu_lost_milli, ..Statistics::default() }
                .to_openmetrics()
        };
        let worst = [("irq", 1), ("softirq", 250)];
        let early = page(PROGRAMS, &[]);
        assert!(!is_whole(&early), "{early}");
        assert!(!is_whole(&page(PROGRAMS - 1, &worst)), "a program is missing");
        let whole = page(PROGRAMS, &worst);
        assert!(is_whole(&whole), "{whole}");
        assert_eq!(number(&whole, "evenkeel_cpus"), Some(3), "{whole}");
        assert_eq!(number(&whole, "evenkeel_cp"), None, "{whole}");
        // Those that there is one of on each node, and those of the causes.
        let single = METRICS.iter().filter(|metric| metric.most_series == 1).count();
        assert_eq!(series(&early).count(), single, "{early}");
        assert_eq!(series(&whole).count(), single + worst.len(), "{whole}");
    }

    #[test]
    fn a_socket_of_the_network_is_seen_and_one_of_this_machine_is_not() {
        let (local, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = internet_sockets(std::process::id()).unwrap();
        let name = |fd: i32| {
            std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().display().to_string()
        };
        assert!(found.contains(&name(listener.as_raw_fd())), "{found:?}");
        assert!(!found.contains(&name(local.as_raw_fd())), "{found:?}");
    }
}
