//! A scheduler as a shared object: the records of `native/kernel.h`, and loading a copy of its own
//! for each simulation.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};

use evenkeel_keel::Image;
use nix::sys::mman::{ProtFlags, mprotect};

use crate::copies::{self, Loaded};
use crate::mask::Mask;

/// Why a scheduler could not be hosted.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// No room for its copy.
    #[error("a copy of scheduler {name}: {source}; free memory or file descriptors")]
    Copy {
        /// Which.
        name: String,
        /// The system's word.
        source: std::io::Error,
    },
    /// It does not fit the machine.
    #[error(transparent)]
    Topology(#[from] evenkeel_keel::TopologyError),
    /// It is no shared object for this simulator.
    #[error("scheduler {name}: {source}; build it against lab/sim/native/kernel.h")]
    Load {
        /// Which.
        name: String,
        /// The loader's word.
        source: libloading::Error,
    },
}

/// `struct task_struct`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawTask {
    pub pid: i32,
    pub tgid: i32,
    pub prio: i32,
    pub on_cpu: i32,
    pub nr_cpus_allowed: i32,
    /// The node that its memory is on by the kernel's word; -1: it does not know.
    pub numa_preferred_nid: i32,
    pub cpus_ptr: *const Mask,
    /// An address space's number, never an address.
    pub mm: usize,
    pub sum_exec_runtime: u64,
    pub flags: u32,
    pub weight: u32,
    pub slice: u64,
    /// By which it stands, or stood last, in a queue.
    pub dsq_vtime: u64,
    pub storage: *mut c_void,
    pub cpu: u32,
    pub index: u32,
}

impl RawTask {
    /// One of which nothing is known.
    pub const EMPTY: Self = Self {
        pid: 0,
        tgid: 0,
        prio: 0,
        on_cpu: 0,
        nr_cpus_allowed: 0,
        numa_preferred_nid: -1,
        cpus_ptr: ptr::null(),
        mm: 0,
        sum_exec_runtime: 0,
        flags: 0,
        weight: 0,
        slice: 0,
        dsq_vtime: 0,
        storage: ptr::null_mut(),
        cpu: 0,
        index: 0,
    };
}

/// `struct kernfs_node`.
#[repr(C)]
pub(crate) struct RawNode {
    pub id: u64,
}

/// `struct cgroup`.
#[repr(C)]
pub(crate) struct RawGroup {
    pub level: i32,
    pub kn: *const RawNode,
    pub parent: *const RawGroup,
}

/// `struct scx_init_task_args`.
#[repr(C)]
pub(crate) struct InitTaskArgs {
    pub fork: bool,
    pub cgroup: *const RawGroup,
}

/// `struct scx_cgroup_init_args`.
#[repr(C)]
pub(crate) struct GroupInitArgs {
    pub weight: u32,
    pub bw_period_us: u64,
    pub bw_quota_us: u64,
}

/// `struct bpf_iter_scx_dsq`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawIterator {
    pub dsq_id: u64,
    pub flags: u64,
    pub vtime: u64,
    pub seq: u64,
    pub last_seq: u64,
    pub slice: u64,
    pub new_vtime: u64,
    pub begun: u32,
    pub set: u32,
}

/// `SIM_SET_SLICE`, `SIM_SET_VTIME`.
pub(crate) const SET_SLICE: u32 = 1;
pub(crate) const SET_VTIME: u32 = 2;

impl RawIterator {
    /// The slice that the next move gives its task, if one was set.
    pub fn slice_set(&self) -> Option<u64> {
        (self.set & SET_SLICE != 0).then_some(self.slice)
    }

    /// The same of its vtime.
    pub fn vtime_set(&self) -> Option<u64> {
        (self.set & SET_VTIME != 0).then_some(self.new_vtime)
    }

    /// All that says where a move goes: what a recording holds of it.
    pub fn move_arguments(&self, to: u64, is_ordered: bool) -> [u64; 6] {
        let (slice, vtime) = (self.slice_set().unwrap_or(0), self.vtime_set().unwrap_or(0));
        [self.dsq_id, to, self.set.into(), slice, vtime, is_ordered.into()]
    }
}

type Task = *mut RawTask;
type Group = *const RawGroup;

