//! The programs: loaded, attached, fed and read.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use evenkeel_journal::SupervisedSession;
use evenkeel_machine::CpuSet;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};

use crate::attachment::Attachment;
use crate::auto::Auto;
use crate::cgroup::Cgroup;
use crate::changes::{Change, Changes, leaving};
use crate::device::Device;
use crate::flow_steering::FlowSteering;
use crate::hold::Hold;
use crate::identity::name_of;
use crate::layout::{
    ACCEPTED_FLOWS, DROPPED, FLOWS, FOLLOWED, HINT_ABSENT, MAX_ACCEPTED, MAX_CPUS, MAX_FLOWS,
    PROCESSED, RULE_ALLOWED, RULE_REFUSED, RawCpu, RawCpus, RawFlow, RawKey, RawLive, STEERED,
};
use crate::measure::StripTimes;
use crate::object::{Aligned, ObjectError, bpf, entries, fill_peers, map, open};
use crate::options::{Mode, Options, Policy, XdpMode};
use crate::program::{STEER, THREADS, configure, steer_of, support};
use crate::statistics::{Core, Flow, Statistics, consumers};
use crate::steering_error::SteeringError;
use crate::threads;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sais.bpf.o")));

const LIVE: &str = ".data.live";
/// The object's variables that begin with 0, which are the counters; named after it.
const CPUS: &str = "sais.bss";
/// Puts hints into packets; in hint mode only.
const MESSAGE: &str = "message";

/// Packets that may wait for a steering thread: more than a connection has under way.
const QUEUE_PACKETS: u32 = 4096;
/// Before the program is taken off: the number of looks for packets that are still on their way through
/// a steering thread, ...
const LAST_LOOKS: u32 = 200;
/// ... with this between two looks.
const LAST_LOOK: Duration = Duration::from_millis(5);
/// How often the devices above the device are looked at.
const DEVICE_LOOK: Duration = Duration::from_secs(1);

/// Packets of a device, steered. Dropping it ends that, and leaves nothing.
pub struct Steering {
    /// None while `auto` has no use for it.
    attachment: Option<Attachment>,
    auto: Option<Auto>,
    /// What stands in for the program, under `auto`.
    flow_steering: Option<FlowSteering>,
    hold: Option<Hold>,
    device: Device,
    device_seen: Instant,
    xdp: XdpMode,
    _links: Vec<Link>,
    policy: Policy,
    mode: Mode,
    is_stateless: bool,
    /// The program that is on the device, or would be.
    steer: &'static str,
    /// Packets without a hint that were seen by `lacks_hints`.
    absent: u64,
    /// Where packets may be sent to now.
    cores: CpuSet,
    live: RawLive,
    live_map: MapHandle,
    changes: Changes,
    flows: MapHandle,
    accepted_flows: MapHandle,
    threads: MapHandle,
    cpus: MapHandle,
    /// Last, so that it outlives what it loaded.
    object: Object,
}

