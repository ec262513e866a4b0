//! `evenkeel-lab bench cluster`: what `srun --evenkeel` gains a job of ranks that wait for each other,
//! on one node of Slurm with one noisy CPU, and what it costs where nothing disturbs. It takes the Slurm
//! that is here: `make bench-cluster` sets one up for it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evenkeel_experiment::accounts::Accounts;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{
    Aim, Case, Cases, Contestant, Experiment, Kind, List, Metric, Options, Plan, Report, Sample,
    Turn, Wanted, command, host, interrupt, measure,
};
use procfs::process::all_processes;

use crate::capability::lab::Lab;
use crate::capability::{AVERAGE, BOUND, Case as Noise, TIME};
use crate::mpi::{CHORE_COUNTER, Kind as MpiKind, Mpi};
use crate::programs::field;
use crate::stats::MAX_RUNS;

/// The noise: it leaves 0.6 of one CPU.
const NOISE: Noise = Noise::Softirq;
/// Nothing disturbs.
const QUIET: Noise = Noise::None;
/// Work of each rank, in chores of about 10 us: some ten seconds on the noisy CPU. The start of srun and
/// the second until tasks take turns are then a small part of a job, as they are of a real one. Jobs
/// without noise have [`Noise::length`] times the work.
const CHORES: u64 = 600_000;
const QUICK_CHORES: u64 = 60_000;
/// The programs: names, and the work between two allreduces in us.
const PROGRAMS: [(&str, &str, u32); 2] = [
    (
        SHORT,
        "ranks of MPI, each with the same work; they agree by an allreduce after each 50 ms of it",
        50_000,
    ),
    (LONG, "the same with an allreduce after each 100 ms of work", 100_000),
];
const SHORT: &str = "allreduce-50ms";
const LONG: &str = "allreduce-100ms";
/// What is measured: noise and program. The first one is that of `--quick`.
const CELLS: [(Noise, &str); 3] = [(NOISE, SHORT), (NOISE, LONG), (QUIET, LONG)];
/// What a job may lose where nothing disturbs.
const QUIET_MARGIN: f64 = 0.003;
const DEFAULT: &str = "default";
const UNBOUND: &str = "unbound";
const EVENKEEL: &str = "evenkeel";
/// Rounds to begin with: 6 is the least that a true 95 % interval needs.
const RUNS: usize = 7;
const QUICK_RUNS: usize = 2;
const BUDGET: Duration = Duration::from_secs(20 * 60);

/// The options of srun that make a contestant.
type Flags = &'static [&'static str];

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The name of this host as a node of Slurm.
    pub node: String,
    /// What any experiment can be asked for.
    pub options: Options,
}

static METRICS: [Metric; 3] = [
    Metric::new(TIME, Kind::Time, "the time of the whole srun, from outside: its start counts"),
    Metric::told(
        BOUND,
        Kind::Factor,
        "avg(C) / min(C) during the runs: how much faster than its slowest CPU a perfectly balanced \
         program is; C, a CPU's capability, is counted by cbinfo",
    ),
    Metric::told(AVERAGE, Kind::Index, "what was left of the average CPU for the job, 0..=1"),
];

/// Runs the experiment.
///
/// # Errors
/// There is no Slurm with the plugin here, no MPICH, no exact accounting, or a file cannot be written.
pub fn run(asked: &Asked) -> Result<i32> {
    let experiment = experiment();
    experiment.run(&asked.options, || measure_all(&experiment, asked))
}

