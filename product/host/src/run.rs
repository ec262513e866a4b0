//! `evenkeel run`: start a command, balance it until it ends, give everything back.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use evenkeel_journal::{
    Session, SessionOptions, SupervisedSession, TaskRef, other_runtime_dirs, undo_earlier,
};
use evenkeel_machine::Machine;
use evenkeel_shares::environment::{PAGE_VARIABLE, PRELOAD_VARIABLE, with_library};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};

use crate::balancer::Balancer;
use crate::child::{Child, End, RunError};
use crate::clock::{monotonic_ns, own_cpu_ns};
use crate::decision::Decision;
use crate::job::{BalancedBy, Job};
use crate::latency::ask_for_short_slices;
use crate::launch::Launch;
use crate::observe::Accounting;
use crate::options::{Options, Placement};
use crate::publish::Published;
use crate::quiet::{Quiet, SignsSince, may_wait};
use crate::rest::{Rest, Useless};
use crate::shares::Shares;
use crate::signs::Signs;
use crate::summary::{Alike, JobSummary, Run, Summary, Totals};
use crate::trace::Trace;
use crate::wait::wait_beside_command;
use crate::watch_requests::WatchRequests;

/// A command that ends sooner is never observed: loading the accounting slows down what runs meanwhile
/// (`evenkeel-lab bench startup` measures what is added).
const GRACE_NS: u64 = 50_000_000;
/// For a command that ends sooner, not even signs of unequal CPUs are looked for.
const SHORT_NS: u64 = 10_000_000;

