//! A daemon that a test has started, and programs that it may balance.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};

use serde_json::Value;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// A running daemon; it is killed when this is dropped.
pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
}

impl Daemon {
    pub fn start(host: &Host, flags: &[&str]) -> Self {
        Self::start_by(host, &mut host.evenkeel([&["daemon"], flags].concat()))
    }

    pub fn start_by(host: &Host, command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let socket = host.runtime().join("daemon.sock");
        wait_for("the daemon", || UnixStream::connect(&socket).is_ok());
        Self { child, socket }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a request of one line and returns the answer, one line too.
    pub fn ask(&self, request: &Value) -> Value {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        writeln!(stream, "{request}").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn end(mut self) {
        kill(self.pid(), libc::SIGTERM);
        assert!(ended(&mut self.child).success());
        assert!(!self.socket.exists());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A worker that is not balanced yet.
pub fn lone_worker(host: &Host) -> Worker {
    let words = role("worker");
    Worker::start_by(host.command(words[0]).args(&words[1..]), 2)
}
