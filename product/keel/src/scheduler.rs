//! The scheduler: loaded, attached, read and tuned.

use std::collections::BTreeMap;
use std::fs;
use std::mem::size_of;
use std::path::Path;

use bytemuck::Zeroable;
use evenkeel_machine::{CpuSet, Machine};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};

use crate::exit::Exit;
use crate::ias::groups::raw_roles;
use crate::ias::space::{Owner, Spaces};
use crate::image::{Image, tunables};
use crate::options::{Options, Order};
use crate::recorder::{Recorder, RecorderError};
use crate::records::{EXIT_PARTS, MAX_CPUS, RawCapability, RawCpuState, RawSpace, RawTunables};
use crate::support::{Unsupported, log_libbpf, log_verified, support};
use crate::topology::TopologyError;

/// Why the keel could not be loaded, read or tuned.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not possible on this kernel, for this user, or at this time.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Not possible on this machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// libbpf or the kernel refused.
    #[error("keel: {what}: {source} (run again with -vv for the kernel's words)")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// A part of the object is not what this version expects.
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
const SIBLING_ROWS: &str = "sibling_rows";
const ROLES: &str = ".data.roles";
const SPACES: &str = "spaces";
const SPACES_SET: &str = ".data.spaces_set";
const OPS: &str = "keel_ops";

/// The keel in the kernel. Dropping it gives the machine back to the kernel's own scheduler.
pub struct Scheduler {
    object: Object,
    /// None: loaded only.
    link: Option<Link>,
    capabilities: MapHandle,
    tunables: MapHandle,
    /// As they were written last.
    tuned: RawTunables,
    exit: MapHandle,
    cpus: MapHandle,
    roles: MapHandle,
    spaces: MapHandle,
    spaces_set: MapHandle,
    /// None: another order than `ias`, which does not care.
    spaces_of: Option<Spaces>,
    /// The CPUs that were online when it was loaded.
    online: Vec<u32>,
}

