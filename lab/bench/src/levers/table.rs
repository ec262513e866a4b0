//! The table of `bench programs`: noises, contestants, programs, and which contestant runs which of
//! them.

use evenkeel_experiment::Contestant;
use evenkeel_noise::NoiseKind;

use super::packaged::Packaged;
use crate::capability::Disturbance;
use crate::mpi::{self, Source};
use crate::programs::{self, Compiler};

/// Threads or ranks for each CPU, where there are more than one.
pub const THREADS_PER_CPU: u32 = 4;

/// A noise on one CPU.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    /// How it is made.
    pub disturbance: Disturbance,
    /// What it leaves of the CPU, in %, as it is known where the work is divided by hand.
    pub left_pct: u32,
    /// For the reader of a report.
    pub explanation: &'static str,
}

impl Noise {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.disturbance.name
    }
}

const fn noise(
    name: &'static str,
    noise: Option<(NoiseKind, u64, u64)>,
    left_pct: u32,
    explanation: &'static str,
) -> Noise {
    Noise { disturbance: Disturbance { name, noise }, left_pct, explanation }
}

/// All of them.
pub static NOISES: [Noise; 6] = [
    noise("none", None, 100, "nothing disturbs"),
    noise(
        "softirq-fine",
        Some((NoiseKind::Softirq, 40, 100)),
        60,
        "softirqs take 40 of every 100 us of one CPU, as a busy network card does",
    ),
    noise(
        "softirq",
        Some((NoiseKind::Softirq, 4_000, 10_000)),
        60,
        "softirqs take 4 of every 10 ms of one CPU",
    ),
    noise(
        "udp",
        Some((NoiseKind::Udp, 4_000, 10_000)),
        60,
        "UDP traffic; its receiving softirqs take 40 % of one CPU",
    ),
    noise(
        "fifo",
        Some((NoiseKind::Fifo, 5_000, 10_000)),
        50,
        "a real-time task takes 5 of every 10 ms of one CPU",
    ),
    Noise {
        disturbance: Disturbance::HOG,
        left_pct: 50,
        explanation: "another user's endless ordinary program on one CPU",
    },
];

/// What `evenkeel run` may use beside moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lever {
    /// Moves only.
    Moves,
    /// The iterations of loops.
    Shares,
    /// More threads than CPUs.
    Threads,
}

impl Lever {
    /// The options of `evenkeel run`.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Moves => &[],
            Self::Shares => &["--shares"],
            Self::Threads => &["--threads", "4"],
        }
    }
}

/// How a contestant runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// As it is.
    Kernel,
    /// Each thread or rank bound to a CPU.
    Pinned,
    /// By `evenkeel run`.
    Run(Lever),
    /// Divided by hand, for a noise that is known beforehand.
    ByHand,
}

/// The kernel alone, the baseline.
pub const DEFAULT: &str = "default";
/// `evenkeel run`.
pub const RUN: &str = "run";
/// The same with `--shares`.
pub const SHARES: &str = "run --shares";
/// The same with `--threads`.
pub const THREADS: &str = "run --threads 4";
/// The best split that does not change while the program runs.
pub const BY_HAND: &str = "by hand";

/// All of them, the baseline first.
pub fn contestants() -> Vec<Contestant<How>> {
    [
        (DEFAULT, "the kernel's scheduler alone", How::Kernel),
        (
            "pinned",
            "each thread bound to a CPU (OMP_PROC_BIND=true, OMP_PLACES=threads; each MPI rank by \
             taskset)",
            How::Pinned,
        ),
        (RUN, "`evenkeel run`, all defaults", How::Run(Lever::Moves)),
        (
            SHARES,
            "`evenkeel run --shares`: programs that clang compiled only",
            How::Run(Lever::Shares),
        ),
        (
            THREADS,
            "`evenkeel run --threads 4`; of an MPI program four ranks for each CPU are started. Not LU, \
             with threads that spin on flags of its own, not hpcc, with an input that fixes the ranks, \
             and not the loops with shares or ranks of their own",
            How::Run(Lever::Threads),
        ),
        (
            BY_HAND,
            "a fixed split, made by hand for what the noise leaves: of a program that clang compiled \
             the iterations (the library of `--shares` with fixed weights, threads pinned), of all \
             others four pinned threads or ranks for each CPU, 3 to 5 where a CPU has 60 %; of the \
             uneven loop a thread for each CPU, the first one where nothing disturbs. Not LU by gcc, \
             not hpcc, and not the MPI loop",
            How::ByHand,
        ),
    ]
    .map(|(name, explanation, how)| Contestant::new(name, explanation, how))
    .to_vec()
}

