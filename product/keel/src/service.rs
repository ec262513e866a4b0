//! Runs the keel in the foreground: loads it, answers at the control socket, loads it again after
//! hotplug, and says why it ended. `evenkeel sched` calls it.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_control::{Answer, BindError, Peer, Request, Server, ServiceSignals, Told};
use evenkeel_machine::Machine;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::capability::{Capabilities, Watch};
use crate::decisions::decisions;
use crate::exit::{Exit, ExitKind};
use crate::ias::aggregation::Aggregation;
use crate::ias::error::IasError;
use crate::ias::groups::roles_of_request;
use crate::ias::settings::IasSettings;
use crate::ias::{Ias, IasState, Search};
use crate::layout::UNLIMITED;
use crate::observed::Observed;
use crate::options::Options;
use crate::policies::Order;
use crate::scheduler::{History, LoadError, Scheduler};
use crate::shield::{Relief, ShieldError};
use crate::statistics::Statistics;
use crate::visible::{When, may_see};

/// How often the service asks the kernel whether the keel still schedules.
const LOOK: Duration = Duration::from_millis(100);
/// How often the keel looks for what is not urgent: programs that are to aggregate, and `cpu.max`
/// limits that it does not enforce.
const CHORES: Duration = Duration::from_secs(1);
/// Loads in a row that hotplug may undo.
const MAX_ATTEMPTS: u32 = 20;

const KNOWN: &str = "stats, stats_meta, get, set, decisions, ias_agg, ias_alloc, ias_show";

/// The arguments of `ias_agg`, the paper's.
const AGGREGATION: [&str; 5] = ["pid", "agg", "bonus_type", "bonus_value", "limit"];

/// Why the keel does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// It cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No control socket.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// These CPUs cannot be shielded.
    #[error(transparent)]
    Shield(#[from] ShieldError),
    /// The machine cannot be read.
    #[error(transparent)]
    Machine(#[from] evenkeel_machine::Error),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    System(#[from] Errno),
}

/// All that is needed to run the keel.
pub struct Service<'a> {
    /// The policies and parameters at the start.
    pub options: Options,
    /// Programs and CPUs that aggregate from the start, with the order `ias`.
    pub ias: IasSettings,
    /// Reads the machine; called again after each hotplug.
    pub machine: &'a dyn Fn() -> Result<Machine, evenkeel_machine::Error>,
    /// The path of the control socket.
    pub socket: PathBuf,
    /// The interval of statistics lines on standard output; `None`: no lines.
    pub stats: Option<Duration>,
    /// Is told what the keel does, for a trace.
    pub observer: Option<&'a dyn Fn(&Observed<'_>)>,
}

/// Runs the keel until SIGTERM or SIGINT, or until the kernel ends it. Returns how it ended.
///
/// # Errors
/// All of [`ServiceError`]: the keel could not be started, or not again after hotplug.
pub fn run(service: &Service<'_>) -> Result<Exit, ServiceError> {
    raise_descriptor_limit();
    let signals = ServiceSignals::watch()?;
    let mut server = Server::bind(&service.socket)?;
    let mut state = State {
        options: service.options.clone(),
        ias: Ias::new(service.ias.clone(), service.options.ias),
        machine: (service.machine)()?,
        relief: Relief::default(),
        history: None,
        earlier: Statistics::default(),
        shown: Statistics::default(),
        restarts: 0,
        limits: 0,
        watch: None,
    };
    state.options.shield.check(&state.machine)?;
    let mut attempts = 0;
    loop {
        let tell =
            |seen: &Observed<'_>| service.observer.iter().for_each(|observer| observer(seen));
        let mut scheduler = match state.start(service, &mut server, &signals)? {
            Started::Schedules(scheduler) => scheduler,
            Started::IsToEnd(mut scheduler) => return Ok(end(&mut scheduler, &tell)),
        };
        let options = &state.options;
        tell_systemd(&[sd_notify::NotifyState::Ready]);
        tracing::info!("{}/{}/{} schedules", options.order, options.gate, options.balance);
        let policies = state.policies();
        tell(&Observed::Loaded { policies, parameters: &state.options.parameters() });
        let started = Instant::now();
        let exit = state.watch(service, &mut scheduler, &mut server, &signals)?;
        state.tell_figures(service, &scheduler)?;
        state.earlier = state.statistics(&scheduler)?;
        let Some(exit) = exit else { return Ok(end(&mut scheduler, &tell)) };
        tell(&Observed::Ended(&exit));
        attempts = if started.elapsed() > LOOK { 0 } else { attempts + 1 };
        if exit.kind != ExitKind::Restart || attempts >= MAX_ATTEMPTS {
            return Ok(exit);
        }
        state.restarts += 1;
        state.history = Some(scheduler.history()?);
        tracing::warn!("{exit}: loaded again for the CPUs that are there now");
    }
}

