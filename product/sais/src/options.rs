//! Which core a packet goes to, and which cores may be used.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_machine::CpuSet;
use ipnet::IpNet;

use crate::layout::MAX_CPUS;
use crate::measure::StripTimes;

/// What the paper's byte can name.
const MAX_PAPER_CORE: u32 = 31;

/// An option that makes no sense, or not on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No such policy.
    #[error(
        "policy \"{0}\": there are issuer, runner, least-loaded, dedicated:CPU (with the number \
         of a CPU) and auto"
    )]
    Policy(String),
    /// No such way to attach.
    #[error("\"{0}\": there are auto, native and generic")]
    Xdp(String),
    /// No such mode.
    #[error("mode \"{0}\": there are flow and hint")]
    Mode(String),
    /// No such wire format.
    #[error("wire format \"{0}\": there are tcp and paper")]
    Wire(String),
    /// Not two times.
    #[error(
        "\"{0}\": two times in microseconds are meant, of fetching a strip from another core's cache \
         and of handing it over, for example 12,8"
    )]
    StripTimes(String),
    /// The paper's byte is too small.
    #[error(
        "CPU {core}: the paper's wire format has five bits for a core: use --cpus within 0-31, or \
         --wire tcp"
    )]
    FiveBits {
        /// The first beyond.
        core: u32,
    },
    /// The paper's byte goes behind TCP's back, by a device.
    #[error(
        "--wire paper needs --device, the network device by which packets leave to the clients"
    )]
    NoDevice,
    /// Packets go elsewhere than where the consumer is to stay.
    #[error(
        "--hold keeps a thread on the core to which its packets go; with --policy {policy} that is not \
         where it asked: use --policy issuer, runner or auto"
    )]
    Hold {
        /// The policy.
        policy: Policy,
    },
    /// The kernel's own steering cannot do that.
    #[error(
        "--manage-rfs has the kernel send packets to the core that received last, whichever that is: \
         use it with --policy auto, in flow mode, and without --cpus"
    )]
    ManageRfs,
    /// Hints that no host may get.
    #[error(
        "--mode hint needs --peers, the networks that hints may be sent to (they tell this machine's \
         CPUs, and some networks drop what they do not know), for example --peers 10.0.0.0/8"
    )]
    NoPeers,
    /// Hints that come from no host.
    #[error(
        "sais serve needs --peers, the networks of the clients that hints go back to, for example \
         --peers 10.0.0.0/8 (all hosts: --peers 0.0.0.0/0,::/0)"
    )]
    NoClients,
    /// No table, but what needs one.
    #[error(
        "--stateless believes the hint of each packet by itself: use it with --mode hint, and with \
         another policy than auto, which compares connections"
    )]
    Stateless,
    /// Cores that the machine does not have.
    #[error("CPUs {given}: this machine has CPUs {online} online; name some of these")]
    OutOfRange {
        /// What was asked for.
        given: CpuSet,
        /// What there is.
        online: CpuSet,
    },
    /// No cores at all.
    #[error("no CPU is left that packets may be sent to: name at least one of {online}")]
    NoCpu {
        /// What there is.
        online: CpuSet,
    },
    /// The dedicated core is none of the allowed ones.
    #[error("dedicated:{core}: packets may only be sent to CPUs {allowed}; choose one of these")]
    Dedicated {
        /// What was asked for.
        core: u32,
        /// What may be used.
        allowed: CpuSet,
    },
    /// More CPUs than there is room for.
    #[error("CPU {core}: packets can be steered to the first {MAX_CPUS} CPUs only: use --cpus")]
    TooMany {
        /// The first beyond.
        core: u32,
    },
}

/// From where it is known which core waits for a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// From this machine's sockets: no server has to take part.
    #[default]
    Flow,
    /// From the packet: the server gave the hint back that it was sent, the paper's way.
    Hint,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Flow { "flow" } else { "hint" })
    }
}

impl FromStr for Mode {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        [Self::Flow, Self::Hint]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| OptionError::Mode(text.to_owned()))
    }
}

/// How a server gives hints back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wire {
    /// In a TCP option, with a tag that tells good hints from bad ones.
    #[default]
    Tcp,
    /// In a byte of IPv4 options, as the paper has it: for networks of one's own, without routers
    /// that mind.
    Paper,
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Tcp { "tcp" } else { "paper" })
    }
}

impl FromStr for Wire {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        [Self::Tcp, Self::Paper]
            .into_iter()
            .find(|wire| wire.to_string() == text)
            .ok_or_else(|| OptionError::Wire(text.to_owned()))
    }
}

