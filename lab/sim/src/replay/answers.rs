//! The kernel functions during a replay: each compares the call with the tape, and returns the recorded
//! answer.

use std::ffi::{c_char, c_void};

use evenkeel_tape::Function;

use super::Player;
use crate::abi::{HostFunctions, RawIterator, RawTask};
use crate::mask::Mask;

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

/// The player that the scheduler calls.
///
/// # Safety
/// `context` must be what was set when the calling callback began: then the player waits for that
/// callback and is not used otherwise.
unsafe fn player<'a>(context: *mut c_void) -> &'a mut Player {
    // SAFETY: as the caller says.
    unsafe { &mut *context.cast::<Player>() }
}

/// A task's number.
///
/// # Safety
/// It must be a task that the scheduler was given.
unsafe fn number(task: *mut RawTask) -> u64 {
    // SAFETY: as the caller says.
    unsafe { u64::from((*task).index) }
}

// SAFETY: of all functions below: they are called from callbacks, with the player's own tasks, and with
// iterators and places of the scheduler that outlive the call.

unsafe extern "C" fn fails(_: *mut c_void) -> bool {
    false
}

unsafe extern "C" fn pause(_: *mut c_void) {}

unsafe extern "C" fn allocate(context: *mut c_void, bytes: u64) -> *mut c_void {
    // SAFETY: see above.
    unsafe { player(context) }.instance.memory.allocate(bytes)
}

unsafe extern "C" fn hash(
    context: *mut c_void,
    map: *const c_void,
    key: u64,
    bytes: u64,
    what: u32,
) -> *mut c_void {
    // SAFETY: see above. The map's address is only its name.
    unsafe { player(context) }.instance.memory.hash(map as usize, key, bytes, what)
}

unsafe extern "C" fn create_dsq(context: *mut c_void, id: u64) -> i32 {
    // SAFETY: see above.
    unsafe { player(context) }.answer(Function::CreateDsq, 0, &[id]).0 as i32
}

unsafe extern "C" fn nr_queued(context: *mut c_void, id: u64) -> i32 {
    // SAFETY: see above.
    unsafe { player(context) }.answer(Function::NrQueued, 0, &[id]).0 as i32
}

unsafe extern "C" fn select_cpu_dfl(
    context: *mut c_void,
    task: *mut RawTask,
    prev: i32,
    flags: u64,
    is_idle: *mut bool,
) -> i32 {
    // SAFETY: see above.
    unsafe {
        let given = [prev as u32 as u64, flags];
        let (answer, _) = player(context).answer(Function::SelectCpuDefault, number(task), &given);
        *is_idle = answer >> 32 != 0;
        answer as i32
    }
}

unsafe extern "C" fn pick_idle_cpu(context: *mut c_void, allowed: *const Mask) -> i32 {
    // SAFETY: see above.
    unsafe {
        let given = [(*allowed).first_word()];
        player(context).answer(Function::PickIdle, 0, &given).0 as i32
    }
}

unsafe extern "C" fn test_and_clear_idle(context: *mut c_void, cpu: i32) -> bool {
    // SAFETY: see above.
    unsafe { player(context) }.answer(Function::ClaimIdle, 0, &[cpu as u32 as u64]).0 != 0
}

unsafe extern "C" fn kick_cpu(context: *mut c_void, cpu: i32, flags: u64) {
    // SAFETY: see above.
    unsafe { player(context) }.answer(Function::Kick, 0, &[cpu as u32 as u64, flags]);
}

unsafe extern "C" fn cpuperf_set(context: *mut c_void, cpu: i32, perf: u32) {
    let given = [cpu as u32 as u64, perf.into()];
    // SAFETY: see above.
    unsafe { player(context) }.answer(Function::SetFrequency, 0, &given);
}

unsafe extern "C" fn dsq_insert(
    context: *mut c_void,
    task: *mut RawTask,
    dsq: u64,
    slice: u64,
    vtime: u64,
    flags: u64,
    is_ordered: bool,
) {
    let given = [dsq, slice, vtime, flags, is_ordered.into()];
    // SAFETY: see above.
    unsafe {
        player(context).answer(Function::Insert, number(task), &given);
        if slice > 0 {
            (*task).slice = slice;
        }
        if is_ordered {
            (*task).dsq_vtime = vtime;
        }
    }
}

unsafe extern "C" fn dsq_move(
    context: *mut c_void,
    iterator: *mut RawIterator,
    task: *mut RawTask,
    to: u64,
    is_ordered: bool,
) -> bool {
    // SAFETY: see above.
    unsafe {
        let given = (*iterator).move_arguments(to, is_ordered);
        let (answer, _) = player(context).answer(Function::Move, number(task), &given);
        let (slice, vtime) = ((*iterator).slice_set(), (*iterator).vtime_set());
        (*iterator).set = 0;
        if let (true, Some(slice)) = (answer != 0, slice) {
            (*task).slice = slice;
        }
        if let (true, Some(vtime)) = (answer != 0, vtime) {
            (*task).dsq_vtime = vtime;
        }
        answer != 0
    }
}

unsafe extern "C" fn move_to_local(context: *mut c_void, id: u64) -> bool {
    // SAFETY: see above.
    unsafe { player(context) }.answer(Function::MoveToLocal, 0, &[id]).0 != 0
}

unsafe extern "C" fn reenqueue_local(context: *mut c_void) {
    // SAFETY: see above. Tasks that are enqueued again are callbacks nested in this one.
    unsafe { player(context) }.answer(Function::ReenqueueLocal, 0, &[]);
}

unsafe extern "C" fn iter_next(context: *mut c_void, iterator: *mut RawIterator) -> *mut RawTask {
    // SAFETY: see above.
    unsafe {
        let player = player(context);
        let given = [(*iterator).dsq_id, (*iterator).flags];
        let (_, found) = player.answer(Function::IterNext, 0, &given);
        player.task(found)
    }
}

unsafe extern "C" fn dsq_seq(_: *mut c_void, _: u64) -> u64 {
    0
}

unsafe extern "C" fn find_task(context: *mut c_void, pid: i32) -> *mut RawTask {
    // SAFETY: see above.
    unsafe {
        let player = player(context);
        let (_, found) = player.answer(Function::FindTask, 0, &[pid as u32 as u64]);
        player.task(found)
    }
}

unsafe extern "C" fn dump(_: *mut c_void, _: *const c_char) {}
