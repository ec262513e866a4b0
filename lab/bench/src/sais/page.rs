//! The report as a page: a pure function of the JSON, without a date, so that the same figures give the
//! same page.

use std::fmt::{self, Write as _};

use super::aims;
use super::table::{self, SaisReport};

const READING: &str = "\
## How to read it

Two network namespaces with a cable between them; contestants take turns (A B C A B C ...), each in a \
network of its own, and are compared round by round. Before a run over the network is measured everybody \
has as long to warm up as `auto` needs to judge. Both ends share the CPUs of one machine: what one saves \
the other may use, and what one costs the other may lose.

- *MB/s*: the median. *vs first*: of the case, the median of the rounds' ratios, with its 95 % interval \
(the range, with fewer than 6 runs). *verdict*: a paired t test on the logarithms, corrected for the number \
of rows (Holm).
- *CPU-s/GB*: of both ends, the steering threads, and all interrupts and softirqs of the machine. One \
application in memory has one core with si-sais and two with si-irqbalance: what is saved shows here only.
- *at home*: of the strips, those whose last packet was processed on the core of who read it, by the \
kernel's word for the socket; of other programs, the packets whose consumer `sais` knows. *by core*: where \
it was processed, core by core.
- *steers*: in how many of the runs our program was on the device at their end: `auto` takes it off where \
it has no use for it.
- *predicted*: segments on TCP's fast path for expected headers. *resent*: the median of the runs. \
*disordered*: those that others overtook, by what TCP acknowledged (what follows a lost one was not \
overtaken), in all runs together.
- *foreign*: what other programs took of the machine meanwhile.
- *reached*: the whole interval is as wanted; *missed*: none of it is.
";

/// The page.
pub(super) fn page(report: &SaisReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_page(&mut text, report);
    text
}

fn write_page(text: &mut String, report: &SaisReport) -> fmt::Result {
    writeln!(text, "# Benchmarks: packets where their data is wanted\n")?;
    writeln!(text, "Measured and written by `{}`; do not edit.\n", report.command)?;
    write!(text, "{}", report.machine.markdown())?;
    if let Some(worst) = report.worst_foreign_pct() {
        writeln!(text, "- others, in the most disturbed row: {worst:.1} % of the CPU time")?;
    }
    writeln!(text, "- {}", table::times(&report.strip_times))?;
    for remark in report.remarks() {
        writeln!(text, "- {}", remark.replace('\n', " "))?;
    }
    if !report.aims.is_empty() {
        writeln!(text, "\n## Wanted\n")?;
        aims::table(&report.aims).markdown(text)?;
    }
    if !report.rows.is_empty() {
        writeln!(text, "\n## All figures\n")?;
        report.table().markdown(text)?;
        write!(text, "\n{READING}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_all_there_is() {
        let report: SaisReport = serde_json::from_value(serde_json::json!({
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18"},
            "command": "evenkeel-lab bench sais --json F",
            "strip_times": {"process_us": 5.0, "within_us": 3.0, "across_us": null, "hand_over_us": 8.0},
            "rows": [{
                "case": "c", "contestant": "auto", "mb_per_s": 1000.0, "vs_baseline": 1.5,
                "vs_baseline_ci95": [1.25, 1.75], "verdict": "better", "cpu_s_per_gb": 0.5,
                "traffic": null, "foreign_pct": 1.5, "runs": 7, "failed": null,
            }],
            "aims": [{"what": "w", "found": "f", "wanted": null, "reached": null}],
            "said": ["left\nout"],
        }))
        .unwrap();
        let page = page(&report);
        for part in [
            "by `evenkeel-lab bench sais --json F`",
            "most disturbed row: 1.5 %",
            "- A strip of 64 KiB: P = 5.00 us",
            "- left out\n",
            "| w | f | - | - |\n",
            "| c | auto | 1000 | 1.500 | 1.250 - 1.750 | better | 0.500 |",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
