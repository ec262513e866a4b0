//! The loop around a program: start it, balance it until it ends, give everything back.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_journal::{
    GuardedSession, Session, SessionOptions, SupervisorCommand, TaskRef, undo_earlier,
};
use evenkeel_machine::Machine;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};

use crate::balancer::{Balancer, Options};
use crate::observe::{Accounting, monotonic_ns};
use crate::program::{End, Origin, Program, ProgramError};
use crate::prompt::ask_for_short_slices;
use crate::record::{Decision, Record, RecordFile};
use crate::summary::{Run, Summary};

/// How often others are told what goes on ...
const PUBLISH_EVERY_NS: u64 = 1_000_000_000;
/// ... and how often while nothing is moved: a file that is replaced costs more than a look.
const PUBLISH_AT_REST_NS: u64 = 5_000_000_000;

/// What a run needs to know besides how to balance.
#[derive(Debug, Clone)]
pub struct Job {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// What this process was started with, for the command to find.
    pub origin: Origin,
    /// Place even what its user pinned.
    pub override_user: bool,
    /// Where journals and records lie.
    pub dir: Option<PathBuf>,
    /// How to start the supervisor.
    pub supervisor: SupervisorCommand,
    /// Called with every decision as it is made (`--explain`).
    pub tell: Option<fn(&Decision)>,
}

/// Runs a command under the balancer until it ends. `machine` is called with the command's process
/// number while that already runs, so that it does not wait for us; where it gives none, the command
/// is not balanced here.
///
/// # Errors
/// When the command cannot be started. That it cannot be balanced is no error: it runs on, and the
/// summary says why.
pub fn run(
    job: &Job,
    options: Options,
    machine: impl FnOnce(u32) -> Option<Machine>,
) -> Result<(End, Option<Summary>), ProgramError> {
    let program = Program::start(&job.command, job.origin)?;
    let started_ns = monotonic_ns();
    let mut balancing = machine(program.pid()).and_then(|machine| {
        Balancing::start(job, options, machine, program.pid())
            .inspect_err(|why| tracing::warn!("not balanced: {why}"))
            .ok()
    });
    let end = loop {
        if let Some(end) = program.handle_signals()? {
            break end;
        }
        match &mut balancing {
            Some(balancing) => balancing.wait(&program)?,
            None => {
                wait_readable(&mut [PollFd::new(program.signal_fd(), PollFlags::POLLIN)], None)?
            }
        }
    };
    let elapsed_ns = monotonic_ns() - started_ns;
    let summary = balancing.and_then(|balancing| balancing.finish(job, end, elapsed_ns));
    Ok((end, summary))
}

/// The balancer of a run with everything that keeps it safe.
struct Balancing {
    balancer: Balancer,
    record: Record,
    file: Option<RecordFile>,
    startup_cpu_ns: u64,
    options: Options,
    publish_next_ns: u64,
    tell: Option<fn(&Decision)>,
}

impl Balancing {
    fn start(
        job: &Job,
        options: Options,
        machine: Machine,
        root: u32,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        if let Err(why) = ask_for_short_slices() {
            tracing::debug!("no short time slices: {why}");
        }
        if let Some(dir) = &job.dir {
            undo_earlier(dir);
        }
        let command: Vec<String> =
            job.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let session = match Self::open_session(job, &options, &command) {
            Ok(session) => session,
            Err(why) => {
                // A program that has ended meanwhile is no fault.
                if TaskRef::of(root as i32).is_ok_and(|task| task.is_alive()) {
                    tracing::warn!("{why}; tasks are not moved, only observed");
                }
                None
            }
        };
        let mut balancer = Balancer::new(machine, session, options.clone())?;
        balancer.join(root, &TaskRef::of(root as i32)?)?;
        let own = TaskRef::own_process()?;
        let file = job.dir.as_deref().and_then(|dir| {
            RecordFile::create(dir, &own).inspect_err(|why| tracing::debug!("{why}")).ok()
        });
        let accounting = balancer.observer().accounting();
        let record = Record {
            balancer: own,
            program: None,
            root,
            command,
            accounting,
            placement: options.placement,
            dry_run: options.dry_run,
            intervals: 0,
            moves: 0,
            cpus: Vec::new(),
            decisions: Vec::new(),
        };
        Ok(Self {
            balancer,
            record,
            file,
            startup_cpu_ns: own_cpu_ns(),
            options,
            publish_next_ns: 0,
            tell: job.tell,
        })
    }

