//! `evenkeel run`: start a command, balance it until it ends, give everything back.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_journal::{
    Session, SessionOptions, SupervisedSession, SupervisorCommand, TaskRef, undo_earlier,
};
use evenkeel_machine::Machine;
use evenkeel_shares::environment::{PAGE_VARIABLE, PRELOAD_VARIABLE, with_library};
use nix::poll::{PollFd, PollFlags};

use crate::balancer::Balancer;
use crate::child::{Child, ChildError, End, Origin};
use crate::clock::{monotonic_ns, own_cpu_ns};
use crate::decision::Decision;
use crate::latency::ask_for_short_slices;
use crate::observe::{Accounting, AccountingChoice};
use crate::options::Options;
use crate::shares::Shares;
use crate::status_file::{ProgramStatus, StatusFile};
use crate::summary::{Run, Summary, Totals};
use crate::threads::Threads;
use crate::wait::wait_readable;
use crate::waits::Waits;

/// How often the status file is written ...
const PUBLISH_EVERY_NS: u64 = 1_000_000_000;
/// ... and how often while no task is moved: to replace a file costs more than a round.
const PUBLISH_AT_REST_NS: u64 = 5_000_000_000;

/// A command that ends sooner is not observed: to load the accounting slows down what runs meanwhile
/// (`evenkeel-lab bench startup` measures what is added).
const GRACE_NS: u64 = 50_000_000;

/// What a run needs to know besides how to balance.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The signals and streams that this process was started with, which the command inherits.
    pub origin: Origin,
    /// Move also tasks that their user pinned.
    pub override_user: bool,
    /// The directory of journals and status files.
    pub dir: Option<PathBuf>,
    /// How to start the supervisor.
    pub supervisor: SupervisorCommand,
    /// The library that divides loops, for the command and what it starts (`--shares`).
    pub shares: Option<PathBuf>,
    /// Called with every decision as it is made (`--explain`).
    pub explain: Option<fn(&Decision)>,
    /// Variables that the command gets besides this process' own.
    pub environment: Vec<(OsString, OsString)>,
    /// The threads that these variables tell the command to start.
    pub threads: Option<Threads>,
}

/// Runs a command under the balancer until it ends.
///
/// The command waits for nothing of ours. `started` is called with its process number once it runs, and
/// tells whether this process is to balance it. `machine` is called only once it has run for a while;
/// without a machine it is not balanced. What it has forked until then is followed as well, unless a
/// process has lost its parent.
///
/// # Errors
/// The command cannot be started. A command that cannot be balanced is no error: it runs on, and the
/// summary says why.
pub fn run(
    launch: &Launch,
    options: Options,
    started: impl FnOnce(u32) -> bool,
    machine: impl FnOnce() -> Option<Machine>,
) -> Result<(End, Option<Summary>), ChildError> {
    let (shares, mut variables) = share_loops(launch, &options);
    variables.extend(launch.environment.iter().cloned());
    let child = Child::start(&launch.command, &variables, launch.origin)?;
    let started_ns = monotonic_ns();
    let is_balanced_here = started(child.pid());
    let mut balancing = None;
    if is_balanced_here {
        if let Some(dir) = &launch.dir {
            undo_earlier(dir);
        }
        if let Some(end) = wait_for_end(&child, started_ns + GRACE_NS)? {
            let elapsed_ns = monotonic_ns() - started_ns;
            let run = Run::unobserved(launch, &options, end, elapsed_ns);
            return Ok((end, Some(Summary::new(run, &Totals::default()))));
        }
        balancing = machine().and_then(|machine| {
            Balancing::start(launch, options, machine, child.pid(), shares)
                .inspect_err(|why| tracing::warn!("not balanced: {why}"))
                .ok()
        });
    }
    let end = loop {
        if let Some(end) = child.handle_signals()? {
            break end;
        }
        match &mut balancing {
            Some(balancing) => balancing.wait(&child)?,
            None => wait_readable(&mut [PollFd::new(child.signal_fd(), PollFlags::POLLIN)], None)?,
        }
    };
    let elapsed_ns = monotonic_ns() - started_ns;
    let summary = balancing.and_then(|balancing| balancing.finish(launch, end, elapsed_ns));
    Ok((end, summary))
}

