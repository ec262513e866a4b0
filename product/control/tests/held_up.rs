//! Processes that let each reader of their files in /proc wait: the product's readers do not wait.

// In a test a panic is the report, in its helpers too.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "common/fuse.rs"]
mod fuse;

use std::fs;
use std::process::{Child, Command};

use evenkeel_control::{Late, Lock, Program, guard_reads, instances, read_in_time};

use self::fuse::{Holder, Unanswered, in_time};

struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A holder, and the file that a plain read waits for. Each has a user of its own: of the user of a
/// process that is late nothing is read for a while.
fn holder(test: &str, user: u32, start: fn(Unanswered) -> Holder, file: &str) -> Option<Holder> {
    let server = match Unanswered::mount(user) {
        Ok(server) => server,
        Err(why) => {
            evenkeel_skip::skip(test, format!("no FUSE: {why}"));
            return None;
        }
    };
    let mut holder = start(server);
    holder.hold_up();
    let path = format!("/proc/{}/{file}", holder.pid());
    if holder.makes_wait(move || drop(fs::read(path))) {
        return Some(holder);
    }
    evenkeel_skip::skip(test, format!("this kernel reads {file} without waiting"));
    None
}

/// The processes of one of these programs, each with the program, if they are found in time.
fn running(names: [String; 2]) -> Vec<(String, u32)> {
    in_time(move || {
        let programs = names.map(|name| name.parse::<Program>().unwrap());
        let found = instances(&programs).into_iter();
        found.map(|(program, instance)| (program.to_string(), instance.pid)).collect()
    })
}

#[test]
fn no_reader_of_command_lines_is_held_up() {
    let test = "no_reader_of_command_lines_is_held_up";
    let Some(holder) = holder(test, 54_321, Holder::by_its_memory, "cmdline") else { return };
    let file = std::env::current_exe().unwrap().display().to_string();
    // The first one can be told by the command line only, so that of each process is asked for.
    let found = running(["/no/such/program".to_owned(), file.clone()]);
    assert!(found.contains(&(file, holder.pid() as u32)), "it is not found by its file");
}

#[test]
fn no_reader_is_held_up_by_a_call_of_exec() {
    let test = "no_reader_is_held_up_by_a_call_of_exec";
    let Some(holder) = holder(test, 54_322, Holder::by_exec, "stat") else { return };
    let pid = holder.pid();
    // It comes later in the sweep, and is found nevertheless.
    let other = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    let file = fs::read_link(format!("/proc/{}/exe", other.0.id())).unwrap().display().to_string();
    let found = running([file, "/no/such/program".to_owned()]);
    assert!(found.iter().any(|(_, found)| *found == other.0.id()), "{found:?}");
    guard_reads();
    for _ in 0..2 {
        let read = move || {
            read_in_time(Lock::Exec, pid, move || fs::read(format!("/proc/{pid}/stat")).is_ok())
        };
        assert_eq!(in_time(read), Err(Late));
    }
}
