//! Programs on which the library has no effect, and how that is told before and after they start; and
//! programs that load their runtime out of its sight.

use std::path::Path;
use std::process::Command;

use evenkeel_shares::executable::{Outlook, inspect};
use evenkeel_shares::page::Effect;

use super::programs::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/host/shares");

/// Compiles with gcc.
fn compile_by_gcc(shares: &Shares, source: &str, flags: &[&str]) -> std::path::PathBuf {
    let path = shares.path("by_gcc");
    let mut gcc = Command::new("cc");
    gcc.args(["-O1", "-o"]).arg(&path).arg(format!("{FOLDER}/{source}")).args(flags);
    build(&mut gcc);
    path
}

#[test]
fn a_program_of_gcc_is_told_to_use_another_runtime() {
    let test = "a_program_of_gcc_is_told_to_use_another_runtime";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = compile_by_gcc(&shares, "steady.c", &["-fopenmp"]);
    let outlook = inspect(&program).unwrap();
    assert_eq!(outlook, Outlook::Absent { other_runtime: Some("libgomp.so.1".into()) });
    assert!(outlook.to_string().contains("--threads"));
    let mut command = shares.command(&program);
    command.arg("2");
    let mut steady = Steady::start(command);
    // It has no runtime of LLVM's, so it may be a launcher: its children find the library.
    assert!(steady.line().contains("libevenkeel_shares.so"));
    assert_eq!(steady.ask("run"), [500, 500]);
    steady.end();
    assert_eq!(shares.effect(), Effect::NoRuntime);
}

#[test]
fn a_static_program_runs_without_the_library() {
    let test = "a_static_program_runs_without_the_library";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = compile_by_gcc(&shares, "steady.c", &["-fopenmp", "-static"]);
    assert_eq!(inspect(&program).unwrap(), Outlook::StaticExecutable);
    let mut command = shares.command(&program);
    command.arg("2");
    let mut steady = Steady::start(command);
    steady.line();
    assert_eq!(steady.ask("run"), [500, 500]);
    steady.end();
    assert_eq!(shares.effect(), Effect::NotLoaded);
}

#[test]
fn the_object_that_begins_loops_is_named() {
    let Some(shares) = Shares::new("the_object_that_begins_loops_is_named") else { return };
    let program = shares.compile("race.c", "race", &[]);
    assert_eq!(inspect(&program).unwrap(), Outlook::Applies(program));
    // A library that the executable needs.
    let library = shares.compile("module.c", "libmodule.so", &["-fPIC", "-shared"]);
    let folder = library.parent().unwrap().to_str().unwrap();
    let source = shares.path("user.c");
    std::fs::write(&source, "int run_module(void);\nint main(void) { return run_module(); }\n")
        .unwrap();
    let user = shares.path("user");
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&user).arg(&source).args(["-L", folder, "-lmodule"]);
    build(cc.arg(format!("-Wl,-rpath,{folder}")));
    let Outlook::Applies(object) = inspect(&user).unwrap() else { panic!("{:?}", inspect(&user)) };
    assert_eq!(object.file_name(), library.file_name());
    // A runtime that is part of the executable.
    let fused = shares.path("fused");
    let text = "void __kmpc_for_static_init_4(void) {}\n\
        int main(void) { __kmpc_for_static_init_4(); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    build(Command::new("cc").arg("-o").arg(&fused).arg(&source));
    assert_eq!(inspect(&fused).unwrap(), Outlook::StaticRuntime(fused));
    assert_eq!(inspect(Path::new("/bin/true")).unwrap(), Outlook::Absent { other_runtime: None });
}

#[test]
fn a_runtime_that_is_loaded_late_and_privately_is_found() {
    let test = "a_runtime_that_is_loaded_late_and_privately_is_found";
    let Some(shares) = Shares::with_weights(test) else { return };
    let modules =
        ["one.so", "two.so"].map(|name| shares.compile("module.c", name, &["-fPIC", "-shared"]));
    let late = compile_by_gcc(&shares, "late.c", &["-ldl"]);
    assert_eq!(Shares::output_of(shares.plain(&late).args(&modules)), "500 500\n500 500\n");
    assert_eq!(Shares::output_of(shares.command(&late).args(&modules)), "231 769\n231 769\n");
    assert_eq!(shares.effect(), Effect::Divides);
}

#[test]
fn another_tool_of_the_runtime_has_precedence() {
    let test = "another_tool_of_the_runtime_has_precedence";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = shares.compile("bounds.c", "bounds", &[]);
    let tool = shares.compile("other_tool.c", "tool.so", &["-fPIC", "-shared"]);
    let mut preloaded_first = tool.clone().into_os_string();
    preloaded_first.push(":");
    preloaded_first.push(preloaded());
    let mut preloaded_last = preloaded();
    preloaded_last.push(":");
    preloaded_last.push(&tool);
    let environments = [
        ("OMP_TOOL_LIBRARIES", tool.into_os_string()),
        ("LD_PRELOAD", preloaded_first),
        ("LD_PRELOAD", preloaded_last),
    ];
    for (name, value) in environments {
        let printed =
            Shares::output_of(shares.command(&program).args(["2", "2"]).env(name, &value));
        assert!(printed.contains("tool saw regions: yes"), "{name}={value:?}: {printed}");
        assert_eq!(figure(&printed, "different"), 0);
        assert_eq!(shares.effect(), Effect::NoToolInterface);
    }
}

#[test]
fn without_a_tool_interface_nothing_is_divided() {
    let test = "without_a_tool_interface_nothing_is_divided";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = shares.compile("bounds.c", "bounds", &[]);
    let mut command = shares.command(&program);
    command.args(["2", "2"]).env("OMP_TOOL", "disabled");
    assert_eq!(figure(&Shares::output_of(&mut command), "different"), 0);
    assert_eq!(shares.effect(), Effect::NoToolInterface);
}

#[test]
fn a_program_under_address_sanitizer_runs() {
    let Some(shares) = Shares::with_weights("a_program_under_address_sanitizer_runs") else {
        return;
    };
    let program = shares.compile("steady.c", "steady", &["-fsanitize=address,undefined"]);
    let mut command = shares.command(program);
    command.arg("2").env("ASAN_OPTIONS", "detect_leaks=0");
    let mut steady = Steady::start(command);
    steady.line();
    assert_eq!(steady.ask("run"), [231, 769]);
    steady.end();
}
