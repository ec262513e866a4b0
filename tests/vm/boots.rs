//! Lists which tests run on which kernel and machine, boots these, and maps what the guests report to
//! named results.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_vm::{Acceleration, Guest, Initramfs, Job, Kernel, Machine, Topology};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::{
    Test, accepted, adversaries, card, demo, hotplug, interrupts, invariants, irqbalance, keel,
    kill_moments, policies, replay, sais, shield, support, unequal, units, user_level, users,
};

/// The argument before a test's name.
pub const TEST: &str = "test";

/// How long a test may take besides its duration. No guest that works is so slow that a test needs more.
const LIMIT_S: u64 = 360;
/// A load without an end of its own lasts this long, unless $EVENKEEL_SOAK_S gives seconds for all
/// tests of a boot together.
const DURATION_S: u64 = 6;
const SOAK: &str = "EVENKEEL_SOAK_S";

/// systemd takes a while, on a busy host minutes, until it starts the program that answers.
const SYSTEMD_SILENCE: Duration = Duration::from_secs(300);

/// A kernel on a machine, and the tests that want it.
struct Boot {
    /// What the tests' names begin with.
    name: &'static str,
    /// As tests/vm/kernels calls it.
    kernel: &'static str,
    topology: fn() -> Topology,
    execution: Execution,
    first: First,
    tests: &'static [&'static [Test]],
}

/// What the first process of a guest is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// This program.
    Own,
    /// systemd, which starts this program, and has the units of packaging/systemd.
    Systemd,
}

/// How a guest's CPUs are executed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Execution {
    /// As fast as the emulator can.
    Fastest,
    /// Instructions are counted: the clock of a guest with one CPU is exact, and slow.
    Counted,
}

/// The boot with an emulated network card in its guest.
const CARD: &str = "card";
/// The boot with Debian's irqbalance in its guest.
const IRQBALANCE: &str = "irqbalance";

