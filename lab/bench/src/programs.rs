//! The measured programs: compiled by build.rs, embedded here, written out on demand.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long to wait until no other process holds a freshly written program open for writing.
const SETTLE: Duration = Duration::from_secs(2);

/// A program that the crate carries.
///
/// Those after the first are the NAS Parallel Benchmarks: `NAME --class S|W|A [--iterations N]
/// [--repeat N]` prints `NAME class=A threads=2 seconds=... mops=... verification=SUCCESSFUL`, or
/// `FAILED` with exit code 1. With another number of iterations than the class has, the verification is
/// `NONE`; `--repeat` does the whole benchmark N times, verified each time. EP has no iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// `static_loop --work N [--phases K] [--more P]`: pure computation of N units of about 1 ms of a
    /// core in all, `schedule(static)`, K barriers; with `--more` the first thread does P % more than
    /// every other. Prints `static_loop seconds=... computed=... checksum=...`, then also where the
    /// first thread was in the later half of its phases: `first_thread=CPU:COUNT,...`.
    StaticLoop,
    /// Block tridiagonal systems: five barriers a step.
    Bt,
    /// Conjugate gradient. Several barriers in each millisecond: balancing cannot gain, and must cost
    /// nothing.
    Cg,
    /// Gaussian deviates from pseudo-random numbers: one barrier. Has class B, too.
    Ep,
    /// Fourier transforms in three dimensions.
    Ft,
    /// Integer sort.
    Is,
    /// SSOR sweeps as a pipeline. The threads spin on flags, outside of the OpenMP runtime.
    Lu,
    /// Multigrid.
    Mg,
    /// Scalar pentadiagonal systems: five barriers a step.
    Sp,
}

/// What compiled a program, and so which OpenMP runtime it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compiler {
    /// The system's C compiler, gcc: libgomp, linked dynamically, as a user's program.
    Gcc,
    /// clang: LLVM's libomp, linked dynamically.
    Clang,
}

impl Compiler {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Gcc, Self::Clang];

    /// Its command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gcc => "gcc",
            Self::Clang => "clang",
        }
    }
}

/// The static loop by gcc, linked statically.
static STATIC_LOOP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/static_loop.static"));

/// The executable's bytes by each compiler.
macro_rules! executable {
    ($name:literal, $compiler:expr) => {
        match $compiler {
            Compiler::Gcc => {
                include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gcc")) as &'static [u8]
            }
            Compiler::Clang => include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".clang")),
        }
    };
}

impl Program {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::StaticLoop,
        Self::Bt,
        Self::Cg,
        Self::Ep,
        Self::Ft,
        Self::Is,
        Self::Lu,
        Self::Mg,
        Self::Sp,
    ];

    /// The NAS Parallel Benchmarks.
    pub fn npb() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|program| *program != Self::StaticLoop)
    }

    /// The file name, also the first word of what it prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::StaticLoop => "static_loop",
            Self::Bt => "bt",
            Self::Cg => "cg",
            Self::Ep => "ep",
            Self::Ft => "ft",
            Self::Is => "is",
            Self::Lu => "lu",
            Self::Mg => "mg",
            Self::Sp => "sp",
        }
    }

    /// The executable's bytes.
    ///
    /// # Errors
    /// The crate was built where clang had no OpenMP; says what to install.
    pub fn bytes(self, compiler: Compiler) -> Result<&'static [u8]> {
        let bytes = match self {
            Self::StaticLoop => executable!("static_loop", compiler),
            Self::Bt => executable!("bt", compiler),
            Self::Cg => executable!("cg", compiler),
            Self::Ep => executable!("ep", compiler),
            Self::Ft => executable!("ft", compiler),
            Self::Is => executable!("is", compiler),
            Self::Lu => executable!("lu", compiler),
            Self::Mg => executable!("mg", compiler),
            Self::Sp => executable!("sp", compiler),
        };
        if bytes.is_empty() {
            bail!(
                "the program {} was not built for LLVM's OpenMP runtime: the clang of the build had no \
                 OpenMP; install libomp-dev of its version (libomp-19-dev) and build again",
                self.name()
            );
        }
        Ok(bytes)
    }

    /// Writes the program into `directory` (mode 0755, replacing one of the same name) and returns
    /// its path, ready to be started.
    ///
    /// # Errors
    /// See [`Self::bytes`]; or the file cannot be written, or some other process keeps it open for
    /// writing for seconds.
    pub fn install(self, compiler: Compiler, directory: &Path) -> Result<PathBuf> {
        self.place(self.bytes(compiler)?, directory)
    }

    fn place(self, bytes: &[u8], directory: &Path) -> Result<PathBuf> {
        let path = directory.join(self.name());
        Self::write(bytes, &path).with_context(|| {
            format!(
                "cannot write the program {}; give a directory that exists, is writable and is \
                 not mounted noexec",
                path.display()
            )
        })?;
        Ok(path)
    }

    fn write(bytes: &[u8], path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(path)?;
        file.write_all(bytes)?;
        drop(file);
        wait_for_writers(&File::open(path)?)
    }
}

