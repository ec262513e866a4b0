//! Real programs, unmodified, from the distribution: nginx sends files to ab, and iperf3 to itself.
//! `scripts/programs` has unpacked them into the cache; they are started in the two namespaces for
//! each run, and ended after it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::network::{Network, SERVER};
use super::{Begin, Times, Transferred};
use evenkeel_experiment::command::{Helper, end_with_us};

const PORT: u16 = 9080;
/// Connections of the client.
const CONNECTIONS: &str = "4";
/// A server listens by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// nginx, and ab asking.
    Nginx,
    /// iperf3, the server sending.
    Iperf3,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Nginx, Self::Iperf3];

    /// The case in the report.
    pub fn case(self) -> &'static str {
        match self {
            Self::Nginx => "nginx, ab: 4 connections, 1 MiB",
            Self::Iperf3 => "iperf3: 4 connections",
        }
    }
}

/// What was looked for, too.
const FILE_SYSTEMS: [&str; 3] = ["nfs", "nfs4", "cifs"];

/// What could have been among them, and is not.
pub fn not_tried() -> String {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known =
        |name: &&str| known.lines().any(|line| line.split_whitespace().last() == Some(*name));
    let found: Vec<&str> = FILE_SYSTEMS.into_iter().filter(is_known).collect();
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    format!(
        "not tried: IOR, which is not in Debian; network file systems, of which this kernel has {found} \
         (of {})",
        FILE_SYSTEMS.join(", ")
    )
}

/// Where they are.
#[derive(Debug)]
pub struct Programs {
    root: PathBuf,
    libraries: PathBuf,
}

impl Programs {
    /// Finds them.
    ///
    /// # Errors
    /// They have not been fetched.
    pub fn find() -> Result<Self> {
        let root = evenkeel_vm::cache().join("programs/usr");
        let directories = fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
        let libraries = directories
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with("-linux-gnu"));
        let libraries = libraries
            .with_context(|| format!("no programs in {}: run scripts/programs", root.display()))?;
        Ok(Self { root, libraries })
    }

    fn command(&self, name: &str, words: &[&str]) -> Command {
        let mut command = Command::new(self.root.join(name));
        command.args(words).env("LD_LIBRARY_PATH", &self.libraries).stdin(Stdio::null());
        command
    }

    /// Transfers for so long, in whole seconds: once to warm up, and once more.
    ///
    /// # Errors
    /// A program cannot be started, or fails.
    pub(super) fn run(
        &self,
        program: Program,
        network: &Network,
        times: Times,
        begin: &mut Begin<'_>,
    ) -> Result<Transferred> {
        let transfer = match program {
            Program::Nginx => Self::fetch,
            Program::Iperf3 => Self::stream,
        };
        let _server = self.server(program, network)?;
        transfer(self, network, &seconds(times.warm_up))?;
        begin();
        let (bytes, time) = transfer(self, network, &seconds(times.measured))?;
        Ok(Transferred { bytes, time, ..Transferred::default() })
    }

    fn server(&self, program: Program, network: &Network) -> Result<Helper> {
        let port = PORT.to_string();
        match program {
            Program::Nginx => {
                let binary = self.root.join("sbin/nginx").display().to_string();
                let words = ["--mount", "sh", "-c", SERVE_FROM_MEMORY, &binary];
                let mut command = Command::new("unshare");
                command.args(words).env("LD_LIBRARY_PATH", &self.libraries);
                start_server(command, network, &nginx_conf())
            }
            Program::Iperf3 => {
                start_server(self.command("bin/iperf3", &["-s", "-p", &port]), network, "")
            }
        }
    }

    fn fetch(&self, network: &Network, seconds: &str) -> Result<(u64, Duration)> {
        let address = format!("http://{SERVER}:{PORT}/file");
        let words = ["-q", "-k", "-t", seconds, "-n", "1000000", "-c", CONNECTIONS, &address];
        said_by_ab(&self.client("bin/ab", &words, network)?)
    }

    fn stream(&self, network: &Network, seconds: &str) -> Result<(u64, Duration)> {
        let (server, port) = (SERVER.to_string(), PORT.to_string());
        let words = ["-c", &server, "-p", &port, "-R", "-t", seconds, "-P", CONNECTIONS, "-J"];
        said_by_iperf3(&self.client("bin/iperf3", &words, network)?)
    }

    fn client(&self, name: &str, words: &[&str], network: &Network) -> Result<String> {
        let mut command = self.command(name, words);
        network.client.place(&mut command);
        end_with_us(&mut command);
        let run = command.output()?;
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        ensure!(run.status.success(), "{name}: {}: {said}", run.status);
        Ok(said)
    }
}

