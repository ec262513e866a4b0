//! How a run went: totals that are counted while it runs, and the summary at its end, which is
//! printed as one line or as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use evenkeel_capability::{Plan, Reason, Snapshot};
use evenkeel_machine::Machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::observe::Accounting;
use crate::options::Placement;
use crate::proof::{Gain, Proven};
use crate::reading::{CpuReading, Reading};
use crate::reasons::Reasons;
use crate::shares::SharesStatus;
use crate::threads::ThreadCount;

/// Figures that add up over the intervals of a run.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Tasks moved.
    pub moves: u64,
    /// The same by the rule that decided ([`Reason::rule`]).
    pub moves_by_rule: BTreeMap<&'static str, u64>,
    /// Moves that a dry run decided and did not make.
    pub proposed: u64,
    /// Tasks that are no longer moved because their user set their mask.
    pub yielded: u64,
    /// Moves that the kernel or a rule refused.
    pub refused: u64,
    /// Tasks that did not get their mask back at the end, because another process had set it.
    pub kept: u64,
    /// Intervals.
    pub intervals: u64,
    /// How often CPUs came or went.
    pub cpu_changes: u64,
    /// Time in which nothing was loaded, since balancing gained nothing, in ns.
    pub rested_ns: u64,
    rested_to_end_ns: u64,
    speeds: BTreeMap<u32, u32>,
    /// The CPUs that the program could use in some interval.
    usable: BTreeSet<u32>,
    first: CpuFigures,
    last: Rc<Reading>,
    /// Sums over the intervals in which at least two tasks were runnable: the time, the capability of
    /// the worst CPU, and the average capability.
    parallel_ns: u64,
    worst_ns: u64,
    average_ns: u64,
    reasons: Reasons,
    most_spread_ppm: u64,
    gain: Gain,
    /// What `--shares` did.
    pub(crate) shares: Option<SharesStatus>,
    /// What came of the threads that the program was told to start.
    pub(crate) threads: Option<ThreadCount>,
}

/// The CPUs of a reading, without its tasks: the first reading is kept for the whole run.
#[derive(Debug, Clone, Default)]
struct CpuFigures {
    at_ns: u64,
    cpus: BTreeMap<u32, CpuReading>,
}

impl Totals {
    pub(crate) fn new(machine: &Machine, first: &Rc<Reading>) -> Self {
        Self {
            speeds: speeds_of(machine),
            first: CpuFigures { at_ns: first.at_ns, cpus: first.cpus.clone() },
            last: Rc::clone(first),
            ..Self::default()
        }
    }

    /// Takes the speeds of CPUs that have come online.
    pub(crate) fn set_machine(&mut self, machine: &Machine) {
        self.speeds = speeds_of(machine);
    }

    pub(crate) fn add(&mut self, snapshot: &Snapshot, reading: &Rc<Reading>) {
        self.intervals += 1;
        self.last = Rc::clone(reading);
        self.usable.extend(snapshot.cpus.iter().map(|cpu| cpu.cpu));
        for (cpu, now) in &reading.cpus {
            // A CPU that has come online counts from now on, and not from boot.
            self.first.cpus.entry(*cpu).or_insert(*now);
        }
        let wanting = snapshot.tasks.iter().filter(|task| task.runnable).count();
        let given = || snapshot.cpus.iter().map(|cpu| cpu.effective_ns(snapshot.interval_ns));
        if let (2.., Some(worst)) = (wanting, given().min()) {
            self.parallel_ns += snapshot.interval_ns;
            self.worst_ns += worst;
            self.average_ns += given().sum::<u64>() / snapshot.cpus.len() as u64;
        }
    }

    /// Leaves out what the CPUs did between two readings, as if the run had begun later.
    pub(crate) fn leave_out(&mut self, then: &Reading, now: &Rc<Reading>) {
        self.first.at_ns += now.at_ns.saturating_sub(then.at_ns);
        for (cpu, first) in &mut self.first.cpus {
            if let Some((then, now)) = then.cpus.get(cpu).zip(now.cpus.get(cpu)) {
                *first = now.continued(first, then);
            }
        }
        self.last = Rc::clone(now);
    }

    /// Counts a rest that lasts to the end: no reading has its time.
    pub(crate) fn count_rest(&mut self, rested_ns: u64) {
        self.rested_to_end_ns = rested_ns;
    }

