//! A virtual card with many receive queues between two network namespaces: threaded NAPI polls each
//! queue in a kernel thread of its own, as the interrupts of a real card would on a CPU of theirs, and
//! a program at the sender chooses the queue of each packet, as a flow director would. (Test bed (a);
//! no virtual machine.) All of it vanishes with the process that made it.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_journal::TaskRef;
use libbpf_rs::libbpf_sys::{
    BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_EGRESS, bpf_insn, bpf_link_create, bpf_prog_load,
    bpf_prog_load_opts,
};
use nix::net::if_::if_nametoindex;

use crate::namespace::Namespace;

/// The client's end of the cable: the card.
pub const DEVICE: &str = "client0";
/// The server's end, at which queues are chosen.
pub const SERVER_DEVICE: &str = "server0";
/// The client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// The server's.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);

/// linux/ethtool.h.
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGRO: u32 = 0x2c;

/// How long the kernel may take to start a thread for each queue, to name it, or to end it.
const PATIENCE: Duration = Duration::from_secs(10);

/// A client with a card with queues, and a server.
pub struct Stage {
    _director: Director,
    /// Where data is wanted.
    pub client: Namespace,
    /// Where it comes from.
    pub server: Namespace,
}

impl Stage {
    /// With so many queues. `None`: this kernel has no TCX (it came with Linux 6.6), so that a sender
    /// cannot choose the queue.
    ///
    /// # Errors
    /// No privilege, no `ip`, or the kernel refused.
    pub fn new(queues: u32) -> Result<Option<Self>> {
        // The threads of an earlier card end some moments after it, and have the same names.
        wait_for_threads(0)?;
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let words = format!("numtxqueues {queues} numrxqueues {queues}");
        let path = server.path();
        client.ip(&format!(
            "link add {DEVICE} {words} type veth peer name {SERVER_DEVICE} {words} netns {path}"
        ))?;
        for (namespace, device, address) in
            [(&client, DEVICE, CLIENT), (&server, SERVER_DEVICE, SERVER)]
        {
            namespace.ip("link set lo up")?;
            namespace.ip(&format!("address add {address}/24 dev {device}"))?;
            namespace.ip(&format!("link set {device} up"))?;
        }
        // It has NAPI instances only while it joins packets; joined ones would go past them.
        client.set_ethtool(DEVICE, ETHTOOL_SGRO, 1)?;
        client.write_sysfs(&format!("class/net/{DEVICE}/threaded"), "1")?;
        server.set_ethtool(SERVER_DEVICE, ETHTOOL_STSO, 0)?;
        wait_for_threads(queues as usize)?;
        let director = server.within(|| Director::start(SERVER_DEVICE))?;
        Ok(director.map(|_director| Self { _director, client, server }))
    }
}

fn wait_for_threads(wanted: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let found = queue_threads()?.len();
        if found == wanted {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            bail!("{DEVICE}: there are {found} threads of queues instead of {wanted}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel threads of the card's queues, that of queue 0 first. (They have numbers of NAPI instances
/// in their names, which the kernel counts up from queue to queue.)
///
/// # Errors
/// The processes cannot be listed.
pub fn queue_threads() -> Result<Vec<TaskRef>> {
    let prefix = format!("napi/{DEVICE}-");
    let entries = std::fs::read_dir("/proc").context("cannot read /proc")?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of = |pid: i32| -> Option<(u32, TaskRef)> {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let napi = name.trim().strip_prefix(&prefix)?.parse().ok()?;
        Some((napi, TaskRef::in_process(pid, pid).ok()?))
    };
    let mut threads: Vec<(u32, TaskRef)> = numbers.filter_map(of).collect();
    threads.sort_by_key(|(napi, _)| *napi);
    Ok(threads.into_iter().map(|(_, thread)| thread).collect())
}

/// Has what a socket of the server sends arrive at this queue of the client.
///
/// # Errors
/// No privilege.
pub fn choose_queue(socket: &impl AsRawFd, queue: u32) -> Result<()> {
    // 0 stands for no choice.
    let mark = queue + 1;
    // SAFETY: the mark is as long as it is said to be.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            (&raw const mark).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot choose a socket's queue");
    }
    Ok(())
}

/// Has each packet that leaves by a device arrive at the queue that its socket's mark says
/// ([`choose_queue`]). It ends when this is dropped.
struct Director(#[allow(dead_code)] OwnedFd, #[allow(dead_code)] OwnedFd);

impl Director {
    /// At a device of the calling thread's network namespace. `None`: this kernel has no TCX.
    fn start(device: &str) -> Result<Option<Self>> {
        let code = |code, registers: (u8, u8), off, imm| {
            let mut insn = bpf_insn { code, off, imm, ..Default::default() };
            insn.set_dst_reg(registers.0);
            insn.set_src_reg(registers.1);
            insn
        };
        // linux/bpf.h, struct __sk_buff: `mark` is at 8, `queue_mapping` at 12; TCX_NEXT is -1.
        let program = [
            code(0x61, (0, 1), 8, 0),
            code(0x63, (1, 0), 12, 0),
            code(0xb7, (0, 0), 0, -1),
            code(0x95, (0, 0), 0, 0),
        ];
        let mut options =
            bpf_prog_load_opts { sz: size_of::<bpf_prog_load_opts>() as u64, ..Default::default() };
        options.expected_attach_type = BPF_TCX_EGRESS;
        // SAFETY: the instructions, the texts and the options outlive the call.
        let loaded = unsafe {
            bpf_prog_load(
                BPF_PROG_TYPE_SCHED_CLS,
                c"director".as_ptr(),
                c"GPL".as_ptr(),
                program.as_ptr(),
                program.len() as u64,
                &raw mut options,
            )
        };
        if loaded < 0 {
            let why = std::io::Error::from_raw_os_error(-loaded);
            return Err(why).context("the kernel refuses the program that chooses queues");
        }
        // SAFETY: it was just made, and is no other's.
        let program = unsafe { OwnedFd::from_raw_fd(loaded) };
        let index = if_nametoindex(device).with_context(|| device.to_owned())? as i32;
        // SAFETY: a descriptor, an index, and no options.
        let link = unsafe { bpf_link_create(loaded, index, BPF_TCX_EGRESS, std::ptr::null()) };
        if link == -libc::EINVAL {
            return Ok(None);
        }
        if link < 0 {
            let why = std::io::Error::from_raw_os_error(-link);
            return Err(why).with_context(|| format!("{device}: queues cannot be chosen"));
        }
        // SAFETY: it was just made, and is no other's.
        let link = unsafe { OwnedFd::from_raw_fd(link) };
        Ok(Some(Self(link, program)))
    }
}