/// Which core a packet is sent to: the paper's four policies, and what they become together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// (i) The core on which the last request was sent.
    Issuer,
    /// (ii) The core on which the consumer runs now.
    #[default]
    Runner,
    /// (iii) The core that was the least loaded when the request was sent.
    LeastLoaded,
    /// (iv) Always the same core.
    Dedicated(u32),
    /// (ii), where it saves more than it costs.
    Auto,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issuer => f.write_str("issuer"),
            Self::Runner => f.write_str("runner"),
            Self::LeastLoaded => f.write_str("least-loaded"),
            Self::Dedicated(core) => write!(f, "dedicated:{core}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Policy {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let dedicated = text.strip_prefix("dedicated:").and_then(|core| core.parse().ok());
        match (text, dedicated) {
            ("issuer", _) => Ok(Self::Issuer),
            ("runner", _) => Ok(Self::Runner),
            ("least-loaded", _) => Ok(Self::LeastLoaded),
            ("auto", _) => Ok(Self::Auto),
            (_, Some(core)) => Ok(Self::Dedicated(core)),
            _ => Err(OptionError::Policy(text.to_owned())),
        }
    }
}

impl FromStr for StripTimes {
    type Err = OptionError;

    /// `FETCH,HAND_OVER`, for all pairs of cores.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let time = |text: &str| text.parse().ok().filter(|us: &f64| us.is_finite() && *us >= 0.0);
        let times = text.split_once(',').and_then(|(fetch, hand)| time(fetch).zip(time(hand)));
        let (fetch, hand_over) = times.ok_or_else(|| OptionError::StripTimes(text.to_owned()))?;
        Ok(Self {
            process_us: None,
            within_us: Some(fetch),
            across_us: Some(fetch),
            hand_over_within_us: Some(hand_over),
            hand_over_across_us: Some(hand_over),
        })
    }
}

/// Where the kernel hands over packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver where that loses nothing, otherwise generic.
    #[default]
    Auto,
    /// In the driver, before there is an sk_buff.
    Native,
    /// Behind the driver, with an sk_buff: works with every device, and costs a copy of packets
    /// that came in pieces.
    Generic,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl FromStr for XdpMode {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        [Self::Auto, Self::Native, Self::Generic]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| OptionError::Xdp(text.to_owned()))
    }
}

/// How packets are steered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// The network device at which they arrive.
    pub device: String,
    /// From where that is known.
    pub mode: Mode,
    /// In hint mode, how servers give hints back.
    pub wire: Wire,
    /// In hint mode, each hint is believed by itself, without a table of connections.
    pub is_stateless: bool,
    /// Where to.
    pub policy: Policy,
    /// For `auto`: the times of a strip, instead of measured ones.
    pub strip_times: Option<StripTimes>,
    /// Only to these cores; `None`: to all.
    pub cpus: Option<CpuSet>,
    /// In hint mode, the peers that hints are sent to.
    pub peers: Vec<IpNet>,
    /// Where the kernel hands them over.
    pub xdp: XdpMode,
    /// A thread that waits for data stays on its core, for no longer than this; `None`: no thread.
    pub hold: Option<Duration>,
    /// Under `auto`, the kernel's own receive flow steering is turned on where steering pays.
    pub manage_rfs: bool,
}

