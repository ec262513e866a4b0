//! The keel in the kernel: loaded, attached, read and tuned. The service calls it; it decides nothing
//! itself.

use std::collections::BTreeMap;
use std::fs;
use std::mem::size_of;
use std::os::fd::AsFd;
use std::path::Path;

use bytemuck::Zeroable;
use evenkeel_machine::{CpuSet, Machine};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use crate::exit::Exit;
use crate::ias::space::{Owner, Spaces};
use crate::initial_data::{InitialData, lay_out_tunables};
use crate::layout::{
    EXIT_PARTS, MAX_CPUS, RawCapability, RawCpuState, RawSpace, RawTunables, lay_out_roles,
};
use crate::options::Options;
use crate::support::{Unsupported, log_libbpf, log_verified, support};
use crate::topology::TopologyError;

/// Why the keel could not be loaded, read or tuned.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// This kernel or this user cannot load it, or not at this time.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The keel does not fit this machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// libbpf or the kernel refused.
    #[error("keel: {what}: {source} (run again with -vv for the kernel's words)")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// The error of libbpf.
        source: libbpf_rs::Error,
    },
    /// The BPF object lacks a part, or the part has another size than this version expects.
    #[error("keel: {0} in the BPF object is not what it should be: rebuild evenkeel")]
    Mismatch(&'static str),
}

fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> LoadError {
    move |source| LoadError::Bpf { what, source }
}

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/keel.bpf.o")));

const SETTINGS: &str = ".rodata.settings";
const TOPOLOGY: &str = ".rodata.topology";
const CAPABILITIES: &str = ".data.capabilities";
const TUNABLES: &str = ".data.tunables";
const EXIT: &str = ".data.exit";
const CPUS: &str = "cpus";
const TASKS: &str = "tasks";
const SIBLING_ROWS: &str = "sibling_rows";
const ROLES: &str = ".data.roles";
const SPACES: &str = "spaces";
const SPACES_SET: &str = ".data.spaces_set";
const OPS: &str = "keel_ops";

/// The keel in the kernel. When it is dropped, the kernel returns to its own scheduler.
pub struct Scheduler {
    object: Object,
    /// `None` while it is loaded and does not schedule.
    link: Option<Link>,
    capabilities: MapHandle,
    tunables: MapHandle,
    /// The tunables that were written last.
    tuned: RawTunables,
    exit: MapHandle,
    cpus: MapHandle,
    tasks: MapHandle,
    roles: MapHandle,
    spaces: MapHandle,
    spaces_set: MapHandle,
    spaces_of: Spaces,
    /// The CPUs that were online when it was loaded.
    online: Vec<u32>,
}

/// What a load of the keel knew of tasks and CPUs, for the next one: so that a restart for CPUs that
/// come or go forgets neither how tasks behave and where their memory is, nor how busy CPUs were.
/// (`keep_history()` in `bpf/keel/task.h` decides what of a task's state the keel goes on with.)
pub(crate) struct History {
    /// The states of tasks; the next load uses the same map.
    tasks: MapHandle,
    /// The CPUs that were online, by number.
    cpus: Vec<(u32, RawCpuState)>,
}

impl Scheduler {
    /// Loads the keel: the kernel's verifier accepts it, and it does not schedule yet.
    ///
    /// # Errors
    /// All of [`LoadError`].
    pub fn load(machine: &Machine, options: &Options) -> Result<Self, LoadError> {
        Self::load_after(machine, options, None)
    }