/// `struct sched_ext_ops`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ops {
    pub select_cpu: Option<unsafe extern "C" fn(Task, i32, u64) -> i32>,
    pub enqueue: Option<unsafe extern "C" fn(Task, u64)>,
    pub dispatch: Option<unsafe extern "C" fn(i32, Task)>,
    pub tick: Option<unsafe extern "C" fn(Task)>,
    pub running: Option<unsafe extern "C" fn(Task)>,
    pub stopping: Option<unsafe extern "C" fn(Task, bool)>,
    pub quiescent: Option<unsafe extern "C" fn(Task, u64)>,
    pub r#yield: Option<unsafe extern "C" fn(Task, Task) -> bool>,
    pub cpu_acquire: Option<unsafe extern "C" fn(i32, *const c_void)>,
    pub cpu_release: Option<unsafe extern "C" fn(i32, *const c_void)>,
    pub update_idle: Option<unsafe extern "C" fn(i32, bool)>,
    pub init_task: Option<unsafe extern "C" fn(Task, *const InitTaskArgs) -> i32>,
    pub exit_task: Option<unsafe extern "C" fn(Task, *const c_void)>,
    pub enable: Option<unsafe extern "C" fn(Task)>,
    pub disable: Option<unsafe extern "C" fn(Task)>,
    pub dump: Option<unsafe extern "C" fn(*const u64)>,
    pub dump_cpu: Option<unsafe extern "C" fn(*const u64, i32, bool)>,
    pub dump_task: Option<unsafe extern "C" fn(*const u64, Task)>,
    pub cgroup_init: Option<unsafe extern "C" fn(Group, *const GroupInitArgs) -> i32>,
    pub cgroup_exit: Option<unsafe extern "C" fn(Group)>,
    pub cgroup_move: Option<unsafe extern "C" fn(Task, Group, Group)>,
    pub cgroup_set_weight: Option<unsafe extern "C" fn(Group, u32)>,
    pub cgroup_set_bandwidth: Option<unsafe extern "C" fn(Group, u64, u64, u64)>,
    pub init: Option<unsafe extern "C" fn() -> i32>,
    pub exit: Option<unsafe extern "C" fn(*const c_void)>,
    pub flags: u64,
    pub timeout_ms: u32,
    pub exit_dump_len: u32,
    pub name: [u8; 128],
    pub hotplug_seq: u64,
}

/// `struct sim_host`.
#[repr(C)]
pub(crate) struct Host {
    pub context: *mut c_void,
    pub now_ns: u64,
    pub calls: u64,
    pub scanned: u64,
    pub cpu: u32,
    pub hazards: u32,
    pub in_interrupt: u32,
    pub awaited_by_real_time: u32,
    pub functions: HostFunctions,
}

/// The functions of `struct sim_host`; `crate::kernel::kfuncs` has them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct HostFunctions {
    pub fails: unsafe extern "C" fn(*mut c_void) -> bool,
    pub pause: unsafe extern "C" fn(*mut c_void),
    pub allocate: unsafe extern "C" fn(*mut c_void, u64) -> *mut c_void,
    pub hash: unsafe extern "C" fn(*mut c_void, *const c_void, u64, u64, u32) -> *mut c_void,
    pub create_dsq: unsafe extern "C" fn(*mut c_void, u64) -> i32,
    pub nr_queued: unsafe extern "C" fn(*mut c_void, u64) -> i32,
    pub select_cpu_dfl: unsafe extern "C" fn(*mut c_void, Task, i32, u64, *mut bool) -> i32,
    pub pick_idle_cpu: unsafe extern "C" fn(*mut c_void, *const Mask) -> i32,
    pub test_and_clear_idle: unsafe extern "C" fn(*mut c_void, i32) -> bool,
    pub kick_cpu: unsafe extern "C" fn(*mut c_void, i32, u64),
    pub cpuperf_set: unsafe extern "C" fn(*mut c_void, i32, u32),
    pub dsq_insert: unsafe extern "C" fn(*mut c_void, Task, u64, u64, u64, u64, bool),
    pub dsq_move: unsafe extern "C" fn(*mut c_void, *mut RawIterator, Task, u64, bool) -> bool,
    pub move_to_local: unsafe extern "C" fn(*mut c_void, u64) -> bool,
    pub reenqueue_local: unsafe extern "C" fn(*mut c_void),
    pub iter_next: unsafe extern "C" fn(*mut c_void, *mut RawIterator) -> Task,
    pub dsq_seq: unsafe extern "C" fn(*mut c_void, u64) -> u64,
    pub find_task: unsafe extern "C" fn(*mut c_void, i32) -> Task,
    pub dump: unsafe extern "C" fn(*mut c_void, *const c_char),
}

/// Memory that the scheduler uses: aligned, zeroed, and freed with the instance.
#[derive(Default)]
pub(crate) struct Memory {
    blocks: Vec<Box<[u64]>>,
    /// Hash maps' values, by map and key.
    values: BTreeMap<(usize, u64), Box<[u64]>>,
}