impl Steering {
    /// Steers the packets that arrive at `device` to the cores `allowed`.
    ///
    /// # Errors
    /// All of [`SteeringError`]; then nothing is attached.
    pub fn attach(
        device: &Device,
        options: &Options,
        allowed: &CpuSet,
    ) -> Result<Self, SteeringError> {
        support()?;
        let possible_cpus = libbpf_rs::num_possible_cpus().map_err(bpf("counting CPUs"))? as u32;
        let mut open = open("sais", &OBJECT.0)?;
        configure(&mut open, device, options, possible_cpus)?;
        let object = open.load().map_err(bpf("loading: the kernel refused the programs"))?;
        fill_peers(&object, &options.peers)?;
        let mut links = Vec::new();
        for program in object.progs_mut() {
            match program.name().to_str() {
                Some(name) if STEER.contains(&name) => {}
                Some(MESSAGE) if options.mode == Mode::Flow => {}
                Some(MESSAGE) => links.push(Cgroup::root()?.attach(&program)?),
                _ => links.push(program.attach().map_err(bpf("attaching to the sockets"))?),
            }
        }
        let mut steering = Self {
            live_map: map::<RawLive>(&object, LIVE)?,
            changes: Changes::new(&object)?,
            flows: map::<RawFlow>(&object, FLOWS)?,
            accepted_flows: map::<RawFlow>(&object, ACCEPTED_FLOWS)?,
            threads: map::<[u32; 2]>(&object, THREADS)?,
            cpus: map::<RawCpus>(&object, CPUS)?,
            steer: steer_of(options),
            // From here on packets come.
            attachment: Some(put_on(&object, steer_of(options), device, options.xdp)?),
            auto: match options.policy {
                Policy::Auto => Some(Auto::new(allowed, options.strip_times)?),
                _ => None,
            },
            flow_steering: match options.manage_rfs {
                true => Some(FlowSteering::find(device)?),
                false => None,
            },
            hold: options.hold.map(|limit| Hold::new(&object, limit)).transpose()?,
            device: device.clone(),
            device_seen: Instant::now(),
            xdp: options.xdp,
            _links: links,
            policy: options.policy,
            mode: options.mode,
            is_stateless: options.is_stateless,
            absent: 0,
            cores: CpuSet::new(),
            live: RawLive { generation: 1, ..RawLive::zeroed() },
            object,
        };
        let id = steering.threads.info().map_err(bpf("asking for a map's number"))?.info.id;
        steering.live.cpumap_id = id;
        // Before any core may be used: by this number packets are counted, from the first one on.
        steering.write_live()?;
        if let Some(auto) = &steering.auto {
            auto.write(&mut steering.live);
            // That it could be put there is known now.
            steering.attachment = None;
        }
        steering.use_cores(allowed)?;
        Ok(steering)
    }

    /// From now on packets may be sent to these cores, and to no others. A core that must not be
    /// used any more is left at once, and its steering thread does what waits for it.
    ///
    /// # Errors
    /// The kernel refused, for example for want of memory.
    pub fn use_cores(&mut self, cores: &CpuSet) -> Result<(), SteeringError> {
        let (gone, new) = (self.cores.difference(cores), cores.difference(&self.cores));
        for core in new.iter() {
            let value = [QUEUE_PACKETS, 0];
            self.threads
                .update(&core.to_ne_bytes(), bytemuck::bytes_of(&value), MapFlags::ANY)
                .map_err(bpf("starting the steering thread of a core"))?;
        }
        if !new.is_empty() {
            threads::prioritise(self.live.cpumap_id);
        }
        self.cores = cores.clone();
        self.rank(&cores.iter().collect::<Vec<u32>>())?;
        for core in gone.iter() {
            self.threads
                .delete(&core.to_ne_bytes())
                .map_err(bpf("ending the steering thread of a core"))?;
        }
        Ok(())
    }

    /// Where packets may be sent to now.
    pub fn cores(&self) -> &CpuSet {
        &self.cores
    }