impl Options {
    /// The cores that packets may be sent to on a machine with these CPUs.
    ///
    /// # Errors
    /// [`OptionError::OutOfRange`], [`OptionError::NoCpu`], [`OptionError::Dedicated`],
    /// [`OptionError::TooMany`], [`OptionError::NoPeers`], [`OptionError::FiveBits`],
    /// [`OptionError::Hold`], [`OptionError::ManageRfs`], [`OptionError::Stateless`].
    pub fn allowed(&self, online: &CpuSet) -> Result<CpuSet, OptionError> {
        let allowed = self.cpus.clone().unwrap_or_else(|| online.clone());
        if !allowed.is_subset(online) {
            let given = allowed.difference(online);
            return Err(OptionError::OutOfRange { given, online: online.clone() });
        }
        if let Some(core) = allowed.iter().find(|core| *core as usize >= MAX_CPUS) {
            return Err(OptionError::TooMany { core });
        }
        if self.mode == Mode::Hint && self.peers.is_empty() {
            return Err(OptionError::NoPeers);
        }
        if self.is_stateless && (self.mode != Mode::Hint || self.policy == Policy::Auto) {
            return Err(OptionError::Stateless);
        }
        let beyond = allowed.iter().find(|core| *core > MAX_PAPER_CORE);
        if let (Mode::Hint, Wire::Paper, Some(core)) = (self.mode, self.wire, beyond) {
            return Err(OptionError::FiveBits { core });
        }
        if let (Some(_), policy @ (Policy::LeastLoaded | Policy::Dedicated(_))) =
            (self.hold, self.policy)
        {
            return Err(OptionError::Hold { policy });
        }
        let is_for_rfs =
            self.policy == Policy::Auto && self.mode == Mode::Flow && self.cpus.is_none();
        if self.manage_rfs && !is_for_rfs {
            return Err(OptionError::ManageRfs);
        }
        match self.policy {
            _ if allowed.is_empty() => Err(OptionError::NoCpu { online: online.clone() }),
            Policy::Dedicated(core) if !allowed.contains(core) => {
                Err(OptionError::Dedicated { core, allowed })
            }
            _ => Ok(allowed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["issuer", "runner", "least-loaded", "dedicated:3", "auto"] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        for name in ["flow", "hint"] {
            assert_eq!(name.parse::<Mode>().unwrap().to_string(), name);
        }
        for name in ["tcp", "paper"] {
            assert_eq!(name.parse::<Wire>().unwrap().to_string(), name);
        }
        for name in ["auto", "native", "generic"] {
            assert_eq!(name.parse::<XdpMode>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn nonsense_is_named() {
        for name in ["", "dedicated", "dedicated:", "dedicated:x", "dedicated:-1", "Runner"] {
            assert_eq!(name.parse::<Policy>(), Err(OptionError::Policy(name.to_owned())));
        }
        assert_eq!("tcp".parse::<Mode>(), Err(OptionError::Mode("tcp".to_owned())));
        for name in ["", "1", "1,", "1,x", "-1,2", "1,inf"] {
            let why = OptionError::StripTimes(name.to_owned());
            assert_eq!(name.parse::<StripTimes>(), Err(why));
        }
        let times: StripTimes = "12,8.5".parse().unwrap();
        assert_eq!((times.across_us, times.hand_over_us(false)), (Some(12.0), Some(8.5)));
        assert_eq!("skb".parse::<XdpMode>(), Err(OptionError::Xdp("skb".to_owned())));
    }

    #[test]
    fn only_cores_that_there_are() {
        let online: CpuSet = "0-3".parse().unwrap();
        let allowed = |policy: &str, cpus: Option<&str>| {
            let cpus = cpus.map(|cpus| cpus.parse().unwrap());
            let policy = policy.parse().unwrap();
            Options { policy, cpus, ..Options::default() }
                .allowed(&online)
                .map_err(|e| e.to_string())
        };
        assert_eq!(allowed("runner", None).unwrap(), online);
        assert_eq!(allowed("dedicated:2", Some("1-2")).unwrap(), "1-2".parse().unwrap());
        let why = "CPUs 4-7: this machine has CPUs 0-3 online; name some of these";
        assert_eq!(allowed("runner", Some("2-7")).unwrap_err(), why);
        let why = "no CPU is left that packets may be sent to: name at least one of 0-3";
        assert_eq!(allowed("runner", Some("")).unwrap_err(), why);
        let why = "dedicated:0: packets may only be sent to CPUs 1-2; choose one of these";
        assert_eq!(allowed("dedicated:0", Some("1-2")).unwrap_err(), why);
    }

    #[test]
    fn threads_are_held_and_knobs_turned_where_that_makes_sense() {
        let online = CpuSet::first(2);
        let options = |policy: &str| Options {
            policy: policy.parse().unwrap(),
            hold: Some(Duration::from_secs(1)),
            ..Options::default()
        };
        for policy in ["issuer", "runner", "auto"] {
            assert_eq!(options(policy).allowed(&online), Ok(online.clone()));
        }
        for policy in ["least-loaded", "dedicated:1"] {
            let why = OptionError::Hold { policy: policy.parse().unwrap() };
            assert_eq!(options(policy).allowed(&online), Err(why));
        }
        let managed = |policy: &str| Options { hold: None, manage_rfs: true, ..options(policy) };
        assert_eq!(managed("auto").allowed(&online), Ok(online.clone()));
        assert_eq!(managed("runner").allowed(&online), Err(OptionError::ManageRfs));
        let some = Options { cpus: Some(CpuSet::first(1)), ..managed("auto") };
        assert_eq!(some.allowed(&online), Err(OptionError::ManageRfs));
        let peers = vec!["10.0.0.0/8".parse().unwrap()];
        let hinted = Options { mode: Mode::Hint, peers, ..managed("auto") };
        assert_eq!(hinted.allowed(&online), Err(OptionError::ManageRfs));
    }

    #[test]
    fn hints_are_for_peers() {
        let online = CpuSet::first(2);
        let options = Options { mode: Mode::Hint, ..Options::default() };
        assert_eq!(options.allowed(&online), Err(OptionError::NoPeers));
        let peers = vec!["10.0.0.0/8".parse().unwrap()];
        let options = Options { peers, ..options };
        assert_eq!(options.allowed(&online), Ok(online));
        // Five bits name 32 cores.
        let paper = Options { wire: Wire::Paper, ..options };
        assert_eq!(paper.allowed(&CpuSet::first(32)), Ok(CpuSet::first(32)));
        let beyond = paper.allowed(&CpuSet::first(33));
        assert_eq!(beyond, Err(OptionError::FiveBits { core: 32 }));
    }

    #[test]
    fn a_table_is_left_out_where_none_is_needed() {
        let online = CpuSet::first(2);
        let peers = vec!["10.0.0.0/8".parse().unwrap()];
        let options = Options { mode: Mode::Hint, is_stateless: true, peers, ..Options::default() };
        assert_eq!(options.allowed(&online), Ok(online.clone()));
        let flow = Options { mode: Mode::Flow, ..options.clone() };
        let auto = Options { policy: Policy::Auto, ..options };
        for refused in [flow, auto] {
            assert_eq!(refused.allowed(&online), Err(OptionError::Stateless));
        }
    }

    #[test]
    fn cores_beyond_the_programs_room() {
        let online = CpuSet::first(2000);
        let why = Options::default().allowed(&online).unwrap_err();
        assert_eq!(why, OptionError::TooMany { core: 1024 });
    }
}
