//! A process that lets readers of its files in /proc wait for ever, by a FUSE server that does not
//! answer. The process is of a user without any privileges.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Gid, Pid, Uid, execv, fork, gettid, read, setresgid, setresuid};

/// The user and the file of a holder.
const ROLE: &str = "EVENKEEL_TEST_HOLDS_UP";
/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The size of the file, and of what is mapped.
const PAGE: usize = 4096;

// Of linux/fuse.h: requests, the size of their header, and the sizes of the answers.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const HEADER_BYTES: usize = 40;
const ATTR_BYTES: usize = 104;
const OPEN_BYTES: usize = 16;
const INIT_BYTES: usize = 64;

/// A file system that is one file of a page, in a mount namespace of the calling thread. A read of the
/// file and its closing are never answered.
pub struct Unanswered {
    dir: tempfile::TempDir,
    user: u32,
    /// What waits for an answer.
    asked: Receiver<()>,
}

impl Unanswered {
    /// Only this user may use it.
    pub fn mount(user: u32) -> io::Result<Self> {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
        let (sender, asked) = channel();
        let server = Self { dir, user, asked };
        File::create(server.file())?;
        let fd = device.as_raw_fd();
        let data = format!("fd={fd},rootmode=100644,user_id={user},group_id={user}");
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

/// Answers all requests but those to read and to close, which it only tells of.
fn serve(mut device: File, asked: &Sender<()>) {
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
            READ | FLUSH => {
                let _ = asked.send(());
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

/// A process that is to hold up readers.
pub struct Holder {
    pid: Pid,
    orders: File,
    is_map: bool,
    server: Option<Unanswered>,
}

impl Holder {
    /// It is to hold up those of its command line.
    #[allow(dead_code, reason = "not in each test program")]
    pub fn by_its_memory(server: Unanswered) -> Self {
        let role = format!("{}::role_of_the_holder", module_path!().split_once("::").unwrap().1);
        let (orders, order) = io::pipe().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", &role, "--nocapture"])
            .env(ROLE, format!("{} {}", server.user, server.file().display()))
            .stdin(orders)
            .stdout(Stdio::null())
            .spawn();
        let pid = Pid::from_raw(process.unwrap().id() as i32);
        Self { pid, orders: OwnedFd::from(order).into(), is_map: true, server: Some(server) }
    }

    /// It is to hold up those of its `stat`. Its first thread calls exec, so it keeps its affinity.
    pub fn by_exec(server: Unanswered) -> Self {
        let file = CString::new(server.file().as_os_str().as_bytes()).unwrap();
        let (orders, order) = io::pipe().unwrap();
        // SAFETY: the child makes system calls only, and does not return.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let go = || -> nix::Result<Infallible> {
                    become_user(server.user)?;
                    read(&orders, &mut [0])?;
                    // It is closed on the way.
                    let _file = open(file.as_c_str(), OFlag::O_CLOEXEC, Mode::empty())?;
                    execv(c"/bin/sleep", &[c"sleep", c"600"])
                };
                let _ = go();
                // SAFETY: ends this process only.
                unsafe { nix::libc::_exit(1) }
            }
            ForkResult::Parent { child: pid } => {
                let orders = OwnedFd::from(order).into();
                Self { pid, orders, is_map: false, server: Some(server) }
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// From now on it holds readers up.
    pub fn hold_up(&mut self) {
        let asked = &self.server.as_ref().unwrap().asked;
        self.orders.write_all(b"\n").unwrap();
        // One of its threads holds the lock from here on.
        asked.recv_timeout(PATIENCE).unwrap();
        if self.is_map {
            // Another one is to want it.
            self.orders.write_all(b"\n").unwrap();
            let pid = self.pid();
            wait_for("its wait for the lock", || tasks_of(pid).into_iter().any(is_waiting));
        }
    }

    /// Holds no reader up any more, and goes on.
    #[allow(dead_code, reason = "not in each test program")]
    pub fn let_go(&mut self) {
        drop(self.server.take());
    }

    /// Whether `read` has to wait for this process.
    pub fn makes_wait(&self, read: impl FnOnce() + Send + 'static) -> bool {
        let (sender, tids) = channel();
        let plain = thread::spawn(move || {
            let _ = sender.send(gettid());
            read();
        });
        let tid = tids.recv().unwrap();
        wait_for("a plain read waits or has ended", || plain.is_finished() || is_waiting(tid));
        !plain.is_finished()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = kill(self.pid, Signal::SIGKILL);
        // Its threads do not end before.
        self.server = None;
        let _ = waitpid(self.pid, None);
    }
}

#[test]
#[ignore = "a role"]
fn role_of_the_holder() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (user, path) = role.split_once(' ').unwrap();
    become_user(user.parse().unwrap()).unwrap();
    let next_line = || io::stdin().read_line(&mut String::new()).unwrap();
    next_line();
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
    next_line();
    // SAFETY: the same.
    unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ, private) }.unwrap();
    // To the end of the test.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

fn become_user(user: u32) -> nix::Result<()> {
    let (gid, uid) = (Gid::from_raw(user), Uid::from_raw(user));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    // Or its own memory would be root's.
    prctl::set_dumpable(true)
}

fn tasks_of(pid: i32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.map(Pid::from_raw).collect()
}

/// Whether a thread waits in the kernel for a lock: in many looks in a row, since any thread may wait
/// for a disk for a moment.
fn is_waiting(tid: Pid) -> bool {
    (0..20).all(|_| {
        thread::sleep(Duration::from_millis(5));
        let status = fs::read_to_string(format!("/proc/{tid}/status"));
        status.is_ok_and(|status| status.contains("State:\tD"))
    })
}

pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not so");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What `call` returns, if it is not held up.
#[allow(dead_code, reason = "not in each test program")]
pub fn in_time<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, results) = channel();
    thread::spawn(move || {
        let _ = sender.send(call());
    });
    results.recv_timeout(PATIENCE).unwrap()
}