    /// Counts a move.
    pub(crate) fn count_move(&mut self, reason: &Reason) {
        self.moves += 1;
        *self.moves_by_rule.entry(reason.rule()).or_default() += 1;
    }

    /// What the moves gained, as far as it was measured.
    pub fn gain(&self) -> &Gain {
        &self.gain
    }

    pub(crate) fn note(&mut self, plan: &Plan, gain: Gain) {
        self.gain = gain;
        if let Some(reason) = plan.reasons.first() {
            self.reasons.count(reason);
        }
        self.most_spread_ppm = self.most_spread_ppm.max(plan.spread_ppm);
    }

    /// Where the time of each CPU went over the run.
    pub fn cpus(&self) -> Vec<CpuSummary> {
        let elapsed_ns =
            self.last.at_ns.saturating_sub(self.first.at_ns).saturating_sub(self.rested_ns);
        self.last
            .cpus
            .iter()
            .map(|(cpu, now)| {
                let then = self.first.cpus.get(cpu).unwrap_or(now);
                CpuSummary {
                    cpu: *cpu,
                    speed: self.speeds.get(cpu).copied().unwrap_or(1024),
                    elapsed_ns,
                    irq_ns: now.irq_ns.saturating_sub(then.irq_ns),
                    softirq_ns: now.softirq_ns.saturating_sub(then.softirq_ns),
                    rt_ns: now.rt_ns.saturating_sub(then.rt_ns),
                    steal_ns: now.steal_ns.saturating_sub(then.steal_ns),
                    idle_ns: now.idle_ns.saturating_sub(then.idle_ns),
                }
            })
            .collect()
    }
}

fn speeds_of(machine: &Machine) -> BTreeMap<u32, u32> {
    machine.cpus.iter().map(|cpu| (cpu.id, cpu.capability)).collect()
}

/// One CPU over a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CpuSummary {
    /// Its number.
    pub cpu: u32,
    /// Relative speed, 1..=1024.
    pub speed: u32,
    /// Length of the run.
    pub elapsed_ns: u64,
    /// Taken by interrupt handlers.
    pub irq_ns: u64,
    /// Taken by softirqs.
    pub softirq_ns: u64,
    /// Taken by real-time and deadline tasks.
    pub rt_ns: u64,
    /// Taken by the hypervisor for other guests.
    pub steal_ns: u64,
    /// Idle.
    pub idle_ns: u64,
}

impl CpuSummary {
    /// Capability: what noise and real-time tasks left of its speed, 0..=1 (1 is the fastest CPU without
    /// disturbance).
    pub fn capability(&self) -> f64 {
        // Figures from a file may be anything.
        let taken = [self.irq_ns, self.softirq_ns, self.rt_ns, self.steal_ns];
        let taken_ns = taken.into_iter().fold(0, u64::saturating_add);
        let left = 1.0 - taken_ns as f64 / (self.elapsed_ns.max(1)) as f64;
        left.max(0.0) * f64::from(self.speed) / 1024.0
    }

    /// The largest cause of lost time, if it took more than 1/20.
    fn thief(&self) -> Option<&'static str> {
        [
            ("irq", self.irq_ns),
            ("softirq", self.softirq_ns),
            ("real-time tasks", self.rt_ns),
            ("steal", self.steal_ns),
        ]
        .into_iter()
        .max_by_key(|(_, ns)| *ns)
        .filter(|(_, ns)| ns * 20 > self.elapsed_ns)
        .map(|(name, _)| name)
    }
}

