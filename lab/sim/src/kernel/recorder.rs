//! Records a tape: the begin and end of each callback, and each call of a kernel function. Without a
//! recording, none of these functions is used.

use std::ffi::c_void;

use evenkeel_tape::{Entry, Function, Kind, LAST, TaskView, VALUES};

use crate::abi::{HostFunctions, RawIterator, RawTask};
use crate::mask::Mask;

use super::Kernel;
use super::callbacks::Call;
use super::kfuncs::FUNCTIONS as PLAIN;

/// The functions of `kfuncs`, each followed by an entry on the tape.
pub(super) const FUNCTIONS: HostFunctions = HostFunctions {
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
    find_task,
    ..PLAIN
};

/// A task's number on the tape: not 0.
fn number(task: u32) -> u64 {
    u64::from(task) + 1
}

impl Kernel {
    #[inline]
    pub(super) fn record_enter(&mut self, cpu: u32, call: Option<Call>) {
        if self.tape.is_some()
            && let Some(call) = call
        {
            self.note_enter(cpu, call);
        }
    }

    #[inline]
    pub(super) fn record_leave(&mut self, call: Option<Call>, returned: u64) {
        if self.tape.is_some()
            && let Some(call) = call
        {
            self.note_leave(call, returned);
        }
    }

    fn note(&mut self, entry: Entry) {
        if let Some(tape) = &mut self.tape {
            tape.push(entry);
        }
    }

    fn note_enter(&mut self, cpu: u32, call: Call) {
        let mut values = [0; VALUES];
        values[..call.arguments.len()].copy_from_slice(&call.arguments);
        values[LAST] = self.now;
        let task = call.task.map_or(0, number);
        self.note(Entry::new(Kind::Enter, call.callback as u8, cpu, task, values));
        if let Some(task) = call.task {
            self.note_task(task);
        }
    }

    fn note_leave(&mut self, call: Call, returned: u64) {
        let slice = call.task.map_or(0, |task| self.tasks[task as usize].raw.slice);
        let values = [returned, slice, 0, 0, 0, 0, 0];
        let (cpu, task) = (self.instance.host.cpu, call.task.map_or(0, number));
        self.note(Entry::new(Kind::Leave, call.callback as u8, cpu, task, values));
    }

    /// Records a task as the scheduler sees it now.
    fn note_task(&mut self, task: u32) {
        let t = &self.tasks[task as usize];
        let raw = &t.raw;
        let view = TaskView {
            pid: raw.pid as u32,
            tgid: raw.tgid as u32,
            allowed_count: raw.nr_cpus_allowed as u16,
            cpu: raw.cpu as u16,
            prio: raw.prio as u16,
            on_cpu: raw.on_cpu as u8,
            node: raw.numa_preferred_nid as i8,
            space: raw.mm as u64,
            sum_exec_runtime: raw.sum_exec_runtime,
            flags: raw.flags,
            weight: raw.weight,
            slice: raw.slice,
            allowed: t.allowed.first_word(),
        };
        let cpu = self.instance.host.cpu;
        self.note(Entry::new(Kind::Task, 0, cpu, number(task), view.into()));
    }

    fn note_call(&mut self, function: Function, task: u64, given: [u64; VALUES - 1], answer: u64) {
        let mut values = [0; VALUES];
        values[..LAST].copy_from_slice(&given);
        values[LAST] = answer;
        self.note(Entry::new(Kind::Call, function as u8, self.instance.host.cpu, task, values));
    }
}

/// Up to six arguments.
fn given<const N: usize>(arguments: [u64; N]) -> [u64; VALUES - 1] {
    let mut all = [0; VALUES - 1];
    all[..N].copy_from_slice(&arguments);
    all
}

/// Records a call.
///
/// # Safety
/// `context` must be what the scheduler got, and this must be called from a callback.
unsafe fn note(
    context: *mut c_void,
    function: Function,
    task: u64,
    given: [u64; VALUES - 1],
    answer: u64,
) {
    // SAFETY: as the caller says.
    unsafe { &mut *context.cast::<Kernel>() }.note_call(function, task, given, answer);
}

// SAFETY: of all functions below: they pass all arguments on to the plain functions first.

