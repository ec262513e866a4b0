//! Reading rt-app's files, and the errors for malformed ones.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, paper};
use evenkeel_machine::Machine;
use evenkeel_sim::program::{Op, Workload};
use proptest::prelude::*;

fn read(text: &str) -> Workload {
    Workload::parse_rt_app(text, "file").unwrap()
}

fn refused(text: &str) -> String {
    Workload::parse_rt_app(text, "file").unwrap_err().to_string()
}

#[test]
fn threads_phases_and_loops_become_ops() {
    let workload = read(
        r#"{
        /* comments, trailing commas and double names are all in rt-app's own examples */
        "tasks": {
            "simple": { "instance": 3, "loop": 2, "run": 100, "sleep": 50, "run": 7, },
            "phased": {
                "priority": -5, "cpus": [0, 2], "delay": 9,
                "phases": {
                    "one": { "loop": 4, "run1": 1, "timer0": { "ref": "unique", "period": 30 } },
                    "two": { "cpus": [2], "loop": -1, "yield": "" },
                },
            },
        },
        "global": { "duration": 2, "calibration": "CPU0", "default_policy": "SCHED_OTHER" },
    }"#,
    );
    assert_eq!(workload.duration_ns, 2_000 * MS);
    let names: Vec<&str> = workload.tasks.iter().map(|task| &*task.name).collect();
    assert_eq!(names, ["simple-0", "simple-1", "simple-2", "phased"]);
    assert_eq!(
        *workload.tasks[0].ops,
        [Op::Run(100_000), Op::Sleep(50_000), Op::Run(7_000), Op::Repeat { to: 0, times: 1 }]
    );
    let phased = &workload.tasks[3];
    assert_eq!((phased.nice, phased.arrives_ns), (-5, Some(9_000)));
    assert_eq!(phased.allowed.as_ref().unwrap().to_set().to_string(), "0,2");
    assert_eq!(
        phased.ops[..3],
        [Op::Run(1_000), Op::Timer { timer: 0, period_ns: 30_000 }, Op::Repeat { to: 0, times: 3 },]
    );
    assert_eq!(phased.ops[3], Op::Affinity(common::only(2).unwrap()));
    assert_eq!(phased.ops[4..], [Op::Yield, Op::Goto(4), Op::Goto(0)]);
}

#[test]
fn threads_that_wait_for_each_other_all_end() {
    let workload = read(
        r#"{ "tasks": {
            "a": { "loop": 3, "run": 1000, "resume": "b", "suspend" },
            "b": { "loop": 3, "suspend" , "run": 2000, "resume": "a" },
            "c": { "loop": 1, "lock": "m", "wait": { "ref": "cond", "mutex": "m" }, "unlock": "m",
                   "barrier": "end" },
            "d": { "loop": 1, "sleep": 5000, "lock": "m", "signal": "cond", "unlock": "m",
                   "barrier": "end" },
            "e": { "loop": 1, "fork": "f", "run": 10 },
            "f": { "loop": 1, "run": 20 }
        } }"#,
    );
    let mut sim = Sim::new(paper(4));
    sim.workload = workload;
    let outcome = sim.run();
    assert!(outcome.accounts.iter().all(|task| task.ended_ns.is_some()));
    assert_eq!(outcome.time_ns, 9 * MS, "a and b take turns: three times 3 ms");
    assert_eq!(outcome.accounts[3].ended_ns, Some(5 * MS));
}

/// Found by fuzzing: forks were once searched in a phase of zero rounds, and in the first instance of a
/// thread only.
#[test]
fn forks_are_resolved_in_all_instances_and_dropped_with_empty_phases() {
    let workload = read(
        r#"{ "tasks": {
            "d": { "loop": 1, "phases": { "p": { "loop": 0, "run": 5, "fork": "e" },
                                          "q": { "run": 7 } } },
            "e": { "instance": 2, "loop": 1, "run": 1, "fork": "f" },
            "f": { "loop": 1, "run": 2 }
        } }"#,
    );
    let ops = |task: usize| workload.tasks[task].ops.to_vec();
    assert_eq!(ops(0), [Op::Run(7_000)]);
    assert_eq!(ops(1), ops(2));
    assert_eq!(ops(2)[1], Op::Fork(3));
    let arrivals: Vec<_> = workload.tasks.iter().map(|task| task.arrives_ns.is_some()).collect();
    assert_eq!(
        arrivals,
        [true, true, true, false],
        "a thread that is never forked starts by itself"
    );
    let why = refused(
        "{ \"tasks\": { \"a\": { \"fork\": \"b\" }, \"b\": { \"instance\": 0, \"run\": 1 } } }",
    );
    assert!(why.contains("there is no thread \"b\" of one instance or more"), "{why}");
}

#[test]
fn a_timer_keeps_its_period() {
    let timed = r#"{ "tasks": { "t": { "loop": 5, "run": 2000,
        "timer": { "ref": "unique", "period": 10000, "mode": "relative" } } } }"#;
    let mut sim = Sim::new(paper(1));
    sim.workload = read(timed);
    // The timer begins with its first use, at 2 ms.
    assert_eq!(sim.run().time_ns, 52 * MS);
}