    fn open_session(
        job: &Job,
        options: &Options,
        command: &[String],
    ) -> Result<Option<GuardedSession>, Box<dyn std::error::Error>> {
        if options.dry_run {
            return Ok(None);
        }
        let dir = job.dir.as_deref().ok_or("no directory for the journal")?;
        let session = Session::open(
            dir,
            SessionOptions {
                command: command.to_vec(),
                override_user: job.override_user,
                ..SessionOptions::default()
            },
        )?;
        Ok(Some(GuardedSession::new(session, job.supervisor)))
    }

    /// Sleeps until there is something to do, and does it.
    fn wait(&mut self, program: &Program) -> Result<(), ProgramError> {
        let due_ns = self.balancer.due_ns().unwrap_or(u64::MAX);
        let left_ns = due_ns.saturating_sub(monotonic_ns());
        if left_ns == 0 {
            self.interval();
            return Ok(());
        }
        let mut readable = vec![PollFd::new(program.signal_fd(), PollFlags::POLLIN)];
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

    fn interval(&mut self) {
        if let Err(why) = self.balancer.look() {
            tracing::warn!("{why}");
        }
        let root = self.record.root;
        if let (Some(tell), Some(decision)) = (self.tell, self.balancer.decisions(root).last()) {
            tell(decision);
        }
        self.publish();
    }

    /// Tells `status` and `explain`, but not at each look: writing costs more than deciding.
    fn publish(&mut self) {
        let now_ns = monotonic_ns();
        let Some(file) = &self.file else { return };
        if now_ns < self.publish_next_ns {
            return;
        }
        let root = self.record.root;
        let Some(totals) = self.balancer.totals(root) else { return };
        // The first time, too: then all is new.
        let is_at_rest = totals.moves == self.record.moves && self.record.intervals > 0;
        self.publish_next_ns =
            now_ns + if is_at_rest { PUBLISH_AT_REST_NS } else { PUBLISH_EVERY_NS };
        self.record.intervals = totals.intervals;
        self.record.moves = totals.moves;
        self.record.cpus = totals.cpus();
        self.record.decisions = self.balancer.decisions(root).cloned().collect();
        if let Err(why) = file.write(&self.record) {
            tracing::debug!("{why}");
        }
    }

    fn finish(mut self, job: &Job, end: End, elapsed_ns: u64) -> Option<Summary> {
        let accounting = self.balancer.observer().accounting();
        let why_not_exact = match (accounting, self.options.accounting) {
            (Accounting::Procfs, crate::AccountingChoice::Auto) => {
                self.balancer.observer().why_not_exact().map(str::to_owned)
            }
            _ => None,
        };
        let own_cpu_until_end_ns = own_cpu_ns();
        let (totals, _) = self.balancer.finish().remove(&self.record.root)?;
        let startup_cpu_ns = self.startup_cpu_ns + (own_cpu_ns() - own_cpu_until_end_ns);
        let run = Run {
            command: job.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            exit_code: end.exit_code(),
            elapsed_ns,
            accounting,
            why_not_exact,
            placement: self.options.placement,
            dry_run: self.options.dry_run,
            own_cpu_ns: own_cpu_until_end_ns.saturating_sub(self.startup_cpu_ns),
            startup_cpu_ns,
        };
        Some(Summary::new(run, &totals))
    }
}

/// Waits until one of `fds` is readable or the time is over; a signal ends the wait early.
pub(crate) fn wait_readable(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<(), Errno> {
    // Rounded up: a wait that ends too early would only be repeated.
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        let ms = limit.as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(i32::try_from(ms).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
    });
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// CPU time of this process so far.
pub(crate) fn own_cpu_ns() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0 };
    let ns = |time: nix::sys::time::TimeVal| {
        (time.tv_sec() as u64) * 1_000_000_000 + (time.tv_usec() as u64) * 1000
    };
    ns(usage.user_time()) + ns(usage.system_time())
}
