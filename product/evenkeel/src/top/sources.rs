//! Reads what `evenkeel top` shows, from where `doctor`, `status` and `explain` have it: /proc and
//! /sys, the status files of balancers, the sockets of daemons and of the keel. Loads nothing and
//! changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_cbinfo::{RunTimeExcludes, Unsupported, run_time_excludes};
use evenkeel_host::doctor::{CpuWatch, judge};
use evenkeel_host::{Accounting, AccountingChoice, Observer, ProgramStatus, Reading, ThreadTimes};
use evenkeel_irq::devices_of_lines;
use evenkeel_keel::Statistics;
use evenkeel_machine::{CpuSet, Machine};
use nix::time::{ClockId, clock_gettime};

use super::budget::Budget;
use super::interrupts::{Counts, Kind, Rate};
use super::model::{Cpus, Keel, Model, Program};
use crate::{daemon_client, keel_client, status};

/// How long a service may take for an answer. One that does not answer is noted; meanwhile no new
/// figures are shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why figures are those of /proc, mostly.
const WITHOUT_A_DAEMON: &str = "top loads nothing itself, and no daemon gives it exact figures \
                                (start one as root: evenkeel daemon)";

/// All sources, and what was read of them last.
pub struct Sources {
    host: String,
    cpus: Result<WatchedCpus, String>,
    interrupts: Interrupts,
    unobserved: Unobserved,
    keel: KeelBefore,
    /// The programs of the last reading.
    running: BTreeSet<u32>,
    /// One of an earlier reading has ended.
    have_ended: bool,
}

struct WatchedCpus {
    machine: Machine,
    watch: CpuWatch,
    /// No interval has passed since it was opened.
    is_new: bool,
    /// What the kernel leaves out of run times; none: not looked at yet.
    excludes: Option<Option<RunTimeExcludes>>,
}

impl Sources {
    /// Opens them. What cannot be opened is noted in each reading.
    pub fn open() -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            host: host.trim().to_owned(),
            cpus: WatchedCpus::open(),
            interrupts: Interrupts::default(),
            unobserved: Unobserved::default(),
            keel: KeelBefore::default(),
            running: BTreeSet::new(),
            have_ended: false,
        }
    }

    /// Reads all of them. Figures of an interval are those since the last call.
    pub fn read(&mut self) -> Model {
        let mut notes = Vec::new();
        let now = monotonic();
        let cpus = self.read_cpus().unwrap_or_else(|why| {
            notes.push(format!("CPUs: {why}"));
            Cpus::default()
        });
        let programs = status::read_all_within(PATIENCE);
        let programs =
            programs.inspect(|programs| self.note_ended(programs)).unwrap_or_else(|why| {
                notes.push(format!("programs: {why:#}"));
                Vec::new()
            });
        let keel = self.keel.read(now).unwrap_or_else(|why| {
            notes.push(format!("the keel: {why:#}"));
            None
        });
        let machine = self.cpus.as_ref().ok().map(|cpus| &cpus.machine);
        let programs = self.unobserved.complete(programs, machine, now);
        Model {
            host: self.host.clone(),
            at_ns: now.as_nanos() as u64,
            cpus,
            programs,
            have_ended: self.have_ended,
            interrupts: self.interrupts.read(now),
            keel,
            notes,
        }
    }

    /// Notes whether a program of the last reading is gone.
    fn note_ended(&mut self, programs: &[ProgramStatus]) {
        let running: BTreeSet<u32> = programs.iter().map(|status| status.root).collect();
        self.have_ended |= !self.running.is_subset(&running);
        self.running = running;
    }

    fn read_cpus(&mut self) -> Result<Cpus, String> {
        let has_changed = match &self.cpus {
            Ok(cpus) => online().is_some_and(|online| online != cpus.machine.online()),
            Err(_) => true,
        };
        if has_changed {
            self.cpus = WatchedCpus::open();
        }
        self.cpus.as_mut().map_err(|why| why.clone())?.read()
    }
}

impl WatchedCpus {
    fn open() -> Result<Self, String> {
        let machine = Machine::from_sysfs(Path::new("/")).map_err(|why| why.to_string())?;
        let watch = CpuWatch::start(&machine, &machine.online(), &daemon_client::sockets())?;
        Ok(Self { machine, watch, is_new: true, excludes: None })
    }

    fn read(&mut self) -> Result<Cpus, String> {
        let online = self.machine.cpus.iter().filter(|cpu| cpu.online);
        let speeds = online.map(|cpu| (cpu.id, cpu.capability)).collect();
        let mut why_not_exact = None;
        if std::mem::take(&mut self.is_new) {
            return Ok(Cpus { speeds, figures: None, why_not_exact });
        }
        let figures = self.watch.look()?.map(|watched| {
            why_not_exact = watched.why_not_exact.as_deref().map(why_not_exact_here);
            judge(watched, *self.excludes.get_or_insert_with(run_time_excludes))
        });
        Ok(Cpus { speeds, figures, why_not_exact })
    }
}

