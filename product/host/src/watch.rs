//! When waiting is looked for, and what is found: drives cbinfo's samples and its windows.
//!
//! Both cost time of CPUs, so nothing is attached at rest: only while some program runs two tasks or
//! more on CPUs that differ, and for two seconds afterwards. It is sampled often at first and seldom
//! later, unless its tasks spin much although they are exchanged: how long its phases are must be known
//! well then.
//! The window for barriers slows every system call of every task, so it is open for 12 ms in each
//! second. `evenkeel-lab bench waiting` measures both.

mod barriers;
mod often;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use evenkeel_capability::Snapshot;
use evenkeel_cbinfo::{Error, Runtimes, Text, Waiting};

use self::barriers::Barriers;
use self::often::Often;
use crate::profile::Profile;
use crate::reading::{ProgramReading, Reading, Watched};

/// Samples a second on each CPU: so many tell a share of waiting within 3 points after two seconds.
pub const OFTEN_HERTZ: u64 = 499;
/// How long samples are so frequent, in ns, where no task that spins is exchanged.
const FIRST_NS: u64 = 2_000_000_000;
/// Samples a second otherwise. They cost less than 1/1000 of a CPU, also in a virtual machine, where
/// each sample leaves the guest (`evenkeel-lab bench waiting`). A prime: few programs repeat themselves
/// as often.
pub const SELDOM_HERTZ: u64 = 61;
/// A program is watched for so long after the last interval with a reason for it.
const LINGER_NS: u64 = 2_000_000_000;
/// How long barriers are counted, ...
pub const WINDOW_NS: u64 = 12_000_000;
/// ... and how often.
pub const WINDOW_EVERY_NS: u64 = 1_000_000_000;
/// How often the time between two samples is varied: not much more often than the samples come, for each
/// change delays the next one.
const VARY_EVERY_NS: u64 = 250_000_000;
/// How often it is checked what the processes have mapped, ...
const CHECK_EVERY_NS: u64 = 1_000_000_000;
/// ... and while there are new ones, or more than one check may look at.
const CHECK_AGAIN_NS: u64 = 100_000_000;
/// One check looks at this many processes at most: the programs' next round waits meanwhile.
const LOOKS_A_CHECK: usize = 16;
/// At most so many processes of a program are watched: no more of them compute at the same time.
const MAX_PROCESSES: usize = 1024;
/// A process that has run for less is not looked at: most of them end before that.
const MIN_RUN_NS: u64 = 50_000_000;
/// CPUs differ if one gives so much less than the best one: 1/50.
const UNEQUAL_SHARE: u64 = 50;
/// A task counts as running if it did for this part of the interval: 1/10.
const BUSY_SHARE: u64 = 10;

/// What is looked for in the programs, and what was found so far.
#[derive(Default)]
pub(crate) struct Watch {
    runtimes: Runtimes,
    /// The programs that are watched.
    programs: BTreeMap<u32, Program>,
    /// Their processes that were looked at.
    processes: BTreeMap<u32, Process>,
    /// The run time of those that were too new to be looked at.
    new: BTreeMap<u32, u64>,
    next_check_ns: u64,
    sampling: Option<Sampling>,
    window_ends_ns: Option<u64>,
    window_next_ns: u64,
    /// Why there are no samples, once they were refused.
    why_no_samples: Option<Rc<str>>,
    /// Windows were refused.
    no_windows: bool,
    has_given_up: bool,
    stepped_ns: u64,
    varied_ns: u64,
}

/// Sampling that is on.
struct Sampling {
    since_ns: u64,
    hertz: u64,
    /// An idle CPU must not be woken for it, so only these.
    cpus: BTreeSet<u32>,
}

#[derive(Default)]
struct Program {
    until_ns: u64,
    often: Often,
    found: Watched,
    /// Where samples found its threads.
    profile: Profile,
    barriers: Barriers,
}

struct Process {
    program: u32,
    /// The size of its memory map when it was read: libraries that come and go change it.
    pages: String,
    /// Where it waits, or why that could not be noted.
    text: Result<Text, Rc<str>>,
    /// Where else its threads were found to wait (`profile.rs`).
    learned: Vec<Range<u64>>,
}

impl Watch {
    /// Counts waiting in these files and functions as well.
    pub(crate) fn set_runtimes(&mut self, extra: &[String]) {
        self.runtimes = Runtimes::new(extra);
        // Not forgotten: their ranges are to be replaced.
        self.processes.values_mut().for_each(|process| process.pages.clear());
        self.next_check_ns = 0;
    }