impl Memory {
    pub fn allocate(&mut self, bytes: u64) -> *mut c_void {
        let mut block = vec![0u64; (bytes as usize).div_ceil(8)].into_boxed_slice();
        let start = block.as_mut_ptr();
        self.blocks.push(block);
        start.cast()
    }

    /// Looks up (0), makes (1) or deletes (2) the value of a key.
    pub fn hash(&mut self, map: usize, key: u64, bytes: u64, what: u32) -> *mut c_void {
        let value =
            match what {
                0 => self.values.get_mut(&(map, key)),
                1 => Some(self.values.entry((map, key)).or_insert_with(|| {
                    vec![0u64; (bytes as usize).div_ceil(8)].into_boxed_slice()
                })),
                _ => {
                    self.values.remove(&(map, key));
                    None
                }
            };
        value.map_or(ptr::null_mut(), |value| value.as_mut_ptr().cast())
    }
}

/// `struct sim_map`.
#[repr(C)]
struct RawMap {
    storage: *mut u8,
    entries: u32,
    pad: u32,
}

/// A loaded copy of a scheduler.
pub(crate) struct Instance {
    pub ops: Ops,
    pub host: Box<Host>,
    pub memory: Memory,
    /// The map of the CPUs' states, if it has one.
    cpus: Option<NonNull<RawMap>>,
    /// The map of the index of siblings, if it has one.
    rows: Option<NonNull<RawMap>>,
    /// The map of the address spaces that aggregate; only its address is used.
    spaces: Option<NonNull<c_void>>,
    /// How often they were set.
    spaces_set: Option<NonNull<u64>>,
    entries: u32,
    /// Its own as long as it lives.
    copy: Option<Loaded>,
}

// SAFETY: its pointers lead to its own copy and its own memory, and nothing of it is shared between
// threads: it only goes from one to another.
unsafe impl Send for Instance {}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(copy) = self.copy.take() {
            copies::keep(copy);
        }
    }
}

/// The variable by which a scheduler finds its host.
pub(crate) const HOST: &str = "sim_host";

impl Instance {
    /// Loads a copy of the shared object in `bytes`. A scheduler that is to be told about the machine
    /// gets `image`.
    pub fn load(
        name: &str,
        bytes: &[u8],
        functions: HostFunctions,
        image: Option<&Image>,
    ) -> Result<Self, HostError> {
        let copy_error = |source| HostError::Copy { name: name.to_owned(), source };
        let load_error = |source| HostError::Load { name: name.to_owned(), source };
        let copy = copies::take(name, bytes, HOST)?;
        let library = &copy.library;
        let mut host = Box::new(Host {
            context: ptr::null_mut(),
            now_ns: 0,
            calls: 0,
            scanned: 0,
            cpu: 0,
            hazards: 0,
            in_interrupt: 0,
            awaited_by_real_time: 0,
            functions,
        });
        // SAFETY: the symbols have these types in native/kernel.h and bpf/keel/state.h; what is
        // written is as long as the record, because product/keel's tests compare them.
        unsafe {
            let symbol = |symbol: &str| library.get::<*mut c_void>(symbol.as_bytes());
            let place = symbol(HOST).map_err(load_error)?.into_raw();
            *place.cast::<*mut Host>() = &raw mut *host;
            let ops = symbol(&format!("{name}_ops")).map_err(load_error)?.into_raw().cast::<Ops>();
            let mut ops = *ops;
            let (mut cpus, mut rows, mut spaces, mut spaces_set) = (None, None, None, None);
            if let Some(image) = image {
                for (name, bytes) in [
                    ("settings", &image.settings),
                    ("topology", &image.topology),
                    ("tunables", &image.tunables),
                    ("capabilities", &image.capabilities),
                ] {
                    write_over(symbol(name).map_err(load_error)?.into_raw().cast(), bytes)
                        .map_err(|errno| copy_error(errno.into()))?;
                }
                let map = symbol("cpus").map_err(load_error)?.into_raw().cast::<RawMap>();
                (*map).entries = image.cpus;
                let index = symbol("sibling_rows").map_err(load_error)?.into_raw().cast::<RawMap>();
                (*index).entries = image.sibling_rows();
                rows = NonNull::new(index);
                ops.flags = image.flags();
                cpus = NonNull::new(map);
                spaces = NonNull::new(symbol("spaces").map_err(load_error)?.into_raw());
                spaces_set =
                    NonNull::new(symbol("spaces_set").map_err(load_error)?.into_raw().cast());
            }
            Ok(Self {
                ops,
                host,
                memory: Memory::default(),
                cpus,
                rows,
                spaces,
                spaces_set,
                entries: image.map_or(0, |image| image.cpus),
                copy: Some(copy),
            })
        }
    }

