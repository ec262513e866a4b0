//! Finds the runtime's own functions behind the entry points that this library defines.
//!
//! Mostly the runtime is in the program's global scope, next after this library. A module that was
//! loaded privately (`dlopen` without `RTLD_GLOBAL`, as Python does) may have a runtime that only the
//! module itself sees. Then the module is found by its `ident_t`, the description of the loop that
//! every call carries and that lies in the module's own data; and there may be a different runtime for
//! each module.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Loops of private modules that are remembered for each entry point; others are looked up at each call.
const REMEMBERED: usize = 64;

/// One entry point.
pub struct Symbol {
    name: &'static CStr,
    global: Place,
    private: [Remembered; REMEMBERED],
}

/// The runtime's function and the address at which the runtime is loaded.
#[derive(Clone, Copy)]
pub struct Original {
    /// The function.
    pub function: *mut c_void,
    /// Tells runtimes apart.
    pub runtime: usize,
}

/// An `Original` that is written once. The function comes last, so what is seen is whole.
struct Place {
    function: AtomicPtr<c_void>,
    runtime: AtomicUsize,
}

/// What was found for a loop of a private module.
struct Remembered {
    /// The loop's `ident_t`; 0 while the place is free.
    ident: AtomicUsize,
    place: Place,
}

pub static INIT_4: Symbol = Symbol::new(c"__kmpc_for_static_init_4");
pub static INIT_4U: Symbol = Symbol::new(c"__kmpc_for_static_init_4u");
pub static INIT_8: Symbol = Symbol::new(c"__kmpc_for_static_init_8");
pub static INIT_8U: Symbol = Symbol::new(c"__kmpc_for_static_init_8u");

/// Whether the runtime is in the global scope.
pub fn is_loaded() -> bool {
    INIT_4.find_global().is_some()
}

/// The address at which the object that has this address is loaded; 0 where there is none.
pub fn base_of(address: *const c_void) -> usize {
    describe(address).map_or(0, |info| info.dli_fbase as usize)
}

fn describe(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the structure is large enough; all zeros are a valid value of it.
    unsafe { (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Self { name, global: Place::new(), private: [const { Remembered::new() }; REMEMBERED] }
    }

    /// The function that a call with this `ident_t` means.
    pub fn find(&self, ident: *const c_void) -> Option<Original> {
        self.global.get().or_else(|| self.find_unusual(ident))
    }

    #[cold]
    fn find_unusual(&self, ident: *const c_void) -> Option<Original> {
        let key = ident as usize;
        // Neighbouring descriptions lie 24 bytes apart.
        let place = key.checked_div(8).and_then(|number| self.private.get(number % REMEMBERED))?;
        let is_known = key != 0 && place.ident.load(Acquire) == key;
        if let Some(found) = is_known.then(|| place.place.get()).flatten() {
            return Some(found);
        }
        if let Some(found) = self.find_global() {
            return Some(found);
        }
        let found = self.find_private(ident)?;
        if place.ident.compare_exchange(0, key, Release, Relaxed).is_ok() {
            place.place.set(found);
        }
        Some(found)
    }

    /// Looks for the function in the global scope, after this library.
    fn find_global(&self) -> Option<Original> {
        // SAFETY: the name ends with a zero byte.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = Original::new(function)?;
        self.global.set(found);
        Some(found)
    }

    /// Looks for the function in the module of the loop, and in what the module needs.
    fn find_private(&self, ident: *const c_void) -> Option<Original> {
        let module = describe(ident)?.dli_fname;
        // SAFETY: the name belongs to the loaded module. NOLOAD only makes a handle of it.
        let found = unsafe { self.find_in(module)? };
        // The runtime must not go away while its address is remembered. Runtimes have threads, so they
        // cannot be unloaded safely anyway.
        let runtime = describe(found.function)?.dli_fname;
        // SAFETY: as above.
        unsafe { libc::dlopen(runtime, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
        Some(found)
    }

    /// Looks for the function in a loaded module.
    ///
    /// # Safety
    /// The name ends with a zero byte.
    unsafe fn find_in(&self, module: *const c_char) -> Option<Original> {
        // SAFETY: both names end with a zero byte; the handle is closed once.
        unsafe {
            let handle = libc::dlopen(module, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return None;
            }
            let function = libc::dlsym(handle, self.name.as_ptr());
            libc::dlclose(handle);
            Original::new(function)
        }
    }
}

impl Original {
    fn new(function: *mut c_void) -> Option<Self> {
        (!function.is_null()).then(|| Self { function, runtime: base_of(function) })
    }
}

impl Place {
    const fn new() -> Self {
        Self { function: AtomicPtr::new(ptr::null_mut()), runtime: AtomicUsize::new(0) }
    }

    fn get(&self) -> Option<Original> {
        let function = self.function.load(Acquire);
        (!function.is_null()).then(|| Original { function, runtime: self.runtime.load(Relaxed) })
    }

    fn set(&self, found: Original) {
        self.runtime.store(found.runtime, Relaxed);
        self.function.store(found.function, Release);
    }
}

impl Remembered {
    const fn new() -> Self {
        Self { ident: AtomicUsize::new(0), place: Place::new() }
    }
}
