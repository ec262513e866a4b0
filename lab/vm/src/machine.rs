//! The emulator's command line.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Acceleration, Error, Guest, Initramfs, Kernel, Topology, emulator, file};

/// The console shows the kernel's warnings; an oops ends the guest. Nothing that takes the
/// emulator's slowness for a fault of the kernel, and no groups that nobody asked for.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off \
     nowatchdog noautogroup tsc=reliable no_timer_check rdinit=/init";

/// A machine that can be booted any number of times.
#[derive(Debug, Clone)]
pub struct Machine {
    /// What is booted.
    pub kernel: Kernel,
    /// CPUs, nodes and memory.
    pub topology: Topology,
    /// The root directory.
    pub initramfs: Initramfs,
    /// Who executes it.
    pub acceleration: Acceleration,
    /// A guest that says nothing for this much of the host's time is taken for stuck and killed.
    pub silence: Duration,
    /// Asked while it is waited for: once this says so, it is killed.
    pub give_up: fn() -> bool,
}

impl Machine {
    /// A machine with a silence that only a stuck guest keeps.
    pub fn new(
        kernel: Kernel,
        topology: Topology,
        initramfs: Initramfs,
        acceleration: Acceleration,
    ) -> Self {
        let silence = Duration::from_secs(90);
        Self { kernel, topology, initramfs, acceleration, silence, give_up: || false }
    }

    /// Boots it and waits until it serves.
    ///
    /// # Errors
    /// Without QEMU, with an unreadable file, or when the guest ends, is stuck or is given up.
    pub fn boot(&self) -> Result<Guest, Error> {
        let dir = tempfile::Builder::new().prefix("evenkeel-vm-").tempdir();
        let dir = dir.map_err(file("cannot create a directory in", &std::env::temp_dir()))?;
        let archive = dir.path().join("initramfs");
        let mut initramfs = self.initramfs.clone();
        if let Some(config) = &self.kernel.config {
            // Where programs look for it.
            let name = config.file_name().unwrap_or_default();
            initramfs.copy(config, &Path::new("/boot").join(name));
        }
        initramfs.write(&archive)?;
        let command = self.command(&archive, &console_in(dir.path()));
        Guest::start(command, dir, self.silence, self.give_up)
    }

    fn command(&self, archive: &Path, console: &Path) -> Command {
        let mut command = emulator::command();
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(self.acceleration.arguments())
            .args(self.topology.arguments())
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(archive)
            .args(["-append", KERNEL_ARGUMENTS])
            .arg("-serial")
            .arg({
                let mut to_file = std::ffi::OsString::from("file:");
                to_file.push(console);
                to_file
            })
            .args(["-serial", "stdio"]);
        command
    }
}

/// Where a guest's console is written, in its directory.
pub(crate) fn console_in(dir: &Path) -> std::path::PathBuf {
    dir.join("console")
}
