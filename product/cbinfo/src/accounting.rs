//! Loads the BPF object, attaches its programs, and reads the accounts.

use std::cell::RefCell;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{
    Link, MapCore, MapFlags, Object, ObjectBuilder, Program, RingBuffer, RingBufferBuilder,
};

use crate::counters::Counters;
use crate::error::{Aligned, Error, bpf_error, find_map};
use crate::interrupt_cost;
use crate::iterators::{Iterators, Processes};
use crate::layout::{CpuAccount, RawEvent, RawSettings, RawTask, TaskAccount, TaskEvent};
use crate::support::{redirect_libbpf_log, support};
use crate::waiting::Waiting;

/// The pairs of tracepoints `NAME_entry`, `NAME_exit`, and the pair of programs that accounts each.
const INTERRUPTS: &[(&str, &str)] = &[
    ("softirq", "softirq"),
    ("irq_handler", "irq"),
    // Only on x86: interrupts that do not pass through irq_handler.
    ("local_timer", "irq"),
    ("reschedule", "irq"),
    ("call_function", "irq"),
    ("call_function_single", "irq"),
    ("irq_work", "irq"),
    ("x86_platform_ipi", "irq"),
    ("thermal_apic", "irq"),
];

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/cbinfo.bpf.o")));

/// Exact accounting that runs. Dropping it detaches all programs.
pub struct Cbinfo {
    object: Object,
    links: Vec<Link>,
    pub(crate) iterators: Iterators,
    pub(crate) processes: Processes,
    counters: Counters,
    events: RingBuffer<'static>,
    /// Events that were read from `events` and not yet returned.
    received: Rc<RefCell<Vec<TaskEvent>>>,
    settings: RawSettings,
    /// From the first time that waiting is to be seen.
    waiting: Option<Waiting>,
}

