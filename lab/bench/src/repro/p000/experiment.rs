//! What all parts share: programs, contestants, one measured run, and judging.

use std::cell::RefCell;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_host::Summary;

use crate::capability::Case;
use crate::capability::lab::Lab;
use crate::interleave::{self, Contestant, Group, Measurement, Outcome, Plan};
use crate::mpi::{Balanced, CHORE_COUNTER, Kind, Mpi};
use crate::programs::{Installed, Program, field};
use evenkeel_experiment::accounts::Accounts;
use evenkeel_experiment::command::{self, Ended};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::host::usable_cpus;

/// Runs of each contestant. A part takes minutes, so that there are fewer than elsewhere.
const RUNS: usize = 5;
/// From here on a part gets no more runs.
const BUDGET: Duration = Duration::from_secs(15 * 60);
/// Chores of 10 us, as the chore-counter prints them, in a million.
const MILLION: f64 = 1e6;

/// The asymmetries of the paper (figure 5), as they are made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asymmetry {
    /// Nothing disturbs.
    Natural,
    /// Softirqs take 4 of every 10 ms of one CPU, as from a network card.
    Dynamic,
    /// Half of one CPU's time is taken in pieces of 2 ms, in softirqs: invisible to the kernel's
    /// scheduler, like a core of half the frequency.
    Static,
}

impl Asymmetry {
    /// In the paper's order.
    pub const ALL: [Self; 3] = [Self::Natural, Self::Dynamic, Self::Static];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::Dynamic => "dynamic",
            Self::Static => "static (emulated)",
        }
    }

    /// A word that can be part of a file's name.
    pub fn id(self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::Dynamic => "dynamic",
            Self::Static => "static",
        }
    }

    /// The noise that makes it.
    pub fn case(self) -> Case {
        match self {
            Self::Natural => Case::None,
            Self::Dynamic => Case::Softirq,
            Self::Static => Case::SoftirqFine,
        }
    }
}

/// Who balances: a name in the report, and the options of `evenkeel run` and `daemon`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct How {
    /// Its name.
    pub name: String,
    /// `None`: the kernel alone.
    pub options: Option<Vec<String>>,
}

impl How {
    /// The kernel alone: the paper's runqueue balancer.
    pub fn kernel() -> Self {
        Self { name: "default".into(), options: None }
    }

    /// The paper's balancer with this selection and interval.
    pub fn paper(selection: &str, interval: &str) -> Self {
        let options = ["--policy", "paper", "--placement", "hard"];
        let more = ["--selection", selection, "--interval", interval];
        Self {
            name: format!("paper ({selection}, {interval})"),
            options: Some(options.iter().chain(&more).map(|word| (*word).to_owned()).collect()),
        }
    }

    /// Ours, with its own choice of interval.
    pub fn lag() -> Self {
        Self { name: "lag".into(), options: Some(Vec::new()) }
    }

    /// Ours at a fixed interval.
    pub fn lag_at(interval: &str) -> Self {
        let options = ["--interval", interval].map(str::to_owned).to_vec();
        Self { name: format!("lag ({interval})"), options: Some(options) }
    }
}

/// A program that is measured.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its name in the report.
    pub name: String,
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// OpenMP threads.
    pub threads: usize,
    /// What its output must have in it.
    pub expected: &'static str,
}

/// A run that was measured.
pub struct Once {
    /// What it gave.
    pub ended: Ended,
    /// The figures for the rows.
    pub measurement: Measurement,
}

/// LAMMPS's command.
const LAMMPS: &str = "lmp";
/// Our own input for it: a melt of Lennard-Jones atoms, the classic of molecular dynamics.
const LAMMPS_INPUT: &str = include_str!("../../../programs/melt.lammps");

/// Everything that the parts need.
pub struct Experiment {
    /// Noise and accounts.
    pub lab: Lab,
    /// evenkeel itself.
    pub executable: PathBuf,
    /// One short run of everything.
    pub quick: bool,
    /// The first MPI that is here, and the chore-counter compiled for it.
    pub mpi: Option<(Mpi, PathBuf)>,
    runs: usize,
    programs: Installed,
    files: tempfile::TempDir,
    display: RefCell<Display>,
}

