//! Hotplug: a machine that was read before is read again after CPUs came or went.

use std::path::Path;

use crate::error::Error;
use crate::machine::Machine;
use crate::speed::{SpeedOrigin, SpeedSource};

impl Machine {
    /// This machine as `root` shows it now. The kernel shows a CPU's core, cache, node and speed only
    /// while it is online. Speeds come from the same source as before, or from the best source that has
    /// all of them now; given or measured speeds stay.
    ///
    /// # Errors
    ///
    /// As [`Machine::from_sysfs`].
    pub fn read_again(&self, root: &Path) -> Result<Machine, Error> {
        let mut now = Machine { name: self.name.clone(), ..Machine::from_sysfs(root)? };
        let source = match self.speed {
            SpeedOrigin::CpuCapacity => SpeedSource::CpuCapacity,
            SpeedOrigin::Cppc => SpeedSource::Cppc,
            SpeedOrigin::MaxFrequency => SpeedSource::MaxFrequency,
            SpeedOrigin::Bogomips => SpeedSource::Bogomips,
            SpeedOrigin::Equal => return Ok(now),
            SpeedOrigin::Given | SpeedOrigin::Calibrated => {
                now.speed = self.speed;
                for cpu in &mut now.cpus {
                    cpu.capability = self.cpu(cpu.id).map_or(cpu.capability, |cpu| cpu.capability);
                }
                return Ok(now);
            }
        };
        Ok(now.with_speed(&source).unwrap_or(now))
    }
}
