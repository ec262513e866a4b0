//! What the program on the device costs a packet, in instructions: in a virtual machine with a clock
//! that counts them. The kernel's functions that it calls are measured by themselves, by programs that
//! call nothing else (lab/bpf/bare.bpf.c), so that what is left is its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytemuck::bytes_of;
use evenkeel_machine::CpuSet;
use evenkeel_sais::{Cgroup, Device, Mode, Options, Policy, Serving, Steering};
use evenkeel_vm::{Acceleration, Job, Kernel, Machine, Topology};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use nix::unistd::gettid;
use serde::{Deserialize, Serialize};

use evenkeel_experiment::host::run_on;
use evenkeel_experiment::{AimRow, Wanted, interrupt};

/// lab/bpf/bare.bpf.c, compiled by build.rs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bare.bpf.o"));

/// As tests/vm/kernels calls it.
const KERNEL: &str = "6.18";
const LIMIT_S: u32 = 120;
const PROGRAMS: [&str; 2] = ["/bin/ip", "/sbin/ip"];

/// Of so many runs the least counts, in which no interrupt came between, ...
const RUNS: usize = 20;
/// ... and in each run so many packets are passed.
const PACKETS: u32 = 200;
/// Where packets arrive, and where they are wanted.
const ARRIVING: u32 = 0;
const WANTED: u32 = 1;
/// What is fetched before: enough for the connection to have changed its core.
const WARM_BYTES: usize = 1 << 20;
/// Single packets at the end, and what is between them.
const LAST: usize = 20;
const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(30);

/// What is wanted of the program's own instructions.
const MOST_FLOW: u64 = 160;
const MOST_HINT: u64 = 120;

/// What a packet costs under one mode and policy, in instructions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketCost {
    /// `flow` or `hint`.
    pub mode: String,
    /// The policy.
    pub policy: String,
    /// Whether the packet was handed to another core, or arrived where it is wanted.
    pub is_redirected: bool,
    /// All of it.
    pub total: u64,
    /// Finding the connection in its table, in the kernel's function for that.
    pub find: u64,
    /// Choosing the other core's queue, in the kernel's; 0 where it is not.
    pub redirect: u64,
    /// Asking where the consumer runs, in the kernel's; 0 where it is not.
    pub ask: u64,
    /// The rest: the program's own.
    pub own: u64,
    /// What is wanted of that.
    pub wanted_most: u64,
}

impl PacketCost {
    fn case(&self) -> String {
        let kind = if self.is_redirected { "handed over" } else { "left where it is wanted" };
        format!("a packet that is {kind}, {} mode", self.mode)
    }

    /// What is wanted of the program's own instructions.
    pub(super) fn aim(&self) -> AimRow {
        let most = Wanted::AtMost(self.wanted_most as f64);
        AimRow::counted(&self.case(), "own instructions", &self.policy, self.own as f64, most)
    }

    /// All of it.
    pub(super) fn sentence(&self) -> String {
        let Self { policy, total, find, redirect, ask, own, .. } = self;
        format!(
            "{}, {policy}: {total} instructions, of these {own} are our own; in the kernel {find} find \
             the connection, {ask} ask where its consumer runs, {redirect} choose a queue",
            self.case()
        )
    }
}

/// Boots the machine and has everything measured there.
///
/// # Errors
/// There is no emulator or no kernel, something failed there, or a signal asked for the end.
pub fn measure() -> Result<Vec<PacketCost>> {
    let mut initramfs = evenkeel_experiment::executable::initramfs()?;
    let ip = PROGRAMS.map(Path::new).into_iter().find(|path| path.exists());
    initramfs.program(ip.context("no program `ip` (Debian's package iproute2)")?)?;
    let mut machine =
        Machine::new(Kernel::find(KERNEL)?, Topology::flat(2), initramfs, Acceleration::Counting);
    machine.give_up = || interrupt::asked().is_some();
    let mut guest = machine.boot()?;
    let command = ["/init", "bench", "sais", "--inside"].map(str::to_owned).to_vec();
    let ending = guest.run(Job { command, limit_s: LIMIT_S })?;
    if !ending.is_clean() {
        bail!("{ending}");
    }
    serde_json::from_str(ending.stdout.trim())
        .with_context(|| format!("the guest does not give figures: {}", ending.stdout))
}

