//! Softirq noise: loads lab/bpf/noise.bpf.c and arms its timer on the CPU.
//!
//! The object is not pinned anywhere: when this value is dropped, or the process dies, its file
//! descriptors close and the kernel cancels the timer.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytemuck::{Pod, Zeroable, bytes_of_mut};
use libbpf_rs::{ErrorKind, Object, ObjectBuilder, ProgramInput};

use super::{Generator, NoiseConfig, NoiseError, Tally, gap, thread};

/// lab/bpf/noise.bpf.c, compiled by build.rs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/noise.bpf.o"));

const NAME: &str = "evenkeel-arm";
const WHAT: &str = "softirq noise";
const NEEDS: &str = "CAP_BPF, CAP_PERFMON and CAP_SYS_NICE";
/// No calibration runs longer, whatever happens to this process.
const CALIBRATION_LIMIT: Duration = Duration::from_millis(500);
/// Above this period, in ns, what an interrupt costs besides its spinning is less than 1 %.
const LONG_PERIOD_NS: u64 = 2_000_000;
/// BPF_F_TIMER_ABS (Linux 6.4) and BPF_F_TIMER_CPU_PIN (6.7), the best first.
const TIMER_FLAGS: [u64; 3] = [1 | 2, 1, 0];

/// The kernel allocates a timer without waiting for memory, so it may have none at this moment.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);
const NO_MEMORY: &str = "the kernel has no memory for a BPF timer";

/// `struct noise_arm` of lab/bpf/noise.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Arm {
    busy_ns: u64,
    period_ns: u64,
    limit_ns: u64,
    timer_flags: u64,
}

/// `struct noise_done` of lab/bpf/noise.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Done {
    busy_ns: u64,
    wall_ns: u64,
    fired: u64,
    strayed: u64,
}

/// An armed timer; it lives as long as the object.
struct Timer {
    object: Object,
    cpu: u32,
}

impl Timer {
    fn arm(cpu: u32, busy_ns: u64, period_ns: u64, limit: Duration) -> Result<Self, NoiseError> {
        let limit_ns = limit.as_nanos() as u64;
        let object = with_accepted_flags(|timer_flags| {
            try_to_arm(cpu, Arm { busy_ns, period_ns, limit_ns, timer_flags })
        })?;
        Ok(Self { object, cpu })
    }

    fn disarm(self) -> Result<Done, NoiseError> {
        let mut done = Done::zeroed();
        let result = run(&self.object, "disarm", bytes_of_mut(&mut done))?;
        if result != 0 {
            let error = io::Error::from_raw_os_error(-result);
            return Err(NoiseError::failed("cannot stop the softirq noise's timer", error));
        }
        if done.strayed > 0 {
            return Err(NoiseError::failed(
                WHAT,
                format!(
                    "{} of {} timer callbacks ran on another CPU than {} (this kernel cannot pin \
                     BPF timers: Linux 6.7 or later can), so the duty was not reached",
                    done.strayed,
                    done.strayed + done.fired,
                    self.cpu
                ),
            ));
        }
        Ok(done)
    }
}

/// The noise: a timer, and what each of its interrupts costs the CPU besides the spinning.
pub(super) struct Softirq {
    timer: Option<Timer>,
    overhead_ns: f64,
}

impl Softirq {
    /// A timer interrupt costs more than its callback can see: getting there and back, and setting
    /// the hardware's timer, 10 to 20 µs in a VM. At a period of 100 µs that is a large part of
    /// the duty, so it is measured first, counted, and taken off the spinning.
    pub(super) fn start(cpu: u32, config: &NoiseConfig) -> Result<Self, NoiseError> {
        let (busy_ns, period_ns) = (config.busy_us * 1_000, config.period_us * 1_000);
        let overhead_ns = overhead_ns(cpu, busy_ns.min(period_ns / 4), period_ns)?;
        tracing::debug!(cpu, overhead_ns, "softirq noise");
        let spin_ns = busy_ns.saturating_sub(overhead_ns as u64);
        if spin_ns == 0 {
            return Err(NoiseError::Refused(format!(
                "a busy time of {} us: a timer interrupt alone takes {:.0} us here, give more",
                config.busy_us,
                overhead_ns / 1_000.0
            )));
        }
        let timer = Timer::arm(cpu, spin_ns, period_ns, config.limit)?;
        Ok(Self { timer: Some(timer), overhead_ns })
    }
}

