//! What the tests of the shares library need: compilers, programs under the library, and the page.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use evenkeel_shares::environment::{PAGE_VARIABLE, PRELOAD_VARIABLE, with_library};
use evenkeel_shares::page::{Effect, PageOwner, Report};

use crate::support::*;

/// The library under test.
pub const LIBRARY: &str = env!("EVENKEEL_SHARES_LIBRARY");

/// Longer than any test.
pub const PATIENCE: Duration = Duration::from_secs(600);

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/host/shares");

/// The page, compilers and a folder for one test.
pub struct Shares {
    folder: tempfile::TempDir,
    pub page: PageOwner,
}

impl Shares {
    /// Nothing, and a message that the test is skipped, where clang has no OpenMP runtime.
    pub fn new(test: &str) -> Option<Self> {
        check_library();
        clang_with_openmp(test)?;
        let folder = tempfile::Builder::new().prefix("evenkeel-shares-").tempdir().unwrap();
        Some(Self { folder, page: PageOwner::create(PATIENCE).unwrap() })
    }

    /// The same, with weights of 300 and 1000 by turns; needs two CPUs.
    pub fn with_weights(test: &str) -> Option<Self> {
        two_cpus(test)?;
        let mut shares = Self::new(test)?;
        shares.skew();
        Some(shares)
    }

    /// Gives the CPUs weights of 300 and 1000 by turns.
    pub fn skew(&mut self) {
        self.page
            .set_weights(all().iter().enumerate().map(|(turn, cpu)| (cpu, [300, 1000][turn % 2])));
    }

    /// Gives all CPUs the same weight.
    pub fn even(&mut self) {
        self.page.set_weights(all().iter().map(|cpu| (cpu, 1000)));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a source of this folder with clang.
    pub fn compile(&self, source: &str, name: &str, flags: &[&str]) -> PathBuf {
        let path = self.path(name);
        let mut clang = Command::new(clang());
        clang.args(["-O1", "-Wall", "-Wextra", "-Werror", "-fopenmp"]).args(flags);
        build(clang.arg(format!("{FOLDER}/{source}")).arg("-o").arg(&path));
        path
    }

    /// A program under the library and the page.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.plain(program);
        command.env(PAGE_VARIABLE, self.page.address()).env(PRELOAD_VARIABLE, preloaded());
        command
    }

    /// The same program as it is.
    pub fn plain(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        // A team in a league gets one thread otherwise.
        command.env("OMP_TEAMS_THREAD_LIMIT", "4").env("KMP_TEAMS_THREAD_LIMIT", "8");
        for name in ["OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_TOOL_LIBRARIES", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command
    }

    /// What the program prints; it must succeed.
    pub fn output_of(command: &mut Command) -> String {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{command:?}: {} {printed}", output.status);
        printed
    }

    pub fn report(&self) -> Report {
        self.page.read()
    }

    pub fn effect(&self) -> Effect {
        self.report().effect()
    }
}

/// What `LD_PRELOAD` is for a program under the library alone.
pub fn preloaded() -> OsString {
    with_library(None, Path::new(LIBRARY)).unwrap()
}

/// A number that a program printed as `NAME=NUMBER`.
pub fn figure(printed: &str, name: &str) -> u64 {
    let word = printed.split_whitespace().find_map(|word| word.strip_prefix(&format!("{name}=")));
    word.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in: {printed}"))
}

/// A program that runs loops, such as `steady.c`, and is given orders by lines.
pub struct Steady {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Steady {
    pub fn start(mut command: Command) -> Self {
        Self::of(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// One that was started with both pipes.
    pub fn of(mut child: Child) -> Self {
        let input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn line(&mut self) -> String {
        self.lines.next().expect("the program goes on").unwrap()
    }

    /// Gives an order; returns how many iterations each thread got.
    pub fn ask(&mut self, order: &str) -> Vec<u64> {
        self.tell(order);
        self.line().split(' ').map(|count| count.parse().unwrap()).collect()
    }

    /// Gives an order that prints nothing.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.input.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Ends its orders, and returns what it says then.
    pub fn last_line(&mut self) -> String {
        self.input = None;
        self.line()
    }

    pub fn end(mut self) {
        self.input = None;
        assert!(self.wait().success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

/// Runs a compiler.
pub fn build(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
}

/// The clang of the build, as scripts/clang chooses it.
pub fn clang() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/clang");
    let output = Command::new(script).output().unwrap();
    assert!(output.status.success(), "no clang: run `make setup`");
    text(&output.stdout).trim().to_owned()
}

/// flang of the same version; nothing where it is not installed.
pub fn flang() -> Option<String> {
    let version =
        clang().rsplit_once('-').map_or(String::new(), |(_, version)| format!("-{version}"));
    let names = [format!("flang-new{version}"), format!("flang{version}")];
    names.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok())
}

/// The clang of the build; nothing, and a message that the test is skipped, where it has no OpenMP
/// runtime.
pub fn clang_with_openmp(test: &str) -> Option<String> {
    if !has_openmp() {
        evenkeel_skip::skip(
            test,
            "clang has no OpenMP runtime here (scripts/setup installs libomp)",
        );
        return None;
    }
    Some(clang())
}

fn has_openmp() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let mut clang = Command::new(clang());
    clang.args(["-fopenmp", "-x", "c", "-", "-o"]).arg(folder.path().join("probe"));
    let mut child = clang.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let source = b"#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n";
    child.stdin.take().unwrap().write_all(source).unwrap();
    child.wait().unwrap().success()
}

/// Fails with the remedy where the library is missing or older than its sources.
pub fn check_library() {
    let built = std::fs::metadata(LIBRARY).and_then(|file| file.modified());
    let built = built.unwrap_or_else(|_| panic!("there is no {LIBRARY}: run `make build` first"));
    let newest = ["shares", "shares-preload"].map(|folder| {
        let folder = format!("{}/../product/{folder}/src", env!("CARGO_MANIFEST_DIR"));
        newest(Path::new(&folder))
    });
    assert!(
        newest.iter().all(|changed| *changed <= built),
        "{LIBRARY} is old: run `make build` first"
    );
}

fn newest(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let changed = |path: PathBuf| {
        if path.is_dir() { newest(&path) } else { path.metadata().unwrap().modified().unwrap() }
    };
    entries.map(changed).max().unwrap()
}
