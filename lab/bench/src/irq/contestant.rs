//! The contestants: what decides on which CPU a queue of the card is processed, and how each begins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_experiment::command::{Helper, end_with_us};
use evenkeel_journal::{affinity, find_irqbalance};
use evenkeel_machine::CpuSet;
use tempfile::NamedTempFile;

use super::runner::Place;
use super::stage::{DEVICE, Stage, queue_threads};
use crate::sais::network::{FLOW_ENTRIES, FlowTable, mask};

/// How long a helper may take until it has begun.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often to look meanwhile.
const LOOK: Duration = Duration::from_millis(10);

/// What decides where packets are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Nothing of ours: the kernel's scheduler places the threads of the queues.
    None,
    /// The kernel, by the hash of a connection (RPS).
    Rps,
    /// The kernel, to the CPU that received last (RFS).
    Rfs,
    /// The thread of each queue pinned to the CPU where what it brings is consumed.
    ByHand,
    /// Debian's irqbalance.
    Irqbalance,
    /// `irq run` in this mode.
    Irq(&'static str),
    /// `irq run` to level, beside irqbalance.
    Beside,
}

/// Packets go to their consumers.
pub const SOURCE_AWARE: Method = Method::Irq("source-aware");
/// The same, and the rest is levelled.
pub const BOTH: Method = Method::Irq("both");
/// No CPU loses more than the others.
pub const LEVEL: Method = Method::Irq("level");

impl Method {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Rps,
        Self::Rfs,
        Self::ByHand,
        Self::Irqbalance,
        SOURCE_AWARE,
        BOTH,
        LEVEL,
        Self::Beside,
    ];
    /// Where packets are received, the baseline first.
    pub const RECEIVING: [Self; 7] =
        [Self::None, Self::Rps, Self::Rfs, Self::ByHand, Self::Irqbalance, SOURCE_AWARE, BOTH];
    /// The same of the quick form.
    pub const RECEIVING_QUICK: [Self; 3] = [Self::None, Self::Rfs, SOURCE_AWARE];
    /// Where a program is disturbed, the baseline first.
    pub const DISTURBED: [Self; 4] = [Self::None, LEVEL, Self::Irqbalance, Self::Beside];
    /// The same of the quick form.
    pub const DISTURBED_QUICK: [Self; 2] = [Self::None, LEVEL];

    /// Its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rps => "rps",
            Self::Rfs => "rfs",
            Self::ByHand => "by hand",
            Self::Irqbalance => "irqbalance",
            Self::Irq(mode) => mode,
            Self::Beside => "irqbalance and level",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::None => "the untouched kernel: its scheduler places the thread of each queue",
            Self::Rps => "the kernel's receive packet steering: by the hash of the connection",
            Self::Rfs => "the kernel's receive flow steering: to the CPU that received last",
            Self::ByHand => {
                "each queue's thread pinned by hand: queue 0 to the first CPU, queue 1 to the next, ..."
            }
            Self::Irqbalance => {
                "Debian's irqbalance in the foreground: it moves lines, and this card has none"
            }
            Self::Irq(_) => "`evenkeel irq run` in this mode, a round every second",
            Self::Beside => "`evenkeel irq run --take-over` to level, beside irqbalance",
        }
    }

    fn needs_irqbalance(self) -> bool {
        matches!(self, Self::Irqbalance | Self::Beside)
    }

    /// Whether it can take part.
    pub(super) fn is_here(self, irqbalance: Option<&Path>) -> bool {
        irqbalance.is_some() || !self.needs_irqbalance()
    }

    /// Puts it in charge of a new card.
    ///
    /// # Errors
    /// It refuses, or the kernel does.
    pub(super) fn begin(self, place: &Place<'_>, stage: &Stage) -> Result<InCharge> {
        let mut in_charge = InCharge::default();
        let set_all = |knob: &str, value: &str| {
            let set = |queue| stage.client.write_queue_knob(DEVICE, queue, knob, value);
            (0..place.queues).try_for_each(set)
        };
        if self.needs_irqbalance() {
            let program = place.irqbalance.context("irqbalance was not found")?;
            in_charge.irqbalance = Some(Irqbalance::start(program)?);
        }
        match self {
            Self::None | Self::Irqbalance => {}
            Self::Rps => set_all("rps_cpus", &mask(place.cpus))?,
            Self::Rfs => {
                in_charge._table = Some(FlowTable::enlarge().context("cannot turn RFS on")?);
                set_all("rps_flow_cnt", &(FLOW_ENTRIES / place.queues).to_string())?;
            }
            Self::ByHand => {
                for (thread, cpu) in queue_threads()?.iter().zip(place.cpus.iter()) {
                    affinity::set(thread.tid, &[cpu].into_iter().collect::<CpuSet>())?;
                }
            }
            Self::Irq(mode) => in_charge.mover = Some(Mover::start(place.executable, mode, &[])?),
            Self::Beside => {
                let mover = Mover::start(place.executable, LEVEL.name(), &["--take-over"])?;
                in_charge.mover = Some(mover);
            }
        }
        Ok(in_charge)
    }
}

/// Until this is dropped: the mover first, which tells irqbalance that it ends.
#[derive(Default)]
pub(super) struct InCharge {
    mover: Option<Mover>,
    irqbalance: Option<Irqbalance>,
    _table: Option<FlowTable>,
}

