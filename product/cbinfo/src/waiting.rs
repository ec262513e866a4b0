//! Work told from waiting, by samples of where followed tasks are (`bpf/cbinfo/waiting.bpf.c`), and
//! beside that the barriers that they pass. Nothing is attached until it is asked for.

use std::cell::RefCell;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, Program, ProgramMut, RingBuffer,
    RingBufferBuilder,
};

use crate::barriers::Barriers;
use crate::error::{Aligned, Error, bpf_error, find_map};
use crate::layout::{MAX_WAIT_RANGES, RawPlace, RawWaitRanges};

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/waiting.bpf.o")));

const NANOSECONDS: u64 = 1_000_000_000;
/// Kernel: `include/uapi/linux/perf_event.h`, `_IOW('$', 4, __u64)`.
const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;

/// The BPF programs for waiting, loaded. Dropping it detaches them.
pub struct Waiting {
    object: Object,
    places: RingBuffer<'static>,
    /// What was read from `places` and not yet returned.
    received: Rc<RefCell<Vec<Place>>>,
    /// One on each CPU that is sampled.
    samplers: Vec<Sampler>,
    /// The mean time between two samples.
    period_ns: u64,
    /// How often the period was changed.
    changes: u64,
    barriers: Barriers,
}

/// A clock event on one CPU, with its program.
struct Sampler {
    _link: Link,
    event: OwnedFd,
}

/// Where a sample found a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its address in user space; in a system call, where it made that.
    pub address: u64,
    /// Thread id.
    pub tid: u32,
    /// The CPU that it was on.
    pub cpu: u32,
}