/// What a program is.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// The static loop: phases of equal work, with a barrier at the end of each.
    Loop {
        /// How many.
        phases: u32,
        /// What the first thread has to do more than every other, in %.
        more_pct: u32,
    },
    /// A kernel of NPB with OpenMP.
    OpenMp {
        /// Which.
        kernel: programs::Program,
        /// The compiler that built it.
        compiler: Compiler,
    },
    /// A kernel of NPB with MPI.
    Mpi(Source),
    /// Ranks of MPI with as much work each, and an allreduce after so much of it.
    MpiLoop {
        /// The work between two of them.
        phase_us: u32,
    },
    /// A program of a package.
    Package(Packaged),
}

/// A measured program.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub what: What,
    /// NPB's class; empty for others.
    pub class: &'static str,
    /// How often NPB's kernel is done from the start, so that a run takes 2 to 4 s here where the class
    /// allows it; of the loops, units of work for each CPU, about 1 ms of a core each.
    pub repeats: u32,
}

impl Program {
    /// Its first thread has more to do than the others.
    pub fn is_uneven(&self) -> bool {
        matches!(self.what, What::Loop { more_pct: 1.., .. })
    }

    /// Why a contestant does not run it, if so.
    pub fn why_not(&self, how: How) -> Option<&'static str> {
        let is_clang = matches!(self.what, What::OpenMp { compiler: Compiler::Clang, .. });
        let spins_itself = matches!(self.what, What::OpenMp { kernel: programs::Program::Lu, .. });
        let more_threads = || match self.what {
            What::MpiLoop { .. } => Some("each of its ranks brings work of its own"),
            _ if self.is_uneven() => Some("more threads share out what the first one has more"),
            _ if spins_itself => {
                Some("its threads spin on flags, with more threads than CPUs for ever")
            }
            What::Package(Packaged::Hpcc) => Some("its input fixes the number of ranks"),
            _ => None,
        };
        match how {
            How::Kernel | How::Pinned | How::Run(Lever::Moves) => None,
            How::Run(Lever::Shares) if is_clang => None,
            How::Run(Lever::Shares) => Some("no loops of LLVM's OpenMP runtime"),
            // Each thread has a CPU, the first one another than the noisy.
            How::ByHand if is_clang || self.is_uneven() => None,
            How::Run(Lever::Threads) | How::ByHand => more_threads(),
        }
    }
}

/// Each kernel in each class by both compilers, the class before the compilers.
macro_rules! openmp {
    ($($name:literal $kernel:ident: $($class:literal $repeats:literal),+;)+) => {
        [$($(
            Program {
                name: concat!($name, ".", $class, "-gcc"),
                what: What::OpenMp { kernel: programs::Program::$kernel, compiler: Compiler::Gcc },
                class: $class,
                repeats: $repeats,
            },
            Program {
                name: concat!($name, ".", $class, "-clang"),
                what: What::OpenMp { kernel: programs::Program::$kernel, compiler: Compiler::Clang },
                class: $class,
                repeats: $repeats,
            },
        )+)+]
    };
}

/// All programs, in the order of the report.
pub fn programs() -> Vec<Program> {
    let openmp = openmp! {
        "lu" Lu: "S" 1, "W" 2, "A" 1;
        "sp" Sp: "S" 1, "W" 3, "A" 1;
        "bt" Bt: "S" 1, "W" 5, "A" 1;
        "cg" Cg: "S" 1, "W" 30, "A" 6;
        "mg" Mg: "S" 1, "W" 50, "A" 7;
        "ft" Ft: "S" 1, "W" 60, "A" 4;
        "ep" Ep: "S" 1, "W" 12, "A" 2;
        "is" Is: "S" 1, "W" 200, "A" 18;
    };
    let mpi =
        |name, source, class, repeats| Program { name, what: What::Mpi(source), class, repeats };
    let package =
        |name, packaged| Program { name, what: What::Package(packaged), class: "", repeats: 1 };
    let static_loop = |name, phases| Program {
        name,
        what: What::Loop { phases, more_pct: 0 },
        class: "",
        repeats: LOOP_UNITS,
    };
    let uneven = Program {
        name: "loop.uneven",
        what: What::Loop { phases: UNEVEN_PHASES, more_pct: 30 },
        class: "",
        repeats: UNEVEN_PHASES * UNEVEN_HALVES / 2,
    };
    let mpi_loop = Program {
        name: "mpi_loop.100ms",
        what: What::MpiLoop { phase_us: 100_000 },
        class: "",
        repeats: LOOP_UNITS,
    };
    let others = [
        static_loop("loop.250ms", LOOP_UNITS / 250),
        static_loop("loop.500ms", LOOP_UNITS / 500),
        uneven,
        package("lammps", Packaged::Lammps),
        package("gromacs", Packaged::Gromacs),
        package("hpcc", Packaged::Hpcc),
        package("quantum-espresso", Packaged::QuantumEspresso),
        mpi("ep_mpi.A", mpi::EP, "A", 2),
        mpi("cg_mpi.A", mpi::CG, "A", 6),
        mpi_loop,
    ];
    openmp.into_iter().chain(others).collect()
}