impl InCharge {
    /// How much `irq run` has moved; `None`: it does not run.
    pub fn moves(&self) -> Result<Option<f64>> {
        self.mover.as_ref().map(Mover::moves).transpose()
    }

    /// Whether all of it still runs.
    ///
    /// # Errors
    /// A part has ended by itself, so that the run means nothing.
    pub fn check(&mut self) -> Result<()> {
        let parts = [
            self.mover.as_mut().map(|mover| &mut mover.child),
            self.irqbalance.as_mut().map(|irqbalance| &mut irqbalance.child),
        ];
        for part in parts.into_iter().flatten() {
            if let Some(status) = part.0.try_wait()? {
                bail!("it ended by itself ({status}): run it by hand to see why");
            }
        }
        Ok(())
    }
}

/// `evenkeel irq run`.
struct Mover {
    child: Helper,
    said: NamedTempFile,
}

impl Mover {
    /// Waits until it observes.
    fn start(executable: &Path, mode: &str, flags: &[&str]) -> Result<Self> {
        let said = NamedTempFile::new().context("cannot make a temporary file")?;
        let mut command = Command::new(executable);
        end_with_us(&mut command);
        command.args(["--config", "/dev/null", "irq", "run", "--interval", "1s", "--mode", mode]);
        command.args(flags).stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(said.reopen().context("cannot open a temporary file")?);
        let child = Helper(command.spawn().context("cannot start evenkeel")?);
        let mut mover = Self { child, said };
        wait_until("evenkeel irq run", &mut mover.child.0, || {
            fs::metadata(mover.said.path()).is_ok_and(|file| file.len() > 0)
        })?;
        Ok(mover)
    }

    /// Its lines about moves.
    fn moves(&self) -> Result<f64> {
        let said = fs::read_to_string(self.said.path()).context("cannot read what irq run says")?;
        Ok(count_moves(&said) as f64)
    }
}

/// Threads and lines that were moved, and tables that were changed, by what `irq run` prints.
fn count_moves(said: &str) -> usize {
    let is_move = |line: &&str| line.starts_with("moved ") || line.starts_with("spread ");
    said.lines().filter(is_move).count()
}

/// Where irqbalance is: installed, or where `scripts/irqbalance` has unpacked it.
pub(super) fn irqbalance() -> Option<PathBuf> {
    let fetched = evenkeel_vm::cache().join("irqbalance/usr/sbin/irqbalance");
    [PathBuf::from("/usr/sbin/irqbalance"), fetched].into_iter().find(|path| path.is_file())
}

/// An irqbalance of ours. What it did to the machine's lines is taken back when this is dropped. (Where
/// this process is killed, they stay where irqbalance has put them.)
struct Irqbalance {
    child: Helper,
    lines: BTreeMap<PathBuf, String>,
}

impl Irqbalance {
    /// Waits until it answers.
    fn start(program: &Path) -> Result<Self> {
        let lines = affinities();
        let mut command = Command::new(program);
        end_with_us(&mut command);
        command.args(["--foreground", "--interval=1"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Helper(command.spawn().context("cannot start irqbalance")?);
        let mut irqbalance = Self { child, lines };
        let listens = || find_irqbalance(Path::new("/")).iter().any(|one| one.socket.is_some());
        wait_until("irqbalance", &mut irqbalance.child.0, listens)?;
        Ok(irqbalance)
    }
}

impl Drop for Irqbalance {
    fn drop(&mut self) {
        // It must not move them again.
        self.child.ask_to_end();
        let _ = self.child.0.wait();
        for (file, now) in affinities() {
            let Some(before) = self.lines.get(&file).filter(|before| **before != now) else {
                continue;
            };
            if let Err(why) = fs::write(&file, before) {
                tracing::warn!("{}: cannot set it back: {why}", file.display());
            }
        }
    }
}

/// The CPUs of each interrupt line.
fn affinities() -> BTreeMap<PathBuf, String> {
    let entries = fs::read_dir("/proc/irq").into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path().join("smp_affinity_list"));
    files.filter_map(|file| Some((file.clone(), fs::read_to_string(&file).ok()?))).collect()
}

fn wait_until(
    name: &str,
    child: &mut std::process::Child,
    has_begun: impl Fn() -> bool,
) -> Result<()> {
    let start = Instant::now();
    while !has_begun() {
        if let Some(status) = child.try_wait()? {
            bail!("{name} does not begin ({status}): run it by hand to see why");
        }
        if start.elapsed() > PATIENCE {
            bail!("{name} does not begin within {} s", PATIENCE.as_secs());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_their_own_and_moves_are_counted() {
        let mut names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Method::ALL.len());
        let said = "Moving interrupts to level them, a round every 1 s.\n\
                    moved napi/client0-8193 (thread 7): CPU 0 -> CPU 1, because ...\n\
                    left alone napi/client0-8193 (thread 7): ...\n\
                    spread eth0: ...\n";
        assert_eq!(count_moves(said), 2);
    }

    #[test]
    fn without_irqbalance_the_others_take_part() {
        let here = Method::ALL.into_iter().filter(|method| method.is_here(None)).count();
        assert_eq!(here, Method::ALL.len() - 2);
        assert!(Method::ALL.into_iter().all(|method| method.is_here(Some(Path::new("/x")))));
    }
}
