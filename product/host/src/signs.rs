//! Signs that the CPUs of a program are unequal: what cheap files tell without anything being loaded.
//! `quiet` takes a look now and then, and the exact accounting is loaded once a look finds a sign.
//!
//! | sign | from | what it may be |
//! |---|---|---|
//! | other speeds | the machine, as detected | fast and slow cores |
//! | softirqs that differ | /proc/softirqs | a network card, a timer in the kernel |
//! | time taken that differs | /proc/stat: irq, softirq, steal | the same; other guests of the host |
//! | tasks that wait for a CPU | /proc/pressure/cpu | a program of others, a real-time task |
//!
//! Each compares with an earlier look, so a rate that all CPUs share is no sign, whatever it is. A file
//! that cannot be read is a sign, too: then it cannot be told that the CPUs are alike.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;

use evenkeel_machine::{CpuSet, Machine};

use crate::clock::{monotonic_ns, ns_per_tick};

/// Speeds that differ by more, in thousandths of the fastest CPU's, are unequal.
const SPEED_PER_MILLE: u64 = 40;
/// Softirqs of two CPUs that differ by as many a second are a sign ...
const SOFTIRQS_PER_SECOND: u64 = 500;
/// ... but not so few in all: a program that starts causes some by itself, reading from its disk.
const SOFTIRQS_MIN: u64 = 100;
/// Softirqs that a CPU raises by its own tick while it is busy, up to a few for each: a CPU that works
/// beside one that idles is no unequal CPU. Should they take time, /proc/stat shows it.
const BY_OWN_TICK: [&str; 3] = ["TIMER", "SCHED", "RCU"];
/// Time taken from two CPUs that differs by as much, in thousandths of the time, is a sign ...
const TAKEN_PER_MILLE: u64 = 40;
/// ... from so many ticks on, the unit of /proc/stat: one or two may be chance ...
const TAKEN_MIN_TICKS: u64 = 3;
/// ... between looks that lie so far apart, in ns: in less there are too few ticks.
const TAKEN_WINDOW_NS: u64 = 80_000_000;
/// Time in which tasks wait for a CPU is a sign from so much on, in thousandths, in two looks in a
/// row: on CPUs that are all busy evenkeel itself, kernel threads and what runs shortly make tasks wait
/// for some per cent of the time, too ...
const WAITED_PER_MILLE: u64 = 100;
/// ... and in one look from so many times as much on.
const WAITED_LARGE: u64 = 4;
/// Looks that lie less far apart, in ns, say nothing of it: a program that starts makes its tasks wait.
const WAITED_WINDOW_NS: u64 = 80_000_000;
/// The kernel averages over the CPUs that work, which hides one contended CPU among many. So this share
/// of one CPU's time, in thousandths, is a sign, too, where it is less than `WAITED_PER_MILLE` of all.
const WAITED_OF_ONE_CPU_PER_MILLE: u64 = 400;

/// Why the CPUs are taken for unequal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sign {
    /// CPUs, each with its speed of 1..=1024.
    Speeds { slow: (u32, u32), fast: (u32, u32) },
    /// The CPUs with the most and the fewest softirqs, and by how many a second they differ.
    Softirqs { most: u32, least: u32, per_second: u64 },
    /// The CPUs from which the most and the least time is taken, by what above all, and by how much of
    /// the time they differ.
    Taken { by: &'static str, most: u32, least: u32, per_mille: u64 },
    /// Tasks waited for a CPU for so much of the time.
    Waited { per_mille: u64 },
    /// The file cannot be read, or not be understood.
    Unknown { file: &'static str, why: String },
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Speeds { slow, fast } => {
                let percent = u64::from(slow.1) * 100 / u64::from(fast.1.max(1));
                write!(f, "CPU {} has {percent} % of the speed of CPU {}", slow.0, fast.0)
            }
            Self::Softirqs { most, least, per_second } => {
                write!(f, "softirqs of CPU {most} and {least} differ by {per_second} a second")
            }
            Self::Taken { by, most, least, per_mille } => {
                let percent = *per_mille as f64 / 10.0;
                write!(f, "{by} takes {percent:.1} % more of CPU {most} than of CPU {least}")
            }
            Self::Waited { per_mille } => {
                write!(f, "tasks waited for a CPU {:.1} % of the time", *per_mille as f64 / 10.0)
            }
            Self::Unknown { file, why } => {
                write!(f, "{file}: {why}; whether the CPUs are alike cannot be told")
            }
        }
    }
}

