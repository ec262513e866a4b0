//! Which address space a process has now, and when a task was started, by the kernel's own word
//! (`bpf/keel/space.bpf.c`).

use std::fs;
use std::mem::size_of;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{Object, ObjectBuilder, ProgramInput};
use nix::libc;

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/space.bpf.o")));

/// `struct space_of` of `bpf/keel/space.bpf.c`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RawSpaceOf {
    pid: u32,
    exists: u32,
    is_kernel: u64,
    space: u64,
    exec: u64,
    started_ns: u64,
}

/// An address space, as a process has it from one exec to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    /// The keel's name for it: the same one for all siblings. Another one may have it later.
    pub address: u64,
    exec: u64,
}

/// What a number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No process has it, or one that has ended.
    None,
    /// A thread of the kernel.
    Kernel,
    /// A process.
    Process(Space),
}

/// The program, in the kernel.
pub(crate) struct Spaces {
    object: Object,
}

impl Spaces {
    /// Loads it.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn load() -> libbpf_rs::Result<Self> {
        let object = ObjectBuilder::default().name("space")?.open_memory(&OBJECT.0)?.load()?;
        Ok(Self { object })
    }

    /// The address space of the process with this number. If its first thread has ended, another thread
    /// of it is asked.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn of(&self, process: u32) -> libbpf_rs::Result<Owner> {
        let first = self.ask(process)?;
        if first.is_kernel != 0 {
            return Ok(Owner::Kernel);
        }
        if first.space != 0 {
            return Ok(Owner::Process(Space { address: first.space, exec: first.exec }));
        }
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let Some(tid) = thread.file_name().to_str().and_then(|tid| tid.parse().ok()) else {
                continue;
            };
            let RawSpaceOf { space, exec, .. } = self.ask(tid)?;
            if space != 0 {
                return Ok(Owner::Process(Space { address: space, exec }));
            }
        }
        Ok(Owner::None)
    }

    /// When the task (a process or thread) with this number was started, in clock ticks since boot, as
    /// in `/proc/PID/stat`. `None`: there is none.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn started(&self, task: u32) -> libbpf_rs::Result<Option<u64>> {
        let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
        let RawSpaceOf { exists, started_ns, .. } = self.ask(task)?;
        Ok((exists != 0).then_some(started_ns / tick_ns))
    }

    fn ask(&self, pid: u32) -> libbpf_rs::Result<RawSpaceOf> {
        let mut bytes = [0; size_of::<RawSpaceOf>()];
        bytes[..4].copy_from_slice(&pid.to_ne_bytes());
        let program = self.object.progs_mut().find(|program| program.name() == "space_of");
        let input = ProgramInput { context_in: Some(&mut bytes), ..ProgramInput::default() };
        program
            .ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))?
            .test_run(input)?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// None where the kernel lets no process load BPF programs; then the test says so.
    fn spaces() -> Option<Spaces> {
        let spaces = Spaces::load();
        if let Err(why) = &spaces {
            evenkeel_skip::skip("ias::space", why);
        }
        spaces.ok()
    }

    fn space(spaces: &Spaces, pid: u32) -> Space {
        match spaces.of(pid).unwrap() {
            Owner::Process(space) => space,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn it_is_another_one_after_an_exec_and_nobodys_after_the_end() {
        let Some(spaces) = spaces() else { return };
        let own = space(&spaces, std::process::id());
        assert_eq!(space(&spaces, std::process::id()), own);
        let mut shell = Command::new("sh");
        // It waits until it is told, and then for its end.
        let shell = shell.args(["-c", "read line; exec cat"]).stdin(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let before = space(&spaces, child.id());
        assert_ne!(before, own);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&comm).unwrap().trim() != "cat" {
            std::thread::yield_now();
        }
        // At once: it may not have had another turn since.
        let after = space(&spaces, child.id());
        assert!(after.exec != before.exec, "{before:?} {after:?}");
        drop(input);
        let pid = child.id();
        assert!(child.wait().unwrap().success());
        assert_eq!(spaces.of(pid).unwrap(), Owner::None);
    }

    #[test]
    fn a_task_was_started_when_proc_says_so() {
        let Some(spaces) = spaces() else { return };
        let of_proc = |task: u32| {
            let process = procfs::process::Process::new(task as i32).unwrap();
            process.stat().unwrap().starttime
        };
        let tid = nix::unistd::gettid().as_raw() as u32;
        for task in [std::process::id(), tid] {
            assert_eq!(spaces.started(task).unwrap(), Some(of_proc(task)), "{task}");
        }
        // The kernel gives only smaller numbers.
        assert_eq!(spaces.started(4_194_304).unwrap(), None);
    }

    #[test]
    fn kernel_threads_have_none() {
        let Some(spaces) = spaces() else { return };
        let is_kernels =
            std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd");
        if is_kernels {
            assert_eq!(spaces.of(2).unwrap(), Owner::Kernel);
        }
    }

    /// As in programs where the first thread starts the others and ends.
    #[test]
    fn it_is_still_there_when_the_first_thread_has_ended() {
        let Some(spaces) = spaces() else { return };
        let source = "import threading, sys, ctypes\n\
            threading.Thread(target=lambda: sys.stdin.read()).start()\n\
            ctypes.CDLL(None).syscall(60, 0)\n";
        let mut python = Command::new("python3");
        let Ok(mut child) = python.args(["-c", source]).stdin(Stdio::piped()).spawn() else {
            evenkeel_skip::skip("it_is_still_there_when_the_first_thread_has_ended", "no python3");
            return;
        };
        let stat = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        space(&spaces, child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
