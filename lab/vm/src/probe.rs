//! Finds the fastest acceleration that works on this host.
//!
//! That /dev/kvm exists says little: there are hosts with a device that boots no stock kernel. So a
//! guest is booted once with KVM, and the result is remembered until the host reboots.

use std::path::Path;
use std::time::Duration;

use crate::cache::{cache, write_cached};
use crate::{Acceleration, Error, Initramfs, Kernel, Machine, Topology};

/// Longer than a boot takes with KVM, however busy the host.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
const DEVICE: &str = "/dev/kvm";
/// The file of the cache that remembers the result.
const RESULT: &str = "kvm";

impl Acceleration {
    /// The fastest that works here. Boots `kernel` with `init` under KVM, unless that was tried since
    /// the host booted.
    ///
    /// # Errors
    /// There is no QEMU, or a file cannot be read or written. It is no error that KVM does not work.
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
        write_cached(RESULT, &format!("{} {works}\n", boot.trim()))?;
        Ok(if works { Self::Kvm } else { Self::Emulation })
    }
}

/// The remembered result, if it is of this boot of the host.
fn result_of(boot: &str, line: &str) -> Option<bool> {
    let (then, works) = line.trim().split_once(' ')?;
    (then == boot.trim()).then_some(works == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_holds_for_one_boot_of_the_host() {
        assert_eq!(result_of("abc\n", "abc true\n"), Some(true));
        assert_eq!(result_of("abc\n", "abc false\n"), Some(false));
        assert_eq!(result_of("abd\n", "abc true\n"), None);
        assert_eq!(result_of("abc\n", ""), None);
    }
}
