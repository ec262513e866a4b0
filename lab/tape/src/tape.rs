//! The format of a tape: its entries, in the layout of `lab/bpf/recorder.h`, and its file. The
//! simulator and the recorder write it, the simulator replays it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use evenkeel_keel::{InitialData, Options};
use evenkeel_machine::Machine;

/// Why a tape cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// The file cannot be read or written.
    #[error("tape {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is no tape, or a damaged one.
    #[error(
        "tape {path}: {why}; expected a file that `evenkeel-lab record` or `evenkeel-lab sim run \
         --tape` wrote"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// An entry cannot follow the ones before it.
    #[error("entry {0} of the tape comes where it cannot: it was damaged, or cut at its beginning")]
    Order(usize),
}

/// CPU numbers of a recorded machine are below this.
pub const MOST_CPUS: u32 = 64;

/// Defines an enumeration with numbers that stand on a tape: `lab/bpf/recorder.h` has the same order.
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

            /// The item with this number, if there is one.
            pub fn by_number(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }
        }
    };
}

numbered! {
    /// What an entry is, and what its values are; the last value is named behind the semicolon.
    Kind {
        /// A callback begins: its arguments; the time in ns.
        Enter,
        /// The state of a task at this moment: see [`TaskView`].
        Task,
        /// A kernel function returned: its arguments; its result.
        Call,
        /// The keel read the clock; the time in ns.
        Now,
        /// The callback ends: its result, and the slice of its task.
        Leave,
    }
}

numbered! {
    /// The keel's callbacks, with their arguments besides the task.
    Callback {
        /// Previous CPU, flags.
        SelectCpu,
        /// Flags, whether an interrupt enqueues it.
        Enqueue,
        /// Whether a real-time task is about to get the CPU; the task is the one that ran.
        Dispatch,
        /// A tick: no arguments.
        Tick,
        /// The task gets the CPU.
        Running,
        /// Whether the task is still runnable.
        Stopping,
        /// Flags.
        Quiescent,
        /// The task yields.
        Yield,
        /// The CPU returns from a higher scheduling class.
        CpuAcquire,
        /// A higher scheduling class takes the CPU.
        CpuRelease,
        /// Whether the task was forked just now; its cgroup.
        InitTask,
        /// The task or the keel ends.
        ExitTask,
        /// The keel begins to schedule the task.
        Enable,
        /// The keel no longer schedules the task.
        Disable,
        /// The cgroup, its level, its parent, its weight, its quota in microseconds.
        CgroupInit,
        /// The cgroup.
        CgroupExit,
        /// The old cgroup, the new cgroup.
        CgroupMove,
        /// The cgroup, its weight.
        CgroupSetWeight,
        /// The keel starts.
        Init,
        /// Whether the CPU becomes idle.
        UpdateIdle,
    }
}

numbered! {
    /// The kernel functions that the keel calls, with their arguments: a result is what the kernel
    /// answers, an argument may be a decision of the keel.
    Function {
        /// The queue.
        CreateDsq,
        /// The queue.
        NrQueued,
        /// Previous CPU, flags; the CPU, and in bit 32 whether it is idle.
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
        /// Source queue, destination queue, what was set for the move, slice, vtime, whether by vtime.
        Move,
        /// The queue.
        MoveToLocal,
        /// No arguments.
        ReenqueueLocal,
        /// The queue, flags of the iteration; the task is the one that was found.
        IterNext,
        /// The PID; the task is the one that was found.
        FindTask,
    }
}

/// Values of an entry.
pub const VALUES: usize = 7;
/// The index of the last value.
pub const LAST: usize = VALUES - 1;

/// What the keel can see of a task, as the values of an entry. A value has 64 bits; where several
/// fields share one, the first field has the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskView {
    /// The thread; shares a value with `tgid`, 32 bits each.
    pub pid: u32,
    /// The process.
    pub tgid: u32,
    /// The number of CPUs that it may use; shares a value with the next four fields, 16 bits.
    pub allowed_count: u16,
    /// Its CPU; 16 bits.
    pub cpu: u16,
    /// The kernel's priority; 16 bits.
    pub prio: u16,
    /// 1 while it runs; 8 bits.
    pub on_cpu: u8,
    /// The NUMA node that the kernel prefers for it; -1 if there is none; 8 bits.
    pub node: i8,
    /// Its address space.
    pub space: u64,
    /// The time that it has run, in ns.
    pub sum_exec_runtime: u64,
    /// The flags of sched_ext; shares a value with `weight`, 32 bits each.
    pub flags: u32,
    /// Its weight: 100 for nice 0.
    pub weight: u32,
    /// The rest of its slice, in ns.
    pub slice: u64,
    /// The mask of CPUs 0 to 63 that it may use.
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

/// One entry of a tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    /// [`Kind`].
    pub kind: u8,
    /// [`Callback`] or [`Function`].
    pub id: u8,
    /// The CPU where it happened.
    pub cpu: u16,
    /// Unused.
    pub pad: u32,
    /// The number of the task that it is about; 0: no task.
    pub task: u64,
    /// The values, which depend on the kind.
    pub values: [u64; VALUES],
}

impl Entry {
    /// An entry of this kind.
    pub fn new(kind: Kind, id: u8, cpu: u32, task: u64, values: [u64; VALUES]) -> Self {
        Self { kind: kind as u8, id, cpu: cpu as u16, pad: 0, task, values }
    }
}

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tape {
    /// The policies of the keel.
    pub scheduler: String,
    /// What the keel was given before it started.
    pub data: InitialData,
    /// The entries, in the order of time.
    pub entries: Vec<Entry>,
}

/// Any machine: a tape is checked by the sizes of the keel's initial data, which are the same for all.
const ONE_CPU: &str = "name = \"one\"\nkinds = [{ cpus = \"0\", capability = 1024 }]\n";

/// The start of a file: its kind, and the version of the format.
const MAGIC: [u8; 16] = *b"evenkeel tape 04";

/// The checksum of all bytes that follow it in the file (FNV-1a).
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Tape {
    /// Writes the tape to a file.
    ///
    /// # Errors
    /// [`TapeError::File`].
    pub fn write(&self, path: &Path) -> Result<(), TapeError> {
        let file_error = |source| TapeError::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.data.cpus.to_le_bytes());
        let InitialData { settings, topology, tunables, capabilities, .. } = &self.data;
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

    /// Reads a tape from a file.
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
        let data = InitialData {
            settings: part()?,
            topology: part()?,
            tunables: part()?,
            capabilities: part()?,
            cpus,
        };
        let lengths = |data: &InitialData| {
            let InitialData { settings, topology, tunables, capabilities, .. } = data;
            [settings, topology, tunables, capabilities].map(Vec::len)
        };
        let one = Machine::parse_toml(ONE_CPU, "one CPU").map_err(|why| why.to_string())?;
        let own = InitialData::new(&one, &Options::default()).map_err(|why| why.to_string())?;
        if lengths(&data) != lengths(&own) || cpus > MOST_CPUS {
            return Err("it was recorded with another version of the keel".to_owned());
        }
        if !bytes.len().is_multiple_of(size_of::<Entry>()) {
            return Err("it ends within an entry".to_owned());
        }
        if !is_whole {
            return Err("its checksum is another one: it was damaged, or cut short".to_owned());
        }
        let entries = bytes.chunks_exact(size_of::<Entry>()).map(bytemuck::pod_read_unaligned);
        Ok(Self { scheduler, data, entries: entries.collect() })
    }
}
