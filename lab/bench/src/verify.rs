//! `evenkeel-lab noise KIND --verify`: what the accounting shows of a noise of known
//! size.
//!
//! Three measures of one thing, taken at once: the generator's own, the accounting's (cbinfo and
//! /proc/stat), and a gap probe's. The probe is an ordinary task that spins on the CPU: it makes
//! the CPU as busy as a program would, and counts what it loses, by the clock alone. Each figure
//! is relative to a quiet window just before, which holds what the machine does anyway. Steal is
//! left out: the hypervisor's doing, not the generator's.
//!
//! Neither of the two measures is perfect. The generator estimates the way into its own code and
//! back, which is nearly half of a fine softirq noise and grows when the host is slow; the probe
//! loses time to other programs, too. Where they agree (each may be off by the margin), the truth is
//! between them or close by; where they do not, others disturbed the probe, and the generator's word
//! counts alone.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

use evenkeel_experiment::accounts::{self, Accounts, CpuTimes, Window};
use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::interrupt;
use evenkeel_noise::gap::{GapPriority, measure};
use evenkeel_noise::{Noise, NoiseConfig, NoiseError, NoiseKind, Running, on_cpu};

/// The accounting may be off by so many points (hundredths of the CPU).
pub const MARGIN_POINTS: f64 = 2.0;
const QUIET_WINDOW: Duration = Duration::from_millis(600);
const NOISY_WINDOW: Duration = Duration::from_millis(1_200);
/// The noise ends by itself after this time.
const LIMIT: Duration = Duration::from_secs(20);
/// A window in which other programs took more of the CPU time, in %, counts only if all windows are so.
const MAX_FOREIGN_PCT: f64 = 2.0;
/// Each noise is measured so often; the middle one is reported.
const TRIES: usize = 3;

/// What is verified: kind, busy time and period in us.
const NOISES: [(NoiseKind, u64, u64); 6] = [
    (NoiseKind::Softirq, 50, 100),
    (NoiseKind::Softirq, 2_000, 4_000),
    (NoiseKind::Softirq, 4_000, 10_000),
    (NoiseKind::Fifo, 5_000, 10_000),
    (NoiseKind::Udp, 4_000, 10_000),
    (NoiseKind::Hog, 1, 100),
];

/// One noise, as it was and as it was seen: shares of the CPU in %, errors in points.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Verified {
    /// Which generator.
    pub kind: NoiseKind,
    /// Busy time of each period, in us; means nothing for the hog.
    pub busy_us: u64,
    /// The period, in us; means nothing for the hog.
    pub period_us: u64,
    /// The generator's own measure.
    pub own_pct: f64,
    /// The part of it that the generator's own code spent: without the way there and back.
    pub own_code_pct: f64,
    /// The gap probe's.
    pub gap_pct: f64,
    /// cbinfo's: irq, softirq and real-time tasks; for the hog its run time. `None` where cbinfo
    /// cannot be used.
    pub cbinfo_pct: Option<f64>,
    /// How far cbinfo's is from the truth ([`distance`]), in points.
    pub cbinfo_error: Option<f64>,
    /// What /proc/stat shows as irq and softirq.
    pub procfs_pct: f64,
    /// How far /proc/stat's is from it, in points.
    pub procfs_error: f64,
    /// What other programs took of all CPUs meanwhile.
    pub foreign_pct: f64,
}

impl Verified {
    /// Whether exact accounting was exact; true where it was not to be had.
    pub fn is_right(&self) -> bool {
        self.cbinfo_error.is_none_or(|error| error.abs() <= MARGIN_POINTS)
    }

    fn cells(&self) -> Vec<String> {
        let name = match self.kind {
            NoiseKind::Hog => self.kind.to_string(),
            kind => format!("{kind} {}/{} us", self.busy_us, self.period_us),
        };
        let number = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.1}"));
        let error = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:+.1}"));
        let verdict = match self.cbinfo_error {
            None => "-",
            Some(_) if self.is_right() => "right",
            Some(_) => "wrong",
        };
        vec![
            name,
            number(Some(self.own_pct)),
            number(Some(self.gap_pct)),
            number(self.cbinfo_pct),
            error(self.cbinfo_error),
            number(Some(self.procfs_pct)),
            error(Some(self.procfs_error)),
            number(Some(self.foreign_pct)),
            verdict.to_owned(),
        ]
    }
}

/// Whether the generator's own measure and the gap probe's can both be right, in % of the CPU.
fn agree(own_pct: f64, gap_pct: f64) -> bool {
    (own_pct - gap_pct).abs() <= 2.0 * MARGIN_POINTS
}

/// How far what was seen is from the truth, in points, with sign: from the nearer of the two
/// measures and nothing between them where they agree within two margins, else from the generator's
/// own. All in % of the CPU.
fn distance(seen_pct: f64, own_pct: f64, gap_pct: f64) -> f64 {
    let other_pct = if agree(own_pct, gap_pct) { gap_pct } else { own_pct };
    seen_pct - seen_pct.clamp(own_pct.min(other_pct), own_pct.max(other_pct))
}

