//! The program on the device, held by a link: when its descriptor is closed, by whatever end of the
//! process, the kernel takes the program off.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys::{
    BPF_XDP, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_attach_type, bpf_link_create,
    bpf_link_create_opts, bpf_link_get_info_by_fd, bpf_link_info,
};

use crate::device::Device;
use crate::options::XdpMode;

/// Why the program is not on the device.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Another process's program is there.
    #[error(
        "{device}: another XDP program is attached there already; end its holder (`bpftool net` \
         shows it), or take it off: ip link set dev {device} xdp off"
    )]
    Taken {
        /// The device.
        device: String,
    },
    /// The driver or the kernel refused.
    #[error("{device}: {mode} XDP was refused: {source}{remedy}")]
    Refused {
        /// The device.
        device: String,
        /// What was asked for.
        mode: XdpMode,
        /// Why.
        source: io::Error,
        /// What else could be tried.
        remedy: &'static str,
    },
}

/// The program on its device.
#[derive(Debug)]
pub struct Attachment {
    link: OwnedFd,
    mode: XdpMode,
    reason: String,
}

impl Attachment {
    /// Attaches a program to a device. `auto` takes native mode where the driver offers it and
    /// nothing is lost by it, otherwise generic.
    ///
    /// # Errors
    /// All of [`AttachError`].
    pub fn new(
        program: BorrowedFd<'_>,
        device: &Device,
        mode: XdpMode,
    ) -> Result<Self, AttachError> {
        let attach = |mode, reason| {
            let link = link(program, device, mode)?;
            Ok(Self { link, mode, reason })
        };
        let loss = device.native_loss();
        match (mode, loss) {
            (XdpMode::Auto, Some(loss)) => attach(XdpMode::Generic, loss),
            (XdpMode::Auto, None) => match attach(XdpMode::Native, "the driver can".to_owned()) {
                Err(AttachError::Refused { source, .. }) => {
                    attach(XdpMode::Generic, format!("the driver refused native mode: {source}"))
                }
                other => other,
            },
            (mode, loss) => {
                if let (XdpMode::Native, Some(loss)) = (mode, loss) {
                    tracing::warn!("{}: {loss}", device.name);
                }
                attach(mode, "as told".to_owned())
            }
        }
    }

    /// Native or generic.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Why this mode.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the device still is there.
    pub fn is_alive(&self) -> bool {
        let mut info = bpf_link_info::default();
        let mut length = size_of::<bpf_link_info>() as u32;
        // SAFETY: `info` is as long as `length` says.
        let failed =
            unsafe { bpf_link_get_info_by_fd(self.link.as_raw_fd(), &mut info, &mut length) };
        // SAFETY: of a link of this type the kernel fills in this member.
        failed == 0 && unsafe { info.__bindgen_anon_1.xdp.ifindex } != 0
    }
}

/// A program on a device, at a place of this kind, for as long as the descriptor is open.
pub(crate) fn link_to(
    program: BorrowedFd<'_>,
    device: &Device,
    kind: bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as u64,
        flags,
        ..bpf_link_create_opts::default()
    };
    // SAFETY: the options outlive the call; a non-negative result is a descriptor that we own.
    let result =
        unsafe { bpf_link_create(program.as_raw_fd(), device.index, kind, &raw const options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: see above.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

fn link(program: BorrowedFd<'_>, device: &Device, mode: XdpMode) -> Result<OwnedFd, AttachError> {
    let flags = if mode == XdpMode::Native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE };
    link_to(program, device, BPF_XDP, flags).map_err(|source| {
        let device = device.name.clone();
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => AttachError::Taken { device },
            _ => AttachError::Refused {
                device,
                mode,
                source,
                remedy: if mode == XdpMode::Native { "; try --xdp generic" } else { "" },
            },
        }
    })
}