/// The texts of the files at one moment. What could not be read has its reason instead.
#[derive(Debug, Clone)]
pub(crate) struct Texts {
    /// Monotonic clock.
    at_ns: u64,
    softirqs: Result<String, String>,
    pressure: Result<String, String>,
    /// Not always read.
    stat: Option<Result<String, String>>,
}

/// More than the texts have on machines of some CPUs.
const READ_BYTES: usize = 16 << 10;

const SOFTIRQS: &str = "/proc/softirqs";
const PRESSURE: &str = "/proc/pressure/cpu";
const STAT: &str = "/proc/stat";

impl Texts {
    fn read(with_stat: bool) -> Self {
        let read = |path: &str| {
            // In one piece: fewer calls, and no part of an older text.
            let mut text = String::with_capacity(READ_BYTES);
            let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
            read.map(|_| text).map_err(|why| why.to_string())
        };
        Self {
            at_ns: monotonic_ns(),
            softirqs: read(SOFTIRQS),
            pressure: read(PRESSURE),
            stat: with_stat.then(|| read(STAT)),
        }
    }

    fn waited_us(&self) -> Option<u64> {
        self.pressure.as_ref().ok().and_then(|text| waited_us(text))
    }
}

/// A sign, if the usable CPUs have unequal speeds.
pub(crate) fn unequal_speeds(machine: &Machine, usable: &CpuSet) -> Option<Sign> {
    let cpus = machine.cpus.iter().filter(|cpu| usable.contains(cpu.id));
    let speeds = cpus.map(|cpu| (cpu.id, cpu.capability));
    let (slow, fast) = extremes(speeds)?;
    let lost = u64::from(fast.1 - slow.1) * 1000;
    (lost > u64::from(fast.1) * SPEED_PER_MILLE).then_some(Sign::Speeds { slow, fast })
}

/// What was read before: a look compares with it.
#[derive(Debug)]
pub(crate) struct Signs {
    last: Counts,
    /// The last look at /proc/stat.
    taken: Option<Taken>,
    /// When the time that tasks waited was last compared, and how long it was.
    waited: Option<(u64, u64)>,
    /// In the look before, tasks waited for a CPU so long that another such look is a sign.
    has_waited: bool,
}

#[derive(Debug, Default)]
struct Counts {
    at_ns: u64,
    softirqs: Option<BTreeMap<u32, u64>>,
}

/// Ticks taken from each CPU.
#[derive(Debug)]
struct Taken {
    at_ns: u64,
    ticks: BTreeMap<u32, [u64; 3]>,
}

/// What takes them, in the order of /proc/stat.
const TAKERS: [&str; 3] = ["irq", "softirq", "steal"];

impl Signs {
    /// Reads the files, so that the first look can compare.
    pub(crate) fn start() -> Self {
        Self::from(&Texts::read(true))
    }

    fn from(texts: &Texts) -> Self {
        let ticks = texts.stat.as_ref().and_then(|stat| stat.as_ref().ok());
        let taken = ticks.map(|stat| Taken { at_ns: texts.at_ns, ticks: ticks_taken(stat) });
        let waited = texts.waited_us().map(|us| (texts.at_ns, us));
        Self { last: Counts::of(texts), taken, waited, has_waited: false }
    }

    /// Reads the files for the next look.
    pub(crate) fn read(&self) -> Texts {
        Texts::read(self.is_stat_due(monotonic_ns()))
    }