/// What the accounting itself costs, since it was opened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Events handled.
    pub events: u64,
    /// Time of all BPF programs in ns, while [`Cbinfo::measure_cost`] was in force.
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
        redirect_libbpf_log();
        let cpus = libbpf_rs::num_possible_cpus().map_err(bpf_error("counting CPUs"))?;
        let mut open = ObjectBuilder::default()
            .name("cbinfo")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf_error("opening the object"))?;
        for mut map in open.maps_mut() {
            if map.name() == "cpus" {
                map.set_max_entries(cpus as u32).map_err(bpf_error("sizing the counters"))?;
            }
        }
        let object =
            open.load().map_err(bpf_error("loading (does the kernel know all that it needs?)"))?;

        let counters = Counters::map(&find_map(&object, "cpus")?, cpus).map_err(Error::Map)?;
        counters.start();
        counters.set_speeds(speeds);

        let received = Rc::new(RefCell::new(Vec::new()));
        let events = {
            let received = Rc::clone(&received);
            let ring = find_map(&object, "events")?;
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&ring, move |bytes| {
                    let event = bytemuck::try_pod_read_unaligned::<RawEvent>(bytes);
                    received.borrow_mut().extend(event.ok().as_ref().and_then(TaskEvent::from_raw));
                    0
                })
                .map_err(bpf_error("opening the events"))?;
            builder.build().map_err(bpf_error("opening the events"))?
        };

        let mut cbinfo = Self {
            object,
            links: Vec::new(),
            iterators: Iterators::default(),
            processes: Processes::default(),
            counters,
            events,
            received,
            settings: RawSettings::default(),
            waiting: None,
        };
        cbinfo.attach()?;
        cbinfo.measure_interrupt_cost()?;
        Ok(cbinfo)
    }

    /// Measures what an interrupt costs outside its tracepoints, on the CPU of the caller, and adds that
    /// to each interrupt from now on. Takes about 2 ms, at most 50 ms; if it fails, the last figure
    /// stays. [`Cbinfo::open`] does it once. In a virtual machine the cost changes with the load of the
    /// host: call it again where many interrupts are counted.
    ///
    /// # Errors
    /// The kernel refuses a setting.
    pub fn measure_interrupt_cost(&mut self) -> Result<(), Error> {
        // Meanwhile only what the tracepoints enclose is accounted.
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
        // Exits before entries: an exit without its entry is harmless, but an entry without its exit
        // would make an idle CPU count as busy with the interrupt.
        for edge in ["_exit", "_entry"] {
            for program in self.object.progs_mut() {
                let name = program.name().to_string_lossy().into_owned();
                let Some(family) = name.strip_suffix(edge) else { continue };
                for (interrupt, _) in INTERRUPTS.iter().filter(|(_, pair)| *pair == family) {
                    match program.attach_raw_tracepoint(format!("{interrupt}{edge}")) {
                        Ok(link) => self.links.push(link),
                        Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => {
                            tracing::debug!("no tracepoint {interrupt}{edge} on this kernel");
                        }
                        Err(error) => return Err(bpf_error("attaching to interrupts")(error)),
                    }
                }
            }
        }
        for program in self.object.progs_mut() {
            if program.section().to_string_lossy().starts_with("tp_btf") {
                self.links.push(program.attach().map_err(bpf_error("attaching to the scheduler"))?);
            }
        }
        Ok(())
    }

    /// Follows process `root`, its descendants, and everything that they fork, as program `program` (any
    /// number; the same for several roots that belong together). A task of another program stays with
    /// that program. Returns the number of tasks that are followed now.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn follow(&mut self, root: u32, program: u32) -> Result<usize, Error> {
        let mut found = 0;
        let mut processes = vec![root];
        self.processes.change();
        while let Some(tgid) = processes.pop() {
            self.settings.follow_tgid = tgid;
            self.settings.follow_program = program;
            self.write_settings()?;
            found += self.iterate("follow_tasks")?.len() / size_of::<u64>();
            // Read after marking: the kernel side follows what the process forks from here on.
            processes.extend(child_processes(tgid));
        }
        Ok(found)
    }

    /// Stops following the tasks of `program`. A task that is forked while this runs may be missed: call
    /// it again if [`TaskAccount::program`] still names the program.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn forget(&mut self, program: u32) -> Result<(), Error> {
        self.settings.follow_program = program;
        self.write_settings()?;
        self.iterate("forget_tasks").map(drop)
    }

    /// Replaces the speeds that [`Cbinfo::open`] was given, from now on: for CPUs that came online.
    pub fn set_speeds(&mut self, speeds: &[u32]) {
        self.counters.set_speeds(speeds);
    }

    /// Sets whether a fork or exec makes [`Cbinfo::event_fd`] readable at once. A balancer with pinned
    /// tasks needs that, to free their children.
    ///
    /// # Errors
    /// When the kernel refuses to write the setting.
    pub fn set_urgent(&mut self, urgent: bool) -> Result<(), Error> {
        self.settings.urgent_events = u32::from(urgent);
        self.write_settings()
    }

    /// A descriptor to poll: readable when urgent events wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring buffer, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.events.epoll_fd()) }
    }

    /// The events since the last call, oldest first.
    ///
    /// # Errors
    /// When the ring buffer cannot be read.
    pub fn events(&mut self) -> Result<Vec<TaskEvent>, Error> {
        self.receive()?;
        Ok(std::mem::take(&mut *self.received.borrow_mut()))
    }

    fn receive(&mut self) -> Result<(), Error> {
        self.events.consume().map_err(bpf_error("reading the events"))?;
        self.processes.note(&self.received.borrow());
        Ok(())
    }

    /// The accounts of all possible CPUs, ascending by CPU.
    pub fn cpus(&self) -> Vec<CpuAccount> {
        (0..self.counters.cpus).map(|cpu| self.counters.read(cpu)).collect()
    }

    /// The accounts of all followed tasks that exist, ascending by thread id. Takes up to 0.4 s longer
    /// where the CPU of a task is stopped while it writes its account.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn tasks(&mut self) -> Result<Vec<TaskAccount>, Error> {
        // Of processes that were forked meanwhile.
        self.receive()?;
        let raw = read_until_whole(|| self.processes.list(&self.object, &mut self.iterators))?;
        let mut tasks: Vec<TaskAccount> = raw.iter().map(TaskAccount::from).collect();
        tasks.sort_by_key(|task| task.tid);
        Ok(tasks)
    }

    /// What tells work from waiting; nothing of it is attached yet. It is loaded at its first use,
    /// because most programs never need it.
    ///
    /// # Errors
    /// When the kernel refuses to load it.
    pub fn waiting(&mut self) -> Result<&mut Waiting, Error> {
        if self.waiting.is_none() {
            let maps = [find_map(&self.object, "tasks")?, find_map(&self.object, "cpus")?];
            self.waiting = Some(Waiting::load(&maps)?);
        }
        self.waiting.as_mut().ok_or(Error::Missing("programs for waiting"))
    }

    /// Detaches and unloads what tells work from waiting.
    pub fn unload_waiting(&mut self) {
        self.waiting = None;
    }

    /// Makes the kernel measure the run time of BPF programs while the returned guard lives. That slows
    /// down all BPF programs of the machine a little.
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
            return Err(bpf_error("switching BPF statistics on")(
                libbpf_rs::Error::from_raw_os_error(-fd),
            ));
        }
        // SAFETY: see above.
        Ok(Guard(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }))
    }

    /// What the accounting has cost so far.
    pub fn cost(&self) -> Cost {
        let mut cost =
            Cost { events: self.cpus().iter().map(|cpu| cpu.events).sum(), run_ns: 0, runs: 0 };
        let waiting = self.waiting.iter().flat_map(Waiting::programs);
        for (run_ns, runs) in self.object.progs().chain(waiting).filter_map(|of| runs_of(&of)) {
            cost.run_ns += run_ns;
            cost.runs += runs;
        }
        cost
    }

    /// How often this program ran, while its runs were counted.
    #[cfg(test)]
    pub(crate) fn runs_of(&self, name: &str) -> u64 {
        let mut programs = self.object.progs();
        runs_of(&programs.find(|program| program.name() == name).unwrap()).unwrap().1
    }

    fn write_settings(&self) -> Result<(), Error> {
        self.object
            .maps()
            .find(|map| map.name().to_string_lossy().ends_with(".bss"))
            .ok_or(Error::Missing("settings"))?
            .update(&0u32.to_ne_bytes(), bytemuck::bytes_of(&self.settings), MapFlags::ANY)
            .map_err(bpf_error("writing its settings"))
    }

    fn iterate(&mut self, name: &'static str) -> Result<&[u8], Error> {
        self.iterators.read(&self.object, name, None)
    }
}

