//! Loops under skewed weights: every type, step and bound, every construct, C and Fortran, and a
//! program under ThreadSanitizer.

use std::process::Command;

use evenkeel_shares::page::Effect;

use super::programs::*;

#[test]
fn bounds_by_weight_are_whole_and_all_else_is_the_runtimes() {
    let test = "bounds_by_weight_are_whole_and_all_else_is_the_runtimes";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = shares.compile("bounds.c", "bounds", &[]);
    for threads in ["2", "3", "7"] {
        let printed = Shares::output_of(shares.command(&program).args([threads, "3"]));
        assert!(figure(&printed, "different") > 100, "{printed}");
        assert_eq!(figure(&printed, "small_unmarked"), 0);
    }
    // A team of one runs every loop alone.
    let printed = Shares::output_of(shares.command(&program).args(["1", "2"]));
    assert_eq!(figure(&printed, "different"), 0);
    assert_eq!(shares.effect(), Effect::Divides);
}

#[test]
fn without_a_page_or_with_equal_weights_every_result_is_the_runtimes() {
    let test = "without_a_page_or_with_equal_weights_every_result_is_the_runtimes";
    let Some(mut shares) = Shares::new(test) else { return };
    let program = shares.compile("bounds.c", "bounds", &[]);
    let mut without_page = shares.plain(&program);
    without_page.env("LD_PRELOAD", preloaded()).args(["3", "2"]);
    assert_eq!(figure(&Shares::output_of(&mut without_page), "different"), 0);
    // No weights at all, weights of other CPUs, and equal ones.
    for step in 0..3 {
        match step {
            0 => {}
            1 => shares.page.set_weights([(1000, 5), (1001, 9)]),
            _ => shares.even(),
        }
        let printed = Shares::output_of(shares.command(&program).args(["3", "2"]));
        assert_eq!(figure(&printed, "different"), 0, "{step}");
    }
    let report = shares.report();
    assert_eq!((report.effect(), report.loops_divided), (Effect::Equal, 0));
    assert!(report.regions > 0);
}

#[test]
fn all_constructs_of_openmp_are_executed_as_written() {
    let test = "all_constructs_of_openmp_are_executed_as_written";
    let Some(shares) = Shares::with_weights(test) else { return };
    for level in ["-O0", "-O2"] {
        let program = shares.compile("constructs.c", "constructs", &[level]);
        let printed =
            Shares::output_of(shares.command(&program).arg("3").env("OMP_CANCELLATION", "true"));
        // The first thread is on a CPU of 300, at least one other on one of 1000.
        let first = figure(&printed, "first");
        assert!(first < 1600, "{printed}");
    }
    assert_eq!(shares.effect(), Effect::Divides);
}

#[test]
fn regions_that_are_forked_at_once_are_each_divided_alike() {
    let test = "regions_that_are_forked_at_once_are_each_divided_alike";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = shares.compile("nested.c", "nested", &[]);
    let printed = Shares::output_of(shares.command(&program).arg("5000"));
    // The first thread of the region is on a CPU of 300, the other one on one of 1000.
    assert!(figure(&printed, "first") < 80, "{printed}");
    assert_eq!(shares.effect(), Effect::Divides);
}

#[test]
fn loops_of_fortran_are_divided() {
    let test = "loops_of_fortran_are_divided";
    let Some(shares) = Shares::with_weights(test) else { return };
    let Some(flang) = flang() else {
        evenkeel_skip::skip(test, "there is no flang (scripts/setup fortran installs it)");
        return;
    };
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/host/shares");
    let pin_to = shares.compile("pin_to.c", "pin_to.o", &["-c"]);
    let program = shares.path("fortran");
    let mut compiler = Command::new(flang);
    compiler.args(["-O1", "-fopenmp"]).arg(format!("{folder}/loops.f90")).arg(pin_to);
    build(compiler.arg("-o").arg(&program));
    let plain = Shares::output_of(&mut shares.plain(&program));
    assert_eq!(figure(&plain, "first"), 500);
    let printed = Shares::output_of(&mut shares.command(&program));
    assert_eq!(figure(&printed, "first"), 231, "{printed}");
}

#[test]
fn loops_of_one_region_have_no_data_race() {
    let test = "loops_of_one_region_have_no_data_race";
    let Some(shares) = Shares::with_weights(test) else { return };
    let program = shares.compile("race.c", "race", &["-g", "-fsanitize=thread"]);
    let run = |mut command: Command, arguments: &[&str]| {
        // Archer would be the OpenMP runtime's tool instead of the library. The runtime itself is not
        // compiled for the sanitizer.
        command.env("ARCHER_OPTIONS", "enable=0");
        command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
        command.args(arguments).output().unwrap()
    };
    let probe = run(shares.plain(&program), &["3"]);
    if !probe.status.success() {
        let why = String::from_utf8_lossy(&probe.stderr).into_owned();
        evenkeel_skip::skip(test, format!("ThreadSanitizer does not work here: {why}"));
        return;
    }
    let output = run(shares.command(&program), &["200"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(shares.effect(), Effect::Divides);
    // That a race would be seen.
    let broken = run(shares.command(&program), &["20", "broken"]);
    assert!(String::from_utf8_lossy(&broken.stderr).contains("data race"), "{broken:?}");
}

/// `cargo test ... --ignored overhead` prints what a loop and a region cost.
#[test]
#[ignore = "measures; asserts nothing"]
fn overhead_of_a_loop_and_a_region() {
    let Some(mut shares) = Shares::with_weights("overhead_of_a_loop_and_a_region") else { return };
    let program = shares.compile("overhead.c", "overhead", &["-O2"]);
    for threads in ["2", "4", "16"] {
        let run = |mut command: Command| {
            // Threads that wait for each other sleep, so that they do not count as overhead.
            Shares::output_of(command.arg(threads).env("OMP_WAIT_POLICY", "passive"))
        };
        let plain = run(shares.plain(&program));
        shares.skew();
        let skewed = run(shares.command(&program));
        shares.even();
        let even = run(shares.command(&program));
        println!("{threads} threads, ns: plain {plain}; equal {even}; by weight {skewed}");
    }
}
