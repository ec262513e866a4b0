//! Loaded copies of shared objects, one for each simulation at a time. The loader takes longer for one
//! than a short simulation takes, and serves one thread at a time. So a copy that is not used any more
//! is put back into the state in which it was loaded, and kept for the next simulation.

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

/// Copies that nobody uses.
static IDLE: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());
/// More are not kept: tests load many different schedulers.
const MOST_IDLE: usize = 16;

/// A loaded copy.
pub(crate) struct Loaded {
    pub library: Library,
    /// What it was made from.
    bytes: Box<[u8]>,
    variables: Vec<Variables>,
    /// Where its code is.
    pub code: Range<usize>,
    /// Open as long as it is loaded, so that no other one gets the same name.
    _file: OwnedFd,
}

/// Memory that a copy's code may write, and what was there when it had been loaded. It is read and written
/// word by word: an address sanitizer's memcpy() reports the gaps that it has put between variables.
struct Variables {
    start: NonNull<u64>,
    initially: Box<[u64]>,
}

// SAFETY: the memory is part of the copy, and goes with it from one thread to another.
unsafe impl Send for Variables {}

/// A copy of the shared object in `bytes` as it is after loading. `symbol` is a variable that it has.
///
/// # Errors
/// There is no room for it, or the loader refuses it.
pub(crate) fn take(name: &str, bytes: &[u8], symbol: &str) -> Result<Loaded, HostError> {
    let kept = IDLE.lock().ok().and_then(|mut idle| {
        let at = idle.iter().rposition(|copy| *copy.bytes == *bytes)?;
        Some(idle.swap_remove(at))
    });
    kept.map_or_else(|| Loaded::new(name, bytes, symbol), Ok)
}

/// Whoever had it needs it no more.
pub(crate) fn keep(mut copy: Loaded) {
    copy.forget();
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
        // SAFETY: the object has no constructors; it was built by us or is the user's to answer for.
        let (library, place) = unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).map_err(load_error)?;
            let place = library.get::<*mut c_void>(symbol.as_bytes()).map_err(load_error)?;
            let place = place.into_raw();
            (library, place)
        };
        let Parts { variables, code, .. } = parts_of(place as usize);
        Ok(Self { library, bytes: bytes.into(), variables, code, _file: file })
    }

    /// What simulations have written is gone. (Records that are constants for its compiler may lie
    /// elsewhere: those are written anew for each simulation.)
    fn forget(&mut self) {
        for Variables { start, initially } in &self.variables {
            for (at, word) in initially.iter().enumerate() {
                // SAFETY: as many words are mapped there as long as the copy is loaded, and nobody runs it.
                unsafe { start.add(at).write_volatile(*word) }
            }
        }
    }
}

/// What the loader says of the object that has a variable at this address.
struct Parts {
    address: usize,
    variables: Vec<Variables>,
    code: Range<usize>,
}

/// The loaded object of which a variable is at this address.
fn parts_of(address: usize) -> Parts {
    let mut parts = Parts { address, variables: Vec::new(), code: 0..0 };
    // SAFETY: the function takes what is passed to it, and that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut parts).cast()) };
    parts
}

/// Called by the loader for each object; 1: enough.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    const PAGE: usize = 4096;
    const WORD: usize = size_of::<u64>();
    // SAFETY: the loader's record and our own, for as long as this call.
    let (info, parts) = unsafe { (&*info, &mut *data.cast::<Parts>()) };
    // SAFETY: the loader says how many there are.
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
    // The loader has closed the pages that only itself writes.
    let closed = headers.iter().find(|one| one.p_type == libc::PT_GNU_RELRO).map(range);
    let open_from = closed.map_or(0, |closed| closed.end & !(PAGE - 1));
    for range in written().map(range) {
        // The pages of the first and the last word are the segment's own.
        let start = range.start.max(open_from.min(range.end)) & !(WORD - 1);
        let words = (range.end - start).div_ceil(WORD);
        if let Some(start) = NonNull::new(start as *mut u64).filter(|_| words > 0) {
            // SAFETY: the segment is mapped, and nobody writes it yet.
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
    fn what_was_written_is_forgotten() {
        let copy = take("fifo", FIFO, HOST).ok().unwrap();
        // SAFETY: a variable of this type in native/kernel.h, which nobody else uses.
        let place = unsafe {
            copy.library.get::<*mut c_void>(HOST.as_bytes()).unwrap().into_raw().cast::<usize>()
        };
        // SAFETY: the same.
        unsafe { place.write(1) };
        keep(copy);
        let again = take("fifo", FIFO, HOST).ok().unwrap();
        // SAFETY: the same; if this is another copy, that one's variable is as new.
        let value = unsafe {
            let place = again.library.get::<*mut c_void>(HOST.as_bytes()).unwrap().into_raw();
            place.cast::<usize>().read()
        };
        assert_eq!(value, 0);
    }

    #[test]
    fn another_object_is_another_copy() {
        let one = take("fifo", FIFO, HOST).ok().unwrap();
        keep(one);
        assert!(take("keel", KEEL, "settings").is_ok());
    }
}