    /// The same, after an earlier load that has ended.
    ///
    /// # Errors
    /// All of [`LoadError`].
    pub(crate) fn load_after(
        machine: &Machine,
        options: &Options,
        history: Option<&History>,
    ) -> Result<Self, LoadError> {
        support()?;
        log_libbpf();
        let data = InitialData::new(machine, options)?;
        let mut open = ObjectBuilder::default()
            .name("keel")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf("opening the object"))?;
        configure(&mut open, &data)?;
        if let Some(history) = history {
            share_tasks(&mut open, history)?;
        }
        let object = open.load().map_err(bpf("loading: the kernel refused the scheduler"))?;
        log_verified();
        let online = machine.online().iter().collect();
        let spaces_of = Spaces::load().map_err(bpf("loading the lookup of processes"))?;
        let scheduler = Self {
            tuned: lay_out_tunables(options),
            capabilities: map(&object, CAPABILITIES, size_of::<[RawCapability; MAX_CPUS]>())?,
            tunables: map(&object, TUNABLES, size_of::<RawTunables>())?,
            exit: map(&object, EXIT, EXIT_PARTS.iter().sum())?,
            cpus: map(&object, CPUS, size_of::<RawCpuState>())?,
            tasks: handle(&object, TASKS)?,
            roles: map(&object, ROLES, size_of::<[u16; MAX_CPUS]>())?,
            spaces: map(&object, SPACES, size_of::<RawSpace>())?,
            spaces_set: map(&object, SPACES_SET, size_of::<u64>())?,
            spaces_of,
            object,
            link: None,
            online,
        };
        scheduler.write()?;
        if let Some(history) = history {
            scheduler.restore_cpus(history)?;
        }
        Ok(scheduler)
    }

    /// What it knows of tasks and CPUs, for the load after it.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn history(&self) -> Result<History, LoadError> {
        let tasks = MapHandle::try_from(&self.tasks).map_err(bpf("keeping the states of tasks"))?;
        Ok(History { tasks, cpus: self.cpus()? })
    }

    fn restore_cpus(&self, history: &History) -> Result<(), LoadError> {
        for (cpu, state) in &history.cpus {
            let kept = state.handed_on();
            self.cpus
                .update(&cpu.to_ne_bytes(), bytemuck::bytes_of(&kept), MapFlags::ANY)
                .map_err(bpf("passing on how busy CPUs were"))?;
        }
        Ok(())
    }

    /// The loaded object, for BPF programs that attach to the keel's callbacks before it schedules (the
    /// lab records it in this way).
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Makes it the scheduler of this machine.
    ///
    /// # Errors
    /// The kernel refused, for example because another scheduler was faster.
    pub fn attach(&mut self) -> Result<(), LoadError> {
        let ops = self.object.maps_mut().find(|map| map.name() == OPS);
        let mut ops = ops.ok_or(LoadError::Mismatch(OPS))?;
        self.link = Some(ops.attach_struct_ops().map_err(bpf("attaching"))?);
        Ok(())
    }

    /// Ends it, and returns the kernel's reason for its end.
    pub fn detach(&mut self) -> Option<Exit> {
        drop(self.link.take());
        self.exit()
    }

    /// Why it has ended; `None` while it schedules.
    pub fn exit(&self) -> Option<Exit> {
        Exit::from_bytes(&self.exit.lookup(&[0; 4], MapFlags::ANY).ok()??)
    }

    /// Applies the options that may change while the keel runs. The knobs of the zones change together:
    /// they are written to the copy that the keel does not read, and then the keel switches to that
    /// copy.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn tune(&mut self, options: &Options) -> Result<(), LoadError> {
        let other = usize::from(self.tuned.zone_at == 0);
        self.tuned.zone[other] = options.zone.raw();
        self.write()?;
        self.tuned = RawTunables {
            zone: self.tuned.zone,
            zone_at: other as u64,
            ..lay_out_tunables(options)
        };
        self.write()
    }

    fn write(&self) -> Result<(), LoadError> {
        let bytes = bytemuck::bytes_of(&self.tuned);
        self.tunables.update(&[0; 4], bytes, MapFlags::ANY).map_err(bpf("setting parameters"))
    }

    /// Looks up the address space that the process with this ID has now.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn space_of(&self, process: u32) -> Result<Owner, LoadError> {
        self.spaces_of.of(process).map_err(bpf("looking up a process"))
    }

    /// When the task (a process or thread) with this number was started, in clock ticks since boot.
    /// `None`: there is none, as far as the kernel says.
    pub(crate) fn started(&self, task: u32) -> Option<u64> {
        self.spaces_of.started(task).ok().flatten()
    }

    /// Has the siblings of this address space aggregate.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_space(&self, space: u64, how: &RawSpace) -> Result<(), LoadError> {
        let key = space.to_ne_bytes();
        let set = self.spaces.update(&key, bytemuck::bytes_of(how), MapFlags::ANY);
        set.map_err(bpf("setting an address space"))?;
        self.note_spaces_set()
    }

    /// Ends the aggregation of this address space.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn forget_space(&self, space: u64) -> Result<(), LoadError> {
        self.spaces.delete(&space.to_ne_bytes()).map_err(bpf("forgetting an address space"))?;
        self.note_spaces_set()
    }

    /// Invalidates what CPUs cache of address spaces.
    fn note_spaces_set(&self) -> Result<(), LoadError> {
        let before = self.spaces_set.lookup(&[0; 4], MapFlags::ANY);
        let before = before.map_err(bpf("reading how often address spaces were set"))?;
        let before = before.and_then(|bytes| bytemuck::try_pod_read_unaligned::<u64>(&bytes).ok());
        let now = before.unwrap_or_default().wrapping_add(1).to_ne_bytes();
        let noted = self.spaces_set.update(&[0; 4], &now, MapFlags::ANY);
        noted.map_err(bpf("counting that an address space was set"))
    }

    /// Sets the role of each CPU: which CPUs aggregate together, and which of them is the master. A CPU
    /// without a role aggregates alone.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_roles(&self, roles: &BTreeMap<u32, u16>) -> Result<(), LoadError> {
        let laid_out = lay_out_roles(roles);
        let bytes = bytemuck::cast_slice(&laid_out);
        self.roles.update(&[0; 4], bytes, MapFlags::ANY).map_err(bpf("setting roles"))
    }

    /// Sets the capability of each CPU, as laid out by [`crate::Capabilities`].
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_capabilities(&self, layout: &[u8]) -> Result<(), LoadError> {
        let set = self.capabilities.update(&[0; 4], layout, MapFlags::ANY);
        set.map_err(bpf("setting capabilities"))
    }

    /// The capability of each CPU, by CPU number.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn capabilities(&self) -> Result<Vec<RawCapability>, LoadError> {
        let bytes = self.capabilities.lookup(&[0; 4], MapFlags::ANY);
        let bytes = bytes.map_err(bpf("reading capabilities"))?.unwrap_or_default();
        let entries = bytes.chunks_exact(size_of::<RawCapability>());
        Ok(entries.map(bytemuck::pod_read_unaligned).collect())
    }

    /// Returns which of these shielded CPUs run a single task that the shield should keep off.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn lodgers(&self, cpus: &CpuSet) -> Result<Vec<u32>, LoadError> {
        let mut found = Vec::new();
        for cpu in cpus.iter() {
            if self.cpu(cpu)?.lodges != 0 {
                found.push(cpu);
            }
        }
        Ok(found)
    }

    fn cpu(&self, cpu: u32) -> Result<RawCpuState, LoadError> {
        let bytes = self.cpus.lookup(&cpu.to_ne_bytes(), MapFlags::ANY);
        let bytes = bytes.map_err(bpf("reading the CPUs"))?;
        let state = bytes.and_then(|bytes| bytemuck::try_pod_read_unaligned(&bytes).ok());
        Ok(state.unwrap_or_else(RawCpuState::zeroed))
    }

    /// The state of each CPU, by number.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn cpus(&self) -> Result<Vec<(u32, RawCpuState)>, LoadError> {
        self.online.iter().map(|cpu| Ok((*cpu, self.cpu(*cpu)?))).collect()
    }
}