/// The page for the command, and the variables by which it finds the library and the page. Without the
/// page it runs as without `--shares`.
fn share_loops(launch: &Launch, options: &Options) -> (Option<Shares>, Vec<(OsString, OsString)>) {
    let Some(library) = &launch.shares else { return Default::default() };
    let present = std::env::var_os(PRELOAD_VARIABLE);
    let Some(preload) = with_library(present.as_deref(), library) else {
        tracing::warn!("{} cannot stand in LD_PRELOAD; loops are not divided", library.display());
        return Default::default();
    };
    match Shares::create(&options.policy) {
        Ok(shares) => {
            let page = shares.address().into();
            let variables = vec![(PRELOAD_VARIABLE.into(), preload), (PAGE_VARIABLE.into(), page)];
            (Some(shares), variables)
        }
        Err(why) => {
            tracing::warn!("{why}; loops are not divided");
            Default::default()
        }
    }
}

/// How the command ended, if it did before a time on the monotonic clock.
fn wait_for_end(child: &Child, until_ns: u64) -> Result<Option<End>, ChildError> {
    loop {
        if let Some(end) = child.handle_signals()? {
            return Ok(Some(end));
        }
        let left_ns = until_ns.saturating_sub(monotonic_ns());
        if left_ns == 0 {
            return Ok(None);
        }
        let mut readable = [PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
        wait_readable(&mut readable, Some(Duration::from_nanos(left_ns)))?;
    }
}

/// The balancer of a run with everything that keeps it safe.
struct Balancing {
    balancer: Balancer,
    status: ProgramStatus,
    file: Option<StatusFile>,
    startup_cpu_ns: u64,
    options: Options,
    publish_next_ns: u64,
    explain: Option<fn(&Decision)>,
}

impl Balancing {
    fn start(
        launch: &Launch,
        options: Options,
        machine: Machine,
        root: u32,
        shares: Option<Shares>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        if let Err(why) = ask_for_short_slices() {
            tracing::debug!("evenkeel keeps its long slices: {why}");
        }
        let command = words_of(launch);
        let session = match Self::open_session(launch, &options, &command) {
            Ok(session) => session,
            Err(why) => {
                // A program that has ended meanwhile is no error.
                if TaskRef::of(root as i32).is_ok_and(|task| task.is_alive()) {
                    tracing::warn!("{why}; tasks are not moved, only observed");
                }
                None
            }
        };
        let mut balancer = Balancer::new(machine, session, options.clone())?;
        balancer.join(root, &TaskRef::of(root as i32)?)?;
        if let Some(shares) = shares {
            balancer.share(root, shares);
        }
        if let Some(threads) = launch.threads {
            balancer.expect_threads(root, threads);
        }
        let own = TaskRef::own_process()?;
        let file = launch.dir.as_deref().and_then(|dir| {
            StatusFile::create(dir, &own).inspect_err(|why| tracing::debug!("{why}")).ok()
        });
        let accounting = balancer.observer().accounting();
        let status = ProgramStatus {
            balancer: own,
            program: None,
            root,
            command,
            accounting,
            placement: options.placement,
            dry_run: options.dry_run,
            intervals: 0,
            moves: 0,
            gain: crate::proof::Gain::default(),
            shares: None,
            cpus: Vec::new(),
            waits: Waits::default(),
            threads: Vec::new(),
            decisions: Vec::new(),
        };
        Ok(Self {
            balancer,
            status,
            file,
            startup_cpu_ns: own_cpu_ns(),
            options,
            publish_next_ns: 0,
            explain: launch.explain,
        })
    }

    fn open_session(
        launch: &Launch,
        options: &Options,
        command: &[String],
    ) -> Result<Option<SupervisedSession>, Box<dyn std::error::Error>> {
        if options.dry_run {
            return Ok(None);
        }
        let dir = launch.dir.as_deref().ok_or("no directory for the journal")?;
        let session = Session::open(
            dir,
            SessionOptions {
                command: command.to_vec(),
                override_user: launch.override_user,
                ..SessionOptions::default()
            },
        )?;
        Ok(Some(SupervisedSession::new(session, launch.supervisor)))
    }

    /// Sleeps until there is something to do, and does it.
    fn wait(&mut self, child: &Child) -> Result<(), ChildError> {
        let due_ns = self.balancer.due_ns().unwrap_or(u64::MAX);
        let left_ns = due_ns.saturating_sub(monotonic_ns());
        if left_ns == 0 {
            self.balance();
            return Ok(());
        }
        let mut readable = vec![PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
        if let Some(cbinfo) = self.balancer.observer().cbinfo() {
            readable.push(PollFd::new(cbinfo.event_fd(), PollFlags::POLLIN));
        }
        wait_readable(&mut readable, Some(Duration::from_nanos(left_ns)))?;
        let events = readable.get(1).is_some_and(|fd| fd.any() == Some(true));
        if events && let Err(why) = self.balancer.handle_events() {
            tracing::warn!("{why}");
        }
        Ok(())
    }

    fn balance(&mut self) {
        match self.balancer.balance_due() {
            // A window for barriers ended, and nothing was decided.
            Ok(due) if due.is_empty() => return,
            Ok(_) => {}
            Err(why) => tracing::warn!("{why}"),
        }
        let root = self.status.root;
        let decision = self.balancer.decisions(root).last();
        if let (Some(explain), Some(decision)) = (self.explain, decision) {
            explain(decision);
        }
        self.publish();
        self.balancer.observer().open_due_window();
    }

    /// Writes the status file, but not in each round: writing costs more than deciding.
    fn publish(&mut self) {
        let now_ns = monotonic_ns();
        let Some(file) = &self.file else { return };
        if now_ns < self.publish_next_ns {
            return;
        }
        let (root, accounting) = (self.status.root, self.balancer.observer().accounting());
        let Some(totals) = self.balancer.totals(root) else { return };
        let is_at_rest = totals.moves == self.status.moves && self.status.intervals > 0;
        self.publish_next_ns =
            now_ns + if is_at_rest { PUBLISH_AT_REST_NS } else { PUBLISH_EVERY_NS };
        self.status.intervals = totals.intervals;
        self.status.accounting = accounting;
        self.status.moves = totals.moves;
        self.status.gain = totals.gain().clone();
        self.status.cpus = totals.cpus();
        self.status.shares = self.balancer.shares(root);
        let (waits, threads) = self.balancer.waits(root).unwrap_or_default();
        (self.status.waits, self.status.threads) = (waits, threads);
        self.status.decisions = self.balancer.decisions(root).cloned().collect();
        if let Err(why) = file.write(&self.status) {
            tracing::debug!("{why}");
        }
    }

    fn finish(mut self, launch: &Launch, end: End, elapsed_ns: u64) -> Option<Summary> {
        let accounting = self.balancer.observer().accounting();
        let is_as_asked = self.options.accounting == AccountingChoice::Procfs;
        let why_not_exact = (!accounting.is_exact() && !is_as_asked)
            .then(|| self.balancer.observer().why_not_exact().map(str::to_owned))
            .flatten();
        let own_cpu_until_end_ns = own_cpu_ns();
        let (totals, _) = self.balancer.finish().remove(&self.status.root)?;
        let startup_cpu_ns = self.startup_cpu_ns + (own_cpu_ns() - own_cpu_until_end_ns);
        let run = Run {
            accounting,
            why_not_exact,
            own_cpu_ns: own_cpu_until_end_ns.saturating_sub(self.startup_cpu_ns),
            startup_cpu_ns,
            ..Run::unobserved(launch, &self.options, end, elapsed_ns)
        };
        Some(Summary::new(run, &totals))
    }
}

impl Run {
    /// Of a command that was not observed.
    fn unobserved(launch: &Launch, options: &Options, end: End, elapsed_ns: u64) -> Self {
        Self {
            command: words_of(launch),
            exit_code: end.exit_code(),
            elapsed_ns,
            accounting: Accounting::None,
            why_not_exact: None,
            placement: options.placement,
            dry_run: options.dry_run,
            threads_per_cpu: launch.threads.map(|threads| threads.per_cpu),
            own_cpu_ns: 0,
            startup_cpu_ns: own_cpu_ns(),
        }
    }
}

fn words_of(launch: &Launch) -> Vec<String> {
    launch.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
