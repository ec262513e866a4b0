//! The layouts that the keel in the kernel and its loader share: the Rust twins of the structs and
//! limits of `bpf/keel/intf.h`. That header documents each field. The loader writes and reads them
//! here, the lab's simulator does so in its native build of the keel.

#![expect(missing_docs, reason = "bpf/keel/intf.h documents the fields")]

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};

/// `MAX_CPUS`.
pub const MAX_CPUS: usize = 1024;
/// `CPU_ROWS`.
pub const CPU_ROWS: u32 = 64;
/// `ROW_PLACES` of `bpf/keel/row.h`.
pub const ROW_PLACES: u64 = 128;
/// `MAX_LEVELS`.
pub const MAX_LEVELS: usize = 8;
/// `MAX_RANGES`.
pub const MAX_RANGES: usize = 16384;
/// `MAX_NODES`.
pub const MAX_NODES: usize = 64;

/// `MAX_DECISIONS`.
pub const MAX_DECISIONS: usize = 8;
/// `MAX_COUNTERS`.
pub const MAX_COUNTERS: usize = 64;

/// `struct keel_settings`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RawSettings {
    pub order: u32,
    pub gate: u32,
    pub balance: u32,
    pub cpus: u32,
    pub levels: u32,
    pub online: u32,
    pub parts: u32,
    pub smt: u32,
    pub ias_mode: u32,
    pub compact: u32,
}

/// `struct keel_tunables`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RawTunables {
    pub slice_ns: u64,
    pub scan_limit: u64,
    pub max_idle_wait_ns: u64,
    pub sibling_window: u64,
    pub sibling_kick: u64,
    pub turn_ns: u64,
    pub zone_at: u64,
    pub zone: [RawZone; 2],
    pub shielded: u64,
    pub shield: [u64; MAX_CPUS / 64],
}

/// `struct zone_knobs` of `policy/gate.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawZone {
    pub level: u32,
    pub use_mean: u32,
    pub count_idle: u32,
    pub weigh: u32,
    pub prize_score_pct: u32,
    pub punish_score_pct: u32,
    pub prize_time_ns: u64,
    pub punish_time_ns: u64,
}

/// `struct cpu_range`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawRange {
    pub first: u16,
    pub count: u16,
}

/// `struct keel_domain`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawDomain {
    pub first_range: u16,
    pub ranges: u16,
    pub cpus: u16,
    pub shared: u16,
}

/// `struct keel_cpu`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawCpu {
    pub position: u16,
    pub node: u16,
    pub cache: u16,
    pub pad: u16,
    pub domain: [RawDomain; MAX_LEVELS],
}

/// `struct cpu_capability`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawCapability {
    pub now: u16,
    pub faster: u16,
    pub slower: u16,
    pub pad: u16,
}

/// `struct keel_space`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RawSpace {
    pub bonus_value: u64,
    pub bonus_max_ns: u64,
    pub turn_max_ns: u64,
    pub limit: u64,
    pub bonus_type: u32,
    pub agg: u32,
    pub process: u32,
    pub pad: u32,
}

/// `struct keel_row`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RawRow {
    pub lock: u32,
    pub pad: u32,
    pub first: u32,
    pub count: u32,
    pub hole: u32,
    pub end_pad: u32,
    pub entry: [[u64; 3]; ROW_PLACES as usize],
}

/// `struct keel_roles` of these roles, by CPU.
pub fn lay_out_roles(roles: &BTreeMap<u32, u16>) -> [u16; MAX_CPUS] {
    let mut laid_out = [NO_ROLE; MAX_CPUS];
    for (cpu, role) in roles {
        if let Some(place) = laid_out.get_mut(*cpu as usize) {
            *place = *role;
        }
    }
    laid_out
}

/// `NO_ROLE`.
pub const NO_ROLE: u16 = 0xffff;
/// `MAX_SPACES`.
pub const MAX_SPACES: usize = 1024;

/// `struct keel_decision`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RawDecision {
    pub at_ns: u64,
    pub above_ns: u64,
    pub pid: u32,
    pub source: u32,
    pub reason: u32,
    pub verdict: u32,
    pub source_utilisation: u32,
    pub mean_utilisation: u32,
    pub task_share: u32,
    pub level: u16,
    pub limit_pct: u16,
}

/// `struct group_view` of `policy/balance.h`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RawGroup {
    pub load: u64,
    pub numbers: [u32; 8],
    pub busiest_load: u64,
}