/// Runs a command under the balancer until it ends.
///
/// The command waits for nothing of ours. `started` is called with its process number once it runs, and
/// tells which process is to balance it. `machine` is called only once the command has run for a while,
/// and again when CPUs came; without a machine the command is not balanced.
///
/// The command is observed from the first sign of unequal CPUs on, or at once if figures are asked for.
/// Processes that it has forked before that are followed as well, except those that have lost their
/// parent.
///
/// # Errors
/// All of [`RunError`]. A command that cannot be balanced is no error: it runs on, and the summary says
/// why.
pub fn run(
    launch: &Launch,
    options: Options,
    started: impl FnOnce(u32) -> BalancedBy,
    machine: impl Fn() -> Option<Machine>,
) -> Result<(End, Option<Summary>), RunError> {
    let (shares, mut variables) = share_loops(launch, &options);
    variables.extend(launch.environment.iter().cloned());
    let child = Child::start(&launch.command, &variables, launch.origin)?;
    let child = child.signalled_by(launch.signals_all);
    let started_ns = monotonic_ns();
    let mut trace = Trace::start(launch.trace.clone(), &launch.words(), child.pid());
    let (is_observed, job, ask_daemon) = match started(child.pid()) {
        BalancedBy::Daemon(ask) => (false, None, Some(ask)),
        BalancedBy::ThisProcess => (true, None, None),
        BalancedBy::Job(job) => (true, Some(job), None),
    };
    let job = job.as_deref();
    let may_join = || job.is_some_and(|job| job.join(child.pid()));
    let mut stage = Stage::Alone;
    if is_observed {
        // The balancer of a job does it for all ranks.
        if let (Some(dir), None) = (&launch.dir, job) {
            undo_earlier(dir);
            other_runtime_dirs(dir).iter().for_each(|other| undo_earlier(other));
        }
        let mut ended = wait_for_end(&child, started_ns + SHORT_NS)?;
        let mut signs = None;
        if ended.is_none() {
            signs = may_wait(launch, &options).then(Signs::start);
            ended = wait_for_end(&child, started_ns + GRACE_NS)?;
        }
        if let Some(end) = ended {
            let elapsed_ns = monotonic_ns() - started_ns;
            let run = Run::unobserved(launch, &options, end, elapsed_ns);
            trace.end(&end.to_string(), None);
            return Ok((end, speak(job, Summary::new(run, &Totals::default()))));
        }
        // Before this process has work of its own, for which the command may have to wait.
        let signs = signs.map(|signs| (signs.read(), signs));
        stage = match (machine(), Published::new(launch, &options, child.pid())) {
            (Some(machine), Ok(published)) => match signs {
                Some((texts, signs)) => {
                    let quiet =
                        Quiet::new(published, machine, (signs, texts), &options, job.is_some());
                    Stage::Quiet(Box::new(quiet))
                }
                None if may_join() => Stage::Joined,
                None => Stage::balanced(launch, &options, machine, published, shares),
            },
            (None, _) => Stage::Alone,
            (_, Err(why)) => {
                let remedy = "mount it (mount -t proc proc /proc)";
                tracing::warn!("not balanced: cannot read /proc: {why}; {remedy}");
                Stage::Alone
            }
        };
    }
    let mut alike = Alike::default();
    let end = loop {
        if let Some(end) = child.handle_signals()? {
            break end;
        }
        if child.is_told_to_end() {
            if let Stage::Balanced(_) = &stage {
                trace.pause("told to end", "the command has its own CPUs again");
            }
            if let Stage::Quiet(quiet) = &stage {
                alike = quiet.outcome(started_ns, monotonic_ns());
            }
            stage = stage.give_back(job, child.pid());
        }
        stage = match stage {
            Stage::Balanced(mut balancing) => {
                balancing.wait(&child, &mut trace);
                Stage::Balanced(balancing)
            }
            Stage::Quiet(mut quiet) => {
                let is_over = quiet.wait(&child, &machine);
                if !is_over && !job.is_some_and(Job::has_balancer) {
                    Stage::Quiet(quiet)
                } else {
                    alike = quiet.outcome(started_ns, monotonic_ns());
                    let (published, machine) = quiet.into_parts();
                    if may_join() {
                        Stage::Joined
                    } else {
                        Stage::balanced(launch, &options, machine, published, None)
                    }
                }
            }
            stage @ (Stage::Alone | Stage::Joined | Stage::Left(_) | Stage::Over(_)) => {
                let mut readable = [PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
                wait_beside_command(&mut readable, None);
                stage
            }
        };
    };
    let elapsed_ns = monotonic_ns() - started_ns;
    if let Stage::Quiet(quiet) = &stage {
        alike = quiet.outcome(started_ns, started_ns + elapsed_ns);
    }
    let run = Run { alike, ..Run::unobserved(launch, &options, end, elapsed_ns) };
    let summary = match stage {
        Stage::Alone => ask_daemon.and_then(|ask| ask()).map(|summary| of(run, summary)),
        Stage::Joined => job.and_then(|job| job.leave(child.pid())).map(|summary| of(run, summary)),
        Stage::Left(summary) => summary.map(|summary| of(run, *summary)),
        Stage::Quiet(_) | Stage::Over(None) => speak(job, Summary::new(run, &Totals::default())),
        Stage::Balanced(balancing) => balancing.close().map(|closed| closed.summary(run)),
        Stage::Over(Some(closed)) => Some(closed.summary(run)),
    };
    trace.end(&end.to_string(), summary.as_ref().map(|summary| &summary.gain));
    Ok((end, summary))
}

/// The summary of a job or of a daemon, with what this process knows of its command.
fn of(run: Run, summary: Summary) -> Summary {
    Summary {
        command: run.command,
        exit_code: run.exit_code,
        elapsed_ns: run.elapsed_ns,
        alike_ns: run.alike.ns,
        sign: run.alike.sign,
        ..summary
    }
}

/// The summary of a command that was not balanced. Of the ranks of a job, one prints it.
fn speak(job: Option<&dyn Job>, summary: Summary) -> Option<Summary> {
    let Some(job) = job else { return Some(summary) };
    let job_summary = JobSummary { name: job.name(), ..JobSummary::default() };
    // Other ranks are balanced, and the last one of those prints it.
    let speaks = job.is_speaker() && !job.has_balancer();
    speaks.then_some(Summary { job: Some(job_summary), ..summary })
}

/// What is done beside the command.
enum Stage {
    /// Nothing: a daemon balances it, or it cannot be balanced.
    Alone,
    /// Nothing: the balancer of its job balances it.
    Joined,
    /// The accounting is not loaded while the CPUs look alike, or barriers come too often for moves.
    Quiet(Box<Quiet>),
    Balanced(Box<Balancing>),
    /// Nothing any more: all is given back, since the command was told to end.
    Over(Option<Box<Closed>>),
    /// The same of a rank, with the summary of its job if it was the last one there.
    Left(Option<Box<Summary>>),
}

impl Stage {
    /// Gives everything back before this process may be killed.
    fn give_back(self, job: Option<&dyn Job>, pid: u32) -> Self {
        match self {
            Self::Balanced(balancing) => {
                tracing::info!("told to end: the command has its own CPUs again");
                Self::Over(balancing.close().map(Box::new))
            }
            Self::Quiet(_) => Self::Over(None),
            Self::Joined => Self::Left(job.and_then(|job| job.leave(pid)).map(Box::new)),
            stage @ (Self::Alone | Self::Left(_) | Self::Over(_)) => stage,
        }
    }

    fn balanced(
        launch: &Launch,
        options: &Options,
        machine: Machine,
        published: Published,
        shares: Option<Shares>,
    ) -> Self {
        match Balancing::start(launch, options.clone(), machine, published, shares) {
            Ok(balancing) => Self::Balanced(Box::new(balancing)),
            Err(why) => {
                tracing::warn!("not balanced: {why}");
                Self::Alone
            }
        }
    }
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
fn wait_for_end(child: &Child, until_ns: u64) -> Result<Option<End>, Errno> {
    loop {
        if let Some(end) = child.handle_signals()? {
            return Ok(Some(end));
        }
        let left_ns = until_ns.saturating_sub(monotonic_ns());
        if left_ns == 0 {
            return Ok(None);
        }
        let mut readable = [PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
        wait_beside_command(&mut readable, Some(Duration::from_nanos(left_ns)));
    }
}

/// The balancer of a run with everything that keeps it safe.
struct Balancing {
    balancer: Balancer,
    rest: Rest,
    /// Of a rest on equal CPUs.
    signs: Option<SignsSince>,
    published: Published,
    /// Where the user is answered; none without a directory.
    watch_requests: Option<WatchRequests>,
    startup_cpu_ns: u64,
    explain: Option<fn(&Decision, Option<u64>)>,
}

impl Balancing {
    fn start(
        launch: &Launch,
        options: Options,
        machine: Machine,
        mut published: Published,
        shares: Option<Shares>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let root = published.status.root;
        if let Err(why) = ask_for_short_slices() {
            tracing::debug!("evenkeel keeps its long slices: {why}");
        }
        let session = match Self::open_session(launch, &options, &published.status.command) {
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
        published.status.accounting = balancer.observer().accounting();
        published.renew();
        let (startup_cpu_ns, explain) = (own_cpu_ns(), launch.explain);
        // Where tasks stay pinned, threads that are born must be seen.
        let is_soft = options.placement == Placement::Soft;
        let rest = Rest::new(is_soft && may_wait(launch, &options));
        let bind = |dir: &Path| WatchRequests::bind(dir, &published.status.balancer, root);
        let watch_requests = launch.dir.as_deref().map(bind).transpose().unwrap_or_else(|why| {
            tracing::debug!("evenkeel top cannot have it only watched: {why}");
            None
        });
        Ok(Self { balancer, rest, signs: None, published, watch_requests, startup_cpu_ns, explain })
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
    fn wait(&mut self, child: &Child, trace: &mut Trace) {
        if let Some((_, since_ns)) = self.rest.current() {
            let left_ns = self.rest.until_ns().saturating_sub(monotonic_ns());
            if left_ns == 0 {
                if self.is_still_equal() {
                    self.rest.prolong(monotonic_ns());
                } else {
                    self.wake(since_ns, trace);
                }
                return;
            }
            let patience = self.patience(left_ns);
            let mut readable = vec![PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
            readable.extend(self.watch_requests.iter().flat_map(WatchRequests::poll_fds));
            wait_beside_command(&mut readable, Some(patience));
            self.take_wishes(trace);
            return;
        }
        let due_ns = self.balancer.due_ns().unwrap_or(u64::MAX);
        let left_ns = due_ns.saturating_sub(monotonic_ns());
        if left_ns == 0 {
            self.balance(trace);
            return;
        }
        let patience = self.patience(left_ns);
        let mut readable = vec![PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
        readable.extend(self.watch_requests.iter().flat_map(WatchRequests::poll_fds));
        let others = readable.len();
        if let Some(cbinfo) = self.balancer.observer().cbinfo() {
            readable.push(PollFd::new(cbinfo.event_fd(), PollFlags::POLLIN));
        }
        wait_beside_command(&mut readable, Some(patience));
        let events = readable.get(others).is_some_and(|fd| fd.any() == Some(true));
        self.take_wishes(trace);
        if events && let Err(why) = self.balancer.handle_events() {
            tracing::warn!("{why}");
        }
    }

    /// How long to wait, at most so many ns: a request that was read may be answered before.
    fn patience(&self, left_ns: u64) -> Duration {
        let left = Duration::from_nanos(left_ns);
        let patience = self.watch_requests.as_ref().and_then(WatchRequests::patience);
        patience.map_or(left, |patience| patience.min(left))
    }

    /// Only watches the program, or balances it again, as its user wants.
    fn take_wishes(&mut self, trace: &mut Trace) {
        let can_move = self.balancer.can_move();
        let requests = self.watch_requests.as_mut();
        let Some(watch) = requests.and_then(|requests| requests.serve(can_move)) else { return };
        self.balancer.set_watched(self.published.status.root, watch);
        let what = if watch { "is only watched" } else { "is balanced again" };
        tracing::info!("the program {what}, as its user wants");
        trace.note(what, "as its user wants");
        self.published.status.dry_run = watch;
        self.published.renew();
        self.publish();
    }

    fn balance(&mut self, trace: &mut Trace) {
        match self.balancer.balance_due() {
            // A window for barriers ended, or the program is stopped: nothing was decided.
            Ok(due) if due.is_empty() => return,
            Ok(_) => {}
            Err(why) => tracing::warn!("{why}"),
        }
        let root = self.published.status.root;
        let decision = self.balancer.decisions(root).last();
        if let (Some(explain), Some(decision)) = (self.explain, decision) {
            explain(decision, self.published.status.started_ns);
        }
        if let Some(totals) = self.balancer.totals(root) {
            trace.round(self.balancer.last_reading(), decision, totals.gain());
        }
        let useless = self.rest.may_begin(self.balancer.useless(root), monotonic_ns());
        if let Some(why) = useless.filter(|_| self.balancer.rest()) {
            self.rest.begin(why, monotonic_ns());
            let why_now = match why {
                Useless::Gainless => {
                    "balancing gains nothing now, so the accounting is unloaded for a while"
                }
                Useless::Equal => {
                    "there is nothing to balance now, so the accounting is unloaded until a sign"
                }
            };
            tracing::info!("{why_now}");
            trace.pause("rests", why_now);
            self.signs = (why == Useless::Equal)
                .then(|| SignsSince::start(root, self.balancer.usable_cpus(root)));
            self.published.renew();
        }
        self.publish();
        self.balancer.observer().open_due_window();
    }

    /// In a rest on equal CPUs: looks for a sign that they are so no longer.
    fn is_still_equal(&mut self) -> bool {
        let Some(signs) = &mut self.signs else { return false };
        match signs.look() {
            None => true,
            Some(why) => {
                tracing::info!("the CPUs are looked at again: {why}");
                false
            }
        }
    }

    /// Goes on after a rest.
    fn wake(&mut self, since_ns: u64, trace: &mut Trace) {
        let (root, now_ns) = (self.published.status.root, monotonic_ns());
        match self.balancer.wake(root, root, now_ns - since_ns) {
            Ok(()) => {
                self.rest.end(now_ns);
                trace.note("goes on after a rest", "");
                self.published.renew();
            }
            Err(why) => {
                tracing::warn!("{why}; balancing rests for longer");
                self.rest.prolong(now_ns);
            }
        }
    }

    fn publish(&mut self) {
        if !self.published.is_due() {
            return;
        }
        let status = &mut self.published.status;
        let (root, accounting) = (status.root, self.balancer.observer().accounting());
        let Some(totals) = self.balancer.totals(root) else { return };
        let is_at_rest = totals.moves == status.moves && status.intervals > 0;
        status.resting = self.rest.current().is_some();
        status.intervals = totals.intervals;
        status.accounting = accounting;
        status.moves = totals.moves;
        status.yielded = totals.yielded;
        status.gain = totals.gain().clone();
        status.cpus = totals.cpus();
        status.shares = self.balancer.shares(root);
        (status.waits, status.threads) = self.balancer.waits(root).unwrap_or_default();
        status.decisions = self.balancer.decisions(root).cloned().collect();
        self.published.write(is_at_rest);
        self.published.tell();
    }

    /// Gives everything back.
    fn close(mut self) -> Option<Closed> {
        let accounting = self.balancer.observer().accounting();
        let why_not_exact = self.balancer.why_not_exact();
        if let Some((_, since_ns)) = self.rest.current() {
            self.balancer.count_rest(self.published.status.root, monotonic_ns() - since_ns);
        }
        let own_cpu_until_end_ns = own_cpu_ns();
        let (totals, _) = self.balancer.finish().remove(&self.published.status.root)?;
        let startup_cpu_ns = self.startup_cpu_ns + (own_cpu_ns() - own_cpu_until_end_ns);
        let own_cpu_ns = own_cpu_until_end_ns.saturating_sub(self.startup_cpu_ns);
        Some(Closed { totals, accounting, why_not_exact, own_cpu_ns, startup_cpu_ns })
    }
}

/// The summary of a command of which the end is not known.
pub fn without_end(launch: &Launch, options: &Options, why: &RunError) -> Summary {
    let end = End::Exited(why.exit_code());
    Summary::new(Run::unobserved(launch, options, end, 0), &Totals::default())
}

/// The figures of a balancer that has given everything back.
struct Closed {
    totals: Totals,
    accounting: Accounting,
    why_not_exact: Option<String>,
    own_cpu_ns: u64,
    startup_cpu_ns: u64,
}

impl Closed {
    fn summary(self, run: Run) -> Summary {
        let Self { totals, accounting, why_not_exact, own_cpu_ns, startup_cpu_ns } = self;
        Summary::new(Run { accounting, why_not_exact, own_cpu_ns, startup_cpu_ns, ..run }, &totals)
    }
}

impl Run {
    /// Of a command that was not observed.
    fn unobserved(launch: &Launch, options: &Options, end: End, elapsed_ns: u64) -> Self {
        Self {
            command: launch.words(),
            exit_code: end.exit_code(),
            elapsed_ns,
            accounting: Accounting::None,
            why_not_exact: None,
            alike: Alike::default(),
            placement: options.placement,
            dry_run: options.dry_run,
            threads_per_cpu: launch.threads.map(|threads| threads.per_cpu),
            own_cpu_ns: 0,
            startup_cpu_ns: own_cpu_ns(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Origin;

    /// What is started again by the caller must not have been started.
    #[test]
    fn a_command_that_was_started_is_lost_and_not_one_that_was_not() {
        let launch = |command: &str| Launch {
            command: vec![command.into()],
            origin: Origin::default(),
            override_user: false,
            dir: None,
            supervisor: |_| None,
            shares: None,
            explain: None,
            trace: None,
            signals_all: None,
            environment: Vec::new(),
            threads: None,
            step: None,
        };
        // Another part of the process waits for the command first.
        let take_end = |pid| {
            nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid as i32), None).unwrap();
            BalancedBy::ThisProcess
        };
        let outcome = |command| run(&launch(command), Options::by_procfs(), take_end, || None);
        assert!(matches!(outcome("true"), Err(RunError::Lost(Errno::ECHILD))));
        assert!(matches!(outcome("no-such-command"), Err(RunError::NotStarted(_))));
    }
}