/// What a timer interrupt takes from the CPU besides the spinning, in ns.
fn overhead_ns(cpu: u32, busy_ns: u64, period_ns: u64) -> Result<f64, NoiseError> {
    if period_ns > LONG_PERIOD_NS {
        return Ok(0.0);
    }
    let quiet = gap::quiet_share(cpu)?;
    let timer = Timer::arm(cpu, busy_ns, period_ns, CALIBRATION_LIMIT)?;
    let wait = |done: &AtomicBool| {
        while !done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let (noisy, ()) = gap::share_during(cpu, wait)?;
    let done = timer.disarm()?;
    if done.fired == 0 || done.wall_ns == 0 {
        return Ok(0.0);
    }
    let spun = done.busy_ns as f64 / done.wall_ns as f64;
    let fires_per_ns = done.fired as f64 / done.wall_ns as f64;
    let overhead = (noisy - quiet - spun) / fires_per_ns;
    Ok(overhead.max(0.0))
}

impl Generator for Softirq {
    fn stop(&mut self) -> Result<Tally, NoiseError> {
        let Some(timer) = self.timer.take() else { return Ok(Tally::default()) };
        let done = timer.disarm()?;
        let overhead_ns = (done.fired as f64 * self.overhead_ns) as u64;
        Ok(Tally {
            wall_ns: done.wall_ns,
            busy_ns: done.busy_ns + overhead_ns,
            seen_ns: done.busy_ns,
            ..Tally::default()
        })
    }
}

/// What `try_to_arm` made with the best of the flags that the kernel takes; it returns what the kernel
/// says: 0, or an error below 0.
fn with_accepted_flags<T>(
    mut try_to_arm: impl FnMut(u64) -> Result<(T, i32), NoiseError>,
) -> Result<T, NoiseError> {
    let (mut refused, mut tries) = (0, TRIES);
    for timer_flags in TIMER_FLAGS {
        loop {
            let (made, result) = try_to_arm(timer_flags)?;
            if result == 0 {
                return Ok(made);
            }
            refused = -result;
            tries = tries.saturating_sub(1);
            match refused {
                libc::ENOMEM if tries > 0 => std::thread::sleep(PAUSE),
                libc::ENOMEM => return Err(NoiseError::failed(WHAT, NO_MEMORY)),
                _ => break,
            }
        }
    }
    let error = io::Error::from_raw_os_error(refused);
    Err(NoiseError::failed(
        WHAT,
        format!("the kernel refuses the BPF timer ({error}); Linux 5.17 or later is needed"),
    ))
}

/// Arms a timer of a new object, as a timer can be initialised once only; also returns what the kernel
/// says. The timer stays on the CPU that arms it. A thread of its own does it, so that the caller's
/// affinity is not touched.
fn try_to_arm(cpu: u32, mut request: Arm) -> Result<(Object, i32), NoiseError> {
    let object = load()?;
    let setup = move || {
        thread::pin(cpu)?;
        let result = run(&object, "arm", bytes_of_mut(&mut request))?;
        Ok((object, result))
    };
    let arming = thread::start(NAME, setup, |made| made)?;
    thread::finish(NAME, arming)
}

fn load() -> Result<Object, NoiseError> {
    ObjectBuilder::default()
        .open_memory(OBJECT)
        .and_then(|open| open.load())
        .map_err(|error| from_bpf("loading a BPF timer program", &error))
}

/// Runs one of the object's syscall programs on this very thread, with its context in and out;
/// returns what the program returned.
fn run(object: &Object, name: &str, context: &mut [u8]) -> Result<i32, NoiseError> {
    let what = || format!("running the BPF program {name:?}");
    let program = object
        .progs_mut()
        .find(|program| program.name() == name)
        .ok_or_else(|| NoiseError::failed(what(), "the object does not have it"))?;
    let input = ProgramInput { context_in: Some(context), ..ProgramInput::default() };
    program
        .test_run(input)
        .map(|output| output.return_value as i32)
        .map_err(|error| from_bpf(&what(), &error))
}

fn from_bpf(what: &str, error: &libbpf_rs::Error) -> NoiseError {
    // libbpf-rs's kind is the same for EPERM (no privilege) and EACCES (the verifier's no, which
    // a missing CAP_PERFMON provokes as well as a kernel too old); the text tells them apart.
    let denied = error.kind() == ErrorKind::PermissionDenied;
    if denied && format!("{error:#}").contains("os error 1)") {
        return NoiseError::NotPermitted { what: what.into(), needs: NEEDS };
    }
    let remedy =
        if denied { format!(" (it needs {NEEDS}, and Linux 5.17)") } else { String::new() };
    NoiseError::failed(format!("{WHAT}: {what}"), format!("{error:#}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_memory_at_this_moment_is_asked_again() {
        let mut asked = Vec::new();
        let made = with_accepted_flags(|flags| {
            asked.push(flags);
            Ok((flags, [-libc::EINVAL, -libc::ENOMEM, -libc::ENOMEM, 0][asked.len() - 1]))
        });
        assert_eq!(made.unwrap(), 1);
        assert_eq!(asked, [3, 1, 1, 1]);
    }

    #[test]
    fn worse_flags_are_no_remedy_for_a_lack_of_memory() {
        let mut asked = Vec::new();
        let made = with_accepted_flags(|flags| {
            asked.push(flags);
            Ok(((), -libc::ENOMEM))
        });
        assert!(made.unwrap_err().to_string().contains("no memory"));
        assert_eq!(asked, [3; TRIES as usize]);
    }

    #[test]
    fn a_kernel_that_refuses_all_flags_is_named() {
        let made = with_accepted_flags(|_| Ok(((), -libc::EPERM)));
        assert!(made.unwrap_err().to_string().contains("not permitted"));
    }
}
