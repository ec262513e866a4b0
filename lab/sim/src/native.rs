//! A scheduler as a shared object: each simulation has a loaded copy of its own. The keel gets its
//! settings and topology before it starts, as libbpf does it; its counters are read from its maps.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};

use evenkeel_keel::InitialData;
use nix::sys::mman::{ProtFlags, mprotect};

use crate::abi::{HOST, Host, HostFunctions, Ops};
use crate::host_error::HostError;
use crate::keel_state::{self, Fairness};
use crate::mask::Mask;
use crate::object_pool::{self, Loaded};

/// Memory that the scheduler uses: aligned, zeroed, and freed with the instance.
#[derive(Default)]
pub(crate) struct Memory {
    blocks: Vec<Box<[u64]>>,
    /// The values of hash maps, by map and key.
    values: BTreeMap<(usize, u64), Box<[u64]>>,
}

impl Memory {
    pub fn allocate(&mut self, bytes: u64) -> *mut c_void {
        let mut block = vec![0u64; (bytes as usize).div_ceil(8)].into_boxed_slice();
        let start = block.as_mut_ptr();
        self.blocks.push(block);
        start.cast()
    }

    /// Takes the blocks that begin at these addresses, which stay valid.
    fn take(&mut self, starts: &BTreeSet<usize>) -> Vec<Box<[u64]>> {
        let blocks = std::mem::take(&mut self.blocks).into_iter();
        let (wanted, others) =
            blocks.partition(|block| starts.contains(&(block.as_ptr() as usize)));
        self.blocks = others;
        wanted
    }

    /// Looks up (0), makes (1) or deletes (2) the value of a key.
    pub fn hash(&mut self, map: usize, key: u64, bytes: u64, what: u32) -> *mut c_void {
        let value =
            match what {
                0 => self.values.get_mut(&(map, key)),
                1 => Some(self.values.entry((map, key)).or_insert_with(|| {
                    vec![0u64; (bytes as usize).div_ceil(8)].into_boxed_slice()
                })),
                _ => {
                    self.values.remove(&(map, key));
                    None
                }
            };
        value.map_or(ptr::null_mut(), |value| value.as_mut_ptr().cast())
    }
}

/// `struct sim_map`.
#[repr(C)]
struct RawMap {
    storage: *mut u8,
    entries: u32,
    count: u32,
}

/// A loaded copy of a scheduler.
pub(crate) struct Instance {
    pub ops: Ops,
    pub host: Box<Host>,
    pub memory: Memory,
    /// The map of CPU states; none: the scheduler is not the keel.
    cpus: Option<NonNull<RawMap>>,
    /// The map of the sibling index, if there is one.
    rows: Option<NonNull<RawMap>>,
    /// The map of the address spaces that aggregate; only its address is used.
    spaces: Option<NonNull<c_void>>,
    /// The counter of changes to that map.
    spaces_set: Option<NonNull<u64>>,
    entries: u32,
    /// Its own until it is dropped.
    copy: Option<Loaded>,
}

// SAFETY: its pointers lead to its own copy and its own memory. It moves between threads, but is never
// shared.
unsafe impl Send for Instance {}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(copy) = self.copy.take() {
            object_pool::keep(copy);
        }
    }
}

