//! One run of a program: the command of each contestant, and what it prints about itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use evenkeel_experiment::command::{self, Ended};
use evenkeel_host::Summary;
use evenkeel_machine::CpuSet;
use evenkeel_shares::environment::{
    LIBRARY, PAGE_VARIABLE, PRELOAD_VARIABLE, find_library, with_library,
};
use evenkeel_shares::page::PageOwner;

use super::table::{How, Lever, Noise, Program, THREADS_PER_CPU, What};
use crate::mpi::{Balanced, CHORE_COUNTER, Mpi};
use crate::programs::{self, Compiler, Installed};

/// Weights that are set by hand hold longer than any run.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The weight of a CPU that loses nothing, by hand.
const WHOLE_WEIGHT: u32 = 1_000;

/// Chores of the MPI loop, of about 10 us, that are as much work as a unit of the static loop.
const CHORES_A_UNIT: u32 = 100;

/// A program that is ready to be run.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The program and its arguments; of an MPI program those of one rank.
    pub words: Vec<OsString>,
    /// What launches the ranks.
    pub mpi: Option<Mpi>,
    /// Where it runs, and leaves its files.
    pub directory: PathBuf,
    /// What shows that its result is right.
    pub proof: Proof,
}

/// What shows that a program's result is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A text on standard output.
    Output(&'static str),
    /// A text in a file of its directory, which is removed before each run.
    File(&'static str, &'static str),
    /// A value that it prints as `NAME=`, the same in all its runs.
    Same(&'static str),
}

/// What was made ready, or why it could not be, by a program's name and repeats.
type Known = BTreeMap<(&'static str, u32), Result<Rc<Ready>, String>>;

/// Starts programs.
pub struct Launcher {
    executable: PathBuf,
    usable: Vec<u32>,
    noisy: u32,
    by: BTreeMap<&'static str, Result<Installed, String>>,
    files: tempfile::TempDir,
    ready: RefCell<Known>,
    /// What the first run of each program with [`Proof::Same`] printed.
    first: RefCell<BTreeMap<&'static str, String>>,
}

/// A command, and what must live as long as it runs.
struct Start {
    command: Command,
    summary: Option<tempfile::NamedTempFile>,
    _page: Option<PageOwner>,
}

impl Launcher {
    /// `executable` is evenkeel, `usable` the CPUs of the programs, `noisy` the one of them that is
    /// disturbed.
    ///
    /// # Errors
    /// There is no temporary directory to write to.
    pub fn new(executable: PathBuf, usable: &CpuSet, noisy: u32) -> Result<Self> {
        let installed = |compiler: Compiler| {
            let installed = Installed::by(compiler).map_err(|why| format!("{why:#}"));
            (compiler.name(), installed)
        };
        let files = tempfile::Builder::new().prefix("evenkeel-programs-").tempdir();
        Ok(Self {
            executable,
            usable: usable.iter().collect(),
            noisy,
            by: Compiler::ALL.map(installed).into(),
            files: files
                .context("cannot make a temporary directory for the programs; set TMPDIR")?,
            ready: RefCell::default(),
            first: RefCell::default(),
        })
    }

    /// Threads of a program, where a contestant has no others.
    pub fn threads(&self) -> usize {
        self.usable.len()
    }

    /// The program, made ready once.
    ///
    /// # Errors
    /// It is not here: says which package, or what else it needs.
    pub fn ready(&self, program: &Program) -> Result<Rc<Ready>> {
        let mut known = self.ready.borrow_mut();
        let entry = known.entry((program.name, program.repeats)).or_insert_with(|| {
            self.make_ready(program).map(Rc::new).map_err(|why| format!("{why:#}"))
        });
        entry.clone().map_err(|why| anyhow!(why))
    }

    fn make_ready(&self, program: &Program) -> Result<Ready> {
        let directory = self.files.path().join(format!("{}-{}", program.name, program.repeats));
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}; set TMPDIR", directory.display()))?;
        let repeats = program.repeats.to_string();
        let mut arguments = vec!["--class", program.class];
        if program.repeats > 1 {
            arguments.extend(["--repeat", &repeats]);
        }
        let npb = |path: PathBuf, mpi: Option<Mpi>| Ready {
            words: std::iter::once(path.into_os_string())
                .chain(arguments.iter().map(OsString::from))
                .collect(),
            mpi,
            directory: directory.clone(),
            proof: Proof::Output("verification=SUCCESSFUL"),
        };
        match program.what {
            What::OpenMp { kernel, compiler } => {
                let by = self.by.get(compiler.name()).context("a compiler that is none")?;
                let installed = by.as_ref().map_err(|why| anyhow!("{why}"))?;
                Ok(npb(installed.path(kernel), None))
            }
            What::Loop { phases, more_pct } => {
                let by = self.by.get(Compiler::Gcc.name()).context("a compiler that is none")?;
                let installed = by.as_ref().map_err(|why| anyhow!("{why}"))?;
                let work = (program.repeats as usize * self.threads()).to_string();
                let path = installed.path(programs::Program::StaticLoop);
                let mut words = vec![path.into_os_string(), "--work".into(), work.into()];
                words.extend(["--phases".into(), phases.to_string().into()]);
                if more_pct > 0 {
                    words.extend(["--more".into(), more_pct.to_string().into()]);
                }
                let proof = Proof::Same("checksum");
                Ok(Ready { words, mpi: None, directory, proof })
            }
            What::Mpi(source) => {
                let mpi = Mpi::all()?.into_iter().next().context("no MPI here")?;
                let path = mpi.compile(source, &directory)?;
                Ok(npb(path, Some(mpi)))
            }
            What::MpiLoop { phase_us } => {
                let mpi = Mpi::all()?.into_iter().next().context("no MPI here")?;
                let path = mpi.compile(CHORE_COUNTER, &directory)?;
                let chores = (program.repeats * CHORES_A_UNIT).to_string();
                let mut words = vec![path.into_os_string(), "--chores".into(), chores.into()];
                words.extend(["--barrier-every-us".into(), phase_us.to_string().into()]);
                Ok(Ready { words, mpi: Some(mpi), directory, proof: Proof::Same("task_chores") })
            }
            What::Package(package) => package.ready(&directory, self.threads()),
        }
    }

    /// Why `evenkeel run` does not take the options of a lever, if so.
    pub fn why_refused(&self, lever: Lever) -> Option<String> {
        let options = lever.options().join(" ");
        let mut command = Command::new(&self.executable);
        // Options are read before the help is shown.
        command.arg("run").args(lever.options()).arg("--help").stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let first = said.lines().next().unwrap_or("it does not say why");
                let first = first.strip_prefix("error: ").unwrap_or(first);
                Some(format!("`evenkeel run {options}` is refused: {first}"))
            }
            Err(why) => Some(format!("{}: {why}", self.executable.display())),
        }
    }

    /// Runs a program once, to its end, and gives what it printed, its time and what evenkeel says.
    /// `noise` is what a split by hand is made for.
    ///
    /// # Errors
    /// It cannot be started, fails, its result is wrong, or a signal asked for the end. It does not run
    /// any more then.
    pub fn run(
        &self,
        program: &Program,
        how: How,
        noise: &Noise,
    ) -> Result<(Ended, Option<Summary>)> {
        let ready = self.ready(program)?;
        let mut start = self.start(program, &ready, how, noise)?;
        if let Proof::File(name, _) = ready.proof {
            // It may not be there yet.
            let _ = std::fs::remove_file(ready.directory.join(name));
        }
        let ended = command::run(&mut start.command)?;
        ready.check(&ended)?;
        if let Proof::Same(name) = ready.proof {
            self.check_same(program.name, name, &ended.output)?;
        }
        let Some(file) = start.summary else { return Ok((ended, None)) };
        let bytes =
            std::fs::read(file.path()).context("cannot read the summary of evenkeel run")?;
        let summary = serde_json::from_slice(&bytes).with_context(|| {
            format!("evenkeel run did not say how it went: {}", ended.errors.trim())
        })?;
        Ok((ended, Some(summary)))
    }

    /// Whether the run printed what the first one of this program did.
    fn check_same(&self, program: &'static str, name: &str, output: &str) -> Result<()> {
        let value = programs::field(output, name)
            .with_context(|| format!("{program} printed no {name}: {:?}", output.trim()))?;
        let mut first = self.first.borrow_mut();
        let first = first.entry(program).or_insert_with(|| value.to_owned());
        ensure!(first == value, "its result is wrong: {name}={value}, in another run {first}");
        Ok(())
    }

    fn start(&self, program: &Program, ready: &Ready, how: How, noise: &Noise) -> Result<Start> {
        let words = match &ready.mpi {
            Some(mpi) => self.ranks(mpi, &ready.words, how, noise)?,
            None => ready.words.clone(),
        };
        let (mut words, mut summary) = (words, None);
        if let How::Run(lever) = how {
            let file = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
            words = [self.balancer(lever, file.path()), words].concat();
            summary = Some(file);
        }
        let (first, rest) = words.split_first().context("a command needs a program")?;
        let mut command = Command::new(first);
        command.args(rest).current_dir(&ready.directory);
        let mut page = None;
        if ready.mpi.is_some() {
            command::set_threads(&mut command, 1);
        } else {
            page = self.set_threads(&mut command, program, how, noise)?;
        }
        Ok(Start { command, summary, _page: page })
    }

    /// `evenkeel run` up to the command, by its built-in defaults.
    fn balancer(&self, lever: Lever, json: &Path) -> Vec<OsString> {
        let mut words = vec![self.executable.clone().into_os_string()];
        words.extend(["--config", "/dev/null", "run", "-q", "--json"].map(OsString::from));
        words.push(json.into());
        words.extend(lever.options().iter().map(OsString::from));
        words.push("--".into());
        words
    }

    /// The ranks of an MPI program.
    fn ranks(&self, mpi: &Mpi, app: &[OsString], how: How, noise: &Noise) -> Result<Vec<OsString>> {
        let cpus = self.usable.len() as u32;
        let many = cpus * THREADS_PER_CPU;
        let free = |ranks: u32| -> Result<_> {
            let ranks = NonZeroU32::new(ranks).context("no CPU may be used")?;
            Ok(mpi.launch(ranks, Balanced::Not, app))
        };
        match how {
            How::Kernel | How::Run(Lever::Moves | Lever::Shares) => free(cpus),
            How::Run(Lever::Threads) => free(many),
            How::Pinned => {
                let one_each: Vec<_> = self.usable.iter().map(|cpu| (*cpu, 1)).collect();
                Ok(mpi.launch_pinned(&one_each, app))
            }
            How::ByHand => {
                let split = split(many, &self.usable, self.noisy, noise.left_pct);
                Ok(mpi.launch_pinned(&split, app))
            }
        }
    }

    /// The threads of an OpenMP program.
    fn set_threads(
        &self,
        command: &mut Command,
        program: &Program,
        how: How,
        noise: &Noise,
    ) -> Result<Option<PageOwner>> {
        command::set_threads(command, self.usable.len());
        match how {
            How::Kernel | How::Run(Lever::Moves | Lever::Shares) => {}
            // `--threads` gives the number.
            How::Run(Lever::Threads) => {
                command.env_remove("OMP_NUM_THREADS");
            }
            How::Pinned => {
                command.env("OMP_PROC_BIND", "true").env("OMP_PLACES", "threads");
            }
            How::ByHand if is_clang(program) => {
                command.env("OMP_PROC_BIND", "true").env("OMP_PLACES", "threads");
                return self.share_by_hand(command, noise).map(Some);
            }
            How::ByHand if program.is_uneven() => {
                // The first thread gets the first CPU.
                let quiet = self.usable.iter().filter(|cpu| **cpu != self.noisy);
                let order: Vec<(u32, u32)> =
                    quiet.chain([&self.noisy]).map(|cpu| (*cpu, 1)).collect();
                command.env("GOMP_CPU_AFFINITY", affinity(&order));
            }
            How::ByHand => {
                let many = self.usable.len() as u32 * THREADS_PER_CPU;
                let split = split(many, &self.usable, self.noisy, noise.left_pct);
                command
                    .env("OMP_NUM_THREADS", many.to_string())
                    .env("OMP_WAIT_POLICY", "passive")
                    .env("GOMP_CPU_AFFINITY", affinity(&split));
            }
        }
        Ok(None)
    }

    /// The library of `--shares` with weights that do not change.
    fn share_by_hand(&self, command: &mut Command, noise: &Noise) -> Result<PageOwner> {
        let library = find_library(&self.executable).with_context(|| {
            format!("no {LIBRARY} beside {}: make build builds it", self.executable.display())
        })?;
        let preload = with_library(None, &library)
            .with_context(|| format!("{} cannot stand in LD_PRELOAD", library.display()))?;
        let mut page = PageOwner::create(PATIENCE)?;
        let weight = |cpu: u32| {
            if cpu == self.noisy { WHOLE_WEIGHT * noise.left_pct / 100 } else { WHOLE_WEIGHT }
        };
        page.set_weights(self.usable.iter().map(|cpu| (*cpu, weight(*cpu))));
        command.env(PAGE_VARIABLE, page.address()).env(PRELOAD_VARIABLE, preload);
        Ok(page)
    }
}

