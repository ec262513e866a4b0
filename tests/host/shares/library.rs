//! The library's own file: what it shows to foreign programs, and that no code of it can panic there.

use std::collections::BTreeSet;
use std::process::Command;

use super::programs::*;
use crate::support::*;

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).arg(LIBRARY).output().unwrap();
    assert!(output.status.success(), "{program}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn the_library_shows_its_entry_points_only() {
    check_library();
    let listed = output_of("nm", &["-D", "--defined-only", "--format=just-symbols"]);
    let expected = [
        "__kmpc_for_static_init_4",
        "__kmpc_for_static_init_4u",
        "__kmpc_for_static_init_8",
        "__kmpc_for_static_init_8u",
        "ompt_start_tool",
    ];
    assert_eq!(listed.lines().collect::<BTreeSet<_>>(), BTreeSet::from(expected));
}

/// The function that a line of the disassembly begins, without its address.
fn function(line: &str) -> Option<&str> {
    line.strip_suffix(">:")?.split_once(" <").map(|(_, name)| name)
}

/// A panic would end a foreign program. The test looks at all functions that are compiled from this
/// project's sources; what they call of the standard library is in the same file.
#[test]
fn no_function_of_the_library_calls_a_panic() {
    check_library();
    let code = output_of("objdump", &["--disassemble", "--no-show-raw-insn", "--demangle"]);
    let (mut current, mut looked_at, mut calls) = ("", 0, 0);
    for line in code.lines() {
        if let Some(name) = function(line) {
            current = name;
            looked_at += usize::from(is_own(name));
        }
        // By x86 and by Arm.
        let is_jump =
            line.split_whitespace().any(|word| ["call", "jmp", "bl", "b"].contains(&word));
        calls += usize::from(is_jump && is_own(current));
        let panics = ["panic", "unwrap_failed", "expect_failed", "_fail>"];
        let is_panic = is_jump && panics.iter().any(|name| line.contains(name));
        assert!(!(is_panic && is_own(current)), "{current}: {line}");
    }
    assert!(looked_at > 20 && calls > 20, "{looked_at} functions, {calls} calls");
}

fn is_own(function: &str) -> bool {
    ["evenkeel_shares::", "__kmpc_", "ompt_start_tool"].iter().any(|name| function.contains(name))
}
