//! MPI on this machine: finds the MPIs, compiles a program for one, launches its ranks.
//!
//! An MPI program fits only the MPI that it was compiled with, so none can be embedded ready-made:
//! the crate carries the source and compiles it at run time.
//!
//! A launch is such that a balancer can work: no rank is bound to a CPU by the launcher, and more
//! ranks than CPUs are allowed. mpich and Open MPI are told apart by Debian's names
//! (`mpicc.mpich`, `mpiexec.openmpi`), which exist side by side whatever plain `mpicc` is.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// An MPI implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// MPICH, launched by hydra.
    Mpich,
    /// Open MPI.
    OpenMpi,
}

impl Kind {
    /// All that can be used here.
    pub const ALL: [Self; 2] = [Self::Mpich, Self::OpenMpi];

    /// As Debian ends the names of its commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::OpenMpi => "openmpi",
        }
    }

    /// The Debian packages that it needs, as `apt-get install` takes them.
    pub fn packages(self) -> &'static str {
        match self {
            Self::Mpich => "mpich libmpich-dev",
            Self::OpenMpi => "openmpi-bin libopenmpi-dev",
        }
    }

    /// What its launcher must be told. Neither binds in every version and setting unless told
    /// otherwise, so both are told. Open MPI refuses more ranks than cores, and refuses root.
    fn launcher_options(self, as_root: bool) -> &'static [&'static str] {
        match (self, as_root) {
            (Self::Mpich, _) => &["-bind-to", "none"],
            (Self::OpenMpi, false) => &["--bind-to", "none", "--oversubscribe"],
            (Self::OpenMpi, true) => {
                &["--bind-to", "none", "--oversubscribe", "--allow-run-as-root"]
            }
        }
    }
}

/// A C program for MPI that the crate carries: its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The executable's name, also the first word of what it prints.
    pub name: &'static str,
    /// C.
    pub text: &'static str,
    /// What it includes beside the system's headers: names and texts.
    pub headers: &'static [(&'static str, &'static str)],
}

/// The paper's chore-counter (section 4.2), `chore_counter --seconds S | --chores N
/// [--barrier-every-us U]`. Prints `chore_counter ranks=2 seconds=... task_chores=N,N
/// avg_chore=... stdev_chore=... migrations=N`: chores by rank, their mean and their standard
/// deviation (over all ranks, not of a sample); how often the ranks changed their CPU (left out
/// where the kernel does not let them count that); seconds until the slowest rank was done.
pub const CHORE_COUNTER: Source = Source {
    name: "chore_counter",
    text: include_str!("../programs/chore_counter.c"),
    headers: &[],
};

const NPB_HEADER: (&str, &str) = ("npb.h", include_str!("../programs/npb.h"));

/// EP of the NAS Parallel Benchmarks, `ep_mpi --class S|W|A|B [--repeat N]`. Prints `ep_mpi class=A
/// ranks=2 seconds=... mops=... verification=SUCCESSFUL` (or `FAILED`, with exit code 1). The ranks
/// wait for each other at its end only.
pub const EP: Source = Source {
    name: "ep_mpi",
    text: include_str!("../programs/ep_mpi.c"),
    headers: &[NPB_HEADER, ("ep.h", include_str!("../programs/ep.h"))],
};

/// CG of the NAS Parallel Benchmarks, `cg_mpi --class S|W|A [--iterations N] [--repeat N]`; prints as
/// [`EP`] does. The ranks wait for each other several times in each millisecond.
pub const CG: Source = Source {
    name: "cg_mpi",
    text: include_str!("../programs/cg_mpi.c"),
    headers: &[NPB_HEADER, ("cg.h", include_str!("../programs/cg.h"))],
};

/// Where the balancer stands in a launch. Its command line comes as words that end where the
/// command to balance begins: `evenkeel run --`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balanced<'a> {
    /// Nowhere.
    Not,
    /// `mpiexec ... evenkeel run -- app`: one for each rank.
    EachRank(&'a [OsString]),
    /// `evenkeel run -- mpiexec ... app`: one around the launcher and all ranks on this node.
    Whole(&'a [OsString]),
}

/// An MPI that is here: both its compiler and its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mpi {
    kind: Kind,
    compiler: PathBuf,
    launcher: PathBuf,
}

