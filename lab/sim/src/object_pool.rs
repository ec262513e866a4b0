//! A pool of loaded shared objects. The dynamic loader takes longer for one copy than a short
//! simulation runs, and serves one thread at a time. So a copy that is no longer used is reset to the
//! state in which it was loaded, and kept for the next simulation.

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Mutex;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::host_error::HostError;

/// Copies that are not in use.
static IDLE: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());
/// At most this many are kept, because tests load many different schedulers.
const MOST_IDLE: usize = 16;

/// A loaded copy.
pub(crate) struct Loaded {
    pub library: Library,
    /// The shared object that it is a copy of.
    bytes: Box<[u8]>,
    variables: Vec<Variables>,
    /// The address range of its code.
    pub code: Range<usize>,
    /// Open as long as it is loaded: the loader takes a file of the same name for the same object.
    _file: OwnedFd,
}

/// Memory that a copy's code may write, and its content after loading. It is read and written word by
/// word: the memcpy() of an address sanitizer reports the gaps that the sanitizer puts between
/// variables.
struct Variables {
    start: NonNull<u64>,
    initially: Box<[u64]>,
}

// SAFETY: the memory is part of the copy, and moves with it from one thread to another.
unsafe impl Send for Variables {}

/// A copy of the shared object in `bytes`, in the state after loading. `symbol` names one of its
/// variables.
///
/// # Errors
/// There is no room for the copy, or the loader refuses it.
pub(crate) fn take(name: &str, bytes: &[u8], symbol: &str) -> Result<Loaded, HostError> {
    let kept = IDLE.lock().ok().and_then(|mut idle| {
        let at = idle.iter().rposition(|copy| *copy.bytes == *bytes)?;
        Some(idle.swap_remove(at))
    });
    kept.map_or_else(|| Loaded::new(name, bytes, symbol), Ok)
}

/// Resets a copy that is no longer used, and keeps it.
pub(crate) fn keep(mut copy: Loaded) {
    copy.reset();
    if let Ok(mut idle) = IDLE.lock()
        && idle.len() < MOST_IDLE
    {
        idle.push(copy);
    }
}

impl Loaded {
    fn new(name: &str, bytes: &[u8], symbol: &str) -> Result<Self, HostError> {
        let copy_error = |source| HostError::Copy { name: name.to_owned(), source };
        let load_error = |source| HostError::Load { name: name.to_owned(), source };
        let file = memfd_create(c"evenkeel-sim", MFdFlags::MFD_CLOEXEC)
            .map_err(|errno| copy_error(errno.into()))?;
        let mut writer = std::fs::File::from(file);
        writer.write_all(bytes).map_err(copy_error)?;
        let file = OwnedFd::from(writer);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: the object has no constructors. Loading a foreign object is at the user's own risk.
        let (library, place) = unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).map_err(load_error)?;
            let place = library.get::<*mut c_void>(symbol.as_bytes()).map_err(load_error)?;
            let place = place.into_raw();
            (library, place)
        };
        let Parts { variables, code, .. } = parts_of(place as usize);
        Ok(Self { library, bytes: bytes.into(), variables, code, _file: file })
    }

    /// Restores all variables. (Those that are `const` may lie elsewhere; Instance::load() writes these
    /// for each simulation.)
    fn reset(&mut self) {
        for Variables { start, initially } in &self.variables {
            for (at, word) in initially.iter().enumerate() {
                // SAFETY: that many words are mapped while the copy is loaded, and its code does not
                // run.
                unsafe { start.add(at).write_volatile(*word) }
            }
        }
    }
}

/// The segments of the loaded object that has a variable at this address.
struct Parts {
    address: usize,
    variables: Vec<Variables>,
    code: Range<usize>,
}

/// Finds the segments of the loaded object that has a variable at this address.
fn parts_of(address: usize) -> Parts {
    let mut parts = Parts { address, variables: Vec::new(), code: 0..0 };
    // SAFETY: visit_object() expects a pointer to Parts, which outlive the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut parts).cast()) };
    parts
}

/// Called by the loader for each object. Returns 1 to stop.
unsafe extern "C" fn visit_object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    const PAGE: usize = 4096;
    const WORD: usize = size_of::<u64>();
    // SAFETY: both are valid during this call: the loader's struct, and the Parts of parts_of().
    let (info, parts) = unsafe { (&*info, &mut *data.cast::<Parts>()) };
    // SAFETY: the loader says how many headers there are.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr as usize + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    };
    let written = || {
        headers.iter().filter(|one| one.p_type == libc::PT_LOAD && one.p_flags & libc::PF_W != 0)
    };
    if !written().any(|one| range(one).contains(&parts.address)) {
        return 0;
    }
    // The loader has made the pages read-only that only the loader itself writes.
    let closed = headers.iter().find(|one| one.p_type == libc::PT_GNU_RELRO).map(range);
    let open_from = closed.map_or(0, |closed| closed.end & !(PAGE - 1));
    for range in written().map(range) {
        // The pages of the first and the last word are the segment's own.
        let start = range.start.max(open_from.min(range.end)) & !(WORD - 1);
        let words = (range.end - start).div_ceil(WORD);
        if let Some(start) = NonNull::new(start as *mut u64).filter(|_| words > 0) {
            // SAFETY: the segment is mapped, and no code of it runs yet.
            let initially = (0..words).map(|at| unsafe { start.add(at).read_volatile() }).collect();
            parts.variables.push(Variables { start, initially });
        }
    }
    let runs =
        |one: &&libc::Elf64_Phdr| one.p_type == libc::PT_LOAD && one.p_flags & libc::PF_X != 0;
    parts.code = headers.iter().find(runs).map_or(0..0, range);
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::HOST;
    use crate::scheduler::{FIFO, KEEL};

    #[test]
    fn a_kept_copy_is_reset() {
        let copy = take("fifo", FIFO, HOST).ok().unwrap();
        // SAFETY: a variable of this type in native/kernel.h, which only this test uses.
        let place = unsafe {
            copy.library.get::<*mut c_void>(HOST.as_bytes()).unwrap().into_raw().cast::<usize>()
        };
        // SAFETY: the same.
        unsafe { place.write(1) };
        keep(copy);
        let again = take("fifo", FIFO, HOST).ok().unwrap();
        // SAFETY: the same. If this is another copy, its variable is zero, too.
        let value = unsafe {
            let place = again.library.get::<*mut c_void>(HOST.as_bytes()).unwrap().into_raw();
            place.cast::<usize>().read()
        };
        assert_eq!(value, 0);
    }

    #[test]
    fn different_objects_get_different_copies() {
        let one = take("fifo", FIFO, HOST).ok().unwrap();
        keep(one);
        assert!(take("keel", KEEL, "settings").is_ok());
    }
}