impl Waiting {
    /// Loads the programs beside those that own `maps`.
    pub(crate) fn load(maps: &[MapHandle]) -> Result<Self, Error> {
        let mut open = ObjectBuilder::default()
            .name("cbinfo_waiting")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf_error("opening the object for waiting"))?;
        for mut map in open.maps_mut() {
            if let Some(owned) = maps.iter().find(|owned| owned.name() == map.name()) {
                map.reuse_fd(owned.as_fd()).map_err(bpf_error("sharing a map"))?;
            }
        }
        let object = open.load().map_err(bpf_error("loading what sees waiting"))?;
        let received = Rc::new(RefCell::new(Vec::new()));
        let places = {
            let received = Rc::clone(&received);
            let ring = find_map(&object, "places")?;
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&ring, move |bytes| {
                    if let Ok(raw) = bytemuck::try_pod_read_unaligned::<RawPlace>(bytes) {
                        let RawPlace { address, tid, cpu } = raw;
                        received.borrow_mut().push(Place { address, tid, cpu });
                    }
                    0
                })
                .map_err(bpf_error("opening the samples"))?;
            builder.build().map_err(bpf_error("opening the samples"))?
        };
        Ok(Self {
            object,
            places,
            received,
            samplers: Vec::new(),
            period_ns: 0,
            changes: 0,
            barriers: Barriers::load()?,
        })
    }

    /// Looks `hertz` times a second at what the followed tasks on these CPUs do, from now on, instead of
    /// any sampling before. A CPU that comes online later is not sampled.
    ///
    /// # Errors
    /// The kernel allows no such events, or not on any of these CPUs, or none of them is online. Then
    /// nothing is sampled.
    pub fn start_sampling(&mut self, cpus: &[u32], hertz: u64) -> Result<(), Error> {
        self.stop_sampling();
        let program = self.program("on_sample")?;
        let period_ns = NANOSECONDS / hertz.max(1);
        let mut samplers = Vec::with_capacity(cpus.len());
        let mut refused = std::io::Error::from_raw_os_error(libc::ENODEV);
        for cpu in cpus {
            let sampler = open_clock(*cpu, period_ns).and_then(|event| {
                // libbpf closes its descriptor with the link, but not if there is no link.
                let descriptor = event.try_clone()?.into_raw_fd();
                let link = program.attach_perf_event(descriptor).map_err(|why| {
                    // SAFETY: the descriptor is ours and has no other owner.
                    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
                    std::io::Error::other(why)
                })?;
                Ok(Sampler { _link: link, event })
            });
            match sampler {
                Ok(sampler) => samplers.push(sampler),
                // A CPU that is offline.
                Err(why) if why.raw_os_error() == Some(libc::ENODEV) => {}
                Err(why) => refused = why,
            }
        }
        if samplers.is_empty() {
            return Err(Error::Samples(refused));
        }
        self.samplers = samplers;
        self.period_ns = period_ns;
        Ok(())
    }

    /// Changes the time between two samples a little. Call it several times a second: a program with
    /// phases of one length would otherwise always be met at the same moments of a phase. Not more often
    /// than every tenth sample, though: each time the wait for the next sample begins anew.
    pub fn vary_period(&mut self) {
        // Multiples of the golden ratio, less their integers, are spread evenly: 0.75 to 1.25 times.
        const GOLDEN: f64 = 0.618_033_988_749_895;
        self.changes += 1;
        let factor = 0.75 + 0.5 * (self.changes as f64 * GOLDEN).fract();
        let period_ns = (self.period_ns as f64 * factor) as u64;
        for sampler in &self.samplers {
            // SAFETY: the kernel reads eight bytes. (It may refuse, for a CPU that went offline.)
            unsafe {
                libc::ioctl(sampler.event.as_raw_fd(), PERF_EVENT_IOC_PERIOD, &raw const period_ns)
            };
        }
    }

    /// Ends the sampling.
    pub fn stop_sampling(&mut self) {
        self.samplers.clear();
    }

    /// Where the samples since the last call found the followed tasks of processes with
    /// [`Waiting::set_ranges`], in the order of each CPU. Those that came faster than they were read are
    /// missing.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn places(&mut self) -> Result<Vec<Place>, Error> {
        self.places.consume().map_err(bpf_error("reading the samples"))?;
        Ok(std::mem::take(&mut *self.received.borrow_mut()))
    }

    /// Names the text in which the threads of a process wait: the first [`MAX_WAIT_RANGES`] count. Until
    /// then no sample of the process is taken; with no range, each one counts as work unless the task
    /// yields. A process that it forks has no ranges.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_ranges(&mut self, tgid: u32, ranges: &[Range<u64>]) -> Result<(), Error> {
        let mut raw: RawWaitRanges = bytemuck::Zeroable::zeroed();
        for (place, range) in raw.ranges.iter_mut().zip(ranges) {
            *place = [range.start, range.end];
        }
        raw.count = ranges.len().min(MAX_WAIT_RANGES) as u64;
        find_map(&self.object, "ranges")?
            .update(&tgid.to_ne_bytes(), bytemuck::bytes_of(&raw), MapFlags::ANY)
            .map_err(bpf_error("writing where a process waits (there is room for 16384 of them)"))
    }

    /// Forgets the ranges of a process. One that has none is no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget_ranges(&mut self, tgid: u32) -> Result<(), Error> {
        match find_map(&self.object, "ranges")?.delete(&tgid.to_ne_bytes()) {
            Err(why) if why.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(bpf_error("forgetting where a process waits")(why))
            }
            _ => Ok(()),
        }
    }

    /// Counts the barriers of processes.
    pub fn barriers(&mut self) -> &mut Barriers {
        &mut self.barriers
    }

    /// The loaded programs, for their costs.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program<'_>> {
        self.object.progs().chain(self.barriers.programs())
    }

    fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, Error> {
        self.object.progs_mut().find(|program| program.name() == name).ok_or(Error::Missing(name))
    }
}

/// A clock event on one CPU, disabled until a program is attached.
fn open_clock(cpu: u32, period_ns: u64) -> std::io::Result<OwnedFd> {
    let mut attributes = libbpf_sys::perf_event_attr {
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        type_: libbpf_sys::PERF_TYPE_SOFTWARE,
        config: u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = period_ns;
    attributes.set_disabled(1);
    attributes.set_exclude_idle(1);
    // SAFETY: a plain system call; the attributes are as long as they say.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            -1,
            cpu as i32,
            -1,
            libbpf_sys::PERF_FLAG_FD_CLOEXEC,
        )
    };
    if event < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a non-negative result is a descriptor that we own.
    Ok(unsafe { OwnedFd::from_raw_fd(event as i32) })
}
