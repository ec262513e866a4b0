//! Where runs are measured: noise on or off, and the accounts before and after.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use evenkeel_machine::{CAPABILITY_SCALE, CpuSet, Machine, SpeedSource};

use super::given::{Given, given};
use super::metric::{AVERAGE, BOUND, TIME, WORST};
use super::stage::{Disturbance, Stage};
use crate::stats::median;
use evenkeel_experiment::accounts::{Accounts, Window};
use evenkeel_experiment::{MachineInfo, Sample};

/// Threads and the supervisor of a run get this long to end.
const SETTLE: Duration = Duration::from_millis(20);

/// The accounts, the stage, and what is known of the CPUs.
pub struct Lab {
    /// Where the CPUs' time goes.
    pub accounts: RefCell<Accounts>,
    /// The noise that plays.
    pub stage: RefCell<Stage>,
    /// The CPUs of the programs.
    pub usable: CpuSet,
    online: CpuSet,
    speeds: BTreeMap<u32, f64>,
}

/// What was seen of a run.
#[derive(Debug)]
pub struct Seen<T> {
    /// What the run gave.
    pub ended: T,
    /// Where the CPUs' time went.
    pub window: Window,
    /// What the CPUs gave, where the accounts show it.
    pub given: Option<Given>,
}

impl<T> Seen<T> {
    /// The figures of a run that took so long.
    pub fn sample(&self, seconds: f64) -> Sample {
        let foreign_pct = self.window.foreign_pct;
        let mut sample = Sample { foreign_pct, ..Sample::new([(TIME, seconds)]) };
        if let Some(Given { average, worst }) = self.given {
            sample.set(AVERAGE, Some(average));
            sample.set(WORST, Some(worst));
            sample.set(BOUND, (worst > 0.0).then(|| average / worst));
        }
        sample
    }
}

impl Lab {
    /// Noise is to fall on the CPU `noisy`, one of the `usable` ones.
    pub fn new(usable: CpuSet, noisy: u32, accounts: Accounts) -> Self {
        let machine = Machine::from_sysfs(Path::new("/"))
            .and_then(|machine| machine.with_speed(&SpeedSource::Auto))
            .inspect_err(|why| tracing::warn!("all CPUs count as equally fast: {why}"))
            .ok();
        let speeds = machine
            .iter()
            .flat_map(|machine| &machine.cpus)
            .map(|cpu| (cpu.id, f64::from(cpu.capability) / f64::from(CAPABILITY_SCALE)));
        Self {
            accounts: RefCell::new(accounts),
            stage: RefCell::new(Stage::new(noisy)),
            speeds: speeds.collect(),
            online: machine.as_ref().map_or_else(|| usable.clone(), Machine::online),
            usable,
        }
    }

    /// Runs `run` under `noise`. `hog_share` is the share of its CPU that a hog gets
    /// beside the program, 0..=1.
    ///
    /// # Errors
    /// The noise cannot be made, the accounts cannot be read, a signal asked for the end, or
    /// `run` fails.
    pub fn under<T>(
        &self,
        noise: impl Into<Disturbance>,
        hog_share: Option<f64>,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<Seen<T>> {
        let noise = noise.into();
        evenkeel_experiment::interrupt::check()?;
        self.stage.borrow_mut().set(noise)?;
        std::thread::sleep(SETTLE);
        let alive = self.stage.borrow().processes();
        let mut accounts = self.accounts.borrow_mut();
        let before = accounts.read(&self.online, &alive)?;
        let ended = run()?;
        let window = accounts.read(&self.online, &alive)?.since(&before);
        // Without exact accounting only what it shows is told.
        let sees = accounts.why_not_exact().is_none() || noise.is_seen_by_all();
        let hog = hog_share.map(|share| (self.stage.borrow().cpu(), share));
        let given = if sees { given(&window, &self.usable, &self.speeds, hog) } else { None };
        Ok(Seen { ended, window, given })
    }

    /// Whether the accounts are exact.
    pub fn is_exact(&self) -> bool {
        self.accounts.borrow().why_not_exact().is_none()
    }

    /// Ends the noise.
    ///
    /// # Errors
    /// The generator died or lost its CPU.
    pub fn quiet(&self) -> Result<()> {
        self.stage.borrow_mut().quiet()
    }

    /// The machine, with what the reader of the figures should know.
    pub fn machine(&self) -> MachineInfo {
        let mut machine = MachineInfo::read();
        let mut note = |name: &str, value: String| machine.notes.insert(name.into(), value);
        let accounting = if self.is_exact() { "cbinfo" } else { "/proc/stat" };
        note("accounting", accounting.to_owned());
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        if let Some(excludes) = evenkeel_cbinfo::run_time_excludes() {
            note("scheduler leaves out interrupt time (IRQ_TIME_ACCOUNTING)", yes(excludes.irq));
        }
        if let Ok(autogroup) = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled") {
            note("sched_autogroup", yes(autogroup.trim() == "1"));
        }
        note("usable CPUs", self.usable.to_string());
        let stage = self.stage.borrow();
        for (name, duties) in stage.duties() {
            if let Some(duty) = median(duties) {
                let took = format!("{:.1} % of CPU {}", 100.0 * duty, stage.cpu());
                note(&format!("noise of {name}, by its own measure"), took);
            }
        }
        machine
    }
}