/// What is measured.
pub fn experiment() -> Experiment<Flags> {
    let contestant =
        |name: &str, explanation: &str, flags: Flags| Contestant::new(name, explanation, flags);
    Experiment {
        name: "cluster",
        title: "Benchmarks: jobs of Slurm on a noisy node",
        intro: INTRO,
        case_word: "noise",
        contestants: vec![
            contestant(
                DEFAULT,
                "srun as the site has it: ranks are bound as its TaskPlugin does",
                &[],
            ),
            contestant(
                UNBOUND,
                "srun --cpu-bind=none: the kernel places the ranks",
                &["--cpu-bind=none"],
            ),
            contestant(
                EVENKEEL,
                "srun --cpu-bind=none --evenkeel",
                &["--cpu-bind=none", "--evenkeel"],
            ),
        ],
        metrics: &METRICS,
        aims: vec![
            Aim::new(EVENKEEL, TIME, Wanted::Ratio(1.2, DEFAULT))
                .in_cases(Cases::With(NOISE.name())),
            Aim::new(EVENKEEL, TIME, Wanted::NotInferior(QUIET_MARGIN, UNBOUND))
                .in_cases(Cases::With(QUIET.name())),
        ],
        course: "One job after the other, a rank for each CPU of the node. Contestants run in turn \
                 (A B C A B C ...) and are compared run by run. Runs that other programs disturbed \
                 (more than 5 % of the CPU time) are repeated; undecided rows get more runs.",
        reading: "",
        lists: vec![
            List {
                title: "Noises",
                items: [NOISE, QUIET].map(|noise| (noise.name(), noise.explanation())).to_vec(),
            },
            List {
                title: "Programs",
                items: PROGRAMS.map(|(name, explanation, _)| (name, explanation)).to_vec(),
            },
        ],
    }
}

const INTRO: &str = "\
A real Slurm, with its controller and its daemons on this machine, starts the jobs. All ranks are on one
node: a thread never moves to another node, so that what a job on many nodes gains is what its slowest
node gains. [How much that is on up to 10,000 nodes](scale.md) is calculated and simulated.
";

/// The cells, each under all contestants.
fn cases(is_quick: bool) -> Vec<Case> {
    let count = if is_quick { 1 } else { CELLS.len() };
    let case = |(noise, program): &(Noise, &str)| Case {
        name: noise.name().to_owned(),
        program: (*program).to_owned(),
        contestants: experiment().contestants.into_iter().map(|one| one.name).collect(),
        has_reference: false,
        has_second_baseline: true,
    };
    CELLS.iter().take(count).map(case).collect()
}

/// The noise of a case.
fn noise_of(case: &str) -> Result<Noise> {
    let mut noises = CELLS.iter().map(|(noise, _)| *noise);
    noises.find(|noise| noise.name() == case).with_context(|| format!("no noise {case:?}"))
}

/// How many runs, and how long.
fn plan(options: &Options) -> Plan {
    let usual = if options.quick { QUICK_RUNS } else { RUNS };
    let initial_runs = options.runs.unwrap_or(usual);
    let max_runs = if options.quick { initial_runs } else { MAX_RUNS.max(initial_runs) };
    Plan { initial_runs, step: 4, max_runs, budget: BUDGET, ..Plan::default() }
}

fn measure_all(experiment: &Experiment<Flags>, asked: &Asked) -> Result<Report> {
    let is_quick = asked.options.quick;
    check_srun()?;
    let usable = host::usable_cpus()?;
    ensure!(
        usable.len() >= 2,
        "unequal CPUs need two, and only CPU {usable} may be used here: run this on a machine with more"
    );
    let noisy = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
    if let Some(why) = NOISE.disturbance().why_impossible(noisy) {
        bail!("no noise can be made on CPU {noisy}: {why}; run this as root, with BPF");
    }
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let mpi = Mpi::find(MpiKind::Mpich)?;
    let step = Step {
        node: asked.node.clone(),
        ranks: usable.len(),
        program: mpi.compile(CHORE_COUNTER, folder.path())?,
        chores: if is_quick { QUICK_CHORES } else { CHORES },
    };
    // Tasks of Slurm may be another user's.
    open_to_all(folder.path())?;
    let lab = Lab::new(usable, noisy, accounts()?);
    let plan = plan(&asked.options);
    let display = Display::new();
    let mut run_once = |turn: &Turn<'_, Flags>| -> Result<Sample> {
        let flags = turn.contestant.context("a run of no contestant")?.how;
        let noise = noise_of(&turn.case.name)?;
        let run = || step.run(flags, &turn.case.program, noise.length());
        let seen = lab.under(noise, None, run)?;
        Ok(seen.sample(seen.ended))
    };
    let records = measure(experiment, &cases(is_quick), &plan, &mut run_once, &display);
    // The noise would disturb what follows.
    lab.quiet()?;
    interrupt::check()?;
    display.finish();
    let mut report = Report::new(experiment, &records?, &plan, &asked.options.command);
    report.machine = lab.machine();
    Ok(report)
}

