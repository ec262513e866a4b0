//! Programs of Debian's packages, with inputs of our own: made ready in a directory, where they leave
//! their files, too. `scripts/setup programs` installs the packages.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::launch::{Proof, Ready};
use crate::mpi::{Kind, Mpi, executable};

/// A melt of Lennard-Jones atoms for LAMMPS; `-var steps N` is the number of steps.
pub const MELT: &str = include_str!("../../programs/inputs/melt.lammps");
const ARGON_CELL: &str = include_str!("../../programs/inputs/argon.gro");
const ARGON_RULES: &str = include_str!("../../programs/inputs/argon.top");
const ARGON_RUN: &str = include_str!("../../programs/inputs/argon.mdp");
const HPCC: &str = include_str!("../../programs/inputs/hpccinf.txt");
const METAL: &str = include_str!("../../programs/inputs/metal.pwi");

/// Cells of argon in each direction: 10,976 atoms.
const ARGON_CELLS: usize = 14;
/// Steps of GROMACS and of LAMMPS: 2 to 4 s on two CPUs.
const ARGON_STEPS: usize = 3_600;
const MELT_STEPS: &str = "1200";

/// A program of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packaged {
    /// LAMMPS, MPI.
    Lammps,
    /// GROMACS, OpenMP (gcc's).
    Gromacs,
    /// The HPC Challenge, MPI.
    Hpcc,
    /// Quantum ESPRESSO's pw.x, MPI.
    QuantumEspresso,
}

impl Packaged {
    /// The package and its command.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Lammps => ("lammps", "lmp"),
            Self::Gromacs => ("gromacs", "gmx"),
            Self::Hpcc => ("hpcc", "hpcc"),
            Self::QuantumEspresso => ("quantum-espresso", "pw.x"),
        }
    }

    /// Writes its input into `directory`, for so many threads or ranks.
    ///
    /// # Errors
    /// The package is not here, or does not take the input.
    pub fn ready(self, directory: &Path, threads: usize) -> Result<Ready> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let (package, command) = self.names();
        let Some(command) = executable(command, &path) else {
            bail!("package {package} is not installed (scripts/setup programs)");
        };
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        let words = |arguments: &[&str]| -> Vec<OsString> {
            let arguments = arguments.iter().map(OsString::from);
            std::iter::once(command.clone().into_os_string()).chain(arguments).collect()
        };
        // Debian's are made for Open MPI.
        let of_ranks = |words, proof| -> Result<Ready> {
            let mpi = Mpi::find(Kind::OpenMpi)?;
            Ok(Ready { words, mpi: Some(mpi), directory: directory.to_owned(), proof })
        };
        match self {
            Self::Lammps => {
                write("melt.lammps", MELT)?;
                let arguments = ["-log", "none", "-var", "steps", MELT_STEPS, "-in", "melt.lammps"];
                of_ranks(words(&arguments), Proof::Output("Total wall time"))
            }
            Self::Gromacs => {
                let atoms = 4 * ARGON_CELLS.pow(3);
                write("cell.gro", ARGON_CELL)?;
                write("argon.top", &ARGON_RULES.replace("AR ATOMS", &format!("AR {atoms}")))?;
                let steps = format!("nsteps = {ARGON_STEPS}");
                write("argon.mdp", &ARGON_RUN.replace("nsteps          = STEPS", &steps))?;
                let cells = ARGON_CELLS.to_string();
                let fill = ["genconf", "-f", "cell.gro", "-o", "argon.gro", "-nbox"];
                prepare(directory, &words(&[&fill[..], &[cells.as_str(); 3]].concat()))?;
                let join =
                    ["grompp", "-f", "argon.mdp", "-p", "argon.top", "-c", "argon.gro", "-o"];
                prepare(directory, &words(&[&join[..], &["argon.tpr"]].concat()))?;
                // A thread-MPI rank with OpenMP threads, as many as OMP_NUM_THREADS says.
                let run = ["-nobackup", "mdrun", "-s", "argon.tpr", "-ntmpi", "1", "-noconfout"];
                Ok(Ready {
                    words: words(&run),
                    mpi: None,
                    directory: directory.to_owned(),
                    proof: Proof::File("md.log", "Finished mdrun"),
                })
            }
            Self::Hpcc => {
                let ranks = format!("{threads:<12}");
                write("hpccinf.txt", &HPCC.replace("RANKS        Qs", &format!("{ranks} Qs")))?;
                of_ranks(words(&[]), Proof::File("hpccoutf.txt", "Success=1"))
            }
            Self::QuantumEspresso => {
                write("metal.pwi", METAL)?;
                write("soft.upf", &pseudopotential())?;
                of_ranks(words(&["-in", "metal.pwi"]), Proof::Output("JOB DONE."))
            }
        }
    }
}