/// `struct cpu_state`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct RawCpuState {
    pub clock: u64,
    pub load: u64,
    pub runnable: u64,
    pub running_vruntime: u64,
    pub running_weight: u64,
    pub running_since_ns: u64,
    pub deferred_ns: u64,
    pub running_space: u64,
    pub quantum_ns: u64,
    pub preferred: u64,
    pub turn_space: u64,
    pub turn_began_ns: u64,
    pub turn_goes_on: u64,
    pub woken: u64,
    pub mean: u64,
    pub furthest: u64,
    pub fair_clock: u64,
    pub is_out_of_turn: u64,
    pub taken_since_ns: u64,
    pub yielder: u64,
    pub idles: u64,
    pub busy_share: u64,
    pub busy_since_ns: u64,
    pub balance_at_ns: [u64; MAX_LEVELS],
    pub balance_due: u64,
    pub rescue_at_ns: u64,
    pub rescued: u64,
    pub look_at_ns: u64,
    pub active_at_ns: u64,
    pub leave_to: u64,
    pub lodges: u64,
    pub turn_at_ns: u64,
    pub turn_until_ns: u64,
    pub change_with: u64,
    pub change_space: u64,
    pub gather_from: u64,
    pub running_cpus: u64,
    pub overdue_on: u64,
    pub opening: u64,
    pub burst_ns: u64,
    pub groups: [RawGroup; 3],
    /// `struct keel_search`: its fields.
    pub search: [u64; 11],
    pub fetch: u64,
    pub fetch_weight: u64,
    /// The fields of each `struct known_space`.
    pub known: [[u64; 8]; 3],
    /// The fields of each `struct sibling`.
    pub found: [[u64; 4]; 2],
    /// The fields of `struct keel_pick`.
    pub pick: [u64; 11],
    pub counters: [u64; MAX_COUNTERS],
    pub decided: u64,
    pub decision: [RawDecision; MAX_DECISIONS],
}

impl RawCpuState {
    /// What the next load of the keel gets of it: how busy the CPU was, and how long tasks run there at
    /// a time. All else ended with this load.
    pub fn handed_on(&self) -> Self {
        Self {
            busy_share: self.busy_share,
            busy_since_ns: self.busy_since_ns,
            // While a higher class had it, it was busy.
            idles: u64::from(self.idles != 0 && self.taken_since_ns == 0),
            burst_ns: self.burst_ns,
            ..Self::zeroed()
        }
    }
}

/// `enum keel_counter`, in its order: name and meaning.
pub const COUNTERS: [(&str, &str); 47] = [
    ("wake_idle", "Tasks woken straight onto an idle CPU"),
    ("enqueue", "Tasks put into a queue"),
    ("leave", "Tasks that left a queue without a turn: changed, moved by the kernel or killed"),
    ("switch", "Times that the head of a queue was given the CPU"),
    ("keep", "Times that a task used up its slice and ran on"),
    ("preempt", "Times that a waking task preempted the running task"),
    ("move_wake", "Tasks moved to another CPU when they woke"),
    ("move_fork", "Tasks placed on another CPU than their parent's"),
    ("move_exec", "Tasks moved to another CPU after they became another program"),
    ("move_idle", "Tasks moved to a CPU that was idle"),
    ("move_periodic", "Tasks moved to a busy CPU with less load"),
    (
        "move_aggregate",
        "Tasks moved to a CPU whose group runs their address space, or exchanged for one",
    ),
    ("move_active", "Tasks that ran alone and migrated to a more capable idle CPU"),
    ("refuse_wake", "Moves at wake-up that the gate refused"),
    ("refuse_fork", "Moves at fork that the gate refused"),
    ("refuse_exec", "Moves after exec that the gate refused"),
    ("refuse_idle", "Moves to an idle CPU that the gate refused"),
    ("refuse_periodic", "Moves to a busy CPU that the gate refused"),
    ("refuse_aggregate", "Moves to where their address space runs that the gate refused"),
    ("refuse_active", "Moves of a task that ran alone to a more capable CPU that the gate refused"),
    ("try_idle", "Times that an idle CPU looked for work"),
    ("try_periodic", "Times that a busy CPU looked for work, by domain"),
    ("rescue", "Tasks that waited for 5 s, and ran whatever the policies said"),
    ("send_back", "Tasks moved back to the only CPU that they may use"),
    ("thief", "Tasks that lost their CPU to a higher class and were enqueued again"),
    ("no_state", "Tasks that the keel had no state for"),
    (UNLIMITED, "Times that a cgroup was given a cpu.max, which the keel does not enforce"),
    ("gate_open", "Moves that the gate `always` allowed"),
    ("gate_busy", "Moves allowed because the utilisation was above the zone's limit"),
    ("gate_punished", "Moves allowed because the task's points lifted it above the limit"),
    ("gate_crowded", "Moves allowed because the load of the CPU was above 100 %"),
    ("gate_worth", "Moves allowed because waiting would have cost more than refilling caches"),
    ("gate_quiet", "Moves refused because the utilisation was not above the zone's limit"),
    ("gate_prized", "Moves refused because the task's points took it down to the limit"),
    ("gate_cheap", "Moves refused because waiting costs less than refilling caches"),
    ("ungated", "Moves without a gate verdict: for liveness, of new tasks, or within a cache"),
    ("aggregate", "Times that a sibling of the last task was preferred to the queue's head"),
    ("follow", "Times that a sibling of the task on the group's master was preferred"),
    ("window", "Waiting tasks that the index of siblings had no room for"),
    ("space_switch", "Times that another address space than before got a CPU"),
    ("search", "Searches for siblings in the index"),
    ("searched", "Entries that these searches looked at"),
    ("kick_idle", "Idle slaves that were kicked when their master began to aggregate"),
    (
        "kick_busy",
        "Slaves that ran another task, and were kicked when their master began to aggregate",
    ),
    ("shield", "Tasks evicted from a shielded CPU, or kept off it"),
    ("repay", "Siblings that were not preferred because others had fallen behind too far"),
    (SLOTLESS, "New cgroups that count as an ancestor: deeper than 32 levels, or beyond a quota"),
];

