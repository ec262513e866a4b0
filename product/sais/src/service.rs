//! `evenkeel sais attach`: attaches, follows CPUs that come and go, answers at the control socket,
//! and ends when it is told to or when the device is gone.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_control::{Answer, BindError, Peer, Request, Server, ServiceSignals};
use evenkeel_journal::{
    JournalError, Session, SessionOptions, SupervisedSession, SupervisorCommand, undo_earlier,
};
use evenkeel_machine::CpuSet;
use nix::errno::Errno;
use serde_json::json;

use crate::device::{Device, DeviceError};
use crate::foreground::{LOOK, Work, answer_with, run as run_in_foreground};
use crate::hold;
use crate::identity::{sight, start_for};
use crate::load::{Load, LoadError};
use crate::options::{Mode, OptionError, Options, Policy};
use crate::silent::SilentPeers;
use crate::statistics::greediest;
use crate::steering::Steering;
use crate::steering_error::SteeringError;

const KNOWN: &str = "stats, flows";
/// Connections that are shown: an answer has its bounds.
const MAX_SHOWN: usize = 4096;
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
    /// Nothing may be changed without a journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
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
    /// The device, or the cgroup, does not exist any more.
    Gone,
}

/// All that is needed to run it.
#[derive(Debug)]
pub struct Service<'a> {
    /// How packets are steered.
    pub options: &'a Options,
    /// The directory of the control socket, and of the journal.
    pub directory: &'a Path,
    /// How to start the supervisor, which undoes changes when this process is killed.
    pub supervisor: SupervisorCommand,
    /// The command line, for readers of the journal.
    pub command: &'a [String],
}

/// The control sockets of steering processes, in a directory.
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
    let signals = ServiceSignals::watch()?;
    let device = Device::find(&service.options.device)?;
    let allowed = service.options.allowed(&online_cpus()?)?;
    let mut server = Server::bind(&socket(service.directory, &device))?;
    let guarded = open_session(service)?;
    let steering = Steering::attach(&device, service.options, &allowed)?;
    let load = match service.options.policy {
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
    let is_hinted = service.options.mode == Mode::Hint;
    // Without a table it is not known which servers send hints back.
    let has_table = !service.options.is_stateless;
    let silent = (is_hinted && has_table).then(|| SilentPeers::new(&service.options.peers));
    let mut work = Attached { steering, guarded, allowed, load, silent, refused: None };
    let ended = run_in_foreground(&signals, &mut server, &mut work);
    // However it ended.
    if let Err(why) = work.steering.take_off() {
        tracing::warn!("{why}");
    }
    for why in work.guarded.map(|guarded| guarded.close().errors).unwrap_or_default() {
        tracing::warn!("{why}");
    }
    Ok(if ended? { Ending::Told } else { Ending::Gone })
}

/// A journal, where anything is to be changed that would outlive this process.
fn open_session(service: &Service<'_>) -> Result<Option<SupervisedSession>, JournalError> {
    if service.options.hold.is_none() && !service.options.manage_rfs {
        return Ok(None);
    }
    undo_earlier(service.directory);
    let options = SessionOptions { command: service.command.to_vec(), ..SessionOptions::default() };
    let session = Session::open(service.directory, options)?;
    Ok(Some(SupervisedSession::new(session, service.supervisor)))
}

/// While it is attached.
struct Attached {
    steering: Steering,
    guarded: Option<SupervisedSession>,
    allowed: CpuSet,
    load: Option<Load>,
    /// In hint mode, the peers that were said to send no hints back.
    silent: Option<SilentPeers>,
    /// What was said of the program that could not be put on the device.
    refused: Option<String>,
}

impl Attached {
    /// Says once what does not work.
    fn refused(&mut self, why: &str) {
        if self.refused.as_deref() != Some(why) {
            tracing::warn!("packets are not steered for now: {why}");
            self.refused = Some(why.to_owned());
        }
    }
}

impl Work for Attached {
    type Error = ServiceError;

    fn answer(&self, peer: &Peer, request: &Request) -> Answer {
        answer(&self.steering, peer, request)
    }

    fn interval(&self) -> Duration {
        if self.steering.holds() { hold::INTERVAL } else { LOOK }
    }

    fn look(&mut self) -> Result<bool, ServiceError> {
        if !self.steering.is_alive() {
            return Ok(false);
        }
        self.steering.follow_cpus(&self.allowed.intersection(&online_cpus()?))?;
        let followed = self.steering.follow_device();
        match followed.and_then(|()| self.steering.review(self.guarded.as_mut())) {
            // Another process has the device or a knob now: packets pass, and it may be had again later.
            Err(why @ (SteeringError::Attach(_) | SteeringError::FlowSteering(_))) => {
                self.refused(&why.to_string());
            }
            other => other?,
        }
        if let Some(guarded) = &mut self.guarded {
            self.steering.hold(guarded)?;
        }
        if let Some(load) = &mut self.load {
            let ranking = load.ranking(self.steering.cores());
            self.steering.rank(&ranking)?;
        }
        if let Some(silent) = &mut self.silent {
            for peer in silent.look(&mut self.steering)? {
                tracing::warn!(
                    "{peer} sends no hints back (does `evenkeel sais serve` run there?): its packets \
                     are steered by what this machine knows, as in flow mode"
                );
            }
        }
        Ok(true)
    }
}

fn announce(steering: &Steering, device: &Device, options: &Options) {
    let program = match (steering.attachment(), steering.strip_times()) {
        (Some(attachment), _) => format!("{} XDP: {}", attachment.mode(), attachment.reason()),
        (None, times) => {
            let times = times.copied().unwrap_or_default();
            let us = |time: Option<f64>| time.map_or("-".into(), |us| format!("{us:.1} us"));
            format!(
                "no XDP until steering pays; between cores with a common cache a strip is fetched in {} \
                 and handed over in {}, between others in {} and {}",
                us(times.within_us),
                us(times.hand_over_within_us),
                us(times.across_us),
                us(times.hand_over_across_us)
            )
        }
    };
    // The reader may be gone; the steering goes on.
    let _ = writeln!(
        std::io::stdout(),
        "{}: packets go to their consumers' cores ({} mode, {}) on CPUs {}; {program}",
        device.name,
        options.mode,
        options.policy,
        steering.cores(),
    );
}

fn answer(steering: &Steering, peer: &Peer, request: &Request) -> Answer {
    answer_with(request, |name| {
        let mut may_see = sight(peer, |pid| start_for(pid, peer));
        let figures = match name {
            "stats" => steering.statistics().map(|mut statistics| {
                statistics.consumers.retain(|it| may_see(it.pid, it.start_boottime_ns));
                json!(statistics)
            }),
            "flows" => steering.flows().map(|mut flows| {
                flows.retain(|flow| may_see(flow.pid, flow.process_start_boottime_ns));
                json!(greediest(flows, MAX_SHOWN))
            }),
            other => {
                let why = format!("\"{other}\": no such request; there are {KNOWN}");
                return Err(Answer::refused(Errno::ENOSYS, why));
            }
        };
        figures.map_err(|why| Answer::refused(Errno::EIO, why))
    })
}

fn online_cpus() -> Result<CpuSet, ServiceError> {
    let list = fs::read_to_string(ONLINE).map_err(|why| ServiceError::Online(why.to_string()))?;
    list.parse()
        .map_err(|why: evenkeel_machine::CpuListError| ServiceError::Online(why.to_string()))
}