    fn is_stat_due(&self, now_ns: u64) -> bool {
        let is_old = |taken: &Taken| now_ns.saturating_sub(taken.at_ns) >= TAKEN_WINDOW_NS;
        self.taken.as_ref().is_none_or(is_old)
    }

    /// Takes a look: the first sign of these texts against those of the look before, that these CPUs are
    /// unequal.
    pub(crate) fn compare(&mut self, texts: &Texts, usable: &CpuSet) -> Option<Sign> {
        let now = Counts::of(texts);
        let signs = [
            self.unequal_softirqs(&now, texts, usable),
            self.waited(texts, usable),
            texts.stat.as_ref().and_then(|stat| self.unequal_times(texts.at_ns, stat, usable)),
        ];
        self.last = now;
        signs.into_iter().flatten().next()
    }

    fn unequal_softirqs(&self, now: &Counts, texts: &Texts, usable: &CpuSet) -> Option<Sign> {
        let (Some(before), Some(after)) = (&self.last.softirqs, &now.softirqs) else {
            return Some(unknown(SOFTIRQS, &texts.softirqs));
        };
        let elapsed_ns = now.at_ns.saturating_sub(self.last.at_ns).max(1);
        let (least, most) = extremes(increases(before, after, usable))?;
        let more = most.1 - least.1;
        let per_second = per(more, 1_000_000_000, elapsed_ns);
        let is_sign = more >= SOFTIRQS_MIN && per_second >= SOFTIRQS_PER_SECOND;
        is_sign.then_some(Sign::Softirqs { most: most.0, least: least.0, per_second })
    }

    fn waited(&mut self, texts: &Texts, usable: &CpuSet) -> Option<Sign> {
        let (Some((before_ns, before)), Some(after)) = (self.waited, texts.waited_us()) else {
            return Some(unknown(PRESSURE, &texts.pressure));
        };
        let elapsed_ns = texts.at_ns.saturating_sub(before_ns).max(1);
        if elapsed_ns < WAITED_WINDOW_NS {
            return None;
        }
        self.waited = Some((texts.at_ns, after));
        let waited_us = after.saturating_sub(before);
        let per_mille = per(waited_us, 1_000_000, elapsed_ns);
        let of_one_cpu = WAITED_OF_ONE_CPU_PER_MILLE / (usable.len() as u64).max(1);
        let much = WAITED_PER_MILLE.min(of_one_cpu).max(1);
        let has_waited = per_mille >= much;
        let is_again = std::mem::replace(&mut self.has_waited, has_waited) && has_waited;
        (is_again || per_mille >= much * WAITED_LARGE).then_some(Sign::Waited { per_mille })
    }

    fn unequal_times(
        &mut self,
        at_ns: u64,
        stat: &Result<String, String>,
        usable: &CpuSet,
    ) -> Option<Sign> {
        let ticks = stat.as_ref().map(|text| ticks_taken(text)).unwrap_or_default();
        if ticks.is_empty() {
            return Some(unknown(STAT, stat));
        }
        let before = self.taken.replace(Taken { at_ns, ticks })?;
        let now = &self.taken.as_ref()?.ticks;
        let sums = |ticks: &BTreeMap<u32, [u64; 3]>| {
            ticks.iter().map(|(cpu, ticks)| (*cpu, ticks.iter().sum())).collect()
        };
        let (least, most) = extremes(increases(&sums(&before.ticks), &sums(now), usable))?;
        let more = most.1 - least.1;
        let elapsed_ns = at_ns.saturating_sub(before.at_ns).max(1);
        let per_mille = per(more.saturating_mul(ns_per_tick()), 1000, elapsed_ns);
        if more < TAKEN_MIN_TICKS || per_mille < TAKEN_PER_MILLE {
            return None;
        }
        let (most, least) = (most.0, least.0);
        let of = |cpu, taker: usize| now[&cpu][taker].saturating_sub(before.ticks[&cpu][taker]);
        let excess = |taker: &usize| of(most, *taker).saturating_sub(of(least, *taker));
        let by = (0..TAKERS.len()).max_by_key(excess).map_or("", |taker| TAKERS[taker]);
        Some(Sign::Taken { by, most, least, per_mille })
    }
}

