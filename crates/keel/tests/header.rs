//! `include/evenkeel.h`: what a C program asks by it is what the control socket understands, and what
//! it hears is the answer's error number.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command};

use evenkeel_control::{Answer, Request, Server};
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

/// Compiles the program for a socket in `dir`.
fn compile(dir: &Path) {
    std::fs::write(dir.join("program.c"), PROGRAM).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let output = Command::new("cc")
        .args(["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O2"])
        .arg(format!("-DEVENKEEL_SOCKET=\"{}\"", dir.join("s").display()))
        .arg("-I")
        .arg(include)
        .arg(dir.join("program.c"))
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
fn both_calls_ask_and_hear() {
    let dir = tempfile::tempdir().unwrap();
    compile(dir.path());
    let run = |arguments: &[&str]| {
        Command::new(dir.path().join("program")).args(arguments).spawn().unwrap()
    };
    let alone = run(&[]).wait().unwrap();
    assert_eq!(alone.code(), Some(Errno::ENOENT as i32), "nobody is there");

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

#[test]
fn as_many_roles_as_there_may_be() {
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
