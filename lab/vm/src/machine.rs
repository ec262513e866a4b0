//! The machine that a guest runs on: its parts, QEMU's command line, and booting.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::emulator;
use crate::guest::{Guest, console_in};
use crate::{Acceleration, Error, Initramfs, Kernel, Topology, file};

/// The console shows the kernel's warnings; an oops ends the guest. Watchdogs are off, because they take
/// the emulator's slowness for a fault of the kernel, and so are automatic task groups.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off \
     nowatchdog noautogroup tsc=reliable no_timer_check";

/// A machine that can be booted any number of times.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The kernel.
    pub kernel: Kernel,
    /// CPUs, nodes and memory.
    pub topology: Topology,
    /// The files in the guest.
    pub initramfs: Initramfs,
    /// How instructions are executed.
    pub acceleration: Acceleration,
    /// Further devices, as arguments of QEMU.
    pub devices: Vec<String>,
    /// A guest that says nothing for this long, in the host's time, counts as stuck and is killed.
    pub silence: Duration,
    /// Asked while the host waits for the guest: when it returns true, the guest is killed.
    pub give_up: fn() -> bool,
}

impl Machine {
    /// A machine whose guest counts as stuck after 90 s of silence.
    pub fn new(
        kernel: Kernel,
        topology: Topology,
        initramfs: Initramfs,
        acceleration: Acceleration,
    ) -> Self {
        let silence = Duration::from_secs(90);
        let devices = Vec::new();
        let give_up = || false;
        Self { kernel, topology, initramfs, acceleration, devices, silence, give_up }
    }

    /// Boots it and waits until the guest is ready.
    ///
    /// # Errors
    /// There is no QEMU, a file cannot be read, or the guest ended, is stuck or was given up.
    pub fn boot(&self) -> Result<Guest, Error> {
        let dir = tempfile::Builder::new().prefix("evenkeel-vm-").tempdir();
        let dir = dir.map_err(file("cannot create a directory in", &std::env::temp_dir()))?;
        let archive = dir.path().join("initramfs");
        let mut initramfs = self.initramfs.clone();
        if let Some(config) = &self.kernel.config {
            // Programs look for it in /boot.
            let name = config.file_name().unwrap_or_default();
            initramfs.copy(config, &Path::new("/boot").join(name));
        }
        initramfs.write(&archive)?;
        let command = self.command(&archive, &console_in(dir.path()));
        Guest::start(command, dir, self.silence, self.give_up)
    }

    fn command(&self, archive: &Path, console: &Path) -> Command {
        let mut command = emulator::command();
        let first = self.initramfs.first();
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(self.acceleration.arguments())
            .args(self.topology.arguments())
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(archive)
            .args(["-append", &format!("{KERNEL_ARGUMENTS} rdinit={}", first.display())])
            .arg("-serial")
            .arg({
                let mut to_file = std::ffi::OsString::from("file:");
                to_file.push(console);
                to_file
            })
            .args(["-serial", "stdio"])
            .args(&self.devices);
        command
    }
}
