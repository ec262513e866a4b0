//! What is done once for each process: the page is mapped when the library is loaded, and a child of
//! fork(2) begins anew.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use shares::environment::{PAGE_VARIABLE, PRELOAD_VARIABLE, without_library};
use shares::page::{Page, attach, flag};

use crate::{original, team};

unsafe extern "C" {
    /// getenv(3), but nothing in a program that changes its privilege.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The dynamic linker calls this before `main`, when the process has one thread.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = start;

extern "C" fn start() {
    let page = variable(PAGE_VARIABLE).and_then(|value| attach(&value));
    if let Some(page) = page {
        PAGE.store(ptr::from_ref(page).cast_mut(), Release);
        page.set_flag(flag::ATTACHED);
        // SAFETY: the handler only stores to atomics and to this thread's own cells.
        unsafe { libc::pthread_atfork(None, None, Some(team::forget_parent)) };
    }
    if original::is_loaded() {
        if let Some(page) = page {
            page.set_flag(flag::RUNTIME);
        }
        // This is the program that is meant: its children get the environment as it was.
        restore_environment();
    }
}

/// The page; nothing where there is no balancer.
pub fn page() -> Option<&'static Page> {
    // SAFETY: the pointer is null or that of a mapping that stays.
    unsafe { PAGE.load(Acquire).as_ref() }
}

/// A variable of the environment; none in a set-uid program.
pub fn variable(name: &str) -> Option<CString> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero byte; the value is copied at once.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_owned())
    }
}

/// Takes the library and the page out of the environment that children get.
fn restore_environment() {
    let preload = variable(PRELOAD_VARIABLE).unwrap_or_default();
    let rest = without_library(OsStr::from_bytes(preload.to_bytes()));
    let (Ok(preload_variable), Ok(page_variable)) =
        (CString::new(PRELOAD_VARIABLE), CString::new(PAGE_VARIABLE))
    else {
        return;
    };
    let rest = rest.and_then(|list| CString::new(list.into_vec()).ok());
    // SAFETY: all texts end with a zero byte, and no other thread exists yet.
    unsafe {
        libc::unsetenv(page_variable.as_ptr());
        match rest {
            Some(rest) => libc::setenv(preload_variable.as_ptr(), rest.as_ptr(), 1),
            None => libc::unsetenv(preload_variable.as_ptr()),
        };
    }
}
