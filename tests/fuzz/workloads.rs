//! Workloads of the simulator: files of rt-app, and shapes with their numbers. What is accepted has no
//! more tasks than a simulation takes.

use evenkeel_machine::Machine;
use evenkeel_sim::program::Workload;
use evenkeel_sim::{MAX_TASKS, SHAPES};

use crate::target::{Target, no_repair, reason};

const WORKLOADS: Target = Target {
    name: "workloads",
    words: &["\"loop\": -1", "\"phases\"", "\"barrier\"", "tasks=", "rounds=", "ms", "0"],
    repair: no_repair,
    read,
};

fn read(kind: &str, text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    if kind == "json" {
        return is_workload(Workload::parse_rt_app(&text, "fuzz"));
    }
    let text = text.trim_end_matches('\n');
    // Any other text is the name of a file.
    SHAPES.iter().any(|(name, _, _)| text.split(':').next() == Some(name))
        && is_workload(Workload::by_name(text, 1))
}

fn is_workload(workload: Result<Workload, impl std::fmt::Display>) -> bool {
    match workload {
        Ok(workload) => {
            assert!(workload.tasks.len() <= MAX_TASKS);
            if let Err(why) = workload.check(&Machine::preset("small").unwrap()) {
                reason(why);
            }
            true
        }
        Err(why) => {
            reason(why);
            false
        }
    }
}

#[test]
fn a_text_gives_a_workload_within_the_limits_or_none() {
    WORKLOADS.fuzz();
}

#[test]
fn the_corpus_has_each_shape() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/fuzz/workloads");
    for (name, _, _) in SHAPES {
        let text = std::fs::read_to_string(format!("{folder}/{name}.shape")).unwrap();
        assert!(text.starts_with(&format!("{name}:")), "{name}: {text}");
    }
}