/// Lets this process have as many file descriptors as its hard limit allows. It keeps one for each
/// address space that aggregates; `layout::MAX_SPACES` of them reach the usual soft limit by themselves.
/// No program inherits the limit: the keel starts none.
fn raise_descriptor_limit() {
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    let raised = limits.and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(why) = raised {
        tracing::debug!("the limit of file descriptors is not raised: {why}");
    }
}

/// Ends the keel because a signal asks for it.
fn end(scheduler: &mut Scheduler, tell: &dyn Fn(&Observed<'_>)) -> Exit {
    tell_systemd(&[sd_notify::NotifyState::Stopping]);
    // Hotplug may have ended it a moment before. It is not loaded again, which is what was asked for.
    let exit = scheduler.detach().filter(|exit| exit.kind != ExitKind::Restart);
    let exit = exit.unwrap_or_else(|| Exit {
        kind: ExitKind::Unloaded,
        reason: "unloaded".to_owned(),
        message: String::new(),
        dump: String::new(),
    });
    tell(&Observed::Ended(&exit));
    exit
}

/// What came of loading the keel.
enum Started {
    /// It schedules the CPUs that are there.
    Schedules(Scheduler),
    /// It would have to be loaded again, but a signal asks for its end.
    IsToEnd(Scheduler),
}

/// What outlives a reload of the keel.
struct State {
    /// The options as they are now.
    options: Options,
    ias: Ias,
    /// The machine as it was when the keel was loaded.
    machine: Machine,
    relief: Relief,
    /// What the last load knew of tasks and CPUs; `None` before the first reload.
    history: Option<History>,
    /// What was counted before the last reload.
    earlier: Statistics,
    /// What the last line of statistics showed.
    shown: Statistics,
    restarts: u64,
    /// How many limits that the keel does not enforce a warning has covered.
    limits: u64,
    /// Follows the capabilities of CPUs, if the policy uses them and the kernel shows them.
    watch: Option<Watch>,
}

impl State {
    /// Loads the keel for the CPUs that are online. What is read of the machine during hotplug mixes
    /// old and new values, so the load is repeated then. After each load requests are answered, and
    /// signals obeyed.
    fn start(
        &mut self,
        service: &Service<'_>,
        server: &mut Server,
        signals: &ServiceSignals,
    ) -> Result<Started, ServiceError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.try_start(service) {
                Err(ServiceError::Machine(why)) if attempts < MAX_ATTEMPTS => {
                    tracing::debug!("{why}: the machine is read again");
                }
                Ok((mut scheduler, false)) if attempts < MAX_ATTEMPTS => {
                    self.serve_meanwhile(service, &mut scheduler, server)?;
                    match signals.read()? {
                        Some(Told::End) => return Ok(Started::IsToEnd(scheduler)),
                        Some(Told::State) => self.log_state(&scheduler)?,
                        None => {}
                    }
                    self.earlier = self.statistics(&scheduler)?;
                    tracing::debug!("hotplug during the load: the keel is loaded again");
                }
                other => return other.map(|(scheduler, _)| Started::Schedules(scheduler)),
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Loads the keel; also returns whether the machine is unchanged since it was read.
    fn try_start(&mut self, service: &Service<'_>) -> Result<(Scheduler, bool), ServiceError> {
        let machine = (service.machine)()?;
        let mut scheduler = Scheduler::load_after(&machine, &self.options, self.history.as_ref())?;
        self.ias.restore(&scheduler, &machine)?;
        let watch = self.watch_capabilities(&machine);
        let earlier = std::mem::replace(&mut self.watch, watch);
        if let (Some(watch), Some(earlier)) = (&mut self.watch, earlier)
            && let Some(layout) = watch.go_on_from(&earlier)
        {
            scheduler.set_capabilities(&layout)?;
        }
        scheduler.attach()?;
        // The kernel attaches no scheduler during hotplug, so none was under way then. What cannot be
        // read now is changing.
        let now = (service.machine)();
        let is_as_read = now.is_ok_and(|now| now.online() == machine.online());
        self.machine = machine;
        let shield = &self.options.shield;
        if shield.holds_all(&self.machine) {
            tracing::warn!("shield {shield}: no other CPU is online, so it has no effect");
        }
        Ok((scheduler, is_as_read))
    }

    fn watch_capabilities(&self, machine: &Machine) -> Option<Watch> {
        if !Capabilities::are_wanted(&self.options) {
            return None;
        }
        let watch = Watch::begin(machine, &self.options);
        let warn = |why: &_| {
            tracing::warn!("{why}; capabilities stay as they are, whatever noise takes of a CPU");
        };
        watch.inspect_err(warn).ok()
    }

    /// Serves until the kernel ends the keel, or (`None`) a signal asks for its end.
    fn watch(
        &mut self,
        service: &Service<'_>,
        scheduler: &mut Scheduler,
        server: &mut Server,
        signals: &ServiceSignals,
    ) -> Result<Option<Exit>, ServiceError> {
        let mut show_at = service.stats.map(|every| Instant::now() + every);
        let mut chores_at = Instant::now();
        let mut is_left = false;
        loop {
            let mut readable = server.poll_fds();
            readable.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
            let patience = server.patience().map_or(LOOK, |patience| patience.min(LOOK));
            let patience = if is_left { Duration::ZERO } else { patience };
            match poll(&mut readable, PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO))
            {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(why) => return Err(why.into()),
            }
            match signals.read()? {
                Some(Told::End) => return Ok(None),
                Some(Told::State) => self.log_state(scheduler)?,
                None => {}
            }
            if let Some(exit) = scheduler.exit() {
                // The next load takes time, too: what was asked during the last one waits no longer.
                if exit.kind == ExitKind::Restart {
                    self.serve_meanwhile(service, scheduler, server)?;
                }
                return Ok(Some(exit));
            }
            self.ias.prune_if_due(Instant::now(), |ias| ias.prune(scheduler))?;
            if Instant::now() >= chores_at {
                if self.options.order == Order::Ias {
                    self.ias.forget_ended(|pid| scheduler.started(pid));
                    self.ias.adopt(scheduler);
                }
                self.warn_of_limits(scheduler)?;
                self.tell_figures(service, scheduler)?;
                chores_at = Instant::now() + CHORES;
            }
            self.ias.help(scheduler);
            self.relief.relieve(scheduler.lodgers(self.options.shield.cpus())?);
            if let Some(layout) = self.watch.as_mut().and_then(Watch::look) {
                scheduler.set_capabilities(&layout)?;
            }
            is_left = server.serve(|peer, request| self.answer(scheduler, peer, request));
            if let (Some(at), Some(every)) = (show_at, service.stats)
                && Instant::now() >= at
            {
                let statistics = self.statistics(scheduler)?;
                let line = statistics.line_since(&self.shown);
                // The reader may have closed the pipe; the keel schedules on.
                let _ = writeln!(std::io::stdout(), "{line}");
                self.shown = statistics;
                show_at = Some(at + every);
            }
        }
    }

    /// Answers what was asked during a load, before the next one; by the machine as it is now.
    fn serve_meanwhile(
        &mut self,
        service: &Service<'_>,
        scheduler: &mut Scheduler,
        server: &mut Server,
    ) -> Result<(), LoadError> {
        if let Ok(machine) = (service.machine)() {
            self.machine = machine;
        }
        self.ias.prune(scheduler)?;
        server.serve(|peer, request| self.answer(scheduler, peer, request));
        Ok(())
    }

    /// Logs what it answers to `stats` and `get`, whatever the level of the log: it was asked for.
    fn log_state(&self, scheduler: &Scheduler) -> Result<(), LoadError> {
        let (statistics, parameters) = (self.statistics(scheduler)?, self.options.parameters());
        let state = json!({"statistics": statistics, "parameters": parameters});
        tracing::warn!("SIGUSR1: the state is {state}");
        Ok(())
    }

    /// Warns of cgroup limits that the keel does not enforce, once for each new limit.
    fn warn_of_limits(&mut self, scheduler: &Scheduler) -> Result<(), LoadError> {
        let counters = self.statistics(scheduler)?.counters;
        let limits = counters.get(UNLIMITED).copied().unwrap_or_default();
        if limits > self.limits {
            tracing::warn!(
                "cgroups with cpu.max: the keel honours cpu.weight, but enforces no cpu.max; they \
                 may use more than that while it runs"
            );
        }
        self.limits = limits;
        Ok(())
    }

    fn tell_figures(&self, service: &Service<'_>, scheduler: &Scheduler) -> Result<(), LoadError> {
        let Some(observer) = service.observer else { return Ok(()) };
        observer(&Observed::Figures {
            statistics: &self.statistics(scheduler)?,
            decisions: &decisions(&scheduler.cpus()?, |_, _| true),
            parameters: &self.options.parameters(),
        });
        Ok(())
    }

    fn policies(&self) -> [String; 3] {
        let Options { order, gate, balance, .. } = &self.options;
        [order.to_string(), gate.to_string(), balance.to_string()]
    }

    fn statistics(&self, scheduler: &Scheduler) -> Result<Statistics, LoadError> {
        let mut statistics = Statistics {
            policies: self.policies(),
            slice_us: self.options.slice.us(),
            restarts: self.restarts,
            counters: self.earlier.counters.clone(),
            ..Statistics::default()
        };
        statistics.add(&scheduler.cpus()?);
        statistics.add_capabilities(&scheduler.capabilities()?);
        Ok(statistics)
    }

    fn answer(&mut self, scheduler: &mut Scheduler, peer: &Peer, request: &Request) -> Answer {
        let is_known = |name: &str| match request.req.as_str() {
            "stats" => name == "target",
            // Each argument is checked below.
            "set" => true,
            "ias_agg" => AGGREGATION.contains(&name),
            "ias_alloc" => name == "roles",
            _ => false,
        };
        if let Some(name) = request.args.keys().find(|name| !is_known(name)) {
            let why = format!("\"{name}\": no such argument of this request");
            return Answer::refused(Errno::EINVAL, why);
        }
        match request.req.as_str() {
            "stats" => match self.statistics(scheduler) {
                Ok(statistics) => Answer::ok(json!(statistics)),
                Err(why) => Answer::refused(Errno::EIO, why),
            },
            "stats_meta" => Answer::ok(Statistics::meta()),
            "get" => Answer::ok(self.options.parameters()),
            "decisions" => match scheduler.cpus() {
                Ok(cpus) => {
                    let is_seen = |pid, at_ns| {
                        may_see(peer, pid, When::At(at_ns), |pid| scheduler.started(pid))
                    };
                    Answer::ok(json!(decisions(&cpus, is_seen)))
                }
                Err(why) => Answer::refused(Errno::EIO, why),
            },
            "set" => self.set(scheduler, peer, request),
            "ias_agg" | "ias_alloc" | "ias_show" => match self.ias(scheduler, peer, request) {
                Ok(state) => Answer::ok(json!(state)),
                Err(why) => Answer::refused(why.errno(), why),
            },
            other => {
                let why = format!("\"{other}\": no such request; there are {KNOWN}");
                Answer::refused(Errno::ENOSYS, why)
            }
        }
    }

    /// Answers the calls of paper 003: the owner of a process sets its address space, root sets roles.
    fn ias(
        &mut self,
        scheduler: &Scheduler,
        peer: &Peer,
        request: &Request,
    ) -> Result<IasState, IasError> {
        if self.options.order != Order::Ias {
            return Err(IasError::NotIas(self.options.order));
        }
        // The quotas and the answer are about the processes that are there now. The user that asks pays
        // for the time.
        self.ias.prune(scheduler)?;
        match request.req.as_str() {
            "ias_agg" => {
                let aggregation =
                    Aggregation::parse(|name| request.args.get(name).map(argument_text))?;
                self.ias.aggregate(scheduler, peer, aggregation)?;
            }
            "ias_alloc" if !peer.may_steer(0) => return Err(IasError::NotRoot),
            "ias_alloc" => {
                let roles = roles_of_request(request)?;
                self.ias.allocate(scheduler, &self.machine, &roles)?;
            }
            _ => {}
        }
        let window = self.options.ias.window.tasks();
        let search = Search::new(window, &self.statistics(scheduler)?.counters);
        let started = |pid| scheduler.started(pid);
        Ok(self.ias.state(&self.machine, search, peer, started))
    }

    /// Changes all parameters that are named, or none. Only root may: the scheduler is shared by all
    /// users.
    fn set(&mut self, scheduler: &mut Scheduler, peer: &Peer, request: &Request) -> Answer {
        if !peer.may_steer(0) {
            return Answer::refused(Errno::EPERM, "only root may steer the scheduler of all users");
        }
        if request.args.is_empty() {
            let known: Vec<String> = self.options.parameters().keys().cloned().collect();
            let why = format!("say what to set: {}", known.join(", "));
            return Answer::refused(Errno::EINVAL, why);
        }
        let mut options = self.options.clone();
        for (name, value) in &request.args {
            if let Err(why) = options.set_parameter(name, &argument_text(value)) {
                return Answer::refused(Errno::EINVAL, why);
            }
        }
        // A shielded CPU may have gone offline meanwhile, which is no reason to refuse a new slice.
        if options.shield != self.options.shield
            && let Err(why) = options.shield.check(&self.machine)
        {
            return Answer::refused(Errno::EINVAL, why);
        }
        match scheduler.tune(&options) {
            Err(why) => Answer::refused(Errno::EIO, why),
            Ok(()) => {
                self.options = options;
                Answer::ok(self.options.parameters())
            }
        }
    }
}

/// The value of an argument as text. A number may be in quotes: clients of `scx_stats` send nothing
/// else.
pub fn argument_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Notifies systemd; does nothing where systemd did not start this process.
fn tell_systemd(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(false, state) {
        tracing::debug!("systemd is not notified: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_descriptors_is_raised_to_the_hard_one() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard - 1, hard).unwrap();
        raise_descriptor_limit();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
    }
}
