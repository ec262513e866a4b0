//! Noise: makes CPUs unequal on purpose, at a known duty, and without harm.
//!
//! Four kinds, the causes that users meet: interrupts (`softirq`), real-time work (`fifo`),
//! network traffic (`udp`), and another user's program (`hog`). All obey the same rules:
//!
//! - at most half of a CPU is taken (more is refused). The hog competes as an ordinary task of
//!   nice 0, so the scheduler itself gives it no more than its fair share of a busy CPU;
//! - a time limit is enforced inside the generator itself, not by its caller;
//! - all of it belongs to this process (threads, file descriptors, a child that ends with it):
//!   SIGKILL leaves nothing behind, no pin, no named network namespace, no cgroup;
//! - each reports its *own* measured duty; [`gap`] is an independent truth to check it against.
//!
//! The limit of one half is per generator: two of them on one CPU add up.

mod fifo;
pub mod gap;
mod hog;
mod softirq;
mod thread;
mod udp;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

pub use self::thread::on_cpu;

/// The largest part of a CPU that a generator may take.
pub const MAX_DUTY: f64 = 0.5;
/// The shortest period, in µs: below it the timer's own cost would be a large part of the duty.
pub const MIN_PERIOD_US: u64 = 50;
/// The shortest period of `fifo`, in µs: waking a thread takes about 10 µs that are not the
/// thread's own, so they would come on top of its duty.
pub const MIN_FIFO_PERIOD_US: u64 = 1_000;
/// The longest period, in µs: above it interrupts of others would wait too long.
pub const MAX_PERIOD_US: u64 = 100_000;
/// The longest time that a generator may run.
pub const MAX_LIMIT: Duration = Duration::from_secs(3600);

/// What takes the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoiseKind {
    /// A BPF timer that spins in softirq context, as a busy network card does: invisible to the
    /// scheduler.
    Softirq,
    /// A SCHED_FIFO thread (priority 50) that spins and sleeps in turn.
    Fifo,
    /// UDP traffic through a veth pair, its receiving softirqs steered to the CPU (RPS).
    Udp,
    /// An endless ordinary program of another session, pinned to the CPU.
    Hog,
}

impl NoiseKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Softirq, Self::Fifo, Self::Udp, Self::Hog];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Softirq => "softirq",
            Self::Fifo => "fifo",
            Self::Udp => "udp",
            Self::Hog => "hog",
        }
    }
}

impl fmt::Display for NoiseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for NoiseKind {
    type Err = NoiseError;

    fn from_str(text: &str) -> Result<Self, NoiseError> {
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            NoiseError::Refused(format!("unknown noise {text:?}: choose softirq, fifo, udp or hog"))
        })
    }
}

/// How much to take, and for how long at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseConfig {
    /// Time to take in each period, in µs; at most half of the period. The hog ignores it.
    pub busy_us: u64,
    /// The period, in µs, [`MIN_PERIOD_US`]`..=`[`MAX_PERIOD_US`]. The hog ignores it; udp keeps
    /// the ratio but spreads the work over shorter periods.
    pub period_us: u64,
    /// The generator ends by itself after this time, at most [`MAX_LIMIT`].
    pub limit: Duration,
}

impl NoiseConfig {
    /// The wanted share of the CPU, 0..=0.5 once checked.
    pub fn duty(&self) -> f64 {
        self.busy_us as f64 / self.period_us as f64
    }

    /// Whether the rules allow it for this kind of noise.
    ///
    /// # Errors
    /// [`NoiseError::Refused`], with the rule.
    pub fn check(&self, kind: NoiseKind) -> Result<(), NoiseError> {
        let refuse = |why: String| Err(NoiseError::Refused(why));
        let shortest = match kind {
            NoiseKind::Fifo => MIN_FIFO_PERIOD_US,
            _ => MIN_PERIOD_US,
        };
        if !(shortest..=MAX_PERIOD_US).contains(&self.period_us) {
            return refuse(format!(
                "a period of {} us: for {kind} it must be {shortest} to {MAX_PERIOD_US} us",
                self.period_us
            ));
        }
        if self.busy_us == 0 {
            return refuse("a busy time of 0 us makes no noise: give at least 1 us".into());
        }
        if self.busy_us > self.period_us / 2 {
            return refuse(format!(
                "{} of {} us is a duty of {:.0} %: at most 50 % is allowed, so that the machine \
                 stays usable; shorten the busy time or lengthen the period",
                self.busy_us,
                self.period_us,
                100.0 * self.duty()
            ));
        }
        if self.limit.is_zero() || self.limit > MAX_LIMIT {
            return refuse(format!(
                "a time limit of {:?}: it must be more than 0 and at most {MAX_LIMIT:?}",
                self.limit
            ));
        }
        Ok(())
    }
}

