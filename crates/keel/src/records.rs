//! The records that `bpf/keel/intf.h` lays out.

use bytemuck::{Pod, Zeroable};

/// `MAX_CPUS`.
pub(crate) const MAX_CPUS: usize = 1024;
/// `MAX_LEVELS`.
pub(crate) const MAX_LEVELS: usize = 8;
/// `MAX_RANGES`.
pub(crate) const MAX_RANGES: usize = 16384;

/// `MAX_COUNTERS`.
pub(crate) const MAX_COUNTERS: usize = 32;

/// `struct keel_settings`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawSettings {
    pub order: u32,
    pub gate: u32,
    pub balance: u32,
    pub cpus: u32,
    pub levels: u32,
    pub pad: u32,
}

/// `struct keel_tunables`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawTunables {
    pub slice_ns: u64,
    pub scan_limit: u64,
}

/// `struct cpu_range`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawRange {
    pub first: u16,
    pub count: u16,
}

/// `struct keel_domain`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawDomain {
    pub first_range: u16,
    pub ranges: u16,
    pub cpus: u16,
    pub shared: u16,
}

/// `struct keel_cpu`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawCpu {
    pub position: u16,
    pub capability: u16,
    pub present: u16,
    pub pad: u16,
    pub domain: [RawDomain; MAX_LEVELS],
}

/// `struct cpu_state`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawCpuState {
    pub clock: u64,
    pub load: u64,
    pub runnable: u64,
    pub running_vruntime: u64,
    pub running_weight: u64,
    pub running_since_ns: u64,
    pub running_space: u64,
    pub taken_since_ns: u64,
    pub busy_share: u64,
    pub busy_since_ns: u64,
    pub mean_utilisation: u64,
    pub balance_at_ns: [u64; MAX_LEVELS],
    pub balance_due: u64,
    pub rescue_at_ns: u64,
    pub counters: [u64; MAX_COUNTERS],
}

/// `enum keel_counter`: name and meaning, in its order.
pub(crate) const COUNTERS: [(&str, &str); 23] = [
    ("wake_idle", "Tasks woken straight onto an idle CPU"),
    ("enqueue", "Tasks put into a queue"),
    ("leave", "Tasks that left a queue without a turn: changed, moved by the kernel or killed"),
    ("switch", "Times that the head of a queue was given the CPU"),
    ("keep", "Times that a task used up its slice and ran on"),
    ("preempt", "Times that a waking task took the CPU from who ran"),
    ("move_wake", "Tasks moved to another CPU when they woke"),
    ("move_fork", "Tasks placed on another CPU than their parent's"),
    ("move_exec", "Tasks moved to another CPU after they became another program"),
    ("move_idle", "Tasks moved to a CPU that was idle"),
    ("move_periodic", "Tasks moved to a busy CPU with less load"),
    ("refuse_wake", "Moves at wake-up that the gate refused"),
    ("refuse_fork", "Moves at fork that the gate refused"),
    ("refuse_exec", "Moves after exec that the gate refused"),
    ("refuse_idle", "Moves to an idle CPU that the gate refused"),
    ("refuse_periodic", "Moves to a busy CPU that the gate refused"),
    ("try_idle", "Times that an idle CPU looked for work"),
    ("try_periodic", "Times that a busy CPU looked for work, by domain"),
    ("rescue", "Tasks that had waited too long for any policy's taste"),
    ("send_back", "Tasks moved back to their own CPU, the only one that they may use"),
    ("thief", "Tasks that lost their CPU to a higher class and were enqueued anew"),
    ("no_state", "Tasks that the keel had no state for"),
    (UNLIMITED, "Times that a cgroup was given a cpu.max, which the keel does not enforce"),
];

/// The counter of limits that are not enforced.
pub(crate) const UNLIMITED: &str = "unlimited";

/// Bytes of `struct keel_exit`'s parts: code, kind and pad, reason, message, dump.
pub(crate) const EXIT_PARTS: [usize; 5] = [8, 8, 128, 1024, 32768];

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../bpf/keel/intf.h");

    fn defined(name: &str) -> usize {
        let line = format!("#define {name} ");
        let value = HEADER.lines().find_map(|found| found.strip_prefix(&line)).unwrap();
        value.trim().parse().unwrap()
    }

    #[test]
    fn limits_are_the_header_s() {
        assert_eq!(defined("MAX_CPUS"), MAX_CPUS);
        assert_eq!(defined("MAX_LEVELS"), MAX_LEVELS);
        assert_eq!(defined("MAX_RANGES"), MAX_RANGES);
        assert_eq!(defined("MAX_COUNTERS"), MAX_COUNTERS);
        let texts = ["REASON_BYTES", "MESSAGE_BYTES", "DUMP_BYTES"].map(defined);
        assert_eq!(texts, EXIT_PARTS[2..]);
    }

    #[test]
    fn counters_have_the_header_s_names_and_order() {
        let names: Vec<String> = HEADER
            .lines()
            .filter_map(|line| line.trim().strip_prefix("COUNT_"))
            .map(|rest| rest.split(',').next().unwrap().to_lowercase())
            .collect();
        assert_eq!(names, COUNTERS.map(|(name, _)| name.to_owned()));
    }
}
