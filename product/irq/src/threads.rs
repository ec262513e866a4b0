//! The kernel threads of threaded NAPI: `napi/DEVICE-ID`. The kernel counts their run time itself.

use std::fs;

use evenkeel_journal::TaskRef;

/// What their names begin with.
const PREFIX: &str = "napi/";
/// The parent of all kernel threads.
const KTHREADD: i32 = 2;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    pub task: TaskRef,
    pub name: String,
    pub device: String,
    pub napi_id: u32,
}

/// All of them, in every network namespace.
pub(crate) fn all() -> Vec<Thread> {
    let children = fs::read_to_string(format!("/proc/{KTHREADD}/task/{KTHREADD}/children"));
    let numbers: Vec<i32> = match &children {
        Ok(list) => list.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
        // The kernel lists no children: look at every process.
        Err(_) => {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
    };
    numbers.into_iter().filter_map(thread).collect()
}

/// One of them, by its number and its name.
pub(crate) fn find(pid: i32, name: &str) -> Option<TaskRef> {
    thread(pid).filter(|thread| thread.name == name).map(|thread| thread.task)
}

fn thread(pid: i32) -> Option<Thread> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned();
    let (device, napi_id) = parse(&name)?;
    // Any process may take such a name, but only a kernel thread has no memory.
    let memory = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    if !memory.starts_with("0 ") {
        return None;
    }
    Some(Thread {
        task: TaskRef::in_process(pid, pid).ok()?,
        device: device.to_owned(),
        napi_id,
        name,
    })
}

fn parse(name: &str) -> Option<(&str, u32)> {
    let (device, napi_id) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    Some((device, napi_id.parse().ok()?))
}

impl Thread {
    /// Its run time since its start, in ns; `None`: it has ended.
    pub fn run_ns(&self) -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.task.tid)).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    /// The CPU that it is on, or was on last.
    pub fn cpu(&self) -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.task.tid)).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        // Field 39 of proc(5); the state is field 3.
        rest.split_whitespace().nth(36)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_may_contain_the_separator() {
        assert_eq!(parse("napi/veth0-8193"), Some(("veth0", 8193)));
        assert_eq!(parse("napi/br-lan-12"), Some(("br-lan", 12)));
        assert_eq!(parse("napi/veth0"), None);
        assert_eq!(parse("kworker/0:1-mm"), None);
    }
}