    /// Sets a record that is set from outside while the scheduler runs.
    ///
    /// # Errors
    /// The scheduler has no such record.
    pub fn set_record(&mut self, record: &str, bytes: &[u8]) -> Result<(), HostError> {
        let load_error = |source| HostError::Load { name: "keel".to_owned(), source };
        // SAFETY: the record is as long as that of product/keel, whose tests compare them; it is data,
        // and whoever reads it meanwhile does so by whole words.
        unsafe {
            let Some(copy) = &self.copy else { return Ok(()) };
            let symbol = copy.library.get::<*mut c_void>(record.as_bytes());
            let place = symbol.map_err(load_error)?.into_raw();
            ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len());
        }
        Ok(())
    }

    /// Lets the threads of an address space aggregate: `record` is what user space would put into the
    /// scheduler's map.
    pub fn aggregate(&mut self, space: u64, record: &[u8]) {
        let Some(map) = self.spaces else { return };
        let place = self.memory.hash(map.as_ptr() as usize, space, record.len() as u64, 1);
        if let Some(place) = NonNull::new(place) {
            // SAFETY: the map has just made room for so many bytes.
            unsafe {
                ptr::copy_nonoverlapping(record.as_ptr(), place.as_ptr().cast(), record.len())
            }
        }
        if let Some(set) = self.spaces_set {
            // SAFETY: it is a number of the copy that this has loaded, and nobody runs there now.
            unsafe { *set.as_ptr() = (*set.as_ptr()).wrapping_add(1) }
        }
    }

    /// Where its code is.
    pub fn code(&self) -> Range<usize> {
        self.copy.as_ref().map_or(0..0, |copy| copy.code.clone())
    }

    /// What the scheduler counted, by name.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        self.cpu_states().map(Image::counters).unwrap_or_default()
    }

    /// How many tasks the scheduler takes for runnable.
    pub fn runnable(&self) -> Option<u64> {
        self.cpu_states().map(Image::runnable)
    }

    /// How many tasks stand in its index of siblings.
    pub fn listed(&self) -> Option<u64> {
        let rows = self.rows?;
        // SAFETY: as in `cpu_states`, for the map's own number of entries.
        let entries = unsafe { (*rows.as_ptr()).entries };
        // SAFETY: so many there are.
        unsafe { Self::storage(rows, entries, Image::ROW_BYTES) }.map(Image::listed)
    }

    /// How often this CPU has looked for work elsewhere.
    pub fn attempts(&self, cpu: u32) -> u64 {
        self.state_of(cpu).map_or(0, Image::attempts)
    }

    /// Whether somebody runs on this CPU whom the shield keeps off it, alone.
    pub fn lodges(&self, cpu: u32) -> bool {
        self.state_of(cpu).is_some_and(Image::lodges)
    }

    fn state_of(&self, cpu: u32) -> Option<&[u8]> {
        let at = cpu as usize * Image::CPU_STATE_BYTES;
        self.cpu_states().and_then(|states| states.get(at..at + Image::CPU_STATE_BYTES))
    }

    fn cpu_states(&self) -> Option<&[u8]> {
        // SAFETY: the map was told that it has so many.
        unsafe { Self::storage(self.cpus?, self.entries, Image::CPU_STATE_BYTES) }
    }

    /// A map's entries, if it was used.
    ///
    /// # Safety
    /// It must be a map of the copy with so many entries of so many bytes.
    unsafe fn storage<'a>(map: NonNull<RawMap>, entries: u32, bytes: usize) -> Option<&'a [u8]> {
        // SAFETY: the map is in the copy; its storage was allocated for this many entries, and the
        // scheduler does not run while it is read.
        unsafe {
            let storage = NonNull::new((*map.as_ptr()).storage)?;
            Some(std::slice::from_raw_parts(storage.as_ptr(), entries as usize * bytes))
        }
    }
}

/// Writes over a record of the copy. Some are constants for its compiler, so that their pages are
/// read-only: libbpf, too, fills them in before the program starts.
///
/// # Safety
/// `to` must be the start of a record of at least as many bytes.
unsafe fn write_over(to: *mut u8, bytes: &[u8]) -> nix::Result<()> {
    const PAGE: usize = 4096;
    let start = to as usize & !(PAGE - 1);
    let length = (to as usize + bytes.len()).next_multiple_of(PAGE) - start;
    let pages = to.wrapping_sub(to as usize - start);
    // SAFETY: the pages hold the record, so they are mapped; they are private to this copy.
    unsafe {
        if let Some(pages) = NonNull::new(pages.cast()) {
            mprotect(pages, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        }
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
    }
    Ok(())
}

/// The text at a C string that the scheduler passed.
///
/// # Safety
/// It must be a string with an end.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