    /// Takes the interval of a program as a reason to watch it, if it is one; to sample it often, if its
    /// tasks were exchanged (`has_exchanged`) and spin much all the same.
    pub(crate) fn attend(
        &mut self,
        program: u32,
        snapshot: &Snapshot,
        has_exchanged: bool,
        now_ns: u64,
    ) {
        if is_worth_watching(snapshot) {
            self.programs.entry(program).or_default().until_ns = now_ns + LINGER_NS;
        }
        if let Some(program) = self.programs.get_mut(&program) {
            program.often.take_in(snapshot, has_exchanged, now_ns);
            program.profile.take_in(snapshot);
        }
    }

    /// Stops watching a program.
    pub(crate) fn forget(&mut self, program: u32) {
        self.programs.remove(&program);
    }

    /// A process has called exec: what it had mapped is gone.
    pub(crate) fn note_exec(&mut self, tgid: u32) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.pages.clear();
            process.learned.clear();
            if let Some(program) = self.programs.get_mut(&process.program) {
                program.profile.forget(tgid);
            }
            self.next_check_ns = 0;
        }
    }

    /// The CPUs are others now: sampling begins anew on them.
    pub(crate) fn restart(&mut self) {
        self.why_no_samples = None;
        if let Some(sampling) = &mut self.sampling {
            sampling.hertz = 0;
        }
    }

    /// When [`Watch::close_due_window`] is to be called; `None` without a window.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.window_ends_ns
    }

    /// Whether [`Watch::step`] has anything to do. (Before it has, nothing is even loaded.)
    pub(crate) fn is_active(&self) -> bool {
        !self.programs.is_empty()
            || !self.processes.is_empty()
            || self.sampling.is_some()
            || self.window_ends_ns.is_some()
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Gives up for good: nothing more can be seen than without.
    pub(crate) fn give_up(&mut self, why: &Error) {
        tracing::info!("waiting is not told from work: {why}");
        self.why_no_samples = Some(Rc::from(why.to_string()));
        self.has_given_up = true;
        self.sampling = None;
        self.window_ends_ns = None;
        self.processes.clear();
    }

    /// Adds what was found so far to the reading.
    pub(crate) fn fill(&self, reading: &mut Reading) {
        for (number, program) in &self.programs {
            if let Some(reading) = reading.programs.get_mut(number) {
                let mut found = program.found.clone();
                found.unverified = self.why_unverified(*number);
                found.may_be_told = self.why_no_samples.is_none() && program.profile.may_tell();
                reading.watched = Some(found);
            }
        }
    }

    fn why_unverified(&self, number: u32) -> Option<Rc<str>> {
        if let Some(why) = &self.why_no_samples {
            return Some(Rc::clone(why));
        }
        let mut processes = self.processes.iter().filter(|(_, process)| process.program == number);
        if let Some(why) = processes.clone().find_map(|(_, process)| process.text.as_ref().err()) {
            return Some(Rc::clone(why));
        }
        let is_told = |tgid| {
            self.programs.get(&number).is_some_and(|program| program.profile.found(tgid).is_told)
        };
        match processes.clone().count() {
            0 => Some(Rc::from("its processes are new")),
            _ if processes.all(|(tgid, process)| !process.has_runtime() && !is_told(*tgid)) => {
                Some(Rc::from(NO_RUNTIME))
            }
            _ => None,
        }
    }

    /// Begins, changes and ends what is attached.
    pub(crate) fn step(&mut self, waiting: &mut Waiting, reading: &Reading) -> Result<(), Error> {
        let now_ns = reading.at_ns;
        let since_ns = std::mem::replace(&mut self.stepped_ns, now_ns);
        let was_sampling = self.sampling.is_some();
        self.programs.retain(|number, program| {
            program.until_ns > now_ns && reading.programs.contains_key(number)
        });
        if self.programs.is_empty() {
            return self.rest(waiting);
        }
        self.check_processes(waiting, reading)?;
        if was_sampling {
            for program in self.programs.values_mut() {
                program.found.sampled_ns += now_ns.saturating_sub(since_ns);
            }
            self.take_places(waiting, reading)?;
            self.teach(waiting)?;
        }
        self.sample(waiting, reading);
        self.close_due_window(waiting, now_ns)
    }

    /// Gives the samples to the profiles of their programs.
    fn take_places(&mut self, waiting: &mut Waiting, reading: &Reading) -> Result<(), Error> {
        let places = waiting.places()?;
        if places.is_empty() {
            return Ok(());
        }
        let mut program_of = HashMap::new();
        for number in self.programs.keys() {
            let tasks = reading.programs.get(number).into_iter().flat_map(|of| of.tasks.keys());
            program_of.extend(tasks.map(|task| (task.tid, *number)));
        }
        for place in places {
            let number = program_of.get(&place.tid);
            if let Some(program) = number.and_then(|number| self.programs.get_mut(number)) {
                program.profile.note(place);
            }
        }
        Ok(())
    }

    /// Counts waiting also where the profiles found it, from now on.
    fn teach(&mut self, waiting: &mut Waiting) -> Result<(), Error> {
        for (tgid, process) in &mut self.processes {
            let Some(program) = self.programs.get_mut(&process.program) else { continue };
            let Ok(text) = &process.text else { continue };
            program.profile.set_known(*tgid, &text.ranges);
            let learned = program.profile.found(*tgid).waits;
            if learned != process.learned {
                tracing::debug!(tgid, ?learned, "waits there, too");
                waiting.set_ranges(*tgid, &ranges_of(&learned, text))?;
                process.learned = learned;
                program.found.changes += 1;
            }
        }
        Ok(())
    }

    /// Ends the window if it is time.
    pub(crate) fn close_due_window(
        &mut self,
        waiting: &mut Waiting,
        now_ns: u64,
    ) -> Result<(), Error> {
        if self.window_ends_ns.is_none_or(|end_ns| end_ns > now_ns) {
            return Ok(());
        }
        self.window_ends_ns = None;
        let window = waiting.barriers().close_window()?;
        for (number, program) in &mut self.programs {
            program.barriers.add(&window, *number, &mut program.found);
        }
        Ok(())
    }

    /// Detaches everything if no program is watched any more.
    pub(crate) fn rest_without_programs(&mut self, waiting: &mut Waiting) -> Result<(), Error> {
        if self.programs.is_empty() { self.rest(waiting) } else { Ok(()) }
    }

    fn rest(&mut self, waiting: &mut Waiting) -> Result<(), Error> {
        if self.sampling.take().is_some() {
            waiting.stop_sampling();
        }
        if self.window_ends_ns.take().is_some() {
            waiting.barriers().close_window()?;
        }
        for tgid in std::mem::take(&mut self.processes).into_keys() {
            forget(waiting, tgid)?;
        }
        self.new.clear();
        self.next_check_ns = 0;
        Ok(())
    }

    /// Whether tasks of some program are exchanged, and spin much.
    fn is_any_exchanged_in_vain(&self, now_ns: u64) -> bool {
        self.programs.values().any(|program| program.often.is_due(now_ns))
    }

    fn sample(&mut self, waiting: &mut Waiting, reading: &Reading) {
        let now_ns = reading.at_ns;
        let since_ns = self.sampling.as_ref().map_or(now_ns, |sampling| sampling.since_ns);
        let is_new = now_ns - since_ns < FIRST_NS;
        let hertz = if is_new || self.is_any_exchanged_in_vain(now_ns) {
            OFTEN_HERTZ
        } else {
            SELDOM_HERTZ
        };
        let programs = self.programs.keys().filter_map(|number| reading.programs.get(number));
        let mut cpus = used_cpus(programs);
        if let Some(sampling) = self.sampling.as_ref().filter(|sampling| sampling.hertz == hertz) {
            if cpus.is_subset(&sampling.cpus) {
                if now_ns - self.varied_ns >= VARY_EVERY_NS {
                    self.varied_ns = now_ns;
                    waiting.vary_period();
                }
                return;
            }
            // Tasks that left a CPU often come back.
            cpus.extend(&sampling.cpus);
        }
        if self.why_no_samples.is_some() || cpus.is_empty() {
            return;
        }
        let all: Vec<u32> = cpus.iter().copied().collect();
        self.sampling = match waiting.start_sampling(&all, hertz) {
            Ok(()) => Some(Sampling { since_ns, hertz, cpus }),
            Err(why) => {
                tracing::info!("{why}");
                self.why_no_samples = Some(Rc::from(why.to_string()));
                None
            }
        };
    }

    /// Begins a window if it is time. Call it last in a round: while evenkeel computes, it takes a CPU
    /// from the program, which then passes fewer barriers.
    pub(crate) fn open_due_window(&mut self, waiting: &mut Waiting, now_ns: u64) {
        // Of processes that were not looked at yet nothing would be counted.
        if self.processes.is_empty()
            || self.no_windows
            || self.window_ends_ns.is_some()
            || now_ns < self.window_next_ns
        {
            return;
        }
        match waiting.barriers().open_window() {
            Ok(()) => {
                self.window_ends_ns = Some(now_ns + WINDOW_NS);
                self.window_next_ns = now_ns + WINDOW_EVERY_NS;
            }
            Err(why) => {
                tracing::info!("barriers are not counted: {why}");
                self.no_windows = true;
            }
        }
    }

    /// Finds where the processes of the watched programs wait, as far as they changed.
    fn check_processes(&mut self, waiting: &mut Waiting, reading: &Reading) -> Result<(), Error> {
        if reading.at_ns < self.next_check_ns {
            return Ok(());
        }
        let mut check_again = false;
        let mut looks = 0;
        let mut seen = std::mem::take(&mut self.processes);
        let new = std::mem::take(&mut self.new);
        for number in self.programs.keys() {
            let Some(program) = reading.programs.get(number) else { continue };
            for (tgid, run_ns) in run_by_process(program).into_iter().take(MAX_PROCESSES) {
                let known = seen.remove(&tgid);
                if known.is_none() && run_ns < MIN_RUN_NS {
                    // Soon, if it runs: one that sleeps has nothing to be seen.
                    check_again |= new.get(&tgid) != Some(&run_ns);
                    self.new.insert(tgid, run_ns);
                    continue;
                }
                let pages = pages_of(tgid);
                let is_as_before =
                    known.as_ref().is_some_and(|known| Some(&known.pages) == pages.as_ref());
                let learned = known.as_ref().map(|known| known.learned.clone()).unwrap_or_default();
                let stays = is_as_before || looks >= LOOKS_A_CHECK;
                looks += usize::from(!stays);
                let found = (!stays).then(|| self.runtimes.find(tgid));
                // What is known of a process that cannot be read in time stays.
                let is_late = |why: &std::io::Error| why.kind() == std::io::ErrorKind::TimedOut;
                let found = found.filter(|found| !found.as_ref().is_err_and(is_late));
                let Some(found) = found else {
                    check_again |= !is_as_before;
                    // Its program left and has joined again.
                    if known.as_ref().is_some_and(|known| known.program != *number) {
                        waiting.barriers().watch(tgid, *number)?;
                    }
                    let known = known.map(|known| Process { program: *number, ..known });
                    self.processes.extend(known.map(|known| (tgid, known)));
                    continue;
                };
                let (Some(pages), Ok(text)) = (pages, found) else {
                    // Ended meanwhile, or out of reach.
                    forget(waiting, tgid)?;
                    continue;
                };
                tracing::debug!(tgid, ?text, "waits there");
                let set = waiting.set_ranges(tgid, &ranges_of(&learned, &text));
                let text = match set.and_then(|()| waiting.barriers().watch(tgid, *number)) {
                    Ok(()) => Ok(text),
                    // There may be too many of other programs. This one is left out, no other.
                    Err(why) => {
                        tracing::info!(tgid, "{why}");
                        Err(Rc::from(why.to_string()))
                    }
                };
                self.processes.insert(tgid, Process { program: *number, pages, text, learned });
            }
        }
        for gone in seen.keys() {
            forget(waiting, *gone)?;
        }
        let next_ns = if check_again { CHECK_AGAIN_NS } else { CHECK_EVERY_NS };
        self.next_check_ns = reading.at_ns + next_ns;
        Ok(())
    }
}