fn is_clang(program: &Program) -> bool {
    matches!(program.what, What::OpenMp { compiler: Compiler::Clang, .. })
}

impl Ready {
    fn check(&self, ended: &Ended) -> Result<()> {
        let file;
        let (text, wanted) = match self.proof {
            Proof::Output(wanted) => (&ended.output, wanted),
            Proof::File(name, wanted) => {
                let path = self.directory.join(name);
                file = std::fs::read_to_string(&path)
                    .with_context(|| format!("it did not write {}", path.display()))?;
                (&file, wanted)
            }
            Proof::Same(name) => (&ended.output, name),
        };
        if text.contains(wanted) {
            return Ok(());
        }
        let end: String = text.trim_end().lines().rev().take(3).collect::<Vec<_>>().join(" | ");
        bail!("its result is wrong: no {wanted:?}, but: {end}")
    }
}

/// So many threads over the CPUs, of which `noisy` has `left_pct` of its time and the others all: for
/// each CPU how many. None is left without.
fn split(threads: u32, cpus: &[u32], noisy: u32, left_pct: u32) -> Vec<(u32, u32)> {
    let others = cpus.iter().filter(|cpu| **cpu != noisy).count() as u32;
    let all_pct = left_pct + 100 * others;
    let most = threads.saturating_sub(others).max(1);
    let there = ((threads * left_pct + all_pct / 2) / all_pct.max(1)).clamp(1, most);
    let rest = threads.saturating_sub(there);
    let mut before = 0;
    let of = |cpu: &u32| {
        if *cpu == noisy {
            return (*cpu, there);
        }
        let extra = u32::from(before < rest % others.max(1));
        before += 1;
        (*cpu, rest / others.max(1) + extra)
    };
    cpus.iter().map(of).collect()
}