/// How a run went.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Its exit code, as a shell would show it (128 + n for signal n).
    pub exit_code: i32,
    /// From its start to its end.
    pub elapsed_ns: u64,
    /// The source of the figures.
    pub accounting: Accounting,
    /// Why the source is not cbinfo.
    pub why_not_exact: Option<String>,
    /// How long the CPUs looked alike, from the command's start on, so that nothing was loaded; 0 where
    /// that was not waited for.
    #[serde(default)]
    pub alike_ns: u64,
    /// The first sign that they are not, which ended that time.
    #[serde(default)]
    pub sign: Option<String>,
    /// How long nothing was loaded after it was seen that balancing gains nothing, or that barriers come
    /// too often for moves.
    #[serde(default)]
    pub rested_ns: u64,
    /// How tasks were placed.
    pub placement: Placement,
    /// The command was only observed.
    pub dry_run: bool,
    /// Intervals.
    pub intervals: u64,
    /// How often CPUs came or went (hotplug, or a cpuset that changed).
    #[serde(default)]
    pub cpu_changes: u64,
    /// Tasks moved.
    pub moves: u64,
    /// Moves that a dry run decided and did not make.
    pub proposed: u64,
    /// Tasks that are no longer moved because their user set their mask.
    pub yielded: u64,
    /// Moves that the kernel or a rule refused.
    pub refused: u64,
    /// CPU time of evenkeel while it balanced.
    pub own_cpu_ns: u64,
    /// CPU time of evenkeel before and after that.
    pub startup_cpu_ns: u64,
    /// Capability of the worst CPU while two or more tasks were runnable, 0..=1.
    pub worst: f64,
    /// Average capability of the CPUs in the same time, 0..=1.
    pub average: f64,
    /// Largest difference between the rates of two CPUs, 0..=1.
    pub most_spread: f64,
    /// What the moves gained, as far as it was measured.
    #[serde(default)]
    pub gain: Gain,
    /// What `--shares` did, and what it gained; none without.
    #[serde(default)]
    pub shares: Option<SharesStatus>,
    /// Threads for each CPU that the program was told to start (`--threads`).
    #[serde(default)]
    pub threads_per_cpu: Option<u32>,
    /// What came of it, where this process balanced the program.
    #[serde(default)]
    pub threads: Option<ThreadCount>,
    /// The job that the command was a rank of, where one balancer serves all ranks on this machine.
    #[serde(default)]
    pub job: Option<JobSummary>,
    /// Why no (more) tasks were moved: the reason that held in most intervals. JSON has it as text.
    #[serde(serialize_with = "in_words", skip_deserializing)]
    #[schemars(with = "Option<String>")]
    pub reason: Option<Reason>,
    /// The CPUs that the command could use.
    pub cpus: Vec<CpuSummary>,
}

/// The ranks of a job on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobSummary {
    /// What the job is called.
    pub name: String,
    /// The ranks that were balanced together; 0 if none needed it.
    pub ranks: u32,
    /// The launcher bound each of them to a part of the job's CPUs.
    pub is_bound: bool,
    /// The launcher's option that frees them.
    pub unbind: Option<String>,
}

/// The time before the accounting is loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Alike {
    /// Until the first sign that the CPUs are unequal.
    pub ns: u64,
    pub sign: Option<String>,
    /// Why it was not loaded then.
    pub reason: Option<Reason>,
    /// For how long.
    pub rested_ns: u64,
}

/// The facts of a run that [`Totals`] does not count.
pub(crate) struct Run {
    pub command: Vec<String>,
    pub exit_code: i32,
    pub elapsed_ns: u64,
    pub accounting: Accounting,
    pub why_not_exact: Option<String>,
    pub alike: Alike,
    pub placement: Placement,
    pub dry_run: bool,
    pub threads_per_cpu: Option<u32>,
    pub own_cpu_ns: u64,
    pub startup_cpu_ns: u64,
}

impl Summary {
    pub(crate) fn new(run: Run, totals: &Totals) -> Self {
        let share = |ns: u64| {
            if totals.parallel_ns == 0 { 1.0 } else { ns as f64 / totals.parallel_ns as f64 }
        };
        Self {
            command: run.command,
            exit_code: run.exit_code,
            elapsed_ns: run.elapsed_ns,
            accounting: run.accounting,
            why_not_exact: run.why_not_exact,
            alike_ns: run.alike.ns,
            sign: run.alike.sign,
            rested_ns: run.alike.rested_ns + totals.rested_ns + totals.rested_to_end_ns,
            placement: run.placement,
            dry_run: run.dry_run,
            intervals: totals.intervals,
            cpu_changes: totals.cpu_changes,
            moves: totals.moves,
            proposed: totals.proposed,
            yielded: totals.yielded,
            refused: totals.refused,
            own_cpu_ns: run.own_cpu_ns,
            startup_cpu_ns: run.startup_cpu_ns,
            worst: share(totals.worst_ns),
            average: share(totals.average_ns),
            most_spread: totals.most_spread_ppm as f64 / 1e6,
            gain: totals.gain.clone(),
            shares: totals.shares.clone(),
            threads_per_cpu: run.threads_per_cpu,
            threads: totals.threads.clone(),
            job: None,
            reason: totals.reasons.most_frequent().or(run.alike.reason),
            // What another CPU loses is no loss to the program.
            cpus: totals
                .cpus()
                .into_iter()
                .filter(|cpu| totals.usable.contains(&cpu.cpu))
                .collect(),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "evenkeel: ")?;
        if let Some(job) = &self.job {
            write!(f, "{job}: ")?;
        }
        self.write_outcome(f)
    }
}