/// What a generator did, by its own measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct NoiseReport {
    /// Which generator.
    pub kind: NoiseKind,
    /// The CPU that it took time from.
    pub cpu: u32,
    /// How long it ran, in ns (up to the limit).
    pub wall_ns: u64,
    /// The CPU time that it took, in ns.
    pub busy_ns: u64,
    /// The part of it that the generator's own code spent, by its own clock, in ns: without what
    /// the hardware and the kernel need to get there and back (a timer interrupt in a VM: 10 us
    /// and more). Only softirq knows the difference.
    pub seen_ns: u64,
    /// `busy_ns / wall_ns`. For the hog the share that it was given.
    pub duty: f64,
    /// Network packets that did it; 0 of the other kinds.
    pub packets: u64,
}

/// Why there is no noise.
#[derive(Debug, Error)]
pub enum NoiseError {
    /// The request breaks a rule.
    #[error("refused: {0}")]
    Refused(String),
    /// The CPU is not there.
    #[error("CPU {cpu} is not online: choose one of {online}")]
    NoSuchCpu {
        /// The CPU that was asked for.
        cpu: u32,
        /// The CPUs that there are.
        online: String,
    },
    /// The process may not do what the generator needs.
    #[error("not permitted: {what} needs {needs}; run as root on the machine itself")]
    NotPermitted {
        /// What was tried.
        what: String,
        /// The missing privilege.
        needs: &'static str,
    },
    /// Something else failed.
    #[error("{what}: {why}")]
    Failed {
        /// What was tried.
        what: String,
        /// What went wrong, and the remedy if there is one.
        why: String,
    },
}

impl NoiseError {
    fn failed(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self::Failed { what: what.into(), why: why.to_string() }
    }

    /// Tells a missing privilege from other failures.
    fn from_io(what: impl Into<String>, needs: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { what: what.into(), needs },
            _ => Self::failed(what, error),
        }
    }

    /// Whether a privilege is missing, so that another user could do it.
    pub fn is_privilege(&self) -> bool {
        matches!(self, Self::NotPermitted { .. })
    }
}

/// What a generator measured of itself.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    wall_ns: u64,
    busy_ns: u64,
    seen_ns: u64,
    packets: u64,
}

/// A generator that runs. Dropping it stops it too.
trait Generator: Send {
    fn stop(&mut self) -> Result<Tally, NoiseError>;

    /// The ordinary process that makes it, if one does.
    fn process(&self) -> Option<u32> {
        None
    }
}

/// Starts noise.
#[derive(Debug, Clone, Copy)]
pub struct Noise;

impl Noise {
    /// Starts noise on a CPU; it runs until [`Running::stop`], the limit, or the end of this
    /// process, whichever comes first. Returns when the noise has begun.
    ///
    /// Two kinds first find out what their work costs there, and have the CPU to themselves
    /// meanwhile: udp for about 0.5 s (and 0.12 s when it is stopped), softirq with a period of at
    /// most 2 ms for 0.12 s.
    ///
    /// # Errors
    /// A rule is broken (`Refused`), the CPU is not online, a privilege is missing (softirq:
    /// CAP_BPF, CAP_PERFMON, CAP_SYS_NICE; fifo: CAP_SYS_NICE; udp: root; hog: none), or the
    /// kernel cannot do it. Nothing stays behind.
    pub fn start(kind: NoiseKind, cpu: u32, config: NoiseConfig) -> Result<Running, NoiseError> {
        config.check(kind)?;
        check_online(cpu)?;
        let generator: Box<dyn Generator> = match kind {
            NoiseKind::Softirq => Box::new(softirq::Softirq::start(cpu, &config)?),
            NoiseKind::Fifo => Box::new(fifo::Fifo::start(cpu, &config)?),
            NoiseKind::Udp => Box::new(udp::Udp::start(cpu, &config)?),
            NoiseKind::Hog => Box::new(hog::Hog::start(cpu, &config)?),
        };
        Ok(Running { kind, cpu, generator })
    }
}

