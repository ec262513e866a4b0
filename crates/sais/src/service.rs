//! Runs it in the foreground: attaches, follows CPUs that come and go, answers at the control
//! socket, and ends when it is told to or when the device is gone.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_control::{Answer, BindError, Peer, Request, Server};
use evenkeel_machine::CpuSet;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use crate::device::{Device, DeviceError};
use crate::load::{Load, LoadError};
use crate::options::{OptionError, Options, Policy};
use crate::steering::{Steering, SteeringError};

/// How often it is looked which CPUs there are, whether the device is there, and who is loaded.
const LOOK: Duration = Duration::from_millis(100);

const KNOWN: &str = "stats, flows";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Why packets are not steered, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Nonsense in the options.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel cannot or will not.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// The load of the cores cannot be told.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No control socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// It is not known which CPUs there are.
    #[error("{ONLINE}: cannot be read as a list of CPUs: {0}")]
    Online(String),
    /// The kernel refused what every process needs.
    #[error("cannot wait for signals: {0}")]
    System(#[from] Errno),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By SIGTERM or SIGINT.
    Told,
    /// The device does not exist any more.
    DeviceGone,
}

/// All that is needed to run it.
#[derive(Debug)]
pub struct Service<'a> {
    /// How packets are steered.
    pub options: &'a Options,
    /// The directory of the control socket.
    pub directory: &'a Path,
}

/// The control sockets of those who steer, in a directory.
pub fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("sais-") && name.ends_with(".sock")
        })
        .collect();
    paths.sort();
    paths
}

/// A name may stand for a device in each namespace.
fn socket(directory: &Path, device: &Device) -> PathBuf {
    directory.join(format!("sais-{}-{}.sock", device.netns_cookie, device.index))
}

/// Steers until SIGTERM or SIGINT, or until the device is gone. Says on standard output when it
/// begins.
///
/// # Errors
/// All of [`ServiceError`].
pub fn run(service: &Service<'_>) -> Result<Ending, ServiceError> {
    let signals = watch_signals()?;
    let device = Device::find(&service.options.device)?;
    let allowed = service.options.allowed(&online_cpus()?)?;
    let mut server = Server::bind(&socket(service.directory, &device))?;
    let mut steering = Steering::attach(&device, service.options, &allowed)?;
    let mut load = match service.options.policy {
        Policy::LeastLoaded => Some(Load::watch()?),
        _ => None,
    };
    announce(&steering, &device, service.options);
    for file in device.queues_with_rps() {
        let file = file.display();
        tracing::warn!(
            "receive packet steering (RPS) is on, and sends packets on to CPUs of its own choice: \
             turn it off by echo 0 > {file}"
        );
    }
    let mut look_at = Instant::now() + LOOK;
    loop {
        let is_left = server.serve(|peer, request| answer(&steering, peer, request));
        let mut readable = server.poll_fds();
        readable.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
        let patience = if is_left { Duration::ZERO } else { LOOK };
        match poll(&mut readable, PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why.into()),
        }
        if signals.read_signal()?.is_some() {
            return Ok(Ending::Told);
        }
        if Instant::now() < look_at {
            continue;
        }
        look_at = Instant::now() + LOOK;
        if !steering.is_alive() {
            return Ok(Ending::DeviceGone);
        }
        let cores = allowed.intersection(&online_cpus()?);
        if cores != *steering.cores() {
            tracing::warn!("packets are now sent to CPUs {cores} (before: {})", steering.cores());
            steering.use_cores(&cores)?;
        }
        if let Some(load) = &mut load {
            steering.rank(&load.ranking(&cores))?;
        }
    }
}

fn announce(steering: &Steering, device: &Device, options: &Options) {
    let attachment = steering.attachment();
    // Whoever read it may have seen enough; the steering goes on.
    let _ = writeln!(
        std::io::stdout(),
        "{}: packets go to their consumers' cores ({}) on CPUs {}; {} XDP: {}",
        device.name,
        options.policy,
        steering.cores(),
        attachment.mode(),
        attachment.reason()
    );
}

fn answer(steering: &Steering, peer: &Peer, request: &Request) -> Answer {
    if let Some(name) = request.args.keys().next() {
        let why = format!("\"{name}\": no such argument of this request");
        return Answer::refused(Errno::EINVAL, why);
    }
    let figures = match request.req.as_str() {
        "stats" => steering.statistics().map(|statistics| json!(statistics)),
        "flows" if !peer.may_steer(0) => {
            return Answer::refused(Errno::EPERM, "only root may see everybody's connections");
        }
        "flows" => steering.flows().map(|flows| json!(flows)),
        other => {
            let why = format!("\"{other}\": no such request; there are {KNOWN}");
            return Answer::refused(Errno::ENOSYS, why);
        }
    };
    match figures {
        Ok(figures) => Answer::ok(figures),
        Err(why) => Answer::refused(Errno::EIO, why),
    }
}

fn online_cpus() -> Result<CpuSet, ServiceError> {
    let list = fs::read_to_string(ONLINE).map_err(|why| ServiceError::Online(why.to_string()))?;
    list.parse()
        .map_err(|why: evenkeel_machine::CpuListError| ServiceError::Online(why.to_string()))
}

fn watch_signals() -> Result<SignalFd, Errno> {
    let mut watched = SigSet::empty();
    watched.add(Signal::SIGTERM);
    watched.add(Signal::SIGINT);
    watched.thread_block()?;
    SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}
