//! A network namespace without a name: it vanishes with the process that made it, however that ends.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace that lives as long as this.
pub struct Namespace(File);

impl Namespace {
    /// A new one, without any device that is up.
    ///
    /// # Errors
    /// No privilege.
    pub fn new() -> Result<Self> {
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

    /// A path by which `ip` finds it while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// `ip` with these words.
    ///
    /// # Errors
    /// There is no `ip`, or it failed.
    pub fn ip(&self, words: &str) -> Result<()> {
        self.run("ip", words)
    }

    /// A program of iproute2 with these words.
    ///
    /// # Errors
    /// There is no such program, or it failed.
    pub fn run(&self, program: &str, words: &str) -> Result<()> {
        let run = self.within(|| {
            let run = Command::new(program).args(words.split(' ')).output();
            run.with_context(|| format!("cannot run {program} (Debian's package iproute2)"))
        })?;
        if !run.status.success() {
            bail!("{program} {words}: {}", String::from_utf8_lossy(&run.stderr).trim());
        }
        Ok(())
    }

    /// Writes a knob of a device's receive queue.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn write_queue_knob(
        &self,
        device: &str,
        queue: u32,
        name: &str,
        value: &str,
    ) -> Result<()> {
        self.write_sysfs(&format!("class/net/{device}/queues/rx-{queue}/{name}"), value)
    }

    /// Writes to a file that is there already below /sys, as the namespace has that.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn write_sysfs(&self, file: &str, value: &str) -> Result<()> {
        self.within(|| {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
            let path = format!("/sys/{file}");
            let mut opened =
                OpenOptions::new().write(true).open(&path).with_context(|| path.clone())?;
            opened.write_all(value.as_bytes()).with_context(|| format!("cannot write {path}"))
        })
    }

    /// Gives a device a command with a value (linux/ethtool.h, `struct ethtool_value`).
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_ethtool(&self, device: &str, command: u32, value: u32) -> Result<()> {
        self.within(|| {
            let mut value = [command, value];
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            // SAFETY: all of its fields may be zero.
            let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
            // The last byte stays zero.
            let name = device.bytes().take(asked.ifr_name.len() - 1);
            for (to, from) in asked.ifr_name.iter_mut().zip(name) {
                *to = from as libc::c_char;
            }
            asked.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
            // SAFETY: the value outlives the call, and is laid out as its command says.
            let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut asked) };
            if result != 0 {
                return Err(std::io::Error::last_os_error())
                    .with_context(|| format!("{device}: ethtool command {command:#x}"));
            }
            Ok(())
        })
    }

    /// The namespace's counters of TCP, by name.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn tcp_counters(&self) -> Result<BTreeMap<String, f64>> {
        self.within(|| {
            let mut counters = BTreeMap::new();
            for file in ["snmp", "netstat"] {
                let path = format!("/proc/thread-self/net/{file}");
                let text =
                    fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
                counters.extend(named(&text));
            }
            Ok(counters)
        })
    }
}

/// Of lines in pairs, names and values.
fn named(text: &str) -> Vec<(String, f64)> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Tcp")).collect();
    let pairs = lines.chunks_exact(2).flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_the_names_above_them() {
        let text = "Ip: Forwarding InReceives\nIp: 1 9\nTcp: InSegs RetransSegs MaxConn\nTcp: 70 3 -1\n\
                    TcpExt: TCPHPHits TCPOFOQueue\nTcpExt: 35 2\n";
        let counters: BTreeMap<String, f64> = named(text).into_iter().collect();
        assert_eq!((counters["InSegs"], counters["RetransSegs"]), (70.0, 3.0));
        assert_eq!((counters["TCPHPHits"], counters["TCPOFOQueue"]), (35.0, 2.0));
        assert!(!counters.contains_key("InReceives"));
    }
}