impl Instance {
    /// Loads a copy of the shared object in `bytes`. The keel gets `image`: its settings and the
    /// machine.
    pub fn load(
        name: &str,
        bytes: &[u8],
        functions: HostFunctions,
        image: Option<&InitialData>,
    ) -> Result<Self, HostError> {
        let copy_error = |source| HostError::Copy { name: name.to_owned(), source };
        let load_error = |source| HostError::Load { name: name.to_owned(), source };
        let copy = object_pool::take(name, bytes, HOST)?;
        let library = &copy.library;
        let mut host = Box::new(Host {
            context: ptr::null_mut(),
            now_ns: 0,
            calls: 0,
            scanned: 0,
            cpu: 0,
            hazards: 0,
            in_interrupt: 0,
            awaited_by_higher_class: 0,
            functions,
        });
        // SAFETY: the symbols have these types in native/kernel.h and bpf/keel/state.h; what is
        // written is as long as the record, because product/keel's tests compare them.
        unsafe {
            let symbol = |symbol: &str| library.get::<*mut c_void>(symbol.as_bytes());
            let place = symbol(HOST).map_err(load_error)?.into_raw();
            *place.cast::<*mut Host>() = &raw mut *host;
            let ops = symbol(&format!("{name}_ops")).map_err(load_error)?.into_raw().cast::<Ops>();
            let mut ops = *ops;
            let (mut cpus, mut rows, mut spaces, mut spaces_set) = (None, None, None, None);
            if let Some(image) = image {
                for (name, bytes) in [
                    ("settings", &image.settings),
                    ("topology", &image.topology),
                    ("tunables", &image.tunables),
                    ("capabilities", &image.capabilities),
                ] {
                    write_over(symbol(name).map_err(load_error)?.into_raw().cast(), bytes)
                        .map_err(|errno| copy_error(errno.into()))?;
                }
                let map = symbol("cpus").map_err(load_error)?.into_raw().cast::<RawMap>();
                (*map).entries = image.cpus;
                let index = symbol("sibling_rows").map_err(load_error)?.into_raw().cast::<RawMap>();
                (*index).entries = image.sibling_rows();
                rows = NonNull::new(index);
                ops.flags = image.flags();
                cpus = NonNull::new(map);
                spaces = NonNull::new(symbol("spaces").map_err(load_error)?.into_raw());
                spaces_set =
                    NonNull::new(symbol("spaces_set").map_err(load_error)?.into_raw().cast());
            }
            Ok(Self {
                ops,
                host,
                memory: Memory::default(),
                cpus,
                rows,
                spaces,
                spaces_set,
                entries: image.map_or(0, |image| image.cpus),
                copy: Some(copy),
            })
        }
    }