/// The reason as it is here: root has the privilege, and `top` has given it up.
fn why_not_exact_here(why: &str) -> String {
    match why.strip_prefix(&Unsupported::NoPrivilege.to_string()) {
        Some(rest) => format!("{WITHOUT_A_DAEMON}{rest}"),
        None => why.to_owned(),
    }
}

/// The counters of interrupts when they were read last.
#[derive(Default)]
struct Interrupts {
    budget: Budget,
    last: Option<(Duration, Counts)>,
    rates: Option<Vec<Rate>>,
    /// The queues of lines, as of when the set of lines changed last: all of /sys/class/net is read for
    /// them.
    queues: BTreeMap<String, String>,
}

impl Interrupts {
    fn read(&mut self, now: Duration) -> Option<Vec<Rate>> {
        if self.budget.is_due(now) {
            let before = own_cpu_time();
            let text = |path| fs::read_to_string(path).unwrap_or_default();
            let counts = Counts::parse(&text("/proc/interrupts"), &text("/proc/softirqs"));
            if !self.last.as_ref().is_some_and(|(_, earlier)| counts.has_lines_of(earlier)) {
                self.queues = counts.queues(&devices_of_lines(Path::new("/")));
            }
            if let Some((then, earlier)) = &self.last {
                let seconds = now.saturating_sub(*then).as_secs_f64();
                let mut rates = counts.since(earlier, seconds);
                for rate in rates.iter_mut().filter(|rate| rate.kind == Kind::Interrupt) {
                    rate.queue = self.queues.get(&rate.label).cloned();
                }
                self.rates = Some(rates);
            }
            self.last = Some((now, counts));
            self.budget.charge(now, own_cpu_time().saturating_sub(before));
        }
        self.rates.clone()
    }
}

/// Programs that their balancers do not observe at the moment (the CPUs look alike, or there is nothing
/// to gain): their threads are read from /proc.
#[derive(Default)]
struct Unobserved {
    budget: Budget,
    observer: Option<Observer>,
    /// The programs that are followed, by their first process.
    followed: BTreeSet<u32>,
    last: Rc<Reading>,
    threads: BTreeMap<u32, Vec<ThreadTimes>>,
}

impl Unobserved {
    fn complete(
        &mut self,
        programs: Vec<ProgramStatus>,
        machine: Option<&Machine>,
        now: Duration,
    ) -> Vec<Program> {
        let is_unobserved = |status: &&ProgramStatus| {
            status.resting || status.accounting == Accounting::None || status.threads.is_empty()
        };
        let roots: BTreeSet<u32> =
            programs.iter().filter(is_unobserved).map(|status| status.root).collect();
        if roots.is_empty() {
            *self = Self::default();
        } else if let Some(machine) = machine
            && self.budget.is_due(now)
        {
            let before = own_cpu_time();
            self.read(roots, machine);
            self.budget.charge(now, own_cpu_time().saturating_sub(before));
        }
        let complete = |status: ProgramStatus| {
            let from_proc = self.threads.get(&status.root).filter(|_| is_unobserved(&&status));
            Program {
                threads: from_proc.unwrap_or(&status.threads).clone(),
                is_from_proc: from_proc.is_some(),
                status,
            }
        };
        programs.into_iter().map(complete).collect()
    }

    /// Reads the threads of the programs with these first processes. Figures are there from the second
    /// reading on.
    fn read(&mut self, roots: BTreeSet<u32>, machine: &Machine) {
        match self.observe(&roots, machine) {
            Ok(()) => self.followed = roots,
            Err(why) => {
                tracing::debug!("threads: {why}");
                *self = Self { budget: self.budget, ..Self::default() };
            }
        }
    }

    fn observe(
        &mut self,
        roots: &BTreeSet<u32>,
        machine: &Machine,
    ) -> Result<(), evenkeel_host::ObserveError> {
        if self.observer.is_none() {
            self.observer = Some(Observer::new(machine, AccountingChoice::Procfs)?);
        }
        let Some(observer) = &mut self.observer else { return Ok(()) };
        for gone in self.followed.difference(roots) {
            observer.forget(*gone)?;
        }
        for root in roots.difference(&self.followed) {
            observer.follow(*root, *root)?;
        }
        let reading = Rc::clone(observer.read()?);
        let threads = roots.iter().map(|root| (*root, reading.threads_since(&self.last, *root)));
        self.threads = threads.filter(|(_, threads)| !threads.is_empty()).collect();
        self.last = reading;
        Ok(())
    }
}