/// A thread of ours that forks while a program is being written gives its child a copy of the
/// writing descriptor until that child execs; starting the program meanwhile fails with ETXTBSY.
/// A read lease is granted only when no process has the file open for writing, and none will again.
fn wait_for_writers(file: &File) -> io::Result<()> {
    let start = Instant::now();
    loop {
        // SAFETY: fcntl on a descriptor that `file` keeps open, with an integer argument.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } == 0 {
            // SAFETY: as above; gives the lease back.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN) if start.elapsed() < SETTLE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(libc::EAGAIN) => return Err(error),
            // A file system without leases: the rare race stays.
            _ => return Ok(()),
        }
    }
}

/// All programs by one compiler, in a directory of their own that is removed with this value.
#[derive(Debug)]
pub struct Installed {
    directory: tempfile::TempDir,
}

impl Installed {
    /// Writes all programs, by gcc, into a new directory below the system's temporary directory.
    ///
    /// # Errors
    /// The temporary directory cannot be written; `TMPDIR` names another.
    pub fn new() -> Result<Self> {
        Self::by(Compiler::Gcc)
    }

    /// The same by either compiler.
    ///
    /// # Errors
    /// See [`Self::new`] and [`Program::bytes`].
    pub fn by(compiler: Compiler) -> Result<Self> {
        let installed = Self::empty()?;
        for program in Program::ALL {
            program.install(compiler, installed.directory.path())?;
        }
        Ok(installed)
    }

    /// The static loop alone, linked statically: a guest has no libgomp.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn in_guest() -> Result<Self> {
        let installed = Self::empty()?;
        Program::StaticLoop.place(STATIC_LOOP, installed.directory.path())?;
        Ok(installed)
    }

    fn empty() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("evenkeel-bench-").tempdir();
        let directory =
            directory.context("cannot make a temporary directory for the programs; set TMPDIR")?;
        Ok(Self { directory })
    }

    /// Where the program lies.
    pub fn path(&self, program: Program) -> PathBuf {
        self.directory.path().join(program.name())
    }

    /// A command that starts the program with these arguments.
    pub fn command<A: AsRef<OsStr>>(
        &self,
        program: Program,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(self.path(program));
        command.args(args);
        command
    }
}