/// `GOMP_CPU_AFFINITY`: the CPU of each thread in turn. Threads of one CPU do not follow each other, so
/// that those with more iterations than others (the first ones) are spread.
fn affinity(split: &[(u32, u32)]) -> String {
    let mut left = split.to_vec();
    let mut list = Vec::new();
    // The CPU with the largest part of its threads still to come is next.
    while let Some(next) = (0..left.len()).filter(|index| left[*index].1 > 0).max_by(|a, b| {
        let part = |index: usize| f64::from(left[index].1) / f64::from(split[index].1);
        part(*a).total_cmp(&part(*b)).then(b.cmp(a))
    }) {
        left[next].1 -= 1;
        list.push(left[next].0.to_string());
    }
    list.join(" ")
}

#[cfg(test)]
mod tests {
    use evenkeel_journal::affinity as mask;

    use super::super::table::{NOISES, programs, static_loop};
    use super::*;

    #[test]
    fn threads_are_split_by_what_is_left() {
        for (threads, cpus, left_pct, want) in [
            (8, &[0, 1][..], 60, "0:3 1:5"),
            (8, &[0, 1], 50, "0:3 1:5"),
            (8, &[0, 1], 100, "0:4 1:4"),
            (16, &[0, 1, 2, 3], 60, "0:3 1:5 2:4 3:4"),
            (16, &[2, 0, 3], 1, "2:8 0:1 3:7"),
            (4, &[0], 60, "0:4"),
        ] {
            let split = split(threads, cpus, 0, left_pct);
            let shown: Vec<String> =
                split.iter().map(|(cpu, threads)| format!("{cpu}:{threads}")).collect();
            assert_eq!(shown.join(" "), want);
            assert_eq!(split.iter().map(|(_, threads)| threads).sum::<u32>(), threads);
        }
    }