impl Counts {
    fn of(texts: &Texts) -> Self {
        Self {
            at_ns: texts.at_ns,
            softirqs: texts.softirqs.as_ref().ok().and_then(|text| softirqs(text)),
        }
    }
}

fn unknown(file: &'static str, text: &Result<String, String>) -> Sign {
    let why = text.as_ref().err().map_or("it has another format", String::as_str);
    Sign::Unknown { file, why: why.to_owned() }
}

/// `count * unit / elapsed_ns` without overflow.
fn per(count: u64, unit: u64, elapsed_ns: u64) -> u64 {
    let exact = u128::from(count) * u128::from(unit) / u128::from(elapsed_ns.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// The lowest and the highest value, each with its CPU.
fn extremes<T: Ord + Copy>(values: impl Iterator<Item = (u32, T)>) -> Option<((u32, T), (u32, T))> {
    values.fold(None, |extremes, value| {
        let (lowest, highest) = extremes.unwrap_or((value, value));
        let lowest = if value.1 < lowest.1 { value } else { lowest };
        Some((lowest, if value.1 > highest.1 { value } else { highest }))
    })
}

/// How much the counter of each usable CPU has increased. A CPU that is missing in a look counts for
/// nothing, and so does one with a counter that went backwards: it came anew.
fn increases(
    before: &BTreeMap<u32, u64>,
    after: &BTreeMap<u32, u64>,
    usable: &CpuSet,
) -> impl Iterator<Item = (u32, u64)> {
    let of = |cpu: &u32| after.get(cpu)?.checked_sub(*before.get(cpu)?);
    let increase = move |cpu| Some((cpu, of(&cpu)?));
    usable.iter().filter_map(increase)
}

/// The softirqs of each CPU, without those of its own tick, from the text of /proc/softirqs; `None`
/// without a CPU.
fn softirqs(text: &str) -> Option<BTreeMap<u32, u64>> {
    let mut lines = text.lines();
    let number = |word: &str| word.strip_prefix("CPU")?.parse::<u32>().ok();
    let cpus: Vec<Option<u32>> = lines.next()?.split_whitespace().map(number).collect();
    let mut sums: BTreeMap<u32, u64> = cpus.iter().flatten().map(|cpu| (*cpu, 0)).collect();
    for line in lines {
        let Some((kind, counts)) = line.split_once(':') else { continue };
        if BY_OWN_TICK.contains(&kind.trim()) {
            continue;
        }
        for (cpu, count) in cpus.iter().zip(counts.split_whitespace()) {
            let sum = cpu.and_then(|cpu| sums.get_mut(&cpu));
            if let (Some(sum), Ok(count)) = (sum, count.parse::<u64>()) {
                *sum = sum.saturating_add(count);
            }
        }
    }
    (!sums.is_empty()).then_some(sums)
}

/// What [`TAKERS`] took of each CPU, in ticks, from the text of /proc/stat. An offline CPU has no line.
fn ticks_taken(text: &str) -> BTreeMap<u32, [u64; 3]> {
    let cpu_of = |line: &str| {
        // The line of the sum over all CPUs has no number.
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?.parse().ok()?;
        let mut ticks = words.skip(5).map(|word| word.parse().ok());
        let mut next = || ticks.next().flatten();
        Some((cpu, [next()?, next()?, next()?]))
    };
    text.lines().filter_map(cpu_of).collect()
}

/// How long tasks have waited for a CPU, in µs, from the text of /proc/pressure/cpu. (Not by `procfs`,
/// which wants the line `full`, too: older kernels do not have it for CPUs.)
fn waited_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests;
