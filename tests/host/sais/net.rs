//! A client and a server with a router between them, each in a network namespace without a name: the
//! namespaces vanish with the test, however it ends.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

use evenkeel_machine::CpuSet;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::support::output;

/// The client's end of the cable, at which packets are steered.
pub const DEVICE: &str = "client0";
/// The router's end.
pub const PEER: &str = "router0";

/// The server's end.
pub const SERVER: &str = "server0";

/// A network namespace that lives as long as this.
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> Self {
        let open = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let namespace = Self(std::thread::spawn(open).join().unwrap());
        namespace.ip("link set lo up");
        namespace
    }

    /// Does something in a thread that is in the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// `ip` with these words, which must succeed; returns what it says.
    pub fn ip(&self, words: &str) -> String {
        let run = self.within(|| output(Command::new("ip").args(words.split(' '))));
        assert!(run.status.success(), "ip {words}: {run:?}");
        String::from_utf8(run.stdout).unwrap()
    }

    /// A path by which `ip` finds it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Has all packets that arrive at a device processed on one CPU (RPS).
    fn receive_on(&self, device: &str, cpu: u32) {
        let mask = format!("{:x}", 1_u64 << cpu);
        self.write_sysfs(&format!("class/net/{device}/queues/rx-0/rps_cpus"), &mask);
    }

    /// Writes to a file of sysfs as the namespace has it.
    pub fn write_sysfs(&self, file: &str, text: &str) {
        self.within(|| {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).unwrap();
            let mut file = OpenOptions::new().write(true).open(format!("/sys/{file}")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        });
    }

    /// Has a device make checksums at once instead of leaving them to the hardware (`ethtool -K
    /// DEVICE tx off`).
    pub fn make_checksums(&self, device: &str) {
        /// linux/ethtool.h.
        const ETHTOOL_STXCSUM: u32 = 0x17;
        self.set_ethtool(device, ETHTOOL_STXCSUM, 0);
    }

    /// Gives a device a command with a value (linux/ethtool.h, `struct ethtool_value`).
    pub fn set_ethtool(&self, device: &str, command: u32, value: u32) {
        let mut value = [command, value];
        self.within(|| {
            let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
            // SAFETY: all of its fields may be zero.
            let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in asked.ifr_name.iter_mut().zip(device.bytes()) {
                *to = from as libc::c_char;
            }
            asked.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
            // SAFETY: the value outlives the call, and is laid out as its command says.
            let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut asked) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        });
    }

    /// A counter of the namespace in /proc/net/netstat or snmp, for example `TcpExt` `TCPOFOQueue`.
    pub fn counter(&self, group: &str, name: &str) -> u64 {
        let read = |file: &str| std::fs::read_to_string(file).unwrap();
        let files = ["/proc/thread-self/net/netstat", "/proc/thread-self/net/snmp"];
        let text = self.within(|| files.map(read).concat());
        let mut lines = text.lines().filter(|line| line.starts_with(&format!("{group}:")));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let place = names.split(' ').position(|word| word == name).unwrap();
        values.split(' ').nth(place).unwrap().parse().unwrap()
    }
}

/// A client and a server, and what joins them.
pub struct Network {
    pub client: Namespace,
    pub router: Namespace,
    pub server: Namespace,
}

impl Network {
    /// Packets for the client arrive on `cpu`, in the order in which they were sent, as from a
    /// network card with one queue. (All that comes over a virtual cable is processed where it was
    /// sent, and a server sends where it is told of the ends of earlier packets: on any CPU. The
    /// router brings this together.)
    pub fn new(cpu: u32) -> Self {
        let [client, router, server] = [(); 3].map(|()| Namespace::new());
        let path = router.path();
        client.ip(&format!("link add {DEVICE} type veth peer name {PEER} netns {path}"));
        server.ip(&format!("link add {SERVER} type veth peer name router1 netns {path}"));
        for (namespace, device, net, end) in [
            (&client, DEVICE, 0, 1),
            (&router, PEER, 0, 2),
            (&router, "router1", 1, 1),
            (&server, SERVER, 1, 2),
        ] {
            namespace.ip(&format!("address add 198.18.{net}.{end}/24 dev {device}"));
            namespace.ip(&format!("address add 2001:2:0:{net}::{end}/64 dev {device} nodad"));
            namespace.ip(&format!("link set {device} up"));
        }
        client.ip("route add default via 198.18.0.2");
        client.ip("-6 route add default via 2001:2::2");
        server.ip("route add default via 198.18.1.1");
        server.ip("-6 route add default via 2001:2:0:1::1");
        router.within(|| {
            for knob in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                std::fs::write(format!("/proc/sys/net/{knob}"), "1").unwrap();
            }
        });
        router.receive_on("router1", cpu);
        Self { client, router, server }
    }

    /// Client and server at the two ends of one cable, beside a router without a task: routers take the
    /// paper's byte for a malformed option.
    pub fn direct() -> Self {
        let [client, router, server] = [(); 3].map(|()| Namespace::new());
        let path = server.path();
        client.ip(&format!("link add {DEVICE} type veth peer name {SERVER} netns {path}"));
        for (namespace, device, end) in [(&client, DEVICE, 1), (&server, SERVER, 2)] {
            namespace.ip(&format!("address add 198.18.1.{end}/24 dev {device}"));
            namespace.ip(&format!("link set {device} up"));
        }
        Self { client, router, server }
    }

    /// The client's address.
    pub fn client_address() -> IpAddr {
        IpAddr::from([198, 18, 0, 1])
    }

    /// The server's address.
    pub fn address() -> IpAddr {
        IpAddr::from([198, 18, 1, 2])
    }

    /// The server's addresses, IPv4 and IPv6.
    pub fn addresses() -> [IpAddr; 2] {
        [Self::address(), "2001:2:0:1::2".parse().unwrap()]
    }

    /// Whether any XDP program is on the client's device.
    pub fn is_taken(&self) -> bool {
        self.client.ip(&format!("-details link show {DEVICE}")).contains("xdp")
    }
}

/// Lets the calling thread run on these CPUs only.
pub fn run_on(cpus: &CpuSet) {
    evenkeel_journal::affinity::set(nix::unistd::gettid().as_raw(), cpus).unwrap();
}
