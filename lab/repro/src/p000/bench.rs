//! What all parts share: programs, contestants, one run, and the turns.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_experiment::accounts::Accounts;
use evenkeel_experiment::command::{self, Ended};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{
    Case, Experiment, Plan, Report, Runner, Sample, Turn, host, interrupt, measure,
};

use super::measured::{METRICS, MIGRATIONS, Measured, RATE, SPREAD};
use evenkeel_bench::capability::lab::{Lab, Seen};
use evenkeel_bench::capability::{Case as Noise, EFFICIENCY, efficiency};
use evenkeel_bench::levers::MELT;
use evenkeel_bench::mpi::{Balanced, CHORE_COUNTER, Kind, Mpi};
use evenkeel_bench::programs::{Installed, Program, field};

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

    /// The asymmetry of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.with_context(|| format!("no asymmetry {name:?}"))
    }

    /// The noise that makes it.
    pub fn noise(self) -> Noise {
        match self {
            Self::Natural => Noise::None,
            Self::Dynamic => Noise::Softirq,
            Self::Static => Noise::SoftirqFine,
        }
    }
}

/// How a contestant is balanced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// By the kernel alone: the paper's runqueue balancer.
    Kernel,
    /// By one balancer around the command, with these options of `evenkeel run` and `daemon`.
    Balancer(Vec<String>),
    /// By a balancer in front of each rank of an MPI program; they find each other.
    EachRank,
}

/// A contestant of a part.
pub type Contestant = evenkeel_experiment::Contestant<How>;

fn balancer(name: &str, options: &[&str]) -> Contestant {
    let options = options.iter().map(|word| (*word).to_owned()).collect();
    Contestant::new(name, "", How::Balancer(options))
}

/// Why a part with MPI programs is not run.
pub const NO_MPI: &str = "not run: no MPI here (scripts/setup mpi)";

/// The name of the baseline.
pub const DEFAULT: &str = "default";
/// The name of our own policy with its own choice of interval.
pub const LAG: &str = "lag";

/// The kernel alone, the baseline of all parts.
pub fn kernel() -> Contestant {
    Contestant::new(DEFAULT, "", How::Kernel)
}

/// The paper's balancer with this selection and interval.
pub fn paper(selection: &str, interval: &str) -> Contestant {
    let policy = ["--policy", "paper", "--placement", "hard"];
    let parameters = ["--selection", selection, "--interval", interval];
    balancer(&format!("paper ({selection}, {interval})"), &[policy, parameters].concat())
}

/// The lag policy with its own choice of interval.
pub fn lag() -> Contestant {
    balancer(LAG, &[])
}

/// The lag policy at a fixed interval.
pub fn lag_at(interval: &str) -> Contestant {
    balancer(&format!("lag ({interval})"), &["--interval", interval])
}

/// A case of these contestants.
pub fn case(name: &str, program: &str, contestants: &[Contestant]) -> Case {
    Case {
        name: name.to_owned(),
        program: program.to_owned(),
        contestants: contestants.iter().map(|contestant| contestant.name.clone()).collect(),
        ..Case::default()
    }
}

/// How the run of this turn is balanced; a reference run by the kernel alone.
pub fn how_of<'a>(turn: &Turn<'a, How>) -> &'a How {
    turn.contestant.map_or(&How::Kernel, |contestant| &contestant.how)
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

/// LAMMPS's command.
const LAMMPS: &str = "lmp";

/// Everything that the parts need.
pub struct Bench {
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
    display: Display,
}