/// Units of work of a loop for each CPU, about 1 ms of a core each.
const LOOP_UNITS: u32 = 3_000;
/// Phases of the uneven loop, and the units of work of each for each CPU, in halves: on two CPUs 13
/// units for the thread with more to do, and 10 for the other. Moving can follow no phase that is so
/// short, so it counts which thread has which CPU.
const UNEVEN_PHASES: u32 = 250;
const UNEVEN_HALVES: u32 = 23;

/// The static loop of one phase, by gcc, for 1.5 s on undisturbed CPUs.
pub fn static_loop() -> Program {
    Program {
        name: "static_loop",
        what: What::Loop { phases: 1, more_pct: 0 },
        class: "",
        repeats: LOOP_UNITS / 2,
    }
}

/// What the programs are, by the beginnings of their names.
pub const PROGRAMS: &str = "\
- *programs*: `lu`, `sp`, `bt`, `cg`, `mg`, `ft`, `ep`, `is` are our own kernels after the \
specification of the NAS Parallel Benchmarks, in the class behind the point, by the compiler behind the \
dash; `ep_mpi` and `cg_mpi` the same with MPI. Each run checks its result against the official \
verification values. `loop` is a static loop of equal shares, by gcc, with a barrier after each phase, \
which takes about the time behind the point on CPUs that nothing disturbs; in `loop.uneven` the \
first thread has 30 % more to do than every other, and by hand it is pinned to a CPU without noise. \
`mpi_loop` are ranks with as much work each, and an allreduce after so much of it. \
`lammps` (a melt of Lennard-Jones atoms), `gromacs` (liquid argon; it pins its \
threads itself where they are as many as CPUs), `hpcc` (all its tests, small) and `quantum-espresso` (a \
simple metal) are Debian's, with inputs of our own (lab/bench/programs). A thread, or a rank, for each \
CPU, where a contestant has no others.
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_have_their_class() {
        let programs = programs();
        let names: BTreeSet<&str> = programs.iter().map(|program| program.name).collect();
        assert_eq!(names.len(), programs.len());
        assert_eq!(programs.len(), 8 * 3 * 2 + 10);
        for program in programs.iter().filter(|program| !program.class.is_empty()) {
            assert!(program.name.contains(&format!(".{}", program.class)), "{}", program.name);
        }
    }

    #[test]
    fn the_noises_are_allowed_and_leave_what_they_do_not_take() {
        for noise in &NOISES {
            let Some((_, busy_us, period_us)) = noise.disturbance.noise else {
                assert_eq!((noise.name(), noise.left_pct), ("none", 100));
                continue;
            };
            if !noise.disturbance.is_hog() {
                assert_eq!(u64::from(100 - noise.left_pct) * period_us, 100 * busy_us);
            }
        }
    }

    #[test]
    fn levers_are_measured_where_they_can_act() {
        let runs = |program: &str| {
            let all = programs();
            let program = all.iter().find(|one| one.name == program).unwrap();
            let runs = contestants().into_iter().filter(|one| program.why_not(one.how).is_none());
            runs.map(|one| one.name).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(runs("lu.W-gcc"), "default, pinned, run");
        assert_eq!(runs("lu.A-clang"), "default, pinned, run, run --shares, by hand");
        assert_eq!(runs("sp.A-gcc"), "default, pinned, run, run --threads 4, by hand");
        assert_eq!(
            runs("sp.A-clang"),
            "default, pinned, run, run --shares, run --threads 4, by hand"
        );
        assert_eq!(runs("hpcc"), "default, pinned, run");
        assert_eq!(runs("lammps"), "default, pinned, run, run --threads 4, by hand");
        assert_eq!(runs("loop.uneven"), "default, pinned, run, by hand");
        assert_eq!(runs("mpi_loop.100ms"), "default, pinned, run");
    }
}
