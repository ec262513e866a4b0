//! The entry points by which compilers begin static loops: `__kmpc_for_static_init_4`, `_4u`, `_8`,
//! `_8u`.
//!
//! The runtime's function always comes first, so its own bookkeeping (consistency checks, other tools'
//! callbacks) is as ever. A tool that asks for the code address of a loop sees this library's.
//!
//! Sections use the same entry points as loops. clang, and compilers like it, mark each kind in the
//! flags of the `ident_t`. flang 19 marks nothing: it begins sections exactly like a loop over their
//! number. So a loop without a mark is divided only if it has more iterations for each thread than any
//! program has sections. Otherwise a thread could get two sections that wait for each other.

use std::ffi::c_void;
use std::mem::transmute;

use shares::bounds::{Counter, Loop};
use shares::page::flag;

use crate::original::{INIT_4, INIT_4U, INIT_8, INIT_8U, Original};
use crate::process::page;
use crate::{team, tool};

/// `ident_t` of kmp.h.
#[repr(C)]
pub struct Ident {
    reserved_1: i32,
    flags: i32,
    reserved_2: i32,
    reserved_3: i32,
    source: *const c_void,
}

// Flags of `ident_t`, and values of `enum sched_type`.
const WORK_LOOP: i32 = 0x200;
const WORK_SECTIONS: i32 = 0x400;
const WORK_DISTRIBUTE: i32 = 0x800;
const STATIC_UNCHUNKED: i32 = 34;
const MODIFIERS: i32 = 1 << 29 | 1 << 30;

/// Iterations for each thread below which an unmarked loop may be sections.
const LEAST_UNMARKED: u64 = 8;

/// How many iterations for each thread a loop needs so that it may be divided. Nothing for what is no
/// unchunked static loop.
fn least_per_thread(ident: Option<&Ident>, schedule: i32) -> Option<u64> {
    if schedule & !MODIFIERS != STATIC_UNCHUNKED {
        return None;
    }
    let flags = ident.map_or(0, |ident| ident.flags);
    match flags & (WORK_LOOP | WORK_SECTIONS | WORK_DISTRIBUTE) {
        WORK_LOOP => Some(0),
        0 => Some(LEAST_UNMARKED),
        _ => None,
    }
}

/// The loop to divide, if this is one, as it is before the runtime changes its bounds.
///
/// # Safety
/// The pointers are null or valid.
unsafe fn eligible<T: Counter>(
    ident: *const Ident,
    schedule: i32,
    lower: *const T,
    upper: *const T,
    step: T::Step,
) -> Option<(Loop<T>, u64)> {
    page()?;
    // SAFETY: as the caller says.
    let (ident, lower, upper) = unsafe { (ident.as_ref(), lower.as_ref()?, upper.as_ref()?) };
    let least = least_per_thread(ident, schedule)?;
    Some((Loop { lower: *lower, upper: *upper, step }, least))
}

/// Writes this thread's bounds by weight, where they are to differ from the runtime's.
///
/// # Safety
/// The pointers are null or valid; the runtime has set the bounds of `whole`.
unsafe fn rewrite<T: Counter>(
    original: Original,
    whole: Loop<T>,
    least: u64,
    last: *mut i32,
    lower: *mut T,
    upper: *mut T,
) -> Option<()> {
    let page = page()?;
    page.set_flag(flag::CALLED);
    let iterations = whole.count_iterations()?;
    // SAFETY: as the caller says.
    let (lower, upper) = unsafe { (lower.as_mut()?, upper.as_mut()?) };
    // SAFETY: as the caller says.
    let last = unsafe { last.as_mut()? };
    // A thread that runs the whole loop has no team, whatever was reported. (At the ends of the type the
    // runtime's bounds for a thread without iterations may wrap around to the whole loop: without the
    // last iteration.)
    let is_alone = (*lower, *upper) == (whole.lower, whole.upper) && *last != 0;
    if is_alone || !tool::sees(original.runtime) {
        return None;
    }
    let part = team::divide_loop(page, iterations, least)?;
    let bounds = whole.bounds_from(iterations, part.first, part.count);
    (*lower, *upper) = (bounds.lower, bounds.upper);
    *last = bounds.has_last.into();
    Some(())
}

macro_rules! entry_point {
    ($name:ident, $symbol:ident, $type:ty, $step:ty) => {
        /// The compiler's call at the begin of a static loop, of which this is the interface.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            ident: *const Ident,
            thread: i32,
            schedule: i32,
            last: *mut i32,
            lower: *mut $type,
            upper: *mut $type,
            stride: *mut $step,
            step: $step,
            chunk: $step,
        ) {
            type Function = unsafe extern "C" fn(
                *const Ident,
                i32,
                i32,
                *mut i32,
                *mut $type,
                *mut $type,
                *mut $step,
                $step,
                $step,
            );
            // SAFETY: the compiler passes valid pointers; what is found by the name has this type.
            unsafe {
                let Some(original) = $symbol.find(ident.cast()) else {
                    // No runtime, so no team: this thread runs the whole loop.
                    if let Some(last) = last.as_mut() {
                        *last = 1;
                    }
                    return;
                };
                let eligible = eligible(ident, schedule, lower, upper, step);
                let function = transmute::<*mut c_void, Function>(original.function);
                function(ident, thread, schedule, last, lower, upper, stride, step, chunk);
                if let Some((whole, least)) = eligible {
                    rewrite(original, whole, least, last, lower, upper);
                }
            }
        }
    };
}

entry_point!(__kmpc_for_static_init_4, INIT_4, i32, i32);
entry_point!(__kmpc_for_static_init_4u, INIT_4U, u32, i32);
entry_point!(__kmpc_for_static_init_8, INIT_8, i64, i64);
entry_point!(__kmpc_for_static_init_8u, INIT_8U, u64, i64);
