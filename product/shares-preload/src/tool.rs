//! The library as a tool of OpenMP's tool interface (OMPT): it hears of each region that is forked,
//! and of each member that begins and ends its part of a region.
//!
//! A runtime has one tool. It looks for `ompt_start_tool` in the global scope, where this library
//! comes before the runtime and after the tools that the user preloads; then for what
//! `OMP_TOOL_LIBRARIES` names; then, in programs under ThreadSanitizer, for Archer. A tool of any of
//! these has precedence.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use shares::page::flag;

use crate::original::base_of;
use crate::process::{page, variable};
use crate::team;

/// `ompt_data_t`, of which the number is used.
#[repr(C)]
pub struct Data {
    value: u64,
}

/// `ompt_start_tool_result_t`.
#[repr(C)]
pub struct StartToolResult {
    initialize: extern "C" fn(Lookup, c_int, *mut Data) -> c_int,
    finalize: extern "C" fn(*mut Data),
    tool_data: Data,
}

type Function = Option<unsafe extern "C" fn()>;
type Lookup = unsafe extern "C" fn(*const c_char) -> Function;
type SetCallback = unsafe extern "C" fn(c_int, Function) -> c_int;
type StartTool = unsafe extern "C" fn(c_uint, *const c_char) -> *mut StartToolResult;

/// What `ompt_start_tool` returns. The runtime only reads it.
struct Shared(StartToolResult);

// SAFETY: the runtime only reads the functions, and nothing uses `tool_data`.
unsafe impl Sync for Shared {}

static RESULT: Shared =
    Shared(StartToolResult { initialize, finalize, tool_data: Data { value: 0 } });

// Values of `ompt_callbacks_t`, `ompt_set_result_t`, `ompt_scope_endpoint_t` and of flags.
const THREAD_END: c_int = 2;
const PARALLEL_BEGIN: c_int = 3;
const PARALLEL_END: c_int = 4;
const IMPLICIT_TASK: c_int = 7;
const SET_ALWAYS: c_int = 5;
const SCOPE_BEGIN: c_int = 1;
const TASK_INITIAL: c_int = 1;
const PARALLEL_LEAGUE: c_int = 0x4000_0000;

/// The runtime that reports its regions: where it is loaded; 0 for none.
static RUNTIME: AtomicUsize = AtomicUsize::new(0);

/// Whether the teams of this runtime are seen.
pub fn sees(runtime: usize) -> bool {
    runtime != 0 && RUNTIME.load(Acquire) == runtime
}

/// The runtime asks for a tool when it starts.
#[unsafe(no_mangle)]
unsafe extern "C" fn ompt_start_tool(
    version: c_uint,
    runtime: *const c_char,
) -> *mut StartToolResult {
    // SAFETY: the name ends with a zero byte. The function found has this type by the interface.
    let other = unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"ompt_start_tool".as_ptr());
        let next: Option<StartTool> = transmute(next);
        next.map_or(std::ptr::null_mut(), |next| next(version, runtime))
    };
    let Some(page) = page() else { return other };
    page.set_flag(flag::RUNTIME);
    if !other.is_null() || is_tool_named() {
        page.set_flag(flag::TOOL_REFUSED);
        return other;
    }
    (&raw const RESULT.0).cast_mut()
}

/// Whether the runtime will look for another tool by itself.
fn is_tool_named() -> bool {
    if variable("OMP_TOOL_LIBRARIES").is_some_and(|list| !list.is_empty()) {
        return true;
    }
    // SAFETY: the name ends with a zero byte.
    let sanitizer = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) };
    let without_archer = |options: &CStr| options.to_str().is_ok_and(|it| it.contains("enable=0"));
    !sanitizer.is_null() && !variable("ARCHER_OPTIONS").is_some_and(|it| without_archer(&it))
}

extern "C" fn initialize(lookup: Lookup, _device: c_int, _data: *mut Data) -> c_int {
    let Some(page) = page() else { return 0 };
    let runtime = base_of(lookup as *const c_void);
    let present = RUNTIME.compare_exchange(0, runtime, AcqRel, Acquire);
    if runtime == 0 || present.is_err_and(|present| present != runtime) {
        page.set_flag(flag::SECOND_RUNTIME);
        return 0;
    }
    // SAFETY: the interface gives each name a function of this type.
    let all_set = unsafe {
        let set: Option<SetCallback> = transmute(lookup(c"ompt_set_callback".as_ptr()));
        let begin: extern "C" fn(_, _, _, _, _, _) = parallel_begin;
        let end: extern "C" fn(_, _, _, _) = parallel_end;
        let implicit: extern "C" fn(_, _, _, _, _, _) = implicit_task;
        let thread: extern "C" fn(_) = thread_end;
        let callbacks: [(c_int, Function); 4] = [
            (PARALLEL_BEGIN, transmute::<*const (), Function>(begin as *const ())),
            (PARALLEL_END, transmute::<*const (), Function>(end as *const ())),
            (IMPLICIT_TASK, transmute::<*const (), Function>(implicit as *const ())),
            (THREAD_END, transmute::<*const (), Function>(thread as *const ())),
        ];
        set.is_some_and(|set| callbacks.into_iter().all(|(event, it)| set(event, it) == SET_ALWAYS))
    };
    page.set_flag(if all_set { flag::TOOL } else { flag::TOOL_REFUSED });
    all_set.into()
}

extern "C" fn finalize(_data: *mut Data) {}

extern "C" fn parallel_begin(
    _encountering_task: *mut Data,
    _frame: *const c_void,
    parallel: *mut Data,
    _requested: c_uint,
    flags: c_int,
    code: *const c_void,
) {
    let region = match flags & PARALLEL_LEAGUE {
        0 => team::fork_region(code.addr() as u64),
        _ => team::fork_league(),
    };
    // SAFETY: the runtime passes a place of its own, or null.
    if let Some(parallel) = unsafe { parallel.as_mut() } {
        parallel.value = region;
    }
}

extern "C" fn parallel_end(
    _parallel: *mut Data,
    _encountering_task: *mut Data,
    _flags: c_int,
    _code: *const c_void,
) {
    team::end_region();
}

extern "C" fn implicit_task(
    endpoint: c_int,
    parallel: *mut Data,
    _task: *mut Data,
    size: c_uint,
    number: c_uint,
    flags: c_int,
) {
    if endpoint != SCOPE_BEGIN {
        team::end_part();
        return;
    }
    // SAFETY: the runtime passes a place of its own, or null.
    let region = unsafe { parallel.as_ref() }.map_or(0, |parallel| parallel.value);
    let region = if flags & TASK_INITIAL != 0 { 0 } else { region };
    team::begin_part(region, number, size);
}

extern "C" fn thread_end(_data: *mut Data) {
    team::end_thread();
}