    /// Overwrites a global variable that user space sets while the scheduler runs.
    ///
    /// # Errors
    /// The scheduler has no such variable.
    pub fn set_record(&mut self, record: &str, bytes: &[u8]) -> Result<(), HostError> {
        let load_error = |source| HostError::Load { name: "keel".to_owned(), source };
        // SAFETY: the variable is as long as its twin in product/keel, whose tests compare them. It is
        // data, and the scheduler reads it by whole words.
        unsafe {
            let Some(copy) = &self.copy else { return Ok(()) };
            let symbol = copy.library.get::<*mut c_void>(record.as_bytes());
            let place = symbol.map_err(load_error)?.into_raw();
            ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len());
        }
        Ok(())
    }

    /// Lets the threads of an address space aggregate: `record` is the value that user space would put
    /// into the map `spaces`.
    pub fn aggregate(&mut self, space: u64, record: &[u8]) {
        let Some(map) = self.spaces else { return };
        let place = self.memory.hash(map.as_ptr() as usize, space, record.len() as u64, 1);
        if let Some(place) = NonNull::new(place) {
            // SAFETY: the map has just made room for so many bytes.
            unsafe {
                ptr::copy_nonoverlapping(record.as_ptr(), place.as_ptr().cast(), record.len())
            }
        }
        if let Some(set) = self.spaces_set {
            // SAFETY: it is a variable of this copy, and the copy's code does not run now.
            unsafe { *set.as_ptr() = (*set.as_ptr()).wrapping_add(1) }
        }
    }

    /// Hands on to `next`, which has not run yet, what user space does when it loads the keel again: how
    /// busy these CPUs were, and the states of tasks, which are at these addresses.
    pub fn hand_on(&mut self, next: &mut Self, online: &Mask, tasks: &BTreeSet<usize>) {
        next.memory.blocks.extend(self.memory.take(tasks));
        let Some(map) = next.cpus else { return };
        let bytes = keel_state::CPU_STATE_BYTES;
        let storage = next.memory.allocate((next.entries as usize * bytes) as u64).cast::<u8>();
        // SAFETY: the map is in the copy, and the copy's code does not run now. It has no storage yet.
        unsafe { (*map.as_ptr()).storage = storage }
        for cpu in (0..next.entries).filter(|cpu| online.has(*cpu)) {
            let Some(state) = self.state_of(cpu) else { continue };
            let state = keel_state::hand_on(state);
            // SAFETY: the storage has an entry of this size for each CPU.
            unsafe {
                ptr::copy_nonoverlapping(
                    state.as_ptr(),
                    storage.add(cpu as usize * bytes),
                    state.len(),
                );
            }
        }
    }

    /// The address range of its code.
    pub fn code(&self) -> Range<usize> {
        self.copy.as_ref().map_or(0..0, |copy| copy.code.clone())
    }

    /// The scheduler's counters by name.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        self.cpu_states().map(keel_state::sum_counters).unwrap_or_default()
    }

    /// How many tasks the scheduler counts as runnable.
    pub fn runnable(&self) -> Option<u64> {
        self.cpu_states().map(keel_state::count_runnable)
    }

    /// How many tasks its sibling index holds.
    pub fn listed(&self) -> Option<u64> {
        let rows = self.rows?;
        // SAFETY: the map is in the copy.
        let entries = unsafe { (*rows.as_ptr()).entries };
        // SAFETY: the map has that many entries.
        unsafe { Self::storage(rows, entries, keel_state::ROW_BYTES) }.map(keel_state::count_listed)
    }

    /// How often this CPU has tried to pull tasks from other CPUs.
    pub fn attempts(&self, cpu: u32) -> u64 {
        self.state_of(cpu).map_or(0, keel_state::count_attempts)
    }

    /// Whether a task that the shield bars from this CPU runs there, alone.
    pub fn lodges(&self, cpu: u32) -> bool {
        self.state_of(cpu).is_some_and(keel_state::has_lodger)
    }

    /// What the keel goes by when it decides whether siblings may still be preferred on this CPU.
    pub fn fairness(&self, cpu: u32) -> Option<Fairness> {
        self.state_of(cpu).map(keel_state::read_fairness)
    }

    fn state_of(&self, cpu: u32) -> Option<&[u8]> {
        let at = cpu as usize * keel_state::CPU_STATE_BYTES;
        self.cpu_states().and_then(|states| states.get(at..at + keel_state::CPU_STATE_BYTES))
    }

    fn cpu_states(&self) -> Option<&[u8]> {
        // SAFETY: load() gave the map this number of entries.
        unsafe { Self::storage(self.cpus?, self.entries, keel_state::CPU_STATE_BYTES) }
    }

    /// A map's entries, if the scheduler has used the map.
    ///
    /// # Safety
    /// `map` must be a map of the copy with `entries` entries of `bytes` bytes.
    unsafe fn storage<'a>(map: NonNull<RawMap>, entries: u32, bytes: usize) -> Option<&'a [u8]> {
        // SAFETY: the map is in the copy; its storage was allocated for this many entries, and the
        // scheduler does not run while it is read.
        unsafe {
            let storage = NonNull::new((*map.as_ptr()).storage)?;
            Some(std::slice::from_raw_parts(storage.as_ptr(), entries as usize * bytes))
        }
    }
}

/// Overwrites a global variable of the copy. Some are `const`, so that their pages are read-only:
/// libbpf, too, sets these before the program starts.
///
/// # Safety
/// `to` must be the start of a variable of at least as many bytes.
unsafe fn write_over(to: *mut u8, bytes: &[u8]) -> nix::Result<()> {
    const PAGE: usize = 4096;
    let start = to as usize & !(PAGE - 1);
    let length = (to as usize + bytes.len()).next_multiple_of(PAGE) - start;
    let pages = to.wrapping_sub(to as usize - start);
    // SAFETY: the pages hold the variable, so they are mapped; they are private to this copy.
    unsafe {
        if let Some(pages) = NonNull::new(pages.cast()) {
            mprotect(pages, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        }
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
    }
    Ok(())
}