impl Mpi {
    /// Looks for one on the `PATH`.
    ///
    /// # Errors
    /// Its compiler or its launcher is not there; says what to install.
    pub fn find(kind: Kind) -> Result<Self> {
        Self::find_in(kind, &env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(kind: Kind, path: &OsStr) -> Result<Self> {
        let tool = |name: &str| {
            let name = format!("{name}.{}", kind.name());
            executable(&name, path).with_context(|| {
                format!("no {name} on the PATH: apt-get install {}", kind.packages())
            })
        };
        Ok(Self { kind, compiler: tool("mpicc")?, launcher: tool("mpiexec")? })
    }

    /// All that are here, in the order of [`Kind::ALL`].
    ///
    /// # Errors
    /// None is; says what to install.
    pub fn all() -> Result<Vec<Self>> {
        Self::all_in(&env::var_os("PATH").unwrap_or_default())
    }

    fn all_in(path: &OsStr) -> Result<Vec<Self>> {
        let found: Vec<Self> =
            Kind::ALL.into_iter().filter_map(|kind| Self::find_in(kind, path).ok()).collect();
        if found.is_empty() {
            bail!(
                "no MPI here: apt-get install {}, or {} (scripts/setup mpi installs both)",
                Kind::Mpich.packages(),
                Kind::OpenMpi.packages()
            );
        }
        Ok(found)
    }

    /// Which one it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Compiles a program into `directory`, as `NAME.KIND` (so that one directory serves all
    /// MPIs), replacing what has that name, and returns its path.
    ///
    /// # Errors
    /// The directory cannot be written; the compiler cannot be started or refuses the source.
    pub fn compile(&self, program: Source, directory: &Path) -> Result<PathBuf> {
        let source = directory.join(format!("{}.c", program.name));
        let output = directory.join(format!("{}.{}", program.name, self.kind.name()));
        let write = |path: &Path, text| {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write(&source, program.text)?;
        for (name, text) in program.headers {
            write(&directory.join(name), text)?;
        }
        let compiler = self.compiler.display();
        let compiled = Command::new(&self.compiler)
            .args(["-O2", "-std=gnu11"])
            .arg(&source)
            .arg("-o")
            .arg(&output)
            .arg("-lm")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {compiler}"))?;
        if !compiled.status.success() {
            bail!(
                "{compiler} cannot compile {}; are {} whole?\n{}",
                source.display(),
                self.kind.packages(),
                String::from_utf8_lossy(&compiled.stderr)
            );
        }
        Ok(output)
    }

    /// The words of the command that starts `app` (a program and its arguments) as this many ranks
    /// on this machine, as the user that asks.
    pub fn launch(
        &self,
        ranks: NonZeroU32,
        balanced: Balanced<'_>,
        app: &[OsString],
    ) -> Vec<OsString> {
        self.launch_as(nix::unistd::geteuid().is_root(), ranks, balanced, app)
    }

    /// The same with so many ranks bound to each of these CPUs (by taskset), without a balancer.
    pub fn launch_pinned(&self, ranks: &[(u32, u32)], app: &[OsString]) -> Vec<OsString> {
        self.launch_pinned_as(nix::unistd::geteuid().is_root(), ranks, app)
    }

    fn launch_pinned_as(
        &self,
        as_root: bool,
        ranks: &[(u32, u32)],
        app: &[OsString],
    ) -> Vec<OsString> {
        let mut words = vec![self.launcher.clone().into_os_string()];
        words.extend(self.kind.launcher_options(as_root).iter().map(OsString::from));
        for (index, (cpu, count)) in ranks.iter().filter(|(_, count)| *count > 0).enumerate() {
            if index > 0 {
                words.push(":".into());
            }
            words.extend(["-n".into(), count.to_string().into()]);
            words.extend(["taskset".into(), "-c".into(), cpu.to_string().into()]);
            words.extend_from_slice(app);
        }
        words
    }

    fn launch_as(
        &self,
        as_root: bool,
        ranks: NonZeroU32,
        balanced: Balanced<'_>,
        app: &[OsString],
    ) -> Vec<OsString> {
        let (around, each): (&[OsString], &[OsString]) = match balanced {
            Balanced::Not => (&[], &[]),
            Balanced::EachRank(balancer) => (&[], balancer),
            Balanced::Whole(balancer) => (balancer, &[]),
        };
        let mut words = around.to_vec();
        words.push(self.launcher.clone().into());
        words.extend(self.kind.launcher_options(as_root).iter().map(OsString::from));
        words.extend(["-n".into(), ranks.to_string().into()]);
        words.extend_from_slice(each);
        words.extend_from_slice(app);
        words
    }
}

/// The first executable file of that name on the path.
pub(crate) fn executable(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|directory| directory.join(name)).find(|file| {
        fs::metadata(file)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these (empty, executable) commands.
    fn with(commands: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for command in commands {
            let path = directory.path().join(command);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        directory
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_a_whole_mpi_counts() {
        let cases: [(&[&str], &[Kind]); 5] = [
            (&["mpicc.mpich", "mpiexec.mpich"], &[Kind::Mpich]),
            (&["mpicc.openmpi", "mpiexec.openmpi", "mpicc.mpich"], &[Kind::OpenMpi]),
            (
                &["mpicc.openmpi", "mpiexec.openmpi", "mpicc.mpich", "mpiexec.mpich"],
                &[Kind::Mpich, Kind::OpenMpi],
            ),
            (&["mpicc.mpich", "mpiexec.openmpi", "mpicc", "mpiexec"], &[]),
            (&[], &[]),
        ];
        for (commands, expected) in cases {
            let directory = with(commands);
            let found = Mpi::all_in(directory.path().as_os_str());
            let kinds: Vec<Kind> = found.iter().flatten().map(Mpi::kind).collect();
            assert_eq!(kinds, expected, "{commands:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_packages() {
        let directory = with(&["mpicc.mpich"]);
        let path = directory.path().as_os_str();
        let error = |kind| Mpi::find_in(kind, path).unwrap_err().to_string();
        assert_eq!(
            error(Kind::Mpich),
            "no mpiexec.mpich on the PATH: apt-get install mpich libmpich-dev"
        );
        assert_eq!(
            error(Kind::OpenMpi),
            "no mpicc.openmpi on the PATH: apt-get install openmpi-bin libopenmpi-dev"
        );
        let none = Mpi::all_in(path).unwrap_err().to_string();
        assert!(none.contains("mpich libmpich-dev, or openmpi-bin libopenmpi-dev"), "{none}");
        // Not executable is not there.
        fs::write(directory.path().join("mpiexec.mpich"), "").unwrap();
        assert!(Mpi::find_in(Kind::Mpich, path).is_err());
    }

    #[test]
    fn command_lines() {
        let balancer = words("evenkeel run -q --");
        let none = Balanced::Not;
        let each = Balanced::EachRank(&balancer);
        let whole = Balanced::Whole(&balancer);
        let cases = [
            (Kind::Mpich, false, 2, none, "/b/mpiexec -bind-to none -n 2 app -x"),
            // mpich does not mind root.
            (Kind::Mpich, true, 2, none, "/b/mpiexec -bind-to none -n 2 app -x"),
            (
                Kind::Mpich,
                false,
                4,
                each,
                "/b/mpiexec -bind-to none -n 4 evenkeel run -q -- app -x",
            ),
            (
                Kind::Mpich,
                true,
                4,
                whole,
                "evenkeel run -q -- /b/mpiexec -bind-to none -n 4 app -x",
            ),
            (
                Kind::OpenMpi,
                false,
                1,
                none,
                "/b/mpiexec --bind-to none --oversubscribe -n 1 app -x",
            ),
            (
                Kind::OpenMpi,
                true,
                2,
                each,
                "/b/mpiexec --bind-to none --oversubscribe --allow-run-as-root -n 2 \
                 evenkeel run -q -- app -x",
            ),
            (
                Kind::OpenMpi,
                false,
                4,
                whole,
                "evenkeel run -q -- /b/mpiexec --bind-to none --oversubscribe -n 4 app -x",
            ),
        ];
        for (kind, as_root, ranks, balanced, expected) in cases {
            let mpi = Mpi { kind, compiler: "/b/mpicc".into(), launcher: "/b/mpiexec".into() };
            let ranks = NonZeroU32::new(ranks).unwrap();
            assert_eq!(
                mpi.launch_as(as_root, ranks, balanced, &words("app -x")),
                words(expected),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn ranks_are_split_over_cpus() {
        let mpi = |kind| Mpi { kind, compiler: "/b/mpicc".into(), launcher: "/b/mpiexec".into() };
        let split =
            |kind, ranks: &[(u32, u32)]| mpi(kind).launch_pinned_as(true, ranks, &words("app -x"));
        assert_eq!(
            split(Kind::Mpich, &[(0, 3), (2, 0), (1, 5)]),
            words("/b/mpiexec -bind-to none -n 3 taskset -c 0 app -x : -n 5 taskset -c 1 app -x")
        );
        assert_eq!(
            split(Kind::OpenMpi, &[(1, 1)]),
            words(
                "/b/mpiexec --bind-to none --oversubscribe --allow-run-as-root -n 1 taskset -c 1 app -x"
            )
        );
    }

    #[test]
    fn a_compiler_that_refuses_is_quoted() {
        let directory = with(&[]);
        let mpi = |compiler: &str| Mpi {
            kind: Kind::Mpich,
            compiler: compiler.into(),
            launcher: "/bin/false".into(),
        };
        let refused = mpi("/bin/false").compile(CHORE_COUNTER, directory.path()).unwrap_err();
        assert!(refused.to_string().contains("libmpich-dev"), "{refused:#}");
        let absent = mpi("/no/mpicc").compile(CHORE_COUNTER, directory.path()).unwrap_err();
        assert!(absent.to_string().contains("cannot run /no/mpicc"), "{absent:#}");
        let nowhere = directory.path().join("absent");
        let unwritable = mpi("/bin/true").compile(CHORE_COUNTER, &nowhere).unwrap_err();
        assert!(unwritable.to_string().contains("cannot write"), "{unwritable:#}");
    }
}
