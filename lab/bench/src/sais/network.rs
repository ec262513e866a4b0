//! A client and a server with a cable between them, each a network namespace without a name: they
//! vanish with the process that made them, however it ends.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use evenkeel_journal::{Session, SessionOptions, SupervisedSession, runtime_dir, undo_earlier};
use evenkeel_machine::CpuSet;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// The client's end of the cable.
pub const DEVICE: &str = "client0";
/// The server's.
const SERVER_DEVICE: &str = "server0";
/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);

/// A network namespace that lives as long as this.
pub struct Namespace(File);

impl Namespace {
    fn new() -> Result<Self> {
        let open = || -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
            File::open("/proc/thread-self/ns/net").context("cannot open a network namespace")
        };
        let opened = thread::scope(|scope| scope.spawn(open).join());
        Ok(Self(opened.map_err(|_| anyhow!("a thread of the benchmark has failed"))??))
    }

    /// Has the calling thread, and what it starts, be in the namespace from now on.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn enter(&self) -> Result<()> {
        setns(&self.0, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace")
    }

    /// Does something in a thread that is in the namespace.
    ///
    /// # Errors
    /// Those of the work, or the kernel refused.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let enter = || {
            self.enter()?;
            work()
        };
        let done = thread::scope(|scope| scope.spawn(enter).join());
        done.map_err(|_| anyhow!("a thread of the benchmark has failed"))?
    }

    /// Has what a command starts be in the namespace. (The thread that starts it need not: it may
    /// live longer than one of [`Self::within`], so that
    /// [`evenkeel_experiment::command::end_with_us`] makes sense.)
    pub fn place(&self, command: &mut Command) {
        let namespace = self.0.as_raw_fd();
        let enter = move || {
            // SAFETY: the descriptor is open where the command is started, and this is a copy of that.
            let namespace = unsafe { BorrowedFd::borrow_raw(namespace) };
            Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
        };
        // SAFETY: one system call.
        unsafe { command.pre_exec(enter) };
    }

    fn ip(&self, words: &str) -> Result<()> {
        self.run("ip", words)
    }

    fn run(&self, program: &str, words: &str) -> Result<()> {
        let run = self.within(|| {
            let run = Command::new(program).args(words.split(' ')).output();
            run.with_context(|| format!("cannot run {program} (Debian's package iproute2)"))
        })?;
        if !run.status.success() {
            bail!("{program} {words}: {}", String::from_utf8_lossy(&run.stderr).trim());
        }
        Ok(())
    }

    /// Writes a knob of a device's receive queue, as its namespace's own /sys has it.
    fn write_queue_knob(&self, device: &str, name: &str, value: &str) -> Result<()> {
        self.within(|| {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
            let path = format!("/sys/class/net/{device}/queues/rx-0/{name}");
            fs::write(&path, value).with_context(|| format!("cannot write {path}"))
        })
    }
}

/// A client and a server, and what joins them.
pub struct Network {
    /// Where data is wanted.
    pub client: Namespace,
    /// Where it comes from.
    pub server: Namespace,
}

impl Network {
    /// One cable, in both directions shaped to so many Gb/s if that is given.
    ///
    /// # Errors
    /// No privilege, or no `ip`.
    pub fn new(gbit_per_s: Option<u32>) -> Result<Self> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let path = format!("/proc/{}/fd/{}", std::process::id(), server.0.as_raw_fd());
        client
            .ip(&format!("link add {DEVICE} type veth peer name {SERVER_DEVICE} netns {path}"))?;
        for (namespace, device, end) in [(&client, DEVICE, 1), (&server, SERVER_DEVICE, 2)] {
            namespace.ip(&format!("address add 198.18.1.{end}/24 dev {device}"))?;
            namespace.ip(&format!("link set {device} up"))?;
            if let Some(rate) = gbit_per_s {
                let words = format!(
                    "qdisc add dev {device} root tbf rate {rate}gbit burst 1mb latency 20ms"
                );
                namespace.run("tc", &words)?;
            }
        }
        Ok(Self { client, server })
    }

    /// Receive packet steering to these CPUs; none: off.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn spread(&self, cpus: &CpuSet) -> Result<()> {
        self.client.write_queue_knob(DEVICE, "rps_cpus", &mask(cpus))
    }

    /// Has all packets leave the server on one CPU, if its program runs there: as if they arrived by a
    /// card with one queue, in the order in which they were sent. (What comes over such a cable is
    /// processed where it was sent, and a server also sends where it is told of the ends of earlier
    /// packets: on any CPU.)
    ///
    /// # Errors
    /// The kernel refused.
    pub fn keep_order(&self, sending: u32) -> Result<()> {
        let sending = mask(&[sending].into_iter().collect());
        self.server.write_queue_knob(SERVER_DEVICE, "rps_cpus", &sending)
    }

    /// Receive flow steering with so many entries; 0: off.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn follow_flows(&self, entries: u32) -> Result<()> {
        self.client.write_queue_knob(DEVICE, "rps_flow_cnt", &entries.to_string())
    }
}

/// As knobs have it, of the first 64 CPUs.
fn mask(cpus: &CpuSet) -> String {
    format!("{:x}", cpus.as_words().first().copied().unwrap_or(0))
}

/// The table of receive flow steering, which is the whole machine's: what it was is written to the
/// journal, and back when this is dropped, or by the supervisor when we are killed, unless another
/// process has changed it.
pub struct FlowTable(Option<SupervisedSession>);

const FLOW_TABLE: &str = "/proc/sys/net/core/rps_sock_flow_entries";
/// Its size while receive flow steering is measured.
pub const FLOW_ENTRIES: u32 = 32_768;

impl FlowTable {
    /// Makes it large enough.
    ///
    /// # Errors
    /// There is no journal or no supervisor, or the kernel refused.
    pub fn enlarge() -> Result<Self> {
        let directory = runtime_dir()?;
        undo_earlier(&directory);
        let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let options = SessionOptions { command: command.collect(), ..SessionOptions::default() };
        let session = SupervisedSession::new(
            Session::open(&directory, options)?,
            evenkeel_experiment::executable::supervisor,
        );
        // From here on it is closed whatever happens.
        let mut table = Self(Some(session));
        if let Some(session) = &mut table.0 {
            session
                .supervised()?
                .change_setting(Path::new(FLOW_TABLE), &FLOW_ENTRIES.to_string())?;
        }
        Ok(table)
    }
}

impl Drop for FlowTable {
    fn drop(&mut self) {
        let errors = self.0.take().map(|session| session.close().errors).unwrap_or_default();
        for why in errors {
            tracing::warn!("{why}");
        }
    }
}