static BOOTS: &[Boot] = &[
    // Debian 12's own kernel: it has no sched_ext.
    Boot {
        name: "6.1",
        kernel: "6.1",
        topology: || Topology::flat(3),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[user_level::TESTS, interrupts::SHORT, keel::WITHOUT, hotplug::TESTS, sais::OLD],
    },
    // The oldest one that the keel supports.
    Boot {
        name: "6.18",
        kernel: "6.18",
        topology: || Topology::numa(2, 2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[
            invariants::KERNEL,
            invariants::KEEL,
            invariants::CAPABILITY,
            keel::ACCEPTED,
            keel::SHORT,
            keel::LONG,
            keel::LOADED_OFTEN,
            keel::UNEQUAL_LONG,
            unequal::TESTS,
            user_level::TESTS,
            interrupts::SHORT,
            interrupts::TESTS,
        ],
    },
    // Apart, so that `make vm-test` can have both at once.
    Boot {
        name: "6.18-policies",
        kernel: "6.18",
        topology: || Topology::numa(2, 2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[
            accepted::SHORT,
            policies::TESTS,
            policies::STORMS,
            invariants::COMBINED,
            shield::TESTS,
            users::TESTS,
            kill_moments::TESTS,
            sais::TESTS,
            sais::ONCE,
        ],
    },
    Boot {
        name: "6.18-counted",
        kernel: "6.18",
        // Several CPUs would take turns. QEMU before 8.1 ends a turn only when the host does
        // something, and an idle CPU gets no interrupt before: neither ticks nor kicks would come
        // in time.
        topology: || Topology::flat(1),
        execution: Execution::Counted,
        first: First::Own,
        tests: &[
            invariants::KERNEL_EXACT,
            invariants::KEEL_EXACT,
            invariants::CAPABILITY_EXACT,
            replay::EXACT,
        ],
    },
    // In between: the user's level, and whether it accepts the keel. `make vm-kernels` has the rest.
    Boot {
        name: "7.0",
        kernel: "7.0",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[user_level::TESTS, keel::ACCEPTED, accepted::SHORT],
    },
    // The newest one.
    Boot {
        name: "7.2",
        kernel: "7.2",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[
            user_level::TESTS,
            interrupts::SHORT,
            keel::ACCEPTED,
            keel::SHORT,
            keel::NEWER,
            accepted::SHORT,
            accepted::NEWER,
            sais::TESTS,
        ],
    },
];

/// Only run when asked for: `make demo-vm`; by name and with `--ignored`, the other tapes; `make
/// vm-units`; `make vm-adversaries`; `make vm-irqbalance`; `make vm-card`; `make vm-kernels`, what
/// other tests do on some kernels only; `make vm-hotplug`; and `make vm-soak`, on four memory nodes with
/// one CPU each and with two.
static ON_DEMAND: &[Boot] = &[
    Boot {
        name: "demo",
        kernel: "6.18",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[demo::TESTS],
    },
    Boot {
        name: "replay",
        kernel: "6.18",
        topology: || Topology::flat(1),
        execution: Execution::Counted,
        first: First::Own,
        tests: &[replay::ON_DEMAND],
    },
    Boot {
        name: "units",
        kernel: "6.18",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Systemd,
        tests: &[units::TESTS],
    },
    Boot {
        name: "adversaries",
        kernel: "6.18",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[adversaries::TESTS],
    },
    Boot {
        name: IRQBALANCE,
        kernel: "6.18",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[irqbalance::TESTS],
    },
    Boot {
        name: CARD,
        kernel: card::KERNEL,
        topology: || Topology::flat(4),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[card::TESTS],
    },
    Boot {
        name: "kernels-6.1",
        kernel: "6.1",
        topology: || Topology::flat(3),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[interrupts::TESTS],
    },
    Boot {
        name: "kernels-6.18",
        kernel: "6.18",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[accepted::ALL],
    },
    Boot {
        name: "kernels-7.0",
        kernel: "7.0",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[
            interrupts::SHORT,
            interrupts::TESTS,
            keel::SHORT,
            keel::NEWER,
            accepted::ALL,
            sais::TESTS,
        ],
    },
    Boot {
        name: "kernels-7.2",
        kernel: "7.2",
        topology: || Topology::flat(2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[interrupts::TESTS, accepted::ALL],
    },
    Boot {
        name: "hotplug-6.18",
        kernel: "6.18",
        topology: || Topology::flat(3),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[keel::HOTPLUG],
    },
    Boot {
        name: "hotplug-7.0",
        kernel: "7.0",
        topology: || Topology::flat(3),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[keel::HOTPLUG],
    },
    Boot {
        name: "hotplug-7.2",
        kernel: "7.2",
        topology: || Topology::flat(3),
        execution: Execution::Fastest,
        first: First::Own,
        tests: &[keel::HOTPLUG],
    },
    Boot {
        name: "soak-4",
        kernel: "6.18",
        topology: || Topology::ring(4, 1),
        execution: Execution::Fastest,
        first: First::Own,
        tests: SOAKED,
    },
    Boot {
        name: "soak-8",
        kernel: "6.18",
        topology: || Topology::ring(4, 2),
        execution: Execution::Fastest,
        first: First::Own,
        tests: SOAKED,
    },
];

/// What `make vm-soak` runs: all storms under all combinations of policies, and before them under the
/// kernel's own scheduler. Where that one breaks a rule, the host starves the guest, and the keel is not
/// judged.
const SOAKED: &[&[Test]] = &[
    invariants::KERNEL,
    invariants::KEEL,
    invariants::CAPABILITY,
    invariants::SOAKED[0],
    invariants::SOAKED[1],
    invariants::SOAKED[2],
    invariants::SOAKED[3],
    invariants::SOAKED[4],
    policies::STORMS,
    keel::LOADED_OFTEN,
    kill_moments::TESTS,
];

impl Boot {
    fn tests(&self) -> impl Iterator<Item = &'static Test> {
        self.tests.iter().copied().flatten()
    }

    fn machine(&self) -> Result<Machine, evenkeel_vm::Error> {
        support::check_executables();
        let own = std::env::current_exe().unwrap();
        let kernel = Kernel::find(self.kernel)?;
        let mut initramfs = match self.first {
            First::Own => Initramfs::new(&own)?,
            First::Systemd => with_units(Initramfs::with_systemd(&own)?)?,
        };
        initramfs.program(Path::new(support::EVENKEEL))?;
        initramfs.program(Path::new(support::EVENKEEL_LAB))?;
        if self.name == IRQBALANCE {
            let fetched = evenkeel_vm::cache().join("irqbalance/usr/sbin/irqbalance");
            initramfs.program_as(&fetched, Path::new(irqbalance::INSTALLED))?;
        }
        if self.name == CARD {
            card::add_driver(&mut initramfs);
        }
        let acceleration = match (self.execution, Acceleration::fastest(&kernel, &own)?) {
            (Execution::Counted, _) => Acceleration::Counting,
            (_, fastest) => fastest,
        };
        let mut machine = Machine::new(kernel, (self.topology)(), initramfs, acceleration);
        if self.first == First::Systemd {
            machine.silence = SYSTEMD_SILENCE;
        }
        if self.name == CARD {
            machine.devices = card::arguments();
        }
        Ok(machine)
    }
}

/// Adds what `make install` installs for systemd.
fn with_units(mut initramfs: Initramfs) -> Result<Initramfs, evenkeel_vm::Error> {
    initramfs.program_as(Path::new(support::EVENKEEL), Path::new(units::INSTALLED))?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    for unit in ["evenkeel.service", "evenkeel-keel.service"] {
        let text = std::fs::read_to_string(folder.join(unit)).unwrap();
        initramfs.text(&format!("{}/{unit}", units::UNITS), &text);
    }
    Ok(initramfs)
}

/// Runs one test; called in the guest. `duration_s` is for loads without an end of their own.
pub fn run_in_guest(name: &str, duration_s: Option<&str>) {
    DURATION.set(duration_s.unwrap().parse().unwrap()).unwrap();
    let test = BOOTS.iter().chain(ON_DEMAND).flat_map(Boot::tests).find(|test| test.name == name);
    (test.unwrap_or_else(|| panic!("no test is called {name}")).run)();
}

static DURATION: OnceLock<u64> = OnceLock::new();

/// How long a load without an end of its own lasts; for tests in the guest.
pub fn duration() -> Duration {
    Duration::from_secs(*DURATION.get().unwrap())
}

/// Whether that is longer than in `make vm-test`; for tests in the guest.
pub fn soaks() -> bool {
    duration().as_secs() > DURATION_S
}

/// The guest that is running, and the name of its boot. One at a time in this process; `make
/// vm-test` runs two of these, because the CPUs of a guest wait for each other much of the time.
static RUNNING: Mutex<Option<(&str, Guest)>> = Mutex::new(None);

/// Runs the tests that the command line names.
pub fn run_on_host() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let soak_s: Option<u64> = std::env::var(SOAK).ok().map(|seconds| {
        seconds.parse().unwrap_or_else(|_| panic!("{SOAK} is no number of seconds"))
    });
    let mut trials = Vec::new();
    for (boots, on_demand) in [(BOOTS, false), (ON_DEMAND, true)] {
        for boot in boots {
            let each_s = |all_s: u64| all_s.div_ceil(boot.tests().count() as u64);
            let duration_s = soak_s.map_or(DURATION_S, each_s);
            trials.extend(boot.tests().map(|test| {
                let name = format!("vm::{}::{}", boot.name, test.name);
                let run = move || run_test(boot, test.name, duration_s);
                Trial::test(name, run).with_ignored_flag(on_demand)
            }));
        }
    }
    let outcome = libtest_mimic::run(&arguments, trials);
    drop(RUNNING.lock().unwrap_or_else(PoisonError::into_inner).take());
    show_times();
    outcome.exit_code()
}

/// What each test took, its guest's start included, in the order in which they ran.
static TIMES: Mutex<Vec<(&str, &str, Duration)>> = Mutex::new(Vec::new());

/// So many tests are shown with their times.
const SLOWEST: usize = 12;

/// Where the time went: there is a budget for it, which .ci/run holds.
fn show_times() {
    let mut times = std::mem::take(&mut *TIMES.lock().unwrap_or_else(PoisonError::into_inner));
    for boot in BOOTS.iter().chain(ON_DEMAND) {
        let of_boot: Vec<_> = times.iter().filter(|(name, ..)| *name == boot.name).collect();
        if !of_boot.is_empty() {
            let sum: Duration = of_boot.iter().map(|(_, _, time)| time).sum();
            println!("{}: {} tests in {} s", boot.name, of_boot.len(), sum.as_secs());
        }
    }
    times.sort_by_key(|(_, _, time)| std::cmp::Reverse(*time));
    for (boot, name, time) in times.iter().take(SLOWEST) {
        println!("{:4} s  {boot}::{name}", time.as_secs());
    }
}

fn run_test(boot: &'static Boot, name: &'static str, duration_s: u64) -> Result<(), Failed> {
    let start = Instant::now();
    let result = try_test(boot, name, duration_s).map_err(Failed::from);
    let took = (boot.name, name, start.elapsed());
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).push(took);
    // Printed at once: the end of all tests may be long after.
    if let Err(failed) = &result {
        println!("{}", failed.message().unwrap_or_default());
    }
    result
}

