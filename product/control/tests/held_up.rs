//! A process that lets each reader of its command line wait: the product's readers do not wait for it.

// In a test a panic is the report, in its helpers too.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_control::{Program, instances};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};

const TEST: &str = "no_reader_of_command_lines_is_held_up";
const ROLE: &str = "EVENKEEL_TEST_HOLDS_UP";
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// The size of the file, and of what is mapped.
const PAGE: usize = 4096;

// Of linux/fuse.h: requests, the size of their header, and the sizes of the answers.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const HEADER_BYTES: usize = 40;
const ATTR_BYTES: usize = 104;
const OPEN_BYTES: usize = 16;
const INIT_BYTES: usize = 64;

/// A file system that is one file of a page, in a mount namespace of the calling thread. A read of the
/// file is never answered.
struct Unanswered {
    dir: tempfile::TempDir,
    /// The reads that wait for an answer.
    reads: Receiver<()>,
}

impl Unanswered {
    fn mount() -> io::Result<Self> {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let dir = tempfile::tempdir()?;
        let (sender, reads) = channel();
        let server = Self { dir, reads };
        File::create(server.file())?;
        let data = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
        let data = Some(data.as_str());
        mount(Some("evenkeel-test"), &server.file(), Some("fuse"), MsFlags::empty(), data)?;
        thread::spawn(move || serve(device, &sender));
        Ok(server)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("file")
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // By force: what waits for an answer gets an error, and so does the server.
        let _ = umount2(&self.file(), MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
    }
}

/// Answers all requests but reads, which it only tells of.
fn serve(mut device: File, reads: &Sender<()>) {
    let mut request = vec![0u8; 1 << 17];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) => length,
            // What asked has given up.
            Err(why) if [ErrorKind::NotFound, ErrorKind::Interrupted].contains(&why.kind()) => {
                continue;
            }
            Err(_) => return,
        };
        let header = &request[..length.min(HEADER_BYTES)];
        let kind = u32::from_ne_bytes(header[4..8].try_into().unwrap());
        let (error, body) = match kind {
            READ => {
                let _ = reads.send(());
                continue;
            }
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            INIT => (0, init()),
            GETATTR => (0, attributes()),
            OPEN => (0, vec![0; OPEN_BYTES]),
            _ => (-nix::libc::ENOSYS, Vec::new()),
        };
        let answer_bytes = (16 + body.len()) as u32;
        let mut answer = answer_bytes.to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(&header[8..16]);
        answer.extend(body);
        let _ = device.write_all(&answer);
    }
}

/// The version of the protocol, 7.31, and how much is written at once.
fn init() -> Vec<u8> {
    let mut body = vec![0; INIT_BYTES];
    for (at, number) in [(0, 7u32), (4, 31), (20, PAGE as u32)] {
        body[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    body
}

/// A file of one page, which its group and others may read, too.
fn attributes() -> Vec<u8> {
    let mut body = vec![0; ATTR_BYTES];
    // For how many seconds this holds; its inode; its size.
    for (at, number) in [(0, 1000u64), (16, 1), (24, PAGE as u64)] {
        body[at..at + 8].copy_from_slice(&number.to_ne_bytes());
    }
    // Its mode; the number of its names.
    for (at, number) in [(76, 0o100_644u32), (80, 1)] {
        body[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    body
}

/// A process that holds up each reader of its command line.
struct Holder {
    process: Child,
    server: Option<Unanswered>,
}

impl Holder {
    fn start(server: Unanswered) -> Self {
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "role_of_the_holder", "--nocapture"])
            .env(ROLE, server.file())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut holder = Self { process, server: Some(server) };
        // One of its threads holds the lock from here on, and another one is to want it.
        holder.server.as_ref().unwrap().reads.recv_timeout(PATIENCE).unwrap();
        holder.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        wait_for("its wait for the lock", || has_waiting_thread(holder.process.id()));
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // Its threads do not end before.
        drop(self.server.take());
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "a role"]
fn role_of_the_holder() {
    let Some(path) = std::env::var_os(ROLE) else { return };
    let file = File::open(path).unwrap();
    // From here on the kernel knows the size.
    assert_eq!(file.metadata().unwrap().len(), PAGE as u64);
    let (length, private) = (NonZeroUsize::new(PAGE).unwrap(), MapFlags::MAP_PRIVATE);
    // SAFETY: a new mapping, which nothing refers to.
    let page = unsafe { mmap(None, length, ProtFlags::PROT_READ, private, &file, 0) }.unwrap();
    let address = page.as_ptr() as u64;
    thread::spawn(move || {
        let memory = File::open("/proc/self/mem").unwrap();
        let _ = memory.read_at(&mut [0], address);
    });
    io::stdin().read_line(&mut String::new()).unwrap();
    // SAFETY: the same.
    unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ, private) }.unwrap();
    // To the end of the test.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

/// Whether a thread of a process waits in the kernel for a lock of memory: in many looks in a row, since
/// any thread may wait for a disk for a moment.
fn has_waiting_thread(pid: u32) -> bool {
    let is_waiting = |task: &Path| {
        fs::read_to_string(task.join("status")).is_ok_and(|status| status.contains("State:\tD"))
    };
    let tasks: Vec<PathBuf> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .map(|task| task.path())
        .collect();
    tasks.iter().any(|task| {
        (0..20).all(|_| {
            thread::sleep(Duration::from_millis(5));
            is_waiting(task)
        })
    })
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not so");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_reader_of_command_lines_is_held_up() {
    let server = match Unanswered::mount() {
        Ok(server) => server,
        Err(why) => return evenkeel_skip::skip(TEST, format!("no FUSE: {why}")),
    };
    let holder = Holder::start(server);
    let pid = holder.process.id();

    // The kernel makes a plain read wait.
    let plain = thread::spawn(move || fs::read(format!("/proc/{pid}/cmdline")).is_ok());
    wait_for("a plain read waits or has ended", || {
        plain.is_finished() || has_waiting_thread(std::process::id())
    });
    if plain.is_finished() {
        return evenkeel_skip::skip(TEST, "this kernel reads a command line without waiting");
    }

    let (sender, results) = channel();
    thread::spawn(move || {
        let file = std::env::current_exe().unwrap().display().to_string();
        // The first one can be told by the command line only, so that of each process is asked for.
        let programs =
            ["/no/such/program", file.as_str()].map(|name| name.parse::<Program>().unwrap());
        let found = instances(&programs);
        let is_holder = found
            .iter()
            .any(|(program, instance)| instance.pid == pid && program.to_string() == file);
        let _ = sender.send(is_holder);
    });
    assert!(results.recv_timeout(PATIENCE).unwrap(), "it is not found by its file");
}