/// The time that a program ran, in ns, and how often, while that was measured.
fn runs_of(program: &Program<'_>) -> Option<(u64, u64)> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    let fd = program.as_fd().as_raw_fd();
    // SAFETY: `info` is as long as `length` says.
    let failed = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut length) };
    (failed == 0).then_some((info.run_time_ns, info.run_cnt))
}

/// Reads all tasks, again while an account is not whole: a virtual CPU may have been stopped in
/// mid-write, and then the account lacks what the task got since its last switch, perhaps most of its
/// time. A hypervisor that holds a virtual CPU to a quota stops it for up to a tenth of a second; after
/// 0.4 s an incomplete account is better than waiting on.
fn read_until_whole(
    mut read: impl FnMut() -> Result<Vec<RawTask>, Error>,
) -> Result<Vec<RawTask>, Error> {
    const FIRST_PAUSE: Duration = Duration::from_micros(200);
    // Each pause is twice as long as the one before.
    const PAUSES: u32 = 11;
    for pause in 0..PAUSES {
        let tasks = read()?;
        if tasks.iter().all(|task| task.whole != 0) {
            return Ok(tasks);
        }
        std::thread::sleep(FIRST_PAUSE * (1 << pause));
    }
    read()
}

/// The child processes of all threads of `tgid`; none if it has ended.
pub fn child_processes(tgid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{tgid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::clock::monotonic_ns;
    use crate::layout::RawCpu;

    /// Regression: a busy task was reported to have run 0.73 of the time, because its CPU had been
    /// stopped in mid-write.
    #[test]
    fn an_incomplete_account_is_read_again() {
        let task = |tid: u64, whole| {
            let mut words = [0; size_of::<RawTask>() / size_of::<u64>()];
            words[0] = tid;
            let mut raw: RawTask = bytemuck::cast(words);
            raw.whole = whole;
            raw
        };
        let tids = |wholes: &[&[u64]]| {
            let mut reads = 0;
            let tasks = read_until_whole(|| {
                let at = reads.min(wholes.len() - 1);
                reads += 1;
                Ok(wholes[at].iter().map(|whole| task(at as u64, *whole)).collect())
            });
            (tasks.unwrap().iter().map(|raw| TaskAccount::from(raw).tid).collect::<Vec<_>>(), reads)
        };
        assert_eq!(tids(&[&[]]), (vec![], 1));
        assert_eq!(tids(&[&[1, 1]]), (vec![0, 0], 1));
        assert_eq!(tids(&[&[1, 0], &[0, 1], &[1, 1]]), (vec![2, 2], 3));
        // One that stays incomplete is returned as it is, after 12 readings.
        assert_eq!(tids(&[&[0, 1]]), (vec![0, 0], 12));
    }

    /// Regression: a reading waited for no longer than 10 ms. In CI, a busy task was once reported to
    /// have run 0.29 of the time, and a CPU that is stopped for longer looks like that.
    #[test]
    fn a_cpu_that_is_stopped_in_mid_write_is_waited_for() {
        const STOPPED: Duration = Duration::from_millis(60);
        if let Err(why) = support() {
            evenkeel_skip::skip("a_cpu_that_is_stopped_in_mid_write_is_waited_for", why);
            return;
        }
        let mut cbinfo = Cbinfo::open(&[]).unwrap();
        // This thread itself has accounts on the CPUs that it runs on.
        cbinfo.follow(std::process::id(), 1).unwrap();
        let sequences: Vec<&AtomicU64> = (0..cbinfo.counters.cpus as usize)
            // SAFETY: inside the mapping, which the scope below does not outlive; aligned.
            .map(|cpu| unsafe {
                AtomicU64::from_ptr(&raw mut (*cbinfo.counters.base.as_ptr().add(cpu)).sequence)
            })
            .collect();
        let toggle = || {
            for sequence in &sequences {
                sequence.fetch_add(1, Ordering::AcqRel);
            }
        };
        toggle();
        let stopped_ns = monotonic_ns();
        let read_ns = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(STOPPED);
                toggle();
            });
            cbinfo.tasks().unwrap()[0].now_ns
        });
        assert!(read_ns - stopped_ns >= STOPPED.as_nanos() as u64);
    }

    /// Regression: an interrupt that came after a softirq or the scheduler had read the clock was
    /// accounted first, and a sum decreased, below zero where it was small.
    #[test]
    fn no_sum_decreases() {
        const AHEAD_NS: u64 = 50_000_000;
        if let Err(why) = support() {
            evenkeel_skip::skip("no_sum_decreases", why);
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
        // Until the clock has passed that.
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
