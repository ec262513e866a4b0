//! The measured programs: compiled by build.rs, embedded here, written out on demand.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How long to wait until no other process holds a freshly written program open for writing.
const SETTLE: Duration = Duration::from_secs(2);

/// A program that the crate carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// `static_loop --work N [--phases K]`: pure computation of N units of about 1 ms of a core in
    /// all, `schedule(static)`, K barriers. Prints `static_loop seconds=... computed=... checksum=...`.
    StaticLoop,
    /// `ep --class S|W|A|B`: NPB's EP. Prints `ep class=A seconds=... verification=SUCCESSFUL`
    /// (or `FAILED`, with exit code 1).
    Ep,
    /// `cg --class S|W|A [--repeat N]`: NPB's CG, N times. Prints `cg class=A seconds=...
    /// verification=SUCCESSFUL` (or `FAILED`, with exit code 1). Several barriers in each
    /// millisecond: balancing cannot gain, and must cost nothing.
    Cg,
}

impl Program {
    /// The file name, also the first word of what it prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::StaticLoop => "static_loop",
            Self::Ep => "ep",
            Self::Cg => "cg",
        }
    }

    /// The executable's bytes.
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Self::StaticLoop => include_bytes!(concat!(env!("OUT_DIR"), "/static_loop")),
            Self::Ep => include_bytes!(concat!(env!("OUT_DIR"), "/ep")),
            Self::Cg => include_bytes!(concat!(env!("OUT_DIR"), "/cg")),
        }
    }

    /// Writes the program into `directory` (mode 0755, replacing one of the same name) and returns
    /// its path, ready to be started.
    ///
    /// # Errors
    /// The file cannot be written, or some other process keeps it open for writing for seconds.
    pub fn install(self, directory: &Path) -> Result<PathBuf> {
        let path = directory.join(self.name());
        self.write(&path).with_context(|| {
            format!(
                "cannot write the program {}; give a directory that exists, is writable and is \
                 not mounted noexec",
                path.display()
            )
        })?;
        Ok(path)
    }

    fn write(self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(path)?;
        file.write_all(self.bytes())?;
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

/// All programs, in a directory of their own that is removed with this value.
#[derive(Debug)]
pub struct Installed {
    directory: tempfile::TempDir,
}

impl Installed {
    /// Writes all programs into a new directory below the system's temporary directory.
    ///
    /// # Errors
    /// The temporary directory cannot be written; `TMPDIR` names another.
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("evenkeel-bench-")
            .tempdir()
            .context("cannot make a temporary directory for the programs; set TMPDIR")?;
        for program in [Program::StaticLoop, Program::Ep, Program::Cg] {
            program.install(directory.path())?;
        }
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
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    #[test]
    fn ep_verifies_with_any_number_of_threads() {
        let programs = Installed::new().unwrap();
        for threads in 1..=3 {
            let line = run(&programs, Program::Ep, threads, &["--class", "S"]);
            assert_eq!(field(&line, "verification"), Some("SUCCESSFUL"), "{line}");
            assert!(field(&line, "seconds").unwrap().parse::<f64>().unwrap() > 0.0);
        }
        let line = run(&programs, Program::Ep, 2, &["--class", "W"]);
        assert_eq!(field(&line, "verification"), Some("SUCCESSFUL"), "{line}");
    }

    #[test]
    fn cg_verifies_with_one_thread_and_with_two() {
        let programs = Installed::new().unwrap();
        for threads in 1..=2 {
            let line = run(&programs, Program::Cg, threads, &["--class", "S"]);
            assert_eq!(field(&line, "class"), Some("S"), "{line}");
            assert_eq!(field(&line, "verification"), Some("SUCCESSFUL"), "{line}");
            assert!(field(&line, "seconds").unwrap().parse::<f64>().unwrap() > 0.0);
        }
        let twice = run(&programs, Program::Cg, 2, &["--class", "S", "--repeat", "2"]);
        assert_eq!(field(&twice, "verification"), Some("SUCCESSFUL"), "{twice}");
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
    fn nonsense_arguments_are_refused() {
        let programs = Installed::new().unwrap();
        let cases: [(Program, &[&str]); 12] = [
            (Program::StaticLoop, &[]),
            (Program::StaticLoop, &["--work"]),
            (Program::StaticLoop, &["--work", "-1"]),
            (Program::StaticLoop, &["--work", "0"]),
            (Program::StaticLoop, &["--work", "7x"]),
            (Program::StaticLoop, &["--work", "7", "--phases", "8"]),
            (Program::Ep, &["--class", "Z"]),
            (Program::Ep, &["--class"]),
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
        Program::Ep.install(path.parent().unwrap()).unwrap();
        drop(programs);
        assert!(!path.exists());
        let error = Program::Ep.install(path.parent().unwrap()).unwrap_err();
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