/// In the guest: measures, and says it on standard output. Returns the exit code.
///
/// # Errors
/// The kernel refused.
pub fn play() -> Result<i32> {
    let ip = PROGRAMS.into_iter().find(|path| Path::new(path).exists()).context("no ip")?;
    ensure!(Command::new(ip).args(["link", "set", "lo", "up"]).status()?.success(), "no loopback");
    let bare = Bare::load()?;
    let mut costs = Vec::new();
    for (mode, policy, wanted_most) in [
        (Mode::Flow, Policy::Issuer, MOST_FLOW),
        (Mode::Flow, Policy::Runner, MOST_FLOW),
        (Mode::Hint, Policy::Issuer, MOST_HINT),
    ] {
        for consumer in [WANTED, ARRIVING] {
            costs.push(cost(&bare, mode, policy, consumer, wanted_most)?);
        }
    }
    println!("{}", serde_json::to_string(&costs)?);
    Ok(0)
}

/// The least of some runs, in each of which the mean of a packet is told.
fn least(run: impl Fn() -> Result<u64>) -> Result<u64> {
    let runs: Vec<u64> = (0..RUNS).map(|_| run()).collect::<Result<_>>()?;
    runs.into_iter().min().context("nothing was measured")
}

fn cost(
    bare: &Bare,
    mode: Mode,
    policy: Policy,
    consumer: u32,
    wanted_most: u64,
) -> Result<PacketCost> {
    let options = Options {
        device: "lo".into(),
        mode,
        policy,
        peers: vec!["127.0.0.0/8".parse()?],
        ..Options::default()
    };
    let steering = Steering::attach(&Device::find("lo")?, &options, &CpuSet::first(2))?;
    let _serving = match mode {
        Mode::Hint => Some(Serving::start(Cgroup::root()?, &options.peers, None)?),
        Mode::Flow => None,
    };
    let connection = Connection::new(consumer)?;
    run_on(ARRIVING)?;
    let is_redirected = consumer != ARRIVING;
    let total = least(|| {
        let trial = steering.try_packet(connection.local, connection.remote, PACKETS)?;
        ensure!(
            trial.is_redirected == is_redirected,
            "{mode} mode, {policy}: a packet for CPU {consumer} is not where it should be"
        );
        Ok(trial.each_ns)
    })?;
    bare.want(WANTED, connection.consumer)?;
    let nothing = bare.least("nothing")?;
    let of = |name: &str| Ok::<u64, anyhow::Error>(bare.least(name)?.saturating_sub(nothing));
    let find = of("find")?;
    let redirect = if is_redirected { of("redirect")? } else { 0 };
    // With hints the packet says where.
    let asks = mode == Mode::Flow && policy == Policy::Runner;
    let ask = if asks { of("ask")? } else { 0 };
    let total = total.saturating_sub(nothing);
    Ok(PacketCost {
        mode: mode.to_string(),
        policy: policy.to_string(),
        is_redirected,
        total,
        find,
        redirect,
        ask,
        own: total.saturating_sub(find + redirect + ask),
        wanted_most,
    })
}

/// A connection: its packets find their way by now, and its consumer lives as long as this.
struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
    /// The thread.
    consumer: u32,
    /// The other end.
    _server: TcpStream,
    /// Its end says that it may end.
    _end: Sender<()>,
}

