//! The C structs and functions of `native/kernel.h`, and their Rust twins.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use crate::mask::Mask;

/// `struct task_struct`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawTask {
    pub pid: i32,
    pub tgid: i32,
    pub prio: i32,
    pub on_cpu: i32,
    pub nr_cpus_allowed: i32,
    /// The NUMA node that its memory is on; -1: unknown.
    pub numa_preferred_nid: i32,
    pub cpus_ptr: *const Mask,
    /// The number of its address space, never an address.
    pub mm: usize,
    pub sum_exec_runtime: u64,
    pub flags: u32,
    pub weight: u32,
    pub slice: u64,
    /// The vtime by which it is, or last was, ordered in a DSQ.
    pub dsq_vtime: u64,
    pub storage: *mut c_void,
    pub cpu: u32,
    pub index: u32,
}

impl RawTask {
    /// All fields zero, the NUMA node unknown.
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

    /// The vtime that the next move gives its task, if one was set.
    pub fn vtime_set(&self) -> Option<u64> {
        (self.set & SET_VTIME != 0).then_some(self.new_vtime)
    }

    /// The arguments of a move, as a tape records them.
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
    pub awaited_by_higher_class: u32,
    pub functions: HostFunctions,
}

/// The functions of `struct sim_host`. The kernel, its recorder and the replay each provide a set.
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

/// The variable by which a scheduler finds its host.
pub(crate) const HOST: &str = "sim_host";

/// The text of a C string that the scheduler passed.
///
/// # Safety
/// It must be terminated by a zero byte.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