/// The version of [`Verification`] as a document.
pub const FORMAT: u32 = 1;

/// What was verified, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Verification {
    /// The CPU.
    pub cpu: u32,
    /// The noises.
    pub rows: Vec<Verified>,
    /// What could not be verified, and why.
    pub said: Vec<String>,
}

/// The noises of a kind; all for `all`; only `given` (kind, busy and period in us) if that is set.
///
/// # Errors
/// The kind is unknown.
pub fn noises(kind: &str, given: Option<(u64, u64)>) -> Result<Vec<(NoiseKind, u64, u64)>> {
    if kind == "all" {
        if given.is_some() {
            bail!("--busy-us and --period-us belong to one kind of noise, not to all");
        }
        return Ok(NOISES.to_vec());
    }
    let kind: NoiseKind = kind.parse().map_err(|error| match error {
        NoiseError::Refused(why) => anyhow::anyhow!("{why}, or with --verify all"),
        other => other.into(),
    })?;
    Ok(match given {
        Some((busy_us, period_us)) => vec![(kind, busy_us, period_us)],
        None => NOISES.into_iter().filter(|(one, _, _)| *one == kind).collect(),
    })
}

/// Verifies the accounting on a CPU.
///
/// # Errors
/// The CPU is not there, a noise breaks a rule, or a figure cannot be read. A missing privilege is
/// no error: it is said.
pub fn verify(cpu: u32, noises: &[(NoiseKind, u64, u64)]) -> Result<Verification> {
    let mut accounts = Accounts::open();
    let mut said = Vec::new();
    if let Some(why) = accounts.why_not_exact() {
        said.push(format!("Exact accounting is not possible: {why}. Only /proc/stat is judged."));
    }
    let online = evenkeel_noise::online_cpus()?;
    let display = Display::counting("measurements");
    let mut rows = Vec::new();
    for (place, &(kind, busy_us, period_us)) in noises.iter().enumerate() {
        interrupt::check()?;
        let config = NoiseConfig { busy_us, period_us, limit: LIMIT };
        let mut probe = Probe { cpu, online: &online, accounts: &mut accounts };
        let show = |tried: usize| {
            let (done, planned) = (place * TRIES + tried, noises.len() * TRIES);
            display.step(done as u64, planned as u64, kind.name());
        };
        match probe.middle(kind, config, &show) {
            Ok(row) => rows.push(row),
            Err(error) if error.downcast_ref().is_some_and(NoiseError::is_privilege) => {
                said.push(format!("{kind} cannot be verified: {error}."));
            }
            Err(error) => return Err(error),
        }
    }
    display.finish();
    Ok(Verification { cpu, rows, said })
}

struct Probe<'a> {
    cpu: u32,
    online: &'a CpuSet,
    accounts: &'a mut Accounts,
}

/// What was seen in one window: shares of the CPU.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    gap: f64,
    exact: f64,
    procfs: f64,
    /// CPU time of the noise's own process, by cbinfo.
    process: f64,
    foreign_pct: f64,
}

