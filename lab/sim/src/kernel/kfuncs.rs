//! The scheduler calls the kernel: the functions of `struct sim_host` (kernel: the `scx_bpf_*`
//! functions in `ext.c`). A call that the real kernel would answer by ending the scheduler ends it
//! here, too.

use std::ffi::{c_char, c_void};

use crate::abi::{self, HostFunctions, RawIterator, RawTask};
use crate::mask::Mask;
use crate::outcome::Reason;
use crate::tid::tid;

use super::{Direct, FULL_FREQUENCY, GLOBAL, GLOBAL_ID, Kernel, LOCAL_ID, Life, Queue};

pub(super) const FUNCTIONS: HostFunctions = HostFunctions {
    fails,
    pause,
    allocate,
    hash,
    create_dsq,
    nr_queued,
    select_cpu_dfl,
    pick_idle_cpu,
    test_and_clear_idle,
    kick_cpu,
    cpuperf_set,
    dsq_insert,
    dsq_move,
    move_to_local,
    reenqueue_local,
    iter_next,
    dsq_seq,
    find_task,
    dump,
};

/// `SCX_DSQ_ITER_REV`.
const BACKWARDS: u64 = 1 << 16;

/// The kernel that the scheduler calls.
///
/// # Safety
/// `context` must be the one that was set when the calling callback began: then the kernel waits for
/// that callback and is not used otherwise.
unsafe fn kernel<'a>(context: *mut c_void) -> &'a mut Kernel {
    // SAFETY: as the caller says.
    unsafe { &mut *context.cast::<Kernel>() }
}

unsafe extern "C" fn fails(context: *mut c_void) -> bool {
    // SAFETY: called from a callback.
    unsafe { kernel(context) }.hazards.fails()
}

unsafe extern "C" fn pause(context: *mut c_void) {
    // SAFETY: called from a callback.
    unsafe { kernel(context) }.pause_point();
}

unsafe extern "C" fn allocate(context: *mut c_void, bytes: u64) -> *mut c_void {
    // SAFETY: called from a callback.
    unsafe { kernel(context) }.instance.memory.allocate(bytes)
}

unsafe extern "C" fn hash(
    context: *mut c_void,
    map: *const c_void,
    key: u64,
    bytes: u64,
    what: u32,
) -> *mut c_void {
    // SAFETY: called from a callback. The map's address is only its name.
    unsafe { kernel(context) }.instance.memory.hash(map as usize, key, bytes, what)
}

unsafe extern "C" fn create_dsq(context: *mut c_void, id: u64) -> i32 {
    const EEXIST: i32 = -17;
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    if kernel.find_dsq(id).is_some() {
        return EEXIST;
    }
    kernel.dsqs.push((id, crate::dsq::Dsq::default()));
    0
}

unsafe extern "C" fn nr_queued(context: *mut c_void, id: u64) -> i32 {
    const ENOENT: i32 = -2;
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    kernel.find_dsq(id).map_or(ENOENT, |dsq| kernel.dsqs[dsq].1.len() as i32)
}

unsafe extern "C" fn select_cpu_dfl(
    context: *mut c_void,
    task: *mut RawTask,
    prev: i32,
    flags: u64,
    is_idle: *mut bool,
) -> i32 {
    // SAFETY: called from a callback, with a valid task and a valid place for the answer.
    unsafe {
        let (kernel, task) = (kernel(context), (*task).index);
        let found = kernel.select_cpu_default(task, prev as u32, flags);
        *is_idle = found.is_some();
        found.map_or(prev, |cpu| cpu as i32)
    }
}

unsafe extern "C" fn pick_idle_cpu(context: *mut c_void, allowed: *const Mask) -> i32 {
    const EBUSY: i32 = -16;
    // SAFETY: called from a callback, with a task's mask.
    let (kernel, allowed) = unsafe { (kernel(context), &*allowed) };
    kernel.pick_idle(allowed).map_or(EBUSY, |cpu| cpu as i32)
}

unsafe extern "C" fn test_and_clear_idle(context: *mut c_void, cpu: i32) -> bool {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    kernel.idle.claim(cpu as u32, &kernel.topology)
}

unsafe extern "C" fn kick_cpu(context: *mut c_void, cpu: i32, flags: u64) {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    if !kernel.topology.has(cpu as u32) {
        kernel.end_at_fault(format!("CPU {cpu} is kicked, which does not exist"));
        return;
    }
    kernel.plan_kick(cpu as u32, flags);
}

unsafe extern "C" fn cpuperf_set(context: *mut c_void, cpu: i32, perf: u32) {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    if !kernel.topology.has(cpu as u32) || perf > FULL_FREQUENCY {
        kernel.end_at_fault(format!(
            "frequency {perf} of {FULL_FREQUENCY} is asked for on CPU {cpu}"
        ));
        return;
    }
    kernel.cpus[cpu as usize].frequency = perf;
}

unsafe extern "C" fn dsq_insert(
    context: *mut c_void,
    task: *mut RawTask,
    dsq: u64,
    slice: u64,
    vtime: u64,
    _flags: u64,
    is_ordered: bool,
) {
    // SAFETY: called from a callback, with a valid task.
    let (kernel, task) = unsafe { (kernel(context), (*task).index) };
    let direct = kernel.direct == Some(task);
    let known = &mut kernel.tasks[task as usize];
    if direct && known.direct.is_some() {
        kernel.end_at_fault(format!("{} is dispatched twice", kernel.name(task)));
        return;
    }
    if !direct {
        // Another CPU was faster: the kernel ignores such a dispatch.
        return;
    }
    if slice > 0 {
        known.raw.slice = slice;
    }
    if is_ordered {
        known.raw.dsq_vtime = vtime;
    }
    known.direct = Some(Direct { dsq, vtime, is_ordered });
}

