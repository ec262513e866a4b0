//! A tape: all that the keel was told, and all that it did, callback by callback, so that the same can
//! be told to it again elsewhere. The simulator records and replays tapes (lab/sim), and `recorder`
//! records them on a real kernel; the entries have one layout, that of `lab/bpf/recorder.h`.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use evenkeel_machine::Machine;

use crate::image::Image;
use crate::options::Options;

/// Why there is no tape.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// The file cannot be read or written.
    #[error("tape {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// It is something else.
    #[error("tape {path}: {why}; expected a file that `sim run --tape` or `sched --tape` wrote")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Callbacks that end without having begun, or the like.
    #[error("entry {0} of the tape comes where it cannot: it was damaged, or cut at its beginning")]
    Order(usize),
}

/// CPU numbers of a machine that is recorded are below this.
pub const MOST_CPUS: u32 = 64;

/// Numbers by which things stand on a tape: the C side has them in the same order.
macro_rules! numbered {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $item:ident,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$what])* $item,)*
        }

        impl $name {
            const ALL: &[Self] = &[$(Self::$item),*];

            /// The one of this number, if there is one.
            pub fn by_number(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }
        }
    };
}

numbered! {
    /// What an entry is. (`values` ends with what is said of the last one here.)
    Kind {
        /// A callback begins: its arguments; the time.
        Enter,
        /// What a task looks like now: see [`TaskView`].
        Task,
        /// A function of the kernel has returned: its arguments; what it returned.
        Call,
        /// The time was asked for; what it was.
        Now,
        /// The callback ends: what it returned, and its task's slice.
        Leave,
    }
}

numbered! {
    /// The keel's callbacks, with what they are told besides the task.
    Callback {
        /// Previous CPU, flags.
        SelectCpu,
        /// Flags, whether an interrupt does it.
        Enqueue,
        /// Whether a real-time task is about to have the CPU; the task: who ran.
        Dispatch,
        /// A tick has come.
        Tick,
        /// It has the CPU.
        Running,
        /// Whether it wants to run on.
        Stopping,
        /// Flags.
        Quiescent,
        /// It gives way.
        Yield,
        /// The CPU is ours again.
        CpuAcquire,
        /// A higher class has it.
        CpuRelease,
        /// Whether it is new; its cgroup.
        InitTask,
        /// It has ended, or the keel has.
        ExitTask,
        /// It comes under the keel.
        Enable,
        /// It leaves it.
        Disable,
        /// The cgroup, its level, its parent, its weight, its quota in microseconds.
        CgroupInit,
        /// The cgroup.
        CgroupExit,
        /// From, to.
        CgroupMove,
        /// The cgroup, its weight.
        CgroupSetWeight,
        /// The keel begins.
        Init,
        /// Whether the CPU begins to idle, or ends.
        UpdateIdle,
    }
}

numbered! {
    /// The kernel's functions that the keel calls: what they return is an answer, what they are given
    /// may be a decision.
    Function {
        /// The queue.
        CreateDsq,
        /// The queue.
        NrQueued,
        /// Previous CPU, flags; the CPU, and in bit 32 whether it idles.
        SelectCpuDefault,
        /// CPUs 0 to 63 of the mask.
        PickIdle,
        /// The CPU.
        ClaimIdle,
        /// The CPU, flags.
        Kick,
        /// The CPU, of 1024.
        SetFrequency,
        /// The queue, slice, vtime, flags, whether by vtime.
        Insert,
        /// From, to, what was set for it, slice, vtime, whether by vtime.
        Move,
        /// The queue.
        MoveToLocal,
        /// Nothing else.
        ReenqueueLocal,
        /// The queue, flags of the iteration; the task: who was found.
        IterNext,
        /// The pid; the task: who was found.
        FindTask,
    }
}

/// Values of an entry.
pub const VALUES: usize = 7;
/// Where an entry has its last one.
pub const LAST: usize = VALUES - 1;

/// What the keel can see of a task, as the values of an entry: each is of 64 bits, and where several
/// share one, the first has the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskView {
    /// With `tgid`, 32 bits each.
    pub pid: u32,
    /// Its process.
    pub tgid: u32,
    /// How many CPUs it may use; 16 bits each with the next two.
    pub allowed_count: u16,
    /// The CPU that it is on.
    pub cpu: u16,
    /// The kernel's priority.
    pub prio: u16,
    /// 1: it runs. 8 bits, and as many for the next.
    pub on_cpu: u8,
    /// The node that its memory is on by the kernel's word; -1: it does not know.
    pub node: i8,
    /// Its address space.
    pub space: u64,
    /// All that it has run, in ns.
    pub sum_exec_runtime: u64,
    /// sched_ext's flags, with `weight`, 32 bits each.
    pub flags: u32,
    /// 100 for nice 0.
    pub weight: u32,
    /// In ns.
    pub slice: u64,
    /// CPUs 0 to 63 that it may use.
    pub allowed: u64,
}

impl From<TaskView> for [u64; VALUES] {
    fn from(view: TaskView) -> Self {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let quarter = |value: u16, at: u32| u64::from(value) << (16 * at);
        [
            pair(view.pid, view.tgid),
            quarter(view.allowed_count, 0)
                | quarter(view.cpu, 1)
                | quarter(view.prio, 2)
                | quarter(u16::from_le_bytes([view.on_cpu, view.node as u8]), 3),
            view.space,
            view.sum_exec_runtime,
            pair(view.flags, view.weight),
            view.slice,
            view.allowed,
        ]
    }
}