impl Bench {
    /// Makes the programs ready.
    ///
    /// # Errors
    /// There is only one CPU, or the programs cannot be written.
    pub fn new(executable: PathBuf, quick: bool, runs: Option<usize>) -> Result<Self> {
        let usable = host::usable_cpus()?;
        if usable.len() < 2 {
            bail!("unequal CPUs need two: only CPU {usable} may be used here");
        }
        let noisy = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
        let accounts = Accounts::open();
        if let Some(why) = accounts.why_not_exact() {
            bail!("the paper's experiments need exact accounting, which is not possible: {why}");
        }
        let files = tempfile::tempdir().context("cannot make a temporary directory")?;
        std::fs::write(files.path().join("melt.lammps"), MELT)?;
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
            display: Display::new(),
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
            Program::StaticLoop => "checksum=",
            _ => "verification=SUCCESSFUL",
        };
        Launch { name: program.name().to_owned(), words, threads: self.cpus(), expected }
    }

    /// The static loop, of about so many seconds undisturbed.
    pub fn static_loop(&self, seconds: f64) -> Launch {
        // A unit is about 1 ms of one core.
        let work = (1e3 * self.seconds(seconds) * self.cpus() as f64).ceil();
        self.program(Program::StaticLoop, &["--work", &format!("{work}")])
    }

    /// A kernel of NPB in this class, so many times from the start. The smallest class once with
    /// `--quick`.
    pub fn npb(&self, kernel: Program, class: &str, times: u32) -> Launch {
        if self.quick {
            return self.program(kernel, &["--class", "S"]);
        }
        self.program(kernel, &["--class", class, "--repeat", &times.to_string()])
    }

    /// EP, class A: about 1.5 s.
    pub fn ep(&self) -> Launch {
        self.npb(Program::Ep, "A", 1)
    }

    /// CG, class A, so many times from the start: about 0.3 s each.
    pub fn cg(&self, times: u32) -> Launch {
        self.npb(Program::Cg, "A", times)
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
    pub fn balancer(&self, options: &[String]) -> Vec<OsString> {
        let mut words = vec![self.executable.clone().into_os_string()];
        // The built-in defaults, not those of this machine's configuration.
        words.extend(["--config", "/dev/null", "run", "-q"].map(OsString::from));
        words.extend(options.iter().map(OsString::from));
        words.push("--".into());
        words
    }

    /// Runs a program once under the noise of `noise`. A launch for [`How::EachRank`] has its
    /// balancers in it already.
    ///
    /// # Errors
    /// The program or the balancer fails, or the noise cannot be made.
    pub fn run(&self, noise: Noise, how: &How, launch: &Launch) -> Result<Seen<Ended>> {
        let mut words = match how {
            How::Balancer(options) => self.balancer(options),
            How::Kernel | How::EachRank => Vec::new(),
        };
        words.extend(launch.words.iter().cloned());
        let mut command = command_of(&words, launch.threads)?;
        let seen = self.lab.under(noise, None, || command::run(&mut command))?;
        check(launch, &seen.ended)?;
        Ok(seen)
    }

    /// A run that is measured by its time.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn timed(&self, noise: Noise, how: &How, launch: &Launch) -> Result<Sample> {
        let seen = self.run(noise, how, launch)?;
        Ok(seen.sample(seen.ended.seconds))
    }

    /// A run of the chore-counter for a given time. [`TIME`] is what each rank took for a million
    /// chores on average.
    ///
    /// # Errors
    /// There is no MPI, and as [`Self::run`].
    pub fn counted(&self, noise: Noise, how: &How, ranks: u32, seconds: f64) -> Result<Sample> {
        let for_time = ["--seconds", &format!("{:.3}", self.seconds(seconds))];
        let launch = self.chore_counter(ranks, Balanced::Not, &for_time)?;
        let seen = self.run(noise, how, &launch)?;
        let number = |key: &str| -> Result<f64> {
            let text = field(&seen.ended.output, key);
            text.and_then(|text| text.parse().ok())
                .with_context(|| format!("the chore-counter does not print {key}"))
        };
        let (avg, stdev) = (number("avg_chore")?, number("stdev_chore")?);
        if avg <= 0.0 {
            bail!("the chore-counter did nothing");
        }
        let seconds = MILLION * number("seconds")? / avg;
        let mut sample = seen.sample(seconds);
        sample.set(RATE, (seconds > 0.0).then(|| 1e3 / seconds));
        sample.set(SPREAD, Some(100.0 * stdev / avg));
        // The kernel does not let the ranks count migrations everywhere.
        sample.set(MIGRATIONS, number("migrations").ok());
        Ok(sample)
    }

    /// Has the contestants take turns in all cases, and judges all their rows together. The panels are
    /// by case: each case has an A/A row for its first program.
    ///
    /// # Errors
    /// A case makes no sense, a contestant failed, or a signal asked for the end.
    pub fn measure(
        &self,
        contestants: &[Contestant],
        cases: &[Case],
        run: impl FnMut(&Turn<'_, How>) -> Result<Sample>,
    ) -> Result<Measured> {
        let experiment = Experiment {
            name: "repro",
            title: "",
            intro: "",
            case_word: "case",
            contestants: contestants.to_vec(),
            metrics: &METRICS,
            aims: Vec::new(),
            course: "",
            reading: "",
            lists: Vec::new(),
        };
        let mut cases = cases.to_vec();
        for index in 0..cases.len() {
            let (before, rest) = cases.split_at_mut(index);
            rest[0].has_second_baseline = before.iter().all(|other| other.name != rest[0].name);
        }
        let max_repeats = if self.quick { 0 } else { 1 };
        let plan = Plan { max_repeats, budget: BUDGET, ..Plan::fixed(self.runs) };
        let measured = measure(&experiment, &cases, &plan, &mut Runs(run), &self.display);
        self.display.finish();
        interrupt::check()?;
        let records = measured?;
        let report = Report::new(&experiment, &records, &plan, "");
        match report.failed.first() {
            Some(failed) => bail!("{}", failed.words()),
            None => Ok(Measured { records, report }),
        }
    }

    /// Says what happens, where that can be seen.
    pub fn message(&self, text: &str) {
        self.display.message(text);
    }
}

/// Makes runs by a function, and relates them to the reference of their round.
struct Runs<F>(F);

impl<F: FnMut(&Turn<'_, How>) -> Result<Sample>> Runner<How> for Runs<F> {
    fn run(&mut self, turn: &Turn<'_, How>) -> Result<Sample> {
        (self.0)(turn)
    }

    fn relate(&self, reference: &Sample, sample: &mut Sample) {
        sample.set(EFFICIENCY, efficiency(reference, sample));
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