/// The counters of the keel when they were read last.
#[derive(Default)]
struct KeelBefore {
    last: Option<(Duration, Statistics)>,
    meanings: BTreeMap<String, String>,
}

impl KeelBefore {
    fn read(&mut self, now: Duration) -> anyhow::Result<Option<Keel>> {
        let Some(statistics) = keel_client::statistics_within(PATIENCE)? else {
            *self = Self::default();
            return Ok(None);
        };
        if self.meanings.is_empty() {
            self.meanings = keel_client::meanings_within(PATIENCE)?;
        }
        let per_s = self.last.as_ref().map_or_else(BTreeMap::new, |(then, earlier)| {
            rates(&statistics, earlier, now.saturating_sub(*then))
        });
        self.last = Some((now, statistics.clone()));
        let answers = keel_client::answers_within(PATIENCE)?;
        let meanings = self.meanings.clone();
        Ok(Some(Keel { statistics, per_s, meanings, answers }))
    }
}

fn rates(now: &Statistics, earlier: &Statistics, time: Duration) -> BTreeMap<String, f64> {
    let seconds = time.as_secs_f64().max(1e-3);
    let rate = |(name, count): (&String, &u64)| {
        let before = earlier.counters.get(name).copied().unwrap_or(0);
        (name.clone(), count.saturating_sub(before) as f64 / seconds)
    };
    now.counters.iter().map(rate).collect()
}

fn online() -> Option<CpuSet> {
    fs::read_to_string("/sys/devices/system/cpu/online").ok()?.trim().parse().ok()
}

fn clock(id: ClockId) -> Duration {
    clock_gettime(id).map(Duration::from).unwrap_or_default()
}

/// The clock that balancers note their decisions by.
fn monotonic() -> Duration {
    clock(ClockId::CLOCK_MONOTONIC)
}

/// CPU time of this thread so far.
fn own_cpu_time() -> Duration {
    clock(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reading_has_what_needs_no_interval_and_the_next_one_the_rest() {
        let mut sources = Sources::open();
        let first = sources.read();
        assert!(!first.host.is_empty() && !first.cpus.speeds.is_empty());
        assert!(first.cpus.figures.is_none() && first.interrupts.is_none());
        std::thread::sleep(Duration::from_millis(20));
        let second = sources.read();
        let figures = second.cpus.figures.unwrap();
        assert_eq!(figures.cpus.len(), second.cpus.speeds.len());
        assert!(figures.watched_ns >= 20_000_000, "{figures:?}");
        assert!(second.at_ns > first.at_ns);
    }

    #[test]
    fn no_user_is_told_to_become_root_in_vain() {
        let told = |more: &str| why_not_exact_here(&format!("{}{more}", Unsupported::NoPrivilege));
        assert_eq!(told(""), WITHOUT_A_DAEMON);
        assert_eq!(told("; it refused"), format!("{WITHOUT_A_DAEMON}; it refused"));
        let other = Unsupported::NoBtf.to_string();
        assert_eq!(why_not_exact_here(&other), other);
    }

    #[test]
    fn counters_become_rates() {
        let with = |count| Statistics {
            counters: [("enqueue".to_owned(), count), ("new".to_owned(), 4)].into(),
            ..Statistics::default()
        };
        let mut earlier = with(10);
        earlier.counters.remove("new");
        let rates = rates(&with(30), &earlier, Duration::from_secs(2));
        assert_eq!(rates, [("enqueue".to_owned(), 10.0), ("new".to_owned(), 2.0)].into());
    }

    #[test]
    fn threads_of_a_program_that_no_balancer_observes_are_read_from_proc() {
        let machine = Machine::from_sysfs(Path::new("/")).unwrap();
        let mut status = crate::top::sample::program(std::process::id(), "self").status;
        status.accounting = Accounting::None;
        let mut unobserved = Unobserved::default();
        let mut complete = |status: &ProgramStatus, seconds| {
            let now = Duration::from_secs(seconds);
            unobserved.complete(vec![status.clone()], Some(&machine), now).remove(0)
        };
        let first = complete(&status, 0);
        assert!(!first.is_from_proc && first.threads.is_empty());
        std::thread::sleep(Duration::from_millis(5));
        let second = complete(&status, 1000);
        let own = nix::unistd::gettid().as_raw() as u32;
        assert!(second.is_from_proc && second.threads.iter().any(|thread| thread.tid == own));
        // Its balancer observes it again.
        status.accounting = Accounting::Cbinfo;
        status.threads = vec![ThreadTimes { tid: 1, ..ThreadTimes::default() }];
        let third = complete(&status, 2000);
        assert!(!third.is_from_proc && third.threads == status.threads);
    }
}
