//! The machine and the commit that figures were measured on.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::OnceLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine, as far as it matters to the figures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MachineInfo {
    /// The processor's name.
    pub model: String,
    /// CPUs online.
    pub cpus: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Whatever else the reader should know, like `"irq_time_accounting": "no"`.
    #[serde(flatten)]
    pub notes: BTreeMap<String, String>,
}

impl MachineInfo {
    /// This machine. What cannot be read is "unknown", or 0.
    pub fn read() -> Self {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = text("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned());
        let online = text("/sys/devices/system/cpu/online");
        let kernel = text("/proc/sys/kernel/osrelease");
        Self {
            model,
            cpus: online
                .trim()
                .parse::<evenkeel_machine::CpuSet>()
                .map_or(0, |cpus| cpus.len() as u32),
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel.trim().into() },
            notes: BTreeMap::new(),
        }
    }

    /// As items of a list at the head of a page.
    pub fn markdown(&self) -> String {
        let items = self.items();
        let machine = items.iter().take(1).map(|machine| format!("- Machine: {machine}\n"));
        machine.chain(items.iter().skip(1).map(|note| format!("- {note}\n"))).collect()
    }

    /// The machine, and each note.
    pub fn items(&self) -> Vec<String> {
        let Self { model, cpus, kernel, notes } = self;
        let notes = notes.iter().map(|(name, value)| format!("{name}: {value}"));
        std::iter::once(format!("{model}, {cpus} CPUs, Linux {kernel}")).chain(notes).collect()
    }
}

/// The commit of the checkout that this program was built from, with `-dirty` where files differ
/// from it; "unknown" where there is no checkout any more. It is that of the first call: call this
/// before anything is measured, since the checkout may be another one at the end.
pub fn commit() -> String {
    static COMMIT: OnceLock<String> = OnceLock::new();
    COMMIT.get_or_init(describe).clone()
}

fn describe() -> String {
    let described = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--abbrev=12"])
        .args(["--exclude", "*"])
        .output();
    match described {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = MachineInfo::read();
        assert!(machine.cpus >= 1);
        assert!(!machine.kernel.is_empty() && !machine.model.is_empty());
    }

    #[test]
    fn the_commit_is_one_word() {
        assert_eq!(commit().split_whitespace().count(), 1);
    }
}
