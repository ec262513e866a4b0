//! The time of `evenkeel run` in which nothing is loaded, because the CPUs look alike: a program on such
//! CPUs gains nothing by being balanced, and the exact accounting slows it down. Now and then it looks
//! for a sign (`signs`). With the first one this time is over, unless the program's barriers come too
//! often for moves (`first_window`): then it lasts as long as they do, up to a limit.

use std::time::Duration;

use evenkeel_capability::{LagParameters, Policy, Preference, Reason};
use evenkeel_journal::effective_cpuset;
use evenkeel_machine::{CpuSet, Machine};
use nix::poll::{PollFd, PollFlags};

use crate::child::Child;
use crate::clock::monotonic_ns;
use crate::first_window::FirstWindow;
use crate::launch::Launch;
use crate::observe::AccountingChoice;
use crate::options::Options;
use crate::publish::Published;
use crate::rest::FIRST_NS as REST_NS;
use crate::signs::{Sign, Signs, Texts, unequal_speeds};
use crate::summary::Alike;
use crate::wait::wait_beside_command;
use crate::waits::Waits;

/// The times between the first looks ...
const FIRST_NS: [u64; 4] = [50_000_000, 100_000_000, 200_000_000, 400_000_000];
/// ... and between all others.
const LATER_NS: u64 = 1_000_000_000;
/// After so long it is looked whether barriers still come too often.
const COUNT_AGAIN_NS: u64 = 5_000_000_000;

/// Whether `run` is to wait for a sign. It does not where figures or levers other than moves are asked
/// for, nor where a daemon may serve figures: nothing is loaded here then.
pub(crate) fn may_wait(launch: &Launch, options: &Options) -> bool {
    let asks_for_figures = options.dry_run
        || launch.explain.is_some()
        || launch.trace.is_some()
        || options.accounting != AccountingChoice::Auto
        || !matches!(
            options.policy,
            Policy::Lag(LagParameters { prefer: Preference::Capable, .. })
        );
    let has_other_lever = launch.threads.is_some() || launch.shares.is_some();
    let may_be_served = options.daemons.iter().any(|socket| socket.exists());
    !asks_for_figures && !has_other_lever && !may_be_served
}

/// The signs since the begin of a rest on equal CPUs.
pub(crate) struct SignsSince {
    signs: Signs,
    /// The program's first process, and the cpuset that it had.
    root: u32,
    cpuset: CpuSet,
    usable: CpuSet,
}

impl SignsSince {
    pub(crate) fn start(root: u32, usable: CpuSet) -> Self {
        Self { signs: Signs::start(), root, cpuset: effective_cpuset(root as i32), usable }
    }

    /// Takes a look, some time after the last one. Returns the sign, in words.
    pub(crate) fn look(&mut self) -> Option<String> {
        if effective_cpuset(self.root as i32) != self.cpuset {
            return Some("the program's CPUs are others".to_owned());
        }
        let texts = self.signs.read();
        self.signs.compare(&texts, &self.usable).map(|sign| sign.to_string())
    }
}

/// A program beside which nothing is loaded yet.
pub(crate) struct Quiet {
    published: Published,
    machine: Machine,
    signs: Signs,
    /// The texts of the first look.
    first: Option<Texts>,
    /// The CPUs that the program's cpuset allows.
    cpuset: CpuSet,
    /// The CPUs that `--cpus` chooses.
    chosen: Option<CpuSet>,
    looks: usize,
    due_ns: u64,
    /// The program is one of several ranks of a job.
    is_rank: bool,
    state: State,
    /// The sign, and when it was found.
    sign: Option<(Sign, u64)>,
    /// Why nothing is loaded all the same, and since when.
    rest: Option<(Reason, u64)>,
}

/// What is waited for.
enum State {
    Sign,
    /// The end of a window, in which barriers are counted.
    Count(FirstWindow),
    /// The next window: barriers come too often.
    Rest,
}

impl Quiet {
    /// The next look is due now, with these texts: what `signs` know is from before.
    pub(crate) fn new(
        published: Published,
        machine: Machine,
        (signs, first): (Signs, Texts),
        options: &Options,
        is_rank: bool,
    ) -> Self {
        let cpuset = effective_cpuset(published.status.root as i32);
        let (chosen, due_ns, first) = (options.cpus.clone(), monotonic_ns(), Some(first));
        Self {
            published,
            machine,
            signs,
            first,
            cpuset,
            chosen,
            looks: 0,
            due_ns,
            is_rank,
            state: State::Sign,
            sign: None,
            rest: None,
        }
    }

