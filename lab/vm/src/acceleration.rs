//! KVM where it was seen to work, else emulation.
//!
//! That /dev/kvm exists says little: there are hosts with a device that boots no stock kernel. So a
//! guest is booted once with it, and what came of it is remembered for this boot of the host.

use std::path::Path;
use std::time::Duration;

use crate::kernel::{cache, remember};
use crate::{Error, Initramfs, Kernel, Machine, Topology};

/// Who executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceleration {
    /// The CPU itself.
    Kvm,
    /// QEMU's translator, one thread of the host for each CPU of the guest.
    Emulation,
    /// QEMU's translator in one thread, where each instruction takes one nanosecond of the guest's
    /// time: what the guest's clock says is a count of instructions.
    Counting,
}

/// Longer than a boot takes with KVM, however busy the host.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
const DEVICE: &str = "/dev/kvm";
const RESULT: &str = "kvm";

impl Acceleration {
    /// The fastest that works here: tries a boot of `kernel` with `init` if nobody did since the
    /// host was started.
    ///
    /// # Errors
    /// When there is no QEMU, or files cannot be read or written; that KVM does not work is none.
    pub fn fastest(kernel: &Kernel, init: &Path) -> Result<Self, Error> {
        let usable = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).is_ok();
        if !usable {
            return Ok(Self::Emulation);
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let known = std::fs::read_to_string(cache().join(RESULT)).unwrap_or_default();
        if let Some(works) = result_of(&boot, &known) {
            return Ok(if works { Self::Kvm } else { Self::Emulation });
        }
        let initramfs = Initramfs::new(init)?;
        let mut machine = Machine::new(kernel.clone(), Topology::flat(1), initramfs, Self::Kvm);
        machine.silence = PROBE_LIMIT;
        let works = match machine.boot().and_then(crate::Guest::off) {
            Ok(_) => true,
            Err(Error::Silent { .. } | Error::Ended { .. }) => false,
            Err(error) => return Err(error),
        };
        remember(RESULT, &format!("{} {works}\n", boot.trim()))?;
        Ok(if works { Self::Kvm } else { Self::Emulation })
    }

    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Self::Emulation => &["-accel", "tcg,thread=multi", "-cpu", "max"],
            Self::Counting => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=off",
                "-rtc",
                "clock=vm",
                "-cpu",
                "max",
            ],
        }
    }
}

/// What the remembered line says about this boot of the host.
fn result_of(boot: &str, line: &str) -> Option<bool> {
    let (then, works) = line.trim().split_once(' ')?;
    (then == boot.trim()).then_some(works == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_holds_for_one_boot_of_the_host() {
        assert_eq!(result_of("abc\n", "abc true\n"), Some(true));
        assert_eq!(result_of("abc\n", "abc false\n"), Some(false));
        assert_eq!(result_of("abd\n", "abc true\n"), None);
        assert_eq!(result_of("abc\n", ""), None);
    }
}
