//! Which CPUs do their work with less energy, as far as the kernel knows.

use std::collections::BTreeMap;
use std::fmt;

use crate::machine::{Cpu, Machine};
use crate::speed::CoreType;

/// Where it is known from which CPUs need less energy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnergyOrigin {
    /// The kernel's energy model.
    Model,
    /// The kinds of cores of a hybrid Intel machine.
    CoreTypes,
}

/// The online CPUs by the energy that their work needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnergyRanks {
    /// Where that is known from.
    pub origin: EnergyOrigin,
    /// By CPU: 0 needs the least. Only the order counts.
    pub ranks: BTreeMap<u32, u32>,
}

impl Machine {
    /// The online CPUs by the energy that a unit of work needs there: by the kernel's energy model
    /// where it has one for all of them, else by the kinds of cores. `None`: neither tells them apart.
    pub fn energy_ranks(&self) -> Option<EnergyRanks> {
        let model = |cpu: &Cpu| cpu.sources.energy_per_work;
        let core_type = |cpu: &Cpu| {
            cpu.sources.core_type.map(|kind| match kind {
                CoreType::LowPower => 0,
                CoreType::Efficient => 1,
                CoreType::Performance => 2,
            })
        };
        let by =
            |origin, ranks: Option<BTreeMap<u32, u32>>| Some(EnergyRanks { origin, ranks: ranks? });
        by(EnergyOrigin::Model, self.ranks(model))
            .or_else(|| by(EnergyOrigin::CoreTypes, self.ranks(core_type)))
    }

    /// The online CPUs in the order of a figure; `None` if one lacks it, or all have the same.
    fn ranks(&self, figure: impl Fn(&Cpu) -> Option<u64>) -> Option<BTreeMap<u32, u32>> {
        let online = || self.cpus.iter().filter(|cpu| cpu.online);
        let figures: Option<Vec<u64>> = online().map(&figure).collect();
        let mut order = figures?;
        order.sort_unstable();
        order.dedup();
        let rank = |cpu: &Cpu| {
            let place = order.binary_search(&figure(cpu)?).ok()?;
            Some((cpu.id, u32::try_from(place).ok()?))
        };
        (order.len() > 1).then(|| online().filter_map(rank).collect())
    }
}

impl fmt::Display for EnergyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "the kernel's energy model",
            Self::CoreTypes => "the kinds of cores",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(kinds: &str) -> Machine {
        let text = format!("name = \"m\"\nkinds = [{kinds}]\n");
        Machine::parse_toml(&text, "m.toml").unwrap()
    }

    fn ranks(kinds: &str) -> Option<(EnergyOrigin, Vec<u32>)> {
        let found = machine(kinds).energy_ranks()?;
        Some((found.origin, found.ranks.into_values().collect()))
    }

    #[test]
    fn the_energy_model_comes_before_the_kinds_of_cores() {
        let kinds = "{ cpus = \"0-1\", core_type = \"performance\", energy_per_work = 70 },
            { cpus = \"2\", core_type = \"efficient\", energy_per_work = 90 },
            { cpus = \"3\", core_type = \"low-power\", energy_per_work = 20 }";
        assert_eq!(ranks(kinds), Some((EnergyOrigin::Model, vec![1, 1, 2, 0])));
        let kinds = kinds.replace("energy_per_work = 90", "capability = 1024");
        let kinds = kinds.replace("energy_per_work = 70", "capability = 1024");
        let kinds = kinds.replace("energy_per_work = 20", "capability = 1024");
        assert_eq!(ranks(&kinds), Some((EnergyOrigin::CoreTypes, vec![2, 2, 1, 0])));
    }

    #[test]
    fn cpus_that_are_alike_or_unknown_have_no_order() {
        assert_eq!(ranks("{ cpus = \"0-3\" }"), None);
        assert_eq!(
            ranks("{ cpus = \"0-3\", energy_per_work = 5, core_type = \"efficient\" }"),
            None
        );
        let partly = "{ cpus = \"0\", energy_per_work = 5 }, { cpus = \"1\" }";
        assert_eq!(ranks(partly), None);
    }
}