    /// From now on these are the least loaded cores, that with the smallest load first; none but
    /// those in use.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn rank(&mut self, ranking: &[u32]) -> Result<(), SteeringError> {
        for (place, core) in self.live.ranking.iter_mut().zip(ranking) {
            *place = *core;
        }
        self.live.ranked = ranking.len().min(MAX_CPUS) as u32;
        self.live.generation = self.live.generation.wrapping_add(1).max(1);
        self.write_live()
    }

    /// Follows CPUs that have come or gone: from now on packets may be sent to those of `cores` that do
    /// not go offline. A CPU that went and came back gets a thread anew.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn follow_cpus(&mut self, cores: &CpuSet) -> Result<(), SteeringError> {
        let Change { changed, leaving } = self.changes.since()?;
        let (stayed, cores) = (cores.difference(&changed), cores.difference(&leaving));
        for cores in [&stayed, &cores] {
            if *cores != self.cores {
                let before = &self.cores;
                tracing::warn!("packets are now sent to CPUs {cores} (before: {before})");
                self.use_cores(cores)?;
            }
        }
        Ok(())
    }

    fn write_live(&mut self) -> Result<(), SteeringError> {
        loop {
            let changes = self.changes.read()?;
            self.live.rules.fill(RULE_REFUSED);
            for core in self.cores.difference(&leaving(&changes)).iter() {
                if let Some(rule) = self.live.rules.get_mut(core as usize) {
                    *rule = self.auto.as_ref().map_or(RULE_ALLOWED, |auto| auto.rule(core));
                }
            }
            self.live_map
                .update(&[0; 4], bytemuck::bytes_of(&self.live), MapFlags::ANY)
                .map_err(bpf("writing which cores may be used"))?;
            // A CPU that began to go meanwhile was refused before this allowed it again.
            if changes == self.changes.read()? {
                return Ok(());
            }
        }
    }

    /// Takes the program off the device, when nothing is on its way through a steering thread any more:
    /// what came later would overtake it. A stream that gives no chance for that is not waited for long.
    ///
    /// # Errors
    /// The kernel refused; the program is off all the same.
    pub fn take_off(&mut self) -> Result<(), SteeringError> {
        let Some(attachment) = self.attachment.take() else { return Ok(()) };
        // Connections leave the threads as they change any core: when they overtake nothing by it.
        let cores = std::mem::take(&mut self.cores);
        let drained = self.write_live().and_then(|()| self.drain());
        drop(attachment);
        self.cores = cores;
        drained?;
        self.write_live()
    }

    /// Waits until the queues of all cores are empty and stay so.
    fn drain(&self) -> Result<(), SteeringError> {
        let mut before = None;
        for _ in 0..LAST_LOOKS {
            let counters = self.counters()?;
            let sum = |which: usize| counters.iter().map(|cpu| cpu.counters[which]).sum::<u64>();
            let (queued, done) = (sum(STEERED) + sum(FOLLOWED), sum(PROCESSED) + sum(DROPPED));
            if queued == done && before.replace(queued) == Some(queued) {
                return Ok(());
            }
            std::thread::sleep(LAST_LOOK);
        }
        tracing::warn!(
            "{}: packets are on their way through steering threads still; later ones may overtake them",
            self.device.name
        );
        Ok(())
    }

    /// Where the mode is chosen here: leaves native mode if a device above came that reads VLAN tags,
    /// which native mode would lose.
    ///
    /// # Errors
    /// The kernel refused; the program is off then.
    pub fn follow_device(&mut self) -> Result<(), SteeringError> {
        let is_native = |attachment: &Attachment| attachment.mode() == XdpMode::Native;
        let is_chosen =
            self.xdp == XdpMode::Auto && self.attachment.as_ref().is_some_and(is_native);
        // The last change of the mode failed half-way.
        let is_missing = self.auto.is_none() && self.attachment.is_none();
        if !(is_chosen || is_missing) || self.device_seen.elapsed() < DEVICE_LOOK {
            return Ok(());
        }
        self.device_seen = Instant::now();
        if is_chosen {
            let Some(loss) = self.device.native_loss() else { return Ok(()) };
            tracing::warn!("{}: native XDP ends, because {loss}", self.device.name);
            self.take_off()?;
        }
        self.attachment = Some(put_on(&self.object, self.steer, &self.device, self.xdp)?);
        Ok(())
    }

    /// Whether the device still is there; when it is gone, nothing is steered any more.
    pub fn is_alive(&self) -> bool {
        match &self.attachment {
            Some(attachment) => attachment.is_alive(),
            None => self.device.is_there(),
        }
    }

    /// The program on the device; none while `auto` has no use for it.
    pub fn attachment(&self) -> Option<&Attachment> {
        self.attachment.as_ref()
    }

    /// What `auto` measured.
    pub fn strip_times(&self) -> Option<&StripTimes> {
        self.auto.as_ref().map(Auto::times)
    }

    /// Under `auto`, when it is time: judges all connections, and puts the program on the device or
    /// takes it off as it is of use; or has the kernel steer, under the journal of `guarded`.
    ///
    /// # Errors
    /// The kernel refused; another process's program is on the device meanwhile.
    pub fn review(&mut self, guarded: Option<&mut SupervisedSession>) -> Result<(), SteeringError> {
        if let Some(auto) = self.auto.as_mut().filter(|auto| auto.looks_soon()) {
            auto.look(true);
            auto.write(&mut self.live);
            self.write_live()?;
        }
        let Some(mut auto) = self.auto.take_if(|auto| auto.is_due()) else { return Ok(()) };
        let is_hidden = self.flow_steering.as_ref().is_some_and(FlowSteering::is_on);
        let judged = self.raw_flows().map(|flows| auto.judge(&flows, is_hidden));
        // Hints are issued, and waiting threads seen, only while receivers are sampled.
        let is_useful = matches!(judged, Ok(Ok(true)));
        let looks_on = is_useful || is_hidden || auto.is_unsure();
        auto.look(looks_on || self.mode == Mode::Hint || self.holds());
        auto.write(&mut self.live);
        self.auto = Some(auto);
        self.write_live()?;
        judged??;
        if let Some((steering, guarded)) = self.flow_steering.as_mut().zip(guarded) {
            return Ok(steering.switch(guarded, is_useful)?);
        }
        if is_useful && self.attachment.is_none() {
            self.attachment = Some(put_on(&self.object, self.steer, &self.device, self.xdp)?);
            tracing::info!("{}: steering pays, and begins", self.device.name);
        } else if !is_useful && self.attachment.is_some() {
            self.take_off()?;
            tracing::info!("{}: steering does not pay any more, and ends", self.device.name);
        }
        Ok(())
    }

    /// From where it is known which core waits for a packet.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The name of the program that packets are read by.
    pub(crate) fn steer(&self) -> &'static str {
        self.steer
    }

    /// What is in the kernel.
    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Whether threads are held.
    pub(crate) fn holds(&self) -> bool {
        self.hold.is_some()
    }

    /// With `--hold`: holds threads that wait for data on a core that may be used, and lets go of all
    /// others.
    ///
    /// # Errors
    /// The kernel refused, or there is no supervisor.
    pub fn hold(&mut self, guarded: &mut SupervisedSession) -> Result<(), SteeringError> {
        match &mut self.hold {
            Some(hold) => Ok(hold.look(guarded, &self.cores)?),
            None => Ok(()),
        }
    }

    /// What it did so far.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn statistics(&self) -> Result<Statistics, SteeringError> {
        let mut statistics = Statistics {
            device: self.device.name.clone(),
            mode: self.mode.to_string(),
            policy: self.policy.to_string(),
            xdp: self.attachment.as_ref().map_or("no".into(), |at| at.mode().to_string()),
            reason: match (&self.attachment, &self.flow_steering) {
                (Some(attachment), _) => attachment.reason().to_owned(),
                (None, Some(steering)) if steering.is_on() => {
                    "the kernel's receive flow steering does it".to_owned()
                }
                _ => "there is nothing that steering would save".to_owned(),
            },
            hold: self.hold.as_ref().map(Hold::counts),
            strip_times: self.strip_times().copied(),
            ..Statistics::default()
        };
        for (cpu, raw) in (0..).zip(self.counters()?) {
            statistics.cores.insert(cpu, Core::new(self.cores.contains(cpu), &raw));
        }
        let flows = self.flows()?;
        statistics.flows = flows.len() as u64;
        statistics.consumers = consumers(&flows, name_of);
        Ok(statistics)
    }

    /// Whether any packet has come without a hint since the last call.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn lacks_hints(&mut self) -> Result<bool, SteeringError> {
        let absent: u64 = self.counters()?.iter().map(|cpu| cpu.counters[HINT_ABSENT]).sum();
        Ok(std::mem::replace(&mut self.absent, absent) != absent)
    }

    /// Of each possible CPU.
    fn counters(&self) -> Result<Vec<RawCpu>, SteeringError> {
        let possible_cpus = libbpf_rs::num_possible_cpus().map_err(bpf("counting CPUs"))?;
        let read = self.cpus.lookup(&[0; 4], MapFlags::ANY).map_err(bpf("reading the counters"))?;
        let read = read.unwrap_or_default();
        let each = read.chunks_exact(size_of::<RawCpu>()).take(possible_cpus);
        let counters = each.map(bytemuck::try_pod_read_unaligned).collect::<Result<_, _>>();
        Ok(counters.map_err(|_| ObjectError::Mismatch(CPUS))?)
    }

    /// The connections with a known consumer, in no order.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn flows(&self) -> Result<Vec<Flow>, SteeringError> {
        let flow = |(key, raw): &(RawKey, RawFlow), mode: Mode| {
            let auto = self.auto.as_ref().map(|auto| match auto.reason(raw) {
                Ok(reason) | Err(reason) => reason,
            });
            let is_stateless = self.is_stateless;
            Flow { is_stateless, ..Flow::new(mode, self.policy, auto, key, raw) }
        };
        // Without a table it is not known which servers send hints back. Clients send none.
        let mode = if self.is_stateless { Mode::Flow } else { self.mode };
        let made = self.made_flows()?;
        let made = made.iter().map(|entry| flow(entry, mode));
        let accepted = self.accepted_flows()?;
        let accepted = accepted.iter().map(|entry| flow(entry, Mode::Flow));
        Ok(made.chain(accepted).collect())
    }

    /// All connections: those that were made from here, and those that were accepted.
    pub(crate) fn raw_flows(&self) -> Result<Vec<(RawKey, RawFlow)>, SteeringError> {
        let mut flows = self.made_flows()?;
        flows.append(&mut self.accepted_flows()?);
        Ok(flows)
    }

    fn made_flows(&self) -> Result<Vec<(RawKey, RawFlow)>, SteeringError> {
        Ok(entries(&self.flows, MAX_FLOWS).map_err(bpf("reading the connections"))?)
    }

    fn accepted_flows(&self) -> Result<Vec<(RawKey, RawFlow)>, SteeringError> {
        let read = entries(&self.accepted_flows, MAX_ACCEPTED);
        Ok(read.map_err(bpf("reading the accepted connections"))?)
    }
}

