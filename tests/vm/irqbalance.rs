//! `evenkeel irq run --take-over` beside Debian's irqbalance, which balances every second (`make
//! vm-irqbalance`).

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::Test;
use crate::interrupts::{Noise, end, irq_run, worker_at_home};
use crate::support::*;

pub const TESTS: &[Test] = &[Test {
    name: "irqbalance::it_leaves_moved_lines_alone_and_gets_them_back",
    run: it_leaves_moved_lines_alone_and_gets_them_back,
}];

/// Where it is in the guest.
pub const INSTALLED: &str = "/usr/sbin/irqbalance";

/// It looks at interrupts so many times while it must not move a line.
const ROUNDS: u64 = 8;

struct Irqbalance<'a> {
    host: &'a Host,
    child: Child,
}

impl<'a> Irqbalance<'a> {
    fn start(host: &'a Host, flags: &[&str]) -> Self {
        fs::create_dir_all(host.path("run/irqbalance")).unwrap();
        let mut command = host.command(INSTALLED);
        command.args(["--foreground", "--interval=1"]).args(flags).stdout(Stdio::null());
        let irqbalance = Self { host, child: command.spawn().unwrap() };
        wait_for("irqbalance", || irqbalance.answer().is_some());
        irqbalance
    }

    /// What it says of itself, once it listens.
    fn answer(&self) -> Option<String> {
        let name = format!("run/irqbalance/irqbalance{}.sock", self.child.id());
        let mut stream = UnixStream::connect(self.host.path(&name)).ok()?;
        stream.write_all(b"setup").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        Some(text)
    }

    fn setup(&self) -> String {
        self.answer().unwrap()
    }
}

impl Drop for Irqbalance<'_> {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn it_leaves_moved_lines_alone_and_gets_them_back() {
    let host = Host::new();
    let noise = Noise::start(&host);
    let worker = worker_at_home(&host);
    let irqbalance = Irqbalance::start(&host, &["--banirq=250"]);
    let refused = output(&mut host.evenkeel(["irq", "run"]));
    let said = text(&refused.stderr);
    let wanted = format!("irqbalance runs (process {})", irqbalance.child.id());
    assert!(refused.status.code() == Some(3) && said.contains(&wanted), "{refused:?}");

    // irqbalance may have it elsewhere already.
    noise.send_home();
    let run = irq_run(&host, worker.pid, &["--take-over"]);
    wait_for("the line to leave", || noise.has_left());
    let banned = format!("IRQ {} ", noise.line());
    assert!(irqbalance.setup().contains(&banned), "{}", irqbalance.setup());
    for _ in 0..ROUNDS {
        std::thread::sleep(Duration::from_secs(1));
        assert!(noise.has_left(), "irqbalance moved it to CPUs {}", noise.affinity());
    }
    let said = end(run);
    assert!(!said.contains("left alone") && said.contains("may move line"), "{said}");
    let setup = irqbalance.setup();
    assert!(!setup.contains(&banned) && setup.contains("IRQ 250 "), "{setup}");
    assert!(worker.end().success());
}