/// The value of `key=` in the line that a program printed: `field(line, "seconds")`.
pub fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(programs: &Installed, program: Program, threads: u32, args: &[&str]) -> String {
        let output = programs
            .command(program, args)
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("OMP_WAIT_POLICY", "passive") // other tests want the CPUs, too
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    /// All programs by each compiler that the crate was built with.
    fn installed_by_each(test: &str) -> Vec<Installed> {
        let by = |compiler| Installed::by(compiler).map_err(|why| evenkeel_skip::skip(test, why));
        Compiler::ALL.into_iter().filter_map(|compiler| by(compiler).ok()).collect()
    }

    fn check_npb_line(line: &str, program: Program, threads: u32) {
        assert_eq!(line.split_whitespace().next(), Some(program.name()), "{line}");
        assert_eq!(field(line, "class"), Some("S"), "{line}");
        assert_eq!(field(line, "threads"), Some(threads.to_string().as_str()), "{line}");
        assert_eq!(field(line, "verification"), Some("SUCCESSFUL"), "{line}");
        for positive in ["seconds", "mops"] {
            assert!(field(line, positive).unwrap().parse::<f64>().unwrap() > 0.0, "{line}");
        }
    }

    #[test]
    fn npb_verify_with_any_number_of_threads_by_each_compiler() {
        for programs in installed_by_each("npb_verify_with_any_number_of_threads_by_each_compiler")
        {
            for program in Program::npb() {
                // With more threads than CPUs LU spins for whole time slices.
                let most = if program == Program::Lu { 2 } else { 3 };
                for threads in 1..=most {
                    let line = run(&programs, program, threads, &["--class", "S"]);
                    check_npb_line(&line, program, threads);
                }
            }
        }
    }

    #[test]
    fn npb_repeated_verify_again_and_with_other_iterations_say_that_they_do_not() {
        let programs = Installed::new().unwrap();
        for program in Program::npb() {
            let twice = run(&programs, program, 1, &["--repeat", "2"]);
            check_npb_line(&twice, program, 1);
            if program == Program::Ep {
                continue;
            }
            let line = run(&programs, program, 1, &["--iterations", "3"]);
            assert_eq!(field(&line, "verification"), Some("NONE"), "{line}");
        }
        let official = run(&programs, Program::Bt, 1, &["--iterations", "60"]);
        check_npb_line(&official, Program::Bt, 1);
    }

    #[test]
    fn programs_are_those_of_users_with_their_runtime_beside_them_and_with_symbols() {
        let has = |bytes: &[u8], word: &str| {
            bytes.windows(word.len()).any(|part| part == word.as_bytes())
        };
        for program in Program::ALL {
            for (compiler, runtime) in [(Compiler::Gcc, "libgomp.so"), (Compiler::Clang, "libomp")]
            {
                // Without clang's OpenMP there is none; the other tests skip that aloud.
                let Ok(bytes) = program.bytes(compiler) else { continue };
                assert!(has(bytes, runtime), "{program:?} by {}", compiler.name());
                assert!(has(bytes, ".symtab"), "{program:?} by {}", compiler.name());
            }
        }
    }

    #[test]
    fn the_loop_for_guests_computes_the_same() {
        let args = ["--work", "31", "--phases", "5"];
        let checksum = |programs: &Installed| {
            let line = run(programs, Program::StaticLoop, 2, &args);
            field(&line, "checksum").unwrap().to_owned()
        };
        let in_guest = Installed::in_guest().unwrap();
        assert_eq!(checksum(&in_guest), checksum(&Installed::new().unwrap()));
        assert!(!in_guest.path(Program::Ep).exists());
    }

    #[test]
    fn static_loop_computes_the_same_with_any_number_of_threads_and_phases() {
        let programs = Installed::new().unwrap();
        let checksum = |threads, args: &[&str]| {
            let line = run(&programs, Program::StaticLoop, threads, args);
            field(&line, "checksum").unwrap().to_owned()
        };
        let line = run(&programs, Program::StaticLoop, 2, &["--work", "31"]);
        assert!(field(&line, "computed").unwrap().parse::<f64>().unwrap() > 0.0, "{line}");
        let one = checksum(1, &["--work", "31"]);
        for threads in 1..=3 {
            for phases in ["1", "5", "31"] {
                let args = ["--work", "31", "--phases", phases];
                assert_eq!(checksum(threads, &args), one, "{threads} threads, {phases} phases");
            }
        }
        assert_ne!(checksum(1, &["--work", "32"]), one);
    }

    #[test]
    fn uneven_shares_compute_the_same_and_the_first_thread_says_where_it_was() {
        let programs = Installed::new().unwrap();
        let even = run(&programs, Program::StaticLoop, 2, &["--work", "31", "--phases", "5"]);
        assert_eq!(field(&even, "first_thread"), None, "{even}");
        for threads in 1..=3 {
            for (phases, later) in [("1", 1), ("5", 3), ("30", 15)] {
                let args = ["--work", "31", "--phases", phases, "--more", "30"];
                let line = run(&programs, Program::StaticLoop, threads, &args);
                assert_eq!(field(&line, "checksum"), field(&even, "checksum"), "{line}");
                let places = field(&line, "first_thread").unwrap().split(',');
                let counts = places.map(|place| place.split_once(':').unwrap().1);
                let counted: u32 = counts.map(|count| count.parse::<u32>().unwrap()).sum();
                assert_eq!(counted, later, "{line}");
            }
        }
    }

    #[test]
    fn nonsense_arguments_are_refused() {
        let programs = Installed::new().unwrap();
        let cases: [(Program, &[&str]); 18] = [
            (Program::StaticLoop, &[]),
            (Program::StaticLoop, &["--work"]),
            (Program::StaticLoop, &["--work", "-1"]),
            (Program::StaticLoop, &["--work", "0"]),
            (Program::StaticLoop, &["--work", "7x"]),
            (Program::StaticLoop, &["--work", "7", "--phases", "8"]),
            (Program::StaticLoop, &["--work", "7", "--more", "0"]),
            (Program::StaticLoop, &["--work", "7", "--more", "1001"]),
            (Program::Ep, &["--class", "Z"]),
            (Program::Ep, &["--class"]),
            (Program::Ep, &["--iterations", "1"]),
            (Program::Lu, &["--class", "B"]),
            (Program::Bt, &["--iterations", "0"]),
            (Program::Mg, &["--iterations", "4x"]),
            (Program::Cg, &["--class", "SW"]),
            (Program::Cg, &["S"]),
            (Program::Cg, &["--class", "S", "--repeat", "0"]),
            (Program::Cg, &["--class", "S", "--repeat"]),
        ];
        for (program, args) in cases {
            let output = programs.command(program, args).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{program:?} {args:?}: {output:?}");
            assert!(output.stdout.is_empty());
            assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage:"));
        }
    }

    #[test]
    fn the_directory_goes_with_the_value() {
        let programs = Installed::new().unwrap();
        let path = programs.path(Program::Ep);
        assert!(path.exists());
        // Installing again replaces.
        Program::Ep.install(Compiler::Gcc, path.parent().unwrap()).unwrap();
        drop(programs);
        assert!(!path.exists());
        let error = Program::Ep.install(Compiler::Gcc, path.parent().unwrap()).unwrap_err();
        assert!(error.to_string().contains("writable"), "{error:#}");
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let line = "ep class=A seconds=1.5 verification=SUCCESSFUL";
        assert_eq!(field(line, "seconds"), Some("1.5"));
        assert_eq!(field(line, "second"), None);
        assert_eq!(field(line, "absent"), None);
    }
}