/// What the line of a run says, without what the line begins with.
struct Outcome<'a>(&'a Summary);

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write_outcome(f)
    }
}

impl Summary {
    /// What came of the run, as its line says it, without the name of its job.
    pub fn outcome(&self) -> String {
        Outcome(self).to_string()
    }

    fn write_outcome(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moved = if self.dry_run { self.proposed } else { self.moves };
        let verb = if self.dry_run { "would have moved" } else { "moved" };
        if self.was_alike() {
            let seconds = self.alike_ns as f64 / 1e9;
            write!(
                f,
                "the CPUs looked alike for {seconds:.1} s: nothing was loaded, nothing moved"
            )?;
        } else if self.intervals == 0 && self.rested_ns == 0 {
            write!(f, "the run was too short to balance")?;
        } else if moved == 0 && self.are_shares_measured() {
            self.write_cpus(f)?;
        } else if moved == 0 {
            match &self.reason {
                Some(reason @ Reason::Balanced { .. }) => write!(f, "{reason}")?,
                Some(reason) => write!(f, "no moves: {}", reason.in_the_past())?,
                None => write!(f, "no moves")?,
            }
        } else {
            self.write_cpus(f)?;
            write!(f, "; {verb} tasks {}", times(moved))?;
            if !self.dry_run && self.gain.proven != Proven::Nothing {
                write!(f, "; {}", self.gain)?;
            }
        }
        if let Some(shares) = self.shares.as_ref().filter(|_| self.intervals > 0) {
            write!(f, "; {shares}")?;
        }
        self.write_threads(f)?;
        if self.rested_ns > 0 {
            write!(f, "; nothing was loaded for {:.1} s of it", self.rested_ns as f64 / 1e9)?;
        }
        if let Some(bound) = self.job.as_ref().and_then(JobSummary::bound) {
            write!(f, "; {bound}")?;
        }
        if self.cpu_changes > 0 {
            write!(f, "; CPUs came or went {}", times(self.cpu_changes))?;
        }
        if self.accounting == Accounting::Daemon {
            write!(f, " (figures from the daemon's cbinfo)")?;
        }
        if self.accounting == Accounting::Procfs {
            write!(f, " (figures from /proc, which does not show softirq theft")?;
            if let Some(why) = &self.why_not_exact {
                write!(f, "; {why}")?;
            }
            write!(f, ")")?;
        }
        Ok(())
    }
}

impl fmt::Display for JobSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ranks {
            0 => write!(f, "{}", self.name),
            1 => write!(f, "1 rank of {}", self.name),
            ranks => write!(f, "{ranks} ranks of {}", self.name),
        }
    }
}

impl JobSummary {
    /// That the launcher bound the ranks, and what frees them.
    fn bound(&self) -> Option<String> {
        let free = self.unbind.as_ref().map(|option| format!("; {option} frees them"));
        let bound = "each rank is bound to CPUs of its own, and no thread is moved from there";
        self.is_bound.then(|| format!("{bound}{}", free.unwrap_or_default()))
    }
}

impl Summary {
    /// Whether nothing was ever loaded. There is no gain then, and none was looked for.
    fn was_alike(&self) -> bool {
        self.accounting == Accounting::None && self.alike_ns > 0 && self.rested_ns == 0
    }

    fn are_shares_measured(&self) -> bool {
        self.shares.as_ref().is_some_and(|shares| shares.gain.proven != Proven::Nothing)
    }

