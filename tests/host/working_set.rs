//! The paper's `cache` selection on the live host: evenkeel reads the working sets of a program's
//! processes, and the explanation of each move names them.

use std::io::Read;
use std::process::Stdio;

use crate::roles::role;
use crate::support::*;
use crate::worker::lines_of;

const MIB: usize = 1 << 20;

/// The role: references $TOUCH MiB of memory again and again, until the standard input ends.
pub fn toucher() {
    let mib: usize = std::env::var("TOUCH").unwrap().parse().unwrap();
    let mut memory = vec![1u8; mib * MIB];
    say("toucher", format!("{mib},{}", nix::unistd::gettid()));
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        for page in memory.chunks_mut(4096) {
            page[0] = std::hint::black_box(page[0]).wrapping_add(1);
        }
    }
}

/// The working sets (MiB) that were named when a task was moved.
fn named(said: &str, tid: &str) -> Vec<f64> {
    let of_task = said.lines().filter(|line| line.contains(&format!("moved task {tid} from")));
    let named =
        of_task.filter_map(|line| line.split_once("its working set is ")?.1.split_once(" MiB"));
    named.map(|(mib, _)| mib.parse().unwrap()).collect()
}

#[test]
fn two_processes_are_told_apart_by_their_working_sets() {
    let Some(_) = two_cpus("two_processes_are_told_apart_by_their_working_sets") else { return };
    for accounting in ["auto", "procfs"] {
        let host = Host::new();
        let flags =
            [&["--selection", "cache", "--explain", "--accounting", accounting], &EAGER[..]];
        let script = "exec 3<&0; TOUCH=8 \"$0\" \"$@\" <&3 & TOUCH=64 \"$0\" \"$@\" <&3 & wait";
        let program = [&["sh", "-c", script], &role("toucher")[..]].concat();
        let mut command = host.run(&flags.concat(), &program);
        command.env("EVENKEEL_TEST_ROLE", "toucher");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut evenkeel = command.spawn().unwrap();
        let explained = lines_of(evenkeel.stderr.take().unwrap());
        let touchers = lines_of(evenkeel.stdout.take().unwrap());
        let mut tids = [String::new(), String::new()];
        while tids.iter().any(String::is_empty) {
            let line = touchers.recv_timeout(PATIENCE).unwrap();
            let Some((_, said)) = line.split_once("@toucher=") else { continue };
            let (mib, tid) = said.split_once(',').unwrap();
            tids[usize::from(mib == "64")] = tid.to_owned();
        }
        let [small, large] = &tids;
        let mut said = String::new();
        wait_for("moves of both, each with its working set", || {
            said.extend(explained.try_iter().map(|line| line + "\n"));
            // On a busy machine not every interval is long enough to reference all of it.
            let is_large = named(&said, large).iter().any(|mib| *mib > 48.0);
            is_large && !named(&said, small).is_empty()
        });
        assert!(named(&said, small).iter().all(|mib| *mib < 32.0), "{said}");
        drop(evenkeel.stdin.take());
        assert!(ended(&mut evenkeel).success());
    }
}