/// A sign of the emulator's own fault. A kernel patches itself whenever a scheduler comes or goes,
/// and has CPUs trap on what is being patched. In an emulator a CPU can still trap when that is
/// over, and the kernel does not know why. No scheduler can bring that about.
const EMULATOR_LATE: &str = "Oops: int3";
/// How often a test that lost its guest by that is begun again.
const MAX_LOST: usize = 2;

/// Runs a test in the guest of its boot, in another one if the emulator loses that.
fn try_test(boot: &'static Boot, name: &str, duration_s: u64) -> Result<(), String> {
    for _ in 0..MAX_LOST {
        match try_once(boot, name, duration_s) {
            Err(why) if why.contains(EMULATOR_LATE) => {
                println!("the emulator lost the guest ({EMULATOR_LATE}): {name} begins again");
            }
            other => return other,
        }
    }
    try_once(boot, name, duration_s)
}

fn try_once(boot: &'static Boot, name: &str, duration_s: u64) -> Result<(), String> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guest = match running.take() {
        Some((of, guest)) if of == boot.name => guest,
        other => {
            drop(other);
            boot.machine().and_then(|machine| machine.boot()).map_err(|error| error.to_string())?
        }
    };
    let shown = guest.console().len();
    // A second of the guest takes several of the host.
    let is_slow = boot.execution == Execution::Counted;
    let duration_s = if is_slow { duration_s.div_ceil(2) } else { duration_s };
    let command = ["/init", TEST, name, &duration_s.to_string()].map(str::to_owned).to_vec();
    let limit_s = (LIMIT_S + duration_s) as u32;
    // Without a guest, the next test boots another.
    let ending = guest.run(Job { command, limit_s }).map_err(|error| error.to_string())?;
    let console = guest.console().split_off(shown);
    if !ending.is_clean() {
        // What it left, such as a CPU that is off, would fail the next tests: they get another guest.
        return Err(format!("{ending}\n--- console\n{console}"));
    }
    *running = Some((boot.name, guest));
    // Shown with --nocapture, as `cargo test` does it.
    if std::env::args().any(|argument| argument == "--nocapture") {
        println!("{}", ending.stdout.trim_end());
    }
    match complaint(&console) {
        Some(line) => Err(format!("the kernel complains: {line}\n--- console\n{console}")),
        None => Ok(()),
    }
}

/// The line of the console in which the kernel reports a fault.
fn complaint(console: &str) -> Option<&str> {
    let words = ["BUG:", "WARNING:", "Oops", "blocked for more than", "detected stall"];
    console.lines().find(|line| words.iter().any(|word| line.contains(word)))
}
