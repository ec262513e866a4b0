//! Task iterators: the kernel runs a program for each task of the machine, or of one process.
//!
//! A machine of many CPUs has thousands of threads, most of them the kernel's. An iterator over all
//! tasks takes time for each of them, at every interval of a balancer, however few are followed.
//! So where these belong to a few processes ([`Processes`]), only those are visited.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::Object;

use crate::error::{Error, bpf_error};
use crate::layout::{RawTask, TaskEvent};

/// The most that one read of an iterator gives (kernel: kernel/bpf/bpf_iter.c).
const READ_BYTES: usize = 32 * 1024;
/// More processes than this are found among all tasks.
const FEW_PROCESSES: usize = 8;
/// More tasks than this, too: one read of an iterator holds so many. Between two reads a thread may end
/// at which the kernel was to go on.
const FEW_TASKS: usize = 128;
/// All tasks are visited so often in any case: a report of a fork may have been lost.
const ALL_EVERY: Duration = Duration::from_secs(1);

/// The iterators that are attached, each by its program and the process that it visits; none: all.
/// Attached at the first use and kept: attaching costs more than a reading.
#[derive(Default)]
pub(crate) struct Iterators {
    attached: BTreeMap<(&'static str, Option<u32>), OwnedFd>,
    buffer: Vec<u8>,
}

impl Iterators {
    /// What the program writes of all tasks, or of the tasks of one process.
    pub(crate) fn read(
        &mut self,
        object: &Object,
        name: &'static str,
        process: Option<u32>,
    ) -> Result<&[u8], Error> {
        let link = match self.attached.entry((name, process)) {
            Entry::Occupied(link) => link.into_mut(),
            Entry::Vacant(place) => {
                let program = object.progs().find(|program| program.name() == name);
                let program = program.ok_or(Error::Missing(name))?;
                place.insert(attach(program.as_fd().as_raw_fd(), process)?)
            }
        };
        // SAFETY: a plain system call.
        let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
        let mut iterator = File::from(owned(fd, "starting a task iterator")?);
        let mut filled = 0;
        loop {
            self.buffer.resize(filled + READ_BYTES, 0);
            match iterator.read(&mut self.buffer[filled..]).map_err(Error::Tasks)? {
                0 => return Ok(&self.buffer[..filled]),
                bytes => filled += bytes,
            }
        }
    }

    /// Detaches the iterators over processes that are not among these.
    fn keep(&mut self, processes: &BTreeSet<u32>) {
        self.attached.retain(|(_, of), _| of.is_none_or(|process| processes.contains(&process)));
    }
}

/// Attaches an iterator over all tasks or, from Linux 6.1 on, over those of one process.
fn attach(program: i32, process: Option<u32>) -> Result<OwnedFd, Error> {
    let mut visited = libbpf_sys::bpf_iter_link_info::default();
    visited.task.pid = process.unwrap_or(0);
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        ..Default::default()
    };
    if process.is_some() {
        options.iter_info = &raw mut visited;
        options.iter_info_len = size_of_val(&visited) as u32;
    }
    // SAFETY: the options and what they point to live across the call.
    let fd = unsafe {
        libbpf_sys::bpf_link_create(program, 0, libbpf_sys::BPF_TRACE_ITER, &raw const options)
    };
    owned(fd, "attaching a task iterator")
}