unsafe extern "C" fn dsq_move(
    context: *mut c_void,
    iterator: *mut RawIterator,
    task: *mut RawTask,
    to: u64,
    is_ordered: bool,
) -> bool {
    // SAFETY: called from a callback, with its iterator and a valid task.
    let (kernel, iterator, task) = unsafe { (kernel(context), &mut *iterator, (*task).index) };
    let (slice, vtime) = (iterator.slice_set(), iterator.vtime_set());
    iterator.set = 0;
    let Some(from) = kernel.find_dsq(iterator.dsq_id) else { return false };
    let known = &kernel.tasks[task as usize];
    // It may have left, or come back since the iteration began, or another CPU holds its runqueue's
    // lock.
    let stays = matches!(known.queue, Queue::Dsq(dsq, place)
        if dsq == from && place.seq <= iterator.last_seq);
    let this = kernel.instance.host.cpu;
    if !stays || known.life != Life::Waits || kernel.is_locked_by_others(known.raw.cpu, this) {
        return false;
    }
    if to == LOCAL_ID {
        if !kernel.may_run_here(task, this) {
            let name = kernel.name(task);
            kernel.end_at_fault(format!("{name} is moved to CPU {this}, which it may not use"));
            return false;
        }
    } else if kernel.find_dsq(to).is_none() {
        kernel.end_at_fault(format!(
            "{} is moved to queue {to:#x}, which does not exist",
            kernel.name(task)
        ));
        return false;
    }
    if let Some(slice) = slice {
        kernel.tasks[task as usize].raw.slice = slice;
    }
    kernel.remove_from_dsq(task);
    kernel.spend_on_move(this, kernel.tasks[task as usize].raw.cpu);
    kernel.tasks[task as usize].reason = Reason::Pull;
    if to == LOCAL_ID {
        kernel.move_to_cpu(task, this);
        kernel.push_local(task, false, this);
    } else {
        let vtime = vtime.unwrap_or(0);
        kernel.tasks[task as usize].raw.dsq_vtime = vtime;
        kernel.insert_into_dsq(task, Direct { dsq: to, vtime, is_ordered }, this);
    }
    true
}

unsafe extern "C" fn move_to_local(context: *mut c_void, id: u64) -> bool {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    let cpu = kernel.instance.host.cpu;
    match kernel.find_dsq(id) {
        Some(dsq) => kernel.consume(cpu, dsq),
        None => {
            kernel.end_at_fault(format!("queue {id:#x} is to be emptied, which does not exist"));
            false
        }
    }
}

unsafe extern "C" fn reenqueue_local(context: *mut c_void) {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    let cpu = kernel.instance.host.cpu;
    kernel.reenqueue_local(cpu);
}

unsafe extern "C" fn iter_next(context: *mut c_void, iterator: *mut RawIterator) -> *mut RawTask {
    // SAFETY: called from a callback, with its iterator.
    let (kernel, iterator) = unsafe { (kernel(context), &mut *iterator) };
    let Some(dsq) = kernel.find_dsq(iterator.dsq_id) else { return std::ptr::null_mut() };
    let place = crate::dsq::Place { vtime: iterator.vtime, seq: iterator.seq };
    let after = (iterator.begun != 0).then_some(place);
    let backwards = iterator.flags & BACKWARDS != 0;
    let Some((place, task)) = kernel.dsqs[dsq].1.next(after, backwards, iterator.last_seq) else {
        return std::ptr::null_mut();
    };
    (iterator.begun, iterator.vtime, iterator.seq) = (1, place.vtime, place.seq);
    kernel.raw(task)
}

unsafe extern "C" fn dsq_seq(context: *mut c_void, id: u64) -> u64 {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    kernel.find_dsq(id).map_or(0, |dsq| kernel.dsqs[dsq].1.last_seq())
}

unsafe extern "C" fn find_task(context: *mut c_void, pid: i32) -> *mut RawTask {
    // SAFETY: called from a callback.
    let kernel = unsafe { kernel(context) };
    let lives = |task: &u32| {
        let known = kernel.tasks.get(*task as usize);
        known.is_some_and(|known| !matches!(known.life, Life::New | Life::Dead))
    };
    let task = (pid as u32).checked_sub(tid(0)).filter(lives);
    task.map_or(std::ptr::null_mut(), |task| kernel.raw(task))
}

unsafe extern "C" fn dump(context: *mut c_void, line: *const c_char) {
    // SAFETY: called from a callback, with a string.
    let (kernel, line) = unsafe { (kernel(context), abi::text(line)) };
    kernel.observer.dump.push_str(&line);
}

impl Kernel {
    /// The index of a DSQ by its id.
    pub(super) fn find_dsq(&self, id: u64) -> Option<usize> {
        if id == GLOBAL_ID {
            return Some(GLOBAL);
        }
        // Most schedulers create DSQs with the ids of CPUs, in that order.
        let guess = (id as usize).saturating_add(1);
        if self.dsqs.get(guess).is_some_and(|(known, _)| *known == id) {
            return Some(guess);
        }
        self.dsqs.iter().position(|(known, _)| *known == id)
    }
}