impl Experiment {
    /// Makes the programs ready.
    ///
    /// # Errors
    /// There is only one CPU, or the programs cannot be written.
    pub fn new(executable: PathBuf, quick: bool, runs: Option<usize>) -> Result<Self> {
        let usable = usable_cpus()?;
        if usable.len() < 2 {
            bail!("unequal CPUs need two: only CPU {usable} may be used here");
        }
        let noisy = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
        let accounts = Accounts::open();
        if let Some(why) = accounts.why_not_exact() {
            bail!("the paper's experiments need exact accounting, which is not possible: {why}");
        }
        let files = tempfile::tempdir().context("cannot make a temporary directory")?;
        std::fs::write(files.path().join("melt.lammps"), LAMMPS_INPUT)?;
        let mpi = match Mpi::all().map(|all| all.into_iter().next()) {
            Ok(Some(mpi)) => {
                let program = mpi.compile(CHORE_COUNTER, files.path())?;
                Some((mpi, program))
            }
            _ => None,
        };
        Ok(Self {
            lab: Lab::new(usable, noisy, accounts),
            executable,
            quick,
            mpi,
            runs: if quick { 1 } else { runs.unwrap_or(RUNS) },
            programs: Installed::new()?,
            files,
            display: RefCell::new(Display::new()),
        })
    }

    /// CPUs that the programs may use: the paper's N.
    pub fn cpus(&self) -> usize {
        self.lab.usable.len()
    }

    /// The CPU that noise falls on.
    pub fn noisy(&self) -> u32 {
        self.lab.stage.borrow().cpu()
    }

    /// A length, in s: a twentieth of it with `--quick`.
    pub fn seconds(&self, usual: f64) -> f64 {
        if self.quick { usual / 20.0 } else { usual }
    }

    /// One of the carried programs, a thread for each CPU.
    pub fn program(&self, program: Program, args: &[&str]) -> Launch {
        let mut words = vec![self.programs.path(program).into_os_string()];
        words.extend(args.iter().map(OsString::from));
        let expected = match program {
            Program::Ep | Program::Cg => "verification=SUCCESSFUL",
            _ => "checksum=",
        };
        Launch { name: program.name().to_owned(), words, threads: self.cpus(), expected }
    }

    /// The static loop, of about so many seconds undisturbed.
    pub fn static_loop(&self, seconds: f64) -> Launch {
        // A unit is about 1 ms of one core.
        let work = (1e3 * self.seconds(seconds) * self.cpus() as f64).ceil();
        self.program(Program::StaticLoop, &["--work", &format!("{work}")])
    }

    /// EP, class A: about 1.5 s. The smallest class with `--quick`.
    pub fn ep(&self) -> Launch {
        self.program(Program::Ep, &["--class", if self.quick { "S" } else { "A" }])
    }

    /// CG, class A, so many times from the start: about 0.3 s each. The smallest class once with
    /// `--quick`.
    pub fn cg(&self, times: u32) -> Launch {
        if self.quick {
            return self.program(Program::Cg, &["--class", "S"]);
        }
        self.program(Program::Cg, &["--class", "A", "--repeat", &times.to_string()])
    }