impl Scheduler {
    /// Loads the keel: the kernel's verifier has accepted it, but it does not schedule yet.
    ///
    /// # Errors
    /// All of [`LoadError`].
    pub fn load(machine: &Machine, options: &Options) -> Result<Self, LoadError> {
        support()?;
        log_libbpf();
        let image = Image::new(machine, options)?;
        let mut open = ObjectBuilder::default()
            .name("keel")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf("opening the object"))?;
        configure(&mut open, &image)?;
        let object = open.load().map_err(bpf("loading: the kernel refused the scheduler"))?;
        log_verified();
        let online = machine.online().iter().collect();
        let spaces_of = (options.order == Order::Ias).then(Spaces::load).transpose();
        let spaces_of = spaces_of.map_err(bpf("loading what tells of address spaces"))?;
        let scheduler = Self {
            tuned: tunables(options),
            capabilities: map(&object, CAPABILITIES, size_of::<[RawCapability; MAX_CPUS]>())?,
            tunables: map(&object, TUNABLES, size_of::<RawTunables>())?,
            exit: map(&object, EXIT, EXIT_PARTS.iter().sum())?,
            cpus: map(&object, CPUS, size_of::<RawCpuState>())?,
            roles: map(&object, ROLES, size_of::<[u16; MAX_CPUS]>())?,
            spaces: map(&object, SPACES, size_of::<RawSpace>())?,
            spaces_set: map(&object, SPACES_SET, size_of::<u64>())?,
            spaces_of,
            object,
            link: None,
            online,
        };
        scheduler.write()?;
        Ok(scheduler)
    }

    /// Records it from now on, which is before it schedules.
    pub(crate) fn record(
        &self,
        machine: &Machine,
        options: &Options,
    ) -> Result<Recorder, RecorderError> {
        let Options { order, gate, balance, .. } = options;
        let image = Image::new(machine, options)?;
        Recorder::open(&self.object, format!("{order}/{gate}/{balance}"), image)
    }

    /// From now on it schedules.
    ///
    /// # Errors
    /// The kernel refused, for example because another scheduler was faster.
    pub fn attach(&mut self) -> Result<(), LoadError> {
        let ops = self.object.maps_mut().find(|map| map.name() == OPS);
        let mut ops = ops.ok_or(LoadError::Mismatch(OPS))?;
        self.link = Some(ops.attach_struct_ops().map_err(bpf("attaching"))?);
        Ok(())
    }

    /// Takes it back, and tells what the kernel has to say to its end.
    pub fn detach(&mut self) -> Option<Exit> {
        drop(self.link.take());
        self.exit()
    }

    /// Why it has ended; `None` while it runs.
    pub fn exit(&self) -> Option<Exit> {
        Exit::from_bytes(&self.exit.lookup(&[0; 4], MapFlags::ANY).ok()??)
    }

    /// Takes over what may be changed while the keel runs. The knobs of the zones change together:
    /// they are written where the keel does not look, and then it is told to look there.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn tune(&mut self, options: &Options) -> Result<(), LoadError> {
        let other = usize::from(self.tuned.zone_at == 0);
        self.tuned.zone[other] = options.zone.raw();
        self.write()?;
        self.tuned =
            RawTunables { zone: self.tuned.zone, zone_at: other as u64, ..tunables(options) };
        self.write()
    }

    fn write(&self) -> Result<(), LoadError> {
        let bytes = bytemuck::bytes_of(&self.tuned);
        self.tunables.update(&[0; 4], bytes, MapFlags::ANY).map_err(bpf("setting parameters"))
    }

    /// Whose address space a process of this number has now.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn space_of(&self, process: u32) -> Result<Owner, LoadError> {
        let Some(spaces) = &self.spaces_of else { return Ok(Owner::Nobody) };
        spaces.of(process).map_err(bpf("looking up a process"))
    }

    /// The siblings of this space aggregate so from now on.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_space(&self, space: u64, how: &RawSpace) -> Result<(), LoadError> {
        let key = space.to_ne_bytes();
        let set = self.spaces.update(&key, bytemuck::bytes_of(how), MapFlags::ANY);
        set.map_err(bpf("setting an address space"))?;
        self.note_spaces_set()
    }

    /// They do not any more.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn forget_space(&self, space: u64) -> Result<(), LoadError> {
        self.spaces.delete(&space.to_ne_bytes()).map_err(bpf("forgetting an address space"))?;
        self.note_spaces_set()
    }

    /// What CPUs remember of address spaces holds no more.
    fn note_spaces_set(&self) -> Result<(), LoadError> {
        let before = self.spaces_set.lookup(&[0; 4], MapFlags::ANY);
        let before = before.map_err(bpf("reading how often address spaces were set"))?;
        let before = before.and_then(|bytes| bytemuck::try_pod_read_unaligned::<u64>(&bytes).ok());
        let now = before.unwrap_or_default().wrapping_add(1).to_ne_bytes();
        let noted = self.spaces_set.update(&[0; 4], &now, MapFlags::ANY);
        noted.map_err(bpf("telling that an address space was set"))
    }

    /// Which CPUs aggregate together, and who leads; those without a role do so alone.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_roles(&self, roles: &BTreeMap<u32, u16>) -> Result<(), LoadError> {
        let raw = raw_roles(roles);
        let bytes = bytemuck::cast_slice(&raw);
        self.roles.update(&[0; 4], bytes, MapFlags::ANY).map_err(bpf("setting roles"))
    }

    /// What each CPU can do from now on: a record of [`crate::Capabilities`].
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn set_capabilities(&self, record: &[u8]) -> Result<(), LoadError> {
        let set = self.capabilities.update(&[0; 4], record, MapFlags::ANY);
        set.map_err(bpf("setting capabilities"))
    }

    /// What each CPU can do now, by number.
    ///
    /// # Errors
    /// The kernel refused.
    pub(crate) fn capabilities(&self) -> Result<Vec<RawCapability>, LoadError> {
        let record = self.capabilities.lookup(&[0; 4], MapFlags::ANY);
        let record = record.map_err(bpf("reading capabilities"))?.unwrap_or_default();
        let entries = record.chunks_exact(size_of::<RawCapability>());
        Ok(entries.map(bytemuck::pod_read_unaligned).collect())
    }

    /// Of these CPUs those on which somebody runs whom the shield keeps off it, alone.
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

/// Writes into the opened object what is fixed from then on.
fn configure(open: &mut OpenObject, image: &Image) -> Result<(), LoadError> {
    // The kernel compares it when the scheduler is attached, so that no CPU comes or goes unseen.
    let hotplug_seq = fs::read_to_string(Path::new("/sys/kernel/sched_ext/hotplug_seq"));
    let hotplug_seq: u64 = hotplug_seq.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            SETTINGS => {
                map.set_initial_value(&image.settings).map_err(|_| LoadError::Mismatch(SETTINGS))?
            }
            TOPOLOGY => {
                map.set_initial_value(&image.topology).map_err(|_| LoadError::Mismatch(TOPOLOGY))?
            }
            CAPABILITIES => map
                .set_initial_value(&image.capabilities)
                .map_err(|_| LoadError::Mismatch(CAPABILITIES))?,
            CPUS => map.set_max_entries(image.cpus).map_err(|_| LoadError::Mismatch(CPUS))?,
            SIBLING_ROWS => map
                .set_max_entries(image.sibling_rows())
                .map_err(|_| LoadError::Mismatch(SIBLING_ROWS))?,
            OPS => {
                let value = map.initial_value_mut().and_then(|ops| ops.last_chunk_mut::<16>());
                let value = value.ok_or(LoadError::Mismatch(OPS))?;
                value[..8].copy_from_slice(&image.flags().to_ne_bytes());
                value[8..].copy_from_slice(&hotplug_seq.to_ne_bytes());
            }
            _ => {}
        }
    }
    Ok(())
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