/// A pseudopotential of an ion of one electron, local only, in the Unified Pseudopotential Format: the
/// potential (in Ry) and the electrons of an atom are those of a charge that falls off with exp(-r / a).
fn pseudopotential() -> String {
    const POINTS: u32 = 401;
    /// In Bohr radii.
    const STEP: f64 = 0.025;
    const A: f64 = 0.9;
    let radii: Vec<f64> = (0..POINTS).map(|point| STEP * f64::from(point)).collect();
    let local = |r: f64| {
        if r == 0.0 { -1.0 / A } else { -2.0 * (1.0 - (1.0 + r / (2.0 * A)) * (-r / A).exp()) / r }
    };
    let density = |r: f64| r * r * (-r / A).exp() / (2.0 * A.powi(3));
    let field = |name: &str, value: &dyn Fn(f64) -> f64| {
        let values: Vec<String> = radii.iter().map(|r| format!("{:.12e}", value(*r))).collect();
        let lines: Vec<String> = values.chunks(4).map(|four| four.join(" ")).collect();
        format!(
            "<{name} type=\"real\" size=\"{POINTS}\" columns=\"4\">\n{}\n</{name}>\n",
            lines.join("\n")
        )
    };
    let (r, rab) = (field("PP_R", &|r| r), field("PP_RAB", &|_| STEP));
    let (local, density) = (field("PP_LOCAL", &local), field("PP_RHOATOM", &density));
    format!(
        "<UPF version=\"2.0.1\">\n<PP_INFO>\na soft ion of one electron\n</PP_INFO>\n\
         <PP_HEADER generated=\"evenkeel-lab\" author=\"\" date=\"\" comment=\"\" element=\"Na\" \
         pseudo_type=\"NC\" relativistic=\"no\" is_ultrasoft=\"F\" is_paw=\"F\" is_coulomb=\"F\" \
         has_so=\"F\" has_wfc=\"F\" has_gipaw=\"F\" core_correction=\"F\" functional=\"PZ\" \
         z_valence=\"1.0\" total_psenergy=\"0.0\" wfc_cutoff=\"0.0\" rho_cutoff=\"0.0\" l_max=\"0\" \
         l_max_rho=\"0\" l_local=\"-1\" mesh_size=\"{POINTS}\" number_of_wfc=\"0\" \
         number_of_proj=\"0\"/>\n<PP_MESH mesh=\"{POINTS}\">\n{r}{rab}</PP_MESH>\n{local}\
         <PP_NONLOCAL>\n</PP_NONLOCAL>\n<PP_PSWFC>\n</PP_PSWFC>\n{density}</UPF>\n"
    )
}

/// Runs a command that makes an input.
fn prepare(directory: &Path, words: &[OsString]) -> Result<()> {
    let (program, arguments) = words.split_first().context("a command needs a program")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    let name = program.display();
    let output = command.output().with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let end: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        bail!(
            "{name} {} does not take the input: {}",
            arguments.first().map_or_else(String::new, |first| first.display().to_string()),
            end[end.len().saturating_sub(4)..].join(" | ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_package_is_named_and_one_that_is_there_is_made_ready() {
        for program in
            [Packaged::Lammps, Packaged::Gromacs, Packaged::Hpcc, Packaged::QuantumEspresso]
        {
            let directory = tempfile::tempdir().unwrap();
            let (package, _) = program.names();
            match program.ready(directory.path(), 2) {
                Ok(ready) => assert_eq!(ready.directory, directory.path()),
                Err(why) => {
                    let why = format!("{why:#}");
                    let is_absent = why
                        == format!("package {package} is not installed (scripts/setup programs)");
                    assert!(is_absent || why.contains("openmpi-bin"), "{why}");
                }
            }
        }
    }

    #[test]
    fn the_pseudopotential_is_that_of_one_electron() {
        let text = pseudopotential();
        let values = |name: &str| -> Vec<f64> {
            let (_, rest) = text.split_once(&format!("<{name} ")).unwrap();
            let (_, rest) = rest.split_once('>').unwrap();
            let (body, _) = rest.split_once('<').unwrap();
            body.split_whitespace().map(|value| value.parse().unwrap()).collect()
        };
        let (r, local, density) = (values("PP_R"), values("PP_LOCAL"), values("PP_RHOATOM"));
        assert!(r.len() == 401 && local.len() == 401 && density.len() == 401);
        // Far away it is -2 / r Ry, near the ion it is continuous; the electrons are one.
        assert!((local[400] + 2.0 / r[400]).abs() < 1e-4, "{}", local[400]);
        assert!((local[0] - local[1]).abs() < 0.01, "{} {}", local[0], local[1]);
        let electrons: f64 = density.iter().map(|value| value * 0.025).sum();
        assert!((electrons - 1.0).abs() < 0.01, "{electrons}");
    }

    #[test]
    fn what_is_replaced_stands_in_the_inputs() {
        assert!(ARGON_RULES.contains("\nAR ATOMS\n"));
        assert!(ARGON_RUN.contains("\nnsteps          = STEPS\n"));
        assert!(HPCC.contains("\nRANKS        Qs\n"));
    }
}