    #[test]
    fn threads_of_a_cpu_are_spread_over_their_numbers() {
        assert_eq!(affinity(&[(0, 3), (1, 5)]), "0 1 1 0 1 1 0 1");
        assert_eq!(affinity(&[(0, 2), (1, 2)]), "0 1 0 1");
        assert_eq!(affinity(&[(4, 1)]), "4");
    }

    fn launcher(executable: &str) -> Launcher {
        let usable = mask::get(nix::unistd::getpid().as_raw()).unwrap();
        let noisy = usable.iter().next().unwrap();
        Launcher::new(executable.into(), &usable, noisy).unwrap()
    }

    #[test]
    fn what_evenkeel_refuses_is_told_with_its_words() {
        assert_eq!(launcher("/bin/true").why_refused(Lever::Shares), None);
        let why = launcher("/bin/false").why_refused(Lever::Threads).unwrap();
        assert_eq!(why, "`evenkeel run --threads 4` is refused: it does not say why");
        assert!(
            launcher("/no/evenkeel").why_refused(Lever::Moves).unwrap().contains("No such file")
        );
    }

    #[test]
    fn programs_are_run_by_hand_with_more_threads_and_pinned_with_as_many_as_cpus() {
        let launcher = launcher("/bin/false");
        let programs = programs();
        let cg = programs.iter().find(|one| one.name == "cg.S-gcc").unwrap();
        for (how, threads) in [
            (How::Kernel, launcher.threads()),
            (How::Pinned, launcher.threads()),
            (How::ByHand, launcher.threads() * THREADS_PER_CPU as usize),
        ] {
            let (ended, summary) = launcher.run(cg, how, &NOISES[1]).unwrap();
            assert!(ended.output.contains(&format!(" threads={threads} ")), "{}", ended.output);
            assert!(summary.is_none());
        }
        let error = launcher.run(cg, How::Run(Lever::Moves), &NOISES[0]).unwrap_err().to_string();
        assert!(error.contains("/bin/false failed (exit status: 1)"), "{error}");
    }

