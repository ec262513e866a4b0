//! `evenkeel sais serve`: runs the server's part in the foreground until it ends.

use std::io::Write;
use std::path::{Path, PathBuf};

use evenkeel_control::{Answer, BindError, Peer, Request, Server, ServiceSignals};
use ipnet::IpNet;
use nix::errno::Errno;
use serde_json::json;

use crate::cgroup::{Cgroup, CgroupError};
use crate::device::{Device, DeviceError};
use crate::foreground::{Work, answer_with, run as run_in_foreground};
use crate::options::{OptionError, Wire};
use crate::service::Ending;
use crate::serving::{Serving, ServingError};

const KNOWN: &str = "stats, flows";

/// Why hints do not go back, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The kernel cannot or will not.
    #[error(transparent)]
    Serving(#[from] ServingError),
    /// Nonsense in the options.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// No such device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No control socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The kernel refused what every process needs.
    #[error("cannot wait for signals: {0}")]
    System(#[from] Errno),
}

impl From<CgroupError> for ServeError {
    fn from(why: CgroupError) -> Self {
        Self::Serving(why.into())
    }
}

impl Work for Serving {
    type Error = ServeError;

    fn answer(&self, _peer: &Peer, request: &Request) -> Answer {
        answer_with(request, |name| match name {
            "stats" => match self.served() {
                Ok(served) => Ok(json!(served)),
                Err(why) => Err(Answer::refused(Errno::EIO, why)),
            },
            // It knows of no consumers.
            "flows" => Ok(json!([])),
            other => {
                let why = format!("\"{other}\": no such request; there are {KNOWN}");
                Err(Answer::refused(Errno::ENOSYS, why))
            }
        })
    }

    fn look(&mut self) -> Result<bool, ServeError> {
        Ok(self.cgroup().is_alive())
    }
}

/// How hints are given back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServeOptions {
    /// The cgroup of the servers.
    pub cgroup: PathBuf,
    /// Only for clients in these networks; at least one.
    pub peers: Vec<IpNet>,
    /// In which form.
    pub wire: Wire,
    /// The device by which packets leave to them; for the paper's byte.
    pub device: Option<String>,
}

/// Gives hints back until SIGTERM or SIGINT, or until the cgroup is gone. Says on standard output
/// when it begins. The control socket is in `directory`.
///
/// # Errors
/// All of [`ServeError`].
pub fn serve(options: &ServeOptions, directory: &Path) -> Result<Ending, ServeError> {
    if options.peers.is_empty() {
        return Err(OptionError::NoClients.into());
    }
    let signals = ServiceSignals::watch()?;
    let device = match (options.wire, &options.device) {
        (Wire::Tcp, _) => None,
        (Wire::Paper, Some(name)) => Some(Device::find(name)?),
        (Wire::Paper, None) => return Err(OptionError::NoDevice.into()),
    };
    let cgroup = Cgroup::open(&options.cgroup)?;
    let mut server = Server::bind(&socket(directory, cgroup.path()))?;
    let mut serving = Serving::start(cgroup, &options.peers, device.as_ref())?;
    let peers: Vec<String> = options.peers.iter().map(IpNet::to_string).collect();
    let peers = peers.join(", ");
    let path = serving.cgroup().path().display();
    // The reader may be gone; the serving goes on.
    let _ = writeln!(std::io::stdout(), "{path}: hints of {peers} go back with the data");
    let is_told = run_in_foreground(&signals, &mut server, &mut serving)?;
    Ok(if is_told { Ending::Told } else { Ending::Gone })
}

/// One for each cgroup: by its number, which no other has while it exists.
fn socket(directory: &Path, cgroup: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let number = cgroup.metadata().map_or(0, |metadata| metadata.ino());
    directory.join(format!("sais-serve-{number}.sock"))
}
