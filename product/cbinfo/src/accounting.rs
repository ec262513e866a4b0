//! Loads the BPF object, attaches it, and reads what it counts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};

use crate::interrupt_cost;
use crate::records::{CpuAccount, RawCpu, RawEvent, RawSettings, RawTask, TaskAccount, TaskEvent};
use crate::support::{Unsupported, log_libbpf, support};

/// Why accounting could not be started or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not possible on this kernel or for this user.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// libbpf or the kernel refused.
    #[error("cbinfo: {what}: {source}")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// The counters could not be mapped into memory.
    #[error("cbinfo: cannot map the counters: {0}")]
    Map(std::io::Error),
    /// A part of the object that this version needs is not in it.
    #[error("cbinfo: the BPF object has no {0}: rebuild evenkeel")]
    Missing(&'static str),
    /// The tasks could not be listed.
    #[error("cbinfo: cannot read the list of tasks: {0}")]
    Tasks(std::io::Error),
}

fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Error {
    move |source| Error::Bpf { what, source }
}

/// The interrupts that pass through a tracepoint pair `NAME_entry`, `NAME_exit`, and the programs
/// that account them.
const INTERRUPTS: &[(&str, &str)] = &[
    ("softirq", "softirq"),
    ("irq_handler", "irq"),
    // x86 only: interrupts that do not pass through irq_handler.
    ("local_timer", "irq"),
    ("reschedule", "irq"),
    ("call_function", "irq"),
    ("call_function_single", "irq"),
    ("irq_work", "irq"),
    ("x86_platform_ipi", "irq"),
    ("thermal_apic", "irq"),
];

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/cbinfo.bpf.o")));

/// Exact accounting, running. Dropping it detaches everything.
pub struct Cbinfo {
    object: Object,
    links: Vec<Link>,
    /// Task iterators that have been used, by the name of their program.
    iterators: BTreeMap<&'static str, Link>,
    counters: Counters,
    events: RingBuffer<'static>,
    received: Rc<RefCell<Vec<TaskEvent>>>,
    settings: RawSettings,
    /// What an iterator wrote last: the place for the next one.
    written: Vec<u8>,
}

/// What the accounting itself costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Events handled since the start.
    pub events: u64,
    /// Time of the BPF programs together, if [`Cbinfo::measure_cost`] is in force.
    pub run_ns: u64,
    /// Runs that this time covers.
    pub runs: u64,
}

impl Cbinfo {
    /// Loads and attaches the accounting.
    ///
    /// `speeds[n]` is CPU n's relative speed (1..=1024) that weights
    /// [`TaskAccount::received_ns`]; CPUs without one count as 1024.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel or the privilege is missing; otherwise what libbpf
    /// or the kernel says.
    pub fn open(speeds: &[u32]) -> Result<Self, Error> {
        support()?;
        log_libbpf();
        let cpus = libbpf_rs::num_possible_cpus().map_err(bpf("counting CPUs"))?;
        let mut open = ObjectBuilder::default()
            .name("cbinfo")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf("opening the object"))?;
        for mut map in open.maps_mut() {
            if map.name() == "cpus" {
                map.set_max_entries(cpus as u32).map_err(bpf("sizing the counters"))?;
            }
        }
        let object =
            open.load().map_err(bpf("loading (does the kernel know all that it needs?)"))?;

        let counters = Counters::map(&map(&object, "cpus")?, cpus)?;
        counters.start();
        counters.set_speeds(speeds);