/// The name of the counter of cgroups without a slot of their own.
pub const SLOTLESS: &str = "slotless";

/// The name of the counter of limits that the keel does not enforce.
pub const UNLIMITED: &str = "unlimited";

/// The sizes of the parts of `struct keel_exit`, in bytes: code, kind and pad, reason, message, dump.
pub const EXIT_PARTS: [usize; 5] = [8, 8, 128, 1024, 32768];

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../bpf/keel/intf.h");
    const ROW: &str = include_str!("../../../bpf/keel/row.h");

    fn defined(name: &str) -> usize {
        let line = format!("#define {name} ");
        let value =
            HEADER.lines().chain(ROW.lines()).find_map(|found| found.strip_prefix(&line)).unwrap();
        value.trim().parse().unwrap()
    }

    #[test]
    fn limits_match_the_header() {
        assert_eq!(defined("MAX_CPUS"), MAX_CPUS);
        assert_eq!(defined("MAX_LEVELS"), MAX_LEVELS);
        assert_eq!(defined("MAX_RANGES"), MAX_RANGES);
        assert_eq!(defined("MAX_NODES"), MAX_NODES);
        assert_eq!(defined("MAX_COUNTERS"), MAX_COUNTERS);
        assert_eq!(defined("MAX_DECISIONS"), MAX_DECISIONS);
        assert_eq!(defined("MAX_SPACES"), MAX_SPACES);
        assert_eq!(defined("CPU_ROWS"), CPU_ROWS as usize);
        assert_eq!(defined("ROW_PLACES"), ROW_PLACES as usize);
        let texts = ["REASON_BYTES", "MESSAGE_BYTES", "DUMP_BYTES"].map(defined);
        assert_eq!(texts, EXIT_PARTS[2..]);
    }

    #[test]
    fn a_cpu_hands_on_how_busy_it_was_and_nothing_else() {
        let kept = |idles, taken_since_ns| {
            let mut state: RawCpuState =
                bytemuck::pod_read_unaligned(&[7; size_of::<RawCpuState>()]);
            (state.idles, state.taken_since_ns) = (idles, taken_since_ns);
            let kept = state.handed_on();
            assert_eq!(
                (kept.busy_share, kept.busy_since_ns, kept.burst_ns),
                (state.busy_share, state.busy_since_ns, state.burst_ns)
            );
            assert_eq!(
                (kept.load, kept.runnable, kept.taken_since_ns, kept.counters[0]),
                (0, 0, 0, 0)
            );
            kept.idles
        };
        assert_eq!((kept(0, 0), kept(1, 0), kept(1, 9)), (0, 1, 0));
    }

    #[test]
    fn counters_match_the_header_in_name_and_order() {
        let names: Vec<String> = HEADER
            .lines()
            .filter_map(|line| line.trim().strip_prefix("COUNT_"))
            .map(|rest| rest.split(',').next().unwrap().to_lowercase())
            .collect();
        assert_eq!(names, COUNTERS.map(|(name, _)| name.to_owned()));
    }
}
