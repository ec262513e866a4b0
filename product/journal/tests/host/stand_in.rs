//! A stand-in for irqbalance: this process speaks its protocol, as irqbalance(1) describes it.

use std::collections::BTreeSet;
use std::io::{IoSliceMut, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt::PassCred};

/// It answers in a thread, until the process ends.
pub struct StandIn {
    socket: PathBuf,
    list: Arc<Mutex<BTreeSet<u32>>>,
}

impl StandIn {
    /// Listens below `root`, with lines in its list already. It takes no more than `most` lines.
    pub fn start(root: &Path, list: impl IntoIterator<Item = u32>, most: usize) -> Self {
        let folder = root.join("run/irqbalance");
        std::fs::create_dir_all(&folder).unwrap();
        let pid = std::process::id();
        let process = root.join(format!("proc/{pid}"));
        std::fs::create_dir_all(&process).unwrap();
        let status = std::fs::read("/proc/self/status").unwrap();
        std::fs::write(process.join("status"), status).unwrap();
        let socket = folder.join(format!("irqbalance{pid}.sock"));
        let listener = UnixListener::bind(&socket).unwrap();
        setsockopt(&listener, PassCred, &true).unwrap();
        let list = Arc::new(Mutex::new(list.into_iter().collect()));
        let shared = Arc::clone(&list);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &shared, most);
            }
        });
        Self { socket, list }
    }

    pub fn socket(&self) -> String {
        self.socket.to_str().unwrap().to_owned()
    }

    pub fn list(&self) -> Vec<u32> {
        self.list.lock().unwrap().iter().copied().collect()
    }

    pub fn set_list(&self, list: impl IntoIterator<Item = u32>) {
        *self.list.lock().unwrap() = list.into_iter().collect();
    }

    /// Takes its socket away, or gives it back.
    pub fn hide(&self, hidden: bool) {
        let elsewhere = self.socket.with_extension("hidden");
        let (from, to) =
            if hidden { (&self.socket, &elsewhere) } else { (&elsewhere, &self.socket) };
        std::fs::rename(from, to).unwrap();
    }
}

fn answer(mut stream: UnixStream, list: &Mutex<BTreeSet<u32>>, most: usize) {
    let mut bytes = [0; 500];
    let mut control = nix::cmsg_space!(nix::sys::socket::UnixCredentials);
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let descriptor = stream.as_raw_fd();
    let flags = MsgFlags::empty();
    let message = recvmsg::<()>(descriptor, &mut buffers, Some(&mut control), flags).unwrap();
    let credentials = message.cmsgs().unwrap().find_map(|part| match part {
        ControlMessageOwned::ScmCredentials(credentials) => Some(credentials.uid()),
        _ => None,
    });
    let length = message.bytes;
    // Where irqbalance wants root, this wants its own user.
    if credentials != Some(nix::unistd::getuid().as_raw()) {
        return;
    }
    let request = std::str::from_utf8(&bytes[..length]).unwrap().to_owned();
    let mut list = list.lock().unwrap();
    if request == "setup" {
        let lines: String =
            list.iter().map(|line| format!("IRQ {line} LOAD 0 DIFF 0 CLASS 0 ")).collect();
        write!(stream, "SLEEP 10 {lines}BANNED 00000000").unwrap();
    } else {
        let words = request.strip_prefix("settings ban irqs ").unwrap();
        let lines = words.split(' ').filter(|word| *word != "NONE");
        *list = lines.take(most).map(|line| line.parse().unwrap()).collect();
    }
}