        let received = Rc::new(RefCell::new(Vec::new()));
        let events = {
            let received = Rc::clone(&received);
            let ring = map(&object, "events")?;
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&ring, move |bytes| {
                    let event = bytemuck::try_pod_read_unaligned::<RawEvent>(bytes);
                    received.borrow_mut().extend(event.ok().as_ref().and_then(TaskEvent::from_raw));
                    0
                })
                .map_err(bpf("opening the events"))?;
            builder.build().map_err(bpf("opening the events"))?
        };

        let mut cbinfo = Self {
            object,
            links: Vec::new(),
            iterators: BTreeMap::new(),
            counters,
            events,
            received,
            settings: RawSettings::default(),
            written: Vec::new(),
        };
        cbinfo.attach()?;
        cbinfo.settle_interrupt_cost()?;
        Ok(cbinfo)
    }

    /// Lets every interrupt count with what it costs outside its tracepoints: measured now, on the CPU
    /// of the caller, which takes 2 ms; what is known already stays where that fails. Done once when it
    /// is opened. In a virtual machine that cost changes with what the host does otherwise, so whoever
    /// counts many interrupts may ask for it again.
    ///
    /// # Errors
    /// The kernel refuses a setting.
    pub fn settle_interrupt_cost(&mut self) -> Result<(), Error> {
        // What is accounted meanwhile is what the tracepoints enclose, and no more.
        let before = std::mem::take(&mut self.settings.interrupt_cost_ns);
        self.write_settings()?;
        let stolen_ns = |cpu| {
            let noise = self.counters.read(cpu).noise;
            noise.irq_ns + noise.softirq_ns
        };
        let cost_ns = interrupt_cost::measure(stolen_ns);
        match cost_ns {
            None => tracing::debug!("the cost of an interrupt could not be measured"),
            Some(cost_ns) => {
                tracing::debug!(cost_ns, "cost of an interrupt outside its tracepoints")
            }
        }
        self.settings.interrupt_cost_ns = cost_ns.map_or(before, |cost_ns| cost_ns as u32);
        self.write_settings()
    }

    fn attach(&mut self) -> Result<(), Error> {
        // Ends of interrupts before their beginnings: an end without a beginning is harmless, but
        // an idle CPU whose interrupt never seems to end would count as busy with it.
        for edge in ["_exit", "_entry"] {
            for program in self.object.progs_mut() {
                let name = program.name().to_string_lossy().into_owned();
                let Some(family) = name.strip_suffix(edge) else { continue };
                for (interrupt, _) in INTERRUPTS.iter().filter(|(_, of)| *of == family) {
                    match program.attach_raw_tracepoint(format!("{interrupt}{edge}")) {
                        Ok(link) => self.links.push(link),
                        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {
                            tracing::debug!("no tracepoint {interrupt}{edge} on this kernel");
                        }
                        Err(error) => return Err(bpf("attaching to interrupts")(error)),
                    }
                }
            }
        }
        for program in self.object.progs_mut() {
            if program.section().to_string_lossy().starts_with("tp_btf") {
                self.links.push(program.attach().map_err(bpf("attaching to the scheduler"))?);
            }
        }
        Ok(())
    }

    /// Follows process `root`, its descendants, and everything that they will fork, as program
    /// `program` (any number; the same for several roots if they belong together). Who belongs to
    /// another program stays with that. Returns how many tasks there are now.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn follow(&mut self, root: u32, program: u32) -> Result<usize, Error> {
        let mut found = 0;
        let mut processes = vec![root];
        while let Some(tgid) = processes.pop() {
            self.settings.follow_tgid = tgid;
            self.settings.follow_program = program;
            self.write_settings()?;
            found += self.iterate("follow")?.len() / size_of::<u64>();
            // Only now: what it forks from here on is followed by the kernel side.
            processes.extend(children(tgid));
        }
        Ok(found)
    }

    /// Ends what [`Cbinfo::follow`] began for `program`. What is forked while this runs may be
    /// overlooked: call it again when [`TaskAccount::program`] still names it.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn forget(&mut self, program: u32) -> Result<(), Error> {
        self.settings.follow_program = program;
        self.write_settings()?;
        self.iterate("forget").map(drop)
    }

    /// From now on these are the speeds that weight [`TaskAccount::received_ns`], as for
    /// [`Cbinfo::open`]: for CPUs that were not there yet.
    pub fn set_speeds(&mut self, speeds: &[u32]) {
        self.counters.set_speeds(speeds);
    }

    /// Whether a fork or exec makes [`Cbinfo::event_fd`] readable at once, for a balancer that has
    /// pinned tasks whose children must be freed.
    ///
    /// # Errors
    /// When the kernel refuses to write the setting.
    pub fn set_urgent(&mut self, urgent: bool) -> Result<(), Error> {
        self.settings.urgent_events = u32::from(urgent);
        self.write_settings()
    }

    /// Readable when urgent events wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.events.epoll_fd()) }
    }

    /// The events since the last call, oldest first.
    ///
    /// # Errors
    /// When the ring buffer cannot be read.
    pub fn events(&mut self) -> Result<Vec<TaskEvent>, Error> {
        self.events.consume().map_err(bpf("reading the events"))?;
        Ok(std::mem::take(&mut *self.received.borrow_mut()))
    }

    /// Every possible CPU's account, ascending.
    pub fn cpus(&self) -> Vec<CpuAccount> {
        (0..self.counters.cpus).map(|cpu| self.counters.read(cpu)).collect()
    }

    /// The accounts of all followed tasks that exist, ascending by thread id.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn tasks(&mut self) -> Result<Vec<TaskAccount>, Error> {
        let records = whole(|| {
            let records = self.iterate("list_tasks")?.chunks_exact(size_of::<RawTask>());
            Ok(records.map(bytemuck::pod_read_unaligned::<RawTask>).collect())
        })?;
        let mut tasks: Vec<TaskAccount> = records.iter().map(TaskAccount::from).collect();
        tasks.sort_by_key(|task| task.tid);
        Ok(tasks)
    }

    /// Makes the kernel time its BPF programs as long as the returned guard lives (it slows all
    /// BPF programs of the machine down a little).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn measure_cost(&self) -> Result<impl Drop + use<>, Error> {
        struct Guard(std::os::fd::OwnedFd);
        impl Drop for Guard {
            fn drop(&mut self) {
                tracing::trace!("BPF statistics off (fd {})", self.0.as_raw_fd());
            }
        }
        // SAFETY: a plain system call; a non-negative result is a descriptor that we own.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(bpf("switching BPF statistics on")(libbpf_rs::Error::from_raw_os_error(
                -fd,
            )));
        }
        // SAFETY: see above.
        Ok(Guard(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }))
    }

    /// What the accounting has cost so far.
    pub fn cost(&self) -> Cost {
        let mut cost =
            Cost { events: self.cpus().iter().map(|cpu| cpu.events).sum(), run_ns: 0, runs: 0 };
        for program in self.object.progs() {
            let mut info = libbpf_sys::bpf_prog_info::default();
            let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
            // SAFETY: `info` is as long as `length` says.
            let failed = unsafe {
                libbpf_sys::bpf_prog_get_info_by_fd(
                    program.as_fd().as_raw_fd(),
                    &mut info,
                    &mut length,
                )
            };
            if failed == 0 {
                cost.run_ns += info.run_time_ns;
                cost.runs += info.run_cnt;
            }
        }
        cost
    }

    fn write_settings(&self) -> Result<(), Error> {
        self.object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))
            .ok_or(Error::Missing("settings"))?
            .update(&0u32.to_ne_bytes(), bytemuck::bytes_of(&self.settings), MapFlags::ANY)
            .map_err(bpf("writing its settings"))
    }

    fn iterate(&mut self, name: &'static str) -> Result<&[u8], Error> {
        // Attached once, at its first use: attaching costs more than a reading.
        let link = match self.iterators.entry(name) {
            Entry::Occupied(link) => link.into_mut(),
            Entry::Vacant(place) => {
                let program = self.object.progs_mut().find(|program| program.name() == name);
                let program = program.ok_or(Error::Missing(name))?;
                place.insert(program.attach().map_err(bpf("attaching a task iterator"))?)
            }
        };
        let mut iterator = Iter::new(link).map_err(bpf("starting a task iterator"))?;
        self.written.clear();
        iterator.read_to_end(&mut self.written).map_err(Error::Tasks)?;
        Ok(&self.written)
    }
}