fn owned(fd: i32, doing: &'static str) -> Result<OwnedFd, Error> {
    if fd < 0 {
        return Err(bpf_error(doing)(libbpf_rs::Error::from_raw_os_error(-fd)));
    }
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The processes that followed tasks belong to, as far as they are few.
#[derive(Default)]
pub(crate) struct Processes {
    known: BTreeSet<u32>,
    /// How many tasks they had.
    tasks: usize,
    /// When all tasks of the machine were visited last.
    all_at: Option<Instant>,
    /// The kernel has no iterators over one process.
    only_all: bool,
}

impl Processes {
    /// Takes in what was reported since the last time.
    pub(crate) fn note(&mut self, events: &[TaskEvent]) {
        self.known.extend(events.iter().filter_map(|event| match event {
            TaskEvent::Fork { tgid, .. } => Some(*tgid),
            TaskEvent::Exec { .. } | TaskEvent::Exit { .. } => None,
        }));
    }

    /// Others are followed now: all tasks are visited next.
    pub(crate) fn change(&mut self) {
        self.all_at = None;
    }

    /// All followed tasks, as `list_tasks` writes them.
    pub(crate) fn list(
        &mut self,
        object: &Object,
        iterators: &mut Iterators,
    ) -> Result<Vec<RawTask>, Error> {
        let mut tasks = Vec::new();
        if self.are_few() {
            for process in &self.known {
                match iterators.read(object, "list_tasks", Some(*process)) {
                    Ok(raw) => tasks.extend(parse(raw)),
                    Err(why) => {
                        tracing::debug!("all tasks are visited from now on: {why}");
                        self.only_all = true;
                        break;
                    }
                }
            }
        }
        // Where there are fewer than before, some have ended, or were missed because of that.
        if !self.are_few() || tasks.len() < self.tasks {
            tasks = parse(iterators.read(object, "list_tasks", None)?).collect();
            self.all_at = Some(Instant::now());
        }
        self.known = tasks.iter().map(|task| task.tgid as u32).collect();
        self.tasks = tasks.len();
        iterators.keep(&self.known);
        Ok(tasks)
    }

    fn are_few(&self) -> bool {
        !self.only_all
            && (1..=FEW_PROCESSES).contains(&self.known.len())
            && self.tasks <= FEW_TASKS
            && self.all_at.is_some_and(|at| at.elapsed() < ALL_EVERY)
    }
}

fn parse(raw: &[u8]) -> impl Iterator<Item = RawTask> {
    raw.chunks_exact(size_of::<RawTask>()).map(bytemuck::pod_read_unaligned)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use crate::accounting::Cbinfo;
    use crate::support;

    /// Ended when dropped.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            Self(Command::new("sleep").arg("600").spawn().unwrap())
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn open(test: &str) -> Option<Cbinfo> {
        if let Err(why) = support() {
            evenkeel_skip::skip(test, why);
            return None;
        }
        Some(Cbinfo::open(&[]).unwrap())
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..3000 {
            if is_so() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{what}: not so");
    }

    #[test]
    fn only_the_processes_of_followed_tasks_are_visited() {
        let Some(mut cbinfo) = open("only_the_processes_of_followed_tasks_are_visited") else {
            return;
        };
        let _statistics = cbinfo.measure_cost().unwrap();
        let sleepers = [Sleeper::start(), Sleeper::start()];
        for (sleeper, program) in sleepers.iter().zip(1..) {
            cbinfo.follow(sleeper.0.id(), program).unwrap();
        }
        let visits = |cbinfo: &mut Cbinfo| {
            let before = cbinfo.runs_of("list_tasks");
            assert_eq!(cbinfo.tasks().unwrap().len(), 2);
            cbinfo.runs_of("list_tasks") - before
        };
        let all = visits(&mut cbinfo);
        // Each iterator has a last run without a task. A kernel before 6.1 visits all each time, and
        // so does any kernel once in a second.
        let fewest = (0..20).map(|_| visits(&mut cbinfo)).min();
        if cbinfo.processes.only_all {
            assert_eq!(fewest, Some(all));
        } else {
            assert_eq!(fewest, Some(4), "of {all}");
        }
        drop(sleepers);
        until("no iterator is left", || {
            cbinfo.tasks().unwrap().is_empty()
                && cbinfo.iterators.attached.keys().all(|(_, process)| process.is_none())
        });
    }

    #[test]
    fn a_process_whose_report_was_lost_is_found() {
        let Some(mut cbinfo) = open("a_process_whose_report_was_lost_is_found") else { return };
        let sleepers = [Sleeper::start(), Sleeper::start()];
        for (sleeper, program) in sleepers.iter().zip(1..) {
            cbinfo.follow(sleeper.0.id(), program).unwrap();
        }
        assert_eq!(cbinfo.tasks().unwrap().len(), 2);
        let processes = &mut cbinfo.processes;
        processes.known.remove(&sleepers[1].0.id());
        processes.tasks = 1;
        until("it is found", || cbinfo.tasks().unwrap().len() == 2);
    }
}