#[test]
fn a_cgroup_is_created_with_its_ancestors() {
    let workload = read(
        r#"{ "tasks": { "a": { "taskgroup": "/x/y", "loop": 1, "run": 1 },
                        "b": { "taskgroup": "/x", "loop": 1, "run": 1 } } }"#,
    );
    let groups: Vec<_> = workload.groups.iter().map(|g| (g.name.as_str(), g.parent)).collect();
    assert_eq!(groups, [("/x", 0), ("/x/y", 1)]);
    assert_eq!((workload.tasks[0].group, workload.tasks[1].group), (2, 1));
}

#[test]
fn errors_name_line_and_field() {
    for (text, expected) in [
        ("", "file:1: the file: expected an object with \"tasks\""),
        ("{\n\n  \"tasks\": {\n }}", "file:3: tasks: is empty"),
        ("{ \"task\": {} }", "file:1: task: is unknown"),
        ("{}", "file:1: tasks: is missing"),
        ("{ \"tasks\": { \"a\": 3 } }", "tasks.a: expected an object"),
        ("{ \"tasks\": {\n \"a\": { \"run\": -1 } } }", "file:2: tasks.a.run: expected a whole"),
        ("{ \"tasks\": { \"a\": { \"run\": 4000000000 } } }", "0 to 3600000000"),
        ("{ \"tasks\": { \"a\": { \"run\": 1.5 } } }", "tasks.a.run: expected a whole number"),
        ("{ \"tasks\": { \"a\": { \"mem\": 10 } } }", "tasks.a.mem: is not modelled"),
        ("{ \"tasks\": { \"a\": { \"exec\": 10 } } }", "format before rt-app 1.0"),
        ("{ \"tasks\": { \"a\": { \"dance\": 10 } } }", "tasks.a.dance: is no event"),
        ("{ \"tasks\": { \"a\": { \"priority\": 20 } } }", "-20 to 19"),
        ("{ \"tasks\": { \"a\": { \"policy\": \"SCHED_FIFO\" } } }", "SCHED_FIFO is not modelled"),
        ("{ \"tasks\": { \"a\": { \"cpus\": [1024] } } }", "CPU numbers below 1024"),
        ("{ \"tasks\": { \"a\": { \"cpus\": [] } } }", "CPU numbers below 1024"),
        ("{ \"tasks\": { \"a\": { \"instance\": 100001 } } }", "0 to 100000"),
        ("{ \"tasks\": { \"a\": { \"fork\": \"b\" } } }", "there is no thread \"b\""),
        ("{ \"tasks\": { \"a\": { \"timer\": { \"ref\": \"x\" } } } }", "expected a period"),
        ("{ \"tasks\": { \"a\": { \"wait\": { \"ref\": \"x\" } } } }", "both ref and mutex"),
        ("{ \"tasks\": { \"a\": { \"run\": 1, \"phases\": {} } } }", "expected within a phase"),
        ("{ \"tasks\": {\n\n \"a\": { ] } } }", "file:3: JSON: "),
    ] {
        let why = refused(text);
        assert!(why.contains(expected), "{text}\n{why}\n{expected}");
    }
}

#[test]
fn a_workload_that_names_missing_cpus_is_refused() {
    let workload = read("{ \"tasks\": { \"a\": { \"cpus\": [5], \"loop\": 1, \"run\": 1 } } }");
    let why = workload.check(&paper(2)).unwrap_err().to_string();
    assert_eq!(why, "workload file: task a may use CPUs 5; machine paper has 0-1");
    workload.check(&paper(6)).unwrap();
}

#[test]
fn a_machine_with_too_few_nodes_is_refused_with_one_that_has_enough() {
    let mut workload = read("{ \"tasks\": { \"a\": { \"loop\": 1, \"run\": 1 } } }");
    workload.tasks[0].home = Some(5);
    let small = paper(2);
    let why = |workload: &Workload| workload.check(&small).unwrap_err().to_string();
    let expected =
        "workload file: needs 6 nodes or more, and machine paper has 1; try --machine amc1";
    assert_eq!(why(&workload), expected);
    workload.check(&Machine::preset("amc1").unwrap()).unwrap();
    workload.name = "paper002:system=amc2".into();
    assert!(why(&workload).ends_with("; try --machine amc2"), "{}", why(&workload));
    workload.tasks[0].home = Some(999);
    let said = why(&workload);
    assert!(said.contains("1000 nodes") && said.ends_with("a machine file with as many"), "{said}");
}

/// Names of events and of other fields, and their values.
const NAME: &str = "(run|sleep|lock|unlock|wait|timer|suspend|resume|fork|barrier|cpus|loop|phases|x)\
                    [0-9]?";
const VALUE: &str = "(-?[0-9]{1,20}|\"[ab]\"|\\[[0-9,]{0,5}\\]|\
                     \\{\"ref\":\"a\",\"period\":5,\"mutex\":\"m\"\\}|\\{\"run\":1\\})";

proptest! {
    /// Any text gives a workload or an error, never a panic.
    #[test]
    fn no_text_breaks_the_reader(text in "[\\[\\]{}:,\"a-z0-9 \\n-]{0,200}") {
        let _ = Workload::parse_rt_app(&text, "file");
        let _ = Workload::by_name(&text, 1);
    }

    /// The same for texts that resemble workloads.
    #[test]
    fn no_workload_breaks_the_reader(
        events in prop::collection::vec((NAME, VALUE), 0..6),
    ) {
        let events: Vec<String> =
            events.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        let text = format!("{{ \"tasks\": {{ \"a\": {{ {} }} }} }}", events.join(", "));
        let _ = Workload::parse_rt_app(&text, "file");
    }
}