/// As programs are told it.
fn seconds(time: Duration) -> String {
    time.as_secs_f64().ceil().to_string()
}

/// Starts a server in its namespace with this as its standard input, and waits until it listens.
fn start_server(mut command: Command, network: &Network, input: &str) -> Result<Helper> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    network.server.place(&mut command);
    end_with_us(&mut command);
    let mut server = Helper(command.spawn()?);
    if let Some(mut place) = server.0.stdin.take() {
        place.write_all(input.as_bytes())?;
    }
    let start = Instant::now();
    while !network.server.within(|| Ok(is_listening()))? {
        if let Some(status) = server.0.try_wait()? {
            bail!("the server ended: {status}");
        }
        ensure!(start.elapsed() < PATIENCE, "the server does not listen");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}
/// Whether a process in this network namespace listens at the port: a connection to try would be one
/// that a server of a single client has to get rid of first.
fn is_listening() -> bool {
    const LISTENING: &str = "0A";
    let port = format!(":{PORT:04X}");
    let is_meant = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|local| local.ends_with(&port)) && state == Some(LISTENING)
    };
    ["tcp", "tcp6"].into_iter().any(|family| {
        let path = format!("/proc/thread-self/net/{family}");
        fs::read_to_string(path).unwrap_or_default().lines().any(is_meant)
    })
}

/// Has all that nginx reads and writes lie in a file system that no other process sees, and that
/// vanishes with it; its configuration comes by standard input.
const SERVE_FROM_MEMORY: &str = "mount -t tmpfs evenkeel-bench /dev/shm && \
                                 cat > /dev/shm/nginx.conf && \
    head --bytes 1M /dev/zero > /dev/shm/file && exec \"$0\" -c /dev/shm/nginx.conf -e stderr";

fn nginx_conf() -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("    {name}_temp_path /dev/shm/{name};\n"))
        .concat();
    format!(
        "daemon off;\nuser root;\nworker_processes 2;\npid /dev/shm/pid;\nevents {{}}\nhttp {{\n    \
         access_log off;\n    sendfile on;\n    keepalive_requests 10000000;\n{temporary}    \
         server {{ listen {PORT}; root /dev/shm; }}\n}}\n"
    )
}

/// The word behind these.
fn after<'a>(said: &'a str, words: &str) -> Option<&'a str> {
    said.split_once(words)?.1.split_whitespace().next()
}

fn said_by_ab(said: &str) -> Result<(u64, Duration)> {
    let figures = || -> Option<(u64, Duration)> {
        let seconds: f64 = after(said, "Time taken for tests:")?.parse().ok()?;
        let failed: u64 = after(said, "Failed requests:")?.parse().ok()?;
        let bytes = after(said, "HTML transferred:")?.parse().ok()?;
        (failed == 0).then_some((bytes, Duration::try_from_secs_f64(seconds).ok()?))
    };
    figures().with_context(|| format!("ab does not say how much it fetched: {said}"))
}

fn said_by_iperf3(said: &str) -> Result<(u64, Duration)> {
    let said: Value = serde_json::from_str(said).context("iperf3 does not give JSON")?;
    let sum = &said["end"]["sum_received"];
    let seconds = sum["seconds"].as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
    sum["bytes"].as_u64().zip(seconds).context("iperf3 does not say how much it received")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ab_says_is_understood() {
        let said = "Time taken for tests:   2.500 seconds\nComplete requests:      9\n\
                    Failed requests:        0\nTotal transferred:      1000 bytes\n\
                    HTML transferred:       900 bytes\n";
        assert_eq!(said_by_ab(said).unwrap(), (900, Duration::from_millis(2500)));
        assert!(said_by_ab(&said.replace("        0", "        3")).is_err());
        assert!(said_by_ab("").is_err());
    }

    #[test]
    fn what_iperf3_says_is_understood() {
        let said = r#"{"end":{"sum_received":{"seconds":1.5,"bytes":123456}}}"#;
        assert_eq!(said_by_iperf3(said).unwrap(), (123_456, Duration::from_millis(1500)));
        assert!(said_by_iperf3("{}").is_err() && said_by_iperf3("error").is_err());
    }
}