    /// Sleeps until the next thing to do, and does it. Returns whether this time is over. `detect` reads
    /// the machine anew.
    pub(crate) fn wait(&mut self, child: &Child, detect: impl Fn() -> Option<Machine>) -> bool {
        let left_ns = self.due_ns.saturating_sub(monotonic_ns());
        if left_ns > 0 {
            let mut readable = [PollFd::new(child.signal_fd(), PollFlags::POLLIN)];
            wait_beside_command(&mut readable, Some(Duration::from_nanos(left_ns)));
            return false;
        }
        match std::mem::replace(&mut self.state, State::Rest) {
            State::Sign => self.wait_for_sign(detect),
            State::Count(window) => self.judge(window),
            State::Rest => self.count_again(),
        }
    }

    fn wait_for_sign(&mut self, detect: impl Fn() -> Option<Machine>) -> bool {
        self.state = State::Sign;
        let sign = self.look(detect);
        self.due_ns = monotonic_ns() + FIRST_NS.get(self.looks).copied().unwrap_or(LATER_NS);
        self.looks += 1;
        // Once: nothing of it changes.
        if sign.is_none() && self.looks == 1 {
            self.published.write(true);
        }
        let Some(sign) = sign else { return false };
        tracing::info!("the CPUs are taken for unequal: {sign}");
        self.sign = Some((sign, monotonic_ns()));
        if self.is_rank {
            // The other ranks compute, too.
            return true;
        }
        self.count()
    }

    /// Opens a window. Returns whether that failed.
    fn count(&mut self) -> bool {
        match FirstWindow::open(self.published.status.root) {
            Ok(window) => {
                (self.due_ns, self.state) = (window.ends_ns(), State::Count(window));
                false
            }
            Err(why) => {
                tracing::debug!("no barriers are counted: {why}");
                true
            }
        }
    }

    /// Rests if barriers come too often.
    fn judge(&mut self, window: FirstWindow) -> bool {
        let barriers = match window.close(self.usable().len()) {
            Ok(Some(barriers)) => barriers,
            Ok(None) => return true,
            Err(why) => {
                tracing::debug!("{why}");
                return true;
            }
        };
        let waits = Waits { barriers: Some(barriers), ..Waits::default() };
        let reason = Reason::PhasesTooShort { phase_ns: waits.phase_ns().unwrap_or_default() };
        let now_ns = monotonic_ns();
        if self.rest.is_none() {
            tracing::info!("{reason}, so nothing is loaded for a while");
        }
        let (_, since_ns) = self.rest.take().unwrap_or((reason.clone(), now_ns));
        self.rest = Some((reason, since_ns));
        self.due_ns = (now_ns + COUNT_AGAIN_NS).min(since_ns + REST_NS);
        self.state = State::Rest;
        self.published.status.resting = true;
        self.published.status.waits = waits;
        self.published.write(true);
        false
    }

    /// Counts barriers again, unless it is time to look at all.
    fn count_again(&mut self) -> bool {
        let root = self.published.status.root;
        let is_long =
            self.rest.as_ref().is_none_or(|(_, since_ns)| monotonic_ns() >= since_ns + REST_NS);
        is_long || effective_cpuset(root as i32) != self.cpuset || self.count()
    }

    fn look(&mut self, detect: impl Fn() -> Option<Machine>) -> Option<Sign> {
        let cpuset = effective_cpuset(self.published.status.root as i32);
        if cpuset != self.cpuset {
            // A CPU that has come since may be unknown.
            if let Some(machine) = detect() {
                self.machine = machine;
            }
            self.cpuset = cpuset;
        }
        let usable = self.usable();
        let texts = self.first.take().unwrap_or_else(|| self.signs.read());
        unequal_speeds(&self.machine, &usable).or_else(|| self.signs.compare(&texts, &usable))
    }

    /// The CPUs that the program may use.
    fn usable(&self) -> CpuSet {
        let allowed = self.cpuset.difference(&self.machine.isolated());
        match &self.chosen {
            Some(chosen) => allowed.intersection(chosen),
            None => allowed,
        }
    }

    /// What came of this time until now. The program was started at `started_ns`.
    pub(crate) fn outcome(&self, started_ns: u64, now_ns: u64) -> Alike {
        let (sign, found_ns) = self.sign.clone().unzip();
        let (reason, since_ns) = self.rest.clone().unzip();
        Alike {
            ns: found_ns.unwrap_or(now_ns) - started_ns,
            sign: sign.map(|sign| sign.to_string()),
            reason,
            rested_ns: now_ns - since_ns.unwrap_or(now_ns),
        }
    }

    /// Ends this time; returns what the balancing goes on with.
    pub(crate) fn into_parts(self) -> (Published, Machine) {
        let mut published = self.published;
        (published.status.resting, published.status.waits) = (false, Waits::default());
        (published, self.machine)
    }
}