/// Noise that is being made.
pub struct Running {
    kind: NoiseKind,
    cpu: u32,
    generator: Box<dyn Generator>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("kind", &self.kind).field("cpu", &self.cpu).finish()
    }
}

impl Running {
    /// The kind of noise.
    pub fn kind(&self) -> NoiseKind {
        self.kind
    }

    /// The CPU that is disturbed.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// The process that makes the noise, if it is an ordinary one of its own (the hog): its CPU
    /// time is no theft by an interrupt.
    pub fn process(&self) -> Option<u32> {
        self.generator.process()
    }

    /// Ends the noise, waits until it is gone, and says what it took.
    ///
    /// # Errors
    /// The generator died or lost its CPU, so that its figure would be wrong. It is gone anyway.
    pub fn stop(mut self) -> Result<NoiseReport, NoiseError> {
        let Tally { wall_ns, busy_ns, seen_ns, packets } = self.generator.stop()?;
        let duty = if wall_ns == 0 { 0.0 } else { busy_ns as f64 / wall_ns as f64 };
        let Self { kind, cpu, .. } = self;
        Ok(NoiseReport { kind, cpu, wall_ns, busy_ns, seen_ns, duty, packets })
    }
}

/// The CPUs that are online.
///
/// # Errors
/// The kernel does not tell.
pub fn online_cpus() -> Result<CpuSet, NoiseError> {
    const PATH: &str = "/sys/devices/system/cpu/online";
    let text = std::fs::read_to_string(PATH)
        .map_err(|e| NoiseError::failed(format!("cannot read {PATH}"), e))?;
    text.trim().parse().map_err(|e| NoiseError::failed(format!("cannot read {PATH}"), e))
}

fn check_online(cpu: u32) -> Result<(), NoiseError> {
    let online = online_cpus()?;
    if online.contains(cpu) {
        return Ok(());
    }
    Err(NoiseError::NoSuchCpu { cpu, online: online.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(busy_us: u64, period_us: u64) -> NoiseConfig {
        NoiseConfig { busy_us, period_us, limit: Duration::from_secs(1) }
    }

    #[test]
    fn the_rules_are_checked_before_anything_starts() {
        for (busy_us, period_us, word) in [
            (501, 1_000, "at most 50 %"),
            (1_000, 1_000, "at most 50 %"),
            (5_001, 10_000, "at most 50 %"),
            (1, 0, "period"),
            (1, 49, "period"),
            (1, 100_001, "period"),
            (u64::MAX, u64::MAX, "period"),
            (0, 1_000, "busy"),
        ] {
            for kind in NoiseKind::ALL {
                let error = Noise::start(kind, 0, config(busy_us, period_us)).unwrap_err();
                assert!(matches!(error, NoiseError::Refused(_)), "{error}");
                assert!(error.to_string().contains(word), "{error}");
            }
        }
        for limit in [Duration::ZERO, MAX_LIMIT + Duration::from_nanos(1)] {
            let error =
                NoiseConfig { limit, ..config(1, 100) }.check(NoiseKind::Softirq).unwrap_err();
            assert!(error.to_string().contains("time limit"), "{error}");
        }
        for (busy_us, period_us) in [(50, 100), (2_000, 4_000), (4_000, 10_000), (1, 100_000)] {
            config(busy_us, period_us).check(NoiseKind::Softirq).unwrap();
        }
    }

    #[test]
    fn fifo_has_a_longer_shortest_period() {
        let error = config(400, 999).check(NoiseKind::Fifo).unwrap_err();
        assert!(error.to_string().contains("1000 to 100000"), "{error}");
        config(500, 1_000).check(NoiseKind::Fifo).unwrap();
        config(400, 999).check(NoiseKind::Udp).unwrap();
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        for cpu in [1023, 70_000, u32::MAX] {
            for kind in NoiseKind::ALL {
                let error = Noise::start(kind, cpu, config(4_000, 10_000)).unwrap_err();
                assert!(matches!(error, NoiseError::NoSuchCpu { .. }), "{error}");
                assert!(error.to_string().contains("choose one of 0"), "{error}");
            }
        }
    }

    #[test]
    fn names_go_both_ways() {
        for kind in NoiseKind::ALL {
            assert_eq!(kind.name().parse::<NoiseKind>().unwrap(), kind);
        }
        let error = "Softirq".parse::<NoiseKind>().unwrap_err();
        assert!(error.to_string().contains("choose softirq, fifo, udp or hog"), "{error}");
    }
}
