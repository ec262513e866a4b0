//! Which tests run on which kernel and machine; boots these, and maps what the guests say to named
//! results.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use evenkeel_vm::{Acceleration, Guest, Initramfs, Job, Kernel, Machine, Topology};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::{Test, hotplug, support, user_level};

/// The argument before a test's name.
pub const TEST: &str = "test";

/// No test takes that long in a guest that works, however slow it is.
const LIMIT_S: u32 = 240;

/// A kernel on a machine, and the tests that want it.
struct Boot {
    /// As tests/vm/kernels calls it.
    kernel: &'static str,
    topology: fn() -> Topology,
    tests: &'static [&'static [Test]],
}

/// Debian 12's own kernel for what needs no sched_ext.
static BOOTS: &[Boot] = &[Boot {
    kernel: "6.1",
    topology: || Topology::flat(3),
    tests: &[user_level::TESTS, hotplug::TESTS],
}];

impl Boot {
    fn tests(&self) -> impl Iterator<Item = &'static Test> {
        self.tests.iter().copied().flatten()
    }

    fn machine(&self) -> Result<Machine, evenkeel_vm::Error> {
        let own = std::env::current_exe().unwrap();
        let kernel = Kernel::find(self.kernel)?;
        let mut initramfs = Initramfs::new(&own)?;
        initramfs.program(Path::new(support::EVENKEEL))?;
        let acceleration = Acceleration::fastest(&kernel, &own)?;
        Ok(Machine::new(kernel, (self.topology)(), initramfs, acceleration))
    }
}

/// Runs one test; called in the guest.
pub fn run_in_guest(name: &str) {
    let test = BOOTS.iter().flat_map(Boot::tests).find(|test| test.name == name);
    (test.unwrap_or_else(|| panic!("no test is called {name}")).run)();
}

/// The guest that is running, and which boot it is of. One at a time: a guest keeps all CPUs busy.
static RUNNING: Mutex<Option<(usize, Guest)>> = Mutex::new(None);

/// Runs the tests that the command line names.
pub fn run_on_host() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for (index, boot) in BOOTS.iter().enumerate() {
        for test in boot.tests() {
            let name = format!("vm::{}::{}", boot.kernel, test.name);
            trials.push(Trial::test(name, move || run_test(index, test.name)));
        }
    }
    let outcome = libtest_mimic::run(&arguments, trials);
    drop(RUNNING.lock().unwrap_or_else(PoisonError::into_inner).take());
    outcome.exit_code()
}

fn run_test(index: usize, name: &str) -> Result<(), Failed> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut guest = match running.take() {
        Some((of, guest)) if of == index => guest,
        other => {
            drop(other);
            BOOTS[index].machine().and_then(|machine| machine.boot()).map_err(words)?
        }
    };
    let shown = guest.console().len();
    let command = ["/init", TEST, name].map(str::to_owned).to_vec();
    // Without a guest, the next test boots another.
    let ending = guest.run(Job { command, limit_s: LIMIT_S }).map_err(words)?;
    let console = guest.console().split_off(shown);
    *running = Some((index, guest));
    if !ending.is_clean() {
        return Err(format!("{ending}\n--- console\n{console}").into());
    }
    match complaint(&console) {
        Some(line) => Err(format!("the kernel complains: {line}\n--- console\n{console}").into()),
        None => Ok(()),
    }
}

fn words(error: evenkeel_vm::Error) -> Failed {
    error.to_string().into()
}

/// What a kernel says when something is wrong with it.
fn complaint(console: &str) -> Option<&str> {
    let words = ["BUG:", "WARNING:", "Oops", "blocked for more than", "detected stall"];
    console.lines().find(|line| words.iter().any(|word| line.contains(word)))
}
