//! CPUs that come while somebody works with a machine that was read before.

use std::path::Path;

use crate::{Error, Machine, SpeedOrigin, SpeedSource};

impl Machine {
    /// This machine as `root` shows it now: of a CPU that was offline the kernel tells only then
    /// which core, cache and node it belongs to, and how fast it is. Speeds come from where they
    /// came from before, or from the best source that has all of them now; those that were given or
    /// measured stay.
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