impl Connection {
    /// Consumed on this CPU.
    fn new(cpu: u32) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        client.set_read_timeout(Some(PATIENCE))?;
        server.set_nodelay(true)?;
        let (local, remote) = (client.local_addr()?, client.peer_addr()?);
        let ((say, said), (end, ended)) = (channel(), channel::<()>());
        let consume = move || -> Result<()> {
            run_on(cpu)?;
            client.write_all(&[1])?;
            client.read_exact(&mut vec![0; WARM_BYTES])?;
            say.send(gettid().as_raw() as u32)?;
            client.read_exact(&mut [0; LAST])?;
            say.send(0)?;
            // Until the other end is dropped.
            let _ = ended.recv();
            Ok(())
        };
        thread::spawn(consume);
        run_on(ARRIVING)?;
        server.write_all(&vec![7; WARM_BYTES])?;
        let consumer = said.recv().context("the consumer has failed")?;
        // What is sent while acknowledgements come may leave from another core; these do not.
        for _ in 0..LAST {
            thread::sleep(PAUSE);
            server.write_all(&[7])?;
        }
        said.recv().context("the consumer has failed")?;
        Ok(Self { local, remote, consumer, _server: server, _end: end })
    }
}

/// The programs that do nothing else.
struct Bare(Object);

impl Bare {
    fn load() -> Result<Self> {
        let cannot = "the kernel refuses the programs that are measured beside ours";
        let mut open = ObjectBuilder::default().open_memory(OBJECT).context(cannot)?;
        for mut map in open.maps_mut() {
            if map.name() == "threads" {
                map.set_max_entries(libbpf_rs::num_possible_cpus()? as u32).context(cannot)?;
            }
        }
        let bare = Self(open.load().context(cannot)?);
        let (flows, threads) = (bare.map("flows")?, bare.map("threads")?);
        let none = vec![0_u8; flows.value_size() as usize];
        flows.update(&vec![0; flows.key_size() as usize], &none, MapFlags::ANY)?;
        threads.update(&WANTED.to_ne_bytes(), bytes_of(&[64_u32, 0]), MapFlags::ANY)?;
        Ok(bare)
    }

    /// What the programs ask for from now on.
    fn want(&self, core: u32, tid: u32) -> Result<()> {
        let wanted = self.map(".data.wanted")?;
        Ok(wanted.update(&[0; 4], bytes_of(&[core, tid]), MapFlags::ANY)?)
    }

    fn map(&self, name: &str) -> Result<MapHandle> {
        let map = self.0.maps().find(|map| map.name() == name);
        Ok(MapHandle::try_from(&map.context("a map is missing")?)?)
    }

    /// What a run of one of them takes, with all that measuring takes.
    fn least(&self, name: &str) -> Result<u64> {
        const XDP_ABORTED: u32 = 0;
        let program = self.0.progs_mut().find(|program| program.name() == name);
        let program = program.with_context(|| format!("no program {name}"))?;
        let frame = [0_u8; 64];
        least(|| {
            let input =
                ProgramInput { data_in: Some(&frame), repeat: PACKETS, ..ProgramInput::default() };
            let output = program.test_run(input)?;
            ensure!(output.return_value != XDP_ABORTED, "{name} does not do what it is for");
            Ok(output.duration.as_nanos() as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Reached;

    use super::*;

    #[test]
    fn a_packet_that_takes_more_than_is_wanted_misses_it() {
        let cost = |own| PacketCost {
            mode: "hint".into(),
            policy: "issuer".into(),
            is_redirected: true,
            total: own + 297,
            find: 259,
            redirect: 38,
            ask: 0,
            own,
            wanted_most: MOST_HINT,
        };
        let sentence = cost(MOST_HINT).sentence();
        assert!(sentence.contains("417 instructions, of these 120 are our own"), "{sentence}");
        let reached = [MOST_HINT, MOST_HINT + 1].map(|own| cost(own).aim().reached);
        assert_eq!(reached, [Some(Reached::Reached), Some(Reached::Missed)]);
    }
}