    /// By hand: `cargo test -p evenkeel-bench -- --ignored packages`, after `scripts/setup programs`.
    #[test]
    #[ignore = "runs programs of packages, which are not there in CI"]
    fn programs_of_packages_run_in_every_way_without_evenkeel() {
        let launcher = launcher("/bin/false");
        let is_package = |one: &Program| {
            matches!(one.what, What::Package(_) | What::Mpi(_) | What::MpiLoop { .. })
        };
        for program in programs().iter().filter(|one| is_package(one)) {
            launcher.ready(program).unwrap();
            for how in [How::Kernel, How::Pinned, How::ByHand] {
                if program.why_not(how).is_none() {
                    let (ended, _) = launcher.run(program, how, &NOISES[1]).unwrap();
                    println!("{} {how:?}: {:.2} s", program.name, ended.seconds);
                }
            }
        }
    }

    #[test]
    fn a_program_of_a_compiler_without_openmp_says_why_it_is_absent() {
        let mut launcher = launcher("/bin/false");
        launcher.by.insert(Compiler::Clang.name(), Err("install libomp-dev".into()));
        let programs = programs();
        let ready = |name: &str| {
            let program = programs.iter().find(|one| one.name == name).unwrap();
            launcher.ready(program).map(|_| ()).map_err(|why| why.to_string())
        };
        assert_eq!(ready("sp.W-clang"), Err("install libomp-dev".to_owned()));
        assert_eq!(ready("sp.W-gcc"), Ok(()));
    }

    #[test]
    fn the_loop_has_the_same_result_in_all_its_runs() {
        let launcher = launcher("/bin/false");
        let program = Program { repeats: 3, ..static_loop() };
        for how in [How::Kernel, How::Pinned] {
            let (ended, _) = launcher.run(&program, how, &NOISES[0]).unwrap();
            assert!(ended.output.contains("checksum="), "{}", ended.output);
        }
        launcher.first.borrow_mut().insert(program.name, "0".into());
        let error = launcher.run(&program, How::Kernel, &NOISES[0]).unwrap_err().to_string();
        assert!(
            error.contains("its result is wrong") && error.contains("another run 0"),
            "{error}"
        );
    }

    #[test]
    fn the_thread_with_more_to_do_is_by_hand_where_nothing_disturbs() {
        let launcher = launcher("/bin/false");
        let programs = programs();
        let uneven = programs.iter().find(|one| one.is_uneven()).unwrap();
        // Four units for each CPU in one phase.
        let what = What::Loop { phases: 1, more_pct: 30 };
        let program = Program { repeats: 4, what, ..*uneven };
        let (ended, _) = launcher.run(&program, How::ByHand, &NOISES[1]).unwrap();
        let place = programs::field(&ended.output, "first_thread").unwrap();
        let noisy = place == format!("{}:1", launcher.noisy);
        assert_eq!(noisy, launcher.threads() == 1, "{}", ended.output);
    }

    #[test]
    fn a_wrong_result_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let ready = |proof| Ready {
            words: Vec::new(),
            mpi: None,
            directory: directory.path().to_owned(),
            proof,
        };
        let ended = Ended { seconds: 1.0, output: "a\nverified\n".into(), errors: String::new() };
        ready(Proof::Output("verified")).check(&ended).unwrap();
        let error = ready(Proof::Output("SUCCESS")).check(&ended).unwrap_err().to_string();
        assert_eq!(error, "its result is wrong: no \"SUCCESS\", but: verified | a");
        let proof = Proof::File("out.txt", "Success=1");
        assert!(ready(proof).check(&ended).unwrap_err().to_string().contains("did not write"));
        std::fs::write(directory.path().join("out.txt"), "Success=1\n").unwrap();
        ready(proof).check(&ended).unwrap();
    }
}