    /// LAMMPS, a rank for each CPU, if it is installed. Debian's is made for Open MPI.
    ///
    /// # Errors
    /// It is not; says what to install.
    pub fn lammps(&self) -> Result<Launch> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join(LAMMPS).is_file()) {
            bail!("lammps: not installed (apt-get install lammps openmpi-bin libopenmpi-dev)");
        }
        let mpi = Mpi::find(Kind::OpenMpi)?;
        let steps = if self.quick { "10" } else { "500" };
        let mut app =
            [LAMMPS, "-log", "none", "-var", "steps", steps, "-in"].map(OsString::from).to_vec();
        app.push(self.files.path().join("melt.lammps").into_os_string());
        let ranks = NonZeroU32::new(self.cpus() as u32).context("no CPU may be used")?;
        Ok(Launch {
            name: "lammps".into(),
            words: mpi.launch(ranks, Balanced::Not, &app),
            threads: 1,
            expected: "Total wall time",
        })
    }

    /// The chore-counter with so many ranks, if there is an MPI. `args` are its own.
    ///
    /// # Errors
    /// There is none; says what to install.
    pub fn chore_counter(
        &self,
        ranks: u32,
        balanced: Balanced<'_>,
        args: &[&str],
    ) -> Result<Launch> {
        let Some((mpi, program)) = &self.mpi else {
            bail!("no MPI here: scripts/setup mpi installs one");
        };
        let ranks = NonZeroU32::new(ranks).context("an MPI program has at least one rank")?;
        let mut app = vec![program.clone().into_os_string()];
        app.extend(args.iter().map(OsString::from));
        Ok(Launch {
            name: "chore_counter".into(),
            words: mpi.launch(ranks, balanced, &app),
            threads: 1,
            expected: "avg_chore=",
        })
    }

    /// The words of `evenkeel run` up to the command.
    pub fn balancer(&self, options: &[String], json: &Path) -> Vec<OsString> {
        let mut words = vec![self.executable.clone().into_os_string()];
        // The defaults are the built-in ones, not those of this machine's configuration.
        words.extend(["--config", "/dev/null", "run", "-q", "--json"].map(OsString::from));
        words.push(json.into());
        words.extend(options.iter().map(OsString::from));
        words.push("--".into());
        words
    }

    /// Runs a program once.
    ///
    /// # Errors
    /// It fails, the balancer does, or the noise cannot be made.
    pub fn once(&self, case: Case, how: &How, launch: &Launch) -> Result<Once> {
        let json = self.files.path().join("summary.json");
        let mut words = match &how.options {
            Some(options) => self.balancer(options, &json),
            None => Vec::new(),
        };
        words.extend(launch.words.iter().cloned());
        let mut command = command_of(&words, launch.threads)?;
        let seen = self.lab.under(case, None, || command::run(&mut command))?;
        check(launch, &seen.ended)?;
        let moves = match &how.options {
            None => 0,
            Some(_) => {
                let bytes = std::fs::read(&json).context("cannot read the balancer's JSON")?;
                serde_json::from_slice::<Summary>(&bytes)?.moves
            }
        };
        let measurement = Measurement {
            seconds: seen.ended.seconds,
            foreign_pct: seen.window.foreign_pct,
            moves,
            average: seen.given.map(|given| given.average),
            worst: seen.given.map(|given| given.worst),
            ..Measurement::default()
        };
        Ok(Once { ended: seen.ended, measurement })
    }

    /// A contestant that is measured by its time.
    pub fn timed<'a>(&'a self, case: Case, how: &How, launch: &Launch) -> Contestant<'a> {
        let (how, launch) = (how.clone(), launch.clone());
        Contestant {
            name: how.name.clone(),
            run: Box::new(move || Ok(self.once(case, &how, &launch)?.measurement)),
        }
    }

    /// A contestant that is measured by what the chore-counter did in its time: `seconds` is what
    /// each rank took for a million chores on average.
    ///
    /// # Errors
    /// There is no MPI.
    pub fn counted<'a>(
        &'a self,
        case: Case,
        how: &How,
        ranks: u32,
        seconds: f64,
    ) -> Result<Contestant<'a>> {
        let for_time = ["--seconds", &format!("{:.3}", self.seconds(seconds))];
        let launch = self.chore_counter(ranks, Balanced::Not, &for_time)?;
        let (how, name) = (how.clone(), how.name.clone());
        let run = move || {
            let Once { ended, measurement } = self.once(case, &how, &launch)?;
            let number = |key: &str| -> Result<f64> {
                let text = field(&ended.output, key);
                text.and_then(|text| text.parse().ok())
                    .with_context(|| format!("the chore-counter does not say {key}"))
            };
            let (avg, stdev) = (number("avg_chore")?, number("stdev_chore")?);
            if avg <= 0.0 {
                bail!("the chore-counter did nothing");
            }
            let seconds = MILLION * number("seconds")? / avg;
            let migrations = field(&ended.output, "migrations").and_then(|text| text.parse().ok());
            Ok(Measurement { seconds, spread: Some(stdev / avg), migrations, ..measurement })
        };
        Ok(Contestant { name, run: Box::new(run) })
    }

    /// Runs the groups in turn, and judges all their rows together.
    ///
    /// # Errors
    /// A group makes no sense, a contestant failed, or somebody asked for the end.
    pub fn judge(&self, mut groups: Vec<Group<'_>>) -> Result<Vec<Outcome>> {
        let plan = Plan {
            initial_runs: self.runs,
            step: 1,
            max_runs: self.runs,
            max_repeats: if self.quick { 0 } else { 1 },
            budget: BUDGET,
            ..Plan::default()
        };
        let display = self.display.borrow();
        let start = Instant::now();
        let outcomes = interleave::run(&mut groups, &plan, &|| start.elapsed(), &mut |progress| {
            display.show(&progress);
        });
        display.finish();
        evenkeel_experiment::interrupt::check()?;
        let outcomes = outcomes?;
        if let Some(failed) = outcomes.iter().find(|outcome| outcome.failed.is_some()) {
            let why = failed.failed.as_deref().unwrap_or_default();
            bail!("{}, {}, {}: {why}", failed.case, failed.program, failed.contestant);
        }
        Ok(outcomes)
    }

    /// Says what happens, where that can be seen.
    pub fn message(&self, text: &str) {
        self.display.borrow().message(text);
    }
}

/// Whether the program's output is what it should be.
///
/// # Errors
/// It is not.
pub fn check(launch: &Launch, ended: &Ended) -> Result<()> {
    if ended.output.contains(launch.expected) {
        return Ok(());
    }
    bail!("{} did not print {:?}, but: {}", launch.name, launch.expected, ended.output.trim())
}

/// A command of these words.
///
/// # Errors
/// There is no word.
pub fn command_of(words: &[OsString], threads: usize) -> Result<Command> {
    let (program, args) = words.split_first().context("a command needs a program")?;
    let mut command = Command::new(program);
    command.args(args);
    command::set_threads(&mut command, threads);
    Ok(command)
}