unsafe extern "C" fn create_dsq(context: *mut c_void, id: u64) -> i32 {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.create_dsq)(context, id);
        note(context, Function::CreateDsq, 0, given([id]), answer as u32 as u64);
        answer
    }
}

unsafe extern "C" fn nr_queued(context: *mut c_void, id: u64) -> i32 {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.nr_queued)(context, id);
        note(context, Function::NrQueued, 0, given([id]), answer as u32 as u64);
        answer
    }
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
        let cpu = (PLAIN.select_cpu_dfl)(context, task, prev, flags, is_idle);
        let answer = u64::from(cpu as u32) | u64::from(*is_idle) << 32;
        let given = given([prev as u32 as u64, flags]);
        note(context, Function::SelectCpuDefault, number((*task).index), given, answer);
        cpu
    }
}

unsafe extern "C" fn pick_idle_cpu(context: *mut c_void, allowed: *const Mask) -> i32 {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.pick_idle_cpu)(context, allowed);
        let given = given([(*allowed).first_word()]);
        note(context, Function::PickIdle, 0, given, answer as u32 as u64);
        answer
    }
}

unsafe extern "C" fn test_and_clear_idle(context: *mut c_void, cpu: i32) -> bool {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.test_and_clear_idle)(context, cpu);
        note(context, Function::ClaimIdle, 0, given([cpu as u32 as u64]), answer.into());
        answer
    }
}

unsafe extern "C" fn kick_cpu(context: *mut c_void, cpu: i32, flags: u64) {
    // SAFETY: see above.
    unsafe {
        (PLAIN.kick_cpu)(context, cpu, flags);
        note(context, Function::Kick, 0, given([cpu as u32 as u64, flags]), 0);
    }
}

unsafe extern "C" fn cpuperf_set(context: *mut c_void, cpu: i32, perf: u32) {
    // SAFETY: see above.
    unsafe {
        (PLAIN.cpuperf_set)(context, cpu, perf);
        note(context, Function::SetFrequency, 0, given([cpu as u32 as u64, perf.into()]), 0);
    }
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
    // SAFETY: see above.
    unsafe {
        (PLAIN.dsq_insert)(context, task, dsq, slice, vtime, flags, is_ordered);
        let given = given([dsq, slice, vtime, flags, is_ordered.into()]);
        note(context, Function::Insert, number((*task).index), given, 0);
    }
}

unsafe extern "C" fn dsq_move(
    context: *mut c_void,
    iterator: *mut RawIterator,
    task: *mut RawTask,
    to: u64,
    is_ordered: bool,
) -> bool {
    // SAFETY: see above. The move resets what was set for it, so its arguments are read first.
    unsafe {
        let given = (*iterator).move_arguments(to, is_ordered);
        let answer = (PLAIN.dsq_move)(context, iterator, task, to, is_ordered);
        note(context, Function::Move, number((*task).index), given, answer.into());
        answer
    }
}

unsafe extern "C" fn move_to_local(context: *mut c_void, id: u64) -> bool {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.move_to_local)(context, id);
        note(context, Function::MoveToLocal, 0, given([id]), answer.into());
        answer
    }
}

unsafe extern "C" fn reenqueue_local(context: *mut c_void) {
    // SAFETY: see above.
    unsafe {
        (PLAIN.reenqueue_local)(context);
        note(context, Function::ReenqueueLocal, 0, given([]), 0);
    }
}

unsafe extern "C" fn iter_next(context: *mut c_void, iterator: *mut RawIterator) -> *mut RawTask {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.iter_next)(context, iterator);
        let found = answer.as_ref().map(|task| task.index);
        if let Some(task) = found {
            (*context.cast::<Kernel>()).note_task(task);
        }
        let given = given([(*iterator).dsq_id, (*iterator).flags]);
        note(context, Function::IterNext, found.map_or(0, number), given, 0);
        answer
    }
}

unsafe extern "C" fn find_task(context: *mut c_void, pid: i32) -> *mut RawTask {
    // SAFETY: see above.
    unsafe {
        let answer = (PLAIN.find_task)(context, pid);
        let found = answer.as_ref().map(|task| task.index);
        if let Some(task) = found {
            (*context.cast::<Kernel>()).note_task(task);
        }
        note(context, Function::FindTask, found.map_or(0, number), given([pid as u32 as u64]), 0);
        answer
    }
}