impl Probe<'_> {
    /// The middle of several measurements, by the error of the accounting. If there are some in which
    /// other programs took little, or the two measures agree, only those count. A generator's own
    /// measure varies, too: udp's by two points, because the cost of a send is measured before and
    /// after only; that of a fine softirq noise by more when the host is slow for a moment. `show` gets
    /// the number of measurements that are made.
    fn middle(
        &mut self,
        kind: NoiseKind,
        config: NoiseConfig,
        show: &dyn Fn(usize),
    ) -> Result<Verified> {
        let mut rows = Vec::new();
        for tried in 0..TRIES {
            show(tried);
            rows.push(self.once(kind, config)?);
        }
        let is_calm = |row: &Verified| row.foreign_pct <= MAX_FOREIGN_PCT;
        let is_certain = |row: &Verified| agree(row.own_pct, row.gap_pct);
        for tells_most in [&is_calm as &dyn Fn(&Verified) -> bool, &is_certain] {
            if rows.iter().any(tells_most) {
                rows.retain(tells_most);
            }
        }
        let error = |row: &Verified| row.cbinfo_error.unwrap_or(row.procfs_error).abs();
        rows.sort_by(|a, b| error(a).total_cmp(&error(b)));
        let middle = rows.len().saturating_sub(1) / 2;
        rows.into_iter().nth(middle).context("nothing was measured")
    }

    fn once(&mut self, kind: NoiseKind, config: NoiseConfig) -> Result<Verified> {
        interrupt::check()?;
        if let Some(cbinfo) = self.accounts.cbinfo() {
            // Here and now: virtual CPUs differ in it, and by half within minutes.
            on_cpu(self.cpu, || cbinfo.measure_interrupt_cost())??;
        }
        let quiet = self.see(QUIET_WINDOW, None)?;
        let running = Noise::start(kind, self.cpu, config)?;
        let noisy = self.see(NOISY_WINDOW, Some(&running));
        let report = running.stop()?;
        let noisy = noisy?;
        let exact = match kind {
            NoiseKind::Hog => noisy.process,
            _ => noisy.exact - quiet.exact,
        };
        let own_pct = 100.0 * report.duty;
        let gap_pct = 100.0 * (noisy.gap - quiet.gap);
        let procfs_pct = 100.0 * (noisy.procfs - quiet.procfs);
        let cbinfo_pct = self.accounts.why_not_exact().is_none().then_some(100.0 * exact);
        Ok(Verified {
            kind,
            busy_us: config.busy_us,
            period_us: config.period_us,
            own_pct,
            own_code_pct: 100.0 * report.seen_ns as f64 / report.wall_ns.max(1) as f64,
            gap_pct,
            cbinfo_pct,
            cbinfo_error: cbinfo_pct.map(|seen| distance(seen, own_pct, gap_pct)),
            procfs_pct,
            procfs_error: distance(procfs_pct, own_pct, gap_pct),
            foreign_pct: noisy.foreign_pct.max(quiet.foreign_pct),
        })
    }

    fn see(&mut self, window: Duration, noise: Option<&Running>) -> Result<Seen> {
        let process = noise.and_then(Running::process);
        let alive: Vec<u32> = process.into_iter().collect();
        let run_before_ns = self.run_ns(process)?;
        let coarse_before = accounts::approximate(self.online, &alive)?;
        let before = self.accounts.read(self.online, &alive)?;
        let gap = measure(self.cpu, window, GapPriority::Ordinary)?;
        let fine = self.accounts.read(self.online, &alive)?.since(&before);
        let coarse = accounts::approximate(self.online, &alive)?.since(&coarse_before);
        let run_ns = self.run_ns(process)?.saturating_sub(run_before_ns);
        let taken = |window: &Window| {
            window.share(self.cpu, |times: &CpuTimes| times.taken_ns() - times.steal_ns)
        };
        Ok(Seen {
            gap: gap.share(),
            exact: taken(&fine),
            procfs: taken(&coarse),
            process: run_ns as f64 / fine.elapsed_ns.max(1) as f64,
            foreign_pct: fine.foreign_pct,
        })
    }

    /// The CPU time of a process of ours so far, by cbinfo, in ns.
    fn run_ns(&mut self, process: Option<u32>) -> Result<u64> {
        let (Some(pid), Some(cbinfo)) = (process, self.accounts.cbinfo()) else { return Ok(0) };
        let tasks = cbinfo.tasks()?;
        Ok(tasks.iter().filter(|task| task.tgid == pid).map(|task| task.run_ns).sum())
    }
}

impl Verification {
    /// The table for a terminal, without a line break at its end.
    pub fn table(&self) -> String {
        let header = [
            "noise",
            "own measure %",
            "gap probe %",
            "cbinfo %",
            "error",
            "/proc/stat %",
            "error",
            "others %",
            "cbinfo is",
        ];
        let rows = self.rows.iter().map(Verified::cells).collect();
        let numbers = (1..header.len()).collect();
        Cells { header: header.map(str::to_owned).into(), numbers, rows }.terminal()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_choose_their_noises() {
        let all = noises("all", None).unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!(noises("softirq", None).unwrap(), all[..3]);
        assert_eq!(noises("udp", Some((1, 10))).unwrap(), [(NoiseKind::Udp, 1, 10)]);
        let error = noises("rain", None).unwrap_err().to_string();
        assert!(
            error.contains("choose softirq, fifo, udp or hog, or with --verify all"),
            "{error}"
        );
        assert!(noises("all", Some((1, 10))).is_err());
        for (kind, busy_us, period_us) in all {
            NoiseConfig { busy_us, period_us, limit: LIMIT }.check(kind).unwrap();
        }
    }

    #[test]
    fn measures_that_agree_bound_the_truth() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(distance(52.5, 50.0, 51.5), 1.0));
        assert!(close(distance(51.0, 50.0, 51.5), 0.0));
        assert!(close(distance(47.0, 50.0, 51.5), -3.0));
        // A probe that lost time to others says nothing.
        assert!(close(distance(30.0, 50.0, 12.0), -20.0));
        assert!(close(distance(52.4, 48.6, 51.3), 1.1));
        assert!(close(distance(54.5, 50.0, 54.5), 4.5));
    }

    #[test]
    fn two_points_are_the_margin() {
        let row = |cbinfo_error: Option<f64>| Verified {
            kind: NoiseKind::Softirq,
            busy_us: 50,
            period_us: 100,
            own_pct: 50.0,
            own_code_pct: 35.0,
            gap_pct: 50.1,
            cbinfo_pct: cbinfo_error.map(|error| 50.0 + error),
            cbinfo_error,
            procfs_pct: 88.0,
            procfs_error: 38.0,
            foreign_pct: 0.0,
        };
        let rows = vec![row(Some(-1.9)), row(Some(2.1)), row(None)];
        assert_eq!(rows.iter().map(Verified::is_right).collect::<Vec<_>>(), [true, false, true]);
        let table = Verification { cpu: 0, rows, said: vec![] }.table();
        for word in ["softirq 50/100 us", "-1.9", "+38.0", "right", "wrong"] {
            assert!(table.contains(word), "{word:?} is missing in\n{table}");
        }
    }
}
