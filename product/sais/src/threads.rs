//! The kernel threads that do the softirqs: one a core, made and ended by the kernel together with
//! the entry of the map `threads`.

use nix::errno::Errno;

/// Ahead of what else runs on the core, as a softirq would be, but within the fair class: under a
/// flood of packets the core's tasks still get their turns.
const NICE: i32 = -20;

/// Gives the thread of each core of map `map_id` its priority, which ends with the thread. A thread
/// that is not to be seen, because /proc shows another PID namespace, keeps the usual one.
pub(crate) fn prioritise(map_id: u32) {
    let processes = match procfs::process::all_processes() {
        Ok(processes) => processes,
        Err(why) => return tracing::warn!("steering threads keep their usual priority: {why}"),
    };
    for process in processes.flatten() {
        let Ok(name) = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)) else {
            continue;
        };
        let name = name.trim_end();
        if !is_thread_of(name, map_id) {
            continue;
        }
        // SAFETY: three integers; the thread is one of our own map.
        let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, process.pid as u32, NICE) };
        match Errno::result(result) {
            Ok(_) => tracing::debug!("{name}: nice {NICE}"),
            Err(why) => tracing::warn!("{name} keeps its usual priority: {why}"),
        }
    }
}

/// The kernel calls them `cpumap/CPU/map:ID`.
fn is_thread_of(name: &str, map_id: u32) -> bool {
    name.strip_prefix("cpumap/")
        .and_then(|rest| rest.split_once("/map:"))
        .is_some_and(|(_, id)| id.parse() == Ok(map_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_other_maps_are_left_alone() {
        assert!(is_thread_of("cpumap/0/map:12", 12));
        assert!(is_thread_of("cpumap/117/map:12", 12));
        for other in ["cpumap/0/map:1", "cpumap/0/map:123", "ksoftirqd/12", "cpumap/0/map:", ""] {
            assert!(!is_thread_of(other, 12), "{other}");
        }
    }
}
