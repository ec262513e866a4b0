//! docs/results/capability.md, from a report: a pure function of the JSON, without a date, so that the same
//! figures give the same page.

use std::fmt::{self, Write as _};

use super::CapabilityReport;
use super::cost;
use super::matrix::{Case, Contestant, Subject};

/// The page.
pub fn page(report: &CapabilityReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, report);
    text
}

fn write_page(text: &mut String, report: &CapabilityReport) -> fmt::Result {
    writeln!(text, "# Benchmarks: the capability balancer\n")?;
    writeln!(text, "Measured and written by `{}`; do not edit.\n", report.command)?;
    write!(text, "{}", report.report.machine.markdown())?;
    for sentence in &report.said {
        writeln!(text, "- {sentence}")?;
    }
    write!(text, "\n{KEEL}")?;
    writeln!(text, "\n## Results\n")?;
    write!(text, "{}", report.report.markdown())?;
    let against = report.report.against_pinning(Contestant::Lag.name());
    if !against.is_empty() {
        writeln!(text, "\n## Against pinning by hand\n")?;
        for line in against {
            writeln!(text, "- {line}")?;
        }
    }
    let costs = cost::lines(&report.own_cost, report.accounting_cost.as_ref());
    if !costs.is_empty() {
        writeln!(text, "\n## What it costs where there is nothing to gain\n")?;
        for line in costs.lines() {
            writeln!(text, "- {line}")?;
        }
    }
    write!(text, "\n{READING}")?;
    list(text, "Cases", report, |row| &row.case, &Case::ALL.map(|c| (c.name(), c.explanation())))?;
    list(
        text,
        "Programs",
        report,
        |row| &row.program,
        &Subject::ALL.map(|s| (s.name(), s.explanation())),
    )?;
    list(
        text,
        "Contestants",
        report,
        |row| &row.contestant,
        &Contestant::ALL.map(|c| (c.name(), c.explanation())),
    )
}

/// Where else to look. What is measured of the keel takes other commands.
const KEEL: &str = "\
The keel, which is a scheduler of its own, has its own pages, each by its own command:

- **all eight combinations of its policies on five workloads** (latency, throughput, turn-around time, \
migrations, switches of the address space): [paper 004, all eight \
combinations](004.md#all-eight-combinations)
- beside other schedulers: [the keel](keel.md)
- programs on unequal CPUs: [by capability](balance.md); threads that share their memory: \
[aggregation](ias.md)
";

const READING: &str = "\
## How to read it

Contestants run in turn (A B C A B C ...), so that what changes on the machine meets all of them \
alike, and are compared run by run. Times are of the whole command, from outside: the balancer's \
start counts. Runs that other programs disturbed (more than 5 % of the CPU time) are repeated. \
Rows that are undecided get more runs.

- *median s*: the median time.
- *vs default*: time under the kernel's scheduler alone / time, the median of the pairs, and its \
95 % interval: above 1 is faster. (With 5 runs the interval is the range, about 94 %.)
- *bound*: avg(C) / min(C) during the runs: how much faster than its slowest CPU a perfectly \
balanced program is. C, a CPU's capability, is the share of its time that interrupts, softirqs, \
real-time tasks and the hypervisor left (counted by cbinfo), times its relative speed; on a hog's \
CPU also times the share that the scheduler gives the program beside the hog, which is measured.
- *efficiency*: rate / rate at avg(C), with its 95 % interval: 1 is the bound of any balancer. The \
rate at avg(C) follows from the program undisturbed (pinned, without noise), run in each round.
- *verdict*: a paired t test on the logarithms of the ratios, corrected for the number of rows \
(Holm) and of looks: the chance of even one wrong *better* or *worse* in the table is 5 %.
- *moves*: tasks moved by the balancer in a run, the median.
";

/// The names of a column that occur, with what they mean.
fn list(
    text: &mut String,
    title: &str,
    report: &CapabilityReport,
    column: impl Fn(&crate::report::Row) -> &String,
    names: &[(&str, &str)],
) -> fmt::Result {
    writeln!(text, "\n{title}:\n")?;
    for (name, explanation) in names {
        if report.report.rows.iter().any(|row| column(row) == name) {
            writeln!(text, "- `{name}`: {explanation}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_machine_command_and_what_the_words_mean() {
        let report: CapabilityReport = serde_json::from_value(serde_json::json!({
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18", "accounting": "cbinfo"},
            "rows": [{
                "case": "hog", "program": "ep", "contestant": "default", "median_s": 2.5,
                "ci95": [2.4, 2.6], "vs_default": 1.0, "vs_default_ci95": [1.0, 1.0],
                "efficiency": null, "efficiency_ci95": null, "verdict": null,
                "foreign_pct": 0.1, "moves": 0.0, "runs": 5,
            }],
            "command": "evenkeel-lab bench capability --cases hog",
            "said": ["Case udp cannot be shown: no."],
            "own_cost": [{"program": "ep", "contestant": "lag", "own_cpu_pct": 0.05,
                "startup_cpu_ms": 20.0, "most_moves": 0, "runs": 5}],
        }))
        .unwrap();
        let text = page(&report);
        for part in [
            "written by `evenkeel-lab bench capability --cases hog`",
            "Machine: Test, 2 CPUs, Linux 6.18",
            "- accounting: cbinfo",
            "Case udp cannot be shown",
            "| hog | ep | default | 2.500 | 1.000 | - | - | - | 0 | 5 |",
            "lag at rest (ep, 5 runs): 0.050 % of one CPU",
            "- *bound*: avg(C) / min(C)",
            "](004.md#all-eight-combinations)",
            "- `hog`: another user's endless ordinary program",
            "- `default`: the kernel's scheduler alone",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains("`softirq`"), "explained without being there:\n{text}");
        let again = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(page(&again), text);
    }
}