impl From<[u64; VALUES]> for TaskView {
    fn from(values: [u64; VALUES]) -> Self {
        let [ids, place, space, sum_exec_runtime, flags, slice, allowed] = values;
        Self {
            pid: ids as u32,
            tgid: (ids >> 32) as u32,
            allowed_count: place as u16,
            cpu: (place >> 16) as u16,
            prio: (place >> 32) as u16,
            on_cpu: (place >> 48) as u8,
            node: (place >> 56) as i8,
            space,
            sum_exec_runtime,
            flags: flags as u32,
            weight: (flags >> 32) as u32,
            slice,
            allowed,
        }
    }
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    /// [`Kind`].
    pub kind: u8,
    /// [`Callback`] or [`Function`].
    pub id: u8,
    /// Where it happened.
    pub cpu: u16,
    /// Nothing.
    pub pad: u32,
    /// The task that it is about, by any number but 0: none.
    pub task: u64,
    /// By its kind.
    pub values: [u64; VALUES],
}

impl Entry {
    /// Of a kind.
    pub fn new(kind: Kind, id: u8, cpu: u32, task: u64, values: [u64; VALUES]) -> Self {
        Self { kind: kind as u8, id, cpu: cpu as u16, pad: 0, task, values }
    }
}

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tape {
    /// The scheduler's policies.
    pub scheduler: String,
    /// What it was given before it started.
    pub image: Image,
    /// In the order of things.
    pub entries: Vec<Entry>,
}

/// A machine, to see how long the keel's records are.
const ONE_CPU: &str = "name = \"one\"\nkinds = [{ cpus = \"0\", capability = 1024 }]\n";

/// How a file begins: its kind, and the layout's number.
const MAGIC: [u8; 16] = *b"evenkeel tape 04";

/// What stands behind that: a number of all bytes that follow. (FNV-1a.)
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Tape {
    /// Writes it down.
    ///
    /// # Errors
    /// [`TapeError::File`].
    pub fn write(&self, path: &Path) -> Result<(), TapeError> {
        let file_error = |source| TapeError::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.image.cpus.to_le_bytes());
        let Image { settings, topology, tunables, capabilities, .. } = &self.image;
        let name = self.scheduler.as_bytes();
        for part in [name, settings, topology, tunables, capabilities] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(bytemuck::cast_slice(&self.entries));
        let beginning = [&MAGIC[..], &checksum(&bytes).to_le_bytes()].concat();
        let write = |mut file: std::fs::File| {
            file.write_all(&beginning)?;
            file.write_all(&bytes)
        };
        std::fs::File::create(path).and_then(write).map_err(file_error)
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`TapeError::File`], [`TapeError::Format`].
    pub fn read(path: &Path) -> Result<Self, TapeError> {
        let bytes = std::fs::read(path)
            .map_err(|source| TapeError::File { path: path.to_owned(), source })?;
        Self::parse(&bytes).map_err(|why| TapeError::Format { path: path.to_owned(), why })
    }

    fn parse(mut bytes: &[u8]) -> Result<Self, String> {
        let short = |_: io::Error| "it ends within its beginning".to_owned();
        let mut magic = [0; MAGIC.len()];
        bytes.read_exact(&mut magic).map_err(short)?;
        if magic != MAGIC {
            return Err("it does not begin like one, or is of another version".to_owned());
        }
        let mut sum = [0; size_of::<u64>()];
        bytes.read_exact(&mut sum).map_err(short)?;
        let is_whole = checksum(bytes) == u64::from_le_bytes(sum);
        let number = |bytes: &mut &[u8]| {
            let mut number = [0; 4];
            bytes.read_exact(&mut number).map_err(short)?;
            Ok::<u32, String>(u32::from_le_bytes(number))
        };
        let cpus = number(&mut bytes)?;
        let mut part = || {
            let length = number(&mut bytes)? as usize;
            let (part, rest) =
                bytes.split_at_checked(length).ok_or("it ends within its beginning")?;
            bytes = rest;
            Ok::<Vec<u8>, String>(part.to_vec())
        };
        let scheduler = String::from_utf8_lossy(&part()?).into_owned();
        let image = Image {
            settings: part()?,
            topology: part()?,
            tunables: part()?,
            capabilities: part()?,
            cpus,
        };
        let lengths = |image: &Image| {
            let Image { settings, topology, tunables, capabilities, .. } = image;
            [settings, topology, tunables, capabilities].map(Vec::len)
        };
        let one = Machine::parse_toml(ONE_CPU, "one CPU").map_err(|why| why.to_string())?;
        let own = Image::new(&one, &Options::default()).map_err(|why| why.to_string())?;
        if lengths(&image) != lengths(&own) || cpus > MOST_CPUS {
            return Err("it was recorded with another version of the keel".to_owned());
        }
        if !bytes.len().is_multiple_of(size_of::<Entry>()) {
            return Err("it ends within an entry".to_owned());
        }
        if !is_whole {
            return Err("its checksum is another one: it was damaged, or cut short".to_owned());
        }
        let entries = bytes.chunks_exact(size_of::<Entry>()).map(bytemuck::pod_read_unaligned);
        Ok(Self { scheduler, image, entries: entries.collect() })
    }
}
