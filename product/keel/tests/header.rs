//! `include/evenkeel.h`: a C program's requests are those of the control socket, and its return
//! values are the error numbers of the answers. Rust programs send the same requests.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use evenkeel_control::{Answer, AskError, Ias, Request, Server};
use evenkeel_keel::{Aggregation, allocation_request};
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use serde_json::json;

const PROGRAM: &str = r#"
#include <evenkeel.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	unsigned short roles[1024];

	if (argc > 2 && !strcmp(argv[1], "alloc")) {
		for (int at = 2; at < argc; at++)
			roles[at - 2] = (unsigned short)atoi(argv[at]);
		return -set_ias_alloc(roles, (unsigned int)argc - 2);
	}
	return -set_ias_agg(77, 1, 1, 18446744073709551615ULL, 5);
}
"#;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include")
}

/// Compiles the program for a socket in `dir`.
fn compile(dir: &Path) {
    std::fs::write(dir.join("program.c"), PROGRAM).unwrap();
    compile_file(dir, &dir.join("program.c"));
}

fn compile_file(dir: &Path, source: &Path) {
    let output = Command::new("cc")
        .args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O2"])
        .arg(format!("-DEVENKEEL_SOCKET=\"{}\"", dir.join("s").display()))
        .arg("-I")
        .arg(include())
        .arg(source)
        .arg("-o")
        .arg(dir.join("program"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Answers the program until it ends; its exit code, and what it asked.
fn serve(server: &mut Server, mut program: Child, answer: &Answer) -> (i32, Vec<Request>) {
    let mut asked = Vec::new();
    loop {
        if let Some(status) = program.try_wait().unwrap() {
            return (status.code().unwrap(), asked);
        }
        poll(&mut server.poll_fds(), PollTimeout::from(10_u8)).unwrap();
        server.serve(|_, request| {
            asked.push(request.clone());
            answer.clone()
        });
    }
}

#[test]
fn both_calls_send_a_request_and_return_its_errno() {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path());
    let run = |arguments: &[&str]| {
        Command::new(dir.path().join("program")).args(arguments).spawn().unwrap()
    };
    let alone = run(&[]).wait().unwrap();
    assert_eq!(alone.code(), Some(Errno::ENOENT as i32), "no keel runs");

    let mut server = Server::bind(&dir.path().join("s")).unwrap();
    let (code, asked) =
        serve(&mut server, run(&[]), &Answer::ok(json!({"roles": {}, "spaces": []})));
    assert_eq!(code, 0);
    let wanted = Request::new("ias_agg")
        .with("pid", 77)
        .with("agg", 1)
        .with("bonus_type", 1)
        .with("bonus_value", u64::MAX)
        .with("limit", 5);
    assert_eq!(asked, [wanted]);

    let refusal = Answer::refused(Errno::EPERM, "only root may set the roles of CPUs");
    let (code, asked) = serve(&mut server, run(&["alloc", "0", "1", "2", "3"]), &refusal);
    assert_eq!(code, Errno::EPERM as i32);
    assert_eq!(asked, [Request::new("ias_alloc").with("roles", vec![0, 1, 2, 3])]);
}

/// The example that comes with the header.
#[test]
fn the_example_compiles_and_works() {
    let dir = tempfile::tempdir().unwrap();
    compile_file(dir.path(), &include().join("examples/siblings.c"));
    let program = || Command::new(dir.path().join("program"));
    let alone = program().arg("77").output().unwrap();
    let said = String::from_utf8_lossy(&alone.stderr);
    assert_eq!(alone.status.code(), Some(1));
    assert_eq!(said, "the keel does not run; start it with: evenkeel sched --order ias\n");
    let mut server = Server::bind(&dir.path().join("s")).unwrap();
    let child = program().arg("77").spawn().unwrap();
    let (code, asked) = serve(&mut server, child, &Answer::ok(json!({})));
    assert_eq!(code, 0);
    let how = Aggregation { pid: 77, agg: 1, bonus_type: 1, bonus_value: 3, limit: 0 };
    assert_eq!(asked, [how.request()]);
}

/// The same two calls of Rust programs.
#[test]
fn rust_programs_send_the_same_requests() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let keel = Ias::at(&socket);
    assert!(matches!(keel.set_ias_alloc(&[0, 1]), Err(AskError::NoService { .. })));
    let mut server = Server::bind(&socket).unwrap();
    let caller = std::thread::spawn(move || {
        (keel.set_ias_agg(77, 1, 0, u64::MAX, 5), keel.set_ias_alloc(&[0, 1, 2, 3]))
    });
    let mut asked = Vec::new();
    while asked.len() < 2 || !caller.is_finished() {
        poll(&mut server.poll_fds(), PollTimeout::from(10_u8)).unwrap();
        server.serve(|_, request| {
            asked.push(request.clone());
            match request.req.as_str() {
                "ias_agg" => Answer::ok(json!({})),
                _ => Answer::refused(Errno::EPERM, "only root"),
            }
        });
    }
    let (agg, alloc) = caller.join().unwrap();
    assert!(agg.is_ok());
    assert!(matches!(alloc, Err(AskError::Refused { errno, .. }) if errno == Errno::EPERM as i32));
    let how = Aggregation { pid: 77, agg: 1, bonus_type: 0, bonus_value: u64::MAX, limit: 5 };
    assert_eq!(asked, [how.request(), allocation_request(&[0, 1, 2, 3])]);
}

#[test]
fn roles_for_the_maximum_number_of_cpus() {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path());
    let roles: Vec<String> = (0..1024).map(|_| "65535".to_owned()).collect();
    let mut server = Server::bind(&dir.path().join("s")).unwrap();
    let program =
        Command::new(dir.path().join("program")).arg("alloc").args(&roles).spawn().unwrap();
    let (code, asked) = serve(&mut server, program, &Answer::ok(json!({})));
    assert_eq!((code, asked.len()), (0, 1));
    assert_eq!(asked[0].args["roles"], json!(vec![65535; 1024]));
}
