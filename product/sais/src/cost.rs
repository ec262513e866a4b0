//! What the program on the device takes for a packet: it is run on one that looks like those of a
//! connection, over and over, by the kernel's own means for that (BPF_PROG_TEST_RUN). Nothing is
//! sent on.

use std::net::{IpAddr, SocketAddr};

use libbpf_rs::ProgramInput;

use crate::layout::{RawFlow, RawKey};
use crate::object::{ObjectError, bpf};
use crate::options::Mode;
use crate::steering::Steering;
use crate::steering_error::SteeringError;

/// linux/bpf.h: `XDP_REDIRECT`.
const XDP_REDIRECT: u32 = 4;
/// What a full segment has after its headers, in bytes.
const PAYLOAD_BYTES: usize = 1448;

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Whether the packet was to go to another core.
    pub is_redirected: bool,
    /// The mean time of a packet, in ns.
    pub each_ns: u64,
}

impl Steering {
    /// Runs the program so many times, on the calling thread's CPU, on a packet of the connection
    /// between these two ends (IPv4), with the hint that it bears in hint mode.
    ///
    /// # Errors
    /// The kernel refused; the connection is not known.
    pub fn try_packet(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        times: u32,
    ) -> Result<Trial, SteeringError> {
        let is_meant = |key: &RawKey| {
            key.remote_port == remote.port().to_be_bytes()
                && key.local_port == local.port().to_be_bytes()
        };
        let flows = self.raw_flows()?;
        let flow = flows.iter().find(|(key, _)| is_meant(key));
        let (_, flow) = flow.ok_or(ObjectError::Mismatch("the connection's entry"))?;
        let frame = frame(local, remote, (self.mode() == Mode::Hint).then_some(flow));
        let name = self.steer();
        let steer = self.object().progs_mut().find(|program| program.name() == name);
        let steer = steer.ok_or(ObjectError::Mismatch(name))?;
        let input =
            ProgramInput { data_in: Some(&frame), repeat: times, ..ProgramInput::default() };
        let output = steer.test_run(input).map_err(bpf("running the program"))?;
        Ok(Trial {
            is_redirected: output.return_value == XDP_REDIRECT,
            each_ns: output.duration.as_nanos() as u64,
        })
    }
}

/// A full segment as Linux sends it: time stamps, and behind them the hint, if it bears one.
fn frame(to: SocketAddr, from: SocketAddr, hinted: Option<&RawFlow>) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else {
        return Vec::new();
    };
    let mut options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1];
    if let Some(flow) = hinted {
        options.extend([253, 12, 0xa1, 0xf5]);
        options.extend(flow.hint.to_ne_bytes());
    }
    let segment_bytes = 20 + options.len() + PAYLOAD_BYTES;
    let mut frame = vec![0; 12];
    frame.extend([8, 0]);
    frame.extend([0x45, 0]);
    frame.extend(((20 + segment_bytes) as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend([0; 8]);
    frame.extend([((20 + options.len()) as u8 / 4) << 4, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(options);
    frame.resize(14 + 20 + segment_bytes, 7);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_long_as_its_headers_say() {
        let ends = ("127.0.0.1:80".parse().unwrap(), "127.0.0.2:1025".parse().unwrap());
        let plain = frame(ends.0, ends.1, None);
        assert_eq!(plain.len(), 14 + usize::from(u16::from_be_bytes([plain[16], plain[17]])));
        assert_eq!((plain[34..38].to_vec(), plain[46] >> 4), (vec![4, 1, 0, 80], 8));
        let flow = RawFlow {
            hint: u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
            ..bytemuck::Zeroable::zeroed()
        };
        let hinted = frame(ends.0, ends.1, Some(&flow));
        assert_eq!(hinted.len(), plain.len() + 12);
        assert_eq!(hinted[66..78], [253, 12, 0xa1, 0xf5, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(hinted[46] >> 4, 11);
    }
}
