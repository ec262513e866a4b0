//! What is decided of the programs before they are in the kernel: whether this one can have them,
//! which of them, and with which settings.

use std::fs;

use libbpf_rs::OpenObject;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Typedef;

use crate::device::Device;
use crate::layout::RawSettings;
use crate::object::{ObjectError, bpf};
use crate::options::{Mode, Options, Policy, Wire};
use crate::steering_error::SteeringError;

const SETTINGS: &str = ".rodata.settings";
pub(crate) const THREADS: &str = "threads";
/// A program for each way to know where packets are wanted; one of them is loaded.
pub(crate) const STEER: [&str; 5] =
    ["steer_flow", "steer_hint", "steer_paper", "steer_hint_alone", "steer_paper_alone"];

/// Of IPv4 with the paper's byte, and of TCP.
const PAPER_HEADERS_BYTES: u32 = 20 + 4 + 20;
/// The tracepoints that not all kernels have.
const HOOKS: [&str; 2] = ["sock_recv_length", "sock_send_length"];

/// The one of the programs that fits.
pub(crate) fn steer_of(options: &Options) -> &'static str {
    let [flow, hint, paper, hint_alone, paper_alone] = STEER;
    match (options.mode, options.wire, options.is_stateless) {
        (Mode::Flow, ..) => flow,
        (Mode::Hint, Wire::Tcp, false) => hint,
        (Mode::Hint, Wire::Paper, false) => paper,
        (Mode::Hint, Wire::Tcp, true) => hint_alone,
        (Mode::Hint, Wire::Paper, true) => paper_alone,
    }
}

/// Whether it can work here.
pub(crate) fn support() -> Result<(), SteeringError> {
    evenkeel_cbinfo::support().map_err(ObjectError::from)?;
    let btf = Btf::from_vmlinux().map_err(bpf("reading the kernel's types"))?;
    let is_missing = |hook: &&&str| {
        let name = format!("btf_trace_{hook}");
        btf.type_by_name::<Typedef<'_>>(&name).is_none()
    };
    match HOOKS.iter().find(is_missing) {
        Some(hook) => Err(SteeringError::NoHook(hook)),
        None => Ok(()),
    }
}

/// Writes into the opened object what is fixed from then on.
pub(crate) fn configure(
    open: &mut OpenObject,
    device: &Device,
    options: &Options,
    possible_cpus: u32,
) -> Result<(), ObjectError> {
    // The numbers are `enum core_policy`.
    let (policy, dedicated) = match options.policy {
        Policy::Issuer => (0, 0),
        Policy::Runner => (1, 0),
        Policy::LeastLoaded => (2, 0),
        Policy::Dedicated(core) => (3, core),
        Policy::Auto => (4, 0),
    };
    let settings = RawSettings {
        hint_key: random_key().map_err(ObjectError::Random)?,
        netns_cookie: device.netns_cookie,
        policy,
        dedicated,
        mode: u32::from(options.mode == Mode::Hint),
        wire: u32::from(options.wire == Wire::Paper),
        paper_segment: device.mtu.saturating_sub(PAPER_HEADERS_BYTES),
        // At most an hour (the option's range), at least a millisecond: 0 is off.
        hold_ms: options.hold.map_or(0, |limit| limit.as_millis().max(1) as u32),
    };
    for mut program in open.progs_mut() {
        let is_another = |name: &&str| *name != steer_of(options) && program.name() == *name;
        if STEER.iter().any(is_another) {
            program.set_autoload(false);
        }
    }
    for mut map in open.maps_mut() {
        match map.name().to_string_lossy().as_ref() {
            SETTINGS => map
                .set_initial_value(bytemuck::bytes_of(&settings))
                .map_err(|_| ObjectError::Mismatch(SETTINGS))?,
            THREADS => {
                map.set_max_entries(possible_cpus).map_err(bpf("sizing the map of threads"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// What no other host can guess.
fn random_key() -> std::io::Result<[u64; 2]> {
    let mut key = [0_u64; 2];
    let bytes: &mut [u8] = bytemuck::bytes_of_mut(&mut key);
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, bytes)?;
    Ok(key)
}