/// Writes the initial data into the opened object.
fn configure(open: &mut OpenObject, data: &InitialData) -> Result<(), LoadError> {
    // The kernel compares this counter when the scheduler is attached, so no hotplug goes unseen.
    let hotplug_seq = fs::read_to_string(Path::new("/sys/kernel/sched_ext/hotplug_seq"));
    let hotplug_seq: u64 = hotplug_seq.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            SETTINGS => {
                map.set_initial_value(&data.settings).map_err(|_| LoadError::Mismatch(SETTINGS))?
            }
            TOPOLOGY => {
                map.set_initial_value(&data.topology).map_err(|_| LoadError::Mismatch(TOPOLOGY))?
            }
            CAPABILITIES => map
                .set_initial_value(&data.capabilities)
                .map_err(|_| LoadError::Mismatch(CAPABILITIES))?,
            CPUS => map.set_max_entries(data.cpus).map_err(|_| LoadError::Mismatch(CPUS))?,
            SIBLING_ROWS => map
                .set_max_entries(data.sibling_rows())
                .map_err(|_| LoadError::Mismatch(SIBLING_ROWS))?,
            OPS => {
                let value = map.initial_value_mut().and_then(|ops| ops.last_chunk_mut::<16>());
                let value = value.ok_or(LoadError::Mismatch(OPS))?;
                value[..8].copy_from_slice(&data.flags().to_ne_bytes());
                value[8..].copy_from_slice(&hotplug_seq.to_ne_bytes());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Has the opened object use the states of tasks that an earlier load left.
fn share_tasks(open: &mut OpenObject, history: &History) -> Result<(), LoadError> {
    let tasks = open.maps_mut().find(|map| map.name() == TASKS);
    let mut tasks = tasks.ok_or(LoadError::Mismatch(TASKS))?;
    tasks.reuse_fd(history.tasks.as_fd()).map_err(bpf("using the states of tasks again"))
}

fn handle(object: &Object, name: &'static str) -> Result<MapHandle, LoadError> {
    let found = object.maps().find(|map| map.name() == name);
    let handle = found.map(|map| MapHandle::try_from(&map)).transpose();
    handle.map_err(bpf("opening a map"))?.ok_or(LoadError::Mismatch(name))
}

fn map(object: &Object, name: &'static str, bytes: usize) -> Result<MapHandle, LoadError> {
    let handle = handle(object, name)?;
    if handle.value_size() as usize != bytes {
        return Err(LoadError::Mismatch(name));
    }
    Ok(handle)
}