fn open_to_all(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder, mode).with_context(|| format!("{}", folder.display()))
}

/// # Errors
/// There is no srun, or it does not offer evenkeel.
fn check_srun() -> Result<()> {
    let help = Command::new("srun").arg("--help").output();
    let help =
        help.context("srun cannot be started: this needs a Slurm (make cluster-test has one)")?;
    ensure!(
        String::from_utf8_lossy(&help.stdout).contains("--evenkeel"),
        "srun does not offer --evenkeel: install the plugin (docs/how-to/slurm.md)"
    );
    Ok(())
}

/// The accounts, in which what the node's daemons start is no foreign load.
fn accounts() -> Result<Accounts> {
    let mut accounts = Accounts::open();
    if let Some(why) = accounts.why_not_exact() {
        bail!("the tasks of a job cannot be told from other programs without cbinfo: {why}");
    }
    let daemons: Vec<u32> = all_processes()
        .context("cannot read /proc")?
        .flatten()
        .filter(|process| process.stat().is_ok_and(|stat| stat.comm == "slurmd"))
        .map(|process| process.pid as u32)
        .collect();
    ensure!(!daemons.is_empty(), "no slurmd runs on this host: run this on a node of the cluster");
    if let Some(cbinfo) = accounts.cbinfo() {
        for daemon in daemons {
            cbinfo.follow(daemon, daemon)?;
        }
    }
    Ok(accounts)
}

/// A step that is run again and again.
struct Step {
    node: String,
    ranks: usize,
    program: PathBuf,
    chores: u64,
}

impl Step {
    /// The words of its command.
    fn words(&self, flags: Flags, work_us: u32, chores: u64) -> Vec<OsString> {
        let own = [
            "--nodes=1".to_owned(),
            format!("--nodelist={}", self.node),
            format!("--ntasks={}", self.ranks),
        ];
        let fixed = ["--mpi=pmi2", "--quiet", "--time=5", "--chdir=/"].map(str::to_owned);
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        let words = own.into_iter().chain(fixed).chain(flags).map(OsString::from);
        let arguments = ["--chores".to_owned(), chores.to_string()];
        let barrier = ["--barrier-every-us".to_owned(), work_us.to_string()];
        let arguments = arguments.into_iter().chain(barrier).map(OsString::from);
        words.chain([self.program.clone().into_os_string()]).chain(arguments).collect()
    }

    /// Runs it once with so many times its work, and returns how long that took, in s.
    fn run(&self, flags: Flags, program: &str, times: u64) -> Result<f64> {
        let known = PROGRAMS.iter().find(|(name, ..)| *name == program);
        let (.., work_us) = known.with_context(|| format!("no program {program:?}"))?;
        let chores = times * self.chores;
        let ended = command::run(Command::new("srun").args(self.words(flags, *work_us, chores)))?;
        let done = vec![chores.to_string(); self.ranks].join(",");
        ensure!(
            field(&ended.output, "task_chores") == Some(done.as_str()),
            "the ranks printed {:?}, which is not the work of {} ranks: were they started together? {}",
            ended.output.trim(),
            self.ranks,
            ended.errors.trim()
        );
        Ok(ended.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_a_rank_for_each_cpu_and_the_flags_of_its_contestant() {
        let step = Step { node: "n1".into(), ranks: 2, program: "/p".into(), chores: 7 };
        let words = step.words(&["--evenkeel"], 50_000, 7);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let text = words.join(" ");
        assert!(text.starts_with("--nodes=1 --nodelist=n1 --ntasks=2 --mpi=pmi2 "), "{text}");
        assert!(text.ends_with(" --evenkeel /p --chores 7 --barrier-every-us 50000"), "{text}");
    }

    #[test]
    fn each_cell_has_its_a_a_row_and_all_contestants() {
        let all = cases(false);
        assert_eq!(all.len(), CELLS.len());
        for case in all {
            assert!(case.has_second_baseline && case.contestants == [DEFAULT, UNBOUND, EVENKEEL]);
            assert_eq!(noise_of(&case.name).unwrap().name(), case.name);
            assert!(PROGRAMS.iter().any(|(name, ..)| *name == case.program));
        }
        assert_eq!(cases(true).len(), 1);
        assert!(noise_of("hog").is_err());
    }
}
