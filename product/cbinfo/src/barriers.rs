//! The barriers that processes pass, by the wake-ups there (`bpf/cbinfo/barriers.bpf.c`). This is loaded
//! beside what sees waiting, or alone: it costs a small part of what the whole accounting does.

use std::collections::BTreeSet;

use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder, Program};

use crate::clock::monotonic_ns;
use crate::error::{Aligned, Error, bpf_error, find_map};
use crate::layout::{RawBarrierProcess, RawWakeWord};
use crate::support::{redirect_libbpf_log, support};

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/barriers.bpf.o")));

/// The BPF program for barriers, loaded. Dropping it detaches it.
pub struct Barriers {
    object: Object,
    /// The window that is open, and since when.
    window: Option<(Link, u64)>,
}

/// How often all waiters at one word of memory were woken: passed barriers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wakes {
    /// The program that the process belongs to.
    pub program: u32,
    /// Process id.
    pub tgid: u32,
    /// The word's address in the process.
    pub address: u64,
    /// How often.
    pub count: u64,
}

/// What a window saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Window {
    /// How long it was open.
    pub observed_ns: u64,
    /// The words at which tasks of watched processes were woken.
    pub wakes: Vec<Wakes>,
}

impl Barriers {
    /// Loads the program.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel or the privilege is missing; otherwise what libbpf
    /// or the kernel says.
    pub fn load() -> Result<Self, Error> {
        support()?;
        redirect_libbpf_log();
        let open = ObjectBuilder::default()
            .name("cbinfo_barriers")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf_error("opening the object for barriers"))?;
        let object = open.load().map_err(bpf_error("loading what counts barriers"))?;
        Ok(Self { object, window: None })
    }

    /// Counts the barriers of a process, as of this program (any number), in the windows from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&mut self, tgid: u32, program: u32) -> Result<(), Error> {
        let raw = RawBarrierProcess { program: program.into(), words: 0 };
        self.write(tgid, &raw, MapFlags::ANY)
    }

    /// Counts them no longer. A process that is not watched is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget(&mut self, tgid: u32) -> Result<(), Error> {
        match find_map(&self.object, "processes")?.delete(&tgid.to_ne_bytes()) {
            Err(why) if why.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(bpf_error("forgetting a process")(why))
            }
            _ => Ok(()),
        }
    }

    /// Counts the barriers of the watched processes until [`Barriers::close_window`], at up to 16 words
    /// of memory in each. Meanwhile each system call of each task takes longer
    /// (`evenkeel-lab bench waiting` measures it), so keep it short.
    ///
    /// # Errors
    /// The kernel has no such tracepoint, or refuses.
    pub fn open_window(&mut self) -> Result<(), Error> {
        if self.window.is_none() {
            let mut programs = self.object.progs_mut();
            let link = programs
                .next()
                .ok_or(Error::Missing("on_system_call"))?
                .attach_raw_tracepoint("sys_enter")
                .map_err(bpf_error("attaching to system calls"))?;
            self.window = Some((link, monotonic_ns()));
        }
        Ok(())
    }

    /// Ends the window; returns what it saw, nothing if none was open.
    ///
    /// # Errors
    /// The counts cannot be read.
    pub fn close_window(&mut self) -> Result<Window, Error> {
        let Some((link, since_ns)) = self.window.take() else { return Ok(Window::default()) };
        let observed_ns = monotonic_ns() - since_ns;
        drop(link);
        let map = find_map(&self.object, "wakes")?;
        let mut wakes = Vec::new();
        let words: Vec<Vec<u8>> = map.keys().collect();
        for word in words {
            let count = map.lookup(&word, MapFlags::ANY).map_err(bpf_error("reading barriers"))?;
            let count = count.and_then(|count| Some(u64::from_ne_bytes(count.try_into().ok()?)));
            let raw = bytemuck::try_pod_read_unaligned::<RawWakeWord>(&word);
            if let (Ok(RawWakeWord { address, tgid, program }), Some(count)) = (raw, count) {
                wakes.push(Wakes { program, tgid, address, count });
            }
            map.delete(&word).map_err(bpf_error("forgetting barriers"))?;
        }
        wakes.sort_unstable();
        self.forget_words(&wakes)?;
        Ok(Window { observed_ns, wakes })
    }

    /// Lets these processes have words of their own again.
    fn forget_words(&self, wakes: &[Wakes]) -> Result<(), Error> {
        let processes = find_map(&self.object, "processes")?;
        for tgid in wakes.iter().map(|wakes| wakes.tgid).collect::<BTreeSet<u32>>() {
            let raw = processes.lookup(&tgid.to_ne_bytes(), MapFlags::ANY);
            let raw = raw.map_err(bpf_error("reading words"))?;
            // None: it is watched no longer.
            let Some(raw) = raw else { continue };
            if let Ok(raw) = bytemuck::try_pod_read_unaligned::<RawBarrierProcess>(&raw) {
                self.write(tgid, &RawBarrierProcess { words: 0, ..raw }, MapFlags::EXIST)?;
            }
        }
        Ok(())
    }

    fn write(&self, tgid: u32, raw: &RawBarrierProcess, how: MapFlags) -> Result<(), Error> {
        find_map(&self.object, "processes")?
            .update(&tgid.to_ne_bytes(), bytemuck::bytes_of(raw), how)
            .map_err(bpf_error("writing which process to watch (there is room for 16384 of them)"))
    }

    /// The loaded program, for its cost.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program<'_>> {
        self.object.progs()
    }
}