/// Packets come from here on.
fn put_on(
    object: &Object,
    name: &'static str,
    device: &Device,
    xdp: XdpMode,
) -> Result<Attachment, SteeringError> {
    let steer = object.progs().find(|program| program.name() == name);
    let steer = steer.ok_or(ObjectError::Mismatch(name))?;
    Ok(Attachment::new(steer.as_fd(), device, xdp)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;

    use evenkeel_journal::TaskRef;
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::identity::start_ticks;

    /// In a network namespace of the calling thread, which ends with it.
    fn on_loopback() -> Steering {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let device = Device::find("lo").unwrap();
        let options = Options { device: "lo".into(), ..Options::default() };
        Steering::attach(&device, &options, &CpuSet::first(1)).unwrap()
    }

    /// The tables hold the client's end and the accepted end of each connection apart, so that remote
    /// hosts, which decide how many connections are accepted, evict none that were made from here.
    #[test]
    fn accepted_connections_have_a_table_of_their_own() {
        if !nix::unistd::geteuid().is_root() {
            evenkeel_skip::skip("accepted_connections_have_a_table_of_their_own", "it needs root");
            return;
        }
        let steering = on_loopback();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut ends = Vec::new();
        for _ in 0..10 {
            let mut client = TcpStream::connect(address).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(&[1]).unwrap();
            server.read_exact(&mut [0]).unwrap();
            server.write_all(&[7]).unwrap();
            client.read_exact(&mut [0]).unwrap();
            ends.push((client, server));
        }
        let port = address.port().to_be_bytes();
        let made = steering.made_flows().unwrap();
        assert!(made.len() == 10 && made.iter().all(|(key, _)| key.remote_port == port));
        let accepted = steering.accepted_flows().unwrap();
        assert!(accepted.len() == 10 && accepted.iter().all(|(key, _)| key.local_port == port));
        assert_eq!(steering.flows().unwrap().len(), 20);
        drop(ends);
        // Both ends are forgotten when they are closed (or their last packets come from nowhere).
        let left = || steering.raw_flows().unwrap().len();
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while left() > 0 && std::time::Instant::now() < end {
            std::thread::sleep(LAST_LOOK);
        }
        assert_eq!(left(), 0);
    }

    /// The programs and /proc tell the same start of a thread, and of its process.
    #[test]
    fn a_consumer_is_recorded_with_its_start() {
        if !nix::unistd::geteuid().is_root() {
            evenkeel_skip::skip("a_consumer_is_recorded_with_its_start", "it needs root");
            return;
        }
        let steering = on_loopback();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(&[1]).unwrap();
        let (_, flow) = steering.made_flows().unwrap()[0];
        let thread = TaskRef::of(nix::unistd::gettid().as_raw()).unwrap();
        let process = thread.process().unwrap();
        assert_eq!((flow.tid as i32, flow.tgid as i32), (thread.tid, process.tid));
        let starts = [flow.start_boottime_ns, flow.process_start_boottime_ns].map(start_ticks);
        assert_eq!(starts, [thread.start_time_ticks, process.start_time_ticks]);
    }

    /// More connections than are remembered: the oldest are forgotten, and nothing else happens.
    #[test]
    fn the_oldest_of_too_many_connections_are_forgotten() {
        if !nix::unistd::geteuid().is_root() {
            evenkeel_skip::skip(
                "the_oldest_of_too_many_connections_are_forgotten",
                "it needs root",
            );
            return;
        }
        let mut steering = on_loopback();
        const MADE: u32 = 200_000;
        const REMEMBERED: usize = MAX_FLOWS as usize;
        let none = RawFlow { core: 0, path: crate::layout::NO_CORE, ..RawFlow::zeroed() };
        for number in 0..MADE {
            let mut key = RawKey { remote_port: [0, 80], local_port: [9, 9], ..RawKey::default() };
            key.remote[..4].copy_from_slice(&number.to_ne_bytes());
            let (key, flow) = (bytemuck::bytes_of(&key), bytemuck::bytes_of(&none));
            steering.flows.update(key, flow, MapFlags::ANY).unwrap();
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut byte = [0];
        for _ in 0..100 {
            server.write_all(&[7]).unwrap();
            client.read_exact(&mut byte).unwrap();
        }
        let flows = steering.flows().unwrap();
        assert!(flows.len() > REMEMBERED / 2 && flows.len() <= REMEMBERED, "{}", flows.len());
        let (own, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let found = flows.iter().find(|flow| flow.local == own && flow.remote == peer).unwrap();
        assert_eq!(found.received_bytes, 100);
        let statistics = steering.statistics().unwrap();
        assert_eq!(statistics.flows as usize, flows.len());
        // Its consumer is on the one core that may be used, or on another.
        let known = ["home", "steered", "kept", "refused"].map(|name| statistics.total(name));
        assert!(known.iter().sum::<u64>() > 0, "{statistics:?}");
        assert_eq!(statistics.total("malformed"), 0);
        steering.use_cores(&CpuSet::first(1)).unwrap();
    }
}