    /// The proof is about moves and pins. More threads cannot be taken away for a window, so what they
    /// gain is for `evenkeel compare`.
    fn write_threads(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(per_cpu), Some(threads)) = (self.threads_per_cpu, &self.threads) else {
            return Ok(());
        };
        if let Some(why) = &threads.why_no_effect {
            return write!(f, "; --threads {per_cpu} had no effect: {why}");
        }
        if threads.most < threads.asked {
            return write!(f, "; too short to tell whether it started {} threads", threads.asked);
        }
        write!(f, "; {per_cpu} threads for each CPU, {} in all", threads.asked)?;
        if self.gain.proven == Proven::Gains {
            write!(f, " (what they gain is not in that: evenkeel compare measures it)")?;
        }
        Ok(())
    }

    fn write_cpus(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (worst, average) = (self.worst * 100.0, self.average * 100.0);
        write!(f, "worst CPU {worst:.0} %, average {average:.0} %")?;
        let worst = self.cpus.iter().min_by(|a, b| a.capability().total_cmp(&b.capability()));
        if let Some((cpu, thief)) = worst.and_then(|worst| Some((worst.cpu, worst.thief()?))) {
            write!(f, " ({thief} on CPU {cpu})")?;
        }
        Ok(())
    }
}

fn in_words<S: Serializer>(reason: &Option<Reason>, serializer: S) -> Result<S::Ok, S::Error> {
    reason.as_ref().map(Reason::in_the_past).serialize(serializer)
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_capability::{CpuView, Seen};

    const S: u64 = 1_000_000_000;

    /// A reading in which softirqs have taken so much of each CPU, in seconds.
    fn reading(at_ns: u64, taken: &[f64]) -> Rc<Reading> {
        let cpu = |taken: &f64| CpuReading {
            softirq_ns: (taken * S as f64) as u64,
            ..CpuReading::default()
        };
        let cpus = (0..).zip(taken.iter().map(cpu)).collect();
        Rc::new(Reading { at_ns, cpus, ..Reading::default() })
    }

    #[test]
    fn what_was_left_out_counts_for_nothing() {
        let machine = Machine::preset("small").unwrap();
        let readings = [(1, 0.5), (3, 0.6), (10, 4.0), (12, 4.1)];
        let readings = readings.map(|(at_s, taken)| reading(at_s * S, &[taken]));
        let mut totals = Totals::new(&machine, &readings[0]);
        totals.add(&snapshot(&[0]), &readings[1]);
        totals.leave_out(&readings[1], &readings[2]);
        totals.add(&snapshot(&[0]), &readings[3]);
        let cpus = totals.cpus();
        assert_eq!((totals.intervals, cpus[0].elapsed_ns), (2, 4 * S));
        assert_eq!(cpus[0].softirq_ns.div_ceil(S / 100), 20, "{cpus:?}");
    }

    fn snapshot(usable: &[u32]) -> Snapshot {
        let cpu = |cpu: &u32| CpuView {
            cpu: *cpu,
            core: *cpu,
            node: 0,
            speed: 1024,
            energy_rank: None,
            noise_ns: 0,
            rt_ns: 0,
            idle_ns: 0,
            foreign_milli: 0,
            rt_milli: 0,
        };
        let cpus = usable.iter().map(cpu).collect();
        Snapshot { interval_ns: S, cpus, tasks: vec![], seen: Seen::default() }
    }

    fn totals(first: &Reading) -> Totals {
        let first = CpuFigures { at_ns: first.at_ns, cpus: first.cpus.clone() };
        Totals { moves: 1, first, ..Totals::default() }
    }

    fn run() -> Run {
        Run {
            command: vec![],
            exit_code: 0,
            elapsed_ns: S,
            accounting: Accounting::Cbinfo,
            why_not_exact: None,
            alike: Alike::default(),
            placement: Placement::Soft,
            dry_run: false,
            threads_per_cpu: None,
            own_cpu_ns: 0,
            startup_cpu_ns: 0,
        }
    }

    #[test]
    fn only_cpus_that_the_program_could_use_are_blamed() {
        let (first, last) = (reading(S, &[0.0; 3]), reading(2 * S, &[0.0, 0.4, 0.9]));
        let mut totals = totals(&first);
        totals.add(&snapshot(&[0, 1]), &last);
        let said = Summary::new(run(), &totals).to_string();
        assert!(said.contains("(softirq on CPU 1)"), "{said}");
    }

    #[test]
    fn a_cpu_that_comes_online_has_lost_nothing_before() {
        let first = reading(S, &[0.0]);
        let mut totals = totals(&first);
        totals.add(&snapshot(&[0, 1]), &reading(2 * S, &[0.0, 0.9]));
        totals.add(&snapshot(&[0, 1]), &reading(3 * S, &[0.0, 1.0]));
        let lost: Vec<u64> = totals.cpus().iter().map(|cpu| cpu.softirq_ns).collect();
        assert_eq!(lost, [0, S / 10]);
    }
}