/// What `read` gives, read again for a while where a CPU was writing all the time: a virtual CPU may
/// have been stopped in mid-write, and then what a task got since its last switch, perhaps most of it,
/// would be missing. After that, what is known: better than to wait for the hypervisor.
fn whole(mut read: impl FnMut() -> Result<Vec<RawTask>, Error>) -> Result<Vec<RawTask>, Error> {
    const READS: usize = 50;
    const PAUSE: Duration = Duration::from_micros(200);
    for _ in 1..READS {
        let records = read()?;
        if records.iter().all(|record| record.whole != 0) {
            return Ok(records);
        }
        std::thread::sleep(PAUSE);
    }
    read()
}

/// The child processes of all threads of `tgid`; none when it is gone.
fn children(tgid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{tgid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

fn map(object: &Object, name: &'static str) -> Result<MapHandle, Error> {
    let map = object.maps().find(|map| map.name() == name).ok_or(Error::Missing(name))?;
    MapHandle::try_from(&map).map_err(bpf("opening a map"))
}

/// The per-CPU counters, mapped into our memory: reading them costs no system call.
struct Counters {
    base: NonNull<RawCpu>,
    bytes: usize,
    cpus: u32,
}

impl Counters {
    fn map(map: &MapHandle, cpus: usize) -> Result<Self, Error> {
        let bytes = (cpus * size_of::<RawCpu>()).next_multiple_of(page_size());
        // SAFETY: maps a BPF map of at least this size; no address is forced.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Error::Map(std::io::Error::last_os_error()));
        }
        let base = NonNull::new(address.cast::<RawCpu>())
            .ok_or_else(|| Error::Map(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { base, bytes, cpus: cpus as u32 })
    }

    /// Before the programs are attached: an untouched CPU is idle from now on.
    fn start(&self) {
        let now_ns = monotonic_ns();
        for cpu in 0..self.cpus {
            // SAFETY: inside the mapping, and no program writes to it yet.
            unsafe { (*self.base.as_ptr().add(cpu as usize)).since_ns = now_ns };
        }
    }

    fn set_speeds(&self, speeds: &[u32]) {
        for cpu in 0..self.cpus {
            let speed = u64::from(speeds.get(cpu as usize).copied().unwrap_or(1024));
            // SAFETY: inside the mapping; the programs only read this aligned word, in one piece.
            unsafe {
                let raw = self.base.as_ptr().add(cpu as usize);
                (&raw mut (*raw).speed).write_volatile(speed);
            }
        }
    }

    fn read(&self, cpu: u32) -> CpuAccount {
        // SAFETY: inside the mapping; the kernel writes there, so the reads are volatile and
        // checked by the sequence number. Its place is aligned for an atomic.
        let (raw, now_ns) = unsafe {
            let raw = self.base.as_ptr().add(cpu as usize);
            let sequence = AtomicU64::from_ptr(&raw mut (*raw).sequence);
            let mut tries = 0;
            loop {
                let before = sequence.load(Ordering::Acquire);
                let copy = raw.read_volatile();
                let now_ns = monotonic_ns();
                fence(Ordering::Acquire);
                let whole = before.is_multiple_of(2) && before == sequence.load(Ordering::Relaxed);
                tries += 1;
                // A virtual CPU may have been stopped in mid-write: better a slightly torn
                // reading, which the next one corrects, than to wait for its hypervisor.
                if whole || tries == 10_000 {
                    break (copy, now_ns);
                }
                std::hint::spin_loop();
            }
        };
        CpuAccount::from_raw(cpu, &raw, now_ns)
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` mapped; nobody holds a reference into it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The clock of `bpf_ktime_get_ns`.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy task was said to have run 0.73 of the time: its CPU had been stopped while it wrote.
    #[test]
    fn an_account_that_lacks_something_is_read_again() {
        let record = |tid: u64, whole| {
            let mut words = [0; size_of::<RawTask>() / size_of::<u64>()];
            words[0] = tid;
            let mut raw: RawTask = bytemuck::cast(words);
            raw.whole = whole;
            raw
        };
        let tids = |wholes: &[&[u64]]| {
            let mut reads = 0;
            let records = whole(|| {
                let at = reads.min(wholes.len() - 1);
                reads += 1;
                Ok(wholes[at].iter().map(|whole| record(at as u64, *whole)).collect())
            });
            (
                records.unwrap().iter().map(|raw| TaskAccount::from(raw).tid).collect::<Vec<_>>(),
                reads,
            )
        };
        assert_eq!(tids(&[&[]]), (vec![], 1));
        assert_eq!(tids(&[&[1, 1]]), (vec![0, 0], 1));
        assert_eq!(tids(&[&[1, 0], &[0, 1], &[1, 1]]), (vec![2, 2], 3));
        // One that stays so is taken as it is, after a while.
        assert_eq!(tids(&[&[0, 1]]), (vec![0, 0], 50));
    }

    /// As if an interrupt that came after a softirq or the scheduler had read the clock had been accounted
    /// first: a sum went below what it was, and below zero where there was little in it.
    #[test]
    fn no_sum_goes_back() {
        const AHEAD_NS: u64 = 50_000_000;
        if let Err(why) = support() {
            println!("SKIPPED: {why}");
            return;
        }
        let cbinfo = Cbinfo::open(&[]).unwrap();
        let copies = || {
            let raw = (0..cbinfo.counters.cpus as usize).map(|cpu| {
                // SAFETY: inside the mapping; the programs write each aligned word in one piece.
                unsafe { cbinfo.counters.base.as_ptr().add(cpu).read_volatile() }
            });
            raw.collect::<Vec<_>>()
        };
        let before = copies();
        let ahead_ns = monotonic_ns() + AHEAD_NS;
        for cpu in 0..cbinfo.counters.cpus {
            // SAFETY: as above.
            unsafe {
                let raw = cbinfo.counters.base.as_ptr().add(cpu as usize);
                (&raw mut (*raw).since_ns).write_volatile(ahead_ns);
                (&raw mut (*raw).switched_ns).write_volatile(ahead_ns);
            }
        }
        let events = |raw: &[RawCpu]| raw.iter().map(|cpu| cpu.events).sum::<u64>();
        let (mut last, start) = (before.clone(), monotonic_ns());
        // Until all of that is past.
        while monotonic_ns() < start + 2 * AHEAD_NS {
            let now = copies();
            for (last, now) in last.iter().zip(&now) {
                let sums = |raw: &RawCpu| [raw.sum_ns.as_slice(), &[raw.fair_runnable_ns]].concat();
                for (last, now) in sums(last).into_iter().zip(sums(now)) {
                    assert!(last <= now, "{last} ns, then {now} ns");
                }
            }
            last = now;
        }
        assert!(events(&last) > events(&before));
    }
}