impl Process {
    /// Whether a runtime is known by which its threads wait.
    fn has_runtime(&self) -> bool {
        self.text.as_ref().is_ok_and(|text| !text.runtimes.is_empty())
    }
}

fn forget(waiting: &mut Waiting, tgid: u32) -> Result<(), Error> {
    waiting.forget_ranges(tgid)?;
    waiting.barriers().forget(tgid)
}

/// All places where a process waits. The kernel side keeps the first ones: a runtime has most of its
/// text for nothing, but threads were seen to wait in what was learned.
fn ranges_of(learned: &[Range<u64>], text: &Text) -> Vec<Range<u64>> {
    learned.iter().chain(&text.ranges).cloned().collect()
}

const NO_RUNTIME: &str = "no runtime by which its threads wait is known (name it: --runtimes)";

/// Whether two tasks or more run, and the CPUs differ in what they give to them.
fn is_worth_watching(snapshot: &Snapshot) -> bool {
    let interval_ns = snapshot.interval_ns;
    let busy = snapshot.tasks.iter().filter(|task| task.demand_ns() > interval_ns / BUSY_SHARE);
    let rates = || snapshot.cpus.iter().map(|cpu| cpu.given_ns(interval_ns));
    let (Some(least), Some(most)) = (rates().min(), rates().max()) else { return false };
    busy.count() >= 2 && most - least > most / UNEQUAL_SHARE
}

fn run_by_process(program: &ProgramReading) -> BTreeMap<u32, u64> {
    let mut run_ns = BTreeMap::new();
    for task in program.tasks.values() {
        *run_ns.entry(task.process).or_default() += task.run_ns;
    }
    run_ns
}

/// The CPUs of the tasks that have computed.
fn used_cpus<'r>(programs: impl Iterator<Item = &'r ProgramReading>) -> BTreeSet<u32> {
    let tasks = programs.flat_map(|program| program.tasks.values());
    tasks.filter(|task| task.run_ns >= MIN_RUN_NS).map(|task| task.cpu).collect()
}

/// The size of a process's memory map, in pages.
fn pages_of(tgid: u32) -> Option<String> {
    let sizes = std::fs::read_to_string(format!("/proc/{tgid}/statm")).ok()?;
    sizes.split(' ').next().map(str::to_owned)
}

#[cfg(test)]
mod tests;
