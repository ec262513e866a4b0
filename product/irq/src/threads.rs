//! The kernel threads of threaded NAPI: `napi/DEVICE-ID`. The kernel counts their run time itself.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;

use evenkeel_journal::TaskRef;

/// What their names begin with.
const PREFIX: &str = "napi/";
/// The parent of all kernel threads.
const KTHREADD: i32 = 2;
/// The list of its children is seldom longer. Room for all of it from the start saves reads.
const LIST_BYTES: usize = 16 << 10;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thread {
    pub task: TaskRef,
    pub name: String,
    pub device: String,
    pub napi_id: u32,
}

/// All of them, in every network namespace. A kernel thread's name is read once: when its number is new.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    threads: Vec<Thread>,
    /// The numbers of kernel threads that poll no NAPI instance.
    others: BTreeSet<i32>,
    /// The kernel's list, kept for its room.
    list: String,
}

impl Threads {
    /// Drops those that have ended, and finds new ones.
    pub fn refresh(&mut self) {
        let numbers = self.kernel_threads();
        // Another thread may have the number of one that has ended.
        let is_there =
            |thread: &Thread| numbers.contains(&thread.task.tid) && thread.task.is_alive();
        self.threads.retain(is_there);
        self.others.retain(|number| numbers.contains(number));
        for number in numbers {
            let is_known = self.threads.iter().any(|thread| thread.task.tid == number);
            if is_known || self.others.contains(&number) {
                continue;
            }
            match thread(number) {
                Some(thread) => self.threads.push(thread),
                None if has_its_name(number) => {
                    self.others.insert(number);
                }
                None => {}
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter()
    }

    /// The numbers of all kernel threads.
    fn kernel_threads(&mut self) -> BTreeSet<i32> {
        self.list.clear();
        self.list.reserve(LIST_BYTES);
        let file = File::open(format!("/proc/{KTHREADD}/task/{KTHREADD}/children"));
        match file.and_then(|mut file| file.read_to_string(&mut self.list)) {
            Ok(_) => self.list.split_whitespace().filter_map(|word| word.parse().ok()).collect(),
            // The kernel lists no children: take every process for one.
            Err(_) => {
                let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
                entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
            }
        }
    }
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

/// Whether a kernel thread has a name of its own: for a moment after its start it has its parent's.
fn has_its_name(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim() != "kthreadd") || pid == KTHREADD
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
