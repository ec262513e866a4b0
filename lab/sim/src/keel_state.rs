//! Reads what the keel keeps in its maps: for the simulator's figures, and for the checks at the end of
//! a simulation. The bytes are the maps' entries in the native build.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::sync::LazyLock;

use evenkeel_keel::InitialData;
use evenkeel_keel::layout::{COUNTERS, RawCpuState, RawRow, RawTunables, lay_out_roles};

/// Bytes of an entry of the map `cpus`.
pub(crate) const CPU_STATE_BYTES: usize = size_of::<RawCpuState>();

/// Bytes of an entry of the map `sibling_rows`.
pub(crate) const ROW_BYTES: usize = size_of::<RawRow>();

/// How often a CPU has looked for tasks to pull, from its entry of the map `cpus`.
pub(crate) fn count_attempts(cpu: &[u8]) -> u64 {
    static TRIES: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let counted = COUNTERS.iter().zip(0..);
        counted.filter(|((name, _), _)| name.starts_with("try_")).map(|(_, at)| at).collect()
    });
    let counter = |at: &usize| {
        let start = offset_of!(RawCpuState, counters) + at * size_of::<u64>();
        let bytes = cpu.get(start..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    TRIES.iter().filter_map(counter).sum()
}

/// Whether a CPU runs a single task that the shield should keep off, from its entry of the map `cpus`.
pub(crate) fn has_lodger(cpu: &[u8]) -> bool {
    let state = bytemuck::try_pod_read_unaligned::<RawCpuState>(cpu);
    state.is_ok_and(|state| state.lodges != 0)
}

/// What the keel goes by when it decides whether siblings may still be preferred on a CPU.
pub(crate) struct Fairness {
    /// In ns of vruntime.
    pub fair_clock: u64,
    /// The weights of its tasks.
    pub load: u64,
    /// How many tasks these are.
    pub tasks: u64,
}

/// The same, from the CPU's entry of the map `cpus`.
pub(crate) fn read_fairness(cpu: &[u8]) -> Fairness {
    let state = bytemuck::pod_read_unaligned::<RawCpuState>(cpu);
    Fairness { fair_clock: state.fair_clock, load: state.load, tasks: state.runnable }
}

/// How many tasks the keel takes for runnable, from the entries of the map `cpus`.
pub(crate) fn count_runnable(cpus: &[u8]) -> u64 {
    let state = |entry: &[u8]| bytemuck::pod_read_unaligned::<RawCpuState>(entry).runnable;
    cpus.chunks_exact(CPU_STATE_BYTES).map(state).fold(0, u64::wrapping_add)
}

/// What the next load of the keel gets of a CPU's entry of the map `cpus`, as its entry there.
pub(crate) fn hand_on(cpu: &[u8]) -> Vec<u8> {
    let state = bytemuck::pod_read_unaligned::<RawCpuState>(cpu);
    bytemuck::bytes_of(&state.handed_on()).to_vec()
}

/// Where `struct task_state` has a waiting task's vruntime and the CPU of its queue.
const TASK_VRUNTIME_AT: usize = 8;
const TASK_HOME_AT: usize = 136;
/// Bytes of it up to there.
pub(crate) const TASK_STATE_BYTES: usize = TASK_HOME_AT + size_of::<u32>();

/// Whether the state of a task says that it waits in this CPU's queue at this vruntime.
pub(crate) fn is_placed(state: &[u8], cpu: u64, vruntime: u64) -> bool {
    let known: u64 = bytemuck::pod_read_unaligned(&state[TASK_VRUNTIME_AT..][..size_of::<u64>()]);
    let home: u32 = bytemuck::pod_read_unaligned(&state[TASK_HOME_AT..][..size_of::<u32>()]);
    (u64::from(home), known) == (cpu, vruntime)
}

/// How many tasks are in the index of siblings, from the entries of the map `sibling_rows`.
pub(crate) fn count_listed(rows: &[u8]) -> u64 {
    let count = |row: &[u8]| bytemuck::pod_read_unaligned::<RawRow>(row).count;
    rows.chunks_exact(ROW_BYTES).map(count).map(u64::from).sum()
}

/// The keel's counters by name, summed over CPUs, from the entries of the map `cpus`.
pub(crate) fn sum_counters(cpus: &[u8]) -> BTreeMap<String, u64> {
    let states: Vec<RawCpuState> =
        cpus.chunks_exact(CPU_STATE_BYTES).map(bytemuck::pod_read_unaligned).collect();
    let sum = |at: usize| states.iter().map(|state| state.counters[at]).sum();
    COUNTERS.iter().zip(0..).map(|((name, _), at)| ((*name).to_owned(), sum(at))).collect()
}

/// The bytes of the variable `roles` for these roles by CPU.
pub(crate) fn role_bytes(roles: &BTreeMap<u32, u16>) -> Vec<u8> {
    bytemuck::cast_slice(&lay_out_roles(roles)).to_vec()
}

/// Lets searches go through whole queues: what the policy would do if searching cost nothing.
pub(crate) fn unlimit_searches(data: &mut InitialData) {
    for at in [offset_of!(RawTunables, scan_limit), offset_of!(RawTunables, sibling_window)] {
        if let Some(place) = data.tunables.get_mut(at..at + size_of::<u64>()) {
            // The keel may add one to it, which must not wrap to 0.
            place.copy_from_slice(&(u64::MAX / 2).to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_cpus() {
        let mut bytes = vec![0; 2 * CPU_STATE_BYTES];
        let first_counter = offset_of!(RawCpuState, counters);
        bytes[first_counter] = 3;
        bytes[CPU_STATE_BYTES + first_counter] = 4;
        assert_eq!(sum_counters(&bytes)["wake_idle"], 7);
        let tries = COUNTERS.iter().position(|(name, _)| *name == "try_periodic").unwrap();
        bytes[first_counter + tries * size_of::<u64>()] = 5;
        assert_eq!(count_attempts(&bytes[..CPU_STATE_BYTES]), 5);
    }
}
